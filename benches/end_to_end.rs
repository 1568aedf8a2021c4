//! Simulator → log → file, with the real program: changes per second, memory at two sizes, and how long a restart takes.
//!
//! Each figure is printed with what it was measured on. Nothing is asserted but that the work was done.

#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints and fails by panicking")]

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use kubetide_simulator::{Cluster, ClusterOptions, Server};
use serde_json::Value;
use tempfile::TempDir;

const CHANGES: u64 = 100_000;

#[tokio::main]
async fn main() {
    // `cargo test --benches` and `cargo bench -- --list` only want to know that it is there.
    if std::env::args().any(|argument| argument == "--list" || argument == "--test") {
        return;
    }
    println!("simulator → log → file, release build, every frame and every batch synced");
    let small = measure(10_000).await;
    let large = measure(200_000).await;
    println!("RSS at 200 k objects / RSS at 10 k objects: {:.2}", large / small);
}

/// Takes a snapshot of `objects`, then follows changes, then restarts. Returns the RSS after the changes, in MiB.
async fn measure(objects: usize) -> f64 {
    let cluster = Cluster::new(ClusterOptions { history: 200_000, ..ClusterOptions::default() });
    cluster.populate_config_maps(objects);
    let server = Server::start(cluster.clone()).await.unwrap();
    let mut run = Run::new(&server);
    let objects = cluster.len("configmaps") as u64;

    let began = Instant::now();
    run.start();
    // snapshot_started, the objects, snapshot_finished.
    run.reached(objects + 2).await;
    let took = began.elapsed().as_secs_f64();
    let mib = run.file_len() as f64 / 1_048_576.0;
    println!(
        "{objects:>8} objects: snapshot in {took:.1} s, {:.0} objects/s, {:.1} MB/s",
        objects as f64 / took,
        mib / took
    );

    let names: Vec<(String, String)> =
        cluster.list("configmaps").iter().map(|item| (item.namespace().into(), item.name().into())).collect();
    let before = run.file_len();
    let began = Instant::now();
    let writer = tokio::task::spawn_blocking(move || {
        for change in 0..CHANGES {
            let (namespace, name) = &names[change as usize % names.len()];
            cluster.touch("configmaps", namespace, name).unwrap();
        }
        began.elapsed().as_secs_f64()
    });
    run.reached(objects + 2 + CHANGES).await;
    let took = began.elapsed().as_secs_f64();
    let written = writer.await.unwrap();
    let mib = (run.file_len() - before) as f64 / 1_048_576.0;
    println!(
        "{objects:>8} objects: {CHANGES} changes at {:.0} changes/s, {:.1} MB/s (the simulator wrote them in {written:.1} s)",
        CHANGES as f64 / took,
        mib / took
    );
    let rss = run.memory("VmRSS:");
    println!("{objects:>8} objects: RSS {rss:.0} MiB, at most {:.0} MiB", run.memory("VmHWM:"));

    run.kill();
    let cluster = server.cluster().clone();
    let (namespace, name) =
        cluster.list("configmaps").first().map(|item| (item.namespace().to_owned(), item.name().to_owned())).unwrap();
    cluster.update("configmaps", &namespace, &name, |map| map["data"]["changed"] = "while it was down".into()).unwrap();
    let began = Instant::now();
    run.start();
    run.reached(objects + 3 + CHANGES).await;
    println!("{objects:>8} objects: restart to first event {:.0} ms", began.elapsed().as_secs_f64() * 1000.0);
    rss
}

/// The program under measurement.
struct Run {
    directory: TempDir,
    child: Option<Child>,
}

impl Run {
    fn new(server: &Server) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(directory.path()).unwrap();
        let config = format!(
            "cluster: {{kubeconfig: {}}}\ndata_dir: {}\nstreams: [{{resource: configmaps}}]\ntelemetry: {{log_level: warn}}\nadmin: {{listen: null}}\n\
             sinks: [{{name: out, type: file, path: {}, batch: {{max_wait_ms: 0}}}}]\n",
            kubeconfig.display(),
            directory.path().join("data").display(),
            directory.path().join("out").display(),
        );
        std::fs::write(directory.path().join("kubetide.yaml"), config).unwrap();
        Self { directory, child: None }
    }

    fn start(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(["run", "--config"]).arg(self.directory.path().join("kubetide.yaml")).stdin(Stdio::null());
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn file_len(&self) -> u64 {
        std::fs::metadata(self.out()).map_or(0, |metadata| metadata.len())
    }

    /// Waits until the file ends with this seq.
    async fn reached(&mut self, seq: u64) {
        let mut last = (0, Instant::now());
        loop {
            let now = last_seq(&self.out()).unwrap_or(0);
            if now >= seq {
                return;
            }
            if now > last.0 {
                last = (now, Instant::now());
            }
            assert!(last.1.elapsed() < Duration::from_secs(60), "no progress for a minute at seq {now} of {seq}");
            if let Some(status) = self.child.as_mut().unwrap().try_wait().unwrap() {
                panic!("kubetide ended with {status} at seq {now} of {seq}");
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The resident memory of the process by the kernel's own count, in MiB.
    fn memory(&self, of: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.as_ref().unwrap().id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(of)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The seq of the last whole line.
fn last_seq(path: &Path) -> Option<u64> {
    let mut file = File::open(path).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(256 * 1024))).ok()?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail).ok()?;
    let end = tail.iter().rposition(|byte| *byte == b'\n')?;
    let start = tail[..end].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let record: Value = serde_json::from_slice(&tail[start..end]).ok()?;
    record["log"]["seq"].as_u64()
}
