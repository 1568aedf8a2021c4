//! `kubetide log export`: records as NDJSON, into a file or a pipe.

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
};

use clap::Args;

use super::{bar, log_of};
use crate::{
    api::{Changes, Point, Question, Words},
    cli::{
        Failure,
        counter::{Counter, Source, lines, print},
        when,
    },
    vitals::thousands,
};

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
    #[arg(long, value_name = "STREAM", value_delimiter = ',')]
    stream: Vec<String>,
    /// Only these objects; a name alone is that name in any namespace
    #[arg(long, value_name = "[NAMESPACE/]NAME", value_delimiter = ',')]
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
            ..Changes::default()
        }));
        let mut answer = source.ask(question).await?;
        // After the question: a wrong one leaves no file behind.
        let mut file = self.create()?;
        let seq = |point: Option<Point>| match point {
            Some(Point::Seq(seq)) => Some(seq),
            _ => None,
        };
        let first = seq(self.from).unwrap_or(log.oldest);
        let last = seq(self.to).unwrap_or(log.head);
        let template = "exporting {wide_bar} {human_pos} of {human_len} records, {eta} left";
        let bar = bar((last + 1).saturating_sub(first), template);
        let on_terminal = file.is_none() && io::stdout().is_terminal();
        let mut records = 0;
        while let Some(block) = answer.next().await {
            let block = block?;
            match &mut file {
                Some((path, file)) => file.write_all(&block).map_err(|error| cannot("write to", path, &error))?,
                None => print(&block)?,
            }
            records += lines(&block).count() as u64;
            if let Some(seq) = lines(&block).last().and_then(seq_of).filter(|_| !on_terminal) {
                bar.set_position((seq + 1).saturating_sub(first));
            }
        }
        bar.finish_and_clear();
        if let Some((path, file)) = file {
            file.sync_all().map_err(|error| cannot("sync", &path, &error))?;
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "{} records in {}", thousands(records), path.display());
        }
        Ok(())
    }

    fn create(&self) -> Result<Option<(PathBuf, File)>, Failure> {
        let Some(path) = &self.file else { return Ok(None) };
        let created = File::options().write(true).create_new(true).open(path);
        created.map(|file| Some((path.clone(), file))).map_err(|error| cannot("make", path, &error))
    }
}

fn cannot(operation: &str, path: &std::path::Path, error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot {operation} {}: {error}", path.display()))
}

/// Where a record is in the log: near the beginning of its line.
fn seq_of(line: &[u8]) -> Option<u64> {
    let at = memchr::memmem::find(line, b"\"seq\":")? + 6;
    let digits = line[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |seq: u64, digit| seq.saturating_mul(10).saturating_add(u64::from(digit - b'0'))))
}
