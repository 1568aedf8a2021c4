//! The change: cleaning hides nothing and loses nothing, a patch leads from what was to what is, and a state has one id.
//!
//! Over the objects in `tests/corpus/objects`, over generated ones, and over damaged ones.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

#[path = "change/canaries.rs"]
mod canaries;
#[path = "change/identity.rs"]
mod identity;
#[path = "change/meaning.rs"]
mod meaning;
#[path = "change/model.rs"]
mod model;
#[path = "change/patches.rs"]
mod patches;
#[path = "change/scanner.rs"]
mod scanner;

use std::{fs, path::Path, sync::LazyLock};

use kubetide::change::{Cleaner, Cleaning, Observed, Pattern, RedactKey, Row, TypeMeta};
use kubetide_sink::{Id, sample};

/// The files of the corpus, in the order of their names.
static CORPUS: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/objects");
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect();
    files.sort();
    assert!(files.len() >= 12, "{}", files.len());
    files
});

fn cleaner(resource: &str, drop: &[&str], redact: &[&str]) -> Cleaner {
    let patterns = |paths: &[&str]| paths.iter().map(|path| Pattern::parse(path).unwrap()).collect();
    let key = RedactKey::new(b"a key for tests only");
    let cleaning = Cleaning { drop: patterns(drop), redact: patterns(redact), key };
    cleaning.cleaner(&sample::stream(resource, "Any"), TypeMeta { kind: "Any".into(), api_version: "v1".into() })
}

/// The row that an observation leaves.
fn row(observed: &Observed) -> Row {
    Row {
        uid: observed.uid.clone(),
        seen: observed.version.clone(),
        logged: observed.version.clone(),
        id: Id([0; 16]),
        seq: 1,
        since: 1,
        observed_at: jiff::Timestamp::UNIX_EPOCH,
        generation: observed.generation,
        managed: observed.managed.clone(),
        object: observed.object.clone().ok(),
    }
}
