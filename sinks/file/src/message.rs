//! A batch as lines.

use kubetide_sink::{Batch, Format, Record};

/// The records that the format has, one per line.
pub(crate) fn lines(batch: &Batch, format: Format) -> Vec<u8> {
    let weight: usize = batch.records.iter().map(Record::weight).sum();
    let mut out = Vec::with_capacity(weight);
    for record in &batch.records {
        if format.write(record, &mut out) {
            out.push(b'\n');
        }
    }
    out
}
