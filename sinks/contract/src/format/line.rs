//! One line per record for people: `~ apps/deployments  default/web  spec.replicas 2 → 3  (+3 more)`.
//!
//! The one place that knows how such a line looks. A [`Brief`] is what it tells, whether it comes from a [`Record`] or was
//! read back from a receiver; a [`Detail`] is what more is known. A line never wraps: where there is no room the actor
//! goes first, then the classes, then as `shares.rs` says. What differs between two values goes last.

mod shares;

use anstyle::{AnsiColor, Style as Ansi};
use jiff::{Timestamp, tz::TimeZone};

use super::{
    edit::{self, Edit, Known},
    span::{Span, cut_end, cut_middle, cut_spans, paint, shown, width, width_of},
};
use shares::{Edited, Shares};

use crate::{Body, Change, Counts, Op, Origin, Record, What};

/// Wide enough for `apps/deployments`, so that the names behind most streams stand in one column.
const STREAM_WIDTH: usize = 16;
/// Where there is not room for everything, a value or an actor is to be recognised, not read.
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
    /// What follows are so many dead letters, given again.
    Letters(u64),
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
                What::Letters { letters, .. } => News::Letters(*letters),
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
        let edit = |path: &String| Edit { path: path.clone(), old: Known::Unknown, new: Known::Unknown };
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
    let large = [&edit.old, &edit.new].into_iter().any(|side| matches!(side, Known::Value(value) if value.is_large()));
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
        let (subject, edit, mut remarks) = self.news.text(detail);
        let (stream, subject) = (shown(self.stream), shown(&subject));
        let padding = |stream: &str| " ".repeat(STREAM_WIDTH.saturating_sub(width(stream)) + 2);
        let fixed = width_of(&line) + width(&format!("{sign} {}", padding(&stream)));
        let mut shares = Shares::of(&stream, &subject, edit.as_ref());
        if !shares.fit(columns.saturating_sub(fixed + width_of(&remarks))) {
            // `(+3)` rather than half a value.
            remarks.iter_mut().for_each(|remark| remark.text = remark.text.replace(" more)", ")"));
            shares = Shares::of(&stream, &subject, edit.as_ref());
            shares.fit(columns.saturating_sub(fixed + width_of(&remarks)));
        }
        let stream = cut_middle(&stream, shares.stream);
        line.push(Span::new(colour, format!("{sign} {stream}{}", padding(&stream))));
        let name_style = if matches!(self.news, News::Change { .. }) { Ansi::new().bold() } else { colour };
        line.push(Span::new(name_style, cut_middle(&subject, shares.name)));
        line.extend(edit.map(|edit| edit.spans(&shares)).unwrap_or_default());
        // On a terminal that is too narrow for the least of everything.
        line = cut_spans(line, columns.saturating_sub(width_of(&remarks)));
        line.extend(remarks);
        let mut left = columns.saturating_sub(width_of(&line));
        let classes = (!detail.classes.is_empty()).then(|| format!("  {}", shown(&detail.classes.join(","))));
        let actor = detail.actor.as_ref().map(|actor| format!("  by {}", shown(actor)));
        let actor = actor.map(|actor| if width(&actor) <= left { actor } else { cut_end(&actor, VALUE_AT_MOST) });
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

impl News<'_> {
    fn sign(&self) -> (char, Ansi) {
        let (sign, colour) = match self {
            Self::Change { op: Op::Snapshot, .. } => return ('·', Ansi::new().dimmed()),
            Self::Change { op: Op::Create, .. } => ('+', AnsiColor::Green),
            Self::Change { op: Op::Update, .. } => ('~', AnsiColor::Yellow),
            Self::Change { op: Op::Delete, .. } => ('-', AnsiColor::Red),
            Self::Gap(_) | Self::StreamRemoved(_) => return ('!', AnsiColor::Magenta.on_default().bold()),
            Self::SnapshotStarted
            | Self::SnapshotFinished(_)
            | Self::ResyncFinished(_)
            | Self::Replay(_)
            | Self::Letters(_) => {
                return ('»', AnsiColor::Cyan.on_default().bold());
            }
        };
        (sign, colour.on_default())
    }

    /// What it is about, what was edited, and remarks that are never cut.
    fn text(&self, detail: &Detail) -> (String, Option<Edited>, Vec<Span>) {
        let said = |subject: &str, text: String| (subject.to_owned(), None, vec![Span::faint(text)]);
        match self {
            Self::Change { op, origin, namespace, name, version, previous } => {
                let slash = if namespace.is_empty() { "" } else { "/" };
                let mut remarks = Vec::new();
                let mut edited = None;
                match (detail.foremost(), previous, op) {
                    (Some((edit, more)), _, Op::Update) => {
                        edited = Some(Edited::new(edit));
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
                (format!("{namespace}{slash}{name}"), edited, remarks)
            }
            Self::SnapshotStarted => said("snapshot started", String::new()),
            Self::SnapshotFinished(objects) => said("snapshot finished", format!(": {objects} objects")),
            Self::Gap(reason) => said("gap", format!(": {}", shown(reason))),
            Self::ResyncFinished(Counts { create, update, delete, unchanged }) => {
                said("resync finished", format!(": +{create} ~{update} -{delete}, {unchanged} unchanged"))
            }
            Self::StreamRemoved(deleted) => said("stream removed", format!(": -{deleted}")),
            Self::Replay(seq) => said("replay", format!(": from {}", seq + 1)),
            Self::Letters(letters) => said("replay", format!(": {letters} dead letters")),
        }
    }
}

#[cfg(test)]
mod tests;
