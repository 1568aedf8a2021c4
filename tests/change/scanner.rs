//! The scanner against a real parser.

use std::{borrow::Cow, collections::HashMap};

use kubetide::change::scan;
use proptest::{prelude::*, sample::Index};
use serde::de::IgnoredAny;
use serde_json::{Value, value::RawValue};

use crate::{CORPUS, cleaner, model};

const DROP: [&str; 4] = ["/status/conditions/0", "/spec/containers/*/env", "/metadata/labels/*", "/data/a~1b"];
const REDACT: [&str; 3] = ["/spec/template/spec/containers/*/image", "/status/*/0/type", "/spec/n/*"];

/// Checks one text; whether it was called clean.
fn check(text: &[u8], resource: &str) -> Result<bool, TestCaseError> {
    let Ok(observed) = scan::observe(&cleaner(resource, &DROP, &REDACT), text) else { return Ok(false) };
    let Ok(object) = observed.object else { return Ok(false) };
    prop_assert!(serde_json::from_slice::<IgnoredAny>(text).is_ok(), "called clean: {}", text.escape_ascii());
    // A parser that makes numbers of numbers cannot hold all of them.
    if let Ok(tree) = serde_json::from_slice::<Value>(text) {
        let scanned: Value = serde_json::from_slice(&object).expect("what was clean is no JSON any more");
        let expected = model::cleaned(tree, resource == "secrets", &DROP, &REDACT);
        prop_assert_eq!(model::unmarked(scanned), expected, "{}", text.escape_ascii());
    }
    Ok(true)
}

#[test]
fn every_object_of_the_corpus_is_cleaned_as_a_real_parser_would() {
    for (name, text) in CORPUS.iter() {
        for resource in ["pods", "secrets"] {
            assert!(check(text, resource).unwrap(), "{name} is not clean");
        }
    }
}

/// The text without the member whose value is at this span, and without the comma that goes with it.
fn without(text: &str, value: &str) -> String {
    let value_at = value.as_ptr() as usize - text.as_ptr() as usize;
    let key_ends = text[..value_at].trim_end().trim_end_matches(':').trim_end().len();
    let key_at = text[..key_ends - 1].rfind('"').unwrap();
    let (head, tail) = (&text[..key_at], &text[value_at + value.len()..]);
    if let Some(head) = head.trim_end().strip_suffix(',') {
        [head.trim_end(), tail].concat()
    } else {
        let tail = tail.trim_start();
        [head, tail.strip_prefix(',').map_or(tail, str::trim_start)].concat()
    }
}

/// What is cut out of every object, one after the other, found by a real parser.
fn cut_out(text: &str) -> Option<&str> {
    type Members<'a> = HashMap<Cow<'a, str>, &'a RawValue>;
    let members = |text| serde_json::from_str::<Members<'_>>(text).unwrap();
    let metadata = members(members(text)["metadata"].get());
    let annotations = metadata.get("annotations").map(|annotations| members(annotations.get()));
    let last_applied = annotations.and_then(|all| all.get("kubectl.kubernetes.io/last-applied-configuration").copied());
    metadata.get("managedFields").copied().or(last_applied).map(RawValue::get)
}

#[test]
fn what_no_rule_names_is_kept_byte_for_byte() {
    for (name, text) in CORPUS.iter() {
        let mut expected = std::str::from_utf8(text).unwrap().trim().to_owned();
        while let Some(value) = cut_out(&expected) {
            expected = without(&expected, value);
        }
        if !expected.contains("\"kind\"") {
            expected.insert_str(1, r#""kind":"Any","apiVersion":"v1","#);
        }
        let kept = scan::observe(&cleaner("any", &[], &[]), text).unwrap().object.unwrap();
        assert_eq!(String::from_utf8_lossy(&kept), expected, "{name}");
    }
}

/// Damage to a text.
#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Set(Index, u8),
    Cut(Index, Index),
    /// A piece of another file at some place.
    Splice(Index, Index, Index, Index),
    Truncate(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let index = any::<Index>;
    prop_oneof![
        (index(), 0_u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        (index(), prop::sample::select(br#"{}[]",:\0-.eEnu 	"#.to_vec())).prop_map(|(at, byte)| Damage::Set(at, byte)),
        (index(), index()).prop_map(|(from, to)| Damage::Cut(from, to)),
        (index(), index(), index(), index()).prop_map(|(at, file, from, to)| Damage::Splice(at, file, from, to)),
        index().prop_map(Damage::Truncate),
    ]
}

fn span(from: &Index, to: &Index, length: usize) -> std::ops::Range<usize> {
    let (one, other) = (from.index(length), to.index(length));
    one.min(other)..one.max(other)
}

fn apply(text: &mut Vec<u8>, damage: &Damage) {
    if text.is_empty() {
        return;
    }
    match damage {
        Damage::Flip(at, bit) => {
            let at = at.index(text.len());
            text[at] ^= 1 << bit;
        }
        Damage::Set(at, byte) => {
            let at = at.index(text.len());
            text[at] = *byte;
        }
        Damage::Cut(from, to) => drop(text.drain(span(from, to, text.len()))),
        Damage::Splice(at, file, from, to) => {
            let (_, other) = &CORPUS[file.index(CORPUS.len())];
            let at = at.index(text.len());
            text.splice(at..at, other[span(from, to, other.len())].iter().copied());
        }
        Damage::Truncate(at) => text.truncate(at.index(text.len())),
    }
}

/// The pieces of a text between commas: spliced as such, damage is often JSON again.
fn members(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b',').collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]

    #[test]
    fn damaged_objects_are_never_called_clean_where_a_parser_refuses_them(
        file in any::<Index>(), damages in prop::collection::vec(damage(), 1..4), secret in any::<bool>(),
    ) {
        let mut text = CORPUS[file.index(CORPUS.len())].1.clone();
        damages.iter().for_each(|damage| apply(&mut text, damage));
        check(&text, if secret { "secrets" } else { "pods" })?;
    }

    #[test]
    fn objects_with_members_moved_about_are_cleaned_as_a_parser_would(
        file in any::<Index>(), moves in prop::collection::vec((any::<Index>(), any::<Index>()), 1..4), secret in any::<bool>(),
    ) {
        let mut pieces = members(&CORPUS[file.index(CORPUS.len())].1);
        for (from, to) in moves {
            let piece = pieces[from.index(pieces.len())];
            pieces.insert(to.index(pieces.len()), piece);
        }
        check(&pieces.concat(), if secret { "secrets" } else { "pods" })?;
    }
}
