//! WATCH and the streaming list.

use serde_json::Value;

use super::subject::{STREAMING, Subject, newer, version_of};

#[tokio::test]
async fn watch_from_a_listed_version_delivers_later_changes_in_order() {
    let subject = crate::subject().await;
    subject.config_map("before").await;
    let version = subject.version("configmaps").await;
    let mut expected = Vec::new();
    for name in ["b", "a"] {
        expected.push(("ADDED", name, version_of(&subject.config_map(name).await)));
    }
    expected.push(("MODIFIED", "b", version_of(&subject.edit("b", "2").await)));
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={version}")).await;
    // Half of the changes are there when the watch begins, half come while it is open.
    expected.push(("ADDED", "c", version_of(&subject.config_map("c").await)));
    expected.push(("MODIFIED", "a", version_of(&subject.edit("a", "2").await)));
    for (sort, name, version) in expected {
        assert_eq!(watch.brief().await, (sort.to_owned(), name.to_owned(), version));
    }
}

#[tokio::test]
async fn watched_objects_have_a_kind_and_are_the_bytes_of_the_list() {
    let subject = crate::subject().await;
    let version = subject.version("configmaps").await;
    subject.config_map("a").await;
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={version}")).await;
    let line = String::from_utf8(watch.line().await.unwrap()).unwrap();
    let inner = line.strip_prefix(r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","#).unwrap();
    let inner = inner.strip_suffix("}}\n").unwrap();
    let (_, list) = subject.request("GET", &subject.path("configmaps"), "application/json", None).await;
    let list = String::from_utf8(list).unwrap();
    assert!(list.contains(&format!("{{{inner}}}")), "{inner}\n{list}");
}

#[tokio::test]
async fn deleted_event_carries_the_deletes_version_and_last_state() {
    let subject = crate::subject().await;
    subject.config_map("a").await;
    let last = subject.edit("a", "2").await;
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={}", version_of(&last))).await;
    subject.delete("configmaps", "a").await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "DELETED");
    assert_eq!(event["object"]["data"], last["data"]);
    assert_eq!(event["object"]["metadata"]["uid"], last["metadata"]["uid"]);
    assert!(newer(&version_of(&event["object"]), &version_of(&last)));
    assert!(!newer(&version_of(&event["object"]), &subject.version("configmaps").await));
}

#[tokio::test]
async fn delete_and_recreate_under_one_name_is_two_events_and_two_uids() {
    let subject = crate::subject().await;
    let first = subject.config_map("a").await;
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={}", version_of(&first))).await;
    subject.delete("configmaps", "a").await;
    let second = subject.config_map("a").await;
    let (deleted, added) = (watch.next().await.unwrap(), watch.next().await.unwrap());
    assert_eq!((&deleted["type"], &added["type"]), (&"DELETED".into(), &"ADDED".into()));
    assert_eq!(deleted["object"]["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(added["object"]["metadata"]["uid"], second["metadata"]["uid"]);
    assert_ne!(first["metadata"]["uid"], second["metadata"]["uid"]);
}

async fn state_then_changes(query: &str) {
    let subject = crate::subject().await;
    for name in ["b", "a"] {
        subject.config_map(name).await;
    }
    let mut watch = subject.watch("configmaps", query).await;
    let mut found = [watch.brief().await, watch.brief().await].map(|(sort, name, _)| (sort, name));
    // Without sendInitialEvents their order is not promised.
    found.sort();
    assert_eq!(found, ["a", "b"].map(|name| ("ADDED".to_owned(), name.to_owned())));
    let made = subject.config_map("c").await;
    assert_eq!(watch.brief().await, ("ADDED".into(), "c".into(), version_of(&made)));
}

#[tokio::test]
async fn a_watch_without_a_version_begins_with_the_state() {
    state_then_changes("").await;
}

#[tokio::test]
async fn a_watch_from_version_zero_begins_with_the_state() {
    state_then_changes("resourceVersion=0").await;
}

#[tokio::test]
async fn streaming_list_ends_with_an_annotated_bookmark() {
    let subject = crate::subject().await;
    for name in ["b", "c", "a"] {
        subject.config_map(name).await;
    }
    let last = subject.edit("b", "2").await;
    let mut watch = subject.watch("configmaps", STREAMING).await;
    for name in ["a", "b", "c"] {
        let (sort, found, _) = watch.brief().await;
        assert_eq!((sort.as_str(), found.as_str()), ("ADDED", name), "key order, not version order");
    }
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    let object = &bookmark["object"];
    assert_eq!(object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!((object["kind"].as_str(), object["apiVersion"].as_str()), (Some("ConfigMap"), Some("v1")));
    assert_eq!(object["metadata"].get("name"), None);
    assert!(!newer(&version_of(&last), &version_of(object)));
    let made = subject.config_map("d").await;
    assert_eq!(watch.brief().await, ("ADDED".into(), "d".into(), version_of(&made)));
}

#[tokio::test]
async fn a_watch_without_a_version_ends_its_initial_events_with_a_bookmark_too() {
    let subject = crate::subject().await;
    subject.config_map("a").await;
    for query in ["allowWatchBookmarks=true", "allowWatchBookmarks=true&resourceVersion=0"] {
        let mut watch = subject.watch("configmaps", query).await;
        assert_eq!(watch.brief().await.1, "a");
        let bookmark = watch.next().await.unwrap();
        assert_eq!(bookmark["type"], "BOOKMARK", "{query}");
        assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    }
    let mut without = subject.watch("configmaps", "timeoutSeconds=1").await;
    assert_eq!(without.rest().await.len(), 1, "not when bookmarks were not asked for");
}

#[tokio::test]
async fn nothing_but_added_comes_before_the_bookmark_that_ends_the_initial_events() {
    let subject = crate::subject().await;
    for name in ["a", "b", "c"] {
        subject.config_map(name).await;
    }
    let churn = async {
        for turn in 0..30 {
            subject.edit("a", &turn.to_string()).await;
            subject.config_map("brief").await;
            subject.delete("configmaps", "brief").await;
        }
    };
    let listing = async {
        for _ in 0..30 {
            let mut watch = subject.watch("configmaps", STREAMING).await;
            let mut found = Vec::new();
            loop {
                let event = watch.next().await.unwrap();
                if event["type"] == "BOOKMARK" {
                    break;
                }
                assert_eq!(event["type"], "ADDED");
                found.push(event["object"]["metadata"]["name"].as_str().unwrap().to_owned());
            }
            found.retain(|name| name != "brief");
            assert_eq!(found, ["a", "b", "c"], "each once, in the order of keys");
        }
    };
    tokio::join!(churn, listing);
}

#[tokio::test]
async fn bookmarks_are_empty_objects_of_the_watched_type() {
    let subject = crate::subject().await;
    for (resource, fields) in [
        ("pods", r#"{"spec":{"containers":null},"status":{}}"#),
        ("secrets", "{}"),
        ("services", r#"{"spec":{},"status":{"loadBalancer":{}}}"#),
        ("serviceaccounts", "{}"),
        ("coordination.k8s.io/v1/leases", r#"{"spec":{}}"#),
        (
            "apps/v1/deployments",
            r#"{"spec":{"replicas":0,"selector":null,"strategy":{},"template":{"metadata":{},"spec":{"containers":null}}},"status":{}}"#,
        ),
    ] {
        let bookmark = subject.watch(resource, STREAMING).await.next().await.unwrap();
        assert_eq!(bookmark["type"], "BOOKMARK", "{resource}");
        let mut object = bookmark["object"].clone();
        let object = object.as_object_mut().unwrap();
        for field in ["kind", "apiVersion", "metadata"] {
            assert!(object.remove(field).is_some(), "{resource} {field}");
        }
        assert_eq!(Value::Object(object.clone()), serde_json::from_str::<Value>(fields).unwrap(), "{resource}");
    }
}

#[tokio::test]
async fn bookmarks_come_when_asked_for_and_only_then() {
    let subject = crate::subject().await;
    let version = subject.version("configmaps").await;
    let query = format!("resourceVersion={version}&timeoutSeconds=6");
    let mut with = subject.watch("configmaps", &format!("{query}&allowWatchBookmarks=true")).await;
    let mut without = subject.watch("configmaps", &query).await;
    let made = subject.config_map("a").await;
    let (with, without) = (with.rest().await, without.rest().await);
    assert_eq!(without.len(), 1);
    assert_eq!(with[0]["type"], "ADDED");
    let last = with.last().unwrap();
    assert_eq!(last["type"], "BOOKMARK", "one comes before the end: {with:?}");
    assert!(!newer(&version_of(&made), &version_of(&last["object"])));
    assert_eq!(last["object"]["metadata"].get("annotations"), None);
}

#[tokio::test]
async fn a_watch_ends_cleanly_after_its_timeout() {
    let subject = crate::subject().await;
    let started = std::time::Instant::now();
    let version = subject.version("configmaps").await;
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={version}&timeoutSeconds=1")).await;
    assert_eq!(watch.rest().await, Vec::<Value>::new());
    assert!(started.elapsed() >= std::time::Duration::from_secs(1));
}

#[tokio::test]
async fn a_watch_from_a_future_version_is_accepted_and_drops_events() {
    let subject = crate::subject().await;
    let query = "resourceVersion=99999999999&timeoutSeconds=2&allowWatchBookmarks=true";
    let mut watch = subject.watch("configmaps", query).await;
    subject.config_map("a").await;
    assert_eq!(watch.rest().await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_watch_from_a_future_version_is_silent_until_that_version_has_passed() {
    let subject = crate::subject().await;
    subject.config_map("a").await;
    // Other tests write as well: far enough that they do not pass it before the watch is open.
    let future = subject.version("configmaps").await.parse::<u64>().unwrap() + 60;
    let query = format!("resourceVersion={future}&allowWatchBookmarks=true&timeoutSeconds=10");
    let mut watch = subject.watch("configmaps", &query).await;
    let mut turn = 0;
    let first = loop {
        turn += 1;
        let version = version_of(&subject.edit("a", &turn.to_string()).await);
        if newer(&version, &future.to_string()) {
            break version;
        }
    };
    let second = version_of(&subject.edit("a", "last").await);
    for version in [first, second.clone()] {
        assert_eq!(watch.brief().await, ("MODIFIED".into(), "a".into(), version));
    }
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK", "from then on it is a watch like any other");
    assert!(!newer(&second, &version_of(&bookmark["object"])));
}

#[tokio::test]
async fn a_watch_from_a_future_version_has_no_bookmarks() {
    let subject = crate::subject().await;
    let query = "resourceVersion=99999999999&timeoutSeconds=6&allowWatchBookmarks=true";
    let mut watch = subject.watch("configmaps", query).await;
    assert_eq!(watch.rest().await, Vec::<Value>::new(), "not even the one before the end");
}

#[tokio::test]
async fn a_streaming_list_from_a_future_version_is_an_error_event() {
    let subject = crate::subject().await;
    let mut watch = subject.watch("configmaps", &format!("{STREAMING}&resourceVersion=99999999999")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    assert_eq!((&event["object"]["code"], &event["object"]["reason"]), (&504.into(), &"Timeout".into()));
}

#[tokio::test]
async fn initial_events_need_a_version_match() {
    let subject = crate::subject().await;
    let path = subject.path("configmaps");
    for query in [
        "sendInitialEvents=true",
        "sendInitialEvents=true&resourceVersionMatch=Exact",
        "resourceVersionMatch=NotOlderThan",
    ] {
        let refused = subject.expect(422, "GET", &format!("{path}?watch=1&{query}"), None).await;
        assert_eq!(refused["reason"], "Invalid", "{query}");
    }
}

#[tokio::test]
async fn a_namespaced_watch_sees_its_namespace_only() {
    let subject = crate::subject().await;
    let other = Subject::new(subject.client.clone(), &format!("{}-x", subject.namespace), ());
    let namespace = serde_json::json!({"metadata": {"name": other.namespace}});
    subject.expect(201, "POST", "/api/v1/namespaces", Some(namespace)).await;
    let version = subject.version("configmaps").await;
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={version}")).await;
    other.config_map("theirs").await;
    subject.config_map("ours").await;
    assert_eq!(watch.brief().await.1, "ours");
}

#[tokio::test]
async fn removing_a_definition_deletes_its_objects_and_ends_the_watch() {
    let subject = crate::subject().await;
    let resource = subject.custom_resource().await;
    let made = subject.gadget(&resource, "a").await;
    let mut watch = subject.watch(&resource, &format!("resourceVersion={}", version_of(&made))).await;
    subject.remove_custom_resource().await;
    let (sort, name, version) = watch.brief().await;
    assert_eq!((sort.as_str(), name.as_str()), ("DELETED", "a"));
    assert!(newer(&version, &version_of(&made)));
    assert_eq!(watch.next().await, None);
    subject.until_answers(&subject.path(&resource), 404).await;
}
