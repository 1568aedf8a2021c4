//! The data directory: one process at a time, one format, one log id.
//!
//! Everything that can be wrong with it is found before anything in it is changed.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::OpenError;
use crate::private;

/// The layout that this version reads and writes.
const FORMAT: u32 = 6;

/// An open data directory. Holds the lock until it is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    log_id: String,
    // Held, never read: the kernel lets go of the lock when the process ends in whatever way.
    _lock: File,
}

impl Directory {
    /// Opens the directory, or makes it.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |operation: &'static str| {
            let path = path.to_path_buf();
            move |source: io::Error| OpenError::Directory { operation, path, source }
        };
        private::make_directory(path).map_err(failed("make"))?;
        let lock = private::file().create(true).truncate(false).write(true).open(path.join("lock"));
        let lock = lock.map_err(failed("write to"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::Locked { path: path.into() }),
            Err(error) => return Err(failed("lock")(error.into())),
        }
        match read_small(&path.join("FORMAT"))? {
            None if has_segments(path) => {
                let problem = "the file is missing, and there is a log".into();
                return Err(OpenError::Damaged { file: path.join("FORMAT"), offset: 0, problem });
            }
            None => {
                for sub in ["log", "cursors"] {
                    private::make_directory(&path.join(sub)).map_err(failed("write to"))?;
                }
                write_whole(&path.join("log/ID"), ulid::Ulid::generate().to_string().as_bytes())
                    .map_err(failed("write to"))?;
                // Last: a directory without it is one that was never finished, and is made again.
                write_whole(&path.join("FORMAT"), FORMAT.to_string().as_bytes()).map_err(failed("write to"))?;
            }
            Some(found) if found.trim() == FORMAT.to_string() => {}
            Some(found) if found.trim().parse::<u32>().is_err() => {
                let problem = "not the number of a format".into();
                return Err(OpenError::Damaged { file: path.join("FORMAT"), offset: 0, problem });
            }
            Some(found) => {
                return Err(OpenError::Format { path: path.into(), found: found.trim().into(), known: FORMAT });
            }
        }
        let file = path.join("log/ID");
        match read_small(&file)? {
            // Spelled as it was made: another spelling of the same id is not what was written.
            Some(log_id) if ulid::Ulid::from_string(&log_id).is_ok_and(|id| id.to_string() == log_id) => {
                // Backups leave out a directory that is empty, and so is one without sinks.
                private::make_directory(&path.join("cursors")).map_err(failed("make"))?;
                Ok(Self { path: path.into(), log_id, _lock: lock })
            }
            Some(_) => Err(OpenError::Damaged { file, offset: 0, problem: "not a log id".into() }),
            None => Err(OpenError::Damaged { file, offset: 0, problem: "the file is missing".into() }),
        }
    }

    pub(super) fn log_id(&self) -> &str {
        &self.log_id
    }

    pub(super) fn segments(&self) -> PathBuf {
        self.path.join("log")
    }

    pub(super) fn store(&self) -> PathBuf {
        self.path.join("store")
    }

    pub(super) fn cursors(&self) -> PathBuf {
        self.path.join("cursors")
    }
}

/// Whether somebody has logged anything here.
fn has_segments(path: &Path) -> bool {
    let names = fs::read_dir(path.join("log")).into_iter().flatten().flatten();
    names.into_iter().any(|entry| entry.path().extension().is_some_and(|end| end == "seg"))
}

/// The text of a small file; none if there is no such file.
fn read_small(path: &Path) -> Result<Option<String>, OpenError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(OpenError::Damaged { file: path.into(), offset: 0, problem: "not text".into() })
        }
        Err(source) => Err(OpenError::Directory { operation: "read", path: path.into(), source }),
    }
}

/// Writes a small file so that after a crash it is there whole or not at all.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let next = path.with_extension("next");
    let mut file = private::file().create(true).truncate(true).write(true).open(&next)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&next, path)?;
    sync_directory(path.parent().unwrap_or(Path::new(".")))
}

/// Makes the names in a directory durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}
