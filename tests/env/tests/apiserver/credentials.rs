//! Each way of saying who one is, and what the API server takes it for.

use std::fs;
use std::path::Path;

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams};
use kubetide_test_env::{Apiserver, Grant, User, Validity};

use super::{client_of, code};

/// Who the API server takes the user of this kubeconfig for.
async fn identity(kubeconfig: &Path) -> Result<UserInfo, kube::Error> {
    let reviews = Api::<SelfSubjectReview>::all(client_of(kubeconfig).await);
    let answer = reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await?;
    Ok(answer.status.unwrap().user_info.unwrap())
}

async fn name(kubeconfig: &Path) -> String {
    identity(kubeconfig).await.unwrap().username.unwrap()
}

#[tokio::test]
async fn a_client_certificate_names_its_user_and_group() {
    let apiserver = Apiserver::shared().await;
    let certificate = apiserver.client_certificate("operator", Some("system:masters"), Validity::Now).unwrap();
    let kubeconfig = apiserver.kubeconfig_with_certificate(&certificate);
    let user = identity(&kubeconfig).await.unwrap();
    assert_eq!(user.username.unwrap(), "operator");
    assert!(user.groups.unwrap().contains(&"system:masters".to_owned()));
    Api::<ConfigMap>::all(client_of(&kubeconfig).await).list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn the_user_of_a_certificate_has_the_rights_that_were_granted_to_the_name() {
    let apiserver = Apiserver::shared().await;
    let certificate = apiserver.client_certificate("reader", None, Validity::Now).unwrap();
    let user = User { name: "reader".into(), kubeconfig: apiserver.kubeconfig_with_certificate(&certificate) };
    let list = async || {
        let client = client_of(&user.kubeconfig).await;
        Api::<ConfigMap>::all(client).list(&ListParams::default()).await.map(drop)
    };
    assert_eq!(code(list().await.unwrap_err()), 403);
    apiserver.grant(&user, &Grant::cluster("", &["configmaps"], &["list"])).await.unwrap();
    list().await.unwrap();
}

#[tokio::test]
async fn an_expired_certificate_is_refused_with_401_until_its_files_are_replaced() {
    let apiserver = Apiserver::shared().await;
    let expired = apiserver.client_certificate("late", None, Validity::Expired).unwrap();
    let kubeconfig = apiserver.kubeconfig_with_certificate(&expired);
    assert_eq!(code(identity(&kubeconfig).await.unwrap_err()), 401);
    let renewed = apiserver.client_certificate("late", None, Validity::Now).unwrap();
    fs::rename(&renewed.key, &expired.key).unwrap();
    fs::rename(&renewed.certificate, &expired.certificate).unwrap();
    assert_eq!(name(&kubeconfig).await, "late");
}

#[tokio::test]
async fn a_token_file_is_read_by_the_client() {
    let apiserver = Apiserver::shared().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "admin").unwrap();
    let kubeconfig = apiserver.kubeconfig_with_token_file(file.path());
    assert_eq!(name(&kubeconfig).await, "admin");
    fs::write(&file, "wrong").unwrap();
    assert_eq!(code(identity(&kubeconfig).await.unwrap_err()), 401);
}

#[tokio::test]
async fn an_exec_plugin_is_asked_for_the_token() {
    let apiserver = Apiserver::shared().await;
    let credential = serde_json::json!({
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "admin"},
    });
    let kubeconfig = apiserver.kubeconfig_with_exec("/bin/echo", &[&credential.to_string()]);
    assert_eq!(name(&kubeconfig).await, "admin");
}
