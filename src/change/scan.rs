//! One pass over an object's raw bytes: finds its identity, who wrote it, and what is to be cut out or redacted.
//!
//! The scanner goes down the rules of its stream beside the object. Where no rule leads on, values are passed without looking at
//! their keys. A key that a rule names is recognised however it is escaped, and may be there once only: nothing hides behind
//! another spelling or a second copy.

mod copy;
mod identity;
mod managed;

use std::{borrow::Cow, ops::Range};

use super::{
    Managed, ObjectKey, Observed, ResourceVersion, Writers,
    clean::{Cleaner, Edit, Owner, What},
    json::{Json, Quoted, Walked},
    pattern::push_token,
    rules::{Node, Role, Rules},
};
use identity::Identity;

/// Why an object's identity could not be found: nothing can be logged of it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("object without identity at byte {at}: {problem}")]
pub struct NoIdentity {
    at: usize,
    problem: &'static str,
}

/// Finds the object's identity and cleans it.
pub fn observe(cleaner: &Cleaner, bytes: &[u8]) -> Result<Observed, NoIdentity> {
    let mut json = Json::new(bytes);
    let observed = observe_at(cleaner, &mut json)?;
    if json.next().is_some() && observed.object.is_ok() {
        return Ok(Observed { object: Err(format!("bytes behind the object at byte {}", json.at)), ..observed });
    }
    Ok(observed)
}

/// The same for an object that the bytes begin with; also tells where it ends, if it could be walked.
pub fn observe_first(cleaner: &Cleaner, bytes: &[u8]) -> Result<(Observed, usize), NoIdentity> {
    let mut json = Json::new(bytes);
    let observed = observe_at(cleaner, &mut json)?;
    Ok((observed, json.at))
}

/// The object that begins at this place, which is behind it then.
fn observe_at<'a>(cleaner: &'a Cleaner, json: &mut Json<'a>) -> Result<Observed, NoIdentity> {
    json.next();
    let start = json.at;
    let mut scan = Scan {
        json: json.clone(),
        rules: cleaner.rules(),
        found: Found::default(),
        edits: Vec::new(),
        path: Vec::new(),
    };
    let mut walked = if json.peek() == Some(b'{') { scan.object(Rules::root()) } else { Err("not an object") };
    let at = scan.json.at;
    *json = scan.json.clone();
    let object = &json.bytes[start..at];
    // Most objects are plain ASCII, which is told in a third of the time.
    if walked.is_ok() && !json.is_ascii() && std::str::from_utf8(object).is_err() {
        walked = Err("bad UTF-8");
    }
    let Scan { found, mut edits, .. } = scan;
    let identity = match walked {
        Ok(()) => found.identity,
        // The walk may have ended before all of it was seen.
        Err(_) => Identity::search(&json.bytes[start..]).unwrap_or_default(),
    };
    let given = |part: Option<Cow<'a, str>>| part.filter(|text| !text.is_empty()).map(Cow::into_owned);
    let (Some(name), Some(version)) = (given(identity.name), given(identity.version)) else {
        let problem = walked.err().unwrap_or("no metadata.name or metadata.resourceVersion");
        return Err(NoIdentity { at, problem });
    };
    let key = ObjectKey { namespace: identity.namespace.unwrap_or_default().into_owned(), name };
    let uid = given(identity.uid).unwrap_or_else(|| format!("{}/{}", key.namespace, key.name));
    for Edit { span, .. } in &mut edits {
        *span = span.start - start..span.end - start;
    }
    let owner = Owner { uid: &uid, name: &key.name };
    let cleaned = walked.and_then(|()| cleaner.splice(object, &edits, &owner, found.has_kind, found.has_api_version));
    let object = cleaned.map_err(|problem| format!("{problem} at byte {}", at - start));
    let Found { generation, managed, writers, .. } = found;
    Ok(Observed { key, uid, version: ResourceVersion::new(version), generation, managed, writers, object })
}

#[derive(Default)]
struct Found<'a> {
    has_kind: bool,
    has_api_version: bool,
    identity: Identity<'a>,
    generation: Option<i64>,
    managed: Managed,
    writers: Writers,
}

/// A step of the path to where the scanner is.
enum Step<'a> {
    Key(Quoted<'a>),
    Index(usize),
}

struct Scan<'a> {
    json: Json<'a>,
    rules: &'a Rules,
    found: Found<'a>,
    /// By where they begin.
    edits: Vec<Edit>,
    path: Vec<Step<'a>>,
}

/// The keys of one object that rules name, as far as they have come.
#[derive(Default)]
struct Seen {
    first: u64,
    more: Vec<usize>,
}

impl Seen {
    fn once(&mut self, index: usize) -> Walked {
        let again = if index < 64 {
            let bit = 1 << index;
            let again = self.first & bit != 0;
            self.first |= bit;
            again
        } else {
            let again = self.more.contains(&index);
            self.more.push(index);
            again
        };
        if again { Err("a key is there twice") } else { Ok(()) }
    }
}

/// Cuts within one container, each with the comma that goes with it.
struct Cuts {
    /// Where the last kept value ends; a cut behind one takes its comma along.
    kept_until: Option<usize>,
    /// Where a cut begins that has no kept value before it; it takes the next value's comma along.
    open: Option<usize>,
    body: usize,
}

impl<'a> Scan<'a> {
    /// The object that begins here, by the rules of a node.
    fn object(&mut self, node: usize) -> Walked {
        let rules = self.rules;
        let node = rules.node(node);
        if !self.json.enter(b'}')? {
            return Ok(());
        }
        let mut seen = Seen::default();
        let mut cuts = Cuts { kept_until: None, open: None, body: self.json.at };
        loop {
            self.close_cut(&mut cuts);
            let key = self.json.key()?;
            let cut = match find(node, &key)? {
                (Some(index), _) => {
                    seen.once(index)?;
                    self.ruled(Step::Key(key), node.members[index].node)?
                }
                (None, Some(any)) => self.ruled(Step::Key(key), any)?,
                (None, None) => {
                    self.json.value()?;
                    false
                }
            };
            self.note_cut(&mut cuts, cut);
            if !self.json.another(b'}')? {
                break;
            }
        }
        self.last_cut(&cuts);
        Ok(())
    }

    /// The array that begins here, by the rules of a node.
    fn array(&mut self, node: usize) -> Walked {
        let rules = self.rules;
        let node = rules.node(node);
        if !self.json.enter(b']')? {
            return Ok(());
        }
        let mut cuts = Cuts { kept_until: None, open: None, body: self.json.at };
        for index in 0.. {
            self.close_cut(&mut cuts);
            let cut = match node.item(index) {
                Some(next) => self.ruled(Step::Index(index), next)?,
                None => {
                    self.json.value()?;
                    false
                }
            };
            self.note_cut(&mut cuts, cut);
            if !self.json.another(b']')? {
                break;
            }
        }
        self.last_cut(&cuts);
        Ok(())
    }

    /// A value that has a node; whether it is to be cut.
    fn ruled(&mut self, step: Step<'a>, at: usize) -> Walked<bool> {
        let rules = self.rules;
        let node = rules.node(at);
        let first = self.json.next();
        let from = self.json.at;
        let edits_before = self.edits.len();
        match node.role {
            Role::Pass => {
                self.path.push(step);
                self.inside(node, at, first)?;
                self.path.pop();
            }
            Role::Kind => {
                self.json.value()?;
                self.found.has_kind = true;
            }
            Role::ApiVersion => {
                self.json.value()?;
                self.found.has_api_version = true;
            }
            Role::Namespace => self.found.identity.namespace = self.text()?,
            Role::Name => self.found.identity.name = self.text()?,
            Role::Uid => self.found.identity.uid = self.text()?,
            Role::Version => self.found.identity.version = self.text()?,
            Role::Generation => {
                self.json.value()?;
                let digits = std::str::from_utf8(&self.json.bytes[from..self.json.at]).map_err(|_| "bad UTF-8")?;
                if digits != "null" {
                    self.found.generation = Some(digits.parse().map_err(|_| "bad generation")?);
                }
            }
            Role::ManagedFields => {
                managed::read(&mut self.json, &mut self.found.managed, &mut self.found.writers)?;
                return Ok(true);
            }
            Role::Cut => {
                self.json.value()?;
                return Ok(true);
            }
            Role::RedactUnlessObject if first == Some(b'{') => {
                self.path.push(step);
                self.inside(node, at, first)?;
                self.path.pop();
            }
            Role::Redact | Role::RedactUnlessObject | Role::RedactRelease | Role::RedactCopy | Role::RedactText => {
                self.path.push(step);
                self.inside(node, at, first)?;
                let span = from..self.json.at;
                let value = &self.json.bytes[span.clone()];
                let is_meant = match node.role {
                    Role::RedactCopy => copy::is_of_object(value),
                    Role::RedactText => copy::may_be(value),
                    _ => true,
                };
                if is_meant && is_something(value) {
                    self.redact(span, node.role, edits_before)?;
                }
                self.path.pop();
            }
        }
        Ok(false)
    }

    fn inside(&mut self, node: &Node, at: usize, first: Option<u8>) -> Walked {
        match first {
            Some(b'{') if node.leads_on() => self.object(at),
            Some(b'[') if node.leads_on() => self.array(at),
            _ => self.json.value(),
        }
    }

    fn redact(&mut self, span: Range<usize>, role: Role, edits_before: usize) -> Walked {
        let mut path = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) => push_token(&mut path, &key.text()?),
                Step::Index(index) => push_token(&mut path, &index.to_string()),
            }
        }
        if role == Role::RedactRelease {
            // Before those within it, which count if this one turns out not to.
            self.edits.insert(edits_before, Edit { span, what: What::RedactRelease(path) });
        } else {
            self.edits.truncate(edits_before);
            self.edits.push(Edit { span, what: What::Redact(path) });
        }
        Ok(())
    }

    /// The text that begins here; null is none.
    fn text(&mut self) -> Walked<Option<Cow<'a, str>>> {
        match self.json.peek() {
            Some(b'"') => self.json.quoted()?.text().map(Some),
            Some(b'n') => self.json.value().map(|()| None),
            _ => Err("not a string"),
        }
    }

    #[inline]
    fn close_cut(&mut self, cuts: &mut Cuts) {
        if let Some(from) = cuts.open.take() {
            self.json.next();
            self.edits.push(Edit { span: from..self.json.at, what: What::Cut });
            cuts.body = self.json.at;
        }
    }

    #[inline]
    fn note_cut(&mut self, cuts: &mut Cuts, cut: bool) {
        match (cut, cuts.kept_until) {
            (false, _) => cuts.kept_until = Some(self.json.at),
            (true, Some(from)) => {
                self.edits.push(Edit { span: from..self.json.at, what: What::Cut });
                cuts.kept_until = Some(self.json.at);
            }
            (true, None) => cuts.open = Some(cuts.body),
        }
    }

    /// Behind the closing bracket: a cut that nothing follows.
    fn last_cut(&mut self, cuts: &Cuts) {
        if let Some(from) = cuts.open {
            self.edits.push(Edit { span: from..self.json.at - 1, what: What::Cut });
        }
    }
}

/// Which member of the node a key is, and else where any key leads.
fn find(node: &Node, key: &Quoted<'_>) -> Walked<(Option<usize>, Option<usize>)> {
    let position = |name: &[u8]| node.members.iter().position(|member| member.name.as_bytes() == name);
    let index = match key.plain() {
        Some(plain) => position(plain),
        None => position(key.text()?.as_bytes()),
    };
    Ok((index, node.any))
}

/// Null and what is empty have nothing to hide.
fn is_something(value: &[u8]) -> bool {
    match value {
        b"null" => false,
        [b'{' | b'[', inner @ .., _] => inner.iter().any(|byte| !byte.is_ascii_whitespace()),
        _ => true,
    }
}

#[cfg(test)]
mod tests;
