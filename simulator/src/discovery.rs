//! Discovery: the aggregated form of one request per root, and the older one of a request per group version. Both are
//! made from the register of APIServices, without the groups that are hidden on request.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::api_service::{REGISTRATION, Registered};
use crate::cluster::Cluster;
use crate::request::RequestInfo;
use crate::resource::{ResourceType, by_priority};
use crate::response::Reply;
use crate::shelf::State;
use crate::status::Status;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A group with its versions, the preferred one first.
struct Group {
    name: String,
    versions: Vec<Version>,
}

struct Version {
    name: String,
    /// None for an aggregated API server that does not answer.
    resources: Option<Vec<Arc<ResourceType>>>,
}

/// The form in which a client wants the roots.
enum Form {
    Aggregated,
    Legacy,
}

impl Form {
    /// Takes what it knows from the Accept header; parameters that it does not know make a media type another one.
    fn of(accept: &str, aggregated: bool) -> Result<Self, Status> {
        let params = |range: &str| -> Vec<String> { range.split(';').map(|part| part.trim().to_owned()).collect() };
        let ranges: Vec<_> = accept.split(',').filter(|range| !range.trim().is_empty()).map(params).collect();
        let has = |range: &[String], wanted: &str| range.iter().any(|param| param == wanted);
        let whole = |range: &Vec<String>| {
            aggregated && ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"].iter().all(|it| has(range, it))
        };
        let plain = |range: &Vec<String>| !range.iter().any(|param| param.starts_with("as="));
        if ranges.iter().any(whole) {
            Ok(Self::Aggregated)
        } else if ranges.is_empty() || ranges.iter().any(plain) {
            Ok(Self::Legacy)
        } else {
            let message = "only the following media types are accepted: application/json";
            Err(Status::new(406, "NotAcceptable", message))
        }
    }
}

impl Cluster {
    /// Hides a group (empty for the core group) from discovery, or shows it again. Its resources are served all the
    /// time.
    pub fn hide_from_discovery(&self, group: &str, hidden: bool) {
        let mut state = self.lock();
        if hidden {
            state.hidden.insert(group.to_owned())
        } else {
            state.hidden.remove(group)
        };
    }
}

/// Answers a discovery request; `aggregated` is whether the server knows the newer form.
pub(crate) fn answer(cluster: &Cluster, request: &RequestInfo, aggregated: bool) -> Result<Reply, Status> {
    let state = cluster.lock();
    let mut groups = groups(&state);
    let core = groups.iter().position(|group| group.name.is_empty()).map(|at| groups.remove(at));
    let parts: Vec<&str> = request.path.split('/').filter(|part| !part.is_empty()).collect();
    let named = |name: &str| groups.iter().find(|group| group.name == name);
    let value = match parts.as_slice() {
        ["version"] => version(),
        ["healthz" | "livez" | "readyz"] => return Ok(text(200, "ok")),
        ["api"] => match Form::of(&request.accept, aggregated)? {
            Form::Aggregated => return Ok(aggregate(core.as_slice())),
            Form::Legacy => json!({
                "kind": "APIVersions",
                "versions": core.iter().flat_map(|core| &core.versions).map(|it| it.name.as_str()).collect::<Vec<_>>(),
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:443"}],
            }),
        },
        ["apis"] => match Form::of(&request.accept, aggregated)? {
            Form::Aggregated => return Ok(aggregate(&groups)),
            Form::Legacy => {
                let groups: Vec<Value> = groups.iter().map(legacy_group).collect();
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
            }
        },
        ["apis", name] => {
            let Some(group) = named(name) else {
                return Ok(no_page());
            };
            let mut group = legacy_group(group);
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            group
        }
        ["api", _] | ["apis", _, _] => {
            let group = if request.group.is_empty() { core.as_ref() } else { named(&request.group) };
            let mut versions = group.into_iter().flat_map(|group| &group.versions);
            match versions.find(|it| it.name == request.version).and_then(|it| it.resources.as_ref()) {
                Some(kinds) => legacy_resources(&request.group, &request.version, kinds),
                None => return not_served(&state, request),
            }
        }
        _ => return Ok(no_page()),
    };
    Ok(Reply::json(200, &value))
}

/// The groups in the order of their priority.
fn groups(state: &State) -> Vec<Group> {
    let itself = Registered {
        group: REGISTRATION.to_owned(),
        version: "v1".to_owned(),
        group_priority: u64::MAX,
        version_priority: 1,
        dead: false,
    };
    let mut found: BTreeMap<String, Vec<Registered>> = BTreeMap::new();
    for entry in state.registered().into_iter().chain([itself]) {
        if !state.hidden.contains(&entry.group) {
            found.entry(entry.group.clone()).or_default().push(entry);
        }
    }
    let mut groups: Vec<_> = found.into_iter().collect();
    groups.sort_by_key(|(_, entries)| std::cmp::Reverse(entries.iter().map(|it| it.group_priority).max()));
    let group = |(name, mut entries): (String, Vec<Registered>)| {
        entries.sort_by(|a, b| {
            b.version_priority.cmp(&a.version_priority).then_with(|| by_priority(&a.version, &b.version))
        });
        let versions = entries.into_iter().map(|it| Version {
            resources: (!it.dead).then(|| resources(state, &it.group, &it.version)),
            name: it.version,
        });
        Group { name, versions: versions.collect() }
    };
    groups.into_iter().map(group).collect()
}

fn resources(state: &State, group: &str, version: &str) -> Vec<Arc<ResourceType>> {
    let served = state.shelves.values().filter(|shelf| shelf.served).flat_map(|shelf| &shelf.versions);
    served.filter(|kind| kind.group == group && kind.version == version).cloned().collect()
}

/// A version or a resource that is not served: 503 of a dead API server, a `Status` in a built-in group, not even that
/// anywhere else.
pub(crate) fn not_served(state: &State, request: &RequestInfo) -> Result<Reply, Status> {
    if state.is_dead(&request.group, &request.version) {
        return Ok(text(503, "service unavailable\n"));
    }
    let built_in = state.shelves.values().any(|shelf| shelf.kind.group == request.group && !shelf.kind.custom);
    if built_in { Err(Status::of_code(404, None)) } else { Ok(no_page()) }
}

/// A path outside every group that is served.
fn no_page() -> Reply {
    text(404, "404 page not found\n")
}

fn text(code: u16, text: &'static str) -> Reply {
    Reply { media_type: "text/plain; charset=utf-8", ..Reply::bytes(code, text.into()) }
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

fn aggregate(groups: &[Group]) -> Reply {
    let version = |version: &Version| match &version.resources {
        Some(kinds) => {
            let resources: Vec<Value> = kinds.iter().map(|kind| aggregated_resource(kind)).collect();
            json!({"version": version.name, "resources": resources, "freshness": "Current"})
        }
        None => json!({"version": version.name, "freshness": "Stale"}),
    };
    let item = |group: &Group| {
        let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
        json!({"metadata": metadata, "versions": group.versions.iter().map(version).collect::<Vec<_>>()})
    };
    let list = json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": groups.iter().map(item).collect::<Vec<_>>(),
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

fn legacy_group(group: &Group) -> Value {
    let name = &group.name;
    let version = |it: &Version| json!({"groupVersion": format!("{name}/{}", it.name), "version": it.name});
    let versions: Vec<Value> = group.versions.iter().map(version).collect();
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
