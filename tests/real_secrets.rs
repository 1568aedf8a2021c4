//! No secret byte gets out of a real cluster: canaries in every place where a secret is kept, and a search through everything
//! that kubetide writes, prints and answers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]
#![allow(unreachable_pub, reason = "parts of one test binary")]

mod ended;
mod instance;
#[path = "secrets/planted.rs"]
mod planted;
mod secrets;

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt as _,
    process::Command,
    thread::JoinHandle,
};

use ended::ended;
use instance::{Instance, changes_of, count, fold};
use kubetide_test_env::Apiserver;
use planted::{STREAMS, Space, names};
use secrets::{Canaries, Search, base64, helm_release};
use serde_json::{Value, json};

const MORE: &str = r#"  - {name: console, type: stdout}
record:
  before: true
  redact: ["/spec/template/spec/containers/*/env/*/value", "/spec/containers/*/env/*/value"]
"#;

/// A kubetide that says all it can, and everything that it and its commands have said.
struct Witness {
    kubetide: Instance,
    namespace: String,
    console: Option<JoinHandle<Vec<u8>>>,
    /// By where it was said.
    said: BTreeMap<String, Vec<u8>>,
}

impl Witness {
    fn new(server: &Apiserver, namespace: &str, content: &str) -> Self {
        let entry = |word: &str| format!("{{resource: {word}, namespaces: [{namespace}], content: {content}}}");
        let streams = ["secrets", "configmaps", "deployments.apps", "pods"].map(entry);
        let kubetide = Instance::with_streams(server.kubeconfig(), &streams, MORE);
        Self { kubetide, namespace: namespace.into(), console: None, said: BTreeMap::new() }
    }

    fn start(&mut self) {
        let (mut reader, writer) = std::io::pipe().unwrap();
        self.console = Some(std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all
        }));
        self.kubetide.start_with(|command| {
            command.env("KUBETIDE__TELEMETRY__LOG_LEVEL", "trace").stdout(writer);
        });
    }

    fn heard(&mut self) {
        let console = self.console.take().unwrap().join().unwrap();
        self.said.entry("stdout".into()).or_default().extend(console);
    }

    fn terminate(&mut self) {
        assert!(self.kubetide.terminate().success());
        self.heard();
    }

    fn kill(&mut self) {
        self.kubetide.kill();
        self.heard();
    }

    /// Waits until the file has every object in the version that the API server has.
    async fn level(&mut self, space: &Space) -> Vec<Value> {
        let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let mut expected = BTreeMap::new();
        for (stream, _) in STREAMS {
            let list: Value = serde_json::from_str(&space.listed(stream).await).unwrap();
            for item in list["items"].as_array().unwrap() {
                let name = item["metadata"]["name"].as_str().unwrap().to_owned();
                expected.insert((format!("{stream}@{}", self.namespace), name), version(item));
            }
        }
        let told = |records: &[Value]| -> BTreeMap<_, _> {
            let state = fold(records).into_iter();
            state.map(|((stream, _, name), object)| ((stream, name), version(&object))).collect()
        };
        self.kubetide.records_when("the file has what the cluster has", |records| told(records) == expected).await
    }

    async fn command(&mut self, when: &str, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(arguments).arg("--config").arg(self.kubetide.path("kubetide.yaml"));
        command.env("KUBETIDE__TELEMETRY__LOG_LEVEL", "trace");
        let ended = ended(command).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        let said = [ended.stdout.as_bytes(), ended.stderr.as_bytes()].concat();
        self.said.insert(format!("{} ({when})", arguments.join(" ")), said.clone());
        said
    }

    /// Every command that shows something, of a process that runs or of its files.
    async fn ask_everything(&mut self, when: &str, control: &Search) {
        let export = self.command(when, &["log", "export"]).await;
        assert!(control.is_in(&export), "what is no secret is in the log");
        for arguments in [
            &["tail", "--no-follow", "--since", "1", "--diff"][..],
            &["tail", "--no-follow", "--since", "1", "--diff", "--width", "400"],
            &["tail", "--no-follow", "--since", "1", "--output", "json"],
            &["objects", "list"],
            &["objects", "list", "--output", "json"],
            &["sink", "list"],
            &["sink", "list", "--output", "json"],
            &["log", "list"],
            &["log", "verify"],
        ] {
            self.command(when, arguments).await;
        }
        for (stream, name) in fold(&self.kubetide.records()).into_keys().map(|(stream, _, name)| (stream, name)) {
            if name == "kube-root-ca.crt" {
                continue;
            }
            let object = format!("{}/{name}", self.namespace);
            self.command(when, &["objects", "get", &stream, &object]).await;
            let row = self.command(when, &["objects", "get", &stream, &object, "--output", "json"]).await;
            assert!(control.is_in(&row), "what is no secret is in the row of {stream} {name}");
        }
        let updates = self.kubetide.records().into_iter().filter(|record| record["op"] == "update");
        let shown: BTreeMap<_, _> = updates.map(|record| (record["name"].to_string(), record)).collect();
        for record in shown.values() {
            let seq = record["log"]["seq"].to_string();
            self.command(when, &["log", "show", &seq]).await;
            self.command(when, &["log", "show", &seq, "--output", "json"]).await;
        }
    }

    fn read_pages(&mut self) {
        for path in ["/metrics", "/readyz?verbose", "/livez"] {
            let (status, text) = self.kubetide.page(path).unwrap();
            assert_eq!(status, 200, "{path}: {text}");
            self.said.insert(path.into(), text.into_bytes());
        }
    }

    fn assert_silent(&self, search: &Search, control: &Search) {
        for (place, said) in &self.said {
            assert!(!said.is_empty(), "{place}: nothing to search");
            search.assert_absent(place, said);
        }
        assert!(control.is_in(&self.said["stdout"]), "what is no secret is on standard output");
        assert!(control.is_in(&fs::read(self.kubetide.path("out.ndjson")).unwrap()), "and in the file");
        let log = fs::read_to_string(self.kubetide.path("log")).unwrap();
        assert!(log.contains("TRACE"), "the log tells all it can");
        // The sink's file, the log, and the data directory as it is on disk.
        let files = search.assert_absent_below(self.kubetide.path("").as_path());
        assert!(files > 6, "{files} files");
    }
}

/// The mark at a path of the last change of an object.
fn mark(records: &[Value], name: &str, path: &str) -> String {
    let (_, change) = *changes_of(records, name).last().unwrap();
    let mark = change["object"].pointer(path).unwrap().as_str().unwrap();
    assert!(mark.starts_with("redacted:") && mark.len() == 25, "{name} {path}: {mark}");
    mark.to_owned()
}

#[test]
fn every_spelling_of_a_canary_is_found() {
    let mut canaries = Canaries::default();
    for _ in 0..10 {
        let canary = canaries.next();
        let search = canaries.search();
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let within = |text: &str| [0, 1, 2, 3].map(|count| format!("{}{text}tail", "x".repeat(count)));
        let mut spelled = vec![canary.clone(), quoted(&canary), quoted(&quoted(&canary)), format!("{canary:?}")];
        for text in within(&canary).iter().chain(&within(&quoted(&canary))) {
            spelled.push(base64(text));
            spelled.extend(within(&base64(text)).map(|text| base64(&text)));
        }
        spelled.push(base64(&helm_release(&format!("{{\"manifest\":{}}}", quoted(&canary)))));
        for text in spelled {
            let (found, _) =
                search.find(text.as_bytes()).unwrap_or_else(|| panic!("{canary:?} is not found in {text}"));
            assert_eq!(found, canary);
        }
        assert!(!search.is_in(Canaries::default().next().as_bytes()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_canaries_leave_no_trace_in_anything_that_is_written_or_said() {
    // Of its own: its history is forgotten.
    let server = Apiserver::start().await.unwrap();
    let mut space = Space::new(&server).await;
    let control = Search::of(&[&space.control]);
    let namespace = space.namespace.clone();
    let mut witnesses = ["full", "metadata"].map(|content| Witness::new(&server, &namespace, content));

    // Up: listed, created, rotated, deleted.
    space.plant("early").await;
    for witness in &mut witnesses {
        witness.start();
        witness.kubetide.records_when_listed(4).await;
    }
    space.plant("live").await;
    space.plant("gone").await;
    for witness in &mut witnesses {
        witness.level(&space).await;
    }
    space.rotate("early").await;
    space.rotate("gone").await;
    space.uproot("gone").await;
    for witness in &mut witnesses {
        let records = witness.level(&space).await;
        for (_, name) in names("gone") {
            assert_eq!(changes_of(&records, &name).last().unwrap().0, "delete");
        }
        witness.ask_everything("running", &control).await;
        witness.terminate();
    }

    // Down: the same, and the files are asked.
    space.plant("down").await;
    space.rotate("early").await;
    space.uproot("live").await;
    for witness in &mut witnesses {
        witness.ask_everything("stopped", &control).await;
        witness.start();
        witness.level(&space).await;
        witness.kill();
    }

    // History is lost, and what was missed is found by comparing.
    space.rotate("down").await;
    space.plant("late").await;
    space.uproot("early").await;
    server.forget_history().await.unwrap();
    space.reconnect(&server).await;
    for witness in &mut witnesses {
        witness.start();
        let records = witness.level(&space).await;
        assert!(count(&records, "gap") > 0, "the history was lost");
        for sink in ["out", "console"] {
            witness.command("running", &["sink", "resnapshot", sink]).await;
        }
        let late = |records: &[Value]| changes_of(records, "late-data").len() == 2;
        witness.kubetide.records_when("every object is delivered again", late).await;
        witness.kubetide.readiness_when("all is well", |status, _| status == 200).await;
        witness.read_pages();
        witness.ask_everything("in the end", &control).await;
        witness.terminate();
    }

    assert!(space.canaries.count() >= 100, "{} canaries", space.canaries.count());
    let search = space.canaries.search();
    for (stream, _) in STREAMS {
        assert!(search.is_in(space.listed(stream).await.as_bytes()), "the canaries are in the cluster's {stream}");
    }
    for witness in &witnesses {
        witness.assert_silent(&search, &control);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotated_secret_is_an_update_and_a_mark_tells_nothing_else() {
    let server = Apiserver::shared().await;
    let mut space = Space::new(server).await;
    let mut witness = Witness::new(server, &space.namespace, "full");
    let shared = space.canaries.next();
    for name in ["twin", "other"] {
        let data = json!({"metadata": {"name": name}, "stringData": {"a": shared, "b": shared}});
        space.create("core/secrets", &data).await;
    }
    space.plant("web").await;
    witness.start();
    witness.kubetide.records_when_listed(4).await;
    let records = witness.level(&space).await;
    let marks = [("twin", "/data/a"), ("twin", "/data/b"), ("other", "/data/a"), ("other", "/data/b")]
        .map(|(name, path)| mark(&records, name, path));
    assert_eq!(HashSet::from(marks.clone()).len(), 4, "equal secrets cannot be linked: {marks:?}");
    let key = fs::metadata(witness.kubetide.path("data/redact.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);

    // Only what has changed is told to have changed, after a restart too.
    witness.terminate();
    witness.start();
    space.patch("core/secrets", "twin", &json!({"metadata": {"labels": {"touched": "yes"}}})).await;
    let records = witness.level(&space).await;
    let (op, touched) = *changes_of(&records, "twin").last().unwrap();
    assert_eq!((op, &touched["change"]["paths"]), ("update", &json!(["/metadata/labels"])));
    assert_eq!(mark(&records, "twin", "/data/a"), marks[0], "the same value has the same mark");

    let next = space.canaries.next();
    space.patch("core/secrets", "twin", &json!({"stringData": {"a": next}})).await;
    let records = witness.level(&space).await;
    let (op, rotated) = *changes_of(&records, "twin").last().unwrap();
    let now = mark(&records, "twin", "/data/a");
    assert_ne!(now, marks[0], "another value has another mark");
    let patch = json!([{"op": "replace", "path": "/data/a", "value": now}]);
    assert_eq!((op, &rotated["patch"], &rotated["change"]["classes"]), ("update", &patch, &json!(["data"])));
    assert_eq!(rotated["before"]["data"]["a"], marks[0]);
    assert_eq!(mark(&records, "twin", "/data/b"), marks[1]);

    // A configured path is no different.
    let path = "/spec/template/spec/containers/1/env/0/value";
    let before = mark(&records, "web-web", path);
    space.rotate("web").await;
    let records = witness.level(&space).await;
    let (op, rotated) = *changes_of(&records, "web-web").last().unwrap();
    let now = mark(&records, "web-web", path);
    assert!(op == "update" && now != before && rotated["patch"].to_string().contains(&now), "{rotated}");
    witness.terminate();
    let control = Search::of(&[&space.control]);
    witness.assert_silent(&space.canaries.search(), &control);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_exec_plugin_prints_is_never_quoted() {
    let server = Apiserver::shared().await;
    // Of the kind that a shell takes as it is.
    let canary = Canaries::default().next();
    let search = Search::of(&[&canary]);
    let failing = "echo '{\"status\":{\"token\":\"CANARY\"}}'; echo log in again >&2; exit 3";
    for (script, told) in [
        (failing, "exit status: 3: log in again"),
        ("echo 'token: [CANARY'", "printed no credential"),
        ("echo CANARY", "printed no credential"),
        ("echo '{\"status\":{\"token\":[\"CANARY\"]}}'", "printed no credential"),
    ] {
        let script = script.replace("CANARY", &canary);
        let kubeconfig = server.kubeconfig_with_exec("sh", &["-c", &script]);
        let kubetide = Instance::new(&kubeconfig, &[("secrets", "default")], "");
        let mut command = ended::kubetide(kubetide.path("kubetide.yaml"));
        command.env("KUBETIDE__TELEMETRY__LOG_LEVEL", "trace");
        let ended = ended(command).await;
        assert!(ended.stderr.contains(told), "{script}: {}", ended.stderr);
        search.assert_absent(told, ended.stderr.as_bytes());
        search.assert_absent(told, ended.stdout.as_bytes());
    }
}
