//! What is told from a row is cleaned by the rules of today.
//!
//! A row holds the object as it was logged. Where a path has been added to `record.redact` or `record.drop` since, the row holds what
//! must not be told any more, until its stream has been compared anew. The scanner takes a few microseconds, so that this is not
//! asked: whatever leaves a row for a record goes through it again.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use kubetide_sink::Stream;

use crate::change::{Cleaner, Cleaning, scan};

/// The rules of today; none before they are known, and for whoever has no configuration.
#[derive(Clone, Default)]
pub(super) struct Today(Arc<OnceLock<Cleaning>>);

impl Today {
    pub(super) fn set(&self, cleaning: Cleaning) {
        // Once, at the start: the configuration is read once.
        let _ = self.0.set(cleaning);
    }

    /// How the rows of a stream are cleaned once more.
    pub(super) fn cleaner(&self, stream: &Stream) -> Option<Cleaner> {
        self.0.get().map(|cleaning| cleaning.cleaner_of_rows(stream))
    }
}

/// The object of a row, cleaned once more; or why it cannot be told.
pub(super) fn cleaned(cleaner: Option<&Cleaner>, object: Bytes) -> Result<Bytes, String> {
    match cleaner {
        Some(cleaner) => scan::observe(cleaner, &object).map_err(|error| error.to_string())?.object,
        None => Ok(object),
    }
}
