//! Every fault of an API server against every way of asking it, while objects change, history is forgotten and the process
//! is restarted. When the faults stop, the file tells the cluster's state; nothing was invented, and nothing left out in silence.
//!
//! `KUBETIDE_TORTURE` makes it 200 runs; `KUBETIDE_SEED` repeats one of them, `RUST_LOG` shows what it does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;
mod matrix;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use instance::{State, assert_bounded_repetition, fold};
use jiff::{SignedDuration, Timestamp};
use kubetide::{
    bridge::{self, RunError, Terms},
    clock::Clock,
    config::{self, Config},
    vitals::Vitals,
};
use kubetide_simulator::{Cluster, ClusterOptions, Server, Verb};
use matrix::{
    ledger::{Captured, Ledger, MARK, version},
    schedule::{Cell, KINDS, Schedule, cells},
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::SliceRandom as _};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    sync::Semaphore,
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// How long anything may take before a run calls it lost. Only ever reached by a failure.
const PATIENCE: Duration = Duration::from_secs(60);
/// Runs at once. They mostly wait.
const AT_ONCE: usize = 10;
/// Random faults of each run, besides those that it must meet.
const MORE: usize = 8;
/// Longer than the first pause of a stream: whoever met the first refusal meets another.
const REFUSED: Duration = Duration::from_millis(600);

const CAPTURED: [Captured; 3] = [
    Captured { stream: "core/configmaps@default", resource: "configmaps", namespace: "default" },
    Captured { stream: "shop.example.com/widgets", resource: "widgets.shop.example.com", namespace: "default" },
    Captured { stream: "core/serviceaccounts@kube-public", resource: "serviceaccounts", namespace: "kube-public" },
];

/// What makes one run differ from another.
#[derive(Clone, Debug)]
struct Variant {
    seed: u64,
    streaming: bool,
    ahead: Vec<Cell>,
    streams: usize,
    /// Breaks in history that are made in any case.
    breaks: usize,
    /// History is also forgotten while nobody knows what the streams are doing.
    blind: bool,
    restarts: usize,
    verify: bool,
}

/// Deals the cells of the matrix to the runs, so that each is met, and a few random ones more to each.
fn variants(seeds: &[u64]) -> Vec<Variant> {
    let mut random = StdRng::seed_from_u64(seeds[0]);
    let mut variants: Vec<Variant> = seeds
        .iter()
        .enumerate()
        .map(|(at, &seed)| Variant {
            seed,
            streaming: at % 2 == 0,
            ahead: Vec::new(),
            streams: 2 + usize::from(at % 3 != 0),
            breaks: usize::from(at % 3 == 1),
            blind: at % 4 == 1,
            restarts: usize::from(at % 4 > 1),
            verify: at % 5 == 4,
        })
        .collect();
    let mut deck: Vec<Cell> = cells().into_iter().collect();
    deck.shuffle(&mut random);
    for cell in &deck {
        let fits = |variant: &&mut Variant| match cell.0 {
            Verb::Watch => true,
            Verb::StreamingList => variant.streaming,
            _ => !variant.streaming,
        };
        let mut takers: Vec<&mut Variant> = variants.iter_mut().filter(fits).collect();
        // Whoever has least, so that no run is long.
        takers.sort_by_key(|taker| taker.ahead.len());
        takers[0].ahead.push(*cell);
    }
    for variant in &mut variants {
        let verbs: &[Verb] = if variant.streaming {
            &[Verb::StreamingList, Verb::Watch, Verb::Watch]
        } else {
            &[Verb::List, Verb::Page, Verb::Watch]
        };
        let possible = cells();
        for verb in verbs.iter().cycle().take(MORE) {
            let cell = (*verb, KINDS[random.random_range(0..KINDS.len())]);
            variant.ahead.extend(possible.contains(&cell).then_some(cell));
        }
        variant.ahead.shuffle(&mut random);
    }
    variants
}

/// A pipeline in this process, with a simulated cluster of its own.
struct Run {
    server: Arc<Server>,
    schedule: Arc<Schedule>,
    ledger: Arc<Mutex<Ledger>>,
    directory: TempDir,
    config: Config,
    stop: CancellationToken,
    task: Option<JoinHandle<Result<(), RunError>>>,
    /// Held by whoever needs the server to be up, or down.
    reachable: Arc<tokio::sync::Mutex<()>>,
}

impl Run {
    async fn new(variant: &Variant, random: &mut StdRng) -> Self {
        let options = ClusterOptions {
            seed: variant.seed,
            history: 100_000,
            bookmark_interval: Duration::from_millis(random.random_range(100..600)),
        };
        let server = Arc::new(Server::start(Cluster::new(options)).await.unwrap());
        let captured = CAPTURED[..variant.streams].to_vec();
        let schedule = Schedule::new(variant.seed, captured.iter().map(|of| of.resource.to_owned()), &variant.ahead);
        let mut ledger = Ledger::new(server.cluster().clone(), captured.clone());
        for of in &captured {
            (0..random.random_range(25..100)).for_each(|_| ledger.create_next(*of));
        }
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let kubeconfig = server.kubeconfig(directory.path()).unwrap();
        let streams: Vec<String> = captured
            .iter()
            .map(|of| {
                let namespaces = of.stream.split_once('@').map_or("", |(_, namespace)| namespace);
                format!("{{resource: {}, namespaces: [{namespaces}]}}", of.resource)
            })
            .collect();
        let text = format!(
            "cluster: {{name: test, kubeconfig: {}}}\ndata_dir: {}\nadmin: {{listen: null}}\nstreams: [{}]\n\
             list: {{page_size: {}, timeout_secs: 1, streaming: {}, max_concurrent: {}}}\n\
             watch: {{timeout_min_secs: 1, timeout_max_secs: {}, stall_timeout_secs: 2}}\n\
             verify: {{interval_secs: {}}}\n\
             sinks: [{{name: out, type: file, path: {}, batch: {{max_records: 50, max_wait_ms: 20}}}}]\n",
            kubeconfig.display(),
            path("data"),
            streams.join(", "),
            random.random_range(5..20),
            if variant.streaming { "auto" } else { "never" },
            random.random_range(1..4),
            random.random_range(1..5),
            u64::from(variant.verify),
            path("out.ndjson"),
        );
        std::fs::write(directory.path().join("kubetide.yaml"), text).unwrap();
        let config = config::load(&directory.path().join("kubetide.yaml"), &config::Flags::default()).unwrap();
        Self {
            server,
            schedule,
            ledger: Arc::new(Mutex::new(ledger)),
            directory,
            config,
            stop: CancellationToken::new(),
            task: None,
            reachable: Arc::default(),
        }
    }

    /// Starts it, and waits until it has found the cluster: a start without one is an error by design.
    async fn start(&mut self) {
        let _up = self.reachable.lock().await;
        let asked = self.server.requests().of(Verb::Discovery);
        self.stop = CancellationToken::new();
        let (config, stop, offset) = (self.config.clone(), self.stop.clone(), self.schedule.clock.clone());
        let wall = move || Timestamp::now() + SignedDuration::from_secs(offset.load(Ordering::SeqCst));
        let terms = Terms { clock: Clock::with_wall(wall), vitals: Vitals::new(), ..Terms::default() };
        self.task = Some(tokio::spawn(async move { bridge::run(&config, terms, stop).await }));
        self.until("the cluster is found", |run| run.server.requests().of(Verb::Discovery) >= asked + 2).await;
    }

    async fn stop(&mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(PATIENCE, self.task.take().unwrap()).await;
        ended.expect("it ends when it is asked to").unwrap().expect("a run ends without an error");
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("out.ndjson")
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file()).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(Into::into).collect()
    }

    fn records(&self) -> Vec<Value> {
        self.lines().iter().map(|line| serde_json::from_str(line).expect("a line is a record")).collect()
    }

    async fn until(&self, wanted: &str, ready: impl Fn(&Self) -> bool) {
        let since = Instant::now();
        while !ready(self) {
            assert!(!self.task.as_ref().is_some_and(JoinHandle::is_finished), "it ended while waiting until {wanted}");
            assert!(since.elapsed() < PATIENCE, "not seen in {PATIENCE:?}: {wanted}");
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// The API server is down for a moment.
    async fn bounce(&self, meanwhile: impl FnOnce()) {
        let _mine = self.reachable.lock().await;
        self.server.refuse(true).await;
        meanwhile();
        self.server.refuse(false).await;
    }

    /// Refuses connections for a while whenever the schedule asks for it.
    fn refuse_when_asked(&self) -> impl Future<Output = ()> + use<> {
        let (server, schedule, reachable) = (self.server.clone(), self.schedule.clone(), self.reachable.clone());
        async move {
            loop {
                schedule.refuse.notified().await;
                let _mine = reachable.lock().await;
                server.refuse(true).await;
                tokio::time::sleep(REFUSED).await;
                server.refuse(false).await;
            }
        }
    }

    /// Without new faults, waits until every stream has told of a write by its watch: so it does watch.
    async fn settle(&self) {
        self.schedule.pause(true);
        self.bounce(|| {}).await;
        let captured = self.ledger.lock().unwrap().captured().to_vec();
        for of in captured {
            loop {
                let mark = self.ledger.lock().unwrap().update(of, MARK);
                let told =
                    |record: &Value| record["stream"] == of.stream && record["name"] == MARK && version(record) >= mark;
                self.until("a mark is told", |run| run.records().iter().any(told)).await;
                // Told by a LIST, it says nothing of the watch.
                if self.records().iter().rfind(|record| told(record)).unwrap()["origin"] == "watch" {
                    break;
                }
            }
        }
    }

    /// History is forgotten while no watch is open: exactly one gap for each stream.
    async fn break_history(&self) {
        self.settle().await;
        self.bounce(|| {
            self.server.cluster().forget_history();
            self.schedule.pause(false);
        })
        .await;
    }
}

/// Writes until it is told to stop.
async fn churn(ledger: Arc<Mutex<Ledger>>, seed: u64, enough: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed);
    while !enough.load(Ordering::Relaxed) {
        ledger.lock().unwrap().churn(&mut random);
        tokio::time::sleep(Duration::from_millis(random.random_range(1..12))).await;
    }
}

const LISTS: [Verb; 3] = [Verb::List, Verb::Page, Verb::StreamingList];

/// One run. Returns what it met.
async fn run(variant: Variant) -> BTreeMap<Cell, u32> {
    let mut random = StdRng::seed_from_u64(variant.seed);
    let mut run = Run::new(&variant, &mut random).await;
    run.server.set_hook(Some(run.schedule.hook()));
    let enough = Arc::new(AtomicBool::new(false));
    let churning = tokio::spawn(churn(run.ledger.clone(), variant.seed, enough.clone()));
    let refusing = tokio::spawn(run.refuse_when_asked());
    run.start().await;

    // A break that falls into a LIST is none: the LIST begins anew.
    let (mut breaks, mut blind, mut restarts) = (0, 0, 0);
    let mut rounds = 0;
    while breaks < variant.breaks || restarts < variant.restarts || run.schedule.has_ahead(&matrix::schedule::VERBS) {
        tokio::time::sleep(Duration::from_millis(random.random_range(100..500))).await;
        if restarts < variant.restarts && random.random_bool(0.3) {
            run.stop().await;
            run.start().await;
            restarts += 1;
        } else if breaks < variant.breaks || (rounds > 8 && run.schedule.has_ahead(&LISTS)) {
            run.break_history().await;
            breaks += 1;
        } else if variant.blind && rounds % 4 == 0 {
            run.bounce(|| run.server.cluster().forget_history()).await;
            blind += 1;
        } else if rounds % 5 == 4 {
            // A watch that hangs cannot be cut: without bookmarks so far, it is not missed for half a minute.
            run.bounce(|| {}).await;
        } else {
            run.server.cut_all_watches();
        }
        rounds += 1;
        assert!(rounds < 100, "faults that are never met: {:?}", variant.ahead);
    }

    run.schedule.pause(true);
    run.bounce(|| refusing.abort()).await;
    enough.store(true, Ordering::Relaxed);
    churning.await.unwrap();
    // Past the last break, with nothing written after it but the marks.
    run.settle().await;
    let expected: State = run.ledger.lock().unwrap().expected();
    run.until("the file tells the cluster's state", |run| fold(&run.records()) == expected).await;
    run.stop().await;
    assert_bounded_repetition(&run.lines(), 0);
    let records = run.records();
    assert_eq!(fold(&records), expected, "nothing comes after");
    run.ledger.lock().unwrap().check(&records, (breaks, breaks + blind));
    run.schedule.met()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_fails_the_file_tells_the_clusters_state_and_nothing_that_did_not_happen() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let runs = if std::env::var_os("KUBETIDE_TORTURE").is_some() { 200 } else { 20 };
    let mut variants = variants(&(1..=runs).collect::<Vec<u64>>());
    let only: Option<u64> = std::env::var("KUBETIDE_SEED").ok().map(|seed| seed.parse().unwrap());
    variants.retain(|variant| only.is_none_or(|seed| variant.seed == seed));
    let since = Instant::now();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    for variant in variants {
        let turns = turns.clone();
        tasks.spawn(async move {
            let _turn = turns.acquire_owned().await.unwrap();
            let since = Instant::now();
            let ended = tokio::spawn(run(variant.clone())).await;
            (variant, since.elapsed(), ended)
        });
    }
    let mut met: BTreeMap<Cell, u32> = BTreeMap::new();
    let (mut failed, mut longest) = (Vec::new(), Duration::ZERO);
    while let Some(ended) = tasks.join_next().await {
        let (variant, took, ended) = ended.unwrap();
        longest = longest.max(took);
        match ended {
            Ok(cells) => cells.into_iter().for_each(|(cell, times)| *met.entry(cell).or_default() += times),
            Err(panic) => {
                let panic = panic.into_panic();
                let message = panic.downcast_ref::<String>().cloned();
                let message = message.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
                eprintln!(
                    "run with seed {} failed after {took:?}: {}\n{variant:?}",
                    variant.seed,
                    message.unwrap_or_default()
                );
                failed.push(variant.seed);
            }
        }
    }
    let faults: u32 = met.values().sum();
    eprintln!("{runs} runs, {faults} faults in {} cells, {:?}, longest {longest:?}", met.len(), since.elapsed());
    assert!(failed.is_empty(), "failed, each repeated by KUBETIDE_SEED: {failed:?}");
    let missed: BTreeSet<Cell> = cells().into_iter().filter(|cell| !met.contains_key(cell)).collect();
    assert!(only.is_some() || missed.is_empty(), "cells that no run reached: {missed:?}");
}
