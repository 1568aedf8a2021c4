//! Writes by objects: create and update under a field manager's name, with what the API server adds.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::api_service::{self, API_SERVICES};
use crate::cluster::{Cluster, key_of};
use crate::custom::{self, DEFINITIONS, Versions};
use crate::defaults;
use crate::managed::{Stamp, metadata_mut};
use crate::manifest::{clock, uid_text};
use crate::resource::ResourceType;
use crate::shelf::Shelf;
use crate::status::Status;

/// Writes under a field manager's name.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) manager: &'a str,
    pub(crate) subresource: &'a str,
    /// The API version it writes in; empty for the stored one.
    pub(crate) version: &'a str,
}

impl Writer<'_> {
    /// Creates an object; gives its version.
    pub fn create(&self, resource: &str, object: Value) -> Result<u64, Status> {
        let Value::Object(mut object) = object else {
            return Err(Status::bad_request("the object is not an object"));
        };
        let mut state = self.cluster.lock();
        let kind = self.kind(state.shelf(resource)?)?;
        let uid = state.next_uid();
        let metadata = metadata_mut(&mut object);
        if let (None, Some(prefix)) = (metadata.get("name"), metadata.get("generateName").and_then(Value::as_str)) {
            let name = format!("{prefix}{}", crate::dice::suffix(uid as u64));
            metadata.insert("name".into(), name.into());
        }
        let name = text_field(metadata, "name");
        let namespace = if kind.namespaced { text_field(metadata, "namespace") } else { String::new() };
        if name.is_empty() || (kind.namespaced && namespace.is_empty()) {
            return Err(Status::new(422, "Invalid", "metadata.name and metadata.namespace: Required value"));
        }
        if kind.namespaced && !state.shelf("namespaces")?.objects.contains_key(namespace.as_str()) {
            return Err(Status::not_found("namespaces", "", &namespace));
        }
        let key = key_of(&namespace, &name);
        if state.shelf(resource)?.objects.contains_key(key.as_str()) {
            return Err(Status::already_exists(&kind.plural, &kind.group, &name));
        }
        let (now, uid) = (clock(state.now()), uid_text(uid));
        let stamp = Stamp { kind: &kind, manager: self.manager, subresource: self.subresource, now: &now, uid: &uid };
        defaults::fill(&kind, &mut object);
        let versions = if kind.name() == DEFINITIONS { Some(Versions::read(&object)?) } else { None };
        if let Some(versions) = &versions {
            custom::complete(&mut object, versions);
        }
        if kind.name() == API_SERVICES {
            api_service::complete(&mut object)?;
        }
        stamp.create(&mut object);
        // What the server makes of it comes later, as changes of its status.
        if let Some(versions) = &versions {
            object.insert("status".into(), custom::first_status(versions));
        } else if kind.name() == API_SERVICES {
            object.insert("status".into(), Value::Object(Map::new()));
        }
        let version = state.put(&kind, &key, &object);
        if let Some(versions) = versions {
            state.establish(object, versions);
        } else if kind.name() == API_SERVICES {
            state.probe(object);
        }
        Ok(version)
    }

    /// Changes an object; gives its version, the old one if nothing changed. `change` may run again if
    /// another writer came between.
    pub fn update(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&mut Value),
    ) -> Result<u64, Status> {
        loop {
            let outcome = self.replace(resource, namespace, name, None, |object| {
                change(object);
                Ok(())
            });
            match outcome {
                Err(status) if status.reason == "Conflict" => {}
                outcome => return outcome,
            }
        }
    }

    /// One attempt at a change of the state at `expected` (None: whatever is there). `change` runs outside the lock.
    pub(crate) fn replace(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        expected: Option<u64>,
        change: impl FnOnce(&mut Value) -> Result<(), Status>,
    ) -> Result<u64, Status> {
        let key = key_of(namespace, name);
        let (kind, found) = {
            let state = self.cluster.lock();
            let shelf = state.shelf(resource)?;
            (self.kind(shelf)?, shelf.objects.get(key.as_str()).cloned())
        };
        let found = found.ok_or_else(|| Status::not_found(&kind.plural, &kind.group, name))?;
        let conflict = || Status::conflict(&kind.plural, &kind.group, name);
        if expected.is_some_and(|version| version != found.version) {
            return Err(conflict());
        }
        let before: Value = serde_json::from_slice(&found.whole(&kind))
            .map_err(|error| Status::new(500, "InternalError", format!("stored object: {error}")))?;
        let mut after = before.clone();
        change(&mut after)?;
        let (Value::Object(before), Value::Object(mut after)) = (before, after) else {
            return Err(Status::bad_request("the object is not an object"));
        };
        let redefined = kind.name() == DEFINITIONS && before.get("spec") != after.get("spec");
        let versions = if redefined { Some(Versions::read(&after)?) } else { None };
        if let Some(versions) = &versions {
            custom::note_stored(&mut after, versions);
        }
        let mut state = self.cluster.lock();
        let current = state.shelf(resource)?.objects.get(key.as_str()).map(|object| object.version);
        if current != Some(found.version) {
            return Err(conflict());
        }
        let now = clock(state.now());
        let stamp = Stamp { kind: &kind, manager: self.manager, subresource: self.subresource, now: &now, uid: "" };
        if !stamp.update(&before, &mut after) {
            return Ok(found.version);
        }
        let version = state.put(&kind, &key, &after);
        if let Some(versions) = versions {
            state.serve_anew(versions);
            state.register();
        }
        Ok(version)
    }

    fn kind(&self, shelf: &Shelf) -> Result<Arc<ResourceType>, Status> {
        if self.version.is_empty() { Ok(Arc::clone(&shelf.kind)) } else { shelf.at(self.version) }
    }
}

fn text_field(metadata: &Map<String, Value>, field: &str) -> String {
    metadata.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}
