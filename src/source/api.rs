//! Requests to the API server, and what can be wrong with their answers.
//!
//! On `kube`'s client for auth, TLS and proxies, but on none of its watchers: those cannot start from a stored version, hide
//! bookmarks, and parse objects into trees.

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use serde::Deserialize;

use super::{
    cluster::{Cluster, chain},
    lines::Lines,
};
use crate::change::{NoIdentity, ResourceVersion};

/// Why a request gave nothing: one variant for each thing that a stream can do about it.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// 410: the version or the continue token is too old. A normal path.
    #[error("the API server no longer has this version")]
    Expired,
    /// What came cannot be read, and asking again may bring the same.
    #[error("{0}")]
    Undecodable(String),
    /// The connection ended before its time; nothing is known to be wrong with the server.
    #[error("{0}")]
    Cut(String),
    /// The watch has been silent for too long.
    #[error("the watch has stalled: neither events nor bookmarks")]
    Stalled,
    /// Another cluster answers under the same address: stop.
    #[error("{0}")]
    OtherCluster(String),
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

    /// A connection that ended before its time.
    pub fn cut(message: impl Into<String>) -> Self {
        Self::Cut(message.into())
    }

    /// The HTTP status, if there was an answer.
    pub const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Expired => Some(StatusCode::GONE),
            Self::Failed { status, .. } => *status,
            Self::Undecodable(_) | Self::Cut(_) | Self::Stalled | Self::OtherCluster(_) => None,
        }
    }

    /// Whether the server is there and says no: trying again soon will not change its mind.
    pub fn is_refusal(&self) -> bool {
        let temporary = [StatusCode::REQUEST_TIMEOUT, StatusCode::GONE, StatusCode::TOO_MANY_REQUESTS];
        self.status().is_some_and(|status| status.is_client_error() && !temporary.contains(&status))
    }

    /// Whether the server may have been away: it may be another now, or the same with an older memory. A connection that
    /// broke is a sign of that too: the server can be back before anyone has asked again.
    pub fn is_absence(&self) -> bool {
        match self {
            Self::Failed { status, .. } => status.is_none_or(|status| status.is_server_error()),
            Self::Cut(_) | Self::Stalled => true,
            Self::Expired | Self::Undecodable(_) | Self::OtherCluster(_) => false,
        }
    }

    /// The server's own wish for the pause.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Failed { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl From<NoIdentity> for ApiError {
    fn from(error: NoIdentity) -> Self {
        Self::Undecodable(error.to_string())
    }
}

/// What a request's answer is to look like.
pub const JSON: &str = "application/json";
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub(super) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The answer's head comes at once or not at all.
pub(super) const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// A GET request.
pub fn request(path: &str, query: &[(&str, &str)], accept: &str) -> Result<Request<Body>, ApiError> {
    let mut uri = path.to_owned();
    let mut separator = '?';
    for (key, value) in query {
        uri.push(separator);
        uri.push_str(key);
        uri.push('=');
        uri.extend(value.bytes().map(escape));
        separator = '&';
    }
    Request::get(&uri)
        .header(header::ACCEPT, accept)
        .body(Body::empty())
        .map_err(|error| ApiError::failed(format!("{uri}: {error}")))
}

/// Percent-encodes one byte of a query value.
fn escape(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

/// Reads one JSON document. It does not wait for long.
pub async fn get<T: serde::de::DeserializeOwned>(cluster: &Cluster, path: &str, accept: &str) -> Result<T, ApiError> {
    let request = request(path, &[], accept)?;
    let read = async {
        let body = body_of(send(cluster, request).await?).await?;
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::failed(format!("{path}: not what was expected: {}", place_of(&error))))
    };
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, read)
        .await
        .unwrap_or_else(|_| Err(ApiError::failed(format!("{path}: no answer in 30 s"))))
}

/// Opens a metadata-only watch of a whole resource by its path. Without a version it is a streaming LIST.
pub async fn watch_metadata(
    cluster: &Cluster,
    path: &str,
    from: Option<&ResourceVersion>,
    seconds: u32,
) -> Result<Lines, ApiError> {
    let seconds = seconds.to_string();
    let mut query = vec![("watch", "true"), ("allowWatchBookmarks", "true"), ("timeoutSeconds", &seconds)];
    query.push(("resourceVersion", from.map_or("", ResourceVersion::as_str)));
    if from.is_none() {
        query.extend([("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")]);
    }
    let request = request(path, &query, METADATA)?;
    let late = || ApiError::failed(format!("WATCH {path}: no answer in {} s", HEAD_WITHIN.as_secs()));
    let response = tokio::time::timeout(HEAD_WITHIN, send(cluster, request)).await.unwrap_or_else(|_| Err(late()))?;
    Ok(Lines::new(response.into_body()))
}

/// Sends a request and turns every answer but success into an error.
pub async fn send(cluster: &Cluster, mut request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let headers = request.headers_mut();
    // Streams come gzipped in a form that the client's decoder cannot read.
    headers.insert(header::ACCEPT_ENCODING, header::HeaderValue::from_static("identity"));
    let agent = concat!("kubetide/", env!("CARGO_PKG_VERSION"));
    headers.insert(header::USER_AGENT, header::HeaderValue::from_static(agent));
    let response = cluster.client().await.send(request).await.map_err(|error| {
        cluster.doubt_address();
        match error {
            // Only a wrapper, with nothing to say to people.
            kube::Error::Service(error) => ApiError::failed(chain(error.as_ref())),
            error => ApiError::failed(chain(&error)),
        }
    })?;
    if response.status().is_success() {
        return Ok(response);
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        cluster.doubt_credentials();
    }
    let (status, retry_after) = (response.status(), retry_after(response.headers()));
    // It explains the status; a broken one does not change it.
    let body = tokio::time::timeout(Duration::from_secs(5), body_of(response)).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    Err(status_error(Some(status), retry_after, &body))
}

/// What a parser stumbled over, and where; not in its own words, which quote what they found.
pub(super) fn place_of(error: &serde_json::Error) -> String {
    let what = match error.classify() {
        serde_json::error::Category::Io => "cannot be read",
        serde_json::error::Category::Syntax => "not JSON",
        serde_json::error::Category::Data => "something unexpected",
        serde_json::error::Category::Eof => "it ends too early",
    };
    format!("{what} at line {} column {}", error.line(), error.column())
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

/// What somebody else says, up to where it may quote an object: the API server quotes one whole where it cannot decode it
/// (`Object 'Kind' is missing in '{…}'`), as JSON or as its own binary form.
pub(super) fn unquoted(message: &str) -> Cow<'_, str> {
    // Longer than anything it says of itself.
    const LONGEST: usize = 500;
    let quotes = |(at, letter): (usize, char)| (letter == '{' || letter.is_control() || at >= LONGEST).then_some(at);
    match message.char_indices().find_map(quotes) {
        Some(at) => Cow::Owned(format!("{}…", &message[..at])),
        None => Cow::Borrowed(message),
    }
}

/// The same without what stands in quotes, where an API server repeats values (`Invalid value: "…"`, `parsing "…"`); but addresses
/// stay, which say whom it could not reach.
fn without_values(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(open) = rest.find('"') {
        let (before, quoted) = rest.split_at(open);
        let end = end_of_quote(quoted);
        let (quote, behind) = quoted.split_at(end);
        out.push_str(before);
        let is_address = ["\"http://", "\"https://"].iter().any(|scheme| quote.starts_with(scheme));
        out.push_str(if is_address { quote } else { "\"…\"" });
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Behind the quote that closes the one this begins with; all of it if there is none.
fn end_of_quote(quoted: &str) -> usize {
    let mut is_escaped = false;
    for (at, letter) in quoted.char_indices().skip(1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    quoted.len()
}

/// What a `Status` object says, whether it came as an HTTP answer or as an ERROR event.
pub(super) fn status_error(http: Option<StatusCode>, retry_after: Option<Duration>, body: &[u8]) -> ApiError {
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
        // Who may do what is said with names of users and resources; everything else may speak of what is in an object.
        Some(message) if matches!(code, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) => {
            format!("{code_text}: {}", unquoted(&message))
        }
        Some(message) => format!("{code_text}: {}", without_values(&unquoted(&message))),
        None => code_text,
    };
    let details = status.details.and_then(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
    ApiError::Failed { message, status: code, retry_after: retry_after.or(details.map(Duration::from_secs)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_says_is_told_but_not_the_object_that_it_quotes() {
        let told_with = |code: u16, message: &str| {
            let status = serde_json::json!({"kind": "Status", "code": code, "message": message});
            status_error(None, None, status.to_string().as_bytes()).to_string()
        };
        let told = |message: &str| told_with(500, message);
        let code = "500 Internal Server Error";
        let plain = r#"secrets is forbidden: User "a" cannot list resource "secrets" in API group "" [RBAC: none]"#;
        assert_eq!(told_with(403, plain), format!("403 Forbidden: {plain}"));
        for (message, expected) in [
            (r#"spec.a: Invalid value: "secret": no"#, r#"spec.a: Invalid value: "…": no"#),
            (r#"parsing "sec\"ret": bad"#, r#"parsing "…": bad"#),
            (r#"Post "https://a:443/b": refused, "secret"#, r#"Post "https://a:443/b": refused, "…""#),
        ] {
            assert_eq!(told(message), format!("{code}: {expected}"));
        }
        let missing = "Object 'Kind' is missing in '";
        for object in [r#"{"data":{"a":"secret"}}'"#, "\0secret", "\nsecret"] {
            assert_eq!(told(&format!("{missing}{object}")), format!("{code}: {missing}…"));
        }
        let long = told(&"é".repeat(1_000));
        assert_eq!(long, format!("{code}: {}…", "é".repeat(250)));
    }
}
