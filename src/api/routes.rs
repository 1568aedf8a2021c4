//! HTTP over the socket: questions are GET, demands are POST, answers are lines of JSON.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Path, Query, State},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use bytes::Bytes;
use http::{StatusCode, header::CONTENT_TYPE};
use hyper::{body::Frame, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use serde::Deserialize;
use tokio::{net::UnixStream, task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    Answer, Changes, Demand, Desk, Objects, Point, Question, Refusal, Words,
    answer::answer,
    item::{Broken, Kind},
    order::carry_out,
    socket::Socket,
};

/// People and scripts on one machine: far fewer at once. Others wait their turn.
const MOST_CONNECTIONS: usize = 64;
/// Who connects and asks nothing is not kept.
const ASK_WITHIN: Duration = Duration::from_secs(10);
/// When a connection cannot be accepted the process is out of file descriptors, and some should come free.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

pub(super) async fn serve(socket: Socket, desk: Desk, stop: CancellationToken) {
    let routes = routes(desk);
    let mut connections = JoinSet::new();
    let accepting = async {
        loop {
            tokio::select! {
                accepted = socket.listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                    Ok((stream, _)) => _ = connections.spawn(converse(stream, routes.clone())),
                    Err(error) => {
                        warn!(%error, "kubetide.sock cannot accept a connection");
                        sleep(ACCEPT_AGAIN).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    };
    let _: Option<()> = stop.run_until_cancelled(accepting).await;
    drop(socket);
    // Answers end by themselves now; a reader that does not read is not waited for.
    let _ = tokio::time::timeout(ACCEPT_AGAIN, async { while connections.join_next().await.is_some() {} }).await;
    connections.shutdown().await;
}

async fn converse(stream: UnixStream, routes: Router) {
    let service = TowerToHyperService::new(routes);
    let mut builder = http1::Builder::new();
    let builder = builder.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(ASK_WITHIN);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        debug!(%error, "a connection to kubetide.sock broke");
    }
}

fn routes(desk: Desk) -> Router {
    Router::new()
        .route("/api/v1/streams", get(async |State(desk): State<Desk>| ask(&desk, Question::Streams).await))
        .route("/api/v1/sinks", get(async |State(desk): State<Desk>| ask(&desk, Question::Sinks).await))
        .route("/api/v1/log", get(async |State(desk): State<Desk>| ask(&desk, Question::Log).await))
        .route("/api/v1/log/verify", get(async |State(desk): State<Desk>| ask(&desk, Question::Verify).await))
        .route("/api/v1/changes", get(changes))
        .route("/api/v1/objects", get(objects))
        .route("/api/v1/sinks/{name}/replay", post(replay))
        .route("/api/v1/sinks/{name}/resnapshot", post(resnapshot))
        .route("/api/v1/sinks/{name}/dead-letters", get(letters))
        .route("/api/v1/sinks/{name}/dead-letters/replay", post(replay_letters))
        .route("/api/v1/log/purge", post(purge))
        .with_state(desk)
}

type Asked<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

async fn changes(State(desk): State<Desk>, query: Asked<Changes>) -> Response {
    match query {
        Ok(Query(changes)) => ask(&desk, Question::Changes(Box::new(changes))).await,
        Err(rejection) => refused(&Refusal::Usage(rejection.body_text())),
    }
}

async fn objects(State(desk): State<Desk>, query: Asked<Objects>) -> Response {
    match query {
        Ok(Query(objects)) => ask(&desk, Question::Objects(objects)).await,
        Err(rejection) => refused(&Refusal::Usage(rejection.body_text())),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    from: Point,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Before {
    before: Point,
}

async fn replay(State(desk): State<Desk>, Path(sink): Path<String>, query: Asked<From>) -> Response {
    match query {
        Ok(Query(From { from })) => demand(&desk, Demand::Replay { sink, from }).await,
        Err(rejection) => refused(&Refusal::Usage(rejection.body_text())),
    }
}

async fn resnapshot(State(desk): State<Desk>, Path(sink): Path<String>) -> Response {
    demand(&desk, Demand::Resnapshot { sink }).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Seqs {
    #[serde(default)]
    seq: Words,
}

async fn letters(State(desk): State<Desk>, Path(sink): Path<String>) -> Response {
    ask(&desk, Question::Letters(sink)).await
}

async fn replay_letters(State(desk): State<Desk>, Path(sink): Path<String>, query: Asked<Seqs>) -> Response {
    let seqs: Result<Vec<u64>, String> = match query {
        Ok(Query(Seqs { seq })) => seq.0.into_iter().map(|word| word.parse().map_err(|_| word)).collect(),
        Err(rejection) => return refused(&Refusal::Usage(rejection.body_text())),
    };
    match seqs {
        Ok(seqs) => demand(&desk, Demand::ReplayLetters { sink, seqs }).await,
        Err(word) => refused(&Refusal::Usage(format!("seq: found {word:?}; allowed: seqs with commas between them"))),
    }
}

async fn purge(State(desk): State<Desk>, query: Asked<Before>) -> Response {
    match query {
        Ok(Query(Before { before })) => demand(&desk, Demand::Purge { before }).await,
        Err(rejection) => refused(&Refusal::Usage(rejection.body_text())),
    }
}

async fn ask(desk: &Desk, question: Question) -> Response {
    match answer(desk, question).await {
        Ok(answer) => ([(CONTENT_TYPE, "application/x-ndjson")], Body::new(Blocks(answer))).into_response(),
        Err(refusal) => refused(&refusal),
    }
}

async fn demand(desk: &Desk, demand: Demand) -> Response {
    match carry_out(desk, demand).await {
        Ok(done) => {
            let mut body = serde_json::to_vec(&done).unwrap_or_default();
            body.push(b'\n');
            ([(CONTENT_TYPE, "application/x-ndjson")], body).into_response()
        }
        Err(refusal) => refused(&refusal),
    }
}

fn refused(refusal: &Refusal) -> Response {
    let status = match refusal {
        Refusal::Usage(_) => StatusCode::BAD_REQUEST,
        Refusal::Absent(_) => StatusCode::NOT_FOUND,
        Refusal::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        Refusal::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, [(CONTENT_TYPE, "application/x-ndjson")], broken(refusal)).into_response()
}

/// The line that says why there is no more.
fn broken(refusal: &Refusal) -> Bytes {
    let (kind, error) = match refusal {
        Refusal::Usage(error) => (Kind::Usage, error),
        Refusal::Absent(error) => (Kind::Absent, error),
        Refusal::Failed(error) => (Kind::Failed, error),
        Refusal::Unavailable(error) => (Kind::Unavailable, error),
    };
    let mut line = serde_json::to_vec(&Broken { error: error.clone(), kind }).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

/// An answer as the body of a response.
struct Blocks(Answer);

impl hyper::body::Body for Blocks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.blocks.poll_recv(cx).map(|block| {
            let block = block?.unwrap_or_else(|refusal| broken(&refusal));
            Some(Ok(Frame::data(block)))
        })
    }
}
