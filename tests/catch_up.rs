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
    config::{self, Start, WhenBehind},
    delivery::{DeliveryError, Limits, Order, Orders, Pump},
    vitals::Vitals,
};
use kubetide_sink::{Batch, Body, Control, Op, Reason, Record, Sink, SinkError, Stream, What, sample};
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
        let Self { log, version, cluster, .. } = self;
        tokio::task::spawn_blocking(move || log.close().unwrap()).await.unwrap();
        Self { version, cluster, ..Self::open(directory) }
    }

    fn open(directory: &Path) -> Self {
        let max_bytes = NonZeroU64::new(MAX_BYTES).unwrap();
        let setup = Setup { keep: config::Log { max_bytes, ..config::Log::default() }, ..Setup::of("c-1") };
        let vitals = Vitals::new();
        let log = Changelog::open(directory, setup, Clock::system(), &vitals).unwrap();
        let pods = Arc::new(sample::stream("pods", "Pod"));
        Self { log, vitals, pods, version: 0, cluster: BTreeMap::new() }
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
}

impl Received {
    fn take(&mut self, record: &Record) {
        let change = match &record.body {
            Body::Control(Control { what, .. }) => return self.control(what),
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
        if let Some(snapshot) = &mut self.snapshot {
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

    fn control(&mut self, what: &What) {
        match what {
            What::SnapshotStarted => self.snapshot = Some(HashSet::new()),
            // What a whole snapshot does not have is gone.
            What::SnapshotFinished { .. } => {
                let shown = self.snapshot.take().unwrap_or_default();
                self.objects.retain(|name, _| shown.contains(name));
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
}

struct Receiver {
    received: Arc<Mutex<Received>>,
    mood: watch::Receiver<Mood>,
    asked: watch::Sender<u64>,
}

#[async_trait]
impl Sink for Receiver {
    async fn deliver(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let mood = *self.mood.borrow();
        if mood != Mood::Down {
            let mut received = self.received.lock().unwrap();
            batch.records.iter().for_each(|record| received.take(record));
        }
        self.asked.send_modify(|asked| *asked += 1);
        match mood {
            Mood::Takes => Ok(()),
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
    assert!(matches!(received.lock().unwrap().controls.last(), Some(What::SnapshotFinished { snapshot: 20, .. })));
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

/// One step of a random history.
#[derive(Clone, Debug)]
enum Move {
    Write(u8),
    Delete(u8),
    Outgrow,
    Mood(bool),
    Kill,
    Settle,
    Resnapshot,
    Reopen,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        8 => (0u8..12).prop_map(Move::Write),
        5 => (0u8..12).prop_map(Move::Delete),
        1 => Just(Move::Outgrow),
        2 => any::<bool>().prop_map(Move::Mood),
        2 => Just(Move::Kill),
        1 => Just(Move::Settle),
        1 => Just(Move::Resnapshot),
        1 => Just(Move::Reopen),
    ];
    prop::collection::vec(one, 1..60)
}

async fn play(moves: Vec<Move>) {
    let directory = tempfile::tempdir().unwrap();
    let mut case = Case::new(directory.path()).await;
    let received = received();
    let start = |case: &Case| Delivery::start(case, &received, Mood::Takes, Start::Snapshot, WhenBehind::Resync);
    let mut delivery = start(&case);
    for step in moves {
        match step {
            Move::Write(name) => case.write(&format!("o-{name}")).await,
            Move::Delete(name) => case.delete(&format!("o-{name}")).await,
            Move::Outgrow => case.outgrow().await,
            Move::Mood(up) => drop(delivery.mood.send_replace(if up { Mood::Takes } else { Mood::Down })),
            Move::Kill => {
                delivery.killed().await;
                delivery = start(&case);
            }
            Move::Settle => {
                delivery.mood.send_replace(Mood::Takes);
                delivery.caught_up(&case).await;
                assert_folded(&case, &received);
            }
            Move::Resnapshot => delivery.orders.give(Order::Resnapshot).await.unwrap(),
            Move::Reopen => {
                delivery.killed().await;
                case = case.reopened(directory.path()).await;
                delivery = start(&case);
            }
        }
    }
    delivery.mood.send_replace(Mood::Takes);
    delivery.caught_up(&case).await;
    assert_folded(&case, &received);
    delivery.drained().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if std::env::var_os("KUBETIDE_TORTURE").is_some() { 150 } else { 15 }, max_shrink_iters: 200, ..ProptestConfig::default() })]
    /// Against the simplest model: whatever happens to the log and the receiver, what the receiver has is what there is.
    #[test]
    fn whatever_happens_the_receiver_ends_up_with_what_there_is(moves in moves()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(play(moves));
    }
}
