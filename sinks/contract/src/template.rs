//! Names of topics and subjects with places in them: `kubetide.{cluster}.{group}.{resource}`.

use std::fmt;

use crate::{Body, Record};

/// What a place stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The name of the cluster.
    Cluster,
    /// The API group; the core group is `core`.
    Group,
    /// The plural resource name.
    Resource,
    /// The namespace of the object.
    Namespace,
    /// The name of the object.
    Name,
}

impl Field {
    /// Those that a topic may have: there cannot be one per object.
    pub const OF_TOPICS: &[Self] = &[Self::Cluster, Self::Group, Self::Resource, Self::Namespace];
    /// Those that a subject may have.
    pub const OF_SUBJECTS: &[Self] = &[Self::Cluster, Self::Group, Self::Resource, Self::Namespace, Self::Name];

    /// The word between the braces.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Group => "group",
            Self::Resource => "resource",
            Self::Namespace => "namespace",
            Self::Name => "name",
        }
    }

    /// What it is in this record. The core group is `core`, and what is empty is `_`.
    pub fn of(self, record: &Record) -> &str {
        let stream = &record.stream;
        let value = match (self, &record.body) {
            (Self::Cluster, _) => &stream.cluster.name,
            (Self::Group, _) if !stream.is_any() => "",
            (Self::Group, _) => stream.group_name(),
            (Self::Resource, _) => &stream.resource,
            (Self::Namespace, Body::Change(change)) => &change.namespace,
            (Self::Namespace, Body::Control(_)) => stream.namespace.as_deref().unwrap_or_default(),
            (Self::Name, Body::Change(change)) => &change.name,
            (Self::Name, Body::Control(_)) => "",
        };
        if value.is_empty() { "_" } else { value }
    }
}

/// A text with places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    found: String,
    allowed: &'static [Field],
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let allowed: Vec<String> = self.allowed.iter().map(|field| format!("{{{}}}", field.as_str())).collect();
        write!(f, "found {}, allowed: {}", self.found, allowed.join(", "))
    }
}

impl std::error::Error for TemplateError {}

impl Template {
    /// Reads a template that may have these places.
    pub fn parse(text: &str, allowed: &'static [Field]) -> Result<Self, TemplateError> {
        let wrong = |found: &str| TemplateError { found: found.into(), allowed };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, behind) = rest.split_at(at);
            let end = behind.find('}').filter(|_| behind.starts_with('{')).ok_or_else(|| wrong(behind))?;
            let (place, behind) = behind.split_at(end + 1);
            let field = allowed.iter().find(|field| place[1..end] == *field.as_str()).ok_or_else(|| wrong(place))?;
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            parts.push(Part::Field(*field));
            rest = behind;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self { parts })
    }

    /// The text for this record; values pass through `escape`, which appends them to the text.
    pub fn render(&self, record: &Record, escape: impl Fn(&str, &mut String)) -> String {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Field(field) => escape(field.of(record), &mut out),
            }
        }
        out
    }

    /// The text with this in every place.
    pub fn with_all(&self, value: &str) -> String {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Field(_) => value.to_owned(),
        };
        self.parts.iter().map(text).collect()
    }

    /// Whether this place is in it.
    pub fn has(&self, field: Field) -> bool {
        self.parts.contains(&Part::Field(field))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;
    use crate::sample;

    #[test]
    fn places_are_filled_and_what_is_empty_is_a_line() {
        let record = sample::record(3, "{}");
        let render = |text: &str| {
            Template::parse(text, Field::OF_SUBJECTS).unwrap().render(&record, |value, out| out.push_str(value))
        };
        assert_eq!(render("k.{cluster}.{group}.{resource}.{namespace}.{name}"), "k.sample.core.pods.default.pod-3");
        assert_eq!(render("plain"), "plain");
        assert_eq!(render("{group}{group}"), "corecore");
    }

    #[test]
    fn a_place_that_is_not_known_or_not_closed_is_refused_with_what_is_allowed() {
        for (text, found) in
            [("a{clutser}", "{clutser}"), ("a{", "{"), ("a}b", "}b"), ("{name}", "{name}"), ("{}", "{}")]
        {
            let refused = Template::parse(text, Field::OF_TOPICS).unwrap_err().to_string();
            let expected = format!("found {found}, allowed: {{cluster}}, {{group}}, {{resource}}, {{namespace}}");
            assert_eq!(refused, expected);
        }
    }
}
