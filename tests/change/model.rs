//! Cleaning as one would write it without a thought for speed: over a parsed tree.

use serde_json::Value;

/// What stands for any mark.
const MARK: &str = "<redacted>";

/// A tree without what the paths name; marks stand where they redact.
pub(crate) fn cleaned(mut tree: Value, secret: bool, drop: &[&str], redact: &[&str]) -> Value {
    if let Some(metadata) = tree.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    for key in ["kind", "apiVersion"] {
        let given = if key == "kind" { "Any" } else { "v1" };
        tree.as_object_mut().unwrap().entry(key).or_insert_with(|| given.into());
    }
    // The deepest first: the place of an item is its place before anything is cut.
    for path in redact {
        edit(&mut tree, &tokens(path), &mut mark);
    }
    if secret {
        for part in ["data", "stringData"] {
            match tree.get_mut(part) {
                Some(Value::Object(values)) => values.values_mut().for_each(mark),
                Some(other) => mark(other),
                None => {}
            }
        }
    }
    if (secret || !redact.is_empty())
        && let Some(Value::Object(annotations)) = tree.pointer_mut("/metadata/annotations")
    {
        for (key, value) in annotations {
            if key == "kapp.k14s.io/original" || if secret { may_be_a_copy(value) } else { is_a_copy(value) } {
                mark(value);
            }
        }
    }
    for path in drop {
        let tokens = tokens(path);
        let (last, parents) = tokens.split_last().unwrap();
        edit(&mut tree, parents, &mut |parent| match parent {
            Value::Object(members) => members.retain(|key, _| last != "*" && key != last),
            Value::Array(items) => {
                let mut index = 0;
                items.retain(|_| {
                    index += 1;
                    last != "*" && *last != (index - 1).to_string()
                });
            }
            _ => {}
        });
    }
    tree
}

/// The same tree with every mark of the scanner replaced by the one of the model.
pub(crate) fn unmarked(mut tree: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::String(text) if text.len() == 25 && text.starts_with("redacted:") => *text = MARK.into(),
            Value::Object(members) => members.values_mut().for_each(walk),
            Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut tree);
    tree
}

fn may_be_a_copy(value: &Value) -> bool {
    match value {
        Value::String(text) => {
            text.trim_ascii_start().starts_with(['{', '['])
                || text.contains(['"', '\\'])
                || text.contains(char::is_control)
        }
        Value::Object(_) | Value::Array(_) => true,
        _ => false,
    }
}

fn is_a_copy(value: &Value) -> bool {
    let Some(text) = value.as_str() else { return false };
    let parts = ["metadata", "spec", "data", "stringData"];
    parts.iter().any(|part| text.contains(&format!("\"{part}\"")) || text.contains(&format!("\n{part}:")))
}

fn mark(value: &mut Value) {
    let nothing = match value {
        Value::Null => true,
        Value::Object(members) => members.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    if !nothing {
        *value = MARK.into();
    }
}

fn tokens(path: &str) -> Vec<String> {
    path.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect()
}

fn edit(value: &mut Value, path: &[String], then: &mut dyn FnMut(&mut Value)) {
    let Some((first, rest)) = path.split_first() else { return then(value) };
    match value {
        Value::Object(members) => {
            members.iter_mut().filter(|(key, _)| first == "*" || *key == first).for_each(|(_, v)| edit(v, rest, then));
        }
        Value::Array(items) => {
            let named = |index: usize| first == "*" || *first == index.to_string();
            items.iter_mut().enumerate().filter(|(index, _)| named(*index)).for_each(|(_, v)| edit(v, rest, then));
        }
        _ => {}
    }
}
