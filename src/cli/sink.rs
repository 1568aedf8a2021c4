//! `kubetide sink`: how far the sinks are, and what they are to be given again.

mod dead_letter;

use clap::{Args, Subcommand};

use super::{
    Failure,
    counter::{Counter, Source, print},
    table::Table,
    when,
};
use crate::{
    api::{Demand, Point, Question, item},
    vitals::thousands,
};

/// Show the sinks, and deliver again what they have lost
#[derive(Args)]
pub(super) struct Sink {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show how far each sink is
    #[command(after_help = "Example:\n  kubetide sink list --config kubetide.yaml")]
    List {
        #[command(flatten)]
        counter: Counter,
    },
    /// Deliver again from a record or a time on
    #[command(
        after_help = "Examples:\n  kubetide sink replay audit --config kubetide.yaml --from 1042\n  kubetide sink replay audit --config kubetide.yaml --since 2h"
    )]
    Replay {
        /// The sink
        name: String,
        /// The first record to deliver again
        #[arg(long, value_name = "SEQ", required_unless_present = "since", conflicts_with = "since", value_parser = when::seq_not_time)]
        from: Option<u64>,
        /// Deliver again what was observed since then: a time, or 10m, 2h, 1d ago
        #[arg(long, value_name = "TIME", value_parser = when::time)]
        since: Option<jiff::Timestamp>,
        #[command(flatten)]
        counter: Counter,
    },
    /// Deliver every known object again, as to a new sink
    #[command(after_help = "Example:\n  kubetide sink resnapshot audit --config kubetide.yaml")]
    Resnapshot {
        /// The sink
        name: String,
        #[command(flatten)]
        counter: Counter,
    },
    DeadLetter(dead_letter::DeadLetter),
}

impl Sink {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::List { counter } => counter.serve(|source| list(&counter, source)),
            Command::Replay { name, from, since, counter } => {
                let from = from.map(Point::Seq).or(since.map(Point::At)).unwrap_or(Point::Seq(0));
                counter.serve(|source| demand(&counter, source, Demand::Replay { sink: name, from }))
            }
            Command::DeadLetter(dead_letter) => dead_letter.run(),
            Command::Resnapshot { name, counter } => {
                counter.serve(|source| demand(&counter, source, Demand::Resnapshot { sink: name }))
            }
        }
    }
}

async fn list(counter: &Counter, source: Source) -> Result<(), Failure> {
    if counter.is_json() {
        return source.print_json(Question::Sinks).await;
    }
    let mut table = Table::new(&["NAME", ">ACKNOWLEDGED", ">HEAD", ">LAG", ">BEHIND", "STATE"]);
    for sink in source.items::<item::Sink>(Question::Sinks).await? {
        let state = match sink.state {
            item::State::Following => "following the log",
            item::State::CatchingUp => "catching up",
            item::State::Detached => "detached",
        };
        table.row([
            sink.name,
            sink.acknowledged.to_string(),
            sink.head.to_string(),
            thousands(sink.lag_records),
            sink.waiting_since.map_or("-".into(), |since| when::since(since, counter.now())),
            state.into(),
        ]);
    }
    print(table.text(counter.table_columns()).as_bytes())
}

async fn demand(counter: &Counter, source: Source, demand: Demand) -> Result<(), Failure> {
    let done = source.demand(demand).await?;
    print_done(counter, &done)
}

/// What was done, for people or for machines.
pub(super) fn print_done(counter: &Counter, done: &item::Done) -> Result<(), Failure> {
    if counter.is_json() {
        let mut line = serde_json::to_vec(done).map_err(|error| Failure::Failed(error.to_string()))?;
        line.push(b'\n');
        return print(&line);
    }
    let text = match done {
        item::Done::Replaying { sink, from } => format!("sink {sink} is delivered to again from seq {from} on"),
        item::Done::Resnapshotting { sink } => format!("sink {sink} is given every known object again"),
        item::Done::ReplayingLetters { sink, letters, left } => {
            let is = if *letters == 1 { "dead letter is" } else { "dead letters are" };
            let left = match left {
                0 => String::new(),
                left => format!(
                    "; {left} stay: control records mean something only at their place in the log, `kubetide sink resnapshot {sink}` gives the state of everything"
                ),
            };
            format!("{} {is} delivered to sink {sink} again{left}", thousands(*letters))
        }
        item::Done::Purged(item::Purged { segments, bytes, records, oldest, kept }) => {
            let kept = kept.as_ref().map(|why| format!("; the rest is kept: {why}")).unwrap_or_default();
            let (bytes, records) = (super::table::bytes(*bytes), thousands(*records));
            format!("removed {segments} segments, {records} records, {bytes}; the oldest record is {oldest}{kept}")
        }
    };
    print(format!("{text}\n").as_bytes())
}
