//! APIServices: the register of group-versions that discovery is made from. The server keeps one for each group-version
//! that it serves itself; one with a service stands for an aggregated API server, which here is always dead.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::cluster::Cluster;
use crate::managed::{Stamp, metadata_mut};
use crate::manifest::{clock, uid_text};
use crate::shelf::State;
use crate::status::Status;

pub(crate) const API_SERVICES: &str = "apiservices.apiregistration.k8s.io";

/// The group of the register, which the API server serves without an entry in it.
pub(crate) const REGISTRATION: &str = "apiregistration.k8s.io";

/// An entry of the register, as far as discovery needs it.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) group_priority: u64,
    pub(crate) version_priority: u64,
    /// It stands for a server that does not answer.
    pub(crate) dead: bool,
}

impl Cluster {
    /// Registers a group-version of an aggregated API server that is not there: discovery names it without its
    /// resources, and every request to it is 503. `delete("apiservices", "", "VERSION.GROUP")` takes it away.
    pub fn add_dead_api_service(&self, group: &str, version: &str) -> Result<u64, Status> {
        let service = json!({
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": true,
                "service": {"namespace": "kube-system", "name": "not-there"},
            },
        });
        self.create(API_SERVICES, service)
    }
}

/// Checks a new entry and fills in what the API server adds.
pub(crate) fn complete(object: &mut Map<String, Value>) -> Result<(), Status> {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let text = |field: &str| spec[field].as_str().unwrap_or_default();
    let expected = format!("{}.{}", text("version"), text("group"));
    let name = object.get("metadata").and_then(|metadata| metadata["name"].as_str()).unwrap_or_default();
    if text("version").is_empty() || name != expected {
        let problem = format!("metadata.name: Invalid value: \"{name}\": must be `spec.version+\".\"+spec.group`");
        let message = format!("APIService.apiregistration.k8s.io \"{name}\" is invalid: {problem}: \"{expected}\"");
        return Err(Status::new(422, "Invalid", message));
    }
    if let Some(service) = object["spec"].get_mut("service").and_then(Value::as_object_mut) {
        service.entry("port").or_insert_with(|| 443.into());
    }
    Ok(())
}

impl State {
    /// Every entry of the register.
    pub(crate) fn registered(&self) -> Vec<Registered> {
        let Some(shelf) = self.shelves.get(API_SERVICES) else {
            return Vec::new();
        };
        let read = |name: &str| {
            let object: Value = serde_json::from_slice(&shelf.objects.get(name)?.whole(&shelf.kind)).ok()?;
            let spec = &object["spec"];
            Some(Registered {
                group: spec["group"].as_str().unwrap_or_default().to_owned(),
                version: spec["version"].as_str()?.to_owned(),
                group_priority: spec["groupPriorityMinimum"].as_u64().unwrap_or(0),
                version_priority: spec["versionPriority"].as_u64().unwrap_or(0),
                dead: spec["service"].is_object(),
            })
        };
        shelf.objects.keys().filter_map(|name| read(name)).collect()
    }

    /// Whether this group-version belongs to an aggregated API server.
    pub(crate) fn is_dead(&self, group: &str, version: &str) -> bool {
        self.registered().iter().any(|it| it.dead && it.group == group && it.version == version)
    }

    /// Looks for the server behind a new entry, in vain unless it is this one.
    pub(crate) fn probe(&mut self, mut object: Map<String, Value>) {
        let service = &object["spec"]["service"];
        let (status, reason, message) = if service.is_object() {
            let text = |field: &str| service[field].as_str().unwrap_or_default();
            let message = format!("service/{} in \"{}\" is not present", text("name"), text("namespace"));
            ("False", "ServiceNotFound", message)
        } else {
            ("True", "Local", "Local APIServices are always available".to_owned())
        };
        object["status"] = conditions(status, reason, &message, &clock(self.now()));
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.put_api_service(&name, &object);
    }

    /// Makes the entries of what is served here, and takes away those of what is no longer.
    pub(crate) fn register(&mut self) {
        let local: Vec<_> = self.registered().into_iter().filter(|it| !it.dead).collect();
        let served = self.shelves.values().filter(|shelf| shelf.served).flat_map(|shelf| &shelf.versions);
        let wanted: BTreeSet<(String, String, bool)> = served
            .filter(|kind| kind.group != REGISTRATION)
            .map(|kind| (kind.group.clone(), kind.version.clone(), kind.custom))
            .collect();
        for entry in &local {
            if !wanted.iter().any(|(group, version, _)| (group, version) == (&entry.group, &entry.version)) {
                self.remove(API_SERVICES, &format!("{}.{}", entry.version, entry.group));
            }
        }
        for (group, version, custom) in wanted {
            let name = format!("{version}.{group}");
            let there = self.shelves.get(API_SERVICES).is_some_and(|shelf| shelf.objects.contains_key(name.as_str()));
            if !there {
                let object = self.local(&name, &group, &version, custom);
                self.put_api_service(&name, &object);
            }
        }
    }

    fn local(&mut self, name: &str, group: &str, version: &str, custom: bool) -> Map<String, Value> {
        let (group_priority, version_priority) = match group {
            "" => (18_000, 1),
            "apps" => (17_800, 15),
            "apiextensions.k8s.io" => (16_700, 15),
            "coordination.k8s.io" => (16_500, 15),
            _ => (1000, 100),
        };
        let mut spec =
            json!({"version": version, "groupPriorityMinimum": group_priority, "versionPriority": version_priority});
        if !group.is_empty() {
            spec["group"] = group.into();
        }
        let labels = json!({"kube-aggregator.kubernetes.io/automanaged": if custom { "true" } else { "onstart" }});
        let mut object = Map::from_iter([("spec".to_owned(), spec)]);
        metadata_mut(&mut object).extend([("name".to_owned(), name.into()), ("labels".to_owned(), labels)]);
        let (now, uid) = (clock(self.now()), uid_text(self.next_uid()));
        if let Some(shelf) = self.shelves.get(API_SERVICES) {
            let kind = &shelf.kind;
            Stamp { kind, manager: "kube-apiserver", subresource: "", now: &now, uid: &uid }.create(&mut object);
        }
        let message = "Local APIServices are always available";
        object.insert("status".into(), conditions("True", "Local", message, &now));
        object
    }

    fn put_api_service(&mut self, name: &str, object: &Map<String, Value>) {
        if let Some(kind) = self.shelves.get(API_SERVICES).map(|shelf| Arc::clone(&shelf.kind)) {
            self.put(&kind, name, object);
        }
    }
}

fn conditions(status: &str, reason: &str, message: &str, now: &str) -> Value {
    let condition = json!({
        "type": "Available",
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    });
    json!({"conditions": [condition]})
}
