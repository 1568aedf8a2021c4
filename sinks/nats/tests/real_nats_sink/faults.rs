//! At least once, when things go wrong: with the server, on the way to it, with the stream, with a record.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use async_nats::jetstream::stream::Config;
use kubetide_sink::{Batch, Decision, Sink as _, sample};
use kubetide_test_env::{Mode, Nats, Proxy};
use serde_json::json;

use crate::support::{Place, change, changes, control, deliver, rest, rounds};

const RETRY: Decision = Decision::Retry { after: None };

/// Many versions of few objects, with control records in between.
fn mixed(seqs: std::ops::RangeInclusive<u64>) -> Batch {
    sample::batch(seqs.map(|seq| if seq % 50 == 0 { control(seq) } else { change(seq, 7) }).collect())
}

/// All of them once, and those of an object, and those around a control record, in order.
fn assert_whole(stored: &[u64], last: u64) {
    let mut sorted = stored.to_vec();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=last).collect::<Vec<_>>(), "each is there, once");
    let mut latest: HashMap<u64, u64> = HashMap::new();
    let mut highest = 0;
    let mut floor = 0;
    for &seq in stored {
        assert!(seq > floor, "{seq} is behind the control record {floor}");
        highest = highest.max(seq);
        if seq % 50 == 0 {
            assert_eq!(highest, seq, "a later record is before the control record {seq}");
            floor = seq;
        } else {
            let before = latest.insert(seq % 7, seq);
            assert!(before < Some(seq), "{seq} is behind {before:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_tried_again_and_found_when_it_comes() {
    let nats = Nats::start().await.unwrap();
    let place = Place::on(&nats, "away");
    nats.stop();
    let mut sink = place.sink(json!({}));
    let error = sink.deliver(&changes(1..=3), None).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (RETRY, 0), "{error}");
    assert!(error.message.contains(&place.url), "{error}");
    nats.start_again().await.unwrap();
    sink.deliver(&changes(1..=3), None).await.unwrap();
    // Away between two deliveries: the first one after it may fail, but not wait.
    nats.restart().await.unwrap();
    deliver(&mut sink, &changes(4..=6), None).await.unwrap();
    assert_eq!(place.seqs().await, [1, 2, 3, 4, 5, 6]);
}

#[tokio::test]
async fn a_way_that_is_cut_anywhere_neither_loses_nor_repeats_nor_reorders() {
    let nats = Nats::shared().await;
    let proxy = Proxy::start(nats.address()).unwrap();
    let place = Place::on(nats, "cut");
    let mut sink = place.by(format!("nats://{}", proxy.address())).sink(json!({}));
    let mut last = 0;
    let mut partly = 0;
    for round in 0..rounds(20, 200) {
        let batch = mixed(last + 1..=last + 300);
        // From the greeting of a new connection to behind the last acknowledgement.
        proxy.set(Mode::CutAfter(round * 997 % 18_000));
        let remaining = match sink.deliver(&batch, None).await {
            Ok(()) => rest(&batch, batch.records.len()),
            Err(error) => {
                assert_eq!(error.decision, RETRY, "{error}");
                partly += u64::from(error.durable > 0);
                rest(&batch, error.durable)
            }
        };
        proxy.set(Mode::Pass);
        deliver(&mut sink, &remaining, None).await.unwrap();
        last += 300;
    }
    assert_whole(&place.seqs().await, last);
    assert!(partly > 0, "no cut was in the middle of a batch");
}

#[tokio::test]
async fn a_server_that_is_killed_in_the_middle_neither_loses_nor_repeats_nor_reorders() {
    let nats = Nats::start().await.unwrap();
    let place = Place::on(&nats, "killed");
    let mut sink = place.sink(json!({}));
    let mut last = 0;
    let kills = rounds(4, 40);
    for round in 0..kills {
        let batch = mixed(last + 1..=last + 2000);
        last += 2000;
        let kill = async {
            tokio::time::sleep(Duration::from_millis(5 + round * 37 % 200)).await;
            nats.restart().await.unwrap();
        };
        let (delivered, ()) = tokio::join!(deliver(&mut sink, &batch, None), kill);
        delivered.unwrap();
    }
    assert_whole(&place.seqs().await, last);
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up_in_bounded_time() {
    let nats = Nats::shared().await;
    let proxy = Proxy::start(nats.address()).unwrap();
    let place = Place::on(nats, "hangs");
    let mut sink = place.by(format!("nats://{}", proxy.address())).sink(json!({}));
    sink.deliver(&changes(1..=1), None).await.unwrap();
    proxy.set(Mode::Hang);
    for _ in 0..2 {
        // First in the middle of a connection, then when it opens one.
        let began = Instant::now();
        let error = sink.deliver(&changes(2..=1000), None).await.unwrap_err();
        assert_eq!((error.decision, error.durable), (RETRY, 0), "{error}");
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    }
    proxy.set(Mode::Pass);
    proxy.cut();
    deliver(&mut sink, &changes(2..=1000), None).await.unwrap();
    assert_eq!(place.seqs().await, (1..=1000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_connection_that_is_lost_does_not_come_back_by_itself() {
    let nats = Nats::start().await.unwrap();
    let proxy = Proxy::start(nats.address()).unwrap();
    let place = Place::on(&nats, "left");
    let mut sink = place.by(format!("nats://{}", proxy.address())).sink(json!({}));
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    // What is in the queue of a client that reconnects is sent when it is too late, and one that never can never ends.
    for server_is_there in [true, false] {
        deliver(&mut sink, &changes(1..=1), None).await.unwrap();
        let alive = tasks();
        if !server_is_there {
            nats.stop();
        }
        proxy.cut();
        // The client's own: the one that reads and writes, and the one that tells of events.
        let ended = async {
            while tasks() > alive - 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended).await.unwrap();
    }
}

#[tokio::test]
async fn a_delivery_that_is_dropped_can_be_made_again() {
    let place = Place::shared("dropped").await;
    let mut sink = place.sink(json!({}));
    for round in 0..20_u64 {
        let batch = mixed(1..=3000);
        let _ = tokio::time::timeout(Duration::from_millis(round), sink.deliver(&batch, None)).await;
    }
    deliver(&mut sink, &mixed(1..=3000), None).await.unwrap();
    assert_whole(&place.seqs().await, 3000);
}

#[tokio::test]
async fn a_full_stream_is_held_and_goes_on_when_there_is_room() {
    let place = Place::shared("full").await;
    let mut sink = place.sink(json!({"create_stream": {"discard": "new", "max_messages": 3}}));
    let batch = changes(1..=10);
    let error = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (Decision::Hold, 3), "{error}");
    assert!(error.message.contains("full"), "{error}");
    let jetstream = place.jetstream().await;
    let mut config = jetstream.get_stream(&place.stream).await.unwrap().cached_info().config.clone();
    config.max_messages = -1;
    jetstream.update_stream(config).await.unwrap();
    sink.deliver(&rest(&batch, 3), None).await.unwrap();
    assert_eq!(place.seqs().await, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_stream_that_is_missing_or_deleted_is_held_and_named_until_it_is_there() {
    let place = Place::shared("missing").await;
    let mut sink = place.sink(json!({"create_stream": null}));
    let jetstream = place.jetstream().await;
    let config =
        Config { name: place.stream.clone(), subjects: vec![format!("{}.>", place.stream)], ..Config::default() };
    for _ in 0..2 {
        let error = deliver(&mut sink, &changes(1..=2), None).await.unwrap_err();
        assert_eq!((error.decision, error.durable), (Decision::Hold, 0), "{error}");
        let names = [place.stream.as_str(), &format!("{}.sample.*.*.*.*", place.stream), "create_stream"];
        assert!(names.iter().all(|name| error.message.contains(name)), "{error}");
        jetstream.create_stream(config.clone()).await.unwrap();
        sink.deliver(&changes(1..=2), None).await.unwrap();
        assert_eq!(place.seqs().await, [1, 2]);
        jetstream.delete_stream(&place.stream).await.unwrap();
    }
    // Where it may be made, it is made again.
    let mut sink = place.sink(json!({}));
    sink.deliver(&changes(1..=2), None).await.unwrap();
    jetstream.delete_stream(&place.stream).await.unwrap();
    deliver(&mut sink, &changes(3..=4), None).await.unwrap();
    assert_eq!(place.seqs().await, [3, 4]);
}

#[tokio::test]
async fn a_stream_that_does_not_take_the_subjects_is_held_and_left_as_it_is() {
    let place = Place::shared("subjects").await;
    let jetstream = place.jetstream().await;
    let subjects = vec![format!("{}.other.>", place.stream)];
    let config = Config { name: place.stream.clone(), subjects: subjects.clone(), ..Config::default() };
    jetstream.create_stream(config).await.unwrap();
    let error = place.sink(json!({})).deliver(&changes(1..=1), None).await.unwrap_err();
    assert_eq!(error.decision, Decision::Hold, "{error}");
    assert!(error.message.contains("does not take"), "{error}");
    let stream = jetstream.get_stream(&place.stream).await.unwrap();
    assert_eq!(stream.cached_info().config.subjects, subjects);
}

#[tokio::test]
async fn nothing_lands_in_another_stream_that_has_taken_over_the_subjects() {
    let place = Place::shared("expected").await;
    let mut sink = place.sink(json!({}));
    sink.deliver(&changes(1..=1), None).await.unwrap();
    let jetstream = place.jetstream().await;
    let mut config = jetstream.get_stream(&place.stream).await.unwrap().cached_info().config.clone();
    let subjects = std::mem::replace(&mut config.subjects, vec![format!("{}-old", place.stream)]);
    jetstream.update_stream(config).await.unwrap();
    let other = format!("{}-other", place.stream);
    jetstream.create_stream(Config { name: other.clone(), subjects, ..Config::default() }).await.unwrap();
    let error = sink.deliver(&changes(2..=2), None).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (Decision::Hold, 0), "{error}");
    assert_eq!(jetstream.get_stream(&other).await.unwrap().cached_info().state.messages, 0);
}

#[tokio::test]
async fn a_record_that_is_too_large_stops_the_batch_before_anything_behind_it_is_sent() {
    let place = Place::shared("large").await;
    let mut sink = place.sink(json!({}));
    let mut batch = changes(1..=5);
    batch.records[2] = sample::record(3, format!("\"{}\"", "x".repeat(1_500_000)));
    let error = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (Decision::Oversize, 2), "{error}");
    assert!(error.message.contains("pod-3") && !error.message.contains("xxx"), "{error}");
    assert_eq!(place.seqs().await, [1, 2]);
    batch.records[2] = kubetide_sink::truncated(&batch.records[2]).unwrap();
    sink.deliver(&rest(&batch, 2), None).await.unwrap();
    assert_eq!(place.seqs().await, [1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn a_message_is_as_large_as_the_stream_allows_and_no_larger() {
    let place = Place::shared("limit").await;
    let mut sink = place.sink(json!({}));
    sink.deliver(&changes(1..=1), None).await.unwrap();
    let jetstream = place.jetstream().await;
    let mut config = jetstream.get_stream(&place.stream).await.unwrap().cached_info().config.clone();
    config.max_message_size = 3000;
    jetstream.update_stream(config).await.unwrap();
    // The connection there is does not know of it: the server says it. The next one does.
    let (mut largest, mut round) = (0, 0);
    for size in 1500..3000 {
        round += 1;
        let batch = sample::batch(vec![sample::record(10 + round, format!("\"{}\"", "x".repeat(size)))]);
        match sink.deliver(&batch, None).await {
            Ok(()) => largest = size,
            Err(error) => {
                assert_eq!(error.decision, Decision::Oversize, "{error}");
                assert!(error.message.contains("exceeds"), "{error}");
                break;
            }
        }
    }
    let mut sink = place.sink(json!({}));
    for (size, fits) in [(largest, true), (largest + 1, false)] {
        round += 1;
        let batch = sample::batch(vec![sample::record(10 + round, format!("\"{}\"", "x".repeat(size)))]);
        let outcome = sink.deliver(&batch, None).await;
        assert_eq!(
            outcome.as_ref().map_err(|error| error.decision),
            if fits { Ok(&()) } else { Err(Decision::Oversize) }
        );
        assert!(fits || outcome.unwrap_err().message.contains("allowed: 3000"));
    }
}

#[tokio::test]
async fn a_hole_that_the_server_makes_in_the_middle_does_not_reorder_an_object() {
    // The limit lets later, smaller messages in where an earlier, larger one was refused.
    let place = Place::shared("hole").await;
    let mut sink = place.sink(json!({"create_stream": {"discard": "new", "max_bytes": 60_000}}));
    let large = |seq: u64| sample::record(seq, format!("\"{}\"", "x".repeat(20_000)));
    let mut records: Vec<_> = (1..=6).map(large).collect();
    records.extend((7..=10).map(|seq| change(seq, 2)));
    // The same object as one of the large ones.
    for seq in [3, 4, 5, 6] {
        let mut again = change(seq + 100, 2);
        let kubetide_sink::Body::Change(change) = &mut again.body else { unreachable!() };
        change.name = format!("pod-{seq}");
        records.push(again);
    }
    let batch = sample::batch(records);
    let error = sink.deliver(&batch, None).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (Decision::Hold, 2), "{error}");
    let stored = place.seqs().await;
    assert!(stored.len() > 2, "later ones were let in: {stored:?}");
    assert!(stored.iter().all(|seq| *seq <= 10), "none of an object with a refused message: {stored:?}");
    let jetstream = place.jetstream().await;
    let mut config = jetstream.get_stream(&place.stream).await.unwrap().cached_info().config.clone();
    config.max_bytes = -1;
    jetstream.update_stream(config).await.unwrap();
    sink.deliver(&rest(&batch, 2), None).await.unwrap();
    let stored = place.seqs().await;
    assert_eq!(stored.len(), batch.records.len());
    for seq in [3, 4, 5, 6] {
        let place_of = |seq| stored.iter().position(|other| *other == seq);
        assert!(place_of(seq) < place_of(seq + 100), "{stored:?}");
    }
}
