//! Faults: what a hook may do to one request, and how its answer is bent to it.
//!
//! A hook is a plain function of the request, so a test can schedule faults from a seed and the request's number.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream;

use crate::request::RequestInfo;
use crate::response::Chunks;

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
}

/// Bends a body to a fault. Faults that need no body pass it on.
pub(crate) fn afflict(chunks: Chunks, fault: Fault) -> Chunks {
    match fault {
        Fault::CutAfter(bytes) => first(chunks, bytes).chain(stream::once(cut())).boxed(),
        Fault::HangAfter(bytes) => first(chunks, bytes).chain(stream::pending()).boxed(),
        Fault::TruncateAfter(bytes) => first(chunks, bytes),
        Fault::Drip { bytes, every } => drip(chunks, bytes.max(1), every),
        Fault::Body(bytes) => stream::once(async { Ok(bytes) }).boxed(),
        Fault::Line { after_lines, line } => insert(chunks, after_lines, &line),
        Fault::Duplicate => lines(chunks).map(|line| line.map(|line| [&line[..], &line[..]].concat().into())).boxed(),
        _ => chunks,
    }
}

/// An error that closes the connection, once what came before it is on the wire.
async fn cut() -> io::Result<Bytes> {
    // The connection flushes what it has when the body has nothing for it: let it see that.
    tokio::task::yield_now().await;
    Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the simulator cut the connection"))
}

fn first(chunks: Chunks, bytes: usize) -> Chunks {
    let cut = stream::unfold((chunks, bytes), |(mut chunks, left)| async move {
        if left == 0 {
            return None;
        }
        match chunks.next().await? {
            Ok(mut chunk) => {
                chunk.truncate(left);
                let left = left - chunk.len();
                Some((Ok(chunk), (chunks, left)))
            }
            error => Some((error, (chunks, 0))),
        }
    });
    cut.boxed()
}

fn drip(chunks: Chunks, bytes: usize, every: Duration) -> Chunks {
    let drops = stream::unfold((chunks, Bytes::new()), move |(mut chunks, mut rest)| async move {
        while rest.is_empty() {
            match chunks.next().await? {
                Ok(chunk) => rest = chunk,
                error => return Some((error, (chunks, rest))),
            }
        }
        tokio::time::sleep(every).await;
        let piece = rest.split_to(bytes.min(rest.len()));
        Some((Ok(piece), (chunks, rest)))
    });
    drops.boxed()
}

fn insert(chunks: Chunks, after_lines: usize, line: &Bytes) -> Chunks {
    let line = Bytes::from([&line[..], b"\n"].concat());
    if after_lines == 0 {
        return stream::once(async { Ok(line) }).chain(chunks).boxed();
    }
    let mut seen = 0;
    let with = lines(chunks).map(move |next| {
        let next = next?;
        seen += usize::from(next.ends_with(b"\n"));
        if seen == after_lines && next.ends_with(b"\n") {
            return Ok(Bytes::from([&next[..], &line[..]].concat()));
        }
        Ok(next)
    });
    with.boxed()
}

/// The body cut at its line ends; a last line without one comes as it is.
fn lines(chunks: Chunks) -> Chunks {
    let state = (chunks, BytesMut::new(), VecDeque::new());
    let lines = stream::unfold(state, |(mut chunks, mut rest, mut ready)| async move {
        loop {
            if let Some(line) = ready.pop_front() {
                return Some((Ok(line), (chunks, rest, ready)));
            }
            match chunks.next().await {
                Some(Ok(chunk)) => {
                    for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
                        rest.extend_from_slice(piece);
                        if piece.ends_with(b"\n") {
                            ready.push_back(rest.split().freeze());
                        }
                    }
                }
                Some(Err(error)) => return Some((Err(error), (chunks, rest, ready))),
                None if rest.is_empty() => return None,
                None => ready.push_back(rest.split().freeze()),
            }
        }
    });
    lines.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn bent(fault: Fault) -> (String, bool) {
        let chunks = stream::iter(["one\ntw", "o\nthree\n"].map(|chunk| Ok(Bytes::from(chunk)))).boxed();
        let mut text = String::new();
        let mut bent = afflict(chunks, fault);
        while let Some(chunk) = bent.next().await {
            match chunk {
                Ok(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
                Err(_) => return (text, true),
            }
        }
        (text, false)
    }

    #[tokio::test]
    async fn a_cut_body_has_its_bytes_and_then_an_error() {
        assert_eq!(bent(Fault::CutAfter(5)).await, ("one\nt".into(), true));
        assert_eq!(bent(Fault::CutAfter(0)).await, (String::new(), true));
    }

    #[tokio::test]
    async fn a_truncated_body_ends_without_an_error() {
        assert_eq!(bent(Fault::TruncateAfter(8)).await, ("one\ntwo\n".into(), false));
    }

    #[tokio::test]
    async fn a_line_is_inserted_between_lines_only() {
        let line = Bytes::from_static(b"!");
        let garbage = |after_lines| Fault::Line { after_lines, line: line.clone() };
        assert_eq!(bent(garbage(0)).await.0, "!\none\ntwo\nthree\n");
        assert_eq!(bent(garbage(2)).await.0, "one\ntwo\n!\nthree\n");
    }

    #[tokio::test]
    async fn duplicate_repeats_every_line() {
        assert_eq!(bent(Fault::Duplicate).await.0, "one\none\ntwo\ntwo\nthree\nthree\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drip_keeps_all_bytes() {
        let started = tokio::time::Instant::now();
        let every = Duration::from_secs(1);
        assert_eq!(bent(Fault::Drip { bytes: 4, every }).await.0, "one\ntwo\nthree\n");
        assert!(started.elapsed() >= every * 4);
    }
}
