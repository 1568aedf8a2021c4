//! What may happen to the files beside the log: a copy that is not whole, files that were swapped, a disk that lost some. Whatever is
//! not as it was written is refused by its name, or made anew where nothing is lost with it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod ended;

use std::{
    fs::{self, Permissions},
    num::NonZeroU64,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use bytes::Bytes;
use kubetide::{
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, CursorFile, Entry, OpenError, Setup},
    clock::Clock,
    config::{Start, WhenBehind},
    vitals::Vitals,
};
use kubetide_sink::{Stream, sample};

use ended::{Ended, ended};

/// The records that [`make`] logs.
const RECORDS: u64 = 60;

/// Segments of a few hundred bytes.
fn open(directory: &Path) -> Result<Changelog, OpenError> {
    let mut setup = Setup::of("c-1");
    setup.keep.max_bytes = NonZeroU64::new(8 * 1024).unwrap();
    Changelog::open(directory, setup, Clock::system(), &Vitals::new())
}

fn attach(log: &Changelog, sink: &str) -> Result<CursorFile, OpenError> {
    log.attach(sink, Start::Earliest, WhenBehind::Block)
}

async fn append(log: &Changelog, versions: std::ops::RangeInclusive<u64>) {
    let stream: Arc<Stream> = Arc::new(sample::stream("pods", "Pod"));
    let appender = log.appender();
    for version in versions {
        let observed = Observed {
            key: ObjectKey { namespace: "n".into(), name: format!("pod-{}", version % 5) },
            uid: format!("u-{}", version % 5),
            version: ResourceVersion::new(version.to_string()),
            generation: None,
            managed: Managed::default(),
            writers: Writers::default(),
            object: Ok(Bytes::from(format!("{{\"version\":{version}}}"))),
        };
        appender.append(&stream, Entry::Present(observed)).await.unwrap();
        appender.flush().await.unwrap();
    }
}

/// A log in several segments, and two sinks: `f` has acknowledged the first ten records, `g` all of them.
async fn make(directory: &Path) {
    let log = open(directory).unwrap();
    let (mut f, mut g) = (attach(&log, "f").unwrap(), attach(&log, "g").unwrap());
    append(&log, 1..=RECORDS).await;
    f.acknowledge(10).unwrap();
    g.acknowledge(RECORDS).unwrap();
    log.close().unwrap();
}

async fn run(directory: &Path, arguments: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
    command.args(arguments).arg("--data-dir").arg(directory);
    ended(command).await
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory.join("log")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
    segments.sort();
    segments
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_cursor_is_refused_by_name_by_whatever_asks_what_its_sink_needs() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    make(directory).await;
    let cursor = directory.join("cursors/f.cursor");
    let (whole, before) = (fs::read(&cursor).unwrap(), segments(directory));
    assert!(before.len() > 4, "{before:?}");
    for wrong in [vec![0; whole.len()], Vec::new()] {
        fs::write(&cursor, &wrong).unwrap();
        for arguments in [
            &["sink", "list"][..],
            &["sink", "replay", "f", "--from", "5"],
            &["sink", "replay", "g", "--from", "5"],
            &["sink", "resnapshot", "f"],
            &["log", "purge", "--before", "50", "--yes"],
        ] {
            run(directory, arguments).await.assert_refused(1, &["cursors/f.cursor is damaged"]);
        }
        assert_eq!(segments(directory), before, "nothing is removed that f may need");
        let refused = open(directory).err();
        assert!(matches!(&refused, Some(OpenError::Damaged { file, .. }) if *file == cursor), "{refused:?}");

        // What does not ask for it is there to be looked at, and checked to the end.
        assert_eq!(run(directory, &["log", "export"]).await.stdout.lines().count() as u64, RECORDS);
        let segment = fs::read(&before[1]).unwrap();
        fs::write(&before[1], &segment[..segment.len() - 1]).unwrap();
        let verified = run(directory, &["log", "verify"]).await;
        fs::write(&before[1], segment).unwrap();
        assert_eq!(verified.code, Some(1), "{verified:#?}");
        for damaged in [&before[1], &cursor] {
            assert!(verified.stderr.contains(&format!("{} is damaged", damaged.display())), "{verified:#?}");
        }
        let lines = |word: &str| verified.stdout.lines().filter(|line| line.ends_with(word)).count();
        assert_eq!((lines("whole"), lines("damaged")), (before.len() - 1, 2), "{verified:#?}");
        assert_eq!(fs::read(&cursor).unwrap(), wrong, "what is refused is left as it is");
    }
    fs::write(&cursor, whole).unwrap();
    let purged = run(directory, &["log", "purge", "--before", "50", "--yes"]).await;
    assert!(purged.stdout.contains("sink f has acknowledged only up to seq 10"), "{purged:#?}");
    assert_eq!(run(directory, &["log", "verify"]).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cursor_under_the_name_of_another_sink_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path();
    make(directory).await;
    let [f, g] = ["f", "g"].map(|sink| directory.join(format!("cursors/{sink}.cursor")));
    let (of_f, of_g) = (fs::read(&f).unwrap(), fs::read(&g).unwrap());
    fs::write(&f, &of_g).unwrap();
    fs::write(&g, &of_f).unwrap();
    run(directory, &["sink", "list"]).await.assert_refused(1, &["cursors/f.cursor is damaged"]);
    fs::write(&f, &of_f).unwrap();
    run(directory, &["log", "purge", "--before", "50", "--yes"]).await.assert_refused(1, &["cursors/g.cursor"]);
    let refused = open(directory).err();
    assert!(matches!(&refused, Some(OpenError::Damaged { file, .. }) if *file == g), "{refused:?}");
    fs::write(&g, &of_g).unwrap();
    assert_eq!(attach(&open(directory).unwrap(), "g").unwrap().cursor().acknowledged, RECORDS);
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// All below it but what fjall makes: that is in a directory which nobody else can look into.
fn below(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("store") {
            all.extend(below(&path));
        }
        all.push(path);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_is_for_its_owner_alone_whatever_the_umask_and_what_was_there_stays_as_it_was() {
    // Of the whole process; no other test here looks at modes.
    rustix::process::umask(rustix::fs::Mode::empty());
    let home = tempfile::tempdir().unwrap();
    // As on a volume with an fsGroup.
    let mounted = home.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    fs::set_permissions(&mounted, Permissions::from_mode(0o2770)).unwrap();
    let made = home.path().join("above/made");
    for directory in [&made, &mounted] {
        make(directory).await;
        // Those that are made later, too.
        let log = open(directory).unwrap();
        append(&log, RECORDS + 1..=RECORDS + 20).await;
        log.close().unwrap();
        let (directories, files): (Vec<_>, Vec<_>) = below(directory).into_iter().partition(|path| path.is_dir());
        assert!(directories.len() == 3 && files.len() > 10, "{directories:?} {files:?}");
        for path in directories {
            assert_eq!(mode(&path) & 0o777, 0o700, "{}", path.display());
        }
        for path in files {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
    assert_eq!((mode(&made), mode(&home.path().join("above"))), (0o700, 0o700));
    assert_eq!(mode(&mounted), 0o2770, "a directory that was there is left as it was");
}

/// What the commands tell of the directory: every record, every object, every sink.
async fn told(directory: &Path) -> [Ended; 3] {
    [
        run(directory, &["log", "export"]).await,
        run(directory, &["objects", "list", "--output", "json"]).await,
        run(directory, &["sink", "list", "--output", "json"]).await,
    ]
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

/// Without the lock of the store, and without directories that are empty: so a copy comes back from many a backup.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_without_locks_and_without_empty_directories_is_opened_as_it_was() {
    fn drop_empty(directory: &Path) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                drop_empty(&path);
                // Only one that is empty can be removed so.
                let _ = fs::remove_dir(&path);
            }
        }
    }
    let home = tempfile::tempdir().unwrap();
    let whole = home.path().join("whole");
    let log = open(&whole).unwrap();
    append(&log, 1..=RECORDS).await;
    log.close().unwrap();
    let right = told(&whole).await;
    assert!(right.iter().all(|ended| ended.code == Some(0)), "{right:#?}");
    let dropped = home.path().join("dropped");
    copy(&whole, &dropped);
    drop_empty(&dropped);
    assert!(!dropped.join("cursors").exists());
    for lock in ["lock", "store/lock"] {
        fs::remove_file(dropped.join(lock)).unwrap();
    }
    for (told, right) in told(&dropped).await.iter().zip(&right) {
        assert_eq!((told.code, &told.stdout), (Some(0), &right.stdout), "{told:#?}");
    }
    let log = open(&dropped).unwrap();
    assert_eq!(attach(&log, "new").unwrap().cursor().acknowledged, 0);
    log.close().unwrap();
}

/// Where the log was trimmed, the store cannot be built anew: whatever is missing of it must be noticed.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_missing_of_the_store_is_refused_by_name_or_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let (whole, tried) = (home.path().join("whole"), home.path().join("tried"));
    make(&whole).await;
    let log = open(&whole).unwrap();
    let mut f = attach(&log, "f").unwrap();
    append(&log, RECORDS + 1..=4 * RECORDS).await;
    f.acknowledge(4 * RECORDS).unwrap();
    log.close().unwrap();
    run(&whole, &["sink", "replay", "g", "--from", "230"]).await;
    let purged = run(&whole, &["log", "purge", "--before", "200", "--yes"]).await;
    assert!(purged.stdout.contains("removed"), "{purged:#?}");
    let right = told(&whole).await;
    assert!(right.iter().all(|ended| ended.code == Some(0)), "{right:#?}");
    let store = whole.join("store");
    let (mut refused, mut same) = (Vec::new(), Vec::new());
    for missing in below(&store) {
        let name = missing.strip_prefix(&whole).unwrap();
        let _ = fs::remove_dir_all(&tried);
        copy(&whole, &tried);
        let gone = tried.join(name);
        if gone.is_dir() {
            fs::remove_dir_all(&gone).unwrap()
        } else {
            fs::remove_file(&gone).unwrap()
        }
        let told = told(&tried).await;
        if told[0].code == Some(0) {
            for (told, right) in told.iter().zip(&right) {
                assert_eq!((told.code, &told.stdout), (Some(0), &right.stdout), "without {}", name.display());
            }
            same.push(name.to_owned());
        } else {
            // By its path or that of a file in it; a list of files by what names it. Of a journal and of a keyspace nobody knows the number.
            let name = gone.file_name().and_then(|name| name.to_str()).unwrap();
            let is_keyspace = gone.parent().is_some_and(|parent| parent.ends_with("keyspaces"));
            let named = match name {
                _ if name.ends_with(".jnl") => "tried/store is damaged at byte 0: its journal".into(),
                _ if name != "version" && name.starts_with('v') => format!("it names {name}"),
                _ if name == "current" || is_keyspace => "tried/store/keyspaces".into(),
                _ => gone.display().to_string(),
            };
            for told in &told {
                told.assert_refused(1, &[&named, "restore the data directory from a copy"]);
            }
            refused.push(name.to_owned());
        }
    }
    println!("refused: {refused:?}\nthe same: {same:?}");
    assert!(refused.len() > 8 && same.contains(&PathBuf::from("store/lock")), "{refused:?} {same:?}");
}
