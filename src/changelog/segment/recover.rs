//! How the end of the log is found again after any end of the process.
//!
//! Only what was written behind the last sync can be torn, and it is cut only if nothing has been built on it: neither the
//! store nor a cursor has been there. Each frame says up to where the segment was durable when it was written, so that the one
//! is never taken for the other. All other damage is refused, by file and offset, and left as it is.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;
use memchr::memmem;

use super::{Place, Writer, check_header, header_of, read_frame, segment_path, segments_in, writer::create_first};
use crate::changelog::{
    OpenError,
    disk::{Access, Disk, DiskFile, read_up_to},
    frame::{self, Frame, HEADER_LEN, Header},
};

/// How much of a file is looked at in one go.
const WINDOW: usize = 1024 * 1024;

/// What has to be known to open a log for writing.
pub(in crate::changelog) struct Recovery<'a> {
    /// Where the files are.
    pub(in crate::changelog) disk: Arc<dyn Disk>,
    /// The directory of the segments.
    pub(in crate::changelog) directory: &'a Path,
    /// The id of the log.
    pub(in crate::changelog) log_id: &'a Arc<str>,
    /// When a segment is full.
    pub(in crate::changelog) segment_len: u64,
    /// The time, in case the first segment has to be made.
    pub(in crate::changelog) now: Timestamp,
    /// Up to where the store has applied the log; none if it is empty.
    pub(in crate::changelog) applied: Option<Place>,
    /// The oldest seq that a sink has not acknowledged: every frame from there on is checked.
    pub(in crate::changelog) oldest_needed: u64,
    /// The highest seq that a cursor has passed; none if nobody knows, so that nothing may be cut.
    pub(in crate::changelog) passed: Option<u64>,
}

impl Recovery<'_> {
    /// Opens the log for writing and says which segments there are. The frames behind `applied` are handed to `replay`, each
    /// with the place behind it, after they are known to be durable.
    pub(in crate::changelog) fn run(
        self,
        mut replay: impl FnMut(Frame, Place) -> Result<(), OpenError>,
    ) -> Result<(Writer, Vec<u64>), OpenError> {
        let mut segments = segments_in(&*self.disk, self.directory).map_err(failed("read", self.directory))?;
        self.check_present(&segments)?;
        let unfinished = self.unfinished(&segments)?;
        segments.truncate(segments.len() - usize::from(unfinished.is_some()));
        if let Some(unfinished) = unfinished.filter(|_| segments.is_empty()) {
            self.remove(unfinished)?;
        }
        if segments.is_empty() {
            let made = create_first(&*self.disk, self.directory, self.log_id, self.now);
            let made = made.map_err(failed("write to", self.directory))?;
            return Ok((self.writer(made)?, vec![1]));
        }
        // What a process wrote before it was killed is in the file and may yet be lost with the machine. Nothing may be built
        // on it before it is durable, and neither on a name.
        self.sync_last(&segments)?;

        let replay_from = self.replay_from();
        let needed = self.oldest_needed.min(replay_from.next_seq);
        let first = segments.iter().rposition(|segment| *segment <= needed).unwrap_or(0);
        let mut place = Place::start_of(segments[first]);
        let mut end: Option<(Box<dyn DiskFile>, PathBuf)> = None;
        // What is missing is missing behind the segment that ends early, or it is a whole file.
        let check_next = |end: &Option<(_, PathBuf)>, place: Place, next: u64| match end {
            Some((_, path)) if place.next_seq != next => {
                let last = place.next_seq - 1;
                let problem = format!("the file ends with seq {last}, but the next segment begins with seq {next}");
                Err(damaged(path, place.offset, problem))
            }
            _ => Ok(()),
        };
        for &segment in &segments[first..] {
            let path = segment_path(self.directory, segment);
            check_next(&end, place, segment)?;
            let is_last = unfinished.is_none() && segments.last() == Some(&segment);
            let access = if segments.last() == Some(&segment) { Access::Write } else { Access::Read };
            let file = self.disk.open(&path, access).map_err(failed("open", &path))?;
            place = self.walk(&*file, &path, segment, is_last, &mut replay)?;
            end = Some((file, path));
        }
        if let Some(unfinished) = unfinished {
            check_next(&end, place, unfinished)?;
            self.remove(unfinished)?;
        }
        let Some((file, path)) = end else { return Err(damaged(self.directory, 0, "there is no segment to read")) };
        if let Some(passed) = self.passed.filter(|passed| *passed >= place.next_seq) {
            let problem = format!("the log ends here, but a sink has acknowledged seq {passed}");
            return Err(damaged(&path, place.offset, problem));
        }
        Ok((self.writer((file, place))?, segments))
    }

    fn nobody_has_passed(&self, seq: u64) -> bool {
        self.passed.is_some_and(|passed| passed < seq)
    }

    fn replay_from(&self) -> Place {
        self.applied.unwrap_or(Place::start_of(1))
    }

    /// The segments must begin where the store can go on.
    fn check_present(&self, segments: &[u64]) -> Result<(), OpenError> {
        let lost = |segment: u64, problem: &str| damaged(&segment_path(self.directory, segment), 0, problem);
        match self.applied {
            Some(applied) if !segments.contains(&applied.segment) => {
                Err(lost(applied.segment, "the segment is missing, and the store was built on it"))
            }
            None if segments.first().is_some_and(|first| *first != 1) => {
                Err(lost(1, "the log does not begin with its first segment, and the store is empty"))
            }
            _ => Ok(()),
        }
    }

    /// A crash while a segment was being made may leave a last one without its header or its opening frame. It never held
    /// anything: a frame behind those two says that they were durable before it.
    fn unfinished(&self, segments: &[u64]) -> Result<Option<u64>, OpenError> {
        let Some(&last) = segments.last() else { return Ok(None) };
        if self.applied.is_some_and(|applied| applied.segment >= last) || !self.nobody_has_passed(last) {
            return Ok(None);
        }
        let path = segment_path(self.directory, last);
        let file = self.disk.open(&path, Access::Read).map_err(failed("open", &path))?;
        let has_header = header_of(&*file, self.log_id, last).map_err(failed("read", &path))?.is_some();
        // The first segment is made without an opening frame.
        if has_header
            && (last == 1 || read_frame(&*file, &path, Place::start_of(last)).is_ok_and(|frame| frame.is_some()))
        {
            return Ok(None);
        }
        let held_something = synced_past(&*file, 0).map_err(failed("read", &path))?;
        Ok((!held_something).then_some(last))
    }

    fn remove(&self, segment: u64) -> Result<(), OpenError> {
        let path = segment_path(self.directory, segment);
        tracing::warn!(file = %path.display(), "removed a segment that was only being made");
        super::remove(&*self.disk, self.directory, segment).map_err(failed("remove", &path))
    }

    fn sync_last(&self, segments: &[u64]) -> Result<(), OpenError> {
        let Some(&last) = segments.last() else { return Ok(()) };
        let path = segment_path(self.directory, last);
        let file = self.disk.open(&path, Access::Write).map_err(failed("open", &path))?;
        file.sync_data().map_err(failed("sync", &path))?;
        self.disk.sync_directory(self.directory).map_err(failed("sync", self.directory))
    }

    /// Checks one segment and replays what the store has missed of it. Returns the place behind its last frame.
    fn walk(
        &self,
        file: &dyn DiskFile,
        path: &Path,
        segment: u64,
        is_last: bool,
        replay: &mut impl FnMut(Frame, Place) -> Result<(), OpenError>,
    ) -> Result<Place, OpenError> {
        check_header(file, path, self.log_id, segment)?;
        let replay_from = self.replay_from();
        let mut place = Place::start_of(segment);
        let mut replaying = segment > replay_from.segment;
        loop {
            if segment == replay_from.segment && !replaying {
                replaying = place == replay_from;
                if place > replay_from {
                    return Err(damaged(path, place.offset, "no frame ends where the store was built up to"));
                }
            }
            match read_frame(file, path, place) {
                Ok(None) => break,
                Ok(Some((header, payload))) => {
                    let at = place.offset;
                    place = place.behind(&header);
                    if replaying {
                        let frame = frame::decode(self.log_id, &header, &payload)
                            .map_err(|error| damaged(path, at, format!("the frame cannot be read: {error}")))?;
                        replay(frame, place)?;
                    }
                }
                Err(error @ OpenError::Damaged { .. }) => {
                    let torn = is_last
                        && replaying
                        && self.nobody_has_passed(place.next_seq)
                        && !synced_past(file, place.offset).map_err(failed("read", path))?;
                    if !torn {
                        return Err(error);
                    }
                    tracing::warn!(file = %path.display(), offset = place.offset, "cut off a torn write at the end of the log");
                    file.set_len(place.offset).and_then(|()| file.sync_data()).map_err(failed("write to", path))?;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if segment == replay_from.segment && !replaying {
            return Err(damaged(path, place.offset, "the file ends here, but the store was built on more of it"));
        }
        Ok(place)
    }

    fn writer(&self, end: (Box<dyn DiskFile>, Place)) -> Result<Writer, OpenError> {
        Writer::at(self.disk.clone(), self.directory, self.log_id, self.segment_len, end)
            .map_err(failed("open", self.directory))
    }
}

/// Whether a frame behind `offset` was written when the file was already durable up to beyond `offset`. Then what is there is
/// not what a crash has left, but damage. One pass over the rest of the file, whatever is in it.
fn synced_past(file: &dyn DiskFile, offset: u64) -> io::Result<bool> {
    let magic = memmem::Finder::new(&frame::MAGIC);
    let mut window = vec![0; WINDOW];
    let mut start = offset;
    loop {
        let read = read_up_to(file, &mut window, start)?;
        let found = magic.find_iter(&window[..read]).filter_map(|at| Header::parse(&window[at..read]));
        if found.into_iter().any(|header| header.synced > offset) {
            return Ok(true);
        }
        if read < WINDOW {
            return Ok(false);
        }
        // A header may lie across two windows.
        start += (WINDOW - HEADER_LEN + 1) as u64;
    }
}

fn damaged(file: &Path, offset: u64, problem: impl Into<String>) -> OpenError {
    OpenError::Damaged { file: file.into(), offset, problem: problem.into() }
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> OpenError + use<> {
    let path: PathBuf = path.into();
    move |source| OpenError::Directory { operation, path: path.clone(), source }
}
