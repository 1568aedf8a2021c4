//! What an observation means: a change with its classes and its actor, a version that was only seen, or nothing.

use kubetide::change::{
    Ignored, Observed, Pattern,
    compare::{self, By, Detail, Meaning, View},
    scan,
};
use kubetide_sink::{Change, Class, sample};

use crate::{cleaner, row};

fn observed(version: u32, fields: &str, rest: &str) -> Observed {
    let text = format!(
        r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"{version}","managedFields":[{fields}]}},"pad":"{}"{rest}}}"#,
        "x".repeat(500)
    );
    scan::observe(&cleaner("any", &[], &[]), text.as_bytes()).unwrap()
}

fn entry(manager: &str, time: &str) -> String {
    format!(
        r#"{{"manager":"{manager}","operation":"Update","apiVersion":"v1","time":"{time}","fieldsV1":{{"f:x":{{}}}},"subresource":"status"}}"#
    )
}

fn meaning(before: &Observed, now: Observed, view: View, detail: &Detail) -> Meaning {
    compare::present(&sample::stream("any", "Any"), 0, Some(&row(before)), now, view, detail)
}

fn change(meaning: Meaning) -> Change {
    match meaning {
        Meaning::Changes(mut drafts) => drafts.remove(0).change,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_actor_is_the_newest_of_the_entries_that_were_not_there_before() {
    let (old, newer, newest) = (
        entry("old", "2026-01-09T00:00:00Z"),
        entry("newer", "2026-01-02T00:00:00Z"),
        entry("newest", "2026-01-03T00:00:00Z"),
    );
    let before = observed(1, &old, "");
    let fields = format!("{newest},{old},{newer}");
    let actor =
        change(meaning(&before, observed(2, &fields, r#","spec":1"#), View::Watch, &Detail::default())).actor.unwrap();
    assert_eq!(
        (actor.manager.as_str(), actor.operation.as_str(), actor.subresource.as_str()),
        ("newest", "Update", "status")
    );
    assert_eq!(actor.at.as_deref(), Some("2026-01-03T00:00:00Z"));
    let same = change(meaning(&before, observed(2, &old, r#","spec":1"#), View::Watch, &Detail::default()));
    assert_eq!(same.actor, None);
    let stream = sample::stream("any", "Any");
    let created = |view| change(compare::present(&stream, 0, None, observed(1, &fields, ""), view, &Detail::default()));
    assert_eq!(created(View::Watch).actor.unwrap().manager, "old", "the latest of all");
    assert_eq!(created(View::Snapshot(kubetide_sink::Id([0; 16]))).actor, None);
}

#[test]
fn a_change_of_managed_fields_alone_is_only_seen() {
    let before = observed(1, &entry("a", "2026-01-01T00:00:00Z"), "");
    let now = || observed(2, &entry("b", "2026-01-02T00:00:00Z"), "");
    for view in
        [View::Watch, View::Resync(By::Version), View::Resync(By::Content), View::Snapshot(kubetide_sink::Id([0; 16]))]
    {
        assert!(matches!(meaning(&before, now(), view, &Detail::default()), Meaning::Seen), "{view:?}");
    }
}

#[test]
fn what_is_ignored_alone_is_only_seen_and_with_more_it_is_in_the_patch() {
    let ignored = Ignored(vec![Pattern::parse("/status/*/at").unwrap()]);
    let detail = Detail { ignored: ignored.clone(), ..Detail::default() };
    let status = |at: u32, ready: u32| format!(r#","status":[{{"type":"a","at":{at},"ready":{ready}}}]"#);
    let before = observed(1, "", &status(1, 1));
    for view in [View::Watch, View::Resync(By::Version), View::Resync(By::Content)] {
        assert!(matches!(meaning(&before, observed(2, "", &status(2, 1)), view, &detail), Meaning::Seen), "{view:?}");
        let paths = change(meaning(&before, observed(2, "", &status(2, 2)), view, &detail)).difference.unwrap().paths;
        assert_eq!(paths, ["/status/0/at", "/status/0/ready"]);
    }
    // The same version with other bytes.
    let by_content = View::Resync(By::Content);
    assert!(matches!(meaning(&before, observed(1, "", &status(2, 1)), by_content, &detail), Meaning::Nothing));
    assert!(row(&before).is(&observed(1, "", &status(2, 1)), &ignored));
    assert!(!row(&before).is(&observed(1, "", &status(2, 2)), &ignored));
    assert!(!row(&before).is(&observed(2, "", &status(1, 1)), &ignored));
    assert!(matches!(meaning(&before, observed(1, "", &status(1, 2)), by_content, &detail), Meaning::Changes(_)));
}

#[test]
fn classes_follow_from_the_first_step_of_the_paths() {
    let before = observed(1, "", "");
    let classes = |rest: &str| {
        change(meaning(&before, observed(2, "", rest), View::Watch, &Detail::default())).difference.unwrap().classes
    };
    assert_eq!(
        classes(r#","other":1,"binaryData":1,"status":1,"spec":1"#),
        [Class::Spec, Class::Status, Class::Data, Class::Other]
    );
    assert_eq!(classes(r#","stringData":1"#), [Class::Data]);
}

#[test]
fn patch_and_before_are_told_as_asked_for() {
    let before = observed(1, "", "");
    let detail = Detail { patch: false, before: true, ..Detail::default() };
    let told = change(meaning(&before, observed(2, "", r#","spec":1"#), View::Watch, &detail));
    assert_eq!((told.patch, told.before.as_ref()), (None, before.object.as_ref().ok()));
    assert_eq!(told.difference.unwrap().paths, ["/spec"]);
    let told = change(meaning(&before, observed(2, "", r#","spec":1"#), View::Watch, &Detail::default()));
    assert_eq!(
        (told.patch.as_deref(), told.before),
        (Some(br#"[{"op":"add","path":"/spec","value":1}]"#.as_slice()), None)
    );
}

#[test]
fn an_object_that_could_not_be_read_before_is_an_update_without_a_difference() {
    let mut before = observed(1, "", "");
    before.object = Err("a problem".into());
    let told = change(meaning(&before, observed(2, "", ""), View::Watch, &Detail::default()));
    assert!(told.difference.is_none() && told.patch.is_none() && told.object.is_some());
    assert_eq!(told.previous_resource_version.as_deref(), Some("1"));
}

fn ignoring(paths: &[&str]) -> Detail {
    let ignored = Ignored(paths.iter().map(|path| Pattern::parse(path).unwrap()).collect());
    Detail { ignored, ..Detail::default() }
}

#[test]
fn what_is_ignored_in_items_without_a_name_is_only_seen() {
    let detail = ignoring(&["/status/*/at", "/spec/*/*"]);
    let status =
        |at: u32, rest: &str| format!(r#","status":[{{"at":{at},"x":1}},{{"at":{at}{rest}}}],"spec":[[{at}]]"#);
    let before = observed(1, "", &status(1, ""));
    assert!(matches!(meaning(&before, observed(2, "", &status(2, "")), View::Watch, &detail), Meaning::Seen));
    let told = change(meaning(&before, observed(2, "", &status(2, r#","y":1"#)), View::Watch, &detail));
    assert_eq!(told.difference.unwrap().paths, ["/status/0/at", "/status/1", "/spec/0/0"], "and the rest is in it too");
}

#[test]
fn what_is_ignored_and_looks_moved_within_a_list_is_only_seen() {
    let detail = ignoring(&["/spec/*/t"]);
    let spec = |items: &str| format!(r#","spec":[{items}]"#);
    let before = observed(1, "", &spec(r#"{"t":1,"k":"a"},{"t":2,"k":"a"}"#));
    let moved = |items: &str| meaning(&before, observed(2, "", &spec(items)), View::Watch, &detail);
    assert!(matches!(moved(r#"{"t":2,"k":"a"},{"t":3,"k":"a"}"#), Meaning::Seen));
    assert_eq!(
        change(moved(r#"{"t":2,"k":"a"},{"t":3,"k":"b"}"#)).difference.unwrap().classes,
        [kubetide_sink::Class::Spec]
    );
    change(moved(r#"{"t":1,"k":"a"}"#));
    change(moved(r#"{"t":2,"k":"a"},{"t":1,"k":"b"},{"t":1,"k":"a"}"#));
}

/// One with these members in its metadata.
fn annotated(version: u32, metadata: &str, rest: &str) -> Observed {
    let text = format!(
        r#"{{"metadata":{{"name":"a","uid":"u","resourceVersion":"{version}"{metadata}}},"pad":"{}"{rest}}}"#,
        "x".repeat(500)
    );
    scan::observe(&cleaner("any", &[], &[]), text.as_bytes()).unwrap()
}

#[test]
fn annotations_of_which_cleaning_leaves_nothing_come_and_go_unseen() {
    let (applied, detail) =
        (r#","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}"#, Detail::default());
    let (without, with) = (|version| annotated(version, "", ""), |version| annotated(version, applied, ""));
    assert!(matches!(meaning(&without(1), with(2), View::Watch, &detail), Meaning::Seen));
    assert!(matches!(meaning(&with(1), without(2), View::Watch, &detail), Meaning::Seen));
    // The next record that counts tells of them.
    let told = change(meaning(&without(1), annotated(2, applied, r#","spec":1"#), View::Watch, &detail));
    assert_eq!(told.difference.unwrap().paths, ["/metadata/annotations", "/spec"]);
    // Elsewhere something empty is something, and annotations are.
    for (metadata, rest) in [(r#","labels":{}"#, ""), ("", r#","spec":{}"#), (r#","annotations":{"a":"b"}"#, "")] {
        change(meaning(&without(1), annotated(2, metadata, rest), View::Watch, &detail));
    }
}

#[test]
fn what_holds_nothing_but_what_is_ignored_comes_and_goes_unseen() {
    let detail = ignoring(&["/metadata/annotations/x", "/status/*/at", "/spec/a/b"]);
    let bare = |version| annotated(version, "", "");
    for (metadata, rest, counts) in [
        (r#","annotations":{"x":"1"}"#, "", false),
        (r#","annotations":{"x":"1","y":"1"}"#, "", true),
        ("", r#","status":[{"at":1},{"at":2}]"#, false),
        ("", r#","status":[{"at":1},{"to":2}]"#, true),
        ("", r#","status":[]"#, true),
        ("", r#","spec":{"a":{"b":{"c":1}}}"#, false),
        ("", r#","spec":{"a":{"b":1},"c":{}}"#, true),
        ("", r#","spec":{"a":{}}"#, true),
        ("", r#","spec":null"#, true),
    ] {
        for (before, now) in [(bare(1), annotated(2, metadata, rest)), (annotated(1, metadata, rest), bare(2))] {
            let is_told = matches!(meaning(&before, now, View::Watch, &detail), Meaning::Changes(_));
            assert_eq!(is_told, counts, "{metadata}{rest}");
        }
    }
    let of = |version, annotations: &str| annotated(version, &format!(r#","annotations":{annotations}"#), "");
    for (before, now, counts) in [
        ("null", r#"{"x":"1"}"#, false),
        (r#"{"x":"1"}"#, "null", false),
        ("null", "{}", false),
        ("null", r#"{"y":"1"}"#, true),
        (r#""text""#, r#"{"x":"1"}"#, true),
    ] {
        let is_told = matches!(meaning(&of(1, before), of(2, now), View::Watch, &detail), Meaning::Changes(_));
        assert_eq!(is_told, counts, "{before} {now}");
    }
}
