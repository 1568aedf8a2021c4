//! What the source may ask about the rows: what a LIST of its own differs in, what it lacks, what is known of one object.
//!
//! Answers are as of what is durable: whoever has just appended flushes first.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use kubetide_sink::Stream;

use super::{StoreError, StreamState, store::Store};
use crate::{
    blocking::blocking,
    change::{Managed, ObjectKey, ResourceVersion, Row},
};

/// An object as a metadata-only LIST shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glimpse {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The uid.
    pub uid: String,
    /// The version.
    pub version: ResourceVersion,
    /// Its managedFields.
    pub managed: Managed,
}

impl Row {
    /// Whether a glimpse of the object shows nothing else than what is known.
    pub fn agrees_with(&self, glimpse: &Glimpse) -> bool {
        self.uid == glimpse.uid && self.seen == glimpse.version && self.managed == glimpse.managed
    }
}

/// The rows, to be read.
#[derive(Clone)]
pub struct Known {
    pub(super) store: Store,
    /// Each LIST has a number of its own for as long as the process lives, or the keys of two would be mixed.
    pub(super) generations: Arc<AtomicU64>,
}

impl Known {
    pub(super) fn new(store: Store) -> Self {
        Self { store, generations: Arc::new(AtomicU64::new(0)) }
    }

    /// The number of a new LIST.
    pub fn new_generation(&self) -> u64 {
        self.generations.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The durable state of a stream.
    pub fn state(&self, stream: &Stream) -> Result<StreamState, StoreError> {
        self.store.state(&stream.to_string())
    }

    /// Every stream that was ever followed, with its state.
    pub fn streams(&self) -> Result<Vec<(Stream, StreamState)>, StoreError> {
        self.store.states()
    }

    /// What is known of one object.
    pub async fn row(&self, stream: &Arc<Stream>, key: ObjectKey) -> Result<Option<Row>, StoreError> {
        let (store, stream) = (self.store.clone(), stream.clone());
        blocking(move || store.row(&stream, &key)).await
    }

    /// At most `limit` known objects of the stream behind `after`, in the order of their namespaces and names.
    pub async fn rows_behind(
        &self,
        stream: &Arc<Stream>,
        after: Option<ObjectKey>,
        limit: usize,
    ) -> Result<Vec<(ObjectKey, Row)>, StoreError> {
        let (store, stream) = (self.store.clone(), stream.clone());
        blocking(move || store.rows_behind(&stream, after.as_ref()).take(limit).collect()).await
    }

    /// Notes that the LIST of `generation` shows these objects, and returns those that differ from what is known.
    pub async fn differing(
        &self,
        stream: &Arc<Stream>,
        generation: u64,
        glimpses: Vec<Glimpse>,
    ) -> Result<Vec<Glimpse>, StoreError> {
        let (store, stream) = (self.store.clone(), stream.clone());
        blocking(move || {
            store.note_listed(&stream, generation, &mut glimpses.iter().map(|glimpse| &glimpse.key))?;
            let mut differing = Vec::new();
            for glimpse in glimpses {
                if !store.row(&stream, &glimpse.key)?.is_some_and(|row| row.agrees_with(&glimpse)) {
                    differing.push(glimpse);
                }
            }
            Ok(differing)
        })
        .await
    }

    /// At most `limit` known objects that the LIST of `generation` did not show. Forgets what it showed.
    pub async fn missing(
        &self,
        stream: &Arc<Stream>,
        generation: u64,
        limit: usize,
    ) -> Result<Vec<ObjectKey>, StoreError> {
        let (store, stream) = (self.store.clone(), stream.clone());
        blocking(move || {
            let missing = store.vanished(&stream, generation).take(limit).collect::<Result<_, _>>()?;
            store.forget_listed(&stream, generation)?;
            Ok(missing)
        })
        .await
    }

    /// How many objects the LIST of `generation` did not show, and how many are known.
    pub async fn vanished(&self, stream: &Arc<Stream>, generation: u64) -> Result<(u64, u64), StoreError> {
        let (store, stream) = (self.store.clone(), stream.clone());
        blocking(move || {
            let vanished = store.vanished(&stream, generation).try_fold(0, |count, key| key.map(|_| count + 1))?;
            // Counting all rows is only worth it where it can matter.
            let rows = if vanished == 0 { 0 } else { store.row_count(&stream)? };
            Ok((vanished, rows))
        })
        .await
    }

    /// Forgets what the LIST of `generation` showed: it was given up.
    pub async fn forget_listed(&self, stream: &Arc<Stream>, generation: u64) -> Result<(), StoreError> {
        let (store, stream) = (self.store.clone(), stream.clone());
        blocking(move || store.forget_listed(&stream, generation)).await
    }
}
