//! Records as the body of a request, and what is said about it in headers. Pure: the same records are the same bytes, and
//! the same webhook-id, however often they are sent.

use std::{fmt, io::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use hmac::{Hmac, KeyInit as _, Mac as _};
use kubetide_sink::{Format, Id, Record};
use sha2::Sha256;

use crate::Compression;

/// A JSON array of records.
pub(crate) struct Body {
    /// The array.
    pub(crate) json: Vec<u8>,
    /// Where in the batch its first value is; the format leaves out what is before it.
    pub(crate) first: usize,
    /// How many values are in it, at least one.
    pub(crate) values: usize,
}

impl Body {
    /// The records as an array; none if the format leaves all of them out.
    pub(crate) fn of(format: Format, records: &[Record]) -> Option<Self> {
        let weight: usize = records.iter().map(Record::weight).sum();
        let mut json = Vec::with_capacity(weight + records.len() + 2);
        let (mut first, mut values) = (0, 0);
        for (index, record) in records.iter().enumerate() {
            let before = json.len();
            json.push(if values == 0 { b'[' } else { b',' });
            if !format.write(record, &mut json) {
                json.truncate(before);
                continue;
            }
            if values == 0 {
                first = index;
            }
            values += 1;
        }
        json.push(b']');
        (values > 0).then_some(Self { json, first, values })
    }
}

/// The same for the same batch, and another one for any other.
pub(crate) fn webhook_id(batch: Id) -> String {
    format!("msg_{batch}")
}

/// A secret of Standard Webhooks.
pub(crate) struct SigningKey(Hmac<Sha256>);

/// Why something is not a secret.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadSecret {
    Empty,
    NotBase64,
}

impl SigningKey {
    /// `whsec_` and base64, or the bytes themselves.
    pub(crate) fn parse(secret: &[u8]) -> Result<Self, BadSecret> {
        let bytes = match secret.strip_prefix(b"whsec_") {
            Some(encoded) => BASE64.decode(encoded.trim_ascii()).map_err(|_| BadSecret::NotBase64)?,
            None => secret.to_vec(),
        };
        if bytes.is_empty() {
            return Err(BadSecret::Empty);
        }
        // HMAC takes keys of any length.
        Hmac::new_from_slice(&bytes).map(Self).map_err(|_| BadSecret::Empty)
    }

    fn sign(&self, id: &str, timestamp: i64, json: &[u8]) -> String {
        let mut mac = self.0.clone();
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(json);
        format!("v1,{}", BASE64.encode(mac.finalize().into_bytes()))
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(not shown)")
    }
}

/// `webhook-signature`: one signature by each key; none without keys.
///
/// Always over the JSON, also where it is sent compressed: a receiver behind something that unpacks requests never sees what
/// was on the wire, and the libraries of Standard Webhooks verify text.
pub(crate) fn signatures(keys: &[SigningKey], id: &str, timestamp: i64, json: &[u8]) -> Option<String> {
    let signatures: Vec<_> = keys.iter().map(|key| key.sign(id, timestamp, json)).collect();
    (!signatures.is_empty()).then(|| signatures.join(" "))
}

impl Compression {
    /// The value of `content-encoding`.
    pub(crate) const fn encoding(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Gzip => Some("gzip"),
            Self::Zstd => Some("zstd"),
        }
    }

    /// The body as it is sent.
    pub(crate) fn compress(self, json: Vec<u8>) -> std::io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(json),
            Self::Gzip => {
                // Without a time in its header: the same bytes each time.
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(&json)?;
                encoder.finish()
            }
            Self::Zstd => zstd::bulk::compress(&json, zstd::DEFAULT_COMPRESSION_LEVEL),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::io::Read as _;

    use kubetide_sink::{Body as Content, Control, Scope, What, sample};
    use serde_json::Value;

    use super::*;

    fn control(seq: u64) -> Record {
        let what = Control { what: What::SnapshotStarted, scope: Scope::Stream };
        Record { body: Content::Control(what), ..sample::record(seq, "") }
    }

    #[test]
    fn a_batch_is_an_array_of_its_records_in_their_order_and_always_the_same_bytes() {
        let records = [sample::record(1, r#"{"a":"\u0000\u2028 1.50"}"#), control(2), sample::record(3, "{}")];
        let body = Body::of(Format::Native, &records).unwrap();
        assert_eq!((body.first, body.values), (0, 3));
        let values: Vec<Value> = serde_json::from_slice(&body.json).unwrap();
        assert_eq!(values.iter().map(|value| value["log"]["seq"].as_u64()).collect::<Vec<_>>(), [1, 2, 3].map(Some));
        assert_eq!(Body::of(Format::Native, &records).unwrap().json, body.json);
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
            let sent = compression.compress(body.json.clone()).unwrap();
            assert_eq!(compression.compress(body.json.clone()).unwrap(), sent);
            let mut read = Vec::new();
            match compression {
                Compression::None => read.clone_from(&sent),
                Compression::Gzip => drop(flate2::read::GzDecoder::new(&sent[..]).read_to_end(&mut read).unwrap()),
                Compression::Zstd => read = zstd::decode_all(&sent[..]).unwrap(),
            }
            assert_eq!(read, body.json);
        }
    }

    #[test]
    fn records_that_the_format_leaves_out_leave_no_trace() {
        assert!(Body::of(Format::Debezium, &[control(1), control(2)]).is_none());
        assert!(Body::of(Format::Native, &[]).is_none());
        let records =
            [control(1), control(2), sample::record(3, "{}"), control(4), sample::record(5, "{}"), control(6)];
        let body = Body::of(Format::Debezium, &records).unwrap();
        assert_eq!((body.first, body.values), (2, 2));
        assert_eq!(serde_json::from_slice::<Vec<Value>>(&body.json).unwrap().len(), 2);
    }

    #[test]
    fn a_signature_is_that_of_the_standard() {
        // The example of the specification of Standard Webhooks.
        let key = SigningKey::parse(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let both = [key, SigningKey::parse(b"raw bytes").unwrap()];
        assert_eq!(signatures(&both, "m", 1, b"[]").unwrap().split(' ').count(), 2);
        assert_eq!(signatures(&[], "m", 1, b"[]"), None);
    }

    #[test]
    fn a_secret_is_base64_behind_its_prefix_and_bytes_without_one() {
        let sign = |secret: &[u8]| SigningKey::parse(secret).unwrap().sign("m", 1, b"[]");
        assert_eq!(sign(b"whsec_a2V5"), sign(b"key"));
        assert_eq!(sign(b"whsec_a2V5 "), sign(b"key"));
        assert_ne!(sign(b"a2V5"), sign(b"key"));
        for (secret, bad) in
            [(&b""[..], BadSecret::Empty), (b"whsec_", BadSecret::Empty), (b"whsec_a!", BadSecret::NotBase64)]
        {
            assert_eq!(SigningKey::parse(secret).unwrap_err(), bad);
        }
        assert!(!format!("{:?}", SigningKey::parse(b"hunter2").unwrap()).contains("hunter2"));
    }
}
