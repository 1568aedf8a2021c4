//! The envelope of Debezium, as its JSON converter writes it without schemas.
//!
//! For consumers that know Debezium and nothing of kubetide. It has no place for what the native record has beyond the two
//! states: no patch, no class, no actor, no gaps.

use super::{
    json::{Json, NULL},
    native::write_lack,
};
use crate::{Body, Op, Record};

/// Of this envelope, not of the program: the bytes of a record that is sent again are the same after an upgrade.
const VERSION: &str = "1";

/// Appends the envelope as one JSON object. False, and nothing appended, for control records.
pub fn envelope(record: &Record, out: &mut Vec<u8>) -> bool {
    let Body::Change(change) = &record.body else { return false };
    let (op, before, after) = match change.op {
        Op::Snapshot => ("r", None, &change.object),
        Op::Create => ("c", None, &change.object),
        Op::Update => ("u", change.before.as_ref(), &change.object),
        Op::Delete => ("d", change.object.as_ref(), &None),
    };
    let stream = &record.stream;
    let at = record.observed_at.as_millisecond();
    Json::object_into(out, |json| {
        json.raw("before", before.map_or(NULL, |object| object));
        json.raw("after", after.as_deref().unwrap_or(NULL));
        json.object("source", |source| {
            source.text("version", VERSION);
            source.text("connector", "kubetide");
            source.text("name", &stream.cluster.name);
            source.number("ts_ms", at);
            // A text, as Debezium has it.
            source.text("snapshot", if change.op == Op::Snapshot { "true" } else { "false" });
            source.text("cluster_uid", &stream.cluster.uid);
            source.text("group", &stream.group);
            source.text("resource", &stream.resource);
            source.text("kind", &stream.kind);
            source.text("namespace", &change.namespace);
            // `name` is taken: to Debezium it is the name of the server.
            source.text("object_name", &change.name);
            source.text("uid", &change.uid);
            source.text("resource_version", &change.resource_version);
            source.text("origin", change.origin.as_str());
            source.text("log_id", &record.log_id);
            source.number("seq", record.seq);
            source.text("id", &record.id.to_string());
            write_lack(source, change);
        });
        json.text("op", op);
        json.number("ts_ms", at);
        json.raw("transaction", NULL);
    });
    true
}
