//! What the API server adds to a written object: uid, times, generation, and the managedFields entry of who
//! wrote it.

use serde_json::{Map, Value, json};

use crate::resource::ResourceType;

/// What one write is made of besides the object.
pub(crate) struct Stamp<'a> {
    pub(crate) kind: &'a ResourceType,
    pub(crate) manager: &'a str,
    pub(crate) subresource: &'a str,
    /// Virtual time, RFC 3339 with seconds.
    pub(crate) now: &'a str,
    pub(crate) uid: &'a str,
}

impl Stamp<'_> {
    /// Completes an object that is about to be created.
    pub(crate) fn create(&self, object: &mut Map<String, Value>) {
        let fields = fields_of(object);
        let metadata = metadata_mut(object);
        metadata.insert("uid".into(), self.uid.into());
        metadata.insert("creationTimestamp".into(), self.now.into());
        metadata.remove("managedFields");
        if self.kind.has_generation() {
            metadata.insert("generation".into(), 1.into());
        } else {
            metadata.remove("generation");
        }
        metadata.insert("managedFields".into(), json!([self.entry(fields)]));
    }

    /// Completes an object that is about to replace `before`. False: it changes nothing, and the API server
    /// would neither store nor announce it.
    pub(crate) fn update(&self, before: &Map<String, Value>, after: &mut Map<String, Value>) -> bool {
        let nothing = Map::new();
        let old = before.get("metadata").and_then(Value::as_object).unwrap_or(&nothing);
        {
            let metadata = metadata_mut(after);
            for field in
                ["uid", "creationTimestamp", "generation", "managedFields", "name", "namespace", "resourceVersion"]
            {
                match old.get(field) {
                    Some(value) => metadata.insert(field.into(), value.clone()),
                    None => metadata.remove(field),
                };
            }
        }
        if without_type(before).eq(without_type(after)) {
            return false;
        }
        if self.kind.has_generation() && !self.counts(before).eq(self.counts(after)) {
            let next = old.get("generation").and_then(Value::as_i64).unwrap_or(0) + 1;
            metadata_mut(after).insert("generation".into(), next.into());
        }
        let changed = owned_fields(before, after);
        let mut entries = old.get("managedFields").and_then(Value::as_array).cloned().unwrap_or_default();
        let mine = entries.iter().position(|entry| {
            entry["manager"] == self.manager
                && entry["operation"] == "Update"
                && entry["subresource"].as_str().unwrap_or("") == self.subresource
        });
        match mine {
            Some(at) => {
                let mut entry = entries.remove(at);
                merge(&mut entry["fieldsV1"], changed);
                entry["time"] = self.now.into();
                entries.push(entry);
            }
            None => entries.push(self.entry(changed)),
        }
        metadata_mut(after).insert("managedFields".into(), entries.into());
        true
    }

    fn entry(&self, fields: Value) -> Value {
        let mut entry = json!({
            "manager": self.manager,
            "operation": "Update",
            "apiVersion": self.kind.api_version(),
            "time": self.now,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields,
        });
        if !self.subresource.is_empty() {
            entry["subresource"] = self.subresource.into();
        }
        entry
    }

    /// What a generation counts: the spec; for custom resources everything but metadata and a status that
    /// is a subresource.
    fn counts<'a>(&self, object: &'a Map<String, Value>) -> impl Iterator<Item = (&'a String, &'a Value)> {
        object.iter().filter(|(field, _)| match field.as_str() {
            "metadata" | "kind" | "apiVersion" => false,
            "status" => self.kind.custom && !self.kind.status,
            field => self.kind.custom || field == "spec",
        })
    }
}

/// The object's metadata, made if it has none.
pub(crate) fn metadata_mut(object: &mut Map<String, Value>) -> &mut Map<String, Value> {
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if !metadata.is_object() {
        *metadata = Value::Object(Map::new());
    }
    match metadata {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn without_type(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    object.iter().filter(|(field, _)| !matches!(field.as_str(), "kind" | "apiVersion"))
}

fn fields_of(object: &Map<String, Value>) -> Value {
    owned_fields(&Map::new(), object)
}

/// The FieldsV1 tree of what differs in an object, without what belongs to no manager.
fn owned_fields(before: &Map<String, Value>, after: &Map<String, Value>) -> Value {
    const NOBODYS: [&str; 8] = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "managedFields",
        "generateName",
    ];
    let mut fields = Map::new();
    for (field, value) in after {
        let old = before.get(field);
        if matches!(field.as_str(), "kind" | "apiVersion") || old == Some(value) {
            continue;
        }
        let mut changed = changed_fields(old, value);
        if let ("metadata", Value::Object(changed)) = (field.as_str(), &mut changed) {
            changed.retain(|name, _| !NOBODYS.contains(&name.trim_start_matches("f:")) && name != ".");
            if changed.is_empty() {
                continue;
            }
        }
        fields.insert(format!("f:{field}"), changed);
    }
    Value::Object(fields)
}

/// The tree of what differs below a field. Lists are taken as a whole: their merge keys would need the schema.
fn changed_fields(before: Option<&Value>, after: &Value) -> Value {
    let mut fields = Map::new();
    if let Value::Object(after) = after {
        let before = before.and_then(Value::as_object);
        if before.is_none() {
            fields.insert(".".into(), json!({}));
        }
        for (field, value) in after {
            let old = before.and_then(|before| before.get(field));
            if old != Some(value) {
                fields.insert(format!("f:{field}"), changed_fields(old, value));
            }
        }
    }
    Value::Object(fields)
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (field, value) in from {
                merge(into.entry(field).or_insert_with(|| json!({})), value);
            }
        }
        (into, from) => *into = from,
    }
}
