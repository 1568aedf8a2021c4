//! A receiver in memory: what is durable there, what is not yet, and what it refuses.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use kubetide_sink::{Decision, Record, SinkError, format};
use tokio::time::sleep;

#[derive(Default)]
pub(crate) struct State {
    /// Place and bytes of each record. A crash cannot take them back.
    pub(crate) durable: Vec<(u64, Vec<u8>)>,
    /// The places of these.
    pub(crate) known: HashSet<u64>,
    /// What a reader sees, and a crash takes away.
    pub(crate) volatile: Vec<(u64, Vec<u8>)>,
    pub(crate) cursor: Option<Bytes>,
    /// How often it was killed: what was on its way then is lost.
    pub(crate) kills: u64,
    pub(crate) is_down: bool,
    pub(crate) is_slow: bool,
    pub(crate) is_shut: bool,
    pub(crate) poison: HashSet<u64>,
    pub(crate) limit: Option<usize>,
    pub(crate) password: String,
    /// What the sink reads as its password.
    pub(crate) file: String,
    /// What broken sinks keep beside the receiver.
    pub(crate) notes: Vec<kubetide_sink::Id>,
}

#[derive(Clone)]
pub(crate) struct Receiver(Arc<Mutex<State>>);

/// A connection to it: gone when it is killed.
pub(crate) struct Connection {
    receiver: Receiver,
    kills: u64,
}

impl Receiver {
    pub(crate) fn new() -> Self {
        let [password, file] = ["old-secret", "old-secret"].map(str::to_owned);
        Self(Arc::new(Mutex::new(State { password, file, ..State::default() })))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// With this password.
    pub(crate) fn connect(&self, password: &str) -> Result<Connection, SinkError> {
        let state = self.lock();
        if state.is_down {
            return Err(SinkError::retry("connect: refused"));
        }
        if state.is_shut || state.password != password {
            return Err(SinkError::hold("connect: not let in"));
        }
        Ok(Connection { receiver: self.clone(), kills: state.kills })
    }
}

impl Connection {
    /// The way there and back.
    pub(crate) async fn travel(&self) -> Result<MutexGuard<'_, State>, SinkError> {
        let pause = if self.receiver.lock().is_slow { Duration::from_millis(50) } else { Duration::from_millis(1) };
        sleep(pause).await;
        let state = self.receiver.lock();
        if state.kills != self.kills || state.is_down {
            return Err(SinkError::retry("write: the connection is lost"));
        }
        Ok(state)
    }
}

impl State {
    /// Why the record is not taken, if it is not.
    pub(crate) fn refusal(&self, record: &Record, size: usize) -> Option<SinkError> {
        if self.poison.contains(&record.seq) {
            return Some(SinkError::new(Decision::Poison, format!("write: record {} is refused", record.seq)));
        }
        let limit = self.limit.filter(|limit| size > *limit)?;
        let message = format!("write: record {} has {size} bytes, allowed: {limit}", record.seq);
        Some(SinkError::new(Decision::Oversize, message))
    }
}

pub(crate) fn written(record: &Record) -> Vec<u8> {
    let mut bytes = Vec::new();
    format::native(record, &mut bytes);
    bytes
}
