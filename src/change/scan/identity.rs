//! Who an object is, and the search for that in text that cannot be walked: too deep, with a key twice, cut off.
//!
//! The search looks at the members of the object and of its `metadata` alone and passes everything else by its brackets, so that
//! an object is known by name whatever is wrong with the rest of it. What can be read in two ways is not read at all.

use std::borrow::Cow;

use crate::change::json::{over, over_string, text};

/// What an object is known by, as far as it was found.
#[derive(Default)]
pub(super) struct Identity<'a> {
    pub(super) namespace: Option<Cow<'a, str>>,
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) uid: Option<Cow<'a, str>>,
    pub(super) version: Option<Cow<'a, str>>,
}

impl<'a> Identity<'a> {
    /// The identity of the object that the bytes begin with, if it can be told without a doubt.
    pub(super) fn search(bytes: &'a [u8]) -> Option<Self> {
        let mut first: Option<Self> = None;
        let mut members = Members::of(bytes, 0);
        while let Some(member) = members.next() {
            if member.key.as_deref() != Some("metadata") {
                continue;
            }
            let identity = Self::of_metadata(bytes, member.value)?;
            match &first {
                // Who it is, is anyone's guess.
                Some(first) if identity.says_more_than(first) => return None,
                Some(_) => {}
                None => first = Some(identity),
            }
        }
        first
    }

    fn of_metadata(bytes: &'a [u8], at: usize) -> Option<Self> {
        let mut identity = Self::default();
        let mut members = Members::of(bytes, at);
        while let Some(member) = members.next() {
            let part = match member.key.as_deref() {
                Some("namespace") => &mut identity.namespace,
                Some("name") => &mut identity.name,
                Some("uid") => &mut identity.uid,
                Some("resourceVersion") => &mut identity.version,
                _ => continue,
            };
            let value = match bytes[member.value..] {
                [b'"', ..] => text(&bytes[member.value..over_string(bytes, member.value)?]).ok()?,
                [b'n', ..] => continue,
                _ => return None,
            };
            if part.as_ref().is_some_and(|known| *known != value) {
                return None;
            }
            *part = Some(value);
        }
        // Of metadata that is cut off the namespace may be missing; API servers write it before the later of these two, be it in
        // the order of the alphabet or in that of the built-in types.
        let has_both = identity.uid.is_some() && identity.version.is_some();
        (members.is_whole || has_both).then_some(identity)
    }

    fn says_more_than(&self, first: &Self) -> bool {
        self.parts().iter().zip(first.parts()).any(|(own, first)| own.is_some() && *own != first)
    }

    const fn parts(&self) -> [&Option<Cow<'a, str>>; 4] {
        [&self.namespace, &self.name, &self.uid, &self.version]
    }
}

/// The members of one object, as far as they can be told apart.
struct Members<'a> {
    bytes: &'a [u8],
    /// Where the next key is looked for; none behind the last.
    at: Option<usize>,
    /// Whether the end of the object was reached.
    is_whole: bool,
}

struct Member<'a> {
    /// None if it is no text.
    key: Option<Cow<'a, str>>,
    /// Where its value begins.
    value: usize,
}

impl<'a> Members<'a> {
    /// Of the object that begins at `at`; none if there is no object.
    fn of(bytes: &'a [u8], at: usize) -> Self {
        let inside = (bytes.get(at) == Some(&b'{')).then_some(at + 1);
        let is_empty = inside.is_some_and(|at| bytes.get(behind_space(bytes, at)) == Some(&b'}'));
        Self { bytes, at: inside.filter(|_| !is_empty), is_whole: is_empty }
    }

    fn next(&mut self) -> Option<Member<'a>> {
        let from = behind_space(self.bytes, self.at.take()?);
        if self.bytes.get(from) != Some(&b'"') {
            return None;
        }
        let to = over_string(self.bytes, from)?;
        let colon = behind_space(self.bytes, to);
        if self.bytes.get(colon) != Some(&b':') {
            return None;
        }
        let value = behind_space(self.bytes, colon + 1);
        if let Some(end) = over(self.bytes, value) {
            let end = behind_space(self.bytes, end);
            self.at = (self.bytes.get(end) == Some(&b',')).then_some(end + 1);
            self.is_whole = self.bytes.get(end) == Some(&b'}');
        }
        Some(Member { key: text(&self.bytes[from..to]).ok(), value })
    }
}

fn behind_space(bytes: &[u8], at: usize) -> usize {
    let space = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
    at + bytes.get(at..).unwrap_or_default().iter().take_while(space).count()
}
