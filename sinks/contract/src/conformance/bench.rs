//! What a sink's own tests give to the suite: the sink, its receiver, and the ways to spoil it.

use std::time::Duration;

use async_trait::async_trait;

use super::Case;
use crate::{Record, Sink};

/// A sink and its real receiver, for one case: a topic, a stream, a file of its own.
///
/// What cannot be set up is no finding about the sink: a bench panics then. Each step that spoils or mends the receiver is over, and
/// in force, when its future is.
#[async_trait(?Send)]
pub trait Bench {
    /// What the sink says of itself.
    fn promises(&self) -> Promises;

    /// Why this case cannot occur with this receiver, in words, where it cannot. The steps that only such cases ask for need
    /// not be there.
    fn cannot(&self, case: Case) -> Option<&'static str> {
        let _ = case;
        None
    }

    /// Every credential that is used, old and new: none may be in a message.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// How long a sink may take to get anything through to a receiver that is there.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Opens the sink in the native format, as a process does that has just been started. The one that was opened before is
    /// dropped by then, in the middle of whatever it did.
    async fn open(&mut self) -> Box<dyn Sink>;

    /// Everything that is there, as a reader finds it.
    async fn kept(&mut self) -> Vec<Kept>;

    /// Kills the receiver hard, as `kill -9` does.
    async fn stop(&mut self) {
        missing("stop")
    }

    /// Starts it again, where it was and with what it had.
    async fn start(&mut self) {
        missing("start")
    }

    /// Makes it slow, or as fast as it was.
    async fn slow(&mut self, is_slow: bool) {
        let _ = is_slow;
        missing("slow")
    }

    /// Makes it refuse this record for good, whatever else it takes; returns the record, changed if that is how.
    async fn poison(&mut self, record: Record) -> Record {
        let _ = record;
        missing("poison")
    }

    /// It takes no record any more that is larger than about so many bytes, and all that are smaller.
    async fn limit(&mut self, bytes: usize) {
        let _ = bytes;
        missing("limit")
    }

    /// Makes it refuse everything until an operator acts: credentials, a missing topic. Nothing was delivered yet.
    async fn shut(&mut self) {
        missing("shut")
    }

    /// What the operator does then.
    async fn mend(&mut self) {
        missing("mend")
    }

    /// It takes another credential from now on, and the one that the sink has no more.
    async fn rotate(&mut self) {
        missing("rotate")
    }

    /// Puts the new credential where the sink reads it.
    async fn hand_over(&mut self) {
        missing("hand_over")
    }
}

#[track_caller]
fn missing(step: &str) -> ! {
    panic!("the bench does not say that the case cannot occur, and has no step `{step}` for it")
}

/// What a sink says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// Whether the cursor is committed with the records.
    pub exactly_once: bool,
    /// What comes of a batch that is delivered again after a crash.
    pub repeats: Repeats,
}

/// What comes of a batch that is delivered again after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeats {
    /// It may be there again, and only it.
    OneBatch,
    /// Each record is there once.
    Nothing,
}

/// One record as the receiver has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Within a lane the receiver has an order: a partition. One for all if it has an order of everything.
    pub lane: usize,
    /// The record in the native format, byte for byte.
    pub record: Vec<u8>,
}
