//! The native format, `kubetide.change.v1`: one JSON object per record.
//!
//! Written by hand around the object's own bytes: the object is never parsed into a tree and written back, so
//! key order, number spelling and escapes stay as the API server sent them.

use jiff::Timestamp;

use super::json::{Json, NULL};
use crate::{Body, Change, Control, Counts, From, Record, Truncated, What};

/// Appends the record to `out` as one JSON object, without a line end.
pub fn native(record: &Record, out: &mut Vec<u8>) {
    Json::object_into(out, |json| {
        json.text("schema", "kubetide.change.v1");
        json.text("id", &record.id.to_string());
        json.object("log", |log| {
            log.text("id", &record.log_id);
            log.number("seq", record.seq);
        });
        match &record.body {
            Body::Change(change) => write_change(json, record, change),
            Body::Control(control) => write_control(json, record, control),
        }
    });
}

/// Appends a dead letter around a record that is in the native format already.
pub(crate) fn letter(at: Timestamp, sink: &str, reason: &str, record: &[u8], out: &mut Vec<u8>) {
    Json::object_into(out, |json| {
        json.text("at", &utc(at));
        json.text("sink", sink);
        json.text("reason", reason);
        json.raw("record", record);
    });
}

fn write_change(json: &mut Json<'_>, record: &Record, change: &Change) {
    let stream = &record.stream;
    json.text("op", change.op.as_str());
    json.text("origin", change.origin.as_str());
    write_cluster(json, record);
    json.text("stream", &stream.to_string());
    json.text("group", &stream.group);
    json.text("version", &stream.version);
    json.text("resource", &stream.resource);
    json.text("kind", &stream.kind);
    json.text("namespace", &change.namespace);
    json.text("name", &change.name);
    json.text("uid", &change.uid);
    json.text("resource_version", &change.resource_version);
    json.optional("previous_resource_version", change.previous_resource_version.as_deref());
    match change.generation {
        Some(generation) => json.number("generation", generation),
        None => json.raw("generation", NULL),
    }
    json.text("observed_at", &utc(record.observed_at));
    if let Some(snapshot) = change.snapshot {
        json.object("snapshot", |json| json.text("id", &snapshot.to_string()));
    }
    write_lack(json, change);
    match &change.difference {
        Some(difference) => json.object("change", |json| {
            json.texts("classes", difference.classes.iter().map(|class| class.as_str()));
            json.texts("paths", difference.paths.iter().map(String::as_str));
        }),
        None => json.raw("change", NULL),
    }
    match &change.actor {
        Some(actor) => json.object("actor", |json| {
            json.text("manager", &actor.manager);
            json.text("operation", &actor.operation);
            json.text("subresource", &actor.subresource);
            json.optional("at", actor.at.as_deref());
        }),
        None => json.raw("actor", NULL),
    }
    json.raw("patch", change.patch.as_deref().unwrap_or(NULL));
    json.raw("before", change.before.as_deref().unwrap_or(NULL));
    json.raw("object", change.object.as_deref().unwrap_or(NULL));
}

fn write_control(json: &mut Json<'_>, record: &Record, control: &Control) {
    let stream = &record.stream;
    json.text("op", control.what.as_str());
    write_cluster(json, record);
    let name = stream.to_string();
    for (key, value) in [("stream", &name), ("group", &stream.group), ("resource", &stream.resource)] {
        json.optional(key, stream.is_any().then_some(value));
    }
    json.text("observed_at", &utc(record.observed_at));
    json.text("scope", control.scope.as_str());
    match &control.what {
        What::SnapshotStarted => {}
        What::SnapshotFinished { snapshot, position } => {
            json.optional("resource_version", position.as_deref());
            json.object("counts", |json| json.number("snapshot", snapshot));
        }
        What::Gap { reason, from } => {
            json.text("reason", reason.as_str());
            write_from(json, from);
        }
        What::Replay { from } => write_from(json, from),
        What::Letters { from, letters } => {
            json.optional("reason", control.what.reason());
            write_from(json, from);
            json.object("counts", |json| json.number("letters", letters));
        }
        What::ResyncFinished { counts, position } => {
            json.optional("resource_version", position.as_deref());
            write_counts(json, counts);
        }
        What::StreamRemoved { deleted } => {
            write_counts(json, &Counts { delete: *deleted, ..Counts::default() });
        }
    }
}

fn write_from(json: &mut Json<'_>, from: &From) {
    json.object("from", |json| {
        json.optional("resource_version", from.resource_version.as_deref());
        json.optional("at", from.at.map(utc).as_deref());
        json.number("seq", from.seq);
    });
}

fn write_counts(json: &mut Json<'_>, counts: &Counts) {
    json.object("counts", |json| {
        json.number("create", counts.create);
        json.number("update", counts.update);
        json.number("delete", counts.delete);
        json.number("unchanged", counts.unchanged);
    });
}

fn write_cluster(json: &mut Json<'_>, record: &Record) {
    let cluster = &record.stream.cluster;
    json.object("cluster", |json| {
        json.text("name", &cluster.name);
        json.text("uid", &cluster.uid);
    });
}

/// Why there is no object, where there is none.
pub(super) fn write_lack(json: &mut Json<'_>, change: &Change) {
    if let Some(problem) = &change.problem {
        json.text("problem", problem);
    }
    if let Some(Truncated { bytes, object_sha256 }) = &change.truncated {
        json.object("truncated", |json| {
            json.number("bytes", bytes);
            json.optional("object_sha256", object_sha256.map(hex).as_deref());
        });
    }
}

fn hex(bytes: [u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// RFC 3339 in UTC, always with six decimals.
pub(super) fn utc(at: Timestamp) -> String {
    format!("{at:.6}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::sync::Arc;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::{Cluster, Id, Reason, Scope, Stream, sample};

    fn record(body: Body) -> Record {
        let cluster = Cluster { name: "prod \"eu\"".into(), uid: "c-1".into() };
        let stream = Stream { cluster, namespace: Some("a".into()), ..sample::stream("configmaps", "ConfigMap") };
        Record {
            id: Id([0xab; 16]),
            stream: Arc::new(stream),
            observed_at: "2026-11-16T04:00:00.123Z".parse().unwrap(),
            body,
            ..sample::record(1042, "")
        }
    }

    fn change(name: &str, object: &'static str) -> Body {
        match sample::record(7, object).body {
            Body::Change(change) => Body::Change(Change { name: name.into(), ..change }),
            control => control,
        }
    }

    fn rendered(body: Body) -> String {
        let mut out = Vec::new();
        native(&record(body), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_objects_bytes_are_kept_as_they_came() {
        let object = r#"{"b":1.50,"a":"\u00e9\/","z":{ }}"#;
        let text = rendered(change("web", object));
        assert!(text.ends_with(&format!(r#""object":{object}}}"#)), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["stream"], "core/configmaps@a");
        assert_eq!(value["observed_at"], "2026-11-16T04:00:00.123000Z");
        assert_eq!(value["log"]["seq"], 1042);
        assert_eq!(value["generation"], Value::Null);
        assert_eq!(value["id"], "ab".repeat(16));
    }

    #[test]
    fn control_records_say_where_history_broke_and_what_was_found() {
        let from = From { resource_version: Some("9".into()), at: None, seq: 3 };
        let gap = Control { what: What::Gap { reason: Reason::Expired, from }, scope: Scope::Stream };
        let value: Value = serde_json::from_str(&rendered(Body::Control(gap))).unwrap();
        assert_eq!((&value["op"], &value["reason"]), (&"gap".into(), &"expired".into()));
        assert_eq!(value["from"], serde_json::json!({"resource_version": "9", "at": null, "seq": 3}));

        let counts = Counts { create: 1, update: 2, delete: 3, unchanged: 4 };
        let what = What::ResyncFinished { counts, position: Some("12".into()) };
        let done = Control { what, scope: Scope::Stream };
        let value: Value = serde_json::from_str(&rendered(Body::Control(done))).unwrap();
        assert_eq!(value["counts"], serde_json::json!({"create": 1, "update": 2, "delete": 3, "unchanged": 4}));
    }

    proptest! {
        #[test]
        fn any_name_survives_as_json(name in ".*") {
            let value: Value = serde_json::from_str(&rendered(change(&name, "{}"))).unwrap();
            prop_assert_eq!(value["name"].as_str().unwrap(), name);
        }
    }
}
