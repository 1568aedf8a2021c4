//! An object that operations of a patch are applied to. Only what lies on their paths is taken apart.

use std::collections::BTreeMap;

use super::raw::{Level, Raw};

/// A value, whole or taken apart.
#[derive(Clone)]
pub(super) enum Tree<'a> {
    Whole(&'a str),
    Map(BTreeMap<String, Tree<'a>>),
    List(Vec<Tree<'a>>),
}

impl<'a> Tree<'a> {
    /// What a JSON Pointer leads to.
    pub(super) fn at(&mut self, pointer: &str) -> Option<&mut Self> {
        if !pointer.is_empty() && !pointer.starts_with('/') {
            return None;
        }
        pointer.split('/').skip(1).try_fold(self, |tree, token| tree.member(token))
    }

    pub(super) fn is_list(&mut self) -> bool {
        self.open();
        matches!(self, Self::List(_))
    }

    pub(super) fn remove(&mut self, pointer: &str) -> Option<Self> {
        let (parent, key) = pointer.rsplit_once('/')?;
        let parent = self.at(parent)?;
        parent.open();
        match parent {
            Self::Map(map) => map.remove(&unescaped(key)),
            Self::List(list) => {
                let index = key.parse::<usize>().ok().filter(|index| *index < list.len())?;
                Some(list.remove(index))
            }
            Self::Whole(_) => None,
        }
    }

    pub(super) fn insert(&mut self, pointer: &str, value: Self) -> Option<()> {
        let Some((parent, key)) = pointer.rsplit_once('/') else {
            *self = value;
            return Some(());
        };
        let parent = self.at(parent)?;
        parent.open();
        match parent {
            Self::Map(map) => drop(map.insert(unescaped(key), value)),
            Self::List(list) if key == "-" => list.push(value),
            Self::List(list) => {
                let index = key.parse::<usize>().ok().filter(|index| *index <= list.len())?;
                list.insert(index, value);
            }
            Self::Whole(_) => return None,
        }
        Some(())
    }

    /// As JSON again.
    pub(super) fn raw(&self) -> Option<Raw> {
        let mut json = String::new();
        self.write(&mut json)?;
        Raw::of_json(json)
    }

    fn member(&mut self, token: &str) -> Option<&mut Self> {
        self.open();
        match self {
            Self::Map(map) => map.get_mut(&unescaped(token)),
            Self::List(list) => list.get_mut(token.parse::<usize>().ok()?),
            Self::Whole(_) => None,
        }
    }

    fn open(&mut self) {
        let Self::Whole(json) = self else { return };
        match Level::of(json) {
            Level::Map(map) => {
                *self = Self::Map(map.into_iter().map(|(key, value)| (key, Self::Whole(value.get()))).collect());
            }
            Level::List(list) => *self = Self::List(list.into_iter().map(|value| Self::Whole(value.get())).collect()),
            Level::Text(_) | Level::Word(_) => {}
        }
    }

    fn write(&self, out: &mut String) -> Option<()> {
        let comma = |out: &mut String, index: usize| out.push_str(if index == 0 { "" } else { "," });
        match self {
            Self::Whole(json) => out.push_str(json),
            Self::Map(map) => {
                out.push('{');
                for (index, (key, value)) in map.iter().enumerate() {
                    comma(out, index);
                    out.push_str(&serde_json::to_string(key).ok()?);
                    out.push(':');
                    value.write(out)?;
                }
                out.push('}');
            }
            Self::List(list) => {
                out.push('[');
                for (index, value) in list.iter().enumerate() {
                    comma(out, index);
                    value.write(out)?;
                }
                out.push(']');
            }
        }
        Some(())
    }
}

pub(super) fn unescaped(token: &str) -> String {
    token.replace("~1", "/").replace("~0", "~")
}
