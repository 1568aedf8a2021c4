//! A log that is full before any sink reads it: Pods and ConfigMaps of the simulated cluster, each created and then changed again
//! and again.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use kubetide::{
    change::{Cleaner, Cleaning, RedactKey, TypeMeta, scan},
    changelog::{Changelog, Entry, Setup},
    clock::Clock,
    delivery::{Batcher, Limits},
    vitals::Vitals,
};
use kubetide_simulator::{Cluster, ClusterOptions};
use kubetide_sink::{Batch, Record, Stream, format, sample};
use tempfile::TempDir;
use tokio::time::Instant;

/// About as many: a touch that changes nothing is no record.
const RECORDS: usize = 30_000;
/// Groups of objects, which are touched in turn. So no object comes twice within any batch.
const GROUPS: usize = 500;
/// A group is a Pod and so many ConfigMaps: the mean of all records is about 4 KB then.
const CONFIG_MAPS: usize = 5;

pub(crate) struct FullLog {
    pub(crate) log: Changelog,
    /// How many bytes a record has in the native format, at the median of all.
    pub(crate) bytes_per_record: f64,
    _directory: TempDir,
}

/// What objects of one kind are cleaned by, and the stream they are in.
pub(crate) struct Source {
    resource: &'static str,
    pub(crate) stream: Arc<Stream>,
    cleaner: Cleaner,
}

impl Source {
    pub(crate) fn new(resource: &'static str, kind: &str) -> Self {
        let stream = Arc::new(sample::stream(resource, kind));
        let cleaning = Cleaning { drop: vec![], redact: vec![], key: RedactKey::new(b"a key for benchmarks only") };
        let cleaner = cleaning.cleaner(&stream, TypeMeta { kind: kind.into(), api_version: "v1".into() });
        Self { resource, stream, cleaner }
    }

    pub(crate) fn entry(&self, object: &Bytes) -> Entry {
        Entry::Present(scan::observe(&self.cleaner, object).unwrap())
    }
}

pub(crate) fn open(directory: &TempDir) -> Changelog {
    Changelog::open(directory.path(), Setup::of("c-1"), Clock::system(), &Vitals::new()).unwrap()
}

/// Namespace and name.
pub(crate) type Name = (String, String);

/// A cluster, and the names of Pods and ConfigMaps in it.
pub(crate) fn cluster() -> (Cluster, Vec<Name>, Vec<Name>) {
    let cluster = Cluster::new(ClusterOptions::default());
    // Half of it are Pods.
    cluster.populate(2 * GROUPS + 200);
    cluster.populate_config_maps(GROUPS * CONFIG_MAPS);
    let names = |resource: &str| {
        cluster.list(resource).iter().map(|item| (item.namespace().to_owned(), item.name().to_owned())).collect()
    };
    let (pods, config_maps) = (names("pods"), names("configmaps"));
    (cluster, pods, config_maps)
}

impl FullLog {
    pub(crate) async fn write() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let [of_pods, of_config_maps] = [Source::new("pods", "Pod"), Source::new("configmaps", "ConfigMap")];
        let (cluster, pods, config_maps) = cluster();
        let groups = pods.iter().zip(config_maps.chunks_exact(CONFIG_MAPS)).take(GROUPS);
        let objects: Vec<(&Source, &Name)> = groups
            .flat_map(|(pod, maps)| {
                std::iter::once((&of_pods, pod)).chain(maps.iter().map(|map| (&of_config_maps, map)))
            })
            .collect();
        let log = open(&directory);
        let appender = log.appender();
        for round in 0..RECORDS / objects.len() {
            for (source, (namespace, name)) in &objects {
                if round > 0 {
                    cluster.touch(source.resource, namespace, name).unwrap();
                }
                let object = cluster.get(source.resource, namespace, name).unwrap();
                appender.append(&source.stream, source.entry(&object)).await.unwrap();
            }
        }
        appender.flush().await.unwrap();
        drop(appender);
        log.close().unwrap();
        // Opened anew, so that nothing of it is in memory but what the kernel keeps of its files.
        let log = open(&directory);
        assert!(log.head() > RECORDS as u64 * 9 / 10, "{} records are too few", log.head());
        let mut full = Self { log, bytes_per_record: 0.0, _directory: directory };
        let records = full.records().await;
        let mut out = Vec::new();
        records.iter().for_each(|record| format::native(record, &mut out));
        full.bytes_per_record = out.len() as f64 / records.len() as f64;
        full
    }

    pub(crate) fn description(&self) -> String {
        let (records, kb) = (self.last(), self.bytes_per_record / 1000.0);
        format!("a log of {records} records of Pods and ConfigMaps, {kb:.1} KB each in the native format")
    }

    /// The seq of the last record.
    pub(crate) fn last(&self) -> u64 {
        self.log.head()
    }

    async fn records(&self) -> Vec<Record> {
        let mut reader = self.log.reader(1);
        let mut records = Vec::new();
        while reader.is_ready() {
            records.extend(reader.read().await.unwrap());
        }
        records
    }

    /// The batches that delivery cuts.
    pub(crate) async fn batches(&self, limits: Limits) -> Vec<Batch> {
        let limits = Limits { max_wait: Duration::MAX, ..limits };
        let mut batcher = Batcher::new(limits, 0, None);
        let mut batches = Vec::new();
        for record in self.records().await {
            if batcher.cut_before(&record, true).is_some() {
                batches.push(sample::batch(batcher.take().records));
            }
            batcher.push(record, true, Instant::now());
        }
        batches.push(sample::batch(batcher.take().records));
        batches
    }
}
