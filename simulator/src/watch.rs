//! WATCH: a cursor into the history. It never holds a writer back; if it falls off the history's end the
//! stream ends, and the client's next attempt is told 410.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::form::Form;
use crate::history::{Event, TooOld};
use crate::list;
use crate::object::Object;
use crate::options::WatchOptions;
use crate::request::RequestInfo;
use crate::resource::ResourceType;
use crate::response::Reply;
use crate::selector::Selection;
use crate::status::Status;

/// Events per turn of the lock, and bytes per chunk.
const EVENTS: usize = 256;
const CHUNK: usize = 128 * 1024;

/// The API server ends a watch without `timeoutSeconds` after 30 to 60 minutes.
const LONGEST: Duration = Duration::from_secs(2700);

/// The API server sends a last bookmark this long before it ends a watch.
const BEFORE_THE_END: Duration = Duration::from_secs(2);

struct Watcher {
    cluster: Cluster,
    kind: Arc<ResourceType>,
    /// The era of the resource's definition in which it was opened: it ends with it.
    era: u64,
    form: Form,
    selection: Selection,
    prefix: String,
    /// Everything up to this version was sent.
    after: u64,
    initial: VecDeque<(Arc<str>, Arc<Object>)>,
    /// The version to announce once the initial state is sent.
    initial_end: Option<u64>,
    bookmarks: bool,
    /// The version it began at: a bookmark must be beyond it.
    start: u64,
    next_bookmark: Instant,
    /// When the bookmark before the end is due, until it was sent.
    last_bookmark: Option<Instant>,
    deadline: Instant,
    changed: watch::Receiver<u64>,
    cut: watch::Receiver<u64>,
    replaced: watch::Receiver<u64>,
}

/// Opens a watch; `cut` changes when it is to be cut off. Faults of a body are not its business.
pub(crate) fn watch(
    cluster: &Cluster,
    request: &RequestInfo,
    cut: watch::Receiver<u64>,
    fault: &Fault,
) -> Result<Reply, Status> {
    let mut options = WatchOptions::read(request)?;
    options.bookmarks &= *fault != Fault::StripBookmarks;
    let timeout = match request.param("timeoutSeconds").parse() {
        Ok(seconds) if seconds > 0 => Duration::from_secs(seconds),
        _ => LONGEST,
    };
    let state = cluster.lock();
    let shelf = state.shelf(&request.resource)?;
    let selection = Selection::of(request, &shelf.kind)?;
    let current = state.version;
    let mut initial = VecDeque::new();
    let streaming = options.initial_events == Some(true);
    let after = match options.version {
        Some(version) if streaming && version > current => {
            return Ok(error(&list::too_large(version, current)));
        }
        Some(version) if version > 0 && !streaming => {
            if let Err(TooOld { floor }) = shelf.history.since(version, 0) {
                let message = format!("too old resource version: {version} ({floor})");
                return Ok(error(&Status::expired(message)));
            }
            version
        }
        _ => {
            if options.initial_events != Some(false) {
                initial = list::state(shelf, &request.namespace, &selection);
            }
            if let Fault::Shuffle { seed } = fault {
                Dice::new(*seed).shuffle(initial.make_contiguous());
            }
            current
        }
    };
    let now = Instant::now();
    let watcher = Watcher {
        cluster: cluster.clone(),
        kind: shelf.at(&request.version)?,
        era: shelf.era,
        form: Form::of(request),
        selection,
        prefix: if request.namespace.is_empty() { String::new() } else { format!("{}/", request.namespace) },
        after,
        initial,
        initial_end: (streaming && options.bookmarks).then_some(current),
        bookmarks: options.bookmarks,
        start: after,
        next_bookmark: now + cluster.options().bookmark_interval,
        last_bookmark: timeout.checked_sub(BEFORE_THE_END).map(|early| now + early),
        deadline: now + timeout,
        changed: shelf.changed.subscribe(),
        cut,
        replaced: state.replaced.subscribe(),
    };
    drop(state);
    if *fault == Fault::Silence {
        return Ok(Reply::stream(stream::once(watcher.silence()).boxed()));
    }
    let chunks = stream::unfold(Some(watcher), |watcher| async {
        let mut watcher = watcher?;
        let next = watcher.next().await?;
        if watcher.form == Form::MetadataList {
            // As in the real one, which cannot make it of an event: no word of it, the stream just ends.
            return None;
        }
        match next {
            Ok(chunk) => Some((Ok(chunk), Some(watcher))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Reply::stream(chunks.boxed()))
}

/// A watch that cannot be served: HTTP 200 and an ERROR event.
fn error(status: &Status) -> Reply {
    let line = format!("{}\n", json!({"type": "ERROR", "object": status.to_json()}));
    Reply::stream(stream::once(async { Ok(Bytes::from(line)) }).boxed())
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the simulator cut the watch")
}

impl Watcher {
    /// Nothing, until it is cut.
    async fn silence(mut self) -> io::Result<Bytes> {
        tokio::select! {
            _ = self.cut.changed() => Err(cut_off()),
            _ = self.replaced.changed() => Err(cut_off()),
        }
    }

    /// The next bytes; None ends the stream cleanly.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if self.cut.has_changed().unwrap_or(true) {
                return Some(Err(cut_off()));
            }
            if let Some(chunk) = self.initial_state() {
                return Some(Ok(chunk));
            }
            self.changed.borrow_and_update();
            match self.events() {
                Ok(Some(chunk)) if !chunk.is_empty() => return Some(Ok(chunk.into())),
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(cut) => return Some(Err(cut)),
            }
            let bookmark_at = self.last_bookmark.map_or(self.next_bookmark, |last| last.min(self.next_bookmark));
            tokio::select! {
                biased;
                _ = self.cut.changed() => return Some(Err(cut_off())),
                _ = self.replaced.changed() => return Some(Err(cut_off())),
                () = tokio::time::sleep_until(self.deadline) => return None,
                // The sender goes only when the state is replaced: the next turn sees that.
                _ = self.changed.changed() => {}
                () = tokio::time::sleep_until(bookmark_at), if self.bookmarks => {
                    if let Some(chunk) = self.bookmark() {
                        return Some(Ok(chunk));
                    }
                }
            }
        }
    }

    fn initial_state(&mut self) -> Option<Bytes> {
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK {
            let Some((_, object)) = self.initial.pop_front() else {
                break;
            };
            self.event("ADDED", &object, &mut chunk);
        }
        if self.initial.is_empty()
            && let Some(version) = self.initial_end.take()
        {
            chunk.extend_from_slice(&self.bookmark_line(version, true));
        }
        (!chunk.is_empty()).then(|| chunk.into())
    }

    /// What happened since; empty if nothing that is selected, None if the stream must end, an error if it is cut.
    fn events(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut chunk = Vec::new();
        loop {
            let (events, served) = {
                let state = self.cluster.lock();
                // Under the lock: versions of another state mean something else.
                if self.replaced.has_changed().unwrap_or(true) {
                    return Err(cut_off());
                }
                let Some(shelf) = state.shelves.get(&self.kind.name()).filter(|shelf| shelf.era == self.era) else {
                    return Ok(None);
                };
                let Ok(events) = shelf.history.since_seen(self.after, EVENTS) else {
                    return Ok(None);
                };
                (events, shelf.served)
            };
            let Some(last) = events.last() else {
                return Ok((served || !chunk.is_empty()).then_some(chunk));
            };
            self.after = last.version;
            for event in &events {
                self.change(event, &mut chunk);
            }
            if chunk.len() >= CHUNK {
                return Ok(Some(chunk));
            }
        }
    }

    fn change(&self, event: &Event, chunk: &mut Vec<u8>) {
        if !event.key.starts_with(&self.prefix) {
            return;
        }
        let takes =
            |object: &&Arc<Object>| self.selection.is_everything() || self.selection.takes(&event.key, &object.text());
        let before = event.before.as_ref().filter(takes);
        let after = event.after.as_ref().filter(takes);
        match (before, after) {
            (None, Some(object)) => self.event("ADDED", object, chunk),
            (Some(_), Some(object)) => self.event("MODIFIED", object, chunk),
            // Deleted, or no longer selected: the last selected state, with the version of what happened.
            (Some(object), None) => self.event("DELETED", &object.at_version(event.version), chunk),
            (None, None) => {}
        }
    }

    fn event(&self, sort: &str, object: &Object, chunk: &mut Vec<u8>) {
        chunk.extend_from_slice(br#"{"type":""#);
        chunk.extend_from_slice(sort.as_bytes());
        chunk.extend_from_slice(br#"","object":"#);
        self.form.write(object, &self.kind, chunk);
        chunk.extend_from_slice(b"}\n");
    }

    /// A bookmark, if all events up to now were sent.
    fn bookmark(&mut self) -> Option<Bytes> {
        let now = Instant::now();
        let version = {
            let state = self.cluster.lock();
            let shelf =
                state.shelves.get(&self.kind.name()).filter(|_| !self.replaced.has_changed().unwrap_or(true))?;
            if shelf.history.since_seen(self.after, 1).is_ok_and(|events| !events.is_empty()) {
                return None;
            }
            state.version
        };
        self.after = self.after.max(version);
        self.next_bookmark = now + self.cluster.options().bookmark_interval;
        self.last_bookmark = self.last_bookmark.filter(|&last| last > now);
        (version > self.start).then(|| self.bookmark_line(version, false).into())
    }

    /// An object of the watched type with nothing but a version.
    fn bookmark_line(&self, version: u64, initial_end: bool) -> Vec<u8> {
        let annotations = if initial_end { r#""annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
        let comma = if initial_end { "," } else { "" };
        let object = match self.form {
            Form::Whole if self.kind.custom => {
                format!(r#"{}"metadata":{{{annotations}{comma}"resourceVersion":"{version}"}}}}"#, self.kind.opening())
            }
            Form::Whole => format!(
                r#"{}"metadata":{{"resourceVersion":"{version}"{comma}{annotations}}}{}}}"#,
                self.kind.opening(),
                self.kind.empty_fields()
            ),
            Form::Metadata | Form::MetadataList => format!(
                r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"resourceVersion":"{version}"{comma}{annotations}}}}}"#
            ),
        };
        format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into_bytes()
    }
}
