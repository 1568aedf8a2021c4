//! GET and LIST. A paged LIST shows one version on all of its pages: later pages undo, from the history, what
//! was written since, and are 410 Expired once the history no longer reaches back.

use std::collections::VecDeque;
use std::collections::btree_map::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use serde_json::json;

use crate::cluster::{Cluster, key_of};
use crate::form::Form;
use crate::object::Object;
use crate::options::{ListOptions, Token, Wanted, version_in};
use crate::request::RequestInfo;
use crate::resource::ResourceType;
use crate::response::Reply;
use crate::selector::Selection;
use crate::shelf::Shelf;
use crate::status::Status;

/// Rendered bytes that make one HTTP chunk: large enough to be quick, small enough to stay off the heap's peak.
const CHUNK: usize = 128 * 1024;

type Found = Vec<(Arc<str>, Arc<Object>)>;

pub(crate) fn get(cluster: &Cluster, request: &RequestInfo) -> Result<Reply, Status> {
    let wanted = version_in(request.param("resourceVersion")).map_err(Status::bad_request)?;
    let state = cluster.lock();
    if let Some(version) = wanted.filter(|&version| version > state.version) {
        return Err(too_large(version, state.version));
    }
    let shelf = state.shelf(&request.resource)?;
    let object = shelf.objects.get(key_of(&request.namespace, &request.name).as_str()).cloned();
    let kind = shelf.at(&request.version)?;
    drop(state);
    let form = Form::of_object(request, &kind)?;
    let object = object.ok_or_else(|| Status::not_found(&kind.plural, &kind.group, &request.name))?;
    let mut bytes = Vec::new();
    form.write(&object, &kind, &mut bytes);
    Ok(Reply::bytes(200, bytes.into()))
}

pub(crate) fn list(cluster: &Cluster, request: &RequestInfo) -> Result<Reply, Status> {
    let form = Form::of_items(request)?;
    let query = ListOptions::read(request)?;
    let state = cluster.lock();
    let shelf = state.shelf(&request.resource)?;
    let selection = Selection::of(request, &shelf.kind)?;
    let current = state.version;
    let version = match query.version {
        Wanted::Current => current,
        Wanted::NotOlderThan(version) if version > current => {
            return Err(too_large(version, current));
        }
        Wanted::NotOlderThan(_) => current,
        Wanted::Exact(version) if version > current => return Err(too_large(version, current)),
        Wanted::Exact(version) => version,
    };
    let prefix = if request.namespace.is_empty() { String::new() } else { format!("{}/", request.namespace) };
    let after = query.token.as_ref().map_or(prefix.as_str(), |token| &token.after);
    let page = page(shelf, version, current, &prefix, after, query.limit, &selection)
        .map_err(|()| expired(&query, &prefix))?;
    let total = query.token.as_ref().and_then(|token| token.left);
    let left = selection.is_everything().then(|| {
        let total = total.unwrap_or_else(|| count(shelf, version, current, &prefix));
        total.saturating_sub(page.found.len())
    });
    let kind = shelf.at(&request.version)?;
    drop(state);
    // One object by its name is found without looking at the others.
    let last = page.last.filter(|_| !(selection.is_one() && (!kind.namespaced || !request.namespace.is_empty())));
    let token = last.map(|after| Token { version: Some(version), after, left }.encode());
    let left = left.filter(|&left| left > 0);
    let metadata = metadata(kind.custom && form == Form::Whole, version, token.as_deref(), left);
    Ok(Reply::stream(body(page.found, kind, form, &metadata)))
}

fn expired(query: &ListOptions, prefix: &str) -> Status {
    match &query.token {
        None => Status::expired("The resourceVersion for the provided list is too old."),
        Some(token) => {
            let after = if token.after.is_empty() { prefix.to_owned() } else { token.after.clone() };
            let message = "The provided continue parameter is too old to display a consistent list result. You can \
                           start a new list without the continue parameter, or use the continue token in this \
                           response to retrieve the remainder of the results. Continuing with the provided token \
                           results in an inconsistent list - objects that were created, modified, or deleted \
                           between the time the first chunk was returned and now may show up in the list.";
            let token = Token { version: None, after, left: None };
            Status::expired(message).with_continue(token.encode())
        }
    }
}

struct Page {
    found: Found,
    /// The last key, if more objects follow.
    last: Option<String>,
}

/// The objects of a key range as they were at `version`. It ends at its limit, if any key follows: what follows need not
/// be selected, so that the last page of a selection may be empty.
fn page(
    shelf: &Shelf,
    version: u64,
    current: u64,
    prefix: &str,
    after: &str,
    limit: Option<usize>,
    selection: &Selection,
) -> Result<Page, ()> {
    let then = if version < current { shelf.history.undo_to(version).map_err(drop)? } else { BTreeMap::new() };
    let range = (Bound::Excluded(after), Bound::Unbounded);
    let now = shelf.objects.range::<str, _>(range).filter(|(key, _)| !then.contains_key(*key));
    let mut now = now.peekable();
    let mut undone = then.range::<str, _>(range).filter_map(|(key, object)| Some((key, object.as_ref()?))).peekable();
    let mut page = Page { found: Vec::new(), last: None };
    loop {
        let next = match (now.peek(), undone.peek()) {
            (Some((a, _)), Some((b, _))) if a < b => now.next(),
            (_, Some(_)) => undone.next(),
            (_, None) => now.next(),
        };
        let Some((key, object)) = next.filter(|(key, _)| key.starts_with(prefix)) else {
            return Ok(page);
        };
        if limit.is_some_and(|limit| page.found.len() == limit) {
            page.last = page.found.last().map(|(key, _)| key.to_string());
            return Ok(page);
        }
        if !selection.is_everything() && !selection.takes(key, &object.text()) {
            continue;
        }
        page.found.push((Arc::clone(key), Arc::clone(object)));
    }
}

/// How many objects a namespace (prefix) had at `version`.
fn count(shelf: &Shelf, version: u64, current: u64, prefix: &str) -> usize {
    if version == current && prefix.is_empty() {
        return shelf.objects.len();
    }
    page(shelf, version, current, prefix, prefix, None, &Selection::default()).map_or(0, |page| page.found.len())
}

/// The initial state for a watch: all selected objects in key order.
pub(crate) fn state(shelf: &Shelf, namespace: &str, selection: &Selection) -> VecDeque<(Arc<str>, Arc<Object>)> {
    let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    page(shelf, 0, 0, &prefix, &prefix, None, selection).map_or_else(|()| VecDeque::new(), |page| page.found.into())
}

/// The collection's metadata, in the order of each encoder: maps are sorted, structs are not.
fn metadata(custom: bool, version: u64, token: Option<&str>, left: Option<usize>) -> String {
    let left = left.map_or_else(String::new, |left| format!(r#","remainingItemCount":{left}"#));
    match token {
        _ if custom => {
            let token = token.unwrap_or_default();
            format!(r#"{{"continue":"{token}"{left},"resourceVersion":"{version}"}}"#)
        }
        Some(token) => format!(r#"{{"resourceVersion":"{version}","continue":"{token}"{left}}}"#),
        None => format!(r#"{{"resourceVersion":"{version}"}}"#),
    }
}

/// The list as the API server writes it. Lists of custom resources have their items before their metadata.
fn body(found: Found, kind: Arc<ResourceType>, form: Form, metadata: &str) -> crate::response::Chunks {
    let (head, tail) = match form {
        // The real one sends null for none, in this form only.
        Form::Metadata | Form::MetadataList if found.is_empty() => (
            format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"items":null}}"#
            ),
            "\n".to_owned(),
        ),
        Form::Metadata | Form::MetadataList => (
            format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"items":["#
            ),
            "]}\n".to_owned(),
        ),
        Form::Whole if kind.custom => (
            format!(r#"{{"apiVersion":"{}","items":["#, kind.api_version()),
            format!(r#"],"kind":"{}List","metadata":{metadata}}}{}"#, kind.kind, "\n"),
        ),
        Form::Whole => (
            format!(
                r#"{{"kind":"{}List","apiVersion":"{}","metadata":{metadata},"items":["#,
                kind.kind,
                kind.api_version()
            ),
            "]}\n".to_owned(),
        ),
    };
    let items = stream::unfold((found.into_iter(), true), move |(mut items, mut first)| {
        let kind = Arc::clone(&kind);
        async move {
            let mut chunk = Vec::new();
            for (_, object) in items.by_ref() {
                if !std::mem::take(&mut first) {
                    chunk.push(b',');
                }
                match form {
                    // Items of built-in types have no kind of their own.
                    Form::Whole if !kind.custom => chunk.extend_from_slice(&object.text().bytes),
                    form => form.write(&object, &kind, &mut chunk),
                }
                if chunk.len() >= CHUNK {
                    break;
                }
            }
            if chunk.is_empty() { None } else { Some((Ok(Bytes::from(chunk)), (items, first))) }
        }
    });
    let head = stream::once(async { Ok(Bytes::from(head)) });
    head.chain(items).chain(stream::once(async { Ok(Bytes::from(tail)) })).boxed()
}

/// A version that the cluster has not reached. The API server waits three seconds for it first.
pub(crate) fn too_large(asked: u64, current: u64) -> Status {
    let details = json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    });
    let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
    Status::new(504, "Timeout", message).with_details(details)
}
