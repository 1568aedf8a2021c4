//! Records of the log as lines, as far as they are wanted.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kubetide_sink::{Body, Class, Op, Record, Stream, format};

use super::{
    Changes, Desk, Point, Refusal, Reply, Stopped,
    answer::{streams_for, unknown},
    log::seq_at,
    previous::Previous,
};
use crate::changelog::LogReader;

/// A block is sent when it has grown past this.
const BLOCK_BYTES: usize = 256 * 1024;
/// …or has waited for this long: whoever sees few matches in a long log sees them as they are found.
const BLOCK_AGE: Duration = Duration::from_millis(250);
/// How far back the last records of a kind are looked for.
const LOOK_BACK: u64 = 100_000;
/// What is looked at first for them: most often everything matches.
const FIRST_LOOK: u64 = 100;
/// Records before the first one that are read to know what the objects were.
const RUN_UP: u64 = 1_000;
/// The ops of control records.
const CONTROL: [&str; 6] =
    ["snapshot_started", "snapshot_finished", "gap", "resync_finished", "stream_removed", "replay"];

/// One reading of the log.
pub(super) struct Reading {
    desk: Desk,
    wanted: Changes,
    streams: Option<Vec<Arc<Stream>>>,
    from: u64,
    /// The last record of what is there already.
    to: u64,
    end: End,
    previous: Option<Previous>,
}

/// Where an answer ends that goes on with what comes.
#[derive(Clone, Copy)]
enum End {
    Never,
    With(u64),
    Before(Timestamp),
}

impl End {
    fn allows(self, record: &Record) -> bool {
        match self {
            Self::Never => true,
            Self::With(seq) => record.seq <= seq,
            Self::Before(at) => record.observed_at < at,
        }
    }

    /// Whether it is known, without looking at the record, that this one is not in the answer.
    fn is_before(self, next: u64) -> bool {
        matches!(self, Self::With(seq) if seq < next)
    }
}

impl Reading {
    pub(super) async fn new(desk: &Desk, wanted: Changes) -> Result<Self, Refusal> {
        check_words(&wanted)?;
        let streams = if wanted.stream.is_empty() { None } else { Some(streams_for(desk, &wanted.stream)?) };
        let (oldest, head) = (desk.view.oldest(), desk.view.head());
        let from = match wanted.from {
            Some(point) => seq_at(&desk.view, point).await?.max(1),
            None => oldest,
        };
        let (last, end) = match wanted.to {
            None => (head, End::Never),
            Some(Point::Seq(seq)) => (seq, End::With(seq)),
            Some(point @ Point::At(at)) => match seq_at(&desk.view, point).await?.saturating_sub(1) {
                last if last < head => (last, End::With(last)),
                _ => (head, End::Before(at)),
            },
        };
        check_order(wanted.from.map(|point| (point, from)), wanted.to.map(|point| (point, last)))?;
        // A place that was named must be there; one that follows from a time is what there is. Whoever follows may name what
        // is still to come: the next record to begin with, any to end with.
        let newest = if wanted.follow { [head + 1, u64::MAX] } else { [head, head] };
        for (point, newest) in [wanted.from, wanted.to].into_iter().zip(newest) {
            if let Some(Point::Seq(seq)) = point
                && !(oldest..=newest).contains(&seq)
            {
                return Err(absent(seq, oldest, head));
            }
        }
        let previous = wanted.was.then(Previous::default);
        Ok(Self { desk: desk.clone(), wanted, streams, from: from.max(oldest), to: last.min(head), end, previous })
    }

    pub(super) async fn run(mut self, reply: &Reply) -> Result<(), Stopped> {
        let stop = self.desk.stop.clone();
        // Also while it waits for a slow reader.
        let told = stop.run_until_cancelled(self.tell_past(reply)).await;
        // Part of the past must not look like all of it. Whoever follows expects an end at any time.
        let cut_short = "the process has stopped before the answer was complete; ask again, now of its files";
        told.unwrap_or_else(|| Err(Refusal::Failed(cut_short.into()).into()))?;
        if !self.wanted.follow {
            return Ok(());
        }
        stop.run_until_cancelled(self.follow(reply)).await.unwrap_or(Ok(()))
    }

    async fn tell_past(&mut self, reply: &Reply) -> Result<(), Stopped> {
        match self.wanted.last {
            Some(last) => self.tell_last(last, reply).await,
            None => self.tell_range(reply).await,
        }
    }

    async fn follow(&mut self, reply: &Reply) -> Result<(), Stopped> {
        self.remember_rows().await?;
        let mut next = self.to.max(self.from.saturating_sub(1)) + 1;
        let mut reader = self.desk.view.reader(next);
        while !self.end.is_before(next) && reader.ready().await {
            let mut block = Vec::new();
            while reader.is_ready() && block.len() < BLOCK_BYTES {
                for record in self.read(&mut reader).await?.unwrap_or_default() {
                    if !self.end.allows(&record) {
                        return Ok(reply.send(block).await?);
                    }
                    next = record.seq + 1;
                    self.write(&record, &mut block);
                }
            }
            reply.send(block).await?;
        }
        Ok(())
    }

    async fn tell_range(&mut self, reply: &Reply) -> Result<(), Stopped> {
        self.run_up().await;
        let mut reader = self.desk.view.reader(self.from);
        let mut next = self.from;
        let mut block = Vec::new();
        let mut sent = Instant::now();
        while next <= self.to
            && let Some(records) = self.read(&mut reader).await?
        {
            for record in records {
                next = record.seq + 1;
                if record.seq > self.to {
                    break;
                }
                self.write(&record, &mut block);
            }
            if block.len() >= BLOCK_BYTES || sent.elapsed() >= BLOCK_AGE {
                self.write_progress(next, &mut block);
                reply.send(std::mem::take(&mut block)).await?;
                sent = Instant::now();
            }
        }
        self.write_progress(next, &mut block);
        Ok(reply.send(block).await?)
    }

    /// What the objects were before the first record, as far as that can be read: of what cannot, old values are not known, and
    /// that is all.
    async fn run_up(&mut self) {
        let Some(mut previous) = self.previous.take() else { return };
        let mut next = self.from.saturating_sub(RUN_UP).max(self.desk.view.oldest());
        while next < self.from {
            let mut reader = self.desk.view.reader(next);
            while next < self.from
                && let Ok(Some(records)) = self.read(&mut reader).await
            {
                for record in records.iter().filter(|record| record.seq < self.from) {
                    previous.pass(&self.desk.view, record);
                }
                next = records.last().map_or(self.from, |last| last.seq + 1);
            }
            // Damage spoils the file that it is in, and not the next one.
            let behind = |first: &u64| *first > next;
            next = self.desk.view.firsts().into_iter().find(behind).unwrap_or(self.from);
        }
        self.previous = Some(previous);
    }

    fn write_progress(&self, next: u64, block: &mut Vec<u8>) {
        if self.wanted.progress {
            block.extend_from_slice(format!("{{\"reached\":{}}}\n", next.saturating_sub(1).min(self.to)).as_bytes());
        }
    }

    /// The log is read forwards: ever larger parts in front of what was looked at, until there are enough. Only places are kept,
    /// not records.
    async fn tell_last(&mut self, last: usize, reply: &Reply) -> Result<(), Stopped> {
        let least = self.from.max((self.to + 1).saturating_sub(LOOK_BACK)).max(1);
        let mut looked_at = self.to + 1;
        let mut span = (last as u64).max(FIRST_LOOK);
        let mut found = VecDeque::new();
        while found.len() < last && least < looked_at {
            let first = looked_at.saturating_sub(span).max(least);
            match self.matches(first, looked_at).await {
                Ok(seqs) => {
                    seqs.into_iter().rev().for_each(|seq| found.push_front(seq));
                    looked_at = first;
                    span = span.saturating_mul(8);
                }
                // What is older may be damaged, or gone by now, and not be needed.
                Err(_) if looked_at - first > 1 => span = (looked_at - first) / 2,
                Err(refusal) => return Err(refusal.into()),
            }
        }
        let first = found.len().checked_sub(last).and_then(|more| found.get(more)).or(found.front()).copied();
        self.from = first.unwrap_or(self.to + 1);
        self.tell_range(reply).await
    }

    /// The places of wanted records, from one to before another one.
    async fn matches(&self, first: u64, end: u64) -> Result<Vec<u64>, Refusal> {
        let mut reader = self.desk.view.reader(first);
        let mut next = first;
        let mut found = Vec::new();
        while next < end
            && let Some(records) = self.read(&mut reader).await?
        {
            next = records.last().map_or(end, |last| last.seq + 1);
            let wanted = records.iter().filter(|record| record.seq < end && self.wants(record));
            found.extend(wanted.map(|record| record.seq));
        }
        Ok(found)
    }

    /// The next records, when there are some; none if no more can come. It waits for them by itself, so that no loop that reads
    /// can turn without end.
    async fn read(&self, reader: &mut LogReader) -> Result<Option<Vec<Record>>, Refusal> {
        if !reader.ready().await {
            return Ok(None);
        }
        reader.read().await.map(Some).map_err(Refusal::failed)
    }

    /// What the objects are now is what they were before the next change.
    async fn remember_rows(&mut self) -> Result<(), Refusal> {
        let Some(previous) = &mut self.previous else { return Ok(()) };
        let streams = match &self.streams {
            Some(streams) => streams.clone(),
            None => streams_for(&self.desk, &self.wanted.stream)?,
        };
        for stream in streams {
            let name = stream.to_string();
            let mut after = None;
            loop {
                let rows = self.desk.view.known().rows_behind(&stream, after.take(), 100).await;
                let rows = rows.map_err(Refusal::failed)?;
                after = rows.last().map(|(key, _)| key.clone());
                for (key, row) in rows {
                    previous.note_row(&name, key, &row);
                }
                if after.is_none() || previous.is_full() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Appends the record's line if it is wanted.
    fn write(&mut self, record: &Record, block: &mut Vec<u8>) {
        let was = self.previous.as_mut().and_then(|previous| previous.pass(&self.desk.view, record));
        if !self.wants(record) {
            return;
        }
        format::native(record, block);
        if let Some(was) = was
            && block.pop() == Some(b'}')
        {
            block.extend_from_slice(b",\"was\":");
            block.extend_from_slice(&was);
            block.push(b'}');
        }
        block.push(b'\n');
    }

    fn wants(&self, record: &Record) -> bool {
        let Changes { namespace, name, object, op, class, .. } = &self.wanted;
        let of_stream = self.streams.as_ref().is_none_or(|streams| {
            let stream = record.stream.as_ref();
            streams.iter().any(|wanted| wanted.as_ref() == stream || wanted.to_string() == stream.to_string())
        });
        if !of_stream || !op.allow(record.op()) {
            return false;
        }
        let Body::Change(change) = &record.body else {
            // A break in the history of a stream is one in that of each of its objects: it is never left out, unless the stream
            // cannot have any of them.
            let has = |wanted: &str| record.stream.namespace.as_deref().is_none_or(|only| only == wanted);
            let object_has = |object: &String| object.split_once('/').is_none_or(|(namespace, _)| has(namespace));
            return (namespace.is_empty() || namespace.0.iter().any(|namespace| has(namespace)))
                && (object.is_empty() || object.0.iter().any(object_has));
        };
        let classes = change.difference.iter().flat_map(|difference| &difference.classes);
        namespace.allow(&change.namespace)
            && name.allow(&change.name)
            && (class.is_empty() || classes.into_iter().any(|of| class.allow(of.as_str())))
            && (object.is_empty() || object.0.iter().any(|object| is_object(object, &change.namespace, &change.name)))
    }
}

/// `name` is that name in any namespace.
fn is_object(object: &str, namespace: &str, name: &str) -> bool {
    match object.split_once('/') {
        Some(wanted) => wanted == (namespace, name),
        None => object == name,
    }
}

/// Each end with the seq that it stands for: `from` is the first record, `to` the last one.
fn check_order(from: Option<(Point, u64)>, to: Option<(Point, u64)>) -> Result<(), Refusal> {
    let (Some((from, first)), Some((to, last))) = (from, to) else { return Ok(()) };
    let reversed = match (from, to) {
        (Point::Seq(from), Point::Seq(to)) => from > to,
        (Point::At(from), Point::At(to)) => from > to,
        // A time may fall between two records.
        _ => first > last.saturating_add(1),
    };
    match reversed {
        true => Err(Refusal::Usage(format!("the range ends before it begins: from {from} to {to}"))),
        false => Ok(()),
    }
}

fn check_words(wanted: &Changes) -> Result<(), Refusal> {
    let ops = [Op::Snapshot, Op::Create, Op::Update, Op::Delete].map(Op::as_str);
    let ops = [&ops[..], &CONTROL[..]].concat();
    if let Some(op) = wanted.op.0.iter().find(|op| !ops.contains(&op.as_str())) {
        return Err(unknown("op", op, &ops));
    }
    // Such a one would match nothing, and look like an object without changes.
    let is_object = |object: &str| match object.split_once('/') {
        Some((namespace, name)) => !namespace.is_empty() && !name.is_empty() && !name.contains('/'),
        None => !object.is_empty(),
    };
    if let Some(object) = wanted.object.0.iter().find(|object| !is_object(object)) {
        return Err(Refusal::Usage(format!(
            "object: found {object}; allowed: NAMESPACE/NAME, or NAME in any namespace"
        )));
    }
    let classes = Class::ALL.map(Class::as_str);
    match wanted.class.0.iter().find(|class| !classes.contains(&class.as_str())) {
        Some(class) => Err(unknown("class", class, &classes)),
        None => Ok(()),
    }
}

/// What there is instead.
pub(super) fn absent(seq: u64, oldest: u64, head: u64) -> Refusal {
    if seq == 0 {
        return Refusal::Usage("found 0; allowed: a seq such as 1042, from 1 on".into());
    }
    let there =
        if oldest > head { "the log has no records".to_owned() } else { format!("the log has {oldest} to {head}") };
    let gone = if seq < oldest { " any more" } else { "" };
    Refusal::Absent(format!("there is no record {seq}{gone}: {there}"))
}
