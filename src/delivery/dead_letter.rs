//! Where records go that a receiver will never take, durably, before the cursor passes them: files on the volume, a directory
//! for each sink, or a place at the receiver, which the sink itself writes to.
//!
//! A line of a file is a [`Letter`]. Those that are to be given to the sink again are in a file of their own meanwhile.

mod line;
mod replay;

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use kubetide_sink::{Letter, format};
use sha2::{Digest as _, Sha256};

pub use line::{Found, Line, Lines, Outline, Place, Subject};
pub use replay::{NotTaken, Taken};
pub(super) use replay::{Part, Replaying};

use crate::private;

/// A file that has grown past this is set aside, and another one is begun.
const FILE_BYTES: u64 = 16 * 1024 * 1024;
/// The file that is written to; those that were set aside have the time in their names, and so come before it.
const CURRENT: &str = "dead-letters.ndjson";

/// By this a record, or a line, is known again.
type Digest = [u8; 16];

/// The dead letters of one sink.
#[derive(Debug)]
pub struct DeadLetters {
    /// The directory of the files; none if the sink writes them to its receiver.
    directory: Option<PathBuf>,
    sink: String,
    file_bytes: u64,
    tail: Option<Tail>,
    /// Whether some are to be given again, as soon as the batch under way is through.
    ordered: bool,
}

/// What the last two files hold, so that a letter is not written twice: a batch that comes again after a kill is refused again.
#[derive(Debug, Default)]
struct Tail {
    /// How long the current file was when it was written to last. If it is otherwise now, somebody else has changed it.
    len: u64,
    before: HashSet<Digest>,
    current: HashSet<Digest>,
}

impl DeadLetters {
    /// In this directory, which is made when the first one comes.
    pub fn new(directory: PathBuf, sink: &str) -> Self {
        Self { directory: Some(directory), ..Self::at_receiver(sink) }
    }

    /// At the receiver.
    pub fn at_receiver(sink: &str) -> Self {
        Self { directory: None, sink: sink.into(), file_bytes: FILE_BYTES, tail: None, ordered: false }
    }

    /// The directory of the files; none if they are at the receiver.
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// A letter of this sink.
    pub fn letter(&self, record: kubetide_sink::Record, reason: &str, at: Timestamp) -> Letter {
        Letter { at, sink: self.sink.clone(), reason: reason.into(), record }
    }

    /// How many bytes of letters wait in the files; none if they are at the receiver.
    pub fn size(&self) -> io::Result<Option<u64>> {
        let Some(directory) = self.directory() else { return Ok(None) };
        let sizes = dead_letter_files(directory)?.into_iter().map(|path| Ok(fs::metadata(path)?.len()));
        sizes.sum::<io::Result<u64>>().map(Some)
    }

    /// Adds a letter to the files. It is durable when this returns. A record that is among the last ones already is not added
    /// again: the process was killed before the cursor had passed it. After an error nothing of it is there.
    pub fn add(&mut self, letter: &Letter) -> io::Result<()> {
        let directory = self.directory.clone().ok_or(io::ErrorKind::Unsupported)?;
        make_durably(&directory)?;
        let path = directory.join(CURRENT);
        let mut file = private::file().read(true).append(true).create(true).open(&path)?;
        let len = file.metadata()?.len();
        let tail = match self.tail.take().filter(|tail| tail.len == len) {
            Some(tail) => self.tail.insert(tail),
            None => self.tail.insert(Tail::read(&directory, &file)?),
        };
        let mut record = Vec::with_capacity(letter.record.weight());
        format::native(&letter.record, &mut record);
        let digest = digest(&record);
        if tail.before.contains(&digest) || tail.current.contains(&digest) {
            file.sync_all()?;
            return sync_directory(&directory);
        }
        if tail.len >= self.file_bytes {
            fs::rename(&path, set_aside(&directory, letter.at))?;
            file = private::file().append(true).create_new(true).open(&path)?;
            *tail = Tail { len: 0, before: std::mem::take(&mut tail.current), current: HashSet::new() };
        }
        let mut line = Vec::with_capacity(record.len() + 256);
        letter.write(&mut line);
        line.push(b'\n');
        if let Err(error) = append(&mut file, tail.len, &line, &directory) {
            self.tail = None;
            return Err(error);
        }
        tail.len += line.len() as u64;
        tail.current.insert(digest);
        Ok(())
    }

    /// Puts a line back that was taken out and cannot be given, as it is.
    pub fn keep(&mut self, line: &[u8]) -> io::Result<()> {
        let directory = self.directory.clone().ok_or(io::ErrorKind::Unsupported)?;
        let mut file = private::file().read(true).append(true).create(true).open(directory.join(CURRENT))?;
        self.tail = None;
        let len = Tail::read(&directory, &file)?.len;
        append(&mut file, len, &[line, b"\n"].concat(), &directory)
    }
}

impl Tail {
    /// Reads the last two files. Half a line at the end, which a crash has left, is cut off.
    fn read(directory: &Path, current: &File) -> io::Result<Self> {
        let mut tail = Self::default();
        let files = dead_letter_files(directory)?;
        for path in files.iter().rev().take(2) {
            let is_current = path.ends_with(CURRENT);
            let mut lines = Lines::open(path)?;
            while let Some(line) = lines.next()? {
                let digests = if is_current { &mut tail.current } else { &mut tail.before };
                match line.found {
                    Found::Torn if is_current => current.set_len(line.offset)?,
                    Found::Torn => {}
                    Found::Letter(_) | Found::Foreign(_) => digests.extend(line.record().map(digest)),
                }
            }
        }
        tail.len = current.metadata()?.len();
        Ok(tail)
    }
}

/// Adds to a file that is this long. It is durable when this returns; after an error nothing of it is there: half of it would
/// stand in the way on a full volume, and what was not synced must not be taken for durable.
fn append(file: &mut File, len: u64, line: &[u8], directory: &Path) -> io::Result<()> {
    let written = file.write_all(line).and_then(|()| file.sync_all());
    // A new file is there only when its directory says so.
    let written = written.and_then(|()| if len == 0 { sync_directory(directory) } else { Ok(()) });
    written.inspect_err(|_| drop(file.set_len(len)))
}

fn digest(bytes: &[u8]) -> Digest {
    let mut digest = [0; 16];
    digest.copy_from_slice(&Sha256::digest(bytes)[..16]);
    digest
}

fn set_aside(directory: &Path, at: Timestamp) -> PathBuf {
    let stamp = at.strftime("%Y%m%dT%H%M%S%6fZ");
    let name = |number: u32| directory.join(format!("dead-letters-{stamp}-{number:03}.ndjson"));
    (0..).map(name).find(|path| !path.exists()).unwrap_or_default()
}

/// Makes the directory, so that a crash does not take it away with what is in it.
fn make_durably(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    private::make_directory(directory)?;
    // `dead-letter/NAME`: both may be new.
    for parent in directory.ancestors().skip(1).take(2) {
        sync_directory(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The files with dead letters in this directory, the oldest first. None if there is no such directory.
pub fn dead_letter_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("dead-letters") && name.ends_with(".ndjson") {
            files.push(directory.join(&*name));
        }
    }
    // `dead-letters-…` comes before `dead-letters.ndjson`.
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests;
