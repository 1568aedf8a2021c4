//! Dead letters in a topic, on a real broker: durable before the sink goes on, and in one transaction with the cursor.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod real_kafka;

use bytes::Bytes;
use kubetide_sink::{Decision, Letter, Sink as _, Terms, sample, truncated};
use kubetide_sink_kafka::KafkaSink;
use kubetide_test_env::Kafka;
use real_kafka::{config, dense, exactly_once, make_topic, read, read_as, state, states};
use serde_json::{Value, json};

fn letter(record: kubetide_sink::Record) -> Letter {
    let at = "2026-11-16T04:00:00.123456Z".parse().unwrap();
    Letter { at, sink: "kafka".into(), reason: "Broker: Message was refused\n".into(), record }
}

fn open(kafka: &Kafka, topic: &str, more: Value, terms: Terms) -> KafkaSink {
    let letters = Some(format!("{topic}.dead"));
    KafkaSink::open(&config(&kafka.bootstrap(), topic, more), Terms { letters, ..terms }).unwrap()
}

#[tokio::test]
async fn a_letter_has_its_objects_key_its_reason_and_a_topic_that_is_made_to_keep_it() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("letters");
    let compacted = json!({"create_topics": {"partitions": 3, "replication": 1, "cleanup_policy": "compact"}});
    let mut sink = open(kafka, &topic, compacted, sample::terms("kafka"));
    let mut refused = state(2, 2, 10);
    // What the record may have been refused for is not in the way of its letter.
    refused.observed_at = "1971-01-01T00:00:00Z".parse().unwrap();
    sink.deliver(&sample::batch(vec![state(1, 1, 10)]), None).await.unwrap();
    sink.set_aside(&letter(refused.clone()), None).await.unwrap();
    sink.set_aside(&letter(state(4, 2, 10)), None).await.unwrap();
    sink.deliver(&sample::batch(vec![state(5, 2, 10)]), None).await.unwrap();
    let all = read(&kafka.bootstrap(), &format!("{topic}.dead")).await;
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].key.as_str(), all[0].seq()), ("sample/core/pods/default/pod-2", 2));
    assert_eq!(all[0].headers["kubetide-dead-letter"], "Broker: Message was refused ");
    assert_eq!(all[0].timestamp, Some(letter(refused.clone()).at.as_millisecond()));
    let value = Bytes::from(all[0].value.clone().unwrap());
    assert_eq!(Letter::read(&value).unwrap(), letter(refused));
    assert_eq!(read(&kafka.bootstrap(), &topic).await.len(), 2, "no letter is among the records");
}

#[tokio::test]
async fn a_missing_topic_for_letters_holds_and_is_named_and_one_that_takes_little_gets_a_letter_without_the_object() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("little");
    let mut sink = open(kafka, &topic, json!({"create_topics": null}), sample::terms("kafka"));
    let large = letter(dense(2, 2, 300_000));
    let missing = sink.set_aside(&large, None).await.unwrap_err();
    assert_eq!(missing.decision, Decision::Hold);
    assert!(missing.message.contains(&format!("the topic {topic}.dead is missing")), "{missing}");
    make_topic(&kafka.bootstrap(), &format!("{topic}.dead"), 1, &[("max.message.bytes", "100000")]).await;
    let mut decision = Decision::Retry { after: None };
    while matches!(decision, Decision::Retry { .. }) {
        decision = sink.set_aside(&large, None).await.unwrap_err().decision;
    }
    assert_eq!(decision, Decision::Oversize);
    let small = Letter { record: truncated(&large.record).unwrap(), ..large };
    sink.set_aside(&small, None).await.unwrap();
    let all = read(&kafka.bootstrap(), &format!("{topic}.dead")).await;
    let value: Value = serde_json::from_str(all[0].value.as_ref().unwrap()).unwrap();
    assert_eq!((all.len(), &value["record"]["object"]), (1, &Value::Null));
    assert!(value["record"]["truncated"]["bytes"].as_u64() > Some(300_000), "{}", value["record"]["truncated"]);
}

#[tokio::test]
async fn exactly_once_a_letter_and_the_cursor_behind_it_are_one_transaction() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("once");
    let cursors = json!({"cursor_topic": format!("{topic}-cursors")});
    let cursor = |seq: u64| Bytes::from(format!("log-1:{seq}"));
    let open = || open(kafka, &topic, cursors.clone(), exactly_once("letters"));
    let mut sink = open();
    assert_eq!(sink.restore().await.unwrap(), None);
    sink.deliver(&states(1, 9, 3), Some(&cursor(9))).await.unwrap();
    sink.set_aside(&letter(state(10, 1, 10)), Some(&cursor(10))).await.unwrap();
    // Nobody has heard of it, and it is tried again: the cursor says that it is there.
    let mut next = open();
    assert_eq!(next.restore().await.unwrap(), Some(cursor(10)));
    let fenced = sink.set_aside(&letter(state(11, 1, 10)), Some(&cursor(11))).await.unwrap_err();
    assert_eq!(fenced.decision, Decision::Fatal, "{fenced}");
    next.deliver(&states(11, 12, 3), Some(&cursor(12))).await.unwrap();
    next.set_aside(&letter(state(13, 1, 10)), Some(&cursor(13))).await.unwrap();
    let dead = format!("{topic}.dead");
    let seqs: Vec<u64> = read(&kafka.bootstrap(), &dead).await.iter().map(real_kafka::Got::seq).collect();
    let mut sorted = seqs.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [10, 13], "what a reader of committed messages sees");
    assert!(read_as(&kafka.bootstrap(), &dead, "read_uncommitted").await.len() >= 2);
    assert_eq!(read(&kafka.bootstrap(), &topic).await.len(), 11);
}
