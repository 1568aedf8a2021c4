//! The simulator misbehaves as told, repeats itself by seed, and stays within its bounds.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, missing_docs)] // a test

mod rig;

use std::time::Duration;

use kubetide_simulator::{Busy, Cluster, ClusterOptions, Fault, ResourceType, Server, Verb};
use rig::{on, server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const RESOURCES: [&str; 9] = [
    "namespaces",
    "nodes",
    "deployments.apps",
    "replicasets.apps",
    "pods",
    "configmaps",
    "secrets",
    "services",
    "widgets.shop.example.com",
];

/// Everything the server sends until it closes the connection.
async fn raw(server: &Server, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server.address()).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut read = Vec::new();
    stream.read_to_end(&mut read).await?;
    Ok(String::from_utf8(read).unwrap())
}

fn contents(cluster: &Cluster) -> Vec<Vec<u8>> {
    let items = RESOURCES.iter().flat_map(|resource| cluster.list(resource));
    items.map(|item| item.json().to_vec()).collect()
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let run = |seed| {
        let cluster = Cluster::new(ClusterOptions { seed, ..ClusterOptions::default() });
        let mut busy = Busy::new(seed);
        let actions: Vec<_> = (0..2000).map(|_| busy.step(&cluster)).collect();
        (actions, cluster.version(), cluster.uid(), contents(&cluster))
    };
    let (one, other) = (run(7), run(7));
    assert!(one == other, "two runs of one seed differ");
    assert_ne!(one.2, run(8).2);
}

#[test]
fn objects_are_valid_whole_and_of_realistic_size() {
    let cluster = Cluster::new(ClusterOptions::default());
    Busy::new(3).run(&cluster, 3000);
    let mut versions = std::collections::BTreeSet::new();
    for resource in RESOURCES {
        let items = cluster.list(resource);
        assert!(!items.is_empty(), "{resource}");
        for item in items {
            let bytes = item.json();
            let object: Value = serde_json::from_slice(&bytes).unwrap();
            let metadata = &object["metadata"];
            assert!(object["kind"].is_string() && object["apiVersion"].is_string());
            assert_eq!(metadata["name"], item.name());
            assert_eq!(metadata["namespace"].as_str().unwrap_or_default(), item.namespace());
            assert_eq!(metadata["resourceVersion"], item.version().to_string());
            assert!(metadata["managedFields"][0]["manager"].is_string());
            assert!(versions.insert(item.version()), "a version of its own");
            let size = bytes.len();
            let expected = match resource {
                "pods" => 5_000..12_000,
                "deployments.apps" => 3_000..7_000,
                "configmaps" => 1_000..3_500,
                _ => 200..7_000,
            };
            assert!(expected.contains(&size), "{resource} of {size} bytes");
        }
    }
    assert!(versions.iter().all(|&version| version <= cluster.version()));
}

#[test]
fn a_busy_cluster_does_not_grow_without_end() {
    let cluster = Cluster::new(ClusterOptions { history: 100, ..ClusterOptions::default() });
    let mut busy = Busy::new(9);
    busy.settle(&cluster, 20);
    for _ in 0..10 {
        busy.run(&cluster, 5_000);
        assert!((20..200).contains(&cluster.len("pods")), "{} pods", cluster.len("pods"));
        assert!((20..60).contains(&cluster.len("replicasets.apps")), "{} ReplicaSets", cluster.len("replicasets.apps"));
        assert!(cluster.len("namespaces") < 20 && cluster.len("widgets.shop.example.com") < 40);
    }
}

#[test]
fn a_populated_cluster_has_exactly_what_was_asked_for() {
    let cluster = Cluster::new(ClusterOptions::default());
    let count = |cluster: &Cluster| RESOURCES.iter().map(|resource| cluster.len(resource)).sum::<usize>();
    let before = count(&cluster);
    cluster.populate(5_000);
    assert_eq!(count(&cluster), before + 5_000);
    cluster.populate_config_maps(100);
    assert_eq!(count(&cluster), before + 5_101, "and their namespace");
}

#[test]
fn a_touch_changes_more_than_the_version() {
    let cluster = Cluster::new(ClusterOptions::default());
    Busy::new(2).settle(&cluster, 2);
    let text = json!({"metadata": {"name": "written", "namespace": "default"}});
    cluster.create("configmaps", text).unwrap();
    let without_version = |bytes: &[u8]| {
        let mut object: Value = serde_json::from_slice(bytes).unwrap();
        object["metadata"]["resourceVersion"] = Value::Null;
        object["metadata"]["managedFields"] = Value::Null;
        object
    };
    for resource in ["pods", "deployments.apps", "configmaps", "secrets", "widgets.shop.example.com"] {
        for item in cluster.list(resource) {
            let version = cluster.touch(resource, item.namespace(), item.name()).unwrap();
            let after = cluster.get(resource, item.namespace(), item.name()).unwrap();
            assert!(version > item.version());
            assert_ne!(without_version(&after), without_version(&item.json()), "{resource}");
        }
    }
}

#[test]
fn what_a_test_deleted_stays_deleted() {
    let cluster = Cluster::new(ClusterOptions::default());
    let mut busy = Busy::new(5);
    busy.settle(&cluster, 4);
    let doomed = cluster.list("configmaps");
    for item in &doomed {
        cluster.delete("configmaps", item.namespace(), item.name()).unwrap();
    }
    busy.run(&cluster, 1000);
    for item in doomed {
        assert!(cluster.get("configmaps", item.namespace(), item.name()).is_none());
    }
}

#[tokio::test]
async fn the_history_is_bounded_and_what_fell_out_is_410() {
    let cluster = Cluster::new(ClusterOptions { history: 10, ..ClusterOptions::default() });
    let server = Server::start(cluster.clone()).await.unwrap();
    let make = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}});
    let first = cluster.create("configmaps", make("a")).unwrap();
    for turn in 0..10 {
        cluster.update("configmaps", "default", "a", |object| object["data"] = json!({"turn": turn})).unwrap();
    }
    let path = "/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion=";
    let kept = raw(&server, &format!("{path}{first}")).await.unwrap();
    assert_eq!(kept.matches("MODIFIED").count(), 10);
    let lost = raw(&server, &format!("{path}{}", first - 1)).await.unwrap();
    assert!(lost.contains(r#""code":410"#) && !lost.contains("MODIFIED"), "{lost}");
}

#[tokio::test]
async fn an_open_watch_survives_forgotten_history_that_it_has_seen() {
    let (cluster, server) = server().await;
    let path = format!("/api/v1/configmaps?watch=1&timeoutSeconds=2&resourceVersion={}", cluster.version());
    let reading = raw(&server, &path);
    let writing = async {
        while server.requests().of(Verb::Watch) == 0 {
            tokio::task::yield_now().await;
        }
        cluster.forget_history();
        let object = json!({"metadata": {"name": "after", "namespace": "default"}});
        cluster.create("configmaps", object).unwrap();
    };
    let (read, ()) = tokio::join!(reading, writing);
    assert!(read.unwrap().contains(r#""name":"after""#));
}

#[tokio::test]
async fn statuses_carry_a_reason_and_retry_after() {
    let (_, server) = server().await;
    for (code, retry_after, reason) in [
        (401, None, "Unauthorized"),
        (403, None, "Forbidden"),
        (429, Some(7), "TooManyRequests"),
        (503, None, "ServiceUnavailable"),
    ] {
        server.set_hook(on(Verb::List, Fault::Status { code, retry_after }));
        let read = raw(&server, "/api/v1/pods").await.unwrap();
        assert!(read.starts_with(&format!("HTTP/1.1 {code} ")), "{read}");
        assert!(read.contains(&format!(r#""reason":"{reason}""#)), "{read}");
        assert_eq!(read.contains("retry-after: 7"), retry_after.is_some(), "{read}");
    }
    server.set_hook(None);
    assert!(raw(&server, "/api/v1/pods").await.unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_cut_answer_has_no_end_and_a_truncated_one_has() {
    let (cluster, server) = server().await;
    cluster.populate(200);
    let body = |read: &str| read.split_once("\r\n\r\n").unwrap().1.to_owned();
    server.set_hook(on(Verb::List, Fault::CutAfter(1000)));
    let cut = raw(&server, "/api/v1/pods").await.unwrap();
    assert!(!cut.ends_with("0\r\n\r\n"));
    assert!(body(&cut).len() >= 1000, "what came before the cut was sent: {} bytes", body(&cut).len());
    server.set_hook(on(Verb::List, Fault::TruncateAfter(1000)));
    let truncated = raw(&server, "/api/v1/pods").await.unwrap();
    assert!(truncated.ends_with("0\r\n\r\n"));
    server.set_hook(on(Verb::List, Fault::Drop));
    assert_eq!(raw(&server, "/api/v1/pods").await.unwrap_or_default(), "");
}

#[tokio::test]
async fn a_hanging_answer_stops_where_it_was_told_to() {
    let (cluster, server) = server().await;
    cluster.populate(200);
    let short = Duration::from_millis(200);
    server.set_hook(on(Verb::List, Fault::Hang));
    assert!(tokio::time::timeout(short, raw(&server, "/api/v1/pods")).await.is_err());
    server.set_hook(on(Verb::List, Fault::HangAfter(10)));
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(b"GET /api/v1/pods HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains(r#"{"kind":"P"#) {
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
    }
    assert!(tokio::time::timeout(short, stream.read_buf(&mut read)).await.is_err(), "nothing more comes");
}

#[tokio::test]
async fn garbage_and_duplicates_appear_between_events() {
    let (cluster, server) = server().await;
    let from = cluster.version();
    for name in ["a", "b"] {
        cluster.create("configmaps", json!({"metadata": {"name": name, "namespace": "default"}})).unwrap();
    }
    let path = format!("/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion={from}");
    server.set_hook(on(Verb::Watch, Fault::Line { after_lines: 1, line: "!garbage!".into() }));
    let read = raw(&server, &path).await.unwrap();
    let at = |text: &str| read.find(text).unwrap();
    assert!(at(r#""name":"a""#) < at("!garbage!") && at("!garbage!") < at(r#""name":"b""#));
    server.set_hook(on(Verb::Watch, Fault::Duplicate));
    assert_eq!(raw(&server, &path).await.unwrap().matches("ADDED").count(), 4);
}

#[tokio::test]
async fn a_server_that_is_down_refuses_and_comes_back_on_its_port() {
    let (_, server) = server().await;
    let watching = raw(&server, "/api/v1/pods?watch=1");
    let stopping = async {
        while server.requests().of(Verb::Watch) == 0 {
            tokio::task::yield_now().await;
        }
        server.refuse(true).await;
    };
    let (watched, ()) = tokio::join!(watching, stopping);
    assert!(!watched.unwrap_or_default().ends_with("0\r\n\r\n"), "no clean end");
    assert_eq!(raw(&server, "/version").await.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
    server.refuse(false).await;
    assert!(raw(&server, "/version").await.unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn cutting_all_watches_leaves_the_server_up() {
    let (_, server) = server().await;
    let watching = raw(&server, "/api/v1/pods?watch=1");
    let cutting = async {
        while server.requests().of(Verb::Watch) == 0 {
            tokio::task::yield_now().await;
        }
        server.cut_all_watches();
    };
    let (watched, ()) = tokio::join!(watching, cutting);
    assert!(!watched.unwrap_or_default().ends_with("0\r\n\r\n"), "no clean end");
    assert!(raw(&server, "/version").await.unwrap().starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn requests_are_counted_by_verb_and_resource() {
    let (_, server) = server().await;
    for path in [
        "/api/v1/pods?limit=1",
        "/api/v1/pods?continue=x",
        "/api/v1/pods?watch=1&timeoutSeconds=1",
        "/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=1",
        "/apis/apps/v1/namespaces/default/deployments",
        "/api/v1/namespaces/kube-system",
        "/apis",
    ] {
        raw(&server, path).await.unwrap();
    }
    let requests = server.requests();
    for (verb, resource) in [
        (Verb::List, "pods"),
        (Verb::Page, "pods"),
        (Verb::Watch, "pods"),
        (Verb::StreamingList, "pods"),
        (Verb::List, "deployments.apps"),
        (Verb::Get, "namespaces"),
        (Verb::Discovery, ""),
    ] {
        assert_eq!(requests.count(verb, resource), 1, "{verb:?} {resource}");
    }
    assert_eq!(requests.of(Verb::List), 2);
    server.reset_requests();
    assert_eq!(server.requests().iter().count(), 0);
}

#[tokio::test]
async fn the_kubeconfig_lets_a_client_in_and_no_token_keeps_it_out() {
    let (_, server) = server().await;
    server.set_token(Some("open sesame".into()));
    assert!(raw(&server, "/api/v1/pods").await.unwrap().starts_with("HTTP/1.1 401 "));
    let directory = tempfile::tempdir().unwrap();
    let path = server.kubeconfig(directory.path()).unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
    assert_eq!(kubeconfig.current_context.as_deref(), Some("simulated"));
    let options = kube::config::KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let client = kube::Client::try_from(config).unwrap();
    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
}

#[tokio::test]
async fn a_resource_appears_and_goes_at_run_time() {
    let (cluster, server) = server().await;
    let kind = ResourceType::custom("lab.example.com", "v1beta1", "probes", "Probe", &["pb"]);
    let path = "/apis/lab.example.com/v1beta1/probes";
    assert!(raw(&server, path).await.unwrap().starts_with("HTTP/1.1 404 "));
    cluster.add_custom(&kind);
    let object = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": {}});
    cluster.create("probes.lab.example.com", object.clone()).unwrap();
    assert!(raw(&server, path).await.unwrap().contains(r#""name":"a""#));
    cluster.remove_custom("probes.lab.example.com").unwrap();
    assert!(raw(&server, path).await.unwrap().starts_with("HTTP/1.1 404 "));
    cluster.add_custom(&kind);
    assert!(raw(&server, path).await.unwrap().contains(r#""items":[]"#) || cluster.len("probes.lab.example.com") == 0);
}

#[tokio::test]
async fn a_namespace_goes_with_all_that_is_in_it() {
    let (cluster, _server) = server().await;
    cluster.create("namespaces", json!({"metadata": {"name": "brief"}})).unwrap();
    cluster.create("secrets", json!({"metadata": {"name": "s", "namespace": "brief"}})).unwrap();
    let gone = cluster.create("secrets", json!({"metadata": {"name": "s", "namespace": "elsewhere"}}));
    assert_eq!(gone.unwrap_err().code, 404);
    cluster.delete("namespaces", "", "brief").unwrap();
    assert_eq!(cluster.len("secrets"), 0);
}
