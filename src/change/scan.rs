//! One pass over an object's raw bytes: finds its identity and the spans to cut out.
//!
//! The object is never parsed into a tree and written back. What is not wanted (`managedFields`, the last-applied
//! annotation) is cut out of the bytes; `kind` and `apiVersion`, which a LIST leaves out, are put in front, so that
//! the bytes of one version are the same from a LIST and from a WATCH.

use std::{borrow::Cow, ops::Range};

use super::{Managed, ObjectKey, Observed, ResourceVersion, TypeMeta};
use bytes::Bytes;

/// The API server takes deeper JSON than most parsers; beyond this it is not an object anyone wrote.
const MAX_DEPTH: usize = 512;

/// Holds the whole object a second time, as text.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Why an object's identity could not be found: nothing can be logged of it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("object without identity at byte {at}: {problem}")]
pub struct NoIdentity {
    at: usize,
    problem: &'static str,
}

/// Finds the object's identity and cleans it.
pub fn observe(types: &TypeMeta, bytes: &[u8]) -> Result<Observed, NoIdentity> {
    let mut scan = Scan { bytes, at: 0, depth: 0, found: Found::default(), cuts: Vec::new() };
    let walked = scan.object_at_top().and_then(|()| std::str::from_utf8(bytes).map(drop).map_err(|_| "bad UTF-8"));
    let Scan { at, found, cuts, .. } = scan;
    let no_identity = |problem| NoIdentity { at, problem };
    let (Some(name), Some(version)) = (found.name, found.version) else {
        return Err(no_identity(walked.err().unwrap_or("no metadata.name or metadata.resourceVersion")));
    };
    let key = ObjectKey { namespace: found.namespace.unwrap_or_default(), name };
    let uid = found.uid.unwrap_or_else(|| format!("{}/{}", key.namespace, key.name));
    let object = match walked {
        Ok(()) => Ok(clean(types, bytes, &cuts, found.has_kind)),
        Err(problem) => Err(format!("{problem} at byte {at}")),
    };
    let version = ResourceVersion::new(version);
    Ok(Observed { key, uid, version, generation: found.generation, managed: found.managed, object })
}

/// The bytes less the cuts, with `kind` and `apiVersion` in front if they are missing.
fn clean(types: &TypeMeta, bytes: &[u8], cuts: &[Range<usize>], has_kind: bool) -> Bytes {
    let mut out = Vec::with_capacity(bytes.len() + 96);
    let mut from = 0;
    if !has_kind {
        let open = bytes.iter().position(|byte| *byte == b'{').map_or(0, |at| at + 1);
        // Kinds and versions are identifiers: nothing in them needs an escape.
        let head = format!(r#"{{"kind":"{}","apiVersion":"{}","#, types.kind, types.api_version);
        out.extend_from_slice(head.as_bytes());
        from = open;
    }
    for cut in cuts {
        out.extend_from_slice(&bytes[from..cut.start]);
        from = cut.end;
    }
    out.extend_from_slice(&bytes[from..]);
    Bytes::from(out)
}

#[derive(Default)]
struct Found {
    has_kind: bool,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
    version: Option<String>,
    generation: Option<i64>,
    managed: Managed,
}

type Walked<T = ()> = Result<T, &'static str>;

/// What becomes of one member of an object.
enum Member {
    Keep,
    Cut,
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    found: Found,
    /// In rising order, never overlapping.
    cuts: Vec<Range<usize>>,
}

impl Scan<'_> {
    fn object_at_top(&mut self) -> Walked {
        let mut seen_metadata = false;
        self.members(|scan, key| {
            match key {
                "kind" => {
                    once(&mut scan.found.has_kind)?;
                    scan.value()?;
                }
                "metadata" => {
                    once(&mut seen_metadata)?;
                    scan.metadata()?;
                }
                _ => scan.value()?,
            }
            Ok(Member::Keep)
        })?;
        self.space();
        if self.at == self.bytes.len() { Ok(()) } else { Err("bytes behind the object") }
    }

    fn metadata(&mut self) -> Walked {
        let mut seen_managed_fields = false;
        let mut seen_annotations = false;
        self.members(|scan, key| {
            match key {
                "namespace" => scan.text_once(|found| &mut found.namespace)?,
                "name" => scan.text_once(|found| &mut found.name)?,
                "uid" => scan.text_once(|found| &mut found.uid)?,
                "resourceVersion" => scan.text_once(|found| &mut found.version)?,
                "generation" => {
                    let from = scan.at;
                    scan.value()?;
                    let digits = std::str::from_utf8(&scan.bytes[from..scan.at]).map_err(|_| "bad UTF-8")?;
                    if scan.found.generation.replace(digits.trim().parse().map_err(|_| "bad generation")?).is_some() {
                        return Err("a key is there twice");
                    }
                }
                "managedFields" => {
                    once(&mut seen_managed_fields)?;
                    let from = scan.at;
                    scan.value()?;
                    scan.found.managed = Managed(vec![crc32c::crc32c(&scan.bytes[from..scan.at])]);
                    return Ok(Member::Cut);
                }
                "annotations" => {
                    once(&mut seen_annotations)?;
                    scan.annotations()?;
                }
                _ => scan.value()?,
            }
            Ok(Member::Keep)
        })
    }

    fn annotations(&mut self) -> Walked {
        self.space();
        if self.peek() != Some(b'{') {
            return self.value();
        }
        self.members(|scan, key| {
            scan.value()?;
            Ok(if key == LAST_APPLIED { Member::Cut } else { Member::Keep })
        })
    }

    /// Walks the members of the object that begins here. `each` is called with the key, just before the value.
    fn members(&mut self, mut each: impl FnMut(&mut Self, &str) -> Walked<Member>) -> Walked {
        self.space();
        self.expect(b'{', "not an object")?;
        self.deeper()?;
        self.space();
        // Where the last kept member ends; a cut behind one takes its comma along.
        let mut kept_until = None;
        // Where a cut begins that has no kept member before it; it takes the next member's comma along.
        let mut open_cut = None;
        let mut body_start = self.at;
        while self.peek() != Some(b'}') {
            if let Some(from) = open_cut.take() {
                self.cuts.push(from..self.at);
                body_start = self.at;
            }
            let cuts_before = self.cuts.len();
            let bytes = self.bytes;
            let key = text(&bytes[self.string()?])?;
            self.space();
            self.expect(b':', "a key without a value")?;
            self.space();
            match each(self, &key)? {
                Member::Keep => kept_until = Some(self.at),
                Member::Cut => {
                    self.cuts.truncate(cuts_before);
                    match kept_until {
                        Some(from) => {
                            self.cuts.push(from..self.at);
                            kept_until = Some(self.at);
                        }
                        None => open_cut = Some(body_start),
                    }
                }
            }
            self.space();
            match self.peek() {
                Some(b',') => {
                    self.at += 1;
                    self.space();
                    if self.peek() == Some(b'}') {
                        return Err("a comma before a closing brace");
                    }
                }
                Some(b'}') => {}
                _ => return Err("neither comma nor closing brace behind a member"),
            }
        }
        if let Some(from) = open_cut {
            self.cuts.push(from..self.at);
        }
        self.at += 1;
        self.depth -= 1;
        Ok(())
    }

    /// Skips any value, checking that it is JSON.
    fn value(&mut self) -> Walked {
        self.space();
        match self.peek() {
            Some(b'{') => self.members(|scan, _| scan.value().map(|()| Member::Keep)),
            Some(b'[') => self.array(),
            Some(b'"') => self.string().map(drop),
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => Err("not a JSON value"),
        }
    }

    fn array(&mut self) -> Walked {
        self.at += 1;
        self.deeper()?;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            self.depth -= 1;
            return Ok(());
        }
        loop {
            self.value()?;
            self.space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    self.depth -= 1;
                    return Ok(());
                }
                _ => return Err("neither comma nor closing bracket behind an item"),
            }
        }
    }

    /// Skips a string and returns its span, quotes included.
    fn string(&mut self) -> Walked<Range<usize>> {
        let from = self.at;
        self.expect(b'"', "not a string")?;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(from..self.at);
                }
                Some(b'\\') => {
                    self.at += 1;
                    match self.peek() {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
                        Some(b'u') => {
                            let digits = self.bytes.get(self.at + 1..self.at + 5).ok_or("a cut escape")?;
                            if !digits.iter().all(u8::is_ascii_hexdigit) {
                                return Err("a bad escape");
                            }
                            self.at += 5;
                        }
                        _ => return Err("a bad escape"),
                    }
                }
                Some(0..=0x1f) => return Err("a control character in a string"),
                Some(_) => self.at += 1,
                None => return Err("a string without an end"),
            }
        }
    }

    fn text_once(&mut self, field: impl Fn(&mut Found) -> &mut Option<String>) -> Walked {
        let span = self.string()?;
        let value = text(&self.bytes[span])?.into_owned();
        match field(&mut self.found).replace(value) {
            None => Ok(()),
            Some(_) => Err("a key is there twice"),
        }
    }

    fn number(&mut self) -> Walked {
        let digits = |scan: &mut Self| {
            let from = scan.at;
            while scan.peek().is_some_and(|byte| byte.is_ascii_digit()) {
                scan.at += 1;
            }
            if scan.at > from { Ok(scan.at - from) } else { Err("a bad number") }
        };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let zero = self.peek() == Some(b'0');
        if digits(self)? > 1 && zero {
            return Err("a number with a leading zero");
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            digits(self)?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            digits(self)?;
        }
        Ok(())
    }

    fn literal(&mut self, word: &[u8]) -> Walked {
        if self.bytes[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err("not a JSON value")
        }
    }

    fn deeper(&mut self) -> Walked {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err("deeper than 512 levels") } else { Ok(()) }
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8, otherwise: &'static str) -> Walked {
        if self.peek() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            Err(otherwise)
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }
}

fn once(seen: &mut bool) -> Walked {
    if std::mem::replace(seen, true) { Err("a key is there twice") } else { Ok(()) }
}

/// The text of a quoted string. An escaped key is unescaped, so that nothing hides behind another spelling.
fn text(quoted: &[u8]) -> Walked<Cow<'_, str>> {
    if quoted.contains(&b'\\') {
        serde_json::from_slice::<String>(quoted).map(Cow::Owned).map_err(|_| "a bad escape")
    } else {
        std::str::from_utf8(&quoted[1..quoted.len() - 1]).map(Cow::Borrowed).map_err(|_| "bad UTF-8")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn pods() -> TypeMeta {
        TypeMeta { kind: "Pod".into(), api_version: "v1".into() }
    }

    fn cleaned(text: &str) -> String {
        String::from_utf8(observe(&pods(), text.as_bytes()).unwrap().object.unwrap().to_vec()).unwrap()
    }

    fn problem(text: &str) -> String {
        observe(&pods(), text.as_bytes()).unwrap().object.unwrap_err()
    }

    #[test]
    fn identity_is_found_and_the_rest_is_kept_byte_for_byte() {
        let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":3,"x":1.50},"spec":{"e":"\u00e9\/", "n":[1e3,-0.5,true,null]}}"#;
        let observed = observe(&pods(), text.as_bytes()).unwrap();
        assert_eq!((observed.key.namespace.as_str(), observed.key.name.as_str()), ("n", "a"));
        assert_eq!((observed.uid.as_str(), observed.version.as_str(), observed.generation), ("u", "7", Some(3)));
        assert_eq!(observed.object.unwrap(), text.as_bytes());
    }

    #[test]
    fn a_listed_item_gets_the_bytes_that_a_watch_would_show() {
        let listed = r#"{"metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#;
        let watched = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#;
        assert_eq!(cleaned(listed), cleaned(watched));
        assert_eq!(cleaned(listed), watched);
    }

    #[test]
    fn managed_fields_and_last_applied_are_cut_wherever_they_stand() {
        let managed = r#""managedFields":[{"manager":"m","x":{"a":[1,"]}"]}}]"#;
        let applied = r#""kubectl.kubernetes.io/last-applied-configuration":"{\"a\":1}""#;
        let escaped = r#""managed\u0046ields":[]"#;
        let id = r#""name":"a","resourceVersion":"7""#;
        for (metadata, expected) in [
            (format!("{{{managed},{id}}}"), format!("{{{id}}}")),
            (format!("{{{id},{managed}}}"), format!("{{{id}}}")),
            (format!("{{{id}, {managed} ,\"uid\":\"u\"}}"), format!("{{{id} ,\"uid\":\"u\"}}")),
            (format!("{{{id},{escaped}}}"), format!("{{{id}}}")),
            (format!("{{\"annotations\":{{{applied}}},{id}}}"), format!("{{\"annotations\":{{}},{id}}}")),
            (
                format!("{{\"annotations\":{{{applied},\"k\":\"v\"}},{managed},{id}}}"),
                format!("{{\"annotations\":{{\"k\":\"v\"}},{id}}}"),
            ),
            (format!("{{\"annotations\":null,{id}}}"), format!("{{\"annotations\":null,{id}}}")),
        ] {
            let text = format!(r#"{{"kind":"Pod","metadata":{metadata}}}"#);
            assert_eq!(cleaned(&text), format!(r#"{{"kind":"Pod","metadata":{expected}}}"#));
        }
    }

    #[test]
    fn what_cannot_be_walked_keeps_its_identity_and_says_why() {
        let id = r#""metadata":{"name":"a","resourceVersion":"7"}"#;
        let deep = format!("{}{}", "[".repeat(600), "]".repeat(600));
        assert!(problem(&format!(r#"{{{id},"spec":{deep}}}"#)).contains("512"));
        assert!(problem(&format!(r#"{{{id},"metadata":{{}}}}"#)).contains("twice"));
        assert!(problem(&format!(r#"{{{id},"spec":{{"a":01}}}}"#)).contains("leading zero"));
        assert!(problem(&format!("{{{id},\"spec\":\"a\nb\"}}")).contains("control character"));
        assert!(problem(&format!("{{{id}}} x")).contains("behind the object"));
        assert!(observe(&pods(), br#"{"metadata":{"namespace":"a"}}"#).is_err());
        assert!(observe(&pods(), b"[]").is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::hash_map(".*", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn cleaning_equals_what_a_real_parser_would_remove(spec in any_json(), fields in any_json(), labels in any_json()) {
            let mut value = json!({
                "kind": "Pod", "spec": spec,
                "metadata": {"a": labels, "name": "x", "resourceVersion": "1", "managedFields": fields,
                             "annotations": {LAST_APPLIED: "{}", "other": "y"}},
            });
            let text = value.to_string();
            // The parser does not read every float back to the last digit: hold both sides to what it reads.
            value = serde_json::from_str(&text).unwrap();
            let scanned: Value = serde_json::from_str(&cleaned(&text)).unwrap();
            value["metadata"].as_object_mut().unwrap().remove("managedFields");
            value["metadata"]["annotations"].as_object_mut().unwrap().remove(LAST_APPLIED);
            prop_assert_eq!(scanned, value);
        }

        #[test]
        fn what_a_real_parser_refuses_is_never_called_clean(text in r#"[\[\]{}",:0-9eE.+\-\\ tfnu"a-c]{0,40}"#) {
            let whole = format!(r#"{{"metadata":{{"name":"a","resourceVersion":"1"}},"spec":{text}}}"#);
            let clean = observe(&pods(), whole.as_bytes()).is_ok_and(|observed| observed.object.is_ok());
            prop_assert!(!clean || serde_json::from_str::<Value>(&whole).is_ok(), "{}", whole);
        }
    }
}
