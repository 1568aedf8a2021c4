//! Streams against a real kube-apiserver: the ways of reading one are the same, selections are the server's, and a cut
//! costs no LIST.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use instance::{Instance, assert_bounded_repetition, changes_of, count, count_of, fold, listed};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use kubetide_test_env::{Apiserver, Crd, Mode, Proxy};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};
use tokio::task::JoinSet;

fn config_map(name: &str, labels: Value, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "data": {"value": value}})).unwrap()
}

async fn create(maps: &Api<ConfigMap>, name: &str, labels: Value) {
    maps.create(&PostParams::default(), &config_map(name, labels, "1")).await.unwrap();
}

async fn merge(maps: &Api<ConfigMap>, name: &str, patch: Value) {
    maps.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

async fn delete(maps: &Api<ConfigMap>, name: &str) {
    maps.delete(name, &DeleteParams::default()).await.unwrap();
}

/// The ops of one object, in order, with where they come from.
fn told<'a>(records: &'a [Value], name: &str) -> Vec<(&'a str, &'a str)> {
    changes_of(records, name).iter().map(|(op, record)| (*op, record["origin"].as_str().unwrap())).collect()
}

/// Everything that has ever been written differently by two encoders.
const AWKWARD: &str = "é \"quoted\" \\ <b>&amp;</b> \u{2028} \u{7f} \t 😀";

/// A config map, a deployment and a custom resource, each created and then changed.
async fn write_awkward(client: &Client, namespace: &str, group: &str) {
    let objects = [
        ("", "v1", "ConfigMap", json!({"data": {"awkward": AWKWARD}, "binaryData": {"b": "/+8="}})),
        (
            "apps",
            "v1",
            "Deployment",
            json!({"spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": {
                "metadata": {"labels": {"app": "a"}},
                "spec": {"containers": [{"name": "c", "image": "example.com/app:1", "args": [AWKWARD]}]}}}}),
        ),
        (
            group,
            "v1",
            "Widget",
            json!({"spec": {"z": 1.5, "a": 9_007_199_254_740_993_i64, "m": {"b": [], "a": {}, "c": null}, "t": AWKWARD,
                "f": 1.0, "e": 1e21, "small": 1e-7, "": "empty key"}}),
        ),
    ];
    for (group, version, kind, mut object) in objects {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
        object["apiVersion"] = resource.api_version.clone().into();
        object["kind"] = kind.into();
        object["metadata"] = json!({"name": kind.to_lowercase(), "labels": {"z": "1", "a": "2"}, "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": AWKWARD}});
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"changed": "yes"}}}));
        api.patch(&kind.to_lowercase(), &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Id and object of the last record of each name, as they are written.
fn last_states(instance: &Instance) -> BTreeMap<String, (String, String)> {
    let mut states = BTreeMap::new();
    for line in instance.lines() {
        let record: Value = serde_json::from_str(&line).unwrap();
        if let (Some(name), Some(at)) = (record["name"].as_str(), line.find(r#","object":"#)) {
            let id = record["id"].as_str().unwrap().to_owned();
            states.insert(name.to_owned(), (id, line[at..].to_owned()));
        }
    }
    states
}

/// The same objects by watch, by streaming LIST and by pages. `streams`: whether the API server does streaming LISTs.
async fn assert_every_way_shows_the_same(server: &Apiserver, streams: bool) {
    let namespace = server.namespace("same").await.unwrap();
    let group = format!("{namespace}.example.com");
    server.create_crd(&Crd::new(&group, "widgets", "Widget")).await.unwrap();
    let client = server.client().await.unwrap();
    for content in ["full", "metadata"] {
        let entry = |word: &str| format!("{{resource: {word}, namespaces: [{namespace}], content: {content}}}");
        let entries = [entry("configmaps"), entry("deployments.apps"), entry(&format!("widgets.{group}"))];
        let of = |more: &str| Instance::with_streams(server.kubeconfig(), &entries, more);
        let mut watching = of("");
        watching.start();
        if content == "full" {
            watching.records_when_listed(3).await;
            write_awkward(&client, &namespace, &group).await;
        } else {
            watching.records_when_listed(3).await;
            for (path, name) in [
                ("api/v1", "configmaps/configmap"),
                ("apis/apps/v1", "deployments/deployment"),
                (&format!("apis/{group}/v1"), "widgets/widget"),
            ] {
                let uri = format!("/{path}/namespaces/{namespace}/{name}");
                let patch = json!({"metadata": {"annotations": {"changed": "again"}}}).to_string();
                let request = http::Request::patch(uri).header("content-type", "application/merge-patch+json");
                client.request_text(request.body(patch.into_bytes()).unwrap()).await.unwrap();
            }
        }
        watching.records_when("the changes are seen", |records| count(records, "update") == 3).await;
        let (mut streaming, mut paged) = (of(""), of("list: {streaming: never}\n"));
        streaming.start();
        paged.start();
        streaming.records_when_listed(3).await;
        paged.records_when_listed(3).await;

        let watched = last_states(&watching);
        assert_eq!(watched.len(), 3);
        assert_eq!(watched, last_states(&streaming), "{content}");
        assert_eq!(watched, last_states(&paged), "{content}");
        for (name, (_, object)) in &watched {
            assert!(!object.contains("managedFields") && object.contains(r#""kept":"#), "{object}");
            let partial =
                object.starts_with(r#","object":{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#);
            assert_eq!(partial, content == "metadata", "{name}: {object}");
            let content_is_there = object.contains(r#""spec":"#) || object.contains(r#""data":"#);
            assert_eq!(content_is_there, content == "full", "{name}: {object}");
        }
        let lists =
            |instance: &Instance, kind: &str| instance.metric("kubetide_lists_total", &[&format!("kind=\"{kind}\"")]);
        assert_eq!((lists(&paged, "streaming"), lists(&paged, "paged")), (0.0, 3.0));
        let in_pages = if streams { 0.0 } else { 3.0 };
        assert_eq!((lists(&streaming, "streaming"), lists(&streaming, "paged")), (3.0, in_pages));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_streaming_list_and_pages_show_the_same_ids_and_bytes() {
    assert_every_way_shows_the_same(Apiserver::shared().await, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_streaming_lists_pages_show_the_same_ids_and_bytes() {
    let server = Apiserver::builder().feature_gates("WatchList=false").start().await.unwrap();
    assert_every_way_shows_the_same(&server, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_the_selection_is_a_delete_and_entering_it_a_create() {
    let server = Apiserver::shared().await;
    let (mine, other) = (server.namespace("mine").await.unwrap(), server.namespace("other").await.unwrap());
    let client = server.client().await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &mine);
    let elsewhere = Api::<ConfigMap>::namespaced(client.clone(), &other);
    // The namespace is a label too: other tests share the server.
    let web = json!({"tier": "web", "of": mine});
    create(&maps, "leaves", web.clone()).await;
    create(&maps, "enters", json!({"tier": "db", "of": mine})).await;
    create(&elsewhere, "excluded", web.clone()).await;

    let pods = Api::<Pod>::namespaced(client.clone(), &mine);
    let pod = |name: &str| {
        let pod =
            json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "example.com/app:1"}]}});
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    pods.create(&PostParams::default(), &pod("pod")).await.unwrap();
    let phase = async |phase: &str| {
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        pods.patch_status("pod", &PatchParams::default(), &patch).await.unwrap();
    };

    let entries = [
        format!(
            "{{resource: configmaps, exclude_namespaces: [{other}, kube-system], label_selector: \"tier in (web, app), of={mine}\"}}"
        ),
        format!("{{resource: pods, namespaces: [{mine}], field_selector: status.phase=Running}}"),
    ];
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &entries, "");
    kubetide.start();
    let records = kubetide.records_when_listed(2).await;
    let snapshots: BTreeSet<&str> =
        records.iter().filter(|r| r["op"] == "snapshot").map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(snapshots, BTreeSet::from(["leaves"]));

    merge(&maps, "leaves", json!({"metadata": {"labels": {"tier": "db"}}})).await;
    merge(&maps, "enters", json!({"metadata": {"labels": {"tier": "web"}}})).await;
    merge(&elsewhere, "excluded", json!({"data": {"value": "2"}})).await;
    phase("Running").await;
    phase("Succeeded").await;
    merge(&maps, "leaves", json!({"metadata": {"labels": {"tier": "app"}}})).await;
    delete(&maps, "enters").await;
    let records = kubetide
        .records_when("all of it is told", |r| {
            changes_of(r, "enters").len() == 2 && changes_of(r, "leaves").len() == 3 && changes_of(r, "pod").len() == 2
        })
        .await;
    assert_eq!(told(&records, "leaves"), [("snapshot", "list"), ("delete", "watch"), ("create", "watch")]);
    assert_eq!(told(&records, "enters"), [("create", "watch"), ("delete", "watch")]);
    assert_eq!(told(&records, "pod"), [("create", "watch"), ("delete", "watch")]);
    assert!(changes_of(&records, "excluded").is_empty());
    let ids: BTreeSet<&str> = records.iter().map(|record| record["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), records.len(), "no id twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_named_namespace_is_a_stream_of_its_own() {
    let server = Apiserver::shared().await;
    let client = server.client().await.unwrap();
    let mut namespaces = Vec::new();
    for name in ["a", "b", "c"] {
        let namespace = server.namespace(name).await.unwrap();
        create(&Api::namespaced(client.clone(), &namespace), name, json!({})).await;
        namespaces.push(namespace);
    }
    let (a, b, c) = (&namespaces[0], &namespaces[1], &namespaces[2]);
    let entries = [format!("{{resource: cm, namespaces: [{a}, {b}]}}")];
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &entries, "");
    kubetide.start();
    let records = kubetide.records_when_listed(2).await;
    for (name, namespace) in [("a", a), ("b", b)] {
        let stream = format!("core/configmaps@{namespace}");
        assert_eq!(changes_of(&records, name)[0].1["stream"], stream.as_str());
        assert_eq!(count_of(&records, &stream, "snapshot"), 1);
    }
    assert!(changes_of(&records, "c").is_empty());
    assert!(kubetide.terminate().success());

    // One namespace less and one more leaves the third where it was.
    create(&Api::namespaced(client.clone(), b), "later", json!({})).await;
    kubetide.configure(&[format!("{{resource: cm, namespaces: [{b}, {c}]}}")], "");
    kubetide.start();
    let before = records.len();
    let records = kubetide
        .records_when("all is told", |r| !changes_of(r, "later").is_empty() && count(r, "snapshot_finished") == 3)
        .await;
    let new = &records[before..];
    assert_eq!(count_of(new, &format!("core/configmaps@{a}"), "stream_removed"), 1);
    assert_eq!((count(new, "delete"), count(new, "gap"), count(new, "stream_removed")), (0, 0, 1));
    assert_eq!(told(new, "later"), [("create", "watch")]);
    assert_eq!(told(new, "c"), [("snapshot", "list")]);
    assert!(changes_of(new, "b").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_selector_tells_what_left_and_what_entered_and_nothing_else() {
    let server = Apiserver::shared().await;
    let namespace = server.namespace("edited").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(server.client().await.unwrap(), &namespace);
    for (name, labels) in [
        ("stays", json!({"old": "1", "new": "1"})),
        ("stays-too", json!({"old": "1", "new": "1"})),
        ("leaves", json!({"old": "1"})),
        ("enters", json!({"new": "1"})),
        ("neither", json!({})),
    ] {
        create(&maps, name, labels).await;
    }
    let entry = |label: &str| [format!("{{resource: configmaps, namespaces: [{namespace}], label_selector: {label}}}")];
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &entry("old"), "");
    kubetide.start();
    let before = kubetide.records_when_listed(1).await;
    assert!(kubetide.terminate().success());

    kubetide.configure(&entry("new"), "");
    kubetide.start();
    let records = kubetide.records_when("it is compared", |r| count(r, "resync_finished") == 1).await;
    let new = &records[before.len()..];
    let ops: Vec<&str> = new.iter().map(|record| record["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["gap", "create", "delete", "resync_finished"]);
    assert_eq!(new[0]["reason"], "config_changed");
    assert!(new[0]["from"]["resource_version"].is_string());
    assert_eq!(told(new, "enters"), [("create", "list")]);
    assert_eq!(told(new, "leaves"), [("delete", "list")]);
    assert_eq!(new[3]["counts"], json!({"create": 1, "update": 0, "delete": 1, "unchanged": 2}));
    let left: BTreeSet<String> = fold(&records).into_keys().map(|(_, _, name)| name).collect();
    assert_eq!(left, ["enters", "stays", "stays-too"].map(String::from).into());

    // Back again, by way of a kill: the same ids do not come twice though the states are the same.
    kubetide.kill();
    kubetide.configure(&entry("old"), "");
    kubetide.start();
    let records = kubetide.records_when("it is compared again", |r| count(r, "resync_finished") == 2).await;
    // The kill may have repeated a batch: each place of the log counts once.
    let ids: BTreeMap<u64, &str> =
        records.iter().map(|r| (r["log"]["seq"].as_u64().unwrap(), r["id"].as_str().unwrap())).collect();
    let different: BTreeSet<&&str> = ids.values().collect();
    assert_eq!(different.len(), ids.len(), "an object that comes back is not the duplicate of its first coming");
    assert_bounded_repetition(&kubetide.lines(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_polled_stream_tells_changes_from_lists_and_never_a_gap() {
    let server = Apiserver::start().await.unwrap();
    let namespace = server.namespace("polled").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(server.client().await.unwrap(), &namespace);
    for name in ["updated", "deleted", "kept", "replaced"] {
        create(&maps, name, json!({})).await;
    }
    let entries = [format!("{{resource: configmaps, namespaces: [{namespace}], mode: poll, poll_interval_secs: 1}}")];
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &entries, "list: {page_size: 2}\n");
    let watches_before = server.requests().await.unwrap().watches("configmaps");
    kubetide.start();
    let before = kubetide.records_when_listed(1).await;
    create(&maps, "created", json!({})).await;
    merge(&maps, "updated", json!({"data": {"value": "2"}})).await;
    delete(&maps, "deleted").await;
    delete(&maps, "replaced").await;
    create(&maps, "replaced", json!({})).await;
    let all = |r: &[Value]| {
        ["created", "updated", "deleted"].iter().all(|name| !changes_of(&r[before.len()..], name).is_empty())
    };
    let records = kubetide.records_when("the changes are polled", all).await;
    let new = &records[before.len()..];
    assert_eq!(told(new, "created"), [("create", "list")]);
    assert_eq!(told(new, "updated"), [("update", "list")]);
    assert_eq!(told(new, "deleted"), [("delete", "list")]);

    // A restart is a pause between two LISTs like any other.
    assert!(kubetide.terminate().success());
    delete(&maps, "kept").await;
    kubetide.start();
    let records = kubetide.records_when("the delete is polled", |r| count(r, "delete") == 3).await;
    assert_eq!(told(&records[before.len()..], "replaced"), [("delete", "list"), ("create", "list")]);
    assert_eq!((count(&records, "gap"), count(&records, "resync_finished")), (0, 0));
    assert_eq!((count(&records, "snapshot_started"), count(&records, "snapshot_finished")), (1, 1));
    kubetide.readiness_when("it is ready", |status, _| status == 200).await;
    let watches = server.requests().await.unwrap().watches("configmaps");
    assert_eq!(watches, watches_before, "it does not watch");
    let stream = format!("core/configmaps@{namespace}");
    let path = format!("/api/v1/namespaces/{namespace}/configmaps");
    assert_eq!(fold(&records), listed(&server.client().await.unwrap(), &stream, &path).await);
}

/// Creates, changes and deletes config maps until it is told to stop. Returns how many writes that were.
async fn churn(maps: Api<ConfigMap>, seed: u64, stop: Arc<AtomicBool>, pause: Duration) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut alive: BTreeSet<u64> = BTreeSet::new();
    let mut writes = 0;
    while !stop.load(Ordering::Relaxed) {
        let index = random.random_range(0..60);
        let name = format!("churn-{seed}-{index}");
        if alive.insert(index) {
            create(&maps, &name, json!({})).await;
        } else if random.random_bool(0.3) {
            alive.remove(&index);
            delete(&maps, &name).await;
        } else {
            merge(&maps, &name, json!({"data": {"value": writes.to_string()}})).await;
        }
        writes += 1;
        tokio::time::sleep(pause).await;
    }
    writes
}

/// An API server that logs every LIST, with who asked for it: it has clients of its own, which list now and then.
async fn server_that_logs_lists(directory: &Path) -> Apiserver {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "verbs": ["list"]}]});
    fs::write(directory.join("policy"), policy.to_string()).unwrap();
    let flag = |name: &str, file: &str| format!("--audit-{name}={}", directory.join(file).display());
    Apiserver::builder().flag(flag("policy-file", "policy")).flag(flag("log-path", "lists")).start().await.unwrap()
}

/// How many LISTs kubetide has asked for, by the API server's log.
fn lists_of_kubetide(directory: &Path) -> usize {
    let log = fs::read_to_string(directory.join("lists")).unwrap();
    log.lines().filter(|line| line.contains(r#""userAgent":"kubetide/"#)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn cuts_and_short_watches_of_everything_cost_no_list() {
    let seconds = if std::env::var_os("KUBETIDE_TORTURE").is_some() { 600 } else { 30 };
    let directory = tempfile::tempdir().unwrap();
    let server = server_that_logs_lists(directory.path()).await;
    let proxy = Proxy::start(server.address()).unwrap();
    let namespace = server.namespace("cuts").await.unwrap();
    let client = server.client().await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    // In pages, so that the API server counts each LIST as one.
    let more = "list: {streaming: never}\nwatch: {timeout_min_secs: 5, timeout_max_secs: 10}\n";
    let mut kubetide = Instance::with_streams(&server.kubeconfig_at(proxy.port()), &["{resource: \"*\"}"], more);
    kubetide.start();
    kubetide.readiness_when("every stream is followed", |status, text| status == 200 && !text.contains("[~]")).await;
    let streams = count(&kubetide.records(), "snapshot_finished");
    assert!(streams > 40, "{streams} streams");

    assert_eq!(lists_of_kubetide(directory.path()), streams, "one page each");
    let before = server.requests().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let churning = tokio::spawn(churn(maps, 1, stop.clone(), Duration::from_millis(20)));
    let since = Instant::now();
    let mut random = StdRng::seed_from_u64(1);
    let mut cuts = 0;
    while since.elapsed() < Duration::from_secs(seconds) {
        // Every other time most watches live until the server ends them.
        let pause = if cuts % 2 == 0 { random.random_range(500..3_000) } else { random.random_range(8_000..11_000) };
        tokio::time::sleep(Duration::from_millis(pause)).await;
        match cuts % 3 {
            0 => proxy.cut(),
            1 => proxy.close(),
            _ => {
                // In the middle of whatever it says next.
                proxy.set(Mode::CutAfter(random.random_range(0..5_000)));
                tokio::time::sleep(Duration::from_millis(500)).await;
                proxy.set(Mode::Pass);
            }
        }
        cuts += 1;
    }
    stop.store(true, Ordering::Relaxed);
    let writes = churning.await.unwrap();
    assert_eq!(lists_of_kubetide(directory.path()), streams, "no LIST but the first ones");
    let lists = server.requests().await.unwrap().since(&before);
    // The API server looks after its node ports every three minutes, by a LIST of services.
    assert!(lists.lists_by_resource().keys().all(|resource| resource == "services"), "{lists:?}");

    let expected = listed(&client, "core/configmaps", "/api/v1/configmaps").await;
    let maps_only = |records: &[Value]| {
        let of: Vec<Value> = records.iter().filter(|r| r["stream"] == "core/configmaps").cloned().collect();
        fold(&of)
    };
    let records = kubetide.records_when("the cluster's state is told", |r| maps_only(r) == expected).await;
    let changes = count_of(&records, "core/configmaps", "create")
        + count_of(&records, "core/configmaps", "update")
        + count_of(&records, "core/configmaps", "delete");
    assert_eq!(changes as u64, writes, "each write is told once");
    assert_eq!((count(&records, "gap"), count(&records, "stream_removed")), (0, 0));
    assert_eq!(count(&records, "snapshot_started"), streams);
    assert_bounded_repetition(&kubetide.lines(), 0);
    let ended = |why: &str| kubetide.metric("kubetide_watch_ended_total", &[&format!("reason=\"{why}\"")]);
    let (cut, timeout) = (ended("cut"), ended("timeout"));
    assert!(cut >= streams as f64, "{cut} watches were cut");
    assert!(timeout >= streams as f64, "{timeout} watches came to their end");
    assert_eq!(kubetide.metric("kubetide_lists_total", &[]), streams as f64);
    kubetide
        .readiness_when("every stream is followed again", |status, text| status == 200 && !text.contains("[~]"))
        .await;
    println!("{streams} streams, {cuts} cuts, {cut} watches cut, {timeout} ended, {writes} writes");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_deleted_between_two_pages_are_told_and_then_deleted() {
    let server = Apiserver::shared().await;
    let namespace = server.namespace("pages").await.unwrap();
    let client = server.client().await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    create_many(&maps, 100).await;
    // Slow enough that there is time between two pages.
    let proxy = Proxy::start(server.address()).unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(10)));
    let kubeconfig = server.kubeconfig_at(proxy.port());
    let more = "list: {streaming: never, page_size: 2}\n";
    let mut kubetide = Instance::new(&kubeconfig, &[("configmaps", &namespace)], more);
    kubetide.start();
    kubetide.records_when("the first pages are there", |r| count(r, "snapshot") >= 4).await;
    let late: Vec<String> = (60..90).map(|number| format!("map-{number:04}")).collect();
    for name in &late {
        delete(&maps, name).await;
    }
    create(&maps, "map-0095-a", json!({})).await;
    let records = kubetide.records_when_listed(1).await;
    assert_eq!(count(&records, "snapshot"), 100, "all pages are of one version");
    let (stream, path) = (format!("core/configmaps@{namespace}"), format!("/api/v1/namespaces/{namespace}/configmaps"));
    let expected = listed(&client, &stream, &path).await;
    let records = kubetide.records_when("the deletes are told", |r| fold(r) == expected).await;
    for name in &late {
        assert_eq!(told(&records, name), [("snapshot", "list"), ("delete", "watch")]);
    }
    assert_eq!(told(&records, "map-0095-a"), [("create", "watch")]);
    assert_eq!(kubetide.metric("kubetide_lists_total", &[]), 1.0);
}

/// `map-0000` and so on, by several writers.
async fn create_many(maps: &Api<ConfigMap>, count: usize) {
    const WRITERS: usize = 20;
    let write = |maps: Api<ConfigMap>, writer: usize| async move {
        for number in (writer..count).step_by(WRITERS) {
            create(&maps, &format!("map-{number:04}"), json!({})).await;
        }
    };
    let writers: JoinSet<()> = (0..WRITERS).map(|writer| write(maps.clone(), writer)).collect();
    writers.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_list_under_churn_ends_in_the_clusters_state() {
    let server = Apiserver::shared().await;
    let namespace = server.namespace("churn").await.unwrap();
    let client = server.client().await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    create_many(&maps, 3_000).await;
    let stop = Arc::new(AtomicBool::new(false));
    let churning: Vec<_> =
        (0..4).map(|seed| tokio::spawn(churn(maps.clone(), seed, stop.clone(), Duration::ZERO))).collect();
    let mut kubetide = Instance::new(server.kubeconfig(), &[("configmaps", &namespace)], "");
    kubetide.start();
    kubetide.records_when_listed(1).await;
    stop.store(true, Ordering::Relaxed);
    for task in churning {
        task.await.unwrap();
    }
    let (stream, path) = (format!("core/configmaps@{namespace}"), format!("/api/v1/namespaces/{namespace}/configmaps"));
    let expected = listed(&client, &stream, &path).await;
    let records = kubetide.records_when("the cluster's state is told", |r| fold(r) == expected).await;
    assert!(expected.len() >= 3_000);
    assert!(count(&records, "snapshot") >= 3_000);
    assert!(count(&records, "create") + count(&records, "update") + count(&records, "delete") > 0, "there was churn");
    assert_eq!(count(&records, "gap"), 0);
    let lists = |kind: &str| kubetide.metric("kubetide_lists_total", &[&format!("kind=\"{kind}\"")]);
    assert_eq!((lists("streaming"), lists("paged")), (1.0, 0.0));
}
