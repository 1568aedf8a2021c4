//! Demands: done by the loops of a process that runs, or on the files of one that does not.

use super::{
    Demand, Desk, Hands, Point, Refusal,
    answer::unknown,
    changes::absent,
    item::{Done, Purged},
    log::seq_at,
};
use crate::{
    changelog::{Archive, CursorFile},
    delivery::Order,
};

/// Removes old segments while the log is written. What is removed is no longer needed by any sink, and the store is durable
/// past it.
pub trait Purge: Send + Sync {
    /// Removes whole segments whose records are all before `before`.
    fn purge(&self, before: u64) -> Result<Purged, String>;
}

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
        Demand::Purge { before } => {
            let before = seq_at(&desk.view, before).await?;
            let hands = desk.hands.clone();
            let purged = tokio::task::spawn_blocking(move || purge(&hands, before)).await;
            let purged = purged.map_err(Refusal::failed)??;
            Ok(Done::Purged(Purged { oldest: desk.view.oldest(), ..purged }))
        }
    }
}

fn purge(hands: &Hands, before: u64) -> Result<Purged, Refusal> {
    match hands {
        Hands::Live { purge: Some(purge), .. } => purge.purge(before).map_err(Refusal::Failed),
        Hands::Live { purge: None, .. } => {
            Err(Refusal::Failed("a running process cannot purge its log: stop it first, then purge".into()))
        }
        Hands::Files(archive) => {
            let removed = archive.purge(before).map_err(Refusal::failed)?;
            let crate::changelog::Removed { segments, bytes, records, kept } = removed;
            Ok(Purged { segments, bytes, records, oldest: 0, kept })
        }
    }
}

async fn give(desk: &Desk, sink: &str, order: Order) -> Result<(), Refusal> {
    let known: Vec<String> = desk.view.cursors().map_err(Refusal::failed)?.into_iter().map(|(sink, _)| sink).collect();
    if !known.iter().any(|name| name == sink) {
        let names: Vec<&str> = known.iter().map(String::as_str).collect();
        return Err(unknown("sink", sink, &names));
    }
    match &desk.hands {
        Hands::Live { sinks, .. } => match sinks.get(sink) {
            Some(orders) => orders.give(order).await.map_err(Refusal::Failed),
            None => Err(Refusal::Failed(format!(
                "sink {sink} takes no orders from a running process: stop the process, give the order, and start it again"
            ))),
        },
        Hands::Files(archive) => {
            let (archive, sink) = (archive.clone(), sink.to_owned());
            let noted = tokio::task::spawn_blocking(move || note(&archive, &sink, order)).await;
            noted.map_err(Refusal::failed)?
        }
    }
}

/// Notes the order beside the cursor of a sink whose process does not run: its next start finds it there.
fn note(archive: &Archive, sink: &str, order: Order) -> Result<(), Refusal> {
    let log_id = archive.view().log_id();
    let mut file = CursorFile::open(&archive.cursor_directory(), sink, log_id).map_err(Refusal::failed)?;
    match order {
        Order::Replay { from } => {
            let noted = file.acknowledge(from.saturating_sub(1));
            noted
                .map_err(|error| Refusal::Failed(format!("cannot write the cursor {}: {error}", file.path().display())))
        }
        Order::Resnapshot => Err(Refusal::Failed(format!(
            "sink {sink} can be given a new snapshot by a running process only: start it, and ask again"
        ))),
    }
}
