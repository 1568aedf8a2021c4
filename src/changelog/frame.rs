//! A frame: the one atomic write of the log. Records, and the stream states that they lead to.
//!
//! On disk: a header of 28 bytes (magic with the format, lengths, first seq, count, crc32c), then zstd. The checksum
//! covers the header too, so that no single wrong bit goes unseen.

use std::{borrow::Cow, io, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use kubetide_sink::{Actor, Body, Change, Control, Difference, Id, Op, Origin, Record, Stream};
use serde::{Deserialize, Serialize};

use super::StreamState;
use crate::change::{Managed, ObjectKey, ResourceVersion, Row};

/// `KTF` and the format of what follows.
const MAGIC: [u8; 4] = *b"KTF\x03";
/// The bytes in front of a frame's payload.
pub(super) const HEADER_LEN: usize = 28;
/// A group is cut at 1 MiB and a single object at 16 MiB: more than this is not a length but damage.
const MAX_LEN: u32 = 64 * 1024 * 1024;
/// zstd's fastest ordinary level: objects repeat so much that higher ones gain little and cost the writer.
const LEVEL: i32 = 1;

/// What one frame holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    /// The seq of the first record, or of the next one if there are none.
    pub(super) first_seq: u64,
    /// The records, in order.
    pub(super) records: Vec<Record>,
    /// For each record the managedFields that its object had: for the row, not for sinks.
    pub(super) managed: Vec<Managed>,
    /// Versions that were seen and differ in nothing of interest: for the rows, not for sinks.
    pub(super) seen: Vec<Seen>,
    /// The streams that moved, and where to.
    pub(super) states: Vec<(Arc<Stream>, StreamState)>,
}

/// A version of an object that is not a change.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// The record that comes next in the log: between which two it was seen.
    pub(super) before: u64,
    pub(super) stream: Arc<Stream>,
    pub(super) key: ObjectKey,
    pub(super) version: ResourceVersion,
    pub(super) managed: Managed,
}

impl Frame {
    /// Whether there is nothing in it to write.
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.seen.is_empty() && self.states.is_empty()
    }
}

impl Seen {
    /// The row after this version was seen.
    pub(super) fn moves(&self, row: Row) -> Row {
        Row { seen: self.version.clone(), managed: self.managed.clone(), ..row }
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) payload_len: u32,
    raw_len: u32,
    pub(super) first_seq: u64,
    pub(super) count: u32,
    crc: u32,
}

impl Header {
    /// Reads a header, or nothing if these bytes cannot be one.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (payload_len, rest) = rest.split_first_chunk::<4>()?;
        let (raw_len, rest) = rest.split_first_chunk::<4>()?;
        let (first_seq, rest) = rest.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let (crc, _) = rest.split_first_chunk::<4>()?;
        let header = Self {
            payload_len: u32::from_le_bytes(*payload_len),
            raw_len: u32::from_le_bytes(*raw_len),
            first_seq: u64::from_le_bytes(*first_seq),
            count: u32::from_le_bytes(*count),
            crc: u32::from_le_bytes(*crc),
        };
        (*magic == MAGIC && header.payload_len <= MAX_LEN && header.raw_len <= MAX_LEN).then_some(header)
    }

    fn bytes_before_crc(&self) -> [u8; HEADER_LEN - 4] {
        let mut bytes = [0; HEADER_LEN - 4];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.raw_len.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    /// Whether the payload is the one that was written with this header.
    pub(super) fn matches(&self, payload: &[u8]) -> bool {
        let crc = crc32c::crc32c(&self.bytes_before_crc());
        payload.len() == self.payload_len as usize && crc32c::crc32c_append(crc, payload) == self.crc
    }

    /// The seq behind the frame's last record.
    pub(super) fn next_seq(&self) -> u64 {
        self.first_seq + u64::from(self.count)
    }

    /// How many bytes the frame takes in its file.
    pub(super) fn frame_len(&self) -> u64 {
        HEADER_LEN as u64 + u64::from(self.payload_len)
    }
}

/// Writes frames; keeps the compressor and its buffers from one to the next.
pub(super) struct Encoder {
    compressor: zstd::bulk::Compressor<'static>,
}

impl Encoder {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { compressor: zstd::bulk::Compressor::new(LEVEL)? })
    }

    /// The frame as it goes to the file.
    pub(super) fn encode(&mut self, frame: &Frame) -> io::Result<Vec<u8>> {
        let raw = postcard::to_stdvec(&Payload::of(frame)).map_err(io::Error::other)?;
        let payload = self.compressor.compress(&raw)?;
        let mut header = Header {
            payload_len: length(payload.len())?,
            raw_len: length(raw.len())?,
            first_seq: frame.first_seq,
            count: length(frame.records.len())?,
            crc: 0,
        };
        header.crc = crc32c::crc32c_append(crc32c::crc32c(&header.bytes_before_crc()), &payload);
        let mut out = Vec::with_capacity(HEADER_LEN + payload.len());
        out.extend_from_slice(&header.bytes_before_crc());
        out.extend_from_slice(&header.crc.to_le_bytes());
        out.extend_from_slice(&payload);
        Ok(out)
    }
}

fn length(len: usize) -> io::Result<u32> {
    u32::try_from(len).ok().filter(|len| *len <= MAX_LEN).ok_or_else(|| io::Error::other("frame over 64 MiB"))
}

/// Reads back a payload whose checksum holds. Objects are slices of one buffer, not copies.
pub(super) fn decode(log_id: &Arc<str>, header: &Header, payload: &[u8]) -> io::Result<Frame> {
    let raw = Bytes::from(zstd::bulk::decompress(payload, header.raw_len as usize)?);
    let decoded: Payload<'_> = postcard::from_bytes(&raw).map_err(io::Error::other)?;
    let streams: Vec<Arc<Stream>> = decoded.streams.into_iter().map(Arc::new).collect();
    let stream = |index: u32| streams.get(index as usize).cloned().ok_or_else(|| io::Error::other("no such stream"));
    let mut frame = Frame { first_seq: header.first_seq, ..Frame::default() };
    for (stored, seq) in decoded.records.into_iter().zip(header.first_seq..) {
        frame.records.push(Record {
            id: stored.id,
            log_id: log_id.clone(),
            seq,
            stream: stream(stored.stream)?,
            observed_at: Timestamp::from_microsecond(stored.observed_at).map_err(io::Error::other)?,
            body: stored.body.into_body(&raw),
        });
        frame.managed.push(stored.managed);
    }
    for stored in decoded.seen {
        frame.seen.push(Seen {
            before: header.first_seq + u64::from(stored.before),
            stream: stream(stored.stream)?,
            key: ObjectKey { namespace: stored.namespace.into(), name: stored.name.into() },
            version: ResourceVersion::new(stored.version),
            managed: stored.managed,
        });
    }
    for (index, state) in decoded.states {
        frame.states.push((stream(index)?, state));
    }
    Ok(frame)
}

/// What a frame's payload decompresses to. Streams are named once and referred to by index.
#[derive(Serialize, Deserialize)]
struct Payload<'a> {
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
    managed: Managed,
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
    managed: Managed,
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
    fn of(frame: &'a Frame) -> Self {
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
                managed: managed.clone(),
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
                managed: seen.managed.clone(),
            })
            .collect();
        let states = frame.states.iter().map(|(stream, state)| (index(stream), state.clone())).collect();
        Self { streams, records, seen, states }
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
            }),
        }
    }
}
