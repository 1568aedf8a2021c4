//! The configuration: the reference equals the defaults, the layers are in order, and a mistake is told with its place.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;
mod instance;

use std::{
    fs,
    path::{Path, PathBuf},
};

use ended::{Ended, ended, kubetide};
use instance::Instance;
use kubetide::config::{Config, Flags, Reference, load};
use kubetide_simulator::{Cluster, ClusterOptions, Fault, Server};
use serde_json::Value;
use tempfile::TempDir;

/// The shortest configuration that is one. Its cluster is nowhere, so that a run with it ends soon.
const SHORT: &str = "cluster: {kubeconfig: /nowhere}\nstreams: [{resource: pods}]\nsinks: [{name: a, type: stdout}]\n";

fn reference() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/reference.yaml")
}

/// A file of this name with this text, in a directory of its own.
fn file(name: &str, text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn loaded(name: &str, text: &str) -> Result<Config, String> {
    let (_directory, path) = file(name, text);
    load(&path, &Flags::default()).map_err(|error| error.to_string())
}

fn refused(text: &str) -> String {
    loaded("c.yaml", text).expect_err(text)
}

/// Checks that the text is refused with a message that begins with the first of these and holds the others.
#[track_caller]
fn assert_refused(text: &str, told: &[&str]) {
    let message = refused(text);
    assert!(message.starts_with(told[0]), "{text}\n{message}");
    for part in told {
        assert!(message.contains(part), "{message:?} does not say {part:?}");
    }
    for ugly in ["nonzero", "u32", "u64", "usize", "struct", "invalid type", "invalid value", "for key"] {
        assert!(!message.contains(ugly), "{ugly:?} is not for people: {message}");
    }
}

#[test]
fn the_reference_equals_the_defaults() {
    let read = load(&reference(), &Flags::default()).unwrap();
    let (streams, sinks) = (read.streams.clone(), read.sinks.clone());
    assert_eq!(Config { streams: vec![], sinks: vec![], ..read }, Config::default());

    let required = "streams: [{resource: deployments.apps}]\nsinks:\n  \
        - {name: audit, type: file, path: /var/lib/kubetide/audit.ndjson}\n  - {name: screen, type: stdout}\n  \
        - {name: events, type: kafka, brokers: ['kafka-0.kafka:9093']}\n  \
        - {name: bus, type: nats, servers: ['nats://nats:4222']}\n  \
        - {name: cmdb, type: webhook, url: 'https://cmdb.example.com/changes'}\n";
    let short = loaded("c.yaml", required).unwrap();
    assert_eq!((streams, sinks), (short.streams, short.sinks));
}

/// Every key with its path: `list.page_size`, `sinks[].batch.max_bytes`.
fn keys(path: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                keys(&path, value, found);
                found.push(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(&format!("{path}[]"), item, found)),
        _ => {}
    }
}

#[test]
fn the_reference_names_every_key_and_says_something_about_each() {
    let config = load(&reference(), &Flags::default()).unwrap();
    let (mut known, mut written) = (Vec::new(), Vec::new());
    keys("", &serde_json::to_value(&config).unwrap(), &mut known);
    let text = fs::read_to_string(reference()).unwrap();
    let tree = config::Config::builder().add_source(config::File::from_str(&text, config::FileFormat::Yaml));
    keys("", &tree.build().unwrap().try_deserialize().unwrap(), &mut written);
    for list in [&mut known, &mut written] {
        list.sort();
        list.dedup();
    }
    assert!(known.len() > 30, "{known:?}");
    assert_eq!(known, written);

    // A section's comment speaks for a short section; every section has one.
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with(char::is_alphabetic)) {
        assert!(lines[at - 1].starts_with('#'), "no comment above {line:?}");
    }
}

#[test]
fn unknown_keys_are_refused_with_their_path_the_nearest_and_the_allowed_ones() {
    assert_refused(
        "list: {page_sze: 1}",
        &[
            "list.page_sze: unknown key",
            "did you mean page_size?",
            "allowed: page_size, timeout_secs, streaming, max_concurrent",
        ],
    );
    assert!(refused("list: {page_sze: 1}").ends_with("max_concurrent"));
    assert_refused(
        "sinks: [{name: a, type: stdout, batch: {max_record: 1}}]",
        &[
            "sinks[0].batch.max_record: unknown key",
            "did you mean max_records?",
            "allowed: max_records, max_bytes, max_wait_ms",
        ],
    );
    assert_refused(
        "streams: [{resurce: pods}]",
        &[
            "streams[0].resurce: unknown key",
            "did you mean resource?",
            "allowed: resource, namespaces, exclude_namespaces",
        ],
    );
    let top = "allowed: cluster, data_dir, streams, list, watch, verify, record, log, admin, telemetry, shutdown_grace_secs, sinks";
    assert_refused("sink: []", &["sink: unknown key", "did you mean sinks?", top]);
    assert_refused("List: {page_size: 1}", &["List: unknown key", "did you mean list?"]);
    assert_refused("list: {list: 1}", &["list.list: unknown key; allowed: page_size"]);
    let common = "allowed: path, rotate, name, format, streams, filter, delivery, start, when_behind, batch, retry, oversize, dead_letter, type";
    assert_refused("sinks: [{name: a, type: file, pth: x}]", &["sinks[0].pth: unknown", "did you mean path?", common]);
    assert_refused("sinks: [{nme: a, type: stdout}]", &["sinks[0].nme: unknown", "did you mean name?"]);
    assert_refused("zzz: 1", &["zzz: unknown key; allowed: "]);
}

#[test]
fn bad_values_are_refused_with_what_was_found_and_what_is_expected() {
    for (value, found) in [("0", "0"), ("-1", "-1"), ("abc", "\"abc\""), ("1.5", "1.5"), ("5000000000", "5000000000")] {
        let expected = format!("list.page_size: found {found}, expected a whole number from 1 to 4294967295");
        assert_eq!(refused(&format!("list: {{page_size: {value}}}")), expected);
    }
    for (text, told) in [
        ("list: 3", "list: found 3, expected a map"),
        ("list:", "list: found nothing, expected a map"),
        ("streams: {a: b}", "streams: found a map, expected a list"),
        ("streams: [{}]", "streams[0].resource: missing"),
        ("streams: [{resource: pods, namespaces: a}]", "streams[0].namespaces: found \"a\", expected a list"),
        ("sinks: 3", "sinks: found 3, expected a list"),
        ("sinks: [3]", "sinks[0]: found 3, expected a map"),
        ("sinks: [{type: stdout}]", "sinks[0].name: missing"),
        ("sinks: [{name: a}]", "sinks[0].type: missing; allowed: kafka, nats, webhook, file, stdout"),
        (
            "sinks: [{name: a, type: fil}]",
            "sinks[0].type: found \"fil\"; did you mean file? allowed: kafka, nats, webhook, file, stdout",
        ),
        ("sinks: [{name: a, type: file}]", "sinks[0].path: missing"),
        ("sinks: [{name: 007, type: stdout}]", "sinks[0].name: found 7, expected text"),
        (
            "sinks: [{name: a, type: stdout, batch: {max_records: 0}}]",
            "sinks[0].batch.max_records: found 0, expected a",
        ),
        ("telemetry: {log_format: jsn}", "telemetry.log_format: found jsn; did you mean json? allowed: text, json"),
        ("telemetry: {log_level: inf}", "telemetry.log_level: found \"inf\", allowed: error, warn, info"),
        ("telemetry: {log_level: 'a=b=c'}", "telemetry.log_level: found \"a=b=c\", allowed: error, warn, info"),
        ("watch: {bookmarks: 7}", "watch.bookmarks: found 7, expected true or false"),
        ("admin: {listen: here}", "admin.listen: found \"here\", expected an address and a port such as 0.0.0.0:8080"),
        ("admin: {listen: 8080}", "admin.listen: found 8080, expected text in quotes"),
        ("shutdown_grace_secs: -3", "shutdown_grace_secs: found -3, expected a whole number from 0"),
        ("cluster: {uid: ''}", "cluster.uid: empty"),
        ("data_dir: ''", "data_dir: empty"),
    ] {
        assert_refused(text, &[told]);
    }
}

#[test]
fn what_cannot_be_together_is_refused() {
    let sinks = |sinks: &str| format!("streams: [{{resource: pods}}]\nsinks: [{sinks}]\n");
    for (text, told) in [
        ("streams: []".to_owned(), "streams: empty"),
        ("streams: [{resource: pods}]".to_owned(), "sinks: empty"),
        ("streams: [{resource: ''}]".to_owned(), "streams[0].resource: empty"),
        ("streams: [{resource: pods, namespaces: [a, '']}]".to_owned(), "streams[0].namespaces[1]: empty"),
        (
            "watch: {timeout_min_secs: 9, timeout_max_secs: 8}".to_owned(),
            "watch.timeout_min_secs: found 9, which is more",
        ),
        (sinks("{name: A, type: stdout}"), "sinks[0].name: found \"A\", allowed: 1 to 63 of a-z"),
        (sinks("{name: ../a, type: stdout}"), "sinks[0].name: found \"../a\""),
        (
            sinks("{name: a, type: stdout}, {name: a, type: file, path: x}"),
            "sinks[1].name: found a, which is the name of",
        ),
        (sinks("{name: a, type: stdout}, {name: b, type: stdout}"), "sinks[1]: writes to the same place as sinks[0]"),
        (sinks("{name: a, type: file, path: x}, {name: b, type: file, path: x}"), "sinks[1]: writes to the same place"),
        (sinks("{name: a, type: file, path: ''}"), "sinks[0].path: empty"),
        (sinks("{name: a, type: stdout, retry: {max_ms: 1}}"), "sinks[0].retry.initial_ms: found 500, which is more"),
        (
            sinks("{name: a, type: stdout, filter: 'grup == 1'}"),
            "sinks[0].filter: found grup, which a filter does not know",
        ),
        (sinks("{name: a, type: stdout, filter: 'kind'}"), "sinks[0].filter: found \"kind\", which is"),
        (sinks("{name: a, type: stdout, delivery: exactly_once}"), "sinks[0].delivery: "),
        (sinks("{name: a, type: file, path: x, delivery: exactly_once}"), "sinks[0].delivery: "),
        (sinks("{name: a, type: webhook, url: 'http://h', delivery: exactly_once}"), "sinks[0].delivery: "),
        (sinks("{name: a, type: webhook, url: 'ftp://h'}"), "sinks[0].url: "),
        (sinks("{name: a, type: kafka, brokers: []}"), "sinks[0].brokers: "),
        (
            sinks("{name: a, type: kafka, brokers: ['h:1'], topic: '{nmae}'}"),
            "sinks[0].topic: found {nmae}, allowed: {cluster}",
        ),
        (sinks("{name: a, type: kafka, brokers: ['h:1'], properties: {acks: 1}}"), "sinks[0].properties.acks: "),
        (
            sinks("{name: a, type: file, path: x, dead_letter: {topic: t}}"),
            "sinks[0].dead_letter.topic: found \"t\", which only a sink of type kafka can write to; allowed here: path",
        ),
        (
            sinks("{name: a, type: kafka, brokers: ['h:1'], dead_letter: {subject: t}}"),
            "sinks[0].dead_letter.subject: found \"t\", which only a sink of type nats can write to; allowed here: path, topic",
        ),
        (
            sinks("{name: a, type: nats, servers: ['nats://h'], dead_letter: {subject: a, path: b}}"),
            "sinks[0].dead_letter: found path and subject, allowed: one of path",
        ),
        (
            sinks("{name: a, type: kafka, brokers: ['h:1'], dead_letter: {topic: 'a b'}}"),
            "sinks[0].dead_letter.topic: found ' '",
        ),
        (
            sinks("{name: a, type: kafka, brokers: ['h:1'], topic: all, dead_letter: {topic: all}}"),
            "sinks[0].dead_letter.topic: found all, expected a topic that nothing else is written to",
        ),
        (
            sinks("{name: a, type: kafka, brokers: ['h:1'], dead_letter: {topic: kubetide-cursors}}"),
            "sinks[0].dead_letter.topic: found kubetide-cursors, expected a topic",
        ),
        (
            sinks("{name: a, type: nats, servers: ['nats://h'], dead_letter: {subject: 'a.*'}}"),
            "sinks[0].dead_letter.subject: ",
        ),
        (
            sinks("{name: a, type: nats, servers: ['nats://h'], dead_letter: {subject: 'a.{name}'}}"),
            "sinks[0].dead_letter.subject: ",
        ),
        (sinks("{name: a, type: stdout, dead_letter: {path: ''}}"), "sinks[0].dead_letter.path: empty"),
        (sinks("{name: a, type: stdout, dead_letter: {pth: x}}"), "sinks[0].dead_letter.pth: unknown key"),
        (
            sinks(
                "{name: a, type: stdout, dead_letter: {path: x}}, {name: b, type: file, path: y, dead_letter: {path: x}}",
            ),
            "sinks[1].dead_letter.path: is that of sinks[0]",
        ),
        (sinks("{name: a, type: nats, servers: []}"), "sinks[0].servers: "),
        (sinks("{name: a, type: nats, servers: ['nats://h'], subject: 'a.*'}"), "sinks[0].subject: "),
        (
            sinks("{name: a, type: nats, servers: ['nats://h'], delivery: exactly_once, batch: {max_records: 1000}}"),
            "sinks[0].batch.max_records: found 1000",
        ),
    ] {
        assert_refused(&text, &[told]);
    }
}

#[test]
fn paths_that_are_none_or_take_in_what_an_object_is_known_by_are_refused() {
    for key in ["drop", "redact", "ignore"] {
        let refused_as = |path: &str, told: &str| {
            let place = format!("record.{key}[1]: found {path:?}");
            assert_refused(&format!("record: {{{key}: [/spec/a, '{path}']}}"), &[&place, told]);
        };
        refused_as("spec", "begins with /");
        refused_as("/a~2", "a ~ is followed by neither 0");
        for path in ["/kind", "/metadata", "/metadata/uid", "/*", "/*/name", "/metadata/*"] {
            refused_as(path, "allowed: any path but /kind, /apiVersion, /metadata");
        }
    }
    let text =
        format!("{SHORT}record: {{drop: [/metadata/annotations/a~1b], redact: ['/spec/*/env/*/value'], patch: false}}");
    let record = loaded("c.yaml", &text).unwrap().record;
    assert_eq!(
        (record.drop[0].as_str(), record.redact[0].as_str()),
        ("/metadata/annotations/a~1b", "/spec/*/env/*/value")
    );
    assert!(!record.patch && !record.before);
}

#[test]
fn a_key_that_is_no_reference_is_refused_and_never_repeated() {
    for value in
        ["hunter2", "{file: ''}", "{file: a, env: hunter2}", "{value: hunter2}", "[hunter2]", "7", "{env: [hunter2]}"]
    {
        let text = format!("record: {{redact_key: {value}}}");
        assert_refused(&text, &["record.redact_key: expected a reference: {file: PATH} or {env: NAME}"]);
        assert!(!refused(&text).contains("hunter2"), "{}", refused(&text));
    }
    let key =
        |value: &str| loaded("c.yaml", &format!("{SHORT}record: {{redact_key: {value}}}")).unwrap().record.redact_key;
    assert_eq!(key("{file: /k}"), Some(Reference::File("/k".into())));
    assert_eq!(key("{env: K}"), Some(Reference::Env("K".into())));
    assert_eq!(key("null"), None);
}

#[test]
fn files_that_are_no_configuration_are_refused_by_name() {
    for (name, text, told) in [
        ("c.yaml", "a: b: c", "c.yaml is not YAML"),
        ("c.yaml", "{{{", "c.yaml is not YAML"),
        ("c.yaml", "list: {page_size: 1, page_size: 2}", "\"page_size\": duplicated key"),
        ("c.yaml", "[a, b]", "found a list, expected a map"),
        ("c.yaml", "text", "found \"text\", expected a map"),
        ("c.json", "{\"list\": ", "c.json is not JSON"),
        ("c.toml", "[list\n", "c.toml is not TOML"),
        ("c.yaml", "", "streams: empty; name at least one"),
        ("c.yaml", "# only a comment\n", "streams: empty; name at least one"),
    ] {
        let message = loaded(name, text).expect_err(text);
        assert!(message.contains(told), "{message:?} does not say {told:?}");
        assert!(!message.contains("String("), "{message}");
    }
    let missing = load(Path::new("/nowhere/c.yaml"), &Flags::default()).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/c.yaml") && missing.contains("No such file"), "{missing}");
    let (directory, path) = file("c.yaml", "");
    fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert!(load(&path, &Flags::default()).unwrap_err().to_string().contains("c.yaml"));
    assert!(load(directory.path(), &Flags::default()).unwrap_err().to_string().contains("directory"));
}

#[test]
fn the_admin_address_can_be_changed_or_left_out() {
    let listen = |text: &str| loaded("c.yaml", &format!("{SHORT}{text}")).unwrap().admin.listen;
    assert_eq!(listen(""), Some(([0, 0, 0, 0], 8080).into()));
    assert_eq!(listen("admin: {listen: '[::1]:9'}"), Some("[::1]:9".parse().unwrap()));
    assert_eq!(listen("admin: {listen: null}"), None);
}

#[test]
fn yaml_json_and_toml_say_the_same() {
    let yaml = loaded("c.yaml", SHORT).unwrap();
    let json = r#"{"cluster": {"kubeconfig": "/nowhere"}, "streams": [{"resource": "pods"}], "sinks": [{"name": "a", "type": "stdout"}]}"#;
    let toml =
        "[cluster]\nkubeconfig = '/nowhere'\n[[streams]]\nresource = 'pods'\n[[sinks]]\nname = 'a'\ntype = 'stdout'\n";
    assert_eq!(yaml, loaded("c.json", json).unwrap());
    assert_eq!(yaml, loaded("c.toml", toml).unwrap());
    assert_eq!(yaml, loaded("c.conf", SHORT).unwrap());
}

/// Runs the program with these variables. A configuration that is in order ends at the cluster, which is nowhere.
async fn run(text: &str, variables: &[(&str, &str)]) -> Ended {
    let (_directory, path) = file("c.yaml", text);
    let mut command = kubetide(path);
    command.envs(variables.iter().copied());
    ended(command).await
}

#[tokio::test]
async fn the_environment_goes_over_the_file() {
    const IN_ORDER: [&str; 2] = ["cluster.kubeconfig", "/nowhere"];
    run(SHORT, &[]).await.assert_refused(2, &IN_ORDER);
    let zero = format!("{SHORT}list: {{page_size: 0}}\n");
    run(&zero, &[("KUBETIDE__LIST__PAGE_SIZE", "100")]).await.assert_refused(2, &IN_ORDER);
    run(&zero, &[("KUBETIDE__LIST__PAGE_SIZE", "")]).await.assert_refused(2, &["list.page_size: found 0"]);
    let told = ["list.page_size (set by KUBETIDE__LIST__PAGE_SIZE): found \"abc\", expected a whole number"];
    run(SHORT, &[("KUBETIDE__LIST__PAGE_SIZE", "abc")]).await.assert_refused(2, &told);
    let told = ["list.page_sze (set by KUBETIDE__LIST__PAGE_SZE): unknown key", "did you mean page_size?"];
    run(SHORT, &[("KUBETIDE__LIST__PAGE_SZE", "1")]).await.assert_refused(2, &told);
    // Text stays text, whatever it looks like.
    run(SHORT, &[("KUBETIDE__CLUSTER__NAME", "007")]).await.assert_refused(2, &IN_ORDER);
    run(SHORT, &[("KUBETIDE__WATCH__BOOKMARKS", "false")]).await.assert_refused(2, &IN_ORDER);
    run(SHORT, &[("KUBETIDE__CLUSTER__KUBECONFIG", "/else")]).await.assert_refused(2, &["cannot read /else"]);
}

#[tokio::test]
async fn flags_go_over_the_environment_and_what_is_set_is_what_is_done() {
    let server = Server::start(Cluster::new(ClusterOptions::default())).await.unwrap();
    let (asked, limits) = std::sync::mpsc::sync_channel(100);
    server.set_hook(Some(std::sync::Arc::new(move |request| {
        let _ = request.query.get("limit").map(|limit| asked.send(limit.clone()));
        Fault::Pass
    })));
    let scratch = tempfile::tempdir().unwrap();
    let mut instance = Instance::new(&server.kubeconfig(scratch.path()).unwrap(), &[("namespaces", "")], "");
    let (by_environment, by_flag) = (instance.path("environment"), instance.path("flag"));
    instance.start_with(|command| {
        command.arg("--data-dir").arg(&by_flag);
        command.env("KUBETIDE__DATA_DIR", &by_environment).env("KUBETIDE__LIST__PAGE_SIZE", "3");
        command.env("KUBETIDE__LIST__STREAMING", "never");
    });
    instance.records_when_listed(1).await;
    assert!(instance.terminate().success());
    assert!(by_flag.join("FORMAT").exists());
    assert!(!by_environment.exists() && !instance.path("data").exists());
    assert_eq!(limits.try_iter().collect::<Vec<_>>(), ["3", "3"], "four namespaces in pages of three");
}
