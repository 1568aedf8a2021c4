//! How a body is bent to a fault: cut, slowed, replaced, or with its lines (watch events) changed.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream;

use crate::fault::Fault;
use crate::response::Chunks;
use crate::wire::Reset;

/// Bends a body to a fault. Faults that need no body pass it on.
pub(crate) fn bend(chunks: Chunks, fault: Fault, reset: Reset) -> Chunks {
    match fault {
        Fault::CutAfter(bytes) => first(chunks, bytes).chain(stream::once(cut())).boxed(),
        Fault::Reset { after } => first(chunks, after).chain(stream::once(reset_connection(reset))).boxed(),
        Fault::HangAfter(bytes) => first(chunks, bytes).chain(stream::pending()).boxed(),
        Fault::TruncateAfter(bytes) => first(chunks, bytes),
        Fault::Drip { bytes, every } => drip(chunks, bytes.max(1), every),
        Fault::Body(bytes) => stream::once(async { Ok(bytes) }).boxed(),
        Fault::Line { after_lines, line } => insert(chunks, after_lines, &line),
        Fault::Duplicate => lines(chunks).flat_map(|line| stream::iter(twice(line))).boxed(),
        Fault::Replay { every } => replay(chunks, every.max(1)),
        _ => chunks,
    }
}

/// An error that closes the connection, once what came before it is on the wire.
async fn cut() -> io::Result<Bytes> {
    // The connection flushes what it has when the body has nothing for it: let it see that.
    tokio::task::yield_now().await;
    Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the simulator cut the connection"))
}

/// Never ends: the wire does, when the connection flushes.
async fn reset_connection(reset: Reset) -> io::Result<Bytes> {
    reset.ask();
    // So that the connection is polled, and with it flushed, at least once more.
    tokio::task::yield_now().await;
    std::future::pending().await
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

fn twice(line: io::Result<Bytes>) -> Vec<io::Result<Bytes>> {
    match line {
        Ok(line) => vec![Ok(line.clone()), Ok(line)],
        error => vec![error],
    }
}

/// The line comes as a chunk of its own: however long it is, it is copied once.
fn insert(chunks: Chunks, after_lines: usize, line: &Bytes) -> Chunks {
    let line = Bytes::from([&line[..], b"\n"].concat());
    if after_lines == 0 {
        return stream::once(async { Ok(line) }).chain(chunks).boxed();
    }
    let mut seen = 0;
    let with = lines(chunks).flat_map(move |next| {
        let ended = next.as_ref().is_ok_and(|next| next.ends_with(b"\n"));
        seen += usize::from(ended);
        let due = ended && seen == after_lines;
        stream::iter([Some(next), due.then(|| Ok(line.clone()))].into_iter().flatten())
    });
    with.boxed()
}

/// After every so many events, the one that came so many before the last is sent again; the first, if it has none.
/// Bookmarks and errors are not events of an object: they neither count nor come again.
fn replay(chunks: Chunks, every: usize) -> Chunks {
    let mut sent: VecDeque<Bytes> = VecDeque::new();
    let mut count = 0;
    let with = lines(chunks).flat_map(move |next| {
        let mut again = None;
        if let Ok(line) = &next
            && !line.starts_with(br#"{"type":"BOOKMARK""#)
            && !line.starts_with(br#"{"type":"ERROR""#)
        {
            sent.push_back(line.clone());
            if sent.len() > every + 1 {
                sent.pop_front();
            }
            count += 1;
            again = sent.front().filter(|_| count % every == 0).cloned();
        }
        stream::iter([Some(next), again.map(Ok)].into_iter().flatten())
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
        let mut bent = bend(chunks, fault, Reset::default());
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

    #[tokio::test]
    async fn a_replay_brings_an_older_line_after_newer_ones() {
        assert_eq!(bent(Fault::Replay { every: 1 }).await.0, "one\none\ntwo\none\nthree\ntwo\n");
        assert_eq!(bent(Fault::Replay { every: 2 }).await.0, "one\ntwo\none\nthree\n");
        assert_eq!(bent(Fault::Replay { every: 3 }).await.0, "one\ntwo\nthree\none\n");
    }

    #[tokio::test]
    async fn bookmarks_and_errors_are_not_replayed() {
        let lines = ["{\"type\":\"BOOKMARK\"}\n", "{\"type\":\"ADDED\"}\n", "{\"type\":\"ERROR\"}\n"];
        let chunks = stream::iter(lines.map(|line| Ok(Bytes::from(line)))).boxed();
        let bent: Vec<_> =
            bend(chunks, Fault::Replay { every: 1 }, Reset::default()).map(Result::unwrap).collect().await;
        assert_eq!(bent, [lines[0], lines[1], lines[1], lines[2]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_drip_keeps_all_bytes() {
        let started = tokio::time::Instant::now();
        let every = Duration::from_secs(1);
        assert_eq!(bent(Fault::Drip { bytes: 4, every }).await.0, "one\ntwo\nthree\n");
        assert!(started.elapsed() >= every * 4);
    }
}
