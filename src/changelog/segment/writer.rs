//! The writing end of the log. Writing and syncing are two steps, so that several frames may share one sync.
//!
//! A disk that is full changes nothing: the torn part is taken back and the same frame can be written again later. After any
//! other error nobody can say what is on the disk, and the process must end.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use jiff::Timestamp;

use super::{Place, SEGMENT_HEADER_LEN, SegmentHeader, segment_path};
use crate::changelog::{
    WriteError,
    disk::{Disk, DiskFile, write_all_at},
    frame::{Encoder, Frame},
    room,
};

/// Why a frame was not written.
#[derive(Debug, thiserror::Error)]
pub(in crate::changelog) enum AppendError {
    /// There is no room. Nothing has changed: the same can be tried again when there is.
    #[error("no space is left: {0}")]
    Full(#[source] io::Error),
    /// What is on the disk behind the last synced frame is unknown. The process must end.
    #[error("{0}")]
    Broken(#[source] io::Error),
}

impl From<AppendError> for WriteError {
    fn from(error: AppendError) -> Self {
        let (AppendError::Full(source) | AppendError::Broken(source)) = error;
        Self::Append(source)
    }
}

/// The writing end of the log.
pub(in crate::changelog) struct Writer {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    log_id: Arc<str>,
    pub(super) segment_len: u64,
    encoder: Encoder,
    file: Box<dyn DiskFile>,
    place: Place,
    /// Up to where the file is durable.
    synced: u64,
    broken: bool,
}

impl Writer {
    /// Goes on at `place`, which is the durable end of `file`.
    pub(super) fn at(
        disk: Arc<dyn Disk>,
        directory: &Path,
        log_id: &Arc<str>,
        segment_len: u64,
        (file, place): (Box<dyn DiskFile>, Place),
    ) -> io::Result<Self> {
        let (directory, log_id) = (directory.into(), log_id.clone());
        let encoder = Encoder::new()?;
        Ok(Self { disk, directory, log_id, segment_len, encoder, file, place, synced: place.offset, broken: false })
    }

    /// Where the next frame goes.
    pub(in crate::changelog) fn place(&self) -> Place {
        self.place
    }

    /// Whether the segment is full and the next frame should open a new one. A segment is named after its first record: one
    /// without any, which holds only positions and versions that are no change, goes on, or the new one would take its place.
    pub(in crate::changelog) fn is_full(&self) -> bool {
        self.place.offset >= self.segment_len && self.place.next_seq > self.place.segment
    }

    /// Writes a frame and makes it durable.
    pub(in crate::changelog) fn append(&mut self, frame: &Frame) -> Result<Place, AppendError> {
        let place = self.write(frame)?;
        self.sync()?;
        Ok(place)
    }

    /// Writes a frame, which is not durable before the next [`Writer::sync`]. Returns the place behind it.
    pub(in crate::changelog) fn write(&mut self, frame: &Frame) -> Result<Place, AppendError> {
        self.check(frame)?;
        let bytes = self.encoder.encode(frame, self.synced).map_err(|error| broken(&mut self.broken, error))?;
        if let Err(error) = write_all_at(&*self.file, bytes, self.place.offset) {
            // The log must end with a whole frame: what was written of this one goes.
            if let Err(error) = self.file.set_len(self.place.offset) {
                return Err(broken(&mut self.broken, error));
            }
            return Err(full_or_broken(&mut self.broken, error));
        }
        self.place.offset += bytes.len() as u64;
        self.place.next_seq += frame.records.len() as u64;
        Ok(self.place)
    }

    /// Makes durable everything that was written.
    pub(in crate::changelog) fn sync(&mut self) -> Result<(), AppendError> {
        self.check_whole()?;
        if self.synced < self.place.offset {
            self.file.sync_data().map_err(|error| broken(&mut self.broken, error))?;
            self.synced = self.place.offset;
        }
        Ok(())
    }

    /// Opens the next segment with this frame, which has the states of all streams. Both are durable when it returns; if there
    /// is no room for both, neither is there. Returns the seq that the segment begins with.
    pub(in crate::changelog) fn roll(&mut self, opening: &Frame, at: Timestamp) -> Result<u64, AppendError> {
        self.check(opening)?;
        // Only the last segment may end in frames that are not durable.
        self.sync()?;
        let first_seq = self.place.next_seq;
        if first_seq == self.place.segment {
            let problem = format!("segment {first_seq} has no record yet, the next one would take its place");
            return Err(broken(&mut self.broken, io::Error::other(problem)));
        }
        let path = segment_path(&self.directory, first_seq);
        let header = SegmentHeader { first_seq, opened_at: at }.to_bytes(&self.log_id);
        let frame = self.encoder.encode(opening, 0).map_err(|error| broken(&mut self.broken, error))?;
        let written = self.disk.create(&path).and_then(|file| {
            write_all_at(&*file, &header, 0)?;
            write_all_at(&*file, frame, SEGMENT_HEADER_LEN as u64)?;
            Ok(file)
        });
        let file = match written {
            Ok(file) => file,
            Err(error) => {
                // A segment that is not there has not been made in part either.
                return match self.disk.remove(&path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(broken(&mut self.broken, error)),
                    _ => Err(full_or_broken(&mut self.broken, error)),
                };
            }
        };
        let durable = file.sync_data().and_then(|()| self.disk.sync_directory(&self.directory));
        durable.map_err(|error| broken(&mut self.broken, error))?;
        self.file = file;
        self.place = Place::start_of(first_seq);
        self.place.offset += frame.len() as u64;
        self.place.next_seq += opening.records.len() as u64;
        self.synced = self.place.offset;
        Ok(first_seq)
    }

    fn check(&mut self, frame: &Frame) -> Result<(), AppendError> {
        self.check_whole()?;
        if frame.first_seq != self.place.next_seq {
            let problem = format!("a frame begins with seq {}, not {}", frame.first_seq, self.place.next_seq);
            return Err(broken(&mut self.broken, io::Error::other(problem)));
        }
        Ok(())
    }

    fn check_whole(&self) -> Result<(), AppendError> {
        if self.broken {
            return Err(AppendError::Broken(io::Error::other("an earlier write has failed")));
        }
        Ok(())
    }
}

/// Makes the first segment of a log.
pub(super) fn create_first(
    disk: &dyn Disk,
    directory: &Path,
    log_id: &str,
    at: Timestamp,
) -> io::Result<(Box<dyn DiskFile>, Place)> {
    let file = disk.create(&segment_path(directory, 1))?;
    write_all_at(&*file, &SegmentHeader { first_seq: 1, opened_at: at }.to_bytes(log_id), 0)?;
    file.sync_data()?;
    disk.sync_directory(directory)?;
    Ok((file, Place::start_of(1)))
}

fn broken(flag: &mut bool, error: io::Error) -> AppendError {
    *flag = true;
    AppendError::Broken(error)
}

fn full_or_broken(flag: &mut bool, error: io::Error) -> AppendError {
    if room::was_full(&error) { AppendError::Full(error) } else { broken(flag, error) }
}
