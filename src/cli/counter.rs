//! Where a command gets its answers: from the process that holds the data directory, or from the files if none does.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::{Failure, broken_store};
use crate::{
    api::{Answer, Client, Demand, Desk, Hands, Letters, Question, Refusal, answer::answer, carry_out, item::Done},
    blocking::blocking,
    change::Cleaning,
    changelog::{Archive, Damage, OpenError},
    config::{self, Flags},
    source::redact_key,
};

/// A process that has just taken the lock will listen soon; one that ends will let go of it soon.
const PATIENCE: Duration = Duration::from_secs(2);
/// What every terminal has.
const WIDTH: usize = 80;

/// How files are opened.
type Open = fn(&Path) -> Result<Archive, OpenError>;

/// Which data directory, and how to print.
#[derive(Args, Clone)]
pub(super) struct Counter {
    /// The configuration file of the process
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The data directory of the process, instead of that in the configuration
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Text for people, or one JSON object per line
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub(super) output: Output,
    /// Columns, instead of those of the terminal
    #[arg(long, hide = true, value_name = "COLUMNS")]
    width: Option<usize>,
    /// The time that ages are told from: with it the same items give the same text
    #[arg(long, hide = true, value_name = "TIME")]
    now: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    Text,
    Json,
}

/// The other side.
pub(super) enum Source {
    /// A process that runs.
    Live(Client),
    /// The files of one that does not.
    Files(Box<Desk>),
}

impl Counter {
    /// Runs a command's work with what answers it.
    pub(super) fn serve<F>(&self, work: impl FnOnce(Source) -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        self.serve_from(Archive::open, work)
    }

    /// The same, also if the files are too damaged for anything else.
    pub(super) fn serve_damaged<F>(&self, work: impl FnOnce(Source) -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        self.serve_from(Archive::open_to_verify, work)
    }

    fn serve_from<F>(&self, open: Open, work: impl FnOnce(Source) -> F) -> Result<(), Failure>
    where
        F: Future<Output = Result<(), Failure>>,
    {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
        let served = runtime.block_on(async { work(self.open(open).await?).await });
        // What is left are answers that nobody reads any more.
        runtime.shutdown_background();
        served
    }

    pub(super) fn is_json(&self) -> bool {
        self.output == Output::Json
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(Timestamp::now)
    }

    /// The columns of the terminal, of `$COLUMNS`, or none where text is not cut: in a pipe.
    pub(super) fn columns(&self) -> Option<usize> {
        let terminal = || {
            let size = terminal_size::terminal_size_of(io::stdout());
            size.map(|(width, _)| usize::from(width.0)).filter(|width| *width > 0)
        };
        let variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
        let least = || io::stdout().is_terminal().then_some(WIDTH);
        self.width.or_else(terminal).or_else(variable).or_else(least)
    }

    /// The columns for a table: whoever reads a pipe or a file wants whole names.
    pub(super) fn table_columns(&self) -> usize {
        self.columns().unwrap_or(usize::MAX)
    }

    async fn open(&self, open: Open) -> Result<Source, Failure> {
        let flags = Flags { data_dir: self.data_dir.clone() };
        let config = self.config.as_ref().map(|file| config::load(file, &flags)).transpose()?;
        let data_dir = config.as_ref().map(|config| config.data_dir.clone()).or_else(|| self.data_dir.clone());
        let which = || Failure::Usage("which data directory? give --config FILE, or --data-dir DIR".into());
        let data_dir = data_dir.ok_or_else(which)?;
        check(&data_dir)?;
        broken_store::ends_the_process(&data_dir);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let unreachable = |error| format!("cannot reach kubetide.sock in {}: {error}", data_dir.display());
            match Client::reach(&data_dir).await {
                Ok(Some(client)) => return Ok(Source::Live(client)),
                Ok(None) => {}
                Err(error) => return Err(Failure::Unavailable(unreachable(error))),
            }
            let path = data_dir.clone();
            match blocking(move || open(&path)).await {
                Ok(archive) => {
                    if let Some(config) = &config {
                        let config::Record { drop, redact, redact_key, .. } = config.record.clone();
                        let key = redact_key::load(redact_key.as_ref(), &data_dir)
                            .map_err(|error| Failure::Usage(format!("{error} (with --data-dir alone it is not needed, and what is there is told as it was logged)")))?;
                        archive.clean_rows_by(Cleaning { drop, redact, key });
                    }
                    let archive = Arc::new(archive);
                    let sinks = config.as_ref().map(|config| config.sinks.clone()).unwrap_or_default();
                    return Ok(Source::Files(Box::new(Desk {
                        view: archive.view().clone(),
                        hands: Hands::Files(archive),
                        max_bytes: config.as_ref().map(|config| config.log.max_bytes.get()),
                        attached: config.map(|config| config.sinks.into_iter().map(|sink| sink.common.name).collect()),
                        letters: Letters::new(&data_dir, &sinks),
                        stop: CancellationToken::new(),
                    })));
                }
                Err(OpenError::Locked { .. }) if tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(OpenError::Locked { path }) => {
                    return Err(Failure::Unavailable(format!(
                        "data directory {} is in use, but the process that uses it does not listen on kubetide.sock in it: wait until it has started, or see its log; if it is another command that reads the files, wait until that has ended",
                        path.display()
                    )));
                }
                Err(error) => return Err(Failure::Failed(error.to_string())),
            }
        }
    }
}

/// Looking at a directory must not make one.
fn check(data_dir: &Path) -> Result<(), Failure> {
    let problem = match std::fs::metadata(data_dir) {
        Err(error) => error.to_string(),
        Ok(metadata) if !metadata.is_dir() => "it is a file".into(),
        Ok(_) => match std::fs::metadata(data_dir.join("FORMAT")) {
            Ok(format) if format.is_file() => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::Failed(format!("cannot look into {}: {error}", data_dir.display())));
            }
            _ => "there is no FORMAT in it".into(),
        },
    };
    Err(Failure::Usage(format!("{} is not a data directory of kubetide: {problem}", data_dir.display())))
}

impl Source {
    /// Whether a process runs.
    pub(super) fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// The damage for which everything but its inspection is refused.
    pub(super) fn refused(&self) -> Option<Damage> {
        match self {
            Self::Live(_) => None,
            Self::Files(desk) => match &desk.hands {
                Hands::Files(archive) => archive.refused().cloned(),
                Hands::Live { .. } => None,
            },
        }
    }

    pub(super) async fn ask(&self, question: Question) -> Result<Answer, Refusal> {
        match self {
            Self::Live(client) => client.ask(&question).await,
            Self::Files(desk) => answer(desk, question).await,
        }
    }

    pub(super) async fn demand(&self, demand: Demand) -> Result<Done, Refusal> {
        match self {
            Self::Live(client) => client.demand(&demand).await,
            Self::Files(desk) => carry_out(desk, demand).await,
        }
    }

    /// All items of an answer that is known to be short.
    pub(super) async fn items<T: DeserializeOwned>(&self, question: Question) -> Result<Vec<T>, Failure> {
        let mut answer = self.ask(question).await?;
        let mut items = Vec::new();
        while let Some(block) = answer.next().await {
            for line in lines(&block?) {
                items.push(read(line)?);
            }
        }
        Ok(items)
    }

    /// Prints an answer as it comes: one JSON object per line.
    pub(super) async fn print_json(&self, question: Question) -> Result<(), Failure> {
        let mut answer = self.ask(question).await?;
        while let Some(block) = answer.next().await {
            print(&block?)?;
        }
        Ok(())
    }
}

/// The lines of a block, without their ends.
pub(super) fn lines(block: &Bytes) -> impl Iterator<Item = &[u8]> {
    block.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

/// An item.
pub(super) fn read<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(line)
        .map_err(|error| Failure::Failed(format!("the answer is not what this version knows: {error}")))
}

/// Writes to standard output, all at once.
pub(super) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Failed(format!("cannot write to standard output: {error}")),
    })
}
