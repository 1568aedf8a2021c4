//! Cuts a response body into lines: one watch event each.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;

use super::api::ApiError;

/// etcd's largest object is 1.5 MiB by default; this leaves room for what JSON makes of it.
pub const MAX_LINE: usize = 16 * 1024 * 1024;
/// What is kept of a line that is too long: an object's metadata comes near its beginning.
const KEPT: usize = 1024 * 1024;

/// A body, read line by line.
pub struct Lines {
    body: Body,
    buffer: BytesMut,
    /// The buffer has no line end before this.
    searched: usize,
    /// The beginning of a line that is too long and has not ended yet.
    too_long: Option<Bytes>,
}

/// One line, without its end.
#[derive(PartialEq, Eq)]
pub enum Line {
    /// As it came.
    Whole(Bytes),
    /// Only its beginning: it is longer than [`MAX_LINE`].
    TooLong(Bytes),
}

// By hand: what came is not cleaned yet, and is never printed.
impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(line) => write!(f, "Whole({} bytes)", line.len()),
            Self::TooLong(beginning) => write!(f, "TooLong({} bytes)", beginning.len()),
        }
    }
}

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0, too_long: None }
    }

    /// The next line; none at the end of the body. Half a line at the end is an error.
    ///
    /// Safe to cancel: what was read stays in the buffer.
    pub async fn next(&mut self) -> Result<Option<Line>, ApiError> {
        loop {
            if let Some(found) = memchr::memchr(b'\n', &self.buffer[self.searched..]) {
                let mut line = self.buffer.split_to(self.searched + found + 1);
                self.searched = 0;
                if let Some(beginning) = self.too_long.take() {
                    return Ok(Some(Line::TooLong(beginning)));
                }
                line.truncate(line.len() - 1);
                if line.is_empty() {
                    continue;
                }
                if line.len() > MAX_LINE {
                    return Ok(Some(Line::TooLong(Bytes::copy_from_slice(&line[..KEPT]))));
                }
                // A copy of its own: a slice would pin the whole buffer for as long as the line is queued.
                return Ok(Some(Line::Whole(Bytes::copy_from_slice(&line))));
            }
            self.searched = self.buffer.len();
            if self.too_long.is_some() {
                self.buffer.clear();
                self.searched = 0;
            } else if self.buffer.len() > MAX_LINE {
                self.too_long = Some(Bytes::copy_from_slice(&self.buffer[..KEPT]));
                self.buffer = BytesMut::new();
                self.searched = 0;
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() && self.too_long.is_none() => return Ok(None),
                None => return Err(ApiError::cut("the connection ended in the middle of an event")),
                Some(Err(error)) => {
                    return Err(ApiError::cut(format!("the connection broke: {}", super::cluster::chain(&error))));
                }
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    async fn lines_of(text: Vec<u8>) -> (Vec<Line>, bool) {
        let mut lines = Lines::new(Body::from(text));
        let mut found = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => found.push(line),
                Ok(None) => return (found, true),
                Err(_) => return (found, false),
            }
        }
    }

    fn whole(text: &'static str) -> Line {
        Line::Whole(text.into())
    }

    #[tokio::test]
    async fn whole_lines_come_out_and_half_a_line_is_an_error() {
        assert_eq!(lines_of("a\nbb\n\nc\n".into()).await, (vec![whole("a"), whole("bb"), whole("c")], true));
        assert_eq!(lines_of("a\nhalf".into()).await, (vec![whole("a")], false));
        assert_eq!(lines_of(Vec::new()).await, (vec![], true));
    }

    #[test]
    fn a_line_is_never_printed() {
        let printed = format!("{:?} {:?}", whole("secret"), Line::TooLong("secret".into()));
        assert_eq!(printed, "Whole(6 bytes) TooLong(6 bytes)");
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over_and_its_beginning_kept() {
        let text = [b"a\n".as_slice(), &vec![b'x'; MAX_LINE + 5], b"\nb\n"].concat();
        let beginning = Line::TooLong(vec![b'x'; KEPT].into());
        assert_eq!(lines_of(text).await, (vec![whole("a"), beginning, whole("b")], true));
    }
}
