//! What is to be redacted never survives, however it is spelled.

use kubetide::change::scan;
use proptest::prelude::*;

use crate::cleaner;

const CANARY: &str = "c4n4ry-c4n4ry";

/// A key with some of its characters escaped.
fn spelled(key: &str, escaped: u32) -> String {
    let spell = |(at, c): (usize, char)| {
        if escaped >> (at % 32) & 1 == 1 { format!("\\u{:04x}", c as u32) } else { c.to_string() }
    };
    key.chars().enumerate().map(spell).collect()
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(format!("\"{CANARY}\"")),
        Just(format!("[\"{CANARY}\"]")),
        Just(format!("{{\"x\":{{\"y\":\"{CANARY}\"}}}}")),
        Just(format!("{{\"{CANARY}\":1}}")),
    ]
}

proptest! {
    #[test]
    fn a_canary_under_a_redacted_path_never_survives(
        part in prop::sample::select(vec!["data", "stringData"]),
        escaped in any::<[u32; 6]>(), value in value(), twice in any::<bool>(), whole in any::<bool>(),
        space in "[ \t\n]{0,2}", identity_last in any::<bool>(),
    ) {
        let metadata = format!(
            r#""{}":{{"name":"a","resourceVersion":"1","{}":{{"{}":"{CANARY}","{}":"{CANARY}","{}":"{CANARY}"}}}}"#,
            spelled("metadata", escaped[3]),
            spelled("annotations", escaped[4]),
            spelled("kapp.k14s.io/original", escaped[0]),
            spelled("kubectl.kubernetes.io/last-applied-configuration", escaped[1]),
            spelled("openshift.io/token-secret.value", escaped[5]),
        );
        let inner = if whole && !value.starts_with('{') { value.clone() } else { format!("{{\"k\":{value},{space}\"k\":{value}}}") };
        let data = format!(r#"{space}"{}"{space}:{space}{inner}"#, spelled(part, escaped[2]));
        let again = if twice { format!(",{data}") } else { String::new() };
        let text = if identity_last { format!("{{{data}{again},{metadata}}}") } else { format!("{{{metadata},{data}{again}}}") };
        let observed = scan::observe(&cleaner("secrets", &[], &[]), text.as_bytes()).unwrap();
        prop_assert_eq!(observed.object.is_err(), twice, "{}", text);
        let kept = observed.object.map(|object| String::from_utf8(object.to_vec()).unwrap()).unwrap_or_else(|problem| problem);
        prop_assert!(!kept.contains(CANARY), "{} gave {}", text, kept);
    }

    #[test]
    fn a_canary_under_a_configured_path_never_survives(escaped in any::<[u32; 4]>(), value in value(), items in 1_usize..4) {
        let [spec, containers, env, key] = escaped;
        let item = format!(r#"{{"name":"x","{}":{value}}}"#, spelled("value", key));
        let list = format!(r#"{{"{}":[{}]}}"#, spelled("env", env), vec![item; items].join(","));
        let text = format!(
            r#"{{"metadata":{{"name":"a","resourceVersion":"1"}},"{}":{{"{}":[{{}},{list}]}}}}"#,
            spelled("spec", spec), spelled("containers", containers),
        );
        let cleaner = cleaner("pods", &[], &["/spec/containers/*/env/*/value"]);
        let kept = scan::observe(&cleaner, text.as_bytes()).unwrap().object.unwrap();
        let kept = String::from_utf8(kept.to_vec()).unwrap();
        prop_assert!(!kept.contains(CANARY) && kept.matches("redacted:").count() == items, "{}", kept);
    }
}

#[test]
fn equal_secrets_have_other_marks_elsewhere_and_a_rotated_one_has_another() {
    let cleaner = cleaner("secrets", &[], &[]);
    let marks = |uid: &str, value: &str| {
        let text = format!(
            r#"{{"data":{{"a":"{value}","b":"{value}"}},"metadata":{{"name":"s","uid":"{uid}","resourceVersion":"1"}}}}"#
        );
        let object = scan::observe(&cleaner, text.as_bytes()).unwrap().object.unwrap();
        let tree: serde_json::Value = serde_json::from_slice(&object).unwrap();
        ["a", "b"].map(|key| tree["data"][key].as_str().unwrap().to_owned())
    };
    let all = [marks("u", "x"), marks("u", "y"), marks("v", "x")].concat();
    let different: std::collections::HashSet<&String> = all.iter().collect();
    assert_eq!(different.len(), 6, "{all:?}");
    assert!(all.iter().all(|mark| mark.len() == 25 && mark.starts_with("redacted:")), "{all:?}");
    assert_eq!(marks("u", "x"), marks("u", "x"));
    assert_eq!(marks("u", "x"), marks("u", "\\u0078"), "the text counts, not its spelling");
}

#[test]
fn releases_of_helm_are_redacted_in_config_maps_and_other_releases_are_not() {
    let cleaner = cleaner("configmaps", &[], &[]);
    let kept = |name: &str| {
        let text = format!(
            r#"{{"data":{{"release":"{CANARY}","x":"y"}},"metadata":{{"name":"{name}","resourceVersion":"1"}}}}"#
        );
        String::from_utf8(scan::observe(&cleaner, text.as_bytes()).unwrap().object.unwrap().to_vec()).unwrap()
    };
    assert!(!kept("sh.helm.release.v1.web.v1").contains(CANARY));
    assert!(kept("sh.helm.release.v1.web.v1").contains(r#""x":"y""#));
    assert!(kept("web").contains(CANARY));
}

#[test]
fn copies_of_an_object_in_its_annotations_are_redacted_where_anything_of_it_is() {
    let copies = ["kapp.k14s.io/original", "kapp.k14s.io/original-diff", "objectset.rio.cattle.io/applied"];
    let kept = |redact: &[&str]| {
        let annotations = copies.map(|key| format!(r#""{key}":"{{{CANARY}}}""#)).join(",");
        let text =
            format!(r#"{{"metadata":{{"name":"a","resourceVersion":"1","annotations":{{{annotations},"b":"c"}}}}}}"#);
        let object = scan::observe(&cleaner("pods", &[], redact), text.as_bytes()).unwrap().object.unwrap();
        String::from_utf8(object.to_vec()).unwrap()
    };
    let redacted = kept(&["/spec/containers/*/env/*/value"]);
    assert!(!redacted.contains(CANARY) && redacted.contains(r#""b":"c""#), "{redacted}");
    assert_eq!(redacted.matches("redacted:").count(), copies.len(), "{redacted}");
    assert_eq!(kept(&[]).matches(CANARY).count(), copies.len(), "nothing is secret there");
}

#[test]
fn copies_that_unknown_tools_keep_are_redacted_as_well() {
    let kept = |resource: &str, redact: &[&str], value: &str| {
        let text = format!(
            r#"{{"metadata":{{"annotations":{{"tool.example.com/copy":{value},"note":"a: plain one"}},"name":"a","resourceVersion":"1"}}}}"#
        );
        let object = scan::observe(&cleaner(resource, &[], redact), text.as_bytes()).unwrap().object.unwrap();
        String::from_utf8(object.to_vec()).unwrap()
    };
    let json = format!(r#""{{\"spec\":{{\"a\":\"{CANARY}\"}}}}""#);
    let yaml = format!(r#""kind: A\nspec:\n  a: {CANARY}\n""#);
    for copy in [json, yaml] {
        for (resource, redact) in [("secrets", &[][..]), ("pods", &["/spec/a"][..])] {
            let kept = kept(resource, redact, &copy);
            assert!(!kept.contains(CANARY) && kept.contains("a: plain one"), "{resource}: {kept}");
        }
        assert!(kept("pods", &[], &copy).contains(CANARY), "nothing is secret there");
    }
    // Of what is secret as a whole, whatever may have a structure.
    for text in [format!(r#""{{data: {{a: {CANARY}}}}}""#), format!(r#""first\n{CANARY}""#), format!(r#"["{CANARY}"]"#)]
    {
        assert!(!kept("secrets", &[], &text).contains(CANARY), "{text}");
        assert!(kept("pods", &["/spec/a"], &text).contains(CANARY), "{text}");
    }
}

#[test]
fn the_token_in_an_annotation_of_a_secret_is_redacted_also_where_there_is_nothing_but_metadata() {
    let text = format!(
        r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"name":"a","resourceVersion":"1","annotations":{{"openshift.io/token-secret.name":"b","openshift.io/token-secret.value":"{CANARY}"}}}}}}"#
    );
    let kept = scan::observe(&cleaner("secrets", &[], &[]), text.as_bytes()).unwrap().object.unwrap();
    let kept = String::from_utf8(kept.to_vec()).unwrap();
    assert!(!kept.contains(CANARY) && kept.contains(r#""openshift.io/token-secret.name":"b""#), "{kept}");
}

#[test]
fn null_and_what_is_empty_have_nothing_to_hide() {
    let text =
        br#"{"metadata":{"name":"s","resourceVersion":"1"},"data":{"a":null,"b":{},"c":[ ],"d":""},"stringData":null}"#;
    let kept = scan::observe(&cleaner("secrets", &[], &[]), text).unwrap().object.unwrap();
    let kept = String::from_utf8(kept.to_vec()).unwrap();
    assert!(kept.contains(r#""data":{"a":null,"b":{},"c":[ ],"d":"redacted:"#), "{kept}");
    assert!(kept.ends_with(r#""stringData":null}"#), "{kept}");
}
