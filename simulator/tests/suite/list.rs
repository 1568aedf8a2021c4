//! LIST and GET.

use serde_json::Value;

use super::subject::{Subject, names, newer, version_of};

async fn with_config_maps(list: &[&str]) -> Subject {
    let subject = crate::subject().await;
    for name in list {
        subject.config_map(name).await;
    }
    subject
}

#[tokio::test]
async fn list_pages_share_one_version() {
    let subject = with_config_maps(&["c", "a", "e", "b", "d"]).await;
    let path = subject.path("configmaps");
    let mut page = subject.get(&format!("{path}?limit=2")).await;
    let version = version_of(&page);
    let mut found = Vec::new();
    let mut left = Vec::new();
    loop {
        assert_eq!(version_of(&page), version);
        found.extend(names(&page).iter().map(|&name| name.to_owned()));
        left.push(page["metadata"]["remainingItemCount"].as_u64());
        let Some(token) = page["metadata"]["continue"].as_str() else {
            break;
        };
        page = subject.get(&format!("{path}?limit=2&continue={token}")).await;
    }
    assert_eq!(found, ["a", "b", "c", "d", "e"]);
    assert_eq!(left, [Some(3), Some(1), None]);
}

#[tokio::test]
async fn a_continue_token_survives_writes_in_between() {
    let subject = with_config_maps(&["a", "b", "c", "d"]).await;
    let path = subject.path("configmaps");
    let first = subject.get(&format!("{path}?limit=1")).await;
    subject.delete("configmaps", "b").await;
    subject.edit("c", "2").await;
    subject.config_map("bb").await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = subject.get(&format!("{path}?limit=10&continue={token}")).await;
    assert_eq!(names(&rest), ["b", "c", "d"]);
    assert_eq!(version_of(&rest), version_of(&first));
    assert_eq!(rest["items"][1]["data"]["turn"], "1", "the state of then, not of now");
    assert_eq!(names(&subject.get(&path).await), ["a", "bb", "c", "d"]);
}

#[tokio::test]
async fn a_version_match_with_a_continue_token_is_refused() {
    let subject = with_config_maps(&["a", "b"]).await;
    let path = subject.path("configmaps");
    let first = subject.get(&format!("{path}?limit=1")).await;
    let (token, version) = (first["metadata"]["continue"].as_str().unwrap(), version_of(&first));
    let query = format!("{path}?continue={token}&resourceVersionMatch=Exact&resourceVersion={version}");
    let refused = subject.expect(422, "GET", &query, None).await;
    assert_eq!(refused["reason"], "Invalid");
    let refused = subject.expect(400, "GET", &format!("{path}?continue={token}&resourceVersion={version}"), None).await;
    assert_eq!(refused["reason"], "BadRequest");
    let refused = subject.expect(400, "GET", &format!("{path}?continue=garbage"), None).await;
    assert_eq!(refused["reason"], "BadRequest");
}

#[tokio::test]
async fn the_lists_version_is_not_below_any_items() {
    let subject = with_config_maps(&["a", "b"]).await;
    let last = subject.edit("a", "2").await;
    let list = subject.get(&subject.path("configmaps")).await;
    assert!(!newer(&version_of(&last), &version_of(&list)));
    assert_eq!(list["kind"], "ConfigMapList");
    assert_eq!(list["apiVersion"], "v1");
}

#[tokio::test]
async fn list_items_of_builtin_types_have_no_kind() {
    let subject = with_config_maps(&["a"]).await;
    let path = subject.path("configmaps");
    let list = subject.get(&path).await;
    assert_eq!(list["items"][0].get("kind"), None);
    assert_eq!(list["items"][0].get("apiVersion"), None);
    let object = subject.get(&format!("{path}/a")).await;
    assert_eq!((object["kind"].as_str(), object["apiVersion"].as_str()), (Some("ConfigMap"), Some("v1")));
}

#[tokio::test]
async fn list_items_of_custom_types_have_a_kind_and_come_before_the_metadata() {
    let subject = crate::subject().await;
    let resource = subject.custom_resource().await;
    subject.gadget(&resource, "a").await;
    let (_, bytes) = subject.request("GET", &subject.path(&resource), "application/json", None).await;
    let list: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(list["kind"], "GadgetList");
    assert_eq!(list["items"][0]["kind"], "Gadget");
    assert_eq!(list["items"][0]["apiVersion"], resource.trim_end_matches("/gadgets"));
    assert_eq!(list["metadata"]["continue"], "");
    let at = |text: &[u8]| bytes.windows(text.len()).position(|window| window == text).unwrap();
    assert!(at(b"\"items\"") < at(b"\"GadgetList\""));
}

#[tokio::test]
async fn a_limit_at_version_zero_is_ignored() {
    let subject = with_config_maps(&["a", "b", "c"]).await;
    // What it shows is as old as the real one's cache.
    let path = format!("{}?limit=1&resourceVersion=0", subject.path("configmaps"));
    let list = subject.until(&path, "application/json", |list| names(list) == ["a", "b", "c"]).await;
    assert_eq!(list["metadata"].get("continue"), None);
}

#[tokio::test]
async fn an_exact_version_shows_the_state_of_then() {
    let subject = with_config_maps(&["a"]).await;
    let version = subject.version("configmaps").await;
    let later = version_of(&subject.config_map("b").await);
    let path = subject.path("configmaps");
    let then = subject.get(&format!("{path}?resourceVersion={version}&resourceVersionMatch=Exact")).await;
    assert_eq!((names(&then), version_of(&then)), (vec!["a"], version.clone()));
    let now = subject.get(&format!("{path}?resourceVersion={later}&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!(names(&now), ["a", "b"]);
}

#[tokio::test]
async fn a_list_or_a_get_from_a_future_version_times_out() {
    let subject = crate::subject().await;
    subject.config_map("a").await;
    let path = subject.path("configmaps");
    for query in ["?", "?limit=1&", "?resourceVersionMatch=Exact&", "?resourceVersionMatch=NotOlderThan&", "/a?"] {
        let refused = subject.expect(504, "GET", &format!("{path}{query}resourceVersion=99999999999"), None).await;
        assert_eq!(refused["reason"], "Timeout", "{query}");
        assert_eq!(refused["details"]["causes"][0]["reason"], "ResourceVersionTooLarge", "{query}");
    }
}

#[tokio::test]
async fn objects_of_all_namespaces_come_in_the_order_of_their_keys() {
    let subject = crate::subject().await;
    // In etcd's order `x-1/…` comes before `x/…`.
    let longer = format!("{}-1", subject.namespace);
    let namespace = serde_json::json!({"metadata": {"name": longer}});
    subject.expect(201, "POST", "/api/v1/namespaces", Some(namespace)).await;
    subject.config_map("a").await;
    let path = format!("/api/v1/namespaces/{longer}/configmaps");
    subject.expect(201, "POST", &path, Some(super::subject::config_map("a", "1"))).await;
    let list = subject.get("/api/v1/configmaps?labelSelector=turn").await;
    let namespaces: Vec<_> =
        list["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["namespace"]).collect();
    let at = |name: &str| namespaces.iter().position(|&namespace| namespace == name).unwrap();
    assert!(at(&longer) < at(&subject.namespace));
}
