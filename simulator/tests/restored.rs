//! A cluster that changes under its clients: a restored backup, and another cluster behind the same address.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, missing_docs)] // a test

mod rig;

use kubetide_simulator::{Cluster, ClusterOptions, ResourceType, Verb};
use rig::{briefs, config_map, events, get, raw_bytes, server, until_asked};
use serde_json::Value;

const JSON: &str = "application/json";
const PATH: &str = "/api/v1/configmaps";

fn names(cluster: &Cluster) -> Vec<String> {
    cluster.list("configmaps").iter().map(|item| item.name().to_owned()).collect()
}

fn uid(cluster: &Cluster, name: &str) -> Value {
    let object = cluster.get("configmaps", "default", name).unwrap();
    serde_json::from_slice::<Value>(&object).unwrap()["metadata"]["uid"].clone()
}

#[tokio::test]
async fn a_restored_cluster_has_the_objects_and_the_version_of_then() {
    let (cluster, server) = server().await;
    cluster.create("configmaps", config_map("kept")).unwrap();
    let checkpoint = cluster.checkpoint();
    let lost = cluster.create("configmaps", config_map("lost")).unwrap();
    let lost_uid = uid(&cluster, "lost");
    cluster.delete("configmaps", "default", "kept").unwrap();
    cluster.add_custom(&ResourceType::custom("lab.example.com", "v1", "probes", "Probe", &[]));

    cluster.restore(&checkpoint);
    assert_eq!((names(&cluster), cluster.version()), (vec!["kept".to_owned()], checkpoint.version()));
    assert_eq!(get(&server, "/apis/lab.example.com/v1/probes", JSON).await.0, 404, "its definition came later");
    let again = cluster.create("configmaps", config_map("lost")).unwrap();
    assert_eq!(again, lost, "versions are used again");
    assert_ne!(uid(&cluster, "lost"), lost_uid, "uids are not");
}

#[tokio::test]
async fn a_restore_cuts_every_watch() {
    let (cluster, server) = server().await;
    let checkpoint = cluster.checkpoint();
    cluster.create("configmaps", config_map("a")).unwrap();
    let path = format!("{PATH}?watch=1&resourceVersion={}", cluster.version());
    let restoring = async {
        until_asked(&server, Verb::Watch, 1).await;
        cluster.restore(&checkpoint);
    };
    let ((read, _), ()) = tokio::join!(raw_bytes(&server, &path, JSON), restoring);
    assert!(!read.ends_with(b"0\r\n\r\n"), "no clean end");
}

#[tokio::test]
async fn a_position_from_before_a_restore_is_a_future_version() {
    let (cluster, server) = server().await;
    let checkpoint = cluster.checkpoint();
    for name in ["a", "b", "c"] {
        cluster.create("configmaps", config_map(name)).unwrap();
    }
    let position = cluster.version();
    cluster.restore(&checkpoint);
    for name in ["d", "e", "f"] {
        cluster.create("configmaps", config_map(name)).unwrap();
    }
    let passing = cluster.create("configmaps", config_map("g")).unwrap();
    assert!(passing > position);
    let watch = |from: u64| format!("{PATH}?watch=1&timeoutSeconds=1&resourceVersion={from}");
    assert_eq!(briefs(&events(&server, &watch(position)).await), ["ADDED g"], "d, e and f are silently lost");
    assert_eq!(briefs(&events(&server, &watch(checkpoint.version())).await).len(), 4);
    let refused = events(&server, &watch(checkpoint.version() - 1)).await;
    assert_eq!(refused[0]["object"]["code"], 410, "the history is empty");
    let (code, _) = get(&server, &format!("{PATH}?resourceVersion={}", passing + 1), JSON).await;
    assert_eq!(code, 504);
}

#[tokio::test]
async fn another_clusters_checkpoint_puts_that_cluster_behind_this_address() {
    let (cluster, server) = server().await;
    cluster.create("configmaps", config_map("ours")).unwrap();
    let other = Cluster::new(ClusterOptions { seed: 99, ..ClusterOptions::default() });
    other.create("configmaps", config_map("theirs")).unwrap();
    assert_ne!(cluster.uid(), other.uid());
    server.cluster().restore(&other.checkpoint());
    assert_eq!((names(&cluster), cluster.uid()), (vec!["theirs".to_owned()], other.uid()));
}

#[tokio::test]
async fn a_new_uid_is_seen_by_a_get_and_by_no_watch() {
    let (cluster, server) = server().await;
    let from = cluster.version();
    let path = format!("/api/v1/namespaces?watch=1&resourceVersion={from}");
    let changing = async {
        until_asked(&server, Verb::Watch, 1).await;
        cluster.set_uid("11111111-2222-4333-8444-555555555555");
    };
    let ((read, _), ()) = tokio::join!(raw_bytes(&server, &path, JSON), changing);
    assert!(!String::from_utf8(read).unwrap().contains("kube-system"));
    assert_eq!(cluster.uid(), "11111111-2222-4333-8444-555555555555");
    let (_, namespace) = get(&server, "/api/v1/namespaces/kube-system", JSON).await;
    assert_eq!(namespace["metadata"]["uid"], cluster.uid());
    assert_eq!(cluster.version(), from);
}
