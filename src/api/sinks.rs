//! How far each sink is.

use super::{Desk, Refusal, item, log::time_of};
use crate::changelog::Cursor;

/// A batch under way and the next one that forms, as large as they are by default: a sink that is no further behind follows.
const UNDER_WAY: u64 = 1_000;

pub(super) async fn sinks(desk: &Desk) -> Result<Vec<item::Sink>, Refusal> {
    let head = desk.view.head();
    let cursors = desk.view.cursors().map_err(Refusal::failed)?;
    let mut sinks = Vec::new();
    for (name, cursor) in cursors {
        let lag_records = head.saturating_sub(cursor.acknowledged);
        let next = (cursor.acknowledged + 1).max(desk.view.oldest());
        let waiting_since = if lag_records > 0 { time_of(&desk.view, next).await? } else { None };
        let state = state(desk, &name, &cursor, lag_records);
        let Cursor { acknowledged, in_flight, .. } = cursor;
        sinks.push(item::Sink { name, acknowledged, head, lag_records, waiting_since, in_flight, state });
    }
    Ok(sinks)
}

fn state(desk: &Desk, name: &str, cursor: &Cursor, lag_records: u64) -> item::State {
    match &desk.attached {
        Some(attached) if !attached.iter().any(|sink| sink == name) => item::State::Detached,
        _ if lag_records <= UNDER_WAY && cursor.errand.is_none() => item::State::Following,
        _ => item::State::CatchingUp,
    }
}
