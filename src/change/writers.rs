//! Who wrote an object: the entries of its `managedFields` without the fields, from the scan to the comparison.

use kubetide_sink::Actor;

use super::Managed;

/// The writers of an object, one for each checksum of its [`Managed`], in one piece of text: most of them are never looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writers {
    text: String,
    /// Where in the text manager, operation, subresource and time of each end.
    ends: Vec<[u32; 4]>,
}

impl Writers {
    pub(super) fn push(&mut self, parts: [impl AsRef<str>; 4]) {
        let ends = parts.map(|part| {
            self.text.push_str(part.as_ref());
            // Objects are far below 4 GiB; beyond it there would be no writers rather than wrong ones.
            u32::try_from(self.text.len()).unwrap_or(u32::MAX)
        });
        self.ends.push(ends);
    }

    /// Of the entries that were not there before, the one with the latest time.
    pub(super) fn actor(&self, managed: &Managed, before: Option<&Managed>) -> Option<Actor> {
        let known = |checksum: &u32| before.is_some_and(|before| before.0.contains(checksum));
        let entries = managed.0.iter().zip(0..self.ends.len()).filter(|(checksum, _)| !known(checksum));
        // The API server writes times in UTC and to the second: as text they are in order.
        let (_, latest) = entries.max_by_key(|(_, index)| self.parts(*index)[3])?;
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
