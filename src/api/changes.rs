//! Records of the log as lines, as far as they are wanted.

use std::{collections::VecDeque, sync::Arc};

use kubetide_sink::{Body, Class, Op, Record, Stream, format};

use super::{
    Changes, Desk, Refusal, Reply, Stopped,
    answer::{streams_for, unknown},
    log::seq_at,
    previous::Previous,
};
use crate::changelog::LogReader;

/// A block is sent when it has grown past this.
const BLOCK_BYTES: usize = 256 * 1024;
/// How far back the last records of a kind are looked for.
const LOOK_BACK: u64 = 100_000;
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
    previous: Option<Previous>,
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
        let to = match wanted.to {
            None => head,
            Some(point @ super::Point::At(_)) => seq_at(&desk.view, point).await?.saturating_sub(1).min(head),
            Some(super::Point::Seq(seq)) => seq,
        };
        // A place that was named must be there; one that follows from a time is what there is.
        let is_there = |seq: u64| (oldest..=head).contains(&seq) || (wanted.follow && seq == head + 1);
        for seq in [wanted.from, wanted.to].into_iter().flatten() {
            if let super::Point::Seq(seq) = seq
                && !is_there(seq)
            {
                return Err(absent(seq, oldest, head));
            }
        }
        let previous = wanted.was.then(Previous::default);
        Ok(Self { desk: desk.clone(), wanted, streams, from: from.max(oldest), to, previous })
    }

    pub(super) async fn run(mut self, reply: &Reply) -> Result<(), Stopped> {
        let stop = self.desk.stop.clone();
        // Also while it waits for a slow reader.
        stop.run_until_cancelled(self.tell(reply)).await.unwrap_or(Ok(()))
    }

    async fn tell(&mut self, reply: &Reply) -> Result<(), Stopped> {
        match self.wanted.last {
            Some(last) => self.tell_last(last, reply).await?,
            None => self.tell_range(reply).await?,
        }
        if !self.wanted.follow {
            return Ok(());
        }
        self.remember_rows().await?;
        let mut reader = self.desk.view.reader(self.to.max(self.from.saturating_sub(1)) + 1);
        while reader.ready().await {
            let mut block = Vec::new();
            while reader.is_ready() && block.len() < BLOCK_BYTES {
                for record in self.read(&mut reader).await? {
                    self.write(&record, &mut block);
                }
            }
            reply.send(block).await?;
        }
        Ok(())
    }

    async fn tell_range(&mut self, reply: &Reply) -> Result<(), Stopped> {
        let run_up = if self.previous.is_some() { RUN_UP } else { 0 };
        let first = self.from.saturating_sub(run_up).max(self.desk.view.oldest());
        let mut reader = self.desk.view.reader(first);
        let mut next = first;
        let mut block = Vec::new();
        while next <= self.to {
            for record in self.read(&mut reader).await? {
                next = record.seq + 1;
                if record.seq > self.to {
                    break;
                }
                if record.seq < self.from {
                    self.previous.as_mut().map(|previous| previous.pass(&record));
                } else {
                    self.write(&record, &mut block);
                }
            }
            if block.len() >= BLOCK_BYTES {
                reply.send(std::mem::take(&mut block)).await?;
            }
        }
        Ok(reply.send(block).await?)
    }

    /// The log is read forwards: ever larger parts of its end, until there are enough. Only places are kept, not records.
    async fn tell_last(&mut self, last: usize, reply: &Reply) -> Result<(), Stopped> {
        let least = self.from.max((self.to + 1).saturating_sub(LOOK_BACK)).max(1);
        let mut span = (last as u64).max(RUN_UP);
        let mut found = VecDeque::new();
        loop {
            found.clear();
            let first = (self.to + 1).saturating_sub(span).max(least);
            let mut reader = self.desk.view.reader(first);
            let mut next = first;
            while next <= self.to && last > 0 {
                for record in self.read(&mut reader).await? {
                    next = record.seq + 1;
                    if record.seq <= self.to && self.wants(&record) {
                        found.push_back(record.seq);
                    }
                    if found.len() > last {
                        found.pop_front();
                    }
                }
            }
            if found.len() >= last || first == least {
                break;
            }
            span = span.saturating_mul(8);
        }
        self.from = found.front().copied().unwrap_or(self.to + 1);
        self.tell_range(reply).await
    }

    async fn read(&self, reader: &mut LogReader) -> Result<Vec<Record>, Refusal> {
        let records = reader.read().await.map_err(|error| {
            let oldest = self.desk.view.oldest();
            Refusal::Failed(format!("{error} (the oldest record is {oldest} now)"))
        })?;
        Ok(records)
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
        let was = self.previous.as_mut().and_then(|previous| previous.pass(record));
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
            return namespace.is_empty() && name.is_empty() && object.is_empty() && class.is_empty();
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

fn check_words(wanted: &Changes) -> Result<(), Refusal> {
    let ops = [Op::Snapshot, Op::Create, Op::Update, Op::Delete].map(Op::as_str);
    let ops = [&ops[..], &CONTROL[..]].concat();
    if let Some(op) = wanted.op.0.iter().find(|op| !ops.contains(&op.as_str())) {
        return Err(unknown("op", op, &ops));
    }
    let classes = Class::ALL.map(Class::as_str);
    match wanted.class.0.iter().find(|class| !classes.contains(&class.as_str())) {
        Some(class) => Err(unknown("class", class, &classes)),
        None => Ok(()),
    }
}

/// What there is instead.
pub(super) fn absent(seq: u64, oldest: u64, head: u64) -> Refusal {
    let there =
        if oldest > head { "the log has no records".to_owned() } else { format!("the log has {oldest} to {head}") };
    let gone = if seq < oldest { " any more" } else { "" };
    Refusal::Absent(format!("there is no record {seq}{gone}: {there}"))
}
