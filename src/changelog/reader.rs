//! Reads the log for one sink, from any seq on, without holding it in memory.
//!
//! A reader sees only what is synced: it never goes past the published head.

use std::{
    fs::File,
    path::PathBuf,
    sync::{Arc, RwLock},
};

use kubetide_sink::Record;
use tokio::sync::watch;

use super::{
    OpenError,
    frame::{self, HEADER_LEN, Header},
    segment::{Place, read_frame, segment_path},
};

/// One reader's place in the log.
pub struct LogReader {
    pub(super) log_id: Arc<str>,
    pub(super) directory: PathBuf,
    pub(super) segments: Arc<RwLock<Vec<u64>>>,
    pub(super) head: watch::Receiver<u64>,
    /// The seq of the next record to hand out.
    pub(super) next: u64,
    pub(super) open: Option<Open>,
}

pub(super) struct Open {
    file: Arc<File>,
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
    pub async fn read(&mut self) -> Result<Vec<Record>, OpenError> {
        while self.is_ready() {
            let open = match self.open.take() {
                Some(open) => open,
                None => self.locate().await?,
            };
            let log_id = self.log_id.clone();
            let next = self.next;
            let (open, records) = blocking(move || open.read(&log_id, next)).await?;
            match records {
                // The end of this segment: what is behind it is in the next one.
                None => self.open = None,
                Some(records) => {
                    self.open = Some(open);
                    if let Some(last) = records.last() {
                        self.next = last.seq + 1;
                        return Ok(records);
                    }
                }
            }
        }
        Ok(Vec::new())
    }

    /// Finds the frame that holds the next record, by the headers alone.
    async fn locate(&self) -> Result<Open, OpenError> {
        let next = self.next;
        let segment = {
            let segments = self.segments.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            segments.iter().copied().rfind(|segment| *segment <= next).unwrap_or(1)
        };
        let path = segment_path(&self.directory, segment);
        blocking(move || {
            let failed = |source| OpenError::Directory { operation: "open", path: path.clone(), source };
            let file = Arc::new(File::open(&path).map_err(failed)?);
            let mut place = Place::start_of(segment);
            let mut header = [0; HEADER_LEN];
            while std::os::unix::fs::FileExt::read_exact_at(&*file, &mut header, place.offset).is_ok() {
                match Header::parse(&header) {
                    Some(header) if header.next_seq() <= next => {
                        place.offset += header.frame_len();
                        place.next_seq = header.next_seq();
                    }
                    // Here it is; or something is wrong, which reading it will say.
                    _ => break,
                }
            }
            Ok(Open { file, path, place })
        })
        .await
    }
}

impl Open {
    fn read(mut self, log_id: &Arc<str>, next: u64) -> Result<(Self, Option<Vec<Record>>), OpenError> {
        let Some((header, payload)) = read_frame(&self.file, &self.path, self.place)? else { return Ok((self, None)) };
        let frame = frame::decode(log_id, &header, &payload).map_err(|source| OpenError::Damaged {
            file: self.path.clone(),
            offset: self.place.offset,
            problem: format!("the frame cannot be read: {source}"),
        })?;
        self.place.offset += header.frame_len();
        self.place.next_seq = header.next_seq();
        let mut records = frame.records;
        records.retain(|record| record.seq >= next);
        Ok((self, Some(records)))
    }
}

/// File reads stay off the runtime's own threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
) -> Result<T, OpenError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}
