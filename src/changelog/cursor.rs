//! A sink's cursor: how far it has acknowledged the log, and which batch is under way.
//!
//! One small file per sink with two slots that are written in turn, each with its own checksum, which covers the sink's name. A
//! torn or flipped slot, or one of another sink, is seen and never used; the other one is a single step older, which costs at
//! most the repetition of one batch.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use jiff::Timestamp;
use kubetide_sink::Id;
use serde::{Deserialize, Serialize};

use super::{
    OpenError,
    attached::Hold,
    disk::{Access, Disk, DiskFile, Volume, read_up_to, write_all_at},
};
use crate::change::id;

/// A slot is four disk sectors: the longest names of nearly every object fit in, and a torn write touches one slot only.
const SLOT_LEN: usize = 2048;
/// A catch-up can be left behind a place that is no longer than this: everything else in a slot is smaller than the rest of it.
/// Names in some groups (RBAC) may be as long as a request.
pub(super) const LONGEST_PLACE: usize = SLOT_LEN - 256;

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
    /// The word that the log it was delivered from is not this one any more.
    Loss {
        /// What has become of it.
        loss: Loss,
        /// How far it had been delivered.
        seq: u64,
        /// When that was found.
        at: Timestamp,
    },
    /// Dead letters that are given again. They are in a file of their own.
    Letters {
        /// When that began.
        at: Timestamp,
        /// How much of it is done: first the word that they come, then the letters, then a look at what has become of the object of
        /// each.
        given: u64,
    },
}

/// What has become of a log that a sink knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// There is another one in its place.
    Lost,
    /// It is an older state of the one that the sink knows of.
    Rewound,
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
    /// Somebody asked for it. It has read the log up to the head of the first walk, and goes on behind it.
    Asked,
    /// The log was trimmed before the sink had read it.
    Behind,
    /// The log was trimmed before the sink had read it; it knows, but what it was given since is not enough.
    Again,
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

    /// Why, if it is begun anew: a gap that was told is not told a second time, and one that was not is still owed.
    pub const fn cause_anew(&self) -> Cause {
        match self.cause {
            Cause::Behind if self.announced => Cause::Again,
            cause => cause,
        }
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
            Some(Errand::Replay { .. } | Errand::Loss { .. } | Errand::Letters { .. }) | None => self.acknowledged + 1,
        }
    }

    /// Up to where the sink knows of every delete.
    pub const fn settled(&self) -> u64 {
        match &self.errand {
            Some(Errand::CatchUp(catch_up)) => catch_up.from,
            Some(Errand::Replay { .. } | Errand::Loss { .. } | Errand::Letters { .. }) | None => self.acknowledged,
        }
    }

    /// The furthest place that a receiver can be at which was given everything from here: what is sent is noted before. One that is
    /// further was given it by a later state of this directory, which is not there any more.
    pub fn furthest_sent(&self) -> u64 {
        let in_flight = self.in_flight.map_or(0, |(_, to)| to);
        let head = if let Some(Errand::CatchUp(catch_up)) = &self.errand { catch_up.head } else { 0 };
        self.reached.max(in_flight).max(head)
    }

    /// Everything up to here is durable at the receiver.
    pub fn acknowledge(&mut self, to: u64) {
        let reached = self.reached.max(to);
        *self = Self { acknowledged: to, reached, in_flight: None, errand: None, ..self.clone() };
    }

    /// Everything up to here is durable at the receiver; the rest of the batch is still under way.
    pub fn acknowledge_part(&mut self, to: u64) {
        let rest = self.in_flight.filter(|(_, end)| *end > to).map(|(_, end)| (to + 1, end));
        self.acknowledge(to);
        self.in_flight = rest;
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
    sink: String,
    file: Box<dyn DiskFile>,
    generation: u64,
    cursor: Cursor,
    /// What the log must keep for this sink; none if nobody trims it.
    hold: Option<Hold>,
}

/// A state of the cursor, and the how manieth it is. Of two that speak of the same log the later one holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    generation: u64,
    cursor: Cursor,
}

impl Slot {
    /// Where the sink is in this state.
    pub const fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// As a sink keeps it that delivers exactly once: people can read it.
    pub fn to_bytes(&self) -> Bytes {
        // Numbers and text, which are always JSON.
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// What a sink has kept.
    pub fn of_bytes(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }
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
        let Slot { generation, cursor } = read(&*file, &path, sink, log_id)?;
        Ok(Some(Self { path, sink: sink.into(), file, generation, cursor, hold: None }))
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
        let (sink, first) = (sink.into(), cursor.clone());
        let mut made = Self { path: path.clone(), sink, file, generation: 0, cursor: first, hold: None };
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
        self.change(|cursor| cursor.acknowledge(to))
    }

    /// Changes course.
    pub fn change(&mut self, change: impl FnOnce(&mut Cursor)) -> io::Result<()> {
        let mut cursor = self.cursor.clone();
        change(&mut cursor);
        self.put(self.next(cursor))
    }

    /// This as the next state, which is not written yet.
    pub const fn next(&self, cursor: Cursor) -> Slot {
        Slot { generation: self.generation + 1, cursor }
    }

    /// Whether this state is later than the one that is here.
    pub const fn is_before(&self, slot: &Slot) -> bool {
        self.generation < slot.generation
    }

    fn write(&mut self, cursor: Cursor) -> io::Result<()> {
        self.put(self.next(cursor))
    }

    /// Writes a state.
    pub fn put(&mut self, slot: Slot) -> io::Result<()> {
        let payload = postcard::to_stdvec(&slot).map_err(io::Error::other)?;
        let mut bytes = [0; SLOT_LEN];
        let len = u16::try_from(payload.len()).map_err(io::Error::other)?;
        bytes[4..6].copy_from_slice(&len.to_le_bytes());
        bytes.get_mut(6..6 + payload.len()).ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(&payload);
        let crc = checksum(&self.sink, &bytes[4..]);
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

/// What a cursor file says. One that was lost, of which nothing is left, is damaged like any other.
fn read(file: &dyn DiskFile, path: &Path, sink: &str, log_id: &str) -> Result<Slot, OpenError> {
    let mut bytes = vec![0; 2 * SLOT_LEN];
    let read = read_up_to(file, &mut bytes, 0);
    let read = read.map_err(|source| OpenError::Directory { operation: "read", path: path.into(), source })?;
    let damaged = |problem: &str| OpenError::Damaged { file: path.into(), offset: 0, problem: problem.into() };
    let slot = newest(&bytes[..read], sink);
    let slot = slot.ok_or_else(|| damaged("neither copy in it is a whole cursor of this sink"))?;
    if slot.cursor.log_id != log_id {
        return Err(damaged("the cursor is of another log"));
    }
    Ok(slot)
}

/// The newer of the two copies that are whole.
fn newest(bytes: &[u8], sink: &str) -> Option<Slot> {
    let whole = bytes.chunks(SLOT_LEN).filter_map(|chunk| parse_slot(chunk.try_into().ok()?, sink));
    whole.max_by_key(|slot| slot.generation)
}

/// Over the name of the sink and what the slot holds behind its checksum: a file that has come under another name is not what was
/// written there.
fn checksum(sink: &str, rest: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(sink.as_bytes()), rest)
}

fn parse_slot(bytes: &[u8; SLOT_LEN], sink: &str) -> Option<Slot> {
    let (crc, rest) = bytes.split_first_chunk::<4>()?;
    let (len, payload) = rest.split_first_chunk::<2>()?;
    if checksum(sink, rest) != u32::from_le_bytes(*crc) {
        return None;
    }
    postcard::from_bytes(payload.get(..u16::from_le_bytes(*len) as usize)?).ok()
}

/// The cursors of all sinks that have ever had one here. A damaged one is refused by its file: what its sink has not read yet is not
/// known, and nobody may take it for nothing.
pub(super) fn all_in(directory: &Path, log_id: &str) -> Result<Vec<(String, Cursor)>, OpenError> {
    all_on(&Volume, directory, log_id)
}

pub(super) fn all_on(disk: &dyn Disk, directory: &Path, log_id: &str) -> Result<Vec<(String, Cursor)>, OpenError> {
    let each = each_on(disk, directory, log_id)?.into_iter();
    each.map(|Found { sink, cursor, .. }| Ok((sink, cursor?))).collect()
}

/// A file with a sink's cursor.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) sink: String,
    pub(super) cursor: Result<Cursor, OpenError>,
}

/// Every cursor for itself, by the name of its sink.
pub(super) fn each_on(disk: &dyn Disk, directory: &Path, log_id: &str) -> Result<Vec<Found>, OpenError> {
    let failed = |path: &Path, source| OpenError::Directory { operation: "read", path: path.into(), source };
    let mut names = disk.list(directory).map_err(|source| failed(directory, source))?;
    names.sort();
    let mut each = Vec::new();
    for name in names {
        let Some(sink) = name.strip_suffix(".cursor") else { continue };
        let path = directory.join(&name);
        let file = disk.open(&path, Access::Read).map_err(|source| failed(&path, source))?;
        let cursor = read(&*file, &path, sink, log_id).map(|slot| slot.cursor);
        each.push(Found { sink: sink.into(), cursor, path });
    }
    Ok(each)
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
    fn no_receiver_is_further_than_what_was_noted_before_it_was_sent() {
        let mut cursor = Cursor::new("L", 7);
        assert_eq!(cursor.furthest_sent(), 7);
        cursor.in_flight = Some((8, 12));
        assert_eq!(cursor.furthest_sent(), 12);
        cursor.acknowledge_part(10);
        assert_eq!((cursor.acknowledged, cursor.in_flight, cursor.furthest_sent()), (10, Some((11, 12)), 12));
        cursor.acknowledge_part(12);
        assert_eq!((cursor.acknowledged, cursor.in_flight), (12, None));
        cursor.replay(3, Timestamp::UNIX_EPOCH);
        assert_eq!(cursor.furthest_sent(), 12, "a replay goes back behind it");
        cursor.catch_up("audit", Cause::Asked, 0, 99, Timestamp::UNIX_EPOCH);
        assert_eq!(cursor.furthest_sent(), 99);
    }

    #[test]
    fn a_catch_up_comes_back_with_the_longest_place_there_may_be() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = CursorFile::create(directory.path(), "audit", "L", 7).unwrap();
        file.change(|cursor| cursor.catch_up("audit", Cause::Behind, 7, 99, Timestamp::UNIX_EPOCH)).unwrap();
        assert_eq!((file.cursor().needs(), file.cursor().settled()), (100, 7), "the log behind it is kept");
        const MAX: u64 = u64::MAX - 1;
        let largest = |after: usize| CatchUp {
            cause: Cause::Again,
            since: MAX,
            from: MAX,
            head: MAX,
            id: Id([0xff; 16]),
            at: "9999-12-30T22:00:00.999999999Z".parse().unwrap(),
            announced: true,
            after: Some(vec![b'x'; after]),
            given: Given { created: MAX, updated: MAX, deleted: MAX },
        };
        // With all else as large as it can be.
        let log_id = "L".repeat(26);
        let mut large = CursorFile::create(directory.path(), "large", &log_id, MAX).unwrap();
        (large.generation, large.cursor.in_flight) = (MAX, Some((MAX, MAX)));
        large.change(|cursor| cursor.errand = Some(Errand::CatchUp(largest(LONGEST_PLACE)))).unwrap();
        let read = CursorFile::open(directory.path(), "large", &log_id).unwrap().unwrap();
        assert_eq!(read.cursor(), large.cursor());
        // The names of most objects are far from that.
        const { assert!(253 + 1 + 253 + 1 + 63 + 1 + 63 + 1 + 253 + 1 + 128 < LONGEST_PLACE) };
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
            assert!(newest(&bytes, "audit").as_ref().is_some_and(written), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 1..whole.len() {
            // The first copy may be older than what is cut off, but it was written.
            assert!(newest(&whole[..len], "audit").as_ref().is_none_or(written), "{len}");
        }
        std::fs::write(file.path(), vec![0; 2 * SLOT_LEN]).unwrap();
        assert!(matches!(again(directory.path()), Err(OpenError::Damaged { .. })));
    }
}
