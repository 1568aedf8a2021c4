//! Every rule of readiness, with the clock moved by hand, and what the metrics say and forget.

use std::time::Duration;

use jiff::Timestamp;
use kubetide_sink::{Op, Origin};
use tokio::time::advance;

use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The check of this name.
#[track_caller]
fn check(vitals: &Vitals, name: &str) -> (CheckState, String) {
    let checks = vitals.readiness().checks;
    let found = checks.iter().find(|check| check.name == name);
    let found = found.unwrap_or_else(|| panic!("{name} is not in {checks:?}"));
    (found.state, found.message.clone())
}

#[track_caller]
fn assert_ok(vitals: &Vitals, name: &str) {
    assert_eq!(check(vitals, name), (CheckState::Ok, String::new()));
}

/// A check that failed, and the process with it.
#[track_caller]
fn assert_red(vitals: &Vitals, name: &str, told: &str) {
    assert_eq!(check(vitals, name), (CheckState::Failed, told.to_owned()));
    assert!(!vitals.readiness().ready);
}

/// A check that is degraded, while the process is ready.
#[track_caller]
fn assert_degraded(vitals: &Vitals, name: &str, told: &str) {
    assert_eq!(check(vitals, name), (CheckState::Degraded, told.to_owned()));
    assert!(vitals.readiness().ready);
}

const PODS: &str = "stream/core/pods";

fn pods(asked: Asked) -> (Vitals, StreamVitals) {
    let vitals = Vitals::new();
    let pods = vitals.stream("core/pods", asked);
    vitals.unresolved(&[]);
    (vitals, pods)
}

/// A named stream that is up to date.
fn synced() -> (Vitals, StreamVitals) {
    let (vitals, pods) = pods(Asked::Named);
    pods.list_needed(None);
    pods.list_started(false);
    pods.list_finished(3, seconds(1));
    pods.synced();
    assert_ok(&vitals, PODS);
    (vitals, pods)
}

#[tokio::test(start_paused = true)]
async fn nothing_is_ready_before_it_is_known_what_to_follow() {
    let vitals = Vitals::new();
    assert_red(&vitals, "resources", "what the cluster serves is not known yet");
    vitals.discovery_failed("503 Service Unavailable");
    assert!(!vitals.readiness().ready);
    vitals.discovered();
    assert_red(&vitals, "resources", "what the cluster serves is not known yet");
    let pods = vitals.stream("core/pods", Asked::Wildcard);
    pods.synced();
    assert!(!vitals.readiness().ready, "there may be more streams to come");
    vitals.unresolved(&[]);
    assert!(vitals.readiness().ready);
}

#[tokio::test(start_paused = true)]
async fn a_named_stream_is_red_until_its_first_snapshot_is_followed() {
    let (vitals, pods) = pods(Asked::Named);
    advance(seconds(5)).await;
    assert_red(&vitals, PODS, "starting for 5 s");
    pods.list_needed(None);
    assert_red(&vitals, PODS, "first snapshot: not begun (for 0 s)");
    pods.list_started(false);
    assert_red(&vitals, PODS, "first snapshot: 0 (for 0 s)");
    advance(seconds(7)).await;
    pods.list_progress(12_500, Some(40_000));
    assert_red(&vitals, PODS, "first snapshot: 12,500 of about 40,000 (for 7 s)");
    pods.list_finished(40_000, seconds(20));
    assert_red(&vitals, PODS, "first snapshot: all listed, not followed yet (for 7 s)");
    pods.watch_opened();
    assert!(!vitals.readiness().ready);
    pods.synced();
    assert_ok(&vitals, PODS);
    assert!(vitals.readiness().ready);
}

#[tokio::test(start_paused = true)]
async fn a_resumed_stream_is_healthy_with_its_first_event_or_bookmark() {
    for sign in [|pods: &StreamVitals| pods.event(Timestamp::UNIX_EPOCH), StreamVitals::bookmark, StreamVitals::synced]
    {
        let (vitals, pods) = pods(Asked::Named);
        pods.watch_opened();
        assert!(!vitals.readiness().ready);
        sign(&pods);
        assert_ok(&vitals, PODS);
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_within_a_list_does_not_end_it() {
    let (vitals, pods) = pods(Asked::Named);
    pods.list_needed(None);
    pods.list_started(true);
    pods.event(Timestamp::UNIX_EPOCH);
    assert_red(&vitals, PODS, "first snapshot: 0 (for 0 s)");
    assert_eq!(vitals.lists_under_way().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_plain_reconnect_never_turns_red() {
    let (vitals, pods) = synced();
    for why in ["timeout", "cut", "error", "renewed"] {
        pods.watch_ended(why);
        assert_ok(&vitals, PODS);
        pods.failed("connection reset", false, 1);
        assert_ok(&vitals, PODS);
        advance(seconds(600)).await;
        pods.watch_opened();
        assert_ok(&vitals, PODS);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_after_a_gap_degrades_a_stream_that_was_synced() {
    let (vitals, pods) = synced();
    pods.watch_ended("expired");
    pods.list_needed(Some("expired"));
    assert_degraded(&vitals, PODS, "listing again: expired, not begun (for 0 s)");
    pods.list_started(false);
    advance(seconds(3)).await;
    pods.list_progress(12_500, Some(40_000));
    assert_degraded(&vitals, PODS, "listing again: expired, 12,500 of about 40,000 (for 3 s)");
    pods.list_finished(40_000, seconds(9));
    pods.synced();
    assert_ok(&vitals, PODS);
}

#[tokio::test(start_paused = true)]
async fn a_list_after_a_gap_is_red_where_nothing_was_synced_before() {
    let (vitals, pods) = pods(Asked::Named);
    pods.list_needed(Some("state_lost"));
    assert_red(&vitals, PODS, "listing again: state_lost, not begun (for 0 s)");
}

#[tokio::test(start_paused = true)]
async fn a_list_that_was_asked_for_by_the_clock_is_no_reason_to_worry() {
    let (vitals, pods) = synced();
    pods.list_started(false);
    pods.list_progress(1, None);
    assert_ok(&vitals, PODS);
    pods.list_finished(2, seconds(1));
    assert_ok(&vitals, PODS);
    pods.synced();
    assert_ok(&vitals, PODS);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_red_at_once_and_a_failure_from_the_second() {
    let (vitals, pods) = synced();
    pods.failed("503 Service Unavailable", false, 1);
    assert_ok(&vitals, PODS);
    advance(seconds(30)).await;
    pods.failed("503 Service Unavailable", false, 2);
    assert_red(&vitals, PODS, "503 Service Unavailable (for 30 s)");
    pods.synced();
    assert_ok(&vitals, PODS);
    pods.failed("403 Forbidden", true, 1);
    assert_red(&vitals, PODS, "403 Forbidden (for 0 s)");
}

#[tokio::test(start_paused = true)]
async fn failures_end_with_an_opened_watch_a_complete_list_an_event_or_a_bookmark() {
    for sign in [
        StreamVitals::watch_opened,
        StreamVitals::synced,
        StreamVitals::bookmark,
        |pods: &StreamVitals| pods.event(Timestamp::UNIX_EPOCH),
        |pods: &StreamVitals| pods.list_finished(1, seconds(1)),
    ] {
        let (vitals, pods) = synced();
        pods.failed("403 Forbidden", true, 9);
        pods.watch_ended("error");
        assert_red(&vitals, PODS, "403 Forbidden (for 0 s)");
        sign(&pods);
        assert_ok(&vitals, PODS);
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_again_and_again_is_red_and_says_both() {
    let (vitals, pods) = synced();
    pods.list_needed(Some("expired"));
    pods.list_started(false);
    pods.list_progress(500, Some(900));
    pods.failed("504 Gateway Timeout", false, 1);
    assert_degraded(&vitals, PODS, "listing again: expired, not begun (for 0 s); 504 Gateway Timeout");
    pods.failed("504 Gateway Timeout", false, 2);
    pods.list_started(false);
    pods.list_progress(500, Some(900));
    assert_red(&vitals, PODS, "504 Gateway Timeout (for 0 s); listing again: expired, 500 of about 900");
}

#[tokio::test(start_paused = true)]
async fn a_stall_is_red_until_a_sign_of_life_and_an_opened_watch_is_none() {
    for sign in [
        StreamVitals::bookmark,
        |pods: &StreamVitals| pods.event(Timestamp::UNIX_EPOCH),
        |pods: &StreamVitals| pods.list_finished(1, seconds(1)),
        |pods: &StreamVitals| pods.watch_ended("timeout"),
    ] {
        let (vitals, pods) = synced();
        pods.stalled();
        pods.watch_ended("stalled");
        advance(seconds(40)).await;
        pods.watch_opened();
        pods.synced();
        pods.stalled();
        assert_red(&vitals, PODS, "stalled for 40 s: its watch brought nothing, and is rebuilt");
        sign(&pods);
        assert_ok(&vitals, PODS);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_does_not_hide_a_stall() {
    let (vitals, pods) = synced();
    pods.stalled();
    pods.failed("connection refused", false, 2);
    assert_red(&vitals, PODS, "connection refused (for 0 s)");
    pods.watch_opened();
    assert_red(&vitals, PODS, "stalled for 0 s: its watch brought nothing, and is rebuilt");
}

#[tokio::test(start_paused = true)]
async fn a_wildcards_stream_is_degraded_at_worst() {
    let (vitals, pods) = pods(Asked::Wildcard);
    assert_degraded(&vitals, PODS, "starting for 0 s");
    pods.list_needed(None);
    assert_degraded(&vitals, PODS, "first snapshot: not begun (for 0 s)");
    pods.failed("403 Forbidden", true, 5);
    assert_degraded(&vitals, PODS, "403 Forbidden (for 0 s); first snapshot: not begun");
    pods.list_finished(1, seconds(1));
    pods.synced();
    assert_ok(&vitals, PODS);
    pods.stalled();
    assert_eq!(check(&vitals, PODS).0, CheckState::Degraded);
}

#[tokio::test(start_paused = true)]
async fn what_a_replaced_stream_reports_does_not_count_for_the_new_one() {
    let (vitals, old) = synced();
    let new = vitals.stream("core/pods", Asked::Named);
    old.synced();
    assert_red(&vitals, PODS, "starting for 0 s");
    new.synced();
    old.failed("403 Forbidden", true, 1);
    assert_ok(&vitals, PODS);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_stream_is_out_of_readiness() {
    let (vitals, pods) = synced();
    pods.failed("404 Not Found", true, 1);
    vitals.forget_stream("core/pods");
    pods.stalled();
    let readiness = vitals.readiness();
    assert!(readiness.ready && readiness.checks.iter().all(|check| check.name != PODS), "{readiness:?}");
}

#[tokio::test(start_paused = true)]
async fn a_sink_is_red_when_it_has_failed_for_a_minute_without_a_success() {
    let (vitals, _pods) = synced();
    let sink = vitals.sink("audit");
    assert_ok(&vitals, "sink/audit");
    sink.failed("connection refused", "retry");
    advance(seconds(59)).await;
    sink.failed("connection refused", "retry");
    assert_degraded(&vitals, "sink/audit", "connection refused (for 59 s); nothing is lost, it is tried again");
    advance(seconds(1)).await;
    assert_red(&vitals, "sink/audit", "connection refused (for 60 s); nothing is lost, it is tried again");
    sink.delivered(1, 100, Some(seconds(61)));
    assert_ok(&vitals, "sink/audit");
    sink.failed("connection refused", "retry");
    advance(seconds(59)).await;
    assert!(vitals.readiness().ready, "the minute begins anew");
}

#[tokio::test(start_paused = true)]
async fn a_blocked_log_is_red_from_when_it_was_blocked_first() {
    let (vitals, _pods) = synced();
    assert!(vitals.block("sink audit is behind"));
    advance(seconds(180)).await;
    assert!(!vitals.block("sink audit is behind"), "it is no news");
    assert_eq!(check(&vitals, "log").0, CheckState::Failed);
    assert!(check(&vitals, "log").1.starts_with("appending is blocked for 3 min: sink audit is behind; make room"));
    assert!(!vitals.readiness().ready);
    assert!(vitals.unblock());
    assert_ok(&vitals, "log");
}

#[tokio::test(start_paused = true)]
async fn a_configured_resource_that_is_not_served_is_red() {
    let (vitals, _pods) = synced();
    vitals.unresolved(&["widgets.example.com".to_owned(), "gadgets".to_owned()]);
    let (state, message) = check(&vitals, "resources");
    assert_eq!(state, CheckState::Failed);
    assert!(message.starts_with("not served by the cluster: widgets.example.com, gadgets; "), "{message}");
    vitals.unresolved(&[]);
    assert!(vitals.readiness().ready);
}

#[tokio::test(start_paused = true)]
async fn a_discovery_that_fails_degrades_but_is_never_red() {
    let (vitals, _pods) = synced();
    vitals.discovery_failed("metrics.k8s.io/v1beta1: 503");
    advance(seconds(86_400)).await;
    vitals.discovery_failed("metrics.k8s.io/v1beta1: 503");
    assert_degraded(&vitals, "discovery", "metrics.k8s.io/v1beta1: 503 (for 24 h)");
    vitals.discovered();
    assert_ok(&vitals, "discovery");
}

#[tokio::test(start_paused = true)]
async fn it_lives_until_the_committer_has_been_silent_for_a_minute() {
    let vitals = Vitals::new();
    advance(seconds(3_600)).await;
    assert!(vitals.live(), "before the committer's first turn there is nothing to miss");
    vitals.heartbeat();
    advance(seconds(60)).await;
    assert!(vitals.live());
    advance(seconds(1)).await;
    assert!(!vitals.live());
    vitals.heartbeat();
    assert!(vitals.live());
}

#[tokio::test(start_paused = true)]
async fn only_lists_that_have_begun_are_under_way() {
    let vitals = Vitals::new();
    let (pods, nodes) = (vitals.stream("core/pods", Asked::Named), vitals.stream("core/nodes", Asked::Named));
    pods.list_needed(None);
    assert_eq!(vitals.lists_under_way(), []);
    pods.list_started(false);
    nodes.list_started(true);
    pods.list_progress(500, Some(900));
    let list = |stream: &str, listed, about| ListUnderWay { stream: stream.into(), listed, about };
    assert_eq!(vitals.lists_under_way(), [list("core/nodes", 0, None), list("core/pods", 500, Some(900))]);
    nodes.list_finished(3, seconds(1));
    pods.failed("504 Gateway Timeout", false, 1);
    assert_eq!(vitals.lists_under_way(), []);
}

/// The lines of the metrics page that are no comments.
fn series(vitals: &Vitals) -> Vec<String> {
    vitals.render_metrics().lines().filter(|line| !line.starts_with('#')).map(Into::into).collect()
}

#[track_caller]
fn assert_series(vitals: &Vitals, wanted: &[&str]) {
    let series = series(vitals);
    for wanted in wanted {
        assert!(series.iter().any(|line| line == wanted), "{wanted} is not in\n{}", series.join("\n"));
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_say_what_happened() {
    let vitals = Vitals::new();
    let pods = vitals.stream("core/pods", Asked::Named);
    pods.list_needed(None);
    pods.list_started(true);
    pods.failed("connection reset", false, 1);
    pods.list_needed(Some("expired"));
    pods.list_started(false);
    pods.list_finished(7, seconds(2));
    pods.synced();
    pods.watch_opened();
    pods.event(Timestamp::from_millisecond(1_500).unwrap());
    pods.event(Timestamp::from_millisecond(2_500).unwrap());
    pods.bookmark();
    let changes = vitals.changes_of("core/pods");
    (0..2).for_each(|_| changes.changed(Op::Create, Origin::Watch));
    (0..3).for_each(|_| changes.changed(Op::Delete, Origin::List));
    (0..4).for_each(|_| changes.ignored());
    pods.verified(5, 0);
    pods.verified(0, 1);
    pods.undecodable();
    pods.stalled();
    pods.watch_ended("stalled");
    let audit = vitals.sink("audit");
    audit.delivered(10, 2_000, Some(Duration::from_millis(300)));
    audit.failed("no", "retry");
    vitals.budget(4_096);
    assert_series(
        &vitals,
        &[
            r#"kubetide_lists_total{kind="paged",stream="core/pods"} 1"#,
            r#"kubetide_lists_total{kind="streaming",stream="core/pods"} 1"#,
            r#"kubetide_list_duration_seconds_bucket{stream="core/pods",le="1"} 0"#,
            r#"kubetide_list_duration_seconds_bucket{stream="core/pods",le="2.5"} 1"#,
            r#"kubetide_list_duration_seconds_sum{stream="core/pods"} 2"#,
            r#"kubetide_listed_objects_total{stream="core/pods"} 7"#,
            r#"kubetide_events_total{stream="core/pods"} 2"#,
            r#"kubetide_stream_last_event_timestamp_seconds{stream="core/pods"} 2.5"#,
            r#"kubetide_bookmarks_total{stream="core/pods"} 1"#,
            r#"kubetide_changes_total{op="create",origin="watch",stream="core/pods"} 2"#,
            r#"kubetide_changes_total{op="delete",origin="list",stream="core/pods"} 3"#,
            r#"kubetide_ignored_events_total{stream="core/pods"} 4"#,
            r#"kubetide_watch_opened_total{stream="core/pods"} 1"#,
            r#"kubetide_watch_ended_total{reason="stalled",stream="core/pods"} 1"#,
            r#"kubetide_gaps_total{reason="expired",stream="core/pods"} 1"#,
            r#"kubetide_stalls_total{stream="core/pods"} 1"#,
            r#"kubetide_stream_failures_total{stream="core/pods"} 1"#,
            r#"kubetide_stream_state{state="stalled",stream="core/pods"} 1"#,
            r#"kubetide_verifications_total{result="clean",stream="core/pods"} 1"#,
            r#"kubetide_verifications_total{result="diverged",stream="core/pods"} 1"#,
            r#"kubetide_verification_suspects_total{stream="core/pods"} 5"#,
            r#"kubetide_undecodable_total{stream="core/pods"} 1"#,
            r#"kubetide_budget_bytes 4096"#,
            r#"kubetide_sink_records_total{sink="audit"} 10"#,
            r#"kubetide_sink_delivered_bytes_total{sink="audit"} 2000"#,
            r#"kubetide_sink_lag_seconds_sum{sink="audit"} 0.3"#,
            r#"kubetide_sink_lag_seconds_count{sink="audit"} 1"#,
            r#"kubetide_sink_failures_total{decision="retry",sink="audit"} 1"#,
            concat!(r#"kubetide_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#""} 1"#),
        ],
    );
    let page = vitals.render_metrics();
    assert!(page.contains("# TYPE kubetide_list_duration_seconds histogram"), "{page}");
    assert!(page.contains("# HELP kubetide_gaps_total Breaks in the history of a stream, by reason"), "{page}");
    assert!(!page.contains("otel_scope") && !page.contains("target_info"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn the_gauges_of_a_list_are_there_while_it_is_under_way() {
    let (vitals, pods) = pods(Asked::Named);
    pods.list_started(false);
    pods.list_progress(12_500, Some(40_000));
    let wanted = [
        r#"kubetide_list_objects{stream="core/pods"} 12500"#,
        r#"kubetide_list_expected_objects{stream="core/pods"} 40000"#,
        r#"kubetide_stream_state{state="listing",stream="core/pods"} 1"#,
    ];
    assert_series(&vitals, &wanted);
    pods.list_finished(40_000, seconds(9));
    pods.synced();
    assert_series(&vitals, &[r#"kubetide_stream_state{state="following",stream="core/pods"} 1"#]);
    let left = series(&vitals);
    assert!(!left.iter().any(|line| wanted.contains(&line.as_str())), "{left:#?}");
    assert!(!left.iter().any(|line| line.contains("list_objects") || line.contains("expected")), "{left:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_stream_leaves_its_counters_and_no_gauge() {
    let (vitals, pods) = synced();
    let nodes = vitals.stream("core/nodes", Asked::Wildcard);
    nodes.synced();
    pods.event(Timestamp::UNIX_EPOCH);
    pods.list_progress(1, Some(2));
    let of_pods = |vitals: &Vitals| -> Vec<String> {
        let gauges =
            ["kubetide_stream_state", "kubetide_stream_last", "kubetide_list_objects", "kubetide_list_expected"];
        let is_gauge = |line: &String| gauges.iter().any(|gauge| line.starts_with(gauge));
        series(vitals).into_iter().filter(|line| line.contains("core/pods") && is_gauge(line)).collect()
    };
    assert_eq!(of_pods(&vitals).len(), 4);
    vitals.forget_stream("core/pods");
    assert_eq!(of_pods(&vitals), [""; 0]);
    assert_series(
        &vitals,
        &[
            r#"kubetide_events_total{stream="core/pods"} 1"#,
            r#"kubetide_stream_state{state="following",stream="core/nodes"} 1"#,
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn many_streams_keep_their_labels() {
    let vitals = Vitals::new();
    for number in 0..2_500 {
        let name = format!("example.com/kind{number}");
        vitals.stream(&name, Asked::Wildcard);
        vitals.changes_of(&name).changed(Op::Create, Origin::Watch);
    }
    assert_series(
        &vitals,
        &[
            r#"kubetide_changes_total{op="create",origin="watch",stream="example.com/kind2499"} 1"#,
            r#"kubetide_stream_state{state="starting",stream="example.com/kind2499"} 1"#,
        ],
    );
    assert!(!vitals.render_metrics().contains("overflow"));
}
