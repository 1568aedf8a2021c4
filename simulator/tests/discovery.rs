//! Discovery that changes, lags or lies on request.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, missing_docs)] // a test

mod rig;

use std::sync::{Arc, Mutex};

use kubetide_simulator::{Fault, ResourceType, Server, Verb};
use rig::{get, server};
use serde_json::{Value, json};

const JSON: &str = "application/json";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

async fn groups(server: &Server) -> Vec<(String, Vec<String>)> {
    let (code, list) = get(server, "/apis", AGGREGATED).await;
    assert_eq!(code, 200);
    let version = |it: &Value| it["version"].as_str().unwrap().to_owned();
    let group = |it: &Value| {
        let versions = it["versions"].as_array().unwrap().iter().map(version).collect();
        (it["metadata"]["name"].as_str().unwrap().to_owned(), versions)
    };
    list["items"].as_array().unwrap().iter().map(group).collect()
}

async fn versions_of(server: &Server, group: &str) -> Vec<String> {
    groups(server).await.into_iter().find(|(name, _)| name == group).map(|(_, versions)| versions).unwrap_or_default()
}

#[tokio::test]
async fn a_custom_resource_can_be_served_in_several_versions_from_the_start() {
    let (cluster, server) = server().await;
    let kind = ResourceType::custom("lab.example.com", "v1", "probes", "Probe", &["pb"]);
    cluster.add_custom_versions(&kind, &["v1beta1", "v2"]);
    let object = json!({"metadata": {"name": "a", "namespace": "default"}});
    cluster.create("probes.lab.example.com", object).unwrap();
    assert_eq!(versions_of(&server, "lab.example.com").await, ["v2", "v1", "v1beta1"]);
    for version in ["v1", "v1beta1", "v2"] {
        let path = format!("/apis/lab.example.com/{version}/namespaces/default/probes/a");
        assert_eq!(get(&server, &path, JSON).await.1["apiVersion"], format!("lab.example.com/{version}"));
    }
    cluster.set_served("probes.lab.example.com", "v2", false).unwrap();
    assert_eq!(versions_of(&server, "lab.example.com").await, ["v1", "v1beta1"]);
    assert_eq!(get(&server, "/apis/lab.example.com/v2/probes", JSON).await.0, 404);
    assert_eq!(cluster.set_served("none.lab.example.com", "v1", true).unwrap_err().code, 404);
    assert_eq!(cluster.len("probes.lab.example.com"), 1);
}

#[tokio::test]
async fn a_dead_api_service_comes_and_goes() {
    let (cluster, server) = server().await;
    cluster.add_dead_api_service("metrics.example.com", "v1beta1").unwrap();
    assert_eq!(versions_of(&server, "metrics.example.com").await, ["v1beta1"]);
    assert_eq!(get(&server, "/apis/metrics.example.com/v1beta1/pods", JSON).await.0, 503);
    // A dead version does not hide the group's others.
    cluster.add_custom(&ResourceType::custom("metrics.example.com", "v1", "gauges", "Gauge", &[]));
    assert_eq!(versions_of(&server, "metrics.example.com").await, ["v1", "v1beta1"]);
    assert_eq!(get(&server, "/apis/metrics.example.com/v1/gauges", JSON).await.0, 200);
    cluster.delete("apiservices", "", "v1beta1.metrics.example.com").unwrap();
    assert_eq!(versions_of(&server, "metrics.example.com").await, ["v1"]);
}

#[tokio::test]
async fn a_hidden_group_still_serves_its_resources() {
    let (cluster, server) = server().await;
    cluster.hide_from_discovery("apps", true);
    assert!(groups(&server).await.iter().all(|(name, _)| name != "apps"));
    let (_, legacy) = get(&server, "/apis", JSON).await;
    assert!(!legacy.to_string().contains("apps/v1"), "{legacy}");
    assert_eq!(get(&server, "/apis/apps", JSON).await.0, 404);
    assert_eq!(get(&server, "/apis/apps/v1", JSON).await.0, 404);
    assert_eq!(get(&server, "/apis/apps/v1/deployments", JSON).await.0, 200);
    cluster.hide_from_discovery("", true);
    assert_eq!(get(&server, "/api", AGGREGATED).await.1["items"], json!([]));
    assert_eq!(get(&server, "/api/v1/pods", JSON).await.0, 200);
    for group in ["apps", ""] {
        cluster.hide_from_discovery(group, false);
    }
    assert_eq!(versions_of(&server, "apps").await, ["v1"]);
}

#[tokio::test]
async fn a_server_can_know_only_the_older_discovery() {
    let (_, server) = server().await;
    server.set_legacy_discovery(true);
    for (root, kind) in [("/api", "APIVersions"), ("/apis", "APIGroupList")] {
        let (code, status) = get(&server, root, AGGREGATED).await;
        assert_eq!((code, &status["reason"]), (406, &"NotAcceptable".into()));
        let (code, list) = get(&server, root, &format!("{AGGREGATED},application/json")).await;
        assert_eq!((code, &list["kind"]), (200, &kind.into()));
    }
    assert_eq!(get(&server, "/apis/apps/v1", JSON).await.1["kind"], "APIResourceList");
    server.set_legacy_discovery(false);
    assert_eq!(get(&server, "/apis", AGGREGATED).await.1["kind"], "APIGroupDiscoveryList");
}

#[tokio::test]
async fn a_hook_tells_discovery_requests_apart() {
    let (_, server) = server().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    server.set_hook(Some(Arc::new(move |request| {
        log.lock().unwrap().push((request.verb, request.group.clone(), request.version.clone()));
        match request.group.as_str() {
            "apps" if request.verb == Verb::Discovery => Fault::Status { code: 503, retry_after: None },
            _ => Fault::Pass,
        }
    })));
    let paths = ["/apis", "/api/v1", "/apis/apps", "/apis/apps/v1", "/apis/apps/v1/deployments"];
    let mut codes = Vec::new();
    for path in paths {
        codes.push(get(&server, path, JSON).await.0);
    }
    assert_eq!(codes, [200, 200, 503, 503, 200]);
    let expected = [
        (Verb::Discovery, "", ""),
        (Verb::Discovery, "", "v1"),
        (Verb::Discovery, "apps", ""),
        (Verb::Discovery, "apps", "v1"),
        (Verb::List, "apps", "v1"),
    ];
    let expected: Vec<_> = expected.iter().map(|&(verb, g, v)| (verb, g.to_owned(), v.to_owned())).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}
