//! Demands: done by the loops of a process that runs, or on the files of one that does not.

use std::path::PathBuf;

use jiff::Timestamp;

use super::{
    Demand, Desk, Hands, Point, Refusal,
    answer::unknown,
    changes::absent,
    item::{Done, Purged},
    log::seq_at,
};
use crate::{
    blocking::blocking,
    changelog::{Archive, CursorFile, Removed},
    delivery::{DeadLetters, Noted, Order, Taken},
};

/// Carries it out.
pub async fn carry_out(desk: &Desk, demand: Demand) -> Result<Done, Refusal> {
    match demand {
        Demand::Replay { sink, from } => {
            let (oldest, head) = (desk.view.oldest(), desk.view.head());
            let seq = seq_at(&desk.view, from).await?;
            let from = if matches!(from, Point::At(_)) { seq.max(oldest) } else { seq };
            // One behind the head: nothing comes again.
            if !(oldest..=head + 1).contains(&from) {
                return Err(absent(from, oldest, head));
            }
            give(desk, &sink, Order::Replay { from }).await?;
            Ok(Done::Replaying { sink, from })
        }
        Demand::Resnapshot { sink } => {
            give(desk, &sink, Order::Resnapshot).await?;
            Ok(Done::Resnapshotting { sink })
        }
        Demand::ReplayLetters { sink, seqs } => {
            known(desk, &sink)?;
            let directory = desk.letters.files_of(&sink)?;
            let taken = match &desk.hands {
                Hands::Live { .. } => match give(desk, &sink, Order::Letters { seqs }).await? {
                    Noted::Letters(taken) => taken,
                    Noted::Cursor => Taken::default(),
                },
                Hands::Files(archive) => {
                    let (archive, sink) = (archive.clone(), sink.clone());
                    blocking(move || take_out(&archive, &sink, directory, seqs)).await?
                }
            };
            Ok(Done::ReplayingLetters { sink, letters: taken.letters, left: taken.left })
        }
        Demand::Purge { before } => {
            let before = seq_at(&desk.view, before).await?;
            let Removed { segments, bytes, records, kept } = purge(&desk.hands, before).await?;
            Ok(Done::Purged(Purged { segments, bytes, records, oldest: desk.view.oldest(), kept }))
        }
    }
}

async fn purge(hands: &Hands, before: u64) -> Result<Removed, Refusal> {
    match hands {
        Hands::Live { purger, .. } => purger.purge(before).await.map_err(Refusal::failed),
        Hands::Files(archive) => {
            let archive = archive.clone();
            blocking(move || archive.purge(before)).await.map_err(Refusal::failed)
        }
    }
}

/// Whether there was ever such a sink.
pub(super) fn known(desk: &Desk, sink: &str) -> Result<(), Refusal> {
    let known: Vec<String> = desk.view.cursors().map_err(Refusal::failed)?.into_iter().map(|(sink, _)| sink).collect();
    if known.iter().any(|name| name == sink) {
        return Ok(());
    }
    let names: Vec<&str> = known.iter().map(String::as_str).collect();
    Err(unknown("sink", sink, &names))
}

async fn give(desk: &Desk, sink: &str, order: Order) -> Result<Noted, Refusal> {
    known(desk, sink)?;
    match &desk.hands {
        Hands::Live { sinks, .. } => match sinks.get(sink) {
            Some(orders) => orders.give(order).await.map_err(Refusal::Failed),
            None => Err(Refusal::Failed(format!(
                "sink {sink} takes no orders from a running process: stop the process, give the order, and start it again"
            ))),
        },
        Hands::Files(archive) => {
            let (archive, sink) = (archive.clone(), sink.to_owned());
            blocking(move || note(&archive, &sink, &order)).await.map(|()| Noted::Cursor)
        }
    }
}

/// Notes the order beside the cursor of a sink whose process does not run: its next start finds it there.
fn note(archive: &Archive, sink: &str, order: &Order) -> Result<(), Refusal> {
    let view = archive.view();
    let file = CursorFile::open(&archive.cursor_directory(), sink, view.log_id()).map_err(Refusal::failed)?;
    let mut file = file.ok_or_else(|| Refusal::Absent(format!("sink {sink} has no cursor")))?;
    let mut cursor = file.cursor().clone();
    order.note(sink, &mut cursor, view.oldest(), view.head(), Timestamp::now()).map_err(Refusal::Failed)?;
    let noted = file.change(|current| *current = cursor);
    noted.map_err(|error| Refusal::Failed(format!("cannot write the cursor {}: {error}", file.path().display())))
}

/// Orders that dead letters of a sink are given again whose process does not run. That stands in their files; its next start finds
/// it there.
fn take_out(archive: &Archive, sink: &str, directory: PathBuf, seqs: Vec<u64>) -> Result<Taken, Refusal> {
    let view = archive.view();
    let cursors = view.cursors().map_err(Refusal::failed)?;
    let cursor = cursors.into_iter().find(|(name, _)| name == sink).map(|(_, cursor)| cursor);
    let mut cursor = cursor.ok_or_else(|| Refusal::Absent(format!("sink {sink} has no cursor")))?;
    let mut letters = DeadLetters::new(directory, sink);
    let order = Order::Letters { seqs };
    order.note(sink, &mut cursor, view.oldest(), view.head(), Timestamp::now()).map_err(Refusal::Failed)?;
    let Order::Letters { seqs } = order else { return Ok(Taken::default()) };
    letters.take_out(&seqs).map_err(Refusal::failed)
}
