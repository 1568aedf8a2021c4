//! `delivery: exactly_once` against a real broker: what a reader of committed messages sees, and who may write.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod real_kafka;

use std::time::Duration;

use bytes::Bytes;
use kubetide_sink::{Decision, Sink as _, SinkError, sample};
use kubetide_sink_kafka::KafkaSink;
use kubetide_test_env::Kafka;
use real_kafka::{assert_exactly, config, dense, exactly_once, insist, make_topic, read, read_as, state, states};
use serde_json::json;

fn cursor(seq: u64) -> Bytes {
    format!("log-1:{seq}").into()
}

fn open(kafka: &Kafka, topic: &str, name: &str) -> KafkaSink {
    let config = config(&kafka.bootstrap(), topic, json!({"cursor_topic": format!("{topic}-cursors")}));
    KafkaSink::open(&config, exactly_once(name)).unwrap()
}

#[tokio::test]
async fn a_batch_and_its_cursor_are_there_together() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("together");
    let mut sink = open(kafka, &topic, "a");
    assert_eq!(sink.restore().await.unwrap(), None);
    for (from, to) in [(1, 300), (301, 301), (302, 600)] {
        sink.deliver(&states(from, to, 7), Some(&cursor(to))).await.unwrap();
    }
    // A cursor alone.
    sink.deliver(&sample::batch(Vec::new()), Some(&cursor(700))).await.unwrap();
    drop(sink);
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 600, 7);
    let mut next = open(kafka, &topic, "a");
    assert_eq!(next.restore().await.unwrap(), Some(cursor(700)));
    // Another sink has a cursor of its own in the same topic.
    assert_eq!(open(kafka, &topic, "b").restore().await.unwrap(), None);
}

#[tokio::test]
async fn kafkas_own_consumer_sees_what_was_committed_and_nothing_else() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("console");
    make_topic(&kafka.bootstrap(), &topic, 3, &[("max.message.bytes", "100000")]).await;
    let mut sink = open(kafka, &topic, "console");
    sink.deliver(&states(1, 50, 5), Some(&cursor(50))).await.unwrap();
    // Refused when most of it is there: none of it counts.
    let mut records: Vec<_> = (51..=80).map(|seq| state(seq, seq % 5, 200)).collect();
    records.push(dense(81, 1, 300_000));
    let error = insist(&mut sink, &sample::batch(records.clone()), Some(&cursor(81))).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (Decision::Split, 0), "{error}");
    let last = records.split_off(30);
    sink.deliver(&sample::batch(records), Some(&cursor(80))).await.unwrap();
    let error = insist(&mut sink, &sample::batch(last), Some(&cursor(81))).await.unwrap_err();
    assert_eq!(error.decision, Decision::Oversize, "{error}");

    assert!(read_as(&kafka.bootstrap(), &topic, "read_uncommitted").await.len() > 80, "something was aborted");
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 80, 5);
    let lines = kafka.console_consumer(&topic).await.unwrap();
    let mut seqs: Vec<u64> = lines
        .iter()
        .map(|line| {
            let value: serde_json::Value = serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap();
            value["log"]["seq"].as_u64().unwrap()
        })
        .collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=80).collect::<Vec<_>>());
}

#[tokio::test]
async fn what_was_under_way_when_the_sink_died_is_not_seen_and_comes_once() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("died");
    let mut dead = open(kafka, &topic, "d");
    dead.restore().await.unwrap();
    dead.deliver(&states(1, 100, 5), Some(&cursor(100))).await.unwrap();
    let batch = sample::batch((101..=20_000).map(|seq| state(seq, seq % 5, 200)).collect());
    // Dropped at several places of its way, as a crash would.
    for after in [1, 20, 60, 120, 200] {
        let _ = tokio::time::timeout(Duration::from_millis(after), dead.deliver(&batch, Some(&cursor(20_000)))).await;
        drop(dead);
        dead = open(kafka, &topic, "d");
        let restored = dead.restore().await.unwrap();
        if restored == Some(cursor(20_000)) {
            // It got through: what was taken does not come again.
            assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 20_000, 5);
            return;
        }
        assert_eq!(restored, Some(cursor(100)));
        assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 100, 5);
    }
    insist(&mut dead, &batch, Some(&cursor(20_000))).await.unwrap();
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 20_000, 5);
}

#[tokio::test]
async fn a_call_that_was_dropped_is_asked_about_by_the_next() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("asked");
    let mut sink = open(kafka, &topic, "asked");
    sink.restore().await.unwrap();
    for round in 0..12_u64 {
        let from = round * 500 + 1;
        let batch = states(from, from + 499, 5);
        let cursor = cursor(from + 499);
        let within = Duration::from_millis(3 * round);
        match tokio::time::timeout(within, sink.deliver(&batch, Some(&cursor))).await {
            // What was taken does not come again.
            Ok(taken) => taken.unwrap(),
            Err(_) => insist(&mut sink, &batch, Some(&cursor)).await.unwrap(),
        }
    }
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 6000, 5);
}

#[tokio::test]
async fn of_two_with_the_same_identity_the_older_stops_for_good_and_the_newer_goes_on() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("fenced");
    let mut older = open(kafka, &topic, "f");
    older.restore().await.unwrap();
    older.deliver(&states(1, 10, 2), Some(&cursor(10))).await.unwrap();
    let mut newer = open(kafka, &topic, "f");
    assert_eq!(newer.restore().await.unwrap(), Some(cursor(10)));
    newer.deliver(&states(11, 20, 2), Some(&cursor(20))).await.unwrap();
    for _ in 0..3 {
        let error = older.deliver(&states(11, 20, 2), Some(&cursor(20))).await.unwrap_err();
        assert_eq!(error.decision, Decision::Fatal, "{error}");
        assert!(error.message.contains("kubetide-c-1-f"), "{error}");
        assert_eq!(older.restore().await.unwrap_err().decision, Decision::Fatal);
    }
    newer.deliver(&states(21, 30, 2), Some(&cursor(30))).await.unwrap();
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 30, 2);
}

/// Somebody wrote under our identity while we were not connected: fencing alone does not tell.
#[tokio::test]
async fn a_cursor_that_somebody_else_has_moved_ends_the_sink() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("moved");
    let mut older = open(kafka, &topic, "m");
    older.restore().await.unwrap();
    older.deliver(&states(1, 10, 2), Some(&cursor(10))).await.unwrap();
    // It loses its producer without being fenced off.
    let (batch, at) = (states(11, 20, 2), cursor(20));
    let call = tokio::time::timeout(Duration::from_millis(1), older.deliver(&batch, Some(&at))).await;
    assert!(call.is_err(), "dropped before it is done");
    let mut newer = open(kafka, &topic, "m");
    newer.restore().await.unwrap();
    newer.deliver(&states(100, 110, 2), Some(&cursor(110))).await.unwrap();
    let error = older.deliver(&states(11, 20, 2), Some(&cursor(20))).await.unwrap_err();
    assert_eq!(error.decision, Decision::Fatal, "{error}");
    newer.deliver(&states(111, 120, 2), Some(&cursor(120))).await.expect("it was left in peace");
}

#[tokio::test]
async fn another_sinks_open_transaction_on_the_cursor_topic_hides_nothing() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("hidden");
    let cursors = format!("{topic}-cursors");
    let mut sink = open(kafka, &topic, "h");
    sink.restore().await.unwrap();
    sink.deliver(&states(1, 10, 2), Some(&cursor(10))).await.unwrap();
    // Somebody else begins before our next commit, and ends some seconds after it.
    let bootstrap = kafka.bootstrap();
    let (begun, wait) = tokio::sync::oneshot::channel();
    let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
    let other = tokio::task::spawn_blocking(move || {
        use rdkafka::producer::Producer as _;
        let producer: rdkafka::producer::ThreadedProducer<rdkafka::producer::DefaultProducerContext> =
            rdkafka::ClientConfig::new()
                .set("bootstrap.servers", &bootstrap)
                .set("transactional.id", "other")
                .create()
                .unwrap();
        producer.init_transactions(real_kafka::SOON).unwrap();
        producer.begin_transaction().unwrap();
        producer
            .send(rdkafka::producer::BaseRecord::to(&cursors).partition(0).key("other").payload("1"))
            .map_err(|(error, _)| error)
            .unwrap();
        producer.flush(real_kafka::SOON).unwrap();
        begun.send(()).unwrap();
        ended.recv().unwrap();
        std::thread::sleep(Duration::from_secs(2));
        producer.commit_transaction(real_kafka::SOON).unwrap();
    });
    wait.await.unwrap();
    sink.deliver(&states(11, 20, 2), Some(&cursor(20))).await.unwrap();
    end.send(()).unwrap();
    drop(sink);
    assert_eq!(open(kafka, &topic, "h").restore().await.unwrap(), Some(cursor(20)));
    other.await.unwrap();
}

#[tokio::test]
async fn a_cursor_far_behind_those_of_others_is_found() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("far");
    let bootstrap = kafka.bootstrap();
    let mut sink = open(kafka, &topic, "far");
    sink.restore().await.unwrap();
    sink.deliver(&states(1, 10, 2), Some(&cursor(10))).await.unwrap();
    let cursors = format!("{topic}-cursors");
    let others = tokio::task::spawn_blocking(move || {
        use rdkafka::producer::Producer as _;
        let producer: rdkafka::producer::ThreadedProducer<rdkafka::producer::DefaultProducerContext> =
            rdkafka::ClientConfig::new().set("bootstrap.servers", &bootstrap).create().unwrap();
        for at in 0..15_000 {
            let key = format!("other-{}", at % 7);
            producer
                .send(rdkafka::producer::BaseRecord::to(&cursors).partition(0).key(&key).payload("1"))
                .map_err(|(error, _)| error)
                .unwrap();
        }
        producer.flush(real_kafka::SOON).unwrap();
    });
    others.await.unwrap();
    drop(sink);
    assert_eq!(open(kafka, &topic, "far").restore().await.unwrap(), Some(cursor(10)));
}

#[tokio::test]
async fn a_cursor_topic_that_forgets_is_refused() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("forgets");
    make_topic(&kafka.bootstrap(), &format!("{topic}-cursors"), 1, &[("cleanup.policy", "delete")]).await;
    let mut sink = open(kafka, &topic, "x");
    let error = sink.restore().await.unwrap_err();
    assert_eq!(error.decision, Decision::Hold);
    assert!(error.message.contains("cleanup.policy"), "{error}");
    real_kafka::set_topic(&kafka.bootstrap(), &format!("{topic}-cursors"), "cleanup.policy", "compact").await;
    assert_eq!(sink.restore().await.unwrap(), None, "it is asked again");
    let mut config = config(&kafka.bootstrap(), &topic, json!({"cursor_topic": format!("{topic}-none")}));
    config.create_topics = None;
    let error = KafkaSink::open(&config, exactly_once("x")).unwrap().restore().await.unwrap_err();
    assert_eq!(error.decision, Decision::Hold);
    assert!(error.message.contains(&format!("{topic}-none")), "{error}");
}

/// `KUBETIDE_TORTURE` says how often the broker is killed.
#[tokio::test]
async fn a_broker_that_is_killed_during_commits_neither_loses_nor_doubles_anything() {
    let kills: u64 = std::env::var("KUBETIDE_TORTURE").map_or(5, |count| count.parse().unwrap());
    let kafka = Kafka::start().await.unwrap();
    let topic = kafka.topic("tortured");
    let mut sink = open(&kafka, &topic, "t");
    sink.restore().await.unwrap();
    let (mut seq, mut unknown) = (0, 0);
    for kill in 0..kills {
        let death = async {
            // At another moment of the work each time.
            tokio::time::sleep(Duration::from_millis(200 + kill * 37 % 300)).await;
            kafka.stop();
            kafka.start_again().await.unwrap();
        };
        tokio::pin!(death);
        let mut alive = false;
        loop {
            let batch = states(seq + 1, seq + 50, 7);
            let at = cursor(seq + 50);
            let write = async {
                let mut failures = 0;
                loop {
                    match sink.deliver(&batch, Some(&at)).await {
                        Ok(()) => return failures,
                        Err(SinkError { decision: Decision::Retry { .. }, .. }) => failures += 1,
                        Err(error) => panic!("{error}"),
                    }
                }
            };
            unknown += match alive {
                true => write.await,
                false => {
                    tokio::pin!(write);
                    tokio::select! {
                        failures = &mut write => failures,
                        () = &mut death => { alive = true; write.await }
                    }
                }
            };
            seq += 50;
            if alive {
                break;
            }
        }
    }
    eprintln!("{kills} kills, {seq} records, {unknown} failures");
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, seq, 7);
    drop(sink);
    assert_eq!(open(&kafka, &topic, "t").restore().await.unwrap(), Some(cursor(seq)));
}
