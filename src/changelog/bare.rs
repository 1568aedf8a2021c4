//! The segment files alone, without rows, streams and committer: what a frame costs by itself, for the benchmarks.

use std::{path::Path, sync::Arc};

use jiff::Timestamp;
use kubetide_sink::Record;

use super::{
    OpenError, WriteError,
    disk::{Access, Disk as _, Volume},
    frame::{self, Frame},
    segment::{self, Place, Recovery, SEGMENT_LEN, Writer},
};
use crate::change::Managed;

/// A log that holds nothing but records.
pub struct BareLog {
    directory: std::path::PathBuf,
    log_id: Arc<str>,
    writer: Writer,
}

impl BareLog {
    /// Opens the log in an existing directory.
    pub fn open(directory: &Path, log_id: &str) -> Result<Self, OpenError> {
        let log_id: Arc<str> = log_id.into();
        let recovery = Recovery {
            disk: Volume::shared(),
            directory,
            log_id: &log_id,
            segment_len: SEGMENT_LEN,
            now: Timestamp::UNIX_EPOCH,
            applied: None,
            oldest_needed: 1,
            passed: Some(0),
        };
        let (writer, _) = recovery.run(|_, _| Ok(()))?;
        Ok(Self { directory: directory.into(), log_id, writer })
    }

    /// Appends the records as one frame and makes it durable. They get the next seqs. Returns the frame's length in its file.
    pub fn append(&mut self, mut records: Vec<Record>) -> Result<u64, WriteError> {
        let first_seq = self.writer.place().next_seq;
        if self.writer.is_full() {
            self.writer.roll(&Frame { first_seq, ..Frame::default() }, Timestamp::UNIX_EPOCH)?;
        }
        for (record, seq) in records.iter_mut().zip(first_seq..) {
            record.seq = seq;
        }
        let before = self.writer.place().offset;
        let managed = vec![Managed::default(); records.len()];
        let place = self.writer.append(&Frame { first_seq, records, managed, ..Frame::default() })?;
        Ok(place.offset - before)
    }

    /// Reads the first frame back from its file.
    pub fn read_first(&self) -> Result<Vec<Record>, OpenError> {
        let path = segment::segment_path(&self.directory, 1);
        let failed = |source| OpenError::Directory { operation: "read", path: path.clone(), source };
        let file = Volume.open(&path, Access::Read).map_err(failed)?;
        let Some((header, payload)) = segment::read_frame(&*file, &path, Place::start_of(1))? else {
            return Ok(Vec::new());
        };
        Ok(frame::decode(&self.log_id, &header, &payload).map_err(failed)?.records)
    }
}
