//! When a watch is silent for too long.
//!
//! A stream that has ever had a bookmark must have one again within the stall timeout. One that never had may be quiet until
//! the API server ends its watch, and a little longer. The bookmark at the end of a LIST is only half a promise: a resource
//! without a watch cache, such as events, has that one and none after it.

use std::time::Duration;

use tokio::time::Instant;

/// A watch without bookmarks may be quiet until the server ends it; this much later it is not coming back.
const WATCH_END_SLACK: Duration = Duration::from_secs(30);

/// The signs of life of one stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulse {
    stall: Duration,
    bookmarks: Bookmarks,
    /// When this watch opened, or its last bookmark came.
    bookmark: Instant,
    /// When this watch opened, or its last line came.
    line: Instant,
    /// When the server is to end this watch.
    lasts: Duration,
    /// When the position last moved.
    moved: Instant,
}

/// What is known of the stream's bookmarks, over all its watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bookmarks {
    /// There was none.
    None,
    /// A LIST has ended with one.
    Promised,
    /// A watch has had some.
    Seen,
}

impl Pulse {
    /// For a stream, before its first watch.
    pub(super) fn new(stall: Duration, now: Instant) -> Self {
        Self { stall, bookmarks: Bookmarks::None, bookmark: now, line: now, lasts: Duration::ZERO, moved: now }
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
        (self.bookmark, self.line, self.moved, self.bookmarks) = (now, now, now, Bookmarks::Seen);
    }

    /// A streaming LIST has ended with its bookmark, and goes on as a watch.
    pub(super) fn listed(&mut self, now: Instant) {
        (self.bookmark, self.line, self.moved) = (now, now, now);
        if self.bookmarks == Bookmarks::None {
            self.bookmarks = Bookmarks::Promised;
        }
    }

    /// The watch has stalled. If its bookmarks were only promised, there may be none.
    pub(super) fn stalled(&mut self) {
        if self.bookmarks == Bookmarks::Promised {
            self.bookmarks = Bookmarks::None;
        }
    }

    /// The position has moved by other means.
    pub(super) fn moved(&mut self, now: Instant) {
        self.moved = now;
    }

    /// When the position will have stood for `age` without a bookmark to move it: resources that are not in the API server's
    /// watch cache, such as events, have none. A stream that has bookmarks does not get old.
    pub(super) fn old_at(&self, age: Duration) -> Instant {
        // Far away: a year.
        if self.bookmarks == Bookmarks::Seen {
            self.moved + Duration::from_secs(365 * 86_400)
        } else {
            self.moved + age
        }
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
        match self.bookmarks {
            Bookmarks::None => self.line + self.lasts + WATCH_END_SLACK,
            Bookmarks::Promised | Bookmarks::Seen => self.bookmark + self.stall,
        }
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
    async fn the_bookmark_at_the_end_of_a_list_promises_more_until_it_is_not_kept() {
        let now = Instant::now();
        let mut pulse = Pulse::new(STALL, now);
        pulse.opened(now, LASTS);
        pulse.listed(now);
        assert_eq!(pulse.deadline(), now + STALL);
        assert!(pulse.is_old(now + SECOND * 120, SECOND * 120), "the position is moved by other means all the same");
        pulse.stalled();
        assert_eq!(pulse.deadline(), now + LASTS + WATCH_END_SLACK);
        pulse.bookmark(now);
        pulse.stalled();
        assert_eq!(pulse.deadline(), now + STALL, "one that was seen is expected for ever");
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
