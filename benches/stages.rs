//! The stages one by one: an object from raw bytes to its cleaned form and id, and a group of records into the log.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and its macros write undocumented functions"
)]

use std::{
    fs::File,
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kube::api::DynamicObject;
use kubetide::{
    change::{
        Cleaner, Cleaning, ObjectKey, Observed, RedactKey, ResourceVersion, Row, TypeMeta,
        compare::{self, Detail, Meaning, View},
        id::{self, Of},
        scan,
    },
    changelog::{BareLog, Changelog, Entry, Setup},
    clock::Clock,
    source::{answer::WatchEvent, lines::Line},
    vitals::Vitals,
};
use kubetide_simulator::{Cluster as Simulated, ClusterOptions};
use kubetide_sink::{Body, Change, Id, Record, Stream, sample};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

fn pods() -> Arc<Stream> {
    Arc::new(sample::stream("pods", "Pod"))
}

/// A Pod as the API server sends it, managedFields and all.
fn pod() -> Vec<u8> {
    let cluster = Simulated::new(ClusterOptions::default());
    cluster.populate(200);
    cluster.list("pods").iter().map(|pod| pod.json().to_vec()).max_by_key(Vec::len).unwrap()
}

fn cleaner(stream: &Stream) -> Cleaner {
    let cleaning = Cleaning { drop: vec![], redact: vec![], key: RedactKey::new(b"a key for benchmarks only") };
    cleaning.cleaner(stream, TypeMeta { kind: "Pod".into(), api_version: "v1".into() })
}

/// The same Pod a little later: a condition has changed.
fn later(pod: &[u8]) -> Vec<u8> {
    let mut value: serde_json::Value = serde_json::from_slice(pod).unwrap();
    value["metadata"]["resourceVersion"] = "999999999".into();
    let conditions = value["status"]["conditions"].as_array_mut().unwrap();
    let last = conditions.last_mut().unwrap();
    (last["status"], last["lastTransitionTime"]) = ("Unknown".into(), "2031-01-01T00:00:00Z".into());
    value.to_string().into_bytes()
}

/// What `work` takes at best. Rounds are equally long for all, so that a busy machine is no kinder to quick work than to slow.
fn best_of<T>(mut work: impl FnMut() -> T) -> f64 {
    const ROUND: Duration = Duration::from_millis(1);
    let mut round = || {
        let (start, mut times) = (Instant::now(), 0);
        while start.elapsed() < ROUND {
            for _ in 0..4 {
                std::hint::black_box(work());
            }
            times += 4;
        }
        start.elapsed().as_secs_f64() * 1e6 / f64::from(times)
    };
    (0..1000).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn change(criterion: &mut Criterion) {
    let (stream, pod) = (pods(), pod());
    let cleaner = cleaner(&stream);
    let line = [b"{\"type\":\"MODIFIED\",\"object\":", pod.as_slice(), b"}"].concat();
    let line = Line::Whole(line.into());
    let by_kube = || {
        let object: DynamicObject = serde_json::from_slice(&pod).unwrap();
        serde_json::to_vec(&object).unwrap()
    };
    let copied = || pod.clone();
    let scanned = || {
        let observed = scan::observe(&cleaner, &pod).unwrap();
        let id = id::of_change(&stream, &observed.uid, &observed.version, Of::State, 0);
        (observed, id)
    };
    let read = || WatchEvent::parse(&cleaner, &line).is_ok();

    // In the order of keys that the parser leaves, so that nothing but the status differs.
    let ordered: serde_json::Value = serde_json::from_slice(&pod).unwrap();
    let before = scan::observe(&cleaner, ordered.to_string().as_bytes()).unwrap();
    let after = scan::observe(&cleaner, &later(&pod)).unwrap();
    let row = Row {
        uid: before.uid.clone(),
        seen: before.version.clone(),
        logged: before.version.clone(),
        id: Id([0; 16]),
        seq: 1,
        since: 1,
        observed_at: jiff::Timestamp::UNIX_EPOCH,
        generation: before.generation,
        managed: before.managed.clone(),
        object: before.object.clone().ok(),
    };
    let detail = Detail::default();
    let compared = || compare::present(&stream, 0, Some(&row), after.clone(), View::Watch, &detail);
    let Meaning::Changes(drafts) = compared() else { panic!("a changed status is a change") };
    let paths = &drafts[0].change.difference.as_ref().unwrap().paths;
    assert_eq!(paths.len(), 2, "{paths:?}");

    let mut group = criterion.benchmark_group("change");
    group.throughput(Throughput::Bytes(pod.len() as u64));
    let size = pod.len();
    group.bench_function(format!("(a) DynamicObject decode and serde_json encode of a Pod of {size} bytes"), |b| {
        b.iter(by_kube);
    });
    group.bench_function("(b) memcpy of the same bytes", |b| b.iter(copied));
    group.bench_function("scan, clean and id of it", |b| b.iter(scanned));
    group.bench_function("the same from the line of a watch", |b| b.iter(read));
    group.bench_function("compare and patch of a status change in it", |b| b.iter(compared));
    group.finish();

    let cleaned = best_of(|| scan::observe(&cleaner, &pod));
    let (by_kube, copied, scanned) = (best_of(by_kube), best_of(copied), best_of(scanned));
    let (read, compared) = (best_of(read), best_of(compared));
    println!("(a) {by_kube:.1} us, (b) {copied:.2} us");
    for (name, took, target) in [
        ("scan and clean", cleaned, "20 times as fast as (a)"),
        ("scan, clean and id", scanned, "none"),
        ("from a watch line", read, "none"),
        ("compare and patch", compared, "twice as fast as (a)"),
    ] {
        let (faster, slower) = (by_kube / took, took / copied);
        println!("{name}: {took:.2} us = {faster:.1} times as fast as (a), {slower:.1} times (b); target: {target}");
    }
}

/// How many records a frame has here, and how long their objects are.
const RECORDS: usize = 500;
const OBJECT_LEN: usize = 10_000;

/// Hex digits that nothing can compress below half.
fn hex(random: &mut StdRng, len: usize) -> String {
    (0..len).map(|_| char::from(b"0123456789abcdef"[random.random_range(0..16)])).collect()
}

/// Objects like a Pod of a real cluster: the simulator's Pods, which are smaller and more alike, several in one, and in each what
/// no two Pods share: uids, container ids and image digests, twelve times 64 digits as with three containers.
fn like_pods() -> Vec<Record> {
    let mut random = StdRng::seed_from_u64(1);
    let cluster = Simulated::new(ClusterOptions::default());
    cluster.populate(RECORDS * 4);
    let cleaner = cleaner(&pods());
    let pods = cluster.list("pods");
    let pods: Vec<_> = pods.iter().map(|pod| scan::observe(&cleaner, &pod.json()).unwrap().object.unwrap()).collect();
    let mut next = pods.iter().cycle();
    let mut object = || {
        let ids: Vec<_> = (0..12).map(|_| hex(&mut random, 64)).collect();
        let mut object = format!("{{\"ids\":{ids:?},\"items\":[").into_bytes();
        while object.len() < OBJECT_LEN - pods[0].len() / 2 {
            object.extend_from_slice(next.next().unwrap());
            object.push(b',');
        }
        object.pop();
        object.extend_from_slice(b"]}");
        object
    };
    (1..=RECORDS as u64).map(|seq| sample::record(seq, object())).collect()
}

/// Objects that have nothing in common: the worst that can come, such as the contents of Secrets and certificates alone.
fn like_nothing() -> Vec<Record> {
    let mut random = StdRng::seed_from_u64(2);
    (1..=RECORDS as u64).map(|seq| sample::record(seq, hex(&mut random, OBJECT_LEN))).collect()
}

/// A frame by itself: encode, append, sync; and read it back. Beside it what the disk can do at most with the same bytes.
fn frame(criterion: &mut Criterion) {
    for (what, records) in [("Pods", like_pods()), ("noise", like_nothing())] {
        frame_of(criterion, what, &records);
    }
}

fn frame_of(criterion: &mut Criterion, what: &str, records: &[Record]) {
    const TURNS: u32 = 40;
    let bytes: Vec<u8> = records.iter().flat_map(|record| object(record).to_vec()).collect();
    let directory = tempfile::tempdir().unwrap();
    let mut log = BareLog::open(directory.path(), sample::LOG_ID).unwrap();
    let stored = log.append(records.to_vec()).unwrap();
    assert_eq!(log.read_first().unwrap(), records);
    println!("{what}: a frame of {RECORDS} records has {} bytes of objects, {stored} in the file", bytes.len());

    let mut raw = File::create(directory.path().join("raw")).unwrap();
    let mut append_raw = || {
        raw.write_all(&bytes).unwrap();
        raw.sync_data().unwrap();
    };
    let mut append = |records| log.append(records).unwrap();
    let mut group = criterion.benchmark_group(format!("frame of {RECORDS} records, {what}"));
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("(c) append and sync the bytes as they are", |bencher| bencher.iter(&mut append_raw));
    group.bench_function("append and sync the frame", |bencher| {
        bencher.iter_batched(|| records.to_vec(), &mut append, BatchSize::PerIteration);
    });
    // In turn, so that a disk that is faster in one minute than in the next does not favour one of the two.
    let (mut of_raw, mut of_log) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TURNS {
        let frame = records.to_vec();
        let start = Instant::now();
        append_raw();
        of_raw += start.elapsed();
        let start = Instant::now();
        append(frame);
        of_log += start.elapsed();
    }
    let percent = 100.0 * of_raw.as_secs_f64() / of_log.as_secs_f64();
    let (raw, framed) = (of_raw / TURNS, of_log / TURNS);
    println!("{what}: append at {percent:.0} % of (c), target 45 ({raw:?} raw, {framed:?} a frame)");
    let plain = directory.path().join("plain");
    std::fs::write(&plain, &bytes).unwrap();
    let read_plain = || std::fs::read(&plain).unwrap();
    let read = || log.read_first().unwrap();
    assert_eq!(read_plain(), bytes);
    group.bench_function("(d) read a file of the bytes as they are", |bencher| bencher.iter(read_plain));
    group.bench_function("read the frame back", |bencher| bencher.iter(read));
    group.finish();
    // In turn as well. What is read is freed outside: it is not part of reading.
    let (mut of_plain, mut of_log) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..TURNS {
        let start = Instant::now();
        let read_bytes = read_plain();
        of_plain += start.elapsed();
        let start = Instant::now();
        let read_records = read();
        of_log += start.elapsed();
        std::hint::black_box((read_bytes, read_records));
    }
    let per_second = |took: Duration| bytes.len() as f64 / took.as_secs_f64() / 1e6;
    let (plain, framed) = (of_plain / TURNS, of_log / TURNS);
    let (plain_rate, framed_rate) = (per_second(plain), per_second(framed));
    let percent = 100.0 * of_plain.as_secs_f64() / of_log.as_secs_f64();
    println!(
        "{what}: read back at {percent:.0} % of (d), target none ({plain:?} = {plain_rate:.0} MB/s plain, \
         {framed:?} = {framed_rate:.0} MB/s of objects a frame; mean of {TURNS} turns, page cache warm)"
    );
}

fn object(record: &Record) -> &[u8] {
    match &record.body {
        Body::Change(Change { object: Some(object), .. }) => object,
        _ => &[],
    }
}

fn append(criterion: &mut Criterion) {
    const GROUP: u64 = 100;
    let (stream, pod) = (pods(), pod());
    let observed = scan::observe(&cleaner(&stream), &pod).unwrap();
    let bytes = observed.object.as_ref().unwrap().len() as u64;
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let log = Changelog::open(directory.path(), Setup::of("c-1"), Clock::system(), &Vitals::new()).unwrap();
    let mut version = 1;
    let mut group = criterion.benchmark_group("changelog");
    group.throughput(Throughput::Bytes(bytes * GROUP));
    group.bench_function(format!("append {GROUP} updates durably"), |bencher| {
        bencher.iter(|| {
            runtime.block_on(async {
                let appender = log.appender();
                for index in 0..GROUP {
                    version += 1;
                    let key = ObjectKey { namespace: "default".into(), name: format!("pod-{index}") };
                    let version = ResourceVersion::new(version.to_string());
                    appender
                        .append(&stream, Entry::Present(Observed { key, version, ..observed.clone() }))
                        .await
                        .unwrap();
                }
                appender.flush().await.unwrap();
            });
        });
    });
    group.finish();
    log.close().unwrap();
}

criterion_group! {
    name = stages;
    config = Criterion::default().warm_up_time(Duration::from_secs(1)).measurement_time(Duration::from_secs(4)).sample_size(20);
    targets = change, frame, append
}
criterion_main!(stages);
