//! What an operator may ask of a sink's loop while it runs.

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};

use super::Taken;
use crate::changelog::{Cause, Cursor, Errand};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Deliver again from this record on.
    Replay {
        /// Its seq.
        from: u64,
    },
    /// Deliver every object that is known, as to a new sink.
    Resnapshot,
    /// Deliver dead letters again.
    Letters {
        /// Those of these places in the log; all if empty.
        seqs: Vec<u64>,
    },
}

/// What was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// The cursor says what comes next.
    Cursor,
    /// These dead letters are to be given again.
    Letters(Taken),
}

impl Order {
    /// Notes in the cursor what is asked of the sink, or says why it cannot be done. The log has the records
    /// `oldest..=head`. Dead letters are noted in a file of theirs, not here: the cursor is left alone.
    pub fn note(&self, sink: &str, cursor: &mut Cursor, oldest: u64, head: u64, at: Timestamp) -> Result<(), String> {
        if let Some(Errand::Letters { .. }) = cursor.errand {
            return Err(format!("sink {sink} is being given dead letters again; ask when it is through"));
        }
        match self {
            Self::Letters { .. } if cursor.errand.is_some() => {
                return Err(format!(
                    "sink {sink} is catching up; replay its dead letters when it follows the log again"
                ));
            }
            Self::Letters { .. } => {}
            Self::Resnapshot => {
                let (cause, head) = match &cursor.errand {
                    Some(Errand::CatchUp(catch_up)) if catch_up.cause != Cause::Asked => (catch_up.cause_anew(), head),
                    // As of what it has read: the log goes on behind that, so that nothing is left out.
                    _ if oldest <= cursor.reached + 1 => (Cause::Asked, cursor.reached),
                    // It has been left behind and has not noticed yet.
                    _ => (Cause::Behind, head),
                };
                cursor.catch_up(sink, cause, 0, head, at);
            }
            Self::Replay { from } => {
                if let Some(Errand::CatchUp(_) | Errand::Loss { .. }) = cursor.errand {
                    return Err(format!("sink {sink} is catching up; replay when it follows the log again"));
                }
                let next = cursor.acknowledged + 1;
                let from = *from;
                if from < oldest {
                    return Err(format!("seq {from} is no longer in the log, which begins with {oldest}"));
                }
                if from > next {
                    return Err(format!("sink {sink} has not been at seq {from} yet: its next record is {next}"));
                }
                cursor.replay(from, at);
            }
        }
        Ok(())
    }
}

/// An order, and where its answer goes: done and durable, or why not.
pub type Ordered = (Order, oneshot::Sender<Result<Noted, String>>);

/// The way to a sink's loop.
#[derive(Clone, Debug)]
pub struct Orders(mpsc::Sender<Ordered>);

impl Orders {
    /// A way, and its other end for the loop.
    pub fn new() -> (Self, mpsc::Receiver<Ordered>) {
        let (sender, receiver) = mpsc::channel(1);
        (Self(sender), receiver)
    }

    /// Asks, and waits until it is noted beside the sink's cursor.
    pub async fn give(&self, order: Order) -> Result<Noted, String> {
        let (answer, answered) = oneshot::channel();
        let gone = || "the sink's loop has ended".to_owned();
        self.0.send((order, answer)).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}
