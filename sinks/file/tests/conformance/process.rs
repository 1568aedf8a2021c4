//! A process with a sink in it. Batches come in by its standard input, a line each; answers go out by its standard error.

use std::{
    io::{self, BufRead as _, PipeWriter},
    process::{Child, Command, Stdio},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide_sink::{Batch, Body, Decision, Format, Id, Record, Sink, SinkError, sample};
use kubetide_sink_file::{FileConfig, FileSink, Rotate, StdoutSink};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{ChildStderr, ChildStdin},
};

/// The variable of the environment that makes this program such a process: the path of a file, or nothing for standard output.
pub(crate) const PLACE: &str = "KUBETIDE_TEST_PLACE";

/// What it says when the sink is open.
const OPEN: &str = "open";

/// What of a batch differs from one to the next. The rest is as in every sample.
#[derive(Serialize, Deserialize)]
struct Sent {
    id: Id,
    from: u64,
    to: u64,
    records: Vec<SentRecord>,
}

#[derive(Serialize, Deserialize)]
struct SentRecord {
    seq: u64,
    name: String,
    object: String,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    failed: Option<Failed>,
}

#[derive(Serialize, Deserialize)]
struct Failed {
    decision: String,
    durable: usize,
    message: String,
}

impl SentRecord {
    fn of(record: &Record) -> Self {
        let Body::Change(change) = &record.body else { panic!("the suite delivers changes") };
        let object = change.object.as_deref().map(<[u8]>::to_vec).unwrap();
        let sent = Self { seq: record.seq, name: change.name.clone(), object: String::from_utf8(object).unwrap() };
        assert_eq!(&sent.record(), record, "the other end makes another record of it");
        sent
    }

    fn record(&self) -> Record {
        let mut record = sample::record(self.seq, self.object.clone());
        let Body::Change(change) = &mut record.body else { unreachable!("a sample is a change") };
        change.name.clone_from(&self.name);
        record
    }
}

/// Delivers what comes, until nothing comes any more.
pub(crate) fn serve(place: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut sink: Box<dyn Sink> = match place {
        "" => Box::new(StdoutSink::new(Format::Native)),
        path => {
            let config = FileConfig { path: path.into(), rotate: Rotate::default() };
            Box::new(FileSink::open(&config, sample::terms("lines")).unwrap())
        }
    };
    eprintln!("{OPEN}");
    for line in io::stdin().lock().lines() {
        let sent: Sent = serde_json::from_str(&line.unwrap()).unwrap();
        let records = sent.records.iter().map(SentRecord::record).collect();
        let batch = Batch { id: sent.id, from: sent.from, to: sent.to, records };
        let came = runtime.block_on(sink.deliver(&batch, None));
        let failed = came.err().map(|SinkError { durable, decision, message }| {
            let decision = decision.as_str().to_owned();
            Failed { decision, durable, message }
        });
        eprintln!("{}", serde_json::to_string(&Answer { failed }).unwrap());
    }
}

/// Starts such a process, which writes to this file, or to the pipe, and waits until its sink is open.
pub(crate) async fn start(path: Option<&str>, stdout: Option<PipeWriter>) -> (Child, Remote) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(PLACE, path.unwrap_or_default()).stdin(Stdio::piped()).stderr(Stdio::piped());
    command.stdout(stdout.map_or(Stdio::null(), Stdio::from));
    let mut child = command.spawn().unwrap();
    let batches = ChildStdin::from_std(child.stdin.take().unwrap()).unwrap();
    let answers = BufReader::new(ChildStderr::from_std(child.stderr.take().unwrap()).unwrap());
    let mut remote = Remote { batches, answers };
    assert_eq!(remote.answer().await, OPEN);
    (child, remote)
}

/// The sink in the other process.
pub(crate) struct Remote {
    batches: ChildStdin,
    answers: BufReader<ChildStderr>,
}

impl Remote {
    async fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }
}

#[async_trait]
impl Sink for Remote {
    async fn deliver(&mut self, batch: &Batch, _: Option<&Bytes>) -> Result<(), SinkError> {
        let Batch { id, from, to, ref records } = *batch;
        let records = records.iter().map(SentRecord::of).collect();
        let mut line = serde_json::to_string(&Sent { id, from, to, records }).unwrap();
        line.push('\n');
        self.batches.write_all(line.as_bytes()).await.unwrap();
        let answer = self.answer().await;
        let answer: Answer = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("no answer: {answer}"));
        answer.failed.map_or(Ok(()), |Failed { decision, durable, message }| {
            let all = [Decision::Split, Decision::Oversize, Decision::Poison, Decision::Hold, Decision::Fatal];
            let of_word = all.into_iter().find(|known| known.as_str() == decision);
            let decision = of_word.unwrap_or(Decision::Retry { after: Some(Duration::ZERO) });
            Err(SinkError { durable, decision, message })
        })
    }
}
