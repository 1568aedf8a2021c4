//! `type: file`: appends lines to a file and syncs it before it acknowledges.

use std::{fmt, io, path::PathBuf, time::SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide_sink::{Batch, ConfigProblem, Format, Sink, SinkError, Terms};
use tokio::task::{JoinError, JoinHandle};

use crate::{FileConfig, message::lines, writer::Writer};

/// A file of records, one per line.
#[derive(Debug)]
pub struct FileSink {
    path: PathBuf,
    format: Format,
    writer: State,
    /// Whether the file is known to end with what was acknowledged last. It is not before the first delivery, nor after one
    /// that has failed or was given up.
    is_certain: bool,
}

#[derive(Debug)]
enum State {
    Idle(Writer),
    /// On a thread that may block. A delivery that was given up is finished first: its lines must not come behind later ones.
    Writing(JoinHandle<(Writer, io::Result<()>)>),
    /// It has panicked.
    Lost,
}

impl FileSink {
    /// Opens the file, or makes it. A crash may have left a part of a batch at its end: that is seen to when that batch comes
    /// again.
    pub fn open(config: &FileConfig, terms: Terms) -> Result<Self, ConfigProblem> {
        config.check()?;
        if terms.exactly_once {
            // There is no transaction over lines and a cursor.
            return Err(ConfigProblem::new("delivery", "found exactly_once, allowed for files: at_least_once"));
        }
        let path = config.path.clone();
        let writer = Writer::open(&path, config.rotate.clone(), SystemTime::now())
            .map_err(|error| ConfigProblem::new("path", format!("cannot open {}: {error}", path.display())))?;
        Ok(Self { path, format: terms.format, writer: State::Idle(writer), is_certain: false })
    }

    /// What has become of the write that is under way, if one is.
    async fn written(&mut self) -> Result<io::Result<()>, JoinError> {
        let State::Writing(writing) = &mut self.writer else { return Ok(Ok(())) };
        let ended = writing.await;
        self.writer = State::Lost;
        let (writer, written) = ended?;
        self.writer = State::Idle(writer);
        Ok(written)
    }
}

#[async_trait]
impl Sink for FileSink {
    async fn deliver(&mut self, batch: &Batch, _: Option<&Bytes>) -> Result<(), SinkError> {
        let out = lines(batch, self.format);
        if out.is_empty() {
            // Nothing is known of the file by that: it may end in half a line still.
            return Ok(());
        }
        let path = self.path.display().to_string();
        let broken = |panic: &dyn fmt::Display| SinkError::fatal(format!("write {path}: {panic}"));
        // Whatever has come of one that was given up: its batch comes again, or its beginning is cut off.
        let _ = self.written().await.map_err(|panic| broken(&panic))?;
        let is_certain = std::mem::take(&mut self.is_certain);
        let State::Idle(mut writer) = std::mem::replace(&mut self.writer, State::Lost) else {
            return Err(broken(&"it has panicked before"));
        };
        self.writer = State::Writing(tokio::task::spawn_blocking(move || {
            let written = writer.write(&out, is_certain, SystemTime::now());
            (writer, written)
        }));
        match self.written().await.map_err(|panic| broken(&panic))? {
            Ok(()) => {
                self.is_certain = true;
                Ok(())
            }
            Err(error) if needs_an_operator(&error) => Err(SinkError::hold(format!("write {path}: {error}"))),
            Err(error) => Err(SinkError::retry(format!("write {path}: {error}"))),
        }
    }
}

/// A full disk is emptied by others; this is not put right by waiting.
fn needs_an_operator(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | NotADirectory | IsADirectory)
}

#[cfg(test)]
mod tests;
