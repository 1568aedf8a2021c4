//! Connections that are refused, reset, lost and kept.

use kubetide_sink::{Decision, Sink as _};
use kubetide_test_env::{Answer, WebhookReceiver};
use serde_json::json;

use crate::{batch, deliver, refused, sink};

const RETRY: Decision = Decision::Retry { after: None };

#[tokio::test]
async fn a_receiver_that_is_away_is_tried_again_and_found_when_it_is_back() {
    let mut receiver = WebhookReceiver::start().unwrap();
    receiver.stop().await;
    let mut sink = sink(&receiver.url(), &json!({}));
    for _ in 0..3 {
        let error = refused(&mut sink, &batch([1])).await;
        assert_eq!(error.decision, RETRY);
        assert!(error.message.contains("cannot connect"), "{error}");
    }
    receiver.start_again().unwrap();
    deliver(&mut sink, &batch([1])).await.unwrap();
    // The connection that is kept is of a process that is gone. It may take a try to notice.
    receiver.stop().await;
    receiver.start_again().unwrap();
    if let Err(error) = deliver(&mut sink, &batch([2])).await {
        assert_eq!(error.decision, RETRY);
        deliver(&mut sink, &batch([2])).await.unwrap();
    }
    let ids: Vec<_> = receiver.requests().iter().map(|posted| posted.header("webhook-id").to_owned()).collect();
    assert_eq!(ids.len(), 2);
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_host_without_an_address_is_tried_again() {
    let error = refused(&mut sink("http://no-such-host.invalid/", &json!({})), &batch([1])).await;
    assert_eq!(error.decision, RETRY);
    assert!(error.message.contains("cannot connect"), "{error}");
}

#[tokio::test]
async fn what_may_have_been_taken_is_never_sent_again_behind_deliverys_back() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    deliver(&mut sink, &batch([1])).await.unwrap();
    // On a kept connection, where a client might think that it was merely stale.
    receiver.answer_next([Answer::reset().committing(true)]);
    let error = refused(&mut sink, &batch([2])).await;
    assert_eq!(error.decision, RETRY);
    assert_eq!(receiver.requests().len(), 2);
    // The receiver lies: it has committed, and says that it has failed.
    receiver.answer_next([Answer::status(500).committing(true)]);
    assert_eq!(refused(&mut sink, &batch([2])).await.decision, RETRY);
    deliver(&mut sink, &batch([2])).await.unwrap();
    let requests = receiver.requests();
    assert_eq!(requests.len(), 4);
    for again in &requests[2..] {
        assert_eq!(again.header("webhook-id"), requests[1].header("webhook-id"));
        assert_eq!(again.body, requests[1].body);
    }
}

#[tokio::test]
async fn a_delivery_that_is_given_up_can_be_made_again() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    receiver.answer_next([Answer::hang()]);
    let given_up = batch([1]);
    tokio::select! {
        _ = sink.deliver(&given_up, None) => panic!("nobody answers"),
        _ = receiver.requests_when(1) => {}
    }
    deliver(&mut sink, &batch([1])).await.unwrap();
    assert_eq!(receiver.committed().len(), 1);
}

#[tokio::test]
async fn one_connection_is_kept_for_all_batches() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    for seq in 1..=50 {
        deliver(&mut sink, &batch([seq])).await.unwrap();
    }
    assert_eq!((receiver.requests().len(), receiver.connections()), (50, 1));
}
