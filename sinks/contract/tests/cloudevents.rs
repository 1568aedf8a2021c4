//! What kubetide writes as CloudEvents is read by the SDK of the CloudEvents project, whatever things are called.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod records;

use std::collections::{HashMap, HashSet};

use cloudevents::{
    AttributesReader as _, Data, Event,
    event::SpecVersion,
    message::{BinaryDeserializer, BinarySerializer, MessageAttributeValue, Result as Read},
};
use kubetide_sink::{Body, Carrier, Format, Message, Record, format};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

fn written(format: Format, record: &Record) -> String {
    let mut out = Vec::new();
    assert!(format.write(record, &mut out));
    String::from_utf8(out).unwrap()
}

fn native(record: &Record) -> String {
    written(Format::Native, record)
}

/// A message in binary mode, as the bindings have it: attributes behind a prefix, the data's type in `content-type`.
struct Binary {
    message: Message,
    prefix: &'static str,
}

impl BinaryDeserializer for Binary {
    fn deserialize_binary<R: Sized, V: BinarySerializer<R>>(self, mut event: V) -> Read<R> {
        let mut headers: HashMap<&str, String> = HashMap::new();
        for (name, value) in &self.message.headers {
            let value = if self.prefix == "ce-" { decoded(value) } else { value.clone() };
            assert_eq!(headers.insert(*name, value), None, "{name} is there twice");
        }
        let version = headers.remove(format!("{}specversion", self.prefix).as_str()).unwrap();
        let version = SpecVersion::try_from(version.as_str())?;
        let attributes = version.attribute_names();
        event = event.set_spec_version(version)?;
        let content_type = headers.remove("content-type").unwrap();
        event = event.set_attribute("datacontenttype", MessageAttributeValue::String(content_type))?;
        for (name, value) in headers {
            let Some(name) = name.strip_prefix(self.prefix) else {
                assert!(name.starts_with("kubetide-"), "{name}");
                continue;
            };
            let value = MessageAttributeValue::String(value);
            event = if attributes.contains(&name) {
                event.set_attribute(name, value)?
            } else {
                event.set_extension(name, value)?
            };
        }
        event.end_with_data(self.message.body)
    }
}

/// What a percent-encoded text says.
fn decoded(text: &str) -> String {
    let (mut bytes, mut out) = (text.bytes(), Vec::new());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(out).unwrap()
}

/// The record as an event, by each way that it can go.
fn events(record: &Record) -> [Event; 3] {
    let binary = |carrier, prefix| {
        let message = Format::CloudEvents.message(record, carrier).unwrap();
        assert_eq!(message.body, native(record).into_bytes(), "the body is the native record");
        assert!(!message.then_tombstone);
        Binary { message, prefix }.into_event().unwrap()
    };
    let structured = serde_json::from_str(&written(Format::CloudEvents, record)).unwrap();
    [structured, binary(Carrier::Kafka, "ce_"), binary(Carrier::Nats, "ce-")]
}

/// The event stands for the record, and is what the specification allows.
fn assert_is(event: &Event, record: &Record) {
    let what: Value = serde_json::from_str(&native(record)).unwrap();
    match event.data().unwrap() {
        Data::Json(data) => assert_eq!(*data, what),
        Data::Binary(data) => assert_eq!(*data, native(record).into_bytes()),
        Data::String(data) => assert_eq!(*data, native(record)),
    }
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let id = match what["snapshot"]["id"].as_str() {
        Some(snapshot) => format!("{}/{snapshot}", text(&what["id"])),
        None => text(&what["id"]),
    };
    assert_eq!(event.id(), id);
    assert_eq!(event.specversion(), SpecVersion::V10);
    assert_eq!(event.ty(), format!("io.kubetide.change.v1.{}", text(&what["op"])));
    assert_eq!(event.datacontenttype(), Some("application/json"));
    assert_eq!(event.time().unwrap().timestamp_micros(), record.observed_at.as_microsecond());
    assert_eq!(event.extension("sequence").unwrap().to_string(), format!("{:020}", record.seq));
    assert_eq!(event.extension("kubetidelog").unwrap().to_string(), *record.log_id);
    assert_eq!(event.iter_extensions().count(), 2);

    let uid = event.source().strip_prefix("/kubetide/clusters/").unwrap();
    assert_eq!(decoded(uid), record.stream.cluster.uid);
    assert!(event.source().parse::<http::Uri>().is_ok_and(|uri| uri.query().is_none()), "{}", event.source());
    let subject: Vec<String> = event.subject().unwrap().split('/').map(decoded).collect();
    match &record.body {
        Body::Change(change) => {
            assert_eq!(subject, [record.stream.group_name(), "deployments", &change.namespace, &change.name]);
        }
        Body::Control(_) => assert_eq!(subject.join("/"), record.stream.to_string()),
    }
    for value in [event.id(), event.source(), event.ty(), event.subject().unwrap()] {
        assert!(!value.is_empty() && !value.chars().any(is_disallowed), "{value:?}");
    }
}

/// What attributes may not have, section "Type System" of the specification.
fn is_disallowed(c: char) -> bool {
    matches!(u32::from(c), 0..=0x1f | 0x7f..=0x9f | 0xfdd0..=0xfdef) || u32::from(c) % 0x1_0000 >= 0xfffe
}

#[test]
fn every_op_and_every_control_record_is_an_event_by_each_way() {
    let mut types = HashSet::new();
    for record in records::every() {
        for event in events(&record) {
            assert_is(&event, &record);
        }
        types.insert(record.op());
    }
    assert_eq!(types.len(), 10, "{types:?}");
}

#[test]
fn a_binding_of_the_sdk_reads_the_headers_for_nats() {
    // That for HTTP: the one for NATS knows structured mode only, and the two spell headers alike.
    for record in records::every() {
        let Message { headers, body, .. } = Format::CloudEvents.message(&record, Carrier::Nats).unwrap();
        let headers: http::HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let event = cloudevents::binding::http::to_event(&headers, body).unwrap();
        assert_is(&event, &record);
    }
}

#[test]
fn a_state_that_a_snapshot_tells_again_is_not_taken_for_a_repetition() {
    let ids: HashSet<String> = records::every()[..2].iter().map(|record| events(record)[0].id().to_owned()).collect();
    assert_eq!(ids.len(), 2, "the same state, once told by a snapshot: {ids:?}");
}

#[test]
fn an_array_of_them_is_a_batch() {
    assert_eq!(Format::CloudEvents.array_type(), "application/cloudevents-batch+json");
    let records = records::every();
    let values: Vec<String> = records.iter().map(|record| written(Format::CloudEvents, record)).collect();
    let batch: Vec<Event> = serde_json::from_str(&format!("[{}]", values.join(","))).unwrap();
    assert_eq!(batch.len(), records.len());
    for (event, record) in batch.iter().zip(&records) {
        assert_is(event, record);
    }
}

#[test]
fn kubetides_own_headers_are_the_same_in_every_format() {
    for record in records::every() {
        let own = format::headers(&record);
        for carrier in [Carrier::Kafka, Carrier::Nats] {
            for format in [Format::Native, Format::CloudEvents, Format::Debezium] {
                let Some(message) = format.message(&record, carrier) else { continue };
                assert_eq!(message.headers[..own.len()], own[..]);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_names_and_bytes_survive(record in records::any_change()) {
        for event in events(&record) {
            assert_is(&event, &record);
        }
        // The object's bytes and the record's around them are spliced in, not written anew.
        #[derive(Deserialize)]
        struct Spliced<'a> {
            #[serde(borrow)]
            data: &'a RawValue,
        }
        let text = written(Format::CloudEvents, &record);
        prop_assert!(!text.contains('\n'), "one line");
        let spliced: Spliced<'_> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(spliced.data.get(), native(&record));
        let Body::Change(change) = &record.body else { unreachable!() };
        let object = std::str::from_utf8(change.object.as_ref().unwrap()).unwrap();
        let member = format!("\"object\":{object}}}");
        prop_assert!(text.contains(&member));
    }

    #[test]
    fn values_of_headers_like_those_of_http_are_printable(record in records::any_change()) {
        for (name, value) in Format::CloudEvents.message(&record, Carrier::Nats).unwrap().headers {
            prop_assert!(value.bytes().all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'"'), "{}: {:?}", name, value);
        }
    }

    #[test]
    fn the_sequence_sorts_as_a_text(a in any::<u64>(), b in any::<u64>()) {
        let sequence = |seq| {
            let record = Record { seq, ..records::every().remove(0) };
            events(&record)[0].extension("sequence").unwrap().to_string()
        };
        prop_assert_eq!(sequence(a).cmp(&sequence(b)), a.cmp(&b));
    }
}
