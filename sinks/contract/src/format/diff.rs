//! A patch as a diff under a line: what went in red, what came in green, texts of several lines line by line.

use std::time::Duration;

use anstyle::AnsiColor;
use serde::de::IgnoredAny;
use similar::{ChangeTag, TextDiff};

use super::{
    Style,
    edit::{Edit, Known, pointed},
    raw::{Level, Raw},
    span::{Span, cut_spans, paint, shown, width_of},
};

/// Unchanged lines that are shown around a change in a text.
const CONTEXT: usize = 2;
/// What a tab is shown as: where it would lead on the terminal depends on what stands before the line.
const TAB: &str = "    ";
/// After this the rest of two texts is compared coarsely: they have little in common, and somebody waits for the line.
const COMPARED_WITHIN: Duration = Duration::from_millis(200);
/// Larger texts are shown as a whole: comparing them line by line would take long.
const LARGEST_COMPARED: usize = 256 * 1024;

/// The edits, a few lines each, every line with its end, indented by `margin` and at most `room` columns wide.
pub fn diff(edits: &[Edit], margin: usize, style: Style, room: usize) -> String {
    let mut out = String::new();
    let mut write = |depth: usize, spans: Vec<Span>| {
        let indent = margin + 2 * depth;
        let spans = cut_spans(spans, room.saturating_sub(indent));
        out.push_str(&" ".repeat(indent));
        paint(&spans, style, &mut out);
        out.push('\n');
    };
    for edit in edits {
        write_edit(edit, room.saturating_sub(margin), &mut write);
    }
    out
}

fn write_edit(edit: &Edit, room: usize, write: &mut impl FnMut(usize, Vec<Span>)) {
    let path = shown(&pointed(&edit.path));
    let (sign, colour) = match (&edit.old, &edit.new) {
        (_, Known::Nothing) => ('-', AnsiColor::Red),
        (Known::Nothing, _) => ('+', AnsiColor::Green),
        _ => ('~', AnsiColor::Yellow),
    };
    let head = vec![Span::new(colour.on_default(), format!("{sign} ")), Span::plain(path)];
    // What fits stays on one line.
    let in_line = |side: &Known| match side {
        Known::Value(value) => scalar(&value.level()).map(Some),
        Known::Nothing | Known::Unknown => Some(None),
    };
    if let (Some(old), Some(new)) = (in_line(&edit.old), in_line(&edit.new)) {
        let mut line = head.clone();
        let between = match (&old, &new) {
            (Some(_), Some(_)) => " → ",
            (None, Some(_)) if edit.old == Known::Unknown => "→ ",
            _ => "",
        };
        line.extend((old.is_some() || new.is_some()).then(|| Span::faint(": ")));
        line.extend(old.map(|old| Span::new(AnsiColor::Red.on_default(), old)));
        line.extend((!between.is_empty()).then(|| Span::faint(between)));
        line.extend(new.map(|new| Span::new(AnsiColor::Green.on_default(), new)));
        if width_of(&line) <= room {
            return write(0, line);
        }
    }
    write(0, head);
    match (&edit.old, &edit.new) {
        (Known::Value(old), Known::Value(new)) => write_texts(&block(old), &block(new), write),
        (Known::Value(old), _) => write_all('-', &block(old), write),
        (_, Known::Value(new)) => write_all('+', &block(new), write),
        (_, _) => {}
    }
}

fn write_all(sign: char, text: &str, write: &mut impl FnMut(usize, Vec<Span>)) {
    text.lines().for_each(|line| write(1, vec![signed(sign, line)]));
}

fn signed(sign: char, line: &str) -> Span {
    let text = format!("{sign} {}", shown(&line.replace('\t', TAB)));
    match sign {
        '-' => Span::new(AnsiColor::Red.on_default(), text),
        '+' => Span::new(AnsiColor::Green.on_default(), text),
        _ => Span::faint(text),
    }
}

fn write_texts(old: &str, new: &str, write: &mut impl FnMut(usize, Vec<Span>)) {
    if old.len() + new.len() > LARGEST_COMPARED {
        write_all('-', old, write);
        return write_all('+', new, write);
    }
    let diff = TextDiff::configure().timeout(COMPARED_WITHIN).diff_lines(old, new);
    for (index, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
        if index > 0 {
            write(1, vec![Span::faint("…")]);
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let sign = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            write(1, vec![signed(sign, change.value().trim_end_matches('\n'))]);
        }
    }
}

/// A value that is no list, no map and no text of several lines, as it stands in a line.
fn scalar(value: &Level<'_>) -> Option<String> {
    match value {
        Level::List(list) if list.is_empty() => Some("[]".into()),
        Level::Map(map) if map.is_empty() => Some("{}".into()),
        Level::List(_) | Level::Map(_) => None,
        Level::Text(text) if text.contains('\n') => None,
        value => Some(in_words(value)),
    }
}

/// A value in a few words: a text without quotes where that is clear, a list or a map as its size.
pub(super) fn brief(value: &Raw) -> String {
    in_words(&value.level())
}

fn in_words(value: &Level<'_>) -> String {
    match value {
        Level::Text(text) if text.is_empty() => "\"\"".into(),
        Level::Text(text) => {
            // `"3"` is not 3, and spaces at an end would not be seen.
            let unclear = serde_json::from_str::<IgnoredAny>(text).is_ok() || text.trim() != text;
            let text = shown(text);
            if unclear { format!("\"{text}\"") } else { text }
        }
        Level::List(list) => counted(list.len(), "item", '[', ']'),
        Level::Map(map) => counted(map.len(), "key", '{', '}'),
        Level::Word(word) => shown(word),
    }
}

fn counted(count: usize, of: &str, open: char, close: char) -> String {
    match count {
        0 => format!("{open}{close}"),
        1 => format!("{open}1 {of}{close}"),
        _ => format!("{open}{count} {of}s{close}"),
    }
}

/// A value over several lines, as in YAML.
fn block(value: &Raw) -> String {
    let mut out = String::new();
    match value.level() {
        Level::Text(text) => {
            out.push_str(&text);
            out.push('\n');
        }
        value => write_block(&value, 0, &mut out),
    }
    out
}

fn write_block(value: &Level<'_>, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Level::Map(map) if !map.is_empty() => {
            for (key, value) in map {
                write_member(&format!("{indent}{key}:"), &Level::of(value.get()), depth, out);
            }
        }
        Level::List(list) if !list.is_empty() => {
            for value in list {
                write_member(&format!("{indent}-"), &Level::of(value.get()), depth, out);
            }
        }
        value => out.push_str(&format!("{indent}{}\n", scalar(value).unwrap_or_default())),
    }
}

fn write_member(head: &str, value: &Level<'_>, depth: usize, out: &mut String) {
    out.push_str(head);
    match (value, scalar(value)) {
        (_, Some(text)) => out.push_str(&format!(" {text}\n")),
        (Level::Text(text), None) => {
            out.push_str(" |\n");
            let indent = "  ".repeat(depth + 1);
            text.lines().for_each(|line| out.push_str(&format!("{indent}{line}\n")));
        }
        // The first key of a map in a list stands behind the dash.
        (Level::Map(_), None) if head.ends_with('-') => {
            let mut below = String::new();
            write_block(value, depth + 1, &mut below);
            out.push(' ');
            out.push_str(below.trim_start_matches(' '));
        }
        (_, None) => {
            out.push('\n');
            write_block(value, depth + 1, out);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::{Value, json};

    use super::*;
    use crate::format::{edits, was, width};

    fn told(before: Value, patch: Value, room: usize) -> String {
        let (before, patch) = (before.to_string(), patch.to_string());
        let was = was(before.as_bytes(), patch.as_bytes());
        diff(&edits(patch.as_bytes(), was.as_ref()).unwrap(), 2, Style::Plain, room)
    }

    #[test]
    fn what_fits_is_told_on_one_line() {
        let patch = json!([
            {"op": "replace", "path": "/spec/replicas", "value": 3},
            {"op": "add", "path": "/metadata/labels/tier", "value": "3"},
            {"op": "remove", "path": "/spec/paused"},
        ]);
        let before = json!({"spec": {"replicas": 2, "paused": true}, "metadata": {"labels": {}}});
        let text = "  ~ spec.replicas: 2 → 3\n  + metadata.labels.tier: \"3\"\n  - spec.paused: true\n";
        assert_eq!(told(before, patch.clone(), 80), text);
        let unknown = edits(patch.to_string().as_bytes(), None).unwrap();
        let text = "~ spec.replicas: → 3\n+ metadata.labels.tier: \"3\"\n- spec.paused\n";
        assert_eq!(diff(&unknown, 0, Style::Plain, 80), text, "what is not known is not made up");
    }

    #[test]
    fn texts_are_compared_line_by_line_and_maps_are_written_out() {
        let lines = |changed: &str| format!("a\nb\nc\n{changed}\ne\nf\ng\n");
        let before = json!({"data": {"conf": lines("d")}, "spec": {}});
        let patch = json!([
            {"op": "replace", "path": "/data/conf", "value": lines("D")},
            {"op": "add", "path": "/spec/containers", "value": [{"name": "web", "ports": [80, 81], "args": []}]},
        ]);
        let text = "  ~ data.conf\n      b\n      c\n    - d\n    + D\n      e\n      f\n  + spec.containers\n    + - args: []\n    +   name: web\n    +   ports:\n    +     - 80\n    +     - 81\n";
        assert_eq!(told(before, patch, 80), text);
    }

    #[test]
    fn no_line_is_wider_than_there_is_room_and_nothing_acts_on_the_terminal() {
        let before = json!({"data": {"a": "x".repeat(200)}});
        let patch = json!([{"op": "replace", "path": "/data/a", "value": format!("\u{1b}[2J{}\nz", "日".repeat(90))}]);
        let text = told(before, patch, 40);
        assert!(text.lines().all(|line| width(line) <= 40), "{text}");
        assert!(!text.contains('\u{1b}') && text.lines().count() == 4, "{text}");
    }

    #[test]
    fn tabs_are_widened_and_texts_that_have_nothing_in_common_do_not_take_for_ever() {
        let before = json!({"data": {"a": "x\n\ty\n"}});
        let patch = json!([{"op": "replace", "path": "/data/a", "value": "x\n\tz\n"}]);
        assert_eq!(told(before, patch, 80), "  ~ data.a\n      x\n    -     y\n    +     z\n      \n");
        let lines = |from: usize| (from..from + 20_000).map(|n| format!("{n}\n")).collect::<String>();
        let before = json!({"data": {"a": lines(100_000)}});
        let patch = json!([{"op": "replace", "path": "/data/a", "value": lines(200_000)}]);
        let since = std::time::Instant::now();
        told(before, patch, 80);
        assert!(since.elapsed().as_secs() < 2, "{:?}", since.elapsed());
    }

    /// As [`told`], of texts: their numbers are spelled as they are.
    fn told_spelled(before: &str, patch: &str) -> String {
        let was = was(before.as_bytes(), patch.as_bytes());
        diff(&edits(patch.as_bytes(), was.as_ref()).unwrap(), 0, Style::Plain, 80)
    }

    #[test]
    fn numbers_are_told_as_they_are_spelled_whatever_their_size() {
        for (old, new) in [
            ("1", "1e400"),
            ("1.0", "1.00"),
            ("1e2", "1E+2"),
            ("12345678901234567890123", "12345678901234567890124"),
            ("-0", "0.1e-400"),
        ] {
            let patch = format!(r#"[{{"op":"replace","path":"/spec/n","value":{new}}}]"#);
            let text = told_spelled(&format!(r#"{{"spec":{{"n":{old}}}}}"#), &patch);
            assert_eq!(text, format!("~ spec.n: {old} → {new}\n"));
        }
    }

    #[test]
    fn what_was_added_or_changed_is_never_told_as_removed_however_deep_it_is() {
        let deep = format!("{}7{}", "{\"d\":".repeat(200), "}".repeat(200));
        let patch = format!(
            r#"[{{"op":"add","path":"/spec/d","value":{deep}}},{{"op":"replace","path":"/spec/replicas","value":3}}]"#
        );
        let text = told_spelled(r#"{"spec":{"replicas":2}}"#, &patch);
        assert!(text.starts_with("+ spec.d\n  + d:\n"), "{text}");
        assert!(text.ends_with("~ spec.replicas: 2 → 3\n"), "{text}");
        let text = told_spelled(
            &format!(r#"{{"spec":{{"replicas":2,"d":{deep}}}}}"#),
            r#"[{"op":"replace","path":"/spec/d/d/d","value":1}]"#,
        );
        assert!(text.starts_with("~ spec.d.d.d\n  - d:\n") && text.ends_with("  + 1\n"), "{text}");
    }

    #[test]
    fn a_path_of_which_no_value_is_known_has_changed() {
        let edits = crate::format::Detail::paths(&["/spec/d".to_owned()]);
        assert_eq!(diff(&edits, 0, Style::Plain, 80), "~ spec.d\n");
    }
}
