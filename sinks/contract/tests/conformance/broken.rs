//! The ways to break a sink, and which case finds each, by what it says.

use kubetide_sink::conformance::{Case, Promises};

use crate::{AT_LEAST_ONCE, DEDUPLICATED, EXACTLY_ONCE};

/// One thing that a sink does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// The last record of a batch is written before the others.
    Reorders,
    /// Two records become one.
    Glues,
    /// A batch without records is an error.
    FailsOnEmpty,
    /// A batch without records does not commit its cursor.
    PassesEmpty,
    /// JSON is read and written again.
    Rewrites,
    /// Control characters are left out.
    Sanitises,
    /// Everything is cut at 1 MiB.
    CutsLarge,
    /// Of a batch, so many records are sent as fit into a window.
    LosesBehindWindow,
    /// The last record waits in the process for the next batch.
    HoldsBack,
    /// A new process begins at the beginning.
    RepeatsAll,
    /// A batch that comes again is there again, and it was promised that it is not.
    RepeatsBatch,
    /// Of a batch that comes again, the first half is written again.
    RepeatsHalf,
    /// What was sent is noted before it is there.
    NotesFirst,
    /// The cursor is committed before the records.
    CursorFirst,
    /// What goes on behind a dropped call is written late.
    WritesLate,
    /// A record that is refused is passed over.
    SwallowsPoison,
    /// A record that is refused is tried for ever.
    RetriesPoison,
    /// The batch's first record is blamed for any other.
    BlamesFirst,
    /// The record that was refused is in the message.
    TellsContent,
    /// A record that is too large is passed over.
    SwallowsLarge,
    /// A record that is too large is called poison.
    BuriesLarge,
    /// A receiver that lets nobody in ends the process.
    EndsWhenShut,
    /// A receiver that lets nobody in is taken for one that has everything.
    TakesWhenShut,
    /// After a while it counts as written.
    GivesUpWaiting,
    /// After a while an operator is called.
    CallsForHelpWhenSlow,
    /// `Ok` comes before the receiver has written it down.
    AcksEarly,
    /// What was on its way when the connection was lost counts as durable.
    CountsWhatWasOnItsWay,
    /// A connection that is lost is never made again.
    NeverReconnects,
    /// A receiver that is away ends the process.
    EndsWhenAway,
    /// A receiver that is away is taken for one that has everything.
    TakesWhenAway,
    /// The password is read once.
    KeepsPassword,
    /// The password is in the message.
    TellsPassword,
}

/// Each flaw, in a sink that promises this, is found by this case, which says so.
pub(crate) const BROKEN: [(Flaw, Promises, Case, &str); 39] = [
    (Flaw::Reorders, AT_LEAST_ONCE, Case::Order, "is before"),
    (Flaw::Glues, AT_LEAST_ONCE, Case::Order, "are no record"),
    (Flaw::HoldsBack, AT_LEAST_ONCE, Case::Order, "lost"),
    (Flaw::FailsOnEmpty, AT_LEAST_ONCE, Case::EmptyBatch, "of no record"),
    (Flaw::PassesEmpty, EXACTLY_ONCE, Case::EmptyBatch, "the cursor is"),
    (Flaw::Rewrites, AT_LEAST_ONCE, Case::BinaryStrings, "another one"),
    (Flaw::Sanitises, AT_LEAST_ONCE, Case::BinaryStrings, "another one"),
    (Flaw::CutsLarge, AT_LEAST_ONCE, Case::LargeObject, "no record"),
    (Flaw::LosesBehindWindow, AT_LEAST_ONCE, Case::ManyRecords, "lost"),
    (Flaw::HoldsBack, AT_LEAST_ONCE, Case::Restart, "lost"),
    (Flaw::RepeatsAll, AT_LEAST_ONCE, Case::Restart, "times, allowed: 1"),
    (Flaw::RepeatsAll, AT_LEAST_ONCE, Case::DuplicateBound, "times, allowed"),
    (Flaw::RepeatsBatch, DEDUPLICATED, Case::DuplicateBound, "is there 2 times, allowed: 1"),
    (Flaw::RepeatsHalf, AT_LEAST_ONCE, Case::DuplicateBound, "for the last time"),
    (Flaw::NotesFirst, AT_LEAST_ONCE, Case::StopInTheMiddle, "lost"),
    (Flaw::CursorFirst, EXACTLY_ONCE, Case::StopInTheMiddle, "lost"),
    (Flaw::WritesLate, AT_LEAST_ONCE, Case::StopInTheMiddle, "times, allowed"),
    (Flaw::SwallowsPoison, AT_LEAST_ONCE, Case::Poison, "lost"),
    (Flaw::RetriesPoison, AT_LEAST_ONCE, Case::Poison, "nothing is taken"),
    (Flaw::RetriesPoison, EXACTLY_ONCE, Case::Poison, "nothing is taken"),
    (Flaw::BlamesFirst, AT_LEAST_ONCE, Case::Poison, "is called poison"),
    (Flaw::TellsContent, AT_LEAST_ONCE, Case::Poison, "content of an object"),
    (Flaw::SwallowsLarge, AT_LEAST_ONCE, Case::Oversize, "lost"),
    (Flaw::BuriesLarge, AT_LEAST_ONCE, Case::Oversize, "is called poison"),
    (Flaw::BlamesFirst, AT_LEAST_ONCE, Case::Oversize, "is called too large"),
    (Flaw::EndsWhenShut, AT_LEAST_ONCE, Case::Hold, "the process is to end"),
    (Flaw::TakesWhenShut, AT_LEAST_ONCE, Case::Hold, "says that it does"),
    (Flaw::GivesUpWaiting, AT_LEAST_ONCE, Case::SlowReceiver, "lost"),
    (Flaw::CallsForHelpWhenSlow, AT_LEAST_ONCE, Case::SlowReceiver, "waits for an operator"),
    (Flaw::AcksEarly, AT_LEAST_ONCE, Case::AckBeforeCursor, "lost"),
    (Flaw::AcksEarly, EXACTLY_ONCE, Case::AckBeforeCursor, "lost"),
    (Flaw::CursorFirst, EXACTLY_ONCE, Case::AckBeforeCursor, "lost"),
    (Flaw::CountsWhatWasOnItsWay, AT_LEAST_ONCE, Case::ReceiverRestart, "lost"),
    (Flaw::NeverReconnects, AT_LEAST_ONCE, Case::ReceiverRestart, "nothing is taken"),
    (Flaw::EndsWhenAway, AT_LEAST_ONCE, Case::GoneAtStart, "not to be tried again"),
    (Flaw::TakesWhenAway, AT_LEAST_ONCE, Case::GoneAtStart, "all is well"),
    (Flaw::TakesWhenShut, AT_LEAST_ONCE, Case::CredentialRotation, "all is taken"),
    (Flaw::KeepsPassword, AT_LEAST_ONCE, Case::CredentialRotation, "nothing is taken"),
    (Flaw::TellsPassword, AT_LEAST_ONCE, Case::CredentialRotation, "a credential"),
];
