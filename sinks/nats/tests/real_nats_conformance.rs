//! NATS passes the suite of all sinks, at least once and exactly once, on a real nats-server.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and say what they have seen")]

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_nats::{ConnectOptions, jetstream};
use async_trait::async_trait;
use futures::StreamExt as _;
use kubetide_sink::{
    Record, Sink, Terms,
    conformance::{self, Bench, Case, Kept, Promises, Repeats},
    sample,
};
use kubetide_sink_nats::NatsSink;
use kubetide_test_env::{Mode, Nats, Proxy};
use serde_json::json;
use tempfile::TempDir;

const PASSWORDS: [&str; 2] = ["0pen-sesame", "sw0rdfish"];

/// Room for an object of 1.5 MiB.
const ROOMY: &str = "max_payload: 4MB";

struct NatsBench {
    nats: Arc<Nats>,
    /// The way to it, where it is to be slow.
    proxy: Option<Proxy>,
    exactly_once: bool,
    stream: String,
    /// Where the sink reads its password, and who is let in now, where anybody is asked.
    door: Option<(TempDir, &'static str)>,
}

impl NatsBench {
    async fn new(shared: &Arc<Nats>, case: Case, exactly_once: bool) -> Self {
        let (nats, door) = match case {
            Case::CredentialRotation => {
                let nats = Nats::start_with_tls(false).await.unwrap();
                nats.configure(&letting_in(PASSWORDS[0])).unwrap();
                nats.restart().await.unwrap();
                (Arc::new(nats), Some((tempfile::tempdir().unwrap(), PASSWORDS[0])))
            }
            _ => (shared.clone(), None),
        };
        let proxy = (case == Case::SlowReceiver).then(|| Proxy::start(nats.address()).unwrap());
        let bench = Self { stream: nats.stream(case.name()), nats, proxy, exactly_once, door };
        if bench.door.is_some() {
            bench.put(PASSWORDS[0]);
        }
        bench.make_stream().await;
        bench
    }

    fn file(&self) -> Option<PathBuf> {
        self.door.as_ref().map(|(directory, _)| directory.path().join("password"))
    }

    /// Puts the password where the sink reads it.
    fn put(&self, password: &str) {
        std::fs::write(self.file().unwrap(), password).unwrap();
    }

    /// The server as its operator sees it.
    async fn jetstream(&self) -> jetstream::Context {
        let options = match &self.door {
            Some((_, password)) => {
                let options = ConnectOptions::with_user_and_password("me".into(), (*password).into());
                options.add_root_certificates(self.nats.tls().ca.clone()).require_tls(true)
            }
            None => ConnectOptions::new(),
        };
        jetstream::new(options.connect(self.nats.url()).await.unwrap())
    }

    async fn make_stream(&self) {
        let config = jetstream::stream::Config {
            name: self.stream.clone(),
            subjects: vec![format!("{}.>", self.stream), format!("kubetide.sample._cursor.{}", self.stream)],
            allow_atomic_publish: self.exactly_once,
            ..Default::default()
        };
        self.jetstream().await.create_stream(config).await.unwrap();
    }
}

fn letting_in(password: &str) -> String {
    format!("{ROOMY}\nauthorization {{ user: me, password: {password} }}")
}

#[async_trait(?Send)]
impl Bench for NatsBench {
    fn promises(&self) -> Promises {
        // The server knows what it has by its id, for two minutes.
        Promises { exactly_once: self.exactly_once, repeats: Repeats::Nothing }
    }

    fn secrets(&self) -> Vec<String> {
        PASSWORDS.map(str::to_owned).into()
    }

    async fn open(&mut self) -> Box<dyn Sink> {
        let server = self.proxy.as_ref().map_or(self.nats.url(), |proxy| format!("nats://{}", proxy.address()));
        let mut config = json!({
            "servers": [server],
            "stream": self.stream,
            "subject": format!("{}.{{cluster}}.{{group}}.{{resource}}.{{namespace}}.{{name}}", self.stream),
        });
        if let Some(file) = self.file() {
            config["credentials"] = json!({"user": "me", "password": {"file": file}});
            config["tls"] = json!({"ca": self.nats.tls().ca});
        }
        let terms = Terms { exactly_once: self.exactly_once, ..sample::terms(&self.stream) };
        Box::new(NatsSink::open(&serde_json::from_value(config).unwrap(), terms).unwrap())
    }

    async fn kept(&mut self) -> Vec<Kept> {
        let stream = self.jetstream().await.get_stream(&self.stream).await.unwrap();
        let count = usize::try_from(stream.cached_info().state.messages).unwrap();
        let consumer = stream.create_consumer(jetstream::consumer::pull::OrderedConfig::default()).await.unwrap();
        let messages = consumer.messages().await.unwrap().take(count).map(Result::unwrap);
        let is_record = |message: &jetstream::Message| {
            // Cursors have no place in the log.
            std::future::ready(message.headers.as_ref().is_some_and(|headers| headers.get("kubetide-seq").is_some()))
        };
        let kept = messages.filter(is_record).map(|message| Kept { lane: 0, record: message.payload.to_vec() });
        tokio::time::timeout(self.patience(), kept.collect()).await.unwrap()
    }

    async fn stop(&mut self) {
        self.nats.stop();
    }

    async fn start(&mut self) {
        self.nats.start_again().await.unwrap();
    }

    async fn slow(&mut self, is_slow: bool) {
        let mode = if is_slow { Mode::Delay(Duration::from_millis(100)) } else { Mode::Pass };
        self.proxy.as_ref().unwrap().set(mode);
    }

    async fn poison(&mut self, mut record: Record) -> Record {
        // More headers than JetStream stores with a message: the name of the stream is one.
        Arc::make_mut(&mut record.stream).namespace = Some("n".repeat(70_000));
        record
    }

    async fn limit(&mut self, bytes: usize) {
        let jetstream = self.jetstream().await;
        let mut config = jetstream.get_stream(&self.stream).await.unwrap().cached_info().config.clone();
        config.max_message_size = i32::try_from(bytes).unwrap();
        jetstream.update_stream(config).await.unwrap();
    }

    async fn shut(&mut self) {
        self.jetstream().await.delete_stream(&self.stream).await.unwrap();
    }

    async fn mend(&mut self) {
        self.make_stream().await;
    }

    async fn rotate(&mut self) {
        self.nats.configure(&letting_in(PASSWORDS[1])).unwrap();
        self.nats.restart().await.unwrap();
        self.door.as_mut().unwrap().1 = PASSWORDS[1];
    }

    async fn hand_over(&mut self) {
        self.put(PASSWORDS[1]);
    }
}

async fn passes_every_case(exactly_once: bool) {
    let nats = Arc::new(Nats::start_with(ROOMY).await.unwrap());
    let report = conformance::run_all(async |case| NatsBench::new(&nats, case, exactly_once).await).await;
    println!("{report}");
    assert_eq!(report.findings().count(), 0, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_least_once_passes_every_case() {
    passes_every_case(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_once_passes_every_case() {
    passes_every_case(true).await;
}
