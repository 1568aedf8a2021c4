//! Subjects: where records go, where the cursor is, and which subjects the stream must take for that.
//!
//! A value that becomes part of a subject is escaped like in a URL: `apps.k8s.io` is `apps%2Ek8s%2Eio`. So a value never
//! adds a token, and [`unescape`] gives it back.

use kubetide_sink::{Body, Cluster, ConfigProblem, Field, Record, Template};

/// What stands for "any token" where a place of the template is filled.
const ANY: &str = "*";

/// The subjects of one sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subjects {
    template: Template,
    /// The same with the cluster filled in, which is the same in all records.
    of_cluster: Template,
    /// The tokens of the template before the first one with a place in it, each with its dot behind it.
    prefix: String,
    cluster: String,
    cursor: String,
}

impl Subjects {
    /// Reads the template. The cursor's subject does not depend on it: it is the identity of the sink.
    pub(crate) fn parse(template: &str, cluster: &Cluster, sink: &str) -> Result<Self, ConfigProblem> {
        let wrong = |problem: String| ConfigProblem::new("subject", problem);
        let parsed = Template::parse(template, Field::OF_SUBJECTS).map_err(|error| wrong(error.to_string()))?;
        // A value is never empty and never has a dot, so one letter stands for any.
        let example = parsed.with_all("x");
        if let Some(token) = example.split('.').find(|token| !is_token(token)) {
            let found = if token.is_empty() { "an empty token".into() } else { format!("the token {token:?}") };
            return Err(wrong(format!(
                "found {found}: tokens between dots must not be empty, nor have spaces, control characters, * or >"
            )));
        }
        if example.starts_with('$') {
            return Err(wrong("found $ at the beginning: these subjects are the server's own".into()));
        }
        let literal = template.split('{').next().unwrap_or_default();
        let prefix = match literal.len() == template.len() {
            true => format!("{literal}."),
            false => literal[..literal.rfind('.').map_or(0, |dot| dot + 1)].to_owned(),
        };
        let cluster = escaped(&cluster.name);
        let of_cluster = Template::parse(&template.replace("{cluster}", &cluster), Field::OF_SUBJECTS)
            .map_err(|error| wrong(error.to_string()))?;
        let cursor = format!("kubetide.{cluster}._cursor.{}", escaped(sink));
        Ok(Self { template: parsed, of_cluster, prefix, cluster, cursor })
    }

    /// Where this record goes.
    pub(crate) fn of(&self, record: &Record) -> String {
        match &record.body {
            Body::Change(_) => self.template.render(record, escape),
            Body::Control(control) => {
                let Self { prefix, cluster, .. } = self;
                let [group, resource] = [Field::Group, Field::Resource].map(|field| escaped(field.of(record)));
                format!("{prefix}{cluster}._control.{group}.{resource}.{}", control.what.as_str())
            }
        }
    }

    /// Where the cursor is.
    pub(crate) fn cursor(&self) -> &str {
        &self.cursor
    }

    /// What the stream must take: all that [`of`](Self::of) can be, and the cursor.
    pub(crate) fn needed(&self, with_control: bool, with_cursor: bool) -> Vec<String> {
        // The example tells which tokens have a place in them: those that differ when another value is filled in.
        let (a, b) = (self.of_cluster.with_all("a"), self.of_cluster.with_all("b"));
        let changes: Vec<&str> = a.split('.').zip(b.split('.')).map(|(a, b)| if a == b { a } else { ANY }).collect();
        let mut needed = vec![changes.join(".")];
        if with_control {
            needed.push(format!("{}{}._control.*.*.*", self.prefix, self.cluster));
        }
        if with_cursor {
            needed.push(self.cursor.clone());
        }
        needed
    }

    /// What a stream is made with: everything below the fixed beginning of the template, or exactly what is needed if it has
    /// none.
    pub(crate) fn to_create(&self, with_control: bool, with_cursor: bool) -> Vec<String> {
        let mut subjects = Vec::new();
        if !self.prefix.is_empty() {
            subjects.push(format!("{}>", self.prefix));
        }
        for needed in self.needed(with_control, with_cursor) {
            if !subjects.iter().any(|subject| covers(subject, &needed)) {
                subjects.push(needed);
            }
        }
        subjects
    }
}

/// Whether everything that matches `inner` matches `outer` too.
pub(crate) fn covers(outer: &str, inner: &str) -> bool {
    let mut inner = inner.split('.');
    for token in outer.split('.') {
        match (token, inner.next()) {
            (">", Some(_)) => return true,
            (_, None) | (_, Some(">")) => return false,
            (ANY, Some(_)) => {}
            (token, Some(other)) if token == other => {}
            _ => return false,
        }
    }
    inner.next().is_none()
}

/// Whether this may be published to.
pub(crate) fn is_subject(subject: &str) -> bool {
    subject.split('.').all(is_token)
}

/// Whether this may stand between two dots of a subject that is published to.
fn is_token(token: &str) -> bool {
    !token.is_empty() && !token.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>'))
}

/// Appends the value as a part of a token: what a subject cannot hold, and `%`, `$` and braces, becomes `%` and two hexadecimal
/// digits for each of its bytes.
pub fn escape(value: &str, out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in value.bytes() {
        match byte {
            b'.' | b'*' | b'>' | b'%' | b'$' | b'{' | b'}' | 0..=b' ' | 0x7f.. => {
                out.push('%');
                out.push(char::from(DIGITS[usize::from(byte >> 4)]));
                out.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
            _ => out.push(char::from(byte)),
        }
    }
}

/// The value that was escaped; none if this is not how a value is escaped.
pub fn unescape(token: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let (high, low) = (digit()?, digit()?);
            bytes.push(u8::try_from(high << 4 | low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    escape(value, &mut out);
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::sync::Arc;

    use kubetide_sink::{Control, Scope, What, sample};
    use proptest::prelude::*;

    use super::*;

    const DEFAULT: &str = "kubetide.{cluster}.{group}.{resource}.{namespace}.{name}";

    fn subjects(template: &str) -> Subjects {
        let cluster = Cluster { name: "prod.eu".into(), uid: "c-1".into() };
        Subjects::parse(template, &cluster, "the sink").unwrap()
    }

    fn control() -> Record {
        let mut record = sample::record(7, "{}");
        record.body = Body::Control(Control { what: What::SnapshotStarted, scope: Scope::Stream });
        record
    }

    #[test]
    fn a_record_goes_to_its_object_and_a_control_record_beside_the_objects() {
        assert_eq!(subjects(DEFAULT).of(&sample::record(3, "{}")), "kubetide.sample.core.pods.default.pod-3");
        assert_eq!(subjects("all").of(&sample::record(3, "{}")), "all");
        for (template, prefix) in [
            (DEFAULT, "kubetide."),
            ("a.b.{group}.{cluster}", "a.b."),
            ("a.b-{cluster}.x", "a."),
            ("{cluster}.{name}", ""),
            ("all", "all."),
        ] {
            let expected = format!("{prefix}prod%2Eeu._control.core.pods.snapshot_started");
            assert_eq!(subjects(template).of(&control()), expected, "{template}");
        }
        let mut of_no_stream = control();
        of_no_stream.stream = Arc::new(kubetide_sink::Stream::none_of(of_no_stream.stream.cluster.clone()));
        assert_eq!(subjects(DEFAULT).of(&of_no_stream), "kubetide.prod%2Eeu._control._._.snapshot_started");
        assert_eq!(subjects("x.{name}").cursor(), "kubetide.prod%2Eeu._cursor.the%20sink");
    }

    #[test]
    fn a_template_that_makes_no_subject_is_refused() {
        for (template, part) in [
            ("", "empty token"),
            ("a..b", "empty token"),
            (".{name}", "empty token"),
            ("a.{name}.", "empty token"),
            ("a.*.{name}", "\"*\""),
            ("a.>", "\">\""),
            ("a b.{name}", "\"a b\""),
            ("a\t", "\"a\\t\""),
            ("$JS.{name}", "$ at the beginning"),
            ("a.{nmae}", "{nmae}"),
        ] {
            let cluster = Cluster { name: "c".into(), uid: "c".into() };
            let problem = Subjects::parse(template, &cluster, "s").unwrap_err();
            assert_eq!(problem.key, "subject");
            assert!(problem.problem.contains(part), "{template}: {problem}");
        }
    }

    #[test]
    fn a_stream_is_made_with_what_is_needed() {
        let create = |template: &str| subjects(template).to_create(true, true);
        assert_eq!(create(DEFAULT), ["kubetide.>"]);
        assert_eq!(create("k8s.{name}"), ["k8s.>", "kubetide.prod%2Eeu._cursor.the%20sink"]);
        let bare = ["prod%2Eeu.x.*", "prod%2Eeu._control.*.*.*", "kubetide.prod%2Eeu._cursor.the%20sink"];
        assert_eq!(create("{cluster}.x.a-{name}"), bare);
        assert_eq!(subjects("{cluster}.x.a-{name}").to_create(false, false), ["prod%2Eeu.x.*"]);
        assert_eq!(create("all"), ["all.>", "all", "kubetide.prod%2Eeu._cursor.the%20sink"]);
    }

    #[test]
    fn covering_is_about_every_subject_that_matches() {
        for (outer, inner) in
            [("a.>", "a.b.c"), ("a.>", "a.*.>"), ("a.*", "a.*"), ("a.*", "a.b"), (">", "a"), (">", ">"), ("a", "a")]
        {
            assert!(covers(outer, inner), "{outer} {inner}");
        }
        for (outer, inner) in
            [("a.>", "a"), ("a.b", "a.*"), ("a.*", "a.>"), ("a.*", "a.b.c"), ("a.b.c", "a.b"), ("a.*.c", "a.b.d")]
        {
            assert!(!covers(outer, inner), "{outer} {inner}");
        }
    }

    #[test]
    fn a_value_that_was_not_escaped_by_us_is_told_from_one_that_was() {
        for token in ["%", "%2", "%2x", "%FF"] {
            assert_eq!(unescape(token), None, "{token}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_value_is_one_token_and_can_be_read_back(value in any::<String>()) {
            let token = escaped(&value);
            prop_assert!(value.is_empty() || is_token(&token) && !token.contains('.') && !token.starts_with('$'));
            prop_assert_eq!(unescape(&token), Some(value));
        }

        #[test]
        fn every_record_goes_to_a_subject_that_the_made_stream_takes(
            name in "[^\0]{1,20}",
            namespace in "[a-z.*> ]{0,8}",
            group in "[a-z.]{0,8}",
            template in prop::sample::select(vec![DEFAULT, "{cluster}.{name}", "x-{group}.{name}", "all", "a.{namespace}.b"]),
        ) {
            let mut record = sample::record(1, "{}");
            let mut stream = (*record.stream).clone();
            stream.group = group;
            stream.cluster.name = "prod.eu".into();
            record.stream = Arc::new(stream);
            if let Body::Change(change) = &mut record.body {
                change.name = name;
                change.namespace = namespace;
            }
            let subjects = subjects(template);
            let mut noted = control();
            noted.stream = record.stream.clone();
            let created = subjects.to_create(true, true);
            for subject in [subjects.of(&record), subjects.of(&noted), subjects.cursor().to_owned()] {
                prop_assert!(created.iter().any(|taken| covers(taken, &subject)), "{subject} in {created:?}");
            }
        }
    }
}
