//! A dead letter: a record that a receiver refuses for good, and why. The same bytes wherever it is kept: a line of a file, or
//! the body of a message.

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    Record,
    format::{self, Unreadable},
};

/// As much of a reason goes into a header: brokers limit headers, and the whole of it is in the body.
const HEADER_CHARS: usize = 512;

/// A record that a receiver refuses for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// When it was refused.
    pub at: Timestamp,
    /// By which sink.
    pub sink: String,
    /// Why, in the receiver's words.
    pub reason: String,
    /// The record.
    pub record: Record,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    at: Timestamp,
    sink: String,
    reason: String,
    #[serde(borrow)]
    record: &'a RawValue,
}

impl Letter {
    /// Appends it as one JSON object, without a line end: `{"at":…,"sink":…,"reason":…,"record":{…}}`, with the record in the native
    /// format.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut record = Vec::with_capacity(self.record.weight());
        format::native(&self.record, &mut record);
        format::letter(self.at, &self.sink, &self.reason, &record, out);
    }

    /// Reads what [`Letter::write`] has written. The bytes of objects stay as they are.
    pub fn read(bytes: &Bytes) -> Result<Self, Unreadable> {
        let Envelope { at, sink, reason, record } = serde_json::from_slice(bytes)?;
        let record = format::read_native(&bytes.slice_ref(record.get().as_bytes()))?;
        Ok(Self { at, sink, reason, record })
    }

    /// The headers of the message that it is: those of its record, and the reason, on one line and not too long.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = format::headers(&self.record);
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        headers.push(("kubetide-dead-letter", self.reason.chars().take(HEADER_CHARS).map(plain).collect()));
        headers
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;
    use crate::sample;

    #[test]
    fn a_letter_comes_back_as_it_was_written_and_its_headers_hold_one_line() {
        let letter = Letter {
            at: "2026-11-16T04:00:00.123456Z".parse().unwrap(),
            sink: "audit".into(),
            reason: "400 Bad \"Request\"\r\nx: y".into(),
            record: sample::record(7, r#"{"b":1.50,"a":"\u00e9\/"}"#),
        };
        let mut bytes = Vec::new();
        letter.write(&mut bytes);
        let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&value["sink"], &value["record"]["log"]["seq"]), (&"audit".into(), &7.into()));
        assert_eq!(Letter::read(&bytes.into()).unwrap(), letter);
        let headers = letter.headers();
        assert_eq!(headers.last().unwrap(), &("kubetide-dead-letter", "400 Bad \"Request\"  x: y".to_owned()));
        assert!(headers.contains(&("kubetide-seq", "7".to_owned())));
    }
}
