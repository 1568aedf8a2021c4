//! Which objects of a resource, and how much of each: what a stream's requests ask for, and the fingerprint of that.

use kubetide_sink::{Id, Stream};

use crate::{
    change::{Cleaner, TypeMeta, id},
    changelog::Fingerprint,
    config::{self, Content},
};

/// Raised when what is cut out of objects changes: the same version then has other bytes.
const CLEANING: &str = "clean 2";

/// What a stream's requests ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// The label selector.
    pub labels: String,
    /// The field selector, with the namespaces that are left out.
    pub fields: String,
    /// Whole objects or metadata.
    pub content: Content,
}

impl Selection {
    /// The selection of a configuration entry, for one of its streams.
    pub fn of(entry: &config::Stream, namespaced: bool, namespace: Option<&str>) -> Self {
        let mut fields: Vec<String> = Vec::new();
        if !entry.field_selector.is_empty() {
            fields.push(entry.field_selector.clone());
        }
        // The API server knows this field of everything that is in a namespace.
        if namespaced && namespace.is_none() {
            let mut excluded = entry.exclude_namespaces.clone();
            excluded.sort();
            excluded.dedup();
            fields.extend(excluded.iter().map(|namespace| format!("metadata.namespace!={namespace}")));
        }
        Self { labels: entry.label_selector.clone(), fields: fields.join(","), content: entry.content }
    }

    /// `kind` and `apiVersion` of the objects as they come.
    pub fn types(&self, stream: &Stream) -> TypeMeta {
        match self.content {
            Content::Full => TypeMeta { kind: stream.kind.clone(), api_version: stream.api_version() },
            Content::Metadata => {
                TypeMeta { kind: "PartialObjectMetadata".into(), api_version: "meta.k8s.io/v1".into() }
            }
        }
    }

    /// A hash over everything that shapes what the stream shows.
    pub fn fingerprint(&self, stream: &Stream, cleaner: &Cleaner) -> Fingerprint {
        let content = match self.content {
            Content::Full => "full",
            Content::Metadata => "metadata",
        };
        let (asked, cleaned) = ([&self.labels, &self.fields, content], [CLEANING, cleaner.fingerprint()]);
        let Id(hash) = id::hash(&[&[stream.cluster.uid.as_str(), &stream.version], &asked[..], &cleaned].concat());
        Fingerprint(hash)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use kubetide_sink::sample;

    use super::*;
    use crate::change::{Cleaning, Pattern, RedactKey};

    fn entry(yaml: serde_json::Value) -> config::Stream {
        serde_json::from_value(yaml).unwrap()
    }

    #[test]
    fn excluded_namespaces_are_left_out_by_the_api_server() {
        let entry = entry(serde_json::json!({
            "resource": "pods", "field_selector": "status.phase=Running", "exclude_namespaces": ["b", "a"]
        }));
        let fields = |namespaced, namespace| Selection::of(&entry, namespaced, namespace).fields;
        assert_eq!(fields(true, None), "status.phase=Running,metadata.namespace!=a,metadata.namespace!=b");
        assert_eq!(fields(true, Some("c")), "status.phase=Running");
        assert_eq!(fields(false, None), "status.phase=Running");
    }

    #[test]
    fn everything_that_shapes_the_stream_is_in_its_fingerprint() {
        let stream = sample::stream("pods", "Pod");
        let base = Selection::default();
        let patterns = |paths: &[&str]| paths.iter().map(|path| Pattern::parse(path).unwrap()).collect::<Vec<_>>();
        let cleaning = Cleaning { drop: vec![], redact: patterns(&["/spec/a"]), key: RedactKey::new(b"one") };
        let print = |selection: &Selection, stream: &Stream, cleaning: &Cleaning| {
            selection.fingerprint(stream, &cleaning.cleaner(stream, selection.types(stream)))
        };
        let mut seen = vec![print(&base, &stream, &cleaning)];
        for other in [
            Selection { labels: "a=b".into(), ..base.clone() },
            Selection { fields: "a=b".into(), ..base.clone() },
            Selection { content: Content::Metadata, ..base.clone() },
        ] {
            seen.push(print(&other, &stream, &cleaning));
        }
        for other in [
            Cleaning { drop: patterns(&["/spec/a"]), ..cleaning.clone() },
            Cleaning { drop: patterns(&["/spec/a"]), redact: vec![], ..cleaning.clone() },
            Cleaning { redact: patterns(&["/spec/b"]), ..cleaning.clone() },
            Cleaning { key: RedactKey::new(b"two"), ..cleaning.clone() },
        ] {
            seen.push(print(&base, &stream, &other));
        }
        seen.push(print(&base, &Stream { version: "v2".into(), ..stream.clone() }, &cleaning));
        let mut elsewhere = stream.clone();
        elsewhere.cluster.uid.push('x');
        seen.push(print(&base, &elsewhere, &cleaning));
        let different = seen.iter().enumerate().all(|(at, one)| !seen[..at].contains(one));
        assert!(different, "{seen:?}");
        assert_eq!(print(&base, &stream, &cleaning), seen[0]);
    }

    #[test]
    fn a_key_that_nothing_is_redacted_with_shapes_nothing() {
        let print = |resource: &str, key: &[u8]| {
            let stream = sample::stream(resource, "Any");
            let cleaning = Cleaning { drop: vec![], redact: vec![], key: RedactKey::new(key) };
            let selection = Selection::default();
            selection.fingerprint(&stream, &cleaning.cleaner(&stream, selection.types(&stream)))
        };
        assert_eq!(print("pods", b"one"), print("pods", b"two"));
        assert_ne!(print("secrets", b"one"), print("secrets", b"two"));
    }
}
