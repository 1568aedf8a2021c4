//! Discovery: the aggregated form of one request per root, and the older one of a request per group version.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::cluster::Cluster;
use crate::request::RequestInfo;
use crate::resource::{ResourceType, by_priority};
use crate::response::Reply;
use crate::shelf::State;
use crate::status::Status;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// The resources of one group, by version.
type Group = BTreeMap<String, Vec<Arc<ResourceType>>>;

pub(crate) fn answer(cluster: &Cluster, request: &RequestInfo) -> Result<Reply, Status> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for kind in cluster.resource_types() {
        let group = groups.entry(kind.group.clone()).or_default();
        group.entry(kind.version.clone()).or_default().push(kind);
    }
    let core = groups.remove("").unwrap_or_default();
    let aggregated = request.accept.contains("as=APIGroupDiscoveryList") && request.accept.contains("v=v2");
    let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let value = match parts.as_slice() {
        ["version"] => version(),
        ["healthz" | "livez" | "readyz"] => {
            return Ok(Reply { media_type: "text/plain; charset=utf-8", ..Reply::bytes(200, "ok".into()) });
        }
        ["api"] if aggregated => return Ok(aggregate([("", &core)].into_iter())),
        ["apis"] if aggregated => {
            return Ok(aggregate(groups.iter().map(|(name, group)| (name.as_str(), group))));
        }
        ["api"] => json!({
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:443"}],
        }),
        ["apis"] => {
            let groups: Vec<Value> = groups.iter().map(|(name, group)| legacy_group(name, group)).collect();
            json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        }
        ["api", version] => match core.get(*version) {
            Some(kinds) => legacy_resources("", version, kinds),
            None => return not_served(&cluster.lock(), ""),
        },
        ["apis", name] => {
            let Some(group) = groups.get(*name) else {
                return Ok(no_page());
            };
            let mut group = legacy_group(name, group);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        ["apis", name, version] => {
            let Some(kinds) = groups.get(*name).and_then(|group| group.get(*version)) else {
                return not_served(&cluster.lock(), name);
            };
            legacy_resources(name, version, kinds)
        }
        _ => return Ok(no_page()),
    };
    Ok(Reply::json(200, &value))
}

/// A version or a resource that is not served: a `Status` in a built-in group, not even that anywhere else.
pub(crate) fn not_served(state: &State, group: &str) -> Result<Reply, Status> {
    let built_in = state.shelves.values().any(|shelf| shelf.kind.group == group && !shelf.kind.custom);
    if built_in { Err(Status::of_code(404, None)) } else { Ok(no_page()) }
}

/// A path outside every group that is served.
fn no_page() -> Reply {
    Reply { media_type: "text/plain; charset=utf-8", ..Reply::bytes(404, "404 page not found\n".into()) }
}

fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.3",
        "gitCommit": "0000000000000000000000000000000000000000",
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "go1.26.0",
        "compiler": "gc",
        "platform": "linux/amd64",
    })
}

fn aggregate<'a>(groups: impl Iterator<Item = (&'a str, &'a Group)>) -> Reply {
    let items: Vec<Value> = groups
        .map(|(name, group)| {
            let versions = in_order(group).into_iter().map(|(version, kinds)| {
                let resources: Vec<Value> = kinds.iter().map(|kind| aggregated_resource(kind)).collect();
                json!({"version": version, "resources": resources, "freshness": "Current"})
            });
            let mut metadata = json!({});
            if !name.is_empty() {
                metadata["name"] = name.into();
            }
            json!({"metadata": metadata, "versions": versions.collect::<Vec<_>>()})
        })
        .collect();
    let list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    });
    Reply { media_type: AGGREGATED, ..Reply::json(200, &list) }
}

fn aggregated_resource(kind: &ResourceType) -> Value {
    // Built-in types leave group and version out here: they are those of the list around them.
    let (group, version) = if kind.custom { (kind.group.as_str(), kind.version.as_str()) } else { ("", "") };
    let response = json!({"group": group, "version": version, "kind": kind.kind});
    let mut resource = json!({
        "resource": kind.plural,
        "responseKind": response,
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.verbs(),
    });
    if !kind.short_names.is_empty() {
        resource["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories().is_empty() {
        resource["categories"] = json!(kind.categories());
    }
    if kind.status {
        resource["subresources"] =
            json!([{"subresource": "status", "responseKind": response, "verbs": ["get", "patch", "update"]}]);
    }
    resource
}

/// The versions of a group, the preferred one first.
fn in_order(group: &Group) -> Vec<(&String, &Vec<Arc<ResourceType>>)> {
    let mut versions: Vec<_> = group.iter().collect();
    versions.sort_by(|(a, _), (b, _)| by_priority(a, b));
    versions
}

fn legacy_group(name: &str, group: &Group) -> Value {
    let version = |version: &String| json!({"groupVersion": format!("{name}/{version}"), "version": version});
    let versions: Vec<Value> = in_order(group).into_iter().map(|(name, _)| version(name)).collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

fn legacy_resources(group: &str, version: &str, kinds: &[Arc<ResourceType>]) -> Value {
    let mut resources = Vec::new();
    for kind in kinds {
        let mut resource = Map::from_iter([
            ("name".to_owned(), kind.plural.as_str().into()),
            ("singularName".to_owned(), kind.singular.as_str().into()),
            ("namespaced".to_owned(), kind.namespaced.into()),
            ("kind".to_owned(), kind.kind.as_str().into()),
            ("verbs".to_owned(), json!(kind.verbs())),
        ]);
        if !kind.short_names.is_empty() {
            resource.insert("shortNames".into(), json!(kind.short_names));
        }
        if !kind.categories().is_empty() {
            resource.insert("categories".into(), json!(kind.categories()));
        }
        resources.push(Value::Object(resource));
        if kind.status {
            resources.push(json!({
                "name": format!("{}/status", kind.plural),
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut list = json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": resources});
    // As in the real one, only the core group's list leaves its apiVersion out.
    if !group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list
}
