//! kube-apiserver as a value: rights, restarts, history that expires, and an end with its owner.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "apiserver/backup.rs"]
mod backup;
#[path = "apiserver/controllers.rs"]
mod controllers;
#[path = "apiserver/credentials.rs"]
mod credentials;
#[path = "apiserver/discovery.rs"]
mod discovery;
mod owner;
#[path = "apiserver/requests.rs"]
mod requests;

use std::path::Path;
use std::time::{Duration, Instant};

use futures::{AsyncBufReadExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret};
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kubetide_test_env::{Apiserver, Grant, Mode, Proxy};
use rustix::process::Signal;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);

async fn client_of(kubeconfig: &Path) -> kube::Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.default_retry = false;
    kube::Client::try_from(config).unwrap()
}

/// Creates a ConfigMap and returns its resourceVersion.
async fn create(client: &kube::Client, namespace: &str, name: &str) -> String {
    let object =
        ConfigMap { metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }, ..ConfigMap::default() };
    let created = Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &object).await.unwrap();
    created.metadata.resource_version.unwrap()
}

async fn create_event(client: &kube::Client, namespace: &str, name: &str) {
    let event = serde_json::json!({
        "metadata": {"name": name},
        "involvedObject": {"kind": "ConfigMap", "namespace": namespace, "name": name},
        "reason": "Tested",
    });
    let event: Event = serde_json::from_value(event).unwrap();
    Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &event).await.unwrap();
}

/// The first event of a watch; its HTTP status was 200, or the client would have failed.
async fn first_event(client: &kube::Client, resource: &str, namespace: &str, version: &str) -> Value {
    let path = format!("/api/v1/namespaces/{namespace}/{resource}?watch=true&resourceVersion={version}");
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    let mut lines = client.request_stream(request).await.unwrap().lines();
    let line = tokio::time::timeout(SOON, lines.try_next()).await.unwrap().unwrap().unwrap();
    serde_json::from_str(&line).unwrap()
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !holds().await {
        assert!(Instant::now() < deadline, "not after {SOON:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn code(error: kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn apiserver_starts_and_says_its_version() {
    let apiserver = Apiserver::shared().await;
    let version = apiserver.client().await.unwrap().apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "36"));
}

#[tokio::test]
async fn each_test_has_a_namespace_of_its_own() {
    let apiserver = Apiserver::shared().await;
    let client = apiserver.client().await.unwrap();
    let first = apiserver.namespace("own").await.unwrap();
    let second = apiserver.namespace("own").await.unwrap();
    create(&client, &first, "only-here").await;
    let list = async |namespace: &str| {
        let objects = Api::<ConfigMap>::namespaced(client.clone(), namespace);
        objects.list(&ListParams::default()).await.unwrap().items.len()
    };
    assert_eq!((list(&first).await, list(&second).await), (1, 0));
}

#[tokio::test]
async fn a_wrong_token_is_refused_with_401() {
    let apiserver = Apiserver::shared().await;
    let client = client_of(&apiserver.kubeconfig_with_token("wrong")).await;
    let error = Api::<ConfigMap>::default_namespaced(client).list(&ListParams::default()).await.unwrap_err();
    assert_eq!(code(error), 401);
}

#[tokio::test]
async fn a_user_may_do_only_what_its_role_says() {
    let apiserver = Apiserver::shared().await;
    let namespace = apiserver.namespace("rights").await.unwrap();
    let grants =
        [Grant::cluster("", &["configmaps"], &["list"]), Grant::namespace(&namespace, "", &["secrets"], &["list"])];
    let user = apiserver.user(&grants).await.unwrap();
    let client = client_of(&user.kubeconfig).await;
    let all = ListParams::default();

    Api::<ConfigMap>::all(client.clone()).list(&all).await.unwrap();
    Api::<Secret>::namespaced(client.clone(), &namespace).list(&all).await.unwrap();
    let elsewhere = Api::<Secret>::namespaced(client.clone(), "default").list(&all).await;
    assert_eq!(code(elsewhere.unwrap_err()), 403);
    let other_verb = Api::<ConfigMap>::namespaced(client.clone(), &namespace).get("any").await;
    assert_eq!(code(other_verb.unwrap_err()), 403);

    apiserver.revoke(&user, &grants).await.unwrap();
    let afterwards = Api::<ConfigMap>::all(client.clone()).list(&all).await;
    assert_eq!(code(afterwards.unwrap_err()), 403);
    let afterwards = Api::<Secret>::namespaced(client, &namespace).list(&all).await;
    assert_eq!(code(afterwards.unwrap_err()), 403);
}

#[tokio::test]
async fn two_users_have_nothing_in_common() {
    let apiserver = Apiserver::shared().await;
    let may = apiserver.user(&[Grant::cluster("", &["configmaps"], &["list"])]).await.unwrap();
    let may_not = apiserver.user(&[]).await.unwrap();
    assert_ne!(may.name, may_not.name);
    let list = async |kubeconfig| {
        Api::<ConfigMap>::all(client_of(kubeconfig).await).list(&ListParams::default()).await.map(drop)
    };
    list(&may.kubeconfig).await.unwrap();
    assert_eq!(code(list(&may_not.kubeconfig).await.unwrap_err()), 403);
}

#[tokio::test]
async fn the_certificate_holds_behind_a_proxy() {
    let apiserver = Apiserver::shared().await;
    let proxy = Proxy::start(apiserver.address()).unwrap();
    let client = client_of(&apiserver.kubeconfig_at(proxy.port())).await;
    client.apiserver_version().await.unwrap();
    assert_eq!(proxy.connections(), 1);
    proxy.set(Mode::Refuse);
    proxy.cut();
    client.apiserver_version().await.unwrap_err();
}

#[tokio::test]
async fn a_restart_keeps_the_objects_and_the_kubeconfig() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = client_of(apiserver.kubeconfig()).await;
    let version = create(&client, "default", "kept").await;
    apiserver.stop();
    client.apiserver_version().await.unwrap_err();
    apiserver.start_again().await.unwrap();
    let client = client_of(apiserver.kubeconfig()).await;
    let kept = Api::<ConfigMap>::namespaced(client, "default").get("kept").await.unwrap();
    assert_eq!(kept.metadata.resource_version.unwrap(), version);
}

#[tokio::test]
async fn forget_history_makes_an_old_watch_expire_with_410() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let version = create(&client, "default", "first").await;
    create(&client, "default", "second").await;
    let event = first_event(&client, "configmaps", "default", &version).await;
    assert_eq!(event["type"], "ADDED", "{event}");
    assert_eq!(event["object"]["metadata"]["name"], "second");

    apiserver.forget_history().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let event = first_event(&client, "configmaps", "default", &version).await;
    assert_eq!(event["type"], "ERROR", "{event}");
    assert_eq!(event["object"]["code"], 410, "{event}");
}

#[tokio::test]
async fn a_compaction_alone_expires_only_what_the_api_server_does_not_keep_in_memory() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let version = create(&client, "default", "first").await;
    create(&client, "default", "second").await;
    create_event(&client, "default", "third").await;
    let event = first_event(&client, "events", "default", &version).await;
    assert_eq!(event["type"], "ADDED", "{event}");

    apiserver.compact().await.unwrap();
    let event = first_event(&client, "events", "default", &version).await;
    assert_eq!(event["object"]["code"], 410, "{event}");
    let event = first_event(&client, "configmaps", "default", &version).await;
    assert_eq!(event["type"], "ADDED", "{event}");
}

#[tokio::test]
async fn a_restart_alone_expires_only_what_the_api_server_keeps_in_memory() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let version = create(&client, "default", "first").await;
    create(&client, "default", "second").await;
    create_event(&client, "default", "third").await;

    apiserver.restart().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let event = first_event(&client, "events", "default", &version).await;
    assert_eq!(event["type"], "ADDED", "{event}");
    let event = first_event(&client, "configmaps", "default", &version).await;
    assert_eq!(event["object"]["code"], 410, "{event}");
}

#[tokio::test]
async fn forget_history_expires_even_the_newest_version() {
    let apiserver = Apiserver::start().await.unwrap();
    let version = create(&apiserver.client().await.unwrap(), "default", "newest").await;
    apiserver.forget_history().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let event = first_event(&client, "configmaps", "default", &version).await;
    assert_eq!(event["object"]["code"], 410, "{event}");
}

#[tokio::test]
async fn a_feature_gate_given_at_the_start_is_in_force() {
    let streaming_list = async |apiserver: &Apiserver| {
        let path = "/api/v1/namespaces/default/configmaps?watch=true&sendInitialEvents=true\
                    &resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion=";
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        let client = apiserver.client().await.unwrap();
        let stream = client.request_stream(request).await?;
        let first = tokio::time::timeout(SOON, stream.lines().next()).await.unwrap();
        first.unwrap().unwrap();
        Ok(())
    };
    streaming_list(Apiserver::shared().await).await.unwrap();
    let without = Apiserver::builder().feature_gates("WatchList=false").start().await.unwrap();
    assert_eq!(code(streaming_list(&without).await.unwrap_err()), 422);
}

#[test]
fn kube_apiserver_and_etcd_die_when_their_owner_is_killed_with_sigkill() {
    owner::nothing_outlives_its_owner("kube", &["kube-apiserver", "etcd"], Signal::KILL);
}
