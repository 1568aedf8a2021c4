//! The built binary, and lines: a file that is rotated, and a pipe. Killed again and again, and stopped in order.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;
mod pipeline;

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use instance::BATCH;
use pipeline::{PATIENCE, Pipeline, assert_bounded, assert_exactly, kills};
use serde_json::Value;

/// How a record begins.
const MARK: &str = r#"{"schema":"kubetide.change.v1""#;

fn file(path: &Path) -> String {
    format!(
        "{{name: it, type: file, path: '{}', rotate: {{max_bytes: 200000, compression: zstd}}, batch: {{max_records: {BATCH}, max_wait_ms: 20}}}}",
        path.display()
    )
}

/// The lines of the rotated files and of the one that is written to, in their order. All of them must be whole.
fn history(directory: &Path) -> Vec<Value> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut rotated: Vec<PathBuf> =
        names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("it-")).collect();
    rotated.sort();
    assert!(rotated.iter().all(|path| path.extension().is_some_and(|extension| extension == "zst")), "{rotated:?}");
    let mut text = Vec::new();
    for path in rotated {
        text.extend(zstd::decode_all(fs::File::open(path).unwrap()).unwrap());
    }
    text.extend(fs::read(directory.join("it.ndjson")).unwrap());
    let text = String::from_utf8(text).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).expect("a line is a record")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_repeat_nothing_in_a_file_that_is_rotated_and_glue_nothing() {
    let kills = kills(10, 100);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it.ndjson");
    let mut pipeline = Pipeline::new(&file(&path)).await;
    let len = || fs::metadata(&path).map_or(0, |metadata| metadata.len());
    // Every second kill comes when something was just written, and before the cursor knows.
    let aim = async |kill: usize| {
        let (before, since) = (len(), Instant::now());
        while kill % 2 == 1 && len() == before {
            assert!(since.elapsed() < PATIENCE, "nothing more is written");
            std::hint::spin_loop();
        }
    };
    pipeline.run_through(kills, aim).await;
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    assert_exactly(&history(directory.path()), &log);
    println!("{kills} kills: {} records, each once, in {} files", log.len(), fs::read_dir(&directory).unwrap().count());
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_repeat_nothing_in_a_file_and_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut pipeline = Pipeline::new(&file(&directory.path().join("it.ndjson"))).await;
    pipeline.stop_and_go(kills(2, 20)).await;
    assert_exactly(&history(directory.path()), &pipeline.log().await);
}

/// What comes out of a pipe that outlives who writes into it.
struct Pipe {
    /// Nothing is read while this is set, so that the pipe is soon full.
    hangs: Arc<AtomicBool>,
    read: JoinHandle<String>,
}

/// A pipeline whose standard output is a pipe.
async fn with_pipe() -> (Pipeline, Pipe) {
    let sink = format!("{{name: it, type: stdout, batch: {{max_records: {BATCH}, max_wait_ms: 20}}}}");
    let mut pipeline = Pipeline::new(&sink).await;
    let (mut out, pipe) = std::io::pipe().unwrap();
    pipeline.stdout = Some(pipe);
    let hangs = Arc::<AtomicBool>::default();
    let waits = hangs.clone();
    let read = std::thread::spawn(move || {
        let (mut text, mut block) = (Vec::new(), [0; 1000]);
        loop {
            while waits.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            match out.read(&mut block).unwrap() {
                0 => return String::from_utf8(text).unwrap(),
                len => text.extend(&block[..len]),
            }
        }
    });
    (pipeline, Pipe { hangs, read })
}

/// The records, and how many lines a kill has cut off. What comes next stands right behind half a line.
fn whole_records(text: &str) -> (Vec<Value>, usize) {
    let mut halves = 0;
    let record = |line: &str| {
        serde_json::from_str(line).unwrap_or_else(|_| {
            halves += 1;
            let begins = line.rfind(MARK).expect("a record ends here");
            serde_json::from_str(&line[begins..]).expect("the end of the line is a record")
        })
    };
    assert!(text.ends_with('\n'));
    (text.lines().map(record).collect(), halves)
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_leave_half_a_line_and_repeat_a_batch_at_most_in_a_pipe() {
    let kills = kills(10, 100);
    let (mut pipeline, pipe) = with_pipe().await;
    // A process that waits in the middle of a batch is cut off there.
    let hang = async |_| {
        pipe.hangs.store(true, Ordering::Relaxed);
        let hangs = pipe.hangs.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            hangs.store(false, Ordering::Relaxed);
        });
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..400))).await;
    };
    pipeline.run_through(kills, hang).await;
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    pipeline.stdout = None;
    let (records, halves) = whole_records(&pipe.read.join().unwrap());
    let repeated = assert_bounded(&records, &log, kills);
    assert!((1..=kills).contains(&halves), "{halves} lines were cut off in {kills} kills");
    println!("{kills} kills: {} records, {repeated} repeated, {halves} lines cut off", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_repeat_nothing_in_a_pipe_and_lose_nothing() {
    let (mut pipeline, pipe) = with_pipe().await;
    pipeline.stop_and_go(kills(2, 20)).await;
    pipeline.stdout = None;
    let (records, halves) = whole_records(&pipe.read.join().unwrap());
    assert_eq!(halves, 0);
    assert_exactly(&records, &pipeline.log().await);
}
