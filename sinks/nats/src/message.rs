//! Records as messages: pure.

use std::{collections::HashMap, str::FromStr as _};

use async_nats::{HeaderMap, HeaderName, HeaderValue};
use kubetide_sink::{Batch, Body, Carrier, Format, Letter, Record};

use crate::subject::Subjects;

/// By this the server tells a message that comes again from a new one.
const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The server refuses a message that would land in another stream.
const EXPECTED_STREAM: &str = "Nats-Expected-Stream";

/// How the messages of a sink are made.
#[derive(Clone, Debug)]
pub(crate) struct Making {
    pub(crate) format: Format,
    pub(crate) subjects: Subjects,
    pub(crate) stream: String,
}

/// One message, before it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) subject: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Making {
    /// The message of a record; none if the format leaves it out.
    ///
    /// With `deduplicated` the server drops it if it has it already. An atomic batch must not ask for that: the server would
    /// refuse the whole batch for one message that it knows.
    pub(crate) fn message(&self, record: &Record, deduplicated: bool) -> Option<Outgoing> {
        let message = self.format.message(record, Carrier::Nats)?;
        let mut headers = message.headers;
        headers.push((EXPECTED_STREAM, self.stream.clone()));
        if deduplicated {
            headers.push((MESSAGE_ID, message_id(record)));
        }
        Some(Outgoing { subject: self.subjects.of(record), headers, body: message.body })
    }

    /// A dead letter. It may be in any stream that takes the subject, which knows it again like a record.
    pub(crate) fn letter(subject: &str, letter: &Letter) -> Outgoing {
        let mut body = Vec::with_capacity(letter.record.weight());
        letter.write(&mut body);
        let mut headers = letter.headers();
        headers.push((MESSAGE_ID, format!("{}/dead-letter/{}", message_id(&letter.record), letter.sink)));
        Outgoing { subject: subject.to_owned(), headers, body }
    }

    /// The cursor as a message of `writer`, which is stored only if the last one before it has this sequence.
    pub(crate) fn cursor(&self, cursor: &[u8], writer: &str, behind: u64) -> Outgoing {
        let headers = vec![
            (EXPECTED_STREAM, self.stream.clone()),
            ("Nats-Expected-Last-Subject-Sequence", behind.to_string()),
            (WRITER, writer.to_owned()),
        ];
        Outgoing { subject: self.subjects.cursor().to_owned(), headers, body: cursor.to_vec() }
    }
}

/// Who has written a cursor: one opened sink in one process.
pub(crate) const WRITER: &str = "kubetide-writer";

/// A snapshot states again what may have been sent as a change before, so it has an id of its own.
fn message_id(record: &Record) -> String {
    match &record.body {
        Body::Change(change) => match change.snapshot {
            Some(snapshot) => format!("{}/{snapshot}", record.id),
            None => record.id.to_string(),
        },
        Body::Control(_) => record.id.to_string(),
    }
}

impl Outgoing {
    /// What the server counts against its limits: headers as they are on the wire, and the body.
    pub(crate) fn size(&self) -> usize {
        // "NATS/1.0", then "name: value" each, then an empty line; all end in CRLF.
        let header = |(name, value): &(&str, String)| name.len() + value.len() + 4;
        12 + self.headers.iter().map(header).sum::<usize>() + self.body.len()
    }

    /// The headers for the client. An error names the header that cannot be one.
    pub(crate) fn headers(&self) -> Result<HeaderMap, &'static str> {
        let mut map = HeaderMap::new();
        for (name, value) in &self.headers {
            let parsed = HeaderName::from_str(name).ok().zip(HeaderValue::from_str(value).ok());
            let (header, value) = parsed.ok_or(*name)?;
            map.insert(header, value);
        }
        Ok(map)
    }
}

/// Which message must be acknowledged before another one is sent, so that the order of an object holds even if the server
/// stores a later message and refuses an earlier one: never are two of one object on their way. Control records speak of
/// everything around them, so nothing passes them in either direction.
#[derive(Debug, Default)]
pub(crate) struct Order<'a> {
    last_of: HashMap<[&'a str; 4], usize>,
    last_control: Option<usize>,
}

impl<'a> Order<'a> {
    pub(crate) fn of(batch: &'a Batch) -> Self {
        Self { last_of: HashMap::with_capacity(batch.records.len()), last_control: None }
    }

    /// The message that `record`, the next one at `place`, must wait for.
    pub(crate) fn after(&mut self, record: &'a Record, place: usize) -> Option<usize> {
        match &record.body {
            Body::Change(change) => {
                let stream = &record.stream;
                let object = [&stream.group, &stream.resource, &change.namespace, &change.name].map(String::as_str);
                self.last_of.insert(object, place).max(self.last_control)
            }
            Body::Control(_) => {
                self.last_control = Some(place);
                place.checked_sub(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use kubetide_sink::{Cluster, Control, Id, Op, Scope, What, sample};
    use proptest::prelude::*;

    use super::*;

    fn making(format: Format) -> Making {
        let cluster = Cluster { name: "sample".into(), uid: "c-1".into() };
        Making { format, subjects: Subjects::parse("k.{name}", &cluster, "s").unwrap(), stream: "K".into() }
    }

    fn control(seq: u64) -> Record {
        let what = What::SnapshotStarted;
        Record { body: Body::Control(Control { what, scope: Scope::Stream }), ..sample::record(seq, "{}") }
    }

    fn header<'a>(message: &'a Outgoing, name: &str) -> Option<&'a str> {
        message.headers.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn a_message_has_the_records_id_the_stream_and_the_record() {
        let record = sample::record(7, "{\"a\":1}");
        let message = making(Format::Native).message(&record, true).unwrap();
        assert_eq!(message.subject, "k.pod-7");
        assert_eq!(header(&message, "Nats-Msg-Id"), Some("00000000000000000000000000000007"));
        assert_eq!(header(&message, "Nats-Expected-Stream"), Some("K"));
        assert_eq!(header(&message, "kubetide-seq"), Some("7"));
        let value: serde_json::Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!(value["object"]["a"], 1);
        let message = making(Format::Native).message(&record, false).unwrap();
        assert_eq!(header(&message, "Nats-Msg-Id"), None);
    }

    #[test]
    fn a_snapshot_is_another_message_than_the_change_it_repeats() {
        let mut record = sample::record(7, "{}");
        let Body::Change(change) = &mut record.body else { unreachable!() };
        (change.op, change.snapshot) = (Op::Snapshot, Some(Id([255; 16])));
        let message = making(Format::Native).message(&record, true).unwrap();
        let expected = "00000000000000000000000000000007/ffffffffffffffffffffffffffffffff";
        assert_eq!(header(&message, "Nats-Msg-Id"), Some(expected));
    }

    #[test]
    fn control_records_are_messages_except_in_the_debezium_format() {
        let message = making(Format::Native).message(&control(9), true).unwrap();
        assert_eq!(message.subject, "k.sample._control.core.pods.snapshot_started");
        assert_eq!(header(&message, "Nats-Msg-Id"), Some("00000000000000000000000000000009"));
        assert_eq!(making(Format::Debezium).message(&control(9), true), None);
    }

    #[test]
    fn the_size_is_that_of_the_wire() {
        let message = Outgoing {
            subject: "s".into(),
            headers: vec![("A", "b".into()), ("Nats-Msg-Id", "12".into())],
            body: b"body".to_vec(),
        };
        assert_eq!(message.size(), "NATS/1.0\r\nA: b\r\nNats-Msg-Id: 12\r\n\r\nbody".len());
        assert_eq!(message.headers().unwrap().len(), 2);
        let broken = Outgoing { headers: vec![("X", "a\r\nb".into())], ..message };
        assert_eq!(broken.headers(), Err("X"));
    }

    proptest! {
        /// `None` is a control record, a number an object.
        #[test]
        fn no_two_messages_of_one_object_and_no_control_record_pass_each_other(
            records in prop::collection::vec(prop::option::weighted(0.8, 0_u64..5), 0..40),
        ) {
            let of = |record: &Option<u64>| record.map_or_else(|| control(99), |object| sample::record(object, "{}"));
            let batch = sample::batch(records.iter().map(of).collect());
            let mut order = Order::of(&batch);
            for (place, record) in batch.records.iter().enumerate() {
                let before = &records[..place];
                let same = before.iter().rposition(|other| other.is_none() || *other == records[place]);
                let expected = if records[place].is_none() { place.checked_sub(1) } else { same };
                prop_assert_eq!(order.after(record, place), expected);
            }
        }
    }
}
