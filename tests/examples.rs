//! The programs in `docs/examples` do what docs/records.md says of them: they are run on the records of a kubetide that meets
//! everything that a consumer must survive, and what they end up with is held against the cluster.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;
mod instance;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ended::ended;
use instance::{Instance, count, count_of};
use kubetide_simulator::{Cluster, ClusterOptions, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

/// As they are called in records, and by the cluster.
const STREAMS: [(&str, &str); 2] = [("core/configmaps", "configmaps"), ("core/secrets", "secrets")];

/// Stream, namespace, name, uid, version.
type Table = BTreeSet<[String; 5]>;

struct Case {
    server: Server,
    kubetide: Instance,
    directory: TempDir,
}

impl Case {
    async fn new() -> Self {
        let server = Server::start(Cluster::new(ClusterOptions::default())).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(directory.path()).unwrap();
        let streams = STREAMS.map(|(_, resource)| format!("{{resource: {resource}}}"));
        let kubetide = Instance::with_streams(&kubeconfig, &streams, "");
        let case = Self { server, kubetide, directory };
        for number in 0..60 {
            case.create(&format!("o{number}"));
        }
        case
    }

    fn create(&self, name: &str) {
        for (_, resource) in STREAMS {
            let object = json!({"metadata": {"name": name, "namespace": "default"}, "data": {"n": "MA=="}});
            self.server.cluster().create(resource, object).unwrap();
        }
    }

    fn update(&self, name: &str, value: &str) {
        for (_, resource) in STREAMS {
            let change = |object: &mut Value| object["data"]["n"] = value.into();
            self.server.cluster().update(resource, "default", name, change).unwrap();
        }
    }

    fn delete(&self, name: &str) {
        for (_, resource) in STREAMS {
            self.server.cluster().delete(resource, "default", name).unwrap();
        }
    }

    /// Creates one more, and waits until every sink record up to it is in the file.
    async fn delivered(&mut self, last: &str) {
        self.create(last);
        let wanted = |records: &[Value]| {
            STREAMS
                .iter()
                .all(|(stream, _)| records.iter().any(|record| record["stream"] == *stream && record["name"] == last))
        };
        self.kubetide.records_when("the last change is delivered", wanted).await;
    }

    /// `kubetide …` on the running process.
    async fn command(&self, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(arguments).arg("--config").arg(self.kubetide.path("kubetide.yaml"));
        let ended = ended(command).await;
        assert_eq!(ended.code, Some(0), "{ended:#?}");
    }

    fn database(&self) -> PathBuf {
        self.directory.path().join("cmdb.sqlite")
    }

    /// Runs the consumer over what is in the file; says how many records it has read, and what it has then.
    async fn consume(&self) -> (usize, Table) {
        let said = python(&[&example("cmdb.py"), &self.kubetide.path("out.ndjson"), &self.database()]).await;
        let read =
            said.strip_prefix("read ").and_then(|rest| rest.split(' ').next()).expect("it says what it has read");
        (read.parse().unwrap(), self.table().await)
    }

    async fn table(&self) -> Table {
        self.query("SELECT stream, namespace, name, uid, version FROM objects").await.into_iter().collect()
    }

    /// The rows of the consumer's database that a query gives.
    async fn query<const N: usize>(&self, query: &str) -> Vec<[String; N]> {
        let program = self.directory.path().join("query.py");
        let text = "import json, sqlite3, sys\nprint(json.dumps(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall()))\n";
        fs::write(&program, text).unwrap();
        let said = python(&[&program, &self.database(), Path::new(query)]).await;
        let rows: Vec<Vec<Value>> = serde_json::from_str(&said).unwrap();
        let cell = |cell: &Value| cell.as_str().map_or_else(|| cell.to_string(), str::to_owned);
        rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>().try_into().unwrap()).collect()
    }

    /// What the cluster has.
    fn cluster(&self) -> Table {
        let mut table = Table::new();
        for (stream, resource) in STREAMS {
            for item in self.server.cluster().list(resource) {
                let object: Value = serde_json::from_slice(&item.json()).unwrap();
                let text = |key: &str| object["metadata"][key].as_str().unwrap().to_owned();
                table.insert([stream.into(), text("namespace"), text("name"), text("uid"), text("resourceVersion")]);
            }
        }
        table
    }

    async fn assert_in_step(&self) {
        let (_, table) = self.consume().await;
        assert_eq!(table, self.cluster());
    }
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples").join(name)
}

/// What a program prints that must succeed.
async fn python(arguments: &[&Path]) -> String {
    let mut command = Command::new("python3");
    command.args(arguments);
    let version = Command::new("python3").arg("--version").output();
    assert!(version.is_ok(), "python3 is needed for the examples: apt-get install python3");
    let ended = ended(command).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    ended.stdout
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cmdb_is_the_cluster_after_kills_gaps_replays_snapshots_and_all_of_it_twice() {
    let mut case = Case::new().await;
    case.kubetide.start();
    case.kubetide.records_when_listed(STREAMS.len()).await;
    case.assert_in_step().await;
    assert_eq!(case.consume().await.0, 0, "what was read is not read again");

    // A kill: what was under way comes again. A delete, and a name that is used again, while nobody looks.
    for number in 0..40 {
        case.update(&format!("o{number}"), "MQ==");
    }
    case.kubetide.kill();
    case.delete("o1");
    case.delete("o2");
    case.create("o2");
    case.kubetide.start();
    case.delivered("after-the-kill").await;
    case.assert_in_step().await;

    // A break in history, with deletes in it.
    case.kubetide.kill();
    case.delete("o3");
    case.update("o4", "Mg==");
    case.server.cluster().forget_history();
    case.kubetide.start();
    let resynced = |records: &[Value]| count(records, "resync_finished") == STREAMS.len();
    case.kubetide.records_when("the streams are whole again", resynced).await;
    case.delivered("after-the-gap").await;
    case.assert_in_step().await;
    let gaps = case.query::<2>("SELECT stream, reason FROM gaps WHERE whole_again IS NOT NULL ORDER BY stream").await;
    assert_eq!(gaps, STREAMS.map(|(stream, _)| [stream.to_owned(), "expired".to_owned()]));

    // What is wrong in the consumer's own table is put right by a snapshot: an object that there is not, and one that is missing.
    let spoil = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute(\"UPDATE objects SET name = 'ghost' WHERE name = 'o5'\"); db.commit()";
    let program = case.directory.path().join("spoil.py");
    fs::write(&program, spoil).unwrap();
    python(&[&program, &case.database()]).await;
    assert_ne!(case.table().await, case.cluster());
    case.command(&["sink", "resnapshot", "out"]).await;
    let given = |records: &[Value]| {
        records.iter().any(|record| record["scope"] == "sink" && record["op"] == "snapshot_finished")
    };
    case.kubetide.records_when("the sink has its snapshot", given).await;
    case.delivered("after-the-snapshot").await;
    case.assert_in_step().await;

    // A replay of everything, the first snapshots included.
    let states = case.query::<1>("SELECT count(*) FROM history").await;
    case.command(&["sink", "replay", "out", "--from", "1"]).await;
    let again = |records: &[Value]| {
        let replay = records.iter().position(|record| record["op"] == "replay");
        replay.is_some_and(|at| records[at..].iter().any(|record| record["name"] == "after-the-snapshot"))
    };
    case.kubetide.records_when("everything has come again", again).await;
    let (read, table) = case.consume().await;
    assert!(read > 200, "{read}");
    assert_eq!(table, case.cluster());
    assert_eq!(case.query::<1>("SELECT count(*) FROM history").await, states, "every state is there once");
    assert!(case.kubetide.terminate().success());
    case.assert_in_step().await;

    // The whole file again, into the same tables, as if the consumer had forgotten how far it was.
    let forget =
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute(\"DELETE FROM place\"); db.commit()";
    fs::write(&program, forget).unwrap();
    python(&[&program, &case.database()]).await;
    let (again, table) = case.consume().await;
    assert_eq!((again, table), (case.kubetide.records().len(), case.cluster()));

    // Not in step because nothing happened.
    let records = case.kubetide.records();
    for (stream, _) in STREAMS {
        assert!(count_of(&records, stream, "delete") >= 3 && count_of(&records, stream, "gap") >= 1, "{stream}");
    }
}

/// The consumer alone, on lines that are written by hand.
struct Alone {
    directory: TempDir,
}

impl Alone {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs it on this file.
    async fn consume(&self, file: &str) -> ended::Ended {
        let mut command = Command::new("python3");
        command.arg(example("cmdb.py")).arg(self.path(file)).arg(self.path("cmdb.sqlite"));
        ended(command).await
    }

    /// Runs it, and asserts that it has read so many records and is content.
    async fn reads(&self, records: usize) {
        let ended = self.consume("out.ndjson").await;
        assert_eq!(ended.code, Some(0), "{ended:#?}");
        assert!(ended.stdout.starts_with(&format!("read {records} records: ")), "{records}: {ended:#?}");
    }
}

/// One config map per seq.
fn created(seqs: std::ops::RangeInclusive<u64>) -> String {
    let record = |seq: u64| {
        json!({
            "schema": "kubetide.change.v1", "id": format!("id-{seq}"), "log": {"id": "log", "seq": seq},
            "op": "create", "origin": "watch", "cluster": {"name": "c"}, "stream": "core/configmaps",
            "namespace": "n", "name": format!("m{seq}"), "uid": format!("u{seq}"), "resource_version": seq.to_string(),
            "observed_at": "2026-11-18T08:53:48.828403Z", "change": null, "actor": null, "object": {},
        })
    };
    seqs.map(|seq| in_order(&record(seq)) + "\n").collect()
}

/// As kubetide writes it: the schema first.
fn in_order(record: &Value) -> String {
    let text = record.to_string();
    let schema = r#""schema":"kubetide.change.v1""#;
    let rest = text[1..].replace(&format!(",{schema}"), "");
    format!("{{{schema},{rest}")
}

/// A control record; without a stream it is of scope sink.
fn control(op: &str, seq: u64, stream: Option<&str>) -> String {
    let record = json!({
        "schema": "kubetide.change.v1", "id": format!("{op}-{seq}"), "log": {"id": "log", "seq": seq}, "op": op,
        "cluster": {"name": "c"}, "stream": stream, "observed_at": "2026-11-18T08:53:48.828403Z",
        "scope": if stream.is_some() { "stream" } else { "sink" }, "reason": "expired", "from": {"at": null},
    });
    in_order(&record) + "\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cmdb_reads_the_rest_of_a_file_that_was_rotated_by_moving_or_by_copying() {
    let case = Alone::new();
    let out = case.path("out.ndjson");
    fs::write(&out, created(1..=5)).unwrap();
    case.reads(5).await;
    // Moved, twice.
    fs::write(&out, created(1..=7)).unwrap();
    fs::rename(&out, case.path("out.ndjson.2")).unwrap();
    // The older one, however coarse the clock of the volume is.
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(3_600);
    fs::File::options().append(true).open(case.path("out.ndjson.2")).unwrap().set_modified(long_ago).unwrap();
    fs::write(case.path("out.ndjson.1"), created(8..=9)).unwrap();
    fs::write(&out, created(10..=11)).unwrap();
    case.reads(6).await;
    // Moved, and there is no new one yet.
    fs::write(&out, created(10..=12)).unwrap();
    fs::rename(&out, case.path("out.ndjson-20261118")).unwrap();
    case.reads(1).await;
    fs::write(&out, created(13..=14)).unwrap();
    case.reads(2).await;
    // Copied, and cut.
    fs::write(case.path("out.ndjson-20261119"), created(13..=15)).unwrap();
    fs::write(&out, created(16..=40)).unwrap();
    case.reads(26).await;
    case.reads(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cmdb_says_that_records_are_missing_until_a_snapshot_has_mended_it() {
    let case = Alone::new();
    let out = case.path("out.ndjson");
    fs::write(&out, created(1..=5)).unwrap();
    case.reads(5).await;
    // Another file, whose lines are cut elsewhere, and without a hole: what was read comes again.
    fs::write(&out, control("replay", 2, None) + &created(3..=7)).unwrap();
    case.reads(6).await;
    fs::write(&out, created(9..=20)).unwrap();
    for _ in 0..2 {
        let ended = case.consume("out.ndjson").await;
        assert_eq!(ended.code, Some(1), "{ended:#?}");
        assert!(ended.stderr.contains("log/7 are missing") && ended.stderr.contains("sink resnapshot"), "{ended:#?}");
    }
    // The end of a snapshot whose beginning is not there proves nothing.
    let mut text = created(9..=20) + &control("snapshot_finished", 20, None) + &control("resync_finished", 20, None);
    fs::write(&out, &text).unwrap();
    assert_eq!(case.consume("out.ndjson").await.code, Some(1));
    text += &(control("snapshot_started", 20, None) + &created(9..=20) + &control("snapshot_finished", 20, None));
    fs::write(&out, &text).unwrap();
    case.reads(14).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cmdb_keeps_one_file_and_closes_the_gap_of_a_stream_that_is_no_longer_followed() {
    let case = Alone::new();
    let stream = Some("core/configmaps");
    let text = created(1..=3) + &control("gap", 4, stream);
    fs::write(case.path("out.ndjson"), &text).unwrap();
    assert!(case.consume("out.ndjson").await.stdout.contains("1 gaps (1 open)"));
    fs::write(case.path("out.ndjson"), text + &control("stream_removed", 5, stream)).unwrap();
    let said = case.consume("out.ndjson").await.stdout;
    assert!(said.contains("1 gaps (0 open)") && said.contains("3 core/configmaps"), "its objects stay: {said}");
    fs::write(case.path("other.ndjson"), control("snapshot_started", 1, None)).unwrap();
    let refused = case.consume("other.ndjson").await;
    assert_eq!(refused.code, Some(1), "{refused:#?}");
    assert!(refused.stderr.contains("is the database of") && refused.stderr.contains("other.ndjson"), "{refused:#?}");
}
