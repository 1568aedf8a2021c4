//! `kubetide log export`: records as NDJSON, into a file or a pipe.

use std::{
    fs::{self, File},
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
};

use clap::Args;
use indicatif::ProgressDrawTarget;

use super::{bar, log_of};
use crate::{
    api::{Changes, Point, Question, Words, item},
    cli::{
        Failure,
        counter::{Counter, Source, lines, print, read},
        when,
    },
    vitals::thousands,
};

/// How a line begins that tells the place and is no record.
const REACHED: &[u8] = b"{\"reached\":";

/// Write records as NDJSON, as a sink would get them
#[derive(Args)]
#[command(after_help = "Examples:
  kubetide log export --config kubetide.yaml --from 1h --file changes.ndjson
  kubetide log export --data-dir ./kubetide-data --stream deployments --object default/web | jq .op")]
pub(in crate::cli) struct Export {
    #[command(flatten)]
    counter: Counter,
    /// From here on: a seq, a time, or 10m, 2h, 1d ago [default: the oldest record]
    #[arg(long, value_name = "SEQ|TIME", value_parser = when::point)]
    from: Option<Point>,
    /// Up to this seq, or to what was observed before this time [default: the newest record]
    #[arg(long, value_name = "SEQ|TIME", value_parser = when::point)]
    to: Option<Point>,
    /// Only these streams: apps/deployments, or deployments
    #[arg(long, value_name = "STREAM", value_delimiter = ',', value_parser = when::word)]
    stream: Vec<String>,
    /// Only these objects; a name alone is that name in any namespace
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_delimiter = ',', value_parser = when::word)]
    object: Vec<String>,
    /// The file to write; it must not be there yet [default: standard output]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl Export {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.counter.serve(|source| self.export(source))
    }

    async fn export(&self, source: Source) -> Result<(), Failure> {
        let log = log_of(&source).await?;
        let question = Question::Changes(Box::new(Changes {
            from: self.from,
            to: self.to,
            stream: Words(self.stream.clone()),
            object: Words(self.object.clone()),
            progress: true,
            ..Changes::default()
        }));
        let mut answer = source.ask(question).await?;
        // After the question: a wrong one leaves no file behind.
        let mut file = self.file.as_deref().map(Part::create).transpose()?;
        let seq = |point: Option<Point>| match point {
            Some(Point::Seq(seq)) => Some(seq),
            _ => None,
        };
        let first = seq(self.from).unwrap_or(log.oldest);
        let last = seq(self.to).unwrap_or(log.head);
        let template = "exporting {wide_bar} {human_pos} of {human_len} records, {eta} left";
        let bar = bar((last + 1).saturating_sub(first), template);
        if file.is_none() && io::stdout().is_terminal() {
            // It would stand between the records.
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let mut records = 0;
        while let Some(block) = answer.next().await {
            let mut found = Vec::new();
            for line in lines(&block?) {
                if line.starts_with(REACHED) {
                    let item::Reached { reached } = read(line)?;
                    bar.set_position((reached + 1).saturating_sub(first));
                    continue;
                }
                found.extend_from_slice(line);
                found.push(b'\n');
                records += 1;
            }
            match &mut file {
                Some(part) => part.write(&found)?,
                None => print(&found)?,
            }
        }
        bar.finish_and_clear();
        if let Some(part) = file {
            let path = part.finish()?;
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "{} records in {}", thousands(records), path.display());
        }
        Ok(())
    }
}

/// A file that has its name only when it is whole; what there is of it goes with the value.
struct Part<'a> {
    file: File,
    path: PathBuf,
    wanted: &'a Path,
}

impl<'a> Part<'a> {
    fn create(wanted: &'a Path) -> Result<Self, Failure> {
        if wanted.symlink_metadata().is_ok() {
            return Err(cannot("make", wanted, &rustix::io::Errno::EXIST.into()));
        }
        let mut path = wanted.as_os_str().to_owned();
        // One that a killed export has left is not in the way of the next.
        path.push(format!(".{}.part", std::process::id()));
        let path = PathBuf::from(path);
        let created = File::options().write(true).create_new(true).open(&path);
        let file = created.map_err(|error| cannot("make", &path, &error))?;
        Ok(Self { file, path, wanted })
    }

    fn write(&mut self, block: &[u8]) -> Result<(), Failure> {
        self.file.write_all(block).map_err(|error| cannot("write to", &self.path, &error))
    }

    fn finish(self) -> Result<&'a Path, Failure> {
        self.file.sync_all().map_err(|error| cannot("sync", &self.path, &error))?;
        // Unlike a renaming, this does not replace what somebody else has made meanwhile. The part's own name goes with the value.
        let linked = fs::hard_link(&self.path, self.wanted).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Err(error),
            // Not every volume has links.
            _ => fs::rename(&self.path, self.wanted),
        });
        linked.map_err(|error| cannot("make", self.wanted, &error))?;
        Ok(self.wanted)
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        // If it cannot be removed, its name still says what it is.
        let _ = fs::remove_file(&self.path);
    }
}

fn cannot(operation: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot {operation} {}: {error}", path.display()))
}
