//! Names of topics: the template filled in, and back again to find the topics that it stands for.

use kubetide_sink::{Field, Record, Template, TemplateError};

/// What Kafka allows.
const LONGEST: usize = 249;

/// The template of one sink. The cluster is the same in all its records, and filled in beforehand.
#[derive(Clone, Debug)]
pub(crate) struct Topics {
    template: Template,
    /// The same with [`ANY`] for the namespace, if there is a topic for each.
    of_all_namespaces: Option<Template>,
    every: Pattern,
}

/// In the place of what may be anything: no name holds it.
const ANY: &str = "\0";

impl Topics {
    pub(crate) fn new(text: &str, cluster: &str) -> Result<Self, TemplateError> {
        let mut name = String::new();
        escape_dots_too(cluster, &mut name);
        let text = text.replace("{cluster}", &name);
        let template = Template::parse(&text, Field::OF_TOPICS)?;
        let of_all_namespaces = match template.has(Field::Namespace) {
            true => Some(Template::parse(&text.replace("{namespace}", ANY), Field::OF_TOPICS)?),
            false => None,
        };
        let every = Pattern::new(&template.with_all(ANY));
        Ok(Self { template, of_all_namespaces, every })
    }

    /// The topic of a change.
    pub(crate) fn of(&self, record: &Record) -> String {
        self.template.render(record, escape)
    }

    /// The topics that a control record is about.
    pub(crate) fn about(&self, record: &Record) -> Pattern {
        let stream = &record.stream;
        match &self.of_all_namespaces {
            _ if !stream.is_any() => self.every.clone(),
            Some(template) if stream.namespace.is_none() => Pattern::new(&template.render(record, escape)),
            _ => Pattern::new(&self.of(record)),
        }
    }
}

/// Topics with something in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// What stands between the places that may be anything.
    literals: Vec<String>,
}

impl Pattern {
    fn new(text: &str) -> Self {
        Self { literals: text.split(ANY).map(str::to_owned).collect() }
    }

    /// The topic, if it is one.
    pub(crate) fn only(&self) -> Option<&str> {
        match &self.literals[..] {
            [name] => Some(name),
            _ => None,
        }
    }

    /// Whether the topic of this name is one of them.
    pub(crate) fn has(&self, name: &str) -> bool {
        let [first, between @ .., last] = &self.literals[..] else { return self.only() == Some(name) };
        let Some(mut rest) = name.strip_prefix(first.as_str()) else { return false };
        for literal in between {
            // What may be anything is not nothing.
            let Some((start, _)) = rest.char_indices().nth(1) else { return false };
            let Some(at) = rest[start..].find(literal.as_str()) else { return false };
            rest = &rest[start + at + literal.len()..];
        }
        rest.len() > last.len() && rest.ends_with(last.as_str())
    }
}

/// Groups, resources and namespaces hold nothing that a topic may not, so this changes nothing in them.
fn escape(value: &str, out: &mut String) {
    escape_unless(value, out, |char| char == '.');
}

/// The name of a cluster is anything, such as a context's. Its dots are escaped as well, so that a cluster `a.b` with the group `c` has
/// other topics than a cluster `a` with the group `b.c`.
fn escape_dots_too(value: &str, out: &mut String) {
    escape_unless(value, out, |_| false);
}

/// Whatever may not stand is `_` and the two hexadecimal digits of each of its bytes; `_` itself too, so that this is reversible. What
/// stands for nothing, `_` alone, stays.
fn escape_unless(value: &str, out: &mut String, fine: impl Fn(char) -> bool) {
    if value == "_" {
        out.push('_');
        return;
    }
    for char in value.chars() {
        if char.is_ascii_alphanumeric() || char == '-' || fine(char) {
            out.push(char);
        } else {
            let mut bytes = [0; 4];
            for byte in char.encode_utf8(&mut bytes).bytes() {
                out.push_str(&format!("_{byte:02x}"));
            }
        }
    }
}

/// Says what is wrong with the name of a topic.
pub(crate) fn legal(name: &str) -> Result<(), String> {
    if name.is_empty() || name == "." || name == ".." {
        return Err(format!("found {name:?}, which cannot be a topic"));
    }
    if let Some(char) = name.chars().find(|char| !(char.is_ascii_alphanumeric() || "._-".contains(*char))) {
        return Err(format!("found {char:?}, allowed in a topic: letters, digits, '.', '_' and '-'"));
    }
    if name.len() > LONGEST {
        return Err(format!("the topic {name} has {} characters, allowed are {LONGEST}", name.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::sync::Arc;

    use kubetide_sink::{Stream, sample};

    use super::*;

    const TEMPLATE: &str = "kubetide.{cluster}.{group}.{resource}";

    fn of(cluster: &str, group: &str, resource: &str) -> String {
        let mut record = sample::record(1, "{}");
        let mut stream: Stream = (*record.stream).clone();
        stream.cluster.name = cluster.into();
        stream.group = group.into();
        stream.resource = resource.into();
        record.stream = Arc::new(stream);
        Topics::new(TEMPLATE, cluster).unwrap().of(&record)
    }

    #[test]
    fn a_topic_is_what_people_expect() {
        assert_eq!(of("prod-eu1", "apps", "deployments"), "kubetide.prod-eu1.apps.deployments");
        assert_eq!(of("prod-eu1", "", "pods"), "kubetide.prod-eu1.core.pods");
        assert_eq!(of("prod", "networking.k8s.io", "ingresses"), "kubetide.prod.networking.k8s.io.ingresses");
        assert_eq!(of("arn:x/y_z", "", "pods"), "kubetide.arn_3ax_2fy_5fz.core.pods");
        assert_eq!(of("über", "", "pods"), "kubetide._c3_bcber.core.pods");
    }

    #[test]
    fn no_two_streams_share_a_topic_by_accident() {
        let streams = [
            ("a", "b.c", "d"),
            ("a.b", "c", "d"),
            ("a_2eb", "c", "d"),
            ("a_b", "c", "d"),
            ("a-b", "c", "d"),
            ("a:b", "c", "d"),
            ("a__b", "c", "d"),
            ("a", "", "d"),
            ("a", "c", "d"),
        ];
        let mut topics: Vec<_> =
            streams.iter().map(|(cluster, group, resource)| of(cluster, group, resource)).collect();
        for topic in &topics {
            legal(topic).unwrap();
        }
        topics.sort();
        topics.dedup();
        assert_eq!(topics.len(), streams.len());
    }

    #[test]
    fn the_topics_of_a_sink_are_found_again_and_those_of_another_cluster_are_not() {
        let topics = Topics::new(TEMPLATE, "prod").unwrap();
        for name in ["kubetide.prod.core.pods", "kubetide.prod.networking.k8s.io.ingresses"] {
            assert!(topics.every.has(name), "{name}");
        }
        for name in [
            "kubetide.prod.core",
            "kubetide.prod..pods",
            "kubetide.prod.core.",
            "kubetide.prod-2.core.pods",
            "x.kubetide.prod.core.pods",
            "kubetide.prod",
        ] {
            assert!(!topics.every.has(name), "{name}");
        }
        let fixed = Topics::new("audit", "prod").unwrap();
        assert_eq!(fixed.every.only(), Some("audit"));
        assert!(fixed.every.has("audit") && !fixed.every.has("audit2"));
        assert_eq!(topics.every.only(), None);
        let around = Topics::new("a.{namespace}.b", "prod").unwrap();
        assert!(
            around.every.has("a.x.b")
                && !around.every.has("a..b")
                && !around.every.has("a.b")
                && !around.every.has("a.x.c")
        );
    }

    #[test]
    fn what_kafka_would_refuse_is_refused_with_the_reason() {
        assert!(legal(&"x".repeat(249)).is_ok());
        assert!(legal(&"x".repeat(250)).unwrap_err().contains("250 characters, allowed are 249"));
        assert!(legal("a/b").unwrap_err().contains("found '/'"));
        for name in ["", ".", ".."] {
            assert!(legal(name).is_err());
        }
    }
}
