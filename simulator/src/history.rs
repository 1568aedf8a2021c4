//! What happened to the objects of one resource type, newest last and bounded. Watches read it by version,
//! paged LISTs undo it to see an older state. What it forgot is 410 Expired.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::object::Object;

/// A change of one object.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) version: u64,
    pub(crate) key: Arc<str>,
    /// The state before; None for a create.
    pub(crate) before: Option<Arc<Object>>,
    /// The state after; None for a delete.
    pub(crate) after: Option<Arc<Object>>,
}

/// The version that was asked for is forgotten; `floor` is the oldest that can be resumed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooOld {
    pub(crate) floor: u64,
}

/// A bounded log of events in rising version order.
#[derive(Debug)]
pub(crate) struct History {
    events: VecDeque<Event>,
    limit: usize,
    /// Every event after this version is in `events`.
    floor: u64,
    /// The version of the newest event that was forgotten. It is below the floor after `forget`.
    lost: u64,
}

impl History {
    pub(crate) fn new(limit: usize, floor: u64) -> Self {
        Self { events: VecDeque::new(), limit, floor, lost: floor }
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.events.push_back(event);
        while self.events.len() > self.limit {
            if let Some(gone) = self.events.pop_front() {
                self.floor = gone.version;
                self.lost = gone.version;
            }
        }
    }

    /// Forgets everything up to and including `version`.
    pub(crate) fn forget(&mut self, version: u64) {
        if let Some(newest) = self.events.back() {
            self.lost = newest.version;
        }
        self.events.clear();
        self.floor = version;
    }

    /// Up to `max` events after `version`, oldest first.
    pub(crate) fn since(&self, version: u64, max: usize) -> Result<Vec<Event>, TooOld> {
        Ok(self.events.range(self.first_after(version)?..).take(max).cloned().collect())
    }

    /// The same for a watch that is open: it may stand below the floor, as long as it missed no event.
    pub(crate) fn since_seen(&self, version: u64, max: usize) -> Result<Vec<Event>, TooOld> {
        self.since(if version >= self.lost { version.max(self.floor) } else { version }, max)
    }

    /// The newest state that was written and fits.
    pub(crate) fn newest(&self, mut fits: impl FnMut(&Object) -> bool) -> Option<Arc<Object>> {
        self.events.iter().rev().filter_map(|event| event.after.clone()).find(|object| fits(object))
    }

    /// How objects that changed after `version` were at `version`; None where there was none.
    pub(crate) fn undo_to(&self, version: u64) -> Result<BTreeMap<Arc<str>, Option<Arc<Object>>>, TooOld> {
        let mut then = BTreeMap::new();
        for event in self.events.range(self.first_after(version)?..) {
            then.entry(Arc::clone(&event.key)).or_insert_with(|| event.before.clone());
        }
        Ok(then)
    }

    fn first_after(&self, version: u64) -> Result<usize, TooOld> {
        if version < self.floor {
            return Err(TooOld { floor: self.floor });
        }
        Ok(self.events.partition_point(|event| event.version <= version))
    }
}
