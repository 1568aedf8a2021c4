//! The port of one stream: its LIST and WATCH requests, as raw bytes.

use std::{sync::Arc, time::Duration};

use http::Request;
use kube::client::Body;
use kubetide_sink::Stream;

use super::{
    answer::{Page, WatchEvent},
    api::{self, ApiError, HEAD_WITHIN, JSON, METADATA, METADATA_LIST, body_of, send},
    cluster::Cluster,
    lines::{Lines, MAX_LINE},
    selection::Selection,
};
use crate::{
    change::{Cleaner, NoIdentity, ObjectKey, Observed, ResourceVersion, scan},
    config::Content,
};

/// The API server as one stream sees it.
#[derive(Clone)]
pub struct Port {
    cluster: Cluster,
    stream: Arc<Stream>,
    selection: Selection,
    cleaner: Cleaner,
}

impl Port {
    /// The port of a stream.
    pub const fn new(cluster: Cluster, stream: Arc<Stream>, selection: Selection, cleaner: Cleaner) -> Self {
        Self { cluster, stream, selection, cleaner }
    }

    /// The cluster behind it.
    pub const fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// How its objects are cleaned.
    pub const fn cleaner(&self) -> &Cleaner {
        &self.cleaner
    }

    /// Finds and cleans an object of a LIST.
    pub fn observe(&self, object: &[u8]) -> Result<Observed, NoIdentity> {
        let observed = scan::observe(&self.cleaner, object)?;
        if object.len() > MAX_LINE {
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
            if let Ok(WatchEvent::Bookmark { version, ends_list: true }) = WatchEvent::parse(&self.cleaner, &line) {
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
        api::request(&path, &query, accept)
    }
}
