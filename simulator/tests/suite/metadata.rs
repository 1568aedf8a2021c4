//! Metadata alone: PartialObjectMetadata in GET, LIST, WATCH and streaming list, the same for built-in and custom types.

use serde_json::{Value, json};

use super::subject::{STREAMING, Subject, version_of};

const ONE: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// How every object begins, also those of custom resources, whose whole form has its keys sorted.
const OPENING: &str = r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a""#;

/// A server with `a` and `b` of a built-in and of a custom type; gives the two resources.
async fn with_both() -> (Subject, [String; 2]) {
    let subject = crate::subject().await;
    let custom = subject.custom_resource().await;
    for name in ["a", "b"] {
        subject.config_map(name).await;
        subject.gadget(&custom, name).await;
    }
    (subject, ["configmaps".to_owned(), custom])
}

async fn ask(subject: &Subject, path: &str, accept: &str) -> (u16, String, Value) {
    let (code, bytes) = subject.request("GET", path, accept, None).await;
    let value = serde_json::from_slice(&bytes).unwrap();
    (code, String::from_utf8(bytes).unwrap(), value)
}

/// An object that has nothing but what it should.
fn is_metadata(object: &Value) {
    assert_eq!(object["kind"], "PartialObjectMetadata");
    assert_eq!(object["apiVersion"], "meta.k8s.io/v1");
    assert_eq!(object.as_object().unwrap().len(), 3, "{object}");
    assert_eq!(object["metadata"]["labels"]["app"], "web");
    assert!(object["metadata"]["managedFields"].is_array());
}

#[tokio::test]
async fn a_get_gives_the_metadata_of_one() {
    let (subject, resources) = with_both().await;
    for resource in resources {
        let path = format!("{}/a", subject.path(&resource));
        let (code, text, object) = ask(&subject, &path, ONE).await;
        assert_eq!(code, 200);
        assert!(text.starts_with(OPENING), "{text}");
        is_metadata(&object);
        assert_eq!(object["metadata"], subject.get(&path).await["metadata"]);
        let (code, _, status) = ask(&subject, &path, LIST).await;
        let refused = if resource == "configmaps" { (406, json!("NotAcceptable")) } else { (500, Value::Null) };
        assert_eq!((code, status["reason"].clone()), refused);
    }
}

#[tokio::test]
async fn a_list_gives_the_metadata_of_all_each_with_a_kind() {
    let (subject, resources) = with_both().await;
    for resource in resources {
        let path = subject.path(&resource);
        let (code, text, list) = ask(&subject, &path, LIST).await;
        assert_eq!(code, 200);
        assert!(text.contains(OPENING), "{text}");
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&"PartialObjectMetadataList".into(), &"meta.k8s.io/v1".into())
        );
        assert_eq!(list["metadata"].as_object().unwrap().len(), 1, "a version, and no empty token");
        list["items"].as_array().unwrap().iter().for_each(is_metadata);
        assert_eq!(list["items"].as_array().unwrap().len(), 2);

        let (_, _, page) = ask(&subject, &format!("{path}?limit=1"), LIST).await;
        assert_eq!(page["metadata"]["remainingItemCount"], 1);
        let token = page["metadata"]["continue"].as_str().unwrap();
        let (_, _, page) = ask(&subject, &format!("{path}?limit=1&continue={token}"), LIST).await;
        assert_eq!(page["items"][0]["metadata"]["name"], "b");
        let (code, _, status) = ask(&subject, &path, ONE).await;
        assert_eq!((code, &status["reason"]), (406, &"NotAcceptable".into()));
    }
}

#[tokio::test]
async fn the_items_of_an_empty_list_of_metadata_are_null() {
    let (subject, resources) = with_both().await;
    for resource in resources {
        let path = format!("{}?fieldSelector=metadata.name%3Dnone", subject.path(&resource));
        let (_, _, list) = ask(&subject, &path, LIST).await;
        assert_eq!(list.get("items"), Some(&Value::Null));
        assert_eq!(subject.get(&path).await["items"], json!([]), "unlike those of whole objects");
    }
}

#[tokio::test]
async fn a_streaming_list_and_the_watch_after_it_give_metadata() {
    let (subject, resources) = with_both().await;
    for resource in resources {
        let mut watch = subject.watch_as(&resource, STREAMING, ONE).await;
        let line = String::from_utf8(watch.line().await.unwrap()).unwrap();
        assert!(line.starts_with(&format!(r#"{{"type":"ADDED","object":{OPENING}"#)), "{line}");
        let (added, bookmark) = (watch.next().await.unwrap(), watch.next().await.unwrap());
        is_metadata(&added["object"]);
        let version = bookmark["object"]["metadata"]["resourceVersion"].clone();
        let expected = json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": version, "annotations": {"k8s.io/initial-events-end": "true"}},
        });
        assert_eq!((&bookmark["type"], &bookmark["object"]), (&"BOOKMARK".into(), &expected));

        let path = format!("{}/a", subject.path(&resource));
        let patch = json!({"metadata": {"annotations": {"seen": "yes"}}});
        let changed = subject.expect(200, "PATCH", &path, Some(patch)).await;
        let event = watch.telling().await;
        assert_eq!((&event["type"], version_of(&event["object"])), (&"MODIFIED".into(), version_of(&changed)));
        is_metadata(&event["object"]);
        subject.delete(&resource, "a").await;
        let event = watch.telling().await;
        assert_eq!(event["type"], "DELETED");
        is_metadata(&event["object"]);
    }
}

#[tokio::test]
async fn a_watch_from_a_version_gives_metadata() {
    let (subject, resources) = with_both().await;
    for resource in resources {
        let version = subject.version(&resource).await;
        let path = format!("{}/b", subject.path(&resource));
        subject.expect(200, "PATCH", &path, Some(json!({"metadata": {"annotations": {"seen": "yes"}}}))).await;
        let mut watch = subject.watch_as(&resource, &format!("resourceVersion={version}"), ONE).await;
        let event = watch.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&"MODIFIED".into(), &"b".into()));
        is_metadata(&event["object"]);
    }
}

#[tokio::test]
async fn a_watch_for_a_list_of_metadata_ends_without_a_word() {
    let (subject, resources) = with_both().await;
    for resource in resources {
        let mut watch = subject.watch_as(&resource, STREAMING, LIST).await;
        assert_eq!(watch.next().await, None);
    }
}
