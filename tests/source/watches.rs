//! Watches that are refused, go silent, repeat themselves or go back in time.

use std::{collections::BTreeMap, time::Duration};

use kubetide_simulator::{Fault, Verb};
use serde_json::json;

use crate::{
    case::{Case, ops, reasons, status},
    ended::{ended, kubetide},
    instance::{changes_of, count, fold},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_refused_goes_on_where_it_was_without_a_restart() {
    let mut case = Case::new().await;
    case.snapshot().await;
    for (at, code) in [401, 403, 404, 503].into_iter().enumerate() {
        let met = case.afflict(&[Verb::Watch], 2, vec![status(code)]);
        case.server.cut_all_watches();
        case.update(1, at as u64 + 1);
        case.delete(10 + at as u64);
        case.level().await;
        case.until("it was refused", || met.load(std::sync::atomic::Ordering::Relaxed) > 2).await;
    }
    let records = case.kubetide.records();
    assert_eq!(ops(&records[22..]), BTreeMap::from([("update", 4), ("delete", 4)]));
    assert!(records[22..].iter().all(|record| record["origin"] == "watch"));
    assert_eq!(case.count(Verb::List), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_goes_silent_is_opened_anew() {
    for streaming in ["auto", "never"] {
        let more = format!("list: {{streaming: {streaming}}}\nwatch: {{stall_timeout_secs: 1}}\n");
        let mut case = Case::with(&[("configmaps", "default")], &more).await;
        case.snapshot().await;
        // For a bookmark, which the stream misses from now on.
        case.cluster().skip_versions(3);
        tokio::time::sleep(Duration::from_millis(600)).await;
        let met = case.afflict(&[Verb::Watch], 1, vec![Fault::Silence]);
        case.server.cut_all_watches();
        case.until("a watch is silent", || met.load(std::sync::atomic::Ordering::Relaxed) > 0).await;
        case.update(1, 1);
        let records = case.level().await;
        assert_eq!(ops(&records[22..]), BTreeMap::from([("update", 1)]), "streaming: {streaming}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_comes_again_gives_nothing() {
    for fault in [Fault::Duplicate, Fault::Replay { every: 1 }, Fault::Replay { every: 3 }] {
        let mut case = Case::new().await;
        case.snapshot().await;
        case.afflict(&[Verb::Watch], u64::MAX, vec![fault.clone()]);
        case.server.cut_all_watches();
        for round in 1..=20 {
            case.update(round % 3, round);
            case.create(100 + round);
            case.update(100 + round, 1);
            case.delete(100 + round);
        }
        case.update(5, 99);
        case.kubetide.records_when("the last is told", |records| !changes_of(records, "c005")[1..].is_empty()).await;
        let records = case.level().await;
        let expected = BTreeMap::from([("create", 20), ("update", 41), ("delete", 20)]);
        assert_eq!(ops(&records[22..]), expected, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_went_back_in_time_is_a_gap_whether_it_is_seen_at_a_start_or_while_it_runs() {
    for at_a_start in [true, false] {
        let mut case = Case::new().await;
        let backup = case.cluster().checkpoint();
        (0..10).for_each(|number| case.update(number, 1));
        case.create(50);
        case.snapshot().await;
        if at_a_start {
            assert!(case.kubetide.terminate().success());
            case.cluster().restore(&backup);
            case.kubetide.start();
        } else {
            case.server.refuse(true).await;
            case.cluster().restore(&backup);
            case.server.refuse(false).await;
        }
        let records = case.mended(1).await;
        assert_eq!(reasons(&records), ["version_regressed"]);
        assert_eq!(fold(&records), case.expected());
        let told = ops(&records[23..]);
        assert_eq!((told["update"], told["delete"]), (10, 1), "at a start: {at_a_start}; {told:?}");
        // Versions that are used again stand for something else.
        (0..10).for_each(|number| case.update(number, 2));
        let records = case.level().await;
        let mut contents = BTreeMap::new();
        for record in records.iter().filter(|record| record["object"].is_object()) {
            let content = (&record["object"], record["op"] == "delete");
            let before = contents.insert(record["id"].as_str().unwrap(), content);
            assert!(before.is_none_or(|before| before == content), "one id for two contents: {record}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_becomes_another_ends_the_process() {
    let mut case = Case::new().await;
    let run = tokio::spawn(ended(kubetide(case.kubetide.path("kubetide.yaml"))));
    case.kubetide.records_when_listed(1).await;
    case.server.refuse(true).await;
    case.cluster().set_uid("00000000-0000-0000-0000-000000000000");
    (0..20).for_each(|number| case.delete(number));
    case.server.refuse(false).await;
    run.await.unwrap().assert_refused(1, &["another cluster", "--accept-new-cluster"]);
    let records = case.kubetide.records();
    assert_eq!((count(&records, "delete"), count(&records, "gap")), (0, 0), "nothing of the other cluster is told");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_no_identity_is_one_gap_after_the_third_time_at_one_position_and_none_before() {
    let line = json!({"type": "ADDED", "object": {"kind": "ConfigMap", "metadata": {"uid": "x"}}}).to_string();
    for times in [2, 3] {
        let mut case = Case::new().await;
        case.snapshot().await;
        let met = case.afflict(&[Verb::Watch], times, vec![Fault::Line { after_lines: 0, line: line.clone().into() }]);
        case.server.cut_all_watches();
        case.until("it came", || met.load(std::sync::atomic::Ordering::Relaxed) > times).await;
        case.update(1, 1);
        let records = case.level().await;
        let expected: &[&str] = if times == 3 { &["undecodable"] } else { &[] };
        assert_eq!(reasons(&records), expected);
        assert_eq!((count(&records, "delete"), count(&records, "update")), (0, 1));
    }
}
