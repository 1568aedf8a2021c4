//! Writes JSON objects member by member, so that bytes that are JSON already can be put in as they are.

use std::io::Write as _;

/// What stands where there is nothing.
pub(super) const NULL: &[u8] = b"null";

/// Writes the members of JSON objects, commas included.
pub(super) struct Json<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Json<'a> {
    /// Appends one object with these members.
    pub(super) fn object_into(out: &'a mut Vec<u8>, members: impl FnOnce(&mut Self)) {
        let mut json = Self { out };
        json.braced(members);
    }

    pub(super) fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        self.quoted(value);
    }

    pub(super) fn optional(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.text(name, value),
            None => self.raw(name, NULL),
        }
    }

    pub(super) fn number(&mut self, name: &str, value: impl std::fmt::Display) {
        // Into memory: it cannot fail.
        self.value(name, |out| drop(write!(out, "{value}")));
    }

    pub(super) fn raw(&mut self, name: &str, value: &[u8]) {
        self.value(name, |out| out.extend_from_slice(value));
    }

    /// A member whose value is appended by `write`.
    pub(super) fn value(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        self.name(name);
        write(self.out);
    }

    pub(super) fn texts<'t>(&mut self, name: &str, values: impl Iterator<Item = &'t str>) {
        self.name(name);
        self.out.push(b'[');
        for (index, value) in values.enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            self.quoted(value);
        }
        self.out.push(b']');
    }

    pub(super) fn object(&mut self, name: &str, members: impl FnOnce(&mut Self)) {
        self.name(name);
        self.braced(members);
    }

    fn braced(&mut self, members: impl FnOnce(&mut Self)) {
        self.out.push(b'{');
        members(self);
        self.out.push(b'}');
    }

    fn name(&mut self, name: &str) {
        if self.out.last() != Some(&b'{') {
            self.out.push(b',');
        }
        // Names are ours: nothing in them is escaped.
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn quoted(&mut self, text: &str) {
        // Names, versions and times hold nothing to be escaped: nearly every text is copied as it is.
        if text.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
            self.out.push(b'"');
            self.out.extend_from_slice(text.as_bytes());
            self.out.push(b'"');
            return;
        }
        // A string into memory: neither serializing nor writing can fail.
        let _ = serde_json::to_writer(&mut *self.out, text);
    }
}
