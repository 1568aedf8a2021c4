//! An object as the cluster holds it: its version and either the serialized bytes, or the recipe that renders
//! them. Recipes keep 200,000 objects in tens of megabytes; no parsed tree is ever kept.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::manifest::Recipe;
use crate::resource::ResourceType;

/// The fields of an object's metadata in the order of the struct.
pub(crate) const METADATA_ORDER: [&str; 14] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// One state of one object.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) version: u64,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Text(Text),
    Recipe(Recipe),
}

impl Object {
    /// The bytes without kind and apiVersion, which are those of the version that is asked for.
    pub(crate) fn text(&self) -> Text {
        match &self.body {
            Body::Text(text) => text.clone(),
            Body::Recipe(recipe) => recipe.render(self.version),
        }
    }

    /// The same state under another version: what a DELETED event carries.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        let body = match &self.body {
            Body::Text(text) => Body::Text(text.at_version(version)),
            recipe @ Body::Recipe(_) => recipe.clone(),
        };
        Self { version, body }
    }

    /// The object with kind and apiVersion: what GET and WATCH give.
    pub(crate) fn whole(&self, kind: &ResourceType) -> Bytes {
        let mut whole = kind.opening().into_bytes();
        whole.extend_from_slice(&self.text().bytes[1..]);
        whole.into()
    }
}

/// Serialized bytes, and where in them the parts are that the server needs.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) bytes: Bytes,
    version: Range<u32>,
    labels: Range<u32>,
    metadata: Range<u32>,
}

impl Text {
    /// Serializes an object, its identity first as the API server does.
    pub(crate) fn of(object: &Map<String, Value>, kind: &ResourceType, version: u64) -> Self {
        let mut draft = Draft::new();
        draft.push("{");
        draft.open_metadata();
        let nothing = Map::new();
        let metadata = object.get("metadata").and_then(Value::as_object).unwrap_or(&nothing);
        // Structs have their order, the maps of custom resources are sorted.
        let order: &[&str] = if kind.custom { &[] } else { &METADATA_ORDER };
        let rest = metadata.keys().map(String::as_str).filter(|field| !order.contains(field));
        let mut fields: Vec<&str> = order.iter().copied().chain(rest).collect();
        if kind.custom {
            fields.push("resourceVersion");
            fields.sort_unstable();
            fields.dedup();
        }
        for field in fields {
            match (field, metadata.get(field)) {
                ("resourceVersion", _) => draft.version(version),
                ("labels", Some(labels)) => draft.labels(&labels.to_string()),
                (field, Some(value)) => draft.field(field, value),
                (_, None) => {}
            }
        }
        draft.close_metadata();
        for (field, value) in object {
            if !matches!(field.as_str(), "kind" | "apiVersion" | "metadata") {
                draft.field(field, value);
            }
        }
        draft.finish()
    }

    pub(crate) fn metadata(&self) -> &[u8] {
        &self.bytes[range(&self.metadata)]
    }

    pub(crate) fn labels(&self) -> BTreeMap<String, String> {
        // An object without labels has an empty range; both that and labels of a wrong shape select nothing.
        serde_json::from_slice(&self.bytes[range(&self.labels)]).unwrap_or_default()
    }

    fn at_version(&self, version: u64) -> Self {
        let digits = version.to_string();
        let mut bytes = Vec::with_capacity(self.bytes.len() + 8);
        bytes.extend_from_slice(&self.bytes[..self.version.start as usize]);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(&self.bytes[self.version.end as usize..]);
        let grown = digits.len() as u32;
        let shift = |at: u32| {
            if at > self.version.start { at - self.version.len() as u32 + grown } else { at }
        };
        let shifted = |part: &Range<u32>| shift(part.start)..shift(part.end);
        Self {
            bytes: bytes.into(),
            version: self.version.start..self.version.start + grown,
            labels: shifted(&self.labels),
            metadata: shifted(&self.metadata),
        }
    }
}

fn range(part: &Range<u32>) -> Range<usize> {
    part.start as usize..part.end as usize
}

/// A text in the making.
pub(crate) struct Draft {
    text: String,
    version: Range<u32>,
    labels: Range<u32>,
    metadata: Range<u32>,
}

impl Draft {
    pub(crate) fn new() -> Self {
        Self { text: String::with_capacity(4096), version: 0..0, labels: 0..0, metadata: 0..0 }
    }

    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    pub(crate) fn open_metadata(&mut self) {
        self.push(r#""metadata":"#);
        self.metadata.start = self.at();
        self.push("{");
    }

    pub(crate) fn close_metadata(&mut self) {
        self.push("}");
        self.metadata.end = self.at();
    }

    pub(crate) fn version(&mut self, version: u64) {
        self.comma();
        self.push(r#""resourceVersion":""#);
        self.version.start = self.at();
        self.push(&version.to_string());
        self.version.end = self.at();
        self.push("\"");
    }

    pub(crate) fn labels(&mut self, json: &str) {
        self.comma();
        self.push(r#""labels":"#);
        self.labels.start = self.at();
        self.push(json);
        self.labels.end = self.at();
    }

    fn field(&mut self, name: &str, value: &Value) {
        self.comma();
        self.push(&Value::from(name).to_string());
        self.push(":");
        self.push(&value.to_string());
    }

    fn comma(&mut self) {
        if !self.text.ends_with(['{', ',']) {
            self.push(",");
        }
    }

    fn at(&self) -> u32 {
        // Objects are far below 4 GiB: the server refuses bodies above 3 MiB.
        self.text.len() as u32
    }

    pub(crate) fn finish(mut self) -> Text {
        self.push("}");
        Text { bytes: self.text.into(), version: self.version, labels: self.labels, metadata: self.metadata }
    }
}

impl std::fmt::Write for Draft {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.text.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn another_version_moves_the_marks_with_the_bytes() {
        let kind = crate::resource::widgets();
        let Value::Object(object) = json!({"metadata": {"name": "a", "labels": {"app": "web"}}, "spec": {"size": 1}})
        else {
            panic!("not an object");
        };
        let text = Text::of(&object, &kind, 9).at_version(100_000);
        let read: Value = serde_json::from_slice(&text.bytes).unwrap();
        assert_eq!(read["metadata"]["resourceVersion"], "100000");
        assert_eq!(text.labels().get("app").map(String::as_str), Some("web"));
        assert_eq!(serde_json::from_slice::<Value>(text.metadata()).unwrap(), read["metadata"]);
    }
}
