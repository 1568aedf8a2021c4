//! `filter` of a sink: a CEL expression over what a change is, never over the object itself. Selectors are for that, which the
//! API server applies.

use std::{collections::HashMap, fmt, sync::Arc};

use cel::{Context, Env, Program, Value};
use kubetide_sink::{Actor, Body, Change, Difference, Record};
use tracing::warn;

/// `namespace` is a word that CEL keeps for itself. Kubernetes spells it so where it means a field of that name; here it may be
/// written as it is.
const NAMESPACE: &str = "__namespace__";

/// What an expression may speak of, with what is under it.
const NAMES: [&str; 13] = [
    "cluster",
    "stream",
    "group",
    "version",
    "resource",
    "kind",
    "namespace",
    "name",
    "uid",
    "op",
    "origin",
    "change",
    "actor",
];

/// A compiled expression.
pub struct Filter {
    program: Program,
    env: Arc<Env>,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Filter")
    }
}

impl Filter {
    /// Compiles an expression, and tries it on a change: what cannot be answered there can be answered nowhere.
    pub fn compile(text: &str) -> Result<Self, String> {
        let allowed = || format!("allowed: {}", NAMES.join(", "));
        let env = Arc::new(Env::stdlib());
        let program = Program::compile(&with_namespace(text))
            .map_err(|error| format!("found {text:?}, which is not CEL: {error}"))?;
        let is_known = |name: &str| name == NAMESPACE || NAMES.contains(&name) || is_made(text, name);
        if let Some(unknown) = program.references().variables().into_iter().find(|name| !is_known(name)) {
            return Err(format!("found {unknown}, which a filter does not know; {}", allowed()));
        }
        let filter = Self { program, env };
        match filter.eval(&kubetide_sink::sample::record(1, "{}")) {
            Ok(Value::Bool(_)) => Ok(filter),
            Ok(other) => Err(format!("found {text:?}, which is {}, not true or false", other.type_of())),
            Err(error) => Err(format!("found {text:?}, which cannot be answered: {error}; {}", allowed())),
        }
    }

    /// Whether the sink takes this record. Control records are never left out, and neither is a change for which there is no
    /// answer.
    pub fn takes(&self, record: &Record) -> bool {
        if let Body::Control(_) = record.body {
            return true;
        }
        match self.eval(record) {
            Ok(answer) => answer != Value::Bool(false),
            Err(error) => {
                warn!(%error, seq = record.seq, "a filter has no answer for a change; it is delivered");
                true
            }
        }
    }

    fn eval(&self, record: &Record) -> Result<Value, String> {
        let Body::Change(change) = &record.body else { return Ok(Value::Bool(true)) };
        let mut context = Context::with_env(self.env.clone());
        for (name, value) in values(record, change) {
            context.add_variable_from_value(name, value);
        }
        self.program.execute(&context).map_err(|error| error.to_string())
    }
}

/// Whether the expression makes this name itself, as in `list.exists(name, …)`; CEL's own macros make some with an `@`.
fn is_made(text: &str, name: &str) -> bool {
    let made = |call: &str| call.trim_start().strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with(','));
    name.starts_with('@') || text.split('(').skip(1).any(made)
}

/// The expression as CEL takes it: `namespace` by itself is the name of a value, not what is written in a text or behind a dot.
fn with_namespace(text: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' | '\'' => quoted_len(rest, first, out.ends_with(['r', 'R'])),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (part, behind) = rest.split_at(len);
        let is_member = out.trim_end().ends_with('.');
        out.push_str(if part == "namespace" && !is_member { NAMESPACE } else { part });
        rest = behind;
    }
    out
}

/// How long the text is that begins here, with its quotes. One that does not end is as long as the rest.
fn quoted_len(rest: &str, quote: char, is_raw: bool) -> usize {
    let triple = quote.to_string().repeat(3);
    let end = if rest.starts_with(&triple) { triple } else { quote.to_string() };
    let mut at = end.len();
    while at < rest.len() && !rest[at..].starts_with(&end) {
        let step = rest[at..].chars().next().map_or(1, char::len_utf8);
        let is_escape = !is_raw && rest[at..].starts_with('\\');
        at += step;
        if is_escape {
            at += rest.get(at..).and_then(|rest| rest.chars().next()).map_or(0, char::len_utf8);
        }
    }
    rest.len().min(at + end.len())
}

/// What is not there is empty text or an empty list, so that nothing has to be asked for before it is compared.
fn values(record: &Record, change: &Change) -> [(&'static str, Value); 13] {
    let stream = &record.stream;
    let text = |text: &str| Value::from(text);
    let map = |members: Vec<(&str, Value)>| {
        let members: HashMap<String, Value> = members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Value::from(members)
    };
    let none = Difference::default();
    let Difference { classes, paths } = change.difference.as_ref().unwrap_or(&none);
    let classes: Vec<Value> = classes.iter().map(|class| text(class.as_str())).collect();
    let paths: Vec<Value> = paths.iter().map(|path| text(path)).collect();
    let part = |part: fn(&Actor) -> &String| text(change.actor.as_ref().map(part).map_or("", String::as_str));
    let actor = map(vec![
        ("manager", part(|actor| &actor.manager)),
        ("operation", part(|actor| &actor.operation)),
        ("subresource", part(|actor| &actor.subresource)),
    ]);
    [
        ("cluster", map(vec![("name", text(&stream.cluster.name)), ("uid", text(&stream.cluster.uid))])),
        ("stream", text(&stream.to_string())),
        ("group", text(&stream.group)),
        ("version", text(&stream.version)),
        ("resource", text(&stream.resource)),
        ("kind", text(&stream.kind)),
        (NAMESPACE, text(&change.namespace)),
        ("name", text(&change.name)),
        ("uid", text(&change.uid)),
        ("op", text(change.op.as_str())),
        ("origin", text(change.origin.as_str())),
        ("change", map(vec![("classes", Value::from(classes)), ("paths", Value::from(paths))])),
        ("actor", actor),
    ]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use kubetide_sink::{Class, Control, Scope, What, sample};

    use super::*;

    fn record() -> Record {
        let mut record = sample::record(3, "{\"spec\":{}}");
        let Body::Change(change) = &mut record.body else { panic!() };
        change.difference = Some(Difference { classes: vec![Class::Spec], paths: vec!["/spec/replicas".into()] });
        record
    }

    #[test]
    fn changes_are_taken_by_what_they_are() {
        for (text, takes) in [
            ("group == \"\"", true),
            ("group == 'apps'", false),
            ("resource in ['pods', 'nodes'] && !namespace.startsWith('kube-')", true),
            ("namespace == 'default' && __namespace__ == \"default\" && 'namespace' != namespace", true),
            ("cluster.name != 'it\\'s namespace' && stream != r'\\' && namespace != \"\"\"namespace \"\"\"", true),
            ("name.matches('^pod-[0-9]$')", true),
            ("'status' in change.classes", false),
            ("change.classes != ['status']", true),
            ("change.paths.exists(path, path.startsWith('/spec/'))", true),
            ("actor.manager == '' && cluster.name == 'sample'", true),
            ("op != 'create'", false),
        ] {
            assert_eq!(Filter::compile(text).unwrap().takes(&record()), takes, "{text}");
        }
    }

    #[test]
    fn control_records_are_never_left_out() {
        let control = Control { what: What::SnapshotStarted, scope: Scope::Stream };
        let record = Record { body: Body::Control(control), ..record() };
        assert!(Filter::compile("false").unwrap().takes(&record));
    }

    #[test]
    fn what_cannot_be_answered_is_refused_at_once() {
        for (text, why) in [
            ("group = 'apps'", "not CEL"),
            ("object.spec.replicas > 3", "object, which a filter does not know; allowed: cluster,"),
            ("grup == 'apps'", "grup, which"),
            ("group", "not true or false"),
            ("nope(group)", "cannot be answered"),
            ("cluster.nmae == 'a'", "cannot be answered"),
            ("", "not CEL"),
        ] {
            let refused = Filter::compile(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
