//! One line per record for people: `~ apps/deployments default/web  v7 → v9`.
//!
//! Object names come from the cluster's users: control characters are shown, not sent to the terminal.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style as Ansi};

use crate::{Body, Change, Control, Op, Record, What};

/// Whether a line carries colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text only.
    Plain,
    /// ANSI colours.
    Coloured,
}

/// The record in one line, without a line end.
pub fn line(record: &Record, style: Style) -> String {
    let (sign, colour, text) = match &record.body {
        Body::Change(change) => change_line(record, change),
        Body::Control(control) => control_line(record, control),
    };
    let text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    match style {
        Style::Plain => format!("{sign} {text}"),
        Style::Coloured => format!("{colour}{sign} {text}{colour:#}"),
    }
}

fn change_line(record: &Record, change: &Change) -> (char, Ansi, String) {
    let (sign, colour) = match change.op {
        Op::Snapshot => ('·', AnsiColor::BrightBlack),
        Op::Create => ('+', AnsiColor::Green),
        Op::Update => ('~', AnsiColor::Yellow),
        Op::Delete => ('-', AnsiColor::Red),
    };
    let mut text = format!("{} ", record.stream);
    if !change.namespace.is_empty() {
        let _ = write!(text, "{}/", change.namespace);
    }
    let _ = write!(text, "{}  ", change.name);
    match (&change.previous_resource_version, change.op) {
        (Some(previous), Op::Update) => {
            let _ = write!(text, "v{previous} → v{}", change.resource_version);
        }
        _ => {
            let _ = write!(text, "v{}", change.resource_version);
        }
    }
    if change.origin == crate::Origin::List && change.op != Op::Snapshot {
        text.push_str("  (inferred)");
    }
    (sign, colour.on_default(), text)
}

fn control_line(record: &Record, control: &Control) -> (char, Ansi, String) {
    let stream = &record.stream;
    let (sign, colour, text) = match &control.what {
        What::SnapshotStarted => ('»', AnsiColor::Cyan, format!("{stream} snapshot started")),
        What::SnapshotFinished { snapshot, .. } => {
            ('»', AnsiColor::Cyan, format!("{stream} snapshot finished: {snapshot} objects"))
        }
        What::Gap { reason, .. } => ('!', AnsiColor::Magenta, format!("{stream} gap: {}", reason.as_str())),
        What::ResyncFinished { counts, .. } => (
            '»',
            AnsiColor::Cyan,
            format!(
                "{stream} resync finished: {} created, {} updated, {} deleted, {} unchanged",
                counts.create, counts.update, counts.delete, counts.unchanged
            ),
        ),
    };
    (sign, colour.on_default().bold(), text)
}
