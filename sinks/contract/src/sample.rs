//! Records to test with: for the tests of sinks, and for those of what feeds them.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;

use crate::{Batch, Body, Change, Cluster, Format, Id, Op, Origin, Record, Stream, Terms};

/// The id of the log that sample records are in.
pub const LOG_ID: &str = "01JCXZ3V9T6Q0W8Y2K4M6N8P0R";

/// A stream of the core group in the cluster `c-1`, over all namespaces.
pub fn stream(resource: &str, kind: &str) -> Stream {
    Stream {
        cluster: Cluster { name: "sample".into(), uid: "c-1".into() },
        group: String::new(),
        version: "v1".into(),
        resource: resource.into(),
        kind: kind.into(),
        namespace: None,
    }
}

/// The creation of a Pod with this object, at this place in the log.
pub fn record(seq: u64, object: impl Into<Bytes>) -> Record {
    let change = Change {
        op: Op::Create,
        origin: Origin::Watch,
        namespace: "default".into(),
        name: format!("pod-{seq}"),
        uid: format!("u-{seq}"),
        resource_version: seq.to_string(),
        previous_resource_version: None,
        generation: None,
        snapshot: None,
        difference: None,
        actor: None,
        patch: None,
        before: None,
        object: Some(object.into()),
        problem: None,
        truncated: None,
    };
    Record {
        id: Id(u128::from(seq).to_be_bytes()),
        log_id: LOG_ID.into(),
        seq,
        stream: Arc::new(stream("pods", "Pod")),
        observed_at: Timestamp::UNIX_EPOCH,
        body: Body::Change(change),
    }
}

/// A batch of these records, which cover the log from the first to the last.
pub fn batch(records: Vec<Record>) -> Batch {
    let seq = |record: Option<&Record>| record.map_or(0, |record| record.seq);
    let (from, to) = (seq(records.first()), seq(records.last()));
    Batch { id: Id((u128::from(from) << 64 | u128::from(to)).to_be_bytes()), from, to, records }
}

/// What a sink of this name is opened with: the native format, at least once.
pub fn terms(name: &str) -> Terms {
    let cluster = stream("", "").cluster;
    Terms { name: name.into(), cluster, format: Format::Native, exactly_once: false, letters: None }
}
