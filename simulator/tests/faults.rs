//! Each fault does to an answer what its name says, over a real socket.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, missing_docs)] // a test

mod rig;

use std::io::ErrorKind;
use std::time::Instant;

use bytes::Bytes;
use kubetide_simulator::{Fault, Verb};
use rig::{SILENCE, STREAMING, ask, briefs, config_map, events, on, raw_bytes, server, until_asked};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

#[tokio::test]
async fn a_reset_comes_after_the_bytes_that_were_asked_for() {
    let (cluster, server) = server().await;
    cluster.populate(500);
    for after in [0, 1, 1000, 50_000] {
        server.set_hook(on(Verb::List, Fault::Reset { after }));
        let (read, outcome) = raw_bytes(&server, "/api/v1/pods", "application/json").await;
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ConnectionReset, "after {after}");
        let text = String::from_utf8(read).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(rig::unchunk(body).len(), after, "as many bytes as were asked for");
    }
    server.set_hook(None);
    assert_eq!(rig::get(&server, "/version", "application/json").await.0, 200, "other connections are left alone");
}

#[tokio::test]
async fn a_watch_can_be_reset_after_an_event() {
    let (cluster, server) = server().await;
    let from = cluster.version();
    cluster.create("configmaps", config_map("a")).unwrap();
    server.set_hook(on(Verb::Watch, Fault::Reset { after: 20 }));
    let path = format!("/api/v1/configmaps?watch=1&resourceVersion={from}");
    let (read, outcome) = raw_bytes(&server, &path, "application/json").await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(String::from_utf8(read).unwrap().ends_with("{\"type\":\"ADDED\",\"obj\r\n"));
}

#[tokio::test]
async fn shuffled_initial_events_end_with_their_bookmark() {
    let (cluster, server) = server().await;
    let names: Vec<_> = ('a'..='h').map(|name| name.to_string()).collect();
    for name in &names {
        cluster.create("configmaps", config_map(name)).unwrap();
    }
    let path = format!("/api/v1/configmaps?{STREAMING}&timeoutSeconds=1");
    let in_order: Vec<_> = names.iter().map(|name| format!("ADDED {name}")).chain(["BOOKMARK".to_owned()]).collect();
    assert_eq!(briefs(&events(&server, &path).await), in_order);
    server.set_hook(on(Verb::StreamingList, Fault::Shuffle { seed: 3 }));
    let (once, again) = (briefs(&events(&server, &path).await), briefs(&events(&server, &path).await));
    assert_eq!(once, again, "a seed fixes the order");
    assert_ne!(once, in_order);
    assert_eq!(once.last().unwrap(), "BOOKMARK");
    let mut sorted = once;
    sorted.sort();
    assert_eq!(sorted, in_order);
}

#[tokio::test]
async fn a_replay_sends_an_older_version_after_a_newer_one() {
    let (cluster, server) = server().await;
    let from = cluster.version();
    cluster.create("configmaps", config_map("a")).unwrap();
    for turn in 2..=4 {
        cluster.update("configmaps", "default", "a", |object| object["data"] = serde_json::json!({"n": turn})).unwrap();
    }
    server.set_hook(on(Verb::Watch, Fault::Replay { every: 2 }));
    let path = format!("/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion={from}");
    let version = |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>();
    let versions: Vec<_> = events(&server, &path).await.iter().map(|event| version(event).unwrap() - from).collect();
    assert_eq!(versions, [1, 2, 1, 3, 4, 2]);
}

#[tokio::test]
async fn a_line_of_20_mib_arrives_whole_and_in_no_time() {
    const SIZE: usize = 20 * 1024 * 1024;
    let (cluster, server) = server().await;
    let from = cluster.version();
    for name in ["a", "b"] {
        cluster.create("configmaps", config_map(name)).unwrap();
    }
    let path = format!("/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion={from}");
    for after_lines in [0, 1] {
        let line = Bytes::from(vec![b'x'; SIZE]);
        server.set_hook(on(Verb::Watch, Fault::Line { after_lines, line }));
        let started = Instant::now();
        let (read, outcome) = raw_bytes(&server, &path, "application/json").await;
        outcome.unwrap();
        assert_eq!(read.iter().filter(|&&byte| byte == b'x').count() / SIZE, 1);
        assert_eq!(String::from_utf8(read).unwrap().matches("ADDED").count(), 2);
        // The watch takes a second by itself; a quadratic cost would take minutes.
        assert!(started.elapsed().as_secs() < 15, "{:?}", started.elapsed());
    }
}

#[tokio::test]
async fn an_error_event_may_lack_its_code() {
    let (cluster, server) = server().await;
    let path = format!("/api/v1/configmaps?watch=1&timeoutSeconds=1&resourceVersion={}", cluster.version());
    for code in [None, Some(410), Some(500)] {
        server.set_hook(on(Verb::Watch, Fault::error_event(code, "Expired", "too old")));
        let events = events(&server, &path).await;
        assert_eq!(events.len(), 1);
        assert_eq!((&events[0]["type"], &events[0]["object"]["reason"]), (&"ERROR".into(), &"Expired".into()));
        assert_eq!(events[0]["object"].get("code").and_then(Value::as_u64), code.map(u64::from));
    }
}

#[tokio::test]
async fn a_silent_watch_sends_its_headers_and_nothing_more_until_it_is_cut() {
    let (cluster, server) = server().await;
    cluster.create("configmaps", config_map("a")).unwrap();
    for (verb, query) in [(Verb::Watch, "watch=1"), (Verb::StreamingList, STREAMING)] {
        server.reset_requests();
        server.set_hook(on(verb, Fault::Silence));
        let path = format!("/api/v1/configmaps?{query}&timeoutSeconds=1");
        let mut stream = ask(&server, &path, "application/json").await;
        let mut read = Vec::new();
        while !read.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0);
        }
        cluster.touch("configmaps", "default", "a").unwrap();
        let beyond_its_timeout = SILENCE + std::time::Duration::from_secs(1);
        assert!(timeout(beyond_its_timeout, stream.read_buf(&mut read)).await.is_err(), "neither bytes nor an end");
        until_asked(&server, verb, 1).await;
        server.cut_all_watches();
        assert_eq!(stream.read_buf(&mut read).await.unwrap_or(0), 0);
    }
}

#[tokio::test]
async fn a_server_without_bookmarks_still_sends_events() {
    let (cluster, server) = server().await;
    cluster.create("configmaps", config_map("a")).unwrap();
    let path = format!("/api/v1/configmaps?{STREAMING}&timeoutSeconds=1");
    server.set_hook(on(Verb::StreamingList, Fault::StripBookmarks));
    assert_eq!(briefs(&events(&server, &path).await), ["ADDED a"]);
    server.set_hook(None);
    assert_eq!(briefs(&events(&server, &path).await), ["ADDED a", "BOOKMARK"]);
}
