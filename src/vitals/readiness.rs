//! Whether the process does what it was asked to: one check per stream and sink, and a few for the whole.

/// What the checks come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Whether no check failed.
    pub ready: bool,
    /// Every check, those of the whole first.
    pub checks: Vec<Check>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// `stream/core/pods`, `sink/audit`, `log`
    pub name: String,
    /// How it is.
    pub state: CheckState,
    /// What, since when, and what to do if that is known; empty if all is well. Never object content.
    pub message: String,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Someone should look at it, but what was asked for by name is captured and delivered.
    Degraded,
    /// Something that was asked for is not done.
    Failed,
}

impl Check {
    pub(super) fn ok(name: impl Into<String>) -> Self {
        Self { name: name.into(), state: CheckState::Ok, message: String::new() }
    }

    pub(super) fn degraded(name: impl Into<String>, message: String) -> Self {
        Self { name: name.into(), state: CheckState::Degraded, message }
    }

    pub(super) fn failed(name: impl Into<String>, message: String) -> Self {
        Self { name: name.into(), state: CheckState::Failed, message }
    }
}

impl From<Vec<Check>> for Readiness {
    fn from(checks: Vec<Check>) -> Self {
        Self { ready: checks.iter().all(|check| check.state != CheckState::Failed), checks }
    }
}
