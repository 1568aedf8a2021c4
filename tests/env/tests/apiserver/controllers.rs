//! kube-controller-manager beside kube-apiserver.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kubetide_test_env::Apiserver;

use super::{create, until};

async fn count<K>(objects: &Api<K>) -> usize
where
    K: Clone + std::fmt::Debug + k8s_openapi::serde::de::DeserializeOwned,
{
    objects.list(&ListParams::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn controllers_make_a_replica_set_and_pods_of_a_deployment_and_clear_up_after_it() {
    let apiserver = Apiserver::start().await.unwrap();
    let _controllers = apiserver.controller_manager().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let namespace = apiserver.namespace("controllers").await.unwrap();
    let deployment: Deployment = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "three"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "three"}},
            "template": {
                "metadata": {"labels": {"app": "three"}},
                "spec": {"containers": [{"name": "one", "image": "none"}]},
            },
        },
    }))
    .unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), &namespace);
    let replica_sets = Api::<ReplicaSet>::namespaced(client.clone(), &namespace);
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    until("the Deployment has seen its three Pods", async || {
        let status = deployments.get("three").await.unwrap().status.unwrap_or_default();
        status.replicas == Some(3)
    })
    .await;
    assert_eq!((count(&replica_sets).await, count(&pods).await), (1, 3));

    deployments.delete("three", &DeleteParams::background()).await.unwrap();
    until("owners take their dependents along", async || count(&replica_sets).await + count(&pods).await == 0).await;

    create(&client, &namespace, "inside").await;
    Api::<Namespace>::all(client.clone()).delete(&namespace, &DeleteParams::default()).await.unwrap();
    until("the namespace is gone with what was in it", async || {
        let gone = Api::<Namespace>::all(client.clone()).get_opt(&namespace).await.unwrap().is_none();
        gone && count(&Api::<ConfigMap>::namespaced(client.clone(), &namespace)).await == 0
    })
    .await;
}
