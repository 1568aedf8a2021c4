//! A record that is too large for its receiver, without what makes it large.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::{Body, Change, Difference, Record, Truncated};

/// More of the changed paths than this are not worth a message of their own.
const PATHS_KEPT: usize = 64;

/// The same record with its identity, but without object, `before` and patch; none if it has nothing of these.
pub fn truncated(record: &Record) -> Option<Record> {
    let Body::Change(change) = &record.body else { return None };
    let cut = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
    if change.object.is_none() && change.before.is_none() && change.patch.is_none() {
        return None;
    }
    let object = change.object.as_deref();
    let flag = Truncated {
        bytes: cut(&change.object) + cut(&change.before) + cut(&change.patch),
        object_sha256: object.map(|object| Sha256::digest(object).into()),
    };
    let difference = change.difference.as_ref().map(|difference| Difference {
        classes: difference.classes.clone(),
        paths: difference.paths.iter().take(PATHS_KEPT).cloned().collect(),
    });
    let change =
        Change { object: None, before: None, patch: None, difference, truncated: Some(flag), ..change.clone() };
    Some(Record { body: Body::Change(change), ..record.clone() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;
    use crate::{format, sample};

    #[test]
    fn a_truncated_record_is_the_same_state_and_says_what_is_missing() {
        let record = sample::record(7, "{\"a\":1}");
        let small = truncated(&record).unwrap();
        assert_eq!((small.id, small.seq), (record.id, record.seq));
        let mut out = Vec::new();
        format::native(&small, &mut out);
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["object"], serde_json::Value::Null);
        assert_eq!(value["truncated"]["bytes"], 7);
        // Of `{"a":1}`, by sha256sum.
        let sum = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862";
        assert_eq!(value["truncated"]["object_sha256"], sum);
        assert_eq!(truncated(&small), None, "there is nothing more to cut");
    }
}
