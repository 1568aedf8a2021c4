//! The lines of a file with dead letters: letters, half a line that a crash has left, and what somebody else has written there.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    path::Path,
};

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Four times what a line of the API server may have: the object, the one before, the patch between them, and the rest.
const LONGEST: u64 = 64 * 1024 * 1024;

/// What of a letter is told at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Outline {
    /// When it was refused.
    pub at: Timestamp,
    /// By which sink.
    pub sink: String,
    /// Why.
    pub reason: String,
    /// What.
    pub record: Subject,
}

/// What of a record is told at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Subject {
    /// Where it is.
    pub log: Place,
    /// What happened.
    pub op: String,
    /// Its stream; none if it speaks of no single one.
    pub stream: Option<String>,
    /// The object's namespace; empty if it has none.
    #[serde(default)]
    pub namespace: String,
    /// The object's name; empty for a control record.
    #[serde(default)]
    pub name: String,
    /// How the change is known; none for a control record.
    pub origin: Option<String>,
}

/// A place in a log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Place {
    /// The log. Later ones have greater ids.
    pub id: String,
    /// The record's place in it.
    pub seq: u64,
}

/// A line.
#[derive(Debug)]
pub struct Line {
    /// Its number, from 1 on.
    pub number: u64,
    /// Where it begins.
    pub offset: u64,
    /// The line without its end.
    pub text: Bytes,
    /// What it is.
    pub found: Found,
}

/// What a line is.
#[derive(Debug)]
pub enum Found {
    /// A letter.
    Letter(Outline),
    /// It has no end: a crash has left it, or it is just being written.
    Torn,
    /// None of ours, and why.
    Foreign(String),
}

impl Line {
    /// The bytes of the record.
    pub(super) fn record(&self) -> Option<&[u8]> {
        #[derive(Deserialize)]
        struct Envelope<'a> {
            #[serde(borrow)]
            record: &'a RawValue,
        }
        serde_json::from_slice::<Envelope<'_>>(&self.text).ok().map(|envelope| envelope.record.get().as_bytes())
    }
}

/// The lines of one file.
#[derive(Debug)]
pub struct Lines {
    reader: BufReader<File>,
    number: u64,
    offset: u64,
}

impl Lines {
    /// From the beginning.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::of(File::open(path)?))
    }

    /// Of a file that is open.
    pub fn of(file: File) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, file), number: 0, offset: 0 }
    }

    /// The next line; none at the end.
    #[allow(clippy::should_implement_trait, reason = "it can fail, and a failure is not a line")]
    pub fn next(&mut self) -> io::Result<Option<Line>> {
        let mut text = Vec::new();
        let mut read = self.reader.by_ref().take(LONGEST).read_until(b'\n', &mut text)? as u64;
        if read == 0 {
            return Ok(None);
        }
        let (number, offset) = (self.number + 1, self.offset);
        let found = if text.last() == Some(&b'\n') {
            text.pop();
            outline(&text)
        } else if read < LONGEST {
            Found::Torn
        } else {
            text.clear();
            read += self.skip_line()?;
            Found::Foreign(format!("it is longer than {LONGEST} bytes"))
        };
        (self.number, self.offset) = (number, offset + read);
        Ok(Some(Line { number, offset, text: text.into(), found }))
    }

    /// Where the next line begins.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Passes what is left of a line.
    fn skip_line(&mut self) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            let buffer = self.reader.fill_buf()?;
            let end = memchr::memchr(b'\n', buffer);
            let len = end.map_or(buffer.len(), |at| at + 1);
            self.reader.consume(len);
            skipped += len as u64;
            if end.is_some() || len == 0 {
                return Ok(skipped);
            }
        }
    }
}

fn outline(text: &[u8]) -> Found {
    match serde_json::from_slice(text) {
        Ok(outline) => Found::Letter(outline),
        // Without the words of the parser, which quote.
        Err(error) => Found::Foreign(format!("it is not a dead letter (byte {})", error.column())),
    }
}
