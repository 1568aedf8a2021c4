//! The slice end to end: a real kube-apiserver, the built binary, a file; restarted, compacted and killed on the way.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use instance::{Instance, State, assert_bounded_repetition, changes_of, cleaned, count, fold};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use kubetide_test_env::Apiserver;
use rand::{Rng as _, RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "é \"quoted\" \\"}}, "data": {"value": value}}))
    .unwrap()
}

fn deployment(name: &str, replicas: i32) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]}}},
    }))
    .unwrap()
}

/// A namespace of its own and the ways to change things in it.
struct Space {
    namespace: String,
    client: Client,
    config_maps: Api<ConfigMap>,
    deployments: Api<Deployment>,
}

impl Space {
    async fn new(server: &Apiserver, prefix: &str) -> Self {
        Self::at(server.client().await.unwrap(), server.namespace(prefix).await.unwrap())
    }

    fn at(client: Client, namespace: String) -> Self {
        let config_maps = Api::namespaced(client.clone(), &namespace);
        let deployments = Api::namespaced(client.clone(), &namespace);
        Self { namespace, client, config_maps, deployments }
    }

    /// Creates an object and returns the state it has now.
    async fn create(&self, name: &str, value: &str) -> ConfigMap {
        self.config_maps.create(&PostParams::default(), &config_map(name, value)).await.unwrap()
    }

    /// Changes an object and returns the state it has now.
    async fn update(&self, name: &str, value: &str) -> ConfigMap {
        let patch = Patch::Merge(json!({"data": {"value": value}}));
        self.config_maps.patch(name, &PatchParams::default(), &patch).await.unwrap()
    }

    async fn delete(&self, name: &str) {
        self.config_maps.delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn create_deployment(&self, name: &str, replicas: i32) {
        self.deployments.create(&PostParams::default(), &deployment(name, replicas)).await.unwrap();
    }

    fn streams(&self) -> [(&'static str, &str); 2] {
        [("configmaps", &self.namespace), ("deployments.apps", &self.namespace)]
    }

    /// What the API server itself lists, as a consumer should have it.
    async fn state(&self) -> State {
        let mut state = State::new();
        for (stream, path, kind, api_version) in [
            ("core/configmaps", "api/v1", "ConfigMap", "v1"),
            ("apps/deployments", "apis/apps/v1", "Deployment", "apps/v1"),
        ] {
            let resource = stream.rsplit('/').next().unwrap();
            let uri = format!("/{path}/namespaces/{}/{resource}", self.namespace);
            let list: Value = self.client.request(http::Request::get(uri).body(vec![]).unwrap()).await.unwrap();
            for item in list["items"].as_array().unwrap() {
                let mut item = cleaned(item.clone());
                item["kind"] = kind.into();
                item["apiVersion"] = api_version.into();
                let name = item["metadata"]["name"].as_str().unwrap().to_owned();
                state.insert((format!("{stream}@{}", self.namespace), self.namespace.clone(), name), item);
            }
        }
        state
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_equals_list() {
    let server = Apiserver::shared().await;
    let space = Space::new(server, "snapshot").await;
    for index in 0..23 {
        space.create(&format!("map-{index}"), "1").await;
    }
    space.create_deployment("web", 2).await;

    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), "list: {page_size: 5}\n");
    kubetide.start();
    let records = kubetide.records_when_listed(2).await;

    let expected = space.state().await;
    assert_eq!(expected.len(), 24);
    assert_eq!(fold(&records), expected);
    assert_eq!(count(&records, "snapshot"), expected.len(), "each object once");
    for (stream, objects) in [("core/configmaps", 23), ("apps/deployments", 1)] {
        let of: Vec<&Value> =
            records.iter().filter(|r| r["stream"] == format!("{stream}@{}", space.namespace)).collect();
        let (first, last) = (of[0], of[of.len() - 1]);
        assert_eq!((&first["op"], &last["op"]), (&json!("snapshot_started"), &json!("snapshot_finished")));
        assert_eq!(last["counts"], json!({"snapshot": objects}));
        for record in &of[1..of.len() - 1] {
            assert_eq!((&record["op"], &record["origin"]), (&json!("snapshot"), &json!("list")));
            assert_eq!(record["snapshot"]["id"], first["id"]);
            assert_eq!(record["resource_version"], record["object"]["metadata"]["resourceVersion"]);
            assert_eq!(record["uid"], record["object"]["metadata"]["uid"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn create_update_and_delete_arrive_once_and_in_order() {
    let server = Apiserver::shared().await;
    let space = Space::new(server, "order").await;
    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), "");
    kubetide.start();
    kubetide.records_when_listed(2).await;

    for index in 0..10 {
        space.create(&format!("map-{index}"), "1").await;
        space.update(&format!("map-{index}"), "2").await;
        space.update(&format!("map-{index}"), "3").await;
        space.delete(&format!("map-{index}")).await;
    }
    let records = kubetide.records_when("ten objects are deleted", |records| count(records, "delete") == 10).await;

    for index in 0..10 {
        let changes = changes_of(&records, &format!("map-{index}"));
        let ops: Vec<&str> = changes.iter().map(|(op, _)| *op).collect();
        assert_eq!(ops, ["create", "update", "update", "delete"]);
        let values: Vec<&Value> = changes.iter().map(|(_, record)| &record["object"]["data"]["value"]).collect();
        assert_eq!(values, ["1", "2", "3", "3"]);
        assert_eq!(changes[0].1["previous_resource_version"], Value::Null);
        for pair in changes.windows(2) {
            assert_eq!(pair[1].1["previous_resource_version"], pair[0].1["resource_version"]);
        }
        assert!(changes.iter().all(|(_, record)| record["origin"] == "watch"));
        let deleted = changes[3].1["resource_version"].as_str().unwrap().parse::<u64>().unwrap();
        let updated = changes[2].1["resource_version"].as_str().unwrap().parse::<u64>().unwrap();
        assert!(deleted > updated, "a delete that was seen has the delete's own version");
    }
    let ids: BTreeSet<&str> = records.iter().map(|record| record["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), records.len(), "no id twice");
    assert_bounded_repetition(&kubetide.lines(), 0);
    assert_eq!(count(&records, "gap"), 0);
}

/// One object for each thing that can happen to it while kubetide is down.
async fn prepare(space: &Space) {
    for name in ["kept", "updated", "deleted", "replaced"] {
        space.create(name, "before").await;
    }
    space.create_deployment("web", 1).await;
}

async fn change_while_down(space: &Space) {
    space.create("created", "down").await;
    space.update("updated", "down").await;
    space.delete("deleted").await;
    space.delete("replaced").await;
    space.create("replaced", "down").await;
    space.deployments.delete("web", &DeleteParams::default()).await.unwrap();
    space.create_deployment("api", 3).await;
}

/// LIST requests for a resource that the API server has answered.
async fn lists(client: &Client, resource: &str) -> f64 {
    let text = client.request_text(http::Request::get("/metrics").body(vec![]).unwrap()).await.unwrap();
    let counted = text.lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains("verb=\"LIST\"")
            && line.contains(&format!("resource=\"{resource}\""))
    });
    counted.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_resumes_with_no_list_no_gap_and_no_duplicate() {
    let server = Apiserver::start().await.unwrap();
    let space = Space::new(&server, "resume").await;
    prepare(&space).await;
    // In pages, so that the API server counts a LIST as one.
    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), "list: {streaming: never}\n");
    kubetide.start();
    let before = kubetide.records_when_listed(2).await;
    assert!(kubetide.terminate().success());

    change_while_down(&space).await;
    let lists_before = lists(&space.client, "deployments").await;
    assert!(lists_before > 0.0, "the first start has listed");
    kubetide.start();
    let all = |r: &[Value]| !changes_of(r, "api").is_empty() && changes_of(r, "replaced").len() == 3;
    let records = kubetide.records_when("the last change of each stream is there", all).await;
    assert!(kubetide.terminate().success());

    assert_eq!(lists(&space.client, "deployments").await, lists_before, "no LIST after the restart");
    assert_eq!(count(&records, "gap"), 0);
    assert_eq!(count(&records, "snapshot_started"), 2, "only those of the first start");
    assert_eq!(assert_bounded_repetition(&kubetide.lines(), 0), 0);
    let new = &records[before.len()..];
    assert!(new.iter().all(|record| record["origin"] == "watch"), "all were seen, none inferred");
    let ops = |name: &str| changes_of(new, name).iter().map(|(op, _)| *op).collect::<Vec<_>>();
    assert_eq!(ops("created"), ["create"]);
    assert_eq!(ops("updated"), ["update"]);
    assert_eq!(ops("deleted"), ["delete"]);
    assert_eq!(ops("replaced"), ["delete", "create"]);
    assert_eq!(ops("web"), ["delete"]);
    assert_eq!(ops("api"), ["create"]);
    assert_eq!(ops("kept"), [] as [&str; 0]);
    assert_eq!(fold(&records), space.state().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_history_gives_one_gap_per_stream_and_the_inferred_deletes() {
    let server = Apiserver::start().await.unwrap();
    let space = Space::new(&server, "expired").await;
    prepare(&space).await;
    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), "list: {page_size: 2}\n");
    kubetide.start();
    let before = kubetide.records_when_listed(2).await;
    assert!(kubetide.terminate().success());

    change_while_down(&space).await;
    server.forget_history().await.unwrap();
    let space = Space::at(server.client().await.unwrap(), space.namespace.clone());
    kubetide.start();
    let records = kubetide.records_when("both streams are whole again", |r| count(r, "resync_finished") == 2).await;

    let gaps: Vec<&Value> = records.iter().filter(|record| record["op"] == "gap").collect();
    let broken: BTreeSet<&str> = gaps.iter().map(|gap| gap["stream"].as_str().unwrap()).collect();
    assert_eq!((gaps.len(), broken.len()), (2, 2), "exactly one gap per stream");
    for gap in gaps {
        assert_eq!((&gap["reason"], &gap["scope"]), (&json!("expired"), &json!("stream")));
        assert!(gap["from"]["resource_version"].as_str().is_some_and(|version| !version.is_empty()));
        assert!(gap["from"]["at"].as_str().is_some());
    }
    let new = &records[before.len()..];
    let last_known = |name: &str| changes_of(&before, name).last().unwrap().1;
    for name in ["deleted", "replaced", "web"] {
        let (op, delete) = changes_of(new, name)[0];
        assert_eq!((op, &delete["origin"]), ("delete", &json!("list")), "{name}");
        assert_eq!(delete["object"], last_known(name)["object"], "with the last known state");
        assert_eq!(delete["uid"], last_known(name)["uid"]);
        assert_eq!(delete["previous_resource_version"], last_known(name)["resource_version"]);
    }
    let replaced = changes_of(new, "replaced");
    assert_eq!(replaced.iter().map(|(op, _)| *op).collect::<Vec<_>>(), ["delete", "create"]);
    assert_ne!(replaced[1].1["uid"], replaced[0].1["uid"]);
    assert_eq!(changes_of(new, "created")[0].0, "create");
    assert_eq!(changes_of(new, "updated")[0].0, "update");
    assert!(changes_of(new, "kept").is_empty(), "what did not change is not told again");
    let maps = format!("core/configmaps@{}", space.namespace);
    let finished = new.iter().find(|r| r["op"] == "resync_finished" && r["stream"] == maps.as_str()).unwrap();
    // The namespace's root certificate is there too where its controller runs; here it does not.
    assert_eq!(finished["counts"], json!({"create": 2, "update": 1, "delete": 2, "unchanged": 1}));
    assert_eq!(fold(&records), space.state().await);

    // The stream goes on from the resync, without another one.
    space.create("afterwards", "1").await;
    let records = kubetide.records_when("the watch goes on", |r| !changes_of(r, "afterwards").is_empty()).await;
    assert_eq!(changes_of(&records, "afterwards")[0].1["origin"], "watch");
    assert_eq!(count(&records, "gap"), 2);
    assert_bounded_repetition(&kubetide.lines(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_state_by_watch_and_by_list_has_the_same_id_and_bytes() {
    let server = Apiserver::shared().await;
    let space = Space::new(server, "same").await;
    let mut watching = Instance::new(server.kubeconfig(), &space.streams(), "");
    watching.start();
    watching.records_when_listed(2).await;
    space.create("a", "1").await;
    space.update("a", "2").await;
    space.create_deployment("web", 2).await;
    watching
        .records_when("the watch shows all", |r| changes_of(r, "a").len() == 2 && !changes_of(r, "web").is_empty())
        .await;
    let mut listing = Instance::new(server.kubeconfig(), &space.streams(), "");
    listing.start();
    listing.records_when_listed(2).await;

    let object_bytes = |instance: &Instance, name: &str| {
        let lines = instance.lines();
        let line = lines.iter().rfind(|line| line.contains(&format!(r#""name":"{name}","uid""#))).unwrap().clone();
        let at = line.find(r#","object":"#).unwrap();
        line[at..].to_owned()
    };
    for name in ["a", "web"] {
        let (watched, listed) = (watching.records(), listing.records());
        let (watched, listed) =
            (changes_of(&watched, name).last().unwrap().1["id"].clone(), changes_of(&listed, name)[0].1["id"].clone());
        assert_eq!(watched, listed, "{name}");
        assert_eq!(object_bytes(&watching, name), object_bytes(&listing, name));
        assert!(!object_bytes(&watching, name).contains("managedFields"));
    }
}

/// Creates, updates and deletes at random until it is told to stop. Returns every state it has written: uid and version.
async fn churn(space: Arc<Space>, seed: u64, stop: Arc<AtomicBool>) -> Vec<(String, u64)> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut alive: BTreeSet<u64> = BTreeSet::new();
    let mut written = Vec::new();
    let mut next = 0;
    while !stop.load(Ordering::Relaxed) {
        let pick = alive.iter().nth(random.random_range(0..alive.len().max(1))).copied();
        let name = |index: u64| format!("churn-{seed}-{index}");
        let state = match (random.random_range(0..10), pick) {
            (0..=2, Some(index)) if alive.len() > 5 => {
                alive.remove(&index);
                space.delete(&name(index)).await;
                continue;
            }
            (3..=6, Some(index)) => space.update(&name(index), &random.next_u64().to_string()).await,
            _ if alive.len() < 40 => {
                // Some names come back under another uid.
                let index = if random.random_bool(0.3) { random.random_range(0..=next) } else { next };
                next += 1;
                if !alive.insert(index) {
                    continue;
                }
                space.create(&name(index), "new").await
            }
            _ => continue,
        };
        let version = state.metadata.resource_version.unwrap().parse().unwrap();
        written.push((state.metadata.uid.unwrap(), version));
    }
    written
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_lose_nothing_and_repeat_at_most_a_batch_each() {
    let kills = if std::env::var_os("KUBETIDE_TORTURE").is_some() { 200 } else { 20 };
    let server = Apiserver::shared().await;
    let space = Arc::new(Space::new(server, "kills").await);
    for index in 0..200 {
        space.create(&format!("base-{index}"), "1").await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let churning: Vec<_> = (0..3).map(|seed| tokio::spawn(churn(space.clone(), seed, stop.clone()))).collect();

    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), "list: {page_size: 20}\n");
    let mut random = StdRng::seed_from_u64(1);
    for kill in 0..kills {
        kubetide.start();
        // From the first LIST to the steady watch: anywhere.
        let wait = random.random_range(20..if kill < 5 { 300 } else { 1500 });
        tokio::time::sleep(Duration::from_millis(wait)).await;
        kubetide.kill();
    }
    stop.store(true, Ordering::Relaxed);
    let mut written = Vec::new();
    for task in churning {
        written.extend(task.await.unwrap());
    }
    let expected = space.state().await;
    kubetide.start();
    let records = kubetide.records_when("the file tells the cluster's state", |r| fold(r) == expected).await;
    assert!(kubetide.terminate().success());

    let repeated = assert_bounded_repetition(&kubetide.lines(), kills);
    assert_eq!(count(&records, "snapshot_finished"), 2);
    assert_eq!(count(&records, "gap"), 0, "a kill is not a break in history");
    assert_changes_are_chained(&records);
    assert_all_are_told(&written, &records, &format!("core/configmaps@{}", space.namespace));
    println!("{kills} kills, {} states written, {} records, {repeated} repeated", written.len(), records.len());
}

/// Every state that was written after the snapshot is in the records, also those that another one followed at once.
fn assert_all_are_told(written: &[(String, u64)], records: &[Value], stream: &str) {
    let version = |record: &Value| record["resource_version"].as_str().unwrap().parse::<u64>().unwrap();
    let finished = records.iter().find(|r| r["op"] == "snapshot_finished" && r["stream"] == stream).unwrap();
    let told: BTreeSet<(&str, u64)> =
        records.iter().filter_map(|record| Some((record["uid"].as_str()?, version(record)))).collect();
    let after: Vec<_> = written.iter().filter(|(_, at)| *at > version(finished)).collect();
    assert!(!after.is_empty());
    for (uid, at) in after {
        assert!(told.contains(&(uid.as_str(), *at)), "version {at} of {uid} was written and is not told");
    }
}

/// Every change of an object continues from the one before it in the log.
fn assert_changes_are_chained(records: &[Value]) {
    let mut last: BTreeMap<(&str, &str), &Value> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for record in records.iter().filter(|record| record["uid"].is_string()) {
        if !seen.insert(record["id"].as_str().unwrap()) {
            continue;
        }
        let key = (record["stream"].as_str().unwrap(), record["uid"].as_str().unwrap());
        let previous = last.get(&key).map_or(&Value::Null, |before| &before["resource_version"]);
        assert_eq!(&record["previous_resource_version"], previous, "{record}");
        last.insert(key, record);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespaced_stream_sees_nothing_of_other_namespaces() {
    let server = Apiserver::shared().await;
    let (mine, other) = (Space::new(server, "mine").await, Space::new(server, "other").await);
    mine.create("a", "1").await;
    other.create("b", "1").await;
    let mut kubetide = Instance::new(server.kubeconfig(), &mine.streams(), "");
    kubetide.start();
    kubetide.records_when_listed(2).await;
    other.create("c", "1").await;
    mine.create("d", "1").await;
    let records = kubetide.records_when("the last change is there", |r| !changes_of(r, "d").is_empty()).await;
    assert!(changes_of(&records, "b").is_empty() && changes_of(&records, "c").is_empty());
    assert_eq!(other.config_maps.list(&ListParams::default()).await.unwrap().items.len(), 2);
}
