//! `kubetide objects`: the last known state of every object.

use clap::{Args, Subcommand};

use super::{
    Failure,
    counter::{Counter, Source, lines, print, read},
    table::Table,
    when,
};
use crate::api::{self, Question, Words, item};

/// Rows whose columns are brought into line together: an answer of any length is printed as it comes.
const ROWS: usize = 1_000;

/// Show objects as they were logged last
#[derive(Args)]
pub(super) struct Objects {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print one object
    #[command(
        after_help = "Examples:\n  kubetide objects get apps/deployments default/web --config kubetide.yaml\n  kubetide objects get nodes node-1 --data-dir ./kubetide-data --output json"
    )]
    Get {
        /// The stream: apps/deployments, or deployments
        #[arg(value_parser = when::word)]
        stream: String,
        /// The object: NAMESPACE/NAME, or NAME where it has no namespace
        #[arg(value_name = "[NAMESPACE/]NAME", value_parser = when::word)]
        object: String,
        #[command(flatten)]
        counter: Counter,
    },
    /// List the objects
    #[command(
        after_help = "Example:\n  kubetide objects list --config kubetide.yaml --stream pods --namespace default"
    )]
    List {
        /// Only these streams: apps/deployments, or deployments
        #[arg(long, value_name = "STREAM", value_delimiter = ',', value_parser = when::word)]
        stream: Vec<String>,
        /// Only these namespaces
        #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', value_parser = when::word)]
        namespace: Vec<String>,
        #[command(flatten)]
        counter: Counter,
    },
}

impl Objects {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.command {
            Command::Get { stream, object, counter } => {
                let wanted =
                    api::Objects { stream: Words(vec![stream]), object: Some(object), ..api::Objects::default() };
                counter.serve(|source| get(&counter, source, wanted))
            }
            Command::List { stream, namespace, counter } => {
                let wanted = api::Objects { stream: Words(stream), namespace: Words(namespace), object: None };
                counter.serve(|source| list(&counter, source, wanted))
            }
        }
    }
}

async fn get(counter: &Counter, source: Source, wanted: api::Objects) -> Result<(), Failure> {
    for found in source.items::<item::Object>(Question::Objects(wanted)).await? {
        let Some(object) = found.object else {
            return Err(Failure::Failed(format!(
                "the last state of {} could not be read by kubetide, and is not kept; see record {}",
                found.name, found.seq
            )));
        };
        if counter.is_json() {
            print(object.get().as_bytes())?;
            return print(b"\n");
        }
        print(pretty(object.get())?.as_bytes())?;
    }
    Ok(())
}

/// Indented, in the order of the object's own keys, and with nothing that a terminal would act on.
pub(super) fn pretty(json: &str) -> Result<String, Failure> {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    let mut rest = json.chars().peekable();
    while let Some(c) = rest.next() {
        if in_text {
            in_text = escaped || c != '"';
            escaped = !escaped && c == '\\';
            out.push(c);
            continue;
        }
        match c {
            '{' | '[' => {
                out.push(c);
                while rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                if let Some(close) = rest.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(close);
                    continue;
                }
                depth += 1;
                new_line(&mut out, depth);
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => {
                in_text = c == '"';
                out.push(c);
            }
        }
    }
    let lines = out.lines().map(|line| kubetide_sink::format::shown(line) + "\n");
    Ok(lines.collect())
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.push_str(&"  ".repeat(depth));
}

async fn list(counter: &Counter, source: Source, wanted: api::Objects) -> Result<(), Failure> {
    if counter.is_json() {
        return source.print_json(Question::Objects(wanted)).await;
    }
    let now = counter.now();
    let mut table = Table::new(&["STREAM", "NAMESPACE", "NAME", ">VERSION", ">AGE", ">SEQ"]);
    let mut rows = 0;
    let mut answer = source.ask(Question::Objects(wanted)).await?;
    while let Some(block) = answer.next().await {
        for line in lines(&block?) {
            let object: item::Object = read(line)?;
            let age = when::since(object.observed_at, now);
            let item::Object { stream, namespace, name, resource_version, seq, .. } = object;
            let namespace = if namespace.is_empty() { "-".into() } else { namespace };
            table.row([stream, namespace, name, resource_version, age, seq.to_string()]);
            rows += 1;
            if rows == ROWS {
                print(table.text(counter.table_columns()).as_bytes())?;
                rows = 0;
            }
        }
    }
    print(table.text(counter.table_columns()).as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn pretty_keeps_order_spelling_and_meaning_and_shows_what_a_terminal_would_act_on() {
        let json = r#"{"z":1.50,"a":{},"t":"x\",{[:\\","l":[1, [ ],{"k":null}],"u":"é"}"#;
        let text = pretty(json).unwrap();
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&text), value(json));
        assert!(text.starts_with("{\n  \"z\": 1.50,\n  \"a\": {},\n"), "{text}");
        assert!(!pretty("{\"a\":\"\u{9b}2J\"}").unwrap().contains('\u{9b}'));
    }
}
