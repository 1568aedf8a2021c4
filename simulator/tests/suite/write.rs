//! Writes and refusals.

use serde_json::json;

use super::subject::{config_map, newer, version_of};

#[tokio::test]
async fn a_created_object_has_its_identity() {
    let subject = crate::subject().await;
    let path = format!("{}?fieldManager=tester", subject.path("configmaps"));
    let made = subject.expect(201, "POST", &path, Some(config_map("a", "1"))).await;
    let metadata = &made["metadata"];
    assert_eq!(metadata["uid"].as_str().unwrap().len(), 36);
    assert_eq!(metadata["namespace"], subject.namespace.as_str());
    assert_eq!(metadata.get("generation"), None, "ConfigMaps have none");
    let entry = &metadata["managedFields"][0];
    assert_eq!((&entry["manager"], &entry["operation"]), (&"tester".into(), &"Update".into()));
    assert_eq!(entry["time"], metadata["creationTimestamp"]);
    assert!(entry["fieldsV1"]["f:data"]["f:turn"].is_object(), "{entry}");
    assert!(entry["fieldsV1"]["f:metadata"]["f:labels"]["f:app"].is_object(), "{entry}");
    assert_eq!(entry["fieldsV1"]["f:metadata"].get("f:name"), None);
    assert_eq!(subject.get(&format!("{}/a", subject.path("configmaps"))).await, made);
}

#[tokio::test]
async fn an_update_from_an_old_version_is_409_conflict() {
    let subject = crate::subject().await;
    let first = subject.config_map("a").await;
    subject.edit("a", "2").await;
    let path = format!("{}/a", subject.path("configmaps"));
    let mut stale = config_map("a", "3");
    stale["metadata"]["resourceVersion"] = first["metadata"]["resourceVersion"].clone();
    let status = subject.expect(409, "PUT", &path, Some(stale)).await;
    assert_eq!((&status["reason"], &status["details"]["kind"]), (&"Conflict".into(), &"configmaps".into()));
    assert_eq!(subject.get(&path).await["data"]["turn"], "2");
}

#[tokio::test]
async fn an_update_that_changes_nothing_keeps_the_version() {
    let subject = crate::subject().await;
    let made = subject.config_map("a").await;
    let path = format!("{}/a", subject.path("configmaps"));
    let again = subject.expect(200, "PUT", &path, Some(made.clone())).await;
    assert_eq!(version_of(&again), version_of(&made));
}

#[tokio::test]
async fn generation_counts_changes_of_the_spec_only() {
    let subject = crate::subject().await;
    let resource = subject.custom_resource().await;
    let made = subject.gadget(&resource, "a").await;
    assert_eq!(made["metadata"]["generation"], 1);
    let path = format!("{}/a", subject.path(&resource));
    let labelled = subject.expect(200, "PATCH", &path, Some(json!({"metadata": {"labels": {"x": "y"}}}))).await;
    assert_eq!(labelled["metadata"]["generation"], 1);
    assert!(newer(&version_of(&labelled), &version_of(&made)));
    let grown = subject.expect(200, "PATCH", &path, Some(json!({"spec": {"size": 2}}))).await;
    assert_eq!(grown["metadata"]["generation"], 2);
    assert_eq!(grown["metadata"]["labels"]["x"], "y");
}

#[tokio::test]
async fn every_write_raises_the_one_version_of_all_resources() {
    let subject = crate::subject().await;
    let a = version_of(&subject.config_map("a").await);
    let secret = subject.create("secrets", json!({"metadata": {"name": "s"}, "stringData": {"k": "b"}})).await;
    assert_eq!((&secret["data"]["k"], &secret["type"]), (&"Yg==".into(), &"Opaque".into()));
    let b = version_of(&secret);
    subject.delete("secrets", "s").await;
    let c = version_of(&subject.edit("a", "2").await);
    assert!(newer(&b, &a) && newer(&c, &b));
}

#[tokio::test]
async fn what_is_not_there_is_404() {
    let subject = crate::subject().await;
    let path = subject.path("configmaps");
    for method in ["GET", "DELETE"] {
        let status = subject.expect(404, method, &format!("{path}/none"), None).await;
        assert_eq!(status["message"], "configmaps \"none\" not found");
        assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &"NotFound".into()));
    }
    let status = subject.expect(404, "PUT", &format!("{path}/none"), Some(config_map("none", "1"))).await;
    assert_eq!(status["reason"], "NotFound");
    let status = subject.expect(404, "POST", "/api/v1/namespaces/no-such/configmaps", Some(config_map("a", "1"))).await;
    assert_eq!(status["message"], "namespaces \"no-such\" not found");
}

#[tokio::test]
async fn an_unknown_resource_is_404_and_an_unknown_group_not_even_a_status() {
    let subject = crate::subject().await;
    for path in ["/api/v1/nothings", "/apis/apps/v1/nothings", "/apis/apps/v9/deployments", "/apis/apps/v9"] {
        let status = subject.expect(404, "GET", path, None).await;
        assert_eq!((&status["kind"], &status["reason"]), (&"Status".into(), &"NotFound".into()), "{path}");
    }
    for path in ["/apis/nothing.example.com/v1/nothings", "/apis/nothing.example.com/v1", "/apis/nothing.example.com"] {
        assert_eq!(subject.expect(404, "GET", path, None).await, "404 page not found\n", "{path}");
    }
    let nowhere = subject.get("/api/v1/namespaces/no-such/configmaps").await;
    assert_eq!(nowhere["items"], json!([]), "a missing namespace is an empty list");
}

#[tokio::test]
async fn a_name_is_taken_once() {
    let subject = crate::subject().await;
    subject.config_map("a").await;
    let status = subject.expect(409, "POST", &subject.path("configmaps"), Some(config_map("a", "1"))).await;
    assert_eq!((&status["reason"], &status["details"]["name"]), (&"AlreadyExists".into(), &"a".into()));
}

#[tokio::test]
async fn a_delete_says_what_went_and_minds_its_preconditions() {
    let subject = crate::subject().await;
    let made = subject.config_map("a").await;
    let path = format!("{}/a", subject.path("configmaps"));
    let wrong = json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}});
    let status = subject.expect(409, "DELETE", &path, Some(wrong)).await;
    assert_eq!(status["reason"], "Conflict");
    let status = subject.expect(200, "DELETE", &path, None).await;
    assert_eq!(status["status"], "Success");
    assert_eq!(status["details"], json!({"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}));
}
