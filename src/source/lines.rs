//! Cuts a response body into lines: one watch event each.

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use kube::client::Body;

use super::api::ApiError;

/// etcd's largest object is 1.5 MiB by default; this leaves room for what JSON makes of it.
const MAX_LINE: usize = 16 * 1024 * 1024;

/// A body, read line by line.
pub struct Lines {
    body: Body,
    buffer: BytesMut,
    /// The buffer has no line end before this.
    searched: usize,
}

impl Lines {
    pub(super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new(), searched: 0 }
    }

    /// The next line without its end; none at the end of the body. Half a line at the end is an error.
    ///
    /// Safe to cancel: what was read stays in the buffer.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(found) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let mut line = self.buffer.split_to(self.searched + found + 1);
                self.searched = 0;
                line.truncate(line.len() - 1);
                if line.is_empty() {
                    continue;
                }
                // A copy of its own: a slice would pin the whole buffer for as long as the line is queued.
                return Ok(Some(Bytes::copy_from_slice(&line)));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(ApiError::failed("a watch event is larger than 16 MiB"));
            }
            match self.body.frame().await {
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(ApiError::failed("the connection ended in the middle of an event")),
                Some(Err(error)) => {
                    return Err(ApiError::failed(format!("the connection broke: {}", super::cluster::chain(&error))));
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

    async fn lines_of(text: &str) -> (Vec<String>, bool) {
        let mut lines = Lines::new(Body::from(text.as_bytes().to_vec()));
        let mut found = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => found.push(String::from_utf8(line.to_vec()).unwrap()),
                Ok(None) => return (found, true),
                Err(_) => return (found, false),
            }
        }
    }

    #[tokio::test]
    async fn whole_lines_come_out_and_half_a_line_is_an_error() {
        assert_eq!(lines_of("a\nbb\n\nc\n").await, (vec!["a".into(), "bb".into(), "c".into()], true));
        assert_eq!(lines_of("a\nhalf").await, (vec!["a".into()], false));
        assert_eq!(lines_of("").await, (vec![], true));
    }
}
