//! APIServices: the register of group-versions, and the aggregated API server that is not there.

use serde_json::{Value, json};

use super::subject::{AGGREGATED, STREAMING, Subject, Watch, names, version_of};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const LABEL: &str = "kube-aggregator.kubernetes.io/automanaged";

#[tokio::test]
async fn every_built_in_group_version_is_registered_but_that_of_the_register() {
    let subject = crate::subject().await;
    for (name, group, priority, version_priority) in [
        ("v1.", None, 18_000, 1),
        ("v1.apps", Some("apps"), 17_800, 15),
        ("v1.apiextensions.k8s.io", Some("apiextensions.k8s.io"), 16_700, 15),
        ("v1.coordination.k8s.io", Some("coordination.k8s.io"), 16_500, 15),
    ] {
        let service = subject.get(&format!("{SERVICES}/{name}")).await;
        let mut spec = json!({"version": "v1", "groupPriorityMinimum": priority, "versionPriority": version_priority});
        if let Some(group) = group {
            spec["group"] = group.into();
        }
        assert_eq!(service["spec"], spec, "no service: it is this server");
        assert_eq!(service["metadata"]["labels"][LABEL], "onstart");
        assert_eq!(service["metadata"].get("generation"), None);
        let condition = &service["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["status"], &condition["reason"]),
            (&"Available".into(), &"True".into(), &"Local".into())
        );
    }
    subject.expect(404, "GET", &format!("{SERVICES}/v1.apiregistration.k8s.io"), None).await;
}

#[tokio::test]
async fn the_register_is_listed_and_watched_like_any_other_resource() {
    let subject = crate::subject().await;
    let list = subject.get(SERVICES).await;
    assert_eq!((&list["kind"], &list["items"][0]["kind"]), (&"APIServiceList".into(), &Value::Null));
    assert_eq!(names(&list)[0], "v1.", "the core group's is the first");
    let one = "fieldSelector=metadata.name%3Dv1.apps";
    assert_eq!(names(&subject.get(&format!("{SERVICES}?{one}")).await), ["v1.apps"]);
    let mut watch = subject.watch_at(&format!("{SERVICES}?watch=1&{STREAMING}&{one}"), "application/json").await;
    let (added, bookmark) = (watch.next().await.unwrap(), watch.next().await.unwrap());
    assert_eq!(added["object"]["spec"]["group"], "apps");
    let mut empty = bookmark["object"].clone();
    empty["metadata"] = Value::Null;
    let expected = json!({
        "kind": "APIService",
        "apiVersion": "apiregistration.k8s.io/v1",
        "metadata": null,
        "spec": {"groupPriorityMinimum": 0, "versionPriority": 0},
        "status": {},
    });
    assert_eq!(empty, expected);
}

/// The next event of an APIService of the test's group; other tests have theirs.
async fn next_of(watch: &mut Watch, group: &str) -> (String, Value) {
    loop {
        let event = watch.next().await.unwrap();
        if event["object"]["spec"]["group"] == group {
            return (event["type"].as_str().unwrap().to_owned(), event["object"].clone());
        }
    }
}

#[tokio::test]
async fn a_custom_group_version_is_registered_as_long_as_it_is_served() {
    let subject = crate::subject().await;
    let group = subject.group();
    let from = version_of(&subject.get(SERVICES).await);
    let path = format!("{SERVICES}?watch=1&resourceVersion={from}");
    let mut watch = subject.watch_at(&path, "application/json").await;
    subject.custom_resource_in(&["v1", "v2"]).await;
    let mut added = Vec::new();
    for _ in 0..2 {
        let (sort, service) = next_of(&mut watch, &group).await;
        let version = service["spec"]["version"].as_str().unwrap().to_owned();
        assert_eq!((sort.as_str(), &service["metadata"]["name"]), ("ADDED", &format!("{version}.{group}").into()));
        assert_eq!(service["metadata"]["labels"][LABEL], "true");
        assert_eq!(service["spec"]["groupPriorityMinimum"], 1000);
        assert_eq!(service["spec"]["versionPriority"], 100);
        assert_eq!(service["status"]["conditions"][0]["reason"], "Local");
        added.push(version);
    }
    added.sort();
    assert_eq!(added, ["v1", "v2"]);

    subject.serve("v2", false).await;
    let (sort, service) = next_of(&mut watch, &group).await;
    assert_eq!((sort.as_str(), &service["spec"]["version"]), ("DELETED", &"v2".into()));
    subject.remove_custom_resource().await;
    let (sort, service) = next_of(&mut watch, &group).await;
    assert_eq!((sort.as_str(), &service["spec"]["version"]), ("DELETED", &"v1".into()));
}

/// Registers a group of the test's own whose server is not there; gives the group.
async fn dead(subject: &Subject) -> String {
    let group = format!("{}.dead.example.com", subject.namespace);
    let service = json!({
        "metadata": {"name": format!("v1beta1.{group}")},
        "spec": {
            "group": group,
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": true,
            "service": {"namespace": "kube-system", "name": "not-there"},
        },
    });
    let made = subject.expect(201, "POST", SERVICES, Some(service)).await;
    assert_eq!(made["spec"]["service"]["port"], 443);
    assert_eq!(made["status"], json!({}));
    group
}

#[tokio::test]
async fn a_dead_api_server_is_stale_in_discovery_and_503_in_all_else() {
    let subject = crate::subject().await;
    let group = dead(&subject).await;
    let find = |list: &Value| {
        list["items"].as_array().into_iter().flatten().find(|it| it["metadata"]["name"] == group.as_str()).cloned()
    };
    let list = subject.until("/apis", AGGREGATED, |list| find(list).is_some()).await;
    let stale = json!([{"version": "v1beta1", "freshness": "Stale"}]);
    assert_eq!(find(&list).unwrap()["versions"], stale, "its name is known, its resources are not");

    let root = format!("/apis/{group}");
    let legacy = subject.until(&root, "application/json", |it| it["kind"] == "APIGroup").await;
    assert_eq!(legacy["preferredVersion"]["groupVersion"], format!("{group}/v1beta1"));
    let service = format!("{SERVICES}/v1beta1.{group}");
    subject
        .until(&service, "application/json", |it| it["status"]["conditions"][0]["reason"] == "ServiceNotFound")
        .await;
    for path in ["/v1beta1", "/v1beta1/things", "/v1beta1/things?watch=1", "/v1beta1/namespaces/default/things/a"] {
        let answer = subject.expect(503, "GET", &format!("{root}{path}"), None).await;
        assert_eq!(answer, "service unavailable\n", "{path}: not even a status");
    }
    assert_eq!(subject.expect(404, "GET", &format!("{root}/v2/things"), None).await, "404 page not found\n");
    subject.expect(200, "DELETE", &service, None).await;
    subject.until_answers(&root, 404).await;
    subject.until_answers(&format!("{root}/v1beta1/things"), 404).await;
}

#[tokio::test]
async fn an_api_service_is_named_after_its_version_and_group() {
    let subject = crate::subject().await;
    let spec = json!({"group": "x.example.com", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100});
    let service = json!({"metadata": {"name": "wrong"}, "spec": spec});
    let status = subject.expect(422, "POST", SERVICES, Some(service)).await;
    assert_eq!(status["reason"], "Invalid");
}
