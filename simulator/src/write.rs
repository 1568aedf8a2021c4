//! Writes over HTTP: POST, PUT, merge PATCH and DELETE, as far as tests and people with `kubectl` need them.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::cluster::{Cluster, key_of};
use crate::form::Form;
use crate::request::{RequestInfo, Verb};
use crate::resource::ResourceType;
use crate::response::Reply;
use crate::selector::Selection;
use crate::status::Status;
use crate::writer::Writer;

pub(crate) fn write(cluster: &Cluster, request: &RequestInfo, body: &Bytes) -> Result<Reply, Status> {
    if request.resource == "selfsubjectaccessreviews.authorization.k8s.io" {
        return access_review(body);
    }
    let kind = cluster.lock().shelf(&request.resource)?.at(&request.version)?;
    let manager = manager(request);
    let writer = Writer { cluster, manager: &manager, subresource: &request.subresource, version: &request.version };
    match request.verb {
        Verb::Create => create(&writer, &kind, request, body),
        Verb::Update => update(&writer, &kind, request, body),
        Verb::Patch => patch(&writer, request, body),
        Verb::Delete => delete(cluster, &kind, request, body),
        Verb::DeleteCollection => delete_collection(cluster, &kind, request),
        _ => Err(Status::of_code(405, None)),
    }
}

/// The `fieldManager`, else the user agent up to its version, as the API server names writers.
fn manager(request: &RequestInfo) -> String {
    match request.param("fieldManager") {
        "" => request.user_agent.split('/').next().filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned(),
        manager => manager.to_owned(),
    }
}

fn create(writer: &Writer<'_>, kind: &ResourceType, request: &RequestInfo, body: &Bytes) -> Result<Reply, Status> {
    let mut object = read(body)?;
    let metadata = crate::managed::metadata_mut(&mut object);
    if metadata.get("resourceVersion").and_then(Value::as_str).is_some_and(|version| !version.is_empty()) {
        return Err(Status::new(400, "BadRequest", "resourceVersion should not be set on objects to be created"));
    }
    if kind.namespaced && !request.namespace.is_empty() {
        match metadata.get("namespace").and_then(Value::as_str).unwrap_or_default() {
            "" => metadata.insert("namespace".into(), request.namespace.clone().into()),
            given if given == request.namespace => None,
            _ => {
                let message = "the namespace of the provided object does not match the namespace sent on the request";
                return Err(Status::bad_request(message));
            }
        };
    }
    let version = writer.create(&request.resource, Value::Object(object))?;
    reply(writer.cluster, request, 201, |object| object.version == version)
}

fn update(writer: &Writer<'_>, kind: &ResourceType, request: &RequestInfo, body: &Bytes) -> Result<Reply, Status> {
    let new = read(body)?;
    let metadata = new.get("metadata").cloned().unwrap_or_default();
    if metadata["name"].as_str().is_some_and(|name| name != request.name) {
        return Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            metadata["name"].as_str().unwrap_or_default(),
            request.name
        )));
    }
    let expected = match metadata["resourceVersion"].as_str().unwrap_or_default() {
        "" => None,
        version => Some(version.parse().map_err(|_| Status::bad_request("metadata.resourceVersion: Invalid value"))?),
    };
    let status_only = request.subresource == "status";
    let conflict = || Status::conflict(&kind.plural, &kind.group, &request.name);
    writer.replace(&request.resource, &request.namespace, &request.name, expected, |object| {
        let uid = metadata["uid"].as_str().unwrap_or_default();
        if !uid.is_empty() && object["metadata"]["uid"] != uid {
            return Err(conflict());
        }
        let status = object.get("status").cloned();
        if status_only {
            object["status"] = new.get("status").cloned().unwrap_or_default();
        } else {
            *object = Value::Object(new);
            // The status belongs to its subresource.
            if let (true, Some(map)) = (kind.status, object.as_object_mut()) {
                map.remove("status");
                map.extend(status.map(|status| ("status".to_owned(), status)));
            }
        }
        Ok(())
    })?;
    reply(writer.cluster, request, 200, |_| true)
}

fn patch(writer: &Writer<'_>, request: &RequestInfo, body: &Bytes) -> Result<Reply, Status> {
    let patch = Value::Object(read(body)?);
    writer.update(&request.resource, &request.namespace, &request.name, |object| merge(object, &patch))?;
    reply(writer.cluster, request, 200, |_| true)
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else {
        return;
    };
    for (field, value) in patch {
        if value.is_null() {
            target.remove(field);
        } else {
            merge(target.entry(field).or_insert(Value::Null), value);
        }
    }
}

fn delete(cluster: &Cluster, kind: &ResourceType, request: &RequestInfo, body: &Bytes) -> Result<Reply, Status> {
    let object = cluster.get(&request.resource, &request.namespace, &request.name);
    let object = object.ok_or_else(|| Status::not_found(&kind.plural, &kind.group, &request.name))?;
    let object: Value = serde_json::from_slice(&object).unwrap_or_default();
    let options: Value = serde_json::from_slice(body).unwrap_or_default();
    for field in ["uid", "resourceVersion"] {
        let wanted = &options["preconditions"][field];
        if wanted.is_string() && *wanted != object["metadata"][field] {
            return Err(Status::conflict(&kind.plural, &kind.group, &request.name));
        }
    }
    cluster.delete(&request.resource, &request.namespace, &request.name)?;
    // Pods and their like are given back; for the rest a Status says what went.
    if matches!(kind.plural.as_str(), "pods" | "services" | "serviceaccounts" | "customresourcedefinitions") {
        return Ok(Reply::json(200, &object));
    }
    let mut details = json!({"name": request.name, "kind": kind.plural, "uid": object["metadata"]["uid"]});
    if !kind.group.is_empty() {
        details["group"] = kind.group.as_str().into();
    }
    let success =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
    Ok(Reply::json(200, &success))
}

fn delete_collection(cluster: &Cluster, kind: &ResourceType, request: &RequestInfo) -> Result<Reply, Status> {
    let selection = Selection::of(request, kind)?;
    let doomed = {
        let state = cluster.lock();
        crate::list::state(state.shelf(&request.resource)?, &request.namespace, &selection)
    };
    for (key, _) in doomed {
        let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
        // Someone else may have deleted it meanwhile: it is gone, as asked.
        let _ = cluster.delete(&request.resource, namespace, name);
    }
    let list = json!({
        "kind": format!("{}List", kind.kind),
        "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": cluster.version().to_string()},
        "items": [],
    });
    Ok(Reply::json(200, &list))
}

/// Everything is allowed; a hook that answers 403 says otherwise for the requests themselves.
fn access_review(body: &Bytes) -> Result<Reply, Status> {
    let mut review = read(body)?;
    review.insert("status".into(), json!({"allowed": true}));
    Ok(Reply::json(201, &Value::Object(review)))
}

fn read(body: &Bytes) -> Result<Map<String, Value>, Status> {
    serde_json::from_slice(body)
        .map_err(|error| Status::bad_request(format!("the object provided is unrecognized: {error}")))
}

/// The object as it is now, which for a create must be the one that was made (its name may be generated).
fn reply(
    cluster: &Cluster,
    request: &RequestInfo,
    code: u16,
    mut mine: impl FnMut(&crate::object::Object) -> bool,
) -> Result<Reply, Status> {
    let state = cluster.lock();
    let shelf = state.shelf(&request.resource)?;
    let object = if request.name.is_empty() {
        shelf.history.newest(&mut mine)
    } else {
        shelf.objects.get(key_of(&request.namespace, &request.name).as_str()).cloned()
    };
    let kind = shelf.at(&request.version)?;
    drop(state);
    let object = object.ok_or_else(|| Status::not_found(&kind.plural, &kind.group, &request.name))?;
    let mut bytes = Vec::new();
    Form::Whole.write(&object, &kind, &mut bytes);
    Ok(Reply::bytes(code, bytes.into()))
}
