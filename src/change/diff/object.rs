//! Two objects: members are compared by key, whatever their order.

use std::{borrow::Cow, collections::HashMap, ops::Range};

use super::{Step, Walk};
use crate::change::json::{Json, Walked};

/// One member of an object.
pub(super) struct Member<'a> {
    pub(super) key: Cow<'a, str>,
    pub(super) value: Range<usize>,
}

impl Walk<'_> {
    pub(super) fn object(&mut self, before: Range<usize>, now: Range<usize>) -> Walked {
        let (old, new) = (members(self.before, before.start)?, members(self.now, now.start)?);
        // What a repeated key stands for is anyone's guess: the object is replaced as a whole.
        let (Some(_), Some(places)) = (by_key(&old), by_key(&new)) else {
            return self.note(Step::Replace(before, now));
        };
        let in_metadata = self.path == "/metadata";
        let apart = |key: &str| in_metadata && matches!(key, "resourceVersion" | "generation");
        let mut kept = vec![false; new.len()];
        for (at, member) in old.iter().enumerate() {
            // Nearly always both have the same keys in the same order.
            let place = match new.get(at) {
                Some(same) if same.key == member.key => Some(at),
                _ => places.find(&new, &member.key),
            };
            if let Some(place) = place {
                kept[place] = true;
            }
            if apart(&member.key) {
                continue;
            }
            match place {
                Some(place) => {
                    let value = new[place].value.clone();
                    if self.before[member.value.clone()] != self.now[value.clone()] {
                        self.below(&member.key, |walk| walk.value(member.value.clone(), value))?;
                    }
                }
                None => self.below(&member.key, |walk| walk.note(Step::Remove(member.value.clone())))?,
            }
        }
        for (member, _) in new.iter().zip(kept).filter(|(member, kept)| !kept && !apart(&member.key)) {
            self.below(&member.key, |walk| walk.note(Step::Add(member.value.clone())))?;
        }
        Ok(())
    }
}

/// The members of the object that begins at `at`.
pub(super) fn members(bytes: &[u8], at: usize) -> Walked<Vec<Member<'_>>> {
    let mut json = Json::at(bytes, at);
    let mut members = Vec::with_capacity(16);
    if !json.enter(b'}')? {
        return Ok(members);
    }
    loop {
        let key = json.key()?.text()?;
        json.next();
        let from = json.at;
        json.value()?;
        members.push(Member { key, value: from..json.at });
        if !json.another(b'}')? {
            return Ok(members);
        }
    }
}

/// Where the keys of an object are.
enum Places<'a> {
    /// Few: looking through them is the quickest.
    Few,
    Many(HashMap<&'a str, usize>),
}

impl Places<'_> {
    fn find(&self, members: &[Member<'_>], key: &str) -> Option<usize> {
        match self {
            Self::Few => members.iter().position(|member| member.key == key),
            Self::Many(places) => places.get(key).copied(),
        }
    }
}

/// None if a key is there twice.
fn by_key<'a>(members: &'a [Member<'_>]) -> Option<Places<'a>> {
    // Up to here comparing all with all costs less than a map.
    const FEW: usize = 24;
    if members.len() <= FEW {
        let twice =
            members.iter().enumerate().any(|(at, member)| members[..at].iter().any(|other| other.key == member.key));
        return (!twice).then_some(Places::Few);
    }
    let places: HashMap<&str, usize> =
        members.iter().enumerate().map(|(at, member)| (member.key.as_ref(), at)).collect();
    (places.len() == members.len()).then_some(Places::Many(places))
}
