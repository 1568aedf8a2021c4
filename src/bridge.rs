//! Joins the stages: cluster → streams → log → sinks. Owns the tasks and their shutdown.

use std::{
    collections::HashMap,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubetide_sink::{ConfigProblem, Stream};
use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    admin,
    api::{self, Desk, Hands, Letters},
    backoff::Backoff,
    change::{Cleaning, Ignored, compare::Detail},
    changelog::{Changelog, OpenError, Setup, StoreError, StreamState, WriteError, is_want_of_room, shortage},
    cli::progress,
    clock::Clock,
    config::{self, Config, LetterPlace, SinkKind},
    delivery::{DeadLetters, DeliveryError, Filter, Limits, Ordered, Orders, Policy, Pump, Refusals},
    source::{
        Means, SourceError,
        cluster::{Cluster, ConnectError, refused},
        discovery::{self, Discovered},
        names::{self, Plan},
        redact_key::{self, KeyError},
        roster::{self, Roster},
    },
    vitals::Vitals,
};

/// How long somebody else may have the data directory at a start.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried.
const LOCK_AGAIN: Duration = Duration::from_millis(100);
/// Without room on the volume, everything is opened anew no sooner than after this: where a quota is spent, only trying shows
/// whether there is room.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);
/// How often it is looked for room.
const ROOM_AGAIN: Duration = Duration::from_millis(500);

/// Why the process ends though nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no cluster to work with, or not what was asked for.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The key of redaction cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A sink cannot be opened.
    #[error("sinks[{index}] ({name}): {problem}")]
    Sink {
        /// Its place in the configuration.
        index: usize,
        /// Its name.
        name: String,
        /// What is wrong.
        problem: ConfigProblem,
    },
    /// The log cannot be written any more: a full disk, most often.
    #[error("data directory {}: {source}", path.display())]
    Write {
        /// The directory.
        path: PathBuf,
        /// What came of it.
        source: WriteError,
    },
    /// A sink's loop cannot go on.
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a run is given besides its configuration.
#[derive(Clone)]
pub struct Terms {
    /// A cluster with another uid may take the place of the one that the data directory belongs to.
    pub accept_new_cluster: bool,
    /// The clock.
    pub clock: Clock,
    /// Where the run reports how it is.
    pub vitals: Vitals,
}

impl Default for Terms {
    fn default() -> Self {
        Self { accept_new_cluster: false, clock: Clock::system(), vitals: Vitals::new() }
    }
}

/// Runs until `stop` is cancelled, then drains. Health and metrics are served all the while.
pub async fn run(config: &Config, terms: Terms, stop: CancellationToken) -> Result<(), RunError> {
    let ended = CancellationToken::new();
    let mut servants = JoinSet::new();
    if let Some(listen) = config.admin.listen {
        servants.spawn(admin::serve(listen, terms.vitals.clone(), ended.clone()));
    }
    // A status line would mix with the records that a sink prints on the same terminal.
    let records_on_terminal =
        std::io::stdout().is_terminal() && config.sinks.iter().any(|sink| matches!(sink.kind, SinkKind::Stdout(_)));
    if records_on_terminal {
        servants.spawn(progress::log(terms.vitals.clone(), ended.clone()));
    } else {
        servants.spawn(progress::show(terms.vitals.clone(), ended.clone()));
    }
    let result = loop {
        // A token of its own: what ends by itself is not a request to stop.
        match capture(config, terms.clone(), stop.child_token()).await {
            Err(error) if wants_room(&error) && !stop.is_cancelled() => {
                error!(%error, "there is no room on the volume; nothing is lost, but nothing new is captured until there is");
                terms.vitals.block("there is no room on the volume");
                if stop.run_until_cancelled(until_room(config, &terms.vitals)).await.is_none() {
                    break Ok(());
                }
            }
            result => break result,
        }
    };
    ended.cancel();
    while servants.join_next().await.is_some() {}
    result
}

/// Whether it goes on when there is room on the volume: everything is opened anew then, as by a new process.
fn wants_room(error: &RunError) -> bool {
    match error {
        RunError::Write { source, .. } => matches!(source, WriteError::NoRoom(_)),
        error => is_want_of_room(error),
    }
}

/// Waits until there seems to be room. The committer, whose heartbeat this is, is not there meanwhile.
async fn until_room(config: &Config, vitals: &Vitals) {
    let since = tokio::time::Instant::now();
    while since.elapsed() < ROOM_PATIENCE || shortage(&config.data_dir).is_some() {
        vitals.heartbeat();
        tokio::time::sleep(ROOM_AGAIN).await;
    }
    info!("there may be room on the volume: opening the log anew");
}

/// Opens the log. A command that reads the files has them for a moment, and a process that ends for a little longer.
async fn unlocked(open: impl Fn() -> Result<Changelog, OpenError>) -> Result<Changelog, OpenError> {
    let deadline = tokio::time::Instant::now() + LOCK_PATIENCE;
    let mut is_told = false;
    loop {
        match open() {
            Err(OpenError::Locked { path }) if tokio::time::Instant::now() < deadline => {
                if !is_told {
                    info!(path = %path.display(), "waiting for the data directory: a command or another process has it");
                }
                is_told = true;
                tokio::time::sleep(LOCK_AGAIN).await;
            }
            opened => return opened,
        }
    }
}

async fn capture(config: &Config, terms: Terms, stop: CancellationToken) -> Result<(), RunError> {
    let Terms { accept_new_cluster, clock, vitals } = terms;
    // The cluster first: nothing is written while it is unknown whether there is anything to write.
    let (cluster, discovered, plan) = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        connected = connect(config, &vitals) => connected?,
    };
    if !config.data_dir.exists() {
        check_words(&plan, &[])?;
    }
    let config::Record { patch, before, ignore, drop, redact, redact_key } = config.record.clone();
    let detail = Detail { patch, before, ignored: Ignored(ignore) };
    let uid = cluster.identity.uid.clone();
    let setup =
        || Setup { uid: uid.clone(), accept_new: accept_new_cluster, detail: detail.clone(), keep: config.log.clone() };
    let open = || Changelog::open(&config.data_dir, setup(), clock.clone(), &vitals);
    let Some(mut log) = stop.run_until_cancelled(unlocked(open)).await.transpose()? else { return Ok(()) };
    if vitals.unblock() {
        info!("appending to the log goes on");
    }
    let key = redact_key::load(redact_key.as_ref(), &config.data_dir)?;
    let cleaning = Cleaning { drop, redact, key };
    log.clean_rows_by(cleaning.clone());
    check_words(&plan, &log.known().streams()?)?;
    info!(
        cluster = %cluster.identity.name, streams = plan.follow.len(), sinks = config.sinks.len(),
        log = log.log_id(), head = log.head(), "started"
    );

    let drain = CancellationToken::new();
    let mut pumps = JoinSet::new();
    let mut orders = HashMap::new();
    for (index, sink) in config.sinks.iter().enumerate() {
        let (way, ordered) = Orders::new();
        let terms = PumpTerms {
            cluster: &cluster.identity,
            data_dir: &config.data_dir,
            clock: &clock,
            vitals: &vitals,
            drain: &drain,
            ordered,
        };
        pumps.spawn(pump(index, sink, &log, terms)?.run());
        orders.insert(sink.common.name.clone(), way);
    }
    log.all_attached();
    let desk_closed = CancellationToken::new();
    let mut desk = JoinSet::new();
    desk.spawn(serve_desk(config, &log, orders, desk_closed.clone()));
    let means = Means::new(config, cluster, cleaning, log.appender(), log.known(), clock);
    // A token of its own: when it ends by itself, that is a failure and not a request to stop.
    let roster = Roster::new(means, config.streams.clone(), vitals, stop.child_token());
    let mut source = JoinSet::new();
    source.spawn(roster.run(discovered, plan));

    let cannot_write = |source| RunError::Write { path: config.data_dir.clone(), source };
    let source_failed = |error| match error {
        SourceError::Write(error) => cannot_write(error),
        SourceError::Store(error) => RunError::Store(error),
        error @ SourceError::OtherCluster(_) => RunError::Connect(ConnectError::Refused(error.to_string())),
    };
    let mut failure: Option<RunError> = tokio::select! {
        () = stop.cancelled() => None,
        () = log.failed() => None,
        Some(ended) = pumps.join_next() => finished(ended).err().map(Into::into),
        Some(ended) = source.join_next() => finished(ended).err().map(source_failed),
    };

    // A log that is blocked stays so: what it has no room for was never seen.
    log.give_up_waiting();
    // Down the data path: no more entries, then everything durable, then the last batches, then the log.
    stop.cancel();
    info!("stopping");
    // A source that fails stops itself first: why, it says here.
    while let Some(ended) = source.join_next().await {
        failure = failure.or(finished(ended).err().map(source_failed));
    }
    if failure.is_none() {
        // If the writer has failed, closing the log says why.
        let _ = log.appender().flush().await;
    }
    drain.cancel();
    let grace = Duration::from_secs(config.shutdown_grace_secs);
    let drained = tokio::time::timeout(grace, async {
        while let Some(ended) = pumps.join_next().await {
            finished(ended)?;
        }
        Ok::<(), DeliveryError>(())
    });
    let drained = drained.await;
    pumps.shutdown().await;
    desk_closed.cancel();
    while desk.join_next().await.is_some() {}
    tokio::task::block_in_place(|| log.close()).map_err(cannot_write)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    match drained {
        Ok(result) => result?,
        Err(_) => warn!(
            grace_secs = grace.as_secs(),
            "a sink did not answer in time; its batch is sent again at the next start"
        ),
    }
    info!("stopped");
    Ok(())
}

/// The answers to the commands, until the end of the log.
fn serve_desk(
    config: &Config,
    log: &Changelog,
    orders: HashMap<String, Orders>,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let desk = Desk {
        view: log.view(),
        hands: Hands::Live { sinks: Arc::new(orders), purger: log.purger() },
        max_bytes: Some(config.log.max_bytes.get()),
        attached: Some(config.sinks.iter().map(|sink| sink.common.name.clone()).collect()),
        letters: Letters::new(&config.data_dir, &config.sinks),
        stop: stop.clone(),
    };
    let data_dir = config.data_dir.clone();
    async move { api::serve(&data_dir, desk, stop).await }
}

async fn connect(config: &Config, vitals: &Vitals) -> Result<(Cluster, Discovered, Plan), ConnectError> {
    let cluster = Cluster::connect(&config.cluster).await?;
    let discovered = discovery::discover(&cluster).await;
    let discovered =
        discovered.map_err(|error| refused(&error, &format!("cannot read what the cluster serves: {error}")))?;
    roster::tell_discovered(vitals, &discovered);
    let plan = names::plan(&config.streams, &discovered, &cluster.identity).map_err(ConnectError::Config)?;
    check_sink_streams(config, &plan)?;
    Ok((cluster, discovered, plan))
}

/// A word that never stood for anything is a mistake; one that did may stand for it again.
fn check_words(plan: &Plan, known: &[(Stream, StreamState)]) -> Result<(), ConnectError> {
    let stood = |word: &str| known.iter().any(|(_, state)| state.asked_as == word);
    let mistake = plan.unresolved.iter().find(|unresolved| unresolved.certain && !stood(&unresolved.word));
    mistake.map_or(Ok(()), |unresolved| Err(ConnectError::Config(unresolved.problem.clone())))
}

/// A task's own result; its panic is ours.
fn finished<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// A sink that names a stream which is not captured would wait for ever. What a wildcard may bring is not known yet.
fn check_sink_streams(config: &Config, plan: &Plan) -> Result<(), ConnectError> {
    if names::has_wildcard(&config.streams) || !plan.unresolved.is_empty() {
        return Ok(());
    }
    let known: Vec<String> = plan.follow.iter().map(|follow| follow.stream.to_string()).collect();
    for (index, sink) in config.sinks.iter().enumerate() {
        for (at, name) in sink.common.streams.iter().enumerate() {
            if !known.contains(name) {
                let known = known.join(", ");
                return Err(ConnectError::Config(format!(
                    "sinks[{index}].streams[{at}]: found {name}, which is not captured; captured: {known}"
                )));
            }
        }
    }
    Ok(())
}

/// What the loops of all sinks work with.
struct PumpTerms<'a> {
    cluster: &'a kubetide_sink::Cluster,
    data_dir: &'a Path,
    clock: &'a Clock,
    vitals: &'a Vitals,
    drain: &'a CancellationToken,
    ordered: mpsc::Receiver<Ordered>,
}

fn pump(index: usize, sink: &config::Sink, log: &Changelog, terms: PumpTerms<'_>) -> Result<Pump, RunError> {
    let config::SinkCommon {
        name,
        format,
        streams,
        filter,
        delivery,
        batch,
        retry,
        start,
        when_behind,
        oversize,
        dead_letter,
    } = sink.common.clone();
    let cannot = |problem: ConfigProblem| RunError::Sink { index, name: name.clone(), problem };
    let exactly_once = delivery == config::Delivery::ExactlyOnce;
    let cluster = terms.cluster.clone();
    let (letters, place) = match dead_letter.place(terms.data_dir, &name) {
        LetterPlace::Files(directory) => (DeadLetters::new(directory, &name), None),
        LetterPlace::Topic(place) | LetterPlace::Subject(place) => (DeadLetters::at_receiver(&name), Some(place)),
    };
    let receiver =
        sink.kind.open(kubetide_sink::Terms { name: name.clone(), cluster, format, exactly_once, letters: place });
    let receiver = receiver.map_err(cannot)?;
    let filter = filter.as_deref().map(Filter::compile).transpose();
    let filter = filter.map_err(|problem| cannot(ConfigProblem::new("filter", problem)))?;
    let cursor = log.attach(&name, start, when_behind)?;
    let view = log.view();
    let limits = Limits {
        max_records: batch.max_records.get(),
        max_bytes: batch.max_bytes.get(),
        max_wait: Duration::from_millis(batch.max_wait_ms),
    };
    let backoff = Backoff::new(Duration::from_millis(retry.initial_ms.get()));
    let longest_pause = Duration::from_millis(retry.max_ms.get());
    Ok(Pump {
        cluster: terms.cluster.clone(),
        vitals: terms.vitals.sink(&name),
        sink: receiver,
        view,
        cursor,
        limits,
        backoff,
        longest_pause,
        streams,
        policy: Policy { filter, oversize, letters, exactly_once },
        refusals: Refusals::default(),
        orders: terms.ordered,
        clock: terms.clock.clone(),
        drain: terms.drain.clone(),
        name,
    })
}
