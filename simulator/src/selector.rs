//! Label and field selectors: equality and set forms, as the API server reads them.

use std::collections::BTreeMap;

use crate::object::Text;
use crate::request::RequestInfo;
use crate::resource::ResourceType;
use crate::status::Status;

/// What a LIST or a WATCH asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selection {
    labels: Vec<Requirement>,
    fields: Vec<(Field, bool, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
}

impl Selection {
    /// What a request for this resource selects.
    pub(crate) fn of(request: &RequestInfo, kind: &ResourceType) -> Result<Self, Status> {
        let selection = Self::parse(request.param("labelSelector"), request.param("fieldSelector"))?;
        // Namespaces alone have a list of fields of their own.
        if kind.name() == "namespaces" && selection.fields.iter().any(|(field, ..)| *field == Field::Namespace) {
            return Err(Status::bad_request("field label not supported: metadata.namespace"));
        }
        Ok(selection)
    }

    fn parse(labels: &str, fields: &str) -> Result<Self, Status> {
        Ok(Self {
            labels: split_outside_parentheses(labels).map(requirement).collect::<Result<_, _>>()?,
            fields: fields.split(',').filter(|part| !part.is_empty()).map(field).collect::<Result<_, _>>()?,
        })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether it asks for one name.
    pub(crate) fn is_one(&self) -> bool {
        self.fields.iter().any(|(field, equal, _)| *field == Field::Name && *equal)
    }

    /// Whether the object with this key (`namespace/name`, or `name`) is selected.
    pub(crate) fn takes(&self, key: &str, text: &Text) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let fields = self.fields.iter().all(|(field, equal, wanted)| {
            let found = match field {
                Field::Name => name,
                Field::Namespace => namespace,
            };
            (found == wanted) == *equal
        });
        if !fields || self.labels.is_empty() {
            return fields;
        }
        let labels = text.labels();
        self.labels.iter().all(|requirement| requirement.holds(&labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.contains_key(key),
            Self::Absent(key) => !labels.contains_key(key),
        }
    }
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

fn requirement(part: &str) -> Result<Requirement, Status> {
    let key = |text: &str| {
        let text = text.trim();
        let valid = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        if valid { Ok(text.to_owned()) } else { Err(unparsable(part)) }
    };
    let one = |text: &str| vec![text.trim().to_owned()];
    let set = |text: &str| -> Result<Vec<String>, Status> {
        let inner = text.trim().strip_prefix('(').and_then(|t| t.strip_suffix(')')).ok_or_else(|| unparsable(part))?;
        Ok(inner.split(',').map(|value| value.trim().to_owned()).collect())
    };
    if let Some((left, right)) = part.split_once(" notin ").or_else(|| part.split_once(" notin(")) {
        return Ok(Requirement::NotIn(key(left)?, set(&parenthesised(right))?));
    }
    if let Some((left, right)) = part.split_once(" in ").or_else(|| part.split_once(" in(")) {
        return Ok(Requirement::In(key(left)?, set(&parenthesised(right))?));
    }
    if let Some((left, right)) = part.split_once("!=") {
        return Ok(Requirement::NotIn(key(left)?, one(right)));
    }
    if let Some((left, right)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok(Requirement::In(key(left)?, one(right)));
    }
    match part.strip_prefix('!') {
        Some(absent) => Ok(Requirement::Absent(key(absent)?)),
        None => Ok(Requirement::Exists(key(part)?)),
    }
}

/// `in(a, b)` without the blank lost its parenthesis to the split; put it back.
fn parenthesised(text: &str) -> String {
    let text = text.trim();
    if text.starts_with('(') { text.to_owned() } else { format!("({text}") }
}

fn field(part: &str) -> Result<(Field, bool, String), Status> {
    let (left, equal, right) = part
        .split_once("!=")
        .map(|(l, r)| (l, false, r))
        .or_else(|| part.split_once("==").or_else(|| part.split_once('=')).map(|(l, r)| (l, true, r)))
        .ok_or_else(|| Status::bad_request(format!("invalid selector: '{part}'; can't understand '{part}'")))?;
    let field = match left.trim() {
        "metadata.name" => Field::Name,
        "metadata.namespace" => Field::Namespace,
        other => {
            return Err(Status::bad_request(format!("field label not supported: {other}")));
        }
    };
    Ok((field, equal, right.trim().to_owned()))
}

fn unparsable(part: &str) -> Status {
    Status::bad_request(format!("unable to parse requirement: {part}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(selector: &str, labels: &[(&str, &str)]) -> bool {
        let labels = labels.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        Selection::parse(selector, "").unwrap().labels.iter().all(|requirement| requirement.holds(&labels))
    }

    #[test]
    fn label_selectors_read_equality_and_set_forms() {
        let web = [("app", "web"), ("tier", "front")];
        assert!(holds("app=web", &web));
        assert!(holds("app==web,tier!=back", &web));
        assert!(!holds("app!=web", &web));
        assert!(holds("app in (web, api),tier", &web));
        assert!(holds("app in(web,api)", &web));
        assert!(holds("app notin (db),!canary", &web));
        assert!(!holds("canary", &web));
        assert!(holds("canary!=yes", &web));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert!(Selection::parse("a b", "").is_err());
        assert!(Selection::parse("app in web", "").is_err());
        assert!(Selection::parse("", "spec.nodeName=a").is_err());
    }
}
