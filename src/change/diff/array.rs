//! Two arrays: what they begin and end with in common is passed, and what is left is matched by what names an item, so that an
//! insert at the head or a removal in the middle stays one small step.

use std::ops::Range;

use super::{Step, Walk, object::members};
use crate::change::json::{Json, Walked};

/// Members that name an item of a list in Kubernetes, the first that is there.
const NAMING: [&str; 8] = ["name", "type", "uid", "key", "ip", "containerPort", "port", "id"];

/// The table of common items grows with both lengths: beyond this, items are matched by their place. 128 of each are more than
/// an EndpointSlice has endpoints, and take 32 KiB and 0.1 ms where all are long and differ at their ends only.
const MATCHED: usize = 128 * 128;

/// What becomes of an item, in order.
enum Fate {
    /// It stays, perhaps with differences inside.
    Both(usize, usize),
    /// Another takes its place.
    Instead(usize, usize),
    Gone(usize),
    New(usize),
}

impl Walk<'_> {
    pub(super) fn array(&mut self, before: Range<usize>, now: Range<usize>) -> Walked {
        let (old, new) = (items(self.before, before.start)?, items(self.now, now.start)?);
        let same =
            |(one, other): &(&Range<usize>, &Range<usize>)| self.before[(*one).clone()] == self.now[(*other).clone()];
        let head = old.iter().zip(&new).take_while(same).count();
        let (old, new) = (&old[head..], &new[head..]);
        let tail = if self.by_place { 0 } else { old.iter().rev().zip(new.iter().rev()).take_while(same).count() };
        let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
        let is_matched = !self.by_place && !old.is_empty() && !new.is_empty() && old.len() * new.len() <= MATCHED;
        let fates = if is_matched {
            let (old, new) = (names(self.before, old)?, names(self.now, new)?);
            by_name(&old, &new)
        } else {
            by_place(old.len(), new.len())
        };
        // Everything before this place is as it will be, everything behind it as it was.
        let mut place = head;
        for fate in fates {
            self.below(&place.to_string(), |walk| match fate {
                Fate::Both(from, to) => walk.value(old[from].clone(), new[to].clone()),
                Fate::Instead(from, to) => walk.instead(old[from].clone(), new[to].clone()),
                Fate::Gone(from) => walk.note(Step::Remove(old[from].clone())),
                Fate::New(to) => walk.note(Step::Add(new[to].clone())),
            })?;
            place += usize::from(!matches!(fate, Fate::Gone(_)));
        }
        Ok(())
    }
}

/// Where the items of the array are that begins at `at`.
pub(super) fn items(bytes: &[u8], at: usize) -> Walked<Vec<Range<usize>>> {
    let mut json = Json::at(bytes, at);
    let mut items = Vec::new();
    if !json.enter(b']')? {
        return Ok(items);
    }
    loop {
        json.next();
        let from = json.at;
        json.value()?;
        items.push(from..json.at);
        if !json.another(b']')? {
            return Ok(items);
        }
    }
}

/// What names each item: a member of it, else all of it.
fn names<'a>(bytes: &'a [u8], items: &[Range<usize>]) -> Walked<Vec<(usize, &'a [u8])>> {
    let name = |item: &Range<usize>| {
        if bytes[item.start] == b'{' {
            let members = members(bytes, item.start)?;
            for (place, naming) in NAMING.iter().enumerate() {
                if let Some(member) = members.iter().find(|member| member.key == *naming) {
                    return Ok((place, &bytes[member.value.clone()]));
                }
            }
        }
        Ok((NAMING.len(), &bytes[item.clone()]))
    };
    items.iter().map(name).collect()
}

fn by_place(old: usize, new: usize) -> Vec<Fate> {
    let both = (0..old.min(new)).map(|at| Fate::Both(at, at));
    both.chain((new..old).map(Fate::Gone)).chain((old..new).map(Fate::New)).collect()
}

/// By the longest sequence of names that both have.
fn by_name<T: PartialEq>(old: &[T], new: &[T]) -> Vec<Fate> {
    let width = new.len() + 1;
    let mut common = vec![0_u16; (old.len() + 1) * width];
    for from in (0..old.len()).rev() {
        for to in (0..new.len()).rev() {
            common[from * width + to] = if old[from] == new[to] {
                common[(from + 1) * width + to + 1] + 1
            } else {
                common[(from + 1) * width + to].max(common[from * width + to + 1])
            };
        }
    }
    let (mut from, mut to) = (0, 0);
    let mut fates = Vec::new();
    while from < old.len() || to < new.len() {
        // Both up to the next common name: one takes the place of the other as long as there are two.
        let (gone_from, new_from) = (from, to);
        while from < old.len() && to < new.len() && old[from] != new[to] {
            if common[(from + 1) * width + to] >= common[from * width + to + 1] { from += 1 } else { to += 1 }
        }
        if from == old.len() || to == new.len() {
            (from, to) = (old.len(), new.len());
        }
        let (gone, added) = (from - gone_from, to - new_from);
        for at in 0..gone.max(added) {
            fates.push(match (at < gone, at < added) {
                (true, true) => Fate::Instead(gone_from + at, new_from + at),
                (true, false) => Fate::Gone(gone_from + at),
                (false, _) => Fate::New(new_from + at),
            });
        }
        if from < old.len() && to < new.len() {
            fates.push(Fate::Both(from, to));
            (from, to) = (from + 1, to + 1);
        }
    }
    fates
}
