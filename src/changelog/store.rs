//! The store: rows, stream states, and the keys of LISTs under way, in fjall.
//!
//! It is built from the log and only ever behind it: each batch says up to which place of the log it has been applied,
//! and opening replays the frames from there. So its batches need not be synced one by one.

mod manifest;
mod presence;

use std::{collections::HashMap, ops::Bound, path::Path};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode, Readable as _};
use jiff::Timestamp;
use kubetide_sink::{Body, Id, Op, Origin, Record, Stream};
use serde::{Deserialize, Serialize};

use super::{OpenError, Phase, StreamState, frame::Frame, room, segment};
use crate::{
    change::{Managed, ObjectKey, ResourceVersion, Row},
    private,
};

/// Memory must not grow with the number of objects: blocks are cached up to this and no further.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;
/// A memtable is written out at this size: a small store and a large one hold about the same in memory.
const MEMTABLE_BYTES: u64 = 8 * 1024 * 1024;
/// For small values, read once if ever.
const SMALL_MEMTABLE_BYTES: u64 = 1024 * 1024;
/// Keys that are removed in one batch.
const REMOVED_AT_ONCE: usize = 1000;
/// Old journals are dropped when their memtables have been written out; this bounds the replay of fjall itself.
const JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

const APPLIED: &str = "applied";
const BURIED: &str = "buried";
const CLUSTER: &str = "cluster";
const STATE: &str = "state/";
/// The keyspaces, in the order in which they are made.
const KEYSPACES: [&str; 5] = ["rows", "listed", "tombstones", "graves", "meta"];

/// Rows by key; none for one that is gone.
pub(super) type Rows = HashMap<Vec<u8>, Option<Row>>;

/// The open store.
#[derive(Clone)]
pub(super) struct Store {
    database: Database,
    /// stream ∥ 0 ∥ namespace ∥ 0 ∥ name → [`Row`].
    rows: Keyspace,
    /// stream ∥ 0 ∥ generation ∥ namespace ∥ 0 ∥ name → nothing: what the LIST under way has shown.
    listed: Keyspace,
    /// key of the row ∥ 0 ∥ uid → [`Tombstone`].
    tombstones: Keyspace,
    /// seq → key of the tombstone that was laid there, so that those that nobody needs are found.
    graves: Keyspace,
    meta: Keyspace,
}

/// What is kept of an object that is gone, until every attached sink knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tombstone {
    pub(super) uid: String,
    pub(super) resource_version: String,
    pub(super) previous_resource_version: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) origin: Origin,
    pub(super) id: Id,
    pub(super) seq: u64,
    #[serde(with = "jiff::fmt::serde::timestamp::microsecond::required")]
    pub(super) observed_at: Timestamp,
}

/// One step of a walk over everything that is known.
pub(super) enum Step {
    Row(Row),
    Tombstone(Tombstone),
}

impl Store {
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        presence::check(path)?;
        manifest::check(path)?;
        // The files in it are fjall's own, and as the umask has them.
        let made = private::make_directory(path);
        made.map_err(|source| OpenError::Directory { operation: "make", path: path.into(), source })?;
        let opened = || -> fjall::Result<Option<Self>> {
            let database = Database::builder(path)
                .cache_size(CACHE_BYTES)
                .max_journaling_size(JOURNAL_BYTES)
                // One of two keeps memtables small while the other compacts; a single one would let them grow meanwhile.
                .worker_threads(2)
                .open()?;
            if is_one_missing(&database) {
                return Ok(None);
            }
            let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
            // Objects apart from keys: the comparison with a LIST walks the keys alone.
            let [rows, listed, tombstones, graves, meta] = KEYSPACES;
            let rows =
                database.keyspace(rows, || options().with_kv_separation(Some(KvSeparationOptions::default())))?;
            let listed = database.keyspace(listed, || options().max_memtable_size(SMALL_MEMTABLE_BYTES))?;
            let tombstones = database.keyspace(tombstones, || options().max_memtable_size(SMALL_MEMTABLE_BYTES))?;
            let graves = database.keyspace(graves, || options().max_memtable_size(SMALL_MEMTABLE_BYTES))?;
            let holds_nothing = rows.is_empty()? && tombstones.is_empty()?;
            if !database.keyspace_exists(meta) && !holds_nothing {
                return Ok(None);
            }
            let meta = database.keyspace(meta, options)?;
            listed.clear()?;
            Ok(Some(Self { database, rows, listed, tombstones, graves, meta }))
        };
        let store = opened().map_err(|source| OpenError::Store { path: path.into(), source })?;
        store.ok_or_else(|| OpenError::Damaged {
            file: path.join("keyspaces"),
            offset: 0,
            problem: "one of the directories in it is missing".into(),
        })
    }

    /// Up to where the log has been applied; none for an empty store.
    pub(super) fn applied(&self) -> Result<Option<segment::Place>, StoreError> {
        self.meta.get(APPLIED)?.map(|value| Ok(postcard::from_bytes(&value)?)).transpose()
    }

    /// The uid of the cluster that the rows are from.
    pub(super) fn cluster_uid(&self) -> Result<Option<String>, StoreError> {
        Ok(self.meta.get(CLUSTER)?.map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    pub(super) fn set_cluster_uid(&self, uid: &str) -> Result<(), StoreError> {
        self.meta.insert(CLUSTER, uid)?;
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }

    pub(super) fn state(&self, stream: &str) -> Result<StreamState, StoreError> {
        let value = self.meta.get(format!("{STATE}{stream}"))?;
        let read = |value: fjall::UserValue| Ok(postcard::from_bytes::<(Stream, StreamState)>(&value)?.1);
        value.map_or(Ok(StreamState::default()), read)
    }

    /// Every stream that was ever followed, with its state.
    pub(super) fn states(&self) -> Result<Vec<(Stream, StreamState)>, StoreError> {
        self.meta.prefix(STATE).map(|entry| Ok(postcard::from_bytes(&entry.value()?)?)).collect()
    }

    pub(super) fn row(&self, stream: &Stream, key: &ObjectKey) -> Result<Option<Row>, StoreError> {
        self.rows.get(row_key(stream, key))?.map(|value| Ok(postcard::from_bytes(&value)?)).transpose()
    }

    /// What is left of an object that is gone, as long as a sink may need it.
    pub(super) fn tombstone(
        &self,
        stream: &Stream,
        key: &ObjectKey,
        uid: &str,
    ) -> Result<Option<Tombstone>, StoreError> {
        let place = [&row_key(stream, key)[..], &[0], uid.as_bytes()].concat();
        self.tombstones.get(place)?.map(|value| Ok(postcard::from_bytes(&value)?)).transpose()
    }

    /// The rows as a frame leaves them: for one that is applied again.
    pub(super) fn rows_after(&self, frame: &Frame) -> Result<Rows, StoreError> {
        let mut rows = Rows::new();
        let mut seen = frame.seen.iter().peekable();
        let mut note = |rows: &mut Rows, before: u64| -> Result<(), StoreError> {
            while let Some(seen) = seen.next_if(|seen| seen.before <= before) {
                let key = row_key(&seen.stream, &seen.key);
                let row = match rows.get(&key) {
                    Some(row) => row.clone(),
                    None => self.row(&seen.stream, &seen.key)?,
                };
                rows.insert(key, row.map(|row| seen.moves(row)));
            }
            Ok(())
        };
        for (record, managed) in frame.records.iter().zip(&frame.managed) {
            note(&mut rows, record.seq)?;
            let Body::Change(change) = &record.body else { continue };
            let key = ObjectKey { namespace: change.namespace.clone(), name: change.name.clone() };
            let before = match rows.get(&row_key(&record.stream, &key)) {
                Some(row) => row.clone(),
                None => self.row(&record.stream, &key)?,
            };
            rows.extend(row_change(record, managed, before.as_ref()));
        }
        note(&mut rows, u64::MAX)?;
        Ok(rows)
    }

    /// Applies a frame that is in the log up to `place`, with the rows as it leaves them, and notes what the LIST under way
    /// has shown.
    pub(super) fn apply(
        &self,
        frame: &Frame,
        rows: &Rows,
        listed: &[Listed],
        place: segment::Place,
    ) -> Result<(), StoreError> {
        for (stream, state) in &frame.states {
            // Where it was removed with this very frame, the deletes of its last rows are in it too.
            let is_forgotten = state.removal.is_none_or(|removal| removal.seq < frame.first_seq);
            if matches!(state.phase, Phase::New) && is_forgotten {
                self.forget_rows(stream, frame.first_seq - 1)?;
            }
        }
        let mut batch = self.database.batch();
        for (key, row) in rows {
            match row {
                Some(row) => batch.insert(&self.rows, key.as_slice(), postcard::to_stdvec(row)?),
                None => batch.remove(&self.rows, key.as_slice()),
            }
        }
        for record in &frame.records {
            if let Some((key, tombstone)) = tombstone(record) {
                batch.insert(&self.tombstones, key.as_slice(), postcard::to_stdvec(&tombstone)?);
                batch.insert(&self.graves, record.seq.to_be_bytes(), key);
            }
        }
        for (stream, state) in &frame.states {
            batch.insert(&self.meta, format!("{STATE}{stream}"), postcard::to_stdvec(&(stream.as_ref(), state))?);
        }
        for listed in listed {
            match listed {
                Listed::Shown(key) => batch.insert(&self.listed, key.as_slice(), ""),
                Listed::Gone(key) => batch.remove(&self.listed, key.as_slice()),
            }
        }
        batch.insert(&self.meta, APPLIED, postcard::to_stdvec(&place)?);
        Ok(batch.commit()?)
    }

    /// The known objects of the stream that the LIST of this generation did not show, in key order.
    pub(super) fn vanished(
        &self,
        stream: &Stream,
        generation: u64,
    ) -> impl Iterator<Item = Result<ObjectKey, StoreError>> {
        let row_prefix = stream_prefix(stream);
        let listed_prefix = listed_prefix(stream, generation);
        // One view of both, while other streams go on writing.
        let snapshot = self.database.snapshot();
        let mut listed = snapshot.prefix(&self.listed, &listed_prefix).map(|entry| entry.key()).peekable();
        let rows = snapshot.prefix(&self.rows, &row_prefix);
        let (row_skip, listed_skip) = (row_prefix.len(), listed_prefix.len());
        rows.filter_map(move |entry| {
            let key = match entry.key() {
                Ok(key) => key,
                Err(error) => return Some(Err(error.into())),
            };
            let place = &key[row_skip..];
            while listed.next_if(|listed| matches!(listed, Ok(key) if &key[listed_skip..] < place)).is_some() {}
            match listed.peek() {
                Some(Ok(shown)) if &shown[listed_skip..] == place => None,
                Some(Err(_)) => listed.next().map(|error| Err(error.map_or_else(Into::into, |_| StoreError::Key))),
                _ => Some(object_key(place)),
            }
        })
    }

    /// Notes keys that a LIST apart from the log's own has shown.
    pub(super) fn note_listed(
        &self,
        stream: &Stream,
        generation: u64,
        keys: &mut dyn Iterator<Item = &ObjectKey>,
    ) -> Result<(), StoreError> {
        let mut batch = self.database.batch();
        for key in keys {
            batch.insert(&self.listed, listed_key(stream, generation, key), "");
        }
        Ok(batch.commit()?)
    }

    /// Removes the tombstones up to `seq`, at most `limit` of them. Whether there are more.
    pub(super) fn bury(&self, seq: u64, limit: usize) -> Result<bool, StoreError> {
        if self.buried()? >= seq {
            return Ok(false);
        }
        let mut batch = self.database.batch();
        let mut graves = self.graves.range(..=seq.to_be_bytes());
        let mut up_to = seq;
        let mut more = false;
        for (count, grave) in graves.by_ref().enumerate() {
            let (at, key) = grave.into_inner()?;
            let at_seq = u64::from_be_bytes(at.as_ref().try_into().map_err(|_| StoreError::Key)?);
            if count == limit {
                (up_to, more) = (at_seq - 1, true);
                break;
            }
            // The object may have come back and gone again: that tombstone is younger.
            let laid = self.tombstones.get(&key)?.map(|value| postcard::from_bytes::<Tombstone>(&value)).transpose()?;
            if laid.is_some_and(|laid| laid.seq == at_seq) {
                batch.remove(&self.tombstones, key);
            }
            batch.remove(&self.graves, at);
        }
        batch.insert(&self.meta, BURIED, postcard::to_stdvec(&up_to)?);
        batch.commit()?;
        Ok(more)
    }

    /// Up to where tombstones are gone: a sink that has not read up to there cannot be told what was deleted.
    pub(super) fn buried(&self) -> Result<u64, StoreError> {
        Ok(self.meta.get(BURIED)?.map(|value| postcard::from_bytes(&value)).transpose()?.unwrap_or(0))
    }

    /// Everything that is known behind `after`, in the order of keys: the tombstones of a name before its row. With each step
    /// comes the place to go on behind.
    pub(super) fn walk(&self, after: Option<&[u8]>) -> impl Iterator<Item = Result<(Place, Step), StoreError>> {
        let behind = after.map_or(Bound::Unbounded, Bound::Excluded);
        let row_from = after.map_or(Bound::Unbounded, |after| Bound::Included(row_part(after)));
        // One view of both, while the writer goes on.
        let snapshot = self.database.snapshot();
        let done = after.map(<[u8]>::to_vec);
        let mut tombstones = snapshot
            .range::<&[u8], _>(&self.tombstones, (behind, Bound::Unbounded))
            .map(|entry| entry.into_inner())
            .peekable();
        let mut rows = snapshot
            .range::<&[u8], _>(&self.rows, (row_from, Bound::Unbounded))
            .map(|entry| entry.into_inner().map(|(key, value)| (place_of_row(&key), value)))
            .skip_while(move |entry| matches!((entry, &done), (Ok((place, _)), Some(done)) if place <= done))
            .peekable();
        std::iter::from_fn(move || {
            let tombstone_first = match (tombstones.peek(), rows.peek()) {
                (Some(Ok((tombstone, _))), Some(Ok((row, _)))) => tombstone.as_ref() < row.as_slice(),
                (Some(_), _) => true,
                (None, _) => false,
            };
            let step = if tombstone_first {
                tombstones
                    .next()?
                    .map_err(StoreError::from)
                    .and_then(|(key, value)| Ok((key.to_vec(), Step::Tombstone(postcard::from_bytes(&value)?))))
            } else {
                rows.next()?
                    .map_err(StoreError::from)
                    .and_then(|(place, value)| Ok((place, Step::Row(postcard::from_bytes(&value)?))))
            };
            Some(step)
        })
    }

    /// How many objects of the stream are known.
    pub(super) fn row_count(&self, stream: &Stream) -> Result<u64, StoreError> {
        self.rows.prefix(stream_prefix(stream)).try_fold(0, |count, entry| Ok(entry.key().map(|_| count + 1)?))
    }

    /// The rows of the stream behind `after`, in key order.
    pub(super) fn rows_behind(
        &self,
        stream: &Stream,
        after: Option<&ObjectKey>,
    ) -> impl Iterator<Item = Result<(ObjectKey, Row), StoreError>> + use<> {
        let prefix = stream_prefix(stream);
        let from = after.map_or(Bound::Included(prefix.clone()), |after| Bound::Excluded(row_key(stream, after)));
        let pairs = self.rows.range((from, Bound::Unbounded)).map(|entry| entry.into_inner());
        let of = prefix.clone();
        let pairs = pairs.take_while(move |pair| pair.as_ref().map_or(true, |(key, _)| key.starts_with(&of)));
        pairs.map(move |pair| {
            let (key, value) = pair?;
            Ok((object_key(&key[prefix.len()..])?, postcard::from_bytes(&value)?))
        })
    }

    /// Drops every row of a stream that is followed no more. They leave no tombstones: who has not read up to `seq` cannot be told.
    fn forget_rows(&self, stream: &Stream, seq: u64) -> Result<(), StoreError> {
        let prefix = stream_prefix(stream);
        if self.rows.prefix(&prefix).next().is_none() {
            return Ok(());
        }
        let buried = self.buried()?.max(seq);
        self.meta.insert(BURIED, postcard::to_stdvec(&buried)?)?;
        self.remove_all(&self.rows, &prefix)
    }

    /// Forgets what the LIST of this generation has shown.
    pub(super) fn forget_listed(&self, stream: &Stream, generation: u64) -> Result<(), StoreError> {
        self.remove_all(&self.listed, &listed_prefix(stream, generation))
    }

    /// Removes every key with this prefix. A part at a time, each found anew: an iterator that stays open keeps in memory what was
    /// removed behind it.
    fn remove_all(&self, keyspace: &Keyspace, prefix: &[u8]) -> Result<(), StoreError> {
        let mut from = Bound::Included(prefix.to_vec());
        loop {
            let keys = keyspace
                .range::<Vec<u8>, _>((from.clone(), Bound::Unbounded))
                .map(|entry| entry.key())
                .take(REMOVED_AT_ONCE);
            let keys = keys.collect::<Result<Vec<_>, _>>()?;
            let mut batch = self.database.batch();
            let within = keys.iter().take_while(|key| key.starts_with(prefix)).count();
            for key in &keys[..within] {
                batch.remove(keyspace, key.clone());
            }
            batch.commit()?;
            match keys[..within].last() {
                Some(last) if within == REMOVED_AT_ONCE => from = Bound::Excluded(last.to_vec()),
                _ => return Ok(()),
            }
        }
    }

    /// Makes everything applied so far durable.
    pub(super) fn sync(&self) -> Result<(), StoreError> {
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}

/// Whether a keyspace is not there, though a later one was made: it would be made anew, and empty.
fn is_one_missing(database: &Database) -> bool {
    let is_there = KEYSPACES.map(|name| database.keyspace_exists(name));
    let made = is_there.iter().take_while(|is_there| **is_there).count();
    is_there[made..].contains(&true)
}

/// What the store cannot do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// fjall failed.
    #[error("{}", plain(.0))]
    Fjall(#[from] fjall::Error),
    /// A value in the store is not what was written there.
    #[error("a value in the store cannot be read")]
    Value(#[from] postcard::Error),
    /// A key in the store is not what was written there.
    #[error("a key in the store cannot be read")]
    Key,
}

impl StoreError {
    /// Whether something failed before this, so that nothing more is taken.
    pub(super) const fn is_dead(&self) -> bool {
        matches!(self, Self::Fjall(fjall::Error::Poisoned))
    }
}

/// fjall prints its errors for programmers. What people can do something about is what the operating system said.
pub(super) fn plain(error: &fjall::Error) -> String {
    let system = room::system_errors(error).find(|error| error.raw_os_error().is_some());
    match (system, error) {
        (Some(system), _) => system.to_string(),
        (None, fjall::Error::Poisoned) => "a write to it has failed before".into(),
        (None, fjall::Error::Locked) => "another process has it open".into(),
        (None, fjall::Error::InvalidVersion(_)) => "it is in a format that this version does not know".into(),
        // What is left in words of its own: a write that took nothing, an end before the end.
        (None, fjall::Error::Io(error)) => error.to_string(),
        (None, _) => "its files are not what was written".into(),
    }
}

/// A key that a LIST has shown, or that was deleted before the LIST was complete.
pub(super) enum Listed {
    Shown(Vec<u8>),
    Gone(Vec<u8>),
}

impl Listed {
    pub(super) fn shown(stream: &Stream, generation: u64, key: &ObjectKey) -> Self {
        Self::Shown(listed_key(stream, generation, key))
    }

    pub(super) fn gone(stream: &Stream, generation: u64, key: &ObjectKey) -> Self {
        Self::Gone(listed_key(stream, generation, key))
    }
}

fn listed_key(stream: &Stream, generation: u64, key: &ObjectKey) -> Vec<u8> {
    let mut bytes = listed_prefix(stream, generation);
    push_key(&mut bytes, key);
    bytes
}

/// What a record does to the row of its object: the same when it is appended and when it is replayed.
pub(super) fn row_change(record: &Record, managed: &Managed, before: Option<&Row>) -> Option<(Vec<u8>, Option<Row>)> {
    let Body::Change(change) = &record.body else { return None };
    let mut key = stream_prefix(&record.stream);
    push_key(&mut key, &ObjectKey { namespace: change.namespace.clone(), name: change.name.clone() });
    let version = ResourceVersion::new(&change.resource_version);
    let row = (change.op != Op::Delete).then(|| Row {
        uid: change.uid.clone(),
        seen: version.clone(),
        logged: version,
        id: record.id,
        seq: record.seq,
        since: before.filter(|before| before.uid == change.uid).map_or(record.seq, |before| before.since),
        observed_at: record.observed_at,
        generation: change.generation,
        managed: managed.clone(),
        object: change.object.clone(),
    });
    Some((key, row))
}

/// What a record leaves of an object that is gone.
fn tombstone(record: &Record) -> Option<(Vec<u8>, Tombstone)> {
    let Body::Change(change) = &record.body else { return None };
    if change.op != Op::Delete {
        return None;
    }
    let mut key = stream_prefix(&record.stream);
    push_key(&mut key, &ObjectKey { namespace: change.namespace.clone(), name: change.name.clone() });
    key.push(0);
    key.extend_from_slice(change.uid.as_bytes());
    let tombstone = Tombstone {
        uid: change.uid.clone(),
        resource_version: change.resource_version.clone(),
        previous_resource_version: change.previous_resource_version.clone(),
        generation: change.generation,
        origin: change.origin,
        id: record.id,
        seq: record.seq,
        observed_at: record.observed_at,
    };
    Some((key, tombstone))
}

/// A place in a walk: the key of a tombstone, or that of a row with an end that stands behind every uid.
pub(super) type Place = Vec<u8>;

fn place_of_row(key: &[u8]) -> Place {
    [key, &[0, 0xff]].concat()
}

/// The key of the row that a place belongs to.
fn row_part(place: &[u8]) -> &[u8] {
    // A uid holds no zero byte.
    place.iter().rposition(|byte| *byte == 0).map_or(place, |at| &place[..at])
}

/// The stream's name and the object's key that a place belongs to.
pub(super) fn read_place(place: &[u8]) -> Result<(&str, ObjectKey), StoreError> {
    let key = row_part(place);
    let at = key.iter().position(|byte| *byte == 0).ok_or(StoreError::Key)?;
    let stream = std::str::from_utf8(&key[..at]).map_err(|_| StoreError::Key)?;
    Ok((stream, object_key(&key[at + 1..])?))
}

pub(super) fn row_key(stream: &Stream, key: &ObjectKey) -> Vec<u8> {
    let mut bytes = stream_prefix(stream);
    push_key(&mut bytes, key);
    bytes
}

// Names in Kubernetes never hold a zero byte, so that it can stand between them, below everything else.
fn stream_prefix(stream: &Stream) -> Vec<u8> {
    let mut bytes = stream.to_string().into_bytes();
    bytes.push(0);
    bytes
}

fn listed_prefix(stream: &Stream, generation: u64) -> Vec<u8> {
    let mut bytes = stream_prefix(stream);
    bytes.extend_from_slice(&generation.to_be_bytes());
    bytes
}

fn push_key(bytes: &mut Vec<u8>, key: &ObjectKey) {
    bytes.extend_from_slice(key.namespace.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.name.as_bytes());
}

fn object_key(place: &[u8]) -> Result<ObjectKey, StoreError> {
    let text = std::str::from_utf8(place).map_err(|_| StoreError::Key)?;
    let (namespace, name) = text.split_once('\0').ok_or(StoreError::Key)?;
    Ok(ObjectKey { namespace: namespace.into(), name: name.into() })
}
