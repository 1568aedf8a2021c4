//! The list options of a query: which version a LIST or a WATCH may show, and the combinations that the API server
//! refuses, in its words.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::request::RequestInfo;
use crate::status::Status;

/// Which version a LIST may show.
#[derive(Debug)]
pub(crate) enum Wanted {
    Current,
    NotOlderThan(u64),
    Exact(u64),
}

/// The options of a LIST.
#[derive(Debug)]
pub(crate) struct ListOptions {
    pub(crate) version: Wanted,
    pub(crate) limit: Option<usize>,
    pub(crate) token: Option<Token>,
}

impl ListOptions {
    pub(crate) fn read(request: &RequestInfo) -> Result<Self, Status> {
        let version = request.param("resourceVersion");
        let matching = request.param("resourceVersionMatch");
        let continued = request.param("continue");
        let limit = match request.param("limit") {
            "" => None,
            text => Some(text.parse::<usize>().map_err(|_| not_a_number("ParseInt", text))?).filter(|&limit| limit > 0),
        };
        let mut refused = Refused::default();
        if !matching.is_empty() {
            if version.is_empty() {
                refused.forbid("resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if !continued.is_empty() {
                refused.forbid("resourceVersionMatch is forbidden when continue is provided");
            }
            if !matches!(matching, "Exact" | "NotOlderThan") {
                refused.unsupported(matching, "\"Exact\", \"NotOlderThan\"");
            }
            if matching == "Exact" && version == "0" {
                refused.forbid("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
        }
        refused.check()?;
        if !continued.is_empty() {
            if !matches!(version, "" | "0") {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            let token = Token::decode(continued).ok_or_else(|| {
                Status::bad_request("invalid continue token: continue key is not valid: it cannot be read")
            })?;
            let version = token.version.map_or(Wanted::Current, Wanted::Exact);
            return Ok(Self { version, limit, token: Some(token) });
        }
        let number = version_in(version)
            .map_err(|problem| Status::bad_request(format!("invalid resource version: {problem}")))?;
        let version = match (number, matching) {
            (None | Some(0), _) => Wanted::Current,
            (Some(version), "Exact") => Wanted::Exact(version),
            // The older meaning: a version with a limit is that very version.
            (Some(version), "") if limit.is_some() => Wanted::Exact(version),
            (Some(version), _) => Wanted::NotOlderThan(version),
        };
        // At version 0 the API server answers from its cache and ignores the limit.
        let limit = if number == Some(0) { None } else { limit };
        Ok(Self { version, limit, token: None })
    }
}

/// The options of a WATCH.
#[derive(Debug)]
pub(crate) struct WatchOptions {
    /// None and 0 ask for the state first.
    pub(crate) version: Option<u64>,
    /// `sendInitialEvents`, where it is given.
    pub(crate) initial_events: Option<bool>,
    pub(crate) bookmarks: bool,
}

impl WatchOptions {
    pub(crate) fn read(request: &RequestInfo) -> Result<Self, Status> {
        let matching = request.param("resourceVersionMatch");
        let given = !request.param("sendInitialEvents").is_empty();
        let mut refused = Refused::default();
        match (given, matching) {
            (true, "NotOlderThan") | (false, "") => {}
            (false, _) => {
                refused.forbid("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
            }
            (true, _) => {
                refused.forbid("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
                if !matching.is_empty() {
                    refused.unsupported(matching, "\"NotOlderThan\"");
                }
            }
        }
        refused.check()?;
        // Without a version, or at version 0, the API server takes it for a request of the initial events.
        let legacy = !given && matches!(request.param("resourceVersion"), "" | "0");
        Ok(Self {
            // As in the real one: an internal error, without a reason.
            version: version_in(request.param("resourceVersion")).map_err(|problem| Status::new(500, "", problem))?,
            initial_events: (given || legacy).then(|| legacy || request.flag("sendInitialEvents")),
            bookmarks: request.flag("allowWatchBookmarks"),
        })
    }
}

/// What stands behind a `continue` token. Clients must not look inside.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    /// The list's version; None: whatever is current, after a 410.
    pub(crate) version: Option<u64>,
    /// The last key of the page before.
    pub(crate) after: String,
    /// Objects still to come, where that is known.
    pub(crate) left: Option<usize>,
}

impl Token {
    /// Hexadecimal of JSON: a client that looks inside must work for it.
    pub(crate) fn encode(&self) -> String {
        json!(self).to_string().bytes().map(|byte| format!("{byte:02x}")).collect()
    }

    fn decode(text: &str) -> Option<Self> {
        let pair = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        let bytes: Vec<u8> = (0..text.len()).step_by(2).map(pair).collect::<Option<_>>()?;
        serde_json::from_slice(&bytes).ok()
    }
}

/// A version in a query; None where it is left out.
pub(crate) fn version_in(text: &str) -> Result<Option<u64>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let problem = |_| {
        format!("resourceVersion: Invalid value: \"{text}\": strconv.ParseUint: parsing \"{text}\": invalid syntax")
    };
    text.parse().map(Some).map_err(problem)
}

fn not_a_number(function: &str, text: &str) -> Status {
    Status::bad_request(format!("strconv.{function}: parsing \"{text}\": invalid syntax"))
}

/// What is wrong with `resourceVersionMatch`.
#[derive(Default)]
struct Refused {
    problems: Vec<(&'static str, String)>,
}

impl Refused {
    fn forbid(&mut self, problem: &str) {
        self.problems.push(("FieldValueForbidden", format!("Forbidden: {problem}")));
    }

    fn unsupported(&mut self, value: &str, supported: &str) {
        let problem = format!("Unsupported value: \"{value}\": supported values: {supported}");
        self.problems.push(("FieldValueNotSupported", problem));
    }

    fn check(self) -> Result<(), Status> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let field = |(_, problem): &(_, String)| format!("resourceVersionMatch: {problem}");
        let text = self.problems.iter().map(field).collect::<Vec<_>>().join(", ");
        let text = if self.problems.len() > 1 { format!("[{text}]") } else { text };
        let cause = |(reason, problem)| json!({"reason": reason, "message": problem, "field": "resourceVersionMatch"});
        let details = json!({
            "group": "meta.k8s.io",
            "kind": "ListOptions",
            "causes": self.problems.into_iter().map(cause).collect::<Vec<_>>(),
        });
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: {text}");
        Err(Status::new(422, "Invalid", message).with_details(details))
    }
}
