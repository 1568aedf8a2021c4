//! A data directory with a wrong bit or a cut file, opened as a process opens it: refused, or with the same content. A sample of
//! them, a larger one with `KUBETIDE_TORTURE`: opening the store takes too long for all of them. Without the store every single
//! one is tried in the unit tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    fs,
    num::NonZeroU64,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use kubetide::{
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, CursorFile, Entry, OpenError, ReadError, Setup},
    clock::Clock,
    config::{Start, WhenBehind},
    vitals::Vitals,
};
use kubetide_sink::{Record, sample};

/// Segments of a few hundred bytes.
fn setup() -> Setup {
    let mut setup = Setup::of("c-1");
    setup.keep.max_bytes = NonZeroU64::new(8 * 1024).unwrap();
    setup
}

fn open(directory: &Path) -> Result<Changelog, OpenError> {
    Changelog::open(directory, setup(), Clock::system(), &Vitals::new())
}

async fn read(log: &Changelog) -> Result<Vec<Record>, ReadError> {
    let mut reader = log.reader(1);
    let mut all = Vec::new();
    while reader.is_ready() {
        all.extend(reader.read().await?);
    }
    Ok(all)
}

async fn make(directory: &Path) -> Vec<Record> {
    let log = open(directory).unwrap();
    let stream = Arc::new(sample::stream("pods", "Pod"));
    for version in 1..=12 {
        let observed = Observed {
            key: ObjectKey { namespace: "n".into(), name: format!("pod-{}", version % 5) },
            uid: format!("u-{}", version % 5),
            version: ResourceVersion::new(version.to_string()),
            generation: None,
            managed: Managed::default(),
            writers: Writers::default(),
            object: Ok(Bytes::from(format!("{{\"version\":{version}}}"))),
        };
        let appender = log.appender();
        appender.append(&stream, Entry::Present(observed)).await.unwrap();
        appender.flush().await.unwrap();
    }
    let records = read(&log).await.unwrap();
    let mut cursor = attach(&log).unwrap();
    cursor.begin(1, 12).unwrap();
    cursor.acknowledge(12).unwrap();
    log.close().unwrap();
    records
}

fn attach(log: &Changelog) -> Result<CursorFile, OpenError> {
    log.attach("audit", Start::Earliest, WhenBehind::Resync)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = vec![directory.join("FORMAT")];
    for sub in ["log", "cursors"] {
        files.extend(fs::read_dir(directory.join(sub)).unwrap().map(|entry| entry.unwrap().path()));
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

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_bit_or_a_cut_is_refused_by_file_or_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (whole, tried) = (home.path().join("whole"), home.path().join("tried"));
    let records = make(&whole).await;
    assert_eq!(records.len(), 12);
    let files = files(&whole);
    let segments = files.iter().filter(|file| file.extension().is_some_and(|end| end == "seg")).count();
    assert!(segments >= 2 && files.len() == segments + 3, "{files:?}");

    // Primes: over the files they meet every kind of place in them.
    let stride = if std::env::var_os("KUBETIDE_TORTURE").is_some() { 31 } else { 997 };
    let (mut tries, mut refused) = (0, 0);
    for file in &files {
        let bytes = fs::read(file).unwrap();
        let flips = (0..bytes.len() * 8).map(|bit| {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bytes
        });
        let cuts = (0..bytes.len()).map(|len| bytes[..len].to_vec());
        for wrong in flips.chain(cuts).step_by(stride) {
            for store_lost in [false, true] {
                let _ = fs::remove_dir_all(&tried);
                copy(&whole, &tried);
                if store_lost {
                    fs::remove_dir_all(tried.join("store")).unwrap();
                }
                fs::write(tried.join(file.strip_prefix(&whole).unwrap()), &wrong).unwrap();
                tries += 1;
                let (opened, sink) = match open(&tried) {
                    Ok(log) => {
                        let (opened, sink) = (read(&log).await, attach(&log));
                        log.close().unwrap();
                        (opened, sink.map(|sink| sink.cursor().acknowledged))
                    }
                    Err(error) => (Err(error.into()), Ok(0)),
                };
                match (opened, sink) {
                    (Ok(opened), Ok(acknowledged)) => {
                        assert_eq!(opened, records, "{}", file.display());
                        assert!(acknowledged == 12 || acknowledged == 0, "the newest copy, or the one before it");
                    }
                    (Err(ReadError::Log(OpenError::Damaged { .. } | OpenError::Format { .. })), _)
                    | (Ok(_), Err(OpenError::Damaged { .. })) => refused += 1,
                    (opened, sink) => panic!("{}: {opened:?}, {sink:?}", file.display()),
                }
            }
        }
    }
    assert!(tries > 20 && refused > 10 && refused < tries, "{refused} of {tries} were refused");
}
