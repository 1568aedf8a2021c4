//! A record, read back from its native form: what `tail` and `log show` make their lines and diffs from.

use jiff::{Timestamp, tz::TimeZone};
use kubetide_sink::{
    Counts, Op, Origin,
    format::{Brief, Detail, Edit, News, Style, Was, diff, edits},
};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A record. Control records have fewer members.
#[derive(Deserialize)]
pub(super) struct Receipt<'a> {
    op: String,
    #[serde(default)]
    origin: String,
    stream: Option<String>,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    resource_version: Option<String>,
    previous_resource_version: Option<String>,
    pub(super) observed_at: Timestamp,
    reason: Option<String>,
    #[serde(default)]
    counts: Found,
    from: Option<Place>,
    change: Option<Difference>,
    actor: Option<Actor>,
    #[serde(borrow)]
    patch: Option<&'a RawValue>,
    was: Option<Was>,
}

#[derive(Deserialize)]
struct Place {
    seq: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Found {
    snapshot: u64,
    create: u64,
    update: u64,
    delete: u64,
    unchanged: u64,
}

#[derive(Deserialize)]
struct Difference {
    classes: Vec<String>,
    paths: Vec<String>,
}

#[derive(Deserialize)]
struct Actor {
    manager: String,
}

impl Receipt<'_> {
    /// The record in one line, without a line end.
    pub(super) fn line(&self, zone: &TimeZone, style: Style, columns: usize) -> String {
        let Self { change, actor, .. } = self;
        let detail = Detail {
            at: Some((self.observed_at, zone.clone())),
            edits: self.edits(),
            classes: change.as_ref().map(|change| change.classes.clone()).unwrap_or_default(),
            actor: actor.as_ref().map(|actor| actor.manager.clone()),
        };
        let stream = self.stream.as_deref().unwrap_or("*");
        Brief { stream, news: self.news() }.line_with(&detail, style, columns)
    }

    /// The patch as a diff, every line with its end.
    pub(super) fn diff(&self, margin: usize, style: Style, columns: usize) -> String {
        diff(&self.edits(), margin, style, columns)
    }

    /// The patch where there is one; where it was too large or cannot be read, its paths.
    fn edits(&self) -> Vec<Edit> {
        let patch = self.patch.and_then(|patch| edits(patch.get().as_bytes(), self.was.as_ref()));
        patch.unwrap_or_else(|| Detail::paths(self.change.iter().flat_map(|change| &change.paths)))
    }

    fn news(&self) -> News<'_> {
        let Found { snapshot, create, update, delete, unchanged } = self.counts;
        let op = [Op::Snapshot, Op::Create, Op::Update, Op::Delete].into_iter().find(|op| op.as_str() == self.op);
        match (op, self.op.as_str()) {
            (Some(op), _) => News::Change {
                op,
                origin: if self.origin == Origin::List.as_str() { Origin::List } else { Origin::Watch },
                namespace: &self.namespace,
                name: &self.name,
                version: self.resource_version.as_deref().unwrap_or_default(),
                previous: self.previous_resource_version.as_deref(),
            },
            (None, "snapshot_started") => News::SnapshotStarted,
            (None, "snapshot_finished") => News::SnapshotFinished(snapshot),
            (None, "resync_finished") => News::ResyncFinished(Counts { create, update, delete, unchanged }),
            (None, "stream_removed") => News::StreamRemoved(delete),
            (None, "replay") => News::Replay(self.from.as_ref().map_or(0, |from| from.seq)),
            (None, _) => News::Gap(self.reason.as_deref().unwrap_or_default()),
        }
    }
}
