//! Rights and credentials on a real kube-apiserver: the least that is needed, and what is taken away, broken and repaired
//! while kubetide runs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;
mod instance;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use instance::{Instance, changes_of, count, fold, listed};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use kubetide_test_env::{Apiserver, Grant, Mode, Proxy, Validity};
use serde_json::{Value, json};

/// So that what is asked anew is asked soon.
const SHORT_WATCHES: &str = "watch: {timeout_min_secs: 1, timeout_max_secs: 2}\n";

/// Where nothing of the cluster but the streams may be read, its uid must be given.
fn with_uid(command: &mut Command) {
    command.env("KUBETIDE__CLUSTER__UID", "11111111-2222-3333-4444-555555555555");
}

async fn create(maps: &Api<ConfigMap>, name: &str) {
    let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"value": "1"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

fn seen(name: &str) -> impl Fn(&[Value]) -> bool {
    move |records| !changes_of(records, name).is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_to_list_and_watch_in_one_namespace_is_all_that_is_needed() {
    let server = Apiserver::shared().await;
    let namespace = server.namespace("least").await.unwrap();
    let client = server.client().await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &namespace);
    create(&maps, "before").await;
    let user = server.user(&[Grant::namespace(&namespace, "", &["configmaps"], &["list", "watch"])]).await.unwrap();
    let mut kubetide = Instance::new(&user.kubeconfig, &[("configmaps", &namespace)], SHORT_WATCHES);
    kubetide.start_with(with_uid);
    kubetide.records_when_listed(1).await;
    create(&maps, "during").await;
    kubetide.records_when("the watch works", seen("during")).await;
    assert!(kubetide.terminate().success());
    create(&maps, "down").await;
    maps.delete("before", &DeleteParams::default()).await.unwrap();
    kubetide.start_with(with_uid);
    let (stream, path) = (format!("core/configmaps@{namespace}"), format!("/api/v1/namespaces/{namespace}/configmaps"));
    let expected = listed(&client, &stream, &path).await;
    let records = kubetide.records_when("it resumes", |r| fold(r) == expected).await;
    kubetide.readiness_when("all is well", |status, text| status == 200 && !text.contains("[~]")).await;
    assert_eq!(count(&records, "gap"), 0);
    assert_eq!(kubetide.metric("kubetide_stream_failures_total", &[]), 0.0);
    let log = fs::read_to_string(kubetide.path("log")).unwrap();
    assert!(!log.contains("403 Forbidden") && !log.contains(" WARN "), "nothing was tried that is not allowed");
    // It is told what is missing where the uid is not given.
    assert!(kubetide.terminate().success());
    let refused = Instance::new(&user.kubeconfig, &[("configmaps", &namespace)], "");
    let mut command = ended::kubetide(refused.path("kubetide.yaml"));
    command.env("KUBETIDE__TELEMETRY__LOG_LEVEL", "info");
    let told = ["403 Forbidden", "give cluster.uid, or the right to get the namespace kube-system"];
    ended::ended(command).await.assert_refused(1, &told);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_revoked_deletes_nothing_and_heals_when_it_is_granted_again() {
    let server = Apiserver::shared().await;
    let namespace = server.namespace("revoked").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(server.client().await.unwrap(), &namespace);
    create(&maps, "kept").await;
    create(&maps, "deleted").await;
    let grant = Grant::namespace(&namespace, "", &["configmaps"], &["list", "watch"]);
    let user = server.user(std::slice::from_ref(&grant)).await.unwrap();
    let mut kubetide = Instance::new(&user.kubeconfig, &[("configmaps", &namespace)], SHORT_WATCHES);
    kubetide.start_with(with_uid);
    kubetide.records_when_listed(1).await;
    kubetide.readiness_when("all is well", |status, _| status == 200).await;

    server.revoke(&user, std::slice::from_ref(&grant)).await.unwrap();
    let told = format!("[-]stream/core/configmaps@{namespace} failed: 403 Forbidden");
    kubetide.readiness_when("it is refused", |status, text| status == 503 && text.contains(&told)).await;
    create(&maps, "meanwhile").await;
    maps.delete("deleted", &DeleteParams::default()).await.unwrap();
    let records = kubetide.records();
    assert_eq!((count(&records, "delete"), count(&records, "gap"), count(&records, "stream_removed")), (0, 0, 0));

    server.grant(&user, &grant).await.unwrap();
    let records = kubetide.records_when("it heals", |r| seen("meanwhile")(r) && count(r, "delete") == 1).await;
    kubetide.readiness_when("all is well again", |status, text| status == 200 && !text.contains("[~]")).await;
    assert_eq!(changes_of(&records, "deleted").last().unwrap().1["origin"], "watch");
    assert_eq!((count(&records, "gap"), count(&records, "snapshot_started")), (0, 1), "it goes on where it was");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_captures_what_it_may_and_only_degrades_for_the_rest() {
    let server = Apiserver::shared().await;
    let namespace = server.namespace("some").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(server.client().await.unwrap(), &namespace);
    create(&maps, "mine").await;
    let user =
        server.user(&[Grant::cluster("", &["configmaps", "namespaces"], &["get", "list", "watch"])]).await.unwrap();
    let mut kubetide = Instance::with_streams(&user.kubeconfig, &["{resource: \"*\"}"], "");
    kubetide.start();
    kubetide.records_when("both are captured", |r| count(r, "snapshot_finished") == 2).await;
    let degraded = |status: u16, text: &str| {
        status == 200
            && text.contains("[~]stream/core/pods degraded: 403 Forbidden")
            && text.contains("[+]stream/core/configmaps ok")
            && text.contains("[+]stream/core/namespaces ok")
    };
    kubetide.readiness_when("it is degraded", degraded).await;
    create(&maps, "later").await;
    let records = kubetide.records_when("it goes on", seen("later")).await;
    assert_eq!((count(&records, "stream_removed"), count(&records, "delete")), (0, 0));
}

/// kubetide with these credentials by way of a proxy, which are broken while it runs, and repaired.
async fn assert_heals(server: &Apiserver, kubeconfig: &Path, break_it: impl FnOnce(), repair: impl FnOnce()) {
    let namespace = server.namespace("credentials").await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(server.client().await.unwrap(), &namespace);
    let proxy = Proxy::start(server.address()).unwrap();
    let direct = fs::read_to_string(kubeconfig).unwrap();
    let through: PathBuf = kubeconfig.with_extension("proxied.yaml");
    fs::write(&through, direct.replace(&server.address().to_string(), &proxy.address().to_string())).unwrap();
    let mut kubetide = Instance::new(&through, &[("configmaps", &namespace)], SHORT_WATCHES);
    kubetide.start();
    kubetide.records_when_listed(1).await;
    create(&maps, "good").await;
    kubetide.records_when("the credentials are good", seen("good")).await;

    break_it();
    // What is not reached may have changed its address or its mind: the credentials are read again.
    proxy.set(Mode::Refuse);
    proxy.cut();
    kubetide.readiness_when("the API server is away", |status, _| status == 503).await;
    proxy.set(Mode::Pass);
    let told = format!("[-]stream/core/configmaps@{namespace} failed: 401 Unauthorized");
    kubetide.readiness_when("it is refused", |status, text| status == 503 && text.contains(&told)).await;
    create(&maps, "meanwhile").await;

    repair();
    let records = kubetide.records_when("the new credentials are used", seen("meanwhile")).await;
    kubetide.readiness_when("all is well", |status, text| status == 200 && !text.contains("[~]")).await;
    assert_eq!((count(&records, "gap"), count(&records, "snapshot_started"), count(&records, "delete")), (0, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_that_is_replaced_is_read_again() {
    let server = Apiserver::shared().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, "admin").unwrap();
    let kubeconfig = server.kubeconfig_with_token_file(&file);
    let write = |token: &str| fs::write(&file, token).unwrap();
    assert_heals(server, &kubeconfig, || write("stale"), || write("admin")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_that_is_replaced_is_read_again() {
    let server = Apiserver::shared().await;
    let certificate = |validity| server.client_certificate("rotating", Some("system:masters"), validity).unwrap();
    let (used, expired, renewed) =
        (certificate(Validity::Now), certificate(Validity::Expired), certificate(Validity::Now));
    let kubeconfig = server.kubeconfig_with_certificate(&used);
    let replace = |by: &kubetide_test_env::ClientCertificate| {
        fs::copy(&by.key, &used.key).unwrap();
        fs::copy(&by.certificate, &used.certificate).unwrap();
    };
    assert_heals(server, &kubeconfig, || replace(&expired), || replace(&renewed)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exec_plugin_is_asked_again_when_its_answer_is_refused() {
    let server = Apiserver::shared().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credential");
    let answer = |token: &str| {
        let answer = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}});
        fs::write(&file, answer.to_string()).unwrap();
    };
    answer("admin");
    let kubeconfig = server.kubeconfig_with_exec("cat", &[&file.display().to_string()]);
    assert_heals(server, &kubeconfig, || answer("stale"), || answer("admin")).await;
}
