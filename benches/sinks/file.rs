//! `type: file`, beside a loop that appends the same lines, batch by batch, and syncs each.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    time::Instant,
};

use kubetide_sink::{Format, Sink};
use kubetide_sink_file::{FileConfig, FileSink, Rotate};

use crate::{
    delivery::{deliver, terms},
    full_log::FullLog,
    rounds::{Lap, ROUNDS, Side, compare},
    usual_limits,
};

/// The percentage of the plain loop that the sink is to reach.
const TARGET: f64 = 80.0;

struct Part {
    records: usize,
    lines: Vec<u8>,
}

pub(crate) async fn measure(log: &FullLog) {
    let batches = log.batches(usual_limits()).await;
    let parts = batches.into_iter().map(|batch| {
        let mut lines = Vec::new();
        for record in &batch.records {
            Format::Native.write(record, &mut lines);
            lines.push(b'\n');
        }
        Part { records: batch.records.len(), lines }
    });
    let parts: Vec<Part> = parts.collect();
    let directory = tempfile::tempdir().unwrap();
    let (mut ours, mut other) = (Side::new("kubetide"), Side::new("write and fdatasync"));
    for round in 0..ROUNDS {
        let [sink, plain] = ["sink", "plain"].map(|side| directory.path().join(format!("{side}-{round}")));
        let terms = terms(&format!("file-{round}"), false);
        ours.add(&deliver(log, open(&sink), &terms, usual_limits()).await);
        other.add(&tokio::task::block_in_place(|| write(&plain, &parts)));
        assert!(fs::read(&sink).unwrap() == fs::read(&plain).unwrap(), "both sides have written the same");
        for path in [sink, plain] {
            fs::remove_file(path).unwrap();
        }
    }
    let title = format!("file: {} batches of up to 500 records or 1 MiB", parts.len());
    compare(&title, &ours, &other, log.bytes_per_record, TARGET);
}

pub(crate) fn open(path: &Path) -> Box<dyn Sink> {
    let config = FileConfig { path: PathBuf::from(path), rotate: Rotate::default() };
    Box::new(FileSink::open(&config, terms("file", false)).unwrap())
}

fn write(path: &Path, parts: &[Part]) -> Lap {
    let mut file = File::options().append(true).create_new(true).open(path).unwrap();
    let mut append = |part: &Part| {
        file.write_all(&part.lines).unwrap();
        file.sync_data().unwrap();
    };
    append(&parts[0]);
    let begun = Instant::now();
    parts[1..].iter().for_each(append);
    Lap { records: parts[1..].iter().map(|part| part.records).sum(), took: begun.elapsed(), in_sink: None }
}
