//! A log that may not grow for ever: a sink that comes late, one that is dead while the log is trimmed, one that may not lose
//! anything, and a volume that is full. The built binary against the simulator.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io::{BufRead as _, BufReader, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use kubetide_simulator::{Cluster, ClusterOptions, Server};
use serde_json::Value;

use instance::{BATCH, Instance, State, cleaned};

const PATIENCE: Duration = Duration::from_secs(60);
const SMALL_LOG: &str = "log: {max_bytes: 4194304, retention_secs: 0}\n";

fn torture() -> bool {
    std::env::var_os("KUBETIDE_TORTURE").is_some()
}

async fn cluster_with(objects: usize) -> Server {
    let cluster = Cluster::new(ClusterOptions { history: 200_000, ..ClusterOptions::default() });
    cluster.populate_config_maps(objects);
    Server::start(cluster).await.unwrap()
}

/// Changes, makes and deletes objects until it is stopped.
struct Churn {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u64>>,
}

impl Churn {
    fn start(cluster: &Cluster, per_second: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (cluster, stopped) = (cluster.clone(), stop.clone());
        let names: Vec<(String, String)> =
            cluster.list("configmaps").iter().map(|item| (item.namespace().into(), item.name().into())).collect();
        let thread = std::thread::spawn(move || {
            let began = Instant::now();
            let mut changes = 0;
            while !stopped.load(Ordering::Relaxed) {
                // Another step with each round: what was deleted in one comes back in the next.
                let turn = changes as usize;
                let (namespace, name) = &names[(turn * 7919 + turn / names.len()) % names.len()];
                if changes % 50 == 49 {
                    let _ = cluster.delete("configmaps", namespace, name);
                } else if cluster.touch("configmaps", namespace, name).is_err() {
                    let object = serde_json::json!({"metadata": {"namespace": namespace, "name": name}, "data": {"again": changes.to_string()}});
                    cluster.create("configmaps", object).unwrap();
                }
                changes += 1;
                let due = Duration::from_micros(changes * 1_000_000 / per_second);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
            changes
        });
        Self { stop, thread: Some(thread) }
    }

    fn stop(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// What there is, as a consumer should have it.
fn there_is(cluster: &Cluster) -> BTreeMap<(String, String), Value> {
    let object = |item: &kubetide_simulator::Item| cleaned(serde_json::from_slice(&item.json()).unwrap());
    let items = cluster.list("configmaps");
    items.iter().map(|item| ((item.namespace().into(), item.name().into()), object(item))).collect()
}

/// What a consumer makes of its records.
#[derive(Default)]
struct Consumer {
    objects: State,
    newest: HashMap<String, u64>,
    ids: HashSet<String>,
    repeated: usize,
    gaps: Vec<Value>,
    deletes: HashSet<String>,
    finished: Vec<Value>,
    /// The last place of the log.
    seq: u64,
    /// Places of the log that are missing, and updates of something else than the state before.
    holes: usize,
}

impl Consumer {
    fn take(&mut self, record: &Value) {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let op = text("op");
        if record["scope"] != "sink" {
            let seq = record["log"]["seq"].as_u64().unwrap();
            self.holes += usize::from(seq > self.seq + 1);
            self.seq = seq;
        }
        match op.as_str() {
            "gap" => return self.gaps.push(record.clone()),
            "resync_finished" | "snapshot_finished" => return self.finished.push(record.clone()),
            "snapshot" | "create" | "update" | "delete" => {}
            _ => return,
        }
        let version: u64 = text("resource_version").parse().unwrap();
        let newest = self.newest.entry(text("uid")).or_default();
        if self.ids.insert(text("id")) {
            self.holes += usize::from(op == "update" && text("previous_resource_version") != newest.to_string());
            assert!(version >= *newest, "{} went back from {newest} to {version}", text("name"));
        } else {
            // A batch that comes again after a kill begins with the older states that are in it, and ends where it ended.
            self.repeated += 1;
        }
        *newest = version;
        let key = (text("stream"), text("namespace"), text("name"));
        if op == "delete" {
            self.deletes.insert(text("name"));
            self.objects.remove(&key);
        } else {
            self.objects.insert(key, record["object"].clone());
        }
    }

    fn of_file(path: &Path) -> Self {
        let mut consumer = Self::default();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().for_each(|line| consumer.take(&serde_json::from_str(line).expect("a line is a record")));
        consumer
    }

    /// What is otherwise than it is, if anything.
    fn differs_from(&self, there_is: &BTreeMap<(String, String), Value>) -> Option<String> {
        let same = |((namespace, name), object): (&(String, String), &Value)| {
            let key = ("core/configmaps".to_owned(), namespace.clone(), name.clone());
            self.objects.get(&key) == Some(object)
        };
        let wrong = there_is.iter().find(|(key, object)| !same((key, object)));
        match wrong {
            Some((key @ (namespace, name), object)) => {
                let held = self.objects.get(&("core/configmaps".to_owned(), namespace.clone(), name.clone()));
                let version = |object: &Value| object["metadata"]["resourceVersion"].to_string();
                let (there, here) = (version(object), held.map(version));
                Some(format!("{key:?} is {here:?} instead of {there} ({} gaps)", self.gaps.len()))
            }
            None if self.objects.len() != there_is.len() => {
                Some(format!("{} objects instead of {}", self.objects.len(), there_is.len()))
            }
            None => None,
        }
    }
}

/// The first record that the log still has. None before there is a log.
fn oldest(instance: &Instance) -> Option<u64> {
    let files = std::fs::read_dir(instance.path("data/log")).ok()?;
    let names = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".seg")?.parse().ok()).min()
}

/// Whether the first segment is gone.
fn is_trimmed(instance: &Instance) -> bool {
    oldest(instance).is_some_and(|oldest| oldest > 1)
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < PATIENCE, "not seen in {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the consumers of these files have what there is.
async fn until_folded(files: &[&Path], there_is: &BTreeMap<(String, String), Value>) {
    let since = Instant::now();
    loop {
        let wrong: Vec<String> = files
            .iter()
            .filter_map(|file| {
                let problem = Consumer::of_file(file).differs_from(there_is)?;
                Some(format!("{}: {problem}", file.file_name().unwrap_or_default().display()))
            })
            .collect();
        if wrong.is_empty() {
            return;
        }
        assert!(since.elapsed() < PATIENCE, "not as it is after {PATIENCE:?}: {wrong:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_comes_late_and_is_killed_again_and_again_ends_up_with_what_there_is() {
    let (objects, kills) = if torture() { (50_000, 10) } else { (5_000, 3) };
    let server = cluster_with(objects).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(directory.path()).unwrap();
    let streams = ["{resource: configmaps}"];
    let mut instance = Instance::with_streams(&kubeconfig, &streams, SMALL_LOG);
    instance.start();
    instance.readiness_when("everything is listed", |status, _| status == 200).await;
    let churn = Churn::start(server.cluster(), 500);
    until("the log is trimmed", || is_trimmed(&instance)).await;
    assert!(instance.terminate().success());

    let late = instance.path("late.ndjson");
    // Small batches: a catch-up that is not over before it can be killed.
    let late_batch = 10;
    let sink = format!(
        "  - {{name: late, type: file, path: {}, batch: {{max_records: {late_batch}, max_wait_ms: 20}}}}\n",
        late.display()
    );
    instance.configure(&streams, &format!("{sink}{SMALL_LOG}"));
    let len = || std::fs::metadata(&late).map_or(0, |metadata| metadata.len());
    let mut in_catch_up = 0;
    for _ in 0..kills {
        let before = len();
        instance.start();
        until("the late sink goes on", || len() > before + 20_000).await;
        instance.kill();
        in_catch_up += usize::from(Consumer::of_file(&late).finished.is_empty());
    }
    assert_eq!(in_catch_up, kills, "every kill is to fall into the catch-up");
    instance.start();
    until("the late sink is through", || {
        std::fs::read_to_string(&late).is_ok_and(|text| text.contains("\"op\":\"snapshot_finished\""))
    })
    .await;
    let changes = churn.stop();
    let there_is = there_is(server.cluster());
    until_folded(&[&late, &instance.path("out.ndjson")], &there_is).await;
    assert!(instance.terminate().success());
    let consumer = Consumer::of_file(&late);
    assert!(consumer.repeated <= kills * late_batch, "{} repeated in {kills} kills", consumer.repeated);
    // The log is small: once it has caught up, it may be left behind again.
    let of_sink = |records: &[Value]| records.iter().filter(|record| record["scope"] == "sink").count();
    assert_eq!(of_sink(&consumer.finished), 1 + of_sink(&consumer.gaps));
    println!(
        "{objects} objects, {changes} changes, {kills} kills, {in_catch_up} of them during the catch-up: {} repeated",
        consumer.repeated
    );
}

/// Segments come and go all the while, and with every tenth kill a sink begins anew. The kills are aimed: at a catch-up that has
/// just begun, at a segment that has just been removed, at the start itself, and else at any time.
#[tokio::test(flavor = "multi_thread")]
async fn kills_at_any_time_lose_nothing_that_was_acknowledged_and_the_store_is_never_ahead() {
    let kills = if torture() { 300 } else { 30 };
    let server = cluster_with(1_000).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(directory.path()).unwrap();
    let streams = ["{resource: configmaps}"];
    let mut instance = Instance::with_streams(&kubeconfig, &streams, "");
    let audit = instance.path("audit.ndjson");
    // The one that may not lose anything has every single record, however slow the machine is.
    let with_sinks = |instance: &Instance, anew: &Path| {
        let (audit, anew) = (audit.display(), anew.display());
        let name = anew.to_string().rsplit('/').next().unwrap_or_default().replace(".ndjson", "");
        instance.configure(
            &streams,
            &format!(
                "  - {{name: audit, type: file, path: {audit}, when_behind: block, batch: {{max_records: {BATCH}, max_wait_ms: 20}}}}
  - {{name: {name}, type: file, path: {anew}, batch: {{max_records: 10, max_wait_ms: 5}}}}
log: {{max_bytes: 1048576, retention_secs: 0}}
"
            ),
        );
    };
    let len = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let churn = Churn::start(server.cluster(), 1_000);
    let (mut in_catch_up, mut at_removal) = (0, 0);
    let mut anew = PathBuf::new();
    for kill in 0..kills {
        if kill % 10 == 0 {
            anew = instance.path(&format!("anew-{}.ndjson", kill / 10));
        }
        with_sinks(&instance, &anew);
        instance.start();
        let before = (len(&audit), oldest(&instance));
        match kill % 10 {
            0..=2 => {
                let anew_before = len(&anew);
                until("the new sink goes on", || len(&anew) > anew_before).await;
            }
            3..=5 => {
                until("it goes on", || len(&audit) > before.0).await;
                let since = Instant::now();
                while oldest(&instance) == before.1 {
                    assert!(since.elapsed() < PATIENCE, "no segment was removed");
                    std::hint::spin_loop();
                }
                at_removal += 1;
            }
            6 => {}
            _ => {
                until("it goes on", || len(&audit) > before.0).await;
                tokio::time::sleep(Duration::from_millis(rand::random_range(0..300))).await;
            }
        }
        instance.kill();
        in_catch_up += usize::from(len(&anew) > 0 && Consumer::of_file(&anew).finished.is_empty());
    }
    assert!(is_trimmed(&instance));
    assert_eq!(at_removal, kills * 3 / 10);
    assert!(in_catch_up * 20 >= kills, "only {in_catch_up} of {kills} kills fell into a catch-up");
    instance.start();
    tokio::time::sleep(Duration::from_millis(500)).await;
    churn.stop();
    let there_is = there_is(server.cluster());
    until_folded(&[&anew, &audit, &instance.path("out.ndjson")], &there_is).await;
    assert!(instance.terminate().success());
    assert_eq!(Consumer::of_file(&audit).gaps.len(), 0);
    let records = instance::lines_of(&audit);
    let repeated = instance::assert_bounded_repetition(&records, kills);
    println!(
        "{kills} kills, {in_catch_up} of them in a catch-up, {at_removal} when a segment had just been removed: {} records, {repeated} repeated",
        records.len() - repeated
    );
}

/// Reads what a process prints, except while it hangs.
struct Pipe {
    consumer: Arc<Mutex<Consumer>>,
    hangs: Arc<AtomicBool>,
}

impl Pipe {
    fn new(out: std::io::PipeReader) -> Self {
        let consumer = Arc::<Mutex<Consumer>>::default();
        let hangs = Arc::<AtomicBool>::default();
        let (taken, waits) = (consumer.clone(), hangs.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines() {
                let Ok(line) = line else { return };
                while waits.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                taken.lock().unwrap().take(&serde_json::from_str(&line).expect("a line is a record"));
            }
        });
        Self { consumer, hangs }
    }
}

/// How long changes take from being observed to being in a file, as somebody sees it who reads the file all the time.
struct Lags {
    file: BufReader<std::fs::File>,
    line: String,
    /// The last record.
    seq: u64,
}

impl Lags {
    /// Of what is in the file from now on.
    fn of(path: &Path) -> Self {
        let mut file = std::fs::File::open(path).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        Self { file: BufReader::new(file), line: String::new(), seq: 0 }
    }

    /// The lags of the next records, in milliseconds and in order of length.
    async fn next(&mut self, records: usize) -> Vec<f64> {
        let mut lags = Vec::new();
        let mut since = Instant::now();
        while lags.len() < records {
            self.file.read_line(&mut self.line).unwrap();
            if !self.line.ends_with('\n') {
                assert!(since.elapsed() < PATIENCE, "nothing more comes");
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            let record: Value = serde_json::from_str(&self.line).expect("a line is a record");
            let observed: jiff::Timestamp = record["observed_at"].as_str().unwrap().parse().unwrap();
            lags.push((jiff::Timestamp::now().as_microsecond() - observed.as_microsecond()) as f64 / 1000.0);
            self.seq = record["log"]["seq"].as_u64().unwrap();
            self.line.clear();
            since = Instant::now();
        }
        lags.sort_by(f64::total_cmp);
        lags
    }
}

/// The median, and what 99 of 100 do not exceed.
fn p50_p99(lags: &[f64]) -> [f64; 2] {
    [lags[lags.len() / 2], lags[lags.len() * 99 / 100]]
}

fn rss_mib(instance: &Instance) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", instance.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_sink_costs_the_healthy_one_nothing_and_comes_back_to_one_gap_and_what_there_is() {
    let objects = if torture() { 20_000 } else { 2_000 };
    let server = cluster_with(objects).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(directory.path()).unwrap();
    let dead = "  - {name: dead, type: stdout, batch: {max_records: 50, max_wait_ms: 20}}\n";
    let mut instance = Instance::with_streams(&kubeconfig, &["{resource: configmaps}"], &format!("{dead}{SMALL_LOG}"));
    let (unread, pipe) = std::io::pipe().unwrap();
    instance.start_with(|command| {
        command.stdout(pipe);
    });
    let receiver = Pipe::new(unread);
    instance.records_when_listed(1).await;
    let churn = Churn::start(server.cluster(), 1_000);
    let part = if torture() { 30_000 } else { 5_000 };
    let mut lags = Lags::of(&instance.path("out.ndjson"));
    let beside_a_living_one = p50_p99(&lags.next(part).await);

    // Now it hangs, until the log has let go of what it has not taken.
    receiver.hangs.store(true, Ordering::Relaxed);
    let head = lags.seq;
    let mut rss = Vec::new();
    let mut beside_a_dead_one = Vec::new();
    for _ in 0..3 {
        beside_a_dead_one.extend(lags.next(part).await);
        rss.push(rss_mib(&instance));
    }
    until("the log is trimmed", || oldest(&instance).is_some_and(|oldest| oldest > head + 1_000)).await;
    beside_a_dead_one.sort_by(f64::total_cmp);
    let beside_a_dead_one = p50_p99(&beside_a_dead_one);
    // Side by side in one run, and only where nothing else runs beside it: on a busy machine either half may be the slow one. What
    // holds on any machine is below, that the healthy sink gets everything while the other one hangs.
    if torture() {
        let [living, dead] = [beside_a_living_one[0], beside_a_dead_one[0]];
        assert!(dead < living * 2.0 + 5.0, "the lag beside a dead sink is {dead} ms instead of {living} ms");
    }
    assert!(rss[2] < rss[0] * 1.25 + 8.0, "the memory grew: {rss:.0?} MiB");
    let changes = churn.stop();
    let there_is = there_is(server.cluster());
    until_folded(&[&instance.path("out.ndjson")], &there_is).await;
    assert_eq!(Consumer::of_file(&instance.path("out.ndjson")).gaps.len(), 0);

    receiver.hangs.store(false, Ordering::Relaxed);
    until("the dead sink is back with what there is", || {
        let consumer = receiver.consumer.lock().unwrap();
        !consumer.gaps.is_empty() && consumer.differs_from(&there_is).is_none()
    })
    .await;
    let consumer = receiver.consumer.lock().unwrap();
    assert_eq!(consumer.gaps.len(), 1);
    let gap = &consumer.gaps[0];
    assert_eq!((&gap["reason"], &gap["scope"], &gap["stream"]), (&"sink_behind".into(), &"sink".into(), &Value::Null));
    let counts = &consumer.finished.last().unwrap()["counts"];
    assert!(counts["delete"].as_u64().unwrap() > 0, "{counts}");
    println!(
        "{changes} changes; the healthy sink's lag (p50, p99, ms): {beside_a_living_one:.1?} beside a living sink, {beside_a_dead_one:.1?} beside a dead one; RSS {rss:.0?} MiB; the dead sink was given {counts}"
    );
    instance.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn with_block_nothing_is_lost_and_readiness_is_red_meanwhile() {
    let server = cluster_with(1_000).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(directory.path()).unwrap();
    let dead = "  - {name: audit, type: stdout, when_behind: block, batch: {max_records: 50, max_wait_ms: 20}}\n";
    let small = "log: {max_bytes: 1048576, retention_secs: 0}\n";
    let mut instance = Instance::with_streams(&kubeconfig, &["{resource: configmaps}"], &format!("{dead}{small}"));
    let (unread, pipe) = std::io::pipe().unwrap();
    instance.start_with(|command| {
        command.stdout(pipe);
    });
    let churn = Churn::start(server.cluster(), 2_000);
    let blocked = |status: u16, text: &str| status == 503 && text.contains("sink audit has not read it yet");
    instance.readiness_when("appending is blocked", blocked).await;
    let changes = churn.stop();
    let back = Pipe::new(unread);
    let there_is = there_is(server.cluster());
    until("the audit has what there is", || back.consumer.lock().unwrap().differs_from(&there_is).is_none()).await;
    instance.readiness_when("it is ready again", |status, _| status == 200).await;
    let consumer = back.consumer.lock().unwrap();
    // Every gap would be a hole in the audit, unless the API server itself had forgotten meanwhile.
    assert_eq!((consumer.gaps.len(), consumer.repeated, consumer.holes), (0, 0, 0));
    println!("{changes} changes, {} records", consumer.ids.len());
    instance.kill();
}

/// Where a volume of its own is mounted, which the process alone sees.
enum Full {
    /// On the whole data directory: appending is blocked before the store finds no room, or just after.
    Directory,
    /// Only below the store: the log goes on until the store has failed.
    Store,
}

async fn fill_and_make_room(full: Full) {
    let server = cluster_with(500).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(directory.path()).unwrap();
    let mut instance = Instance::with_streams(&kubeconfig, &["{resource: configmaps}"], "");
    let mounted = match full {
        Full::Directory => instance.path("data"),
        Full::Store => instance.path("data").join("store"),
    };
    std::fs::create_dir_all(&mounted).unwrap();
    instance.start_in_shell(&format!("mount -t tmpfs -o size=64m tmpfs {}", mounted.display()));
    instance.records_when_listed(1).await;
    // Through the root directory of the process it can be reached from here.
    let ballast = format!("/proc/{}/root{}/ballast", instance.pid(), mounted.display());
    let churn = Churn::start(server.cluster(), 500);
    for _ in 0..2 {
        let file = std::fs::File::create(&ballast).unwrap();
        // As much as there is room for, and all that comes free.
        let mut size = 0;
        let block = vec![1; 64 * 1024];
        while std::os::unix::fs::FileExt::write_all_at(&file, &block, size).is_ok() {
            size += block.len() as u64;
        }
        let is_blocked = |status, text: &str| status == 503 && text.contains("make room on the volume");
        instance.readiness_when("appending is blocked", is_blocked).await;
        drop(file);
        std::fs::remove_file(&ballast).unwrap();
        instance.readiness_when("it goes on", |status, _| status == 200).await;
    }
    churn.stop();
    let there_is = there_is(server.cluster());
    until_folded(&[&instance.path("out.ndjson")], &there_is).await;
    let consumer = Consumer::of_file(&instance.path("out.ndjson"));
    assert_eq!((consumer.gaps.len(), consumer.repeated, consumer.holes), (0, 0, 0));
    assert!(instance.terminate().success());
    let log = std::fs::read_to_string(instance.path("log")).unwrap();
    if matches!(full, Full::Store) {
        assert_eq!(log.matches("opening the log anew").count(), 2, "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_volume_blocks_and_when_there_is_room_again_it_goes_on_without_loss() {
    fill_and_make_room(Full::Directory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_finds_no_room_blocks_and_when_there_is_room_again_it_goes_on_without_loss() {
    fill_and_make_room(Full::Store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_volume_waits_for_room() {
    let server = cluster_with(20).await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = server.kubeconfig(directory.path()).unwrap();
    let mut instance = Instance::with_streams(&kubeconfig, &["{resource: configmaps}"], "");
    let data = instance.path("data");
    std::fs::create_dir(&data).unwrap();
    let fill = "dd if=/dev/zero of=ballast bs=64k 2>/dev/null";
    instance.start_in_shell(&format!("mount -t tmpfs -o size=64m tmpfs {0} && (cd {0}; {fill}; true)", data.display()));
    instance.readiness_when("there is no room", |status, text| status == 503 && text.contains("make room")).await;
    std::fs::remove_file(format!("/proc/{}/root{}/ballast", instance.pid(), data.display())).unwrap();
    instance.readiness_when("it goes on", |status, _| status == 200).await;
    until_folded(&[&instance.path("out.ndjson")], &there_is(server.cluster())).await;
    assert!(instance.terminate().success());
}
