//! Asks the process that holds a data directory.

use std::{io, path::Path, time::Duration};

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, sync::mpsc, task::JoinSet};

use super::{
    Answer, BLOCKS, Demand, Question, Refusal, Stopped, Unread,
    answer::write_watched,
    item::{Broken, Done, Kind},
    socket,
};

/// The beginning of the line that ends an answer early. No item begins so.
const BROKEN: &[u8] = b"{\"error\":";

/// A process that has not begun to answer after this does not answer at all. Whatever takes longer comes behind the head.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// The way to a process that runs.
pub struct Client {
    data_dir: std::path::PathBuf,
}

impl Client {
    /// Whether a process answers for the directory.
    pub async fn reach(data_dir: &Path) -> io::Result<Option<Self>> {
        let reached = socket::connect(data_dir).await?;
        Ok(reached.map(|_| Self { data_dir: data_dir.into() }))
    }

    /// Asks.
    pub async fn ask(&self, question: &Question) -> Result<Answer, Refusal> {
        let (body, mut writers) = self.in_time(self.request(Method::GET, question.path())).await?;
        let (sender, receiver) = mpsc::channel(BLOCKS);
        write_watched(&mut writers, sender.clone(), forward(body, sender));
        Ok(Answer { blocks: receiver, _writers: writers })
    }

    /// Demands.
    pub async fn demand(&self, demand: &Demand) -> Result<Done, Refusal> {
        // An order is carried out when its sink comes to it, which may take longer; so whether anybody is there is asked before.
        self.in_time(self.send(Method::GET, "/".into())).await?;
        let (body, _connection) = self.request(Method::POST, demand.path()).await?;
        let bytes = body.collect().await.map_err(lost)?.to_bytes();
        serde_json::from_slice(&bytes).map_err(lost)
    }

    async fn in_time<T>(&self, answer: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
        let answer = tokio::time::timeout(ANSWERS_WITHIN, answer).await;
        answer.unwrap_or_else(|_| {
            Err(Refusal::Unavailable(format!(
                "the process that holds {} has not answered for {} s: see whether it is stopped or overloaded, or restart it",
                self.data_dir.display(),
                ANSWERS_WITHIN.as_secs()
            )))
        })
    }

    /// The body of the answer, and the connection that it comes over.
    async fn request(&self, method: Method, path: String) -> Result<(Incoming, JoinSet<()>), Refusal> {
        let (response, writers) = self.send(method, path).await?;
        if response.status().is_success() {
            return Ok((response.into_body(), writers));
        }
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(lost)?.to_bytes();
        Err(read_broken(&bytes).unwrap_or_else(|| lost(format!("it answers {status}"))))
    }

    async fn send(&self, method: Method, path: String) -> Result<(Response<Incoming>, JoinSet<()>), Refusal> {
        let stream = socket::connect(&self.data_dir).await.map_err(lost)?;
        let gone =
            || Refusal::Unavailable("nobody listens on kubetide.sock any more: the process ends; try again".into());
        let stream: UnixStream = stream.ok_or_else(gone)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let mut writers = JoinSet::new();
        // What goes wrong in it is seen by whoever reads the answer.
        writers.spawn(async { drop(connection.await) });
        let request = Request::builder().method(method).uri(path).header("host", "kubetide").body(Body::empty());
        let response = sender.send_request(request.map_err(lost)?).await.map_err(lost)?;
        Ok((response, writers))
    }
}

fn lost(error: impl std::fmt::Display) -> Refusal {
    Refusal::Failed(format!("the running process does not answer: {error}"))
}

fn read_broken(line: &[u8]) -> Option<Refusal> {
    let Broken { error, kind } = serde_json::from_slice(line).ok()?;
    Some(match kind {
        Kind::Usage => Refusal::Usage(error),
        Kind::Absent => Refusal::Absent(error),
        Kind::Failed => Refusal::Failed(error),
        Kind::Unavailable => Refusal::Unavailable(error),
    })
}

/// Cuts what comes into blocks of whole lines again.
async fn forward(mut body: Incoming, sender: mpsc::Sender<Result<Bytes, Refusal>>) -> Result<(), Stopped> {
    let mut held = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(lost)?.into_data() else { continue };
        held.extend_from_slice(&data);
        let Some(end) = memchr::memrchr(b'\n', &data) else { continue };
        let whole = held.split_to(held.len() - data.len() + end + 1).freeze();
        // Only the last line can be that one.
        let last = memchr::memrchr(b'\n', &whole[..whole.len() - 1]).map_or(0, |at| at + 1);
        let broken = whole[last..].starts_with(BROKEN).then(|| read_broken(&whole[last..])).flatten();
        let items = if broken.is_some() { whole.slice(..last) } else { whole };
        if !items.is_empty() {
            sender.send(Ok(items)).await.map_err(|_| Unread)?;
        }
        if let Some(refusal) = broken {
            return Err(refusal.into());
        }
    }
    Ok(())
}
