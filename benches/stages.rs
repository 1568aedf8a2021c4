//! The stages one by one: an object from raw bytes to its cleaned form and id, and a group of records into the log.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark, whose macros write undocumented functions")]

use std::{sync::Arc, time::Duration};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kubetide::{
    change::{
        ObjectKey, Observed, ResourceVersion, TypeMeta,
        id::{self, Of},
        scan,
    },
    changelog::{Changelog, Entry, Setup},
    clock::Clock,
    vitals::Vitals,
};
use kubetide_simulator::{Cluster as Simulated, ClusterOptions};
use kubetide_sink::{Stream, sample};

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
    targets = change, append
}
criterion_main!(stages);
