//! A patch leads from what was logged to what is, always.

use std::collections::BTreeSet;

use kubetide::change::{
    Observed,
    compare::{self, Detail, Meaning, View},
    scan,
};
use kubetide_sink::{Change, sample};
use proptest::{prelude::*, sample::Index};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use crate::{CORPUS, cleaner, row};

/// An object with this content. It is large, so that no patch of it is too large.
fn object(version: u64, generation: u64, content: &[(&str, &Value)]) -> Value {
    let metadata = json!({"name": "a", "uid": "u", "resourceVersion": version.to_string(), "generation": generation});
    let mut tree = json!({"kind": "Any", "apiVersion": "v1", "metadata": metadata, "pad": "x".repeat(100_000)});
    for (key, value) in content {
        match *key {
            "metadata" => tree["metadata"]["labels"] = (*value).clone(),
            key => tree[key] = (*value).clone(),
        }
    }
    tree
}

fn observed(text: &[u8]) -> Observed {
    scan::observe(&cleaner("any", &[], &[]), text).unwrap()
}

/// The update between two texts, if there is one.
fn update(before: &[u8], now: &[u8]) -> Option<Change> {
    let (before, now) = (observed(before), observed(now));
    match compare::present(&sample::stream("any", "Any"), 0, Some(&row(&before)), now, View::Watch, &Detail::default())
    {
        Meaning::Changes(mut drafts) => Some(drafts.remove(0).change),
        Meaning::Seen => None,
        Meaning::Nothing => panic!("a newer version was taken for an old one"),
    }
}

/// Without the two that have fields of their own.
fn comparable(mut tree: Value) -> Value {
    if let Some(metadata) = tree.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("generation");
    }
    tree
}

/// Checks that the patch from one to the other does that.
fn check(before: &[u8], now: &[u8]) -> Result<(), TestCaseError> {
    let tree = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap();
    let wanted = comparable(tree(now));
    let Some(change) = update(before, now) else {
        prop_assert_eq!(comparable(tree(before)), wanted, "a change was not seen");
        return Ok(());
    };
    #[derive(Deserialize)]
    struct Operation<'a> {
        path: String,
        #[serde(borrow)]
        value: Option<&'a RawValue>,
    }
    let patch = change.patch.expect("no patch");
    let operations: Vec<Operation<'_>> = serde_json::from_slice(&patch).unwrap();
    let text = std::str::from_utf8(now).unwrap();
    for Operation { value, .. } in &operations {
        prop_assert!(value.is_none_or(|value| text.contains(value.get())), "a value that is not in the object");
    }
    let mut patched = comparable(tree(before));
    let steps: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    json_patch::patch(&mut patched, &steps).expect("it cannot be applied");
    prop_assert_eq!(&patched, &wanted);
    let difference = change.difference.expect("no difference");
    let paths: BTreeSet<&str> = operations.iter().map(|operation| operation.path.as_str()).collect();
    prop_assert_eq!(difference.paths.iter().map(String::as_str).collect::<BTreeSet<_>>(), paths);
    prop_assert_eq!(difference.paths.len(), difference.paths.iter().collect::<BTreeSet<_>>().len());
    Ok(())
}

/// Trees of few words, so that two of them have much in common.
fn tree() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..4_i32).prop_map(Value::from),
        "[ab\"\\\\é]{0,2}".prop_map(Value::from),
    ];
    let key = prop::sample::select(vec!["a", "b", "name", "type", "~", "/", "", "é\"", "0", "metadata"]);
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..5)
                .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

/// A tree as nobody would write it who had parsed it first: numbers, escapes and spaces in other ways, each by a bit of `how`.
fn spelled(value: &Value, how: &mut u64) -> String {
    let mut odd = || {
        *how = how.rotate_right(1);
        *how & 1 == 1
    };
    let space = if odd() { " " } else { "" };
    match value {
        Value::Number(number) if odd() => format!("{number}.50e1"),
        Value::String(text) if odd() => {
            let units = text.encode_utf16().map(|unit| format!("\\u{unit:04X}"));
            format!("\"{}\"", units.collect::<String>())
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| spelled(item, how)).collect();
            format!("[{space}{}]", items.join(","))
        }
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                let key = Value::from(key.as_str()).to_string();
                format!("{key}{space}:{}", spelled(value, how))
            };
            let members: Vec<String> = members.iter().map(member).collect();
            format!("{{{}{space}}}", members.join(","))
        }
        plain => plain.to_string(),
    }
}

/// Every value of a tree, by its path.
fn places(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| {
            places(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), found);
        }),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| places(value, format!("{path}/{index}"), found));
        }
        _ => {}
    }
    found.push(path);
}

/// Something done to an object of the corpus.
#[derive(Clone, Debug)]
enum Edit {
    Set(Index, Value),
    Remove(Index),
    /// An item or member is there once more.
    Repeat(Index, Index),
    Reverse(Index),
}

fn edit() -> impl Strategy<Value = Edit> {
    let index = any::<Index>;
    prop_oneof![
        (index(), tree()).prop_map(|(at, value)| Edit::Set(at, value)),
        index().prop_map(Edit::Remove),
        (index(), index()).prop_map(|(at, to)| Edit::Repeat(at, to)),
        index().prop_map(Edit::Reverse),
    ]
}

fn apply(tree: &mut Value, edit: &Edit) {
    let mut all = Vec::new();
    places(tree, String::new(), &mut all);
    all.retain(|path| {
        path.matches('/').count() > 1 && (!path.starts_with("/metadata") || path.starts_with("/metadata/labels/"))
    });
    let (Edit::Set(at, _) | Edit::Remove(at) | Edit::Repeat(at, _) | Edit::Reverse(at)) = edit;
    if all.is_empty() {
        return;
    }
    let path = &all[at.index(all.len())];
    let (parent, last) = path.rsplit_once('/').unwrap();
    match edit {
        Edit::Set(_, value) => *tree.pointer_mut(path).unwrap() = value.clone(),
        Edit::Remove(_) => match tree.pointer_mut(parent).unwrap() {
            Value::Array(items) => drop(items.remove(last.parse().unwrap())),
            Value::Object(members) => drop(members.remove(&last.replace("~1", "/").replace("~0", "~"))),
            _ => unreachable!("a value in something that holds none"),
        },
        Edit::Repeat(_, to) => {
            let value = tree.pointer(path).unwrap().clone();
            match tree.pointer_mut(parent).unwrap() {
                Value::Array(items) => items.insert(to.index(items.len() + 1), value),
                other => other["again"] = value,
            }
        }
        Edit::Reverse(_) => {
            if let Some(items) = tree.pointer_mut(path).unwrap().as_array_mut() {
                items.reverse();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_patch_leads_from_any_object_to_any_other(parts in prop::array::uniform3((tree(), tree())), generation in 1..3_u64) {
        let keys = ["spec", "status", "metadata"];
        let side = |version, generation, side: fn(&(Value, Value)) -> &Value| {
            let content: Vec<(&str, &Value)> = keys.into_iter().zip(parts.iter().map(side)).collect();
            object(version, generation, &content).to_string()
        };
        let (before, now) = (side(1, 1, |(before, _)| before), side(2, generation, |(_, now)| now));
        check(before.as_bytes(), now.as_bytes())?;
    }

    #[test]
    fn the_patch_has_the_values_as_they_are_spelled(before in tree(), now in tree(), mut how in any::<[u64; 2]>()) {
        let texts = [(1, &before, 0), (2, &now, 1)].map(|(version, spec, side)| {
            let frame = object(version, 1, &[("spec", &"SPEC".into())]).to_string();
            frame.replace("\"SPEC\"", &spelled(spec, &mut how[side]))
        });
        check(texts[0].as_bytes(), texts[1].as_bytes())?;
    }

    #[test]
    fn the_patch_leads_from_a_real_object_to_an_edited_one(file in any::<Index>(), edits in prop::collection::vec(edit(), 1..5)) {
        let (_, text) = &CORPUS[file.index(CORPUS.len())];
        let mut before: Value = serde_json::from_slice(text).unwrap();
        before["pad"] = "x".repeat(100_000).into();
        before["metadata"]["resourceVersion"] = "1".into();
        before["metadata"].as_object_mut().unwrap().remove("managedFields");
        if let Some(annotations) = before["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        let mut now = before.clone();
        edits.iter().for_each(|edit| apply(&mut now, edit));
        now["metadata"]["resourceVersion"] = "2".into();
        check(before.to_string().as_bytes(), now.to_string().as_bytes())?;
    }
}

/// The patch between two values of `spec`, as a tree.
fn patch(before: &Value, now: &Value) -> Value {
    let [before, now] =
        [(1, before), (2, now)].map(|(version, spec)| object(version, 1, &[("spec", spec)]).to_string());
    check(before.as_bytes(), now.as_bytes()).unwrap();
    serde_json::from_slice(&update(before.as_bytes(), now.as_bytes()).unwrap().patch.unwrap()).unwrap()
}

#[test]
fn an_item_at_the_head_is_one_small_step() {
    let item = |name: &str, value: i32| json!({"name": name, "value": value});
    let old = json!([item("a", 1), item("b", 2), item("c", 3)]);
    let inserted = json!([item("new", 0), item("a", 1), item("b", 2), item("c", 3)]);
    assert_eq!(patch(&old, &inserted), json!([{"op": "add", "path": "/spec/0", "value": item("new", 0)}]));
    // Also where another item changes at the same time, and where one leaves at the other end.
    let changed = json!([item("new", 0), item("a", 1), item("b", 9)]);
    assert_eq!(
        patch(&old, &changed),
        json!([
            {"op": "add", "path": "/spec/0", "value": item("new", 0)},
            {"op": "replace", "path": "/spec/2/value", "value": 9},
            {"op": "remove", "path": "/spec/3"},
        ])
    );
    assert_eq!(
        patch(&json!([1, 2, 3, 4]), &json!([1, 4])),
        json!([{"op": "remove", "path": "/spec/1"}, {"op": "remove", "path": "/spec/1"}])
    );
    let numbers: Vec<i32> = (0..200).collect();
    let reversed: Vec<i32> = (0..200).rev().collect();
    assert_eq!(patch(&json!(numbers), &json!(reversed)).as_array().unwrap().len(), 200, "beyond the table, by place");
}

#[test]
fn in_a_hundred_items_one_that_comes_and_one_that_goes_are_two_steps() {
    let endpoint = |at: u32| json!({"addresses": [format!("10.0.0.{at}")], "conditions": {"ready": true}});
    let (old, new): (Vec<Value>, Vec<Value>) = ((1..=100).map(endpoint).collect(), (0..100).map(endpoint).collect());
    let expected =
        json!([{"op": "add", "path": "/spec/0", "value": endpoint(0)}, {"op": "remove", "path": "/spec/100"}]);
    assert_eq!(patch(&json!(old), &json!(new)), expected);
}

#[test]
fn an_item_without_a_name_is_told_by_what_differs_in_it_or_whole_where_that_is_shorter() {
    let item = |at: u32, last: &str| json!({"addresses": ["10.0.0.1"], "at": at, "last": last});
    assert_eq!(
        patch(&json!([item(1, "a"), item(2, "a")]), &json!([item(1, "b"), item(2, "b")])),
        json!([
            {"op": "replace", "path": "/spec/0/last", "value": "b"},
            {"op": "replace", "path": "/spec/1/last", "value": "b"},
        ])
    );
    assert_eq!(
        patch(&json!([{"a": 1, "b": 2, "c": 3}, [1, 2, 3]]), &json!([{"d": 1}, [4, 5, 6]])),
        json!([
            {"op": "replace", "path": "/spec/0", "value": {"d": 1}},
            {"op": "replace", "path": "/spec/1", "value": [4, 5, 6]},
        ])
    );
}

#[test]
fn a_patch_repeats_the_spelling_of_the_object() {
    let text = |version: u32, spec: &str| {
        format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"{version}"}},"spec":{spec},"pad":"{}"}}"#,
            "x".repeat(300)
        )
    };
    let now = text(2, r#"{"a":1.50,"b":[1e3, -0],"c":"\u0041\/","d":{ "e" : 1.0 }}"#);
    let change = update(text(1, r#"{"a":1,"c":"B"}"#).as_bytes(), now.as_bytes()).unwrap();
    let expected = [
        r#"[{"op":"replace","path":"/spec/a","value":1.50},"#,
        r#"{"op":"replace","path":"/spec/c","value":"\u0041\/"},"#,
        r#"{"op":"add","path":"/spec/b","value":[1e3, -0]},"#,
        r#"{"op":"add","path":"/spec/d","value":{ "e" : 1.0 }}]"#,
    ];
    assert_eq!(String::from_utf8_lossy(&change.patch.unwrap()), expected.concat());
}

#[test]
fn a_repeated_key_replaces_its_object_whole() {
    let text = |version: u32, spec: &str| {
        format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"{version}"}},"spec":{spec},"pad":"{}"}}"#,
            "x".repeat(200)
        )
    };
    let (before, now) = (text(1, r#"{"a":1,"a":2,"b":{"c":1}}"#), text(2, r#"{"a":3,"\u0061":2,"b":{"c":1}}"#));
    let change = update(before.as_bytes(), now.as_bytes()).unwrap();
    assert_eq!(
        change.patch.unwrap(),
        br#"[{"op":"replace","path":"/spec","value":{"a":3,"\u0061":2,"b":{"c":1}}}]"#.as_slice()
    );
}

#[test]
fn a_patch_that_is_larger_than_the_object_is_left_out_and_the_paths_are_folded() {
    let text = |version: u32, value: u32| {
        let items: Vec<String> = (0..300).map(|at| format!(r#"{{"a":{at},"b":{}}}"#, value + at)).collect();
        format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"{version}"}},"spec":[{}],"data":{{"x":{value}}}}}"#,
            items.join(",")
        )
    };
    let change = update(text(1, 1).as_bytes(), text(2, 2).as_bytes()).unwrap();
    let difference = change.difference.unwrap();
    assert!(change.patch.is_none());
    assert_eq!(difference.paths.len(), 301, "they fit");
    let many = |version: u32, value: u32| {
        let items = vec![value.to_string(); 3000].join(",");
        format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"{version}"}},"spec":[{items}],"data":{{"x":{value}}}}}"#
        )
    };
    let difference = update(many(1, 1).as_bytes(), many(2, 2).as_bytes()).unwrap().difference.unwrap();
    assert_eq!(difference.paths, ["/spec", "/data"]);
}
