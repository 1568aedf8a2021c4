//! How the objects of one stream are cleaned, and the bytes that come of it.
//!
//! An object is never parsed into a tree and written back. What is not wanted is cut out of its bytes, what is secret is replaced
//! in them, and `kind` and `apiVersion`, which a LIST leaves out, are put in front: so the bytes of one version are the same from
//! a LIST and from a WATCH.

use std::{borrow::Cow, ops::Range, sync::Arc};

use bytes::Bytes;
use kubetide_sink::Stream;

use super::{
    id,
    json::{Walked, text},
    pattern::Pattern,
    redact::{RedactKey, is_mark},
    rules::Rules,
};

/// Releases of Helm that are kept in ConfigMaps: whole manifests, Secrets included.
const HELM_RELEASE: &str = "sh.helm.release.v1.";

/// What is cleaned out of all objects, as configured.
#[derive(Clone, Debug)]
pub struct Cleaning {
    /// Cut out.
    pub drop: Vec<Pattern>,
    /// Replaced by a mark.
    pub redact: Vec<Pattern>,
    /// The key of the marks.
    pub key: RedactKey,
}

/// `kind` and `apiVersion` as the objects of a stream carry them; a LIST may leave them out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeMeta {
    /// `kind`
    pub kind: String,
    /// `apiVersion`
    pub api_version: String,
}

/// Everything that turns the raw objects of one stream into clean ones. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Cleaner(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    types: TypeMeta,
    rules: Rules,
    key: RedactKey,
    /// Whether what is a mark already stays as it is.
    keeps_marks: bool,
    /// Over what shapes the cleaned bytes.
    fingerprint: String,
}

/// A span of the raw bytes that does not stay as it is. Where two overlap, the first one counts.
pub(super) struct Edit {
    pub(super) span: Range<usize>,
    pub(super) what: What,
}

pub(super) enum What {
    Cut,
    /// Replaced by a mark; the path is the value's own.
    Redact(String),
    /// The same, if the object turns out to be a release of Helm.
    RedactRelease(String),
}

/// Whose object it is, for the marks.
pub(super) struct Owner<'a> {
    pub(super) uid: &'a str,
    pub(super) name: &'a str,
}

impl Cleaning {
    /// The cleaner of a stream whose objects carry these types.
    pub fn cleaner(&self, stream: &Stream, types: TypeMeta) -> Cleaner {
        let rules = Rules::of(&stream.group, &stream.resource, &self.drop, &self.redact);
        let mut shape: Vec<&str> = vec!["drop"];
        shape.extend(self.drop.iter().map(Pattern::as_str));
        shape.push("redact");
        shape.extend(self.redact.iter().map(Pattern::as_str));
        // Where nothing is redacted, another key changes nothing.
        let key = if rules.redacts { self.key.hash() } else { String::new() };
        shape.push(&key);
        let fingerprint = id::hash(&shape).to_string();
        Cleaner(Arc::new(Parts { types, rules, key: self.key.clone(), keeps_marks: false, fingerprint }))
    }

    /// Cleans objects of a stream that were cleaned before, perhaps by other rules. What was redacted then stays as it is.
    pub fn cleaner_of_rows(&self, stream: &Stream) -> Cleaner {
        let types = TypeMeta { kind: stream.kind.clone(), api_version: stream.api_version() };
        let rules = Rules::of(&stream.group, &stream.resource, &self.drop, &self.redact);
        Cleaner(Arc::new(Parts { types, rules, key: self.key.clone(), keeps_marks: true, fingerprint: String::new() }))
    }
}

impl Cleaner {
    /// For objects of which only the identity is wanted.
    pub fn of_nothing() -> Self {
        let types = TypeMeta { kind: String::new(), api_version: String::new() };
        let rules = Rules::of("", "", &[], &[]);
        let key = RedactKey::new(&[]);
        Self(Arc::new(Parts { types, rules, key, keeps_marks: false, fingerprint: String::new() }))
    }

    /// Differs where cleaned bytes can differ.
    pub fn fingerprint(&self) -> &str {
        &self.0.fingerprint
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.0.rules
    }

    /// How long the spliced bytes will be if nothing is redacted: without any room to spare, `Bytes` takes them as they are.
    fn room(&self, bytes: &[u8], edits: &[Edit], has_kind: bool, has_api_version: bool) -> usize {
        let TypeMeta { kind, api_version } = &self.0.types;
        let kind = if has_kind { 0 } else { r#""kind":"","#.len() + kind.len() };
        let api_version = if has_api_version { 0 } else { r#""apiVersion":"","#.len() + api_version.len() };
        let cuts = edits.iter().filter(|edit| matches!(edit.what, What::Cut)).map(|edit| edit.span.len());
        (bytes.len() + kind + api_version).saturating_sub(cuts.sum())
    }

    /// The bytes with the edits done, and the types in front that are missing.
    pub(super) fn splice(
        &self,
        bytes: &[u8],
        edits: &[Edit],
        owner: &Owner<'_>,
        has_kind: bool,
        has_api_version: bool,
    ) -> Walked<Bytes> {
        let mut out = Vec::with_capacity(self.room(bytes, edits, has_kind, has_api_version));
        let mut from = 0;
        if !has_kind || !has_api_version {
            from = bytes.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
            out.push(b'{');
            let TypeMeta { kind, api_version } = &self.0.types;
            // Kinds and versions are identifiers: nothing in them needs an escape.
            for (is_there, key, value) in [(has_kind, "kind", kind), (has_api_version, "apiVersion", api_version)] {
                if !is_there {
                    for part in ["\"", key, "\":\"", value, "\","] {
                        out.extend_from_slice(part.as_bytes());
                    }
                }
            }
        }
        for Edit { span, what } in edits {
            if span.start < from {
                continue;
            }
            let path = match what {
                What::RedactRelease(_) if !owner.name.starts_with(HELM_RELEASE) => continue,
                What::Redact(path) | What::RedactRelease(path) => Some(path),
                What::Cut => None,
            };
            out.extend_from_slice(&bytes[from..span.start]);
            if let Some(path) = path {
                let value = match &bytes[span.clone()] {
                    quoted @ [b'"', ..] => text(quoted)?,
                    raw => Cow::Borrowed(std::str::from_utf8(raw).map_err(|_| "bad UTF-8")?),
                };
                if self.0.keeps_marks && is_mark(&value) {
                    out.extend_from_slice(&bytes[span.clone()]);
                } else {
                    self.0.key.mark(owner.uid, path, value.as_bytes(), &mut out);
                }
            }
            from = span.end;
        }
        out.extend_from_slice(&bytes[from..]);
        Ok(Bytes::from(out))
    }
}
