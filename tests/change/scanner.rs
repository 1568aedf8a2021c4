//! The scanner against a real parser.

use kubetide::change::scan;
use proptest::{prelude::*, sample::Index};
use serde::de::IgnoredAny;
use serde_json::Value;

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

#[test]
fn what_no_rule_names_is_kept_byte_for_byte() {
    // Of these one piece is cut out, with nothing changed before it or behind it.
    let one_piece = |text: &[u8]| memchr::memmem::find(text, b"last-applied-configuration").is_none();
    let mut checked = 0;
    for (name, text) in CORPUS.iter().filter(|(name, text)| !name.starts_with("nasty") && one_piece(text)) {
        let kept = scan::observe(&cleaner("any", &[], &[]), text).unwrap().object.unwrap();
        let head = text.iter().zip(&kept).take_while(|(one, other)| one == other).count();
        let tail = text.iter().rev().zip(kept.iter().rev()).take_while(|(one, other)| one == other).count();
        assert!(head + tail >= kept.len() && kept.len() <= text.len(), "{name}");
        checked += 1;
    }
    assert!(checked > 6, "{checked}");
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
