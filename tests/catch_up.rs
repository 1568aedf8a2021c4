//! A sink that is new or was left behind is given the state of the objects: whatever happens meanwhile, what it ends up with is
//! what there is, and no object ever goes back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    num::NonZeroU64,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide::{
    backoff::Backoff,
    change::{Managed, ObjectKey, Observed, ResourceVersion, Writers},
    changelog::{Changelog, Entry, Fingerprint, Setup},
    clock::Clock,
    config::{self, Oversize, Start, WhenBehind},
    delivery::{DeadLetters, DeliveryError, Limits, Order, Orders, Policy, Pump, Refusals},
    vitals::Vitals,
};
use kubetide_sink::{Batch, Body, Control, Op, Reason, Record, Scope, Sink, SinkError, Stream, What, sample};
use proptest::prelude::*;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// The smallest log there may be: about a hundred changes fill it.
const MAX_BYTES: u64 = 1024 * 1024;
/// What was logged last is read from memory, whatever the files still have: so many changes are surely gone from there.
const FORGOTTEN_AFTER: u64 = 300;

/// A log, what is in the cluster, and a way to change both.
struct Case {
    log: Changelog,
    vitals: Vitals,
    pods: Arc<Stream>,
    version: u64,
    cluster: BTreeMap<String, (String, u64)>,
    others: Others,
}

/// A second stream, which comes and goes with the configuration, and its objects.
struct Others {
    stream: Arc<Stream>,
    objects: BTreeMap<String, Observed>,
    followed: bool,
    lists: u64,
}

impl Case {
    async fn new(directory: &Path) -> Self {
        let mut case = Self::open(directory);
        let appender = case.log.appender();
        let fingerprint = Fingerprint::default();
        for entry in [
            Entry::ListNeeded { reason: None, fingerprint, asked_as: "pods".into() },
            Entry::ListStarted(1),
            Entry::ListFinished(ResourceVersion::new("1")),
        ] {
            appender.append(&case.pods, entry).await.unwrap();
        }
        appender.flush().await.unwrap();
        case.log.all_attached();
        case.version = 1;
        case
    }

    async fn reopened(self, directory: &Path) -> Self {
        let Self { log, version, cluster, others, .. } = self;
        tokio::task::spawn_blocking(move || log.close().unwrap()).await.unwrap();
        Self { version, cluster, others, ..Self::open(directory) }
    }

    /// Opened again without the sink in the configuration: another one is there that has everything, so that what the first one would
    /// need goes.
    async fn without_the_sink(self, directory: &Path) -> Self {
        let case = self.reopened(directory).await;
        let mut other = case.log.attach("other", Start::Now, WhenBehind::Resync).unwrap();
        other.acknowledge(case.log.head()).unwrap();
        case.log.all_attached();
        // The writer looks what may go behind its first message.
        case.flush().await;
        let forgotten = async {
            while !case.log.view().has_forgotten_deletes_behind(case.log.head() - 1).unwrap() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), forgotten).await.expect("tombstones go");
        case
    }

    fn open(directory: &Path) -> Self {
        let max_bytes = NonZeroU64::new(MAX_BYTES).unwrap();
        let setup = Setup { keep: config::Log { max_bytes, ..config::Log::default() }, ..Setup::of("c-1") };
        let vitals = Vitals::new();
        let log = Changelog::open(directory, setup, Clock::system(), &vitals).unwrap();
        let pods = Arc::new(sample::stream("pods", "Pod"));
        let stream = Arc::new(sample::stream("others", "Other"));
        let others = Others { stream, objects: BTreeMap::new(), followed: false, lists: 0 };
        Self { log, vitals, pods, version: 0, cluster: BTreeMap::new(), others }
    }

    async fn append(&self, entry: Entry) {
        self.log.appender().append(&self.pods, entry).await.unwrap();
    }

    /// A new state of the object; if it is not there it is made.
    async fn write(&mut self, name: &str) {
        self.version += 1;
        let version = self.version;
        let uid = self.cluster.get(name).map_or_else(|| format!("{name}-{version}"), |(uid, _)| uid.clone());
        self.cluster.insert(name.into(), (uid.clone(), version));
        self.append(Entry::Present(observed(name, &uid, version))).await;
    }

    async fn delete(&mut self, name: &str) {
        let Some((uid, _)) = self.cluster.remove(name) else { return };
        self.version += 1;
        self.append(Entry::Deleted(observed(name, &uid, self.version))).await;
    }

    /// The same in the second stream; what happens while it is not followed nobody sees.
    async fn write_other(&mut self, name: &str) {
        self.version += 1;
        let uid =
            self.others.objects.get(name).map_or_else(|| format!("{name}-{}", self.version), |known| known.uid.clone());
        let object = observed(name, &uid, self.version);
        self.others.objects.insert(name.into(), object.clone());
        self.append_other(Entry::Present(object)).await;
    }

    async fn delete_other(&mut self, name: &str) {
        let Some(gone) = self.others.objects.remove(name) else { return };
        self.version += 1;
        self.append_other(Entry::Deleted(observed(name, &gone.uid, self.version))).await;
    }

    async fn append_other(&self, entry: Entry) {
        if self.others.followed {
            self.log.appender().append(&self.others.stream, entry).await.unwrap();
        }
    }

    async fn unfollow_others(&mut self) {
        self.append_other(Entry::Unfollowed).await;
        self.others.followed = false;
    }

    async fn follow_others(&mut self) {
        if std::mem::replace(&mut self.others.followed, true) {
            return;
        }
        let reason = (self.others.lists > 0).then_some(Reason::ConfigChanged);
        self.others.lists += 1;
        self.append_other(Entry::ListNeeded { reason, fingerprint: Fingerprint::default(), asked_as: "any".into() })
            .await;
        self.append_other(Entry::ListStarted(self.others.lists)).await;
        for object in self.others.objects.values() {
            self.append_other(Entry::Listed(object.clone())).await;
        }
        self.log.appender().append_vanished(&self.others.stream, self.others.lists).await.unwrap();
        self.append_other(Entry::ListFinished(ResourceVersion::new(self.version.to_string()))).await;
    }

    /// So many changes that the log as it is now is gone.
    async fn outgrow(&mut self) {
        let head = self.log.head();
        while self.log.view().oldest() <= head || self.log.head() < head + FORGOTTEN_AFTER {
            for name in 0..20 {
                self.write(&format!("busy-{name}")).await;
            }
            self.log.appender().flush().await.unwrap();
        }
    }

    async fn flush(&self) {
        self.log.appender().flush().await.unwrap();
    }
}

fn observed(name: &str, uid: &str, version: u64) -> Observed {
    // Little that can be compressed away.
    let mut filler = [0; 20_000];
    rand::rng().fill_bytes(&mut filler);
    let filler: String = filler.iter().map(|byte| char::from(b'a' + byte % 16)).collect();
    Observed {
        key: ObjectKey { namespace: "n".into(), name: name.into() },
        uid: uid.into(),
        version: ResourceVersion::new(version.to_string()),
        generation: None,
        managed: Managed::default(),
        writers: Writers::default(),
        object: Ok(Bytes::from(format!("{{\"version\":{version},\"filler\":\"{filler}\"}}"))),
    }
}

/// What the receiver has made of the records.
#[derive(Default)]
struct Received {
    objects: BTreeMap<String, (String, u64)>,
    newest: HashMap<String, u64>,
    seen: HashSet<(String, &'static str)>,
    controls: Vec<What>,
    ops: Vec<(Op, String)>,
    repeated: usize,
    /// Objects that were given as they are in one whole snapshot.
    snapshot: Option<HashSet<String>>,
    /// Whether history is missing, and that it is whole again was not told yet.
    broken: bool,
    /// How often it broke. The same break may be told twice if an answer is lost.
    breaks: usize,
}

impl Received {
    fn take(&mut self, record: &Record) {
        let change = match &record.body {
            Body::Control(control) => return self.control(control),
            Body::Change(change) => change,
        };
        if !self.seen.insert((record.id.to_string(), record.op())) {
            self.repeated += 1;
        }
        self.ops.push((change.op, change.name.clone()));
        let version: u64 = change.resource_version.parse().unwrap();
        let newest = self.newest.entry(change.uid.clone()).or_default();
        assert!(version >= *newest, "{} went back from {newest} to {version}", change.name);
        *newest = version;
        // A delete shows nothing: it may be of an object of that name which the receiver has never seen.
        if let Some(snapshot) = &mut self.snapshot
            && change.op != Op::Delete
        {
            snapshot.insert(change.name.clone());
        }
        match change.op {
            Op::Delete if self.objects.get(&change.name).is_some_and(|(uid, _)| *uid == change.uid) => {
                self.objects.remove(&change.name);
            }
            Op::Delete => {}
            _ => {
                self.objects.insert(change.name.clone(), (change.uid.clone(), version));
            }
        }
    }

    fn control(&mut self, Control { what, scope }: &Control) {
        match (scope, what) {
            (Scope::Sink, What::SnapshotStarted) => self.snapshot = Some(HashSet::new()),
            // What a whole snapshot does not have is gone.
            (Scope::Sink, What::SnapshotFinished { .. }) => {
                self.broken = false;
                if let Some(shown) = self.snapshot.take() {
                    self.objects.retain(|name, _| shown.contains(name));
                }
            }
            (Scope::Sink, What::ResyncFinished { .. }) => self.broken = false,
            (Scope::Sink, What::Gap { .. }) => {
                self.breaks += usize::from(!self.broken);
                self.broken = true;
            }
            _ => {}
        }
        self.controls.push(what.clone());
    }

    fn gaps(&self) -> usize {
        self.controls.iter().filter(|what| matches!(what, What::Gap { reason: Reason::SinkBehind, .. })).count()
    }
}

/// What the receiver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    Takes,
    Down,
    /// Takes the batch and the answer is lost.
    TakesAndHangs,
    /// Is down whenever a batch has the end of a catch-up.
    RefusesTheEnd,
}

fn is_end(record: &Record) -> bool {
    matches!(&record.body, Body::Control(Control { scope: Scope::Sink, what }) if matches!(what, What::ResyncFinished { .. } | What::SnapshotFinished { .. }))
}

struct Receiver {
    received: Arc<Mutex<Received>>,
    mood: watch::Receiver<Mood>,
    asked: watch::Sender<u64>,
}

#[async_trait]
impl Sink for Receiver {
    async fn deliver(&mut self, batch: &Batch, _: Option<&Bytes>) -> Result<(), SinkError> {
        let mood = match *self.mood.borrow() {
            Mood::RefusesTheEnd if batch.records.iter().any(is_end) => Mood::Down,
            Mood::RefusesTheEnd => Mood::Takes,
            mood => mood,
        };
        if mood != Mood::Down {
            let mut received = self.received.lock().unwrap();
            batch.records.iter().for_each(|record| received.take(record));
        }
        self.asked.send_modify(|asked| *asked += 1);
        match mood {
            Mood::Takes | Mood::RefusesTheEnd => Ok(()),
            Mood::Down => Err(SinkError::retry("down")),
            Mood::TakesAndHangs => std::future::pending().await,
        }
    }
}

/// A sink at work.
struct Delivery {
    mood: watch::Sender<Mood>,
    asked: watch::Receiver<u64>,
    orders: Orders,
    drain: CancellationToken,
    task: JoinHandle<Result<(), DeliveryError>>,
}

impl Delivery {
    fn start(case: &Case, received: &Arc<Mutex<Received>>, mood: Mood, start: Start, when_behind: WhenBehind) -> Self {
        let (mood, mood_seen) = watch::channel(mood);
        let (asked, asked_seen) = watch::channel(0);
        let (orders, ordered) = Orders::new();
        let drain = CancellationToken::new();
        let pump = Pump {
            name: "out".into(),
            cluster: case.pods.cluster.clone(),
            vitals: case.vitals.sink("out"),
            sink: Box::new(Receiver { received: received.clone(), mood: mood_seen, asked }),
            view: case.log.view(),
            cursor: case.log.attach("out", start, when_behind).unwrap(),
            limits: Limits { max_records: 10, max_bytes: 1 << 20, max_wait: Duration::ZERO },
            backoff: Backoff::new(Duration::from_millis(1)),
            longest_pause: Duration::from_millis(2),
            streams: Vec::new(),
            policy: Policy {
                filter: None,
                oversize: Oversize::Truncate,
                letters: DeadLetters::new("unused".into(), "out"),
                exactly_once: false,
            },
            refusals: Refusals::default(),
            orders: ordered,
            clock: Clock::system(),
            drain: drain.clone(),
        };
        case.log.all_attached();
        Self { mood, asked: asked_seen, orders, drain, task: tokio::spawn(pump.run()) }
    }

    async fn asked(&mut self, times: u64) {
        let wait = self.asked.wait_for(|asked| *asked >= times);
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the sink is asked in time").unwrap();
    }

    /// Waits until everything that is logged is acknowledged.
    async fn caught_up(&self, case: &Case) {
        case.flush().await;
        let head = case.log.head();
        let wait = async {
            loop {
                let cursors = case.log.view().cursors().unwrap();
                let (_, cursor) = cursors.iter().find(|(sink, _)| sink == "out").unwrap();
                if cursor.acknowledged >= head && cursor.errand.is_none() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the sink catches up in time");
    }

    async fn killed(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    async fn drained(self) {
        self.drain.cancel();
        self.task.await.unwrap().unwrap();
    }
}

fn received() -> Arc<Mutex<Received>> {
    Arc::default()
}

fn assert_folded(case: &Case, received: &Arc<Mutex<Received>>) {
    assert_eq!(received.lock().unwrap().objects, case.cluster);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_sink_is_given_every_object_though_the_log_no_longer_has_them() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in 0..30 {
        case.write(&format!("old-{name}")).await;
    }
    case.delete("old-3").await;
    case.outgrow().await;
    let received = received();
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    case.write("while-it-catches-up").await;
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    {
        let received = received.lock().unwrap();
        assert_eq!(received.controls.len(), 2, "{:?}", received.controls);
        assert_eq!(received.controls[0], What::SnapshotStarted);
        assert!(matches!(&received.controls[1], What::SnapshotFinished { snapshot: 49.., position: None }));
        assert_eq!(received.repeated, 0);
    }
    delivery.drained().await;
}

/// Names in some groups may be as long as a request: where the walk is cannot be noted behind such a one.
#[tokio::test(flavor = "multi_thread")]
async fn a_catch_up_gets_past_names_of_any_length() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in 0..40 {
        // At the end of the first page and the beginning of the next.
        let length = if (8..13).contains(&name) { 1_000 * (name - 6) } else { 1 };
        case.write(&format!("a-{name:02}-{}", "x".repeat(length))).await;
    }
    case.delete(&format!("a-09-{}", "x".repeat(3_000))).await;
    case.flush().await;
    let received = received();
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    assert_eq!(received.lock().unwrap().repeated, 0);
    delivery.drained().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_during_a_catch_up_comes_with_the_log_and_never_before_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in 0..50 {
        case.write(&format!("old-{name:02}")).await;
    }
    case.flush().await;
    let received = received();
    let mut delivery = Delivery::start(&case, &received, Mood::Down, Start::Snapshot, WhenBehind::Resync);
    delivery.asked(2).await;
    // The walk has not been there yet. If it told the last of these, the log would go back behind it.
    for _ in 0..3 {
        case.write("old-49").await;
    }
    case.delete("old-48").await;
    case.flush().await;
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let received = received.lock().unwrap();
    let ops: Vec<Op> = received.ops.iter().filter(|(_, name)| name == "old-49").map(|(op, _)| *op).collect();
    assert_eq!(ops, [Op::Update; 3], "all three, each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn earliest_begins_with_what_the_log_has_and_now_with_the_next_record() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    case.write("a").await;
    case.outgrow().await;
    let (earliest, oldest) = (received(), case.log.view().oldest());
    let delivery = Delivery::start(&case, &earliest, Mood::Takes, Start::Earliest, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    delivery.drained().await;
    assert_eq!(earliest.lock().unwrap().ops.len() as u64, case.log.head() + 1 - oldest);

    std::fs::remove_file(directory.path().join("cursors/out.cursor")).unwrap();
    let now = received();
    let delivery = Delivery::start(&case, &now, Mood::Takes, Start::Now, WhenBehind::Resync);
    case.write("next").await;
    delivery.caught_up(&case).await;
    assert_eq!(now.lock().unwrap().ops, [(Op::Create, "next".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_was_left_behind_gets_one_gap_the_deletes_it_missed_and_only_what_has_changed() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in ["unchanged", "changed", "gone", "replaced"] {
        case.write(name).await;
    }
    let received = received();
    let mut delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    delivery.mood.send_replace(Mood::Down);
    case.write("changed").await;
    delivery.asked(5).await;
    case.delete("gone").await;
    case.delete("replaced").await;
    case.write("replaced").await;
    case.write("new").await;
    case.outgrow().await;
    // It is still down when even more is gone.
    case.outgrow().await;
    received.lock().unwrap().ops.clear();
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let received = received.lock().unwrap();
    assert_eq!(received.gaps(), 1, "{:?}", received.controls);
    let Some(What::ResyncFinished { counts, position: None }) = received.controls.last() else {
        panic!("{:?}", received.controls)
    };
    // The objects of outgrow, and those above. The batch that was under way was the first thing it took.
    assert_eq!((counts.create, counts.update, counts.delete), (22, 0, 2), "{counts:?}");
    assert!(!received.ops.iter().any(|(_, name)| name == "unchanged"));
    assert!(received.ops.contains(&(Op::Delete, "gone".into())));
    let replaced: Vec<_> = received.ops.iter().filter(|(_, name)| name == "replaced").map(|(op, _)| *op).collect();
    assert_eq!(replaced, [Op::Delete, Op::Snapshot]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_down_at_the_end_of_a_catch_up_is_told_of_one_gap_however_long_it_takes() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    case.write("gone").await;
    let received = received();
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    delivery.drained().await;
    case.outgrow().await;
    let mut delivery = Delivery::start(&case, &received, Mood::RefusesTheEnd, Start::Snapshot, WhenBehind::Resync);
    // More than there are pages.
    delivery.asked(10).await;
    case.delete("gone").await;
    case.outgrow().await;
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let received = received.lock().unwrap();
    assert_eq!(received.gaps(), 1, "{:?}", received.controls);
    assert!(matches!(received.controls.last(), Some(What::ResyncFinished { .. })), "{:?}", received.controls);
}

/// Two streams go while it is down: one by the configuration, whose objects stay as they were told last, and one with its resource.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_was_left_behind_is_told_of_the_streams_that_are_gone_meanwhile() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    let others = ["left", "gone"].map(|kind| Arc::new(sample::stream(&format!("{kind}s"), kind)));
    let appender = case.log.appender();
    let versions = (1_000_000..).step_by(10);
    for (stream, version) in others.iter().zip(versions) {
        for entry in [
            Entry::ListNeeded { reason: None, fingerprint: Fingerprint::default(), asked_as: "any".into() },
            Entry::ListFinished(ResourceVersion::new(version.to_string())),
            Entry::Present(observed(&stream.kind, &stream.kind, version + 1)),
        ] {
            appender.append(stream, entry).await.unwrap();
        }
    }
    let received = received();
    let mut delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    delivery.mood.send_replace(Mood::Down);
    case.write("any").await;
    delivery.asked(4).await;
    appender.append(&others[0], Entry::Present(observed("left", "left", 1_000_005))).await.unwrap();
    appender.append(&others[0], Entry::Unfollowed).await.unwrap();
    appender.append_vanished(&others[1], 1).await.unwrap();
    appender.append(&others[1], Entry::Gone).await.unwrap();
    case.outgrow().await;
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    // What was told of it last is kept, as by a sink that was not behind.
    case.cluster.insert("left".into(), ("left".into(), 1_000_005));
    assert_folded(&case, &received);
    let told = std::mem::take(&mut received.lock().unwrap().controls);
    let [.., What::StreamRemoved { deleted: 0 }, What::StreamRemoved { deleted: 1 }, What::ResyncFinished { .. }] =
        &told[..]
    else {
        panic!("{told:?}")
    };
    // A sink that begins now never knew of them.
    delivery.orders.give(Order::Resnapshot).await.unwrap();
    delivery.caught_up(&case).await;
    case.cluster.remove("left");
    assert_folded(&case, &received);
    assert!(matches!(received.lock().unwrap().controls[..], [What::SnapshotStarted, What::SnapshotFinished { .. }]));
}

/// Whoever was given everything while a stream was away was given nothing of it, so that all of it is told when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_was_given_everything_while_a_stream_was_away_gets_all_of_it_when_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let case = Case::new(directory.path()).await;
    let away = Arc::new(sample::stream("aways", "Away"));
    let objects = [observed("same", "same", 11), observed("changed", "changed", 12), observed("gone", "gone", 13)];
    let appender = case.log.appender();
    let needed = |reason| Entry::ListNeeded { reason, fingerprint: Fingerprint::default(), asked_as: "any".into() };
    appender.append(&away, needed(None)).await.unwrap();
    appender.append(&away, Entry::ListFinished(ResourceVersion::new("10"))).await.unwrap();
    for object in &objects {
        appender.append(&away, Entry::Present(object.clone())).await.unwrap();
    }
    let (told, given) = (received(), received());
    let delivery = Delivery::start(&case, &told, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    delivery.drained().await;
    appender.append(&away, Entry::Unfollowed).await.unwrap();
    appender.flush().await.unwrap();
    // The same sink, and one that is new.
    std::fs::rename(directory.path().join("cursors/out.cursor"), directory.path().join("old.cursor")).unwrap();
    let delivery = Delivery::start(&case, &given, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    assert!(given.lock().unwrap().objects.is_empty(), "nobody knows whether it is still so");
    appender.append(&away, needed(Some(Reason::ConfigChanged))).await.unwrap();
    let changed = observed("changed", "changed", 20);
    // The first LIST breaks off behind one object: what was told is not told a third time.
    for (generation, listed) in [(1, vec![&objects[0]]), (2, vec![&objects[0], &changed])] {
        appender.append(&away, Entry::ListStarted(generation)).await.unwrap();
        for object in listed {
            appender.append(&away, Entry::Listed(object.clone())).await.unwrap();
        }
    }
    appender.append_vanished(&away, 2).await.unwrap();
    appender.append(&away, Entry::ListFinished(ResourceVersion::new("21"))).await.unwrap();
    delivery.caught_up(&case).await;
    delivery.drained().await;
    std::fs::rename(directory.path().join("old.cursor"), directory.path().join("cursors/out.cursor")).unwrap();
    let delivery = Delivery::start(&case, &told, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    let there =
        ["same", "changed"].map(|name| (name.to_owned(), (name.to_owned(), if name == "same" { 11 } else { 20 })));
    assert_eq!(given.lock().unwrap().objects, BTreeMap::from(there.clone()));
    let told = told.lock().unwrap();
    assert_eq!(told.objects, BTreeMap::from(there));
    let has_both =
        |id: &String| told.seen.contains(&(id.clone(), "create")) && told.seen.contains(&(id.clone(), "snapshot"));
    let again: HashSet<_> = told.seen.iter().map(|(id, _)| id).filter(|id| has_both(id)).collect();
    assert_eq!(again.len(), 1, "the one that is as it was has the id that it had");
    let ops = |received: &Received| received.ops.iter().rev().take(3).rev().cloned().collect::<Vec<_>>();
    let expected =
        [(Op::Snapshot, "same"), (Op::Update, "changed"), (Op::Delete, "gone")].map(|(op, name)| (op, name.to_owned()));
    assert_eq!((ops(&told), ops(&given.lock().unwrap())), (expected.to_vec(), expected.to_vec()));
    let Some(What::ResyncFinished { counts, .. }) = told.controls.last() else { panic!("{:?}", told.controls) };
    assert_eq!((counts.create, counts.update, counts.delete, counts.unchanged), (0, 1, 1, 1), "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_in_the_middle_of_a_catch_up_repeats_one_batch_at_most() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in 0..200 {
        case.write(&format!("old-{name:03}")).await;
    }
    case.outgrow().await;
    let received = received();
    const KILLS: usize = 10;
    for kill in 0..KILLS {
        let mut delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
        delivery.asked(1).await;
        let asked = *delivery.asked.borrow();
        delivery.mood.send_replace(Mood::TakesAndHangs);
        case.write(&format!("old-{:03}", kill * 17)).await;
        delivery.asked(asked + 1).await;
        delivery.killed().await;
    }
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let repeated = received.lock().unwrap().repeated;
    assert!((1..=KILLS * 10).contains(&repeated), "{repeated} repeated in {KILLS} kills");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_block_appending_waits_for_the_sink_and_readiness_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    let received = received();
    let delivery = Delivery::start(&case, &received, Mood::Down, Start::Snapshot, WhenBehind::Block);
    let log_check =
        |vitals: &Vitals| vitals.readiness().checks.into_iter().find(|check| check.name == "log").unwrap().message;
    for name in 0..200 {
        case.write(&format!("a-{name}")).await;
    }
    let blocked = async {
        while !log_check(&case.vitals).contains("sink out has not read it yet") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), blocked).await.expect("appending is blocked");
    let (head, oldest) = (case.log.head(), case.log.view().oldest());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!((case.log.head(), oldest), (head, 1), "nothing is appended and nothing goes");
    assert!(case.vitals.live(), "waiting is not death");
    let purged = case.log.purger().purge(head).await.unwrap();
    assert!(purged.segments == 0 && purged.kept.unwrap().contains("sink out"), "it is answered all the same");
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    assert_eq!(received.lock().unwrap().gaps(), 0);
    assert_eq!(log_check(&case.vitals), "");
    assert_eq!(received.lock().unwrap().ops.len(), 200, "every single change");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_log_can_be_closed_and_what_it_had_no_room_for_was_never_seen() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    let delivery = Delivery::start(&case, &received(), Mood::Down, Start::Snapshot, WhenBehind::Block);
    for name in 0..200 {
        case.write(&format!("a-{name}")).await;
    }
    case.log.give_up_waiting();
    delivery.drained().await;
    let head = tokio::task::spawn_blocking(move || {
        let view = case.log.view();
        case.log.close().unwrap();
        view.head()
    });
    let head = head.await.unwrap();
    assert!(head < 200, "{head}");
    assert_eq!(Case::open(directory.path()).log.head(), head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_is_replayed_and_given_everything_anew_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in 0..20 {
        case.write(&format!("a-{name}")).await;
    }
    let received = received();
    let mut delivery = Delivery::start(&case, &received, Mood::Takes, Start::Earliest, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    let (head, ops) = (case.log.head(), received.lock().unwrap().ops.len());
    received.lock().unwrap().newest.clear();
    delivery.orders.give(Order::Replay { from: head - 4 }).await.unwrap();
    delivery.caught_up(&case).await;
    {
        let received = received.lock().unwrap();
        assert!(matches!(received.controls.last(), Some(What::Replay { from }) if from.seq == head - 5));
        assert_eq!(received.ops.len(), ops + 5);
    }
    let refused = delivery.orders.give(Order::Replay { from: head + 2 }).await.unwrap_err();
    assert_eq!(refused, format!("sink out has not been at seq {} yet: its next record is {}", head + 2, head + 1));
    // Also while the receiver is down: the batch that it refuses is not wanted any more.
    delivery.mood.send_replace(Mood::Down);
    case.write("a-1").await;
    let asked = *delivery.asked.borrow();
    delivery.asked(asked + 2).await;
    delivery.orders.give(Order::Resnapshot).await.unwrap();
    let refused = delivery.orders.give(Order::Replay { from: 1 }).await.unwrap_err();
    assert!(refused.contains("is catching up"), "{refused}");
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let received = received.lock().unwrap();
    assert!(matches!(received.controls.last(), Some(What::SnapshotFinished { snapshot: 19, .. })));
    assert_eq!(received.ops.last(), Some(&(Op::Update, "a-1".into())), "what it had not read comes with the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_lags_is_given_everything_anew_and_loses_nothing_of_what_it_had_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    case.write("a").await;
    case.write("b").await;
    let received = received();
    let mut delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    delivery.mood.send_replace(Mood::Down);
    for _ in 0..30 {
        case.write("a").await;
    }
    case.flush().await;
    let asked = *delivery.asked.borrow();
    delivery.asked(asked + 2).await;
    received.lock().unwrap().ops.clear();
    delivery.orders.give(Order::Resnapshot).await.unwrap();
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let told = std::mem::take(&mut received.lock().unwrap().ops);
    let count = |op| told.iter().filter(|(told, _)| *told == op).count();
    assert_eq!((count(Op::Snapshot), count(Op::Update)), (1, 30), "{told:?}");
    assert_eq!(received.lock().unwrap().gaps(), 0);

    // If the log goes before it has been given everything, the gap is told where it is.
    let head = case.log.head();
    delivery.mood.send_replace(Mood::Down);
    delivery.orders.give(Order::Resnapshot).await.unwrap();
    case.outgrow().await;
    received.lock().unwrap().controls.clear();
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let controls = std::mem::take(&mut received.lock().unwrap().controls);
    let [
        What::SnapshotStarted,
        What::SnapshotFinished { .. },
        What::Gap { reason: Reason::SinkBehind, from },
        What::ResyncFinished { .. },
    ] = &controls[..]
    else {
        panic!("{controls:?}")
    };
    assert_eq!(from.seq, head);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_is_due_is_told_once_whenever_everything_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in 0..30 {
        case.write(&format!("a-{name:02}")).await;
    }
    let received = received();
    let mut delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    for (when, mood) in
        [("before it is noticed", None), ("owed", Some(Mood::Down)), ("told", Some(Mood::RefusesTheEnd))]
    {
        delivery.caught_up(&case).await;
        delivery.drained().await;
        case.outgrow().await;
        received.lock().unwrap().controls.clear();
        if let Some(mood) = mood {
            delivery = Delivery::start(&case, &received, mood, Start::Snapshot, WhenBehind::Resync);
            // More than there are pages.
            delivery.asked(10).await;
            delivery.killed().await;
        }
        // As with a process that does not run.
        let mut file = case.log.attach("out", Start::Snapshot, WhenBehind::Resync).unwrap();
        let (oldest, head, at) = (case.log.view().oldest(), case.log.head(), Clock::system().wall());
        file.change(|cursor| Order::Resnapshot.note("out", cursor, oldest, head, at).unwrap()).unwrap();
        delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
        delivery.caught_up(&case).await;
        assert_folded(&case, &received);
        let received = received.lock().unwrap();
        assert_eq!(received.gaps(), 1, "{when}: {:?}", received.controls);
        assert!(
            matches!(received.controls[..], [.., What::SnapshotStarted, What::SnapshotFinished { .. }]),
            "{when}: {:?}",
            received.controls
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_comes_back_after_its_deletes_were_forgotten_is_given_everything() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    for name in ["stays", "gone"] {
        case.write(name).await;
    }
    let received = received();
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    // Taken out of the configuration; another one is there, and passes the delete.
    delivery.drained().await;
    let mut case = case.reopened(directory.path()).await;
    case.log.all_attached();
    case.delete("gone").await;
    case.outgrow().await;
    let mut other = case.log.attach("other", Start::Now, WhenBehind::Resync).unwrap();
    other.acknowledge(case.log.head()).unwrap();
    let forgotten = async {
        while !case.log.view().has_forgotten_deletes_behind(5).unwrap() {
            case.write("busy-0").await;
            case.flush().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), forgotten).await.expect("tombstones go");
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let received = received.lock().unwrap();
    assert_eq!(received.gaps(), 1);
    assert!(matches!(received.controls.last(), Some(What::SnapshotFinished { .. })), "{:?}", received.controls);
}

/// It was given a part of what it had missed, went out of the configuration, and what it was given was deleted and forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_comes_back_in_mid_catch_up_after_its_deletes_were_forgotten_is_given_everything() {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    case.write("old").await;
    let received = received();
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    delivery.drained().await;
    for name in 0..50 {
        case.write(&format!("a-{name:02}")).await;
    }
    case.outgrow().await;
    let mut delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.asked(2).await;
    delivery.mood.send_replace(Mood::TakesAndHangs);
    let asked = *delivery.asked.borrow();
    delivery.asked(asked + 1).await;
    delivery.killed().await;
    assert!(received.lock().unwrap().objects.contains_key("a-00"), "it was given a part");
    let mut case = case.without_the_sink(directory.path()).await;
    case.delete("a-00").await;
    case.outgrow().await;
    let case = case.without_the_sink(directory.path()).await;
    let delivery = Delivery::start(&case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    let received = received.lock().unwrap();
    assert_eq!(received.gaps(), 1, "one outage: {:?}", received.controls);
    assert!(
        matches!(received.controls[..], [.., What::SnapshotStarted, What::SnapshotFinished { .. }]),
        "{:?}",
        received.controls
    );
}

/// One step of a random history.
#[derive(Clone, Debug)]
enum Move {
    Write(u8),
    Delete(u8),
    WriteOther(u8),
    DeleteOther(u8),
    Unfollow,
    Follow,
    Outgrow,
    Mood(bool),
    Kill,
    Settle,
    Resnapshot,
    Reopen,
    Detach,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        6 => (0u8..12).prop_map(Move::Write),
        4 => (0u8..12).prop_map(Move::Delete),
        2 => (0u8..4).prop_map(Move::WriteOther),
        1 => (0u8..4).prop_map(Move::DeleteOther),
        2 => Just(Move::Unfollow),
        2 => Just(Move::Follow),
        1 => Just(Move::Outgrow),
        2 => any::<bool>().prop_map(Move::Mood),
        2 => Just(Move::Kill),
        3 => Just(Move::Settle),
        2 => Just(Move::Resnapshot),
        1 => Just(Move::Reopen),
        1 => Just(Move::Detach),
    ];
    prop::collection::vec(one, 1..60)
}

/// A random history under way.
struct Play<'a> {
    directory: &'a Path,
    case: Case,
    received: Arc<Mutex<Received>>,
    /// None while the sink is not in the configuration.
    delivery: Option<Delivery>,
    /// Whether the log was outgrown since the receiver is away; none if it is not.
    away: Option<bool>,
    /// How often history may have broken by now.
    breaks: usize,
}

impl Play<'_> {
    fn start(&mut self) {
        let (case, received) = (&self.case, &self.received);
        self.delivery = Some(Delivery::start(case, received, Mood::Takes, Start::Snapshot, WhenBehind::Resync));
        self.away = None;
    }

    async fn kill(&mut self) {
        if let Some(delivery) = self.delivery.take() {
            delivery.killed().await;
        }
    }

    async fn step(mut self, step: Move) -> Self {
        match step {
            Move::Write(name) => self.case.write(&format!("o-{name}")).await,
            Move::Delete(name) => self.case.delete(&format!("o-{name}")).await,
            Move::WriteOther(name) => self.case.write_other(&format!("x-{name}")).await,
            Move::DeleteOther(name) => self.case.delete_other(&format!("x-{name}")).await,
            Move::Unfollow => self.case.unfollow_others().await,
            Move::Follow => self.case.follow_others().await,
            Move::Outgrow => {
                self.case.outgrow().await;
                match &mut self.away {
                    Some(outgrown) => self.breaks += usize::from(!std::mem::replace(outgrown, true)),
                    // It may have been too slow, more than once.
                    None => {
                        self.breaks = usize::MAX;
                        self = self.settle().await;
                    }
                }
            }
            Move::Mood(up) => {
                if let Some(delivery) = &self.delivery {
                    delivery.mood.send_replace(if up { Mood::Takes } else { Mood::Down });
                    self.away = (!up).then(|| self.away.unwrap_or(false));
                }
            }
            Move::Kill if self.delivery.is_some() => {
                self.kill().await;
                self.start();
            }
            Move::Kill => {}
            Move::Settle => self = self.settle().await,
            Move::Resnapshot => {
                if let Some(delivery) = &self.delivery {
                    delivery.orders.give(Order::Resnapshot).await.unwrap();
                }
            }
            Move::Reopen => {
                self.kill().await;
                self.case = self.case.reopened(self.directory).await;
                self.start();
            }
            Move::Detach => {
                self.kill().await;
                self.case = self.case.without_the_sink(self.directory).await;
                self.away = Some(self.away.unwrap_or(false));
            }
        }
        self
    }

    /// The receiver is there, and gets everything.
    async fn settle(mut self) -> Self {
        if self.delivery.is_none() {
            self.case = self.case.reopened(self.directory).await;
            self.start();
        }
        let delivery = self.delivery.as_ref().unwrap();
        delivery.mood.send_replace(Mood::Takes);
        delivery.caught_up(&self.case).await;
        self.away = None;
        {
            let mut expected = self.case.cluster.clone();
            let received = self.received.lock().unwrap();
            let mut folded = received.objects.clone();
            if self.case.others.followed {
                let version = |object: &Observed| object.version.to_string().parse().unwrap();
                let others = self.case.others.objects.iter();
                expected.extend(others.map(|(name, object)| (name.clone(), (object.uid.clone(), version(object)))));
            } else {
                // What becomes of them nobody knows.
                folded.retain(|name, _| !name.starts_with("x-"));
            }
            assert_eq!(folded, expected);
            assert!(!received.broken, "a gap is closed: {:?}", received.controls);
            assert!(received.breaks <= self.breaks, "one gap for each outage: {:?}", received.controls);
            self.breaks = received.breaks;
        }
        self
    }
}

async fn play(moves: Vec<Move>) {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    case.follow_others().await;
    let (directory, received) = (directory.path(), received());
    let mut play = Play { directory, case, received, delivery: None, away: None, breaks: 0 };
    play.start();
    for step in moves {
        play = play.step(step).await;
    }
    let play = play.settle().await;
    play.delivery.unwrap().drained().await;
}

/// The one delete that is left to tell is of an object that the receiver has never seen; what it has of that name goes with the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_again_and_deleted_again_while_the_sink_was_away_is_gone() {
    play(vec![
        Move::Write(8),
        Move::Settle,
        Move::Detach,
        Move::Delete(8),
        Move::Write(8),
        Move::Detach,
        Move::Delete(8),
        Move::Outgrow,
    ])
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("KUBETIDE_TORTURE").is_some() { 150 } else { 15 }, max_shrink_iters: 200, ..ProptestConfig::default() })]
    /// Against the simplest model: whatever happens to the log, the configuration and the receiver, what the receiver has is what
    /// there is, and where history is missing it was told once.
    #[test]
    fn whatever_happens_the_receiver_ends_up_with_what_there_is(moves in moves()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(play(moves));
    }
}
