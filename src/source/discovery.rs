//! What the cluster serves: the aggregated discovery, or the one of older API servers.
//!
//! An answer can be incomplete: a group whose own API server is down is missing or stale. Such a group is named, and nothing
//! is concluded from what it lacks.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResource, APIResourceList};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    api::{self, ApiError},
    cluster::Cluster,
};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,\
                          application/json";

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
    /// Whether it can be watched; else it can only be polled.
    pub watchable: bool,
}

impl Served {
    pub(super) fn is_called(&self, name: &str) -> bool {
        let same = |own: &str| own.eq_ignore_ascii_case(name);
        same(&self.resource) || same(&self.singular) || same(&self.kind) || self.short_names.iter().any(|own| same(own))
    }

    /// As people write it: `deployments.apps`, `pods`.
    pub fn full_name(&self) -> String {
        if self.group.is_empty() { self.resource.clone() } else { format!("{}.{}", self.resource, self.group) }
    }
}

/// What one discovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discovered {
    /// Everything that can be listed, each group-resource once.
    pub served: Vec<Served>,
    /// Groups of which not everything may be there.
    pub incomplete: Vec<String>,
}

impl Discovered {
    /// Whether the group's resource is served.
    pub fn has(&self, group: &str, resource: &str) -> bool {
        self.served.iter().any(|served| served.group == group && served.resource == resource)
    }

    /// Whether it means something that a resource of this group is absent.
    pub fn is_complete(&self, group: &str) -> bool {
        !self.incomplete.iter().any(|incomplete| incomplete == group)
    }

    /// A resource that is there already gets the version as a further one: versions come in order of preference.
    fn add(&mut self, found: Served) {
        let same = |known: &&mut Served| known.group == found.group && known.resource == found.resource;
        match self.served.iter_mut().find(same) {
            Some(known) => known.versions.extend(found.versions),
            None => self.served.push(found),
        }
    }

    fn add_incomplete(&mut self, group: &str) {
        if self.is_complete(group) {
            self.incomplete.push(group.into());
        }
    }
}

/// Reads what the cluster serves.
pub async fn discover(cluster: &Cluster) -> Result<Discovered, ApiError> {
    let core: Box<RawValue> = api::get(cluster, "/api", AGGREGATED).await?;
    let named: Box<RawValue> = api::get(cluster, "/apis", AGGREGATED).await?;
    match (aggregated(&core), aggregated(&named)) {
        (Some(core), Some(named)) => Ok(from_aggregated(core.into_iter().chain(named))),
        _ => legacy(cluster).await,
    }
}

#[derive(Deserialize)]
struct Group {
    metadata: GroupMeta,
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupMeta {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
    #[serde(default)]
    freshness: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    resource: String,
    #[serde(default)]
    singular_resource: String,
    #[serde(default)]
    short_names: Vec<String>,
    response_kind: Option<ResponseKind>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct ResponseKind {
    kind: String,
}

/// The groups of an aggregated answer; none if the server gave the older kind of answer.
fn aggregated(answer: &RawValue) -> Option<Vec<Group>> {
    #[derive(Deserialize)]
    struct List {
        kind: String,
        #[serde(default)]
        items: Vec<Group>,
    }
    let list: List = serde_json::from_str(answer.get()).ok()?;
    (list.kind == "APIGroupDiscoveryList").then_some(list.items)
}

fn from_aggregated(groups: impl Iterator<Item = Group>) -> Discovered {
    let mut found = Discovered::default();
    for Group { metadata: GroupMeta { name: group }, versions } in groups {
        for GroupVersion { version, resources, freshness } in versions {
            if freshness == "Stale" {
                found.add_incomplete(&group);
            }
            for resource in resources {
                let has = |verb: &str| resource.verbs.iter().any(|own| own == verb);
                let (list, watchable) = (has("list"), has("watch"));
                if let (true, Some(ResponseKind { kind })) = (list, resource.response_kind) {
                    found.add(Served {
                        group: group.clone(),
                        versions: vec![version.clone()],
                        resource: resource.resource,
                        singular: resource.singular_resource,
                        short_names: resource.short_names,
                        kind,
                        namespaced: resource.scope == "Namespaced",
                        watchable,
                    });
                }
            }
        }
    }
    found
}

/// The discovery of API servers before 1.26: one document for each group and version.
async fn legacy(cluster: &Cluster) -> Result<Discovered, ApiError> {
    let mut documents = vec![(String::new(), "v1".to_owned(), "/api/v1".to_owned())];
    let groups: APIGroupList = api::get(cluster, "/apis", api::JSON).await?;
    for group in groups.groups {
        let preferred = group.preferred_version.map(|preferred| preferred.version);
        let mut versions: Vec<String> = group.versions.into_iter().map(|version| version.version).collect();
        versions.sort_by_key(|version| Some(version) != preferred.as_ref());
        for version in versions {
            let path = format!("/apis/{}/{version}", group.name);
            documents.push((group.name.clone(), version, path));
        }
    }
    let mut found = Discovered::default();
    for (group, version, path) in documents {
        match api::get::<APIResourceList>(cluster, &path, api::JSON).await {
            Ok(list) => {
                let resources = list.resources.into_iter().filter(|resource| !resource.name.contains('/'));
                resources.filter_map(|resource| from_legacy(&group, &version, resource)).for_each(|it| found.add(it));
            }
            // An API server of its own that does not answer; the others do.
            Err(error) if error.status().is_some() && !group.is_empty() => found.add_incomplete(&group),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn from_legacy(group: &str, version: &str, resource: APIResource) -> Option<Served> {
    let has = |verb: &str| resource.verbs.iter().any(|own| own == verb);
    let watchable = has("watch");
    has("list").then(|| Served {
        group: group.into(),
        versions: vec![version.into()],
        resource: resource.name,
        singular: resource.singular_name,
        short_names: resource.short_names.unwrap_or_default(),
        kind: resource.kind,
        namespaced: resource.namespaced,
        watchable,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::{json, value::to_raw_value};

    use super::*;

    fn found(answer: serde_json::Value) -> Discovered {
        from_aggregated(aggregated(&to_raw_value(&answer).unwrap()).unwrap().into_iter())
    }

    #[test]
    fn each_resource_comes_once_with_its_versions_and_what_cannot_be_listed_is_left_out() {
        let resource = |name: &str, verbs: &[&str]| json!({"resource": name, "responseKind": {"kind": "Widget"}, "scope": "Namespaced", "verbs": verbs});
        let discovered = found(json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "shop.example.com"}, "versions": [
                {"version": "v1", "freshness": "Current", "resources": [resource("widgets", &["list", "watch"])]},
                {"version": "v1beta1", "freshness": "Current", "resources": [
                    resource("widgets", &["list", "watch"]), resource("reviews", &["create"]), resource("meters", &["list"]),
                ]},
            ]},
            {"metadata": {"name": "metrics.example.com"}, "versions": [{"version": "v1", "freshness": "Stale"}]},
        ]}));
        let names: Vec<_> =
            discovered.served.iter().map(|s| (s.full_name(), s.versions.join(","), s.watchable)).collect();
        assert_eq!(
            names,
            [
                ("widgets.shop.example.com".to_owned(), "v1,v1beta1".to_owned(), true),
                ("meters.shop.example.com".to_owned(), "v1beta1".to_owned(), false)
            ]
        );
        assert!(discovered.is_complete("shop.example.com"));
        assert!(!discovered.is_complete("metrics.example.com"));
    }

    #[test]
    fn an_answer_of_an_older_server_is_not_taken_for_an_empty_aggregated_one() {
        let older = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": []});
        assert!(aggregated(&to_raw_value(&older).unwrap()).is_none());
    }
}
