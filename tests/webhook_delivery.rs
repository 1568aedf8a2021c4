//! The built binary and a web server that commits batches: killed, held back, and lied to.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;
mod pipeline;

use std::time::Duration;

use instance::BATCH;
use kubetide_test_env::{Answer, Posted, WebhookReceiver};
use pipeline::{
    PATIENCE, Pipeline, assert_bounded, assert_exactly, kills,
    receiver::{Lines, Posts, Receiver},
};

const LOAD: &str = "max_records: 50, max_wait_ms: 20";
/// No test waits for that.
const AN_HOUR_MS: u64 = 3_600_000;

fn sink(url: &str, batch: &str) -> String {
    format!(
        "{{name: it, type: webhook, url: '{url}', timeout_secs: 600, batch: {{{batch}}}, retry: {{initial_ms: 20, max_ms: 200}}}}"
    )
}

async fn requests_when(receiver: &WebhookReceiver, count: usize) -> Vec<Posted> {
    let requests = tokio::time::timeout(PATIENCE, receiver.requests_when(count)).await;
    requests.unwrap_or_else(|_| panic!("{} requests instead of {count}", receiver.requests().len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_repeat_at_most_a_batch_each_and_lose_nothing() {
    let kills = kills(10, 100);
    let receiver = WebhookReceiver::start().unwrap();
    let mut pipeline = Pipeline::new(&sink(&receiver.url(), LOAD)).await;
    // Every second kill comes when a batch was just committed, and before the answer is there.
    receiver.answer(Answer::status(204).after(Duration::from_millis(10)));
    let aim = async |kill: usize| {
        if kill % 2 == 1 {
            requests_when(&receiver, receiver.requests().len() + 1).await;
        }
    };
    pipeline.run_through(kills, aim).await;
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    let repeated = assert_bounded(Posts::of(&receiver).records().await, &log, kills);
    assert!(repeated > 0, "no kill came between a commit and the cursor");
    println!("{kills} kills: {} records, {repeated} repeated", log.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_repeat_nothing_and_lose_nothing() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut pipeline = Pipeline::new(&sink(&receiver.url(), LOAD)).await;
    pipeline.stop_and_go(kills(2, 20)).await;
    assert_exactly(Posts::of(&receiver).records().await, &pipeline.log().await);
}

/// Checks that these are the same request twice, and that everything is there once for who looks at `webhook-id`.
async fn assert_once_by_id(pipeline: &Pipeline, requests: &[Posted], twice: usize) {
    let [first, second] = [&requests[twice], &requests[twice + 1]];
    assert!(first.committed && second.committed);
    assert!(!first.header("webhook-id").is_empty());
    assert_eq!(first.header("webhook-id"), second.header("webhook-id"));
    assert!(first.body == second.body, "the same batch with another body");
    let mut ids = std::collections::HashSet::new();
    let new = requests.iter().filter(|posted| ids.insert(posted.header("webhook-id").to_owned()));
    let records: Vec<_> = new.flat_map(Posted::values).collect();
    assert_exactly(&records, &pipeline.log().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_without_an_answer_comes_again_after_a_kill_with_its_id_and_its_bytes() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut pipeline = Pipeline::new(&sink(&receiver.url(), LOAD)).await;
    let twice = 8;
    receiver.answer_next((0..twice).map(|_| Answer::status(204)));
    receiver.answer(Answer::hang().committing(true));
    let churn = pipeline.churn();
    pipeline.start().await;
    requests_when(&receiver, twice + 1).await;
    // The log goes on, so that a batch that were cut anew would have more in it.
    let file = pipeline.instance.path("out.ndjson");
    Lines::of(&file).until("a log that goes on", |records| records.len() > (twice + 4) * BATCH as usize).await;
    pipeline.instance.kill();
    receiver.answer(Answer::status(204));
    // Nor does it matter what a batch may have by now.
    pipeline.configure(&sink(&receiver.url(), "max_records: 500, max_wait_ms: 20"));
    pipeline.start().await;
    requests_when(&receiver, twice + 4).await;
    drop(churn);
    pipeline.delivered(&pipeline.log().await).await;
    assert!(pipeline.instance.terminate().success());
    assert_once_by_id(&pipeline, &receiver.requests(), twice).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_and_then_cut_off_comes_again_with_its_id_and_its_bytes() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut pipeline = Pipeline::new(&sink(&receiver.url(), LOAD)).await;
    let twice = 8;
    receiver.answer_next((0..twice).map(|_| Answer::status(204)));
    receiver.answer_next([Answer::reset().committing(true)]);
    let churn = pipeline.churn();
    pipeline.start().await;
    requests_when(&receiver, twice + 4).await;
    drop(churn);
    pipeline.delivered(&pipeline.log().await).await;
    assert!(pipeline.instance.terminate().success());
    assert_once_by_id(&pipeline, &receiver.requests(), twice).await;
}

/// 300 objects, and the two records around them.
const SNAPSHOT: usize = 302;

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_may_wait_leaves_when_it_has_its_records_and_no_sooner() {
    let receiver = WebhookReceiver::start().unwrap();
    let batch = format!("max_records: 50, max_wait_ms: {AN_HOUR_MS}");
    let mut pipeline = Pipeline::new(&sink(&receiver.url(), &batch)).await;
    pipeline.make("lone");
    pipeline.start().await;
    let mut file = Lines::of(&pipeline.instance.path("out.ndjson"));
    let full = (SNAPSHOT + 1) / 50;
    let missing = (full + 1) * 50 - (SNAPSHOT + 1);
    for changes in 1..missing {
        pipeline.touch("lone");
        file.until("the change is logged", |records| records.len() == SNAPSHOT + 1 + changes).await;
    }
    requests_when(&receiver, full).await;
    assert_eq!(pipeline.cuts("count"), full as f64);
    pipeline.touch("lone");
    let requests = requests_when(&receiver, full + 1).await;
    assert!(requests.iter().all(|posted| posted.values().len() == 50), "none was cut before");
    let cuts = ["count", "bytes", "age", "again", "stop"].map(|reason| pipeline.cuts(reason));
    assert_eq!(cuts, [(full + 1) as f64, 0.0, 0.0, 0.0, 0.0]);

    // What waits when it is stopped is not left behind.
    pipeline.acknowledged((full as u64 + 1) * 50).await;
    pipeline.touch("lone");
    let log = pipeline.log().await;
    assert!(pipeline.instance.terminate().success());
    assert_exactly(Posts::of(&receiver).records().await, &log);
    assert_eq!(receiver.requests().last().unwrap().values().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_may_wait_leaves_when_it_has_its_bytes_and_no_sooner() {
    let receiver = WebhookReceiver::start().unwrap();
    let max_bytes = 16_384;
    let batch = format!("max_records: 100000, max_bytes: {max_bytes}, max_wait_ms: {AN_HOUR_MS}");
    let mut pipeline = Pipeline::new(&sink(&receiver.url(), &batch)).await;
    pipeline.make("lone");
    pipeline.start().await;
    let log = pipeline.log().await;
    // Records differ by some bytes: what is left may be one more than what was enough before, and still be too little.
    let enough = |records: &[serde_json::Value]| {
        let largest = receiver.requests().iter().map(|posted| posted.values().len()).max();
        largest.is_some_and(|largest| log.len() - records.len() <= largest + 1)
    };
    Posts::of(&receiver).until("all that may leave", enough).await;
    let mut file = Lines::of(&pipeline.instance.path("out.ndjson"));
    let before = receiver.requests().len();
    for changes in 1.. {
        pipeline.touch("lone");
        file.until("the change is logged", |records| records.len() == log.len() + changes).await;
        if receiver.requests().len() > before {
            break;
        }
    }
    // A batch is counted when it is cut, and is here when it was sent.
    let cuts = pipeline.cuts("bytes");
    let requests = requests_when(&receiver, cuts as usize).await;
    assert_eq!(cuts, requests.len() as f64);
    for reason in ["count", "age", "again", "stop"] {
        assert_eq!(pipeline.cuts(reason), 0.0, "{reason}");
    }
    let lens: Vec<usize> = requests.iter().map(|posted| posted.body.len()).collect();
    // A record has some more text around it than what its weight counts.
    assert!(lens.iter().all(|len| (max_bytes / 2..max_bytes * 2).contains(len)), "{lens:?}");
    pipeline.instance.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_change_leaves_by_its_age_and_at_once_where_none_is_allowed() {
    for max_wait_ms in [0, 100] {
        let receiver = WebhookReceiver::start().unwrap();
        let batch = format!("max_records: 100000, max_bytes: 8388608, max_wait_ms: {max_wait_ms}");
        let mut pipeline = Pipeline::new(&sink(&receiver.url(), &batch)).await;
        pipeline.make("lone");
        pipeline.start().await;
        let mut posts = Posts::of(&receiver);
        posts.until("the snapshot", |records| records.len() == SNAPSHOT + 1).await;
        let (before, cuts) = (receiver.requests().len(), pipeline.cuts("age"));
        for change in 1..=10 {
            pipeline.touch("lone");
            // Nothing else comes that could fill it: the clock alone can cut it.
            let requests = requests_when(&receiver, before + change).await;
            assert_eq!((requests.len(), requests[before + change - 1].values().len()), (before + change, 1));
        }
        assert_eq!(pipeline.cuts("age"), cuts + 10.0);
        assert_eq!([pipeline.cuts("count"), pipeline.cuts("bytes")], [0.0, 0.0]);
        assert!(pipeline.instance.terminate().success());
    }
}
