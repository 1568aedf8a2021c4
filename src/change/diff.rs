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
    let mut walk = Walk {
        before,
        now,
        ignored,
        path: String::new(),
        counts: false,
        patch: Some(Vec::new()),
        paths: Some(Vec::new()),
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
    walk.value(whole(before).ok()?, whole(now).ok()?).ok()?;
    Some(walk.finish())
}

/// What is done at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Add,
    Remove,
    Replace,
}

/// The walk over both texts.
struct Walk<'a> {
    before: &'a [u8],
    now: &'a [u8],
    ignored: &'a Ignored,
    /// Where it is, as a JSON Pointer.
    path: String,
    counts: bool,
    /// None once it is larger than the object.
    patch: Option<Vec<u8>>,
    /// None once they are larger than the object.
    paths: Option<Vec<String>>,
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
            _ => {
                self.note(Step::Replace, now);
                Ok(())
            }
        }
    }

    /// Something below the present path.
    fn below(&mut self, token: &str, step: impl FnOnce(&mut Self) -> Walked) -> Walked {
        let length = self.path.len();
        push_token(&mut self.path, token);
        let walked = step(self);
        self.path.truncate(length);
        walked
    }

    /// Notes a difference at the present path; `now` is the new value's span, and of no meaning for a removal.
    fn note(&mut self, step: Step, now: Range<usize>) {
        self.counts = self.counts || !self.ignored.covers(&self.path);
        let top = self.path.split('/').nth(1).unwrap_or_default();
        if !self.tops.iter().any(|known| known == top) {
            self.tops.push(top.to_owned());
        }
        if let Some(paths) = &mut self.paths {
            self.paths_bytes += self.path.len();
            if self.paths_bytes > self.now.len() {
                self.paths = None;
            } else if paths.last() != Some(&self.path) {
                paths.push(self.path.clone());
            }
        }
        if let Some(patch) = &mut self.patch {
            let op = match step {
                Step::Add => "add",
                Step::Remove => "remove",
                Step::Replace => "replace",
            };
            patch.push(if patch.is_empty() { b'[' } else { b',' });
            patch.extend_from_slice(b"{\"op\":\"");
            patch.extend_from_slice(op.as_bytes());
            patch.extend_from_slice(b"\",\"path\":");
            // Writing text into memory does not fail.
            let _ = serde_json::to_writer(&mut *patch, &self.path);
            if step != Step::Remove {
                patch.extend_from_slice(b",\"value\":");
                patch.extend_from_slice(&self.now[now]);
            }
            patch.push(b'}');
            if patch.len() > self.now.len() {
                self.patch = None;
            }
        }
    }

    fn finish(self) -> Diff {
        let Self { counts, patch, paths, tops, now, .. } = self;
        let classes: Vec<Class> = tops.iter().map(|top| class_of(top)).collect();
        let classes = Class::ALL.into_iter().filter(|class| classes.contains(class)).collect();
        let mut paths = paths.unwrap_or_else(|| {
            tops.iter().map(|top| if top.is_empty() { String::new() } else { format!("/{top}") }).collect()
        });
        // Items that go one after the other have one path.
        let mut seen = HashSet::new();
        paths.retain(|path| seen.insert(path.clone()));
        let patch = patch.map(|mut patch| {
            if patch.is_empty() {
                patch.push(b'[');
            }
            patch.push(b']');
            Bytes::from(patch)
        });
        let patch = patch.filter(|patch| patch.len() <= now.len());
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
