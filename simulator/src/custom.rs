//! Custom resource definitions: from a definition object to a served resource type, and back.

use serde_json::{Map, Value, json};

use crate::resource::ResourceType;
use crate::status::Status;

/// The resource type that a definition asks for: its storage version.
pub(crate) fn served(definition: &Map<String, Value>) -> Result<ResourceType, Status> {
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let names = &spec["names"];
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let storage = versions.iter().find(|version| version["storage"] == true).or(versions.first());
    let (Some(group), Some(plural), Some(kind), Some(storage)) =
        (spec["group"].as_str(), names["plural"].as_str(), names["kind"].as_str(), storage)
    else {
        let message = "CustomResourceDefinition.apiextensions.k8s.io is invalid: spec.group, spec.names and \
                       spec.versions: Required value";
        return Err(Status::new(422, "Invalid", message));
    };
    let short_names: Vec<&str> =
        names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut served = ResourceType::custom(group, storage["name"].as_str().unwrap_or("v1"), plural, kind, &short_names);
    if let Some(singular) = names["singular"].as_str() {
        served.singular = singular.to_owned();
    }
    served.namespaced = spec["scope"] != "Cluster";
    served.status = storage["subresources"]["status"].is_object();
    Ok(served)
}

/// The definition of a resource type.
pub(crate) fn definition(kind: &ResourceType) -> Value {
    let mut version = json!({
        "name": kind.version,
        "served": true,
        "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    });
    if kind.status {
        version["subresources"] = json!({"status": {}});
    }
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
            "versions": [version],
            "conversion": {"strategy": "None"},
        },
        "status": {
            "conditions": [
                {"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"},
                {"type": "Established", "status": "True", "reason": "InitialNamesAccepted", "message": "the initial names have been accepted"},
            ],
            "acceptedNames": {"plural": kind.plural, "kind": kind.kind},
            "storedVersions": [kind.version],
        },
    })
}
