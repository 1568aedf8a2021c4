#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{fs, num::NonZeroU64, path::Path};

use kubetide_sink::{Decision, sample};

use super::*;
use crate::Rotate;

fn config(path: &Path) -> FileConfig {
    FileConfig { path: path.into(), rotate: Rotate::default() }
}

fn open(path: &Path) -> FileSink {
    FileSink::open(&config(path), sample::terms("out")).unwrap()
}

fn batch(numbers: std::ops::RangeInclusive<u64>) -> Batch {
    sample::batch(numbers.map(|seq| sample::record(seq, "{}")).collect())
}

fn seqs(path: &Path) -> Vec<u64> {
    let seq = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["log"]["seq"].as_u64().unwrap();
    fs::read_to_string(path).unwrap().lines().map(seq).collect()
}

#[tokio::test]
async fn a_batch_that_comes_again_after_a_restart_is_there_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.ndjson");
    open(&path).deliver(&batch(1..=3), None).await.unwrap();
    // Not acknowledged, as far as whoever has sent it knows.
    let mut sink = open(&path);
    sink.deliver(&batch(1..=3), None).await.unwrap();
    sink.deliver(&batch(4..=5), None).await.unwrap();
    assert_eq!(seqs(&path), [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_delivery_that_was_given_up_is_not_written_twice() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.ndjson");
    let mut sink = open(&path);
    sink.deliver(&batch(1..=3), None).await.unwrap();
    for seq in 4..20 {
        // Given up at its first await: it is written all the same, sooner or later.
        let given_up = batch(seq..=seq);
        let delivered = tokio::select! {
            biased;
            delivered = sink.deliver(&given_up, None) => Some(delivered),
            () = std::future::ready(()) => None,
        };
        // Unless the disk was faster than that.
        if delivered.is_none() {
            sink.deliver(&given_up, None).await.unwrap();
        }
    }
    assert_eq!(seqs(&path), (1..20).collect::<Vec<u64>>());
}

#[tokio::test]
async fn every_format_is_lines_and_what_it_leaves_out_is_no_line() {
    let directory = tempfile::tempdir().unwrap();
    for (format, key) in
        [(Format::Native, "schema"), (Format::CloudEvents, "specversion"), (Format::Debezium, "before")]
    {
        let path = directory.path().join(key);
        let mut sink = FileSink::open(&config(&path), Terms { format, ..sample::terms("out") }).unwrap();
        sink.deliver(&batch(1..=2), None).await.unwrap();
        sink.deliver(&sample::batch(Vec::new()), None).await.unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.starts_with(&format!("{{\"{key}\":"))), "{text}");
        // Half a line of each is ours.
        fs::write(&path, &text[..text.len() - 20]).unwrap();
        let mut sink = FileSink::open(&config(&path), Terms { format, ..sample::terms("out") }).unwrap();
        // Of which there is no line, and from which nothing follows.
        sink.deliver(&sample::batch(Vec::new()), None).await.unwrap();
        sink.deliver(&batch(3..=3), None).await.unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "{text}");
    }
}

#[tokio::test]
async fn a_full_disk_is_tried_again_and_what_waiting_does_not_mend_is_for_an_operator() {
    let decision = |error: SinkError| (error.decision, error.durable, error.message);
    let (what, durable, message) =
        decision(open(Path::new("/dev/full")).deliver(&batch(1..=2), None).await.unwrap_err());
    assert_eq!((what, durable), (Decision::Retry { after: None }, 0));
    assert!(message.starts_with("write /dev/full: No space left on device"), "{message}");

    let directory = tempfile::tempdir().unwrap();
    let below = directory.path().join("below");
    let path = below.join("out.ndjson");
    let mut sink = open(&path);
    sink.deliver(&batch(1..=2), None).await.unwrap();
    fs::rename(&below, directory.path().join("aside")).unwrap();
    fs::write(&below, "a file").unwrap();
    let (what, _, message) = decision(sink.deliver(&batch(3..=4), None).await.unwrap_err());
    assert_eq!(what, Decision::Hold, "{message}");
    fs::remove_file(&below).unwrap();
    sink.deliver(&batch(3..=4), None).await.unwrap();
    assert_eq!(seqs(&path), [3, 4]);
}

#[test]
fn what_cannot_be_opened_or_promised_is_refused_with_its_key() {
    let refused = |path: &str, exactly_once| {
        let terms = Terms { exactly_once, ..sample::terms("out") };
        FileSink::open(&config(Path::new(path)), terms).unwrap_err().to_string()
    };
    assert!(refused("/", false).starts_with("path: cannot open /: Is a directory"));
    assert!(refused("/dev/null/x", false).starts_with("path: cannot open /dev/null/x: Not a directory"));
    assert!(refused("", false).starts_with("path: empty"));
    assert!(refused("/dev/null", true).starts_with("delivery: found exactly_once, allowed"));
}

#[tokio::test]
async fn rotation_is_reached_from_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.ndjson");
    let rotate = Rotate { max_bytes: NonZeroU64::new(1), ..Rotate::default() };
    let mut sink = FileSink::open(&FileConfig { path: path.clone(), rotate }, sample::terms("out")).unwrap();
    for seq in 1..=3 {
        sink.deliver(&batch(seq..=seq), None).await.unwrap();
    }
    drop(sink);
    let files = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(files.filter(|name| name.ends_with(".ndjson")).count(), 3);
    assert_eq!(seqs(&path), [3]);
}
