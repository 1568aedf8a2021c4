//! Reads the log for one sink, from any seq on, without holding it in memory.
//!
//! A reader sees only what is synced: it never goes past the published head. Near the head it is served from what was just
//! written; further back it holds one open file and one frame. A file that retention unlinks stays readable while it is open.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use kubetide_sink::Record;
use tokio::{sync::watch, task::JoinHandle};

use super::{
    OpenError,
    disk::{Access, Disk, DiskFile, read_up_to},
    frame::{self, HEADER_LEN, Header},
    recent::Recent,
    segment::{self, Place, read_frame, segment_path},
};
use crate::blocking::{blocking, done};

/// Why nothing was read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Retention has removed what this reader would read next. Nothing is damaged.
    #[error("the log begins with seq {oldest} now: what was before is no longer kept")]
    Trimmed {
        /// The oldest record that there is; one more than the head if there is none.
        oldest: u64,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] OpenError),
}

/// One reader's place in the log.
pub struct LogReader {
    pub(super) log_id: Arc<str>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) directory: PathBuf,
    /// The segments that there are. One is taken out before its file is unlinked.
    pub(super) segments: Arc<RwLock<Vec<u64>>>,
    pub(super) recent: Arc<Recent>,
    pub(super) head: watch::Receiver<u64>,
    /// The seq of the next record to hand out.
    pub(super) next: u64,
    pub(super) open: Option<Open>,
    /// The frame behind what was handed out last, while that is worked on.
    pub(super) ahead: Option<JoinHandle<FrameRead>>,
}

/// A segment behind the frame that was read, and the records in it; none at its end.
pub(super) type FrameRead = Result<(Open, Option<Vec<Record>>), OpenError>;

/// A segment, open at the frame to be read next.
pub(super) struct Open {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    place: Place,
}

impl LogReader {
    /// Waits until there is something to read. False when the log has been closed and everything is read.
    pub async fn ready(&mut self) -> bool {
        let next = self.next;
        self.head.wait_for(|head| *head >= next).await.is_ok()
    }

    /// Whether there is something to read now.
    pub fn is_ready(&self) -> bool {
        *self.head.borrow() >= self.next
    }

    /// The records of the next frame, from the reader's place on. Empty if there is nothing to read yet.
    pub async fn read(&mut self) -> Result<Vec<Record>, ReadError> {
        while self.is_ready() {
            if self.ahead.is_none()
                && let Some(records) = self.recent.get(self.next)
            {
                // An open file would keep the space of one that is unlinked.
                self.open = None;
                return Ok(self.pass(records));
            }
            let located = self.ahead.is_none() && self.open.is_none();
            let (log_id, next) = (self.log_id.clone(), self.next);
            let (open, records) = match self.ahead.take() {
                Some(reading) => done(reading).await?,
                None => {
                    let open = match self.open.take() {
                        Some(open) => open,
                        None => self.locate().await?,
                    };
                    blocking(move || open.read(&log_id, next)).await?
                }
            };
            match records {
                // The end of this segment: what is behind it is in the next one.
                None if !located => {}
                None => {
                    let problem = format!("the file ends here, and seq {next} should be in it");
                    return Err(OpenError::Damaged { file: open.path, offset: open.place.offset, problem }.into());
                }
                Some(records) => {
                    let records = self.pass(records);
                    self.go_ahead(open);
                    if !records.is_empty() {
                        return Ok(records);
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    fn pass(&mut self, records: Vec<Record>) -> Vec<Record> {
        self.next = records.last().map_or(self.next, |last| last.seq + 1);
        records
    }

    /// Begins to read the next frame, if it is there and not in memory.
    fn go_ahead(&mut self, open: Open) {
        if !self.is_ready() || self.recent.has(self.next) {
            self.open = Some(open);
            return;
        }
        let (log_id, next) = (self.log_id.clone(), self.next);
        self.ahead = Some(tokio::task::spawn_blocking(move || open.read(&log_id, next)));
    }

    /// Finds the frame that holds the next record.
    async fn locate(&self) -> Result<Open, ReadError> {
        loop {
            let segment = self.segment()?;
            let (disk, directory, log_id) = (self.disk.clone(), self.directory.clone(), self.log_id.clone());
            let next = self.next;
            match blocking(move || Open::locate(&*disk, &directory, &log_id, segment, next)).await {
                // Retention was here in between: the list tells what there is now.
                Err(OpenError::Directory { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && self.segment().ok() != Some(segment) => {}
                located => return Ok(located?),
            }
        }
    }

    /// The segment that the next record is in.
    fn segment(&self) -> Result<u64, ReadError> {
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let segment = segments.iter().copied().rfind(|segment| *segment <= self.next);
        let oldest = || segments.first().copied().unwrap_or(*self.head.borrow() + 1);
        segment.ok_or_else(|| ReadError::Trimmed { oldest: oldest() })
    }
}

impl Open {
    /// Opens a segment and skips, by the headers alone, the frames that end before `next`.
    fn locate(disk: &dyn Disk, directory: &Path, log_id: &str, segment: u64, next: u64) -> Result<Self, OpenError> {
        let path = segment_path(directory, segment);
        let failed = |operation| {
            let path = path.clone();
            move |source| OpenError::Directory { operation, path, source }
        };
        let file = disk.open(&path, Access::Read).map_err(failed("open"))?;
        segment::check_header(&*file, &path, log_id, segment)?;
        let mut place = Place::start_of(segment);
        let mut header = [0; HEADER_LEN];
        while read_up_to(&*file, &mut header, place.offset).map_err(failed("read"))? == HEADER_LEN {
            match Header::parse(&header) {
                Some(header) if header.next_seq() <= next => place = place.behind(&header),
                // Here it is; or something is wrong, which reading it will say.
                _ => break,
            }
        }
        Ok(Self { file, path, place })
    }

    fn read(mut self, log_id: &Arc<str>, next: u64) -> Result<(Self, Option<Vec<Record>>), OpenError> {
        let Some((header, payload)) = read_frame(&*self.file, &self.path, self.place)? else { return Ok((self, None)) };
        let frame = frame::decode(log_id, &header, &payload).map_err(|source| OpenError::Damaged {
            file: self.path.clone(),
            offset: self.place.offset,
            problem: format!("the frame cannot be read: {source}"),
        })?;
        self.place = self.place.behind(&header);
        let mut records = frame.records;
        records.retain(|record| record.seq >= next);
        Ok((self, Some(records)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use jiff::Timestamp;
    use kubetide_sink::sample;

    use super::*;
    use crate::{
        change::Managed,
        changelog::{
            disk::faulty::FaultyDisk,
            frame::Frame,
            segment::{Recovery, remove},
        },
    };

    const LOG: &str = "/log";

    /// Records 1..=6: three segments with a frame of one record each, twice.
    fn reader(disk: &FaultyDisk, next: u64) -> (LogReader, watch::Sender<u64>) {
        let log_id: Arc<str> = sample::LOG_ID.into();
        let recovery = Recovery {
            disk: disk.shared(),
            directory: Path::new(LOG),
            log_id: &log_id,
            segment_len: u64::MAX,
            now: Timestamp::UNIX_EPOCH,
            applied: None,
            oldest_needed: 1,
            passed: Some(0),
        };
        let (mut writer, _) = recovery.run(|_, _| Ok(())).unwrap();
        for seq in 1..=6 {
            if seq == 3 || seq == 5 {
                writer.roll(&Frame { first_seq: seq, ..Frame::default() }, Timestamp::UNIX_EPOCH).unwrap();
            }
            let (records, managed) = (vec![sample::record(seq, "{}")], vec![Managed::default()]);
            writer.append(&Frame { first_seq: seq, records, managed, ..Frame::default() }).unwrap();
        }
        let (sender, head) = watch::channel(6);
        let segments = Arc::new(RwLock::new(vec![1, 3, 5]));
        let (disk, directory, recent) = (disk.shared(), LOG.into(), Arc::default());
        (LogReader { log_id, disk, directory, segments, recent, head, next, open: None, ahead: None }, sender)
    }

    async fn seqs(reader: &mut LogReader) -> Result<Vec<u64>, ReadError> {
        Ok(reader.read().await?.iter().map(|record| record.seq).collect())
    }

    #[tokio::test]
    async fn a_reader_that_retention_overtakes_finishes_its_file_and_is_told_where_the_log_begins() {
        let disk = FaultyDisk::default();
        let (mut reader, _head) = reader(&disk, 1);
        assert_eq!(seqs(&mut reader).await.unwrap(), [1]);
        for oldest in [1, 3] {
            reader.segments.write().unwrap().remove(0);
            remove(&disk, Path::new(LOG), oldest).unwrap();
        }
        assert_eq!(seqs(&mut reader).await.unwrap(), [2], "an unlinked file that is open stays readable");
        assert!(matches!(seqs(&mut reader).await, Err(ReadError::Trimmed { oldest: 5 })));
        reader.next = 5;
        assert_eq!(seqs(&mut reader).await.unwrap(), [5]);
    }

    #[tokio::test]
    async fn a_file_that_is_missing_or_ends_early_is_damage_and_not_retention() {
        let disk = FaultyDisk::default();
        let (mut reader, _head) = reader(&disk, 4);
        let path = segment_path(Path::new(LOG), 3);
        let whole = disk.read(&path);
        for len in 0..whole.len() {
            disk.put(&path, &whole[..len]);
            reader.next = 4;
            reader.open = None;
            let damage = seqs(&mut reader).await;
            assert!(
                matches!(&damage, Err(ReadError::Log(OpenError::Damaged { file, .. })) if *file == path),
                "{len}: {damage:?}"
            );
        }
        disk.remove(&path).unwrap();
        assert!(matches!(seqs(&mut reader).await, Err(ReadError::Log(OpenError::Directory { .. }))));
    }

    #[tokio::test]
    async fn the_next_frame_is_read_while_the_last_one_is_worked_on_but_never_one_that_is_not_published() {
        let disk = FaultyDisk::default();
        let (mut reader, head) = reader(&disk, 1);
        head.send_replace(2);
        assert_eq!(seqs(&mut reader).await.unwrap(), [1]);
        while !reader.ahead.as_ref().unwrap().is_finished() {
            tokio::task::yield_now().await;
        }
        // Whatever becomes of the file now, this frame was read.
        disk.put(&segment_path(Path::new(LOG), 1), b"");
        assert_eq!(seqs(&mut reader).await.unwrap(), [2]);
        assert!(reader.ahead.is_none() && reader.open.is_some(), "nothing behind it is published");
    }

    #[tokio::test]
    async fn near_the_head_nothing_is_read_from_the_disk() {
        let disk = FaultyDisk::default();
        let (mut reader, _head) = reader(&disk, 4);
        reader.recent.push(vec![sample::record(5, "{}"), sample::record(6, "{}")]);
        assert_eq!(seqs(&mut reader).await.unwrap(), [4]);
        assert!(reader.open.is_some());
        disk.remove(&segment_path(Path::new(LOG), 5)).unwrap();
        assert_eq!(seqs(&mut reader).await.unwrap(), [5, 6]);
        assert!(reader.open.is_none(), "it keeps no file open");
        assert!(seqs(&mut reader).await.unwrap().is_empty());
    }
}
