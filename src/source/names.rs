//! From the configuration's words to streams: `deployments.apps`, `po`, `ConfigMap`, `*` → group, version, resource.

use std::{sync::Arc, time::Duration};

use kubetide_sink::{Cluster, Stream};

use super::{
    discovery::{Discovered, Served},
    selection::Selection,
};
use crate::{
    config::{self, Mode},
    vitals::Asked,
};

/// What a wildcard leaves out: secrets, and what changes all the time without anybody doing anything.
const NOT_BY_WILDCARD: [(&str, &str); 6] = [
    ("", "secrets"),
    ("", "events"),
    ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leases"),
    ("", "endpoints"),
    ("discovery.k8s.io", "endpointslices"),
];

/// A stream to follow, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    /// The stream.
    pub stream: Arc<Stream>,
    /// Whether it was named, or covered by a wildcard.
    pub asked: Asked,
    /// The configuration's word for it.
    pub asked_as: String,
    /// Which objects, and how much of each.
    pub selection: Selection,
    /// How often to LIST it, if it is not watched.
    pub poll: Option<Duration>,
}

/// What the configuration asks for, as far as the cluster serves it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The streams.
    pub follow: Vec<Follow>,
    /// Words without a resource.
    pub unresolved: Vec<Unresolved>,
}

/// A word that the cluster has nothing for, now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The word.
    pub word: String,
    /// What is wrong, with the key's path in front.
    pub problem: String,
    /// Whether that is certain: everything that the cluster serves is known.
    pub certain: bool,
}

/// The streams that the configuration asks for. An error is a contradiction in the configuration, or an ambiguity.
pub fn plan(wanted: &[config::Stream], discovered: &Discovered, cluster: &Cluster) -> Result<Plan, String> {
    let mut plan = Plan::default();
    // Named entries first, wildcards of a group next, the rest last: the more exact entry has the resource.
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|&index| breadth(&wanted[index].resource));
    for index in order {
        let (path, entry) = (format!("streams[{index}]"), &wanted[index]);
        if breadth(&entry.resource) > 0 {
            plan.add_wildcard(&path, entry, discovered, cluster)?;
            continue;
        }
        match resolve(&entry.resource, &discovered.served) {
            Ok((served, version)) => plan.add_named(&path, entry, served, version, cluster)?,
            Err(Problem::Ambiguous(problem)) => return Err(format!("{path}.resource: {problem}")),
            Err(Problem::NotServed(problem)) => plan.unresolved.push(Unresolved {
                word: entry.resource.clone(),
                problem: format!("{path}.resource: {problem}"),
                certain: !may_be_hidden(&entry.resource, discovered),
            }),
        }
    }
    Ok(plan)
}

/// Whether a word may stand for something in a group of which not everything is known.
fn may_be_hidden(word: &str, discovered: &Discovered) -> bool {
    let behind_name = word.split_once('.').map(|(_, rest)| rest.to_lowercase());
    discovered.incomplete.iter().any(|group| match &behind_name {
        None => true,
        Some(rest) => rest == group || rest.ends_with(&format!(".{group}")),
    })
}

/// 0 for a name, 1 for `*.group`, 2 for `*`.
fn breadth(word: &str) -> u8 {
    match word {
        "*" => 2,
        word if word.starts_with("*.") => 1,
        _ => 0,
    }
}

/// Whether a wildcard is for resources of this group.
fn covers(word: &str, group: &str) -> bool {
    match word.strip_prefix("*.") {
        None => true,
        Some("core") => group.is_empty(),
        Some(own) => own.eq_ignore_ascii_case(group),
    }
}

impl Plan {
    fn add_named(
        &mut self,
        path: &str,
        entry: &config::Stream,
        served: &Served,
        version: &str,
        cluster: &Cluster,
    ) -> Result<(), String> {
        let name = served.full_name();
        if !served.watchable && entry.mode == Mode::Watch {
            return Err(format!("{path}.mode: {name} cannot be watched; use mode: poll"));
        }
        if !served.namespaced && !entry.namespaces.is_empty() {
            return Err(format!("{path}.namespaces: {name} are not in namespaces; leave the list empty"));
        }
        for follow in follows(entry, served, version, Asked::Named, cluster) {
            if let Some(other) = self.overlapping(&follow.stream) {
                return Err(format!(
                    "{path}: {} is captured by {other} already; name each resource once, or disjoint namespaces",
                    follow.stream
                ));
            }
            self.follow.push(follow);
        }
        Ok(())
    }

    fn add_wildcard(
        &mut self,
        path: &str,
        entry: &config::Stream,
        discovered: &Discovered,
        cluster: &Cluster,
    ) -> Result<(), String> {
        // What a more exact entry has is left to it, in every namespace.
        let taken: Vec<Arc<Stream>> = self
            .follow
            .iter()
            .filter(|follow| breadth(&follow.asked_as) < breadth(&entry.resource))
            .map(|follow| follow.stream.clone())
            .collect();
        for served in &discovered.served {
            let excluded = NOT_BY_WILDCARD.contains(&(served.group.as_str(), served.resource.as_str()));
            let out_of_reach = !served.namespaced && !entry.namespaces.is_empty();
            let had = taken.iter().any(|other| other.group == served.group && other.resource == served.resource);
            if excluded || out_of_reach || had || !covers(&entry.resource, &served.group) {
                continue;
            }
            if !served.watchable && entry.mode == Mode::Watch {
                continue;
            }
            let version = served.versions.first().map_or("v1", String::as_str);
            for follow in follows(entry, served, version, Asked::Wildcard, cluster) {
                if let Some(other) = self.overlapping(&follow.stream) {
                    return Err(format!(
                        "{path}: {} is captured by {other} already; write {} once, or with disjoint namespaces",
                        follow.stream, entry.resource
                    ));
                }
                self.follow.push(follow);
            }
        }
        Ok(())
    }

    fn overlapping(&self, stream: &Stream) -> Option<&Arc<Stream>> {
        let overlaps = |other: &&Arc<Stream>| {
            other.group == stream.group
                && other.resource == stream.resource
                && (other.namespace.is_none() || stream.namespace.is_none() || other.namespace == stream.namespace)
        };
        self.follow.iter().map(|follow| &follow.stream).find(overlaps)
    }
}

/// The streams of one entry for one resource: one for each namespace, or one for all.
fn follows(entry: &config::Stream, served: &Served, version: &str, asked: Asked, cluster: &Cluster) -> Vec<Follow> {
    let namespaces: Vec<Option<String>> = match entry.namespaces.as_slice() {
        [] => vec![None],
        some => some.iter().cloned().map(Some).collect(),
    };
    let of_namespace = |namespace: Option<String>| {
        let selection = Selection::of(entry, served.namespaced, namespace.as_deref());
        let stream = Stream {
            cluster: cluster.clone(),
            group: served.group.clone(),
            version: version.to_owned(),
            resource: served.resource.clone(),
            kind: served.kind.clone(),
            namespace,
        };
        follow(entry, Arc::new(stream), asked, selection)
    };
    namespaces.into_iter().map(of_namespace).collect()
}

fn follow(entry: &config::Stream, stream: Arc<Stream>, asked: Asked, selection: Selection) -> Follow {
    let poll = (entry.mode == Mode::Poll).then(|| Duration::from_secs(entry.poll_interval_secs.get()));
    Follow { stream, asked, asked_as: entry.resource.clone(), selection, poll }
}

/// How a stream that is known from before, but not served now, would be followed: none if the configuration no longer asks
/// for it.
pub fn follow_known(wanted: &[config::Stream], stream: &Stream, asked_as: &str, cluster: &Cluster) -> Option<Follow> {
    let entry = wanted.iter().find(|entry| {
        let namespace_asked = match &stream.namespace {
            None => entry.namespaces.is_empty(),
            Some(namespace) => entry.namespaces.contains(namespace),
        };
        entry.resource == asked_as && namespace_asked
    })?;
    let asked = if breadth(&entry.resource) == 0 { Asked::Named } else { Asked::Wildcard };
    // Whether it is in namespaces is not known any more; where it matters, the entry is for all of them.
    let selection = Selection::of(entry, true, stream.namespace.as_deref());
    let stream = Stream { cluster: cluster.clone(), ..stream.clone() };
    Some(follow(entry, Arc::new(stream), asked, selection))
}

/// Whether the configuration asks for whatever the cluster serves.
pub fn has_wildcard(wanted: &[config::Stream]) -> bool {
    wanted.iter().any(|entry| breadth(&entry.resource) > 0)
}

/// What is wrong with a word.
#[derive(Debug, PartialEq, Eq)]
pub enum Problem {
    /// It can mean several resources.
    Ambiguous(String),
    /// The cluster serves nothing like it.
    NotServed(String),
}

/// Finds the one resource that `word` means, and the version to use.
pub fn resolve<'a>(word: &str, served: &'a [Served]) -> Result<(&'a Served, &'a str), Problem> {
    let (name, rest) = word.split_once('.').unwrap_or((word, ""));
    let (first, behind) = rest.split_once('.').unwrap_or((rest, ""));
    let (version, group) = if is_version(first) { (Some(first), behind) } else { (None, rest) };
    let named: Vec<&Served> = served.iter().filter(|served| served.is_called(name)).collect();
    let candidates: Vec<&Served> = if rest.is_empty() {
        named.clone()
    } else {
        named.iter().copied().filter(|served| served.group.eq_ignore_ascii_case(group)).collect()
    };
    // A full plural is meant as such, even where another resource has it as a short name.
    let exact: Vec<&Served> =
        candidates.iter().copied().filter(|served| served.resource.eq_ignore_ascii_case(name)).collect();
    let candidates = if exact.is_empty() { candidates } else { exact };
    // A word without a group means the core group's first, as for kubectl: else nothing but `events.v1` would name its events.
    let core: Vec<&Served> = candidates.iter().copied().filter(|served| served.group.is_empty()).collect();
    let candidates = if core.len() == 1 { core } else { candidates };
    let names = |of: &[&Served]| of.iter().map(|served| served.full_name()).collect::<Vec<_>>().join(", ");
    match candidates.as_slice() {
        [one] => match version {
            None => Ok((one, one.versions.first().map_or("v1", String::as_str))),
            Some(version) => match one.versions.iter().find(|own| own.eq_ignore_ascii_case(version)) {
                Some(own) => Ok((one, own)),
                None => Err(Problem::NotServed(format!(
                    "found {word}, but {} is served as: {}",
                    one.full_name(),
                    one.versions.join(", ")
                ))),
            },
        },
        [] if !named.is_empty() => Err(Problem::NotServed(format!(
            "found {word}, which the cluster does not serve; it serves: {}",
            names(&named)
        ))),
        [] => Err(Problem::NotServed(format!("found {word}, which the cluster does not serve{}", near(name, served)))),
        several => {
            Err(Problem::Ambiguous(format!("found {word}, which can mean: {}; write one of these", names(several))))
        }
    }
}

/// `v1`, `v2beta1`.
fn is_version(text: &str) -> bool {
    let mut digits = text.strip_prefix('v').unwrap_or("").chars();
    digits.next().is_some_and(|c| c.is_ascii_digit()) && digits.all(|c| c.is_ascii_alphanumeric())
}

/// The resources whose names are like the one that was written.
fn near(name: &str, served: &[Served]) -> String {
    let name = name.to_lowercase();
    let mut scored: Vec<(f64, String)> = served
        .iter()
        .map(|served| {
            let own = [&served.resource, &served.singular, &served.kind];
            let score = own.iter().map(|own| strsim::jaro_winkler(&name, &own.to_lowercase())).fold(0.0, f64::max);
            (score, served.full_name())
        })
        .filter(|(score, _)| *score > 0.8)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    let names: Vec<String> = scored.into_iter().take(3).map(|(_, name)| name).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::json;

    use super::*;

    fn served(group: &str, versions: &[&str], resource: &str, kind: &str, short: &[&str]) -> Served {
        Served {
            group: group.into(),
            versions: versions.iter().map(|version| (*version).into()).collect(),
            resource: resource.into(),
            singular: kind.to_lowercase(),
            short_names: short.iter().map(|name| (*name).into()).collect(),
            kind: kind.into(),
            namespaced: kind != "Namespace",
            watchable: kind != "Meter",
        }
    }

    fn cluster() -> Vec<Served> {
        vec![
            served("", &["v1"], "pods", "Pod", &["po"]),
            served("", &["v1"], "events", "Event", &["ev"]),
            served("", &["v1"], "secrets", "Secret", &[]),
            served("", &["v1"], "namespaces", "Namespace", &["ns"]),
            served("events.k8s.io", &["v1"], "events", "Event", &["ev"]),
            served("apps", &["v1"], "deployments", "Deployment", &["deploy"]),
            served("shop.example.com", &["v1", "v1beta1"], "widgets", "Widget", &["wd"]),
            served("metrics.example.com", &["v1"], "meters", "Meter", &[]),
        ]
    }

    #[test]
    fn a_resource_is_found_by_plural_singular_kind_short_name_group_and_version() {
        let all = cluster();
        for word in
            ["deployments", "deployments.apps", "Deployment", "deploy", "DEPLOYMENTS.APPS", "deployments.v1.apps"]
        {
            let (found, version) = resolve(word, &all).unwrap();
            assert_eq!((found.resource.as_str(), version), ("deployments", "v1"), "{word}");
        }
        assert_eq!(resolve("widgets.v1beta1.shop.example.com", &all).unwrap().1, "v1beta1");
        assert_eq!(resolve("wd", &all).unwrap().1, "v1");
        assert_eq!(resolve("pods.v1", &all).unwrap().0.resource, "pods");
        assert_eq!(resolve("events.events.k8s.io", &all).unwrap().0.group, "events.k8s.io");
        for word in ["events", "Event", "ev"] {
            assert_eq!(resolve(word, &all).unwrap().0.group, "", "{word}: whoever installs a like one changes nothing");
        }
    }

    fn problem(word: &str) -> String {
        match resolve(word, &cluster()).unwrap_err() {
            Problem::Ambiguous(problem) | Problem::NotServed(problem) => problem,
        }
    }

    #[test]
    fn an_unknown_an_ambiguous_and_an_unserved_name_say_what_there_is() {
        assert!(problem("deploymnets").contains("did you mean deployments.apps?"));
        let twice = [cluster(), vec![served("b.example.com", &["v1"], "widgets", "Widget", &[])]].concat();
        let Err(Problem::Ambiguous(problem_of_two)) = resolve("widgets", &twice) else { panic!() };
        assert!(problem_of_two.contains("widgets.shop.example.com, widgets.b.example.com"), "{problem_of_two}");
        assert!(problem("pods.apps").contains("it serves: pods"));
        assert!(problem("widgets.v9.shop.example.com").contains("v1, v1beta1"));
    }

    fn planned(entries: serde_json::Value) -> Result<Plan, String> {
        let entries: Vec<config::Stream> = serde_json::from_value(entries).unwrap();
        let discovered = Discovered { served: cluster(), incomplete: Vec::new() };
        plan(&entries, &discovered, &Cluster { name: "c".into(), uid: "u".into() })
    }

    fn names(entries: serde_json::Value) -> Vec<String> {
        planned(entries).unwrap().follow.iter().map(|follow| follow.stream.to_string()).collect()
    }

    #[test]
    fn namespaces_are_a_stream_each_and_overlaps_and_contradictions_are_refused() {
        let two = json!([{"resource": "pods", "namespaces": ["a", "b"]}, {"resource": "deploy"}]);
        assert_eq!(names(two), ["core/pods@a", "core/pods@b", "apps/deployments"]);
        let refused = |entries| planned(entries).unwrap_err();
        let twice = json!([{"resource": "pods", "namespaces": ["a"]}, {"resource": "po", "namespaces": ["a"]}]);
        assert!(refused(twice).contains("streams[1]"));
        assert!(refused(json!([{"resource": "pods"}, {"resource": "po", "namespaces": ["a"]}])).contains("already"));
        assert!(refused(json!([{"resource": "ns", "namespaces": ["a"]}])).contains("streams[0].namespaces"));
        assert!(refused(json!([{"resource": "meters"}])).contains("mode: poll"));
        assert!(refused(json!([{"resource": "*"}, {"resource": "*"}])).contains("streams[1]"));
    }

    #[test]
    fn a_wildcard_has_everything_but_the_excludes_and_leaves_named_resources_to_their_entries() {
        assert_eq!(
            names(json!([{"resource": "*"}])),
            ["core/pods", "core/namespaces", "apps/deployments", "shop.example.com/widgets"]
        );
        assert_eq!(names(json!([{"resource": "*.shop.example.com"}])), ["shop.example.com/widgets"]);
        assert_eq!(names(json!([{"resource": "*.core"}])), ["core/pods", "core/namespaces"]);
        assert_eq!(
            names(json!([{"resource": "*", "namespaces": ["a"]}])),
            ["core/pods@a", "apps/deployments@a", "shop.example.com/widgets@a"]
        );
        let mixed = planned(json!([
            {"resource": "*"}, {"resource": "*.apps", "label_selector": "a=b"}, {"resource": "po", "namespaces": ["a"]},
            {"resource": "events.v1"},
        ]))
        .unwrap();
        let found: Vec<_> =
            mixed.follow.iter().map(|follow| (follow.stream.to_string(), follow.selection.labels.as_str())).collect();
        let expected = [
            ("core/pods@a", ""),
            ("core/events", ""),
            ("apps/deployments", "a=b"),
            ("core/namespaces", ""),
            ("shop.example.com/widgets", ""),
        ];
        assert_eq!(found, expected.map(|(name, labels)| (name.to_owned(), labels)));
        assert_eq!(planned(json!([{"resource": "meters", "mode": "poll"}])).unwrap().follow.len(), 1);
    }

    #[test]
    fn a_word_without_a_resource_is_told_and_leaves_the_others_alone() {
        let plan = planned(json!([{"resource": "pods"}, {"resource": "gadgets"}])).unwrap();
        assert_eq!(plan.follow.len(), 1);
        assert_eq!(plan.unresolved[0].word, "gadgets");
        assert!(plan.unresolved[0].certain && plan.unresolved[0].problem.starts_with("streams[1].resource"));
    }

    #[test]
    fn a_word_is_a_mistake_only_if_no_group_that_is_out_of_reach_can_have_it() {
        let discovered = Discovered { served: cluster(), incomplete: vec!["shop.example.com".into()] };
        for (word, hidden) in [
            ("gadgets", true),
            ("gadgets.shop.example.com", true),
            ("gadgets.v1.Shop.example.com", true),
            ("gadgets.apps", false),
            ("gadgets.v1", false),
        ] {
            assert_eq!(may_be_hidden(word, &discovered), hidden, "{word}");
        }
        assert!(!may_be_hidden("gadgets", &Discovered { incomplete: Vec::new(), ..discovered }));
    }

    #[test]
    fn a_stream_from_before_is_asked_for_as_long_as_its_word_and_namespace_are() {
        let entries: Vec<config::Stream> =
            serde_json::from_value(json!([{"resource": "wd", "namespaces": ["a"]}, {"resource": "*"}])).unwrap();
        let identity = Cluster { name: "c".into(), uid: "u".into() };
        let known = |namespace: Option<&str>, word: &str| {
            let namespace = namespace.map(Into::into);
            let stream = Stream { namespace, ..kubetide_sink::sample::stream("widgets", "Widget") };
            follow_known(&entries, &stream, word, &identity).map(|follow| follow.asked)
        };
        assert_eq!(known(Some("a"), "wd"), Some(Asked::Named));
        assert_eq!(known(Some("b"), "wd"), None);
        assert_eq!(known(None, "wd"), None);
        assert_eq!(known(None, "*"), Some(Asked::Wildcard));
        assert_eq!(known(None, "gadgets"), None);
    }
}
