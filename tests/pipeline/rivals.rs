//! Two processes that write as the same sink, each with a data directory of its own: the one that comes later goes on, the other one
//! ends for good, and what is there tells it.

use serde_json::json;

use super::{Pipeline, assert_exactly, fold::Fold, logged, receiver::Receiver, seq};

/// What becomes of the first process while the second one starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// It writes all the while.
    Writes,
    /// It is stopped in the middle, and wakes up when the second one has taken over: a zombie.
    Sleeps,
}

pub async fn the_newer_one_goes_on(pipeline: &mut Pipeline, receiver: &mut impl Receiver, first: First) {
    let churn = pipeline.churn();
    pipeline.start().await;
    receiver.until("the first one writes", |records| records.len() > 500).await;
    if first == First::Sleeps {
        pipeline.instance.signal(rustix::process::Signal::STOP);
    }
    let mut second = pipeline.another();
    second.start();
    let log_of = |record: &serde_json::Value| record["log"]["id"].clone();
    let is_taken_over = |records: &[serde_json::Value]| log_of(&records[0]) != log_of(records.last().unwrap());
    receiver.until("the second one writes", is_taken_over).await;
    if first == First::Sleeps {
        pipeline.instance.signal(rustix::process::Signal::CONT);
    }
    let status = pipeline.instance.ended().await;
    assert_eq!(status.code(), Some(1), "it ends, and not as if all were well");
    let said = pipeline.instance.log();
    let error = said.lines().rfind(|line| line.starts_with("error: ")).expect("it says why");
    assert!(error.starts_with("error: sink it: ") && error.contains("another process"), "{error}");

    let then = receiver.records().await.len();
    receiver.until("the second one goes on", |records| records.len() > then + 500).await;
    drop(churn);
    let log = logged(pipeline.server.cluster(), &second.path("out.ndjson")).await;
    let is_last = |record: &serde_json::Value| seq(record) == log.len() as u64;
    receiver.until("the whole log of the second one", |records| records.last().is_some_and(is_last)).await;
    assert!(second.terminate().success());

    // All that the first one wrote, the word that its log is not known here, and all that the second one has to tell.
    let firsts = pipeline.instance.records();
    let records = receiver.records().await;
    let taken_over = records.iter().position(|record| log_of(record) != log_of(&records[0])).unwrap();
    let theirs = firsts.into_iter().take(taken_over).map(|record| (seq(&record), record)).collect();
    assert_exactly(&records[..taken_over], &theirs);
    let gap = &records[taken_over];
    let told = (&gap["op"], &gap["reason"], &gap["scope"], &gap["from"]["seq"]);
    assert_eq!(told, (&json!("gap"), &json!("log_lost"), &json!("log"), &json!(taken_over)));
    assert_exactly(&records[taken_over + 1..], &log);
    assert_eq!(Fold::of(records).differs_from(&pipeline.there_is()), None);
    eprintln!("{taken_over} records of the first, a gap, and {} of the second, each once", log.len());
}
