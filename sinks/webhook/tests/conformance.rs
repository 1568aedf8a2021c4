//! The webhook passes the suite of all sinks, against a web server that commits what it takes.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use kubetide_sink::{
    Record, Sink,
    conformance::{self, Bench, Kept, Promises, Repeats},
    sample,
};
use kubetide_sink_webhook::WebhookSink;
use kubetide_test_env::{Answer, Posted, WebhookReceiver};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use standardwebhooks::Webhook;
use tempfile::TempDir;

const SECRETS: [&str; 2] = ["whsec_b2xkIHNlY3JldCBvbGQgc2VjcmV0IG9sZCBzZWNyZXQ=", "whsec_bmV3IHNlY3JldCBuZXcgc2VjcmV0"];
const TOKENS: [&str; 2] = ["t0k3n-0ld", "t0k3n-n3w"];

/// What the receiver takes.
struct Rules {
    poison: HashSet<u64>,
    limit: usize,
    pause: Duration,
    is_gone: bool,
    /// Which of the credentials.
    credential: usize,
}

struct WebhookBench {
    receiver: WebhookReceiver,
    rules: Arc<Mutex<Rules>>,
    files: TempDir,
}

impl WebhookBench {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let rules =
            Rules { poison: HashSet::new(), limit: usize::MAX, pause: Duration::ZERO, is_gone: false, credential: 0 };
        let rules = Arc::new(Mutex::new(rules));
        let receiver = WebhookReceiver::start().unwrap();
        let asked = rules.clone();
        receiver.answer_by(move |posted| asked.lock().unwrap().answer(posted));
        let bench = Self { receiver, rules, files: tempfile::tempdir().unwrap() };
        bench.put(0);
        bench
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// Puts these credentials where the sink reads them.
    fn put(&self, credential: usize) {
        std::fs::write(self.file("secret"), SECRETS[credential]).unwrap();
        std::fs::write(self.file("token"), TOKENS[credential]).unwrap();
    }
}

impl Rules {
    fn answer(&self, posted: &Posted) -> Answer {
        let is_signed =
            || Webhook::new(SECRETS[self.credential]).unwrap().verify(&posted.body, &posted.headers).is_ok();
        let status = if self.is_gone {
            404
        } else if posted.header("authorization") != format!("Bearer {}", TOKENS[self.credential]) || !is_signed() {
            401
        } else if posted.body.len() > self.limit {
            413
        } else if records(posted).iter().any(|record| self.poison.contains(&seq(record))) {
            422
        } else {
            204
        };
        Answer::status(status).after(self.pause)
    }
}

fn records(posted: &Posted) -> Vec<Box<RawValue>> {
    serde_json::from_slice(&posted.body).unwrap()
}

fn seq(record: &RawValue) -> u64 {
    #[derive(Deserialize)]
    struct Line {
        log: Place,
    }
    #[derive(Deserialize)]
    struct Place {
        seq: u64,
    }
    serde_json::from_str::<Line>(record.get()).unwrap().log.seq
}

#[async_trait(?Send)]
impl Bench for WebhookBench {
    fn promises(&self) -> Promises {
        Promises { exactly_once: false, repeats: Repeats::OneBatch }
    }

    fn secrets(&self) -> Vec<String> {
        SECRETS.into_iter().chain(TOKENS).map(str::to_owned).collect()
    }

    async fn open(&mut self) -> Box<dyn Sink> {
        let config = json!({
            "url": self.receiver.url(),
            "secret": {"file": self.file("secret")},
            "auth": {"bearer": {"file": self.file("token")}},
        });
        Box::new(WebhookSink::open(&serde_json::from_value(config).unwrap(), sample::terms("hook")).unwrap())
    }

    async fn kept(&mut self) -> Vec<Kept> {
        let requests = self.receiver.requests();
        let committed = requests.iter().filter(|posted| posted.committed).flat_map(records);
        committed.map(|record| Kept { lane: 0, record: record.get().as_bytes().to_vec() }).collect()
    }

    async fn stop(&mut self) {
        self.receiver.stop().await;
    }

    async fn start(&mut self) {
        self.receiver.start_again().unwrap();
    }

    async fn slow(&mut self, is_slow: bool) {
        // A thousandth of the time that the sink allows by default would show as well.
        self.rules.lock().unwrap().pause = if is_slow { Duration::from_millis(700) } else { Duration::ZERO };
    }

    async fn poison(&mut self, record: Record) -> Record {
        self.rules.lock().unwrap().poison.insert(record.seq);
        record
    }

    async fn limit(&mut self, bytes: usize) {
        self.rules.lock().unwrap().limit = bytes;
    }

    async fn shut(&mut self) {
        self.rules.lock().unwrap().is_gone = true;
    }

    async fn mend(&mut self) {
        self.rules.lock().unwrap().is_gone = false;
    }

    async fn rotate(&mut self) {
        self.rules.lock().unwrap().credential = 1;
    }

    async fn hand_over(&mut self) {
        self.put(1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_webhook_passes_every_case() {
    let report = conformance::run_all(async |_| WebhookBench::new()).await;
    println!("{report}");
    assert_eq!(report.findings().count(), 0, "{report}");
}
