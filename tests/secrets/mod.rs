//! Canaries: random secrets, every spelling in which one could get out, and a search that looks for all of them at once.
//!
//! A spelling is looked for without what surrounds it: a canary in the middle of a longer base64 text is found too.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part of this module")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{collections::BTreeSet, fs, path::Path};

use aho_corasick::AhoCorasick;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rand::seq::IndexedRandom as _;

/// All canaries of a test. Each is somewhere in the cluster, and nowhere else.
#[derive(Default)]
pub struct Canaries(Vec<String>);

impl Canaries {
    /// A new one. They take turns in what is hard to find or to spell in them.
    pub fn next(&mut self) -> String {
        let hex = || format!("{:032x}", rand::random::<u128>());
        let of = |letters: &[char], count: usize| -> String {
            (0..count).map(|_| letters.choose(&mut rand::rng()).unwrap()).collect()
        };
        let canary = match self.0.len() % 5 {
            0 => hex(),
            1 => format!("{}\"\\\n<{}", hex(), hex()),
            // Nothing in them is the same in every spelling.
            2 => of(&['"', '\\', '\n', '\t', '<', '>', '&', '/'], 48),
            3 => of(&('一'..'龥').collect::<Vec<_>>(), 20) + &of(&['é', 'ß', 'Ω', '🔑'], 12),
            // Itself base64 text.
            _ => STANDARD.encode(rand::random::<[u8; 32]>()),
        };
        self.0.push(canary.clone());
        canary
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    pub fn search(&self) -> Search {
        Search::of(&self.0)
    }
}

/// Looks for all spellings of some texts.
pub struct Search {
    found_by: AhoCorasick,
    /// By pattern: which text it is a spelling of.
    of: Vec<String>,
}

impl Search {
    pub fn of(texts: &[impl AsRef<str>]) -> Self {
        let (mut patterns, mut of) = (Vec::new(), Vec::new());
        for text in texts {
            for spelling in spellings(text.as_ref()) {
                patterns.push(spelling);
                of.push(text.as_ref().to_owned());
            }
        }
        Self { found_by: AhoCorasick::new(patterns).unwrap(), of }
    }

    /// The first one in these bytes: which text, and what is around it.
    pub fn find(&self, bytes: &[u8]) -> Option<(&str, String)> {
        let found = self.found_by.find(bytes)?;
        let around = &bytes[found.start().saturating_sub(120)..bytes.len().min(found.end() + 40)];
        Some((&self.of[found.pattern().as_usize()], String::from_utf8_lossy(around).into_owned()))
    }

    pub fn is_in(&self, bytes: &[u8]) -> bool {
        self.found_by.is_match(bytes)
    }

    pub fn assert_absent(&self, place: &str, bytes: &[u8]) {
        if let Some((canary, around)) = self.find(bytes) {
            panic!("{place}: the canary {canary:?} is in it: …{around}…");
        }
    }

    /// Looks into every file below the directory, and at every name there; returns how many files that were.
    pub fn assert_absent_below(&self, directory: &Path) -> usize {
        let mut files = 0;
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.display().to_string();
            self.assert_absent("the name of a file", name.as_bytes());
            if path.is_dir() {
                files += self.assert_absent_below(&path);
            } else if path.is_file() {
                self.assert_absent(&name, &fs::read(&path).unwrap());
                files += 1;
            }
        }
        files
    }
}

/// Everything that a text may have become: as it is, escaped for JSON, for JSON within JSON and for URLs, and each of
/// the first ones in base64, and in base64 of base64.
fn spellings(text: &str) -> BTreeSet<Vec<u8>> {
    let plain = [text.to_owned(), json(text), json_of_go(text), json_of_ascii(text)];
    let mut all = BTreeSet::new();
    for spelling in &plain {
        all.extend([spelling.clone().into_bytes(), json(spelling).into_bytes(), url(spelling).into_bytes()]);
        // What Rust prints for programmers.
        all.insert(spelling.escape_debug().to_string().into_bytes());
        for once in base64_within(spelling.as_bytes()) {
            all.insert(url(&once).into_bytes());
            all.extend(base64_within(once.as_bytes()).map(String::into_bytes));
            all.insert(once.into_bytes());
        }
    }
    all
}

/// What every base64 text contains that has these bytes within it: one text for each place modulo three.
fn base64_within(bytes: &[u8]) -> [String; 3] {
    [0, 1, 2].map(|before| {
        let text = STANDARD.encode([&[0; 2][..before], bytes].concat());
        // Letters that also tell of what comes before or behind are left out.
        let (first, last) = ((before * 8).div_ceil(6), (before + bytes.len()) * 8 / 6);
        text[first..last].to_owned()
    })
}

fn json(text: &str) -> String {
    let quoted = serde_json::to_string(text).unwrap();
    quoted[1..quoted.len() - 1].to_owned()
}

/// As Go writes it, fit for HTML.
fn json_of_go(text: &str) -> String {
    json(text).replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// With nothing but ASCII in it.
fn json_of_ascii(text: &str) -> String {
    let mut out = String::new();
    for letter in json(text).chars() {
        if letter.is_ascii() {
            out.push(letter);
        } else {
            letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        }
    }
    out
}

fn url(text: &str) -> String {
    let letter = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(letter).collect()
}

/// As Helm keeps a release: base64 of gzip. The gzip is not compressed, so that what is in it can be found.
pub fn helm_release(manifest: &str) -> String {
    let length = u16::try_from(manifest.len()).unwrap();
    let mut gzip = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
    gzip.extend(length.to_le_bytes());
    gzip.extend((!length).to_le_bytes());
    gzip.extend(manifest.bytes());
    let crc = manifest.bytes().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 })
    });
    gzip.extend((!crc).to_le_bytes());
    gzip.extend(u32::from(length).to_le_bytes());
    STANDARD.encode(gzip)
}

pub fn base64(text: &str) -> String {
    STANDARD.encode(text)
}
