//! An answer before it becomes HTTP: a code, a media type, and bytes at once or over time.

use std::io;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use serde_json::Value;

use crate::status::Status;

/// A body over time; an error closes the connection in the middle of it.
pub(crate) type Chunks = BoxStream<'static, io::Result<Bytes>>;

pub(crate) type HttpResponse = http::Response<UnsyncBoxBody<Bytes, io::Error>>;

pub(crate) enum Payload {
    /// Sent with a Content-Length.
    Whole(Bytes),
    /// Sent chunked.
    Stream(Chunks),
}

pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) media_type: &'static str,
    pub(crate) retry_after: Option<u32>,
    pub(crate) payload: Payload,
}

impl Reply {
    pub(crate) fn json(code: u16, value: &Value) -> Self {
        Self::bytes(code, value.to_string().into())
    }

    pub(crate) fn bytes(code: u16, bytes: Bytes) -> Self {
        Self { code, media_type: "application/json", retry_after: None, payload: Payload::Whole(bytes) }
    }

    pub(crate) fn stream(chunks: Chunks) -> Self {
        Self { code: 200, media_type: "application/json", retry_after: None, payload: Payload::Stream(chunks) }
    }

    pub(crate) fn chunks(self) -> Chunks {
        match self.payload {
            Payload::Whole(bytes) => futures::stream::once(async { Ok(bytes) }).boxed(),
            Payload::Stream(chunks) => chunks,
        }
    }

    pub(crate) fn into_http(self) -> HttpResponse {
        let mut builder = http::Response::builder()
            .status(self.code)
            .header(CONTENT_TYPE, self.media_type)
            .header(CACHE_CONTROL, "no-cache, private");
        if let Some(seconds) = self.retry_after {
            builder = builder.header(RETRY_AFTER, seconds);
        }
        let body = match self.payload {
            Payload::Whole(bytes) => Full::new(bytes).map_err(|never| match never {}).boxed_unsync(),
            Payload::Stream(chunks) => StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync(),
        };
        builder.body(body).unwrap_or_else(|_| {
            // Only a status code outside 100..1000 gets here: a fault asked for it.
            let mut response = http::Response::new(Full::default().map_err(|never| match never {}).boxed_unsync());
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            response
        })
    }
}

impl From<Status> for Reply {
    fn from(status: Status) -> Self {
        let body = status.to_json();
        let retry_after = body["details"]["retryAfterSeconds"].as_u64().and_then(|seconds| u32::try_from(seconds).ok());
        Self { retry_after, ..Self::json(status.code, &body) }
    }
}
