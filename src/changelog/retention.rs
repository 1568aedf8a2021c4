//! Which segments of the log may go. Pure: the committer does it.
//!
//! Time removes only what every attached sink has read. Size removes the oldest whatever the sinks have read, unless one of
//! them says `when_behind: block`: then nothing more is appended until it has read on.

use std::time::Duration;

use jiff::Timestamp;

use super::attached::Need;
use crate::config::WhenBehind;

/// A segment as retention sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Its first record.
    pub(super) first_seq: u64,
    /// Its size.
    pub(super) bytes: u64,
    /// When it was begun.
    pub(super) opened_at: Timestamp,
}

/// How long and how much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) retention: Duration,
    pub(super) max_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// So many of the oldest segments go.
    pub(super) remove: usize,
    /// The log is too large all the same, because this sink may not lose anything.
    pub(super) blocked_by: Option<String>,
}

/// Decides. The segments are in order; the last one is being written and stays.
pub(super) fn decide(rules: Rules, segments: &[Held], needs: &[(String, Need)], now: Timestamp) -> Verdict {
    let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    let mut verdict = Verdict { remove: 0, blocked_by: None };
    for pair in segments.windows(2) {
        let [oldest, next] = pair else { continue };
        // The next one's first record is the one behind its last.
        let needed = |need: &Need| need.from < next.first_seq;
        if bytes > rules.max_bytes {
            let blocks = |need: &Need| need.when_behind == WhenBehind::Block && needed(need);
            if let Some((sink, _)) = needs.iter().find(|(_, need)| blocks(need)) {
                verdict.blocked_by = Some(sink.clone());
                break;
            }
        } else {
            // It was closed when the next one was begun.
            let age = Duration::try_from(now.duration_since(next.opened_at)).unwrap_or_default();
            if age < rules.retention || needs.iter().any(|(_, need)| needed(need)) {
                break;
            }
        }
        bytes -= oldest.bytes;
        verdict.remove += 1;
    }
    verdict
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use proptest::prelude::*;

    use super::*;

    fn segment(first_seq: u64, bytes: u64, second: i64) -> Held {
        Held { first_seq, bytes, opened_at: Timestamp::from_second(second).unwrap() }
    }

    fn sink(from: u64, when_behind: WhenBehind) -> (String, Need) {
        ("s".into(), Need { from, settled: 0, when_behind })
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    const DAY: Rules = Rules { retention: Duration::from_secs(100), max_bytes: 100 };

    #[test]
    fn time_removes_what_every_sink_has_read_and_nothing_else() {
        let segments = [segment(1, 10, 0), segment(11, 10, 50), segment(21, 10, 90)];
        let removed = |from, now| decide(DAY, &segments, &[sink(from, WhenBehind::Resync)], at(now)).remove;
        assert_eq!(removed(21, 149), 0, "the first was closed 99 s ago");
        assert_eq!(removed(21, 150), 1);
        assert_eq!(removed(21, 1_000), 2, "the last one stays");
        assert_eq!(removed(20, 1_000), 1, "the sink has not read the end of the second");
        assert_eq!(removed(1, 1_000), 0);
    }

    #[test]
    fn size_removes_the_oldest_unless_a_sink_may_not_lose_anything() {
        let segments = [segment(1, 60, 0), segment(11, 60, 0), segment(21, 30, 0)];
        let verdict = |when_behind| decide(DAY, &segments, &[sink(5, when_behind)], at(1));
        assert_eq!(verdict(WhenBehind::Resync), Verdict { remove: 1, blocked_by: None });
        assert_eq!(verdict(WhenBehind::Block), Verdict { remove: 0, blocked_by: Some("s".into()) });
        let read_on = decide(DAY, &segments, &[sink(11, WhenBehind::Block)], at(1));
        assert_eq!(read_on, Verdict { remove: 1, blocked_by: None });
    }

    proptest! {
        #[test]
        fn what_goes_is_never_needed_unless_size_forces_it_and_then_no_more_than_it_takes(
            sizes in prop::collection::vec(1u64..50, 1..12), from in 1u64..130, block: bool, now in 0i64..400, max_bytes in 1u64..400,
        ) {
            let segments: Vec<_> = sizes.iter().zip(0..).map(|(bytes, index)| segment(index as u64 * 10 + 1, *bytes, index * 30)).collect();
            let rules = Rules { max_bytes, ..DAY };
            let when_behind = if block { WhenBehind::Block } else { WhenBehind::Resync };
            let Verdict { remove, blocked_by } = decide(rules, &segments, &[sink(from, when_behind)], at(now));
            prop_assert!(remove < segments.len());
            let left: u64 = sizes[remove..].iter().sum();
            for index in 0..remove {
                let needed = from < segments[index + 1].first_seq;
                let over = sizes[index..].iter().sum::<u64>() > max_bytes;
                prop_assert!(over || !needed);
                prop_assert!(!(needed && block));
                prop_assert!(over || now - (index as i64 + 1) * 30 >= 100);
            }
            prop_assert_eq!(blocked_by.is_some(), left > max_bytes && remove + 1 < segments.len());
        }
    }
}
