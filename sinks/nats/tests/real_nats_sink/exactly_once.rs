//! Exactly once: records and cursor together or not at all, whatever is killed, and one writer.

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use bytes::Bytes;
use kubetide_sink::{Batch, Decision, Sink as _, sample};
use kubetide_sink_nats::NatsSink;
use kubetide_test_env::{Mode, Nats, Proxy};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
};

use crate::support::{Place, changes, deliver, rounds};

const RETRY: Decision = Decision::Retry { after: None };

fn cursor(last: u64) -> Bytes {
    last.to_string().into()
}

/// A sink as it comes up after a crash, and where it goes on.
async fn restored(place: &Place) -> (NatsSink, u64) {
    let mut sink = place.exact_sink();
    loop {
        match sink.restore().await {
            Ok(cursor) => {
                let last = cursor.map_or(0, |cursor| std::str::from_utf8(&cursor).unwrap().parse().unwrap());
                return (sink, last);
            }
            Err(error) => {
                assert_eq!(error.decision, RETRY, "{error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

fn batch(after: u64, records: u64) -> Batch {
    changes(after + 1..=after + records)
}

#[tokio::test]
async fn records_and_cursor_are_stored_together_and_the_cursor_is_restored() {
    let place = Place::shared("exact").await;
    let (mut sink, last) = restored(&place).await;
    assert_eq!(last, 0);
    sink.deliver(&batch(0, 999), Some(&cursor(999))).await.unwrap();
    sink.deliver(&batch(999, 1), Some(&cursor(1000))).await.unwrap();
    // A cursor alone.
    sink.deliver(&sample::batch(vec![]), Some(&cursor(1234))).await.unwrap();
    assert_eq!(place.seqs().await, (1..=1000).collect::<Vec<_>>());
    let stored = place.stored().await;
    let subject = format!("kubetide.sample._cursor.{}", place.stream);
    let cursors: Vec<_> = stored.iter().filter(|stored| stored.subject == subject).collect();
    let texts: Vec<&[u8]> = cursors.iter().map(|stored| stored.payload.as_slice()).collect();
    assert_eq!(texts, [b"" as &[u8], b"999", b"1000", b"1234"]);
    assert_eq!(stored[1000].payload, b"999", "the cursor is the last message of its batch");
    assert_eq!(restored(&place).await.1, 1234);
}

#[tokio::test]
async fn what_is_replayed_is_stored_again() {
    let place = Place::shared("replayed").await;
    let (mut sink, _) = restored(&place).await;
    // Within the duplicate window, in which the server would refuse a whole batch for one message id that it knows.
    for last in [3, 4] {
        sink.deliver(&batch(0, 3), Some(&cursor(last))).await.unwrap();
    }
    assert_eq!(place.seqs().await, [1, 2, 3, 1, 2, 3]);
}

#[tokio::test]
async fn of_two_writers_the_later_one_goes_on_and_the_earlier_one_stops() {
    let place = Place::shared("writers").await;
    let (mut zombie, _) = restored(&place).await;
    zombie.deliver(&batch(0, 2), Some(&cursor(2))).await.unwrap();
    let (mut heir, last) = restored(&place).await;
    assert_eq!(last, 2);
    for last in [2, 3] {
        let error = zombie.deliver(&batch(2, 2), Some(&cursor(4))).await.unwrap_err();
        assert_eq!((error.decision, error.durable), (Decision::Fatal, 0), "{error}");
        assert!(error.message.contains("another process"), "{error}");
        heir.deliver(&batch(last, 1), Some(&cursor(last + 1))).await.unwrap();
    }
    assert_eq!(place.seqs().await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn writers_that_race_are_one_in_the_end_and_nothing_is_stored_twice() {
    let place = Place::shared("race").await;
    let run = async |records: u64| {
        let (mut sink, mut last) = restored(&place).await;
        loop {
            match deliver(&mut sink, &batch(last, records), Some(&cursor(last + records))).await {
                Ok(()) if last < 600 => last += records,
                Ok(()) => return true,
                Err(error) => {
                    assert_eq!(error.decision, Decision::Fatal, "{error}");
                    return false;
                }
            }
        }
    };
    let (a, b, c) = tokio::join!(run(7), run(11), run(13));
    assert_eq!([a, b, c].iter().filter(|survived| **survived).count(), 1);
    let seqs = place.seqs().await;
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_and_not_repeated() {
    let nats = Nats::shared().await;
    let proxy = Proxy::start(nats.address()).unwrap();
    let place = Place::on(nats, "answer");
    let by_proxy = place.by(format!("nats://{}", proxy.address()));
    let (mut sink, mut last) = restored(&by_proxy).await;
    let mut lost = 0;
    for round in 0..rounds(30, 300) {
        proxy.set(Mode::CutAfter(round * 31 % 400));
        let (batch, cursor) = (batch(last, 50), cursor(last + 50));
        let outcome = sink.deliver(&batch, Some(&cursor)).await;
        proxy.set(Mode::Pass);
        if let Err(error) = outcome {
            assert_eq!((error.decision, error.durable), (RETRY, 0), "{error}");
            let is_there = place.seqs().await.last() == Some(&(last + 50));
            lost += u64::from(is_there);
            deliver(&mut sink, &batch, Some(&cursor)).await.unwrap();
        }
        last += 50;
    }
    assert_eq!(place.seqs().await, (1..=last).collect::<Vec<_>>());
    assert!(lost > 0, "no answer was lost behind a commit");
}

#[tokio::test]
async fn a_commit_that_is_dropped_is_there_once_or_not_at_all() {
    let place = Place::shared("dropped-exact").await;
    let (mut sink, mut last) = restored(&place).await;
    for round in 0..rounds(40, 400) {
        let (batch, cursor) = (batch(last, 300), cursor(last + 300));
        let within = Duration::from_micros(round % 20 * 700);
        match tokio::time::timeout(within, sink.deliver(&batch, Some(&cursor))).await {
            // What was taken does not come again.
            Ok(taken) => taken.unwrap(),
            Err(_) if round % 3 == 0 => {
                // As if the process had been killed: another one takes over.
                (sink, last) = restored(&place).await;
                continue;
            }
            Err(_) => deliver(&mut sink, &batch, Some(&cursor)).await.unwrap_or_else(|error| panic!("{error}")),
        }
        last += 300;
    }
    let (_, last) = restored(&place).await;
    assert_eq!(place.seqs().await, (1..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_server_that_is_killed_in_commits_has_each_batch_once_or_not_at_all() {
    let nats = Nats::start().await.unwrap();
    let place = Place::on(&nats, "killed-exact");
    let (mut sink, mut last) = restored(&place).await;
    for round in 0..rounds(5, 100) {
        let mut committed = last;
        let write = async {
            loop {
                let (batch, cursor) = (batch(committed, 400), cursor(committed + 400));
                match sink.deliver(&batch, Some(&cursor)).await {
                    Ok(()) => committed += 400,
                    Err(error) => return error,
                }
            }
        };
        let kill = async {
            tokio::time::sleep(Duration::from_millis(20 + round * 37 % 300)).await;
            nats.stop();
        };
        let (error, ()) = tokio::join!(write, kill);
        assert_eq!(error.decision, RETRY, "{error}");
        nats.start_again().await.unwrap();
        if round % 2 == 0 {
            // The same process goes on; else another one takes over.
            let (batch, cursor) = (batch(committed, 400), cursor(committed + 400));
            deliver(&mut sink, &batch, Some(&cursor)).await.unwrap();
        } else {
            (sink, committed) = restored(&place).await;
        }
        last = place.seqs().await.last().copied().unwrap_or_default();
        if round % 2 == 0 {
            assert_eq!(last, committed + 400);
        } else {
            assert_eq!(last, committed);
        }
    }
    assert!(last > 0);
    assert_eq!(place.seqs().await, (1..=last).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_batch_that_cannot_be_one_is_split_and_a_large_record_comes_first() {
    let place = Place::shared("split").await;
    let (mut sink, _) = restored(&place).await;
    let decision = async |sink: &mut NatsSink, batch: &Batch| {
        let error = sink.deliver(batch, Some(&cursor(9))).await.unwrap_err();
        assert_eq!(error.durable, 0);
        error.decision
    };
    assert_eq!(decision(&mut sink, &batch(0, 1000)).await, Decision::Split);
    let mut large = batch(0, 3);
    large.records[1] = sample::record(2, format!("\"{}\"", "x".repeat(1_500_000)));
    assert_eq!(decision(&mut sink, &large).await, Decision::Split);
    large.records.remove(0);
    assert_eq!(decision(&mut sink, &large).await, Decision::Oversize);
    assert!(place.seqs().await.is_empty());
    sink.deliver(&batch(0, 3), Some(&cursor(3))).await.unwrap();
}

#[tokio::test]
async fn a_full_stream_takes_nothing_of_a_batch_and_is_held() {
    let place = Place::shared("full-exact").await;
    let config = place.config(json!({"create_stream": {"discard": "new", "max_messages": 10}}));
    let mut sink = NatsSink::open(&config, place.terms(true)).unwrap();
    sink.restore().await.unwrap();
    let error = sink.deliver(&batch(0, 20), Some(&cursor(20))).await.unwrap_err();
    assert_eq!((error.decision, error.durable), (Decision::Hold, 0), "{error}");
    assert!(error.message.contains("full"), "{error}");
    assert!(place.seqs().await.is_empty());
    let jetstream = place.jetstream().await;
    let mut config = jetstream.get_stream(&place.stream).await.unwrap().cached_info().config.clone();
    config.max_messages = -1;
    jetstream.update_stream(config).await.unwrap();
    sink.deliver(&batch(0, 20), Some(&cursor(20))).await.unwrap();
}

#[tokio::test]
async fn a_cursor_that_was_purged_is_begun_anew_without_stopping() {
    let place = Place::shared("purged").await;
    let (mut sink, _) = restored(&place).await;
    sink.deliver(&batch(0, 2), Some(&cursor(2))).await.unwrap();
    place.jetstream().await.get_stream(&place.stream).await.unwrap().purge().await.unwrap();
    deliver(&mut sink, &batch(2, 2), Some(&cursor(4))).await.unwrap();
    assert_eq!(place.seqs().await, [3, 4]);
    assert_eq!(restored(&place).await.1, 4);
}

#[tokio::test]
async fn a_stream_without_atomic_batches_is_refused_in_words() {
    let place = Place::shared("plain").await;
    let jetstream = place.jetstream().await;
    let subjects = vec![format!("{}.>", place.stream), format!("kubetide.sample._cursor.{}", place.stream)];
    let mut config = Config { name: place.stream.clone(), subjects, ..Config::default() };
    jetstream.create_stream(config.clone()).await.unwrap();
    let mut sink = place.exact_sink();
    let error = sink.restore().await.unwrap_err();
    assert_eq!(error.decision, Decision::Hold, "{error}");
    assert!(error.message.contains("allow_atomic") && error.message.contains(&place.stream), "{error}");
    config.allow_atomic_publish = true;
    jetstream.update_stream(config).await.unwrap();
    assert_eq!(sink.restore().await.unwrap(), None);
}

#[tokio::test]
async fn an_old_server_is_refused_in_words() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("nats://{}", listener.local_addr().unwrap());
    let serve = async {
        let (connection, _) = listener.accept().await.unwrap();
        let (read, mut write) = connection.into_split();
        let info = json!({"server_id": "old", "version": "2.11.9", "jetstream": true, "headers": true, "max_payload": 1_048_576});
        write.write_all(format!("INFO {info}\r\n").as_bytes()).await.unwrap();
        let mut lines = BufReader::new(read).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line == "PING" {
                write.write_all(b"PONG\r\n").await.unwrap();
            }
        }
    };
    let mut sink = Place { url, stream: "old".into() }.exact_sink();
    let error = tokio::select! {
        outcome = sink.restore() => outcome.unwrap_err(),
        () = serve => panic!("the sink left without a word"),
    };
    assert_eq!(error.decision, Decision::Hold, "{error}");
    assert!(error.message.contains("2.11.9") && error.message.contains("2.12.1"), "{error}");
}
