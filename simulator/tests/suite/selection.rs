//! Label and field selectors in LIST, WATCH and streaming list, and what they do to pages.

use serde_json::{Value, json};

use super::subject::{STREAMING, Subject, config_map, names, version_of};

async fn with_config_maps(list: &[&str]) -> Subject {
    let subject = crate::subject().await;
    for name in list {
        subject.config_map(name).await;
    }
    subject
}

#[tokio::test]
async fn selectors_select() {
    let subject = with_config_maps(&["a", "b", "c"]).await;
    subject.edit("b", "2").await;
    let path = subject.path("configmaps");
    for (query, expected) in [
        ("labelSelector=turn%3D2", vec!["b"]),
        ("labelSelector=app%3Dweb,turn%21%3D2", vec!["a", "c"]),
        ("labelSelector=turn%20in%20(2,3),app", vec!["b"]),
        ("labelSelector=turn%20notin%20(2)", vec!["a", "c"]),
        ("labelSelector=!app", vec![]),
        ("fieldSelector=metadata.name%3Dc", vec!["c"]),
        ("fieldSelector=metadata.name%3D%3Dc", vec!["c"]),
        ("fieldSelector=metadata.name%21%3Dc", vec!["a", "b"]),
        ("fieldSelector=metadata.name%21%3Dc,metadata.name%21%3Da", vec!["b"]),
        ("fieldSelector=metadata.namespace%21%3Dkube-system", vec!["a", "b", "c"]),
        ("fieldSelector=metadata.namespace%3Dkube-system", vec![]),
        ("fieldSelector=metadata.name%21%3Dc&labelSelector=turn%3D1", vec!["a"]),
    ] {
        assert_eq!(names(&subject.get(&format!("{path}?{query}")).await), expected, "{query}");
    }
    for query in ["fieldSelector=spec.x%3D1", "fieldSelector=metadata.name", "labelSelector=a%20b"] {
        let refused = subject.expect(400, "GET", &format!("{path}?{query}"), None).await;
        assert_eq!(refused["reason"], "BadRequest", "{query}");
    }
}

#[tokio::test]
async fn namespaces_are_selected_by_name_and_their_objects_by_namespace() {
    let subject = with_config_maps(&["a"]).await;
    let ours = &subject.namespace;
    let other = format!("{ours}-x");
    subject.expect(201, "POST", "/api/v1/namespaces", Some(json!({"metadata": {"name": other}}))).await;
    let theirs = format!("/api/v1/namespaces/{other}/configmaps");
    subject.expect(201, "POST", &theirs, Some(config_map("theirs", "1"))).await;
    let found = |list: &Value, namespace: &str| {
        list["items"].as_array().unwrap().iter().any(|item| item["metadata"]["namespace"] == namespace)
    };
    for (selector, has_ours, has_theirs) in [
        (format!("metadata.namespace%21%3D{ours}"), false, true),
        (format!("metadata.namespace%3D{ours}"), true, false),
        (format!("metadata.namespace%21%3D{ours},metadata.namespace%21%3D{other}"), false, false),
        ("metadata.name%3Dtheirs".to_owned(), false, true),
    ] {
        let list = subject.get(&format!("/api/v1/configmaps?labelSelector=turn&fieldSelector={selector}")).await;
        assert_eq!((found(&list, ours), found(&list, &other)), (has_ours, has_theirs), "{selector}");
    }
    let list = subject.get(&format!("/api/v1/namespaces?fieldSelector=metadata.name%3D{other}")).await;
    assert_eq!(names(&list), [other.as_str()]);
    let path = "/api/v1/namespaces?fieldSelector=metadata.namespace%21%3Dx";
    let refused = subject.expect(400, "GET", path, None).await;
    assert_eq!(refused["message"], "field label not supported: metadata.namespace");
}

#[tokio::test]
async fn the_count_of_what_remains_is_for_lists_without_a_selector() {
    let subject = with_config_maps(&["a", "b", "c"]).await;
    let custom = subject.custom_resource().await;
    for name in ["a", "b", "c"] {
        subject.gadget(&custom, name).await;
    }
    for resource in ["configmaps", &custom] {
        let path = subject.path(resource);
        for (query, remaining) in [
            ("limit=1", Some(2)),
            ("limit=2", Some(1)),
            ("limit=1&labelSelector=", Some(2)),
            ("limit=3", None),
            ("limit=1&labelSelector=app", None),
            ("limit=1&fieldSelector=metadata.name%21%3Dx", None),
            ("limit=1&fieldSelector=metadata.namespace%21%3Dx", None),
        ] {
            let list = subject.get(&format!("{path}?{query}")).await;
            assert_eq!(list["metadata"].get("remainingItemCount").and_then(Value::as_u64), remaining, "{query}");
            let more = list["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty());
            assert_eq!(more, query != "limit=3", "{query}");
        }
    }
}

#[tokio::test]
async fn the_last_page_of_a_selection_may_be_empty() {
    let subject = with_config_maps(&["a", "b", "c"]).await;
    for name in ["b", "c"] {
        subject.edit(name, "2").await;
    }
    let path = format!("{}?limit=1&labelSelector=turn%3D1", subject.path("configmaps"));
    let first = subject.get(&path).await;
    assert_eq!(names(&first), ["a"]);
    let token = first["metadata"]["continue"].as_str().expect("objects follow, though none that is selected");
    let last = subject.get(&format!("{path}&continue={token}")).await;
    assert_eq!((&last["items"], last["metadata"].get("continue")), (&json!([]), None));
    assert_eq!(version_of(&last), version_of(&first));
    // One object by its name is found without looking at the others.
    let path = format!("{}?limit=1&fieldSelector=metadata.name%3Da", subject.path("configmaps"));
    assert_eq!(subject.get(&path).await["metadata"].get("continue"), None);
}

#[tokio::test]
async fn leaving_a_selection_is_deleted_and_entering_it_added() {
    let subject = crate::subject().await;
    let first = subject.config_map("a").await;
    let query = format!("resourceVersion={}&labelSelector=turn%3D1", version_of(&first));
    let mut watch = subject.watch("configmaps", &query).await;
    let left = subject.edit("a", "2").await;
    subject.edit("a", "3").await;
    let back = subject.edit("a", "1").await;
    let deleted = watch.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(deleted["object"]["data"]["turn"], "1", "the last selected state");
    assert_eq!(version_of(&deleted["object"]), version_of(&left), "with the version of the change");
    assert_eq!(watch.brief().await, ("ADDED".into(), "a".into(), version_of(&back)));
    // An object that goes while it is not selected is not heard of again.
    let left = subject.edit("a", "2").await;
    assert_eq!(watch.brief().await, ("DELETED".into(), "a".into(), version_of(&left)));
    subject.delete("configmaps", "a").await;
    let made = subject.config_map("b").await;
    assert_eq!(watch.brief().await, ("ADDED".into(), "b".into(), version_of(&made)));
}

#[tokio::test]
async fn a_streaming_list_sends_what_is_selected_and_goes_on_so() {
    let subject = with_config_maps(&["a", "b", "c"]).await;
    subject.edit("b", "2").await;
    let mut watch = subject.watch("configmaps", &format!("{STREAMING}&labelSelector=turn%3D1")).await;
    for name in ["a", "c"] {
        assert_eq!(watch.brief().await.1, name);
    }
    assert_eq!(watch.brief().await.0, "BOOKMARK");
    let entered = subject.edit("b", "1").await;
    let left = subject.edit("c", "2").await;
    assert_eq!(watch.brief().await, ("ADDED".into(), "b".into(), version_of(&entered)));
    assert_eq!(watch.brief().await, ("DELETED".into(), "c".into(), version_of(&left)));

    let mut nothing = subject.watch("configmaps", &format!("{STREAMING}&labelSelector=turn%3Dnone")).await;
    assert_eq!(nothing.brief().await.0, "BOOKMARK", "the end of nothing");
}

#[tokio::test]
async fn one_object_is_watched_by_its_name() {
    let subject = with_config_maps(&["a", "b"]).await;
    let custom = subject.custom_resource().await;
    for name in ["a", "b"] {
        subject.gadget(&custom, name).await;
    }
    for resource in ["configmaps", &custom] {
        let mut watch = subject.watch(resource, &format!("{STREAMING}&fieldSelector=metadata.name%3Db")).await;
        assert_eq!(watch.brief().await.1, "b");
        assert_eq!(watch.brief().await.0, "BOOKMARK");
        let patch = json!({"metadata": {"labels": {"turn": "9"}}});
        for name in ["a", "b"] {
            subject.expect(200, "PATCH", &format!("{}/{name}", subject.path(resource)), Some(patch.clone())).await;
        }
        let (sort, name, _) = watch.brief().await;
        assert_eq!((sort.as_str(), name.as_str()), ("MODIFIED", "b"));
        for name in ["a", "b"] {
            subject.delete(resource, name).await;
        }
        let (sort, name, _) = watch.brief().await;
        assert_eq!((sort.as_str(), name.as_str()), ("DELETED", "b"));
    }
}

#[tokio::test]
async fn a_watch_of_all_namespaces_can_leave_one_out() {
    let subject = crate::subject().await;
    let other = Subject::new(subject.client.clone(), &format!("{}-x", subject.namespace), ());
    let namespace = json!({"metadata": {"name": other.namespace}});
    subject.expect(201, "POST", "/api/v1/namespaces", Some(namespace)).await;
    let version = subject.version("configmaps").await;
    // The label is this test's own: others write in their namespaces.
    let mark = subject.namespace.as_str();
    let marked = |name: &str| json!({"metadata": {"name": name, "labels": {"mark": mark}}});
    let path = format!(
        "/api/v1/configmaps?watch=1&resourceVersion={version}&labelSelector=mark%3D{mark}&fieldSelector=metadata.namespace%21%3D{mark}"
    );
    let mut watch = subject.watch_at(&path, "application/json").await;
    subject.create("configmaps", marked("ours")).await;
    other.create("configmaps", marked("theirs")).await;
    assert_eq!(watch.brief().await.1, "theirs");
}
