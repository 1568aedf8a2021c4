//! Objects that cannot be carried: they are told by name, and the stream goes on behind them.

use std::collections::BTreeMap;

use kubetide_simulator::{Fault, Verb};

use crate::{
    case::{Case, ops},
    instance::{changes_of, count, fold},
};

/// A watch event of the config map `odd`, with this for its data.
fn event(version: u64, data: &str) -> String {
    format!(
        r#"{{"type":"ADDED","object":{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"name":"odd","namespace":"default","uid":"odd-uid","resourceVersion":"{version}"}},"data":{data}}}}}"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_too_large_or_too_deep_is_told_by_name_and_the_position_moves_on() {
    let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(20 * 1024 * 1024));
    let deep = format!("{}1{}", r#"{"a":"#.repeat(600), "}".repeat(600));
    for data in [large, deep] {
        let mut case = Case::new().await;
        case.snapshot().await;
        case.server.refuse(true).await;
        let version = case.cluster().version() + 2;
        case.cluster().skip_versions(5);
        let line = event(version, &data);
        case.afflict(&[Verb::Watch], 1, vec![Fault::Line { after_lines: 0, line: line.into() }]);
        case.server.refuse(false).await;
        case.kubetide.records_when("it is told", |records| count(records, "create") == 1).await;
        case.update(1, 1);
        case.kubetide.records_when("what follows is told", |records| count(records, "update") == 1).await;
        assert!(case.kubetide.terminate().success());
        case.kubetide.start();
        case.update(1, 2);
        let records = case.kubetide.records_when("it goes on", |records| count(records, "update") == 2).await;
        assert_eq!(ops(&records[22..]), BTreeMap::from([("create", 1), ("update", 2)]));
        let (_, odd) = changes_of(&records, "odd")[0];
        assert!(odd["object"].is_null() && odd["problem"].is_string(), "{odd}");
        assert_eq!((odd["uid"].as_str(), odd["namespace"].as_str()), (Some("odd-uid"), Some("default")));
        assert_eq!(odd["resource_version"], version.to_string());
        assert_eq!(case.count(Verb::List), 1, "no LIST but the first");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_too_deep_is_told_by_name_in_a_list_too() {
    let mut case = Case::new().await;
    let deep = format!("{}1{}", r#"{"a":"#.repeat(600), "}".repeat(600));
    let body = format!(
        r#"{{"kind":"ConfigMapList","apiVersion":"v1","metadata":{{"resourceVersion":"{}"}},"items":[{{"metadata":{{"name":"odd","namespace":"default","uid":"odd-uid","resourceVersion":"3"}},"data":{deep}}}]}}"#,
        case.cluster().version()
    );
    case.afflict(&[Verb::List], 1, vec![Fault::Body(body.into())]);
    let records = case.snapshot().await;
    let (op, odd) = changes_of(&records, "odd")[0];
    assert!(op == "snapshot" && odd["object"].is_null() && odd["problem"].is_string(), "{odd}");
}

/// The config map `odd` with its keys in the order in which an API server writes those of a custom resource: too much comes first.
fn sorted(version: u64) -> String {
    let deep = format!("{}1{}", r#"{"a":"#.repeat(600), "}".repeat(600));
    format!(
        r#"{{"apiVersion":"v1","config":{deep},"kind":"ConfigMap","metadata":{{"name":"odd","namespace":"default","resourceVersion":"{version}","uid":"odd-uid"}}}}"#
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_too_deep_before_its_metadata_is_told_by_name_and_stops_no_stream() {
    let mut case = Case::new().await;
    case.snapshot().await;
    case.server.refuse(true).await;
    let version = case.cluster().version() + 2;
    case.cluster().skip_versions(5);
    let line = format!(r#"{{"type":"ADDED","object":{}}}"#, sorted(version));
    case.afflict(&[Verb::Watch], 1, vec![Fault::Line { after_lines: 0, line: line.into() }]);
    case.server.refuse(false).await;
    case.kubetide.records_when("it is told", |records| count(records, "create") == 1).await;
    // And in a LIST, which shows nothing else. The version is that of the break.
    let items = sorted(version + 1);
    let body = format!(r#"{{"metadata":{{"resourceVersion":"{}"}},"items":[{items}]}}"#, case.cluster().version() + 1);
    case.afflict(&[Verb::List], 1, vec![Fault::Body(body.into())]);
    case.break_history(|| ()).await;
    let records = case.mended(1).await;
    assert_eq!(case.count(Verb::List), 2, "one for the break");
    let odd = changes_of(&records, "odd");
    assert_eq!(odd.iter().map(|(op, _)| *op).collect::<Vec<_>>(), ["create", "update"]);
    for (_, odd) in odd {
        assert!(odd["object"].is_null() && odd["problem"].is_string(), "{odd}");
        assert_eq!((odd["uid"].as_str(), odd["namespace"].as_str()), (Some("odd-uid"), Some("default")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_object_without_an_identity_is_left_out_and_what_is_not_listed_beside_it_is_no_delete() {
    let mut case = Case::new().await;
    case.snapshot().await;
    let known = case.cluster().get("configmaps", "default", "c000").unwrap();
    let body = format!(
        r#"{{"metadata":{{"resourceVersion":"{}"}},"items":[{{"metadata":{{"namespace":"default"}},"data":{{}}}},{}]}}"#,
        // That of the delete, and that of the break.
        case.cluster().version() + 2,
        String::from_utf8(known.to_vec()).unwrap()
    );
    case.afflict(&[Verb::List], 1, vec![Fault::Body(body.into())]);
    case.break_history(|| case.delete(3)).await;
    let records = case.mended(1).await;
    assert_eq!(ops(&records[22..]), BTreeMap::from([("gap", 1), ("resync_finished", 1)]));
    assert_eq!(case.count(Verb::List), 2, "it was not asked for again");
    case.update(1, 1);
    case.kubetide.records_when("the stream goes on", |records| count(records, "update") == 1).await;
    // A LIST that shows everything proves what is gone.
    case.break_history(|| ()).await;
    let records = case.mended(2).await;
    assert_eq!(count(&records, "delete"), 1);
    assert_eq!(fold(&records), case.expected());
}
