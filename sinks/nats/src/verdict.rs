//! What the server's answers mean, and what delivery should do about them.

use std::{error::Error, io};

use async_nats::{ConnectError, ConnectErrorKind, jetstream};
use kubetide_sink::{Decision, SinkError};
use serde::Deserialize;

/// The server's answer to a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The message, or the whole batch, is stored, or was before.
    Stored {
        /// The place in the stream of the message, or of the last one of a batch.
        sequence: u64,
    },
    /// Taken as a part of a batch that is not complete yet.
    Staged,
    /// No stream listens on this subject.
    NoStream,
    /// Not stored.
    Refused(Refusal),
    /// Nothing that a JetStream server says.
    Unreadable,
}

/// Why the server has not stored something.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Refusal {
    /// As in HTTP.
    #[serde(default)]
    code: u64,
    /// Which error it is.
    #[serde(default, rename = "err_code")]
    error: u64,
    #[serde(default)]
    description: String,
}

#[derive(Deserialize)]
struct Reply {
    error: Option<Refusal>,
    #[serde(default, rename = "seq")]
    sequence: u64,
}

impl Answer {
    pub(crate) fn read(message: &async_nats::Message) -> Self {
        if message.status == Some(async_nats::StatusCode::NO_RESPONDERS) {
            return Self::NoStream;
        }
        Self::parse(&message.payload)
    }

    fn parse(payload: &[u8]) -> Self {
        if payload.is_empty() {
            return Self::Staged;
        }
        match serde_json::from_slice(payload) {
            Ok(Reply { error: Some(refusal), .. }) => Self::Refused(refusal),
            Ok(Reply { error: None, sequence }) if sequence > 0 => Self::Stored { sequence },
            _ => Self::Unreadable,
        }
    }
}

impl From<&jetstream::Error> for Refusal {
    fn from(error: &jetstream::Error) -> Self {
        let code = u64::try_from(error.code()).unwrap_or_default();
        Self { code, error: error.error_code().0, description: error.to_string() }
    }
}

impl Refusal {
    /// The last message on the subject is not the expected one, or one is just being stored.
    pub(crate) const fn is_fence(&self) -> bool {
        matches!(self.error, 10071 | 10164)
    }

    /// The server has not got a part of the batch: why was said to that part.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.error == 10176
    }

    /// The stream is not there.
    pub(crate) const fn is_missing(&self) -> bool {
        self.error == 10059
    }

    /// What to do, where `what` was tried.
    pub(crate) fn verdict(&self, what: &str) -> SinkError {
        let says = format!("{what}: {} (error {})", self.description, self.error);
        match (self.error, self.code) {
            // The message, or its headers, are larger than the stream takes.
            (10054, _) => SinkError::new(Decision::Oversize, says),
            (10097, _) => SinkError::new(Decision::Poison, says),
            (10077, _) if self.description.contains("message to") => SinkError::new(Decision::Oversize, says),
            (10077, _) if self.description.contains("maximum") => {
                SinkError::hold(format!("{says}: the stream is full: raise its limits, or make room"))
            }
            (10002 | 10023 | 10028 | 10047 | 10122, _) => SinkError::hold(format!(
                "{says}: the server or the account has no room: raise its limits, or make room"
            )),
            (10060, _) => SinkError::hold(format!("{says}: another stream takes this subject")),
            (10174, _) => {
                SinkError::hold(format!("{says}: set allow_atomic on the stream, or delivery: at_least_once"))
            }
            (10199, _) => SinkError::new(Decision::Split, says),
            // Off, sealed, offline, not there: all say so themselves.
            (10039 | 10059 | 10076 | 10109 | 10118 | 10194, _) => SinkError::hold(says),
            // Being stored by another copy of it; a batch of which a part was lost; a stream that another sink made just now.
            (10058 | 10158 | 10176, _) | (_, 408 | 429 | 500..) => SinkError::retry(says),
            _ => SinkError::hold(says),
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The connection is gone.
    Broken,
    /// Nothing came in time.
    Silent,
    /// The server does not let us do this.
    Forbidden(String),
}

impl Trouble {
    pub(crate) fn verdict(&self, what: &str) -> SinkError {
        match self {
            Self::Broken => SinkError::retry(format!("{what}: the connection is lost")),
            Self::Silent => SinkError::retry(format!("{what}: no answer in time")),
            Self::Forbidden(says) => SinkError::hold(format!("{what}: {says}")),
        }
    }
}

/// What a failed connect means: wrong credentials and certificates need an operator, all else may pass.
pub(crate) fn of_connect(error: &ConnectError, servers: &str) -> SinkError {
    let mut message = format!("connect to {servers}");
    let mut is_ours = matches!(
        error.kind(),
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Tls
    );
    let mut said = String::new();
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        // Each error of this client repeats its source.
        let says = cause.to_string();
        if !said.contains(&says) {
            message.push_str(": ");
            message.push_str(&says);
            said = says;
        }
        // An I/O error is asked for what it wraps, and its source() is the source of that.
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        is_ours |= inner.is_some_and(|inner| inner.is::<rustls::Error>());
        next = cause.source();
    }
    is_ours |= is_about_credentials(&message);
    if is_ours { SinkError::hold(message) } else { SinkError::retry(message) }
}

/// Whether the server complains about who we are or what we may.
pub(crate) fn is_about_credentials(says: &str) -> bool {
    let says = says.to_lowercase();
    ["permissions violation", "authorization violation", "authentication expired", "authentication revoked"]
        .iter()
        .any(|complaint| says.contains(complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: u64, error: u64, description: &str) -> Refusal {
        Refusal { code, error, description: description.into() }
    }

    #[test]
    fn an_acknowledgement_counts_only_with_a_place_in_the_stream() {
        assert_eq!(Answer::parse(b"{\"stream\":\"K\",\"seq\":7}"), Answer::Stored { sequence: 7 });
        let duplicate = b"{\"stream\":\"K\",\"domain\":\"d\",\"seq\":7,\"duplicate\":true}";
        assert_eq!(Answer::parse(duplicate), Answer::Stored { sequence: 7 });
        let batch = b"{\"stream\":\"K\",\"seq\":9,\"batch\":\"x\",\"count\":3}";
        assert_eq!(Answer::parse(batch), Answer::Stored { sequence: 9 });
        assert_eq!(Answer::parse(b""), Answer::Staged);
        for lie in [&b"{}"[..], b"{\"stream\":\"K\",\"seq\":0}", b"OK", b"null"] {
            assert_eq!(Answer::parse(lie), Answer::Unreadable);
        }
        let error =
            b"{\"error\":{\"code\":400,\"err_code\":10071,\"description\":\"wrong last sequence: 3\"},\"seq\":0}";
        assert_eq!(Answer::parse(error), Answer::Refused(refusal(400, 10071, "wrong last sequence: 3")));
    }

    #[test]
    fn each_refusal_has_its_decision() {
        let retry = Decision::Retry { after: None };
        for (code, error, description, decision) in [
            (400, 10054, "message size exceeds maximum allowed", Decision::Oversize),
            (503, 10077, "message to large", Decision::Oversize),
            (503, 10077, "maximum bytes exceeded", Decision::Hold),
            (503, 10077, "maximum messages per subject exceeded", Decision::Hold),
            (503, 10077, "write: input/output error", retry),
            (503, 10023, "insufficient resources", Decision::Hold),
            (400, 10060, "expected stream does not match", Decision::Hold),
            (400, 10109, "invalid operation on sealed stream", Decision::Hold),
            (404, 10059, "stream not found", Decision::Hold),
            (503, 10008, "JetStream system temporarily unavailable", retry),
            (409, 10158, "duplicate message id is in process", retry),
            (400, 10176, "atomic publish batch is incomplete", retry),
            (429, 10210, "atomic publish too many inflight", retry),
            (400, 10174, "atomic publish is disabled", Decision::Hold),
            (400, 10199, "atomic publish batch is too large: 1000", Decision::Split),
            (400, 10999, "something new", Decision::Hold),
            (503, 10999, "something new", retry),
        ] {
            let verdict = refusal(code, error, description).verdict("publish");
            assert_eq!(verdict.decision, decision, "{error} {description}");
            assert!(verdict.message.contains(description), "{verdict}");
        }
    }
}
