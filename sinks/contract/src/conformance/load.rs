//! A log to deliver: many states of a few objects, each with content that no error may repeat.

use crate::{Body, Record, sample};

/// In every object. Content belongs into no message.
pub(super) const CANARY: &str = "canary-9e1b40";

/// Few enough that a batch has many states of each, and no divisor of any batch.
const OBJECTS: u64 = 7;

/// Bytes of an object beside what a test puts into it.
const FILLER: usize = 200;

/// Where a made-up log ends now.
#[derive(Debug, Default)]
pub(super) struct Load {
    head: u64,
}

impl Load {
    /// The next so many records.
    pub(super) fn take(&mut self, count: usize) -> Vec<Record> {
        (0..count).map(|_| self.with(&"x".repeat(FILLER))).collect()
    }

    /// Leaves so many places out, as a filter does.
    pub(super) const fn skip(&mut self, places: u64) {
        self.head += places;
    }

    /// The next record, with this between the quotes of a string in its object.
    pub(super) fn with(&mut self, text: &str) -> Record {
        let seq = self.head + 1;
        self.of(format!(r#"{{"canary":"{CANARY}","seq":{seq},"text":"{text}"}}"#))
    }

    /// The next record, with this object.
    pub(super) fn of(&mut self, object: String) -> Record {
        self.head += 1;
        let mut record = sample::record(self.head, object);
        if let Body::Change(change) = &mut record.body {
            change.name = format!("pod-{}", self.head % OBJECTS);
        }
        record
    }
}

/// Text of so many bytes that no compression makes small.
pub(super) fn dense(bytes: usize, seed: u64) -> String {
    let mut dice = Dice::new(seed);
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        text.push_str(&format!("{:016x}", dice.roll()));
    }
    text.truncate(bytes);
    text
}

/// Numbers that look like chance and are the same in each run.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// splitmix64
    pub(super) const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// At least 0, less than 1.
    pub(super) fn share(&mut self) -> f64 {
        // 32 bits are exact in a f64.
        f64::from((self.roll() >> 32) as u32) / (f64::from(u32::MAX) + 1.0)
    }
}
