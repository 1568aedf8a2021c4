//! Whether the files of the log are whole: every frame's checksum and place, and that the store was built on one of them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{
    OpenError, View,
    disk::{Access, Disk as _, Volume},
    frame,
    segment::{self, Place, read_frame, segment_path},
};

/// What was found in one file of the log.
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
    /// Reads one segment and says whether it is whole, up to the head as it is now. Blocks.
    pub fn inspect(&self, first_seq: u64, following: Option<u64>) -> Result<Inspected, OpenError> {
        let head = self.head();
        let applied = self.known.store.applied()?.filter(|applied| applied.segment == first_seq);
        let path = segment_path(&self.segment_directory, first_seq);
        let failed = |source| OpenError::Directory { operation: "read", path: path.clone(), source };
        let file = Volume.open(&path, Access::Read).map_err(failed)?;
        let mut inspected = Inspected {
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bytes: file.len().map_err(failed)?,
            frames: 0,
            records: 0,
            damage: None,
        };
        if let Err(error) = segment::check_header(&*file, &path, &self.log_id, first_seq) {
            let OpenError::Damaged { file, offset, problem } = error else { return Err(error) };
            inspected.damage = Some(Damage { path: file, offset, problem });
            return Ok(inspected);
        }
        let mut place = Place::start_of(first_seq);
        let mut built_on = applied.is_none_or(|applied| applied == place);
        // Behind the head the writer may be at work.
        while following.is_some() || place.next_seq <= head {
            let frame = match read_frame(&*file, &path, place) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(OpenError::Damaged { file, offset, problem }) => {
                    inspected.damage = Some(Damage { path: file, offset, problem });
                    return Ok(inspected);
                }
                Err(error) => return Err(error),
            };
            let (header, payload) = frame;
            if let Err(error) = frame::decode(&self.log_id, &header, &payload) {
                let problem = format!("the frame cannot be read: {error}");
                inspected.damage = Some(Damage { path, offset: place.offset, problem });
                return Ok(inspected);
            }
            place.offset += header.frame_len();
            place.next_seq = header.next_seq();
            built_on |= applied == Some(place);
            inspected.frames += 1;
            inspected.records += u64::from(header.count);
        }
        let damage = |problem: String| Some(Damage { path: path.clone(), offset: place.offset, problem });
        if let Some(following) = following.filter(|following| *following != place.next_seq) {
            inspected.damage = damage(format!(
                "the file ends with seq {}, but the next one begins with {following}",
                place.next_seq - 1
            ));
        } else if following.is_none() && place.next_seq <= head {
            inspected.damage = damage(format!("the file ends with seq {}, not {head}", place.next_seq - 1));
        } else if let Some(applied) = applied.filter(|applied| !built_on && *applied <= place) {
            let problem = "the store was built up to here, and this is not between two frames".to_owned();
            inspected.damage = Some(Damage { path: path.clone(), offset: applied.offset, problem });
        } else if following.is_some() && applied.is_some() && !built_on {
            inspected.damage = damage("the file ends here, but the store was built on more of it".into());
        }
        Ok(inspected)
    }
}
