//! A log, the loop of one sink over it, and a receiver that answers as a test says.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this module")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide::{
    backoff::Backoff,
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, Cursor, CursorFile, Entry, Fingerprint, Setup},
    clock::Clock,
    config::{Oversize, Start, WhenBehind},
    delivery::{DeadLetters, DeliveryError, Filter, Limits, Orders, Policy, Pump, Refusals, dead_letter_files},
    vitals::Vitals,
};
use kubetide_sink::{Batch, Letter, Record, Sink, SinkError, sample};
use serde_json::Value;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub const PATIENCE: Duration = Duration::from_secs(30);

pub type Answer = Result<(), SinkError>;
pub type Judge = Box<dyn FnMut(&Batch, Option<&Bytes>) -> Answer + Send>;

/// A receiver that answers as the test says.
pub struct Judged {
    pub judge: Judge,
    pub kept: Option<Arc<Mutex<Kept>>>,
    pub aside: Option<Arc<Mutex<Aside>>>,
    pub asked: watch::Sender<usize>,
}

/// Where a receiver keeps dead letters.
#[derive(Default)]
pub struct Aside {
    pub letters: Vec<Letter>,
    /// What it says to the next ones instead of taking them.
    pub refuses: VecDeque<SinkError>,
}

/// What a receiver has that commits records and cursor together.
#[derive(Default)]
pub struct Kept {
    pub records: Vec<Record>,
    pub cursor: Option<Bytes>,
    pub away: bool,
}

#[async_trait]
impl Sink for Judged {
    async fn deliver(&mut self, batch: &Batch, cursor: Option<&Bytes>) -> Answer {
        let answer = (self.judge)(batch, cursor);
        self.asked.send_modify(|asked| *asked += 1);
        match answer {
            // The test's word for a crash.
            Err(SinkError { message, .. }) if message == "hang" => std::future::pending().await,
            answer => answer,
        }
    }

    async fn restore(&mut self) -> Result<Option<Bytes>, SinkError> {
        self.asked.send_modify(|asked| *asked += 1);
        let Some(kept) = &self.kept else { return Ok(None) };
        let kept = kept.lock().unwrap();
        if kept.away { Err(SinkError::retry("away")) } else { Ok(kept.cursor.clone()) }
    }

    async fn set_aside(&mut self, letter: &Letter, cursor: Option<&Bytes>) -> Answer {
        self.asked.send_modify(|asked| *asked += 1);
        let aside = self.aside.as_ref().expect("letters are not kept in files");
        let refused = aside.lock().unwrap().refuses.pop_front();
        let says = refused.as_ref().map(|refused| refused.message.clone()).unwrap_or_default();
        match refused {
            Some(_) if says == "hang" => return std::future::pending().await,
            Some(refused) if says != "hang behind" => return Err(refused),
            _ => {}
        }
        aside.lock().unwrap().letters.push(letter.clone());
        if let Some(kept) = &self.kept {
            kept.lock().unwrap().cursor = Some(cursor.expect("a letter goes with the cursor").clone());
        }
        if says.is_empty() { Ok(()) } else { std::future::pending().await }
    }
}

pub struct Delivery {
    pub asked: watch::Receiver<usize>,
    pub orders: Orders,
    pub drain: CancellationToken,
    pub task: JoinHandle<Result<(), DeliveryError>>,
}

pub struct Terms<'a> {
    pub judge: Judge,
    pub kept: Option<Arc<Mutex<Kept>>>,
    pub oversize: Oversize,
    pub filter: Option<&'a str>,
    pub max_records: usize,
    pub aside: Option<Arc<Mutex<Aside>>>,
}

impl Default for Terms<'_> {
    fn default() -> Self {
        Self {
            judge: Box::new(|_, _| Ok(())),
            kept: None,
            oversize: Oversize::Truncate,
            filter: None,
            max_records: 100,
            aside: None,
        }
    }
}

pub fn start(log: &Changelog, directory: &Path, terms: Terms<'_>) -> Delivery {
    let (asked, seen) = watch::channel(0);
    let (orders, ordered) = Orders::new();
    let drain = CancellationToken::new();
    let exactly_once = terms.kept.is_some();
    let pump = Pump {
        name: "out".into(),
        vitals: Vitals::new().sink("out"),
        sink: Box::new(Judged { judge: terms.judge, kept: terms.kept, aside: terms.aside.clone(), asked }),
        cluster: sample::stream("pods", "Pod").cluster,
        view: log.view(),
        cursor: attach(log),
        limits: Limits { max_records: terms.max_records, max_bytes: 1 << 20, max_wait: Duration::ZERO },
        backoff: Backoff::new(Duration::from_millis(1)),
        longest_pause: Duration::from_millis(2),
        streams: Vec::new(),
        policy: Policy {
            filter: terms.filter.map(|text| Filter::compile(text).unwrap()),
            oversize: terms.oversize,
            letters: match terms.aside {
                Some(_) => DeadLetters::at_receiver("out"),
                None => DeadLetters::new(directory.join("dead-letter"), "out"),
            },
            exactly_once,
        },
        refusals: Refusals::default(),
        orders: ordered,
        clock: Clock::system(),
        drain: drain.clone(),
    };
    Delivery { asked: seen, orders, drain, task: tokio::spawn(pump.run()) }
}

impl Delivery {
    pub async fn asked(&mut self, times: usize) {
        let wait = self.asked.wait_for(|asked| *asked >= times);
        tokio::time::timeout(PATIENCE, wait).await.expect("the sink is asked in time").unwrap();
    }

    pub async fn drained(self) {
        self.drain.cancel();
        self.task.await.unwrap().unwrap();
    }

    pub async fn killed(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

pub fn open(directory: &Path) -> Changelog {
    Changelog::open(&directory.join("data"), Setup::of("c-1"), Clock::system(), &Vitals::new()).unwrap()
}

pub fn attach(log: &Changelog) -> CursorFile {
    log.attach("out", Start::Earliest, WhenBehind::Resync).unwrap()
}

pub fn cursor(directory: &Path, log: &Changelog) -> Cursor {
    CursorFile::open(&directory.join("data/cursors"), "out", log.log_id()).unwrap().unwrap().cursor().clone()
}

/// One version of one of seven objects.
fn observed(version: u64, object: u64) -> Observed {
    Observed {
        key: ObjectKey { namespace: "n".into(), name: format!("pod-{object}") },
        uid: format!("u-{object}"),
        version: ResourceVersion::new(version.to_string()),
        generation: None,
        managed: Managed::default(),
        writers: Writers::default(),
        object: Ok(Bytes::from(format!("{{\"version\":{version}}}"))),
    }
}

pub async fn append(log: &Changelog, versions: std::ops::RangeInclusive<u64>) {
    let appender = log.appender();
    let stream = Arc::new(sample::stream("pods", "Pod"));
    for version in versions {
        appender.append(&stream, Entry::Present(observed(version, version % 7))).await.unwrap();
    }
    appender.flush().await.unwrap();
}

/// The stream is known from its beginning on: two control records.
pub async fn listed(log: &Changelog) {
    let appender = log.appender();
    let stream = Arc::new(sample::stream("pods", "Pod"));
    let needed = Entry::ListNeeded { reason: None, fingerprint: Fingerprint::default(), asked_as: "pods".into() };
    for entry in [needed, Entry::ListStarted(1), Entry::ListFinished(ResourceVersion::new("1"))] {
        appender.append(&stream, entry).await.unwrap();
    }
    appender.flush().await.unwrap();
}

pub async fn delete(log: &Changelog, version: u64, object: u64) {
    let appender = log.appender();
    let stream = Arc::new(sample::stream("pods", "Pod"));
    appender.append(&stream, Entry::Deleted(observed(version, object))).await.unwrap();
    appender.flush().await.unwrap();
}

pub fn seqs(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.seq).collect()
}

pub fn letters(directory: &Path) -> Vec<Value> {
    let files = dead_letter_files(&directory.join("dead-letter")).unwrap();
    let text: String = files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A judge that notes what it takes.
pub fn noting(taken: &Arc<Mutex<Vec<Record>>>, mut judge: impl FnMut(&Batch) -> Answer + Send + 'static) -> Judge {
    let taken = taken.clone();
    Box::new(move |batch, _| {
        let answer = judge(batch);
        let durable = answer.as_ref().err().map_or(batch.records.len(), |error| error.durable);
        taken.lock().unwrap().extend_from_slice(&batch.records[..durable]);
        answer
    })
}

pub async fn until_acknowledged(directory: &Path, log: &Changelog, seq: u64) {
    let since = std::time::Instant::now();
    while cursor(directory, log).acknowledged < seq {
        assert!(since.elapsed() < PATIENCE, "{seq} is not acknowledged: {:?}", cursor(directory, log));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A judge that commits, and does what `fate` says of each batch.
pub fn committing(kept: &Arc<Mutex<Kept>>, mut fate: impl FnMut(usize) -> Fate + Send + 'static) -> Judge {
    let kept = kept.clone();
    let mut turn = 0;
    Box::new(move |batch, cursor| {
        turn += 1;
        let fate = fate(turn);
        if fate == Fate::Refuse {
            return Err(SinkError::retry("away"));
        }
        if fate != Fate::DieBefore {
            let mut kept = kept.lock().unwrap();
            kept.records.extend_from_slice(&batch.records);
            kept.cursor = Some(cursor.expect("records go with the cursor").clone());
        }
        if fate == Fate::Take { Ok(()) } else { Err(SinkError::retry("hang")) }
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Take,
    Refuse,
    DieBefore,
    DieBehind,
}
