//! The scanner against a real parser, and against those who would hide something from it.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::change::{Cleaning, Pattern, RedactKey, TypeMeta};
use kubetide_sink::sample;

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn cleaner(resource: &str, kind: &str, drop: &[&str], redact: &[&str]) -> Cleaner {
    let patterns = |paths: &[&str]| paths.iter().map(|path| Pattern::parse(path).unwrap()).collect();
    let cleaning =
        Cleaning { drop: patterns(drop), redact: patterns(redact), key: RedactKey::new(b"a key for tests only") };
    let types = TypeMeta { kind: kind.into(), api_version: "v1".into() };
    cleaning.cleaner(&sample::stream(resource, kind), types)
}

fn pods() -> Cleaner {
    cleaner("pods", "Pod", &[], &[])
}

fn cleaned(text: &str) -> String {
    String::from_utf8(observe(&pods(), text.as_bytes()).unwrap().object.unwrap().to_vec()).unwrap()
}

fn problem(text: &str) -> String {
    observe(&pods(), text.as_bytes()).unwrap().object.unwrap_err()
}

#[test]
fn identity_is_found_and_the_rest_is_kept_byte_for_byte() {
    let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","generation":3,"x":1.50},"spec":{"e":"\u00e9\/", "n":[1e3,-0.5,true,null]}}"#;
    let observed = observe(&pods(), text.as_bytes()).unwrap();
    assert_eq!((observed.key.namespace.as_str(), observed.key.name.as_str()), ("n", "a"));
    assert_eq!((observed.uid.as_str(), observed.version.as_str(), observed.generation), ("u", "7", Some(3)));
    assert_eq!(observed.object.unwrap(), text.as_bytes());
}

#[test]
fn a_listed_item_gets_the_bytes_that_a_watch_would_show() {
    let listed = r#"{"metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#;
    let watched = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#;
    assert_eq!(cleaned(listed), cleaned(watched));
    assert_eq!(cleaned(listed), watched);
}

#[test]
fn managed_fields_and_last_applied_are_cut_wherever_they_stand() {
    let managed = r#""managedFields":[{"manager":"m","x":{"a":[1,"]}"]}}]"#;
    let applied = r#""kubectl.kubernetes.io/last-applied-configuration":"{\"a\":1}""#;
    let escaped = r#""managed\u0046ields":[]"#;
    let id = r#""name":"a","resourceVersion":"7""#;
    for (metadata, expected) in [
        (format!("{{{managed},{id}}}"), format!("{{{id}}}")),
        (format!("{{{id},{managed}}}"), format!("{{{id}}}")),
        (format!("{{{id}, {managed} ,\"uid\":\"u\"}}"), format!("{{{id} ,\"uid\":\"u\"}}")),
        (format!("{{{id},{escaped}}}"), format!("{{{id}}}")),
        (format!("{{\"annotations\":{{{applied}}},{id}}}"), format!("{{\"annotations\":{{}},{id}}}")),
        (
            format!("{{\"annotations\":{{{applied},\"k\":\"v\"}},{managed},{id}}}"),
            format!("{{\"annotations\":{{\"k\":\"v\"}},{id}}}"),
        ),
        (format!("{{\"annotations\":null,{id}}}"), format!("{{\"annotations\":null,{id}}}")),
    ] {
        let text = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata}}}"#);
        assert_eq!(cleaned(&text), format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{expected}}}"#));
    }
}

#[test]
fn what_cannot_be_walked_keeps_its_identity_and_says_why() {
    let id = r#""metadata":{"name":"a","resourceVersion":"7"}"#;
    let deep = format!("{}{}", "[".repeat(600), "]".repeat(600));
    assert!(problem(&format!(r#"{{{id},"spec":{deep}}}"#)).contains("512"));
    assert!(problem(&format!(r#"{{{id},"metadata":{{}}}}"#)).contains("twice"));
    assert!(problem(&format!(r#"{{{id},"spec":{{"a":01}}}}"#)).contains("leading zero"));
    assert!(problem(&format!("{{{id},\"spec\":\"a\nb\"}}")).contains("control character"));
    assert!(problem(&format!("{{{id}}} x")).contains("behind the object"));
    assert!(observe(&pods(), br#"{"metadata":{"namespace":"a"}}"#).is_err());
    assert!(observe(&pods(), b"[]").is_err());
}

/// More than may be.
fn deep() -> String {
    format!("{}1{}", r#"{"]\"":["#.repeat(300), "]}".repeat(300))
}

/// Who it is: namespace, name, uid and version.
fn known(text: &str) -> Option<[String; 4]> {
    let observed = observe(&pods(), text.as_bytes()).ok()?;
    assert!(observed.object.is_err(), "{text}");
    Some([observed.key.namespace, observed.key.name, observed.uid, observed.version.to_string()])
}

/// As an API server writes the metadata of a custom resource.
const SORTED: &str = r#"{"labels":{"name":"x"},"name":"a","namespace":"n","resourceVersion":"7","uid":"u"}"#;

#[test]
fn an_object_that_is_too_deep_before_its_identity_is_still_known() {
    let (deep, id) = (deep(), ["n", "a", "u", "7"].map(String::from));
    for text in [
        format!(r#"{{"apiVersion":"v1","config":{deep},"kind":"Pod","metadata":{SORTED}}}"#),
        format!(r#"{{"a":"\ud800","metadata":{SORTED}}}"#),
        format!(r#"{{"spec":{{"metadata":{{"name":"no"}}}}, "a" : {deep} , "met\u0061data" : {SORTED} , "b":1}}"#),
        format!(r#"{{"a":{deep},"metadata":{SORTED},"metadata":{SORTED}}}"#),
        // Too deep within: what comes behind that counts.
        format!(r#"{{"metadata":{{"annotations":{deep},{}}}"#, &SORTED[1..]),
        format!(r#"{{"metadata":{{"name":"a","resourceVersion":"7","a":{deep},"namespace":"n","uid":"u"}}}}"#),
        // Cut off, in both orders.
        format!(r#"{{"config":{deep},"metadata":{SORTED},"spec":{{"a":"#),
        r#"{"metadata":{"labels":{},"name":"a","namespace":"n","resourceVersion":"7","uid":"u","x":["#.into(),
        r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","managedFields":["#.into(),
    ] {
        assert_eq!(known(&text), Some(id.clone()), "{text:.90}");
    }
    let namespaceless = format!(r#"{{"a":{deep},"metadata":{{"name":"a","namespace":null,"resourceVersion":"7"}}}}"#);
    assert_eq!(known(&namespaceless), Some(["", "a", "/a", "7"].map(String::from)));
}

#[test]
fn an_identity_that_can_be_read_in_two_ways_or_is_cut_off_is_none() {
    let deep = deep();
    for text in [
        format!(r#"{{"a":{deep},"metadata":{SORTED},"metadata":{{"name":"b"}}}}"#),
        format!(r#"{{"a":{deep},"metadata":{{"resourceVersion":"7","name":"a"}},"metadata":{SORTED}}}"#),
        r#"{"metadata":{"name":"a","resourceVersion":"7","n\u0061me":"b"},"a":1}"#.into(),
        format!(r#"{{"a":{deep},"metadata":{{"name":"a","resourceVersion":"7","name":"b"}}}}"#),
        format!(r#"{{"a":{deep},"metadata":{{"name":["a"],"resourceVersion":"7"}}}}"#),
        format!(r#"{{"a":{deep},"metadata":null}}"#),
        format!(r#"{{"a":{deep},"b" "metadata":{SORTED}}}"#),
        // The namespace may be in what is missing.
        r#"{"metadata":{"name":"a","resourceVersion":"7","x":"#.into(),
        r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7"#.into(),
        r#"{"a":"#.into(),
        "{".into(),
    ] {
        assert_eq!(known(&text), None, "{text:.90}");
    }
}

#[test]
fn managed_fields_that_are_too_deep_are_cut_like_others() {
    let (deep, id) = (deep(), r#""name":"a","resourceVersion":"7""#);
    let entry = |manager: &str, fields: &str| format!(r#"{{"fieldsV1":{fields},"manager":"{manager}"}}"#);
    for managed in [deep.clone(), format!("[{},{}]", entry("m", "{}"), entry("n", &deep))] {
        let text = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"managedFields":{managed},{id}}},"spec":["\u0041"]}}"#
        );
        let observed = observe(&pods(), text.as_bytes()).unwrap();
        assert_eq!(observed.managed.0.len(), 1, "it still tells one from another");
        let kept = String::from_utf8(observed.object.unwrap().to_vec()).unwrap();
        assert_eq!(kept, format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{{id}}},"spec":["\u0041"]}}"#));
    }
    // What is behind them is still looked at.
    assert!(problem(&format!(r#"{{"metadata":{{"managedFields":{deep},{id}}},"spec":{deep}}}"#)).contains("512"));
    assert!(problem(&format!(r#"{{"metadata":{{"managedFields":{deep},{id}}},"spec":01}}"#)).contains("leading zero"));
}

#[test]
fn null_and_empty_parts_of_an_identity_are_as_if_they_were_not_there() {
    let of = |metadata: &str| {
        let observed = observe(&pods(), format!(r#"{{"metadata":{{{metadata}}}}}"#).as_bytes()).ok()?;
        assert!(observed.object.is_ok(), "{metadata}");
        Some((observed.key.namespace, observed.uid, observed.generation))
    };
    let id = r#""name":"a","resourceVersion":"7""#;
    let nobody = Some((String::new(), "/a".to_owned(), None));
    for absent in [r#""generation":null"#, r#""namespace":null"#, r#""namespace":"""#, r#""uid":null"#, r#""uid":"""#] {
        assert_eq!(of(&format!("{id},{absent}")), nobody, "{absent}");
    }
    assert_eq!(of(&format!(r#"{id},"namespace":"n","uid":"""#)), Some(("n".into(), "n/a".into(), None)));
    for none in [
        r#""name":"","resourceVersion":"7""#,
        r#""name":"a","resourceVersion":"""#,
        r#""name":null,"resourceVersion":"7""#,
    ] {
        assert_eq!(of(none), None, "{none}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::hash_map(".*", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn cleaning_equals_what_a_real_parser_would_remove(spec in any_json(), fields in any_json(), labels in any_json()) {
        let mut value = json!({
            "kind": "Pod", "apiVersion": "v1", "spec": spec,
            "metadata": {"a": labels, "name": "x", "resourceVersion": "1", "managedFields": fields,
                         "annotations": {LAST_APPLIED: "{}", "other": "y"}},
        });
        let text = value.to_string();
        // The parser does not read every float back to the last digit: hold both sides to what it reads.
        value = serde_json::from_str(&text).unwrap();
        let scanned: Value = serde_json::from_str(&cleaned(&text)).unwrap();
        value["metadata"].as_object_mut().unwrap().remove("managedFields");
        value["metadata"]["annotations"].as_object_mut().unwrap().remove(LAST_APPLIED);
        prop_assert_eq!(scanned, value);
    }

    #[test]
    fn bad_utf8_is_never_called_clean(
        texts in prop::collection::vec("[a-z\u{e9}\u{1f600}]{0,90}", 0..4),
        zeros in prop_oneof![Just(0_usize), 0..150_usize],
        last in "[a-z\u{e9}]{0,20}",
        from_end in 0_usize..80,
        at in any::<prop::sample::Index>(),
        with in prop_oneof![Just(None), any::<u8>().prop_map(Some)],
        near_end in any::<bool>(),
    ) {
        let members: String = texts.iter().map(|text| format!(r#","":"{text}","n":{{}}"#)).collect();
        let digits = "0".repeat(zeros);
        let identity = r#"{"metadata":{"name":"a","resourceVersion":"1"}"#;
        let mut text = format!(r#"{identity}{members},"d":1{digits},"last":"{last}"}}"#).into_bytes();
        let behind = identity.len();
        let at = behind + at.index(text.len() - behind);
        let at = if near_end { text.len().saturating_sub(from_end + 1).max(behind) } else { at };
        if let Some(with) = with {
            text[at] = with;
        }
        let clean = observe(&pods(), &text).is_ok_and(|observed| observed.object.is_ok());
        // A parser takes no number that is too large for it.
        let parsed = std::str::from_utf8(&text).is_ok_and(|text| serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok());
        prop_assert_eq!(clean, parsed, "{}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn what_a_real_parser_refuses_is_never_called_clean(text in r#"[\[\]{}",:0-9eE.+\-\\ tfnu"a-c]{0,40}"#) {
        let whole = format!(r#"{{"metadata":{{"name":"a","resourceVersion":"1"}},"spec":{text}}}"#);
        let clean = observe(&pods(), whole.as_bytes()).is_ok_and(|observed| observed.object.is_ok());
        prop_assert!(!clean || serde_json::from_str::<Value>(&whole).is_ok(), "{}", whole);
    }
}
