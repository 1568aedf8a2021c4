#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{path::PathBuf, time::SystemTime};

use tempfile::TempDir;

use super::*;
use crate::writer::tests::unpacked;

const NAMES: [&str; 3] = [
    "out-20261116T040000Z-000000001.ndjson",
    "out-20261116T040000Z-000000002.ndjson",
    "out-20261117T000000Z-000000003.ndjson",
];

/// Three files that were put aside, each with a line, and the one that is written to.
struct Case(TempDir);

impl Case {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in NAMES.iter().zip(["1\n", "2\n", "3\n"]) {
            fs::write(directory.path().join(name), text).unwrap();
        }
        fs::write(directory.path().join("out.ndjson"), "4\n").unwrap();
        Self(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tidy(&self, keep: u32, compression: Compression) {
        let rotate = Rotate { keep, compression, ..crate::writer::tests::at_size(1) };
        Tidying::start(Place::of(&self.path("out.ndjson")).unwrap(), &rotate).unwrap().wait();
    }

    /// What is there, hidden files too.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn assert_tidied(&self, suffix: &str) {
        let rotated = NAMES.map(|name| format!("{name}{suffix}"));
        for (name, text) in rotated.iter().zip([b"1\n", b"2\n", b"3\n"]) {
            assert_eq!(unpacked(&self.path(name)), text);
        }
        let others = ["out.latest".to_owned(), "out.ndjson".to_owned()];
        assert_eq!(self.names(), [&rotated[..], &others].concat());
        assert_eq!(fs::read_link(self.path("out.latest")).unwrap().to_str(), Some(&*rotated[2]));
    }
}

#[test]
fn files_that_were_put_aside_are_compressed_and_the_link_leads_to_the_newest() {
    for (compression, suffix) in [(Compression::None, ""), (Compression::Gzip, ".gz"), (Compression::Zstd, ".zst")] {
        let case = Case::new();
        for _ in 0..2 {
            case.tidy(0, compression);
            case.assert_tidied(suffix);
        }
    }
}

#[test]
fn any_state_that_a_crash_leaves_is_brought_to_its_end() {
    let zst = |name: &str| format!("{name}.zst");
    type Make<'a> = &'a dyn Fn(&Case);
    let states: [(&str, Make<'_>); 8] = [
        ("before the new file was made", &|case| fs::write(case.path("out.ndjson"), "").unwrap()),
        ("before the link was renamed", &|case| symlink("x", case.path(".out.latest.part")).unwrap()),
        ("with the link behind", &|case| symlink(NAMES[0], case.path("out.latest")).unwrap()),
        ("in the middle of compressing", &|case| {
            fs::write(case.path(&format!(".{}.part", zst(NAMES[1]))), "half").unwrap();
        }),
        ("in the middle of compressing otherwise", &|case| {
            fs::write(case.path(&format!(".{}.gz.part", NAMES[2])), "half").unwrap();
        }),
        ("before the plain one was removed", &|case| {
            fs::write(case.path(&zst(NAMES[2])), zstd::encode_all(&b"3\n"[..], 1).unwrap()).unwrap();
            symlink(zst(NAMES[2]), case.path("out.latest")).unwrap();
        }),
        ("before the plain one was removed, compressed otherwise", &|case| {
            fs::write(case.path(&format!("{}.gz", NAMES[0])), "whatever").unwrap();
        }),
        ("with a link to what is gone", &|case| {
            symlink("out-20261115T000000Z-000000000.ndjson", case.path("out.latest")).unwrap();
        }),
    ];
    for (state, make) in states {
        let case = Case::new();
        make(&case);
        println!("{state}");
        case.tidy(0, Compression::Zstd);
        case.assert_tidied(".zst");
        // And where compression was switched off meanwhile, what is compressed stays, and what is not is taken for the truth.
        let case = Case::new();
        make(&case);
        case.tidy(0, Compression::None);
        case.assert_tidied("");
    }
}

#[test]
fn the_newest_are_kept_compressed_or_not_and_the_files_of_others_are_left_alone() {
    let case = Case::new();
    let others = ["out-notes.ndjson", "out.ndjson.1", ".notes.part", "other-20261116T040000Z-000000001.ndjson"];
    others.iter().for_each(|name| fs::write(case.path(name), "").unwrap());
    case.tidy(3, Compression::Gzip);
    assert_eq!(case.names().len(), 3 + 2 + others.len());
    // One that comes compressed and plain, from a crash, counts once.
    fs::write(case.path(NAMES[2]), "3\n").unwrap();
    case.tidy(2, Compression::Gzip);
    let gz = |name: &str| format!("{name}.gz");
    assert!(
        !case.path(&gz(NAMES[0])).exists() && case.path(&gz(NAMES[1])).exists() && case.path(&gz(NAMES[2])).exists()
    );
    case.tidy(1, Compression::Zstd);
    assert_eq!(case.names().len(), 1 + 2 + others.len());
    assert_eq!(unpacked(&case.path("out.latest").canonicalize().unwrap()), b"3\n");
    assert!(others.iter().all(|name| case.path(name).exists()));
}

#[test]
fn what_is_called_like_the_link_and_is_none_is_left_alone_and_the_rest_is_done() {
    let case = Case::new();
    fs::write(case.path("out.latest"), "somebody's").unwrap();
    case.tidy(0, Compression::Gzip);
    assert_eq!(fs::read(case.path("out.latest")).unwrap(), b"somebody's");
    assert!(NAMES.iter().all(|name| case.path(&format!("{name}.gz")).exists()));
}

#[test]
fn who_is_stopped_leaves_nothing_under_a_final_name_and_the_next_finishes() {
    let case = Case::new();
    fs::write(case.path(NAMES[0]), vec![b'x'; 3_000_000]).unwrap();
    let place = Place::of(&case.path("out.ndjson")).unwrap();
    let rotate = Rotate { compression: Compression::Zstd, ..crate::writer::tests::at_size(1) };
    let stop = AtomicBool::new(true);
    Tidy { place: &place, rotate: &rotate, stop: &stop }.all().unwrap();
    assert!(place.rotated().unwrap().iter().all(|rotated| rotated.compression == Compression::None));
    fs::write(case.path(NAMES[0]), "1\n").unwrap();
    case.tidy(0, Compression::Zstd);
    case.assert_tidied(".zst");
    // A name is given by time and number: none is given again.
    assert!(place.next(SystemTime::UNIX_EPOCH).unwrap().ends_with("out-20261117T000000Z-000000004.ndjson"));
}
