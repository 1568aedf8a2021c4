//! One line per record for people: `~ apps/deployments  default/web  v7 → v9`.
//!
//! The one place that knows how such a line looks. A [`Brief`] is what it tells, whether it comes from a [`Record`] or was
//! read back from a receiver. Object names come from the cluster's users: control characters are shown, not sent to the
//! terminal.

use anstyle::{AnsiColor, Style as Ansi};

use crate::{Body, Change, Counts, Op, Origin, Record, What};

/// Wide enough for `apps/deployments`, so that the names behind most streams stand in one column.
const STREAM_WIDTH: usize = 16;

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

/// The record in one line, without a line end.
pub fn line(record: &Record, style: Style) -> String {
    let stream = record.stream.to_string();
    let news = match &record.body {
        Body::Change(change) => change_news(change),
        Body::Control(control) => match &control.what {
            What::SnapshotStarted => News::SnapshotStarted,
            What::SnapshotFinished { snapshot, .. } => News::SnapshotFinished(*snapshot),
            What::Gap { reason, .. } => News::Gap(reason.as_str()),
            What::ResyncFinished { counts, .. } => News::ResyncFinished(*counts),
            What::StreamRemoved { deleted } => News::StreamRemoved(*deleted),
            What::Replay { from } => News::Replay(from.seq),
        },
    };
    Brief { stream: &stream, news }.line(style, usize::MAX)
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

impl Brief<'_> {
    /// The line, without a line end, in at most `width` columns: a long name is cut, the versions behind it are not.
    pub fn line(&self, style: Style, width: usize) -> String {
        let (sign, colour) = self.news.sign();
        let (subject, rest) = self.news.text();
        let head = format!("{sign} {:<STREAM_WIDTH$}  {}", self.stream, shown(&subject));
        let head = cut(&head, width.saturating_sub(rest.chars().count()));
        match style {
            Style::Plain => format!("{head}{rest}"),
            Style::Coloured => {
                let faint = Ansi::new().dimmed();
                format!("{colour}{head}{colour:#}{faint}{rest}{faint:#}")
            }
        }
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

    /// What it is about, and what is said of it.
    fn text(&self) -> (String, String) {
        match self {
            Self::Change { op, origin, namespace, name, version, previous } => {
                let slash = if namespace.is_empty() { "" } else { "/" };
                let versions = match (previous, op) {
                    (Some(previous), Op::Update) => format!("  v{} → v{}", shown(previous), shown(version)),
                    _ => format!("  v{}", shown(version)),
                };
                let inferred = if *origin == Origin::List && *op != Op::Snapshot { "  (inferred)" } else { "" };
                (format!("{namespace}{slash}{name}"), format!("{versions}{inferred}"))
            }
            Self::SnapshotStarted => ("snapshot started".into(), String::new()),
            Self::SnapshotFinished(objects) => ("snapshot finished".into(), format!(": {objects} objects")),
            Self::Gap(reason) => ("gap".into(), format!(": {}", shown(reason))),
            Self::ResyncFinished(Counts { create, update, delete, unchanged }) => {
                ("resync finished".into(), format!(": +{create} ~{update} -{delete}, {unchanged} unchanged"))
            }
            Self::StreamRemoved(deleted) => ("stream removed".into(), format!(": -{deleted}")),
            Self::Replay(seq) => ("replay".into(), format!(": from {}", seq + 1)),
        }
    }
}

fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_name_that_does_not_fit_is_cut_and_the_versions_stay() {
        let long = change(Op::Update, Origin::List, "a-very-long-name-that-does-not-fit").line(Style::Plain, 50);
        assert_eq!(long, "~ core/pods         default/…  v7 → v9  (inferred)");
        assert_eq!(long.chars().count(), 50);
    }

    #[test]
    fn control_characters_in_a_name_do_not_reach_the_terminal() {
        let line = plain(change(Op::Create, Origin::Watch, "a\u{1b}[2Jb\n"));
        assert!(!line.contains(['\u{1b}', '\n']), "{line:?}");
    }
}
