//! The `Status` object with which the API server answers everything that is not an object.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::request::{RequestInfo, Verb};

/// An error as the API server words it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason: `NotFound`, `Conflict`, `Expired`…
    pub reason: &'static str,
    /// The human-readable message.
    pub message: String,
    details: Map<String, Value>,
    continue_token: Option<String>,
}

impl Status {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Map::new(), continue_token: None }
    }

    /// The status that the API server gives with this code when nothing more is known.
    pub(crate) fn of_code(code: u16, retry_after: Option<u32>) -> Self {
        let (reason, message) = match code {
            400 => ("BadRequest", "the server rejected our request for an unknown reason"),
            401 => ("Unauthorized", "Unauthorized"),
            403 => ("Forbidden", "forbidden: User \"simulated\" cannot access the resource"),
            404 => ("NotFound", "the server could not find the requested resource"),
            405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource"),
            409 => ("Conflict", "the server reported a conflict"),
            410 => ("Expired", "The resourceVersion for the provided list is too old."),
            415 => ("UnsupportedMediaType", "the body of the request was in an unknown format"),
            422 => ("Invalid", "the server rejected our request due to an error in our request"),
            429 => ("TooManyRequests", "Too many requests, please try again later."),
            503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
            504 => ("Timeout", "the server was unable to return a response in the time allotted"),
            _ => ("InternalError", "an error on the server has prevented the request from succeeding"),
        };
        let mut status = Self::new(code, reason, message);
        if let Some(seconds) = retry_after {
            status.details.insert("retryAfterSeconds".into(), seconds.into());
        }
        status
    }

    /// What a user without the right is told.
    pub(crate) fn forbidden(request: &RequestInfo) -> Self {
        let (plural, group) = request.resource.split_once('.').unwrap_or((&request.resource, ""));
        let subject = if request.name.is_empty() {
            qualified(plural, group)
        } else {
            format!("{} \"{}\"", qualified(plural, group), request.name)
        };
        let scope = match request.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace \"{namespace}\""),
        };
        let verb = match request.verb {
            Verb::List | Verb::Page => "list",
            Verb::Watch | Verb::StreamingList => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete | Verb::DeleteCollection => "delete",
            Verb::Get | Verb::Discovery | Verb::Other => "get",
        };
        let message = format!(
            "{subject} is forbidden: User \"simulated\" cannot {verb} resource \"{plural}\" in API group \"{group}\" {scope}"
        );
        Self::new(403, "Forbidden", message).about(plural, group, &request.name)
    }

    pub(crate) fn not_found(plural: &str, group: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", qualified(plural, group)))
            .about(plural, group, name)
    }

    pub(crate) fn already_exists(plural: &str, group: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", qualified(plural, group)))
            .about(plural, group, name)
    }

    pub(crate) fn conflict(plural: &str, group: &str, name: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": the object has been modified; please apply your \
             changes to the latest version and try again",
            qualified(plural, group)
        );
        Self::new(409, "Conflict", message).about(plural, group, name)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 410 for a LIST or a `continue` token whose version is gone.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(crate) fn with_continue(mut self, token: String) -> Self {
        self.continue_token = Some(token);
        self
    }

    pub(crate) fn with_details(mut self, details: Value) -> Self {
        if let Value::Object(details) = details {
            self.details.extend(details);
        }
        self
    }

    fn about(mut self, plural: &str, group: &str, name: &str) -> Self {
        if !name.is_empty() {
            self.details.insert("name".into(), name.into());
        }
        if !group.is_empty() {
            self.details.insert("group".into(), group.into());
        }
        self.details.insert("kind".into(), plural.into());
        self
    }

    /// The `Status` object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), token.as_str().into());
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = self.reason.into();
        }
        if !self.details.is_empty() {
            status["details"] = Value::Object(self.details.clone());
        }
        status
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Status {}

fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}
