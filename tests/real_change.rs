//! The scanner and the patch on what a real API server serves: every object of every resource that it starts with.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;

use instance::cleaned;
use json_patch::Patch;
use kubetide::change::{
    Cleaner, Cleaning, RedactKey, ResourceVersion, Row, TypeMeta,
    compare::{self, Detail, Meaning, View},
    scan,
};
use kubetide_sink::{Id, sample};
use kubetide_test_env::Apiserver;
use serde_json::{Value, value::RawValue};

fn cleaner() -> Cleaner {
    let cleaning = Cleaning { drop: vec![], redact: vec![], key: RedactKey::new(b"of no importance here") };
    let types = TypeMeta { kind: "Any".into(), api_version: "any/v1".into() };
    cleaning.cleaner(&sample::stream("anythings", "Any"), types)
}

async fn get(client: &kube::Client, path: &str) -> Value {
    client.request(http::Request::get(path).body(vec![]).unwrap()).await.unwrap()
}

/// A LIST with its items as they came.
#[derive(serde::Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    items: Vec<&'a RawValue>,
}

/// The paths of everything that can be listed.
async fn lists(client: &kube::Client) -> Vec<String> {
    let mut groups = vec!["/api/v1".to_owned()];
    for group in get(client, "/apis").await["groups"].as_array().unwrap() {
        groups.push(format!("/apis/{}", group["preferredVersion"]["groupVersion"].as_str().unwrap()));
    }
    let mut paths = Vec::new();
    for group in groups {
        for resource in get(client, &group).await["resources"].as_array().unwrap() {
            let verbs = resource["verbs"].as_array().unwrap();
            // Without a watch it has no versions either: componentstatuses.
            if verbs.contains(&"list".into()) && verbs.contains(&"watch".into()) {
                paths.push(format!("{group}/{}", resource["name"].as_str().unwrap()));
            }
        }
    }
    paths
}

/// The two fields that a record has of its own.
fn without_versions(mut object: Value) -> Value {
    for field in ["resourceVersion", "generation"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn every_object_of_a_real_server_is_scanned_as_a_parser_reads_it_and_patched_into_any_other() {
    let server = Apiserver::shared().await;
    let client = server.client().await.unwrap();
    let cleaner = cleaner();
    let (mut objects, mut patches) = (0, 0);
    for path in lists(&client).await {
        let text = client.request_text(http::Request::get(&path).body(vec![]).unwrap()).await.unwrap();
        let list: List<'_> = serde_json::from_str(&text).unwrap();
        let mut before: Option<Row> = None;
        for raw in list.items {
            let observed = scan::observe(&cleaner, raw.get().as_bytes()).unwrap();
            let mut item: Value = serde_json::from_str(raw.get()).unwrap();
            for (key, value) in [("kind", "Any"), ("apiVersion", "any/v1")] {
                item.as_object_mut().unwrap().entry(key).or_insert(value.into());
            }
            let object = observed.object.clone().unwrap();
            let parsed: Value = serde_json::from_slice(&object).unwrap();
            assert_eq!(parsed, cleaned(item.clone()), "{path}");
            assert_eq!(observed.key.name, item["metadata"]["name"].as_str().unwrap());
            assert_eq!(observed.managed.0.len(), item["metadata"]["managedFields"].as_array().map_or(0, Vec::len));
            objects += 1;
            // As if the one had become the other: more differs than in any change.
            if let Some(row) = &before {
                let mut now = observed.clone();
                now.uid.clone_from(&row.uid);
                let meaning = compare::present(
                    &sample::stream("anythings", "Any"),
                    0,
                    Some(row),
                    now,
                    View::Watch,
                    &Detail::default(),
                );
                if let Meaning::Changes(drafts) = meaning
                    && let Some(patch) = &drafts[0].change.patch
                {
                    let patch: Patch = serde_json::from_slice(patch).unwrap();
                    let mut patched: Value = serde_json::from_slice(row.object.as_ref().unwrap()).unwrap();
                    json_patch::patch(&mut patched, &patch).unwrap();
                    assert_eq!(without_versions(patched), without_versions(parsed.clone()), "{path}");
                    patches += 1;
                }
            }
            before = Some(Row {
                uid: observed.uid.clone(),
                seen: ResourceVersion::new("0"),
                logged: ResourceVersion::new("0"),
                id: Id([0; 16]),
                seq: 1,
                since: 1,
                observed_at: jiff::Timestamp::UNIX_EPOCH,
                generation: observed.generation,
                managed: observed.managed.clone(),
                object: Some(object),
            });
        }
    }
    assert!(objects > 150 && patches > 50, "{objects} objects, {patches} patches");
}
