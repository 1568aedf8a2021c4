//! Custom resource definitions: several versions without conversion, changed live, and the end.

use serde_json::{Value, json};

use super::subject::{AGGREGATED, DEFINITIONS, STREAMING, Subject, newer, version_of};

/// The group in a discovery list, once it has so many versions.
async fn group_with(subject: &Subject, versions: usize) -> Value {
    let group = subject.group();
    let of = |list: &Value| {
        list["items"].as_array().into_iter().flatten().find(|it| it["metadata"]["name"] == group.as_str()).cloned()
    };
    let wanted =
        |list: &Value| of(list).map_or(0, |group| group["versions"].as_array().map_or(0, Vec::len)) == versions;
    of(&subject.until("/apis", AGGREGATED, wanted).await).unwrap_or_default()
}

#[tokio::test]
async fn objects_have_the_api_version_in_which_they_are_asked_for() {
    let subject = crate::subject().await;
    let stored = subject.custom_resource_in(&["v1", "v2beta1"]).await;
    let other = format!("{}/v2beta1/gadgets", subject.group());
    let a = subject.gadget(&stored, "a").await;
    let b = subject.gadget(&other, "b").await;
    for resource in [&stored, &other] {
        let version = resource.trim_end_matches("/gadgets");
        let path = subject.path(resource);
        let list = subject.get(&path).await;
        assert_eq!((&list["apiVersion"], &list["kind"]), (&version.into(), &"GadgetList".into()));
        for item in [&list["items"][0], &list["items"][1], &subject.get(&format!("{path}/a")).await] {
            assert_eq!((&item["apiVersion"], &item["kind"]), (&version.into(), &"Gadget".into()));
        }
        assert_eq!(list["items"][0]["metadata"], a["metadata"], "the same object");
        assert_eq!(list["items"][1]["metadata"], b["metadata"]);
        let mut watch = subject.watch(resource, STREAMING).await;
        for sort in ["ADDED", "ADDED", "BOOKMARK"] {
            let event = watch.next().await.unwrap();
            assert_eq!((&event["type"], &event["object"]["apiVersion"]), (&sort.into(), &version.into()));
        }
    }
    assert_eq!(a["metadata"]["managedFields"][0]["apiVersion"], stored.trim_end_matches("/gadgets"));
    assert_eq!(b["metadata"]["managedFields"][0]["apiVersion"], other.trim_end_matches("/gadgets"));
}

#[tokio::test]
async fn a_change_in_one_version_is_seen_in_all() {
    let subject = crate::subject().await;
    let stored = subject.custom_resource_in(&["v1", "v2"]).await;
    let other = format!("{}/v2/gadgets", subject.group());
    let made = subject.gadget(&stored, "a").await;
    let mut watch = subject.watch(&other, &format!("resourceVersion={}", version_of(&made))).await;
    let path = format!("{}/a", subject.path(&stored));
    let changed = subject.expect(200, "PATCH", &path, Some(json!({"spec": {"size": 2}}))).await;
    let event = watch.next().await.unwrap();
    assert_eq!((&event["type"], version_of(&event["object"])), (&"MODIFIED".into(), version_of(&changed)));
    assert_eq!(event["object"]["apiVersion"], other.trim_end_matches("/gadgets"));
    assert_eq!(event["object"]["spec"]["size"], 2);
}

#[tokio::test]
async fn versions_are_preferred_in_the_order_of_kubernetes() {
    let subject = crate::subject().await;
    subject.custom_resource_in(&["v1", "v1alpha1", "v10", "next", "v1beta2", "v2", "v1beta10"]).await;
    let expected = ["v10", "v2", "v1", "v1beta10", "v1beta2", "v1alpha1", "next"];
    let names = |versions: &Value| -> Vec<String> {
        versions.as_array().unwrap().iter().map(|it| it["version"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&group_with(&subject, expected.len()).await["versions"]), expected);
    let path = format!("/apis/{}", subject.group());
    let wanted = |group: &Value| group["versions"].as_array().map_or(0, Vec::len) == expected.len();
    let legacy = subject.until(&path, "application/json", wanted).await;
    assert_eq!(names(&legacy["versions"]), expected);
    assert_eq!(legacy["preferredVersion"]["version"], "v10");
}

#[tokio::test]
async fn a_version_that_is_no_longer_served_is_not_even_a_status() {
    let subject = crate::subject().await;
    let stored = subject.custom_resource_in(&["v1", "v2"]).await;
    let other = format!("{}/v2/gadgets", subject.group());
    subject.gadget(&other, "a").await;
    group_with(&subject, 2).await;

    subject.serve("v2", false).await;
    subject.until_answers(&subject.path(&other), 404).await;
    assert_eq!(subject.expect(404, "GET", &subject.path(&other), None).await, "404 page not found\n");
    assert_eq!(group_with(&subject, 1).await["versions"][0]["version"], "v1");
    subject.until_answers(&format!("/apis/{}/v2", subject.group()), 404).await;
    // For a moment the real one answers 429: it builds its cache of the other versions anew.
    subject.until_answers(&subject.path(&stored), 200).await;
    assert_eq!(subject.get(&subject.path(&stored)).await["items"][0]["metadata"]["name"], "a", "the objects stay");

    // A definition may also serve nothing for a while, the stored version included.
    subject.serve("v1", false).await;
    subject.until_answers(&subject.path(&stored), 404).await;
    group_with(&subject, 0).await;
    subject.serve("v2", true).await;
    subject.until_answers(&subject.path(&other), 200).await;
    assert_eq!(subject.get(&subject.path(&other)).await["items"][0]["metadata"]["name"], "a");
    assert_eq!(group_with(&subject, 1).await["versions"][0]["version"], "v2");
}

#[tokio::test]
async fn a_changed_definition_ends_the_watches_of_every_version_and_older_versions_expire() {
    let subject = crate::subject().await;
    let stored = subject.custom_resource_in(&["v1", "v2"]).await;
    let other = format!("{}/v2/gadgets", subject.group());
    let made = version_of(&subject.gadget(&stored, "a").await);
    let mut of_stored = subject.watch(&stored, &format!("resourceVersion={made}")).await;
    let mut of_other = subject.watch(&other, &format!("resourceVersion={made}")).await;
    let changed = version_of(&subject.serve("v2", false).await);
    assert_eq!((of_stored.next().await, of_other.next().await), (None, None), "a clean end");

    subject.until_answers(&subject.path(&stored), 200).await;
    let mut again = subject.watch(&stored, &format!("resourceVersion={made}")).await;
    let event = again.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&"ERROR".into(), &410.into()));
    let list = subject.get(&subject.path(&stored)).await;
    assert!(!newer(&changed, &version_of(&list)));
    let mut again = subject.watch(&stored, &format!("resourceVersion={}", version_of(&list))).await;
    let made = subject.gadget(&stored, "b").await;
    assert_eq!(again.brief().await, ("ADDED".into(), "b".into(), version_of(&made)));
}

#[tokio::test]
async fn a_definition_is_established_after_it_was_created_and_marked_before_it_goes() {
    let subject = crate::subject().await;
    let name = format!("gadgets.{}", subject.group());
    let from = version_of(&subject.get(DEFINITIONS).await);
    let resource = subject.custom_resource().await;
    let made = subject.gadget(&resource, "a").await;
    subject.remove_custom_resource().await;
    subject.until_answers(&subject.definition(), 404).await;

    let selector = format!("resourceVersion={from}&fieldSelector=metadata.name%3D{name}");
    let mut watch = subject.watch_at(&format!("{DEFINITIONS}?watch=1&{selector}"), "application/json").await;
    let mut seen: Vec<Vec<String>> = Vec::new();
    let last = loop {
        let event = watch.next().await.unwrap();
        let conditions = event["object"]["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let text = |it: &Value| format!("{}={}", it["type"].as_str().unwrap(), it["status"].as_str().unwrap());
        let mut state = vec![event["type"].as_str().unwrap().to_owned()];
        state.extend(conditions.iter().map(text));
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        if event["type"] == "DELETED" {
            break event;
        }
    };
    let (names, ended) = ("NamesAccepted=True", "Terminating=True");
    let expected: [&[&str]; 5] = [
        &["ADDED"],
        &["MODIFIED", names, "Established=False"],
        &["MODIFIED", names, "Established=True"],
        &["MODIFIED", names, "Established=True", ended],
        &["DELETED", names, "Established=True", ended],
    ];
    assert_eq!(seen, expected);
    assert!(last["object"]["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(last["object"]["status"]["storedVersions"], json!(["v1"]));
    assert!(newer(&version_of(&last["object"]), &version_of(&made)));
}

#[tokio::test]
async fn removing_a_definition_deletes_its_objects_in_every_version() {
    let subject = crate::subject().await;
    let stored = subject.custom_resource_in(&["v1", "v2"]).await;
    let other = format!("{}/v2/gadgets", subject.group());
    subject.gadget(&stored, "a").await;
    let made = subject.gadget(&stored, "b").await;
    let mut watch = subject.watch(&other, &format!("resourceVersion={}", version_of(&made))).await;
    subject.remove_custom_resource().await;
    for name in ["a", "b"] {
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&"DELETED".into(), &name.into()));
        assert_eq!(event["object"]["apiVersion"], other.trim_end_matches("/gadgets"));
    }
    assert_eq!(watch.next().await, None);
    subject.until_answers(&format!("/apis/{}", subject.group()), 404).await;
}

#[tokio::test]
async fn a_definition_has_one_stored_version_and_its_own_name() {
    let subject = crate::subject().await;
    let definition = |name: &str, versions: Value| {
        json!({
            "metadata": {"name": format!("{name}.{}", subject.group())},
            "spec": {
                "group": subject.group(),
                "names": {"plural": "gadgets", "kind": "Gadget"},
                "scope": "Namespaced",
                "versions": versions,
            },
        })
    };
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let version = |name: &str, storage| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    for refused in [
        definition("gadgets", json!([])),
        definition("gadgets", json!([version("v1", false)])),
        definition("gadgets", json!([version("v1", true), version("v2", true)])),
        definition("others", json!([version("v1", true)])),
    ] {
        let status = subject.expect(422, "POST", DEFINITIONS, Some(refused)).await;
        assert_eq!(status["reason"], "Invalid");
    }
}
