//! A sink's cursor: how far it has acknowledged the log, and which batch is under way.
//!
//! One small file per sink with two slots that are written in turn, each with its own checksum. A torn or flipped slot is
//! seen and never used; the other one is a single step older, which costs at most the repetition of one batch.

use std::{
    io,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use kubetide_sink::Id;
use serde::{Deserialize, Serialize};

use super::{
    OpenError,
    attached::Hold,
    disk::{Access, Disk, DiskFile, Volume, read_up_to, write_all_at},
};
use crate::change::id;

/// A slot is four disk sectors: the longest names of an object fit in, and a torn write touches one slot only.
const SLOT_LEN: usize = 2048;

/// How far a sink is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The log that the numbers speak of.
    pub log_id: String,
    /// Everything up to here is durable at the receiver.
    pub acknowledged: u64,
    /// The furthest that it has ever been: a replay goes back behind it.
    pub reached: u64,
    /// The batch that may or may not have reached the receiver: `from..=to`. It is sent again exactly as it was.
    pub in_flight: Option<(u64, u64)>,
    /// What comes before the log goes on.
    pub errand: Option<Errand>,
}

/// What a sink must be given before it goes on in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Errand {
    /// The word that what follows comes again.
    Replay {
        /// When that was asked for.
        at: Timestamp,
    },
    /// The present state of the objects.
    CatchUp(CatchUp),
}

/// A catch-up: the rows and tombstones with `from < seq <= head`, in key order; then the log goes on behind `head`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatchUp {
    /// Why.
    pub cause: Cause,
    /// What the sink had when it began; 0 = nothing that counts: it is given everything.
    pub since: u64,
    /// What the walk under way is to bring the sink from…
    pub from: u64,
    /// …and to. The log behind it is kept meanwhile.
    pub head: u64,
    /// The id of the snapshot.
    pub id: Id,
    /// When it began.
    pub at: Timestamp,
    /// Whether the sink knows that it is under way.
    pub announced: bool,
    /// How far the walk has come, in the order of keys.
    pub after: Option<Vec<u8>>,
    /// What the sink was given so far.
    pub given: Given,
}

/// Why a sink is given the state of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The sink is new.
    New,
    /// Somebody asked for it.
    Asked,
    /// The log was trimmed before the sink had read it.
    Behind,
}

/// What a catch-up has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Objects that the sink had not seen before.
    pub created: u64,
    /// Objects that are otherwise than the sink saw them last.
    pub updated: u64,
    /// Objects that are gone.
    pub deleted: u64,
}

impl std::ops::AddAssign for Given {
    fn add_assign(&mut self, more: Self) {
        self.created += more.created;
        self.updated += more.updated;
        self.deleted += more.deleted;
    }
}

impl CatchUp {
    /// Whether the sink is given every object there is, so that what is not among them is gone.
    pub const fn is_whole(&self) -> bool {
        self.since == 0
    }
}

impl Cursor {
    pub(super) fn new(log_id: &str, acknowledged: u64) -> Self {
        Self { log_id: log_id.into(), acknowledged, reached: acknowledged, in_flight: None, errand: None }
    }

    /// The first record of the log that the sink will still read.
    pub const fn needs(&self) -> u64 {
        match &self.errand {
            Some(Errand::CatchUp(catch_up)) => catch_up.head + 1,
            Some(Errand::Replay { .. }) | None => self.acknowledged + 1,
        }
    }

    /// Up to where the sink knows of every delete.
    pub const fn settled(&self) -> u64 {
        match &self.errand {
            Some(Errand::CatchUp(catch_up)) => catch_up.from,
            Some(Errand::Replay { .. }) | None => self.acknowledged,
        }
    }

    /// Goes back, so that the record `from` comes next.
    pub fn replay(&mut self, from: u64, at: Timestamp) {
        *self = Self { acknowledged: from - 1, in_flight: None, errand: Some(Errand::Replay { at }), ..self.clone() };
    }

    /// Begins a catch-up to `head`. `since` is what the sink has, 0 for everything anew.
    pub fn catch_up(&mut self, sink: &str, cause: Cause, since: u64, head: u64, at: Timestamp) {
        let id = id::hash(&[&self.log_id, sink, &since.to_string(), &head.to_string(), &at.to_string()]);
        self.in_flight = None;
        self.errand = Some(Errand::CatchUp(CatchUp {
            cause,
            since,
            from: since,
            head,
            id,
            at,
            announced: false,
            after: None,
            given: Given::default(),
        }));
    }
}

/// The file that holds one sink's cursor.
#[derive(Debug)]
pub struct CursorFile {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    generation: u64,
    cursor: Cursor,
    /// What the log must keep for this sink; none if nobody trims it.
    hold: Option<Hold>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Slot {
    generation: u64,
    cursor: Cursor,
}

impl CursorFile {
    /// Opens the cursor of a sink that has one.
    pub fn open(directory: &Path, sink: &str, log_id: &str) -> Result<Option<Self>, OpenError> {
        Self::open_on(&Volume, directory, sink, log_id)
    }

    pub(super) fn open_on(
        disk: &dyn Disk,
        directory: &Path,
        sink: &str,
        log_id: &str,
    ) -> Result<Option<Self>, OpenError> {
        let path = path_of(directory, sink);
        let failed = |source| OpenError::Directory { operation: "open", path: path.clone(), source };
        let file = match disk.open(&path, Access::Write) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let damaged = |problem: &str| OpenError::Damaged { file: path.clone(), offset: 0, problem: problem.into() };
        let newest = read_newest(&*file).map_err(failed)?;
        let Slot { generation, cursor } = newest.ok_or_else(|| damaged("neither copy of the cursor is whole"))?;
        if cursor.log_id != log_id {
            return Err(damaged("the cursor is of another log"));
        }
        Ok(Some(Self { path, file, generation, cursor, hold: None }))
    }

    /// Makes the cursor of a new sink, which has everything up to `acknowledged`.
    pub fn create(directory: &Path, sink: &str, log_id: &str, acknowledged: u64) -> Result<Self, OpenError> {
        Self::create_on(&Volume, directory, sink, Cursor::new(log_id, acknowledged))
    }

    /// Makes the cursor of a new sink, which has something to do before it follows the log.
    pub fn create_behind(
        directory: &Path,
        sink: &str,
        log_id: &str,
        first: impl FnOnce(&mut Cursor),
    ) -> Result<Self, OpenError> {
        let mut cursor = Cursor::new(log_id, 0);
        first(&mut cursor);
        Self::create_on(&Volume, directory, sink, cursor)
    }

    /// Under its name it is there whole or not at all: an empty one is a cursor that was lost.
    pub(super) fn create_on(disk: &dyn Disk, directory: &Path, sink: &str, cursor: Cursor) -> Result<Self, OpenError> {
        let path = path_of(directory, sink);
        let next = path.with_extension("cursor.next");
        let failed = |source| OpenError::Directory { operation: "write to", path: path.clone(), source };
        let file = disk.create(&next).map_err(failed)?;
        let mut made = Self { path: path.clone(), file, generation: 0, cursor: cursor.clone(), hold: None };
        made.write(cursor).map_err(failed)?;
        disk.rename(&next, &path).map_err(failed)?;
        disk.sync_directory(directory).map_err(failed)?;
        Ok(made)
    }

    /// From now on the log keeps what this sink needs.
    pub(super) fn hold(&mut self, hold: Hold) {
        hold.update(&self.cursor);
        self.hold = Some(hold);
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
        let reached = self.cursor.reached.max(to);
        self.write(Cursor { acknowledged: to, reached, in_flight: None, errand: None, ..self.cursor.clone() })
    }

    /// Changes course.
    pub fn change(&mut self, change: impl FnOnce(&mut Cursor)) -> io::Result<()> {
        let mut cursor = self.cursor.clone();
        change(&mut cursor);
        self.write(cursor)
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
        if let Some(hold) = &self.hold {
            hold.update(&self.cursor);
        }
        Ok(())
    }

    /// The file, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn path_of(directory: &Path, sink: &str) -> PathBuf {
    directory.join(format!("{sink}.cursor"))
}

/// The newer of the two copies that are whole.
fn read_newest(file: &dyn DiskFile) -> io::Result<Option<Slot>> {
    let mut bytes = vec![0; 2 * SLOT_LEN];
    let read = read_up_to(file, &mut bytes, 0)?;
    Ok(newest(&bytes[..read]))
}

fn newest(bytes: &[u8]) -> Option<Slot> {
    let whole = bytes.chunks(SLOT_LEN).filter_map(|chunk| parse_slot(chunk.try_into().ok()?));
    whole.max_by_key(|slot| slot.generation)
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
        // One that is damaged is refused when its sink is attached.
        let newest = read_newest(&*disk.open(&directory.join(&name), Access::Read)?)?;
        all.extend(newest.map(|slot| (sink.to_owned(), slot.cursor)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn again(directory: &Path) -> Result<CursorFile, OpenError> {
        CursorFile::open(directory, "audit", "L").map(Option::unwrap)
    }

    #[test]
    fn a_cursor_comes_back_as_it_was_written() {
        let directory = tempfile::tempdir().unwrap();
        assert!(CursorFile::open(directory.path(), "audit", "L").unwrap().is_none());
        let mut file = CursorFile::create(directory.path(), "audit", "L", 0).unwrap();
        assert_eq!(file.cursor().acknowledged, 0);
        file.begin(1, 9).unwrap();
        file.acknowledge(9).unwrap();
        file.begin(10, 12).unwrap();
        let read = again(directory.path()).unwrap();
        assert_eq!((read.cursor().acknowledged, read.cursor().in_flight), (9, Some((10, 12))));
        assert!(matches!(CursorFile::open(directory.path(), "audit", "M"), Err(OpenError::Damaged { .. })));
    }

    #[test]
    fn a_catch_up_comes_back_with_the_longest_names_there_are() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = CursorFile::create(directory.path(), "audit", "L", 7).unwrap();
        file.change(|cursor| cursor.catch_up("audit", Cause::Behind, 7, 99, Timestamp::UNIX_EPOCH)).unwrap();
        assert_eq!((file.cursor().needs(), file.cursor().settled()), (100, 7), "the log behind it is kept");
        let longest = vec![b'x'; 253 + 1 + 253 + 1 + 63 + 1 + 63 + 1 + 253 + 1 + 128];
        file.change(|cursor| match &mut cursor.errand {
            Some(Errand::CatchUp(catch_up)) => catch_up.after = Some(longest),
            errand => panic!("{errand:?}"),
        })
        .unwrap();
        assert_eq!(again(directory.path()).unwrap().cursor(), file.cursor());
        file.acknowledge(99).unwrap();
        assert_eq!((file.cursor().needs(), file.cursor().errand.clone()), (100, None));
    }

    #[test]
    fn a_replay_goes_back_and_remembers_how_far_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = CursorFile::create(directory.path(), "audit", "L", 40).unwrap();
        file.change(|cursor| cursor.replay(11, Timestamp::UNIX_EPOCH)).unwrap();
        assert_eq!((file.cursor().needs(), file.cursor().reached), (11, 40));
        file.acknowledge(20).unwrap();
        assert_eq!((file.cursor().acknowledged, file.cursor().reached), (20, 40));
    }

    #[test]
    fn a_flipped_bit_never_yields_a_cursor_that_was_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = CursorFile::create(directory.path(), "audit", "L", 0).unwrap();
        file.acknowledge(7).unwrap();
        file.begin(8, 12).unwrap();
        let whole = std::fs::read(file.path()).unwrap();
        assert_eq!(whole.len(), 2 * SLOT_LEN);
        let written =
            |slot: &Slot| matches!((slot.cursor.acknowledged, slot.cursor.in_flight), (7, None | Some((8, 12))));
        let mut bytes = whole.clone();
        for bit in 0..whole.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(newest(&bytes).as_ref().is_some_and(written), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 1..whole.len() {
            // The first copy may be older than what is cut off, but it was written.
            assert!(newest(&whole[..len]).as_ref().is_none_or(written), "{len}");
        }
        std::fs::write(file.path(), vec![0; 2 * SLOT_LEN]).unwrap();
        assert!(matches!(again(directory.path()), Err(OpenError::Damaged { .. })));
    }
}
