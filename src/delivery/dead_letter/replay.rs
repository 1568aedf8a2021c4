//! Letters that are given to the sink again.
//!
//! They are copied into a file of their own, which is there whole or not at all: from then on they are ordered, whatever happens.
//! Only then are they taken out of the files that they were in. A crash between the two leaves them in both, and whoever goes on
//! takes them out again: a line that is in the file of those that are ordered is nowhere else. That file goes when all are given.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use kubetide_sink::{Body, Letter, Record};

use super::{DeadLetters, Digest, Found, Line, Lines, Place, dead_letter_files, digest, sync_directory};
use crate::private;

/// Those that are ordered.
const ORDERED: &str = "replaying.ndjson";
/// What a file is called before it has its name.
const NEXT: &str = "next";

/// What was taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Letters that are given again.
    pub letters: u64,
    /// Letters that stay: control records mean something only at their place in the log, and some may be of a newer version.
    pub left: u64,
}

/// Why nothing was taken out.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// They are not in files.
    #[error("the dead letters of sink {sink} are at its receiver, and are not given again from there")]
    AtReceiver {
        /// The sink.
        sink: String,
    },
    /// Others are being given.
    #[error("sink {sink} is being given dead letters already; replay others when it is through")]
    UnderWay {
        /// The sink.
        sink: String,
    },
    /// There are none.
    #[error("sink {sink} has no dead letter{}", of_seqs(.seqs))]
    Absent {
        /// The sink.
        sink: String,
        /// Those that were asked for and are not there; none if any would have done.
        seqs: Vec<u64>,
    },
    /// There are only some that cannot be given again.
    #[error(
        "the dead letters of sink {sink} that were asked for are control records, which mean something only at their place in the log, or are of another version: they stay; `kubetide sink resnapshot {sink}` gives the sink the state of everything"
    )]
    NotChanges {
        /// The sink.
        sink: String,
    },
    /// The files cannot be read or written.
    #[error("cannot move dead letters of sink {sink} in {}: {source}", directory.display())]
    Io {
        /// The sink.
        sink: String,
        /// Where.
        directory: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
}

fn of_seqs(seqs: &[u64]) -> String {
    let seqs: Vec<String> = seqs.iter().map(u64::to_string).collect();
    if seqs.is_empty() { String::new() } else { format!(" of seq {}", seqs.join(", ")) }
}

/// Where a letter is.
struct Spot {
    place: Place,
    file: usize,
    offset: u64,
    len: usize,
}

impl DeadLetters {
    /// Orders that letters are given again: those of these places, or all. When this returns they are in no other file, or will not be
    /// when they are given.
    pub fn take_out(&mut self, seqs: &[u64]) -> Result<Taken, NotTaken> {
        let sink = self.sink.clone();
        let Some(directory) = self.directory.clone() else { return Err(NotTaken::AtReceiver { sink }) };
        if self.is_replaying() {
            return Err(NotTaken::UnderWay { sink });
        }
        let failed = |source| NotTaken::Io { sink: sink.clone(), directory: directory.clone(), source };
        let files = dead_letter_files(&directory).map_err(failed)?;
        let mut spots = Vec::new();
        let mut missing: Vec<u64> = seqs.to_vec();
        let mut left = 0;
        for (file, path) in files.iter().enumerate() {
            let mut lines = Lines::open(path).map_err(failed)?;
            while let Some(line) = lines.next().map_err(failed)? {
                let Found::Letter(outline) = line.found else { continue };
                let place = outline.record.log;
                if !seqs.is_empty() && !seqs.contains(&place.seq) {
                    continue;
                }
                missing.retain(|seq| *seq != place.seq);
                match Letter::read(&line.text) {
                    Ok(_) => spots.push(Spot { place, file, offset: line.offset, len: line.text.len() + 1 }),
                    Err(_) => left += 1,
                }
            }
        }
        if !missing.is_empty() || (spots.is_empty() && left == 0) {
            return Err(NotTaken::Absent { sink, seqs: missing });
        }
        if spots.is_empty() {
            return Err(NotTaken::NotChanges { sink });
        }
        // In log order. Two letters of one record stay in theirs.
        spots.sort_by(|a, b| a.place.cmp(&b.place));
        order(&directory, &files, &spots).map_err(failed)?;
        (self.ordered, self.tail) = (true, None);
        // If it fails, it is done before they are given.
        if let Err(error) = self.settle() {
            tracing::warn!(sink, %error, "dead letters that are given again are still in their old files, too");
        }
        Ok(Taken { letters: spots.len() as u64, left })
    }

    /// Whether letters are to be given again.
    pub fn is_replaying(&self) -> bool {
        self.directory().is_some_and(|directory| directory.join(ORDERED).exists())
    }

    /// Whether that was ordered while the sink had something else to do.
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Takes those that are ordered out of all other files.
    pub fn settle(&self) -> io::Result<()> {
        let Some(directory) = self.directory() else { return Ok(()) };
        let mut ordered = HashSet::new();
        let mut lines = Lines::open(&directory.join(ORDERED))?;
        while let Some(line) = lines.next()? {
            ordered.insert(digest(&line.text));
        }
        for path in dead_letter_files(directory)? {
            take_out_of(&path, &ordered)?;
        }
        sync_directory(directory)
    }

    /// Those that are to be given again; none if there are none any more.
    pub fn replaying(&self) -> io::Result<Option<Replaying>> {
        let Some(directory) = self.directory() else { return Ok(None) };
        match Replaying::open(directory.join(ORDERED)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// All of them are given.
    pub fn finish(&mut self) -> io::Result<()> {
        self.ordered = false;
        let Some(directory) = self.directory() else { return Ok(()) };
        match fs::remove_file(directory.join(ORDERED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => sync_directory(directory),
        }
    }
}

/// Copies the letters into a file that is there whole or not at all.
fn order(directory: &Path, files: &[PathBuf], spots: &[Spot]) -> io::Result<()> {
    let next = directory.join(ORDERED).with_extension(NEXT);
    let written = || -> io::Result<()> {
        let mut out = io::BufWriter::new(private::file().write(true).create(true).truncate(true).open(&next)?);
        let mut sources = files.iter().map(|_| None).collect::<Vec<Option<File>>>();
        let mut line = Vec::new();
        for Spot { file, offset, len, .. } in spots {
            let source = match &mut sources[*file] {
                Some(source) => source,
                none => none.insert(File::open(&files[*file])?),
            };
            source.seek(SeekFrom::Start(*offset))?;
            line.resize(*len, 0);
            source.read_exact(&mut line)?;
            out.write_all(&line)?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&next, directory.join(ORDERED))?;
        sync_directory(directory)
    };
    written().inspect_err(|_| drop(fs::remove_file(&next)))
}

/// Writes the file anew without these lines, if it has any of them. One without any line is gone then.
fn take_out_of(path: &Path, ordered: &HashSet<Digest>) -> io::Result<()> {
    let mut lines = Lines::open(path)?;
    let (mut taken, mut kept) = (0, 0);
    while let Some(line) = lines.next()? {
        *if ordered.contains(&digest(&line.text)) { &mut taken } else { &mut kept } += 1;
    }
    if taken == 0 {
        return Ok(());
    }
    if kept == 0 {
        return fs::remove_file(path);
    }
    let next = path.with_extension(NEXT);
    let written = || -> io::Result<()> {
        let mut out = io::BufWriter::new(private::file().write(true).create(true).truncate(true).open(&next)?);
        let mut source = File::open(path)?;
        let mut lines = Lines::open(path)?;
        while let Some(line) = lines.next()? {
            if ordered.contains(&digest(&line.text)) {
                continue;
            }
            // As it stands there, whatever it is.
            source.seek(SeekFrom::Start(line.offset))?;
            io::copy(&mut io::Read::by_ref(&mut source).take(lines.offset() - line.offset), &mut out)?;
        }
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&next, path)
    };
    written().inspect_err(|_| drop(fs::remove_file(&next)))
}

/// The letters that are given again. They are counted in units: first the word that they come, then the letters, and then a look at
/// what has become of the object of each.
#[derive(Debug)]
pub struct Replaying {
    path: PathBuf,
    lines: Lines,
    /// A line that did not fit any more.
    held: Option<Line>,
    /// The number of the next line.
    next: u64,
    letters: u64,
    first_seq: u64,
    /// The last letter of each object, by its number.
    last: HashMap<Digest, u64>,
}

/// Some units.
#[derive(Debug, Default)]
pub struct Part {
    /// The records of letters; or of those among them that are the last of their object, when they are looked at.
    pub records: Vec<Record>,
    /// Lines that are no letters any more: damage.
    pub broken: Vec<Bytes>,
    /// How many units these are.
    pub units: u64,
}

impl Replaying {
    fn open(path: PathBuf) -> io::Result<Self> {
        let mut lines = Lines::open(&path)?;
        let (mut letters, mut first_seq, mut last) = (0, u64::MAX, HashMap::new());
        while let Some(line) = lines.next()? {
            letters += 1;
            if let Found::Letter(outline) = line.found {
                let of = outline.record;
                first_seq = first_seq.min(of.log.seq);
                let object = format!("{}\0{}\0{}", of.stream.unwrap_or_default(), of.namespace, of.name);
                last.insert(digest(object.as_bytes()), letters);
            }
        }
        let lines = Lines::open(&path)?;
        Ok(Self { path, lines, held: None, next: 1, letters, first_seq, last })
    }

    /// How many letters there are.
    pub const fn letters(&self) -> u64 {
        self.letters
    }

    /// The place before the first of them.
    pub const fn before(&self) -> u64 {
        self.first_seq.saturating_sub(1)
    }

    /// How many units there are.
    pub const fn units(&self) -> u64 {
        2 * self.letters + 1
    }

    /// Whether this unit is a letter; if not, and not the first, it is a look at an object.
    pub const fn is_letter(&self, unit: u64) -> bool {
        unit <= self.letters
    }

    /// The units from this one on, as far as they fit: letters, or looks at objects, not both. `from` is not 0.
    pub fn part(&mut self, from: u64, most: usize, most_bytes: usize) -> io::Result<Part> {
        let is_letter = self.is_letter(from);
        let line_of = |unit: u64| if is_letter { unit } else { unit - self.letters };
        if self.next != line_of(from) {
            (self.lines, self.held, self.next) = (Lines::open(&self.path)?, None, 1);
            while self.next < line_of(from) && self.lines.next()?.is_some() {
                self.next += 1;
            }
        }
        let end = if is_letter { self.letters } else { self.units() - 1 };
        let mut part = Part::default();
        let mut bytes = 0;
        while from + part.units <= end && part.records.len() < most {
            let line = match self.held.take() {
                Some(line) => Some(line),
                None => self.lines.next()?,
            };
            let Some(line) = line else {
                // Somebody has cut the file meanwhile: what is not there is not given.
                part.units = end + 1 - from;
                break;
            };
            match Letter::read(&line.text) {
                Ok(letter) if is_letter || self.is_last(self.next, &letter.record) => {
                    bytes += letter.record.weight();
                    if bytes > most_bytes && !part.records.is_empty() {
                        self.held = Some(line);
                        break;
                    }
                    part.records.push(letter.record);
                }
                Err(_) if is_letter => part.broken.push(line.text),
                Ok(_) | Err(_) => {}
            }
            self.next += 1;
            part.units += 1;
        }
        Ok(part)
    }

    fn is_last(&self, number: u64, record: &Record) -> bool {
        let Body::Change(change) = &record.body else { return false };
        let object = format!("{}\0{}\0{}", record.stream, change.namespace, change.name);
        self.last.get(&digest(object.as_bytes())) == Some(&number)
    }
}
