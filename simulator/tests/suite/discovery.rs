//! Discovery, old and aggregated.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::subject::{AGGREGATED, Subject};

/// What this suite relies on; the real server has more.
const USED: [(&str, &str); 13] = [
    ("v1", "namespaces"),
    ("v1", "pods"),
    ("v1", "configmaps"),
    ("v1", "secrets"),
    ("v1", "services"),
    ("v1", "nodes"),
    ("v1", "serviceaccounts"),
    ("v1", "events"),
    ("apps/v1", "deployments"),
    ("apps/v1", "replicasets"),
    ("coordination.k8s.io/v1", "leases"),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions"),
    ("apiregistration.k8s.io/v1", "apiservices"),
];

/// kind, namespaced, singular, short names, categories, verbs
type Facts = (String, bool, String, Vec<String>, Vec<String>, BTreeSet<String>);

fn strings<T: FromIterator<String>>(value: &Value) -> T {
    value.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

async fn aggregated(subject: &Subject) -> BTreeMap<(String, String), Facts> {
    let mut facts = BTreeMap::new();
    for root in ["/api", "/apis"] {
        let (code, bytes) = subject.request("GET", root, AGGREGATED, None).await;
        assert_eq!(code, 200);
        let list: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(
            (&list["kind"], &list["apiVersion"]),
            (&"APIGroupDiscoveryList".into(), &"apidiscovery.k8s.io/v2".into())
        );
        for group in list["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                if version["freshness"] == "Stale" {
                    // Another test's dead API server.
                    continue;
                }
                let name = version["version"].as_str().unwrap();
                let group_version = match group["metadata"]["name"].as_str() {
                    None => name.to_owned(),
                    Some(group) => format!("{group}/{name}"),
                };
                for it in version["resources"].as_array().unwrap() {
                    let fact = (
                        it["responseKind"]["kind"].as_str().unwrap().to_owned(),
                        it["scope"] == "Namespaced",
                        it["singularResource"].as_str().unwrap().to_owned(),
                        strings(&it["shortNames"]),
                        strings(&it["categories"]),
                        strings(&it["verbs"]),
                    );
                    facts.insert((group_version.clone(), it["resource"].as_str().unwrap().to_owned()), fact);
                }
            }
        }
    }
    facts
}

async fn legacy(subject: &Subject, group_version: &str) -> BTreeMap<(String, String), Facts> {
    let root = if group_version.contains('/') { "/apis" } else { "/api" };
    let list = subject.get(&format!("{root}/{group_version}")).await;
    assert_eq!((&list["kind"], &list["groupVersion"]), (&"APIResourceList".into(), &group_version.into()));
    let mut facts = BTreeMap::new();
    for it in list["resources"].as_array().unwrap() {
        let fact = (
            it["kind"].as_str().unwrap().to_owned(),
            it["namespaced"] == true,
            it["singularName"].as_str().unwrap().to_owned(),
            strings(&it["shortNames"]),
            strings(&it["categories"]),
            strings(&it["verbs"]),
        );
        facts.insert((group_version.to_owned(), it["name"].as_str().unwrap().to_owned()), fact);
    }
    facts
}

#[tokio::test]
async fn aggregated_and_legacy_discovery_agree() {
    let subject = crate::subject().await;
    let aggregated = aggregated(&subject).await;
    for group_version in
        ["v1", "apps/v1", "coordination.k8s.io/v1", "apiextensions.k8s.io/v1", "apiregistration.k8s.io/v1"]
    {
        let mut legacy = legacy(&subject, group_version).await;
        legacy.retain(|(_, name), _| !name.contains('/'));
        let same: BTreeMap<_, _> = aggregated
            .iter()
            .filter(|((version, _), _)| version == group_version)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        assert_eq!(same, legacy, "{group_version}");
    }
}

/// Both servers are held to the same table, so that they agree with each other too.
#[tokio::test]
async fn the_resources_in_use_are_described_as_expected() {
    let subject = crate::subject().await;
    let found = aggregated(&subject).await;
    let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    for (group_version, plural) in USED {
        let (kind, namespaced, singular, short, categories, verbs) =
            &found[&(group_version.to_owned(), plural.to_owned())];
        let expected: (&str, bool, &[&str], &[&str]) = match plural {
            "namespaces" => ("Namespace", false, &["ns"], &[]),
            "pods" => ("Pod", true, &["po"], &["all"]),
            "configmaps" => ("ConfigMap", true, &["cm"], &[]),
            "secrets" => ("Secret", true, &[], &[]),
            "services" => ("Service", true, &["svc"], &["all"]),
            "nodes" => ("Node", false, &["no"], &[]),
            "serviceaccounts" => ("ServiceAccount", true, &["sa"], &[]),
            "events" => ("Event", true, &["ev"], &[]),
            "deployments" => ("Deployment", true, &["deploy"], &["all"]),
            "replicasets" => ("ReplicaSet", true, &["rs"], &["all"]),
            "leases" => ("Lease", true, &[], &[]),
            "apiservices" => ("APIService", false, &[], &["api-extensions"]),
            _ => ("CustomResourceDefinition", false, &["crd", "crds"], &["api-extensions"]),
        };
        assert_eq!((kind.as_str(), *namespaced), (expected.0, expected.1));
        assert_eq!(*singular, kind.to_lowercase());
        assert_eq!(
            (short, categories),
            (
                &expected.2.iter().map(ToString::to_string).collect(),
                &expected.3.iter().map(ToString::to_string).collect()
            ),
            "{plural}"
        );
        let expected = all.iter().filter(|&&verb| plural != "namespaces" || verb != "deletecollection");
        assert_eq!(*verbs, expected.map(ToString::to_string).collect::<BTreeSet<_>>(), "{plural}");
    }
}

#[tokio::test]
async fn aggregated_kinds_of_builtin_types_have_no_group_but_custom_ones_do() {
    let subject = crate::subject().await;
    let resource = subject.custom_resource().await;
    let group = resource.split('/').next().unwrap();
    let asking = async {
        loop {
            let (_, bytes) = subject.request("GET", "/apis", AGGREGATED, None).await;
            let list: Value = serde_json::from_slice(&bytes).unwrap();
            let group_of = |name: &str| {
                list["items"].as_array().unwrap().iter().find(|it| it["metadata"]["name"] == name).cloned()
            };
            if let Some(found) = group_of(group) {
                return (group_of("apps").unwrap(), found);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let (apps, custom) = tokio::time::timeout(std::time::Duration::from_secs(60), asking).await.unwrap();
    let deployments = apps["versions"][0]["resources"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["resource"] == "deployments")
        .unwrap()
        .clone();
    assert_eq!(deployments["responseKind"], serde_json::json!({"group": "", "version": "", "kind": "Deployment"}));
    let status =
        deployments["subresources"].as_array().unwrap().iter().find(|it| it["subresource"] == "status").unwrap();
    assert_eq!(status["verbs"], serde_json::json!(["get", "patch", "update"]));
    let gadgets = &custom["versions"][0]["resources"][0];
    assert_eq!(gadgets["responseKind"], serde_json::json!({"group": group, "version": "v1", "kind": "Gadget"}));
    assert_eq!(gadgets["shortNames"], serde_json::json!(["gd"]));
    subject.remove_custom_resource().await;
    subject.until_answers(&format!("/apis/{group}/v1"), 404).await;
}

#[tokio::test]
async fn groups_name_their_preferred_version() {
    let subject = crate::subject().await;
    let groups = subject.get("/apis").await;
    assert_eq!(groups["kind"], "APIGroupList");
    let apps = groups["groups"].as_array().unwrap().iter().find(|group| group["name"] == "apps").unwrap();
    assert_eq!(apps["preferredVersion"], serde_json::json!({"groupVersion": "apps/v1", "version": "v1"}));
    assert_eq!(subject.get("/apis/apps").await["preferredVersion"], apps["preferredVersion"]);
    assert_eq!(subject.get("/api").await["versions"], serde_json::json!(["v1"]));
    assert_eq!(subject.get("/version").await["major"], "1");
}

#[tokio::test]
async fn groups_come_in_the_order_of_their_priority() {
    let subject = crate::subject().await;
    let resource = subject.custom_resource().await;
    let group = resource.split('/').next().unwrap();
    let names = |list: &Value, of: fn(&Value) -> &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|it| of(it).as_str().unwrap().to_owned()).collect()
    };
    let wanted = ["apiregistration.k8s.io", "apps", "apiextensions.k8s.io", "coordination.k8s.io", group];
    let in_order = |names: Vec<String>| -> Vec<String> {
        names.into_iter().filter(|name| wanted.contains(&name.as_str())).collect()
    };
    subject
        .until("/apis", AGGREGATED, |list| in_order(names(&list["items"], |it| &it["metadata"]["name"])) == wanted)
        .await;
    subject
        .until("/apis", "application/json", |list| in_order(names(&list["groups"], |it| &it["name"])) == wanted)
        .await;
}

#[tokio::test]
async fn discovery_is_given_in_a_form_that_the_client_accepts() {
    let subject = crate::subject().await;
    let unknown = "application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList";
    for (accept, code, kind) in [
        (AGGREGATED.to_owned(), 200, "APIGroupDiscoveryList"),
        (format!("application/json,{AGGREGATED}"), 200, "APIGroupDiscoveryList"),
        (unknown.to_owned(), 406, "Status"),
        (format!("{unknown},application/json"), 200, "APIGroupList"),
        ("*/*".to_owned(), 200, "APIGroupList"),
    ] {
        let (found, bytes) = subject.request("GET", "/apis", &accept, None).await;
        let answer: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((found, answer["kind"].as_str()), (code, Some(kind)), "{accept}");
    }
}

#[tokio::test]
async fn the_clusters_uid_is_that_of_kube_system() {
    let subject = crate::subject().await;
    let namespace = subject.get("/api/v1/namespaces/kube-system").await;
    assert_eq!(namespace["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(namespace["metadata"]["labels"]["kubernetes.io/metadata.name"], "kube-system");
}
