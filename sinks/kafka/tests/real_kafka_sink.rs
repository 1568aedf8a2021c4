//! The sink against a real broker, at least once: order, control records, missing topics, what is too large, a broker that dies.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod real_kafka;

use kubetide_sink::{Decision, Format, Scope, Sink as _, Stream, Terms, sample};
use kubetide_sink_kafka::KafkaSink;
use kubetide_test_env::Kafka;
use real_kafka::{
    assert_exactly, by_object, config, control, deleted, dense, insist, make_topic, read, sink, state, states,
};
use serde_json::{Value, json};

#[tokio::test]
async fn records_keep_their_order_by_object_over_three_partitions() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("order");
    let mut sink = sink(&kafka.bootstrap(), &topic, json!({}));
    for (from, to) in [(1, 500), (501, 501), (502, 1000)] {
        sink.deliver(&states(from, to, 7), None).await.unwrap();
    }
    sink.deliver(&sample::batch(Vec::new()), None).await.unwrap();
    let all = read(&kafka.bootstrap(), &topic).await;
    assert_exactly(&all, 1, 1000, 7);
    let partitions: std::collections::BTreeSet<_> = all.iter().map(|got| got.partition).collect();
    assert_eq!(partitions.len(), 3, "all partitions are used");
}

#[tokio::test]
async fn key_headers_topic_and_time_are_those_of_the_record() {
    let kafka = Kafka::shared().await;
    let prefix = kafka.topic("parts");
    let mut sink =
        sink(&kafka.bootstrap(), &format!("{prefix}.{{cluster}}.{{group}}.{{resource}}.{{namespace}}"), json!({}));
    let mut record = state(1, 1, 10);
    record.observed_at = "2026-11-16T04:00:00.123456Z".parse().unwrap();
    sink.deliver(&sample::batch(vec![record.clone()]), None).await.unwrap();
    let all = read(&kafka.bootstrap(), &format!("{prefix}.sample.core.pods.default")).await;
    assert_eq!(all.len(), 1);
    let got = &all[0];
    assert_eq!(got.key, "sample/core/pods/default/pod-1");
    assert_eq!(got.timestamp, Some(record.observed_at.as_millisecond()));
    assert_eq!(got.headers["kubetide-id"], record.id.to_string());
    assert_eq!(got.headers["kubetide-stream"], "core/pods");
    let value: Value = serde_json::from_str(got.value.as_ref().unwrap()).unwrap();
    assert_eq!((&value["schema"], &value["name"]), (&json!("kubetide.change.v1"), &json!("pod-1")));
}

#[tokio::test]
async fn a_control_record_comes_to_every_partition_between_what_is_before_and_behind_it() {
    let kafka = Kafka::shared().await;
    let topic = kafka.topic("control");
    let mut sink = sink(&kafka.bootstrap(), &topic, json!({}));
    let mut records: Vec<_> = (1..=50).map(|seq| state(seq, seq, 10)).collect();
    records.push(control(51, sample::stream("pods", "Pod"), Scope::Stream));
    records.extend((52..=100).map(|seq| state(seq, seq, 10)));
    sink.deliver(&sample::batch(records), None).await.unwrap();
    let all = read(&kafka.bootstrap(), &topic).await;
    for partition in 0..3 {
        let of: Vec<_> = all.iter().filter(|got| got.partition == partition).collect();
        assert!(of.is_sorted_by_key(|got| got.seq()), "partition {partition}");
        let controls: Vec<_> = of.iter().filter(|got| got.key == "!control/core/pods").collect();
        assert_eq!(controls.len(), 1, "partition {partition}");
        assert_eq!(controls[0].headers["kubetide-op"], "snapshot_started");
        assert!(of.len() > 3);
    }
}

#[tokio::test]
async fn a_control_record_about_all_streams_comes_to_all_topics_of_the_sink_and_to_no_other() {
    let kafka = Kafka::shared().await;
    let prefix = kafka.topic("all");
    let bootstrap = kafka.bootstrap();
    for topic in ["sample.core.pods", "sample.apps.deployments", "other.core.pods", "sample.the.cursors"] {
        make_topic(&bootstrap, &format!("{prefix}.{topic}"), 2, &[]).await;
    }
    let mut sink = sink(
        &bootstrap,
        &format!("{prefix}.{{cluster}}.{{group}}.{{resource}}"),
        json!({"create_topics": null, "cursor_topic": format!("{prefix}.sample.the.cursors")}),
    );
    let cluster = sample::stream("", "").cluster;
    sink.deliver(&sample::batch(vec![control(1, Stream::none_of(cluster), Scope::Sink)]), None).await.unwrap();
    for (topic, count) in
        [("sample.core.pods", 2), ("sample.apps.deployments", 2), ("other.core.pods", 0), ("sample.the.cursors", 0)]
    {
        let all = read(&bootstrap, &format!("{prefix}.{topic}")).await;
        assert_eq!(all.len(), count, "{topic}");
        assert!(all.iter().all(|got| got.key == "!control/*"));
    }
}

#[tokio::test]
async fn a_missing_topic_is_named_and_waited_for_or_made_as_configured() {
    let kafka = Kafka::shared().await;
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("missing"));
    let mut without = sink(&bootstrap, &topic, json!({"create_topics": null}));
    let held = without.deliver(&states(1, 5, 2), None).await.unwrap_err();
    assert_eq!((held.decision, held.durable), (Decision::Hold, 0));
    assert!(held.message.contains(&topic) && held.message.contains("create_topics"), "{held}");
    // It was not made by asking for it either, as this broker would do for other clients.
    let mut with = sink(&bootstrap, &topic, json!({"create_topics": {"partitions": 5, "cleanup_policy": "compact"}}));
    with.deliver(&states(1, 5, 2), None).await.unwrap();
    without.deliver(&states(6, 10, 2), None).await.unwrap();
    assert_exactly(&read(&bootstrap, &topic).await, 1, 10, 2);
    let partitions = tokio::task::spawn_blocking(move || {
        use rdkafka::consumer::Consumer as _;
        let consumer: rdkafka::consumer::BaseConsumer =
            rdkafka::ClientConfig::new().set("bootstrap.servers", bootstrap).create().unwrap();
        consumer.fetch_metadata(Some(&topic), real_kafka::SOON).unwrap().topics()[0].partitions().len()
    });
    assert_eq!(partitions.await.unwrap(), 5);
}

#[tokio::test]
async fn what_is_too_large_is_said_when_all_before_it_is_durable_and_nothing_behind_it_is_sent() {
    let kafka = Kafka::shared().await;
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("large"));
    let mut sink = sink(&bootstrap, &topic, json!({}));
    // 3 MB of one letter are small when compressed; 3 MB that are not are for the broker to refuse; 9 MB are refused unasked.
    let records = vec![
        state(1, 1, 10),
        state(2, 1, 3_000_000),
        dense(3, 1, 3_000_000),
        state(4, 1, 10),
        state(5, 1, 9_000_000),
        state(6, 1, 10),
    ];
    let mut rest = sample::batch(records);
    let mut refused = Vec::new();
    loop {
        match insist(&mut sink, &rest, None).await {
            Ok(()) => break,
            Err(error) => {
                assert_eq!(error.decision, Decision::Oversize, "{error}");
                let mut behind = rest.records.split_off(error.durable);
                let there = read(&bootstrap, &topic).await;
                assert!(there.iter().all(|got| got.seq() < behind[0].seq), "nothing is written behind it");
                refused.push(behind.remove(0).seq);
                rest = sample::batch(behind);
            }
        }
    }
    assert_eq!(refused, [3, 5]);
    let there = read(&bootstrap, &topic).await;
    assert_eq!(there.iter().map(real_kafka::Got::seq).collect::<Vec<_>>(), [1, 2, 4, 6]);
}

#[tokio::test]
async fn a_topic_that_takes_little_gets_small_batches() {
    let kafka = Kafka::shared().await;
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("little"));
    make_topic(&bootstrap, &topic, 3, &[("max.message.bytes", "20000")]).await;
    let mut sink = sink(&bootstrap, &topic, json!({"compression": "none"}));
    let records = (1..=300).map(|seq| dense(seq, seq % 5, 1000)).collect();
    sink.deliver(&sample::batch(records), None).await.unwrap();
    assert_exactly(&read(&bootstrap, &topic).await, 1, 300, 5);
}

#[tokio::test]
async fn a_limit_that_was_lowered_since_is_noticed_and_the_record_found() {
    let kafka = Kafka::shared().await;
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("lowered"));
    let mut sink = sink(&bootstrap, &topic, json!({"compression": "none"}));
    sink.deliver(&states(1, 10, 2), None).await.unwrap();
    real_kafka::set_topic(&bootstrap, &topic, "max.message.bytes", "20000").await;
    let mut records: Vec<_> = (11..=60).map(|seq| dense(seq, seq % 2, 1000)).collect();
    records.push(dense(61, 1, 30_000));
    records.extend((62..=80).map(|seq| dense(seq, seq % 2, 1000)));
    let error = insist(&mut sink, &sample::batch(records), None).await.unwrap_err();
    assert_eq!(error.decision, Decision::Oversize, "{error}");
    let there = read(&bootstrap, &topic).await;
    let last: Vec<_> = by_object(&there).into_values().map(|seqs| *seqs.last().unwrap()).collect();
    assert_eq!(last, [60, 59], "all before it is there, and nothing behind it");
}

#[tokio::test]
async fn a_record_that_the_broker_refuses_is_found_among_others() {
    let kafka = Kafka::shared().await;
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("poison"));
    let mut sink = sink(&bootstrap, &topic, json!({}));
    let mut records: Vec<_> = (1..=60).map(|seq| state(seq, seq % 3, 10)).collect();
    // A broker takes no message that is of tomorrow.
    records[29].observed_at = "2100-01-01T00:00:00Z".parse().unwrap();
    let error = insist(&mut sink, &sample::batch(records.clone()), None).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (Decision::Poison, 29), "{error}");
    let refused = "sample/core/pods/default/pod-0";
    assert_eq!(by_object(&read(&bootstrap, &topic).await)[refused].iter().max(), Some(&27), "nothing is behind it");
    insist(&mut sink, &sample::batch(records.split_off(30)), None).await.unwrap();
    // What is of other objects may have been written before it was clear which one it is.
    let mut objects = by_object(&read(&bootstrap, &topic).await);
    for (object, seqs) in &mut objects {
        let mut seen = std::collections::BTreeSet::new();
        seqs.retain(|seq| seen.insert(*seq));
        assert!(seqs.is_sorted(), "{object}: {seqs:?}");
    }
    assert_eq!(objects.values().map(Vec::len).sum::<usize>(), 59);
    assert!(!objects[refused].contains(&30));
}

#[tokio::test]
async fn a_topic_that_was_deleted_is_missing_again() {
    let kafka = Kafka::shared().await;
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("deleted"));
    let mut makes = sink(&bootstrap, &topic, json!({}));
    let mut waits = sink(&bootstrap, &topic, json!({"create_topics": null}));
    makes.deliver(&states(1, 10, 2), None).await.unwrap();
    waits.deliver(&states(11, 20, 2), None).await.unwrap();
    let admin: rdkafka::admin::AdminClient<_> =
        rdkafka::ClientConfig::new().set("bootstrap.servers", &bootstrap).create().unwrap();
    admin.delete_topics(&[&topic], &rdkafka::admin::AdminOptions::new()).await.unwrap();
    let error = insist(&mut waits, &states(21, 30, 2), None).await.unwrap_err();
    assert_eq!(error.decision, Decision::Hold, "{error}");
    // The first time it may notice only by writing.
    if insist(&mut makes, &states(21, 30, 2), None).await.is_err() {
        insist(&mut makes, &states(21, 30, 2), None).await.unwrap();
    }
    assert_exactly(&read(&bootstrap, &topic).await, 21, 30, 2);
    waits.deliver(&states(31, 40, 2), None).await.unwrap();
}

#[tokio::test]
async fn debezium_has_tombstones_behind_deletes_and_control_records_apart() {
    let kafka = Kafka::shared().await;
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("debezium"));
    let control_topic = format!("{topic}-control");
    let terms = Terms { format: Format::Debezium, ..sample::terms("kafka") };
    let open = |more| KafkaSink::open(&config(&bootstrap, &topic, more), terms.clone()).unwrap();
    let started = control(1, sample::stream("pods", "Pod"), Scope::Stream);

    let mut without = open(json!({}));
    without.deliver(&sample::batch(vec![started.clone()]), None).await.unwrap();
    let mut with = open(json!({"control_topic": control_topic}));
    with.deliver(&sample::batch(vec![started, state(2, 1, 10), deleted(3, 1), state(4, 1, 10)]), None).await.unwrap();

    let all = read(&bootstrap, &topic).await;
    let shape: Vec<_> = all.iter().map(|got| (got.key.as_str(), got.value.is_some())).collect();
    let key = "sample/core/pods/default/pod-1";
    assert_eq!(shape, [(key, true), (key, true), (key, false), (key, true)]);
    assert!(all[2].headers.is_empty(), "a tombstone is nothing but its key");
    let controls = read(&bootstrap, &control_topic).await;
    assert_eq!(controls.len(), 1);
    assert_eq!((controls[0].key.as_str(), &controls[0].value), ("!control/core/pods", &None));
    assert_eq!(controls[0].headers["kubetide-op"], "snapshot_started");
}

#[tokio::test]
async fn a_broker_that_is_away_at_the_start_is_retried_and_nothing_is_there_twice() {
    let kafka = Kafka::start().await.unwrap();
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("away"));
    kafka.stop();
    let mut sink = sink(&bootstrap, &topic, json!({}));
    let batch = states(1, 100, 5);
    let away = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!(away.decision, Decision::Retry { after: None });
    assert!(away.message.contains("refused"), "the cause is named: {away}");
    kafka.start_again().await.unwrap();
    insist(&mut sink, &batch, None).await.unwrap();
    assert_exactly(&read(&bootstrap, &topic).await, 1, 100, 5);
}

/// The promise of one producer that stays: what was on its way when the broker died is not written twice.
#[tokio::test]
async fn a_broker_that_is_killed_in_the_middle_loses_nothing_and_keeps_the_order() {
    let kafka = Kafka::start().await.unwrap();
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("killed"));
    let mut sink = sink(&bootstrap, &topic, json!({}));
    sink.deliver(&states(1, 10, 5), None).await.unwrap();
    for round in 0..3 {
        let from = 11 + round * 20_000;
        let batch = sample::batch((from..from + 20_000).map(|seq| state(seq, seq % 5, 500)).collect());
        let kill = async {
            // While the batch is on its way: it takes some hundred milliseconds.
            tokio::time::sleep(std::time::Duration::from_millis(20 * (round + 1))).await;
            kafka.restart().await.unwrap();
        };
        let (delivered, ()) = tokio::join!(insist(&mut sink, &batch, None), kill);
        delivered.unwrap();
    }
    assert_exactly(&read(&bootstrap, &topic).await, 1, 60_010, 5);
}

#[tokio::test]
async fn a_call_that_was_dropped_goes_on_where_it_was() {
    let kafka = Kafka::start().await.unwrap();
    let (bootstrap, topic) = (kafka.bootstrap(), kafka.topic("dropped"));
    let mut sink = sink(&bootstrap, &topic, json!({}));
    sink.deliver(&states(1, 10, 5), None).await.unwrap();
    kafka.stop();
    let batch = states(11, 500, 5);
    let dropped = tokio::time::timeout(std::time::Duration::from_millis(300), sink.deliver(&batch, None)).await;
    assert!(dropped.is_err(), "it waits for the broker");
    kafka.start_again().await.unwrap();
    insist(&mut sink, &batch, None).await.unwrap();
    assert_exactly(&read(&bootstrap, &topic).await, 1, 500, 5);
}
