//! How lines look.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use serde_json::{Value, json};

use super::*;
use crate::format::raw::Raw;

fn change(op: Op, origin: Origin, name: &str) -> Brief<'_> {
    let news = News::Change { op, origin, namespace: "default", name, version: "9", previous: Some("7") };
    Brief { stream: "core/pods", news }
}

fn plain(brief: Brief<'_>) -> String {
    brief.line(Style::Plain, usize::MAX)
}

#[test]
fn a_line_tells_op_stream_name_versions_and_whether_it_was_inferred() {
    assert_eq!(plain(change(Op::Update, Origin::Watch, "web")), "~ core/pods         default/web  v7 → v9");
    assert_eq!(plain(change(Op::Delete, Origin::List, "web")), "- core/pods         default/web  v9  (inferred)");
    assert_eq!(plain(change(Op::Snapshot, Origin::List, "web")), "· core/pods         default/web  v9");
    let gap = Brief { stream: "apps/deployments", news: News::Gap("expired") };
    assert_eq!(plain(gap), "! apps/deployments  gap: expired");
    let counts = Counts { create: 1, update: 2, delete: 3, unchanged: 4 };
    let resync = Brief { stream: "apps/deployments", news: News::ResyncFinished(counts) };
    assert_eq!(plain(resync), "» apps/deployments  resync finished: +1 ~2 -3, 4 unchanged");
}

#[test]
fn a_name_that_does_not_fit_is_cut_in_the_middle() {
    let long = change(Op::Update, Origin::List, "a-very-long-name-that-does-not-fit").line(Style::Plain, 50);
    assert_eq!(long, "~ core/pods         defa…-fit  v7 → v9  (inferred)");
    assert_eq!(long.chars().count(), 50);
}

#[test]
fn control_characters_in_a_name_do_not_reach_the_terminal() {
    let line = plain(change(Op::Create, Origin::Watch, "a\u{1b}[2Jb\n"));
    assert!(!line.contains(['\u{1b}', '\n']), "{line:?}");
}

fn update(detail: Detail, columns: usize) -> String {
    change(Op::Update, Origin::Watch, "web-6d4b75cb6d-hwn7s").line_with(&detail, Style::Plain, columns)
}

fn detail() -> Detail {
    let edit = |path: &str, old, new| Edit { path: path.into(), old, new };
    let known = |value: Value| Known::from(Raw::of_json(value.to_string()));
    Detail {
        at: Some((Timestamp::UNIX_EPOCH, TimeZone::UTC)),
        edits: vec![
            edit("/metadata/labels/a", Known::Nothing, known(json!("b"))),
            edit("/status/replicas", known(json!(2)), known(json!(3))),
            edit("/spec/template/spec/nodeName", Known::Unknown, known(json!("n"))),
            edit("/spec/replicas", known(json!(2)), known(json!(3))),
        ],
        classes: vec!["spec".into(), "status".into()],
        actor: Some("kubectl-edit".into()),
    }
}

#[test]
fn an_update_tells_the_edit_that_matters_most_then_classes_and_actor() {
    let head = "00:00:00 ~ core/pods         default/web-6d4b75cb6d-hwn7s";
    let whole = format!("{head}  spec.replicas 2 → 3  (+3 more)  spec,status  by kubectl-edit");
    assert_eq!(update(detail(), 200), whole);
    assert_eq!(update(detail(), 104), format!("{head}  spec.replicas 2 → 3  (+3 more)  spec,status"));
    let one = |edit: usize| Detail { edits: vec![detail().edits[edit].clone()], ..Detail::default() };
    assert!(update(one(0), 200).ends_with("  +metadata.labels.a b"));
    assert!(update(one(2), 200).ends_with("  spec.template.spec.nodeName → n"));
}

#[test]
fn no_line_is_wider_than_asked_for_and_the_name_goes_before_the_edit() {
    let narrow = update(detail(), 80);
    assert_eq!(narrow, "00:00:00 ~ core/pods         default/w…b6d-hwn7s  spec.replicas 2 → 3  (+3 more)");
    for columns in 0..140 {
        assert!(width(&update(detail(), columns)) <= columns, "{columns}");
    }
}

#[test]
fn colours_are_around_the_text_and_change_nothing_in_it() {
    let coloured = change(Op::Update, Origin::Watch, "web").line_with(&detail(), Style::Coloured, 80);
    let bare: String = coloured
        .split('\u{1b}')
        .enumerate()
        .map(|(at, part)| if at == 0 { part } else { part.split_once('m').unwrap().1 })
        .collect();
    assert_eq!(bare, change(Op::Update, Origin::Watch, "web").line_with(&detail(), Style::Plain, 80));
    assert_ne!(bare, coloured);
}

#[test]
fn a_record_with_its_state_before_tells_old_values() {
    let mut record = crate::sample::record(1, r#"{"spec":{"replicas":3}}"#);
    let Body::Change(change) = &mut record.body else { unreachable!() };
    change.op = Op::Update;
    change.patch = Some(r#"[{"op":"replace","path":"/spec/replicas","value":3}]"#.into());
    change.before = Some(r#"{"spec":{"replicas":2}}"#.into());
    assert_eq!(line(&record, Style::Plain, 80), "~ core/pods         default/pod-1  spec.replicas 2 → 3");
}

/// `registry.example.com/shop/frontend:v1.2.3 → …:v1.2.4`, the commonest change of all.
fn new_tag(edits: usize) -> Detail {
    let image = |tag: &str| Raw::of_text(&format!("registry.example.com/shop/frontend:{tag}")).into();
    let path = "/spec/template/spec/containers/0/image".to_owned();
    let edit = Edit { path, old: image("v1.2.3"), new: image("v1.2.4") };
    Detail { edits: vec![edit; edits], ..detail() }
}

#[test]
fn what_differs_between_two_values_is_seen_in_80_columns() {
    let told = |stream, name, edits, columns| {
        let news = News::Change {
            op: Op::Update,
            origin: Origin::Watch,
            namespace: "default",
            name,
            version: "9",
            previous: None,
        };
        Brief { stream, news }.line_with(&new_tag(edits), Style::Plain, columns)
    };
    for (stream, name) in [
        ("apps/deployments", "frontend"),
        ("apps/deployments", "a-deployment-with-a-long-name"),
        ("apps/deployments@production", "frontend"),
    ] {
        for edits in [1, 4] {
            let line = told(stream, name, edits, 80);
            assert!(line.contains("1.2.3 → ") && line.contains("1.2.4"), "{line}");
            assert!(width(&line) <= 80 && line.contains("image"), "{line}");
        }
    }
    let line = told("apps/deployments", "frontend", 1, 80);
    assert_eq!(line, "00:00:00 ~ apps/deployments  default/frontend  spe….image …d:v1.2.3 → …d:v1.2.4");
    let line = told("apps/deployments", "frontend", 1, 120);
    assert!(
        line.contains("/frontend:v1.2.3 → ") && line.contains("/frontend:v1.2.4"),
        "what there is room for: {line}"
    );
}

#[test]
fn nothing_is_cut_where_there_is_room_for_it() {
    let long = "x".repeat(90);
    let stream = "configurations.serving.knative.dev/configurations@production";
    let edit = Edit { path: "/spec/a".into(), old: Known::Nothing, new: Raw::of_text(&long).into() };
    let detail = Detail { edits: vec![edit], actor: Some(long.clone()), ..detail() };
    let news = News::Change {
        op: Op::Update,
        origin: Origin::Watch,
        namespace: "",
        name: &long,
        version: "9",
        previous: None,
    };
    let line = Brief { stream, news }.line_with(&detail, Style::Plain, usize::MAX);
    assert_eq!(line, format!("00:00:00 ~ {stream}  {long}  +spec.a {long}  spec,status  by {long}"));
}

#[test]
fn lines_of_long_values_are_never_wider_than_asked_for() {
    for columns in 0..200 {
        for edits in [1, 4] {
            let line = update(new_tag(edits), columns);
            assert!(width(&line) <= columns, "{columns}: {line}");
        }
    }
}
