//! Frames that were tampered with: refused, or the same frame. With their checksums made right again: never a panic.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use jiff::Timestamp;
use kubetide_sink::{Body, Control, Counts, Reason, Scope, What, sample};
use proptest::{prelude::*, sample::Index};

use super::*;
use crate::changelog::Phase;

fn trace(entry: u32) -> crate::change::Trace {
    crate::change::Trace { entry, writer: !entry }
}

fn log_id() -> Arc<str> {
    sample::LOG_ID.into()
}

/// Frames as the committer writes them: changes with and without their parts, control records, seen versions, states.
fn corpus() -> Vec<Frame> {
    let record = |seq| {
        let mut record = sample::record(seq, format!("{{\"metadata\":{{\"name\":\"pod-{seq}\"}},\"spec\":{{}}}}"));
        if let Body::Change(change) = &mut record.body
            && seq % 2 == 0
        {
            change.patch = Some(r#"[{"op":"remove","path":"/spec"}]"#.into());
            change.before = change.object.clone();
            change.previous_resource_version = Some("7".into());
            change.generation = Some(-3);
            change.problem = Some("too deep".into());
        }
        record
    };
    let control = Record {
        body: Body::Control(Control {
            what: What::ResyncFinished { counts: Counts::default(), position: Some("9".into()) },
            scope: Scope::Stream,
        }),
        ..record(21)
    };
    let other = Arc::new(sample::stream("nodes", "Node"));
    let phase = Phase::Watching { position: ResourceVersion::new("12"), at: Timestamp::UNIX_EPOCH };
    let listing = Phase::Listing {
        purpose: crate::changelog::Purpose::Resync(Reason::Expired),
        counts: Counts { create: 300, ..Counts::default() },
    };
    let state = |phase| StreamState { phase, asked_as: "nodes".into(), ..StreamState::default() };
    let seen = Seen {
        before: 11,
        stream: other.clone(),
        key: ObjectKey { namespace: String::new(), name: "node-1".into() },
        version: ResourceVersion::new("11"),
        managed: Managed(vec![trace(1), trace(u32::MAX)]),
    };
    vec![
        Frame { first_seq: 1, ..Frame::default() },
        Frame {
            first_seq: 10,
            records: (10..40).map(record).collect(),
            managed: (10..40).map(|seq| Managed(vec![trace(seq); seq as usize % 3])).collect(),
            seen: vec![seen],
            states: vec![(other.clone(), state(phase))],
        },
        Frame {
            first_seq: 21,
            records: vec![control],
            managed: vec![Managed::default()],
            states: vec![(other, state(listing))],
            ..Frame::default()
        },
    ]
}

fn encoded(frame: &Frame) -> Vec<u8> {
    Encoder::new().unwrap().encode(frame, 54).unwrap().to_vec()
}

/// As the log reads it: nothing but a whole frame whose checksums hold is decoded.
fn read(bytes: &[u8]) -> Option<io::Result<Frame>> {
    let header = Header::parse(bytes)?;
    let payload = bytes.get(HEADER_LEN..HEADER_LEN + header.payload_len as usize)?;
    header.matches(payload).then(|| decode(&log_id(), &header, payload))
}

#[derive(Clone, Debug)]
enum Tamper {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Copy(Index, Index, Index),
    /// A field of the header: which of them, and with what.
    Field(u8, u32),
}

fn tamper() -> impl Strategy<Value = Tamper> {
    prop_oneof![
        4 => (any::<Index>(), 1..=255u8).prop_map(|(at, mask)| Tamper::Flip(at, mask)),
        1 => any::<Index>().prop_map(Tamper::Cut),
        1 => (any::<Index>(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Tamper::Insert(at, bytes)),
        1 => any::<(Index, Index, Index)>().prop_map(|(from, to, at)| Tamper::Copy(from, to, at)),
        2 => (0..8u8, prop_oneof![any::<u32>(), Just(u32::MAX), Just(MAX_LEN), 0..400u32])
            .prop_map(|(field, value)| Tamper::Field(field, value)),
    ]
}

impl Tamper {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Flip(at, mask) => {
                let at = at.index(bytes.len());
                bytes[at] ^= mask;
            }
            Self::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Self::Insert(at, more) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Self::Copy(from, to, at) => {
                let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                let (part, at) = (bytes[from.min(to)..from.max(to)].to_vec(), at.index(bytes.len()));
                bytes.splice(at..at, part);
            }
            Self::Field(field, value) => {
                let at = 4 + usize::from(*field) * 4;
                if let Some(field) = bytes.get_mut(at..at + 4) {
                    field.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
}

/// Makes every checksum and the payload's length right, so that what lies behind them is reached.
fn seal(bytes: &mut [u8]) {
    if bytes.len() < HEADER_LEN {
        return;
    }
    let (header, payload) = bytes.split_at_mut(HEADER_LEN);
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[32..36].copy_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    let crc = crc32c::crc32c(&header[..36]);
    header[36..].copy_from_slice(&crc.to_le_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_frame_that_was_tampered_with_is_refused_or_the_same(
        which in any::<Index>(),
        tampers in prop::collection::vec(tamper(), 1..4),
    ) {
        let corpus = corpus();
        let frame = which.get(&corpus);
        let mut bytes = encoded(frame);
        tampers.iter().for_each(|tamper| tamper.apply(&mut bytes));
        if let Some(read) = read(&bytes) {
            prop_assert_eq!(&read.unwrap(), frame);
        }
    }

    #[test]
    fn what_lies_behind_right_checksums_is_read_or_refused_without_a_panic(
        which in any::<Index>(),
        tampers in prop::collection::vec(tamper(), 1..4),
        inside in any::<bool>(),
    ) {
        let corpus = corpus();
        let mut bytes = encoded(which.get(&corpus));
        if inside {
            // Tampered with before it was compressed: zstd has nothing to say against it.
            let header = Header::parse(&bytes).unwrap();
            let mut raw = zstd::bulk::decompress(&bytes[HEADER_LEN..], header.raw_len as usize).unwrap();
            tampers.iter().for_each(|tamper| tamper.apply(&mut raw));
            bytes.truncate(HEADER_LEN);
            bytes[8..12].copy_from_slice(&(raw.len() as u32).to_le_bytes());
            bytes.extend(zstd::bulk::compress(&raw, 1).unwrap());
        } else {
            tampers.iter().for_each(|tamper| tamper.apply(&mut bytes));
        }
        seal(&mut bytes);
        if let Some(Ok(frame)) = read(&bytes) {
            let header = Header::parse(&bytes).unwrap();
            prop_assert_eq!(frame.records.len(), header.count as usize);
            // What was believed can be written and read again.
            prop_assert_eq!(read(&encoded(&frame)).unwrap().unwrap(), frame);
        }
    }
}

#[test]
fn a_frame_comes_back_as_it_was_and_the_encoder_can_be_used_again() {
    let mut encoder = Encoder::new().unwrap();
    for _ in 0..2 {
        for frame in corpus() {
            let bytes = encoder.encode(&frame, 54).unwrap().to_vec();
            assert_eq!(Header::parse(&bytes).unwrap().frame_len(), bytes.len() as u64);
            assert_eq!(read(&bytes).unwrap().unwrap(), frame);
        }
    }
}

#[test]
fn a_length_is_not_believed_before_its_checksum_holds_nor_beyond_the_largest_frame() {
    let mut bytes = encoded(&corpus()[0]);
    bytes[8..12].copy_from_slice(&MAX_LEN.to_le_bytes());
    assert_eq!(Header::parse(&bytes), None);
    seal(&mut bytes);
    assert_eq!(Header::parse(&bytes).unwrap().raw_len, MAX_LEN);
    assert!(read(&bytes).unwrap().is_err(), "the payload is shorter than it says");
    bytes[8..12].copy_from_slice(&(MAX_LEN + 1).to_le_bytes());
    seal(&mut bytes);
    assert_eq!(Header::parse(&bytes), None);
}
