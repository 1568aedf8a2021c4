//! What is served comes, goes and changes; what only seems to be gone is kept.

use std::collections::BTreeMap;

use bytes::Bytes;
use kubetide_simulator::{Cluster, Fault, RequestInfo, ResourceType, Verb};
use serde_json::{Value, json};

use crate::{
    case::{Case, ops, reasons, status},
    instance::{cleaned, count, fold},
};

const WIDGETS: &str = "widgets.shop.example.com";
const NAMED: &[(&str, &str)] = &[(WIDGETS, "")];

fn write(cluster: &Cluster, resource: &str, name: &str) {
    let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"n": 1}});
    cluster.create(resource, object).unwrap();
}

fn touch(cluster: &Cluster, value: u64) {
    cluster.update(WIDGETS, "default", "w0", |widget| widget["spec"]["n"] = value.into()).unwrap();
}

fn gadgets() -> ResourceType {
    ResourceType::custom("tools.example.com", "v1", "gadgets", "Gadget", &[])
}

/// Three widgets, followed by `streams`.
async fn shop(streams: &[(&str, &str)], more: &str) -> Case {
    let case = Case::with(streams, more).await;
    (0..3).for_each(|number| write(case.cluster(), WIDGETS, &format!("w{number}")));
    case
}

/// Makes the process read again what is served, and waits until it has.
async fn look_again(case: &Case) {
    let looks = || case.all_asked().iter().filter(|request| request.path == "/apis").count();
    let before = looks();
    case.cluster().add_custom(&gadgets());
    case.until("what is served was read again, twice", || looks() >= before + 2).await;
}

fn of_stream<'a>(records: &'a [Value], stream: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["stream"] == stream).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_that_is_removed_takes_its_objects_with_it_and_may_come_back() {
    let mut case = shop(NAMED, "").await;
    case.snapshot().await;
    case.cluster().remove_custom(WIDGETS).unwrap();
    let records = case.kubetide.records_when("it is removed", |records| count(records, "stream_removed") == 1).await;
    assert_eq!(ops(&records[5..]), BTreeMap::from([("delete", 3), ("stream_removed", 1)]));
    case.cluster().add_custom(&ResourceType::custom("shop.example.com", "v1", "widgets", "Widget", &["wd"]));
    write(case.cluster(), WIDGETS, "again");
    let records = case.kubetide.records_when("it is back", |records| count(records, "snapshot_finished") == 2).await;
    let names: Vec<_> = fold(&records).into_keys().map(|(_, _, name)| name).collect();
    assert_eq!(names, ["again"]);
    assert_eq!(reasons(&records), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_resource_that_appears_is_followed_by_a_wildcard() {
    let mut case = shop(&[("\"*.tools.example.com\"", ""), ("configmaps", "default")], "").await;
    case.snapshot().await;
    case.cluster().add_custom(&gadgets());
    write(case.cluster(), "gadgets.tools.example.com", "g1");
    let stream = "tools.example.com/gadgets";
    case.kubetide.records_when("it is told", |records| of_stream(records, stream).len() >= 3).await;
    write(case.cluster(), "gadgets.tools.example.com", "g2");
    let told = |records: &[Value]| of_stream(records, stream).iter().any(|record| record["name"] == "g2");
    case.kubetide.records_when("it is followed", told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_served_version_is_one_gap_and_a_reshaped_object_each() {
    let mut case = Case::with(&[("gadgets", "")], "").await;
    let name = "gadgets.tools.example.com";
    case.cluster().add_custom_versions(&gadgets(), &["v1beta1"]);
    (0..3).for_each(|number| write(case.cluster(), name, &format!("g{number}")));
    case.snapshot().await;
    case.cluster().set_served(name, "v1", false).unwrap();
    let records = case.mended(1).await;
    assert_eq!(reasons(&records), ["config_changed"]);
    assert_eq!(ops(&records[5..]), BTreeMap::from([("gap", 1), ("update", 3), ("resync_finished", 1)]));
    let versions = fold(&records).into_values().map(|object| object["apiVersion"].clone());
    assert!(versions.eq(["tools.example.com/v1beta1"; 3]));
}

/// What a discovery lacks in a test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lack {
    /// The group is there, marked as stale, without its resources.
    Stale,
    /// The group is not there at all.
    Absent,
    /// As an older API server; the group's own document is 503.
    LegacyUnavailable,
    /// As an older API server; the group is not in the list.
    LegacyAbsent,
}

/// The list of resources as an older API server gives it where it was asked for the newer kind.
fn older(request: &RequestInfo, groups: &[&str]) -> Option<Fault> {
    if !request.accept.contains("APIGroupDiscoveryList") && request.path != "/apis" {
        return None;
    }
    let group = |name: &str| {
        let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
        json!({"name": name, "preferredVersion": version, "versions": [version]})
    };
    let body = match request.path.as_str() {
        "/api" => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        "/apis" => {
            let groups: Vec<Value> = groups.iter().map(|name| group(name)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        _ => return None,
    };
    Some(Fault::Body(body.to_string().into()))
}

fn lacking(lack: Lack, request: &RequestInfo) -> Fault {
    let aggregated = |versions: Value| -> Bytes {
        let mut items = vec![json!({"metadata": {"name": "apps"}, "versions": []})];
        if !versions.is_null() {
            items.push(json!({"metadata": {"name": "shop.example.com"}, "versions": versions}));
        }
        let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items});
        list.to_string().into()
    };
    let group = "/apis/shop.example.com";
    match (lack, request.path.as_str()) {
        (Lack::Stale, "/apis") => Fault::Body(aggregated(json!([{"version": "v1", "freshness": "Stale"}]))),
        (Lack::Absent, "/apis") => Fault::Body(aggregated(Value::Null)),
        (Lack::LegacyUnavailable, path) if path.starts_with(group) && request.verb == Verb::Discovery => status(503),
        (Lack::LegacyUnavailable, _) => {
            older(request, &["apps", "apiextensions.k8s.io", "shop.example.com"]).unwrap_or(Fault::Pass)
        }
        (Lack::LegacyAbsent, _) => older(request, &["apps", "apiextensions.k8s.io"]).unwrap_or(Fault::Pass),
        _ => Fault::Pass,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_discovery_that_lacks_a_resource_deletes_nothing_and_heals_without_a_restart() {
    for lack in [Lack::Stale, Lack::Absent, Lack::LegacyUnavailable, Lack::LegacyAbsent] {
        for streams in [NAMED, &[("\"*.shop.example.com\"", "")]] {
            let mut case = shop(streams, "").await;
            case.snapshot().await;
            case.fate(move |request| lacking(lack, request));
            look_again(&case).await;
            touch(case.cluster(), 2);
            case.kubetide.records_when("it is followed on", |records| count(records, "update") == 1).await;
            case.fate(|_| Fault::Pass);
            touch(case.cluster(), 3);
            let records = case.kubetide.records_when("and on", |records| count(records, "update") == 2).await;
            assert_eq!(ops(&records[5..]), BTreeMap::from([("update", 2)]), "{lack:?}, {streams:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_while_discovery_lacks_a_resource_deletes_nothing() {
    for lack in [Lack::Stale, Lack::Absent, Lack::LegacyUnavailable, Lack::LegacyAbsent] {
        let mut case = shop(NAMED, "").await;
        case.snapshot().await;
        assert!(case.kubetide.terminate().success());
        case.fate(move |request| lacking(lack, request));
        touch(case.cluster(), 2);
        case.kubetide.start();
        let records = case.kubetide.records_when("it is followed", |records| count(records, "update") == 1).await;
        assert_eq!(ops(&records[5..]), BTreeMap::from([("update", 1)]), "{lack:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_an_older_api_server_serves_is_followed_save_what_a_wildcard_leaves_out() {
    let mut case = shop(&[("\"*\"", "")], "").await;
    case.fate(|request| {
        let groups = ["apps", "coordination.k8s.io", "apiextensions.k8s.io", "shop.example.com"];
        older(request, &groups).unwrap_or(Fault::Pass)
    });
    case.kubetide.start();
    let all = [
        "apiextensions.k8s.io/customresourcedefinitions",
        "apps/deployments",
        "apps/replicasets",
        "core/configmaps",
        "core/namespaces",
        "core/nodes",
        "core/pods",
        "core/serviceaccounts",
        "core/services",
        "shop.example.com/widgets",
    ];
    let records = case.kubetide.records_when_listed(all.len()).await;
    let mut streams: Vec<&str> = records.iter().map(|record| record["stream"].as_str().unwrap()).collect();
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams, all);
    let state = fold(&records);
    for (resource, stream) in [("configmaps", "core/configmaps"), (WIDGETS, "shop.example.com/widgets")] {
        let items = case.cluster().list(resource);
        let expected = items.iter().map(|item| cleaned(serde_json::from_slice(&item.json()).unwrap()));
        let told = state.iter().filter(|((of, _, _), _)| of == stream).map(|(_, object)| object.clone());
        assert!(expected.eq(told), "{stream}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_of_one_resource_are_streams_of_their_own() {
    let mut case = Case::with(&[("configmaps", "default, kube-public")], "").await;
    let there = |name: &str| {
        let object = json!({"metadata": {"name": name, "namespace": "kube-public"}, "data": {"n": "0"}});
        case.cluster().create("configmaps", object).unwrap();
    };
    there("there-0");
    case.kubetide.start();
    case.kubetide.records_when_listed(2).await;
    case.update(1, 1);
    let object = json!({"metadata": {"name": "there-1", "namespace": "kube-public"}, "data": {"n": "0"}});
    case.cluster().create("configmaps", object).unwrap();
    let told = |records: &[Value]| (count(records, "update"), count(records, "create")) == (1, 1);
    let records = case.kubetide.records_when("both are followed", told).await;
    let mut by_stream: BTreeMap<String, usize> = BTreeMap::new();
    for ((stream, namespace, _), _) in fold(&records) {
        assert!(stream.ends_with(&format!("@{namespace}")), "{stream}, {namespace}");
        *by_stream.entry(stream).or_default() += 1;
    }
    let expected = [("core/configmaps@default", 20), ("core/configmaps@kube-public", 2)];
    assert_eq!(by_stream, expected.map(|(stream, count)| (stream.to_owned(), count)).into());
}
