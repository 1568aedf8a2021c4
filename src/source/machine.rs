//! What a stream does next: an enum and a `step`, without I/O.
//!
//! Only three things move a position: a watch event, a bookmark, and the end of a LIST. A listed object's own version
//! never does, and an error never looks like absence: it leaves the state as it is.

use kubetide_sink::Reason;

use crate::{
    change::ResourceVersion,
    changelog::{Fingerprint, Phase, StreamState},
};

/// A streaming LIST that broke this often in a row is done in pages instead.
const STREAMING_TRIES: u8 = 2;
/// A watch that cannot be read this often at one position is a break.
const UNDECODABLE_TRIES: u8 = 3;

/// What a stream is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Log that a LIST is needed: the first one, or for a reason.
    Announcing(Option<Reason>),
    /// Get the next part of a LIST.
    Listing(Way),
    /// The LIST is complete: log what has vanished, then the position.
    Concluding(ResourceVersion),
    /// The LIST lacks so much that a second one must agree: wait, then list again.
    Confirming,
    /// Before a watch from a stored position: is the API server's version still beyond it?
    Resuming(ResourceVersion),
    /// Follow the watch from here.
    Watching(ResourceVersion),
    /// In mode poll: wait for the next LIST.
    Resting,
}

/// How a LIST is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// As a watch that begins with every object. It starts over when it breaks.
    Streaming,
    /// In pages.
    Paged {
        /// The version of the pages so far; they must all have the same.
        version: Option<ResourceVersion>,
        /// How to ask for the page; none for the first.
        token: Option<String>,
    },
}

impl Way {
    /// Whether it is the beginning of a LIST.
    pub const fn is_start(&self) -> bool {
        matches!(self, Self::Streaming | Self::Paged { token: None, .. })
    }
}

const FIRST_PAGE: State = State::Listing(Way::Paged { version: None, token: None });

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The need for a LIST is in the log.
    Announced,
    /// A page has come and is in the log.
    Page {
        /// The collection's version.
        version: ResourceVersion,
        /// How to ask for the next one; none on the last.
        next: Option<String>,
    },
    /// A streaming LIST has come to its end, and is in the log.
    Streamed(ResourceVersion),
    /// The API server does not do streaming LISTs of this resource.
    NoStreaming,
    /// It began one and gave it up.
    StreamingRefused,
    /// The complete LIST lacks more than is believed at once.
    Suspicious,
    /// What vanished and the position are in the log.
    Concluded,
    /// The wait is over.
    Waited,
    /// The API server's version is not before the position.
    Checked,
    /// The API server is before what was logged: in its version, or in what a LIST shows.
    Regressed,
    /// Watch events or bookmarks up to here are in the log.
    Moved(ResourceVersion),
    /// 410: the version or the token is too old.
    Expired,
    /// The watch brought something that cannot be read.
    Undecodable,
    /// Verification found the stream to differ from the cluster.
    Diverged,
    /// The API server could not be reached, or has broken off: it may come back as another.
    Away,
    /// Anything else went wrong, or the watch ended.
    Interrupted,
}

/// A stream's state, and what it remembers from one state to the next.
#[derive(Clone, Debug)]
pub struct Machine {
    state: State,
    rules: Rules,
    /// Streaming LISTs that broke in a row.
    broken: u8,
    /// Unreadable watches at the position.
    undecodable: u8,
    /// The LIST under way is the second one of a suspicious pair.
    confirming: bool,
}

/// How a stream is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// By LISTs alone.
    pub poll: bool,
    /// LISTs may be streamed.
    pub streaming: bool,
}

impl Machine {
    /// Where a stream begins after a start.
    pub fn resume(durable: &StreamState, fingerprint: Fingerprint, rules: Rules) -> Self {
        let mut machine = Self { state: State::Resting, rules, broken: 0, undecodable: 0, confirming: false };
        let same = durable.fingerprint == fingerprint;
        machine.state = match &durable.phase {
            Phase::New => State::Announcing(None),
            // Read in another way than before, or not at all for a while: the position says nothing of what is missing.
            Phase::Removed { .. } => State::Announcing(Some(Reason::ConfigChanged)),
            Phase::Listing { .. } | Phase::Watching { .. } if !same => State::Announcing(Some(Reason::ConfigChanged)),
            // Announced already; the LIST begins anew, because what it has shown so far is forgotten.
            Phase::Listing { .. } => machine.first_part(),
            Phase::Watching { .. } if rules.poll => machine.first_part(),
            Phase::Watching { position, .. } => State::Resuming(position.clone()),
        };
        machine
    }

    /// What to do.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Whether a LIST that lacks much is believed: a second one agrees with the first.
    pub const fn is_confirming(&self) -> bool {
        self.confirming
    }

    const fn first_part(&self) -> State {
        if self.rules.streaming && !self.rules.poll && self.broken < STREAMING_TRIES {
            State::Listing(Way::Streaming)
        } else {
            FIRST_PAGE
        }
    }

    /// Moves on from `outcome`.
    pub fn step(&mut self, outcome: Outcome) {
        let state = std::mem::replace(&mut self.state, State::Resting);
        self.state = match (state, outcome) {
            (State::Announcing(_), Outcome::Announced) => {
                (self.confirming, self.undecodable) = (false, 0);
                self.first_part()
            }
            (State::Listing(Way::Streaming), Outcome::Streamed(version)) => {
                self.broken = 0;
                State::Concluding(version)
            }
            (State::Listing(Way::Streaming), Outcome::NoStreaming) => {
                self.rules.streaming = false;
                FIRST_PAGE
            }
            (State::Listing(Way::Streaming), Outcome::StreamingRefused) => {
                self.broken = STREAMING_TRIES;
                FIRST_PAGE
            }
            (State::Listing(Way::Streaming), _) => {
                self.broken = self.broken.saturating_add(1);
                self.first_part()
            }
            (State::Listing(Way::Paged { version: Some(known), .. }), Outcome::Page { version, .. })
                if known != version =>
            {
                // Pages of two versions prove nothing about what is absent.
                FIRST_PAGE
            }
            (State::Listing(Way::Paged { .. }), Outcome::Page { version, next: Some(token) }) => {
                State::Listing(Way::Paged { version: Some(version), token: Some(token) })
            }
            (State::Listing(Way::Paged { .. }), Outcome::Page { version, next: None }) => {
                self.broken = 0;
                State::Concluding(version)
            }
            (State::Listing(Way::Paged { .. }), Outcome::Expired) => FIRST_PAGE,
            (State::Concluding(_), Outcome::Suspicious) => State::Confirming,
            (State::Concluding(_), Outcome::Regressed) => State::Announcing(Some(Reason::VersionRegressed)),
            (State::Confirming, Outcome::Waited) => {
                self.confirming = true;
                self.first_part()
            }
            (State::Concluding(position), Outcome::Concluded) => {
                self.confirming = false;
                if self.rules.poll { State::Resting } else { State::Watching(position) }
            }
            (State::Resting, Outcome::Waited) => self.first_part(),
            (State::Resuming(position), Outcome::Checked) => State::Watching(position),
            (State::Resuming(_), Outcome::Regressed) => State::Announcing(Some(Reason::VersionRegressed)),
            (State::Watching(from), Outcome::Moved(to)) => {
                if to != from {
                    self.undecodable = 0;
                }
                State::Watching(to)
            }
            (State::Watching(_), Outcome::Expired) => State::Announcing(Some(Reason::Expired)),
            (State::Watching(_), Outcome::Diverged) => State::Announcing(Some(Reason::Divergence)),
            (State::Watching(position), Outcome::Away) => State::Resuming(position),
            (State::Watching(position), Outcome::Undecodable) => {
                self.undecodable += 1;
                if self.undecodable < UNDECODABLE_TRIES {
                    State::Watching(position)
                } else {
                    State::Announcing(Some(Reason::Undecodable))
                }
            }
            (state, _) => state,
        };
    }
}

#[cfg(test)]
mod tests {
    use kubetide_sink::{Counts, Id};

    use super::*;
    use crate::changelog::Purpose;

    const PAGED: Rules = Rules { poll: false, streaming: false };
    const STREAMED: Rules = Rules { poll: false, streaming: true };
    const POLLED: Rules = Rules { poll: true, streaming: true };
    const AS_BEFORE: Fingerprint = Fingerprint([7; 16]);

    fn version(text: &str) -> ResourceVersion {
        ResourceVersion::new(text)
    }

    fn page(at: &str, next: Option<&str>) -> Outcome {
        Outcome::Page { version: version(at), next: next.map(Into::into) }
    }

    fn durable(phase: Phase) -> StreamState {
        StreamState { phase, lineage: 0, fingerprint: AS_BEFORE, asked_as: "pods".into(), removal: None }
    }

    fn watched(position: &str) -> StreamState {
        let at = "2026-01-01T00:00:00Z".parse().unwrap_or_default();
        durable(Phase::Watching { position: version(position), at })
    }

    fn listing() -> StreamState {
        durable(Phase::Listing { purpose: Purpose::Snapshot(Id([0; 16])), counts: Counts::default() })
    }

    fn after(durable: &StreamState, rules: Rules, outcomes: impl IntoIterator<Item = Outcome>) -> State {
        let mut machine = Machine::resume(durable, AS_BEFORE, rules);
        outcomes.into_iter().for_each(|outcome| machine.step(outcome));
        machine.state
    }

    /// What a watch at version 7 leads to.
    fn after_watch(outcomes: impl IntoIterator<Item = Outcome>) -> State {
        after(&watched("7"), PAGED, std::iter::once(Outcome::Checked).chain(outcomes))
    }

    fn gap(reason: Reason) -> State {
        State::Announcing(Some(reason))
    }

    #[test]
    fn a_new_stream_announces_lists_concludes_and_watches_from_the_lists_version() {
        let new = StreamState::default();
        assert_eq!(after(&new, PAGED, []), State::Announcing(None));
        let mut outcomes = vec![Outcome::Announced, page("9", Some("t1")), page("9", Some("t2"))];
        assert_eq!(
            after(&new, PAGED, outcomes.clone()),
            State::Listing(Way::Paged { version: Some(version("9")), token: Some("t2".into()) })
        );
        outcomes.push(page("9", None));
        assert_eq!(after(&new, PAGED, outcomes.clone()), State::Concluding(version("9")));
        outcomes.push(Outcome::Concluded);
        assert_eq!(after(&new, PAGED, outcomes), State::Watching(version("9")));
    }

    #[test]
    fn a_streamed_list_leads_to_a_watch_from_its_end() {
        let streamed = [Outcome::Announced, Outcome::Streamed(version("9")), Outcome::Concluded];
        assert_eq!(after(&StreamState::default(), STREAMED, streamed), State::Watching(version("9")));
    }

    #[test]
    fn streaming_falls_back_to_pages_for_good_or_for_this_list() {
        let mut machine = Machine::resume(&listing(), AS_BEFORE, STREAMED);
        assert_eq!(machine.state, State::Listing(Way::Streaming));
        machine.step(Outcome::NoStreaming);
        assert_eq!(machine.state, FIRST_PAGE);
        let next_list = [page("9", None), Outcome::Concluded, Outcome::Expired, Outcome::Announced];
        next_list.clone().into_iter().for_each(|outcome| machine.step(outcome));
        assert_eq!(machine.state, FIRST_PAGE, "the server does not do it: never again");

        for refused in [vec![Outcome::StreamingRefused], vec![Outcome::Interrupted, Outcome::Expired]] {
            let mut machine = Machine::resume(&listing(), AS_BEFORE, STREAMED);
            refused.into_iter().for_each(|outcome| machine.step(outcome));
            assert_eq!(machine.state, FIRST_PAGE);
            next_list.clone().into_iter().for_each(|outcome| machine.step(outcome));
            assert_eq!(machine.state, State::Listing(Way::Streaming), "the next LIST may be streamed again");
        }
    }

    #[test]
    fn a_restart_resumes_from_the_position_without_a_list_once_the_version_is_checked() {
        assert_eq!(after(&watched("7"), STREAMED, []), State::Resuming(version("7")));
        assert_eq!(after(&watched("7"), STREAMED, [Outcome::Interrupted]), State::Resuming(version("7")));
        assert_eq!(after(&watched("7"), STREAMED, [Outcome::Checked]), State::Watching(version("7")));
        assert_eq!(after(&watched("7"), STREAMED, [Outcome::Regressed]), gap(Reason::VersionRegressed));
    }

    #[test]
    fn a_restart_in_the_middle_of_a_list_lists_again_and_does_not_announce_again() {
        assert_eq!(after(&listing(), PAGED, []), FIRST_PAGE);
    }

    #[test]
    fn a_stream_that_is_read_in_another_way_or_comes_back_is_a_gap() {
        let other = Fingerprint([8; 16]);
        for durable in [watched("7"), listing()] {
            assert_eq!(Machine::resume(&durable, other, PAGED).state, gap(Reason::ConfigChanged));
        }
        assert_eq!(Machine::resume(&StreamState::default(), other, PAGED).state, State::Announcing(None));
        let removed = durable(Phase::Removed { position: None, at: jiff::Timestamp::UNIX_EPOCH });
        assert_eq!(after(&removed, PAGED, []), gap(Reason::ConfigChanged));
    }

    #[test]
    fn an_expired_watch_is_announced_as_a_gap_and_an_ordinary_end_is_not() {
        assert_eq!(after_watch([Outcome::Expired]), gap(Reason::Expired));
        assert_eq!(after_watch([Outcome::Interrupted]), State::Watching(version("7")));
        assert_eq!(after_watch([Outcome::Moved(version("8")), Outcome::Interrupted]), State::Watching(version("8")));
        assert_eq!(after_watch([Outcome::Diverged]), gap(Reason::Divergence));
    }

    #[test]
    fn an_api_server_that_was_away_is_checked_before_it_is_followed_on() {
        assert_eq!(after_watch([Outcome::Moved(version("8")), Outcome::Away]), State::Resuming(version("8")));
    }

    #[test]
    fn what_cannot_be_read_three_times_at_one_position_is_a_gap() {
        let unreadable = Outcome::Undecodable;
        assert_eq!(after_watch([unreadable.clone(), unreadable.clone()]), State::Watching(version("7")));
        assert_eq!(after_watch(vec![unreadable.clone(); 3]), gap(Reason::Undecodable));
        let moved = [unreadable.clone(), unreadable.clone(), Outcome::Moved(version("8")), unreadable];
        assert_eq!(after_watch(moved), State::Watching(version("8")));
    }

    #[test]
    fn an_expired_token_and_pages_of_two_versions_start_the_list_over_and_an_error_does_not() {
        let second = State::Listing(Way::Paged { version: Some(version("9")), token: Some("t".into()) });
        let after_first = |outcome| after(&listing(), PAGED, [page("9", Some("t")), outcome]);
        assert_eq!(after_first(Outcome::Expired), FIRST_PAGE);
        assert_eq!(after_first(page("10", None)), FIRST_PAGE);
        assert_eq!(after_first(Outcome::Interrupted), second);
    }

    #[test]
    fn a_list_that_lacks_too_much_is_listed_again_before_it_is_believed() {
        let mut machine = Machine::resume(&listing(), AS_BEFORE, PAGED);
        machine.step(page("9", None));
        assert!(!machine.is_confirming());
        machine.step(Outcome::Suspicious);
        assert_eq!(machine.state, State::Confirming);
        machine.step(Outcome::Waited);
        assert_eq!(machine.state, FIRST_PAGE);
        machine.step(page("12", None));
        assert!(machine.is_confirming());
        machine.step(Outcome::Concluded);
        assert_eq!((machine.state.clone(), machine.is_confirming()), (State::Watching(version("12")), false));
    }

    #[test]
    fn a_list_that_shows_the_cluster_before_what_was_logged_is_a_gap_of_its_own() {
        assert_eq!(after(&listing(), PAGED, [page("9", None), Outcome::Regressed]), gap(Reason::VersionRegressed));
    }

    #[test]
    fn a_polled_stream_lists_in_pages_rests_and_lists_again() {
        let outcomes = [Outcome::Announced, page("9", None), Outcome::Concluded];
        assert_eq!(after(&StreamState::default(), POLLED, outcomes), State::Resting);
        assert_eq!(after(&watched("7"), POLLED, []), FIRST_PAGE);
        assert_eq!(after(&watched("7"), POLLED, [page("9", None), Outcome::Concluded, Outcome::Waited]), FIRST_PAGE);
    }
}
