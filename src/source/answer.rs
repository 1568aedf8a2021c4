//! What the API server answers: pages of a LIST and events of a WATCH, found in raw bytes.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    api::{ApiError, place_of, status_error},
    lines::Line,
};
use crate::change::{Cleaner, Observed, ResourceVersion, scan};

/// How the lines of a watch begin that tell of an object, and whether it is gone.
const EVENTS: [(&[u8], bool); 3] = [
    (br#"{"type":"MODIFIED","object":"#, false),
    (br#"{"type":"ADDED","object":"#, false),
    (br#"{"type":"DELETED","object":"#, true),
];

/// One page of a LIST. Not printable: its objects are not cleaned yet.
pub struct Page {
    /// The collection's version: the same on all pages.
    pub version: ResourceVersion,
    /// How to ask for the next page.
    pub next: Option<String>,
    /// How many objects are on the pages to come, where the server tells.
    pub remaining: Option<u64>,
    /// The body that the items are slices of.
    body: Bytes,
    items: Vec<std::ops::Range<usize>>,
}

impl Page {
    /// The objects' raw bytes.
    pub fn items(&self) -> impl Iterator<Item = &[u8]> {
        self.items.iter().map(|span| &self.body[span.clone()])
    }

    pub(super) fn parse(body: Bytes) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct List<'a> {
            metadata: ListMeta,
            #[serde(borrow, default)]
            items: Option<Vec<&'a RawValue>>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct ListMeta {
            #[serde(default)]
            resource_version: String,
            #[serde(default)]
            r#continue: String,
            remaining_item_count: Option<u64>,
        }
        // The spans of the items are looked for in text of the same length, so that an object in bad UTF-8 is its own problem and
        // not that of its page.
        let text = readable(&body);
        let list: List<'_> = serde_json::from_str(&text)
            .map_err(|error| ApiError::failed(format!("a LIST that is not one: {}", place_of(&error))))?;
        if list.metadata.resource_version.is_empty() {
            return Err(ApiError::failed("a LIST without a resourceVersion"));
        }
        let start = text.as_ptr() as usize;
        let items = list.items.unwrap_or_default();
        let spans = items.iter().map(|item| {
            let from = item.get().as_ptr() as usize - start;
            from..from + item.get().len()
        });
        let items: Vec<std::ops::Range<usize>> = spans.collect();
        let is_split = |span: &std::ops::Range<usize>| memchr::memchr2(b'\n', b'\r', &body[span.clone()]).is_some();
        let is_split = items.iter().any(is_split);
        let ListMeta { resource_version, r#continue, remaining_item_count: remaining } = list.metadata;
        let next = Some(r#continue).filter(|token| !token.is_empty());
        let body = if is_split { in_one_line(body) } else { body };
        Ok(Self { version: ResourceVersion::new(resource_version), next, remaining, items, body })
    }
}

/// JSON of the same length without line ends: a server or proxy that indents what it sends must not break records of one line
/// each. Within strings there are none: they are written as escapes.
fn in_one_line(body: Bytes) -> Bytes {
    let mut bytes = Vec::from(body);
    bytes.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    Bytes::from(bytes)
}

/// The bytes as text of the same length, with a question mark for each that is not of any character.
fn readable(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let readable = |chunk: std::str::Utf8Chunk<'_>| chunk.valid().to_owned() + &"?".repeat(chunk.invalid().len());
    Cow::Owned(bytes.utf8_chunks().map(readable).collect())
}

/// One event of a WATCH.
#[derive(Clone)]
pub enum WatchEvent {
    /// ADDED or MODIFIED: the difference is ours to find.
    Present(Observed),
    /// DELETED.
    Deleted(Observed),
    /// Nothing else has happened up to here.
    Bookmark {
        /// Where.
        version: ResourceVersion,
        /// It ends the initial events of a streaming LIST.
        ends_list: bool,
    },
}

impl WatchEvent {
    /// Reads one line of a watch.
    pub fn parse(cleaner: &Cleaner, line: &Line) -> Result<Self, ApiError> {
        match line {
            Line::TooLong(beginning) => Self::parse_beginning(cleaner, beginning),
            Line::Whole(line) => {
                let seen = Self::scan(cleaner, line);
                if let Some(Self::Present(observed) | Self::Deleted(observed)) = &seen
                    && observed.object.is_ok()
                {
                    return seen.ok_or_else(|| ApiError::Undecodable("no watch event".into()));
                }
                let read = match std::str::from_utf8(line) {
                    Ok(text) => Self::parse_text(cleaner, text, None),
                    // Not as it was sent, but the names in it are: it can be told of which object nothing can be told.
                    Err(_) => Self::parse_text(cleaner, &String::from_utf8_lossy(line), Some("bad UTF-8")),
                };
                match (read, seen) {
                    // The parser does not go as deep as the scanner, which knows the object and what is wrong with it.
                    (Err(ApiError::Undecodable(_)), Some(event)) if event.is_too_deep() => Ok(event),
                    (read, _) => read,
                }
            }
        }
    }

    /// Reads a line in the API server's own spelling, `{"type":"ADDED","object":…}`, without looking at anything twice.
    fn scan(cleaner: &Cleaner, line: &[u8]) -> Option<Self> {
        let (deleted, rest) = EVENTS
            .iter()
            .find_map(|(beginning, deleted)| line.strip_prefix(*beginning).map(|rest| (*deleted, rest)))?;
        let (observed, end) = scan::observe_first(cleaner, rest).ok()?;
        if observed.object.is_ok() && &rest[end..] != b"}" {
            return None;
        }
        Some(if deleted { Self::Deleted(observed) } else { Self::Present(observed) })
    }

    fn is_too_deep(&self) -> bool {
        match self {
            Self::Present(observed) | Self::Deleted(observed) => observed.is_too_deep(),
            Self::Bookmark { .. } => false,
        }
    }

    fn parse_text(cleaner: &Cleaner, line: &str, problem: Option<&str>) -> Result<Self, ApiError> {
        #[derive(Deserialize)]
        struct Event<'a> {
            #[serde(borrow)]
            r#type: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Marked {
            metadata: MarkedMeta,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct MarkedMeta {
            resource_version: String,
            #[serde(default)]
            annotations: std::collections::HashMap<String, String>,
        }
        let broken = |error: serde_json::Error| {
            ApiError::Undecodable(format!("a watch event that is not one: {}", place_of(&error)))
        };
        let event: Event<'_> = serde_json::from_str(line).map_err(broken)?;
        let object = event.object.get();
        let observe = || -> Result<Observed, ApiError> {
            let mut observed = scan::observe(cleaner, object.as_bytes())?;
            if let Some(problem) = problem {
                observed.object = Err(problem.into());
            }
            Ok(observed)
        };
        match event.r#type.as_ref() {
            "ADDED" | "MODIFIED" => Ok(Self::Present(observe()?)),
            "DELETED" => Ok(Self::Deleted(observe()?)),
            "BOOKMARK" => {
                let MarkedMeta { resource_version, annotations } =
                    serde_json::from_str::<Marked>(object).map_err(broken)?.metadata;
                let ends_list = annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true");
                Ok(Self::Bookmark { version: ResourceVersion::new(resource_version), ends_list })
            }
            "ERROR" => Err(status_error(None, None, object.as_bytes())),
            _ => Err(ApiError::Undecodable("a watch event of an unknown type".into())),
        }
    }

    /// Of an event that is too long, the object it is about, if that is near its beginning.
    fn parse_beginning(cleaner: &Cleaner, beginning: &[u8]) -> Result<Self, ApiError> {
        let too_long = || ApiError::Undecodable("a watch event is larger than 16 MiB".into());
        // As the API server writes it.
        let rest = beginning.strip_prefix(br#"{"type":""#).ok_or_else(too_long)?;
        let object_at =
            rest.windows(11).take(64).position(|window| window == br#"","object":"#).ok_or_else(too_long)?;
        let observed = scan::observe(cleaner, &rest[object_at + 11..]).map_err(|_| too_long())?;
        let observed = Observed { object: Err("larger than 16 MiB".into()), ..observed };
        match &rest[..object_at] {
            b"ADDED" | b"MODIFIED" => Ok(Self::Present(observed)),
            b"DELETED" => Ok(Self::Deleted(observed)),
            _ => Err(too_long()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn an_item_of_an_indented_list_is_one_line() {
        let list = |item: &str| {
            let body = format!("{{\n \"metadata\": {{\"resourceVersion\": \"7\"}},\n \"items\": [{item},1]\n}}\n");
            let page = Page::parse(body.into()).unwrap_or_else(|error| panic!("{error}"));
            page.items().map(|item| String::from_utf8(item.to_vec()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(list("{\r\n\t\"a\": \"\\n\",\n\t\"b\": 1\n}"), ["{  \t\"a\": \"\\n\", \t\"b\": 1 }", "1"]);
        assert_eq!(list("{\"a\":\"\\n\"}"), ["{\"a\":\"\\n\"}", "1"]);
    }
}
