//! The API server's count of what it was asked.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, ListParams};
use kubetide_test_env::Apiserver;

use super::until;

#[tokio::test]
async fn the_api_server_counts_lists_and_watches_by_resource() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let before = apiserver.requests().await.unwrap();
    let all = ListParams::default();
    Api::<ConfigMap>::all(client.clone()).list(&all).await.unwrap();
    Api::<ConfigMap>::namespaced(client.clone(), "default").list(&all).await.unwrap();
    Api::<Deployment>::all(client.clone()).list(&all).await.unwrap();
    let watch = Api::<Secret>::all(client.clone()).watch(&Default::default(), "0").await.unwrap();

    let since = async || apiserver.requests().await.unwrap().since(&before);
    let lists = BTreeMap::from([("configmaps".to_owned(), 2), ("deployments.apps".to_owned(), 1)]);
    until("exactly these LISTs are counted", async || since().await.lists_by_resource() == &lists).await;
    let open = apiserver.requests().await.unwrap();
    assert_eq!(open.open_watches("secrets"), before.open_watches("secrets") + 1);
    assert_eq!(since().await.watches("secrets"), 1);

    drop(watch);
    until("the watch is no longer open", async || {
        apiserver.requests().await.unwrap().open_watches("secrets") == before.open_watches("secrets")
    })
    .await;
    until("an ended watch still counts", async || since().await.watches("secrets") == 1).await;
}
