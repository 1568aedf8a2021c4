//! What a receiver of webhooks was sent, and what it says to that.

use std::collections::VecDeque;
use std::io::Read as _;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use tokio::sync::watch;

/// What a receiver does with one request: commit or not, wait, and then answer, or not.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(crate) commits: bool,
    pub(crate) pause: Duration,
    pub(crate) end: End,
}

#[derive(Debug, Clone)]
pub(crate) enum End {
    Status { status: u16, headers: Vec<(String, String)>, body: ResponseBody, unread: bool },
    Hang,
    Reset,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ResponseBody {
    pub(crate) bytes: Bytes,
    /// How long after the headers it comes.
    pub(crate) late: Duration,
    /// Nothing more comes, and no end.
    pub(crate) hangs: bool,
}

impl Answer {
    /// This status without a body. The records are committed if it is 2xx.
    pub fn status(status: u16) -> Answer {
        let end = End::Status { status, headers: Vec::new(), body: ResponseBody::default(), unread: false };
        Answer { commits: (200..300).contains(&status), pause: Duration::ZERO, end }
    }

    /// No answer, on a connection that stays open.
    pub fn hang() -> Answer {
        Answer { commits: false, pause: Duration::ZERO, end: End::Hang }
    }

    /// No answer, and the connection is reset.
    pub fn reset() -> Answer {
        Answer { commits: false, pause: Duration::ZERO, end: End::Reset }
    }

    /// With this header. Only of a status.
    pub fn with_header(mut self, name: &str, value: &str) -> Answer {
        match &mut self.end {
            End::Status { headers, .. } => headers.push((name.into(), value.into())),
            end => panic!("no header goes with {end:?}"),
        }
        self
    }

    /// With this body. Only of a status.
    pub fn with_body(self, body: impl Into<Bytes>) -> Answer {
        self.with_late_body(body, Duration::ZERO)
    }

    /// With this body, so long after the headers. Only of a status.
    pub fn with_late_body(self, body: impl Into<Bytes>, late: Duration) -> Answer {
        self.body(ResponseBody { bytes: body.into(), late, hangs: false })
    }

    /// With a body that begins like this and does not end. Only of a status.
    pub fn with_hanging_body(self, body: impl Into<Bytes>) -> Answer {
        self.body(ResponseBody { bytes: body.into(), late: Duration::ZERO, hangs: true })
    }

    fn body(mut self, set: ResponseBody) -> Answer {
        match &mut self.end {
            End::Status { body, .. } => *body = set,
            end => panic!("no body goes with {end:?}"),
        }
        self
    }

    /// Says so before the request's body was read, and reads none of it. Nothing is recorded but the headers. Only of a
    /// status, and not of one that is chosen by a look at the request.
    pub fn unread(mut self) -> Answer {
        match &mut self.end {
            End::Status { unread, .. } => *unread = true,
            end => panic!("{end:?} says nothing"),
        }
        self
    }

    /// Waits so long first. What is committed is committed before that.
    pub fn after(self, pause: Duration) -> Answer {
        Answer { pause, ..self }
    }

    /// Commits or not, whatever it says.
    pub fn committing(self, commits: bool) -> Answer {
        Answer { commits, ..self }
    }
}

/// One request.
#[derive(Debug, Clone)]
pub struct Posted {
    /// The method.
    pub method: String,
    /// Path and query; through a proxy, the whole URL.
    pub uri: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The body as it was sent.
    pub body: Bytes,
    /// What the client showed, in DER, where it had to show something.
    pub client_certificate: Option<Vec<u8>>,
    /// Whether the records were committed.
    pub committed: bool,
}

impl Posted {
    /// The value of this header; empty if it is not there or not text.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body, unpacked as `content-encoding` says.
    pub fn unpacked(&self) -> Vec<u8> {
        let mut unpacked = Vec::new();
        match self.header("content-encoding") {
            "" => unpacked.extend_from_slice(&self.body),
            "gzip" => drop(flate2::read::GzDecoder::new(&self.body[..]).read_to_end(&mut unpacked).unwrap()),
            "zstd" => unpacked = zstd::decode_all(&self.body[..]).unwrap(),
            other => panic!("content-encoding {other}"),
        }
        unpacked
    }

    /// The values of the body, which is a JSON array.
    pub fn values(&self) -> Vec<Value> {
        serde_json::from_slice(&self.unpacked()).expect("the body is a JSON array")
    }
}

/// What is said when nothing else is next.
enum Then {
    Always(Answer),
    By(Box<dyn Fn(&Posted) -> Answer + Send + Sync>),
}

/// What a receiver was told, and what it has recorded.
pub(crate) struct Script {
    state: Mutex<State>,
    count: watch::Sender<usize>,
}

struct State {
    next: VecDeque<Answer>,
    then: Then,
    requests: Vec<Posted>,
    connections: usize,
}

impl Default for Script {
    fn default() -> Self {
        let then = Then::Always(Answer::status(204));
        let state = State { next: VecDeque::new(), then, requests: Vec::new(), connections: 0 };
        Script { state: Mutex::new(state), count: watch::Sender::new(0) }
    }
}

impl Script {
    pub(crate) fn answer(&self, answer: Answer) {
        self.state.lock().unwrap().then = Then::Always(answer);
    }

    pub(crate) fn answer_by(&self, answer: impl Fn(&Posted) -> Answer + Send + Sync + 'static) {
        self.state.lock().unwrap().then = Then::By(Box::new(answer));
    }

    pub(crate) fn answer_next(&self, answers: impl IntoIterator<Item = Answer>) {
        self.state.lock().unwrap().next.extend(answers);
    }

    pub(crate) fn requests(&self) -> Vec<Posted> {
        self.state.lock().unwrap().requests.clone()
    }

    pub(crate) async fn wait_for(&self, count: usize) {
        // The sender is in here: the channel does not close.
        let _ = self.count.subscribe().wait_for(|there| *there >= count).await;
    }

    pub(crate) fn connected(&self) {
        self.state.lock().unwrap().connections += 1;
    }

    pub(crate) fn connections(&self) -> usize {
        self.state.lock().unwrap().connections
    }

    /// The answer, where it comes before the body is read.
    pub(crate) fn answer_unread(&self, headers_only: &Posted) -> Option<Answer> {
        let is_unread = |answer: &Answer| matches!(answer.end, End::Status { unread: true, .. });
        let answer = {
            let mut state = self.state.lock().unwrap();
            match (state.next.front(), &state.then) {
                (Some(next), _) if is_unread(next) => state.next.pop_front(),
                (None, Then::Always(answer)) if is_unread(answer) => Some(answer.clone()),
                _ => None,
            }
        }?;
        self.record(headers_only.clone());
        Some(answer)
    }

    /// Decides about a whole request, commits it or not, and records it.
    pub(crate) fn answer_read(&self, mut posted: Posted) -> Answer {
        let answer = {
            let mut state = self.state.lock().unwrap();
            match (state.next.pop_front(), &state.then) {
                (Some(next), _) => next,
                (None, Then::Always(answer)) => answer.clone(),
                (None, Then::By(answer)) => answer(&posted),
            }
        };
        posted.committed = answer.commits;
        self.record(posted);
        answer
    }

    fn record(&self, posted: Posted) {
        self.state.lock().unwrap().requests.push(posted);
        self.count.send_modify(|count| *count += 1);
    }
}
