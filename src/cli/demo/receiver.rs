//! The receiver: a file of records, in a directory that can go away and come back, read as it grows.
//!
//! The path that the sink writes to leads through a link. While the receiver is away the link points nowhere, so that the sink
//! can neither open the file nor make another; both turns are one rename, so that there is no moment in between.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use jiff::Timestamp;
use kubetide_sink::{
    Counts, Op, Origin,
    format::{Brief, News},
};
use serde::Deserialize;
use serde_json::value::RawValue;

const FILE: &str = "changes.ndjson";

/// The receiving end.
pub(super) struct Receiver {
    directory: PathBuf,
    /// The end of the last whole line that was read.
    offset: u64,
}

impl Receiver {
    /// Makes the receiver in this directory.
    pub(super) fn open(directory: &Path) -> anyhow::Result<Self> {
        let receiver = Self { directory: directory.to_owned(), offset: 0 };
        std::fs::create_dir(receiver.directory.join("store")).context("cannot make the receiver's directory")?;
        receiver.link("store")?;
        Ok(receiver)
    }

    /// Where the sink writes to.
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join("receiver").join(FILE)
    }

    /// From now on every write fails.
    pub(super) fn go_away(&self) -> anyhow::Result<()> {
        self.link("nowhere")
    }

    /// Writes succeed again, and find what was written before.
    pub(super) fn come_back(&self) -> anyhow::Result<()> {
        self.link("store")
    }

    fn link(&self, target: &str) -> anyhow::Result<()> {
        let (link, next) = (self.directory.join("receiver"), self.directory.join("receiver.next"));
        let linked = symlink(target, &next).and_then(|()| std::fs::rename(&next, &link));
        linked.with_context(|| format!("cannot link {}", link.display()))
    }

    /// The records that have come since the last call. Half a line is left for the next one: a kill may leave it, and the
    /// next start cuts it off.
    pub(super) fn read(&mut self) -> anyhow::Result<Vec<Received>> {
        let path = self.directory.join("store").join(FILE);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).context("cannot read what was received"),
        };
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.offset))?;
        file.read_to_end(&mut text)?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.offset += whole as u64;
        let lines = text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).context("the receiver holds a line that is no record")).collect()
    }
}

/// A record, read back.
#[derive(Deserialize)]
pub(super) struct Received {
    pub(super) id: String,
    pub(super) log: Place,
    pub(super) op: String,
    #[serde(default)]
    pub(super) origin: String,
    pub(super) stream: String,
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) resource_version: String,
    pub(super) previous_resource_version: Option<String>,
    pub(super) observed_at: Timestamp,
    pub(super) reason: Option<String>,
    pub(super) counts: Option<Found>,
    pub(super) object: Option<Box<RawValue>>,
}

/// A record's place in the log.
#[derive(Deserialize)]
pub(super) struct Place {
    pub(super) seq: u64,
}

/// The counts of either kind of LIST.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Found {
    pub(super) snapshot: u64,
    create: u64,
    update: u64,
    delete: u64,
    unchanged: u64,
}

impl Received {
    /// What happened to the object; none for a control record.
    pub(super) fn change(&self) -> Option<Op> {
        [Op::Snapshot, Op::Create, Op::Update, Op::Delete].into_iter().find(|op| op.as_str() == self.op)
    }

    /// Whether it is a change that nobody saw, found by comparing.
    pub(super) fn is_inferred(&self) -> bool {
        self.origin == Origin::List.as_str() && self.change().is_some_and(|op| op != Op::Snapshot)
    }

    /// The record for a line on the screen; none for a control record that this demo does not know.
    pub(super) fn brief(&self) -> Option<Brief<'_>> {
        let found = self.counts.unwrap_or_default();
        let news = match (self.change(), self.op.as_str()) {
            (Some(op), _) => News::Change {
                op,
                origin: if self.origin == Origin::List.as_str() { Origin::List } else { Origin::Watch },
                namespace: &self.namespace,
                name: &self.name,
                version: &self.resource_version,
                previous: self.previous_resource_version.as_deref(),
            },
            (None, "snapshot_started") => News::SnapshotStarted,
            (None, "snapshot_finished") => News::SnapshotFinished(found.snapshot),
            (None, "gap") => News::Gap(self.reason.as_deref().unwrap_or_default()),
            (None, "resync_finished") => {
                let Found { create, update, delete, unchanged, .. } = found;
                News::ResyncFinished(Counts { create, update, delete, unchanged })
            }
            (None, _) => return None,
        };
        Some(Brief { stream: &self.stream, news })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::io::Write as _;

    use super::*;

    #[test]
    fn while_it_is_away_nothing_can_be_written_and_afterwards_all_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let receiver = Receiver::open(directory.path()).unwrap();
        let open = || File::options().append(true).create(true).open(receiver.path());
        open().unwrap().write_all(b"a\n").unwrap();
        receiver.go_away().unwrap();
        assert!(!receiver.path().exists());
        assert!(std::fs::create_dir_all(receiver.path().parent().unwrap()).is_err());
        assert!(open().is_err());
        receiver.come_back().unwrap();
        open().unwrap().write_all(b"b\n").unwrap();
        assert_eq!(std::fs::read_to_string(receiver.path()).unwrap(), "a\nb\n");
    }

    #[test]
    fn half_a_line_is_read_when_it_is_whole_and_forgotten_when_it_is_cut_off() {
        let directory = tempfile::tempdir().unwrap();
        let mut receiver = Receiver::open(directory.path()).unwrap();
        let record = |seq: u64| {
            format!(
                r#"{{"id":"{seq:032x}","log":{{"seq":{seq}}},"op":"gap","stream":"core/pods","observed_at":"2026-01-01T00:00:00Z"}}"#
            ) + "\n"
        };
        let (first, second) = (record(1), record(2));
        std::fs::write(receiver.path(), format!("{first}{}", &second[..20])).unwrap();
        assert_eq!(receiver.read().unwrap().len(), 1);
        assert!(receiver.read().unwrap().is_empty());
        std::fs::write(receiver.path(), format!("{first}{}{second}", record(3))).unwrap();
        let seqs: Vec<u64> = receiver.read().unwrap().iter().map(|received| received.log.seq).collect();
        assert_eq!(seqs, [3, 2]);
    }
}
