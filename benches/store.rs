//! A data directory with a million rows: how long it takes to open, and what memory it costs to open it and to compare a whole LIST with it.
//!
//! The rows are written by one process and opened by another, so that nothing is in memory but what opening brings there.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints and fails by panicking")]

use std::{
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use kubetide::{
    change::{Cleaner, Cleaning, Observed, RedactKey, TypeMeta, scan},
    changelog::{Changelog, Entry, Glimpse, Setup},
    clock::Clock,
    vitals::Vitals,
};
use kubetide_sink::{Stream, sample};
use tokio::runtime::Runtime;

// As in the program itself.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ROWS: u64 = 1_000_000;
const CLUSTER: &str = "c-1";
/// As many as a page of a LIST has.
const PAGE: usize = 500;
const OPEN_TARGET: Duration = Duration::from_secs(2);
const RSS_TARGET_MB: f64 = 150.0;
/// Set for the process that opens what another one has written.
const DIRECTORY: &str = "KUBETIDE_BENCH_DIRECTORY";

fn main() {
    // `cargo test --benches` and `cargo bench -- --list` only want to know that it is there.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        measure(Path::new(&directory));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let began = Instant::now();
    write(directory.path());
    println!("{ROWS} rows of about 1 KB written in {:.0} s", began.elapsed().as_secs_f64());
    let status = Command::new(std::env::current_exe().unwrap()).env(DIRECTORY, directory.path()).status().unwrap();
    assert!(status.success(), "{status}");
}

fn stream() -> Arc<Stream> {
    Arc::new(sample::stream("configmaps", "ConfigMap"))
}

fn open(directory: &Path) -> Changelog {
    Changelog::open(directory, Setup::of(CLUSTER), Clock::system(), &Vitals::new()).unwrap()
}

fn write(directory: &Path) {
    let stream = stream();
    let cleaning = Cleaning { drop: vec![], redact: vec![], key: RedactKey::new(b"a key for benchmarks only") };
    let cleaner = cleaning.cleaner(&stream, TypeMeta { kind: "ConfigMap".into(), api_version: "v1".into() });
    let log = open(directory);
    Runtime::new().unwrap().block_on(async {
        let appender = log.appender();
        for index in 1..=ROWS {
            appender.append(&stream, Entry::Present(config_map(&cleaner, index))).await.unwrap();
        }
        appender.flush().await.unwrap();
    });
    log.close().unwrap();
}

/// A ConfigMap of about 1 KB, half of which no other one has.
fn config_map(cleaner: &Cleaner, index: u64) -> Observed {
    let namespace = index % 100;
    let uid = format!("{:016x}{index:016x}", index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let own: String =
        (1..=32).map(|part| format!("{:016x}", (index << 5 | part).wrapping_mul(0xd6e8_feb8_6659_fd93))).collect();
    let text = format!(
        r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"settings-{index}","namespace":"team-{namespace}","uid":"{uid}","resourceVersion":"{index}","labels":{{"app.kubernetes.io/name":"settings","app.kubernetes.io/managed-by":"bench"}},"managedFields":[{{"manager":"bench","operation":"Update","apiVersion":"v1","time":"2031-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:data":{{}}}}}}]}},"data":{{"own":"{own}","endpoint":"https://settings.team-{namespace}.svc.cluster.local:8443/api/v1","log_level":"info","timeout_seconds":"30"}}}}"#
    );
    scan::observe(cleaner, text.as_bytes()).unwrap()
}

fn measure(directory: &Path) {
    let began = Instant::now();
    let log = open(directory);
    let took = began.elapsed();
    println!("open: {took:.2?}{} (target: at most {OPEN_TARGET:?})", verdict(took <= OPEN_TARGET));
    println!("RSS after open: {:.0} MB", memory_mb("VmRSS:"));

    let (stream, known) = (stream(), log.known());
    let began = Instant::now();
    let rows = Runtime::new().unwrap().block_on(async {
        let generation = known.new_generation();
        let (mut rows, mut after) = (0, None);
        loop {
            let page = known.rows_behind(&stream, after.take(), PAGE).await.unwrap();
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            rows += page.len() as u64;
            let glimpse = |(key, row): (_, kubetide::change::Row)| Glimpse {
                key,
                uid: row.uid,
                version: row.seen,
                managed: row.managed,
            };
            let glimpses = page.into_iter().map(glimpse).collect();
            assert!(known.differing(&stream, generation, glimpses).await.unwrap().is_empty());
        }
        assert_eq!(known.vanished(&stream, generation).await.unwrap().0, 0);
        known.forget_listed(&stream, generation).await.unwrap();
        rows
    });
    assert_eq!(rows, ROWS);
    println!("all rows walked and compared with a LIST that shows the same: {:.1?}", began.elapsed());
    let rss = memory_mb("VmRSS:");
    println!(
        "RSS behind it: {rss:.0} MB{} (target: at most {RSS_TARGET_MB} MB), at most {:.0} MB",
        verdict(rss <= RSS_TARGET_MB),
        memory_mb("VmHWM:")
    );
    log.close().unwrap();
}

const fn verdict(met: bool) -> &'static str {
    if met { "" } else { " MISSED" }
}

/// The resident memory of this process by the kernel's own count.
fn memory_mb(of: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(of)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() * 1024.0 / 1e6
}
