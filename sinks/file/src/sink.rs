//! `type: file`: appends NDJSON to a file and syncs it before it acknowledges.
//!
//! A crash in the middle of a write leaves half a batch, perhaps half a line. Neither was acknowledged, so both come
//! again: the half line is cut off when the file is opened. A write that fails while we live is taken back whole.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use kubetide_sink::{Batch, Sink, SinkError};

use crate::{FileConfig, lines};

/// A file of records, one per line.
#[derive(Debug)]
pub struct FileSink {
    path: PathBuf,
    /// Open and ending in a whole line; none after a failure, until it is opened again.
    file: Option<File>,
}

impl FileSink {
    /// Opens the file, or makes it, and cuts off what a crash left behind.
    pub fn open(config: &FileConfig) -> io::Result<Self> {
        Ok(Self { path: config.path.clone(), file: Some(open_at_line_end(&config.path)?) })
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn deliver(&mut self, batch: &Batch) -> Result<(), SinkError> {
        let out = lines(batch);
        let path = self.path.clone();
        let file = self.file.take();
        let written = tokio::task::spawn_blocking(move || -> io::Result<File> {
            // A file that was moved away (logrotate) is made anew; what was written stays with the moved one.
            let mut file = match file {
                Some(file) if path.exists() => file,
                _ => open_at_line_end(&path)?,
            };
            append_whole(&mut file, &out)?;
            Ok(file)
        })
        .await;
        match written {
            Ok(Ok(file)) => {
                self.file = Some(file);
                Ok(())
            }
            Ok(Err(error)) => Err(SinkError::retry(format!("write {}: {error}", self.path.display()))),
            Err(panic) => Err(SinkError::Fatal(format!("write {}: {panic}", self.path.display()))),
        }
    }
}

/// Appends all of it, durably, or leaves the file as it was: a full disk must not collect a copy per retry.
fn append_whole(file: &mut File, out: &[u8]) -> io::Result<()> {
    let before = file.metadata()?;
    let written = file.write_all(out).and_then(|()| file.sync_data());
    if written.is_err() && before.is_file() {
        file.set_len(before.len())?;
    }
    written
}

/// Opens for appending, behind the last whole line.
fn open_at_line_end(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory)?;
    }
    let made = !path.exists();
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    if made {
        sync_directory(path)?;
    }
    // Pipes and devices cannot be cut, and need not be.
    if file.metadata()?.is_file() {
        let whole = end_of_last_line(&mut file)?;
        if whole < file.metadata()?.len() {
            file.set_len(whole)?;
            file.sync_data()?;
        }
    }
    Ok(file)
}

/// The name of a new file is durable only when its directory is.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

/// How long the file is up to and including its last line end; reads backwards, a block at a time.
fn end_of_last_line(file: &mut File) -> io::Result<u64> {
    const BLOCK: u64 = 64 * 1024;
    let mut end = file.metadata()?.len();
    while end > 0 {
        let start = end.saturating_sub(BLOCK);
        let mut block = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        Read::by_ref(file).take(end - start).read_to_end(&mut block)?;
        if let Some(at) = block.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn half_a_line_left_by_a_crash_is_cut_off_and_whole_lines_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sub/out.ndjson");
        drop(open_at_line_end(&path).unwrap());
        for (before, after) in
            [("", ""), ("{\"a\":1}\n", "{\"a\":1}\n"), ("{\"a\":1}\n{\"b\"", "{\"a\":1}\n"), ("{\"torn", "")]
        {
            std::fs::write(&path, before).unwrap();
            drop(open_at_line_end(&path).unwrap());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
        let long = format!("first\n{}", "x".repeat(200_000));
        std::fs::write(&path, long).unwrap();
        drop(open_at_line_end(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\n");
    }
}
