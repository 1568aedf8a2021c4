//! Who wrote an object: the entries of its `managedFields` without the fields, from the scan to the comparison.

use kubetide_sink::Actor;

use super::{Managed, Trace};

/// As much text as two or three writers have.
const ROOM: usize = 160;

/// The writers of an object, one for each checksum of its [`Managed`], in one piece of text: most of them are never looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    text: String,
    /// Where in the text manager, operation, subresource and time of each end.
    ends: Vec<[u32; 4]>,
}

impl Writers {
    /// Adds one; returns a checksum of it.
    pub(super) fn push(&mut self, parts: &[impl AsRef<str>; 4]) -> u32 {
        let from = self.text.len();
        // Once for all that most objects have.
        self.text.reserve(ROOM.max(parts.iter().map(|part| part.as_ref().len()).sum()));
        // What begins the sum tells where one part ends and the next begins.
        let mut lengths = 0_u32;
        let ends = parts.each_ref().map(|part| {
            self.text.push_str(part.as_ref());
            // Objects are far below 4 GiB; beyond it there would be no writers rather than wrong ones.
            let end = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
            lengths = lengths.rotate_left(8) ^ end.wrapping_sub(u32::try_from(from).unwrap_or(u32::MAX));
            end
        });
        self.ends.push(ends);
        crc32c::crc32c_append(lengths, &self.text.as_bytes()[from..])
    }

    /// Of the entries that are new or newer than before, the one with the latest time. Two writes of one manager within a second
    /// differ in their fields alone: if nothing else has changed, that counts too.
    pub(super) fn actor(&self, managed: &Managed, before: Option<&Managed>) -> Option<Actor> {
        let known = |is_it: &dyn Fn(&Trace) -> bool| before.is_some_and(|before| before.0.iter().any(is_it));
        let is_newer = |trace: &Trace| !known(&|before| before.writer == trace.writer);
        let at = |index: usize| self.parts(index)[3];
        let changed = managed.0.iter().zip(0..self.ends.len());
        let changed = changed.filter(|(trace, _)| !known(&|before| before.entry == trace.entry));
        // The API server writes times in UTC and to the second: as text they are in order. It writes none for some entries;
        // one of those that is new is the latest there is.
        let (trace, latest) = changed.clone().max_by_key(|(trace, index)| {
            let is_newer = is_newer(trace);
            (is_newer, is_newer && at(*index).is_empty(), at(*index))
        })?;
        // One has taken a field from the other, and checksums do not tell which one: rather nobody than the wrong one.
        let as_late = |index: usize| at(index).is_empty() || at(index) == at(latest);
        if !is_newer(trace) && changed.filter(|(_, index)| as_late(*index)).count() > 1 {
            return None;
        }
        let [manager, operation, subresource, at] = self.parts(latest).map(str::to_owned);
        let at = Some(at).filter(|at| !at.is_empty());
        (!manager.is_empty() || !operation.is_empty()).then_some(Actor { manager, operation, subresource, at })
    }

    fn parts(&self, index: usize) -> [&str; 4] {
        let mut from = index.checked_sub(1).map_or(0, |before| self.ends[before][3]);
        self.ends[index].map(|end| {
            let part = self.text.get(from as usize..end as usize).unwrap_or_default();
            from = end;
            part
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An entry: manager, subresource, time, and what it manages.
    type Entry<'a> = (&'a str, &'a str, &'a str, &'a str);

    fn of(entries: &[Entry<'_>]) -> (Managed, Writers) {
        let (mut managed, mut writers) = (Managed::default(), Writers::default());
        for (manager, subresource, at, fields) in entries {
            let sum = |parts: &[&str]| crc32c::crc32c(parts.join("|").as_bytes());
            let writer = sum(&[manager, subresource, at]);
            managed.0.push(Trace { entry: sum(&[manager, subresource, at, fields]), writer });
            writers.push(&[*manager, "Update", *subresource, *at]);
        }
        (managed, writers)
    }

    fn actor(before: &[Entry<'_>], now: &[Entry<'_>]) -> Option<String> {
        let (managed, writers) = of(now);
        writers.actor(&managed, Some(&of(before).0)).map(|actor| actor.manager)
    }

    proptest! {
        #[test]
        fn the_checksum_tells_where_one_part_ends_and_the_next_begins(
            text in "[ab]{0,40}",
            ends in prop::array::uniform2(prop::array::uniform3(any::<prop::sample::Index>())),
        ) {
            let [one, other] = ends.map(|ends| {
                let mut ends = ends.map(|end| end.index(text.len() + 1));
                ends.sort_unstable();
                let [a, b, c] = ends;
                [&text[..a], &text[a..b], &text[b..c], &text[c..]]
            });
            let sum = |parts| Writers::default().push(parts);
            prop_assert_eq!(sum(&one) == sum(&other), one == other);
        }
    }

    #[test]
    fn the_actor_is_the_entry_that_is_new_or_newer_and_not_one_that_lost_a_field_to_it() {
        let (created, status) = (("create", "", "T1", "a b"), ("kubelet", "status", "T1", "s"));
        let before = [created, status];
        assert_eq!(actor(&before, &[created, ("kubelet", "status", "T5", "s")]).as_deref(), Some("kubelet"));
        assert_eq!(actor(&before, &[created, status, ("edit", "", "T3", "c")]).as_deref(), Some("edit"));
        // `kubectl scale`: the field goes from one to the other, whose entry has no time.
        let scaled = [("create", "", "T1", "a"), status, ("scale", "scale", "", "b")];
        assert_eq!(actor(&before, &scaled).as_deref(), Some("scale"));
        // Twice within a second.
        assert_eq!(actor(&before, &[("create", "", "T1", "a b c"), status]).as_deref(), Some("create"));
        assert_eq!(actor(&before, &before), None);
    }

    #[test]
    fn where_an_entry_may_only_have_lost_a_field_nobody_is_the_actor() {
        // Both wrote in the second before, too: one of them has taken `b` from the other.
        let (one, other) = (("one", "", "T1", "a b"), ("other", "", "T1", "c"));
        assert_eq!(actor(&[one, other], &[("one", "", "T1", "a"), ("other", "", "T1", "b c")]), None);
        assert_eq!(actor(&[one, other], &[("one", "", "T1", "a b c"), ("other", "", "T1", "")]), None);
        // The same with one that has no time.
        let scale = ("scale", "scale", "", "r");
        assert_eq!(actor(&[one, scale], &[("one", "", "T1", "a"), ("scale", "scale", "", "r b")]), None);
        // Who wrote later than the other has written.
        let later = ("other", "", "T2", "b c");
        assert_eq!(actor(&[one, other], &[("one", "", "T1", "a"), later]).as_deref(), Some("other"));
        let again = ("other", "", "T2", "b c d");
        assert_eq!(actor(&[one, later], &[("one", "", "T1", "a"), again]).as_deref(), Some("other"));
    }
}
