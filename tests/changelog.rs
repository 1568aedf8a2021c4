//! The change log as a whole: what goes in comes out, in order, after any end of the process and with the store gone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{num::NonZeroU64, path::Path, sync::Arc};

use bytes::Bytes;
use kubetide::{
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, Entry, Fingerprint, OpenError, Phase, Setup},
    clock::Clock,
    vitals::Vitals,
};
use kubetide_sink::{Body, Op, Reason, Record, Stream, What, sample};

fn stream(resource: &str) -> Arc<Stream> {
    Arc::new(sample::stream(resource, "Any"))
}

fn observed(name: &str, uid: &str, version: u64) -> Observed {
    Observed {
        key: ObjectKey { namespace: "n".into(), name: name.into() },
        uid: uid.into(),
        version: ResourceVersion::new(version.to_string()),
        generation: None,
        managed: Managed::default(),
        writers: Writers::default(),
        object: Ok(Bytes::from(format!("{{\"name\":\"{name}\",\"version\":{version}}}"))),
    }
}

fn try_open(directory: &Path, uid: &str) -> Result<Changelog, OpenError> {
    Changelog::open(directory, Setup::of(uid), Clock::system(), &Vitals::new())
}

fn open(directory: &Path) -> Changelog {
    try_open(directory, "c-1").unwrap()
}

fn list_needed(reason: Option<Reason>) -> Entry {
    Entry::ListNeeded { reason, fingerprint: Fingerprint::default(), asked_as: "any".into() }
}

async fn append(log: &Changelog, stream: &Arc<Stream>, entries: impl IntoIterator<Item = Entry>) {
    let appender = log.appender();
    for entry in entries {
        appender.append(stream, entry).await.unwrap();
    }
    appender.flush().await.unwrap();
}

async fn records(log: &Changelog, from: u64) -> Vec<Record> {
    let mut reader = log.reader(from);
    let mut all = Vec::new();
    while reader.is_ready() {
        all.extend(reader.read().await.unwrap());
    }
    all
}

/// One word for each record: `create a`, `gap`.
fn told(records: &[Record]) -> Vec<String> {
    let word = |record: &Record| match &record.body {
        Body::Change(change) => format!("{} {}", record.op(), change.name),
        Body::Control(_) => record.op().to_owned(),
    };
    records.iter().map(word).collect()
}

fn listed(names: &[(&str, u64)]) -> impl Iterator<Item = Entry> {
    names.iter().map(|(name, version)| Entry::Listed(observed(name, name, *version)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_a_watch_and_a_resync_are_told_in_order_and_survive_the_loss_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let log = open(directory.path());
    append(&log, &pods, [list_needed(None), Entry::ListStarted(1)]).await;
    append(&log, &pods, listed(&[("a", 1), ("b", 2), ("c", 3)])).await;
    log.appender().append_vanished(&pods, 1).await.unwrap();
    append(&log, &pods, [Entry::ListFinished(ResourceVersion::new("5"))]).await;
    append(&log, &pods, [Entry::Present(observed("a", "a", 6)), Entry::Deleted(observed("b", "b", 7))]).await;
    append(&log, &pods, [list_needed(Some(Reason::Expired)), Entry::ListStarted(2)]).await;
    append(&log, &pods, listed(&[("a", 6), ("d", 9)])).await;
    log.appender().append_vanished(&pods, 2).await.unwrap();
    append(&log, &pods, [Entry::ListFinished(ResourceVersion::new("10"))]).await;
    let expected = [
        "snapshot_started",
        "snapshot a",
        "snapshot b",
        "snapshot c",
        "snapshot_finished",
        "update a",
        "delete b",
        "gap",
        "create d",
        "delete c",
        "resync_finished",
    ];
    let before = records(&log, 1).await;
    assert_eq!(told(&before), expected);
    let Body::Control(last) = &before[10].body else { panic!("not a control record") };
    let What::ResyncFinished { counts, .. } = &last.what else { panic!("{last:?}") };
    assert_eq!((counts.create, counts.update, counts.delete, counts.unchanged), (1, 0, 1, 1));
    let Body::Control(gap) = &before[7].body else { panic!("not a control record") };
    let What::Gap { from, .. } = &gap.what else { panic!("{gap:?}") };
    assert_eq!((from.resource_version.as_deref(), from.seq), (Some("7"), 7));
    log.close().unwrap();

    std::fs::remove_dir_all(directory.path().join("store")).unwrap();
    let log = open(directory.path());
    assert_eq!(records(&log, 1).await, before);
    assert!(
        matches!(log.known().state(&pods).unwrap().phase, Phase::Watching { position, .. } if position.as_str() == "10")
    );
    // The rows are back: the same state again is nothing, a newer one is an update of it.
    append(&log, &pods, [Entry::Present(observed("d", "d", 9)), Entry::Present(observed("d", "d", 11))]).await;
    let new = records(&log, 12).await;
    assert_eq!(told(&new), ["update d"]);
    let Body::Change(change) = &new[0].body else { panic!("not a change") };
    assert_eq!((change.op, change.previous_resource_version.as_deref()), (Op::Update, Some("9")));
    log.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_was_interrupted_is_not_announced_again_and_infers_from_its_last_attempt_alone() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let log = open(directory.path());
    append(&log, &pods, [list_needed(None), Entry::ListStarted(1)]).await;
    append(&log, &pods, listed(&[("a", 1), ("b", 2)])).await;
    log.close().unwrap();

    let log = open(directory.path());
    assert!(matches!(log.known().state(&pods).unwrap().phase, Phase::Listing { .. }));
    // Another attempt breaks off after "b"; then one is complete, and "b" is gone by then.
    append(&log, &pods, [Entry::ListStarted(1)]).await;
    append(&log, &pods, listed(&[("b", 2)])).await;
    append(&log, &pods, [Entry::ListStarted(2)]).await;
    append(&log, &pods, listed(&[("a", 1), ("c", 3)])).await;
    log.appender().append_vanished(&pods, 2).await.unwrap();
    append(&log, &pods, [Entry::ListFinished(ResourceVersion::new("9"))]).await;
    let all = records(&log, 1).await;
    assert_eq!(
        told(&all),
        ["snapshot_started", "snapshot a", "snapshot b", "snapshot c", "delete b", "snapshot_finished"]
    );
    log.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_do_not_infer_deletes_in_each_other() {
    let directory = tempfile::tempdir().unwrap();
    // One name is the beginning of the other.
    let (short, long) = (stream("pod"), stream("pods"));
    let log = open(directory.path());
    for (of, names) in [(&short, &[("a", 1)]), (&long, &[("z", 2)])] {
        append(&log, of, [list_needed(None), Entry::ListStarted(1)]).await;
        append(&log, of, listed(names)).await;
        log.appender().append_vanished(of, 1).await.unwrap();
        append(&log, of, [Entry::ListFinished(ResourceVersion::new("3"))]).await;
    }
    assert!(!told(&records(&log, 1).await).iter().any(|word| word.starts_with("delete")));
    log.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_may_start_anywhere_and_follows_the_head() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let log = open(directory.path());
    let mut follower = log.reader(1);
    for version in 1..=300 {
        append(&log, &pods, [Entry::Present(observed("a", "a", version))]).await;
    }
    assert_eq!(log.head(), 300);
    for from in [1, 2, 150, 299, 300, 301] {
        let seqs: Vec<u64> = records(&log, from).await.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, (from..=300).collect::<Vec<_>>());
    }
    let mut next = 1;
    while next <= 300 {
        assert!(follower.ready().await);
        for record in follower.read().await.unwrap() {
            assert_eq!(record.seq, next);
            next += 1;
        }
    }
    assert!(!follower.is_ready());
    log.close().unwrap();
    assert!(!follower.ready().await, "a closed log has nothing more to come");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_another_cluster_and_another_format_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path());
    assert!(matches!(try_open(directory.path(), "c-1"), Err(OpenError::Locked { .. })));
    log.close().unwrap();
    assert!(matches!(try_open(directory.path(), "c-2"), Err(OpenError::OtherCluster { .. })));
    std::fs::write(directory.path().join("FORMAT"), "99").unwrap();
    assert!(matches!(try_open(directory.path(), "c-1"), Err(OpenError::Format { .. })));
    std::fs::write(directory.path().join("FORMAT"), "5").unwrap();
    open(directory.path()).close().unwrap();
}

/// A crash may fall between the opening of a segment and its first records: the states that it opens with must not be ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_is_never_ahead_of_its_records_wherever_the_log_ends() {
    let home = tempfile::tempdir().unwrap();
    let (whole, cut) = (home.path().join("whole"), home.path().join("cut"));
    let open = |directory: &Path| {
        // Segments of a few hundred bytes.
        let mut setup = Setup::of("c-1");
        setup.keep.max_bytes = NonZeroU64::new(8 * 1024).unwrap();
        Changelog::open(directory, setup, Clock::system(), &Vitals::new())
    };
    let pods = stream("pods");
    let log = open(&whole).unwrap();
    for version in 1..=12 {
        append(&log, &pods, [Entry::Present(observed("a", "u", version))]).await;
    }
    log.close().unwrap();
    let mut segments: Vec<_> =
        std::fs::read_dir(whole.join("log")).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.extension().is_some_and(|end| end == "seg"));
    segments.sort();
    assert!(segments.len() >= 3, "{segments:?}");
    let mut opened = 0;
    for last in 1..segments.len() {
        let bytes = std::fs::read(&segments[last]).unwrap();
        for len in (0..=bytes.len()).step_by(7) {
            let _ = std::fs::remove_dir_all(&cut);
            std::fs::create_dir_all(cut.join("log")).unwrap();
            std::fs::create_dir_all(cut.join("cursors")).unwrap();
            for name in ["FORMAT", "log/ID"] {
                std::fs::copy(whole.join(name), cut.join(name)).unwrap();
            }
            for segment in &segments[..last] {
                std::fs::copy(segment, cut.join("log").join(segment.file_name().unwrap())).unwrap();
            }
            std::fs::write(cut.join("log").join(segments[last].file_name().unwrap()), &bytes[..len]).unwrap();
            let Ok(log) = open(&cut) else { continue };
            opened += 1;
            let newest = records(&log, 1).await.last().map(|record| match &record.body {
                Body::Change(change) => change.resource_version.clone(),
                Body::Control(control) => panic!("{control:?}"),
            });
            let Phase::Watching { position, .. } = log.known().state(&pods).unwrap().phase else {
                panic!("no position")
            };
            assert_eq!(Some(position.to_string()), newest, "segment {last} cut at {len}");
            log.close().unwrap();
        }
    }
    assert!(opened > 10, "{opened}");
}
