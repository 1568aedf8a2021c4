//! Whether the files of the log are whole: every frame's checksum and place, and that the store was built on one of them; and
//! which cursors are not.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    OpenError, View,
    cursor::{self, Found},
    disk::{Access, Disk as _, Volume},
    frame,
    segment::{self, Place, read_frame, segment_path},
};

/// What was found in one file of the log, or in a cursor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    /// The file.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// Whole frames.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// What is wrong, if anything.
    pub damage: Option<Damage>,
}

/// Where a file is not what was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    /// The file, with its directory.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What is wrong there.
    pub problem: String,
}

impl View {
    /// The cursors that are not what was written. Blocks.
    pub fn inspect_cursors(&self) -> Result<Vec<Inspected>, OpenError> {
        let mut inspected = Vec::new();
        for Found { path, cursor, .. } in cursor::each_on(&Volume, &self.cursor_directory, &self.log_id)? {
            let (path, damage) = match cursor {
                Ok(_) => continue,
                Err(OpenError::Damaged { file, offset, problem }) => {
                    (path, Some(Damage { path: file, offset, problem }))
                }
                Err(error) => return Err(error),
            };
            let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            inspected.push(Inspected { file, bytes, frames: 0, records: 0, damage });
        }
        Ok(inspected)
    }

    /// Reads one segment and says whether it is whole, up to the head as it is now. Blocks. Fails if the segment is no longer one
    /// of the log.
    pub fn inspect(&self, first_seq: u64, following: Option<u64>) -> Result<Inspected, OpenError> {
        let path = segment_path(&self.segment_directory, first_seq);
        let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut inspected = Inspected { file, bytes: 0, frames: 0, records: 0, damage: None };
        inspected.damage = match self.inspect_into(&mut inspected, &path, first_seq, following) {
            Ok(()) => None,
            Err(OpenError::Damaged { file, offset, problem }) => Some(Damage { path: file, offset, problem }),
            // It is not there, or the disk does not give it back.
            Err(OpenError::Directory { operation, path, source }) if self.firsts().contains(&first_seq) => {
                Some(Damage { path, offset: 0, problem: format!("cannot {operation} it: {source}") })
            }
            Err(error) => return Err(error),
        };
        Ok(inspected)
    }

    /// The same; what is wrong ends it.
    fn inspect_into(
        &self,
        inspected: &mut Inspected,
        path: &Path,
        first_seq: u64,
        following: Option<u64>,
    ) -> Result<(), OpenError> {
        let head = self.head();
        let applied = self.known.store.applied()?.filter(|applied| applied.segment == first_seq);
        let failed = |operation| move |source| OpenError::Directory { operation, path: path.into(), source };
        let damaged = |offset, problem: String| OpenError::Damaged { file: path.into(), offset, problem };
        let file = Volume.open(path, Access::Read).map_err(failed("open"))?;
        inspected.bytes = file.len().map_err(failed("read"))?;
        segment::check_header(&*file, path, &self.log_id, first_seq)?;
        let mut place = Place::start_of(first_seq);
        let mut built_on = applied.is_none_or(|applied| applied == place);
        // Behind the head the writer may be at work.
        while following.is_some() || place.next_seq <= head {
            let Some((header, payload)) = read_frame(&*file, path, place)? else { break };
            frame::decode(&self.log_id, &header, &payload)
                .map_err(|error| damaged(place.offset, format!("the frame cannot be read: {error}")))?;
            place = place.behind(&header);
            built_on |= applied == Some(place);
            inspected.frames += 1;
            inspected.records += u64::from(header.count);
        }
        let last = place.next_seq - 1;
        if let Some(following) = following.filter(|following| *following != place.next_seq) {
            let problem = format!("the file ends with seq {last}, but the next one begins with {following}");
            return Err(damaged(place.offset, problem));
        }
        if following.is_none() && last < head {
            return Err(damaged(place.offset, format!("the file ends with seq {last}, not {head}")));
        }
        if let Some(applied) = applied.filter(|applied| !built_on && *applied <= place) {
            let problem = "the store was built up to here, and this is not between two frames";
            return Err(damaged(applied.offset, problem.into()));
        }
        if following.is_some() && applied.is_some() && !built_on {
            return Err(damaged(place.offset, "the file ends here, but the store was built on more of it".into()));
        }
        Ok(())
    }
}
