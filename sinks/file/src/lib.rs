//! The sinks that write lines: a file, and standard output.
//!
//! Both write the native format as NDJSON, one record per line; standard output shows one-liners for people
//! instead when it is a terminal.

mod config;
mod sink;
mod stdout;

pub use config::{FileConfig, StdoutConfig};
pub use sink::FileSink;
pub use stdout::StdoutSink;

use kubetide_sink::{Batch, format};

/// The batch as NDJSON.
fn lines(batch: &Batch) -> Vec<u8> {
    let weight: usize = batch.records.iter().map(kubetide_sink::Record::weight).sum();
    let mut out = Vec::with_capacity(weight);
    for record in &batch.records {
        format::native(record, &mut out);
        out.push(b'\n');
    }
    out
}
