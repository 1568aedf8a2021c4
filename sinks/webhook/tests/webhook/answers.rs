//! Each answer, and each lack of one, is one decision.

use std::time::{Duration, Instant};

use kubetide_sink::Decision;
use kubetide_test_env::{Answer, WebhookReceiver};
use serde_json::json;

use crate::{batch, deliver, refused, sink};

const RETRY: Decision = Decision::Retry { after: None };

#[tokio::test]
async fn an_answer_of_success_is_ok_and_everything_else_is_its_decision() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    for (status, one, several) in [
        (503, RETRY, RETRY),
        (500, RETRY, RETRY),
        (429, RETRY, RETRY),
        (408, RETRY, RETRY),
        (425, RETRY, RETRY),
        (413, Decision::Oversize, Decision::Split),
        (400, Decision::Poison, Decision::Split),
        (422, Decision::Poison, Decision::Split),
        (401, Decision::Hold, Decision::Hold),
        (403, Decision::Hold, Decision::Hold),
        (404, Decision::Hold, Decision::Hold),
        (405, Decision::Hold, Decision::Hold),
        (407, Decision::Hold, Decision::Hold),
        (410, Decision::Hold, Decision::Hold),
        (409, Decision::Hold, Decision::Hold),
    ] {
        receiver.answer(Answer::status(status));
        for (batch, decision) in [(batch([1]), one), (batch([1, 2]), several)] {
            let error = refused(&mut sink, &batch).await;
            assert_eq!((error.decision, error.durable), (decision, 0), "{status}: {error}");
            assert!(error.message.contains(&status.to_string()), "{error}");
        }
    }
    assert!(receiver.committed().is_empty());
    for status in [200, 201, 202, 204] {
        let answer = Answer::status(status);
        // A body that is not there yet when the headers are.
        let late = |answer: Answer| answer.with_late_body("taken", Duration::from_millis(20));
        receiver.answer(if status == 204 { answer } else { late(answer) });
        deliver(&mut sink, &batch([1, 2])).await.unwrap();
    }
    assert_eq!(receiver.connections(), 1, "answers are read to their end, so that the connection is used again");
}

#[tokio::test]
async fn the_pause_that_the_receiver_wishes_for_is_passed_on() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    let mut wish = async |status, value: &str| {
        receiver.answer(Answer::status(status).with_header("retry-after", value));
        match refused(&mut sink, &batch([1])).await.decision {
            Decision::Retry { after } => after.map(|after| after.as_secs()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(wish(429, "17").await, Some(17));
    assert_eq!(wish(503, "86400").await, Some(3600));
    assert_eq!(wish(500, "nonsense").await, None);
    let in_100_s =
        (jiff::Timestamp::now() + Duration::from_secs(100)).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let wished = wish(503, &in_100_s).await.unwrap();
    assert!((90..=100).contains(&wished), "{wished}");
}

#[tokio::test]
async fn redirects_are_never_followed() {
    let elsewhere = WebhookReceiver::start().unwrap();
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    for status in [301, 302, 303, 307, 308] {
        receiver.answer(Answer::status(status).with_header("location", &format!("{}?T0K3N", elsewhere.url())));
        let error = refused(&mut sink, &batch([1, 2])).await;
        assert_eq!(error.decision, Decision::Hold);
        assert!(error.message.contains("127.0.0.1") && !error.message.contains("T0K3N"), "{error}");
    }
    assert_eq!((receiver.requests().len(), elsewhere.requests().len()), (5, 0));
}

#[tokio::test]
async fn a_receiver_that_hangs_is_tried_again_after_the_timeout() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({"timeout_secs": 1}));
    receiver.answer_next([Answer::hang().committing(true)]);
    let begin = Instant::now();
    let error = refused(&mut sink, &batch([1])).await;
    assert_eq!(error.decision, RETRY);
    assert!(error.message.contains("no answer within 1 s"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(5));
    deliver(&mut sink, &batch([1])).await.unwrap();
    let requests = receiver.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].header("webhook-id"), requests[1].header("webhook-id"));
    assert_eq!(requests[0].body, requests[1].body);
}

#[tokio::test]
async fn an_answer_whose_body_does_not_end_or_is_endless_counts_by_its_status() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    receiver.answer_next([
        Answer::status(200).with_hanging_body("committed, and"),
        Answer::status(503).with_hanging_body("sorry, but"),
        Answer::status(200).with_body(vec![b'x'; 8 << 20]),
    ]);
    let begin = Instant::now();
    deliver(&mut sink, &batch([1])).await.unwrap();
    assert_eq!(refused(&mut sink, &batch([2])).await.decision, RETRY);
    deliver(&mut sink, &batch([2])).await.unwrap();
    deliver(&mut sink, &batch([3])).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    assert_eq!(receiver.requests().len(), 4);
}

#[tokio::test]
async fn an_answer_that_comes_before_the_body_was_read_is_seen_soon_also_where_the_connection_is_closed_then() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = sink(&receiver.url(), &json!({}));
    // As proxies and frameworks do: they know the length from the headers.
    receiver.answer(Answer::status(413).unread());
    let large = |seq| kubetide_sink::sample::record(seq, format!(r#""{}""#, "x".repeat(600_000)));
    let batch = kubetide_sink::sample::batch(vec![large(1), large(2)]);
    for _ in 0..40 {
        let error = refused(&mut sink, &batch).await;
        if error.decision == Decision::Split {
            return;
        }
        // Now and then the closed connection is met before the answer is read (measured: 1 in 10 at this size).
        assert_eq!(error.decision, RETRY, "{error}");
    }
    panic!("none of 40 answers was seen");
}

#[tokio::test]
async fn the_record_that_the_receiver_refuses_is_found_by_what_it_says() {
    let receiver = WebhookReceiver::start().unwrap();
    receiver.answer_by(|posted| match posted.unpacked().windows(7).any(|part| part == br#"{"a":3}"#) {
        true => Answer::status(422),
        false => Answer::status(204),
    });
    let mut sink = sink(&receiver.url(), &json!({}));
    assert_eq!(refused(&mut sink, &batch([1, 2, 3, 4])).await.decision, Decision::Split);
    deliver(&mut sink, &batch([1, 2])).await.unwrap();
    assert_eq!(refused(&mut sink, &batch([3])).await.decision, Decision::Poison);
    deliver(&mut sink, &batch([4])).await.unwrap();
    let committed: Vec<_> = receiver.committed().iter().map(|value| value["log"]["seq"].as_u64().unwrap()).collect();
    assert_eq!(committed, [1, 2, 4]);
}
