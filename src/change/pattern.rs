//! The paths of `record.drop`, `record.redact` and `record.ignore`: JSON Pointers (RFC 6901) in which `*` stands for any one
//! token, be it the name of a member or the place of an item.
//!
//! A path that would touch what an object is known by cannot be made.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What an object is known by. `metadata` stands for all of it.
const IDENTITY: [&[&str]; 8] = [
    &["kind"],
    &["apiVersion"],
    &["metadata"],
    &["metadata", "name"],
    &["metadata", "namespace"],
    &["metadata", "uid"],
    &["metadata", "resourceVersion"],
    &["metadata", "generation"],
];

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// `*`
    Any,
    /// A name or an index, unescaped.
    Name(String),
}

impl Token {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Name(own) => own == name,
        }
    }
}

/// A path with wildcards.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    text: String,
    tokens: Vec<Token>,
}

/// Why a text is not such a path.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It has no beginning.
    #[error("found {0:?}, expected a path that begins with / such as /metadata/annotations/example.com~1hash")]
    NoSlash(String),
    /// `~` is written `~0` and `/` in a name is written `~1`; nothing else follows a `~`.
    #[error("found {0:?}, in which a ~ is followed by neither 0 (for ~) nor 1 (for /)")]
    Escape(String),
    /// A `*` is a part of a name: whoever writes it means names that begin so, which there is no way to say.
    #[error("found {0:?}, in which a * is only part of a name; allowed: * for any one name or index, such as /data/*")]
    Part(String),
    /// It hits or holds what an object is known by.
    #[error(
        "found {0:?}, which takes in what an object is known by; allowed: any path but /kind, /apiVersion, /metadata and \
         /metadata/name, namespace, uid, resourceVersion and generation, also through *"
    )]
    Identity(String),
}

impl Pattern {
    /// Reads a path.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let Some(rest) = text.strip_prefix('/') else { return Err(PatternError::NoSlash(text.into())) };
        let tokens = rest.split('/').map(|token| match token {
            "*" => Some(Token::Any),
            token => unescape(token).map(Token::Name),
        });
        let tokens: Vec<Token> = tokens.collect::<Option<_>>().ok_or_else(|| PatternError::Escape(text.into()))?;
        // Taken as it stands it would redact nothing, without a word.
        if tokens.iter().any(|token| matches!(token, Token::Name(name) if name.contains('*'))) {
            return Err(PatternError::Part(text.into()));
        }
        let takes_in =
            |path: &&[&str]| tokens.len() <= path.len() && tokens.iter().zip(*path).all(|(token, name)| token.is(name));
        if IDENTITY.iter().any(takes_in) {
            return Err(PatternError::Identity(text.into()));
        }
        Ok(Self { text: text.into(), tokens })
    }

    /// The path as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Whether what this JSON Pointer names is at or below this path.
    fn covers(&self, pointer: &str) -> bool {
        let mut names = pointer.split('/').skip(1);
        self.tokens.iter().all(|token| {
            names.next().is_some_and(|name| match token {
                Token::Any => true,
                Token::Name(own) if name.contains('~') => unescape(name).is_some_and(|name| name == *own),
                Token::Name(own) => own == name,
            })
        })
    }
}

/// `~1` → `/`, `~0` → `~`
fn unescape(token: &str) -> Option<String> {
    let mut parts = token.split('~');
    let mut out = parts.next()?.to_owned();
    for part in parts {
        out.push(match part.as_bytes().first() {
            Some(b'0') => '~',
            Some(b'1') => '/',
            _ => return None,
        });
        out.push_str(&part[1..]);
    }
    Some(out)
}

/// Writes a token behind a JSON Pointer.
pub(super) fn push_token(pointer: &mut String, token: &str) {
    pointer.push('/');
    if token.contains(['~', '/']) {
        pointer.push_str(&token.replace('~', "~0").replace('/', "~1"));
    } else {
        pointer.push_str(token);
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        Self::parse(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.text
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Paths that do not count: a change that touches nothing else is no change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ignored(pub Vec<Pattern>);

impl Ignored {
    /// Whether a difference at this JSON Pointer does not count.
    pub fn covers(&self, pointer: &str) -> bool {
        self.0.iter().any(|pattern| pattern.covers(pointer))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn what_an_object_is_known_by_cannot_be_taken_out_of_it() {
        for text in ["/kind", "/apiVersion", "/metadata", "/metadata/uid", "/*", "/*/name", "/metadata/*", "/*/*"] {
            assert_eq!(Pattern::parse(text).unwrap_err(), PatternError::Identity(text.into()));
        }
        for text in ["/", "/spec", "/metadata/labels", "/*/labels", "/metadata/*/a", "/kinds", "/metadata/name~1x"] {
            assert_eq!(Pattern::parse(text).unwrap().as_str(), text);
        }
        assert_eq!(Pattern::parse("spec").unwrap_err(), PatternError::NoSlash("spec".into()));
        for text in ["/data/pass*", "/spec/*x/a"] {
            assert_eq!(Pattern::parse(text).unwrap_err(), PatternError::Part(text.into()));
        }
        assert_eq!(Pattern::parse("").unwrap_err(), PatternError::NoSlash(String::new()));
        for text in ["/a~", "/a~2", "/~/b"] {
            assert_eq!(Pattern::parse(text).unwrap_err(), PatternError::Escape(text.into()));
        }
    }

    #[test]
    fn a_path_covers_itself_and_what_is_below_it() {
        let covers = |pattern: &str, pointer: &str| Ignored(vec![Pattern::parse(pattern).unwrap()]).covers(pointer);
        assert!(covers("/status/conditions/*/at", "/status/conditions/3/at"));
        assert!(covers("/status/conditions/*/at", "/status/conditions/3/at/b"));
        assert!(covers("/a/b~1c~0", "/a/b~1c~0"));
        for (pattern, pointer) in
            [("/status", "/statuses"), ("/a/b", "/a"), ("/a/b", "/b/b"), ("/a/*", "/a"), ("/a~1b", "/a/b")]
        {
            assert!(!covers(pattern, pointer), "{pattern} {pointer}");
        }
    }
}
