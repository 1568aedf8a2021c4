//! The change log as a whole: what goes in comes out, in order, after any end of the process and with the store gone.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{num::NonZeroU64, path::Path, sync::Arc};

use bytes::Bytes;
use kubetide::{
    change::{Cleaning, Managed, ObjectKey, Observed, Pattern, RedactKey, ResourceVersion, Writers},
    changelog::{Changelog, Entry, Errand, Fingerprint, OpenError, PageLimits, Phase, Setup},
    clock::Clock,
    config::{Start, WhenBehind},
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
    std::fs::write(directory.path().join("FORMAT"), "6").unwrap();
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

#[tokio::test(flavor = "multi_thread")]
async fn with_an_interval_nobody_sees_what_is_not_synced_and_everything_comes_in_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let mut setup = Setup::of("c-1");
    setup.keep.sync = kubetide::config::Sync::Every(std::time::Duration::from_secs(3600));
    let log = Changelog::open(directory.path(), setup.clone(), Clock::system(), &Vitals::new()).unwrap();
    let appender = log.appender();
    for version in 1..=20 {
        // Later entries are compared with earlier ones that are not in the store yet.
        appender.append(&pods, Entry::Present(observed("a", "a", version))).await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(log.head(), 0, "it is an hour until the next sync");
    appender.flush().await.unwrap();
    assert_eq!(log.head(), 20);
    appender.append(&pods, Entry::Deleted(observed("a", "a", 21))).await.unwrap();
    drop(appender);
    log.close().unwrap();
    for store_is_lost in [false, true] {
        if store_is_lost {
            std::fs::remove_dir_all(directory.path().join("store")).unwrap();
        }
        let log = Changelog::open(directory.path(), setup.clone(), Clock::system(), &Vitals::new()).unwrap();
        let mut expected = vec!["create a"];
        expected.extend(vec!["update a"; 19]);
        expected.push("delete a");
        assert_eq!(told(&records(&log, 1).await), expected);
        assert_eq!(log.known().rows_behind(&pods, None, 10).await.unwrap().len(), 0);
        log.close().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_a_stream_that_is_forgotten_stay_gone_and_whoever_is_behind_is_given_everything() {
    let directory = tempfile::tempdir().unwrap();
    let (pods, nodes) = (stream("pods"), stream("nodes"));
    let log = open(directory.path());
    for stream in [&pods, &nodes] {
        append(&log, stream, [list_needed(None), Entry::ListStarted(1)]).await;
        append(&log, stream, listed(&[("a", 1), ("b", 2)])).await;
        append(&log, stream, [Entry::ListFinished(ResourceVersion::new("5"))]).await;
    }
    // Gone from the cluster: its deletes are told, and nothing is forgotten.
    append(&log, &nodes, [Entry::Vanished(observed("a", "a", 1).key), Entry::Vanished(observed("b", "b", 2).key)])
        .await;
    append(&log, &nodes, [Entry::Gone]).await;
    assert!(!log.view().has_forgotten_deletes_behind(1).unwrap());
    append(&log, &pods, [Entry::Unfollowed]).await;
    let head = log.head();
    append(&log, &pods, [Entry::Forgotten]).await;
    log.close().unwrap();
    for rebuilt in [false, true] {
        if rebuilt {
            std::fs::remove_dir_all(directory.path().join("store")).unwrap();
        }
        let log = open(directory.path());
        assert_eq!(log.known().rows_behind(&pods, None, 10).await.unwrap().len(), 0, "rebuilt: {rebuilt}");
        assert!(log.view().has_forgotten_deletes_behind(head - 1).unwrap());
        assert!(!log.view().has_forgotten_deletes_behind(head).unwrap());
        log.close().unwrap();
    }
}

/// As the scanner leaves an object whose token was not a secret then, and whose password was.
fn with_token(name: &str, version: u64) -> Observed {
    let metadata = format!(r#"{{"name":"{name}","uid":"{name}","resourceVersion":"{version}"}}"#);
    let data = r#"{"token":"canary","password":"redacted:0123456789abcdef"}"#;
    let object = format!(r#"{{"kind":"Any","apiVersion":"v1","metadata":{metadata},"data":{data}}}"#);
    Observed { object: Ok(Bytes::from(object)), ..observed(name, name, version) }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_become_a_secret_since_is_told_from_no_row() {
    let directory = tempfile::tempdir().unwrap();
    let pods = stream("pods");
    let mut setup = Setup::of("c-1");
    setup.detail.before = true;
    let log = Changelog::open(directory.path(), setup.clone(), Clock::system(), &Vitals::new()).unwrap();
    append(&log, &pods, [list_needed(None), Entry::ListStarted(1)]).await;
    append(&log, &pods, (1..=4).map(|at| Entry::Listed(with_token(&format!("pod-{at}"), at)))).await;
    append(&log, &pods, [Entry::ListFinished(ResourceVersion::new("5"))]).await;
    log.close().unwrap();

    let log = Changelog::open(directory.path(), setup, Clock::system(), &Vitals::new()).unwrap();
    let redact = ["/data/token", "/data/password"].map(|path| Pattern::parse(path).unwrap()).to_vec();
    log.clean_rows_by(Cleaning { drop: vec![], redact, key: RedactKey::new(b"0123456789abcdef") });
    let head = log.head();
    // A new sink, while the stream was not compared yet.
    let cursor = log.attach("new", Start::Snapshot, WhenBehind::Resync).unwrap();
    let Some(Errand::CatchUp(catch_up)) = cursor.cursor().errand.clone() else { panic!("a new sink catches up") };
    let page = log.view().page(&catch_up, |_| true, PageLimits { records: 100, bytes: usize::MAX }).unwrap();
    assert_eq!(page.records.len(), 4);
    // Deletes that are seen and inferred, a recreation, and the state before an update.
    append(&log, &pods, [list_needed(Some(Reason::ConfigChanged)), Entry::ListStarted(2)]).await;
    let recreated = Observed { uid: "other".into(), ..observed("pod-2", "other", 7) };
    append(&log, &pods, [Entry::Listed(recreated), Entry::Listed(observed("pod-3", "pod-3", 8))]).await;
    log.appender().append_vanished(&pods, 2).await.unwrap();
    append(&log, &pods, [Entry::ListFinished(ResourceVersion::new("9"))]).await;
    let since = records(&log, head + 1).await;
    let expected =
        ["gap", "delete pod-2", "create pod-2", "update pod-3", "delete pod-1", "delete pod-4", "resync_finished"];
    assert_eq!(told(&since), expected);
    let mut from_rows = 0;
    for record in page.records.iter().chain(&since) {
        let Body::Change(change) = &record.body else { continue };
        for object in [&change.object, &change.before].into_iter().flatten() {
            let text = String::from_utf8_lossy(object);
            assert!(!text.contains("canary"), "{} tells {text}", record.op());
            if text.contains("token") {
                from_rows += 1;
                assert!(text.contains(r#""password":"redacted:0123456789abcdef""#), "a mark stays as it is: {text}");
            }
        }
    }
    assert_eq!(from_rows, 4 + 3 + 1, "four snapshots, three deletes, one state before");
}
