//! The cases, by name: each is a promise of the contract that a sink may break.

mod bytes;
mod flow;
mod process;
mod receiver;
mod refusal;

use super::{Bench, Finding};

/// A promise of the contract, tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Case {
    /// States of an object come in their order, and all records where the receiver has one order.
    Order,
    /// A batch without records adds nothing; with exactly once it commits its cursor.
    EmptyBatch,
    /// Bytes come through as they are, whatever they look like.
    BinaryStrings,
    /// An object of 1.5 MiB comes through whole, where the receiver takes it.
    LargeObject,
    /// Ten thousand small records.
    ManyRecords,
    /// A process that starts again goes on where it was.
    Restart,
    /// A kill between `Ok` and the cursor repeats that batch at most.
    DuplicateBound,
    /// A process that is told to stop in the middle of a batch loses nothing.
    StopInTheMiddle,
    /// The records that the receiver will never take are named, and no others; all else arrives.
    Poison,
    /// The record that is too large is named, and arrives without its object.
    Oversize,
    /// Where an operator must act the sink says so, and goes on when he has.
    Hold,
    /// A slow receiver is waited for.
    SlowReceiver,
    /// What was acknowledged is there when the receiver is killed right behind it.
    AckBeforeCursor,
    /// A receiver that is killed in the middle of a batch and comes back.
    ReceiverRestart,
    /// A receiver that is away when the sink is opened.
    GoneAtStart,
    /// Credentials are changed at the receiver, then in their files.
    CredentialRotation,
}

impl Case {
    /// All of them; those that stop the receiver come last.
    pub const ALL: [Self; 16] = [
        Self::Order,
        Self::EmptyBatch,
        Self::BinaryStrings,
        Self::LargeObject,
        Self::ManyRecords,
        Self::Restart,
        Self::DuplicateBound,
        Self::StopInTheMiddle,
        Self::Poison,
        Self::Oversize,
        Self::Hold,
        Self::SlowReceiver,
        Self::AckBeforeCursor,
        Self::ReceiverRestart,
        Self::GoneAtStart,
        Self::CredentialRotation,
    ];

    /// As it is shown, and asked for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Order => "order",
            Self::EmptyBatch => "empty-batch",
            Self::BinaryStrings => "binary-strings",
            Self::LargeObject => "large-object",
            Self::ManyRecords => "many-records",
            Self::Restart => "restart",
            Self::DuplicateBound => "duplicate-bound",
            Self::StopInTheMiddle => "stop-in-the-middle",
            Self::Poison => "poison",
            Self::Oversize => "oversize",
            Self::Hold => "hold",
            Self::SlowReceiver => "slow-receiver",
            Self::AckBeforeCursor => "ack-before-cursor",
            Self::ReceiverRestart => "receiver-restart",
            Self::GoneAtStart => "gone-at-start",
            Self::CredentialRotation => "credential-rotation",
        }
    }

    pub(super) async fn play(self, bench: &mut dyn Bench) -> Result<(), Finding> {
        match self {
            Self::Order => flow::order(bench).await,
            Self::EmptyBatch => flow::empty_batch(bench).await,
            Self::ManyRecords => flow::many_records(bench).await,
            Self::BinaryStrings => bytes::binary_strings(bench).await,
            Self::LargeObject => bytes::large_object(bench).await,
            Self::Restart => process::restart(bench).await,
            Self::DuplicateBound => process::duplicate_bound(bench).await,
            Self::StopInTheMiddle => process::stop_in_the_middle(bench).await,
            Self::Poison => refusal::poison(bench).await,
            Self::Oversize => refusal::oversize(bench).await,
            Self::Hold => refusal::hold(bench).await,
            Self::CredentialRotation => refusal::credential_rotation(bench).await,
            Self::SlowReceiver => receiver::slow(bench).await,
            Self::AckBeforeCursor => receiver::ack_before_cursor(bench).await,
            Self::ReceiverRestart => receiver::restart(bench).await,
            Self::GoneAtStart => receiver::gone_at_start(bench).await,
        }
    }
}
