//! The log as a whole: its files, whether they are whole, and which record stands at a time.

use jiff::Timestamp;

use super::{Desk, Point, Refusal, Reply, Stopped, item};
use crate::{
    blocking::blocking,
    changelog::{OpenError, View},
};

pub(super) async fn log(desk: &Desk) -> Result<item::Log, Refusal> {
    let view = &desk.view;
    let (oldest, head) = (view.oldest(), view.head());
    let mut segments = Vec::new();
    for info in view.segments().map_err(Refusal::failed)? {
        let first_at = told_time_of(view, info.first_seq).await;
        segments.push(item::Segment { info, first_at });
    }
    Ok(item::Log {
        log_id: view.log_id().into(),
        oldest,
        head,
        oldest_at: told_time_of(view, oldest).await,
        newest_at: told_time_of(view, head.max(oldest)).await,
        bytes: segments.iter().map(|segment| segment.info.bytes).sum(),
        max_bytes: desk.max_bytes,
        segments,
    })
}

/// When a record was observed; none if there is no such record yet.
pub(super) async fn time_of(view: &View, seq: u64) -> Result<Option<Timestamp>, Refusal> {
    let records = view.reader(seq).read().await.map_err(Refusal::failed)?;
    Ok(records.first().map(|record| record.observed_at))
}

/// The same for people. What else there is is told also where this cannot be read: what is damaged is said by whoever reads it.
async fn told_time_of(view: &View, seq: u64) -> Option<Timestamp> {
    time_of(view, seq).await.ok().flatten()
}

/// One segment after the other: a reader that goes away ends it soon. Then the cursors that are damaged.
pub(super) async fn verify(view: &View, reply: &Reply) -> Result<(), Stopped> {
    let segments = view.segments().map_err(Refusal::failed)?;
    for (index, info) in segments.iter().enumerate() {
        let following = segments.get(index + 1).map(|next| next.first_seq);
        let (view, first) = (view.clone(), info.first_seq);
        match blocking(move || view.inspect(first, following)).await {
            Ok(inspected) => reply.items(&[inspected]).await?,
            // Retention has removed it meanwhile.
            Err(OpenError::Directory { .. }) => {}
            Err(error) => return Err(Refusal::failed(error).into()),
        }
    }
    let view = view.clone();
    let cursors = blocking(move || view.inspect_cursors()).await.map_err(Refusal::failed)?;
    reply.items(&cursors).await
}

/// The first record at or behind the point; one more than the head if there is none yet.
///
/// A time is looked for among the segments' first records, then in one segment. Where the clock was set back, this is the
/// first record from there on.
pub(super) async fn seq_at(view: &View, point: Point) -> Result<u64, Refusal> {
    let at = match point {
        Point::Seq(seq) => return Ok(seq),
        Point::At(at) => at,
    };
    let segments = view.segments().map_err(Refusal::failed)?;
    let (mut low, mut high) = (0, segments.len());
    while low < high {
        let middle = low.midpoint(high);
        // A damaged one says nothing of its time: the next one that can be read speaks for it.
        let mut told = middle..high;
        let before = loop {
            let Some(index) = told.next() else { break None };
            if let Ok(first) = time_of(view, segments[index].first_seq).await {
                break first.is_some_and(|first| first < at).then_some(index);
            }
        };
        match before {
            Some(index) => low = index + 1,
            None => high = middle,
        }
    }
    let first = low.checked_sub(1).and_then(|index| segments.get(index)).or(segments.first());
    let mut reader = view.reader(first.map_or(1, |segment| segment.first_seq));
    let head = view.head();
    loop {
        let records = reader.read().await.map_err(Refusal::failed)?;
        let Some(last) = records.last() else { return Ok(head + 1) };
        if last.observed_at >= at || last.seq >= head {
            let found = records.iter().find(|record| record.observed_at >= at);
            return Ok(found.map_or(last.seq + 1, |record| record.seq));
        }
    }
}
