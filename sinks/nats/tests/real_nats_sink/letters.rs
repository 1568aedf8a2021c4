//! Dead letters on a subject: stored before the sink goes on, once, and with a word where no stream takes them.

use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use kubetide_sink::{Decision, Letter, Sink as _, Terms, sample, truncated};
use kubetide_sink_nats::NatsSink;
use serde_json::json;

use crate::support::{Place, changes};

fn letter(seq: u64, bytes: usize) -> Letter {
    Letter {
        at: "2026-11-16T04:00:00.123456Z".parse().unwrap(),
        sink: "bus".into(),
        reason: "400 Bad Request\r\nX-Injected: 1".into(),
        record: sample::record(seq, format!("{{\"a\":\"{}\"}}", "x".repeat(bytes))),
    }
}

/// A sink whose letters go to this subject.
fn sink(place: &Place, subject: &str, exactly_once: bool) -> NatsSink {
    let terms = Terms { letters: Some(subject.into()), ..place.terms(exactly_once) };
    NatsSink::open(&place.config(json!({})), terms).unwrap()
}

#[tokio::test]
async fn a_letter_is_stored_once_with_its_reason_also_beside_atomic_batches() {
    for exactly_once in [false, true] {
        let place = Place::shared("letters").await;
        let subject = format!("{}.dead.bus", place.stream);
        let mut sink = sink(&place, &subject, exactly_once);
        let cursor = exactly_once.then(|| Bytes::from_static(b"1"));
        if exactly_once {
            sink.restore().await.unwrap();
        }
        sink.deliver(&changes(1..=1), cursor.as_ref()).await.unwrap();
        for _ in 0..2 {
            // The process was killed before the cursor had passed the record.
            sink.set_aside(&letter(2, 10), cursor.as_ref()).await.unwrap();
        }
        sink.deliver(&changes(3..=3), cursor.as_ref()).await.unwrap();
        let stored = place.stored().await;
        let of: Vec<_> = stored.iter().filter(|stored| stored.subject == subject).collect();
        assert_eq!(of.len(), 1);
        assert_eq!(of[0].header("kubetide-dead-letter"), "400 Bad Request  X-Injected: 1");
        assert_eq!((of[0].header("kubetide-seq"), of[0].header("X-Injected")), ("2", ""));
        assert_eq!(Letter::read(&of[0].payload.clone().into()).unwrap(), letter(2, 10));
        assert_eq!(place.seqs().await, [1, 2, 3], "in the order of the log");
    }
}

#[tokio::test]
async fn a_subject_that_no_stream_takes_holds_and_is_named_until_one_does_and_a_letter_that_is_too_large_is_cut() {
    let place = Place::shared("letters").await;
    let subject = format!("dead-{}.bus", place.stream);
    let mut sink = sink(&place, &subject, false);
    let missing = sink.set_aside(&letter(2, 10), None).await.unwrap_err();
    assert_eq!(missing.decision, Decision::Hold);
    assert!(missing.message.contains(&format!("no stream takes it: add {subject}")), "{missing}");
    let other = format!("{}-dead", place.stream);
    let config = Config { name: other.clone(), subjects: vec![subject], max_message_size: 4096, ..Config::default() };
    place.jetstream().await.create_stream(config).await.unwrap();
    sink.set_aside(&letter(2, 10), None).await.unwrap();
    let large = letter(3, 10_000);
    let refused = sink.set_aside(&large, None).await.unwrap_err();
    assert_eq!(refused.decision, Decision::Oversize, "{refused}");
    let small = Letter { record: truncated(&large.record).unwrap(), ..large };
    sink.set_aside(&small, None).await.unwrap();
    let mut there = place.jetstream().await.get_stream(&other).await.unwrap();
    assert_eq!(there.info().await.unwrap().state.messages, 2);
}
