//! Objects as they were logged last, a page at a time.

use std::sync::Arc;

use kubetide_sink::Stream;
use serde_json::value::RawValue;

use super::{
    Desk, Objects, Refusal, Reply, Stopped, Words,
    answer::{followed_for, nearest},
    item,
};
use crate::{
    change::{ObjectKey, Row},
    changelog::{Known, View},
};

/// Rows that are in memory at once.
const PAGE: usize = 200;

/// A walk through the rows.
pub(super) enum Reading {
    /// One object. It is looked for while the answer is written: the nearest name among many takes a while.
    One { view: View, streams: Vec<Arc<Stream>>, word: String, object: String },
    /// All of these streams and namespaces.
    Many { view: View, streams: Vec<Arc<Stream>>, namespaces: Words },
}

impl Reading {
    pub(super) async fn new(desk: &Desk, wanted: Objects) -> Result<Self, Refusal> {
        let streams = followed_for(desk, &wanted.stream)?;
        let view = desk.view.clone();
        match wanted.object {
            None => Ok(Self::Many { view, streams, namespaces: wanted.namespace }),
            Some(object) => Ok(Self::One { view, streams, word: wanted.stream.0.join(","), object }),
        }
    }

    pub(super) async fn run(self, reply: &Reply) -> Result<(), Stopped> {
        let (view, streams, namespaces) = match self {
            Self::One { view, streams, word, object } => {
                return reply.items(&[find(&view, &streams, &word, &object).await?]).await;
            }
            Self::Many { view, streams, namespaces } => (view, streams, namespaces),
        };
        for stream in streams {
            let mut pages = Pages::new(&stream);
            while let Some(rows) = pages.next(view.known()).await? {
                let allowed = rows.into_iter().filter(|(key, _)| namespaces.allow(&key.namespace));
                let items: Vec<_> = allowed.map(|(key, row)| item(&stream, key, row, None)).collect();
                reply.items(&items).await?;
            }
        }
        Ok(())
    }
}

/// The rows of one stream.
struct Pages {
    stream: Arc<Stream>,
    after: Option<ObjectKey>,
    ended: bool,
}

impl Pages {
    fn new(stream: &Arc<Stream>) -> Self {
        Self { stream: stream.clone(), after: None, ended: false }
    }

    async fn next(&mut self, known: &Known) -> Result<Option<Vec<(ObjectKey, Row)>>, Refusal> {
        if self.ended {
            return Ok(None);
        }
        let rows = known.rows_behind(&self.stream, self.after.take(), PAGE).await.map_err(Refusal::failed)?;
        self.ended = rows.len() < PAGE;
        self.after = rows.last().map(|(key, _)| key.clone());
        Ok(Some(rows))
    }
}

async fn find(view: &View, streams: &[Arc<Stream>], word: &str, object: &str) -> Result<item::Object, Refusal> {
    let known = view.known();
    let mut found = Vec::new();
    for stream in streams {
        let (namespace, name) = match object.split_once('/') {
            Some((namespace, name)) => (namespace.to_owned(), name),
            // A stream of one namespace says itself which.
            None => (stream.namespace.clone().unwrap_or_default(), object),
        };
        let key = ObjectKey { namespace, name: name.into() };
        if let Some(mut row) = known.row(stream, key.clone()).await.map_err(Refusal::failed)? {
            let object = row.object.take().and_then(|object| view.cleaned(stream, object));
            let raw = object.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            let raw = raw.map(RawValue::from_string).transpose().map_err(Refusal::failed)?;
            found.push(item(stream, key, row, raw));
        }
    }
    // `core/pods` is also the beginning of `core/pods@default`: a whole name means that stream.
    if let Some(whole) = found.iter().position(|item| item.stream == word) {
        found = vec![found.swap_remove(whole)];
    }
    match found.pop() {
        None => Err(absent(known, streams, object).await?),
        Some(item) if found.is_empty() => Ok(item),
        Some(last) => {
            let told = |item: &item::Object| format!("{} {}", item.stream, full_name(&item.namespace, &item.name));
            let candidates: Vec<String> = found.iter().chain([&last]).map(told).collect();
            let candidates = candidates.join(", ");
            Err(Refusal::Usage(format!("{word} {object} is not one object; allowed: one of {candidates}")))
        }
    }
}

/// The same name in another namespace, or one that is nearly the same.
async fn absent(known: &Known, streams: &[Arc<Stream>], object: &str) -> Result<Refusal, Refusal> {
    let bare = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    // A page of names and the best one so far: memory does not grow with the number of objects.
    let mut near: Option<String> = None;
    for stream in streams {
        let mut pages = Pages::new(stream);
        while let Some(rows) = pages.next(known).await? {
            let names: Vec<String> = near
                .take()
                .into_iter()
                .chain(rows.iter().map(|(key, _)| full_name(&key.namespace, &key.name)))
                .collect();
            let elsewhere = names.iter().find(|name| bare(name) == bare(object)).map(String::as_str);
            near = elsewhere.or_else(|| nearest(object, names.iter().map(String::as_str))).map(Into::into);
        }
    }
    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    let of: Vec<String> = streams.iter().map(ToString::to_string).collect();
    Ok(Refusal::Absent(format!("no object {object} is known in {}{near}", of.join(", "))))
}

fn full_name(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

fn item(stream: &Stream, key: ObjectKey, row: Row, object: Option<Box<RawValue>>) -> item::Object {
    item::Object {
        stream: stream.to_string(),
        namespace: key.namespace,
        name: key.name,
        uid: row.uid,
        resource_version: row.logged.to_string(),
        generation: row.generation,
        seq: row.seq,
        observed_at: row.observed_at,
        object,
    }
}
