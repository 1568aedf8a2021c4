//! What a stream does next: an enum and a `step`, without I/O.
//!
//! Only three things move a position: a watch event, a bookmark, and the end of a LIST. A listed object's own version
//! never does, and an error never looks like absence: it leaves the state as it is.

use kubetide_sink::Reason;

use crate::{
    change::ResourceVersion,
    changelog::{Phase, StreamState},
};

/// What a stream is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Log that a LIST is needed: the first one, or for a reason.
    Announcing(Option<Reason>),
    /// Get the next page of a LIST.
    Listing {
        /// The version of the pages so far; they must all have the same.
        version: Option<ResourceVersion>,
        /// How to ask for the page; none for the first.
        token: Option<String>,
    },
    /// The LIST is complete: log what has vanished, then the position.
    Concluding(ResourceVersion),
    /// Follow the watch from here.
    Watching(ResourceVersion),
}

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
    /// What vanished and the position are in the log.
    Concluded,
    /// A watch event or a bookmark is in the log.
    Moved(ResourceVersion),
    /// 410: the version or the token is too old.
    Expired,
    /// Anything else went wrong, or the watch ended.
    Interrupted,
}

impl State {
    /// Where a stream begins after a start.
    pub fn resume(durable: &StreamState) -> Self {
        match &durable.phase {
            Phase::New => Self::Announcing(None),
            // Announced already; the LIST begins anew, because its pages so far are forgotten.
            Phase::Listing { .. } => Self::first_page(),
            Phase::Watching { position, .. } => Self::Watching(position.clone()),
        }
    }

    const fn first_page() -> Self {
        Self::Listing { version: None, token: None }
    }

    /// The state after `outcome`.
    #[must_use]
    pub fn step(self, outcome: Outcome) -> Self {
        match (self, outcome) {
            (Self::Announcing(_), Outcome::Announced) => Self::first_page(),
            (Self::Listing { version: Some(known), .. }, Outcome::Page { version, .. }) if known != version => {
                // Pages of two versions prove nothing about what is absent.
                Self::first_page()
            }
            (Self::Listing { .. }, Outcome::Page { version, next: Some(token) }) => {
                Self::Listing { version: Some(version), token: Some(token) }
            }
            (Self::Listing { .. }, Outcome::Page { version, next: None }) => Self::Concluding(version),
            (Self::Listing { .. }, Outcome::Expired) => Self::first_page(),
            (Self::Concluding(position), Outcome::Concluded) => Self::Watching(position),
            (Self::Watching(_), Outcome::Moved(position)) => Self::Watching(position),
            (Self::Watching(_), Outcome::Expired) => Self::Announcing(Some(Reason::Expired)),
            (state, _) => state,
        }
    }
}

#[cfg(test)]
mod tests {
    use kubetide_sink::{Counts, Id};

    use super::*;
    use crate::changelog::Purpose;

    fn version(text: &str) -> ResourceVersion {
        ResourceVersion::new(text)
    }

    fn page(at: &str, next: Option<&str>) -> Outcome {
        Outcome::Page { version: version(at), next: next.map(Into::into) }
    }

    fn after(state: State, outcomes: impl IntoIterator<Item = Outcome>) -> State {
        outcomes.into_iter().fold(state, State::step)
    }

    #[test]
    fn a_new_stream_announces_lists_concludes_and_watches_from_the_lists_version() {
        let state = State::resume(&StreamState::default());
        assert_eq!(state, State::Announcing(None));
        let state = after(state, [Outcome::Announced, page("9", Some("t1")), page("9", Some("t2"))]);
        assert_eq!(state, State::Listing { version: Some(version("9")), token: Some("t2".into()) });
        let state = after(state, [page("9", None)]);
        assert_eq!(state, State::Concluding(version("9")));
        assert_eq!(after(state, [Outcome::Concluded]), State::Watching(version("9")));
    }

    #[test]
    fn a_restart_resumes_from_the_position_without_a_list() {
        let at = "2026-01-01T00:00:00Z".parse().unwrap_or_default();
        let durable = StreamState { phase: Phase::Watching { position: version("7"), at }, lineage: 0 };
        assert_eq!(State::resume(&durable), State::Watching(version("7")));
    }

    #[test]
    fn a_restart_in_the_middle_of_a_list_lists_again_and_does_not_announce_again() {
        let purpose = Purpose::Snapshot(Id([0; 16]));
        let durable = StreamState { phase: Phase::Listing { purpose, counts: Counts::default() }, lineage: 0 };
        assert_eq!(State::resume(&durable), State::first_page());
    }

    #[test]
    fn an_expired_watch_is_announced_as_a_gap_and_an_ordinary_end_is_not() {
        let watching = State::Watching(version("7"));
        assert_eq!(after(watching.clone(), [Outcome::Expired]), State::Announcing(Some(Reason::Expired)));
        assert_eq!(after(watching.clone(), [Outcome::Interrupted]), watching);
        assert_eq!(
            after(watching, [Outcome::Moved(version("8")), Outcome::Interrupted]),
            State::Watching(version("8"))
        );
    }

    #[test]
    fn an_expired_token_and_pages_of_two_versions_start_the_list_over() {
        let second = State::Listing { version: Some(version("9")), token: Some("t".into()) };
        assert_eq!(after(second.clone(), [Outcome::Expired]), State::first_page());
        assert_eq!(after(second.clone(), [page("10", None)]), State::first_page());
        assert_eq!(after(second.clone(), [Outcome::Interrupted]), second);
    }
}
