//! `type: stdout`: a line of JSON per record into a pipe or a file, coloured one-liners on a terminal.

use std::io::{self, IsTerminal as _, Write as _};

use async_trait::async_trait;
use bytes::Bytes;
use kubetide_sink::{
    Batch, Format, Sink, SinkError,
    format::{self, Style},
};

use crate::message::lines;

/// Standard output.
#[derive(Clone, Copy, Debug)]
pub struct StdoutSink {
    form: Form,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    Json(Format),
    OneLiners(Style),
}

impl StdoutSink {
    /// Chooses the form by what standard output is: one-liners on a terminal, whatever the format. NO_COLOR is respected.
    pub fn new(format: Format) -> Self {
        let form = if !io::stdout().is_terminal() {
            Form::Json(format)
        } else if anstream::AutoStream::choice(&io::stdout()) == anstream::ColorChoice::Never {
            Form::OneLiners(Style::Plain)
        } else {
            Form::OneLiners(Style::Coloured)
        };
        Self { form }
    }
}

#[async_trait]
impl Sink for StdoutSink {
    async fn deliver(&mut self, batch: &Batch, _: Option<&Bytes>) -> Result<(), SinkError> {
        let out = match self.form {
            Form::Json(format) => lines(batch, format),
            Form::OneLiners(style) => {
                let mut text = String::new();
                // Asked each time: windows are resized.
                let columns = terminal_size::terminal_size().map_or(usize::MAX, |(width, _)| usize::from(width.0));
                for record in &batch.records {
                    text.push_str(&format::line(record, style, columns));
                    text.push('\n');
                }
                text.into_bytes()
            }
        };
        let written = tokio::task::spawn_blocking(move || {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&out).and_then(|()| stdout.flush())
        })
        .await;
        match written {
            Ok(Ok(())) => Ok(()),
            // Nobody will ever read it again: `kubetide run | head`.
            Ok(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(SinkError::fatal("standard output was closed by its reader"))
            }
            Ok(Err(error)) => Err(SinkError::retry(format!("write standard output: {error}"))),
            Err(panic) => Err(SinkError::fatal(format!("write standard output: {panic}"))),
        }
    }
}
