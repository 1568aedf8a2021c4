//! The formats by name, and a record as a message with headers or as one value among others.

use serde::{Deserialize, Serialize};

use super::{cloudevents, debezium, native};
use crate::{Body, Record};

/// How records are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// kubetide's own JSON, `kubetide.change.v1`.
    #[default]
    Native,
    /// CloudEvents 1.0 around the native record: in binary mode as messages, in structured mode as values.
    CloudEvents,
    /// The envelope of Debezium: before, after, op, source. Without control records.
    Debezium,
}

/// Who carries a message: brokers differ in how headers are spelt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// `ce_id`
    Kafka,
    /// `ce-id`
    Nats,
}

/// One message for a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Names and values, each name once.
    pub headers: Vec<(&'static str, String)>,
    /// The value.
    pub body: Vec<u8>,
    /// Whether a message with the same key and no value follows, by which a compacted topic forgets the object.
    pub then_tombstone: bool,
}

impl Format {
    /// Appends the record as one JSON value, as it stands on a line of a file or in the array of a request. False, and nothing
    /// appended, if this format leaves it out.
    pub fn write(self, record: &Record, out: &mut Vec<u8>) -> bool {
        match self {
            Self::Native => native(record, out),
            Self::CloudEvents => cloudevents::structured(record, out),
            Self::Debezium => return debezium::envelope(record, out),
        }
        true
    }

    /// The record as a message; none if this format leaves it out.
    pub fn message(self, record: &Record, carrier: Carrier) -> Option<Message> {
        let mut body = Vec::with_capacity(record.weight());
        let mut then_tombstone = false;
        let headers = match self {
            Self::Native => {
                native(record, &mut body);
                headers(record)
            }
            Self::CloudEvents => {
                native(record, &mut body);
                let mut both = headers(record);
                both.extend(cloudevents::headers(record, carrier));
                both
            }
            Self::Debezium => {
                if !debezium::envelope(record, &mut body) {
                    return None;
                }
                then_tombstone = carrier == Carrier::Kafka && record.op() == "delete";
                headers(record)
            }
        };
        Some(Message { headers, body, then_tombstone })
    }

    /// The media type of an array of values as [`Format::write`] makes them.
    pub const fn array_type(self) -> &'static str {
        match self {
            Self::Native | Self::Debezium => "application/json",
            Self::CloudEvents => "application/cloudevents-batch+json",
        }
    }
}

/// What of a record can be known without reading its body: the same headers in every format.
pub fn headers(record: &Record) -> Vec<(&'static str, String)> {
    let mut headers = vec![
        ("kubetide-id", record.id.to_string()),
        ("kubetide-op", record.op().to_owned()),
        ("kubetide-stream", record.stream.to_string()),
        ("kubetide-log", record.log_id.to_string()),
        ("kubetide-seq", record.seq.to_string()),
    ];
    if let Body::Control(control) = &record.body {
        headers.push(("kubetide-scope", control.scope.as_str().to_owned()));
        if let Some(reason) = control.what.reason() {
            headers.push(("kubetide-reason", reason.to_owned()));
        }
    }
    headers
}
