//! Segment files: their names, the header that each opens with, and the frames in them.
//!
//! The [`Writer`] appends frames to the last one, [`Recovery`] finds the end again after a crash. Every segment but the first
//! opens with a frame that has the states of all streams.

mod recover;
mod writer;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

pub(super) use recover::Recovery;
pub(super) use writer::{AppendError, Writer};

use super::{
    OpenError,
    disk::{Access, Disk, DiskFile, read_up_to},
    frame::{HEADER_LEN, Header},
};

/// A segment is closed when it has grown past this, unless the log as a whole may not be much larger.
pub(super) const SEGMENT_LEN: u64 = 64 * 1024 * 1024;
/// `KTSEG` and the format of what follows.
const MAGIC: &[u8; 8] = b"KTSEG\0\0\x02";
/// Magic, log id, first seq, when it was opened, crc32c.
const SEGMENT_HEADER_LEN: usize = 8 + 26 + 8 + 8 + 4;

/// A place in the log, between two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct Place {
    /// The segment, by the seq it begins with.
    pub(super) segment: u64,
    /// The offset in its file.
    pub(super) offset: u64,
    /// The seq of the next record behind this place.
    pub(super) next_seq: u64,
}

impl Place {
    /// The first frame of a segment.
    pub(super) const fn start_of(segment: u64) -> Self {
        Self { segment, offset: SEGMENT_HEADER_LEN as u64, next_seq: segment }
    }

    /// The place behind the frame that begins here.
    pub(super) fn behind(self, header: &Header) -> Self {
        Self { segment: self.segment, offset: self.offset + header.frame_len(), next_seq: header.next_seq() }
    }
}

pub(super) fn segment_path(directory: &Path, first_seq: u64) -> PathBuf {
    directory.join(segment_name(first_seq))
}

fn segment_name(first_seq: u64) -> String {
    format!("{first_seq:020}.seg")
}

/// The segments in the directory, by their first seq, in order. Files with any other name are not ours.
pub(super) fn segments_in(disk: &dyn Disk, directory: &Path) -> io::Result<Vec<u64>> {
    let first_seq = |name: &String| {
        let first_seq = name.strip_suffix(".seg")?.parse().ok()?;
        (segment_name(first_seq) == *name).then_some(first_seq)
    };
    let mut found: Vec<u64> = disk.list(directory)?.iter().filter_map(first_seq).collect();
    found.sort_unstable();
    Ok(found)
}

/// Unlinks a segment, for good. Only ever the oldest one, and one at a time: each is gone before the next may go, so that no
/// crash leaves a hole. Readers must have been told before, and the store must be durable past it.
pub(super) fn remove(disk: &dyn Disk, directory: &Path, first_seq: u64) -> io::Result<()> {
    disk.remove(&segment_path(directory, first_seq))?;
    disk.sync_directory(directory)
}

/// What a segment says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// The seq that it begins with.
    pub(super) first_seq: u64,
    /// When it was begun.
    pub(super) opened_at: Timestamp,
}

impl SegmentHeader {
    fn to_bytes(self, log_id: &str) -> [u8; SEGMENT_HEADER_LEN] {
        let mut bytes = [0; SEGMENT_HEADER_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..34].copy_from_slice(log_id.as_bytes());
        bytes[34..42].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[42..50].copy_from_slice(&self.opened_at.as_microsecond().to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..50]);
        bytes[50..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header of a segment of this log, or nothing if these bytes are not one.
    fn parse(bytes: &[u8; SEGMENT_HEADER_LEN], log_id: &str) -> Option<Self> {
        let (first_seq, rest) = bytes[34..].split_first_chunk::<8>()?;
        let (opened_at, _) = rest.split_first_chunk::<8>()?;
        let first_seq = u64::from_le_bytes(*first_seq);
        let opened_at = Timestamp::from_microsecond(i64::from_le_bytes(*opened_at)).ok()?;
        let header = Self { first_seq, opened_at };
        (header.to_bytes(log_id) == *bytes).then_some(header)
    }
}

/// Reads the header of the segment that begins with `first_seq`.
pub(super) fn read_header(
    disk: &dyn Disk,
    directory: &Path,
    log_id: &str,
    first_seq: u64,
) -> Result<SegmentHeader, OpenError> {
    let path = segment_path(directory, first_seq);
    let failed = |source| OpenError::Directory { operation: "open", path: path.clone(), source };
    let file = disk.open(&path, Access::Read).map_err(failed)?;
    check_header(&*file, &path, log_id, first_seq)
}

/// The header of an open segment, or why it is not that of this log and this name.
pub(super) fn check_header(
    file: &dyn DiskFile,
    path: &Path,
    log_id: &str,
    first_seq: u64,
) -> Result<SegmentHeader, OpenError> {
    let failed = |source| OpenError::Directory { operation: "read", path: path.into(), source };
    let problem = "the segment's header is not the one that was written";
    let damaged = || OpenError::Damaged { file: path.into(), offset: 0, problem: problem.into() };
    header_of(file, log_id, first_seq).map_err(failed)?.ok_or_else(damaged)
}

fn header_of(file: &dyn DiskFile, log_id: &str, first_seq: u64) -> io::Result<Option<SegmentHeader>> {
    let mut bytes = [0; SEGMENT_HEADER_LEN];
    read_up_to(file, &mut bytes, 0)?;
    Ok(SegmentHeader::parse(&bytes, log_id).filter(|header| header.first_seq == first_seq))
}

/// Reads the frame at `place`, checking its sums. None at the end of the file.
pub(super) fn read_frame(
    file: &dyn DiskFile,
    path: &Path,
    place: Place,
) -> Result<Option<(Header, Vec<u8>)>, OpenError> {
    let damaged =
        |problem: &str| OpenError::Damaged { file: path.into(), offset: place.offset, problem: problem.into() };
    let failed = |source| OpenError::Directory { operation: "read", path: path.into(), source };
    let mut header = [0; HEADER_LEN];
    match read_up_to(file, &mut header, place.offset).map_err(failed)? {
        0 => return Ok(None),
        HEADER_LEN => {}
        _ => return Err(damaged("the frame's header is cut off")),
    }
    let header = Header::parse(&header).ok_or_else(|| damaged("not a frame"))?;
    if header.first_seq != place.next_seq {
        return Err(damaged(&format!("the frame begins with seq {}, not {}", header.first_seq, place.next_seq)));
    }
    // Before the memory is asked for.
    if place.offset + header.frame_len() > file.len().map_err(failed)? {
        return Err(damaged("the frame is cut off"));
    }
    let mut payload = vec![0; header.payload_len as usize];
    if read_up_to(file, &mut payload, place.offset + HEADER_LEN as u64).map_err(failed)? < payload.len() {
        return Err(damaged("the frame is cut off"));
    }
    if !header.matches(&payload) {
        return Err(damaged("the frame's checksum does not match"));
    }
    Ok(Some((header, payload)))
}
