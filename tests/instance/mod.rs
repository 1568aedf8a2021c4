//! A kubetide process of a test: the built binary, a data directory, a file sink, and what the file holds.
//!
//! The process dies with the value. When a test panics, the end of the process's log is printed.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this module")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test calls it lost. Generous: it is only ever reached by a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// The largest batch that an instance sends.
pub const BATCH: u64 = 50;

pub struct Instance {
    directory: TempDir,
    child: Option<Child>,
    kubeconfig: PathBuf,
    /// Where the log of the process that runs now begins.
    log_begins: usize,
}

impl Instance {
    /// Writes a configuration with a file sink for these streams; `more` is appended to it.
    pub fn new(kubeconfig: &Path, streams: &[(&str, &str)], more: &str) -> Self {
        let entry =
            |(resource, namespace): &(&str, &str)| format!("{{resource: {resource}, namespaces: [{namespace}]}}");
        let entries: Vec<String> = streams.iter().map(entry).collect();
        Self::with_streams(kubeconfig, &entries, more)
    }

    /// The same with streams that have any keys, each as YAML: `{resource: pods, mode: poll}`.
    pub fn with_streams(kubeconfig: &Path, streams: &[impl AsRef<str>], more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let instance = Self { directory, child: None, kubeconfig: kubeconfig.into(), log_begins: 0 };
        instance.configure(streams, more);
        instance
    }

    /// Writes the configuration anew, for the next start.
    pub fn configure(&self, streams: &[impl AsRef<str>], more: &str) {
        let path = |name: &str| self.path(name).display().to_string();
        let mut config = format!(
            "cluster: {{name: test, kubeconfig: {}}}\ndata_dir: {}\ntelemetry: {{log_level: debug}}\nadmin: {{listen: \"127.0.0.1:0\"}}\nstreams:\n",
            self.kubeconfig.display(),
            path("data")
        );
        for stream in streams {
            config.push_str(&format!("  - {}\n", stream.as_ref()));
        }
        config.push_str(&format!(
            "sinks:\n  - {{name: out, type: file, path: {}, batch: {{max_records: {BATCH}, max_wait_ms: 20}}}}\n{more}",
            path("out.ndjson")
        ));
        std::fs::write(path("kubetide.yaml"), config).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn start(&mut self) {
        self.start_with(|_| {});
    }

    /// Starts with what `more` adds to the command: arguments, variables.
    pub fn start_with(&mut self, more: impl FnOnce(&mut Command)) {
        assert!(self.child.is_none(), "it runs already");
        self.log_begins = std::fs::read(self.path("log")).unwrap_or_default().len();
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(["run", "--config"]).arg(self.path("kubetide.yaml"));
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        more(&mut command);
        self.child = Some(command.spawn().unwrap());
    }

    /// Starts in a mount namespace of its own, after these commands there.
    pub fn start_in_shell(&mut self, commands: &str) {
        assert!(self.child.is_none(), "it runs already");
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let run = format!(
            "{commands} && exec {} run --config {}",
            env!("CARGO_BIN_EXE_kubetide"),
            self.path("kubetide.yaml").display()
        );
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", &run]);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().expect("unshare (util-linux) is there"));
    }

    /// The process that runs now.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// SIGTERM, and what it exits with.
    pub fn terminate(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let since = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                let log = std::fs::read_to_string(self.path("log")).unwrap();
                assert!(!log.contains("did not answer in time"), "a sink was not drained within the grace");
                return status;
            }
            assert!(since.elapsed() < PATIENCE, "it does not end after SIGTERM");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends this to the process that runs now.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(self.child.as_ref().expect("it runs"));
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until it ends by itself, and returns with what.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let since = Instant::now();
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if since.elapsed() >= PATIENCE {
                child.kill().unwrap();
                panic!("it does not end");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// The whole lines of the sink's file.
    pub fn lines(&self) -> Vec<String> {
        lines_of(&self.path("out.ndjson"))
    }

    /// How long the sink's file is.
    pub fn lines_len(&self) -> u64 {
        std::fs::metadata(self.path("out.ndjson")).map_or(0, |metadata| metadata.len())
    }

    pub fn records(&self) -> Vec<Value> {
        self.lines().iter().map(|line| serde_json::from_str(line).expect("a line is a record")).collect()
    }

    /// What the process that runs now, or ran last, has said.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.path("log")).unwrap_or_default();
        String::from_utf8_lossy(&log[self.log_begins..]).into_owned()
    }

    /// A page of the running process's admin HTTP: status and text. None before it listens.
    pub fn page(&self, path: &str) -> Option<(u16, String)> {
        let log = self.log();
        let address = log.split("admin listens on ").nth(1)?.lines().next()?.trim().to_owned();
        let mut connection = std::net::TcpStream::connect(address).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// Waits until `/readyz?verbose` is as wanted, and returns its text.
    pub async fn readiness_when(&mut self, wanted: &str, ready: impl Fn(u16, &str) -> bool) -> String {
        let since = Instant::now();
        loop {
            let page = self.page("/readyz?verbose");
            if let Some((status, text)) = &page
                && ready(*status, text)
            {
                return text.clone();
            }
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                panic!("kubetide ended with {status} while the test waited until {wanted}");
            }
            assert!(since.elapsed() < PATIENCE, "not seen in {PATIENCE:?}: {wanted}; {page:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The sum of the series of a metric that have all of these labels: `stream="core/pods"`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let (status, text) = self.page("/metrics").expect("metrics are served");
        assert_eq!(status, 200);
        let series = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
        let of = series.filter(|line| labels.iter().all(|label| line.contains(label)));
        of.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Waits until the records are as wanted, and returns them.
    pub async fn records_when(&mut self, wanted: &str, ready: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let since = Instant::now();
        loop {
            let records = self.records();
            if ready(&records) {
                return records;
            }
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().unwrap()) {
                panic!("kubetide ended with {status} while the test waited until {wanted}");
            }
            assert!(since.elapsed() < PATIENCE, "not seen in {PATIENCE:?}: {wanted}; {} records", records.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until all streams have finished their first snapshot.
    pub async fn records_when_listed(&mut self, streams: usize) -> Vec<Value> {
        self.records_when("every snapshot is finished", |records| count(records, "snapshot_finished") == streams).await
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- the end of kubetide's log");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// The whole lines of a file, none if there is no file.
pub fn lines_of(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(Into::into).collect()
}

/// How many records have this op.
pub fn count(records: &[Value], op: &str) -> usize {
    records.iter().filter(|record| record["op"] == op).count()
}

/// The changes of one object, in order, as (op, record).
pub fn changes_of<'a>(records: &'a [Value], name: &str) -> Vec<(&'a str, &'a Value)> {
    let of = records.iter().filter(|record| record["name"] == name);
    of.map(|record| (record["op"].as_str().unwrap(), record)).collect()
}

/// Stream, namespace and name → object: what a consumer has after folding the records in order.
pub type State = BTreeMap<(String, String, String), Value>;

/// Folds the records as a consumer would. A repeated record must not change anything, so none is left out.
pub fn fold(records: &[Value]) -> State {
    let mut state = State::new();
    for record in records {
        let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        let key = (text("stream"), text("namespace"), text("name"));
        match record["op"].as_str().unwrap() {
            "snapshot" | "create" | "update" => drop(state.insert(key, record["object"].clone())),
            "delete" => drop(state.remove(&key)),
            _ => {}
        }
    }
    state
}

/// How many records have this op and stream.
pub fn count_of(records: &[Value], stream: &str, op: &str) -> usize {
    records.iter().filter(|record| record["op"] == op && record["stream"] == stream).count()
}

/// What the API server itself lists at `path`, as a consumer of `stream` should have it.
pub async fn listed(client: &kube::Client, stream: &str, path: &str) -> State {
    let list: Value = client.request(http::Request::get(path).body(vec![]).unwrap()).await.unwrap();
    let kind = list["kind"].as_str().unwrap().strip_suffix("List").unwrap();
    let item = |item: &Value| {
        let mut item = cleaned(item.clone());
        (item["kind"], item["apiVersion"]) = (kind.into(), list["apiVersion"].clone());
        let text = |key: &str| item["metadata"][key].as_str().unwrap_or_default().to_owned();
        ((stream.to_owned(), text("namespace"), text("name")), item)
    };
    list["items"].as_array().unwrap().iter().map(item).collect()
}

/// An object less what kubetide cuts out of it.
pub fn cleaned(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    object
}

/// Checks what must hold for any file, however often the process was killed: the log's places come without holes, a
/// repetition goes back by a batch at most, at most once per kill, and repeats the very same bytes.
pub fn assert_bounded_repetition(lines: &[String], kills: usize) -> usize {
    let mut by_seq: BTreeMap<u64, &String> = BTreeMap::new();
    let (mut next, mut jumps) = (1, 0);
    for line in lines {
        let record: Value = serde_json::from_str(line).expect("a line is a record");
        let seq = record["log"]["seq"].as_u64().unwrap();
        if seq != next {
            assert!(seq < next, "seq {next} is missing: {seq} comes instead");
            assert!(next - seq <= BATCH, "seq {seq} again after {}: more than a batch of {BATCH}", next - 1);
            jumps += 1;
        }
        if let Some(first) = by_seq.insert(seq, line) {
            assert_eq!(first, line, "seq {seq} was repeated with other bytes");
        }
        next = seq + 1;
    }
    assert!(jumps <= kills, "{jumps} repetitions for {kills} kills");
    lines.len() - by_seq.len()
}
