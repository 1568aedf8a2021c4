//! `type: file`: appends NDJSON to a file and syncs it before it acknowledges.
//!
//! A crash in the middle of a write leaves half a batch, perhaps half a line. Neither was acknowledged, so both come
//! again: the half line is cut off when the file is opened. A write that fails while we live is taken back whole.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use kubetide_sink::{Batch, Sink, SinkError};

use crate::{FileConfig, lines};

/// How every line of ours begins.
const MARK: &[u8] = br#"{"schema":"kubetide."#;

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
                Some(file) if is_at(&file, &path) => file,
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

/// Whether the path still leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |metadata: &std::fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), path.metadata()), (Ok(ours), Ok(there)) if id(&ours) == id(&there))
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

/// Opens for appending, behind the last whole line. Half a line is cut off if it is ours, else it is ended: a file that
/// somebody else has begun loses nothing.
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
            let mut half = Vec::new();
            file.seek(SeekFrom::Start(whole))?;
            Read::by_ref(&mut file).take(MARK.len() as u64).read_to_end(&mut half)?;
            if MARK.starts_with(&half) {
                file.set_len(whole)?;
            } else {
                file.write_all(b"\n")?;
            }
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
        let torn = "{\"schema\":\"kubetide.change.v1\",\"id\":\"";
        for (before, after) in [
            ("", ""),
            ("{\"a\":1}\n", "{\"a\":1}\n"),
            ("{\"a\":1}\n{\"sch", "{\"a\":1}\n"),
            (torn, ""),
            ("somebody else's\nnotes", "somebody else's\nnotes\n"),
        ] {
            std::fs::write(&path, before).unwrap();
            drop(open_at_line_end(&path).unwrap());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        }
        let long = format!("first\n{torn}{}", "x".repeat(200_000));
        std::fs::write(&path, long).unwrap();
        drop(open_at_line_end(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\n");
    }

    #[tokio::test]
    async fn a_file_that_was_moved_away_or_replaced_is_left_alone_and_the_path_is_written_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        let batch = |seq| Batch { from: seq, to: seq, records: vec![kubetide_sink::sample::record(seq, "{}")] };
        let mut sink = FileSink::open(&FileConfig { path: path.clone() }).unwrap();
        sink.deliver(&batch(1)).await.unwrap();
        std::fs::rename(&path, directory.path().join("out.1")).unwrap();
        sink.deliver(&batch(2)).await.unwrap();
        std::fs::rename(&path, directory.path().join("out.2")).unwrap();
        File::create(&path).unwrap();
        sink.deliver(&batch(3)).await.unwrap();
        for (name, seq) in [("out.1", 1), ("out.2", 2), ("out", 3)] {
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            assert_eq!(text.lines().count(), 1, "{name}");
            assert!(text.contains(&format!("\"seq\":{seq}}}")), "{name}: {text}");
        }
    }
}
