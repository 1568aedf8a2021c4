//! Objects as they were logged last, a page at a time.

use std::sync::Arc;

use kubetide_sink::Stream;
use serde_json::value::RawValue;

use super::{
    Desk, Objects, Refusal, Reply, Stopped, Words,
    answer::{nearest, streams_for},
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
    /// One object, found.
    One(Box<item::Object>),
    /// All of these streams and namespaces.
    Many { view: View, streams: Vec<Arc<Stream>>, namespaces: Words },
}

impl Reading {
    pub(super) async fn new(desk: &Desk, wanted: Objects) -> Result<Self, Refusal> {
        let streams = streams_for(desk, &wanted.stream)?;
        match wanted.object {
            None => Ok(Self::Many { view: desk.view.clone(), streams, namespaces: wanted.namespace }),
            Some(object) => Ok(Self::One(Box::new(find(desk.view.known(), &streams, &object).await?))),
        }
    }

    pub(super) async fn run(self, reply: &Reply) -> Result<(), Stopped> {
        let (view, streams, namespaces) = match self {
            Self::One(object) => return reply.items(&[object]).await,
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

async fn find(known: &Known, streams: &[Arc<Stream>], object: &str) -> Result<item::Object, Refusal> {
    for stream in streams {
        let (namespace, name) = match object.split_once('/') {
            Some((namespace, name)) => (namespace.to_owned(), name),
            // A stream of one namespace says itself which.
            None => (stream.namespace.clone().unwrap_or_default(), object),
        };
        let key = ObjectKey { namespace, name: name.into() };
        if let Some(row) = known.row(stream, key.clone()).await.map_err(Refusal::failed)? {
            let raw = row.object.as_ref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            let raw = raw.map(RawValue::from_string).transpose().map_err(Refusal::failed)?;
            return Ok(item(stream, key, row, raw));
        }
    }
    Err(absent(known, streams, object).await?)
}

/// The same name in another namespace, or one that is nearly the same.
async fn absent(known: &Known, streams: &[Arc<Stream>], object: &str) -> Result<Refusal, Refusal> {
    let bare = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
    // A page of names and the best one so far: memory does not grow with the number of objects.
    let mut near: Option<String> = None;
    for stream in streams {
        let mut pages = Pages::new(stream);
        while let Some(rows) = pages.next(known).await? {
            let names: Vec<String> =
                near.take().into_iter().chain(rows.iter().map(|(key, _)| full_name(key))).collect();
            let elsewhere = names.iter().find(|name| bare(name) == bare(object)).map(String::as_str);
            near = elsewhere.or_else(|| nearest(object, names.iter().map(String::as_str))).map(Into::into);
        }
    }
    let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
    let of: Vec<String> = streams.iter().map(ToString::to_string).collect();
    Ok(Refusal::Absent(format!("no object {object} is known in {}{near}", of.join(", "))))
}

fn full_name(key: &ObjectKey) -> String {
    if key.namespace.is_empty() { key.name.clone() } else { format!("{}/{}", key.namespace, key.name) }
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
