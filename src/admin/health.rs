//! The pages, in the words of the Kubernetes API server: `[+]stream/core/pods ok`.

use std::fmt::Write as _;

use axum::{
    Router,
    extract::{RawQuery, State},
    routing::get,
};
use http::{
    StatusCode,
    header::{CONTENT_TYPE, HeaderName},
};

use crate::vitals::{Check, CheckState, Readiness, Vitals};

type Page = (StatusCode, [(HeaderName, &'static str); 1], String);

pub(super) fn routes(vitals: Vitals) -> Router {
    Router::new()
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .fallback(elsewhere)
        .with_state(vitals)
}

async fn livez(State(vitals): State<Vitals>, RawQuery(query): RawQuery) -> Page {
    let live = vitals.live();
    let (state, message) = match live {
        true => (CheckState::Ok, String::new()),
        false => (CheckState::Failed, "no sign of life for more than 60 s".to_owned()),
    };
    let checks = vec![Check { name: "committer".into(), state, message }];
    report("livez", &Readiness { ready: live, checks }, verbose(query))
}

async fn readyz(State(vitals): State<Vitals>, RawQuery(query): RawQuery) -> Page {
    report("readyz", &vitals.readiness(), verbose(query))
}

async fn metrics(State(vitals): State<Vitals>) -> Page {
    (StatusCode::OK, [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], vitals.render_metrics())
}

async fn elsewhere() -> Page {
    text(StatusCode::NOT_FOUND, "not found; there are /livez, /readyz?verbose and /metrics\n".into())
}

/// `?verbose`, with or without a value.
fn verbose(query: Option<String>) -> bool {
    let query = query.unwrap_or_default();
    query.split('&').any(|pair| pair.split('=').next() == Some("verbose"))
}

/// All checks if verbose, those that failed if some did, else `ok`.
fn report(name: &str, readiness: &Readiness, verbose: bool) -> Page {
    let (status, outcome) = match readiness.ready {
        true => (StatusCode::OK, "passed"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    if readiness.ready && !verbose {
        return text(status, "ok".into());
    }
    let mut page = String::new();
    for Check { name, state, message } in &readiness.checks {
        // Writing to a string cannot fail.
        let _ = match state {
            CheckState::Failed => writeln!(page, "[-]{name} failed: {message}"),
            _ if !verbose => Ok(()),
            CheckState::Degraded => writeln!(page, "[~]{name} degraded: {message}"),
            CheckState::Ok => writeln!(page, "[+]{name} ok"),
        };
    }
    text(status, format!("{page}{name} check {outcome}\n"))
}

fn text(status: StatusCode, page: String) -> Page {
    (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], page)
}
