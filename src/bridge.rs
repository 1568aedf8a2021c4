//! Joins the stages: cluster → streams → log → sinks. Owns the tasks and their shutdown.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kubetide_sink::{Sink, Stream};
use kubetide_sink_file::{FileSink, StdoutSink};
use tokio::{
    sync::Semaphore,
    task::{JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    backoff::Backoff,
    changelog::{Changelog, OpenError, StoreError, WriteError},
    config::{self, Config, SinkKind},
    delivery::{DeliveryError, Limits, Pump},
    source::{
        cluster::{Cluster, ConnectError},
        follow::Follower,
        names,
    },
};

/// Why the process ends though nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no cluster to work with, or not what was asked for.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A sink cannot be opened.
    #[error("sinks[{index}] ({name}): {message}")]
    Sink {
        /// Its place in the configuration.
        index: usize,
        /// Its name.
        name: String,
        /// What is wrong.
        message: String,
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

/// Runs until `stop` is cancelled, then drains.
pub async fn run(config: &Config, stop: CancellationToken) -> Result<(), RunError> {
    // The cluster first: nothing is written while it is unknown whether there is anything to write.
    let (cluster, streams) = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        connected = connect(config) => connected?,
    };
    let mut log = Changelog::open(&config.data_dir, &cluster.identity.uid, &streams)?;
    info!(
        cluster = %cluster.identity.name, streams = streams.len(), sinks = config.sinks.len(),
        log = log.log_id(), head = log.head(), "started"
    );

    let drain = CancellationToken::new();
    let mut pumps = JoinSet::new();
    for (index, sink) in config.sinks.iter().enumerate() {
        pumps.spawn(pump(index, sink, &log, drain.clone())?.run());
    }
    let mut followers = JoinSet::new();
    let lists = Arc::new(Semaphore::new(config.list.max_concurrent.get()));
    for stream in &streams {
        let durable = log.state(stream)?;
        let follower = Follower {
            stream: stream.clone(),
            client: cluster.client.clone(),
            log: log.appender(),
            list: config.list.clone(),
            watch: config.watch.clone(),
            lists: lists.clone(),
            stop: stop.clone(),
        };
        followers.spawn(follower.run(durable));
    }

    let cannot_write = |source| RunError::Write { path: config.data_dir.clone(), source };
    let failure: Option<RunError> = tokio::select! {
        () = stop.cancelled() => None,
        () = log.failed() => None,
        Some(ended) = pumps.join_next() => finished(ended).err().map(Into::into),
        Some(ended) = followers.join_next() => finished(ended).err().map(cannot_write),
    };

    // Down the data path: no more entries, then everything durable, then the last batches, then the log.
    stop.cancel();
    info!("stopping");
    while followers.join_next().await.is_some() {}
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

async fn connect(config: &Config) -> Result<(Cluster, Vec<Arc<Stream>>), ConnectError> {
    let cluster = Cluster::connect(&config.cluster).await?;
    let served = names::discover(&cluster.client).await?;
    let streams = names::streams(&config.streams, &served, &cluster.identity)?;
    check_sink_streams(config, &streams)?;
    Ok((cluster, streams))
}

/// A task's own result; its panic is ours.
fn finished<T>(ended: Result<T, JoinError>) -> T {
    match ended {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// A sink that names a stream which is not captured would wait for ever.
fn check_sink_streams(config: &Config, streams: &[Arc<Stream>]) -> Result<(), ConnectError> {
    let known: Vec<String> = streams.iter().map(ToString::to_string).collect();
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

fn pump(index: usize, sink: &config::Sink, log: &Changelog, drain: CancellationToken) -> Result<Pump, RunError> {
    // A further format or guarantee will not go unnoticed here.
    let config::SinkCommon {
        name,
        format: config::Format::Native,
        streams,
        delivery: config::Delivery::AtLeastOnce,
        batch,
        retry,
    } = sink.common.clone();
    let cannot = |message: String| RunError::Sink { index, name: name.clone(), message };
    let receiver: Box<dyn Sink> = match &sink.kind {
        SinkKind::File(file) => {
            let opened = FileSink::open(file);
            Box::new(opened.map_err(|error| cannot(format!("cannot open {}: {error}", file.path.display())))?)
        }
        SinkKind::Stdout(_) => Box::new(StdoutSink::new()),
    };
    let cursor = log.cursor(&name)?;
    let reader = log.reader(cursor.cursor().acknowledged + 1);
    let limits = Limits {
        max_records: batch.max_records.get(),
        max_bytes: batch.max_bytes.get(),
        max_wait: Duration::from_millis(batch.max_wait_ms),
    };
    let backoff = Backoff::new(Duration::from_millis(retry.initial_ms.get()));
    let longest_pause = Duration::from_millis(retry.max_ms.get());
    Ok(Pump { name, sink: receiver, reader, cursor, limits, backoff, longest_pause, streams, drain })
}
