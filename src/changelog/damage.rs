//! Every single wrong bit and every cut of every file of a small data directory, with the store at its end and with the store
//! lost: refused by file, or opened with the same content. All of them, without a store, so that it takes seconds.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use jiff::Timestamp;
use kubetide_sink::{Record, sample};
use tokio::sync::watch;

use super::{
    Cursor, CursorFile, LogReader, OpenError, ReadError, cursor,
    directory::Directory,
    disk::{Disk as _, faulty::FaultyDisk},
    frame::Frame,
    segment::{Place, Recovery},
};
use crate::change::Managed;

const LOG: &str = "/data/log";
const CURSORS: &str = "/data/cursors";

/// What is to be read of a directory: all records, and where the sink is.
type Content = (Vec<Record>, Cursor);

struct Whole {
    disk: FaultyDisk,
    content: Content,
    end: Place,
}

/// Three segments with five frames of records, and a sink that has acknowledged all of it.
fn whole() -> Whole {
    let disk = FaultyDisk::default();
    let mut records = Vec::new();
    let (mut writer, _) = recovery(&disk, sample::LOG_ID, None, 0, |recovery| recovery.run(|_, _| Ok(()))).unwrap();
    for (first, last) in [(1, 2), (3, 3), (4, 6), (7, 7), (8, 9)] {
        if first == 4 || first == 8 {
            writer.roll(&Frame { first_seq: first, ..Frame::default() }, Timestamp::UNIX_EPOCH).unwrap();
        }
        let new: Vec<Record> = (first..=last).map(|seq| sample::record(seq, format!("{{\"n\":{seq}}}"))).collect();
        records.extend(new.clone());
        let managed = vec![Managed::default(); new.len()];
        writer.append(&Frame { first_seq: first, records: new, managed, ..Frame::default() }).unwrap();
    }
    let mut sink = CursorFile::create_on(&disk, Path::new(CURSORS), "audit", Cursor::new(sample::LOG_ID, 0)).unwrap();
    sink.begin(1, 9).unwrap();
    sink.acknowledge(9).unwrap();
    let content = (records, sink.cursor().clone());
    Whole { disk, content, end: writer.place() }
}

fn recovery<T>(
    disk: &FaultyDisk,
    log_id: &str,
    applied: Option<Place>,
    passed: u64,
    run: impl FnOnce(Recovery<'_>) -> T,
) -> T {
    run(Recovery {
        disk: disk.shared(),
        directory: Path::new(LOG),
        log_id: &log_id.into(),
        segment_len: u64::MAX,
        now: Timestamp::UNIX_EPOCH,
        applied,
        oldest_needed: 1,
        passed: Some(passed),
    })
}

/// Opens the directory as a process does, and reads all of it.
fn open(
    runtime: &tokio::runtime::Runtime,
    disk: &FaultyDisk,
    log_id: &str,
    applied: Option<Place>,
) -> Result<Content, ReadError> {
    let cursors = cursor::all_on(disk, Path::new(CURSORS), log_id)?;
    let passed = cursors.iter().map(|(_, cursor)| cursor.reached).max().unwrap_or(0);
    let (writer, segments) = recovery(disk, log_id, applied, passed, |recovery| recovery.run(|_, _| Ok(())))?;
    let sink = CursorFile::open_on(disk, Path::new(CURSORS), "audit", log_id)?.unwrap();
    let (_sender, head) = watch::channel(writer.place().next_seq - 1);
    let mut reader = LogReader {
        log_id: log_id.into(),
        disk: disk.shared(),
        directory: LOG.into(),
        segments: Arc::new(RwLock::new(segments)),
        recent: Arc::default(),
        head,
        next: 1,
        open: None,
        ahead: None,
    };
    let mut records = Vec::new();
    while reader.is_ready() {
        records.extend(runtime.block_on(reader.read())?);
    }
    Ok((records, sink.cursor().clone()))
}

/// All single-bit flips and all cuts. In the long run of zeros that ends each copy of a cursor, of which all bits are alike, not
/// each of them: that is done by the cursor's own test.
fn wrongs(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    const RUN: usize = 64;
    let in_run = |bit: usize| bytes[(bit / 8).saturating_sub(RUN)..=bit / 8].iter().all(|byte| *byte == 0);
    let flipped = (0..bytes.len() * 8).filter(move |bit| bit % 97 == 0 || *bit < RUN * 8 || !in_run(*bit)).map(|bit| {
        let mut bytes = bytes.to_vec();
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes
    });
    let cut = (0..bytes.len()).filter(move |len| len % 13 == 0 || *len < RUN || !in_run(*len * 8));
    flipped.chain(cut.map(|len| bytes[..len].to_vec()))
}

fn files(disk: &FaultyDisk) -> Vec<PathBuf> {
    let within = |directory: &str| {
        let names = disk.list(Path::new(directory)).unwrap();
        names.into_iter().map(|name| Path::new(directory).join(name)).collect::<Vec<_>>()
    };
    [within(LOG), within(CURSORS)].concat()
}

#[test]
fn every_wrong_bit_and_every_cut_of_segments_and_cursors_is_refused_or_changes_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let Whole { disk, content, end } = whole();
    let files = files(&disk);
    assert_eq!(files.len(), 4);
    let originals: Vec<_> = files.iter().map(|file| (file, disk.read(file))).collect();
    let (mut refused, mut same) = (0, 0);
    for (file, bytes) in &originals {
        for wrong in wrongs(bytes) {
            for applied in [Some(end), None] {
                disk.put(file, &wrong);
                match open(&runtime, &disk, sample::LOG_ID, applied) {
                    Ok((records, cursor)) => {
                        assert_eq!(records, content.0);
                        // Of a cursor's two copies the older one is a single step behind: one batch comes again.
                        let behind =
                            Cursor { acknowledged: 0, reached: 0, in_flight: Some((1, 9)), ..content.1.clone() };
                        assert!(cursor == content.1 || cursor == behind, "{cursor:?}");
                        same += 1;
                    }
                    Err(ReadError::Log(OpenError::Damaged { file: named, .. })) => {
                        assert_eq!(named, **file);
                        assert_eq!(disk.read(file), wrong, "what is refused is left as it is");
                        refused += 1;
                    }
                    Err(other) => panic!("{}: {other}", file.display()),
                }
            }
        }
        disk.put(file, bytes);
    }
    assert_eq!(open(&runtime, &disk, sample::LOG_ID, Some(end)).unwrap(), content);
    assert!(refused > 10_000 && same > 2_000, "{refused} refused, {same} the same");
}

#[test]
fn every_wrong_bit_and_every_cut_of_the_log_id_and_the_format_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let Whole { disk, content, end } = whole();
    let directory = tempfile::tempdir().unwrap();
    drop(Directory::open(directory.path()).unwrap());
    let (id, format) = (directory.path().join("log/ID"), directory.path().join("FORMAT"));
    fs::write(&id, sample::LOG_ID).unwrap();
    for file in [&id, &format] {
        let bytes = fs::read(file).unwrap();
        for wrong in wrongs(&bytes) {
            fs::write(file, &wrong).unwrap();
            match Directory::open(directory.path()) {
                Err(OpenError::Damaged { file: named, .. }) => assert_eq!(named, *file),
                Err(OpenError::Format { .. }) => assert_eq!(*file, format),
                Err(other) => panic!("{other}"),
                // The id of some other log: none of the files is of it.
                Ok(opened) => {
                    assert_eq!(*file, id);
                    for applied in [Some(end), None] {
                        let refused = open(&runtime, &disk, opened.log_id(), applied);
                        assert!(matches!(refused, Err(ReadError::Log(OpenError::Damaged { .. }))), "{wrong:?}");
                    }
                }
            }
            assert_eq!(fs::read(file).unwrap(), wrong, "what is refused is left as it is");
        }
        fs::write(file, bytes).unwrap();
    }
    let opened = Directory::open(directory.path()).unwrap();
    assert_eq!(open(&runtime, &disk, opened.log_id(), Some(end)).unwrap(), content);
}

#[test]
fn a_directory_whose_format_is_lost_is_refused_and_keeps_its_log_id() {
    let directory = tempfile::tempdir().unwrap();
    drop(Directory::open(directory.path()).unwrap());
    let (id, format) = (directory.path().join("log/ID"), directory.path().join("FORMAT"));
    let made = fs::read(&id).unwrap();
    fs::write(directory.path().join("log/00000000000000000001.seg"), "").unwrap();
    fs::remove_file(&format).unwrap();
    assert!(matches!(Directory::open(directory.path()), Err(OpenError::Damaged { file, .. }) if file == format));
    assert_eq!(fs::read(&id).unwrap(), made);
}
