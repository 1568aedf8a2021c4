//! `kubetide log`: the change log and its files.

mod export;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::tz::TimeZone;
use kubetide_sink::format::Style;

use super::{
    Failure,
    counter::{Counter, Source, lines, print, read},
    objects::pretty,
    receipt::Receipt,
    sink::print_done,
    table::{Table, bytes},
    when,
};
use crate::{
    api::{Changes, Demand, Point, Question, item},
    changelog::{Inspected, hours_of},
    vitals::thousands,
};

/// Show, export, check and shorten the change log
#[derive(Args)]
pub(super) struct Log {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the files of the log, and how long it lasts
    #[command(after_help = "Example:\n  kubetide log list --config kubetide.yaml")]
    List {
        #[command(flatten)]
        counter: Counter,
    },
    /// Show one record, with its patch as a diff
    #[command(after_help = "Example:\n  kubetide log show 1042 --config kubetide.yaml")]
    Show {
        /// The record
        #[arg(value_parser = when::seq)]
        seq: u64,
        #[command(flatten)]
        counter: Counter,
    },
    Export(Box<export::Export>),
    /// Read every file of the log and check that it is whole
    #[command(
        after_help = "Example:\n  kubetide log verify --config kubetide.yaml\n\nExits with 1 if a file is damaged."
    )]
    Verify {
        #[command(flatten)]
        counter: Counter,
    },
    /// Remove whole files whose records are all before a place
    #[command(
        after_help = "Example:\n  kubetide log purge --before 7d --config kubetide.yaml --yes\n\nWhat a sink has not acknowledged stays. Without --yes it only says what would go."
    )]
    Purge {
        /// The first record to keep: a seq, a time, or 10m, 2h, 1d ago
        #[arg(long, value_name = "SEQ|TIME", value_parser = when::point)]
        before: Point,
        /// Do it
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        counter: Counter,
    },
}

impl Log {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::List { counter } => counter.serve(|source| list(&counter, source)),
            Command::Show { seq, counter } => counter.serve(|source| show(&counter, source, seq)),
            Command::Export(export) => export.run(),
            Command::Verify { counter } => counter.serve_damaged(|source| verify(&counter, source)),
            Command::Purge { before, yes, counter } => counter.serve(|source| purge(&counter, source, before, yes)),
        }
    }
}

/// The whole log in one item.
async fn log_of(source: &Source) -> Result<item::Log, Failure> {
    let logs = source.items::<item::Log>(Question::Log).await?;
    logs.into_iter().next().ok_or_else(|| Failure::Failed("the answer is empty".into()))
}

async fn list(counter: &Counter, source: Source) -> Result<(), Failure> {
    if counter.is_json() {
        return source.print_json(Question::Log).await;
    }
    let log = log_of(&source).await?;
    let mut table = Table::new(&["SEGMENT", ">FIRST", ">LAST", ">SIZE", "FROM"]);
    for item::Segment { info, first_at } in &log.segments {
        let is_empty = info.last_seq < info.first_seq;
        table.row([
            info.file.clone(),
            info.first_seq.to_string(),
            if is_empty { "-".into() } else { info.last_seq.to_string() },
            bytes(info.bytes),
            first_at.map_or("-".into(), when::told),
        ]);
    }
    print(format!("{}\n{}", table.text(counter.table_columns()), summary(counter, &log)).as_bytes())
}

fn summary(counter: &Counter, log: &item::Log) -> String {
    let mut text = format!("log      {}\n", log.log_id);
    let records = (log.head + 1).saturating_sub(log.oldest);
    let range = if records == 0 { String::new() } else { format!(", {} to {}", log.oldest, log.head) };
    text.push_str(&format!("records  {}{range}\nsize     {}\n", thousands(records), bytes(log.bytes)));
    for (name, at) in [("oldest", log.oldest_at), ("newest", log.newest_at)] {
        if let Some(at) = at {
            text.push_str(&format!("{name:<9}{} ({} ago)\n", when::told(at), when::since(at, counter.now())));
        }
    }
    text.push_str(&format!("lasts    {}\n", lasts(counter, log)));
    text
}

/// How long a log of the allowed size reaches back at the rate of what it holds; as the metric has it, from the oldest record
/// until now.
fn lasts(counter: &Counter, log: &item::Log) -> String {
    let Some(max_bytes) = log.max_bytes else { return "unknown without --config: log.max_bytes is not known".into() };
    let hours = log.oldest_at.and_then(|oldest| hours_of(max_bytes, log.bytes, oldest, counter.now()));
    let Some(hours) = hours else {
        return format!("not known yet; log.max_bytes is {}", bytes(max_bytes));
    };
    let rate = max_bytes as f64 / hours / 3_600.0;
    let hours = if hours < 10.0 { format!("{hours:.1}") } else { thousands(hours as u64) };
    format!("{hours} h in log.max_bytes = {} at {}/s", bytes(max_bytes), bytes(rate as u64))
}

async fn show(counter: &Counter, source: Source, seq: u64) -> Result<(), Failure> {
    let point = Some(Point::Seq(seq));
    let changes = Changes { from: point, to: point, was: !counter.is_json(), ..Changes::default() };
    let question = Question::Changes(Box::new(changes));
    if counter.is_json() {
        return source.print_json(question).await;
    }
    let plain = anstream::AutoStream::choice(&std::io::stdout()) == anstream::ColorChoice::Never;
    let style = if plain { Style::Plain } else { Style::Coloured };
    let columns = counter.columns().unwrap_or(usize::MAX);
    let mut answer = source.ask(question).await?;
    while let Some(block) = answer.next().await {
        for line in lines(&block?) {
            let receipt: Receipt<'_> = read(line)?;
            let head = receipt.line(&TimeZone::system(), style, columns);
            let diff = receipt.diff(2, style, columns);
            let text = String::from_utf8_lossy(line);
            print(format!("{head}\n{diff}\n{}", pretty(&without_was(&text))?).as_bytes())?;
        }
    }
    Ok(())
}

/// The record itself: the old values were added to it for the diff, as its last member.
fn without_was(line: &str) -> std::borrow::Cow<'_, str> {
    // In a text a quote is escaped, so that this stands nowhere but between members.
    match line.rfind(",\"was\":[") {
        Some(at) if serde_json::from_str::<serde::de::IgnoredAny>(&format!("{}}}", &line[..at])).is_ok() => {
            format!("{}}}", &line[..at]).into()
        }
        _ => line.into(),
    }
}

/// On standard error, and only if that is a terminal.
fn bar(total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_style(style)
}

async fn verify(counter: &Counter, source: Source) -> Result<(), Failure> {
    let log = log_of(&source).await?;
    let bar = bar(log.bytes, "checking {wide_bar} {binary_bytes} of {binary_total_bytes}, {eta} left");
    let mut answer = source.ask(Question::Verify).await?;
    let mut table = Table::new(&["SEGMENT", ">FRAMES", ">RECORDS", ">SIZE", "STATE"]);
    let (mut damages, mut json) = (Vec::new(), Vec::new());
    while let Some(block) = answer.next().await {
        let block = block?;
        json.extend_from_slice(&block);
        for line in lines(&block) {
            let Inspected { file, bytes: size, frames, records, damage } = read(line)?;
            bar.inc(size);
            let state = if damage.is_some() { "damaged" } else { "whole" };
            table.row([file, thousands(frames), thousands(records), bytes(size), state.into()]);
            damages.extend(damage);
        }
    }
    // What lies behind everything that was built on is not looked at for the report.
    if let Some(refused) = source.refused()
        && !damages.contains(&refused)
    {
        damages.push(refused);
    }
    bar.finish_and_clear();
    if counter.is_json() {
        print(&json)?
    } else {
        print(table.text(counter.table_columns()).as_bytes())?
    }
    let told = damages
        .iter()
        .map(|damage| format!("{} is damaged at byte {}: {}", damage.path.display(), damage.offset, damage.problem));
    let told: Vec<String> = told.collect();
    if told.is_empty() { Ok(()) } else { Err(Failure::Failed(told.join("; "))) }
}

async fn purge(counter: &Counter, source: Source, before: Point, yes: bool) -> Result<(), Failure> {
    if yes {
        return print_done(counter, &source.demand(Demand::Purge { before }).await?);
    }
    let log = log_of(&source).await?;
    let goes = |(index, segment): (usize, &item::Segment)| {
        let next = log.segments.get(index + 1)?;
        let is_before = match before {
            Point::Seq(seq) => segment.info.last_seq < seq,
            // All of it was observed before its successor began.
            Point::At(at) => next.first_at.is_some_and(|next| next <= at),
        };
        is_before.then_some(segment.info.bytes)
    };
    let sizes: Vec<u64> = log.segments.iter().enumerate().map_while(goes).collect();
    let (count, size) = (sizes.len(), bytes(sizes.iter().sum()));
    Err(Failure::Usage(format!(
        "this would remove up to {count} of {} segments ({size}) for good; add --yes to do it",
        log.segments.len()
    )))
}
