//! `kubetide tail`: changes as they come, one line each.

use std::io::{self, Write as _};

use anstyle::Style as Ansi;
use clap::Args;
use jiff::{civil::Date, tz::TimeZone};
use kubetide_sink::format::Style;

use super::{
    Failure,
    counter::{Counter, Source, lines, print, read},
    receipt::Receipt,
    when,
};
use crate::api::{Changes, Point, Question, Words};

/// What is shown of the past if nothing is said about it.
const LINES: usize = 10;
/// Text is written when it has grown to this while more is waiting, so that a long past is not a write per line.
const WRITE_BYTES: usize = 64 * 1024;
/// Diffs stand under the stream's name.
const DIFF_MARGIN: usize = 11;

/// Show changes as they come
///
/// One line per change: when, what (+ created, ~ updated, - deleted, · snapshot, ! gap), stream, object, and the edit that
/// matters most with its old and new value. Old values are shown where they are known: of objects that have passed by, and of
/// those that fit into a small memory at the start. Ends with Ctrl-C. If no process runs, shows what the files have.
#[derive(Args)]
#[command(after_help = "Examples:
  kubetide tail --config kubetide.yaml
  kubetide tail --config kubetide.yaml --stream deployments --class spec --diff
  kubetide tail --data-dir ./kubetide-data --since 10m --op delete --output json

Colours are left out in a pipe and with NO_COLOR.")]
pub(super) struct Tail {
    #[command(flatten)]
    counter: Counter,
    /// Show the whole patch under each line
    #[arg(long)]
    diff: bool,
    /// Only these streams: apps/deployments, or deployments
    #[arg(long, value_name = "STREAM", value_delimiter = ',', value_parser = when::word)]
    stream: Vec<String>,
    /// Only objects in these namespaces
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = when::word)]
    namespace: Vec<String>,
    /// Only objects with these names
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = when::word)]
    name: Vec<String>,
    /// Only these: snapshot, create, update, delete, gap, …
    #[arg(long, value_name = "OP", value_delimiter = ',', value_parser = when::word)]
    op: Vec<String>,
    /// Only changes of these parts: spec, status, metadata, data, other
    #[arg(long, value_name = "CLASS", value_delimiter = ',', value_parser = when::word)]
    class: Vec<String>,
    /// Begin with what was seen since then: a time, 10m ago, or a seq
    #[arg(long, value_name = "TIME|SEQ", value_parser = when::point)]
    since: Option<Point>,
    /// Begin with the last N changes that match [default: 10, or all with --since]
    #[arg(long, value_name = "N")]
    lines: Option<u16>,
    /// End when everything that is there has been shown
    #[arg(long)]
    no_follow: bool,
}

impl Tail {
    pub(super) fn run(self) -> Result<(), Failure> {
        self.counter.serve(|source| self.follow(source))
    }

    async fn follow(&self, source: Source) -> Result<(), Failure> {
        let follow = source.is_live() && !self.no_follow;
        if !source.is_live() && !self.no_follow {
            note("no process runs on this data directory: this is what its files have");
        }
        let words = |words: &[String]| Words(words.to_vec());
        let question = Question::Changes(Box::new(Changes {
            from: self.since,
            stream: words(&self.stream),
            namespace: words(&self.namespace),
            name: words(&self.name),
            op: words(&self.op),
            class: words(&self.class),
            last: self.lines.map(usize::from).or(self.since.is_none().then_some(LINES)),
            follow,
            was: !self.counter.is_json(),
            ..Changes::default()
        }));
        let mut answer = source.ask(question).await?;
        let mut screen = Screen::new(self);
        while let Some(block) = answer.next().await {
            screen.show(&block?)?;
            while screen.text.len() < WRITE_BYTES {
                match answer.ready() {
                    Some(block) => screen.show(&block?)?,
                    None => break,
                }
            }
            screen.write()?;
        }
        if follow {
            note("the process has stopped");
        }
        Ok(())
    }
}

/// On standard error, where it does not mix with changes.
fn note(text: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(io::stderr(), "{text}");
}

/// What is to be written, and how.
struct Screen {
    json: bool,
    diff: bool,
    style: Style,
    counter: Counter,
    zone: TimeZone,
    /// The day of the last line: another one is told.
    day: Date,
    text: Vec<u8>,
}

impl Screen {
    fn new(tail: &Tail) -> Self {
        let plain = anstream::AutoStream::choice(&io::stdout()) == anstream::ColorChoice::Never;
        let zone = TimeZone::system();
        Self {
            json: tail.counter.is_json(),
            diff: tail.diff,
            style: if plain { Style::Plain } else { Style::Coloured },
            counter: tail.counter.clone(),
            day: tail.counter.now().to_zoned(zone.clone()).date(),
            zone,
            text: Vec::new(),
        }
    }

    fn show(&mut self, block: &bytes::Bytes) -> Result<(), Failure> {
        if self.json {
            self.text.extend_from_slice(block);
            return Ok(());
        }
        // Asked each time: windows are resized.
        let columns = self.counter.columns().unwrap_or(usize::MAX);
        for line in lines(block) {
            let receipt: Receipt<'_> = read(line)?;
            let day = receipt.observed_at.to_zoned(self.zone.clone()).date();
            if day != self.day {
                self.day = day;
                let faint = if self.style == Style::Coloured { Ansi::new().dimmed() } else { Ansi::new() };
                self.text.extend_from_slice(format!("{faint}── {day}{faint:#}\n").as_bytes());
            }
            self.text.extend_from_slice(receipt.line(&self.zone, self.style, columns).as_bytes());
            self.text.push(b'\n');
            if self.diff {
                self.text.extend_from_slice(receipt.diff(DIFF_MARGIN, self.style, columns).as_bytes());
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), Failure> {
        print(&self.text)?;
        self.text.clear();
        Ok(())
    }
}
