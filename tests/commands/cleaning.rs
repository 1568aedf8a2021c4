//! What the commands tell of rows is cleaned by the rules of today, also before its stream was compared by them.

use std::sync::Arc;

use kubetide_simulator::{Fault, RequestInfo, Verb};
use serde_json::{Value, json};

use super::{Case, Tailing};

const RULES: &str = "record: {redact: [/data/pw]}\n";

/// A kubetide that has logged passwords, was given a rule against it since, and is refused the LIST that would apply it.
async fn with_a_new_rule() -> Case {
    let mut case = Case::with("").await;
    for number in 0..3 {
        let object = json!({
            "metadata": {"name": format!("c{number}"), "namespace": "default"},
            "data": {"pw": "canary", "n": "0"},
        });
        case.server.cluster().create("configmaps", object).unwrap();
    }
    case.kubetide.start();
    case.kubetide.records_when_listed(1).await;
    case.settled().await;
    assert!(case.kubetide.terminate().success());
    case.kubetide.configure(&["{resource: configmaps, namespaces: [default]}"], RULES);
    case.server.set_hook(Some(Arc::new(|request: &RequestInfo| match request.verb {
        Verb::List | Verb::Page | Verb::StreamingList => Fault::Status { code: 403, retry_after: None },
        _ => Fault::Pass,
    })));
    case
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_told_by_the_rules_of_today_before_its_stream_was_compared_by_them() {
    let mut case = with_a_new_rule().await;
    let get = ["objects", "get", "configmaps", "c1", "--output", "json"];
    case.kubetide.start();
    case.kubetide.records_when("the break is told", |records| records.last().unwrap()["op"] == "gap").await;
    let live = case.said(&get).await;
    assert!(!live.contains("canary") && live.contains("\"pw\":\"redacted:"), "{live}");
    assert!(case.kubetide.terminate().success());
    assert_eq!(case.said(&get).await, live, "the same from the files");

    // Without the configuration nobody knows the rules: this is what is in the directory.
    let mut bare = std::process::Command::new(env!("CARGO_BIN_EXE_kubetide"));
    bare.args(get).arg("--data-dir").arg(case.data());
    let told = super::ended(bare).await;
    assert!(told.code == Some(0) && told.stdout.contains("canary"), "{told:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_values_of_a_tail_are_told_by_the_rules_of_today() {
    let mut case = with_a_new_rule().await;
    case.kubetide.start();
    case.kubetide.records_when("the break is told", |records| records.last().unwrap()["op"] == "gap").await;
    let mut command = case.command(&["tail", "--diff", "--lines", "1", "--op", "gap,update"]);
    command.env("COLUMNS", "120");
    let mut tail = Tailing::start(command);
    assert!(tail.line().contains("gap: config_changed"), "it follows from here on");
    case.server.set_hook(None);
    let mut lines = vec![tail.line()];
    while !lines.last().unwrap().contains("default/c2") {
        lines.push(tail.line());
    }
    lines.push(tail.line());
    let told = lines.join("\n");
    assert!(!told.contains("canary"), "{told}");
    assert_eq!(told.matches("data.pw → redacted:").count(), 3, "{told}");
    assert_eq!(told.matches("data.pw: → redacted:").count(), 3, "what it was is not told: {told}");

    // What is behind the comparison has its old values as always.
    let changed = |map: &mut Value| map["data"]["n"] = "1".into();
    case.server.cluster().update("configmaps", "default", "c1", changed).unwrap();
    assert!(tail.line().contains("data.n \"0\" → \"1\""));
}
