//! Verification against a cluster that is not what the stream believes: it finds that, mends exactly that, and then finds
//! nothing any more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;

use std::time::Duration;

use instance::{Instance, State, assert_bounded_repetition, changes_of, cleaned, count, fold};
use kubetide_simulator::{Checkpoint, Cluster, ClusterOptions, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

const STREAM: &str = "core/configmaps@default";

/// A simulated cluster with twenty config maps, and a kubetide that verifies every second.
struct Case {
    server: Server,
    kubetide: Instance,
    _directory: TempDir,
}

impl Case {
    async fn new() -> Self {
        // As often as a test can wait for: a suspect is looked at again after the next one.
        let options = ClusterOptions { bookmark_interval: Duration::from_millis(200), ..ClusterOptions::default() };
        let server = Server::start(Cluster::new(options)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(directory.path()).unwrap();
        let config = "verify: {interval_secs: 1}\n";
        let mut kubetide = Instance::new(&kubeconfig, &[("configmaps", "default")], config);
        for number in 0..20 {
            create(&server, &format!("c{number:02}"));
        }
        kubetide.start();
        kubetide.records_when_listed(1).await;
        Self { server, kubetide, _directory: directory }
    }

    fn update(&self, name: &str, value: &str) {
        let change = |map: &mut Value| map["data"]["value"] = value.into();
        self.server.cluster().update("configmaps", "default", name, change).unwrap();
    }

    /// A time that the stream sees and that the cluster will not have had. Returns what the cluster was before it, and how
    /// many records there are after it.
    async fn lose(&mut self) -> (Checkpoint, usize) {
        let before = self.server.cluster().checkpoint();
        self.update("c03", "lost");
        create(&self.server, "lost");
        self.server.cluster().delete("configmaps", "default", "c07").unwrap();
        let records = self.kubetide.records_when("the lost time is told", |r| count(r, "delete") == 1).await;
        (before, records.len())
    }

    /// The cluster is what it was, at a version beyond all that the stream has seen: no version says so.
    fn rewind(&self, to: &Checkpoint) {
        self.server.cluster().restore(to);
        self.server.cluster().skip_versions(100);
    }

    fn expected(&self) -> State {
        let items = self.server.cluster().list("configmaps");
        let of_namespace = items.iter().filter(|item| item.namespace() == "default");
        let object = |json: &[u8]| cleaned(serde_json::from_slice(json).unwrap());
        let key = |name: &str| (STREAM.to_owned(), "default".to_owned(), name.to_owned());
        of_namespace.map(|item| (key(item.name()), object(&item.json()))).collect()
    }

    /// Waits for this many more clean verifications, by the debug lines of kubetide's log.
    async fn verified(&mut self, times: usize) {
        let log = self.kubetide.path("log");
        let clean = move || std::fs::read_to_string(&log).unwrap().matches(" verified stream=").count();
        let before = clean();
        self.kubetide.records_when("it is verified", move |_| clean() >= before + times).await;
    }
}

fn create(server: &Server, name: &str) {
    let object = json!({"metadata": {"name": name, "namespace": "default"}, "data": {"value": "first"}});
    server.cluster().create("configmaps", object).unwrap();
}

fn gaps(records: &[Value]) -> Vec<&str> {
    let gaps = records.iter().filter(|record| record["op"] == "gap");
    gaps.map(|gap| gap["reason"].as_str().unwrap()).collect()
}

/// What [`Case::lose`] did is undone, each with the state that is true now.
fn assert_undone(new: &[Value]) {
    let changes = |name: &str| {
        let value = |record: &Value| record["object"]["data"]["value"].clone();
        let of = changes_of(new, name).into_iter();
        of.map(|(op, record)| json!([op, record["origin"], value(record)])).collect::<Vec<_>>()
    };
    assert_eq!(changes("c03"), [json!(["update", "list", "first"])]);
    assert_eq!(changes("lost"), [json!(["delete", "list", "first"])]);
    assert_eq!(changes("c07"), [json!(["create", "list", "first"])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_finds_what_the_stream_has_wrong_and_mends_exactly_that() {
    let mut case = Case::new().await;
    case.verified(2).await;
    let (before, told) = case.lose().await;
    case.server.refuse(true).await;
    case.rewind(&before);
    case.server.refuse(false).await;
    let mended = |r: &[Value]| count(r, "resync_finished") == 1;
    let records = case.kubetide.records_when("the stream is whole again", mended).await;

    assert_eq!(fold(&records), case.expected());
    let new = &records[told..];
    assert_eq!(gaps(new), ["divergence"]);
    assert_undone(new);
    let finished = new.iter().find(|record| record["op"] == "resync_finished").unwrap();
    assert_eq!(finished["counts"], json!({"create": 1, "update": 1, "delete": 1, "unchanged": 18}));

    // It is true now, and the stream goes on.
    case.verified(3).await;
    case.update("c11", "after");
    let records = case.kubetide.records_when("the watch goes on", |r| changes_of(r, "c11").len() == 2).await;
    assert_eq!(gaps(&records), ["divergence"]);
    assert_bounded_repetition(&case.kubetide.lines(), 0);
}

/// After a 410 objects are compared by version. An object that went back gives it away that history was rewritten too.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_history_that_was_also_rewritten_is_compared_by_content_at_once() {
    let mut case = Case::new().await;
    let (before, told) = case.lose().await;
    assert!(case.kubetide.terminate().success());
    case.rewind(&before);
    case.update("c11", "after");
    case.server.cluster().forget_history();
    case.kubetide.start();
    let expected = case.expected();
    let records = case.kubetide.records_when("the file tells the cluster's state", |r| fold(r) == expected).await;
    let new = &records[told..];
    assert_eq!(gaps(new), ["expired", "version_regressed"]);
    assert_undone(new);
    case.verified(2).await;
    assert_eq!(case.kubetide.records().iter().filter(|record| record["op"] == "gap").count(), 2);
}
