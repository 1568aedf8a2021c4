//! The file while lines are appended to it. Blocks.
//!
//! A crash in the middle of a write leaves the beginning of a batch, perhaps half a line. It was not acknowledged, so the very
//! same batch comes again: what is there is written over with the same bytes, and the rest behind it. So no line is there
//! twice, none is glued to half of another, and the file does not shrink under those who follow it. A write that fails while
//! we live is taken back whole.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use crate::{
    Rotate,
    place::{Place, sync_directory},
    tidy::Tidying,
};

/// How lines of ours begin, by format.
const MARKS: [&[u8]; 3] = [br#"{"schema":"kubetide."#, br#"{"specversion":"1.0","id":""#, br#"{"before":"#];

/// Appends to a path, and rotates what is there.
#[derive(Debug)]
pub(crate) struct Writer {
    path: PathBuf,
    rotate: Rotate,
    /// None after a failure, until it is opened again.
    current: Option<Current>,
    tidying: Option<Tidying>,
}

#[derive(Debug)]
struct Current {
    file: File,
    /// Pipes and devices have no end to look at, are not rotated, and promise nothing.
    is_regular: bool,
    /// When its first record was written; none while it is empty.
    begun: Option<SystemTime>,
}

impl Writer {
    /// Opens the file, or makes it, and sees to what a crash has left of a rotation.
    pub(crate) fn open(path: &Path, rotate: Rotate, now: SystemTime) -> io::Result<Self> {
        let current = Current::open(path, now)?;
        let is_tidied = rotate.is_on() && current.is_regular;
        let tidying = if is_tidied { Some(Tidying::start(Place::of(path)?, &rotate)?) } else { None };
        Ok(Self { path: path.into(), rotate, current: Some(current), tidying })
    }

    /// Appends these lines, at least one, durably. Unless it `is_certain` that the file ends with what was acknowledged last,
    /// they may be there already, in part or all.
    pub(crate) fn write(&mut self, out: &[u8], is_certain: bool, now: SystemTime) -> io::Result<()> {
        // A file that was moved away (logrotate) is made anew; what was written stays with the moved one.
        let (mut current, is_certain) = match self.current.take() {
            Some(current) if is_at(&current.file, &self.path) => (current, is_certain),
            _ => (Current::open(&self.path, now)?, false),
        };
        if current.is_regular {
            if !is_certain && let Some(at) = begun_at(&mut current.file, out)? {
                write_over(&self.path, &current.file, at, out)?;
                self.current = Some(current);
                return Ok(());
            }
            if self.is_due(&current, out.len() as u64, now)? {
                current = self
                    .put_aside(now)
                    .map_err(|error| io::Error::new(error.kind(), format!("cannot rotate: {error}")))?;
            }
        }
        append_whole(&mut current, out)?;
        current.begun.get_or_insert(now);
        self.current = Some(current);
        Ok(())
    }

    /// Whether this much belongs into a file of its own. An empty one is never put aside.
    fn is_due(&self, current: &Current, more: u64, now: SystemTime) -> io::Result<bool> {
        let len = current.file.metadata()?.len();
        // A clock that was set back: young.
        let age = current.begun.and_then(|begun| now.duration_since(begun).ok()).unwrap_or_default();
        let is_full = self.rotate.max_bytes.is_some_and(|most| len.saturating_add(more) > most.get());
        let is_old = self.rotate.max_age_secs.is_some_and(|most| age >= Duration::from_secs(most.get()));
        Ok(len > 0 && (is_full || is_old))
    }

    /// Renames the file and makes a new one. The directory is synced with both names, before the next line is acknowledged.
    fn put_aside(&mut self, now: SystemTime) -> io::Result<Current> {
        // One at a time: who writes faster than it can be compressed waits.
        self.tidied();
        let place = Place::of(&self.path)?;
        fs::rename(place.current(), place.next(now)?)?;
        let current = Current::open(&self.path, now)?;
        self.tidying = Some(Tidying::start(place, &self.rotate)?);
        Ok(current)
    }

    /// Waits until what was put aside is compressed.
    pub(crate) fn tidied(&mut self) {
        if let Some(tidying) = self.tidying.take() {
            tidying.wait();
        }
    }
}

impl Current {
    fn open(path: &Path, now: SystemTime) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            make_directory(directory)?;
        }
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        let metadata = file.metadata()?;
        if metadata.is_file() {
            // Also of a file that was there: whoever made it may have been killed before this. Where it really is: the path
            // may be a link.
            sync_directory(fs::canonicalize(path)?.parent().unwrap_or(Path::new("/")))?;
        }
        // Some file systems do not know: its age counts from now.
        let begun = (metadata.len() > 0).then(|| metadata.created().unwrap_or(now));
        Ok(Self { file, is_regular: metadata.is_file(), begun })
    }
}

/// Makes the directory and those above it, durably.
fn make_directory(directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    // One that is relative has nothing above it but where we are.
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    make_directory(above)?;
    match fs::create_dir(directory) {
        // Somebody was faster, or it is no directory: opening the file will tell.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| sync_directory(above)),
    }
}

/// Whether the path still leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), path.metadata()), (Ok(ours), Ok(there)) if id(&ours) == id(&there))
}

/// Where in the file this begins, if the file ends with a beginning of it. Else the file ends with a whole line: half a line is
/// cut off if it is ours, and ended if it is not: a file that somebody else has begun loses nothing.
///
/// Only what is byte for byte the same is ever taken for it, and it stays where it is: a mistake would lose nothing. Records
/// that come again because somebody asked for it do so behind a record that says so, which is not in the file yet.
fn begun_at(file: &mut File, out: &[u8]) -> io::Result<Option<u64>> {
    let len = file.metadata()?.len();
    // With the byte before it, which tells whether a line begins there.
    let from = len.saturating_sub(out.len() as u64 + 1);
    let end = read_at(file, from, len)?;
    let starts = end.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let first = (from == 0).then_some(0);
    if let Some(at) = first.into_iter().chain(starts).find(|at| *at < end.len() && out.starts_with(&end[*at..])) {
        return Ok(Some(from + at as u64));
    }
    let whole = end_of_last_line(file)?;
    if whole < len {
        let longest = MARKS.iter().map(|mark| mark.len() as u64).max().unwrap_or_default();
        let half = read_at(file, whole, len.min(whole + longest))?;
        // A power failure can leave zeros where a line was to be.
        let is_hole = half.first() == Some(&0);
        if is_hole || MARKS.iter().any(|mark| mark.starts_with(&half) || half.starts_with(mark)) {
            file.set_len(whole)?;
        } else {
            file.write_all(b"\n")?;
        }
        file.sync_data()?;
    }
    Ok(None)
}

/// Writes from there, durably. What is there already is written again too: if the disk would not take it before, saying that it
/// is synced now would be a lie.
fn write_over(path: &Path, appended: &File, at: u64, out: &[u8]) -> io::Result<()> {
    // A file that is open for appending is appended to, whatever the offset.
    let file = OpenOptions::new().write(true).open(path)?;
    if !is_at(appended, path) || !is_at(&file, path) {
        return Err(io::Error::other("it was moved away just now"));
    }
    file.write_all_at(out, at)?;
    file.sync_data()
}

/// Appends all of it, durably, or leaves the file as it was: a full disk must not collect a copy per retry.
fn append_whole(current: &mut Current, out: &[u8]) -> io::Result<()> {
    let file = &mut current.file;
    let before = file.metadata()?.len();
    if !current.is_regular {
        // There is nothing to sync, and nothing to take back.
        return file.write_all(out);
    }
    let written = file.write_all(out).and_then(|()| file.sync_data());
    if written.is_err() {
        file.set_len(before)?;
    }
    written
}

/// How long the file is up to and including its last line end; reads backwards, a block at a time.
fn end_of_last_line(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        if let Some(at) = read_at(file, start, end)?.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn read_at(file: &mut File, from: u64, to: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(from))?;
    Read::by_ref(file).take(to - from).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
pub(crate) mod tests;
