//! CloudEvents 1.0 around the native record.
//!
//! The event's data are the native record, byte for byte; its attributes repeat what routers and filters ask for. In
//! structured mode both are one JSON object, in binary mode the attributes are headers and the data are the body.

use std::fmt::Write as _;

use super::{
    json::Json,
    message::Carrier,
    native::{native, utc},
};
use crate::{Body, Record};

/// Of the data, and so of the body in binary mode.
const DATA_TYPE: &str = "application/json";

/// Appends the event in structured mode, as one JSON object.
pub fn structured(record: &Record, out: &mut Vec<u8>) {
    let attributes = Attributes::of(record);
    Json::object_into(out, |json| {
        json.text("specversion", "1.0");
        json.text("id", &attributes.id);
        json.text("source", &attributes.source);
        json.text("type", &attributes.kind);
        json.text("subject", &attributes.subject);
        json.text("time", &attributes.time);
        json.text("datacontenttype", DATA_TYPE);
        json.text("sequence", &attributes.sequence);
        json.text("kubetidelog", &record.log_id);
        json.value("data", |out| native(record, out));
    });
}

/// The headers of the event in binary mode, whose body is the native record.
pub fn headers(record: &Record, carrier: Carrier) -> Vec<(&'static str, String)> {
    let Attributes { id, source, kind, subject, time, sequence } = Attributes::of(record);
    let log = record.log_id.to_string();
    match carrier {
        // Values are UTF-8 as they are. The type of the data is the message's own.
        Carrier::Kafka => vec![
            ("content-type", DATA_TYPE.to_owned()),
            ("ce_specversion", "1.0".to_owned()),
            ("ce_id", id),
            ("ce_source", source),
            ("ce_type", kind),
            ("ce_subject", subject),
            ("ce_time", time),
            ("ce_sequence", sequence),
            ("ce_kubetidelog", log),
        ],
        // The binding names the type of the data like any other attribute, and its Go SDK reads `content-type`: both are there.
        Carrier::Nats => vec![
            ("content-type", DATA_TYPE.to_owned()),
            ("ce-datacontenttype", DATA_TYPE.to_owned()),
            ("ce-specversion", "1.0".to_owned()),
            ("ce-id", printable(&id)),
            ("ce-source", printable(&source)),
            ("ce-type", printable(&kind)),
            ("ce-subject", printable(&subject)),
            ("ce-time", printable(&time)),
            ("ce-sequence", printable(&sequence)),
            ("ce-kubetidelog", printable(&log)),
        ],
    }
}

struct Attributes {
    id: String,
    source: String,
    kind: String,
    subject: String,
    time: String,
    sequence: String,
}

impl Attributes {
    fn of(record: &Record) -> Self {
        let stream = &record.stream;
        // Two events of one source with the same id are taken for one: a state that is told again by a snapshot is another.
        let (id, subject) = match &record.body {
            Body::Change(change) => {
                let id = match change.snapshot {
                    Some(snapshot) => format!("{}/{snapshot}", record.id),
                    None => record.id.to_string(),
                };
                let parts = [stream.group_name(), &stream.resource, &change.namespace, &change.name];
                (id, parts.map(subject_part).join("/"))
            }
            // As in the name of the stream: its slash parts it.
            Body::Control(_) => {
                (record.id.to_string(), stream.to_string().split('/').map(subject_part).collect::<Vec<_>>().join("/"))
            }
        };
        Self {
            id,
            // The cluster and nothing else: filters on it outlive the data directory.
            source: format!("/kubetide/clusters/{}", segment(&stream.cluster.uid)),
            kind: format!("io.kubetide.change.v1.{}", record.op()),
            subject,
            time: utc(record.observed_at),
            // The places of one log, as texts, are in the order of the places: 20 digits hold every u64.
            sequence: format!("{:020}", record.seq),
        }
    }
}

/// One part of the subject. What attributes may not have (control characters, noncharacters), and what would make the parts
/// ambiguous, is percent-encoded; no name that Kubernetes allows has a `/` or a `%`.
fn subject_part(text: &str) -> String {
    let noncharacter = |c: char| matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe;
    escaped(text, |c| !c.is_control() && !noncharacter(c) && !matches!(c, '%' | '/'))
}

/// One segment of a URI: all but the unreserved characters is percent-encoded.
fn segment(text: &str) -> String {
    escaped(text, |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~'))
}

/// As header values are written where they are like those of HTTP: printable ASCII without space and `"`, the rest, and what
/// marks it, percent-encoded.
fn printable(text: &str) -> String {
    escaped(text, |c| c.is_ascii_graphic() && !matches!(c, '"' | '%'))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if stays(c) {
            out.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Into a string: cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out
}
