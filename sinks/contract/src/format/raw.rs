//! JSON values as they are spelled: `1.00` is not `1.0`, no number is too large, and nothing is nested too deep.
//!
//! A value is looked into one level at a time. What cannot be read there stands for itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A value.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Raw(Box<RawValue>);

/// One level of a value.
pub(super) enum Level<'a> {
    Map(BTreeMap<String, &'a RawValue>),
    List(Vec<&'a RawValue>),
    Text(String),
    /// A number, `true`, `false`, `null`, or a text that is none: as it is spelled.
    Word(&'a str),
}

impl<'a> Level<'a> {
    pub(super) fn of(json: &'a str) -> Self {
        let read = match json.as_bytes().first() {
            Some(b'{') => serde_json::from_str(json).map(Self::Map),
            Some(b'[') => serde_json::from_str(json).map(Self::List),
            Some(b'"') => serde_json::from_str(json).map(Self::Text),
            _ => return Self::Word(json),
        };
        read.unwrap_or(Self::Word(json))
    }
}

impl Raw {
    /// A value that is JSON already.
    pub(super) fn of_json(json: String) -> Option<Self> {
        RawValue::from_string(json).ok().map(Self)
    }

    /// A text that is none yet.
    pub(super) fn of_text(text: &str) -> Option<Self> {
        serde_json::value::to_raw_value(text).ok().map(Self)
    }

    /// As it is spelled.
    pub fn spelled(&self) -> &str {
        self.0.get()
    }

    pub(super) fn level(&self) -> Level<'_> {
        Level::of(self.spelled())
    }

    /// Whether it is a list or a map.
    pub(super) fn is_large(&self) -> bool {
        self.spelled().starts_with(['{', '['])
    }
}

impl From<&RawValue> for Raw {
    fn from(value: &RawValue) -> Self {
        Self(value.to_owned())
    }
}

impl PartialEq for Raw {
    fn eq(&self, other: &Self) -> bool {
        self.spelled() == other.spelled()
    }
}
