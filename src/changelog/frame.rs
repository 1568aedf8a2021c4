//! A frame: the one atomic write of the log. Records, and the stream states that they lead to.
//!
//! On disk: a header of 40 bytes, then zstd. The header has a checksum of its own, and in it the payload's: no length is
//! believed before its checksum holds, and no single wrong bit goes unseen.

mod payload;
#[cfg(test)]
mod tests;

use std::{io, sync::Arc};

use bytes::Bytes;
use kubetide_sink::{Record, Stream};

use super::StreamState;
use crate::change::{Managed, ObjectKey, ResourceVersion, Row};
use payload::Payload;

/// `KTF` and the format of what follows. JSON has no such byte as the last one: no object can hold what looks like a frame.
pub(super) const MAGIC: [u8; 4] = *b"KTF\x04";
/// The bytes in front of a frame's payload.
pub(super) const HEADER_LEN: usize = 40;
/// A group is cut at 1 MiB and a single object at 16 MiB: more than this is not a length but damage.
const MAX_LEN: u32 = 64 * 1024 * 1024;
/// zstd's fastest ordinary level: objects repeat so much that higher ones gain little and cost the writer.
const LEVEL: i32 = 1;
/// Buffers that one large frame has made larger than this are given back: the usual group has 1 MiB.
const KEPT_BYTES: usize = 8 * 1024 * 1024;

/// What one frame holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
///
/// magic ∥ payload_len ∥ raw_len ∥ count ∥ first_seq ∥ synced ∥ crc32c of the payload ∥ crc32c of all that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) payload_len: u32,
    raw_len: u32,
    pub(super) count: u32,
    pub(super) first_seq: u64,
    /// Up to where the segment was durable when this was written: what is broken in front of that is damage, not a torn write.
    pub(super) synced: u64,
    payload_crc: u32,
}

impl Header {
    /// Reads a header, or nothing if these bytes are not one.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_LEN>()?;
        let (checked, crc) = bytes.split_last_chunk::<4>()?;
        let (magic, rest) = checked.split_first_chunk::<4>()?;
        if *magic != MAGIC || crc32c::crc32c(checked) != u32::from_le_bytes(*crc) {
            return None;
        }
        let (payload_len, rest) = rest.split_first_chunk::<4>()?;
        let (raw_len, rest) = rest.split_first_chunk::<4>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let (first_seq, rest) = rest.split_first_chunk::<8>()?;
        let (synced, rest) = rest.split_first_chunk::<8>()?;
        let (payload_crc, _) = rest.split_first_chunk::<4>()?;
        let header = Self {
            payload_len: u32::from_le_bytes(*payload_len),
            raw_len: u32::from_le_bytes(*raw_len),
            count: u32::from_le_bytes(*count),
            first_seq: u64::from_le_bytes(*first_seq),
            synced: u64::from_le_bytes(*synced),
            payload_crc: u32::from_le_bytes(*payload_crc),
        };
        header.first_seq.checked_add(header.count.into())?;
        (header.payload_len <= MAX_LEN && header.raw_len <= MAX_LEN).then_some(header)
    }

    fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.raw_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..36]);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Whether the payload is the one that was written with this header.
    pub(super) fn matches(&self, payload: &[u8]) -> bool {
        payload.len() == self.payload_len as usize && crc32c::crc32c(payload) == self.payload_crc
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

/// Writes frames; keeps the compressor and the buffers from one to the next.
pub(super) struct Encoder {
    compressor: zstd::bulk::Compressor<'static>,
    raw: Vec<u8>,
    /// As long as the longest frame so far, so that it is cleared once and not for every frame.
    out: Vec<u8>,
}

impl Encoder {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { compressor: zstd::bulk::Compressor::new(LEVEL)?, raw: Vec::new(), out: Vec::new() })
    }

    /// The frame as it goes to the file, which is durable up to `synced`.
    pub(super) fn encode(&mut self, frame: &Frame, synced: u64) -> io::Result<&[u8]> {
        self.raw.clear();
        self.raw.shrink_to(KEPT_BYTES);
        let storage = Reused(std::mem::take(&mut self.raw));
        self.raw = postcard::serialize_with_flavor(&Payload::of(frame), storage).map_err(io::Error::other)?;
        let raw_len = length(self.raw.len())?;
        let bound = HEADER_LEN + zstd::zstd_safe::compress_bound(self.raw.len());
        if bound <= KEPT_BYTES {
            self.out.truncate(KEPT_BYTES);
            self.out.shrink_to(KEPT_BYTES);
        }
        if self.out.len() < bound {
            self.out.resize(bound, 0);
        }
        let (front, back) = self.out.split_at_mut(HEADER_LEN);
        let payload_len = self.compressor.compress_to_buffer(&self.raw, back)?;
        let header = Header {
            payload_len: length(payload_len)?,
            raw_len,
            count: length(frame.records.len())?,
            first_seq: frame.first_seq,
            synced,
            payload_crc: crc32c::crc32c(&back[..payload_len]),
        };
        front.copy_from_slice(&header.to_bytes());
        Ok(&self.out[..HEADER_LEN + payload_len])
    }
}

/// Lets postcard write into a buffer that was used before.
struct Reused(Vec<u8>);

impl postcard::ser_flavors::Flavor for Reused {
    type Output = Vec<u8>;

    fn try_extend(&mut self, data: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(data);
        Ok(())
    }

    fn try_push(&mut self, data: u8) -> postcard::Result<()> {
        self.0.push(data);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

fn length(len: usize) -> io::Result<u32> {
    u32::try_from(len).ok().filter(|len| *len <= MAX_LEN).ok_or_else(|| io::Error::other("frame over 64 MiB"))
}

/// Reads back a payload whose checksum holds. Objects are slices of one buffer, not copies.
pub(super) fn decode(log_id: &Arc<str>, header: &Header, payload: &[u8]) -> io::Result<Frame> {
    let raw = Bytes::from(zstd::bulk::decompress(payload, header.raw_len as usize)?);
    if raw.len() != header.raw_len as usize {
        return Err(io::Error::other(format!("{} bytes instead of {}", raw.len(), header.raw_len)));
    }
    let decoded: Payload<'_> = postcard::from_bytes(&raw).map_err(io::Error::other)?;
    decoded.into_frame(log_id, header, &raw)
}
