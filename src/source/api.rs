//! The port to the API server: LIST pages and WATCH events of one stream, as raw bytes.
//!
//! On `kube`'s client for auth, TLS and proxies, but on none of its watchers: those cannot start from a stored version, hide
//! bookmarks, and parse objects into trees.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use kubetide_sink::Stream;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{cluster::chain, lines::Lines};
use crate::change::ResourceVersion;

/// Why a request gave nothing: one variant for each thing that a stream can do about it.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// 410: the version or the continue token is too old. A normal path.
    #[error("the API server no longer has this version")]
    Expired,
    /// Try again later.
    #[error("{message}")]
    Failed {
        /// What failed, without object content.
        message: String,
        /// The HTTP status, if there was an answer at all.
        status: Option<StatusCode>,
        /// The server's own wish for the pause.
        retry_after: Option<Duration>,
    },
}

impl ApiError {
    /// A failure without an answer.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), status: None, retry_after: None }
    }

    /// The HTTP status, if there was an answer.
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Expired => Some(StatusCode::GONE),
            Self::Failed { status, .. } => *status,
        }
    }

    /// Whether the server is there and says no: trying again soon will not change its mind.
    pub fn is_refusal(&self) -> bool {
        let temporary = [StatusCode::REQUEST_TIMEOUT, StatusCode::GONE, StatusCode::TOO_MANY_REQUESTS];
        self.status().is_some_and(|status| status.is_client_error() && !temporary.contains(&status))
    }

    /// The server's own wish for the pause.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Expired => None,
            Self::Failed { retry_after, .. } => *retry_after,
        }
    }
}

/// One page of a LIST.
#[derive(Debug)]
pub struct Page {
    /// The collection's version: the same on all pages.
    pub version: ResourceVersion,
    /// How to ask for the next page.
    pub next: Option<String>,
    /// The body that the items are slices of.
    body: Bytes,
    items: Vec<std::ops::Range<usize>>,
}

impl Page {
    /// The objects' raw bytes.
    pub fn items(&self) -> impl Iterator<Item = &[u8]> {
        self.items.iter().map(|span| &self.body[span.clone()])
    }

    fn parse(body: Bytes) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct List<'a> {
            metadata: ListMeta,
            #[serde(borrow, default)]
            items: Option<Vec<&'a RawValue>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ListMeta {
            #[serde(default)]
            resource_version: String,
            #[serde(default)]
            r#continue: String,
        }
        let list: List<'_> = serde_json::from_slice(&body)
            .map_err(|error| ApiError::failed(format!("a LIST that is not one: {error}")))?;
        if list.metadata.resource_version.is_empty() {
            return Err(ApiError::failed("a LIST without a resourceVersion"));
        }
        let start = body.as_ptr() as usize;
        let items = list.items.unwrap_or_default();
        let spans = items.iter().map(|item| {
            let from = item.get().as_ptr() as usize - start;
            from..from + item.get().len()
        });
        let items = spans.collect();
        let next = Some(list.metadata.r#continue).filter(|token| !token.is_empty());
        Ok(Self { version: ResourceVersion::new(list.metadata.resource_version), next, items, body })
    }
}

/// One event of a WATCH.
#[derive(Debug)]
pub enum WatchEvent<'a> {
    /// ADDED or MODIFIED: the difference is ours to find.
    Present(&'a [u8]),
    /// DELETED.
    Deleted(&'a [u8]),
    /// Nothing else has happened up to here.
    Bookmark(ResourceVersion),
}

impl<'a> WatchEvent<'a> {
    /// Reads one line of a watch.
    pub fn parse(line: &'a [u8]) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Event<'a> {
            r#type: String,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Marked {
            metadata: MarkedMeta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct MarkedMeta {
            resource_version: String,
        }
        let broken = |error: serde_json::Error| ApiError::failed(format!("a watch event that is not one: {error}"));
        let event: Event<'a> = serde_json::from_slice(line).map_err(broken)?;
        let object = event.object.get();
        match event.r#type.as_str() {
            "ADDED" | "MODIFIED" => Ok(Self::Present(object.as_bytes())),
            "DELETED" => Ok(Self::Deleted(object.as_bytes())),
            "BOOKMARK" => {
                let marked: Marked = serde_json::from_str(object).map_err(broken)?;
                Ok(Self::Bookmark(ResourceVersion::new(marked.metadata.resource_version)))
            }
            "ERROR" => Err(status_error(None, None, object.as_bytes())),
            other => Err(ApiError::failed(format!("a watch event of the unknown type {other:?}"))),
        }
    }
}

/// Asks for one page of the stream. Without a token it is the first, consistent with everything written before.
pub async fn list_page(
    client: &Client,
    stream: &Stream,
    limit: u32,
    token: Option<&str>,
    timeout: Duration,
) -> Result<Page, ApiError> {
    let mut query = vec![("limit", limit.to_string())];
    query.extend(token.map(|token| ("continue", token.to_owned())));
    let request = request(stream, &query)?;
    let read = async { Page::parse(body_of(send(client, request).await?).await?) };
    let late = || ApiError::failed(format!("LIST {stream}: no whole page in {} s", timeout.as_secs()));
    tokio::time::timeout(timeout, read).await.unwrap_or_else(|_| Err(late()))
}

/// Opens a watch behind `from`.
pub async fn watch(
    client: &Client,
    stream: &Stream,
    from: &ResourceVersion,
    bookmarks: bool,
    timeout: Duration,
) -> Result<Lines, ApiError> {
    let query = [
        ("watch", "true".to_owned()),
        ("resourceVersion", from.to_string()),
        ("allowWatchBookmarks", bookmarks.to_string()),
        ("timeoutSeconds", timeout.as_secs().to_string()),
    ];
    let request = request(stream, &query)?;
    // The answer's head comes at once or not at all.
    let limit = Duration::from_secs(60);
    let response = tokio::time::timeout(limit, send(client, request)).await;
    let response = response
        .unwrap_or_else(|_| Err(ApiError::failed(format!("WATCH {stream}: no answer in {} s", limit.as_secs()))))?;
    Ok(Lines::new(response.into_body()))
}

fn request(stream: &Stream, query: &[(&str, String)]) -> Result<Request<Body>, ApiError> {
    let mut uri = match stream.group.as_str() {
        "" => format!("/api/{}", stream.version),
        group => format!("/apis/{group}/{}", stream.version),
    };
    if let Some(namespace) = &stream.namespace {
        uri.push_str("/namespaces/");
        uri.push_str(namespace);
    }
    uri.push('/');
    uri.push_str(&stream.resource);
    let mut separator = '?';
    for (key, value) in query {
        uri.push(separator);
        uri.push_str(key);
        uri.push('=');
        uri.extend(value.bytes().map(escape));
        separator = '&';
    }
    Request::get(&uri).body(Body::empty()).map_err(|error| ApiError::failed(format!("{uri}: {error}")))
}

/// Percent-encodes one byte of a query value.
fn escape(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// Sends a request and turns every answer but success into an error.
pub async fn send(client: &Client, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let headers = request.headers_mut();
    // Streams come gzipped in a form that the client's decoder cannot read.
    headers.insert(header::ACCEPT_ENCODING, header::HeaderValue::from_static("identity"));
    headers.entry(header::ACCEPT).or_insert(header::HeaderValue::from_static("application/json"));
    let agent = concat!("kubetide/", env!("CARGO_PKG_VERSION"));
    headers.insert(header::USER_AGENT, header::HeaderValue::from_static(agent));
    let response = client.send(request).await.map_err(|error| match error {
        // Only a wrapper, with nothing to say to people.
        kube::Error::Service(error) => ApiError::failed(chain(error.as_ref())),
        error => ApiError::failed(chain(&error)),
    })?;
    if response.status().is_success() {
        return Ok(response);
    }
    let (status, retry_after) = (response.status(), retry_after(response.headers()));
    let body = body_of(response).await.unwrap_or_default();
    Err(status_error(Some(status), retry_after, &body))
}

/// The whole body.
pub async fn body_of(response: Response<Body>) -> Result<Bytes, ApiError> {
    let collected = response.into_body().collect().await;
    Ok(collected.map_err(|error| ApiError::failed(format!("the connection broke: {}", chain(&error))))?.to_bytes())
}

/// Seconds only: the API server sends no dates.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// What a `Status` object says, whether it came as an HTTP answer or as an ERROR event.
fn status_error(http: Option<StatusCode>, retry_after: Option<Duration>, body: &[u8]) -> ApiError {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Status {
        code: Option<u16>,
        reason: Option<String>,
        message: Option<String>,
        details: Option<Details>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Details {
        retry_after_seconds: Option<u64>,
    }
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    let code = status.code.and_then(|code| StatusCode::from_u16(code).ok()).or(http);
    let reason = status.reason.unwrap_or_default();
    if code == Some(StatusCode::GONE) || matches!(reason.as_str(), "Expired" | "Gone") {
        return ApiError::Expired;
    }
    let code_text = code.map_or_else(|| "an error without a code".to_owned(), |code| code.to_string());
    let message = match status.message.filter(|message| !message.is_empty()) {
        Some(message) => format!("{code_text}: {message}"),
        None => code_text,
    };
    let details = status.details.and_then(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    ApiError::Failed { message, status: code, retry_after: retry_after.or(details.map(Duration::from_secs)) }
}
