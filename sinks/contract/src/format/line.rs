//! One line per record for people: `~ apps/deployments  default/web  spec.replicas 2 → 3  (+3 more)`.
//!
//! The one place that knows how such a line looks. A [`Brief`] is what it tells, whether it comes from a [`Record`] or was
//! read back from a receiver; a [`Detail`] is what more is known. A line never wraps: where there is no room the actor
//! goes first, then the classes, then the middle of the name, then the end of the values.

use anstyle::{AnsiColor, Style as Ansi};
use jiff::{Timestamp, tz::TimeZone};
use serde_json::Value;

use super::{
    diff::brief_within,
    edit::{self, Edit, Known, pointed},
    span::{Span, cut_end, cut_middle, cut_spans, paint, shown, width, width_of},
};
use crate::{Body, Change, Counts, Op, Origin, Record, What};

/// Wide enough for `apps/deployments`, so that the names behind most streams stand in one column.
const STREAM_WIDTH: usize = 16;
/// A longer name of a stream is cut in the middle.
const STREAM_AT_MOST: usize = 28;
/// A name is not cut below this for the sake of the values behind it.
const NAME_AT_LEAST: usize = 16;
/// A value in a one-liner is to be recognised, not read.
const VALUE_AT_MOST: usize = 32;

/// Whether a line carries colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Text only.
    Plain,
    /// ANSI colours.
    Coloured,
}

/// What a one-liner tells of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brief<'a> {
    /// The stream's name.
    pub stream: &'a str,
    /// What happened there.
    pub news: News<'a>,
}

/// What else may be told of a change, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Detail {
    /// When, and in which time zone to tell it.
    pub at: Option<(Timestamp, TimeZone)>,
    /// What was edited.
    pub edits: Vec<Edit>,
    /// The classes of the change.
    pub classes: Vec<String>,
    /// The field manager behind it.
    pub actor: Option<String>,
}

/// What happened, to an object or to the whole stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News<'a> {
    /// An object changed.
    Change {
        /// What happened to it.
        op: Op,
        /// How that is known.
        origin: Origin,
        /// Its namespace; empty for cluster-scoped objects.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// The version of this state.
        version: &'a str,
        /// The version that was logged before.
        previous: Option<&'a str>,
    },
    /// The first LIST begins.
    SnapshotStarted,
    /// The first LIST is complete: so many objects.
    SnapshotFinished(u64),
    /// History is missing, for this reason.
    Gap(&'a str),
    /// The stream is whole again.
    ResyncFinished(Counts),
    /// The stream is no longer followed; so many objects went with it.
    StreamRemoved(u64),
    /// What follows came before, from behind this place on.
    Replay(u64),
}

/// The record in one line of at most `width` columns, without a line end.
pub fn line(record: &Record, style: Style, width: usize) -> String {
    let stream = record.stream.to_string();
    let (news, detail) = match &record.body {
        Body::Change(change) => (change_news(change), change_detail(change)),
        Body::Control(control) => {
            let news = match &control.what {
                What::SnapshotStarted => News::SnapshotStarted,
                What::SnapshotFinished { snapshot, .. } => News::SnapshotFinished(*snapshot),
                What::Gap { reason, .. } => News::Gap(reason.as_str()),
                What::ResyncFinished { counts, .. } => News::ResyncFinished(*counts),
                What::StreamRemoved { deleted } => News::StreamRemoved(*deleted),
                What::Replay { from } => News::Replay(from.seq),
            };
            (news, Detail::default())
        }
    };
    Brief { stream: &stream, news }.line_with(&detail, style, width)
}

fn change_news(change: &Change) -> News<'_> {
    News::Change {
        op: change.op,
        origin: change.origin,
        namespace: &change.namespace,
        name: &change.name,
        version: &change.resource_version,
        previous: change.previous_resource_version.as_deref(),
    }
}

fn change_detail(change: &Change) -> Detail {
    let patch = change.patch.as_deref();
    let was = patch.zip(change.before.as_deref()).and_then(|(patch, before)| edit::was(before, patch));
    let edits = patch.and_then(|patch| edit::edits(patch, was.as_ref()));
    let difference = change.difference.as_ref();
    Detail {
        at: None,
        edits: edits.unwrap_or_else(|| Detail::paths(difference.iter().flat_map(|difference| &difference.paths))),
        classes: difference.iter().flat_map(|of| &of.classes).map(|class| class.as_str().into()).collect(),
        actor: change.actor.as_ref().map(|actor| actor.manager.clone()),
    }
}

impl Detail {
    /// Edits of which only the paths are known.
    pub fn paths<'a>(paths: impl IntoIterator<Item = &'a String>) -> Vec<Edit> {
        let edit = |path: &String| Edit { path: path.clone(), old: Known::Unknown, new: None };
        paths.into_iter().map(edit).collect()
    }

    /// The edit that tells most, and how many more there are.
    fn foremost(&self) -> Option<(&Edit, usize)> {
        let edit = self.edits.iter().min_by_key(|edit| rank(edit))?;
        Some((edit, self.edits.len() - 1))
    }
}

/// What is wanted tells more than what is, a value more than a list, and a field near the top more than one deep down.
fn rank(edit: &Edit) -> (usize, bool, usize) {
    let mut tokens = edit.path.split('/').skip(1);
    let class = match tokens.next() {
        Some("spec") => 0,
        Some("data" | "stringData" | "binaryData") => 1,
        Some("status") => 3,
        Some("metadata") => 4,
        _ => 2,
    };
    let is_large = |value: &Value| value.is_array() || value.is_object();
    let large = edit.new.as_ref().is_some_and(is_large) || matches!(&edit.old, Known::Value(old) if is_large(old));
    (class, large, tokens.count())
}

impl Brief<'_> {
    /// The line, without a line end, in at most `width` columns.
    pub fn line(&self, style: Style, width: usize) -> String {
        self.line_with(&Detail::default(), style, width)
    }

    /// The same with all that is known.
    pub fn line_with(&self, detail: &Detail, style: Style, columns: usize) -> String {
        let (sign, colour) = self.news.sign();
        let mut line = Vec::new();
        if let Some((at, zone)) = &detail.at {
            line.push(Span::faint(format!("{} ", at.to_zoned(zone.clone()).strftime("%H:%M:%S"))));
        }
        let stream = cut_middle(&shown(self.stream), STREAM_AT_MOST);
        let padding = " ".repeat(STREAM_WIDTH.saturating_sub(width(&stream)) + 2);
        line.push(Span::new(colour, format!("{sign} {stream}{padding}")));
        let room = columns.saturating_sub(width_of(&line));
        let (subject, said, remarks) = self.news.text(detail);
        let subject = shown(&subject);
        let wanted = width_of(&said) + width_of(&remarks);
        // Versions are short and stay whole; values may be long, and then they share with the name.
        let least = if detail.edits.is_empty() { 0 } else { NAME_AT_LEAST };
        let name = cut_middle(&subject, room.saturating_sub(wanted).max(least).min(room));
        let name_style = if matches!(self.news, News::Change { .. }) { Ansi::new().bold() } else { colour };
        let mut left = room.saturating_sub(width(&name));
        line.push(Span::new(name_style, name));
        let said = cut_spans(said, left.saturating_sub(width_of(&remarks)));
        left = left.saturating_sub(width_of(&said) + width_of(&remarks));
        line.extend(said);
        line.extend(remarks);
        let classes = (!detail.classes.is_empty()).then(|| format!("  {}", shown(&detail.classes.join(","))));
        let actor = detail.actor.as_ref().map(|actor| format!("  by {}", cut_end(&shown(actor), VALUE_AT_MOST)));
        for (text, more) in [(classes, Ansi::new().dimmed()), (actor, Ansi::new().dimmed().italic())] {
            if let Some(text) = text.filter(|text| width(text) <= left) {
                left -= width(&text);
                line.push(Span::new(more, text));
            }
        }
        let mut out = String::new();
        // The last resort, on a terminal narrower than the time and the stream.
        paint(&cut_spans(line, columns), style, &mut out);
        out
    }
}

/// `  spec.replicas 2 → 3`
fn edited(edit: &Edit) -> Vec<Span> {
    let value = |value: &Value| brief_within(value, VALUE_AT_MOST);
    let old = |text: String| Span::new(AnsiColor::Red.on_default(), text);
    let new = |text: String| Span::new(AnsiColor::Green.on_default(), text);
    let path = shown(&pointed(&edit.path));
    match (&edit.old, &edit.new) {
        (Known::Value(was), Some(is)) => {
            let known = [Span::plain(format!("  {path} ")), old(value(was)), Span::faint(" → "), new(value(is))];
            known.to_vec()
        }
        (Known::Unknown, Some(is)) => vec![Span::plain(format!("  {path}")), Span::faint(" → "), new(value(is))],
        (Known::Nothing, Some(is)) => vec![Span::plain("  "), new(format!("+{path} {}", value(is)))],
        (Known::Value(was), None) => vec![Span::plain("  "), old(format!("-{path} {}", value(was)))],
        // Removed, or only the path is known: either way there is nothing to say but where.
        (_, None) => vec![Span::plain(format!("  {path}"))],
    }
}

impl News<'_> {
    fn sign(&self) -> (char, Ansi) {
        let (sign, colour) = match self {
            Self::Change { op: Op::Snapshot, .. } => return ('·', Ansi::new().dimmed()),
            Self::Change { op: Op::Create, .. } => ('+', AnsiColor::Green),
            Self::Change { op: Op::Update, .. } => ('~', AnsiColor::Yellow),
            Self::Change { op: Op::Delete, .. } => ('-', AnsiColor::Red),
            Self::Gap(_) | Self::StreamRemoved(_) => return ('!', AnsiColor::Magenta.on_default().bold()),
            Self::SnapshotStarted | Self::SnapshotFinished(_) | Self::ResyncFinished(_) | Self::Replay(_) => {
                return ('»', AnsiColor::Cyan.on_default().bold());
            }
        };
        (sign, colour.on_default())
    }

    /// What it is about, what is said of it, and remarks that are never cut.
    fn text(&self, detail: &Detail) -> (String, Vec<Span>, Vec<Span>) {
        let said = |subject: &str, text: String| (subject.to_owned(), Vec::new(), vec![Span::faint(text)]);
        match self {
            Self::Change { op, origin, namespace, name, version, previous } => {
                let slash = if namespace.is_empty() { "" } else { "/" };
                let mut remarks = Vec::new();
                let mut edits = Vec::new();
                match (detail.foremost(), previous, op) {
                    (Some((edit, more)), _, Op::Update) => {
                        edits = edited(edit);
                        remarks.extend((more > 0).then(|| Span::faint(format!("  (+{more} more)"))));
                    }
                    (_, Some(previous), Op::Update) => {
                        remarks.push(Span::faint(format!("  v{} → v{}", shown(previous), shown(version))));
                    }
                    _ => remarks.push(Span::faint(format!("  v{}", shown(version)))),
                }
                if *origin == Origin::List && *op != Op::Snapshot {
                    remarks.push(Span::faint("  (inferred)"));
                }
                (format!("{namespace}{slash}{name}"), edits, remarks)
            }
            Self::SnapshotStarted => said("snapshot started", String::new()),
            Self::SnapshotFinished(objects) => said("snapshot finished", format!(": {objects} objects")),
            Self::Gap(reason) => said("gap", format!(": {}", shown(reason))),
            Self::ResyncFinished(Counts { create, update, delete, unchanged }) => {
                said("resync finished", format!(": +{create} ~{update} -{delete}, {unchanged} unchanged"))
            }
            Self::StreamRemoved(deleted) => said("stream removed", format!(": -{deleted}")),
            Self::Replay(seq) => said("replay", format!(": from {}", seq + 1)),
        }
    }
}

#[cfg(test)]
mod tests;
