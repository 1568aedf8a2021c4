//! The source against an API server that misbehaves: what heals without a trace, and what is a break in history.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]
#![allow(unreachable_pub, reason = "parts of one test binary")]

#[path = "source/case.rs"]
mod case;
#[path = "source/definitions.rs"]
mod definitions;
mod ended;
mod instance;
#[path = "source/lists.rs"]
mod lists;
#[path = "source/objects.rs"]
mod objects;
mod secrets;
#[path = "source/undecodable.rs"]
mod undecodable;
#[path = "source/watches.rs"]
mod watches;

use std::collections::BTreeMap;

use case::{Case, ops};
use instance::{assert_bounded_repetition, count, fold};
use kubetide_simulator::{Fault, Verb};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_is_no_gap_and_repeats_and_loses_nothing() {
    let mut case = Case::new().await;
    case.kubetide.start();
    case.kubetide.records_when_listed(1).await;
    let garbage = Fault::Line { after_lines: 1, line: "{\"type\":\"ADDED\",\"obj".into() };
    let error = json!({"type": "ERROR", "object": {"kind": "Status", "code": 500, "message": "etcd is slow"}});
    let error = Fault::Line { after_lines: 0, line: error.to_string().into() };
    let faults = vec![
        Fault::Drop,
        Fault::CutAfter(700),
        Fault::Status { code: 503, retry_after: None },
        garbage,
        Fault::TruncateAfter(900),
        error,
        Fault::Duplicate,
        Fault::Status { code: 429, retry_after: Some(1) },
    ];
    case.afflict(&[Verb::Watch], 8, faults);
    for round in 1..=40 {
        case.server.cut_all_watches();
        (0..20).for_each(|number| case.update(number, round));
    }
    let records = case.level().await;
    // Past every fault: the last of them is met only after the ones before it were got over.
    case.kubetide.records_when("all are told", |records| count(records, "update") == 800).await;
    assert_eq!(
        ops(&case.kubetide.records()),
        BTreeMap::from([("snapshot_started", 1), ("snapshot", 20), ("snapshot_finished", 1), ("update", 800)]),
    );
    assert!(records.iter().filter(|record| record["op"] == "update").all(|record| record["origin"] == "watch"));
    assert_bounded_repetition(&case.kubetide.lines(), 0);
    assert_eq!(case.server.requests().count(Verb::List, "configmaps"), 1, "no LIST but the first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_fails_in_any_way_is_no_delete_and_heals() {
    let mut case = Case::new().await;
    case.kubetide.start();
    case.kubetide.records_when_listed(1).await;
    assert!(case.kubetide.terminate().success());
    case.update(3, 1);
    case.delete(7);
    case.server.cluster().forget_history();
    let nothing =
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": ""}, "items": []});
    let faults = vec![
        Fault::Status { code: 403, retry_after: None },
        Fault::Status { code: 500, retry_after: None },
        Fault::CutAfter(2000),
        Fault::TruncateAfter(2000),
        Fault::Body(nothing.to_string().into()),
    ];
    case.afflict(&[Verb::List, Verb::Page], 5, faults);
    case.kubetide.start();
    let records =
        case.kubetide.records_when("it is whole again", |records| count(records, "resync_finished") == 1).await;
    let new = ops(&records[22..]);
    assert_eq!(new, BTreeMap::from([("gap", 1), ("update", 1), ("delete", 1), ("resync_finished", 1)]));
    assert_eq!(fold(&records), case.expected());
    assert!(case.server.requests().count(Verb::List, "configmaps") > 3, "the faults were met");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_refused_with_http_410_is_a_gap_like_one_that_ends_with_it() {
    for by_status in [true, false] {
        let mut case = Case::new().await;
        case.kubetide.start();
        case.kubetide.records_when_listed(1).await;
        assert!(case.kubetide.terminate().success());
        case.delete(5);
        if by_status {
            case.afflict(&[Verb::Watch], 1, vec![Fault::Status { code: 410, retry_after: None }]);
        } else {
            case.server.cluster().forget_history();
        }
        case.kubetide.start();
        let records = case.kubetide.records_when("it is whole again", |r| count(r, "resync_finished") == 1).await;
        assert_eq!(ops(&records[22..]), BTreeMap::from([("gap", 1), ("delete", 1), ("resync_finished", 1)]));
        assert_eq!(fold(&records), case.expected());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_between_pages_starts_the_list_over_and_the_snapshot_is_still_one() {
    let mut case = Case::new().await;
    // The second page of the first two attempts is too late.
    case.afflict(&[Verb::Page], 2, vec![Fault::Status { code: 410, retry_after: None }]);
    case.kubetide.start();
    let records = case.kubetide.records_when_listed(1).await;
    assert_eq!(
        ops(&records),
        BTreeMap::from([("snapshot_started", 1), ("snapshot", 20), ("snapshot_finished", 1)]),
        "an object that was listed twice is told once"
    );
    assert_eq!(records.last().unwrap()["counts"], json!({"snapshot": 20}));
    assert_eq!(fold(&records), case.expected());
    assert_eq!(case.server.requests().count(Verb::List, "configmaps"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_goes_away_and_comes_back_is_followed_on() {
    let mut case = Case::new().await;
    case.kubetide.start();
    case.kubetide.records_when_listed(1).await;
    case.server.refuse(true).await;
    case.delete(2);
    case.create(50);
    case.server.refuse(false).await;
    let records = case.level().await;
    assert_eq!((count(&records, "gap"), count(&records, "delete"), count(&records, "create")), (0, 1, 1));
    assert_eq!(case.server.requests().count(Verb::List, "configmaps"), 1);
}
