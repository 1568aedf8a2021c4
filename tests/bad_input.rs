//! What goes wrong around kubetide: no cluster, no rights, no space, a directory or a configuration that is not right. Each gives one
//! clear message and the exit code that scripts rely on, and nothing is written or lost.
//!
//! Exit codes: 1 failed, 2 usage or configuration, 69 a service that is needed is not there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;
mod instance;

use std::{
    fs,
    io::Write as _,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use ended::{Ended, ended, kubetide};
use instance::{Instance, assert_bounded_repetition, fold};
use kubetide_simulator::{Cluster, ClusterOptions, Fault, Server};
use serde_json::json;
use tempfile::TempDir;

/// A simulated cluster with config maps, and a kubetide that is set up for it but not started.
struct Case {
    server: Server,
    instance: Instance,
    directory: TempDir,
}

impl Case {
    async fn new() -> Self {
        let cluster = Cluster::new(ClusterOptions::default());
        let server = Server::start(cluster).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(directory.path()).unwrap();
        let instance = Instance::new(&kubeconfig, &[("configmaps", "default")], "");
        let case = Self { server, instance, directory };
        case.edit("log_level: debug", "log_level: info");
        case.create(0..3);
        case
    }

    /// Config maps of about 20 KB each that do not compress, so that they fill files.
    fn create(&self, numbers: std::ops::Range<u32>) {
        for number in numbers {
            let noise: String = (0..200).map(|part| noise(number * 1000 + part)).collect();
            let object =
                json!({"metadata": {"name": format!("c{number}"), "namespace": "default"}, "data": {"noise": noise}});
            self.server.cluster().create("configmaps", object).unwrap();
        }
    }

    /// Replaces a part of the configuration file.
    fn edit(&self, from: &str, to: &str) {
        let path = self.config();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from:?} is not in {text}");
        fs::write(path, text.replace(from, to)).unwrap();
    }

    fn config(&self) -> PathBuf {
        self.instance.path("kubetide.yaml")
    }

    fn data(&self) -> PathBuf {
        self.instance.path("data")
    }

    async fn run(&self) -> Ended {
        ended(kubetide(self.config())).await
    }

    /// Nothing was made: neither the data directory nor the sink's file.
    fn assert_nothing_written(&self) {
        assert!(!self.data().exists(), "the data directory was made");
        assert!(!self.instance.path("out.ndjson").exists(), "the sink's file was made");
    }

    /// Runs until everything is captured and delivered, then stops in order.
    async fn capture(&mut self) {
        self.instance.start();
        self.arrives().await;
        assert!(self.instance.terminate().success());
    }

    /// Waits until what the sink has equals the cluster, and checks that nothing is missing or repeated on the way there.
    async fn arrives(&mut self) {
        let wanted = self.server.cluster().len("configmaps");
        self.instance.records_when("the sink has every object", |records| fold(records).len() == wanted).await;
        assert_eq!(assert_bounded_repetition(&self.instance.lines(), 0), 0);
    }

    /// The one segment of the log.
    fn segment(&self) -> PathBuf {
        self.data().join("log/00000000000000000001.seg")
    }
}

/// 16 hex digits that look random and are the same in every run.
fn noise(number: u32) -> String {
    let mut state = u64::from(number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    format!("{:016x}", state ^ (state >> 31))
}

/// Every file below a directory with its bytes.
fn contents(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.push((path.clone(), fs::read(path).unwrap()));
        }
    }
    all.sort();
    all
}

#[tokio::test]
async fn no_kubeconfig_a_missing_one_and_one_that_is_none_are_named() {
    let case = Case::new().await;
    let kubeconfig = case.directory.path().join("kubeconfig").display().to_string();
    case.edit(&kubeconfig, "/nowhere/kubeconfig");
    case.run().await.assert_refused(2, &["cluster.kubeconfig", "/nowhere/kubeconfig", "No such file"]);

    let garbage = case.directory.path().join("garbage");
    fs::write(&garbage, "users: {token: canary}\n").unwrap();
    case.edit("/nowhere/kubeconfig", &garbage.display().to_string());
    let refused = case.run().await;
    refused.assert_refused(2, &["cluster.kubeconfig", "garbage", "not a kubeconfig", "line 1"]);
    assert!(!refused.stderr.contains("canary"), "a credential is shown: {refused:#?}");

    case.edit(&format!(", kubeconfig: {}", garbage.display()), "");
    let mut named = kubetide(case.config());
    named.env("KUBECONFIG", "/nowhere/else");
    ended(named).await.assert_refused(2, &["$KUBECONFIG", "/nowhere/else", "No such file"]);

    let mut none = kubetide(case.config());
    none.env("HOME", case.directory.path()).env_remove("KUBERNETES_SERVICE_HOST");
    ended(none).await.assert_refused(2, &["no cluster", "cluster.kubeconfig", "$KUBECONFIG", "~/.kube/config"]);
    case.assert_nothing_written();
}

#[tokio::test]
async fn an_unknown_context_is_refused_with_the_ones_there_are() {
    let case = Case::new().await;
    case.edit("name: test,", "context: simulatd,");
    case.run().await.assert_refused(2, &["cluster.context", "simulatd", "simulated"]);
    case.assert_nothing_written();
}

#[tokio::test]
async fn a_cluster_that_cannot_be_reached_or_is_ill_is_a_service_that_is_not_there() {
    let case = Case::new().await;
    case.server.set_hook(Some(Arc::new(|_| Fault::Status { code: 503, retry_after: None })));
    case.run().await.assert_refused(69, &[&case.server.url(), "503"]);
    case.server.refuse(true).await;
    case.run().await.assert_refused(69, &[&case.server.url(), "refused", "cluster.context"]);
    case.assert_nothing_written();
}

#[tokio::test]
async fn wrong_credentials_and_missing_rights_are_told_apart_from_absence() {
    let case = Case::new().await;
    case.server.set_token(Some("the right one".into()));
    case.run().await.assert_refused(1, &[&case.server.url(), "401", "credentials"]);
    case.server.set_token(None);
    case.server.set_hook(Some(Arc::new(|_| Fault::Status { code: 403, retry_after: None })));
    case.run().await.assert_refused(1, &[&case.server.url(), "403", "cluster.uid", "kube-system"]);
    case.assert_nothing_written();
}

#[tokio::test]
async fn an_unknown_resource_is_refused_with_the_near_ones() {
    let case = Case::new().await;
    case.edit("resource: configmaps", "resource: configmpas");
    case.run().await.assert_refused(2, &["streams[0].resource", "configmpas", "did you mean configmaps?"]);
    case.edit("resource: configmpas", "resource: configmaps.apps");
    case.run().await.assert_refused(2, &["streams[0].resource", "configmaps.apps", "it serves: configmaps"]);
    case.assert_nothing_written();
}

#[tokio::test]
async fn a_sink_that_wants_a_stream_that_is_not_captured_is_refused() {
    let case = Case::new().await;
    case.edit("{name: out,", "{name: out, streams: [core/pods],");
    case.run().await.assert_refused(2, &["sinks[0].streams[0]", "core/pods", "core/configmaps@default"]);
    case.assert_nothing_written();
}

#[tokio::test]
async fn a_file_that_is_not_yaml_and_an_unknown_key_leave_everything_untouched() {
    let case = Case::new().await;
    let config = case.config().display().to_string();
    case.edit("data_dir:", "data_dri:");
    case.run().await.assert_refused(2, &["data_dri", "did you mean data_dir?"]);
    fs::write(case.config(), "streams: [\n").unwrap();
    case.run().await.assert_refused(2, &[&config, "not YAML"]);
    case.assert_nothing_written();
}

#[tokio::test]
async fn a_directory_in_use_is_refused_and_its_owner_goes_on() {
    let mut case = Case::new().await;
    case.instance.start();
    case.arrives().await;
    case.run().await.assert_refused(1, &[&case.data().display().to_string(), "in use", "data_dir"]);
    case.create(3..5);
    case.arrives().await;
    assert!(case.instance.terminate().success());
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_named() {
    let case = Case::new().await;
    let file = case.instance.path("file");
    fs::write(&file, "a file").unwrap();
    let below = file.join("data").display().to_string();
    case.edit(&case.data().display().to_string(), &below);
    case.run().await.assert_refused(1, &[&below, "Not a directory"]);
    assert_eq!(fs::read(&file).unwrap(), b"a file");
    assert!(!case.instance.path("out.ndjson").exists());
}

#[tokio::test]
async fn a_read_only_directory_is_named_and_works_again_when_it_is_writable() {
    let mut case = Case::new().await;
    case.capture().await;
    case.create(3..5);
    let before = contents(&case.data());
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let open = fs::metadata(case.data()).unwrap().permissions().mode();
    mode(&case.data(), 0o555);
    mode(&case.data().join("lock"), 0o444);

    let mut command = kubetide(case.config());
    if rustix::process::geteuid().is_root() {
        // Nothing is read-only for root: as somebody else, with a copy of the program where they can reach it.
        for directory in [case.directory.path(), &case.instance.path("")] {
            mode(directory, 0o755);
        }
        let copy = case.instance.path("kubetide");
        // By another process: a file that this one has open for writing could be held by a child of another test.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_kubetide")).arg(&copy).status().unwrap();
        assert!(copied.success());
        command = Command::new(copy);
        command.args(["run", "--config"]).arg(case.config()).env_remove("KUBECONFIG").uid(65534).gid(65534);
    }
    ended(command).await.assert_refused(1, &[&case.data().display().to_string(), "Permission denied"]);

    assert_eq!(before, contents(&case.data()));
    mode(&case.data(), open);
    mode(&case.data().join("lock"), 0o644);
    case.capture().await;
}

/// The program under a limit for the size of a file, which acts as a disk that is full.
fn in_little_space(case: &Case, kib: u32) -> Command {
    let program = kubetide(case.config());
    let mut command = Command::new("sh");
    // Ignored, the signal becomes an error of the write that went too far; half a KiB is what ulimit counts in.
    command.args(["-c", "trap '' XFSZ; ulimit -f $0; exec \"$@\"", &(kib * 2).to_string()]);
    command.arg(program.get_program()).args(program.get_args()).env_remove("KUBECONFIG");
    command
}

#[tokio::test]
async fn a_write_that_fails_ends_it_and_when_it_works_it_resumes_without_loss() {
    let mut case = Case::new().await;
    case.capture().await;
    case.create(3..200);
    // Some of these stop the log, others the store.
    for kib in [50, 100, 200, 500] {
        let ended = ended(in_little_space(&case, kib)).await;
        ended.assert_refused(1, &[&case.data().display().to_string(), "File too large", "make room"]);
        assert_bounded_repetition(&case.instance.lines(), 0);
    }
    case.capture().await;
}

#[tokio::test]
async fn a_full_disk_below_a_sink_holds_the_sink_and_nothing_else() {
    let mut case = Case::new().await;
    let out = case.instance.path("out.ndjson").display().to_string();
    case.edit(&out, "/dev/full");
    let good = format!("  - {{name: good, type: file, path: {out}, batch: {{max_wait_ms: 20}}}}\n");
    let config = fs::read_to_string(case.config()).unwrap();
    fs::write(case.config(), format!("{config}{good}")).unwrap();
    case.capture().await;
    let log = fs::read_to_string(case.instance.path("log")).unwrap();
    assert!(log.contains("sink=out") && log.contains("No space left on device"), "{log}");

    let (held, good_out) = (case.instance.path("held.ndjson"), fs::read(&out).unwrap());
    case.edit("/dev/full", &held.display().to_string());
    case.instance.start();
    case.instance.records_when("the held sink has caught up", |_| fs::read(&held).is_ok_and(|it| it == good_out)).await;
    assert!(case.instance.terminate().success());
}

#[tokio::test]
async fn a_directory_of_a_newer_format_is_refused_and_left_as_it_is() {
    let mut case = Case::new().await;
    case.capture().await;
    let format: u32 = fs::read_to_string(case.data().join("FORMAT")).unwrap().trim().parse().unwrap();
    fs::write(case.data().join("FORMAT"), (format + 1).to_string()).unwrap();
    let before = contents(&case.data());
    let formats = [format!("format {}", format + 1), format!("format {format}")];
    case.run().await.assert_refused(1, &[&case.data().display().to_string(), &formats[0], &formats[1], "data_dir"]);
    assert_eq!(before, contents(&case.data()));
}

#[tokio::test]
async fn a_directory_of_another_cluster_is_refused_and_left_to_it() {
    let mut case = Case::new().await;
    case.capture().await;
    let other = Server::start(Cluster::new(ClusterOptions { seed: 2, ..ClusterOptions::default() })).await.unwrap();
    let (here, there) = (case.server.cluster().uid(), other.cluster().uid());
    assert_ne!(here, there);
    let own = fs::read_to_string(case.directory.path().join("kubeconfig")).unwrap();
    other.kubeconfig(case.directory.path()).unwrap();
    let data = case.data().display().to_string();
    case.run().await.assert_refused(1, &[&data, &here, &there, "cluster.context", "data_dir"]);
    fs::write(case.directory.path().join("kubeconfig"), own).unwrap();
    case.create(3..5);
    case.capture().await;
}

#[tokio::test]
async fn a_damaged_log_is_refused_by_file_and_offset_and_left_as_it_is() {
    let mut case = Case::new().await;
    for round in 1..5 {
        case.create(round * 10..round * 10 + 5);
        case.capture().await;
    }
    let whole = fs::read(case.segment()).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0x10;
    fs::write(case.segment(), &damaged).unwrap();
    let out = case.instance.lines();
    let segment = case.segment().display().to_string();
    case.run().await.assert_refused(1, &[&segment, "damaged at byte ", "restore"]);
    assert_eq!(damaged, fs::read(case.segment()).unwrap());
    assert_eq!(out, case.instance.lines());

    fs::write(case.segment(), &whole).unwrap();
    case.create(3..5);
    case.capture().await;
}

#[tokio::test]
async fn a_torn_write_at_the_end_of_the_log_is_cut_off_and_nothing_is_missed() {
    let mut case = Case::new().await;
    case.capture().await;
    let whole = fs::read(case.segment()).unwrap();
    let frame = whole.windows(4).position(|window| window.starts_with(b"KTF")).unwrap();
    // What a crash leaves of a frame that was being written: its first bytes.
    for (round, torn) in (1..).zip([1, 20, 28, 300]) {
        let mut log = fs::OpenOptions::new().append(true).open(case.segment()).unwrap();
        log.write_all(&whole[frame..frame + torn]).unwrap();
        case.create(round * 10..round * 10 + 2);
        case.capture().await;
    }
    let log = fs::read_to_string(case.instance.path("log")).unwrap();
    assert_eq!(log.matches("cut off a torn write").count(), 4, "{log}");
}

#[tokio::test]
async fn a_sink_that_cannot_be_opened_is_named_and_delivered_to_once_it_can() {
    let mut case = Case::new().await;
    let out = case.instance.path("out.ndjson").display().to_string();
    let file = case.instance.path("file");
    fs::write(&file, "a file").unwrap();
    let below = file.join("out.ndjson").display().to_string();
    case.edit(&out, &below);
    case.run().await.assert_refused(1, &["sinks[0]", "out", &below]);
    case.edit(&below, "/");
    case.run().await.assert_refused(1, &["sinks[0]", "out", "/", "directory"]);
    assert_eq!(fs::read(&file).unwrap(), b"a file");
    case.edit("path: /,", &format!("path: {out},"));
    case.capture().await;
}

#[tokio::test]
async fn a_command_line_that_is_not_one_says_how_it_is() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(args);
        ended(command)
    };
    for args in [&["run"][..], &["run", "--confg", "x"], &["rnu"], &["run", "--config"]] {
        let ended = run(args).await;
        assert_eq!(ended.code, Some(2), "{ended:#?}");
        assert!(ended.stderr.contains("Usage:") || ended.stderr.contains("--help"), "{ended:#?}");
    }
}
