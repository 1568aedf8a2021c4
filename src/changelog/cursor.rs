//! A sink's cursor: how far it has acknowledged the log, and which batch is under way.
//!
//! One small file per sink with two slots that are written in turn, each with its own checksum. A torn or flipped slot is
//! seen and never used; the other one is a single step older, which costs at most the repetition of one batch.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    OpenError,
    disk::{Access, Disk, DiskFile, Volume, read_up_to, write_all_at},
};

/// A slot is a disk sector: a torn write touches one slot only.
const SLOT_LEN: usize = 512;

/// How far a sink is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The log that the numbers speak of.
    pub log_id: String,
    /// Everything up to here is durable at the receiver.
    pub acknowledged: u64,
    /// The batch that may or may not have reached the receiver: `from..=to`. It is sent again exactly as it was.
    pub in_flight: Option<(u64, u64)>,
}

/// The file that holds one sink's cursor.
#[derive(Debug)]
pub struct CursorFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    generation: u64,
    cursor: Cursor,
}

#[derive(Serialize, Deserialize)]
struct Slot {
    generation: u64,
    cursor: Cursor,
}

impl CursorFile {
    /// Opens the cursor of `sink`; a new sink starts before the first record of the log.
    pub fn open(directory: &Path, sink: &str, log_id: &str) -> Result<Self, OpenError> {
        Self::open_on(&Volume, directory, sink, log_id)
    }

    pub(super) fn open_on(disk: &dyn Disk, directory: &Path, sink: &str, log_id: &str) -> Result<Self, OpenError> {
        let path = directory.join(format!("{sink}.cursor"));
        let failed = |source| OpenError::Directory { operation: "open", path: path.clone(), source };
        let file = match disk.open(&path, Access::Write) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Under its name it is there whole or not at all: an empty one is a cursor that was lost.
                let next = directory.join(format!("{sink}.cursor.next"));
                let cursor = Cursor { log_id: log_id.into(), acknowledged: 0, in_flight: None };
                let file = disk.create(&next).map_err(failed)?;
                let mut made = Self { path: path.clone(), file, generation: 0, cursor: cursor.clone() };
                made.write(cursor).map_err(failed)?;
                disk.rename(&next, &path).map_err(failed)?;
                disk.sync_directory(directory).map_err(failed)?;
                return Ok(made);
            }
            Err(error) => return Err(failed(error)),
        };
        let slots = read_slots(&*file).map_err(failed)?;
        let damaged = |problem: &str| OpenError::Damaged { file: path.clone(), offset: 0, problem: problem.into() };
        match slots.into_iter().flatten().max_by_key(|slot| slot.generation) {
            Some(Slot { cursor, .. }) if cursor.log_id != log_id => Err(damaged("the cursor is of another log")),
            Some(Slot { generation, cursor }) => Ok(Self { path: path.clone(), file, generation, cursor }),
            None => Err(damaged("neither copy of the cursor is whole")),
        }
    }

    /// Where the sink is.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// Notes the batch that is about to be sent for the first time.
    pub fn begin(&mut self, from: u64, to: u64) -> io::Result<()> {
        self.write(Cursor { in_flight: Some((from, to)), ..self.cursor.clone() })
    }

    /// Moves past a batch that the sink has acknowledged.
    pub fn acknowledge(&mut self, to: u64) -> io::Result<()> {
        self.write(Cursor { acknowledged: to, in_flight: None, ..self.cursor.clone() })
    }

    fn write(&mut self, cursor: Cursor) -> io::Result<()> {
        let slot = Slot { generation: self.generation + 1, cursor };
        let payload = postcard::to_stdvec(&slot).map_err(io::Error::other)?;
        let mut bytes = [0; SLOT_LEN];
        let len = u16::try_from(payload.len()).map_err(io::Error::other)?;
        bytes[4..6].copy_from_slice(&len.to_le_bytes());
        bytes.get_mut(6..6 + payload.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(&payload);
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        write_all_at(&*self.file, &bytes, slot.generation % 2 * SLOT_LEN as u64)?;
        self.file.sync_data()?;
        self.generation = slot.generation;
        self.cursor = slot.cursor;
        Ok(())
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn read_slots(file: &dyn DiskFile) -> io::Result<[Option<Slot>; 2]> {
    let mut slots = [None, None];
    for (slot, offset) in slots.iter_mut().zip([0, SLOT_LEN as u64]) {
        let mut bytes = [0; SLOT_LEN];
        if read_up_to(file, &mut bytes, offset)? == SLOT_LEN {
            *slot = parse_slot(&bytes);
        }
    }
    Ok(slots)
}

fn parse_slot(bytes: &[u8; SLOT_LEN]) -> Option<Slot> {
    let (crc, rest) = bytes.split_first_chunk::<4>()?;
    let (len, payload) = rest.split_first_chunk::<2>()?;
    if crc32c::crc32c(rest) != u32::from_le_bytes(*crc) {
        return None;
    }
    postcard::from_bytes(payload.get(..u16::from_le_bytes(*len) as usize)?).ok()
}

/// The cursors of all sinks that have ever had one here: (sink, cursor).
pub(super) fn all_in(directory: &Path) -> io::Result<Vec<(String, Cursor)>> {
    all_on(&Volume, directory)
}

pub(super) fn all_on(disk: &dyn Disk, directory: &Path) -> io::Result<Vec<(String, Cursor)>> {
    let mut all = Vec::new();
    for name in disk.list(directory)? {
        let Some(sink) = name.strip_suffix(".cursor") else { continue };
        let newest = read_slots(&*disk.open(&directory.join(&name), Access::Read)?)?
            .into_iter()
            .flatten()
            .max_by_key(|slot| slot.generation);
        all.extend(newest.map(|slot| (sink.to_owned(), slot.cursor)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_cursor_comes_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = CursorFile::open(directory.path(), "audit", "L").unwrap();
        assert_eq!(file.cursor().acknowledged, 0);
        file.begin(1, 9).unwrap();
        file.acknowledge(9).unwrap();
        file.begin(10, 12).unwrap();
        let again = CursorFile::open(directory.path(), "audit", "L").unwrap();
        assert_eq!((again.cursor().acknowledged, again.cursor().in_flight), (9, Some((10, 12))));
        assert!(matches!(CursorFile::open(directory.path(), "audit", "M"), Err(OpenError::Damaged { .. })));
    }

    #[test]
    fn a_flipped_bit_never_yields_a_cursor_that_was_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = CursorFile::open(directory.path(), "audit", "L").unwrap();
        file.acknowledge(7).unwrap();
        file.begin(8, 12).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(file.path(), &bytes).unwrap();
            let read = CursorFile::open(directory.path(), "audit", "L").unwrap();
            assert!(matches!((read.cursor().acknowledged, read.cursor().in_flight), (7, None | Some((8, 12)))));
        }
        std::fs::write(file.path(), vec![0; 2 * SLOT_LEN]).unwrap();
        assert!(matches!(CursorFile::open(directory.path(), "audit", "L"), Err(OpenError::Damaged { .. })));
    }
}
