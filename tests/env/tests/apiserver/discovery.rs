//! What is served changes: custom resources come, change their versions and go, and an aggregated API is dead.

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kubetide_test_env::{Apiserver, Crd};

use super::code;

fn widgets(client: &Client, group: &str, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, version, "Widget");
    Api::namespaced_with(client.clone(), "default", &ApiResource::from_gvk_with_plural(&kind, "widgets"))
}

/// The groups with their versions; a stale one has a `?`.
async fn groups(client: &Client) -> Vec<String> {
    let list = client.list_api_groups_aggregated().await.unwrap();
    let mut found = Vec::new();
    for group in list.items {
        let name = group.metadata.unwrap().name.unwrap();
        for version in group.versions {
            let stale = if version.freshness.as_deref() == Some("Stale") { "?" } else { "" };
            found.push(format!("{name}/{}{stale}", version.version.unwrap()));
        }
    }
    found
}

#[tokio::test]
async fn a_custom_resource_comes_changes_its_versions_and_goes_with_its_objects() {
    let apiserver = Apiserver::shared().await;
    let client = apiserver.client().await.unwrap();
    let crd = Crd::new("versions.test", "widgets", "Widget").versions(&["v1beta1"]).short_names(&["wd"]);
    apiserver.create_crd(&crd).await.unwrap();
    let beta = widgets(&client, "versions.test", "v1beta1");
    let stable = widgets(&client, "versions.test", "v1");
    let widget: DynamicObject = serde_json::from_value(serde_json::json!({
        "apiVersion": "versions.test/v1beta1",
        "kind": "Widget",
        "metadata": {"name": "first"},
        "spec": {"anything": ["goes"]},
    }))
    .unwrap();
    beta.create(&PostParams::default(), &widget).await.unwrap();
    assert_eq!(code(stable.get("first").await.unwrap_err()), 404);

    apiserver.set_served_versions(&crd, &["v1beta1", "v1"]).await.unwrap();
    assert_eq!(stable.get("first").await.unwrap().data["spec"]["anything"][0], "goes");
    beta.get("first").await.unwrap();
    apiserver.set_served_versions(&crd, &["v1"]).await.unwrap();
    stable.get("first").await.unwrap();
    assert_eq!(code(beta.get("first").await.unwrap_err()), 404);

    apiserver.delete_crd(&crd).await.unwrap();
    assert_eq!(code(stable.list(&ListParams::default()).await.unwrap_err()), 404);
    assert!(!groups(&client).await.iter().any(|group| group.starts_with("versions.test/")));
    apiserver.create_crd(&crd).await.unwrap();
    assert_eq!(beta.list(&ListParams::default()).await.unwrap().items.len(), 0);
}

#[tokio::test]
async fn a_cluster_scoped_custom_resource_is_in_discovery_with_its_short_name() {
    let apiserver = Apiserver::shared().await;
    let client = apiserver.client().await.unwrap();
    let crd = Crd::new("scope.test", "gadgets", "Gadget").cluster_scoped().short_names(&["gd"]);
    apiserver.create_crd(&crd).await.unwrap();
    assert_eq!(crd.name(), "gadgets.scope.test");
    let resources = client.list_api_group_resources("scope.test/v1").await.unwrap().resources;
    let gadgets = resources.iter().find(|resource| resource.name == "gadgets").unwrap();
    assert!(!gadgets.namespaced);
    assert_eq!(gadgets.short_names.as_deref().unwrap(), ["gd"]);
}

#[tokio::test]
async fn a_dead_api_service_makes_its_version_stale_and_leaves_the_others() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let before = groups(&client).await;
    apiserver.dead_api_service("dead.test", "v1").await.unwrap();
    let mut during = groups(&client).await;
    assert!(during.contains(&"dead.test/v1?".to_owned()), "{during:?}");
    during.retain(|group| group != "dead.test/v1?");
    assert_eq!(during, before);
    assert_eq!(code(client.list_api_group_resources("dead.test/v1").await.unwrap_err()), 503);

    apiserver.remove_api_service("dead.test", "v1").await.unwrap();
    assert_eq!(groups(&client).await, before);
    assert_eq!(code(client.list_api_group_resources("dead.test/v1").await.unwrap_err()), 404);
}
