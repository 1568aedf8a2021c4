//! The stages one by one: an object from raw bytes to its cleaned form and id, and a group of records into the log.

#![allow(missing_docs, reason = "the macros of criterion write undocumented functions")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark fails by panicking and prints its figures")]

use std::{
    fs::File,
    io::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kubetide::{
    change::{
        ObjectKey, Observed, ResourceVersion, TypeMeta,
        id::{self, Of},
        scan,
    },
    changelog::{BareLog, Changelog, Entry, Setup},
    clock::Clock,
    vitals::Vitals,
};
use kubetide_simulator::{Cluster as Simulated, ClusterOptions};
use kubetide_sink::{Body, Change, Record, Stream, sample};
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

fn types() -> TypeMeta {
    TypeMeta { kind: "Pod".into(), api_version: "v1".into() }
}

fn change(criterion: &mut Criterion) {
    let (stream, types, pod) = (pods(), types(), pod());
    let mut group = criterion.benchmark_group("change");
    group.throughput(Throughput::Bytes(pod.len() as u64));
    group.bench_function(format!("scan, clean and name a Pod of {} bytes", pod.len()), |bencher| {
        bencher.iter(|| {
            let observed = scan::observe(&types, &pod).unwrap();
            id::of_change(&stream, &observed.uid, &observed.version, Of::State, 0)
        });
    });
    group.bench_function("the same with serde_json, for comparison", |bencher| {
        bencher.iter(|| {
            let mut value: serde_json::Value = serde_json::from_slice(&pod).unwrap();
            value["metadata"].as_object_mut().unwrap().remove("managedFields");
            serde_json::to_vec(&value).unwrap()
        });
    });
    group.finish();
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
    let types = types();
    let pods = cluster.list("pods");
    let pods: Vec<_> = pods.iter().map(|pod| scan::observe(&types, &pod.json()).unwrap().object.unwrap()).collect();
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

/// Objects that have nothing in common: the worst that can come, such as Secrets' and certificates' contents alone.
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
    group.bench_function("append and sync the bytes as they are", |bencher| bencher.iter(&mut append_raw));
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
    println!("{what}: append at {percent:.0} % of raw ({:?} raw, {:?} a frame)", of_raw / TURNS, of_log / TURNS);
    group.bench_function("read the frame back", |bencher| bencher.iter(|| log.read_first().unwrap()));
    group.finish();
}

fn object(record: &Record) -> &[u8] {
    match &record.body {
        Body::Change(Change { object: Some(object), .. }) => object,
        _ => &[],
    }
}

fn append(criterion: &mut Criterion) {
    const GROUP: u64 = 100;
    let (stream, types, pod) = (pods(), types(), pod());
    let observed = scan::observe(&types, &pod).unwrap();
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
