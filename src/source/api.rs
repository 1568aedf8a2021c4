//! The port to the API server: LIST pages and WATCH events of one stream, as raw bytes.
//!
//! On `kube`'s client for auth, TLS and proxies, but on none of its watchers: those cannot start from a stored version, hide
//! bookmarks, and parse objects into trees.

use std::{borrow::Cow, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kubetide_sink::Stream;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    cluster::{Cluster, chain},
    lines::{Line, Lines},
    selection::Selection,
};
use crate::{
    change::{NoIdentity, ObjectKey, Observed, ResourceVersion, TypeMeta, scan},
    config::Content,
};

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

/// One page of a LIST.
#[derive(Debug)]
pub struct Page {
    /// The collection's version: the same on all pages.
    pub version: ResourceVersion,
    /// How to ask for the next page.
    pub next: Option<String>,
    /// How many objects are on the pages to come, where the server tells.
    pub remaining: Option<u64>,
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
            remaining_item_count: Option<u64>,
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
        let ListMeta { resource_version, r#continue, remaining_item_count: remaining } = list.metadata;
        let next = Some(r#continue).filter(|token| !token.is_empty());
        Ok(Self { version: ResourceVersion::new(resource_version), next, remaining, items, body })
    }
}

/// One event of a WATCH.
#[derive(Clone)]
pub enum WatchEvent {
    /// ADDED or MODIFIED: the difference is ours to find.
    Present(Observed),
    /// DELETED.
    Deleted(Observed),
    /// Nothing else has happened up to here.
    Bookmark {
        /// Where.
        version: ResourceVersion,
        /// It ends the initial events of a streaming LIST.
        ends_list: bool,
    },
}

impl WatchEvent {
    /// Reads one line of a watch.
    pub fn parse(types: &TypeMeta, line: &Line) -> Result<Self, ApiError> {
        match line {
            Line::TooLong(beginning) => Self::parse_beginning(types, beginning),
            Line::Whole(line) => match std::str::from_utf8(line) {
                Ok(text) => Self::parse_text(types, text, None),
                // Not as it was sent, but the names in it are: it can be told of which object nothing can be told.
                Err(_) => Self::parse_text(types, &String::from_utf8_lossy(line), Some("bad UTF-8")),
            },
        }
    }

    fn parse_text(types: &TypeMeta, line: &str, problem: Option<&str>) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Event<'a> {
            #[serde(borrow)]
            r#type: Cow<'a, str>,
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
            #[serde(default)]
            annotations: std::collections::HashMap<String, String>,
        }
        let broken =
            |error: serde_json::Error| ApiError::Undecodable(format!("a watch event that is not one: {error}"));
        let event: Event<'_> = serde_json::from_str(line).map_err(broken)?;
        let object = event.object.get();
        let observe = || -> Result<Observed, ApiError> {
            let mut observed = scan::observe(types, object.as_bytes())?;
            if let Some(problem) = problem {
                observed.object = Err(problem.into());
            }
            Ok(observed)
        };
        match event.r#type.as_ref() {
            "ADDED" | "MODIFIED" => Ok(Self::Present(observe()?)),
            "DELETED" => Ok(Self::Deleted(observe()?)),
            "BOOKMARK" => {
                let MarkedMeta { resource_version, annotations } =
                    serde_json::from_str::<Marked>(object).map_err(broken)?.metadata;
                let ends_list = annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true");
                Ok(Self::Bookmark { version: ResourceVersion::new(resource_version), ends_list })
            }
            "ERROR" => Err(status_error(None, None, object.as_bytes())),
            other => Err(ApiError::Undecodable(format!("a watch event of the unknown type {other:?}"))),
        }
    }

    /// Of an event that is too long, the object it is about, if that is near its beginning.
    fn parse_beginning(types: &TypeMeta, beginning: &[u8]) -> Result<Self, ApiError> {
        let too_long = || ApiError::Undecodable("a watch event is larger than 16 MiB".into());
        // As the API server writes it.
        let rest = beginning.strip_prefix(br#"{"type":""#).ok_or_else(too_long)?;
        let object_at =
            rest.windows(11).take(64).position(|window| window == br#"","object":"#).ok_or_else(too_long)?;
        let observed = scan::observe(types, &rest[object_at + 11..]).map_err(|_| too_long())?;
        let observed = Observed { object: Err("larger than 16 MiB".into()), ..observed };
        match &rest[..object_at] {
            b"ADDED" | b"MODIFIED" => Ok(Self::Present(observed)),
            b"DELETED" => Ok(Self::Deleted(observed)),
            _ => Err(too_long()),
        }
    }
}

/// What a request's answer is to look like.
pub const JSON: &str = "application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// The answer's head comes at once or not at all.
const HEAD_WITHIN: Duration = Duration::from_secs(60);

/// The API server as one stream sees it.
#[derive(Clone)]
pub struct Port {
    cluster: Cluster,
    stream: Arc<Stream>,
    selection: Selection,
    types: TypeMeta,
}

impl Port {
    /// The port of a stream.
    pub fn new(cluster: Cluster, stream: Arc<Stream>, selection: Selection) -> Self {
        let types = selection.types(&stream);
        Self { cluster, stream, selection, types }
    }

    /// The cluster behind it.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// `kind` and `apiVersion` of the objects.
    pub const fn types(&self) -> &TypeMeta {
        &self.types
    }

    /// Finds and cleans an object of a LIST.
    pub fn observe(&self, object: &[u8]) -> Result<Observed, ApiError> {
        let observed = scan::observe(&self.types, object)?;
        if object.len() > super::lines::MAX_LINE {
            return Ok(Observed { object: Err("larger than 16 MiB".into()), ..observed });
        }
        Ok(observed)
    }

    /// Asks for one page. Without a token it is the first, consistent with everything written before.
    pub async fn page(&self, limit: u32, token: Option<&str>, timeout: Duration) -> Result<Page, ApiError> {
        let accept = if self.selection.content == Content::Full { JSON } else { METADATA_LIST };
        self.list(self.path(), accept, &self.selection.fields, limit, token, timeout).await
    }

    /// The same with nothing but the objects' metadata.
    pub async fn metadata_page(&self, limit: u32, token: Option<&str>, timeout: Duration) -> Result<Page, ApiError> {
        self.list(self.path(), METADATA_LIST, &self.selection.fields, limit, token, timeout).await
    }

    /// One object, if it is there and selected, and the version at which that holds.
    pub async fn read(
        &self,
        key: &ObjectKey,
        timeout: Duration,
    ) -> Result<(Option<Observed>, ResourceVersion), ApiError> {
        let path = self.path_in(Some(key.namespace.as_str()).filter(|namespace| !namespace.is_empty()));
        let separator = if self.selection.fields.is_empty() { "" } else { "," };
        let fields = format!("metadata.name={}{separator}{}", key.name, self.selection.fields);
        let accept = if self.selection.content == Content::Full { JSON } else { METADATA_LIST };
        let page = self.list(path, accept, &fields, 1, None, timeout).await?;
        let observed = page.items().next().map(|item| self.observe(item)).transpose()?;
        Ok((observed, page.version))
    }

    async fn list(
        &self,
        path: String,
        accept: &str,
        fields: &str,
        limit: u32,
        token: Option<&str>,
        timeout: Duration,
    ) -> Result<Page, ApiError> {
        let limit = limit.to_string();
        let mut query = vec![("limit", limit.as_str())];
        query.extend(token.map(|token| ("continue", token)));
        let request = self.request(path, query, fields, accept)?;
        let read = async { Page::parse(body_of(send(&self.cluster, request).await?).await?) };
        let late = || ApiError::failed(format!("LIST {}: no whole page in {} s", self.stream, timeout.as_secs()));
        tokio::time::timeout(timeout, read).await.unwrap_or_else(|_| Err(late()))
    }

    /// Opens a watch behind `from`.
    pub async fn watch(&self, from: &ResourceVersion, bookmarks: bool, timeout: Duration) -> Result<Lines, ApiError> {
        let (bookmarks, seconds) = (bookmarks.to_string(), timeout.as_secs().to_string());
        let query = vec![
            ("watch", "true"),
            ("resourceVersion", from.as_str()),
            ("allowWatchBookmarks", &bookmarks),
            ("timeoutSeconds", &seconds),
        ];
        self.open(query, &self.selection.fields).await
    }

    /// Opens a watch that begins with every object, consistent with everything written before, and a bookmark.
    pub async fn streaming_list(&self, timeout: Duration) -> Result<Lines, ApiError> {
        self.open_streaming(&self.selection.fields, timeout).await
    }

    async fn open_streaming(&self, fields: &str, timeout: Duration) -> Result<Lines, ApiError> {
        let seconds = timeout.as_secs().to_string();
        let query = vec![
            ("watch", "true"),
            ("sendInitialEvents", "true"),
            ("resourceVersionMatch", "NotOlderThan"),
            ("resourceVersion", ""),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", &seconds),
        ];
        self.open(query, fields).await
    }

    async fn open(&self, query: Vec<(&str, &str)>, fields: &str) -> Result<Lines, ApiError> {
        let accept = if self.selection.content == Content::Full { JSON } else { METADATA };
        let request = self.request(self.path(), query, fields, accept)?;
        let response = tokio::time::timeout(HEAD_WITHIN, send(&self.cluster, request)).await;
        let late = || ApiError::failed(format!("WATCH {}: no answer in {} s", self.stream, HEAD_WITHIN.as_secs()));
        Ok(Lines::new(response.unwrap_or_else(|_| Err(late()))?.into_body()))
    }

    /// The API server's version of this resource now. As a streaming LIST of nothing where it can do that, which is no LIST to
    /// the API server, else as a LIST of one object.
    pub async fn current_version(&self, timeout: Duration) -> Result<ResourceVersion, ApiError> {
        match tokio::time::timeout(timeout, self.version_by_streaming()).await {
            Ok(Ok(Some(version))) => Ok(version),
            // It is not there at all: a LIST would not find it either.
            Ok(Err(error)) if error.is_absence() => Err(error),
            _ => Ok(self.page(1, None, timeout).await?.version),
        }
    }

    /// None where the API server does not do streaming LISTs.
    async fn version_by_streaming(&self) -> Result<Option<ResourceVersion>, ApiError> {
        // No object can be called that.
        let fields = "metadata.name=-";
        let mut lines = self.open_streaming(fields, Duration::from_secs(10)).await?;
        while let Some(line) = lines.next().await? {
            if let Ok(WatchEvent::Bookmark { version, ends_list: true }) = WatchEvent::parse(&self.types, &line) {
                return Ok(Some(version));
            }
        }
        Ok(None)
    }

    fn path(&self) -> String {
        self.path_in(self.stream.namespace.as_deref())
    }

    fn path_in(&self, namespace: Option<&str>) -> String {
        let Stream { group, version, resource, .. } = self.stream.as_ref();
        let base = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        match namespace {
            Some(namespace) => format!("{base}/namespaces/{namespace}/{resource}"),
            None => format!("{base}/{resource}"),
        }
    }

    fn request<'a>(
        &'a self,
        path: String,
        mut query: Vec<(&'a str, &'a str)>,
        fields: &'a str,
        accept: &str,
    ) -> Result<Request<Body>, ApiError> {
        let selectors = [("labelSelector", self.selection.labels.as_str()), ("fieldSelector", fields)];
        query.extend(selectors.into_iter().filter(|(_, value)| !value.is_empty()));
        request(&path, &query, accept)
    }
}

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
            .map_err(|error| ApiError::failed(format!("{path}: not what was expected: {error}")))
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
