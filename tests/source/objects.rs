//! Objects that cannot be carried: they are told by name, and the stream goes on behind them.

use std::collections::BTreeMap;

use kubetide_simulator::{Fault, Verb};

use crate::{
    case::{Case, ops},
    instance::{changes_of, count},
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
