//! Which records are asked for: ends that are still to come, and operands that can be nothing.

use std::{
    io::{BufRead as _, BufReader, Read, Write as _},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use serde_json::Value;

use super::Case;

/// Only ever reached by a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// Asks the socket as a script does, over a connection of its own.
fn request(socket: &Path, path: &str) -> UnixStream {
    let mut connection = UnixStream::connect(socket).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nhost: kubetide\r\n\r\n").unwrap();
    connection
}

/// The seqs in what is left of an answer.
fn seqs_in(answer: impl Read) -> Vec<u64> {
    let lines = BufReader::new(answer).lines().map(Result::unwrap);
    let records = lines.filter(|line| line.starts_with("{\"schema\"")).map(|line| {
        let record: Value = serde_json::from_str(&line).unwrap();
        record["log"]["seq"].as_u64().unwrap()
    });
    records.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_may_name_an_end_that_is_still_to_come_and_holds_up_nothing_until_then() {
    let mut case = Case::running().await;
    let socket = case.data().join("kubetide.sock");
    let ranges =
        ["to=15", "from=15&to=15", "from=1&to=15", "to=15&last=3", "to=99&was=true", "to=2100-01-01T00:00:00Z"];
    let answers = ranges.map(|range| {
        let mut answer = BufReader::new(request(&socket, &format!("/api/v1/changes?{range}&follow=true")));
        let mut head = String::new();
        answer.read_line(&mut head).unwrap();
        assert!(head.contains(" 200 "), "{range}: {head}");
        answer
    });
    let [all, next, two, last, gone, open] = answers;
    drop(gone);

    // It captures and answers as if nobody were waiting.
    case.update("c5", "1");
    case.kubetide.records_when("the update is delivered", |records| records.len() == 15).await;
    let (live, _) = case.kubetide.page("/livez").expect("it answers");
    assert_eq!(live, 200);
    let whole: Vec<u64> = (1..=15).collect();
    assert_eq!((seqs_in(all), seqs_in(two)), (whole.clone(), whole), "an answer ends with what it was to end with");
    assert_eq!((seqs_in(next), seqs_in(last)), (vec![15], vec![12, 13, 14, 15]));
    case.update("c5", "2");
    case.kubetide.records_when("the update is delivered", |records| records.len() == 16).await;
    let mut refused = String::new();
    let _ = request(&socket, "/api/v1/changes?to=17").read_to_string(&mut refused);
    assert!(refused.contains(" 404 ") && refused.contains("there is no record 17"), "{refused}");
    assert!(case.kubetide.terminate().success(), "nobody who waits holds up the end");
    assert_eq!(seqs_in(open), (1..=16).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_or_an_object_that_can_never_be_is_a_usage_error_with_what_is_allowed() {
    let case = Case::running().await;
    for arguments in [
        &["log", "export", "--from", "0"][..],
        &["log", "export", "--to", "0"],
        &["tail", "--no-follow", "--since", "0"],
    ] {
        let ended = case.run(arguments).await;
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:#?}");
        assert!(ended.stderr.contains("found \"0\"") && ended.stderr.contains("from 1 on"), "{ended:#?}");
    }
    for object in ["default/", "a/b/c", "/c1"] {
        let refused = case.run(&["log", "export", "--object", object]).await;
        refused.assert_refused(2, &[&format!("found {object}"), "NAMESPACE/NAME"]);
    }
    let mut refused = String::new();
    let _ = request(&case.data().join("kubetide.sock"), "/api/v1/changes?from=0").read_to_string(&mut refused);
    assert!(refused.contains(" 400 ") && refused.contains("from 1 on"), "{refused}");
}
