//! What a frame's payload is before it is compressed: records, seen versions and states, with streams named once.

use std::{borrow::Cow, io, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use kubetide_sink::{Actor, Body, Change, Control, Difference, Id, Op, Origin, Record, Stream};
use serde::{Deserialize, Serialize};

use super::{Frame, Header, Seen};
use crate::{
    change::{Managed, ObjectKey, ResourceVersion},
    changelog::StreamState,
};

/// What a frame's payload decompresses to. Streams are named once and referred to by index.
#[derive(Serialize, Deserialize)]
pub(super) struct Payload<'a> {
    streams: Vec<Stream>,
    #[serde(borrow)]
    records: Vec<Stored<'a>>,
    #[serde(borrow)]
    seen: Vec<StoredSeen<'a>>,
    states: Vec<(u32, StreamState)>,
}

#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    id: Id,
    stream: u32,
    observed_at: i64,
    managed: Cow<'a, Managed>,
    #[serde(borrow)]
    body: StoredBody<'a>,
}

#[derive(Serialize, Deserialize)]
struct StoredSeen<'a> {
    before: u32,
    stream: u32,
    namespace: &'a str,
    name: &'a str,
    version: &'a str,
    managed: Cow<'a, Managed>,
}

#[derive(Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "nearly every record is a change")]
enum StoredBody<'a> {
    Change(#[serde(borrow)] StoredChange<'a>),
    Control(Control),
}

#[derive(Serialize, Deserialize)]
struct StoredChange<'a> {
    op: Op,
    origin: Origin,
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    resource_version: &'a str,
    previous_resource_version: Option<&'a str>,
    generation: Option<i64>,
    snapshot: Option<Id>,
    difference: Option<Cow<'a, Difference>>,
    actor: Option<Cow<'a, Actor>>,
    #[serde(borrow)]
    patch: Option<&'a serde_bytes::Bytes>,
    #[serde(borrow)]
    before: Option<&'a serde_bytes::Bytes>,
    #[serde(borrow)]
    object: Option<&'a serde_bytes::Bytes>,
    problem: Option<&'a str>,
}

impl<'a> Payload<'a> {
    pub(super) fn of(frame: &'a Frame) -> Self {
        let mut streams: Vec<Stream> = Vec::new();
        let mut index = |stream: &Arc<Stream>| -> u32 {
            let known = streams.iter().rposition(|known| known == stream.as_ref());
            known.unwrap_or_else(|| {
                streams.push(stream.as_ref().clone());
                streams.len() - 1
            }) as u32
        };
        let records = frame
            .records
            .iter()
            .zip(&frame.managed)
            .map(|(record, managed)| Stored {
                id: record.id,
                stream: index(&record.stream),
                observed_at: record.observed_at.as_microsecond(),
                managed: Cow::Borrowed(managed),
                body: StoredBody::of(&record.body),
            })
            .collect();
        let seen = frame
            .seen
            .iter()
            .map(|seen| StoredSeen {
                before: (seen.before - frame.first_seq) as u32,
                stream: index(&seen.stream),
                namespace: &seen.key.namespace,
                name: &seen.key.name,
                version: seen.version.as_str(),
                managed: Cow::Borrowed(&seen.managed),
            })
            .collect();
        let states = frame.states.iter().map(|(stream, state)| (index(stream), state.clone())).collect();
        Self { streams, records, seen, states }
    }

    /// The frame again. `raw` is what this was read from: objects become slices of it, not copies.
    pub(super) fn into_frame(self, log_id: &Arc<str>, header: &Header, raw: &Bytes) -> io::Result<Frame> {
        if self.records.len() != header.count as usize {
            return Err(io::Error::other(format!("{} records instead of {}", self.records.len(), header.count)));
        }
        let streams: Vec<Arc<Stream>> = self.streams.into_iter().map(Arc::new).collect();
        let stream =
            |index: u32| streams.get(index as usize).cloned().ok_or_else(|| io::Error::other("no such stream"));
        let mut frame = Frame { first_seq: header.first_seq, ..Frame::default() };
        for (stored, seq) in self.records.into_iter().zip(header.first_seq..) {
            frame.records.push(Record {
                id: stored.id,
                log_id: log_id.clone(),
                seq,
                stream: stream(stored.stream)?,
                observed_at: Timestamp::from_microsecond(stored.observed_at).map_err(io::Error::other)?,
                body: stored.body.into_body(raw),
            });
            frame.managed.push(stored.managed.into_owned());
        }
        for stored in self.seen {
            frame.seen.push(Seen {
                before: header.first_seq.saturating_add(stored.before.into()),
                stream: stream(stored.stream)?,
                key: ObjectKey { namespace: stored.namespace.into(), name: stored.name.into() },
                version: ResourceVersion::new(stored.version),
                managed: stored.managed.into_owned(),
            });
        }
        for (index, state) in self.states {
            frame.states.push((stream(index)?, state));
        }
        Ok(frame)
    }
}

impl<'a> StoredBody<'a> {
    fn of(body: &'a Body) -> Self {
        match body {
            Body::Control(control) => Self::Control(control.clone()),
            Body::Change(change) => Self::Change(StoredChange {
                op: change.op,
                origin: change.origin,
                namespace: &change.namespace,
                name: &change.name,
                uid: &change.uid,
                resource_version: &change.resource_version,
                previous_resource_version: change.previous_resource_version.as_deref(),
                generation: change.generation,
                snapshot: change.snapshot,
                difference: change.difference.as_ref().map(Cow::Borrowed),
                actor: change.actor.as_ref().map(Cow::Borrowed),
                patch: change.patch.as_deref().map(serde_bytes::Bytes::new),
                before: change.before.as_deref().map(serde_bytes::Bytes::new),
                object: change.object.as_deref().map(serde_bytes::Bytes::new),
                problem: change.problem.as_deref(),
            }),
        }
    }

    fn into_body(self, raw: &Bytes) -> Body {
        match self {
            Self::Control(control) => Body::Control(control),
            Self::Change(change) => Body::Change(Change {
                op: change.op,
                origin: change.origin,
                namespace: change.namespace.into(),
                name: change.name.into(),
                uid: change.uid.into(),
                resource_version: change.resource_version.into(),
                previous_resource_version: change.previous_resource_version.map(Into::into),
                generation: change.generation,
                snapshot: change.snapshot,
                difference: change.difference.map(Cow::into_owned),
                actor: change.actor.map(Cow::into_owned),
                patch: change.patch.map(|patch| raw.slice_ref(patch)),
                before: change.before.map(|before| raw.slice_ref(before)),
                object: change.object.map(|object| raw.slice_ref(object)),
                problem: change.problem.map(Into::into),
                truncated: None,
            }),
        }
    }
}
