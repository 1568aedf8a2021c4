//! Faults: what a hook may do to one request.
//!
//! A hook is a plain function of the request, so a test can schedule faults from a seed and the request's number.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::request::RequestInfo;

/// Decides the fate of each request. Called once per request, before it is answered, from many threads.
pub type Hook = Arc<dyn Fn(&RequestInfo) -> Fault + Send + Sync>;

/// What happens to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// It is answered as it should be.
    #[default]
    Pass,
    /// It is answered with this status code and a `Status` object.
    Status {
        /// The HTTP status code.
        code: u16,
        /// Seconds in the Retry-After header.
        retry_after: Option<u32>,
    },
    /// The connection is closed without an answer.
    Drop,
    /// It is never answered.
    Hang,
    /// Headers and this many bytes of the body arrive, then nothing.
    HangAfter(usize),
    /// Headers and this many bytes arrive, then the connection closes without an end of the body.
    CutAfter(usize),
    /// Headers and this many bytes arrive, as far as the client has room for them, then the TCP connection is reset.
    Reset {
        /// Bytes of the body before the reset.
        after: usize,
    },
    /// The body ends after this many bytes as if it were complete.
    TruncateAfter(usize),
    /// The answer begins only after this time.
    Delay(Duration),
    /// The body comes in pieces.
    Drip {
        /// Bytes per piece.
        bytes: usize,
        /// The time between two pieces.
        every: Duration,
    },
    /// The body is replaced.
    Body(Bytes),
    /// A line is put into the body after so many of its lines (watch events): garbage, an ERROR event, 20 MiB.
    Line {
        /// How many lines come before it.
        after_lines: usize,
        /// The line, without its end.
        line: Bytes,
    },
    /// Every line of the body (watch event) comes twice.
    Duplicate,
    /// After every so many events of a watch an older one, that was sent on this connection already, is sent again: what
    /// a client sees that comes from a newer API server to one that lags.
    Replay {
        /// How many events come between.
        every: usize,
    },
    /// The initial ADDED events of a watch come in another order; the bookmark that ends them stays last. Nothing
    /// promises the order of keys.
    Shuffle {
        /// Fixes the order.
        seed: u64,
    },
    /// The watch answers with headers, then delivers nothing at all, neither events nor bookmarks, and does not end at
    /// its timeout. Only a cut ends it.
    Silence,
    /// The watch works but sends no bookmarks, not even the one that ends the initial events.
    StripBookmarks,
}

impl Fault {
    /// An ERROR event before everything else; a Status without a code if there is none. The watch goes on after it:
    /// a client that reads further sees what it should not.
    #[must_use]
    pub fn error_event(code: Option<u16>, reason: &str, message: &str) -> Self {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
        });
        if let Some(code) = code {
            status["code"] = Value::from(code);
        }
        let line = json!({"type": "ERROR", "object": status}).to_string();
        Self::Line { after_lines: 0, line: line.into() }
    }
}
