//! The commands that look into a data directory: the same answers from a process that runs and from its files.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[path = "commands/cleaning.rs"]
mod cleaning;
#[path = "commands/damage.rs"]
mod damage;
mod ended;
mod instance;
#[path = "commands/ranges.rs"]
mod ranges;

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use ended::{Ended, ended};
use instance::Instance;
use kubetide_simulator::{Cluster, ClusterOptions, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

const STREAM: &str = "core/configmaps@default";
/// Ages are told from here, whenever the test runs.
const NOW: &str = "2100-01-01T00:00:00Z";

struct Case {
    server: Server,
    kubetide: Instance,
    directory: TempDir,
}

impl Case {
    /// A running kubetide that has captured ten config maps, an update, and a delete, and has delivered all of it.
    async fn running() -> Self {
        let mut case = Self::with("").await;
        for number in 0..10 {
            case.create(&format!("c{number}"));
        }
        case.kubetide.start();
        case.kubetide.records_when_listed(1).await;
        case.update("c3", "1");
        case.delete("c4");
        case.kubetide.records_when("the changes are delivered", |records| records.len() == 14).await;
        case.settled().await;
        case
    }

    /// One that is not started yet, with more configuration.
    async fn with(more: &str) -> Self {
        let server = Server::start(Cluster::new(ClusterOptions::default())).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(directory.path()).unwrap();
        let kubetide = Instance::new(&kubeconfig, &[("configmaps", "default")], more);
        Self { server, kubetide, directory }
    }

    fn create(&self, name: &str) {
        let object = json!({"metadata": {"name": name, "namespace": "default"}, "data": {"n": "0"}});
        self.server.cluster().create("configmaps", object).unwrap();
    }

    fn update(&self, name: &str, value: &str) {
        let change = |map: &mut Value| map["data"]["n"] = value.into();
        self.server.cluster().update("configmaps", "default", name, change).unwrap();
    }

    fn delete(&self, name: &str) {
        self.server.cluster().delete("configmaps", "default", name).unwrap();
    }

    /// What was delivered is noted a moment later.
    async fn settled(&self) {
        for _ in 0..1_000 {
            let sink: Value = serde_json::from_str(&self.said(&["sink", "list", "--output", "json"]).await).unwrap();
            if sink["acknowledged"] == sink["head"] {
                return;
            }
        }
        panic!("the cursor does not reach the head");
    }

    fn data(&self) -> PathBuf {
        self.kubetide.path("data")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(arguments).arg("--config").arg(self.kubetide.path("kubetide.yaml"));
        command.env_remove("COLUMNS").env_remove("NO_COLOR").env("TZ", "UTC").args(["--now", NOW]);
        command
    }

    async fn run(&self, arguments: &[&str]) -> Ended {
        ended(self.command(arguments)).await
    }

    /// What a command prints that must succeed.
    async fn said(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:#?}");
        ended.stdout
    }
}

/// A `tail` that goes on; ends with the value.
struct Tailing {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Tailing {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next change; the day above the first one is left out.
    fn line(&mut self) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        lines.find(|line| !line.contains("──")).expect("tail goes on")
    }
}

impl Drop for Tailing {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_says_the_same_of_a_process_and_of_its_files() {
    let mut case = Case::running().await;
    let exported = case.directory.path().join("exported.ndjson");
    let commands: &[&[&str]] = &[
        &["log", "list"],
        &["log", "list", "--output", "json"],
        &["log", "show", "13"],
        &["log", "show", "13", "--output", "json"],
        &["log", "export"],
        &["log", "export", "--from", "5", "--to", "7"],
        &["log", "export", "--from", "1h", "--object", "default/c3", "--stream", "configmaps"],
        &["log", "verify"],
        &["log", "verify", "--output", "json"],
        &["objects", "list"],
        &["objects", "list", "--stream", STREAM, "--namespace", "default", "--output", "json"],
        &["objects", "get", STREAM, "default/c3"],
        &["objects", "get", "configmaps", "c3", "--output", "json"],
        &["sink", "list"],
        &["sink", "list", "--output", "json"],
        &["sink", "dead-letter", "list", "out"],
        &["tail", "--no-follow", "--width", "80"],
        &["tail", "--no-follow", "--since", "1", "--diff", "--width", "80"],
        &["tail", "--no-follow", "--op", "delete,gap", "--output", "json"],
        // Refusals too.
        &["log", "show", "99"],
        &["objects", "get", "configmap", "c3"],
        &["objects", "get", "configmaps", "other/c3"],
        &["tail", "--no-follow", "--op", "updates"],
        &["sink", "replay", "ou", "--from", "3"],
        &["sink", "replay", "out", "--from", "99"],
        &["sink", "dead-letter", "list", "ou"],
        &["sink", "dead-letter", "replay", "out"],
    ];
    let mut live = Vec::new();
    for arguments in commands {
        live.push(case.run(arguments).await);
    }
    assert!(case.kubetide.terminate().success());
    for (arguments, live) in commands.iter().zip(&live) {
        let stopped = case.run(arguments).await;
        let both = format!("{arguments:?}\n--- live\n{live:#?}\n--- stopped\n{stopped:#?}");
        assert_eq!((&stopped.stdout, &stopped.stderr, stopped.code), (&live.stdout, &live.stderr, live.code), "{both}");
        assert!(live.code != Some(0) || !live.stdout.is_empty(), "nothing is said: {both}");
        let is_table = !arguments.contains(&"json") && !arguments.contains(&"export") && arguments[1] != "show";
        assert!(!is_table || !live.stdout.contains('…'), "cut in a pipe: {both}");
    }

    // What is said is true.
    let of = |wanted: &[&str]| {
        let at = commands.iter().position(|arguments| *arguments == wanted).unwrap();
        live[at].stdout.clone()
    };
    assert_eq!(of(&["log", "export"]), fs::read_to_string(case.kubetide.path("out.ndjson")).unwrap());
    assert_eq!(of(&["log", "export", "--from", "5", "--to", "7"]).lines().count(), 3);
    let c3 = of(&["log", "export", "--from", "1h", "--object", "default/c3", "--stream", "configmaps"]);
    assert_eq!(c3.lines().count(), 4, "its two states, and the beginning and end of its stream's snapshot: {c3}");
    let object: Value = serde_json::from_str(&of(&["objects", "get", "configmaps", "c3", "--output", "json"])).unwrap();
    assert_eq!((&object["data"]["n"], &object["kind"]), (&json!("1"), &json!("ConfigMap")));
    let deleted: Value =
        serde_json::from_str(&of(&["tail", "--no-follow", "--op", "delete,gap", "--output", "json"])).unwrap();
    assert_eq!((&deleted["name"], deleted["was"].is_null()), (&json!("c4"), true), "one line, the native record");
    let listed = of(&["objects", "list"]);
    assert_eq!(listed.lines().count(), 1 + 9, "{listed}");
    let tail = of(&["tail", "--no-follow", "--width", "80"]);
    assert!(tail.lines().count() >= 10 && tail.contains(" ~ core/configmaps@default  default/c3"), "{tail}");
    assert!(!tail.contains('\u{1b}'), "no colours in a pipe");
    let sinks = of(&["sink", "list"]);
    assert!(sinks.contains("following the log"), "{sinks}");

    let file = exported.to_str().unwrap();
    case.said(&["log", "export", "--file", file]).await;
    assert_eq!(fs::read_to_string(&exported).unwrap(), of(&["log", "export"]));
    case.run(&["log", "export", "--file", file]).await.assert_refused(1, &["exported.ndjson", "exists"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_operand_is_named_with_what_is_allowed_and_the_nearest_word() {
    let case = Case::running().await;
    let refused =
        async |arguments: &[&str], code, names: &[&str]| case.run(arguments).await.assert_refused(code, names);
    refused(&["log", "show", "99"], 1, &["no record 99", "1 to 14"]).await;
    refused(&["objects", "get", "configmap", "c3"], 2, &["found configmap", "did you mean", STREAM]).await;
    refused(&["objects", "get", "configmaps", "other/c3"], 1, &["other/c3", "did you mean default/c3"]).await;
    refused(&["tail", "--stream", "confgmaps"], 2, &["found confgmaps", "did you mean core/configmaps@default?"]).await;
    refused(&["tail", "--op", "updates"], 2, &["found updates", "did you mean update", "snapshot_started"]).await;
    refused(&["tail", "--class", "speck"], 2, &["found speck", "did you mean spec", "metadata"]).await;
    refused(&["tail", "--since", "99"], 1, &["no record 99"]).await;
    refused(&["sink", "replay", "ou", "--from", "3"], 2, &["found ou", "did you mean out"]).await;
    refused(&["log", "purge", "--before", "5"], 2, &["0 of 1 segments", "--yes"]).await;
    refused(&["log", "export", "--from", "9", "--to", "5"], 2, &["from 9 to 5"]).await;
    for (arguments, names) in [
        (&["log", "show", "x"][..], ["found \"x\"", "allowed: a seq such as 1042"]),
        (&["log", "show", "0"], ["found \"0\"", "from 1 on"]),
        (&["sink", "replay", "out", "--from", "1h"], ["found \"1h\"", "--since"]),
        (&["tail", "--namespace", ""], ["--namespace", "empty"]),
        (&["tail", "--stream", "configmaps,"], ["--stream", "empty"]),
        (&["objects", "get", "configmaps", ""], ["NAME", "empty"]),
    ] {
        let ended = case.run(arguments).await;
        assert_eq!(ended.code, Some(2), "{ended:#?}");
        assert!(names.iter().all(|name| ended.stderr.contains(name)), "{names:?}: {ended:#?}");
    }
    let mut nowhere = Command::new(env!("CARGO_BIN_EXE_kubetide"));
    nowhere.args(["log", "list"]);
    ended(nowhere).await.assert_refused(2, &["--config", "--data-dir"]);
    for arguments in [&["log", "export", "--from", "soon"][..], &["sink", "replay", "out", "--since", "12"]] {
        let ended = case.run(arguments).await;
        assert_eq!(ended.code, Some(2), "{ended:#?}");
        assert!(ended.stderr.contains("found") && ended.stderr.contains("10m, 2h, 1d ago"), "{ended:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_none_or_is_held_by_a_silent_process_is_told_and_nothing_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let list = async |path: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(["log", "list", "--data-dir"]).arg(path);
        ended(command).await
    };
    let missing = directory.path().join("missing");
    list(&missing).await.assert_refused(2, &["missing is not a data directory", "No such file"]);
    assert!(!missing.exists());
    list(directory.path()).await.assert_refused(2, &["is not a data directory", "no FORMAT"]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);

    let case = Case::running().await;
    fs::remove_file(case.data().join("kubetide.sock")).unwrap();
    case.run(&["log", "list"]).await.assert_refused(69, &["is in use", "kubetide.sock"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_for_its_owner_alone_and_goes_with_the_process() {
    let mut case = Case::running().await;
    let socket = case.data().join("kubetide.sock");
    let metadata = fs::metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert!(case.kubetide.terminate().success());
    assert!(!socket.exists());
    // One that a killed process has left is no obstacle, neither to a command nor to the next start.
    case.kubetide.start();
    case.kubetide.readiness_when("it is ready", |status, _| status == 200).await;
    case.kubetide.kill();
    assert!(socket.exists());
    assert!(case.said(&["log", "list"]).await.contains("1 to 14"));
    case.kubetide.start();
    case.kubetide.readiness_when("it is ready", |status, _| status == 200).await;
    assert!(case.said(&["log", "list"]).await.contains("1 to 14"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_with_a_path_longer_than_a_sockets_is_served() {
    let mut case = Case::running().await;
    assert!(case.kubetide.terminate().success());
    let deep = case.directory.path().join("d".repeat(120)).join("e".repeat(120));
    fs::create_dir_all(deep.parent().unwrap()).unwrap();
    fs::rename(case.data(), &deep).unwrap();
    let config = case.kubetide.path("kubetide.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace(case.data().to_str().unwrap(), deep.to_str().unwrap())).unwrap();
    case.kubetide.start();
    case.kubetide.readiness_when("it is ready", |status, _| status == 200).await;
    assert!(deep.join("kubetide.sock").exists());
    assert!(case.said(&["log", "list"]).await.contains("1 to 14"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_shows_changes_as_they_come_filtered_cut_and_without_end() {
    let case = Case::running().await;
    let mut all = Tailing::start(case.command(&["tail", "--lines", "1", "--width", "60"]));
    let mut json = Tailing::start(case.command(&["tail", "--lines", "0", "--name", "c5,new", "--output", "json"]));
    let mut coloured = case.command(&["tail", "--lines", "1"]);
    coloured.env("CLICOLOR_FORCE", "1");
    assert!(Tailing::start(coloured).line().contains('\u{1b}'), "colours where they are wanted");
    assert!(all.line().contains("- core/configmaps@default  default/c4"));

    // Until the second one follows too: what came before it is not shown there.
    let mut shown = Vec::new();
    for number in 0.. {
        case.update("c5", &format!("v{number}"));
        shown.push(all.line());
        if number == 0 {
            case.create("a-name-that-is-too-long-for-the-line-by-far-and-farther");
            shown.push(all.line());
        }
        if number == 3 {
            break;
        }
    }
    assert!(shown[0].contains("@default  default/c5  data.n \"0\" → v0"), "what has changed goes last: {shown:?}");
    assert!(shown[1].contains("default/a") && shown[1].contains('…'), "cut in the middle: {shown:?}");
    assert!(shown.iter().all(|line| line.chars().count() <= 60), "{shown:?}");
    case.create("new");
    loop {
        let record: Value = serde_json::from_str(&json.line()).unwrap();
        assert!(record["name"] == "c5" || record["name"] == "new", "{record}");
        if record["name"] == "new" {
            assert_eq!(record["schema"], "kubetide.change.v1");
            break;
        }
    }
}

/// Runs the command on a terminal of this many columns, and returns what stands there.
fn on_terminal(mut command: Command, columns: u16) -> String {
    use rustix::{
        pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
        termios::{Winsize, tcsetwinsize},
    };
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    tcsetwinsize(&screen, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap().into_string().unwrap();
    let terminal = fs::File::options().read(true).write(true).open(name).unwrap();
    let mut child = command.stdin(Stdio::null()).stdout(terminal).stderr(Stdio::null()).spawn().unwrap();
    // The command has the terminal open too, and would otherwise never let go of it.
    drop(command);
    let mut text = Vec::new();
    let mut part = [0; 4096];
    // When the last one has let go of the terminal, reading fails.
    while let Ok(read @ 1..) = rustix::io::read(&screen, &mut part) {
        text.extend_from_slice(&part[..read]);
    }
    assert!(child.wait().unwrap().success());
    String::from_utf8(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_gets_colours_unless_they_are_not_wanted_and_lines_of_its_own_width() {
    let case = Case::running().await;
    let tail = || {
        let mut command = case.command(&["tail", "--no-follow"]);
        command.env("TERM", "xterm-256color").env_remove("CLICOLOR_FORCE");
        command
    };
    let mut plain = tail();
    plain.env("NO_COLOR", "1");
    let narrow = on_terminal(plain, 50);
    assert!(narrow.contains("default  default/c3  data.n") && !narrow.contains('\u{1b}'), "{narrow:?}");
    assert!(narrow.lines().all(|line| line.trim_end().chars().count() <= 50), "{narrow}");
    assert!(narrow.lines().any(|line| line.contains(": 10 objects")), "{narrow}");
    let coloured = on_terminal(tail(), 80);
    assert!(coloured.contains("\u{1b}[33m~ core/configmaps@default"), "{coloured:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_whose_reader_has_had_enough_ends_quietly_with_0() {
    let case = Case::running().await;
    let mut command = case.command(&["tail", "--since", "1", "--output", "json"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    drop(reader);
    let ended = loop {
        case.update("c6", &line.len().to_string());
        line.push('x');
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(ended.code(), Some(0));
    assert_eq!(std::io::read_to_string(child.stderr.take().unwrap()).unwrap(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn tail_on_files_says_that_nothing_runs_and_on_a_process_that_it_has_stopped() {
    let mut case = Case::running().await;
    let mut command = case.command(&["tail", "--lines", "2"]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().starts_with("── 20"), "the day, if it is not today");
    assert!(lines.next().unwrap().unwrap().contains("c3"));
    assert!(case.kubetide.terminate().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(std::io::read_to_string(child.stderr.take().unwrap()).unwrap().contains("has stopped"));
    let ended = case.run(&["tail", "--lines", "2"]).await;
    assert_eq!((ended.code, ended.stdout.lines().count()), (Some(0), 3), "a day and two changes: {ended:#?}");
    assert!(ended.stderr.contains("no process runs"), "{ended:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_of_a_stopped_process_comes_with_its_next_start() {
    let mut case = Case::running().await;
    assert!(case.kubetide.terminate().success());
    assert!(case.said(&["sink", "replay", "out", "--from", "12"]).await.contains("from seq 12 on"));
    let sinks = case.said(&["sink", "list"]).await;
    assert!(sinks.contains("  11    14    3  "), "{sinks}");
    case.kubetide.start();
    let records = case.kubetide.records_when("three come again", |records| records.len() == 18).await;
    assert_eq!((&records[14]["op"], &records[14]["from"]["seq"]), (&"replay".into(), &11.into()));
    let seqs: Vec<u64> = records[15..].iter().map(|record| record["log"]["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, [12, 13, 14]);
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_names_file_and_offset_of_damage_and_exits_with_1() {
    let case = Case::running().await;
    let segment = case.data().join("log/00000000000000000001.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&segment, bytes).unwrap();
    let live = case.run(&["log", "verify"]).await;
    assert_eq!(live.code, Some(1), "{live:#?}");
    assert!(live.stdout.contains("damaged"), "{live:#?}");
    assert!(live.stderr.contains("00000000000000000001.seg is damaged at byte "), "{live:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_that_fails_leaves_no_file_that_looks_like_one() {
    let case = Case::running().await;
    let into = case.directory.path().join("exports");
    fs::create_dir(&into).unwrap();
    let file = into.join("all.ndjson");
    let export = case.command(&["log", "export", "--file", file.to_str().unwrap()]);
    // A file may have 512 bytes, and an attempt at more fails as a full volume does.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]);
    limited.arg(export.get_program()).args(export.get_args());
    ended(limited).await.assert_refused(1, &["cannot write to", "all.ndjson"]);
    assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "neither the file nor a part of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_hangs_is_told_with_69_and_not_waited_for() {
    use rustix::process::{Pid, Signal, kill_process};
    let case = Case::running().await;
    let pid = Pid::from_raw(i32::try_from(case.kubetide.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let (asked, ordered) = tokio::join!(case.run(&["log", "list"]), case.run(&["sink", "resnapshot", "out"]));
    kill_process(pid, Signal::CONT).unwrap();
    asked.assert_refused(69, &["has not answered for 10 s", "restart"]);
    ordered.assert_refused(69, &["has not answered for 10 s", "restart"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_waits_for_a_command_that_has_the_directory_for_a_moment() {
    let mut case = Case::running().await;
    assert!(case.kubetide.terminate().success());
    let lock = fs::File::open(case.data().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    case.run(&["log", "list"]).await.assert_refused(69, &["is in use", "another command"]);
    case.kubetide.start();
    while !case.kubetide.log().contains("waiting for the data directory") {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert!(!case.kubetide.log().contains("error: "), "it has given up: {}", case.kubetide.log());
    }
    drop(lock);
    case.kubetide.readiness_when("it is ready", |status, _| status == 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_without_a_zone_is_the_one_that_tail_shows() {
    let case = Case::running().await;
    let shown = case.said(&["tail", "--no-follow", "--lines", "1"]).await;
    let (day, time) = (&shown.lines().next().unwrap()["── ".len()..], &shown.lines().nth(1).unwrap()[..8]);
    for since in [time.to_owned(), format!("{day}T{time}"), format!("{day} {time}")] {
        let again = case.said(&["tail", "--no-follow", "--since", &since]).await;
        assert!(again.ends_with(shown.lines().nth(1).unwrap().trim_end()) || again.contains("default/c4"), "{again}");
    }
}
