//! Custom resource definitions: what a definition object serves, and its life: established a moment after it was
//! created, live changes of its versions, and an end that takes its objects with it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::manifest::clock;
use crate::resource::{ResourceType, by_priority};
use crate::shelf::State;
use crate::status::Status;

pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The versions of one resource. Without conversion they differ in their objects' apiVersion only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    /// The version that objects are stored in, served or not.
    pub(crate) storage: Arc<ResourceType>,
    /// The versions that are served, the preferred one first.
    pub(crate) served: Vec<Arc<ResourceType>>,
}

impl Versions {
    /// One version, as built-in types have.
    pub(crate) fn only(kind: Arc<ResourceType>) -> Self {
        Self { served: vec![Arc::clone(&kind)], storage: kind }
    }

    /// What a definition asks for.
    pub(crate) fn read(definition: &Map<String, Value>) -> Result<Self, Status> {
        let spec = definition.get("spec").unwrap_or(&Value::Null);
        let names = &spec["names"];
        let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let (Some(group), Some(plural), Some(kind), false) =
            (spec["group"].as_str(), names["plural"].as_str(), names["kind"].as_str(), versions.is_empty())
        else {
            return Err(invalid("spec.group, spec.names and spec.versions: Required value"));
        };
        if definition.get("metadata").is_some_and(|metadata| metadata["name"] != format!("{plural}.{group}")) {
            return Err(invalid("metadata.name: Invalid value: must be spec.names.plural+\".\"+spec.group"));
        }
        let short_names: Vec<&str> =
            names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let resource = |version: &Value| {
            let name = version["name"].as_str().unwrap_or_default();
            let mut resource = ResourceType::custom(group, name, plural, kind, &short_names);
            if let Some(singular) = names["singular"].as_str() {
                resource.singular = singular.to_owned();
            }
            resource.namespaced = spec["scope"] != "Cluster";
            resource.status = version["subresources"]["status"].is_object();
            Arc::new(resource)
        };
        let mut storage = versions.iter().filter(|version| version["storage"] == true);
        let (Some(storage), None) = (storage.next(), storage.next()) else {
            return Err(invalid(
                "spec.versions: Invalid value: must have exactly one version marked as storage version",
            ));
        };
        let mut served: Vec<_> = versions.iter().filter(|version| version["served"] == true).map(resource).collect();
        served.sort_by(|a, b| by_priority(&a.version, &b.version));
        Ok(Self { storage: resource(storage), served })
    }
}

fn invalid(problem: &str) -> Status {
    Status::new(422, "Invalid", format!("CustomResourceDefinition.apiextensions.k8s.io is invalid: {problem}"))
}

/// A definition that serves these versions of a resource type besides its own, which is the stored one.
pub(crate) fn definition(kind: &ResourceType, others: &[&str]) -> Value {
    let version = |name: &str, storage: bool| {
        let mut version = json!({
            "name": name,
            "served": true,
            "storage": storage,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
        });
        if kind.status {
            version["subresources"] = json!({"status": {}});
        }
        version
    };
    let mut versions = vec![version(&kind.version, true)];
    versions.extend(others.iter().map(|name| version(name, false)));
    json!({
        "metadata": {"name": kind.name()},
        "spec": {
            "group": kind.group,
            "names": {
                "plural": kind.plural,
                "singular": kind.singular,
                "kind": kind.kind,
                "listKind": format!("{}List", kind.kind),
                "shortNames": kind.short_names,
            },
            "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
            "versions": versions,
        },
    })
}

/// Fills in what the API server adds to a new definition.
pub(crate) fn complete(definition: &mut Map<String, Value>, versions: &Versions) {
    let storage = &versions.storage;
    let spec = &mut definition["spec"];
    spec["names"]["singular"] = storage.singular.as_str().into();
    if spec["names"]["listKind"].is_null() {
        spec["names"]["listKind"] = format!("{}List", storage.kind).into();
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
}

/// The status of a definition that nobody has looked at yet.
pub(crate) fn first_status(versions: &Versions) -> Value {
    let stored = &versions.storage.version;
    json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": [stored]})
}

/// A version that once stored objects stays in the list of those.
pub(crate) fn note_stored(definition: &mut Map<String, Value>, versions: &Versions) {
    let stored = definition.get_mut("status").and_then(|status| status["storedVersions"].as_array_mut());
    if let Some(stored) = stored
        && !stored.iter().any(|version| *version == versions.storage.version)
    {
        stored.push(versions.storage.version.as_str().into());
    }
}

impl State {
    /// Accepts a new definition's names and serves it: two changes of its status, as in the real one.
    pub(crate) fn establish(&mut self, mut definition: Map<String, Value>, versions: Versions) {
        let name = versions.storage.name();
        let now = clock(self.now());
        definition["status"]["acceptedNames"] = definition["spec"]["names"].clone();
        for (status, reason, message) in [
            ("False", "NotAccepted", "not all names are accepted"),
            ("True", "InitialNamesAccepted", "the initial names have been accepted"),
        ] {
            definition["status"]["conditions"] = json!([
                condition("NamesAccepted", "True", "NoConflicts", "no conflicts found", &now),
                condition("Established", status, reason, message, &now),
            ]);
            self.put_definition(&name, &definition);
        }
        self.serve(versions);
        self.register();
    }

    /// Ends a definition, as far as its own removal: it is marked, its objects are deleted, it is no longer served.
    pub(crate) fn retire(&mut self, name: &str) {
        let Some(shelf) = self.shelves.get(name).filter(|shelf| shelf.served && shelf.kind.custom) else {
            return;
        };
        let keys: Vec<_> = shelf.objects.keys().cloned().collect();
        self.mark_terminating(name);
        for key in keys {
            self.remove(name, &key);
        }
        if let Some(shelf) = self.shelves.get_mut(name) {
            shelf.served = false;
            shelf.changed.send_replace(self.version);
        }
        self.register();
    }

    fn mark_terminating(&mut self, name: &str) {
        let Some(Value::Object(mut definition)) = self.definition(name) else {
            return;
        };
        let now = clock(self.now());
        definition["metadata"]["deletionTimestamp"] = now.as_str().into();
        definition["metadata"]["finalizers"] = json!(["customresourcecleanup.apiextensions.k8s.io"]);
        let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
        if let Some(conditions) = definition["status"]["conditions"].as_array_mut() {
            conditions.push(condition("Terminating", "True", "InstanceDeletionPending", message, &now));
        }
        self.put_definition(name, &definition);
    }

    fn definition(&self, name: &str) -> Option<Value> {
        let shelf = self.shelves.get(DEFINITIONS)?;
        serde_json::from_slice(&shelf.objects.get(name)?.whole(&shelf.kind)).ok()
    }

    fn put_definition(&mut self, name: &str, definition: &Map<String, Value>) {
        if let Some(kind) = self.shelves.get(DEFINITIONS).map(|shelf| Arc::clone(&shelf.kind)) {
            self.put(&kind, name, definition);
        }
    }
}

fn condition(sort: &str, status: &str, reason: &str, message: &str, now: &str) -> Value {
    json!({"type": sort, "status": status, "lastTransitionTime": now, "reason": reason, "message": message})
}
