//! Kafka passes the suite of all sinks, at least once and exactly once, on a real broker.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests fail by panicking, and say what they have seen")]

mod real_kafka;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use kubetide_sink::{
    Record, Sink, Terms,
    conformance::{self, Bench, Case, Kept, Promises, Repeats},
    sample,
};
use kubetide_sink_kafka::KafkaSink;
use kubetide_test_env::{Door, Kafka};
use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
};
use real_kafka::{SOON, config, make_topic, read, set_topic};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::JoinHandle;

const PARTITIONS: i32 = 3;

const USER: &str = "kubetide";
const PASSWORDS: [&str; 2] = ["0pen-sesame", "sw0rdfish"];

/// Halted for so long in each period, a broker is slow.
const HALTED: Duration = Duration::from_millis(300);
const AT_WORK: Duration = Duration::from_millis(30);

struct KafkaBench {
    kafka: Arc<Kafka>,
    topic: String,
    exactly_once: bool,
    /// Where the sink reads its password, where it goes through the guarded door.
    door: Option<TempDir>,
    /// Halts the broker again and again.
    brake: Option<JoinHandle<()>>,
    is_missing: bool,
}

impl KafkaBench {
    async fn new(kafka: &Arc<Kafka>, case: Case, exactly_once: bool) -> Self {
        let topic = kafka.topic(case.name());
        let door = (case == Case::CredentialRotation).then(|| tempfile::tempdir().unwrap());
        let is_missing = case == Case::Hold;
        let bench = Self { kafka: kafka.clone(), topic, exactly_once, door, brake: None, is_missing };
        if !is_missing {
            bench.make_topic().await;
        }
        make_topic(&kafka.bootstrap(), &bench.cursors(), 1, &[("cleanup.policy", "compact")]).await;
        if bench.door.is_some() {
            bench.put(PASSWORDS[0]);
        }
        bench
    }

    fn cursors(&self) -> String {
        format!("{}-cursors", self.topic)
    }

    /// With room for an object of 1.5 MiB.
    async fn make_topic(&self) {
        make_topic(&self.kafka.bootstrap(), &self.topic, PARTITIONS, &[("max.message.bytes", "4194304")]).await;
    }

    /// A transaction counts as soon as the coordinator has noted it; its marks come to the topic a moment later, and only then are its
    /// messages seen.
    async fn until_marked(&self) {
        let (bootstrap, topic) = (self.kafka.bootstrap(), self.topic.clone());
        let marked = tokio::task::spawn_blocking(move || {
            let reader = |isolation: &str| -> BaseConsumer {
                let mut client = ClientConfig::new();
                client.set("bootstrap.servers", &bootstrap).set("isolation.level", isolation);
                client.create().unwrap()
            };
            let (all, committed) = (reader("read_uncommitted"), reader("read_committed"));
            for partition in 0..PARTITIONS {
                // A broker that was started just now may not know yet that it leads.
                let end = |of: &BaseConsumer| of.fetch_watermarks(&topic, partition, SOON).ok().map(|ends| ends.1);
                let began = Instant::now();
                while end(&all).is_none_or(|all| end(&committed) != Some(all)) {
                    assert!(began.elapsed() < SOON, "a transaction stays open");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        marked.await.unwrap();
    }

    fn file(&self) -> Option<PathBuf> {
        self.door.as_ref().map(|directory| directory.path().join("password"))
    }

    /// Puts the password where the sink reads it.
    fn put(&self, password: &str) {
        std::fs::write(self.file().unwrap(), password).unwrap();
    }
}

#[async_trait(?Send)]
impl Bench for KafkaBench {
    fn promises(&self) -> Promises {
        let repeats = if self.exactly_once { Repeats::Nothing } else { Repeats::OneBatch };
        Promises { exactly_once: self.exactly_once, repeats }
    }

    fn secrets(&self) -> Vec<String> {
        PASSWORDS.map(str::to_owned).into()
    }

    async fn open(&mut self) -> Box<dyn Sink> {
        let guard = self.kafka.guard();
        let mut more = json!({"create_topics": null, "cursor_topic": self.cursors()});
        let mut bootstrap = self.kafka.bootstrap();
        if let Some(file) = self.file() {
            bootstrap = guard.bootstrap();
            more["tls"] = json!({"ca": guard.ca()});
            more["sasl"] = json!({"mechanism": "SCRAM-SHA-512", "username": USER, "password": {"file": file}});
        }
        let terms = Terms { exactly_once: self.exactly_once, ..sample::terms(&self.topic) };
        Box::new(KafkaSink::open(&config(&bootstrap, &self.topic, more), terms).unwrap())
    }

    async fn kept(&mut self) -> Vec<Kept> {
        if self.is_missing {
            return Vec::new();
        }
        if self.exactly_once {
            self.until_marked().await;
        }
        let all = read(&self.kafka.bootstrap(), &self.topic).await;
        let kept = |got: real_kafka::Got| Kept {
            lane: usize::try_from(got.partition).unwrap(),
            record: got.value.unwrap().into_bytes(),
        };
        all.into_iter().map(kept).collect()
    }

    async fn stop(&mut self) {
        self.kafka.stop();
    }

    async fn start(&mut self) {
        self.kafka.start_again().await.unwrap();
    }

    async fn slow(&mut self, is_slow: bool) {
        if let Some(brake) = self.brake.take() {
            brake.abort();
            let _ = brake.await;
            self.kafka.halt(false).unwrap();
        }
        let kafka = self.kafka.clone();
        self.brake = is_slow.then(|| {
            tokio::spawn(async move {
                loop {
                    for (is_halted, long) in [(true, HALTED), (false, AT_WORK)] {
                        kafka.halt(is_halted).unwrap();
                        tokio::time::sleep(long).await;
                    }
                }
            })
        });
    }

    async fn poison(&mut self, mut record: Record) -> Record {
        // A broker takes no message that is of tomorrow.
        record.observed_at = "2100-01-01T00:00:00Z".parse().unwrap();
        record
    }

    async fn limit(&mut self, bytes: usize) {
        set_topic(&self.kafka.bootstrap(), &self.topic, "max.message.bytes", &bytes.to_string()).await;
    }

    /// The topic is missing since the beginning.
    async fn shut(&mut self) {
        assert!(self.is_missing);
    }

    async fn mend(&mut self) {
        self.make_topic().await;
        self.is_missing = false;
    }

    async fn rotate(&mut self) {
        self.kafka.set_password(USER, PASSWORDS[1]).await.unwrap();
        // Who is connected is asked again.
        self.kafka.restart().await.unwrap();
    }

    async fn hand_over(&mut self) {
        self.put(PASSWORDS[1]);
    }
}

async fn passes_every_case(exactly_once: bool) {
    let door = Door::Password { user: USER.into(), password: PASSWORDS[0].into() };
    let kafka = Arc::new(Kafka::start_guarded(door).await.unwrap());
    let report = conformance::run_all(async |case| KafkaBench::new(&kafka, case, exactly_once).await).await;
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
