//! What there is to follow, from a real kube-apiserver: everything by a wildcard, custom resources that come, change and go,
//! names, and an aggregated API that is dead.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;
mod instance;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use ended::{ended, kubetide};
use instance::{Instance, State, assert_bounded_repetition, changes_of, count, count_of, fold, listed};
use k8s_openapi::{
    api::core::v1::ConfigMap,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList},
    kube_aggregator::pkg::apis::apiregistration::v1::APIService,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use kubetide_test_env::{Apiserver, Crd};
use serde_json::{Value, json};

const EVERYTHING: [&str; 1] = ["{resource: \"*\"}"];

/// Stream → path of its LIST, for all that a wildcard is to follow, by the older discovery, which kubetide does not use here.
async fn watchable(client: &Client) -> BTreeMap<String, String> {
    async fn get<T: serde::de::DeserializeOwned>(client: &Client, path: &str) -> T {
        client.request(http::Request::get(path).body(vec![]).unwrap()).await.unwrap()
    }
    let mut documents = vec![(String::new(), "/api/v1".to_owned())];
    for group in get::<APIGroupList>(client, "/apis").await.groups {
        // The preferred version first: it is the one to follow.
        let preferred = group.preferred_version.unwrap().group_version;
        let mut versions: Vec<String> = group.versions.into_iter().map(|version| version.group_version).collect();
        versions.sort_by_key(|version| *version != preferred);
        documents.extend(versions.into_iter().map(|version| (group.name.clone(), format!("/apis/{version}"))));
    }
    let excluded = ["secrets", "events", "leases", "endpoints", "endpointslices"];
    let mut paths = BTreeMap::new();
    for (group, path) in documents {
        for resource in get::<APIResourceList>(client, &path).await.resources {
            let can = |verb: &str| resource.verbs.iter().any(|own| own == verb);
            if can("list") && can("watch") && !excluded.contains(&resource.name.as_str()) {
                let group = if group.is_empty() { "core" } else { &group };
                paths.entry(format!("{group}/{}", resource.name)).or_insert(format!("{path}/{}", resource.name));
            }
        }
    }
    paths
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_captures_everything_that_can_be_listed_and_watched() {
    let server = Apiserver::start().await.unwrap();
    let namespace = server.namespace("everything").await.unwrap();
    let client = server.client().await.unwrap();
    server.create_crd(&Crd::new("shop.example.com", "widgets", "Widget").versions(&["v1", "v1beta1"])).await.unwrap();
    server.create_crd(&Crd::new("shop.example.com", "gadgets", "Gadget").versions(&["v1beta1"])).await.unwrap();
    server.create_crd(&Crd::new("shop.example.com", "regions", "Region").cluster_scoped()).await.unwrap();
    for crd in ["widgets", "gadgets", "regions"] {
        let (kind, version) = match crd {
            "widgets" => ("Widget", "v1"),
            "gadgets" => ("Gadget", "v1beta1"),
            _ => ("Region", "v1"),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("shop.example.com", version, kind));
        let api = match kind {
            "Region" => Api::<DynamicObject>::all_with(client.clone(), &resource),
            _ => Api::namespaced_with(client.clone(), &namespace, &resource),
        };
        api.create(&PostParams::default(), &DynamicObject::new("one", &resource)).await.unwrap();
    }
    let paths = watchable(&client).await;
    assert!(paths.len() > 40 && paths.contains_key("core/pods") && !paths.contains_key("core/secrets"), "{paths:?}");

    let mut kubetide = Instance::with_streams(server.kubeconfig(), &EVERYTHING, "");
    kubetide.start();
    let records = kubetide.records_when_listed(paths.len()).await;
    let streams: BTreeSet<&str> = records.iter().map(|record| record["stream"].as_str().unwrap()).collect();
    assert_eq!(streams, paths.keys().map(String::as_str).collect());
    assert!(streams.iter().all(|stream| stream.matches('/').count() == 1), "no subresource");
    let mut expected = State::new();
    for (stream, path) in &paths {
        expected.extend(listed(&client, stream, path).await);
    }
    assert!(expected.len() > 100, "{} objects", expected.len());
    let records = kubetide.records_when("all that is listed is told", |records| fold(records) == expected).await;
    assert_eq!(count(&records, "snapshot_finished"), paths.len());
    kubetide.readiness_when("it is ready", |status, text| status == 200 && !text.contains("[~]")).await;
    println!("{} streams, {} objects", paths.len(), expected.len());

    // A restart resumes each of them without a LIST.
    assert!(kubetide.terminate().success());
    let before = server.requests().await.unwrap();
    kubetide.start();
    kubetide.readiness_when("it is ready again", |status, text| status == 200 && !text.contains("[~]")).await;
    assert_eq!(server.requests().await.unwrap().since(&before).lists_by_resource(), &BTreeMap::new());
    assert_eq!(kubetide.records().len(), records.len());
    assert!(kubetide.terminate().success());

    // A namespace can be left out of everything that is in namespaces.
    let entries = [format!("{{resource: \"*\", exclude_namespaces: [kube-system, {namespace}]}}")];
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &entries, "");
    kubetide.start();
    let records = kubetide.records_when_listed(paths.len()).await;
    expected.retain(|(_, of, _), _| of != "kube-system" && *of != namespace);
    assert_eq!(fold(&records), expected);
}

/// A kind that comes and goes, and its objects in one namespace.
struct Kind {
    client: Client,
    namespace: String,
    crd: Crd,
    group: String,
}

impl Kind {
    async fn new(server: &Apiserver, versions: &[&str]) -> Kind {
        let namespace = server.namespace("kind").await.unwrap();
        let group = format!("{namespace}.example.com");
        let crd = Crd::new(&group, "widgets", "Widget").versions(versions);
        Kind { client: server.client().await.unwrap(), namespace, crd, group }
    }

    fn objects(&self, version: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &self.resource(version))
    }

    fn resource(&self, version: &str) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(&self.group, version, "Widget"))
    }

    async fn create(&self, version: &str, names: &[&str]) {
        for name in names {
            let object = DynamicObject::new(name, &self.resource(version)).data(json!({"spec": {"size": 1}}));
            self.objects(version).create(&PostParams::default(), &object).await.unwrap();
        }
    }

    fn stream(&self) -> String {
        format!("{}/widgets", self.group)
    }

    async fn listed(&self, stream: &str, version: &str) -> State {
        listed(&self.client, stream, &format!("/apis/{}/{version}/widgets", self.group)).await
    }

    /// The records of its stream, in all namespaces or in its own.
    fn of<'r>(&self, records: &'r [Value]) -> Vec<&'r Value> {
        let (all, own) = (self.stream(), format!("{}@{}", self.stream(), self.namespace));
        records.iter().filter(|record| record["stream"] == all || record["stream"] == own).collect()
    }

    fn ops<'r>(&self, records: &'r [Value]) -> Vec<&'r str> {
        self.of(records).iter().map(|record| record["op"].as_str().unwrap()).collect()
    }

    /// Op and name of every change in its stream. An API server that changes the versions of a kind forgets its history, so
    /// that there may be gaps in between.
    fn changes<'r>(&self, records: &'r [Value]) -> Vec<(&'r str, &'r str)> {
        let of = self.of(records);
        of.iter().filter_map(|record| Some((record["op"].as_str()?, record["name"].as_str()?))).collect()
    }

    fn fold(&self, records: &[Value]) -> State {
        let of: Vec<Value> = self.of(records).into_iter().cloned().collect();
        fold(&of)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_is_followed_as_it_comes_changes_and_goes() {
    let server = Apiserver::shared().await;
    let kind = Kind::new(server, &["v1beta1"]).await;
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &EVERYTHING, "");
    kubetide.start();
    kubetide.readiness_when("it is ready", |status, text| status == 200 && !text.contains("[~]")).await;

    // It comes.
    server.create_crd(&kind.crd).await.unwrap();
    let stream = kind.stream();
    kind.create("v1beta1", &["a", "b", "c"]).await;
    let expected = kind.listed(&stream, "v1beta1").await;
    let records = kubetide.records_when("its first objects are told", |r| kind.fold(r) == expected).await;
    assert_eq!(count_of(&records, &stream, "snapshot_started"), 1);

    // A version more that is not preferred changes nothing; one that is, everything.
    server.set_served_versions(&kind.crd, &["v1beta1", "v1alpha1"]).await.unwrap();
    kind.create("v1alpha1", &["d"]).await;
    kubetide.records_when("it goes on", |r| !changes_of(r, "d").is_empty()).await;
    server.set_served_versions(&kind.crd, &["v1", "v1beta1"]).await.unwrap();
    let shifted = |records: &[Value]| kind.of(records).iter().position(|record| record["reason"] == "config_changed");
    let records = kubetide
        .records_when("the new version is followed", |r| {
            shifted(r).is_some_and(|at| kind.ops(r)[at..].contains(&"resync_finished"))
        })
        .await;
    let (at, of) = (shifted(&records).unwrap(), kind.of(&records));
    assert_eq!(kind.ops(&records)[at..], ["gap", "update", "update", "update", "update", "resync_finished"]);
    assert_eq!(of[at + 5]["counts"], json!({"create": 0, "update": 4, "delete": 0, "unchanged": 0}));
    assert!(of[..at].iter().filter(|record| record["uid"].is_string()).all(|record| record["version"] == "v1beta1"));
    assert!(of[at + 1..at + 5].iter().all(|record| record["version"] == "v1" && record["origin"] == "list"));
    assert_eq!(kind.fold(&records), kind.listed(&stream, "v1").await);
    server.set_served_versions(&kind.crd, &["v1"]).await.unwrap();
    kind.create("v1", &["e"]).await;
    let records = kubetide.records_when("it goes on", |r| !changes_of(r, "e").is_empty()).await;
    let changes: Vec<&str> = kind.changes(&records).into_iter().map(|(op, _)| op).collect();
    assert_eq!(
        changes[changes.len() - 5..],
        ["update", "update", "update", "update", "create"],
        "nothing but e is new"
    );
    let before = changes.len();

    // It goes, once, also over a restart.
    server.delete_crd(&kind.crd).await.unwrap();
    kubetide.records_when("it is removed", |r| count_of(r, &stream, "stream_removed") == 1).await;
    assert!(kubetide.terminate().success());
    kubetide.start();
    kubetide.readiness_when("it is ready again", |status, text| status == 200 && !text.contains("[~]")).await;
    // Longer than the looks that news cause.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let records = kubetide.records();
    assert_eq!(kind.ops(&records).last(), Some(&"stream_removed"));
    assert_eq!(count_of(&records, &stream, "stream_removed"), 1);
    let deleted = kind.changes(&records).split_off(before);
    assert_eq!(deleted, ["a", "b", "c", "d", "e"].map(|name| ("delete", name)), "each once");
    assert_eq!(kind.fold(&records), State::new());

    // It comes again.
    server.create_crd(&kind.crd).await.unwrap();
    kind.create("v1beta1", &["a", "z"]).await;
    let expected = kind.listed(&stream, "v1beta1").await;
    let records = kubetide.records_when("it is captured again", |r| kind.fold(r) == expected).await;
    assert_eq!(count_of(&records, &stream, "snapshot_started"), 2);
    let ids: BTreeSet<&str> = records.iter().map(|record| record["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), records.len(), "no id twice");
    assert_bounded_repetition(&kubetide.lines(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_that_went_while_kubetide_was_down_is_deleted_once_and_can_come_back() {
    let server = Apiserver::shared().await;
    // The group of one goes with it, that of the other stays with another resource in it.
    let (alone, with_sibling) = (Kind::new(server, &["v1"]).await, Kind::new(server, &["v1"]).await);
    server.create_crd(&Crd::new(&with_sibling.group, "gadgets", "Gadget")).await.unwrap();
    for kind in [&alone, &with_sibling] {
        server.create_crd(&kind.crd).await.unwrap();
        kind.create("v1", &["a", "b"]).await;
    }
    let (here, there) = (server.namespace("here").await.unwrap(), server.namespace("there").await.unwrap());
    let entries = [
        format!("{{resource: configmaps, namespaces: [{here}, {there}]}}"),
        format!("{{resource: {}}}", alone.crd.name()),
        format!("{{resource: {}, namespaces: [{}]}}", with_sibling.crd.name(), with_sibling.namespace),
    ];
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &entries, "");
    kubetide.start();
    kubetide.records_when_listed(4).await;
    assert!(kubetide.terminate().success());

    server.delete_crd(&alone.crd).await.unwrap();
    server.delete_crd(&with_sibling.crd).await.unwrap();
    kubetide.start();
    let records = kubetide.records_when("both are removed", |r| count(r, "stream_removed") == 2).await;
    let told = ["snapshot_started", "snapshot", "snapshot", "snapshot_finished", "delete", "delete", "stream_removed"];
    for kind in [&alone, &with_sibling] {
        assert_eq!(kind.ops(&records), told);
        let deletes = &kind.of(&records)[4..6];
        assert!(deletes.iter().all(|delete| delete["origin"] == "list" && delete["object"]["spec"]["size"] == 1));
    }
    let waiting = |status: u16, text: &str| {
        status == 503
            && text.contains("[-]resources failed: not served by the cluster: ")
            && text.contains(&alone.crd.name())
            && text.contains(&with_sibling.crd.name())
    };
    let since = Instant::now();
    kubetide.readiness_when("names without a resource are told", waiting).await;
    assert!(since.elapsed() < Duration::from_secs(25), "not only at the next look at what is served");

    // Also when it starts without them.
    assert!(kubetide.terminate().success());
    kubetide.start();
    kubetide.readiness_when("it waits for them", waiting).await;
    server.create_crd(&alone.crd).await.unwrap();
    alone.create("v1", &["a"]).await;
    let expected = alone.listed(&alone.stream(), "v1").await;
    let records = kubetide.records_when("it is captured again", |r| alone.fold(r) == expected).await;
    assert_eq!(alone.ops(&records)[..7], told, "nothing is told twice");
    assert_eq!(with_sibling.ops(&records), told);
    server.create_crd(&with_sibling.crd).await.unwrap();
    kubetide.readiness_when("all is well", |status, text| status == 200 && !text.contains("[~]")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_that_is_replaced_at_once_is_told_as_deletes_and_creates() {
    let server = Apiserver::shared().await;
    let kind = Kind::new(server, &["v1"]).await;
    server.create_crd(&kind.crd).await.unwrap();
    kind.create("v1", &["a", "b"]).await;
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &[format!("{{resource: {}}}", kind.crd.name())], "");
    kubetide.start();
    kubetide.records_when_listed(1).await;
    for down in [true, false] {
        if down {
            assert!(kubetide.terminate().success());
        }
        server.delete_crd(&kind.crd).await.unwrap();
        server.create_crd(&kind.crd).await.unwrap();
        kind.create("v1", &["b", "c"]).await;
        if down {
            kubetide.start();
        }
        let expected = kind.listed(&kind.stream(), "v1").await;
        let records = kubetide.records_when("the cluster's state is told", |r| kind.fold(r) == expected).await;
        // Each uid has one beginning and at most one end.
        let mut alive = BTreeSet::new();
        for record in kind.of(&records).into_iter().filter(|record| record["uid"].is_string()) {
            let changed = match record["op"].as_str().unwrap() {
                "delete" => alive.remove(&record["uid"].to_string()),
                _ => alive.insert(record["uid"].to_string()),
            };
            assert!(changed, "{record}");
        }
        kubetide.readiness_when("it is ready", |status, text| status == 200 && !text.contains("[~]")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_is_followed_while_others_never_cease_to_change() {
    let server = Apiserver::shared().await;
    let (kind, restless) = (Kind::new(server, &["v1"]).await, Kind::new(server, &["v1"]).await);
    server.create_crd(&restless.crd).await.unwrap();
    let entries = [format!("{{resource: \"*.{}\"}}", kind.group)];
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &entries, "");
    kubetide.start();
    kubetide.readiness_when("it waits", |status, _| status == 200).await;
    let definitions = Api::<CustomResourceDefinition>::all(kind.client.clone());
    let name = restless.crd.name();
    let annotate = async || {
        for number in 0_u64.. {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"number": number.to_string()}}}));
            definitions.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let captured = async {
        server.create_crd(&kind.crd).await.unwrap();
        kind.create("v1", &["a"]).await;
        kubetide.records_when("it is captured", |r| !changes_of(r, "a").is_empty()).await
    };
    tokio::select! {
        () = annotate() => unreachable!(),
        _ = captured => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_is_found_by_any_of_its_names_and_versions() {
    let server = Apiserver::shared().await;
    let mut kind = Kind::new(server, &["v1", "v1beta1"]).await;
    let unique = kind.namespace.replace('-', "");
    let capital = format!("W{}", &unique[1..]);
    let (plural, short) = (format!("{unique}s"), format!("{unique}x"));
    kind.crd = Crd::new(&kind.group, &plural, &capital).versions(&["v1", "v1beta1"]).short_names(&[&short]);
    // The singular is the kind in small letters.
    server.create_crd(&kind.crd).await.unwrap();
    let group = kind.group.clone();
    let words = [
        (plural.clone(), "v1"),
        (plural.to_uppercase(), "v1"),
        (capital.clone(), "v1"),
        (capital.to_lowercase(), "v1"),
        (short.to_uppercase(), "v1"),
        (format!("{plural}.{group}"), "v1"),
        (format!("{plural}.v1beta1.{group}"), "v1beta1"),
        (format!("{capital}.v1.{group}"), "v1"),
        (format!("{short}.v1beta1.{}", group.to_uppercase()), "v1beta1"),
    ];
    // Disjoint namespaces, so that one process can have them all.
    let mut entries = Vec::new();
    let mut versions = BTreeMap::new();
    for (word, version) in &words {
        let namespace = server.namespace("named").await.unwrap();
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(&group, "v1", &capital), &plural);
        let objects = Api::<DynamicObject>::namespaced_with(kind.client.clone(), &namespace, &resource);
        objects.create(&PostParams::default(), &DynamicObject::new("one", &resource)).await.unwrap();
        entries.push(format!("{{resource: {word}, namespaces: [{namespace}]}}"));
        versions.insert(format!("{group}/{plural}@{namespace}"), *version);
    }
    let mut kubetide_ = Instance::with_streams(server.kubeconfig(), &entries, "");
    kubetide_.start();
    let records = kubetide_.records_when_listed(words.len()).await;
    let found: BTreeMap<String, &str> = records
        .iter()
        .filter(|record| record["op"] == "snapshot")
        .map(|record| {
            assert_eq!(record["object"]["apiVersion"], format!("{group}/{}", record["version"].as_str().unwrap()));
            (record["stream"].as_str().unwrap().to_owned(), record["version"].as_str().unwrap())
        })
        .collect();
    assert_eq!(found, versions);

    // The same plural in another group: the short word no longer says which.
    let other = Crd::new(&format!("other.{group}"), &plural, &capital);
    server.create_crd(&other).await.unwrap();
    let second = Instance::with_streams(server.kubeconfig(), &[format!("{{resource: {plural}}}")], "");
    let choices = [kind.crd.name(), other.name()];
    let run = || {
        let mut command = kubetide(second.path("kubetide.yaml"));
        command.env("KUBETIDE__TELEMETRY__LOG_LEVEL", "info");
        command
    };
    let refused = ended(run()).await;
    let mistake = ["streams[0].resource: found", "which can mean:", &choices[0], &choices[1]];
    refused.assert_refused(2, &mistake);
    second.configure(&[format!("{{resource: {plural}.v3.{group}}}")], "");
    let refused = ended(run()).await;
    refused.assert_refused(2, &["is served as: v1, v1beta1"]);
    // A process that was there before goes on.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let (status, text) = kubetide_.page("/readyz?verbose").unwrap();
    assert!(status == 200 && text.contains("[~]discovery degraded: streams[0].resource: found"), "{text}");
    assert_eq!(count(&kubetide_.records(), "stream_removed"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_aggregated_api_deletes_nothing_and_only_degrades() {
    let server = Apiserver::start().await.unwrap();
    let kind = Kind::new(&server, &["v1"]).await;
    server.create_crd(&kind.crd).await.unwrap();
    kind.create("v1", &["a", "b"]).await;
    let mut kubetide = Instance::with_streams(server.kubeconfig(), &EVERYTHING, "");
    kubetide.start();
    kubetide.readiness_when("it is ready", |status, text| status == 200 && !text.contains("[~]")).await;
    let before = kubetide.records().len();

    // Of a group of its own, and of the custom resource's group: then what is absent from that group means nothing.
    server.dead_api_service("dead.example.com", "v1").await.unwrap();
    server.dead_api_service(&kind.group, "v2").await.unwrap();
    let degraded = |status: u16, text: &str| {
        status == 200 && text.contains("[~]discovery degraded: incomplete") && text.contains("dead.example.com")
    };
    kubetide
        .readiness_when("it is degraded", |status, text| degraded(status, text) && text.contains(&kind.group))
        .await;
    assert!(kubetide.terminate().success());
    kubetide.start();
    kubetide.readiness_when("it starts all the same", degraded).await;
    kind.create("v1", &["c"]).await;
    let expected = kind.listed(&kind.stream(), "v1").await;
    let records = kubetide.records_when("it goes on", |r| kind.fold(r) == expected).await;
    let maps = Api::<ConfigMap>::namespaced(kind.client.clone(), &kind.namespace);
    maps.create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "map"}})).unwrap())
        .await
        .unwrap();
    maps.delete("map", &DeleteParams::default()).await.unwrap();
    let records_later = kubetide.records_when("all goes on", |r| changes_of(r, "map").len() == 2).await;
    assert!(records_later.len() > records.len());
    let new = &records_later[before..];
    assert_eq!((count(new, "stream_removed"), count(new, "gap"), count(new, "snapshot_started")), (0, 0, 0));
    assert_eq!(count(new, "delete"), 1, "only what was deleted");

    server.remove_api_service("dead.example.com", "v1").await.unwrap();
    server.remove_api_service(&kind.group, "v2").await.unwrap();
    kubetide.readiness_when("it is whole again", |status, text| status == 200 && !text.contains("[~]")).await;
    assert_eq!(count(&kubetide.records()[before..], "stream_removed"), 0);
}

/// A group that was captured, and whose API server then dies. It is a custom resource's: its requests are sent to a Service
/// that is not there, until the APIService is deleted and the API server makes its own again.
#[tokio::test(flavor = "multi_thread")]
async fn a_captured_api_whose_server_dies_deletes_nothing_and_heals() {
    let server = Apiserver::start().await.unwrap();
    let kind = Kind::new(&server, &["v1"]).await;
    server.create_crd(&kind.crd).await.unwrap();
    kind.create("v1", &["a", "b"]).await;
    let more = "watch: {timeout_min_secs: 1, timeout_max_secs: 2}\n";
    let mut by_wildcard = Instance::with_streams(server.kubeconfig(), &EVERYTHING, more);
    let mut by_name =
        Instance::with_streams(server.kubeconfig(), &[format!("{{resource: {}}}", kind.crd.name())], more);
    for kubetide in [&mut by_wildcard, &mut by_name] {
        kubetide.start();
        kubetide.readiness_when("it is ready", |status, text| status == 200 && !text.contains("[~]")).await;
    }

    let services = Api::<APIService>::all(kind.client.clone());
    let name = format!("v1.{}", kind.group);
    let patch = json!({"metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": null}},
        "spec": {"insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "does-not-exist"}}});
    services.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let stream = format!("stream/{}", kind.stream());
    let wildcards = format!("[~]{stream} degraded: 503");
    by_wildcard
        .readiness_when("it is degraded", |status, text| {
            status == 200 && text.contains(&wildcards) && text.contains("[~]discovery degraded")
        })
        .await;
    let named = format!("[-]{stream} failed: 503");
    by_name.readiness_when("it is red", |status, text| status == 503 && text.contains(&named)).await;
    for kubetide in [&mut by_wildcard, &mut by_name] {
        assert!(kubetide.terminate().success());
        kubetide.start();
    }
    // With time, longer than it takes to believe that a resource is gone of which nothing else is known.
    let wait = if std::env::var_os("KUBETIDE_TORTURE").is_some() { 80 } else { 6 };
    tokio::time::sleep(Duration::from_secs(wait)).await;
    for kubetide in [&by_wildcard, &by_name] {
        let records = kubetide.records();
        assert_eq!((count(&records, "delete"), count(&records, "stream_removed"), count(&records, "gap")), (0, 0, 0));
        assert_eq!(kind.fold(&records).len(), 2);
    }

    services.delete(&name, &DeleteParams::default()).await.unwrap();
    let healed = async || kind.objects("v1").list(&kube::api::ListParams::default()).await.is_ok();
    while !healed().await {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    kind.create("v1", &["c"]).await;
    for kubetide in [&mut by_wildcard, &mut by_name] {
        let records = kubetide.records_when("it goes on", |r| !changes_of(r, "c").is_empty()).await;
        assert_eq!(kind.changes(&records), [("snapshot", "a"), ("snapshot", "b"), ("create", "c")]);
        kubetide.readiness_when("it is ready", |status, text| status == 200 && !text.contains("[~]")).await;
    }
}
