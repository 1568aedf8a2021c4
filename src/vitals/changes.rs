//! What the committer counts: records of a stream, whether or not the stream is followed just now.

use std::sync::Arc;

use kubetide_sink::{Op, Origin};
use opentelemetry::KeyValue;

use super::{Shared, Vitals};

/// Counts the changes of one stream.
pub struct StreamChanges {
    shared: Arc<Shared>,
    stream: KeyValue,
}

impl Vitals {
    /// Where the changes of the stream with this name are counted.
    pub fn changes_of(&self, name: &str) -> StreamChanges {
        StreamChanges { shared: Arc::clone(&self.shared), stream: KeyValue::new("stream", Arc::<str>::from(name)) }
    }
}

impl StreamChanges {
    /// A change was logged.
    pub fn changed(&self, op: Op, origin: Origin) {
        let labels = [self.stream.clone(), KeyValue::new("op", op.as_str()), KeyValue::new("origin", origin.as_str())];
        self.shared.instruments.changes.add(1, &labels);
    }

    /// An equal or older version was seen: nothing was logged.
    pub fn ignored(&self) {
        self.shared.instruments.ignored_events.add(1, std::slice::from_ref(&self.stream));
    }
}
