//! `kubetide demo`: the built binary tells its whole story, finds every promise kept, and leaves nothing behind.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn demo(arguments: &[&str], temporary: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_kubetide"))
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// The process whose parent this is, once there is one.
fn child_of(parent: u32) -> u32 {
    wait_for("the pipeline", || {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not come");
        sleep(Duration::from_millis(10));
    }
}

/// Gone, or dead and not yet collected by whoever is its parent now.
fn is_gone(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.is_empty() || status.contains("State:\tZ")
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

fn text(output: &Output) -> (String, String) {
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

#[test]
fn the_demo_finds_every_promise_kept_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let output = demo(&["--output", "json", "--seed", "7"], temporary.path()).wait_with_output().unwrap();
    let (stdout, stderr) = text(&output);
    assert_eq!(output.status.code(), Some(0), "{stdout}{stderr}");
    assert_eq!(stderr, "");
    let figures: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(figures["verdict"], "clean", "{stdout}");
    assert_eq!(figures["problems"], serde_json::json!([]));
    let number = |name: &str| figures[name].as_u64().unwrap();
    for zero in ["missing", "differences", "lists_after_kill", "exit_code"] {
        assert_eq!(number(zero), 0, "{zero}: {stdout}");
    }
    assert_eq!((number("streams"), number("gaps")), (5, 5));
    // Not clean because nothing happened: each act has left its mark.
    assert!(number("objects_at_start") > 200 && number("objects") > 200, "{stdout}");
    assert!(number("changes") > 400 && number("changes_made") >= number("changes"), "{stdout}");
    assert!(number("waited_in_log") > 100, "{stdout}");
    assert!(number("deletes_inferred") >= 6, "{stdout}");
    assert_eq!(number("deletes_inferred"), number("deletes_unseen"));
    assert!(number("batches") > 10, "{stdout}");
    assert!(is_empty(temporary.path()));
}

#[test]
fn ctrl_c_ends_the_demo_at_once_with_130_and_takes_the_pipeline_and_the_files_with_it() {
    let temporary = tempfile::tempdir().unwrap();
    let demo = demo(&[], temporary.path());
    let pipeline = child_of(demo.id());
    signal(demo.id(), Signal::INT);
    let asked = Instant::now();
    let output = demo.wait_with_output().unwrap();
    assert!(asked.elapsed() < Duration::from_secs(5));
    assert_eq!(output.status.code(), Some(130));
    assert!(is_gone(pipeline));
    assert!(is_empty(temporary.path()));
    let (stdout, _) = text(&output);
    assert!(stdout.contains("A snapshot"), "{stdout}");
    assert!(!stdout.contains('\u{1b}'), "no colours without a terminal: {stdout:?}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
}

#[test]
fn the_pipeline_does_not_outlive_a_demo_that_is_killed() {
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = demo(&[], temporary.path());
    let pipeline = child_of(demo.id());
    demo.kill().unwrap();
    demo.wait().unwrap();
    wait_for("the end of the pipeline", || is_gone(pipeline).then_some(()));
}

#[test]
fn a_pipeline_that_dies_by_itself_is_told_with_the_end_of_its_log() {
    let temporary = tempfile::tempdir().unwrap();
    let demo = demo(&[], temporary.path());
    let pipeline = child_of(demo.id());
    // It says what it does when it has started; the message is to quote that.
    let log = || fs::read_dir(temporary.path()).ok()?.next()?.ok().map(|entry| entry.path().join("pipeline.log"));
    wait_for("the pipeline's log", || fs::read_to_string(log()?).ok()?.contains("\"started\"").then_some(()));
    signal(pipeline, Signal::KILL);
    let output = demo.wait_with_output().unwrap();
    let (_, stderr) = text(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("the pipeline ended unexpectedly"), "{stderr}");
    assert!(stderr.contains("\"message\":\"started\""), "{stderr}");
    assert!(is_empty(temporary.path()));
}
