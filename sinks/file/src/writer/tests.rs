#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod model;

use std::num::NonZeroU64;

use tempfile::TempDir;

use super::*;

/// A writer in a directory of its own, and the clock that it is told.
struct Case {
    directory: TempDir,
    rotate: Rotate,
    now: SystemTime,
    writer: Option<Writer>,
    next: u64,
}

impl Case {
    fn new(rotate: Rotate) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut case = Self { directory, rotate, now: SystemTime::now(), writer: None, next: 0 };
        case.restart();
        case
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("out.ndjson")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path()).unwrap()
    }

    fn len(&self) -> u64 {
        fs::metadata(self.path()).unwrap().len()
    }

    /// As after kill -9: what was under way is given up, and everything is opened anew.
    fn restart(&mut self) {
        self.writer = None;
        self.writer = Some(Writer::open(&self.path(), self.rotate.clone(), self.now).unwrap());
    }

    fn write(&mut self, out: &[u8], is_certain: bool) {
        self.writer.as_mut().unwrap().write(out, is_certain, self.now).unwrap();
    }

    /// Lines that are there once in the world, of these lengths.
    fn batch(&mut self, lengths: &[usize]) -> Vec<u8> {
        let line = |length: &usize| {
            self.next += 1;
            format!("{{\"schema\":\"kubetide.change.v1\",\"id\":\"{:08}\",\"{}\"}}\n", self.next, "x".repeat(*length))
        };
        lengths.iter().map(line).collect::<String>().into_bytes()
    }

    /// What the rotated files hold, in the order of their names, and then the current one.
    fn joined(&self) -> Vec<u8> {
        let place = Place::of(&self.path()).unwrap();
        let mut all = Vec::new();
        let rotated = place.rotated().unwrap();
        for (at, file) in rotated.iter().enumerate() {
            // One that is being compressed is there twice for a moment.
            if at > 0 && rotated[at - 1].is_same(file) {
                continue;
            }
            all.extend(unpacked(&place.path(file)));
        }
        all.extend(fs::read(self.path()).unwrap());
        all
    }

    fn rotated(&self) -> Vec<String> {
        let place = Place::of(&self.path()).unwrap();
        place.rotated().unwrap().iter().map(|rotated| place.name(rotated)).collect()
    }
}

pub(crate) fn unpacked(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap();
    match path.extension().unwrap().to_str().unwrap() {
        "zst" => zstd::decode_all(&bytes[..]).unwrap(),
        "gz" => {
            let mut out = Vec::new();
            flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut out).unwrap();
            out
        }
        _ => bytes,
    }
}

pub(crate) fn at_size(bytes: u64) -> Rotate {
    Rotate { max_bytes: NonZeroU64::new(bytes), ..Rotate::default() }
}

#[test]
fn half_a_line_of_ours_that_does_not_come_again_is_cut_off_and_whole_lines_stay() {
    let torn = "{\"schema\":\"kubetide.change.v1\",\"id\":\"";
    for (before, after) in [
        ("", ""),
        ("{\"a\":1}\n", "{\"a\":1}\n"),
        ("{\"a\":1}\n{\"sch", "{\"a\":1}\n"),
        (torn, ""),
        ("{\"a\":1}\n{\"specversion\":\"1.0\",\"id\":\"00", "{\"a\":1}\n"),
        ("{\"a\":1}\n{\"before\":null,\"aft", "{\"a\":1}\n"),
        (&format!("first\n{torn}{}", "x".repeat(200_000)), "first\n"),
        ("{\"a\":1}\n\0\0\0\0", "{\"a\":1}\n"),
        ("somebody else's\nnotes", "somebody else's\nnotes\n"),
        ("{\"somebody\": \"else's\"", "{\"somebody\": \"else's\"\n"),
    ] {
        let mut case = Case::new(Rotate::default());
        fs::write(case.path(), before).unwrap();
        case.restart();
        assert_eq!(case.text(), before, "opening it changes nothing");
        case.write(b"{\"next\":1}\n", false);
        assert_eq!(case.text(), format!("{after}{{\"next\":1}}\n"));
    }
}

#[test]
fn a_batch_that_a_crash_has_torn_anywhere_is_completed_in_place() {
    let mut case = Case::new(Rotate::default());
    let first = case.batch(&[5, 10]);
    let torn = case.batch(&[0, 40, 7, 1]);
    for length in 0..=torn.len() {
        fs::write(case.path(), [&first, &torn[..length]].concat()).unwrap();
        let before = File::open(case.path()).unwrap();
        case.restart();
        case.write(&torn, false);
        assert_eq!(case.text().into_bytes(), [&first[..], &torn].concat(), "torn after {length} bytes");
        assert!(is_at(&before, &case.path()), "in place");
        let next = case.batch(&[3]);
        case.write(&next, true);
        assert_eq!(case.text().into_bytes(), [&first[..], &torn, &next].concat());
    }
}

#[test]
fn what_is_not_the_end_or_not_the_same_is_not_taken_for_what_comes_again() {
    let mut case = Case::new(Rotate::default());
    let (batch, next) = (case.batch(&[1, 2, 3]), case.batch(&[4]));
    // Asked for again behind something else; and one that begins like a line, but is in the middle of one.
    for before in [[&batch[..], &next].concat(), [b"{\"schema\":\"kubetide.", &batch[..]].concat()] {
        fs::write(case.path(), &before).unwrap();
        case.restart();
        case.write(&batch, false);
        assert_eq!(case.text().into_bytes(), [&before[..], &batch].concat());
    }
    // Known to be whole: nothing is looked for.
    fs::write(case.path(), &batch).unwrap();
    case.restart();
    case.write(&next, false);
    case.write(&next, true);
    assert_eq!(case.text().into_bytes(), [&batch[..], &next, &next].concat());
}

#[test]
fn another_batch_behind_a_torn_one_glues_nothing_and_loses_nothing() {
    // As when the filter was changed between the crash and the start.
    let mut case = Case::new(Rotate::default());
    let (first, torn, other) = (case.batch(&[5]), case.batch(&[0, 9, 3]), case.batch(&[2, 2]));
    for length in 0..=torn.len() {
        fs::write(case.path(), [&first, &torn[..length]].concat()).unwrap();
        case.restart();
        case.write(&other, false);
        let whole = torn[..length].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        assert_eq!(
            case.text().into_bytes(),
            [&first[..], &torn[..whole], &other].concat(),
            "torn after {length} bytes"
        );
    }
}

#[test]
fn a_file_that_was_moved_away_or_replaced_is_left_alone_and_the_path_is_written_anew() {
    let mut case = Case::new(Rotate::default());
    let aside = |name: &str| case.directory.path().join(name);
    let (one, two) = (aside("out.1"), aside("out.2"));
    case.write(b"1\n", false);
    fs::rename(case.path(), &one).unwrap();
    case.write(b"2\n", true);
    fs::rename(case.path(), &two).unwrap();
    File::create(case.path()).unwrap();
    case.write(b"3\n", true);
    // Cut by who has copied it.
    File::create(case.path()).unwrap();
    case.write(b"4\n", true);
    for (path, text) in [(one, "1\n"), (two, "2\n"), (case.path(), "4\n")] {
        assert_eq!(fs::read_to_string(path).unwrap(), text);
    }
}

#[test]
fn a_write_that_fails_in_the_middle_is_taken_back_whole() {
    // A process of its own, in which no file may be larger than 8 KiB or so.
    let limited = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
    let test = ["writer::tests::in_little_space", "--exact", "--ignored", "--nocapture"];
    let exe = std::env::current_exe().unwrap();
    let ended = std::process::Command::new("sh").args(["-c", limited]).arg(exe).args(test).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("1 passed"), "{ended:?}");
}

#[test]
#[ignore = "run by the test above, in little space"]
fn in_little_space() {
    let mut case = Case::new(Rotate::default());
    case.write(b"1\n", true);
    let now = case.now;
    for is_certain in [true, false, false] {
        let much = case.batch(&[100_000]);
        let refused = case.writer.as_mut().unwrap().write(&much, is_certain, now).unwrap_err();
        assert_eq!((refused.kind(), case.text().as_str()), (io::ErrorKind::FileTooLarge, "1\n"));
    }
    case.write(b"2\n", false);
    assert_eq!(case.text(), "1\n2\n");
}

#[test]
fn a_directory_above_that_is_missing_is_made_and_one_that_is_a_file_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a/b/c/out.ndjson");
    Writer::open(&path, at_size(10), SystemTime::now()).unwrap();
    assert!(path.is_file());
    for (path, kind) in [(path.join("below"), io::ErrorKind::NotADirectory), ("/".into(), io::ErrorKind::IsADirectory)]
    {
        assert_eq!(Writer::open(&path, Rotate::default(), SystemTime::now()).unwrap_err().kind(), kind, "{path:?}");
    }
}

#[test]
fn a_file_is_put_aside_before_it_would_be_too_large_and_no_batch_is_divided() {
    let mut case = Case::new(at_size(200));
    let sizes: &[&[usize]] = &[&[0], &[0], &[0], &[0], &[500, 500], &[0], &[0]];
    let batches: Vec<Vec<u8>> = sizes.iter().map(|lengths| case.batch(lengths)).collect();
    for batch in &batches {
        case.write(batch, true);
        let pieces: Vec<u8> = case.joined();
        assert!(pieces.ends_with(batch) && case.text().into_bytes().ends_with(batch), "not divided");
    }
    assert_eq!(case.joined(), batches.concat());
    // 52 bytes each but the large one: three, one, the large one, and two that are still written to.
    assert_eq!((case.rotated().len(), case.len()), (3, 2 * batches[0].len() as u64));
}

#[test]
fn a_file_is_put_aside_once_its_first_record_is_old_also_after_a_restart_and_an_empty_one_never() {
    let rotate = Rotate { max_age_secs: NonZeroU64::new(3600), ..Rotate::default() };
    let mut case = Case::new(rotate);
    // Empty for long: what is written now is young.
    case.now += Duration::from_secs(100_000);
    case.write(b"1\n", false);
    case.now += Duration::from_secs(3599);
    case.write(b"2\n", true);
    assert_eq!(case.rotated().len(), 0);
    case.now += Duration::from_secs(1);
    case.write(b"3\n", true);
    assert_eq!((case.rotated().len(), case.text().as_str()), (1, "3\n"));

    // Begun when the file was made, as the file system knows.
    case.now = SystemTime::now();
    case.restart();
    case.now += Duration::from_secs(1800);
    case.write(b"4\n", false);
    assert_eq!(case.rotated().len(), 1);
    case.restart();
    case.now += Duration::from_secs(1900);
    case.write(b"5\n", false);
    assert_eq!((case.rotated().len(), case.text().as_str()), (2, "5\n"));
    // A clock that was set back puts nothing aside.
    case.now -= Duration::from_secs(1_000_000);
    case.write(b"6\n", true);
    assert_eq!(case.rotated().len(), 2);
    assert_eq!(case.joined(), b"1\n2\n3\n4\n5\n6\n");
}

#[test]
fn through_a_link_the_file_is_put_aside_where_it_is() {
    let mut case = Case::new(at_size(4));
    let (there, link) = (tempfile::tempdir().unwrap(), case.path());
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(there.path().join("real.ndjson"), &link).unwrap();
    for line in [b"1.1\n", b"2.2\n", b"3.3\n"] {
        case.write(line, true);
    }
    assert!(link.is_symlink());
    assert_eq!((case.rotated().len(), case.joined()), (2, b"1.1\n2.2\n3.3\n".to_vec()));
    assert_eq!(fs::read_dir(case.directory.path()).unwrap().count(), 1);
}

#[test]
fn a_device_is_written_to_and_not_rotated() {
    let mut writer = Writer::open(Path::new("/dev/null"), at_size(1), SystemTime::now()).unwrap();
    writer.write(b"1\n", false, SystemTime::now()).unwrap();
    let mut writer = Writer::open(Path::new("/dev/full"), at_size(1), SystemTime::now()).unwrap();
    let full = writer.write(b"1\n", false, SystemTime::now()).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
}
