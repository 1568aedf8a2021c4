//! When a watch is silent for too long.
//!
//! A stream that has ever had a bookmark must have one again within the stall timeout. One that never had may be quiet until
//! the API server ends its watch, and a little longer.

use std::time::Duration;

use tokio::time::Instant;

/// A watch without bookmarks may be quiet until the server ends it; this much later it is not coming back.
const WATCH_END_SLACK: Duration = Duration::from_secs(30);

/// The signs of life of one stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulse {
    stall: Duration,
    /// Over all watches of the stream.
    has_bookmarks: bool,
    /// When this watch opened, or its last bookmark came.
    bookmark: Instant,
    /// When this watch opened, or its last line came.
    line: Instant,
    /// When the server is to end this watch.
    lasts: Duration,
    /// When the position last moved.
    moved: Instant,
}

impl Pulse {
    /// For a stream, before its first watch.
    pub(super) fn new(stall: Duration, now: Instant) -> Self {
        Self { stall, has_bookmarks: false, bookmark: now, line: now, lasts: Duration::ZERO, moved: now }
    }

    /// A watch is open that the server will end after `lasts`.
    pub(super) fn opened(&mut self, now: Instant, lasts: Duration) {
        (self.bookmark, self.line, self.lasts) = (now, now, lasts);
    }

    /// An event was read.
    pub(super) fn event(&mut self, now: Instant) {
        (self.line, self.moved) = (now, now);
    }

    /// A bookmark was read.
    pub(super) fn bookmark(&mut self, now: Instant) {
        (self.bookmark, self.line, self.moved, self.has_bookmarks) = (now, now, now, true);
    }

    /// The position has moved by other means.
    pub(super) fn moved(&mut self, now: Instant) {
        self.moved = now;
    }

    /// When the position will have stood for `age` without a bookmark to move it: resources that are not in the API server's
    /// watch cache, such as events, have none. A stream that has bookmarks does not get old.
    pub(super) fn old_at(&self, age: Duration) -> Instant {
        // Far away: a year.
        if self.has_bookmarks { self.moved + Duration::from_secs(365 * 86_400) } else { self.moved + age }
    }

    /// Whether it is old already.
    pub(super) fn is_old(&self, now: Instant, age: Duration) -> bool {
        now >= self.old_at(age)
    }

    /// For this long nothing was read, because the log could not take more: nobody's silence.
    pub(super) fn busy(&mut self, time: Duration) {
        self.bookmark += time;
        self.line += time;
    }

    /// When the watch has stalled.
    pub(super) fn deadline(&self) -> Instant {
        if self.has_bookmarks { self.bookmark + self.stall } else { self.line + self.lasts + WATCH_END_SLACK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(150);
    const LASTS: Duration = Duration::from_secs(300);
    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_stream_without_bookmarks_may_be_quiet_until_its_watch_should_have_ended() {
        let now = Instant::now();
        let mut pulse = Pulse::new(STALL, now);
        pulse.opened(now, LASTS);
        assert_eq!(pulse.deadline(), now + LASTS + WATCH_END_SLACK);
        pulse.event(now + SECOND);
        assert_eq!(pulse.deadline(), now + SECOND + LASTS + WATCH_END_SLACK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ever_had_a_bookmark_must_have_them_in_later_watches_too() {
        let now = Instant::now();
        let mut pulse = Pulse::new(STALL, now);
        pulse.opened(now, LASTS);
        pulse.bookmark(now + SECOND);
        assert_eq!(pulse.deadline(), now + SECOND + STALL);
        pulse.event(now + SECOND * 100);
        assert_eq!(pulse.deadline(), now + SECOND + STALL, "events are no bookmarks");
        pulse.opened(now + SECOND * 200, LASTS);
        assert_eq!(pulse.deadline(), now + SECOND * 200 + STALL);
    }

    #[tokio::test(start_paused = true)]
    async fn a_position_gets_old_only_where_no_bookmark_moves_it() {
        let now = Instant::now();
        let mut pulse = Pulse::new(STALL, now);
        pulse.opened(now + SECOND, LASTS);
        assert!(pulse.is_old(now + SECOND * 120, SECOND * 120), "an opened watch does not move it");
        pulse.event(now + SECOND * 2);
        assert!(!pulse.is_old(now + SECOND * 120, SECOND * 120));
        pulse.moved(now + SECOND * 50);
        assert!(!pulse.is_old(now + SECOND * 169, SECOND * 120) && pulse.is_old(now + SECOND * 170, SECOND * 120));
        pulse.bookmark(now + SECOND * 60);
        assert!(!pulse.is_old(now + SECOND * 9999, SECOND * 120));
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_log_could_not_take_more_is_nobodys_silence() {
        let now = Instant::now();
        let mut pulse = Pulse::new(STALL, now);
        pulse.opened(now, LASTS);
        pulse.bookmark(now);
        pulse.busy(SECOND * 500);
        assert_eq!(pulse.deadline(), now + SECOND * 500 + STALL);
    }
}
