//! The envelope has the two states byte for byte and the op as Debezium spells it, and leaves out what it has no place for.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod records;

use kubetide_sink::{Body, Carrier, Change, Format, Op, Record};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

/// As Debezium's JSON converter writes it without schemas: every key, and no other.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    #[serde(borrow)]
    before: &'a RawValue,
    #[serde(borrow)]
    after: &'a RawValue,
    source: Value,
    op: String,
    ts_ms: i64,
    transaction: Value,
}

fn written(record: &Record) -> Option<String> {
    let mut out = b"kept".to_vec();
    let is_written = Format::Debezium.write(record, &mut out);
    let text = String::from_utf8(out.split_off(4)).unwrap();
    assert_eq!(is_written, !text.is_empty());
    is_written.then_some(text)
}

fn text(object: Option<&bytes::Bytes>) -> String {
    object.map_or("null".into(), |object| String::from_utf8(object.to_vec()).unwrap().trim().into())
}

fn assert_is(written: &str, record: &Record, change: &Change) {
    let envelope: Envelope<'_> = serde_json::from_str(written).unwrap();
    let (op, before, after) = match change.op {
        Op::Snapshot => ("r", None, change.object.as_ref()),
        Op::Create => ("c", None, change.object.as_ref()),
        Op::Update => ("u", change.before.as_ref(), change.object.as_ref()),
        Op::Delete => ("d", change.object.as_ref(), None),
    };
    assert_eq!((envelope.op.as_str(), envelope.transaction), (op, Value::Null));
    assert_eq!((envelope.before.get(), envelope.after.get()), (&*text(before), &*text(after)));
    let source = &envelope.source;
    assert_eq!(envelope.ts_ms, record.observed_at.as_millisecond());
    let stream = &record.stream;
    for (key, value) in [
        ("connector", json!("kubetide")),
        ("name", json!(stream.cluster.name)),
        ("cluster_uid", json!(stream.cluster.uid)),
        ("ts_ms", json!(record.observed_at.as_millisecond())),
        ("snapshot", json!(if change.op == Op::Snapshot { "true" } else { "false" })),
        ("group", json!("apps")),
        ("resource", json!("deployments")),
        ("kind", json!("Deployment")),
        ("namespace", json!(change.namespace)),
        ("object_name", json!(change.name)),
        ("uid", json!(change.uid)),
        ("resource_version", json!(change.resource_version)),
        ("origin", json!(change.origin.as_str())),
        ("log_id", json!(*record.log_id)),
        ("seq", json!(record.seq)),
        ("id", json!(record.id.to_string())),
    ] {
        assert_eq!(source[key], value, "{key}");
    }
}

#[test]
fn every_op_has_its_envelope_and_control_records_have_none() {
    let (mut ops, mut left_out) = (Vec::new(), 0);
    for record in records::every() {
        let written = written(&record);
        let [kafka, nats] = [Carrier::Kafka, Carrier::Nats].map(|carrier| Format::Debezium.message(&record, carrier));
        let Body::Change(change) = &record.body else {
            assert_eq!((written, kafka, nats), (None, None, None));
            left_out += 1;
            continue;
        };
        let written = written.unwrap();
        assert_is(&written, &record, change);
        ops.push(change.op.as_str());
        let (kafka, nats) = (kafka.unwrap(), nats.unwrap());
        assert_eq!((&kafka.body, &nats.body), (&written.clone().into_bytes(), &written.into_bytes()));
        // A compacted topic forgets what is deleted; a stream has no such thing.
        assert_eq!((kafka.then_tombstone, nats.then_tombstone), (change.op == Op::Delete, false));
    }
    assert_eq!(ops, ["snapshot", "create", "update", "update", "delete", "delete", "update", "update"]);
    assert_eq!(left_out, 8);
}

#[test]
fn a_record_without_an_object_says_why() {
    let sources: Vec<Value> = records::every()[..8]
        .iter()
        .map(|record| serde_json::from_str::<Value>(&written(record).unwrap()).unwrap()["source"].take())
        .collect();
    assert!(sources[..6].iter().all(|source| source.get("problem").is_none() && source.get("truncated").is_none()));
    assert_eq!(sources[6]["problem"], "deeper than 512 \"levels\"");
    assert_eq!(sources[7]["truncated"]["bytes"], (records::OBJECTS[1].len() + r#"{"was":1.0}"#.len() + 52) as u64);
    assert_eq!(sources[7]["truncated"]["object_sha256"].as_str().unwrap().len(), 64);
}

proptest! {
    #[test]
    fn any_names_and_bytes_survive(record in records::any_change()) {
        let Body::Change(change) = &record.body else { unreachable!() };
        let written = written(&record).unwrap();
        prop_assert!(!written.contains('\n'), "one line");
        assert_is(&written, &record, change);
    }
}
