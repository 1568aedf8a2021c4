//! `kubetide sink dead-letter`: what a receiver has refused for good, and how it is given that again.

use clap::{Args, Subcommand};

use super::demand;
use crate::{
    api::{Demand, Question, item::Aside},
    cli::{
        Failure,
        counter::{Counter, Source, lines, print, read},
        table::Table,
        when,
    },
    delivery::Outline,
};

/// Rows whose columns are brought into line together: an answer of any length is printed as it comes.
const ROWS: usize = 1_000;

/// Show the records that a receiver has refused for good, and deliver them again
#[derive(Args)]
pub(super) struct DeadLetter {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the dead letters of a sink
    #[command(
        after_help = "Examples:\n  kubetide sink dead-letter list audit --config kubetide.yaml\n  kubetide sink dead-letter list audit --config kubetide.yaml --output json | jq .record"
    )]
    List {
        /// The sink
        name: String,
        #[command(flatten)]
        counter: Counter,
    },
    /// Deliver dead letters again, when what they were refused for is mended
    #[command(
        after_help = "Examples:\n  kubetide sink dead-letter replay audit --config kubetide.yaml\n  kubetide sink dead-letter replay audit --config kubetide.yaml --seq 1042 --seq 1107\n\nWhat is refused again is a dead letter again."
    )]
    Replay {
        /// The sink
        name: String,
        /// Only those of this record, as often as you like; all if not given
        #[arg(long, value_name = "SEQ", value_parser = when::seq)]
        seq: Vec<u64>,
        #[command(flatten)]
        counter: Counter,
    },
}

impl DeadLetter {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::List { name, counter } => counter.serve(|source| list(&counter, source, name)),
            Command::Replay { name, mut seq, counter } => {
                seq.sort_unstable();
                seq.dedup();
                counter.serve(|source| demand(&counter, source, Demand::ReplayLetters { sink: name, seqs: seq }))
            }
        }
    }
}

/// What was found besides letters.
#[derive(Default)]
struct Besides {
    letters: u64,
    foreign: u64,
}

async fn list(counter: &Counter, source: Source, sink: String) -> Result<(), Failure> {
    let mut table = Table::new(&["AT", ">SEQ", "OP", "STREAM", "OBJECT", "REASON"]);
    let mut besides = Besides::default();
    let mut rows = 0;
    let mut answer = source.ask(Question::Letters(sink.clone())).await?;
    while let Some(block) = answer.next().await {
        let block = block?;
        let mut letters = Vec::new();
        for line in lines(&block) {
            if besides.notes(line) {
                continue;
            }
            besides.letters += 1;
            if counter.is_json() {
                letters.extend_from_slice(line);
                letters.push(b'\n');
                continue;
            }
            table.row(row(read(line)?));
            rows += 1;
            if rows == ROWS {
                print(table.text(counter.table_columns()).as_bytes())?;
                rows = 0;
            }
        }
        print(&letters)?;
    }
    if !counter.is_json() {
        print(table.text(counter.table_columns()).as_bytes())?;
    }
    if besides.letters == 0 {
        anstream::eprintln!("sink {sink} has no dead letters");
    }
    match besides.foreign {
        0 => Ok(()),
        foreign => {
            Err(Failure::Failed(format!("{foreign} lines in the files are not dead letters; all others were listed")))
        }
    }
}

impl Besides {
    /// Says what is no letter. Whether it is none.
    fn notes(&mut self, line: &[u8]) -> bool {
        // A letter begins otherwise, and may be large.
        if line.starts_with(b"{\"at\"") {
            return false;
        }
        match serde_json::from_slice(line) {
            Ok(Aside::Unread { file, line, problem, torn }) => {
                let also = if torn { ": a crash has left it, or it is just being written" } else { "" };
                anstream::eprintln!("{file}:{line}: {problem}{also}");
                self.foreign += u64::from(!torn);
            }
            Ok(Aside::Replaying { letters }) => anstream::eprintln!("{letters} more are being delivered again"),
            Err(_) => return false,
        }
        true
    }
}

fn row(letter: Outline) -> [String; 6] {
    let Outline { at, reason, record, .. } = letter;
    let object = match (record.namespace.as_str(), record.name.as_str()) {
        (_, "") => "-".into(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    let stream = record.stream.unwrap_or_else(|| "*".into());
    [when::told(at), record.log.seq.to_string(), record.op, stream, object, reason]
}
