//! At least once, while all is well: what is stored, how often, and where.

use kubetide_sink::{Body, Format, Id, Op, Sink as _, Terms, sample};
use kubetide_sink_nats::{NatsSink, unescape};
use kubetide_test_env::Nats;
use serde_json::json;

use crate::support::{Place, change, changes, control};

#[tokio::test]
async fn records_are_stored_in_their_order_with_id_headers_and_content() {
    let place = Place::shared("order").await;
    let mut sink = place.sink(json!({}));
    sink.deliver(&changes(1..=700), None).await.unwrap();
    sink.deliver(&changes(701..=1000), None).await.unwrap();
    assert_eq!(place.seqs().await, (1..=1000).collect::<Vec<_>>());
    let stored = place.stored().await;
    let first = &stored[0];
    assert_eq!(first.subject, format!("{}.sample.core.pods.default.pod-1", place.stream));
    assert_eq!(first.header("Nats-Msg-Id"), Id(1_u128.to_be_bytes()).to_string());
    assert_eq!(first.header("kubetide-op"), "create");
    assert_eq!(first.json()["object"]["seq"], 1);
}

#[tokio::test]
async fn a_batch_that_comes_again_is_stored_once() {
    let place = Place::shared("again").await;
    let batch = changes(1..=300);
    place.sink(json!({})).deliver(&batch, None).await.unwrap();
    place.sink(json!({})).deliver(&batch, None).await.unwrap();
    assert_eq!(place.seqs().await, (1..=300).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_snapshot_of_a_state_that_was_sent_is_stored_beside_it() {
    let place = Place::shared("snapshot").await;
    let mut sink = place.sink(json!({}));
    sink.deliver(&changes(1..=1), None).await.unwrap();
    for snapshot in [1, 1, 2] {
        let mut batch = changes(1..=1);
        let Body::Change(change) = &mut batch.records[0].body else { unreachable!() };
        (change.op, change.snapshot) = (Op::Snapshot, Some(Id([snapshot; 16])));
        sink.deliver(&batch, None).await.unwrap();
    }
    let ops: Vec<String> = place.stored().await.iter().map(|stored| stored.header("kubetide-op").to_owned()).collect();
    assert_eq!(ops, ["create", "snapshot", "snapshot"]);
}

#[tokio::test]
async fn names_that_no_subject_can_hold_are_read_back_from_the_subject() {
    let place = Place::shared("escaped").await;
    let mut sink = place.sink(json!({}));
    let names = ["a.b.c", "system:node", "50%", "a b*>", "ümlaut", "{x}", "\u{1}"];
    let mut batch = changes(1..=names.len() as u64);
    for (record, name) in batch.records.iter_mut().zip(names) {
        let Body::Change(change) = &mut record.body else { unreachable!() };
        (change.namespace, change.name) = (String::new(), name.into());
    }
    sink.deliver(&batch, None).await.unwrap();
    for (stored, name) in place.stored().await.iter().zip(names) {
        let tokens: Vec<String> = stored.subject.split('.').map(|token| unescape(token).unwrap()).collect();
        assert_eq!(tokens, [&place.stream, "sample", "core", "pods", "_", name]);
    }
}

#[tokio::test]
async fn control_records_stand_between_the_records_they_speak_of() {
    let place = Place::shared("control").await;
    let mut batch = changes(1..=5);
    batch.records[2] = control(3);
    place.sink(json!({})).deliver(&batch, None).await.unwrap();
    let stored = place.stored().await;
    assert_eq!(place.seqs().await, [1, 2, 3, 4, 5]);
    assert_eq!(stored[2].subject, format!("{}.sample._control.core.pods.snapshot_started", place.stream));
}

#[tokio::test]
async fn the_debezium_format_leaves_control_records_out() {
    let place = Place::shared("debezium").await;
    let terms = Terms { format: Format::Debezium, ..place.terms(false) };
    let mut sink = NatsSink::open(&place.config(json!({})), terms).unwrap();
    sink.deliver(&sample::batch(vec![control(1), control(2)]), None).await.unwrap();
    assert!(place.seqs().await.is_empty());
    let batch = sample::batch(vec![control(1), change(2, 2), control(3), change(4, 2)]);
    sink.deliver(&batch, None).await.unwrap();
    assert_eq!(place.seqs().await, [2, 4]);
}

#[tokio::test]
async fn an_empty_batch_needs_no_server() {
    let place = Place { url: "nats://127.0.0.1:1".into(), stream: "none".into() };
    place.sink(json!({})).deliver(&sample::batch(vec![]), None).await.unwrap();
}

#[tokio::test]
async fn with_the_defaults_a_stream_is_made_that_takes_everything() {
    let nats = Nats::start().await.unwrap();
    let place = Place { url: nats.url(), stream: "KUBETIDE".into() };
    for exactly_once in [false, true] {
        let config = json!({"servers": [nats.url()], "create_stream": {"max_messages_per_subject": 1}});
        let mut sink = NatsSink::open(&serde_json::from_value(config).unwrap(), place.terms(exactly_once)).unwrap();
        let batch = sample::batch(vec![control(1), change(2, 1), change(3, 1)]);
        if exactly_once {
            sink.restore().await.unwrap();
            sink.deliver(&batch, Some(&"c".into())).await.unwrap();
        } else {
            sink.deliver(&batch, None).await.unwrap();
            // Only the last state of the object is kept.
            assert_eq!(place.seqs().await, [1, 3]);
        }
        let jetstream = place.jetstream().await;
        let info = jetstream.get_stream("KUBETIDE").await.unwrap().cached_info().clone();
        assert_eq!(info.config.subjects, ["kubetide.>"]);
        assert_eq!(info.config.allow_atomic_publish, exactly_once);
        jetstream.delete_stream("KUBETIDE").await.unwrap();
    }
}
