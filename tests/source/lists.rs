//! LISTs that fail, hang, break off or lie: absence is proven only by a complete, successful one.

use std::{collections::BTreeMap, time::Duration};

use kubetide_simulator::{Fault, Verb};
use serde_json::json;

use crate::{
    case::{Case, LISTS, PAGED, ops, reasons, status},
    instance::{count, fold},
};

const CODES: [u16; 4] = [401, 403, 404, 503];

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_refused_deletes_nothing_and_heals_without_a_restart() {
    for streaming in [false, true] {
        let mut case = if streaming { Case::streaming().await } else { Case::new().await };
        case.snapshot().await;
        for (at, code) in CODES.into_iter().enumerate() {
            let met = case.afflict(LISTS, 2, vec![status(code)]);
            let before = case.kubetide.records().len();
            case.break_history(|| {
                case.update(1, at as u64 + 1);
                case.delete(10 + at as u64);
            })
            .await;
            let records = case.mended(at + 1).await;
            assert!(met.load(std::sync::atomic::Ordering::Relaxed) > 2, "{code} was met twice");
            let told = ops(&records[before..]);
            let expected = BTreeMap::from([("gap", 1), ("update", 1), ("delete", 1), ("resync_finished", 1)]);
            assert_eq!(told, expected, "after {code}, streaming: {streaming}");
            assert_eq!(fold(&records), case.expected());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_hangs_is_given_up_and_done_again() {
    let mut case = Case::streaming().await;
    case.afflict(LISTS, 4, vec![Fault::Hang, Fault::Hang, Fault::Pass, Fault::HangAfter(700)]);
    let records = case.snapshot().await;
    assert_eq!(ops(&records), BTreeMap::from([("snapshot_started", 1), ("snapshot", 20), ("snapshot_finished", 1)]));
    assert_eq!(fold(&records), case.expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paged_list_that_stops_halfway_deletes_nothing_over_a_restart() {
    let mut case = Case::new().await;
    case.snapshot().await;
    // The second page never comes.
    let met = case.afflict(&[Verb::Page], u64::MAX, vec![Fault::Hang]);
    case.break_history(|| case.delete(3)).await;
    case.until("half of it is listed", || met.load(std::sync::atomic::Ordering::Relaxed) > 0).await;
    assert!(case.kubetide.terminate().success());
    assert_eq!(ops(&case.kubetide.records()[22..]), BTreeMap::from([("gap", 1)]));
    case.fate(|_| Fault::Pass);
    case.kubetide.start();
    let records = case.mended(1).await;
    assert_eq!(ops(&records[22..]), BTreeMap::from([("gap", 1), ("delete", 1), ("resync_finished", 1)]));
    assert_eq!(fold(&records), case.expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streaming_list_that_breaks_off_deletes_nothing_and_is_done_again() {
    let mut case = Case::streaming().await;
    case.snapshot().await;
    let first: serde_json::Value =
        serde_json::from_slice(&case.cluster().get("configmaps", "default", "c000").unwrap()).unwrap();
    let first = format!("{}\n", json!({"type": "ADDED", "object": first}));
    // In the middle of an event, and, as if nothing were missing, behind a whole one.
    let faults = [Fault::CutAfter(2500), Fault::TruncateAfter(2500), Fault::HangAfter(2500), Fault::Body(first.into())];
    for (at, fault) in faults.into_iter().enumerate() {
        case.afflict(&[Verb::StreamingList], 1, vec![fault.clone()]);
        let before = case.kubetide.records().len();
        case.break_history(|| case.delete(3 + at as u64)).await;
        let records = case.mended(at + 1).await;
        let expected = BTreeMap::from([("gap", 1), ("delete", 1), ("resync_finished", 1)]);
        assert_eq!(ops(&records[before..]), expected, "{fault:?}");
        assert_eq!(fold(&records), case.expected());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_streamed_by_default() {
    let mut case = Case::streaming().await;
    case.snapshot().await;
    case.break_history(|| case.delete(3)).await;
    let records = case.mended(1).await;
    assert_eq!(fold(&records), case.expected());
    assert_eq!((case.count(Verb::StreamingList), case.count(Verb::List)), (2, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn where_a_list_cannot_be_streamed_it_comes_in_pages() {
    let error = Fault::error_event(Some(500), "InternalError", "no");
    // Whether the next LIST is streamed again: only if this one was begun.
    for (fault, again) in [(status(422), false), (error, true), (Fault::StripBookmarks, true)] {
        let mut case = Case::streaming().await;
        case.afflict(&[Verb::StreamingList], 1, vec![fault.clone()]);
        let records = case.snapshot().await;
        assert_eq!(fold(&records), case.expected());
        assert_eq!((count(&records, "snapshot"), count(&records, "delete")), (20, 0), "{fault:?}");
        assert_eq!((case.count(Verb::StreamingList), case.count(Verb::List)), (1, 1), "{fault:?}");
        case.break_history(|| case.delete(3)).await;
        let records = case.mended(1).await;
        assert_eq!(fold(&records), case.expected());
        assert_eq!(case.count(Verb::StreamingList), 1 + usize::from(again), "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_changed_or_deleted_while_a_list_streams_is_told_so() {
    let mut case = Case::streaming().await;
    let event = |sort: &str, object: &[u8]| {
        let object: serde_json::Value = serde_json::from_slice(object).unwrap();
        json!({"type": sort, "object": object}).to_string()
    };
    let read = |name: &str| case.cluster().get("configmaps", "default", name).unwrap();
    let (c3, c4) = (read("c003"), read("c004"));
    case.update(4, 1);
    let mut deleted: serde_json::Value = serde_json::from_slice(&c3).unwrap();
    case.delete(3);
    deleted["metadata"]["resourceVersion"] = case.cluster().version().to_string().into();
    let events = [
        event("ADDED", &c3),
        event("ADDED", &c4),
        event("DELETED", deleted.to_string().as_bytes()),
        event("MODIFIED", &read("c004")),
    ];
    let line = Fault::Line { after_lines: 0, line: events.join("\n").into() };
    case.afflict(&[Verb::StreamingList], 1, vec![line]);
    let records = case.snapshot().await;
    assert_eq!(fold(&records), case.expected());
    let of = |name: &str| -> Vec<&str> {
        crate::instance::changes_of(&records, name).into_iter().map(|(op, _)| op).collect()
    };
    assert_eq!(of("c003"), ["snapshot", "delete"]);
    assert_eq!(of("c004"), ["snapshot", "update"]);
    assert_eq!(records.last().unwrap()["counts"], json!({"snapshot": 19}), "objects, however often they were shown");
}

/// A cluster with 150 config maps.
async fn many() -> Case {
    let case = Case::with(&[("configmaps", "default")], "list: {page_size: 1000, streaming: never}\n").await;
    (20..150).for_each(|number| case.create(number));
    case
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_that_a_second_one_does_not_confirm_deletes_nothing() {
    let mut case = many().await;
    case.snapshot().await;
    let body = |version: u64| {
        let metadata = json!({"resourceVersion": version.to_string()});
        let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": metadata, "items": []});
        Fault::Body(list.to_string().into())
    };
    case.afflict(&[Verb::List], 1, vec![body(case.cluster().version() + 5)]);
    case.break_history(|| {
        case.cluster().skip_versions(10);
        case.delete(7);
    })
    .await;
    let records = case.mended(1).await;
    assert_eq!(ops(&records[152..]), BTreeMap::from([("gap", 1), ("delete", 1), ("resync_finished", 1)]));
    assert_eq!(fold(&records), case.expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mass_delete_is_told_when_a_second_list_confirms_it() {
    let mut case = many().await;
    case.snapshot().await;
    case.break_history(|| (0..120).for_each(|number| case.delete(number))).await;
    let records = case.mended(1).await;
    assert_eq!(ops(&records[152..]), BTreeMap::from([("gap", 1), ("delete", 120), ("resync_finished", 1)]));
    assert_eq!(fold(&records), case.expected());
    let lists = case.asked(&[Verb::List], "configmaps");
    assert_eq!(lists.len(), 3, "the snapshot, the suspicious one, the second");
    assert!(lists[2].0 - lists[1].0 >= Duration::from_secs(30));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_wish_for_a_pause_is_obeyed() {
    let mut case = Case::new().await;
    case.afflict(&[Verb::List, Verb::Watch], 2, vec![Fault::Status { code: 429, retry_after: Some(3) }, Fault::Pass]);
    case.snapshot().await;
    let lists = case.asked(&[Verb::List], "configmaps");
    assert!(lists[1].0 - lists[0].0 >= Duration::from_secs(3), "{:?}", lists[1].0 - lists[0].0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_lists_run_at_once_than_are_allowed() {
    let resources = ["pods", "services", "nodes", "serviceaccounts", "deployments", "replicasets", "namespaces"];
    let streams: Vec<(&str, &str)> = resources.iter().map(|resource| (*resource, "")).collect();
    for streaming in ["never", "auto"] {
        let takes = Duration::from_millis(400);
        let mut case = Case::with(&streams, &format!("list: {{max_concurrent: 2, streaming: {streaming}}}\n")).await;
        case.fate(move |request| if LISTS.contains(&request.verb) { Fault::Delay(takes) } else { Fault::Pass });
        case.kubetide.start();
        case.kubetide.records_when_listed(resources.len()).await;
        let names =
            ["pods", "services", "nodes", "serviceaccounts", "deployments.apps", "replicasets.apps", "namespaces"];
        let mut began: Vec<_> = names.iter().flat_map(|name| case.asked(LISTS, name)).map(|(at, _)| at).collect();
        began.sort();
        assert_eq!(began.len(), names.len());
        // While two run, a third would begin before the first of them can have ended.
        let spacing = began.windows(3).map(|three| three[2] - three[0]).min().unwrap();
        assert!(spacing >= takes, "three LISTs within {spacing:?}, streaming: {streaming}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_says_who_asks_and_no_list_takes_what_the_server_remembers() {
    for more in [PAGED, ""] {
        let mut case = Case::with(&[("configmaps", "default")], more).await;
        case.snapshot().await;
        case.break_history(|| case.delete(3)).await;
        let records = case.mended(1).await;
        assert_eq!(reasons(&records), ["expired"]);
        let asked = case.all_asked();
        let agent = concat!("kubetide/", env!("CARGO_PKG_VERSION"));
        assert!(asked.iter().all(|request| request.user_agent == agent), "{:?}", asked[0].user_agent);
        for list in asked.iter().filter(|request| LISTS.contains(&request.verb)) {
            assert_eq!(list.param("resourceVersion"), "", "{list:?}");
        }
        assert!(asked.iter().any(|request| LISTS.contains(&request.verb)));
    }
}
