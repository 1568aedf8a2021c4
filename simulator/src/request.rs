//! A request as the API server understands it: verb, resource, namespace, name and query.

use std::collections::BTreeMap;

use http::Method;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// `/version`, `/api…`, `/apis…` above a resource.
    Discovery,
    /// A LIST, or the first page of one.
    List,
    /// A further page of a LIST: it has a `continue` token.
    Page,
    /// A WATCH that first sends the state: `sendInitialEvents=true`.
    StreamingList,
    /// A WATCH.
    Watch,
    /// A GET of one object.
    Get,
    /// A POST.
    Create,
    /// A PUT.
    Update,
    /// A PATCH.
    Patch,
    /// A DELETE of one object.
    Delete,
    /// A DELETE of a collection.
    DeleteCollection,
    /// Anything else.
    Other,
}

/// What a fault hook sees of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The request's number on this server, from 1.
    pub number: u64,
    /// What it does.
    pub verb: Verb,
    /// The API group in the path, also of a discovery request; empty for the core group and for the roots.
    pub group: String,
    /// The resource, `pods` or `deployments.apps`; empty for discovery.
    pub resource: String,
    /// The API version in the path, `v1`, also of a discovery request.
    pub version: String,
    /// The namespace; empty for all, or none.
    pub namespace: String,
    /// The object's name; empty for a collection.
    pub name: String,
    /// The subresource, such as `status`; mostly empty.
    pub subresource: String,
    /// The HTTP method.
    pub method: String,
    /// The path.
    pub path: String,
    /// The query, decoded. A parameter that is given twice keeps its last value.
    pub query: BTreeMap<String, String>,
    /// The Accept header.
    pub accept: String,
    /// The User-Agent header.
    pub user_agent: String,
}

impl RequestInfo {
    pub(crate) fn read(number: u64, head: &http::request::Parts) -> Self {
        let header = |name: http::HeaderName| {
            head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let mut info = Self {
            number,
            verb: Verb::Other,
            group: String::new(),
            resource: String::new(),
            version: String::new(),
            namespace: String::new(),
            name: String::new(),
            subresource: String::new(),
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: query(head.uri.query().unwrap_or_default()),
            accept: header(http::header::ACCEPT),
            user_agent: header(http::header::USER_AGENT),
        };
        info.route();
        info.verb = info.find_verb(&head.method);
        info
    }

    /// A query parameter; empty if it is not there.
    #[must_use]
    pub fn param(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.param(name), "true" | "1")
    }

    fn route(&mut self) {
        let path = decode(&self.path);
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            ["apis", group] => (*group, "", [].as_slice()),
            _ => return,
        };
        self.group = group.to_owned();
        self.version = version.to_owned();
        let (namespace, plural, name, subresource) = match rest {
            [] => return,
            ["namespaces", name, "status" | "finalize"] => ("", "namespaces", *name, rest[2]),
            ["namespaces", namespace, plural] => (*namespace, *plural, "", ""),
            ["namespaces", namespace, plural, name] => (*namespace, *plural, *name, ""),
            ["namespaces", namespace, plural, name, subresource] => (*namespace, *plural, *name, *subresource),
            [plural] => ("", *plural, "", ""),
            [plural, name] => ("", *plural, *name, ""),
            [plural, name, subresource] => ("", *plural, *name, *subresource),
            _ => return,
        };
        self.resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
        self.namespace = namespace.to_owned();
        self.name = name.to_owned();
        self.subresource = subresource.to_owned();
    }

    fn find_verb(&self, method: &Method) -> Verb {
        match (self.resource.is_empty(), method, self.name.is_empty()) {
            (true, &Method::GET, _) => Verb::Discovery,
            (true, ..) => Verb::Other,
            (_, &Method::GET, true) if self.flag("watch") && self.flag("sendInitialEvents") => Verb::StreamingList,
            (_, &Method::GET, true) if self.flag("watch") => Verb::Watch,
            (_, &Method::GET, true) if !self.param("continue").is_empty() => Verb::Page,
            (_, &Method::GET, true) => Verb::List,
            (_, &Method::GET, false) => Verb::Get,
            (_, &Method::POST, true) => Verb::Create,
            (_, &Method::PUT, false) => Verb::Update,
            (_, &Method::PATCH, false) => Verb::Patch,
            (_, &Method::DELETE, false) => Verb::Delete,
            (_, &Method::DELETE, true) => Verb::DeleteCollection,
            _ => Verb::Other,
        }
    }
}

fn query(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        })
        .collect()
}

/// Undoes percent-encoding; what is not valid stays as it is.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        match (bytes[at], hex.and_then(|pair| u8::from_str_radix(pair, 16).ok())) {
            (b'%', Some(byte)) => {
                out.push(byte);
                at += 3;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
