//! The sinks that are attached, and what the log must keep for each of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::Cursor;
use crate::config::WhenBehind;

/// The attached sinks. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Attached(Arc<Mutex<Sinks>>);

#[derive(Debug, Default)]
struct Sinks {
    needs: HashMap<String, Need>,
    /// Whether all are here that will be. Before that nobody knows what may go.
    complete: bool,
}

/// What one sink needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    /// The first record that it will still read.
    pub(super) from: u64,
    /// Up to where it knows of every delete.
    pub(super) settled: u64,
    /// What happens if the log grows too large before it has read on.
    pub(super) when_behind: WhenBehind,
}

/// One sink's entry, kept up to date by its cursor. It stays until the process ends: a sink whose loop has ended is not one
/// that nobody wants any more.
#[derive(Debug)]
pub(super) struct Hold {
    attached: Attached,
    sink: String,
    when_behind: WhenBehind,
}

impl Attached {
    fn lock(&self) -> MutexGuard<'_, Sinks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry for this sink.
    pub(super) fn hold(&self, sink: &str, when_behind: WhenBehind) -> Hold {
        Hold { attached: self.clone(), sink: sink.into(), when_behind }
    }

    /// There are no more to come.
    pub(super) fn complete(&self) {
        self.lock().complete = true;
    }

    /// What each sink needs; none before all of them are here.
    pub(super) fn needs(&self) -> Option<Vec<(String, Need)>> {
        let sinks = self.lock();
        sinks.complete.then(|| sinks.needs.iter().map(|(sink, need)| (sink.clone(), *need)).collect())
    }
}

impl Hold {
    pub(super) fn update(&self, cursor: &Cursor) {
        let need = Need { from: cursor.needs(), settled: cursor.settled(), when_behind: self.when_behind };
        self.attached.lock().needs.insert(self.sink.clone(), need);
    }
}
