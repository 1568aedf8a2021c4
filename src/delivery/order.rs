//! What an operator may ask of a sink's loop while it runs.

use tokio::sync::{mpsc, oneshot};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Deliver again from this record on.
    Replay {
        /// Its seq.
        from: u64,
    },
    /// Deliver every object that is known, as to a new sink.
    Resnapshot,
}

/// An order, and where its answer goes: done and durable, or why not.
pub type Ordered = (Order, oneshot::Sender<Result<(), String>>);

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
    pub async fn give(&self, order: Order) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let gone = || "the sink's loop has ended".to_owned();
        self.0.send((order, answer)).await.map_err(|_| gone())?;
        answered.await.unwrap_or_else(|_| Err(gone()))
    }
}
