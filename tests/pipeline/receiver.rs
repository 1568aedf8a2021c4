//! What a receiver has taken, whatever it is.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use kubetide_test_env::WebhookReceiver;
use serde_json::Value;

use super::PATIENCE;

/// A receiver, as somebody sees it who reads it from its beginning.
pub trait Receiver {
    /// Everything that it has by now, in its order.
    async fn records(&mut self) -> &[Value];

    /// Waits until it has what is wanted.
    async fn until(&mut self, wanted: &str, ready: impl Fn(&[Value]) -> bool) -> &[Value] {
        let since = Instant::now();
        while !ready(self.records().await) {
            let there = self.records().await.len();
            assert!(since.elapsed() < PATIENCE, "not seen in {PATIENCE:?}: {wanted}; {there} records are there");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.records().await
    }
}

/// The whole lines of a file that grows.
pub struct Lines {
    path: PathBuf,
    read: u64,
    pub records: Vec<Value>,
}

impl Lines {
    pub fn of(path: &Path) -> Self {
        Self { path: path.into(), read: 0, records: Vec::new() }
    }
}

impl Receiver for Lines {
    async fn records(&mut self) -> &[Value] {
        if let Ok(mut file) = File::open(&self.path) {
            let mut more = Vec::new();
            file.seek(SeekFrom::Start(self.read)).unwrap();
            file.read_to_end(&mut more).unwrap();
            let whole = more.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            let lines = more[..whole].split_inclusive(|byte| *byte == b'\n');
            self.records.extend(lines.map(|line| serde_json::from_slice::<Value>(line).expect("a line is a record")));
            self.read += whole as u64;
        }
        &self.records
    }
}

/// What a webhook has committed.
pub struct Posts<'a> {
    receiver: &'a WebhookReceiver,
    read: usize,
    records: Vec<Value>,
}

impl<'a> Posts<'a> {
    pub fn of(receiver: &'a WebhookReceiver) -> Self {
        Self { receiver, read: 0, records: Vec::new() }
    }
}

impl Receiver for Posts<'_> {
    async fn records(&mut self) -> &[Value] {
        let requests = self.receiver.requests();
        let more = requests[self.read..].iter().filter(|posted| posted.committed);
        self.records.extend(more.flat_map(|posted| posted.values()));
        self.read = requests.len();
        &self.records
    }
}
