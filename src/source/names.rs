//! From the configuration's words to streams: `deployments.apps`, `po`, `ConfigMap` → group, version, resource.

use std::sync::Arc;

use kube::{
    Client,
    client::{APIGroupDiscovery, APIResourceDiscovery},
};
use kubetide_sink::{Cluster, Stream};

use super::{
    api::ApiError,
    cluster::{ConnectError, get, refused},
};
use crate::config;

/// A resource that the cluster serves and that can be listed and watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The group; empty for the core group.
    pub group: String,
    /// The versions that serve it, the preferred one first.
    pub versions: Vec<String>,
    /// The plural name.
    pub resource: String,
    /// The singular name.
    pub singular: String,
    /// The short names.
    pub short_names: Vec<String>,
    /// The kind.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Served {
    fn is_called(&self, name: &str) -> bool {
        let same = |own: &str| own.eq_ignore_ascii_case(name);
        same(&self.resource) || same(&self.singular) || same(&self.kind) || self.short_names.iter().any(|own| same(own))
    }

    /// As people write it: `deployments.apps`, `pods`.
    fn full_name(&self) -> String {
        if self.group.is_empty() { self.resource.clone() } else { format!("{}.{}", self.resource, self.group) }
    }
}

/// Everything the cluster serves, each group-resource once.
pub async fn discover(client: &Client) -> Result<Vec<Served>, ConnectError> {
    let failed = |error: ApiError| refused(&error, &format!("cannot read what the cluster serves: {error}"));
    let unreachable = |error: &kube::Error| {
        ConnectError::Unreachable(format!("cannot read what the cluster serves: {}", super::cluster::chain(error)))
    };
    let mut groups = Vec::new();
    match (client.list_core_api_versions_aggregated().await, client.list_api_groups_aggregated().await) {
        (Ok(core), Ok(named)) if !core.items.is_empty() => groups.extend(core.items.into_iter().chain(named.items)),
        (Err(kube::Error::Api(status)), _) | (_, Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
            return Err(ConnectError::Refused(format!("cannot read what the cluster serves: {}", status.message)));
        }
        (Ok(_), Ok(_)) | (Err(kube::Error::SerdeError(_)), _) | (_, Err(kube::Error::SerdeError(_))) => {
            return legacy(client).await.map_err(failed);
        }
        (Err(error), _) | (_, Err(error)) => return Err(unreachable(&error)),
    }
    let mut served: Vec<Served> = Vec::new();
    for APIGroupDiscovery { metadata, versions } in groups {
        let group = metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        for version in versions {
            let name = version.version.unwrap_or_default();
            for resource in version.resources {
                add(&mut served, from_aggregated(&group, &name, resource));
            }
        }
    }
    Ok(served)
}

fn from_aggregated(group: &str, version: &str, resource: APIResourceDiscovery) -> Option<Served> {
    let has = |verb: &str| resource.verbs.iter().any(|own| own == verb);
    if !has("list") || !has("watch") {
        return None;
    }
    Some(Served {
        group: group.into(),
        versions: vec![version.into()],
        resource: resource.resource?,
        singular: resource.singular_resource.unwrap_or_default(),
        short_names: resource.short_names,
        kind: resource.response_kind?.kind?,
        namespaced: resource.scope.as_deref() == Some("Namespaced"),
    })
}

/// A resource that is there already gets the version as a further one: versions come in order of preference.
fn add(served: &mut Vec<Served>, found: Option<Served>) {
    let Some(found) = found else { return };
    match served.iter_mut().find(|known| known.group == found.group && known.resource == found.resource) {
        Some(known) => known.versions.extend(found.versions),
        None => served.push(found),
    }
}

/// The discovery of API servers before 1.26: one document for each group and version.
async fn legacy(client: &Client) -> Result<Vec<Served>, ApiError> {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
    let mut documents = vec![("".to_owned(), "v1".to_owned(), "/api/v1".to_owned())];
    let groups: APIGroupList = get(client, "/apis").await?;
    for group in groups.groups {
        let preferred = group.preferred_version.map(|preferred| preferred.version);
        let mut versions: Vec<String> = group.versions.into_iter().map(|version| version.version).collect();
        versions.sort_by_key(|version| Some(version) != preferred.as_ref());
        for version in versions {
            let path = format!("/apis/{}/{version}", group.name);
            documents.push((group.name.clone(), version, path));
        }
    }
    let mut served = Vec::new();
    for (group, version, path) in documents {
        let list: APIResourceList = get(client, &path).await?;
        for resource in list.resources {
            let has = |verb: &str| resource.verbs.iter().any(|own| own == verb);
            if resource.name.contains('/') || !has("list") || !has("watch") {
                continue;
            }
            let found = Served {
                group: group.clone(),
                versions: vec![version.clone()],
                resource: resource.name,
                singular: resource.singular_name,
                short_names: resource.short_names.unwrap_or_default(),
                kind: resource.kind,
                namespaced: resource.namespaced,
            };
            add(&mut served, Some(found));
        }
    }
    Ok(served)
}

/// The streams that the configuration asks for.
pub fn streams(
    wanted: &[config::Stream],
    served: &[Served],
    cluster: &Cluster,
) -> Result<Vec<Arc<Stream>>, ConnectError> {
    let mut streams: Vec<Arc<Stream>> = Vec::new();
    for (index, wanted) in wanted.iter().enumerate() {
        let path = format!("streams[{index}]");
        let (found, version) = resolve(&wanted.resource, served)
            .map_err(|problem| ConnectError::Config(format!("{path}.resource: {problem}")))?;
        if found.group.is_empty() && found.resource == "secrets" {
            let problem = "secrets cannot be captured by this version: it does not redact them";
            return Err(ConnectError::Config(format!("{path}.resource: {problem}")));
        }
        if !found.namespaced && !wanted.namespaces.is_empty() {
            let name = found.full_name();
            return Err(ConnectError::Config(format!(
                "{path}.namespaces: {name} are not in namespaces; leave the list empty"
            )));
        }
        let namespaces: Vec<Option<String>> = match wanted.namespaces.as_slice() {
            [] => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        for namespace in namespaces {
            let stream = Stream {
                cluster: cluster.clone(),
                group: found.group.clone(),
                version: version.to_owned(),
                resource: found.resource.clone(),
                kind: found.kind.clone(),
                namespace,
            };
            let overlaps = |other: &&Arc<Stream>| {
                other.group == stream.group
                    && other.resource == stream.resource
                    && (other.namespace.is_none() || stream.namespace.is_none() || other.namespace == stream.namespace)
            };
            if let Some(other) = streams.iter().find(overlaps) {
                return Err(ConnectError::Config(format!(
                    "{path}: {stream} is captured by {other} already; name each resource once, or disjoint namespaces"
                )));
            }
            streams.push(Arc::new(stream));
        }
    }
    Ok(streams)
}

/// Finds the one resource that `word` means, and the version to use.
pub fn resolve<'a>(word: &str, served: &'a [Served]) -> Result<(&'a Served, &'a str), String> {
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
    let names = |of: &[&Served]| of.iter().map(|served| served.full_name()).collect::<Vec<_>>().join(", ");
    match candidates.as_slice() {
        [one] => match version {
            None => Ok((one, one.versions.first().map_or("v1", String::as_str))),
            Some(version) => match one.versions.iter().find(|own| own.eq_ignore_ascii_case(version)) {
                Some(own) => Ok((one, own)),
                None => Err(format!("found {word}, but {} is served as: {}", one.full_name(), one.versions.join(", "))),
            },
        },
        [] if !named.is_empty() => {
            Err(format!("found {word}, which the cluster does not serve; it serves: {}", names(&named)))
        }
        [] => Err(format!("found {word}, which the cluster does not serve{}", near(name, served))),
        several => Err(format!("found {word}, which can mean: {}; write one of these", names(several))),
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
    }

    #[test]
    fn an_unknown_an_ambiguous_and_an_unserved_name_say_what_there_is() {
        let all = cluster();
        assert!(resolve("deploymnets", &all).unwrap_err().contains("did you mean deployments.apps?"));
        assert!(resolve("events", &all).unwrap_err().contains("events, events.events.k8s.io"));
        assert!(resolve("pods.apps", &all).unwrap_err().contains("it serves: pods"));
        assert!(resolve("widgets.v9.shop.example.com", &all).unwrap_err().contains("v1, v1beta1"));
    }

    #[test]
    fn overlapping_streams_namespaces_of_what_has_none_and_secrets_are_refused() {
        let identity = Cluster { name: "c".into(), uid: "u".into() };
        let wanted = |items: &[(&str, &[&str])]| {
            let items: Vec<config::Stream> = items
                .iter()
                .map(|(resource, namespaces)| config::Stream {
                    resource: (*resource).into(),
                    namespaces: namespaces.iter().map(|namespace| (*namespace).into()).collect(),
                })
                .collect();
            streams(&items, &cluster(), &identity).map_err(|error| error.to_string())
        };
        let two = wanted(&[("pods", &["a", "b"]), ("deploy", &[])]).unwrap();
        let names: Vec<String> = two.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["core/pods@a", "core/pods@b", "apps/deployments"]);
        assert!(wanted(&[("pods", &["a"]), ("po", &["a"])]).unwrap_err().contains("streams[1]"));
        assert!(wanted(&[("pods", &[]), ("po", &["a"])]).unwrap_err().contains("already"));
        assert!(wanted(&[("ns", &["a"])]).unwrap_err().contains("streams[0].namespaces"));
        assert!(wanted(&[("secrets", &[])]).unwrap_err().contains("redact"));
    }
}
