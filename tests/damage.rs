//! A data directory with a wrong bit or a cut file, opened as a process opens it: refused, or with the same content. A sample of
//! them, a larger one with `KUBETIDE_TORTURE`: opening the store takes too long for all of them. Of the log's own files every
//! single one is tried in the unit tests, without the store.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;

use std::{
    fs,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use kubetide::{
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, CursorFile, Entry, Fingerprint, OpenError, Phase, ReadError, Setup},
    clock::Clock,
    config::{Start, WhenBehind},
    vitals::Vitals,
};
use kubetide_sink::{Record, Stream, sample};

use ended::Ended;

/// Segments of a few hundred bytes.
fn setup() -> Setup {
    let mut setup = Setup::of("c-1");
    setup.keep.max_bytes = NonZeroU64::new(8 * 1024).unwrap();
    setup
}

fn open(directory: &Path) -> Result<Changelog, OpenError> {
    Changelog::open(directory, setup(), Clock::system(), &Vitals::new())
}

fn attach(log: &Changelog) -> Result<CursorFile, OpenError> {
    log.attach("audit", Start::Earliest, WhenBehind::Resync)
}

fn pods() -> Arc<Stream> {
    Arc::new(sample::stream("pods", "Pod"))
}

/// What is to be had of a log: its records, where the sink is, what the stream is doing, and what is known of its objects.
#[derive(Debug, PartialEq)]
struct Content {
    records: Vec<Record>,
    acknowledged: u64,
    phase: Phase,
    rows: Vec<(ObjectKey, String)>,
}

async fn content(log: &Changelog) -> Result<Content, ReadError> {
    let mut reader = log.reader(log.view().oldest());
    let mut records = Vec::new();
    while reader.is_ready() {
        records.extend(reader.read().await?);
    }
    let acknowledged = attach(log)?.cursor().acknowledged;
    let known = log.known();
    let phase = known.state(&pods()).map_err(OpenError::from)?.phase;
    let rows = known.rows_behind(&pods(), None, usize::MAX).await.map_err(OpenError::from)?;
    let told = |row: kubetide::change::Row| format!("{} {} {} {:?}", row.uid, row.seq, row.seen, row.object);
    let rows = rows.into_iter().map(|(key, row)| (key, told(row))).collect();
    Ok(Content { records, acknowledged, phase, rows })
}

/// A stream that was listed and then watched, in frames of one record, and a sink that has acknowledged all of it.
async fn make(directory: &Path, versions: u64) -> Content {
    let log = open(directory).unwrap();
    let mut sink = attach(&log).unwrap();
    log.all_attached();
    let (stream, appender) = (pods(), log.appender());
    let observed = |version: u64| Observed {
        key: ObjectKey { namespace: "n".into(), name: format!("pod-{}", version % 5) },
        uid: format!("u-{}", version % 5),
        version: ResourceVersion::new(version.to_string()),
        generation: None,
        managed: Managed::default(),
        writers: Writers::default(),
        object: Ok(Bytes::from(format!("{{\"version\":{version}}}"))),
    };
    let needed = Entry::ListNeeded { reason: None, fingerprint: Fingerprint::default(), asked_as: "pods".into() };
    let finished = Entry::ListFinished(ResourceVersion::new("3".to_owned()));
    let listed = [needed, Entry::ListStarted(1), Entry::Listed(observed(1)), Entry::Listed(observed(2)), finished];
    let watched = (3..versions).map(|version| Entry::Present(observed(version)));
    for entry in listed.into_iter().chain(watched).chain([Entry::Deleted(observed(versions))]) {
        appender.append(&stream, entry).await.unwrap();
        appender.flush().await.unwrap();
        let (from, head) = (sink.cursor().acknowledged + 1, log.head());
        if head >= from {
            sink.begin(from, head).unwrap();
            sink.acknowledge(head).unwrap();
        }
    }
    drop((sink, appender));
    let content = content(&log).await.unwrap();
    log.close().unwrap();
    content
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (source, target) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        if source.is_dir() {
            copy(&source, &target);
        } else {
            fs::copy(source, target).unwrap();
        }
    }
}

/// Every `stride`th of all single-bit flips and cuts of a file.
fn wrongs(file: &Path, stride: usize) -> impl Iterator<Item = Vec<u8>> {
    let bytes = fs::read(file).unwrap();
    let places = bytes.len() * 9;
    (0..places).step_by(stride).map(move |place| match place.checked_sub(bytes.len() * 8) {
        Some(len) => bytes[..len].to_vec(),
        None => {
            let mut bytes = bytes.clone();
            bytes[place / 8] ^= 1 << (place % 8);
            bytes
        }
    })
}

fn torture() -> bool {
    std::env::var_os("KUBETIDE_TORTURE").is_some()
}

/// Opens a copy of the directory in which one file is another, and says what is to be had of it.
async fn tried(whole: &Path, file: &Path, wrong: &[u8], without: Option<&str>) -> Result<Content, ReadError> {
    let home = tempfile::tempdir().unwrap();
    copy(whole, home.path());
    if let Some(lost) = without {
        fs::remove_dir_all(home.path().join(lost)).unwrap();
    }
    fs::write(home.path().join(file.strip_prefix(whole).unwrap()), wrong).unwrap();
    let log = open(home.path())?;
    let content = content(&log).await;
    log.close().unwrap();
    content
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_bit_or_a_cut_is_refused_by_file_or_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let whole = home.path().join("whole");
    let content = make(&whole, 12).await;
    let below = |sub: &str| files_below(&whole.join(sub));
    let files = [vec![whole.join("FORMAT")], below("log"), below("cursors")].concat();
    let segments = files.iter().filter(|file| file.extension().is_some_and(|end| end == "seg")).count();
    assert!(segments >= 2 && files.len() == segments + 3, "{files:?}");

    // Primes: over the files they meet every kind of place in them.
    let stride = if torture() { 31 } else { 997 };
    let (mut tries, mut refused) = (0, 0);
    for file in &files {
        for wrong in wrongs(file, stride) {
            for without in [None, Some("store")] {
                tries += 1;
                match tried(&whole, file, &wrong, without).await {
                    Ok(opened) => {
                        let behind = content.acknowledged - 1;
                        assert!(
                            [behind, content.acknowledged].contains(&opened.acknowledged),
                            "the newest copy, or the one before it"
                        );
                        assert_eq!(
                            Content { acknowledged: content.acknowledged, ..opened },
                            content,
                            "{}",
                            file.display()
                        );
                    }
                    Err(ReadError::Log(OpenError::Damaged { .. } | OpenError::Format { .. })) => refused += 1,
                    Err(other) => panic!("{}: {other}", file.display()),
                }
            }
        }
    }
    assert!(tries > 20 && refused > 10 && refused < tries, "{refused} of {tries} were refused");
    println!("log, cursors, format: {tries} tried, {refused} refused");
}

/// What the commands tell of the directory: every record, and every object as it is known.
async fn told(directory: &Path) -> [Ended; 2] {
    let run = |arguments: [&str; 2]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(arguments).args(["--output", "json", "--data-dir"]).arg(directory);
        ended::ended(command)
    };
    [run(["log", "export"]).await, run(["objects", "list"]).await]
}

/// The store is built from the log. What fjall does not notice, or takes for the end of its journal, must be made good from the
/// log or be refused, also where the log no longer has its beginning. At some of it fjall aborts the process: so these are
/// processes.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_bit_or_a_cut_in_the_store_is_refused_or_made_good_from_the_log() {
    for versions in [12, 200] {
        let home = tempfile::tempdir().unwrap();
        let (whole, tried) = (home.path().join("whole"), home.path().join("tried"));
        let is_trimmed = make(&whole, versions).await.records[0].seq > 1;
        assert_eq!(is_trimmed, versions == 200);
        let right = told(&whole).await;
        assert!(right.iter().all(|ended| ended.code == Some(0) && ended.stdout.contains("pod-1")), "{right:#?}");
        let (mut tries, mut refused) = (0, 0);
        for file in files_below(&whole.join("store")) {
            // What was written last is in the journal alone, whose end may be anywhere.
            let of_file = if file.extension().is_some_and(|end| end == "jnl") { 12 } else { 2 };
            let of_file = if torture() { of_file * 20 } else { of_file };
            let stride = (fs::metadata(&file).unwrap().len() as usize * 9 / of_file).max(1) | 1;
            for wrong in wrongs(&file, stride) {
                tries += 1;
                let _ = fs::remove_dir_all(&tried);
                copy(&whole, &tried);
                fs::write(tried.join(file.strip_prefix(&whole).unwrap()), &wrong).unwrap();
                let told = told(&tried).await;
                for (told, right) in told.iter().zip(&right) {
                    if told.code == Some(0) {
                        assert_eq!(told.stdout, right.stdout, "{}", file.display());
                    } else {
                        told.assert_refused(1, &["tried", "restore the data directory from a copy"]);
                    }
                }
                refused += usize::from(told.iter().any(|told| told.code != Some(0)));
            }
        }
        assert!(tries > 20 && refused > 10 && refused < tries, "{refused} of {tries} were refused");
        println!("store, trimmed {is_trimmed}: {tries} tried, {refused} refused");
    }
}
