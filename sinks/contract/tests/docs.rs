//! The examples in docs/sinks/formats.md are what is really written.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::sync::Arc;

use kubetide_sink::{
    Actor, Body, Carrier, Change, Class, Control, Difference, Format, From, Id, Op, Reason, Record, Scope, Stream,
    What, sample,
};
use serde_json::Value;

const DOCS: &str = include_str!("../../../docs/sinks/formats.md");

/// `kubectl scale deployment web --replicas 4`, with `record.before: true`.
fn update() -> Record {
    let Body::Change(change) = sample::record(7, OBJECT).body else { unreachable!("a sample is a change") };
    let change = Change {
        op: Op::Update,
        name: "web".into(),
        uid: "72b56ec5-98ff-4bb4-a04c-f8b7814fba98".into(),
        resource_version: "222".into(),
        previous_resource_version: Some("207".into()),
        generation: Some(3),
        difference: Some(Difference { classes: vec![Class::Spec], paths: vec!["/spec/replicas".into()] }),
        actor: Some(Actor {
            manager: "kubectl".into(),
            operation: "Update".into(),
            subresource: "scale".into(),
            at: None,
        }),
        patch: Some(r#"[{"op":"replace","path":"/spec/replicas","value":4}]"#.into()),
        before: Some(OBJECT.replace("\"replicas\":4", "\"replicas\":3").into()),
        ..change
    };
    let cluster =
        kubetide_sink::Cluster { name: "prod-eu1".into(), uid: "dd5fa0d0-fd48-4240-a022-e2b2053b1a20".into() };
    let stream = Stream { cluster, group: "apps".into(), ..sample::stream("deployments", "Deployment") };
    Record {
        id: Id(0x5590_d7db_4db0_2017_6d1a_a04a_5912_212a_u128.to_be_bytes()),
        stream: Arc::new(stream),
        observed_at: "2026-11-18T08:54:47.480025Z".parse().unwrap(),
        body: Body::Change(change),
        ..sample::record(1042, "")
    }
}

const OBJECT: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":4}}"#;

fn gap() -> Record {
    let from = From { resource_version: Some("222".into()), at: None, seq: 1042 };
    let what = What::Gap { reason: Reason::Expired, from };
    let body = Body::Control(Control { what, scope: Scope::Stream });
    Record { id: Id(0x0c1f_88b5_6d0e_4f5a_9a3e_2b41_77d0_63ce_u128.to_be_bytes()), seq: 1043, body, ..update() }
}

/// What stands between lines that open and close an example of this kind.
fn examples(kind: &str) -> Vec<&'static str> {
    let open = format!("```{kind}\n");
    DOCS.split(&open).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The example has no more than what is written, and no less but where it says so.
fn assert_shows(example: &Value, written: &Value, at: &str) {
    match (example, written) {
        (Value::Object(example), Value::Object(written)) => {
            for (key, value) in example.iter().filter(|(key, _)| *key != "…") {
                let written = written.get(key).unwrap_or_else(|| panic!("{at}/{key} is not written"));
                assert_shows(value, written, &format!("{at}/{key}"));
            }
            let left_out: Vec<&String> = written.keys().filter(|key| !example.contains_key(*key)).collect();
            assert!(left_out.is_empty() || example.contains_key("…"), "{at} has {left_out:?} too");
        }
        _ => assert_eq!(example, written, "{at}"),
    }
}

#[test]
fn the_values_are_what_is_written() {
    let written = [
        (Format::Native, update()),
        (Format::CloudEvents, update()),
        (Format::CloudEvents, gap()),
        (Format::Debezium, update()),
    ];
    let examples = examples("json");
    assert_eq!(examples.len(), written.len());
    for (example, (format, record)) in examples.into_iter().zip(written) {
        let mut out = Vec::new();
        assert!(format.write(&record, &mut out));
        let example = serde_json::from_str(example).unwrap_or_else(|error| panic!("{error}: {example}"));
        let written: Value = serde_json::from_slice(&out).unwrap();
        println!("{written:#}");
        assert_shows(&example, &written, &format!("{format:?}"));
    }
}

#[test]
fn the_headers_are_what_is_sent() {
    let sent = [(Carrier::Kafka, update()), (Carrier::Nats, update())];
    let examples = examples("headers");
    assert_eq!(examples.len(), sent.len());
    for (example, (carrier, record)) in examples.into_iter().zip(sent) {
        let headers = Format::CloudEvents.message(&record, carrier).unwrap().headers;
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        assert_eq!(example, lines);
    }
}
