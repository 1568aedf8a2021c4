//! A record that was set aside is delivered again with the bytes that it had.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod records;

use bytes::Bytes;
use kubetide_sink::{
    Body, Letter, Record,
    format::{Unreadable, native, read_native},
};
use proptest::prelude::*;

fn written(record: &Record) -> Bytes {
    let mut out = Vec::new();
    native(record, &mut out);
    out.into()
}

#[test]
fn every_kind_of_change_is_read_back_as_it_was_and_a_control_record_is_told_from_them() {
    for record in records::every() {
        let bytes = written(&record);
        match &record.body {
            Body::Change(_) => {
                let read = read_native(&bytes).unwrap();
                assert_eq!(read, record);
                assert_eq!(written(&read), bytes);
            }
            Body::Control(_) => assert_eq!(read_native(&bytes), Err(Unreadable::Control)),
        }
    }
}

#[test]
fn what_is_no_record_is_refused_without_a_word_of_it() {
    let whole = written(&records::every()[0]);
    let text = std::str::from_utf8(&whole).unwrap();
    for broken in [
        text.replace("kubetide.change.v1", "hunter2"),
        text.replace("\"seq\":1042", "\"seq\":\"hunter2\""),
        text.replace("\"origin\":\"list\"", "\"origin\":\"hunter2\""),
        text.replace("apps/deployments", "hunter2/deployments"),
        text.replace(&"ab".repeat(16), "hunter2"),
        text[..text.len() / 2].to_owned(),
        "[\"hunter2\"]".to_owned(),
        String::new(),
    ] {
        assert_ne!(broken, text);
        let refused = read_native(&broken.into()).unwrap_err();
        assert!(matches!(refused, Unreadable::Malformed(_)) && !refused.to_string().contains("hunter2"), "{refused}");
    }
}

proptest! {
    #[test]
    fn what_is_read_back_is_written_as_the_same_bytes(record in records::any_change(), reason in ".*") {
        let bytes = written(&record);
        prop_assert_eq!(written(&read_native(&bytes).unwrap()), bytes);
        let letter = Letter { at: record.observed_at, sink: "s".into(), reason, record };
        let mut line = Vec::new();
        letter.write(&mut line);
        let line = Bytes::from(line);
        let mut again = Vec::new();
        Letter::read(&line).unwrap().write(&mut again);
        prop_assert_eq!(Bytes::from(again), line);
    }
}
