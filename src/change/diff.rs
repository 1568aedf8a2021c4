//! What differs between two cleaned objects: an RFC 6902 patch whose values are the new object's own bytes, the paths in it and
//! the parts of the object that they belong to.
//!
//! Both texts are walked side by side and equal spans are passed by comparing bytes; no tree is built. Left out are
//! `metadata.resourceVersion` and `metadata.generation`, which have fields of their own in a record.

mod array;
mod object;

use std::{collections::HashSet, ops::Range};

use bytes::Bytes;
use kubetide_sink::{Class, Difference};

use super::{
    Ignored,
    json::{Json, Walked},
    pattern::push_token,
};

/// A difference that was found.
#[derive(Debug)]
pub(super) struct Diff {
    /// Whether there is more in it than what is ignored.
    pub(super) counts: bool,
    /// Paths and classes.
    pub(super) difference: Difference,
    /// The patch; none where it would be larger than the object.
    pub(super) patch: Option<Bytes>,
}

/// What differs between two objects; none if one of them cannot be walked.
pub(super) fn of(before: &[u8], now: &[u8], ignored: &Ignored) -> Option<Diff> {
    let walk = |by_place| Walk {
        before,
        now,
        ignored,
        by_place,
        path: String::new(),
        counts: false,
        patch: Vec::new(),
        paths: Vec::new(),
        paths_bytes: 0,
        tops: Vec::new(),
    };
    let whole = |bytes: &[u8]| -> Walked<Range<usize>> {
        let mut json = Json::new(bytes);
        json.next();
        let from = json.at;
        json.value()?;
        Ok(from..json.at)
    };
    let (from, to) = (whole(before).ok()?, whole(now).ok()?);
    let mut found = walk(false);
    found.value(from.clone(), to.clone()).ok()?;
    // What has moved within a list is told as gone and new, though place by place only what is ignored may differ.
    if found.counts && !ignored.0.is_empty() {
        let mut again = walk(true);
        again.value(from, to).ok()?;
        found.counts = again.counts;
    }
    Some(found.finish())
}

/// What is done at a path. With the spans of the values: of those that go in the text before, of those that come in the new one.
enum Step {
    Add(Range<usize>),
    Remove(Range<usize>),
    Replace(Range<usize>, Range<usize>),
}

/// Cleaning leaves it empty where nothing else was in it: whether it is there then is of no interest.
const ANNOTATIONS: &str = "/metadata/annotations";

/// The walk over both texts.
struct Walk<'a> {
    before: &'a [u8],
    now: &'a [u8],
    ignored: &'a Ignored,
    /// Whether the items of lists are matched by their places alone.
    by_place: bool,
    /// Where it is, as a JSON Pointer.
    path: String,
    counts: bool,
    /// Goes no further once it is larger than the object.
    patch: Vec<u8>,
    /// Go no further once they are larger than the object.
    paths: Vec<String>,
    paths_bytes: usize,
    /// The first tokens of all paths, each once.
    tops: Vec<String>,
}

impl Walk<'_> {
    /// One value on both sides.
    fn value(&mut self, before: Range<usize>, now: Range<usize>) -> Walked {
        let (old, new) = (&self.before[before.clone()], &self.now[now.clone()]);
        if old == new {
            return Ok(());
        }
        match (old.first(), new.first()) {
            (Some(b'{'), Some(b'{')) => self.object(before, now),
            (Some(b'['), Some(b'[')) => self.array(before, now),
            _ => self.note(Step::Replace(before, now)),
        }
    }

    /// One value that takes the place of another: as the differences between them, or as a whole where that is shorter.
    fn instead(&mut self, before: Range<usize>, now: Range<usize>) -> Walked {
        let (patch, paths, paths_bytes) = (self.patch.len(), self.paths.len(), self.paths_bytes);
        self.value(before, now.clone())?;
        // Its operation is as long as this, but for escapes in the path.
        let whole = ",{\"op\":\"replace\",\"path\":\"\",\"value\":}".len() + self.path.len() + now.len();
        if self.patch.len() - patch > whole {
            self.patch.truncate(patch);
            self.paths.truncate(paths);
            self.paths_bytes = paths_bytes;
            self.write("replace", Some(now));
        }
        Ok(())
    }

    /// Something below the present path.
    fn below<T>(&mut self, token: &str, step: impl FnOnce(&mut Self) -> Walked<T>) -> Walked<T> {
        let length = self.path.len();
        push_token(&mut self.path, token);
        let walked = step(self);
        self.path.truncate(length);
        walked
    }

    /// Notes a difference at the present path.
    fn note(&mut self, step: Step) -> Walked {
        self.counts = self.counts || self.is_of_interest(&step)?;
        let top = self.path.split('/').nth(1).unwrap_or_default();
        if !self.tops.iter().any(|known| known == top) {
            self.tops.push(top.to_owned());
        }
        match step {
            Step::Add(now) => self.write("add", Some(now)),
            Step::Remove(_) => self.write("remove", None),
            Step::Replace(_, now) => self.write("replace", Some(now)),
        }
        Ok(())
    }

    /// Writes an operation at the present path, with the new value at a span.
    fn write(&mut self, op: &str, value: Option<Range<usize>>) {
        if self.paths_bytes <= self.now.len() {
            self.paths_bytes += self.path.len();
            if self.paths.last() != Some(&self.path) {
                self.paths.push(self.path.clone());
            }
        }
        let patch = &mut self.patch;
        if patch.len() <= self.now.len() {
            patch.push(if patch.is_empty() { b'[' } else { b',' });
            patch.extend_from_slice(b"{\"op\":\"");
            patch.extend_from_slice(op.as_bytes());
            patch.extend_from_slice(b"\",\"path\":");
            // Writing text into memory does not fail.
            let _ = serde_json::to_writer(&mut *patch, &self.path);
            if let Some(value) = value {
                patch.extend_from_slice(b",\"value\":");
                patch.extend_from_slice(&self.now[value]);
            }
            patch.push(b'}');
        }
    }

    /// Whether there is anything in a difference that is not ignored.
    fn is_of_interest(&mut self, step: &Step) -> Walked<bool> {
        if self.ignored.covers(&self.path) {
            return Ok(false);
        }
        // Most objects need not be looked into.
        if self.ignored.0.is_empty() && self.path != ANNOTATIONS {
            return Ok(true);
        }
        let (before, now) = (self.before, self.now);
        Ok(match step {
            Step::Add(value) => !self.is_hollow(now, value)?,
            Step::Remove(value) => !self.is_hollow(before, value)?,
            Step::Replace(old, new) => {
                // Null holds as little as what is not there.
                let is_null = |bytes: &[u8], value: &Range<usize>| bytes[value.clone()].starts_with(b"n");
                let old_is_hollow = is_null(before, old) || self.is_hollow(before, old)?;
                !(old_is_hollow && (is_null(now, new) || self.is_hollow(now, new)?))
            }
        })
    }

    /// Whether everything in a value at the present path is ignored.
    fn is_hollow(&mut self, bytes: &[u8], value: &Range<usize>) -> Walked<bool> {
        if self.ignored.covers(&self.path) {
            return Ok(true);
        }
        match bytes[value.start] {
            b'{' => {
                let members = object::members(bytes, value.start)?;
                for member in &members {
                    if !self.below(&member.key, |walk| walk.is_hollow(bytes, &member.value))? {
                        return Ok(false);
                    }
                }
                Ok(!members.is_empty() || self.path == ANNOTATIONS)
            }
            b'[' => {
                let items = array::items(bytes, value.start)?;
                for (place, item) in items.iter().enumerate() {
                    if !self.below(&place.to_string(), |walk| walk.is_hollow(bytes, item))? {
                        return Ok(false);
                    }
                }
                Ok(!items.is_empty())
            }
            _ => Ok(false),
        }
    }

    fn finish(self) -> Diff {
        let Self { counts, mut patch, mut paths, paths_bytes, tops, now, .. } = self;
        let classes: Vec<Class> = tops.iter().map(|top| class_of(top)).collect();
        let classes = Class::ALL.into_iter().filter(|class| classes.contains(class)).collect();
        if paths_bytes > now.len() {
            let top = |top: &String| if top.is_empty() { String::new() } else { format!("/{top}") };
            paths = tops.iter().map(top).collect();
        }
        // Items that go one after the other have one path.
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        if patch.is_empty() {
            patch.push(b'[');
        }
        patch.push(b']');
        let patch = Some(patch).filter(|patch| patch.len() <= now.len()).map(Bytes::from);
        Diff { counts, difference: Difference { classes, paths }, patch }
    }
}

/// The part of an object that a first token stands for.
fn class_of(top: &str) -> Class {
    match top {
        "spec" => Class::Spec,
        "status" => Class::Status,
        "metadata" => Class::Metadata,
        "data" | "binaryData" | "stringData" => Class::Data,
        _ => Class::Other,
    }
}
