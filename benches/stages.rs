//! The stages one by one: an object from raw bytes to its cleaned form and id, and a group of records into the log.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark, whose macros write undocumented functions")]

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

/// 500 different Pods of about 10 KB, as records.
fn records() -> Vec<Record> {
    const COUNT: usize = 500;
    const LEN: usize = 10_000;
    let cluster = Simulated::new(ClusterOptions::default());
    cluster.populate(COUNT * 4);
    let types = types();
    let pods: Vec<_> = cluster.list("pods").iter().map(|pod| scan::observe(&types, &pod.json()).unwrap()).collect();
    let objects: Vec<_> = pods.iter().filter_map(|pod| pod.object.clone().ok()).collect();
    // The simulator's Pods are smaller than many a real one: as many of them in one object as make it 10 KB.
    let mut next = objects.iter().cycle();
    let object = |_| {
        let mut object = Vec::from(*b"{\"items\":[");
        while object.len() < LEN - 1000 {
            object.extend_from_slice(next.next().unwrap());
            object.push(b',');
        }
        object.pop();
        object.extend_from_slice(b"]}");
        object
    };
    (0..COUNT).map(object).zip(1..).map(|(object, seq)| sample::record(seq, object)).collect()
}

/// A frame by itself: encode, append, sync; and read it back. Beside it what the disk can do at most with the same bytes.
fn frame(criterion: &mut Criterion) {
    let records = records();
    let bytes: Vec<u8> = records.iter().flat_map(|record| object(record).to_vec()).collect();
    let directory = tempfile::tempdir().unwrap();
    let mut log = BareLog::open(directory.path(), sample::LOG_ID).unwrap();
    let stored = log.append(records.clone()).unwrap();
    assert_eq!(log.read_first().unwrap(), records);
    println!("a frame of {} records: {} bytes of objects, {stored} in the file", records.len(), bytes.len());

    let mut raw = File::create(directory.path().join("raw")).unwrap();
    let mut append_raw = || {
        raw.write_all(&bytes).unwrap();
        raw.sync_data().unwrap();
    };
    let mut append = |records| log.append(records).unwrap();
    let mut group = criterion.benchmark_group("frame");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("append and sync the bytes as they are", |bencher| bencher.iter(&mut append_raw));
    group.bench_function(format!("append and sync a frame of {} records", records.len()), |bencher| {
        bencher.iter_batched(|| records.clone(), &mut append, BatchSize::PerIteration);
    });
    // In turn, so that a disk that is faster in one minute than in the next does not favour one of the two.
    let (mut of_raw, mut of_log) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..40 {
        let frame = records.clone();
        let start = Instant::now();
        append_raw();
        of_raw += start.elapsed();
        let start = Instant::now();
        append(frame);
        of_log += start.elapsed();
    }
    let percent = 100.0 * of_raw.as_secs_f64() / of_log.as_secs_f64();
    println!("append: {percent:.0} % of the raw speed ({:?} raw, {:?} a frame)", of_raw / 40, of_log / 40);
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
