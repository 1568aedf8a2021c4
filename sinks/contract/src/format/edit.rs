//! A patch as people read it: which path, what it was, what it is.
//!
//! A patch alone has new values only. The old ones come from the state before it, if whoever shows it has that state;
//! where they are not known nothing is made up.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    raw::Raw,
    tree::{Tree, unescaped},
};

/// The old value of each operation of a patch, in order: none, or one.
pub type Was = Vec<Vec<Raw>>;

/// What is known of one side of an edit.
#[derive(Clone, Debug, PartialEq)]
pub enum Known {
    /// The value that is there.
    Value(Raw),
    /// That there is nothing.
    Nothing,
    /// Not what it is.
    Unknown,
}

impl From<Option<Raw>> for Known {
    fn from(value: Option<Raw>) -> Self {
        value.map_or(Self::Unknown, Self::Value)
    }
}

/// One operation of a patch.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// Where, as a JSON Pointer.
    pub path: String,
    /// What was there.
    pub old: Known,
    /// What is there now.
    pub new: Known,
}

#[derive(Deserialize)]
struct Operation<'a> {
    op: String,
    path: String,
    from: Option<String>,
    // As it is spelled: a tree of values would have limits, and would spell numbers anew.
    #[serde(borrow)]
    value: Option<&'a RawValue>,
}

/// The edits of an RFC 6902 patch. None if it cannot be read.
pub fn edits(patch: &[u8], was: Option<&Was>) -> Option<Vec<Edit>> {
    let operations: Vec<Operation<'_>> = serde_json::from_slice(patch).ok()?;
    let was = was.filter(|was| was.len() == operations.len());
    let mut edits = Vec::with_capacity(operations.len());
    for (index, Operation { op, path, from, value }) in operations.into_iter().enumerate() {
        let new = match op.as_str() {
            "test" => continue,
            "remove" => Known::Nothing,
            "move" | "copy" => Raw::of_text(&format!("{op} of {}", pointed(&from.unwrap_or_default()))).into(),
            _ => value.map(Raw::from).into(),
        };
        let old = match was.map(|was| was[index].first()) {
            Some(Some(value)) => Known::Value(value.clone()),
            Some(None) => Known::Nothing,
            // An `add` to a map may replace; to a list it never does. Most often there was nothing.
            None if op == "add" => Known::Nothing,
            None => Known::Unknown,
        };
        // What it was is hidden by what it is: a value that must not be told any more.
        let old = if old == new { Known::Unknown } else { old };
        edits.push(Edit { path, old, new });
    }
    Some(edits)
}

/// The old values of a patch's operations, from the object before it. Each operation sees what those before it have done.
/// None if the patch does not fit the object.
pub fn was(before: &[u8], patch: &[u8]) -> Option<Was> {
    let operations: Vec<Operation<'_>> = serde_json::from_slice(patch).ok()?;
    let mut object = Tree::Whole(serde_json::from_slice::<&RawValue>(before).ok()?.get());
    let mut was = Was::with_capacity(operations.len());
    for Operation { op, path, from, value } in operations {
        // What is added to a list moves the others aside.
        let in_list = path.rsplit_once('/').is_some_and(|(parent, _)| object.at(parent).is_some_and(Tree::is_list));
        let replaces = op != "add" || !in_list;
        let old = object.at(&path).filter(|_| replaces).and_then(|old| old.raw());
        let value = value.map(|value| Tree::Whole(value.get()));
        match op.as_str() {
            "test" => {}
            "remove" => drop(object.remove(&path)?),
            "replace" => *object.at(&path)? = value?,
            "add" => object.insert(&path, value?)?,
            "move" => {
                let moved = object.remove(&from?)?;
                object.insert(&path, moved)?;
            }
            "copy" => {
                let copied = object.at(&from?)?.clone();
                object.insert(&path, copied)?;
            }
            _ => return None,
        }
        was.push(old.into_iter().collect());
    }
    Some(was)
}

/// A JSON Pointer as people write it: `/spec/containers/0/image` is `spec.containers[0].image`.
pub fn pointed(pointer: &str) -> String {
    let mut text = String::with_capacity(pointer.len());
    for token in pointer.split('/').skip(1) {
        let token = unescaped(token);
        let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        if token.is_empty() || token == "-" || token.bytes().all(|c| c.is_ascii_digit()) || !token.chars().all(plain) {
            text.push_str(&format!("[{token}]"));
        } else {
            if !text.is_empty() {
                text.push('.');
            }
            text.push_str(&token);
        }
    }
    if text.is_empty() { "the whole object".into() } else { text }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pointer_reads_like_a_field() {
        assert_eq!(pointed("/spec/containers/0/image"), "spec.containers[0].image");
        assert_eq!(pointed("/metadata/annotations/a.b~1c~0d"), "metadata.annotations[a.b/c~d]");
        assert_eq!(pointed("/status/conditions/-"), "status.conditions[-]");
        assert_eq!(pointed(""), "the whole object");
    }

    #[test]
    fn old_values_are_those_that_each_operation_meets() {
        let before = json!({"spec": {"replicas": 2, "args": ["a", "b"], "gone": null}, "n": 1});
        let patch = json!([
            {"op": "replace", "path": "/spec/replicas", "value": 3},
            {"op": "add", "path": "/spec/args/0", "value": "z"},
            {"op": "replace", "path": "/spec/args/1", "value": "A"},
            {"op": "remove", "path": "/spec/args/2"},
            {"op": "add", "path": "/n", "value": 5},
            {"op": "remove", "path": "/spec/gone"},
            {"op": "add", "path": "/new", "value": true},
        ]);
        let (before, patch) = (before.to_string(), patch.to_string());
        let was = was(before.as_bytes(), patch.as_bytes()).unwrap();
        let values = json!([[2], [], ["a"], ["b"], [1], [null], []]);
        assert_eq!(serde_json::to_value(&was).unwrap(), values);
        let edits = edits(patch.as_bytes(), Some(&was)).unwrap();
        assert_eq!(edits[0].old, Raw::of_json("2".into()).into());
        assert_eq!(edits[1].old, Known::Nothing);
        assert_eq!(edits[3].new, Known::Nothing);
    }

    #[test]
    fn a_patch_that_does_not_fit_gives_no_old_values_and_without_them_nothing_is_made_up() {
        let patch = br#"[{"op":"replace","path":"/spec/replicas","value":3},{"op":"remove","path":"/a"}]"#;
        assert_eq!(was(b"{}", patch), None);
        assert_eq!(was(b"not json", patch), None);
        assert!(edits(patch, None).unwrap().iter().all(|edit| edit.old == Known::Unknown));
        assert_eq!(edits(b"{", None), None);
        assert!(edits(patch, Some(&vec![vec![]])).unwrap().iter().all(|edit| edit.old == Known::Unknown));
    }
}
