//! The dead letters that wait, read from their files while the process may be writing to them.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::{Desk, Refusal, Reply, Stopped, item::Aside, order::known};
use crate::{
    blocking::blocking,
    config::{self, LetterPlace},
    delivery::{DeadLetters, Found, Lines, dead_letter_files},
};

/// A block is sent when it has grown past this.
const BLOCK_BYTES: usize = 256 * 1024;

/// Where the dead letters of each sink are.
#[derive(Clone, Debug, Default)]
pub struct Letters {
    data_dir: PathBuf,
    /// As it is configured, where that is known.
    places: HashMap<String, LetterPlace>,
}

impl Letters {
    /// Of these sinks, and of those in the data directory that are not among them.
    pub fn new(data_dir: &Path, sinks: &[config::Sink]) -> Self {
        let place = |sink: &config::Sink| {
            let config::SinkCommon { name, dead_letter, .. } = &sink.common;
            (name.clone(), dead_letter.place(data_dir, name))
        };
        Self { data_dir: data_dir.into(), places: sinks.iter().map(place).collect() }
    }

    /// The directory of a sink's files; if they are elsewhere, where, and how they are read there.
    pub(super) fn files_of(&self, sink: &str) -> Result<PathBuf, Refusal> {
        let elsewhere = |place: String, read: &str| {
            Err(Refusal::Failed(format!(
                "the dead letters of sink {sink} are in {place}: {read}; each message is {{\"at\", \"sink\", \"reason\", \"record\"}}; to deliver \
                 them again, `kubetide sink replay {sink} --from SEQ` or `kubetide sink resnapshot {sink}`"
            )))
        };
        match self.places.get(sink) {
            None => Ok(self.data_dir.join("dead-letter").join(sink)),
            Some(LetterPlace::Files(directory)) => Ok(directory.clone()),
            Some(LetterPlace::Topic(topic)) => elsewhere(
                format!("the Kafka topic {topic}"),
                &format!(
                    "read it with any consumer, such as `kafka-console-consumer --from-beginning --topic {topic}`"
                ),
            ),
            Some(LetterPlace::Subject(subject)) => elsewhere(
                format!("the NATS subject {subject}"),
                &format!("read it with any consumer, such as `nats stream view --subject '{subject}'`"),
            ),
        }
    }
}

/// The reading of the letters of one sink.
pub(super) struct Reading {
    directory: PathBuf,
}

impl Reading {
    pub(super) fn new(desk: &Desk, sink: &str) -> Result<Self, Refusal> {
        known(desk, sink)?;
        Ok(Self { directory: desk.letters.files_of(sink)? })
    }

    pub(super) async fn run(self, reply: &Reply) -> Result<(), Stopped> {
        let directory = self.directory.clone();
        let mut files = blocking(move || Files::of(&directory)).await.map_err(|error| self.failed(&error))?;
        loop {
            let (read, block) = blocking(move || {
                let block = files.block();
                (files, block)
            })
            .await;
            files = read;
            let Some(block) = block.map_err(|error| self.failed(&error))? else { break };
            reply.send(block).await?;
        }
        // Those are nowhere else.
        let letters = DeadLetters::new(self.directory.clone(), "");
        let replaying = blocking(move || letters.replaying()).await.map_err(|error| self.failed(&error))?;
        match replaying {
            Some(replaying) => reply.items(&[Aside::Replaying { letters: replaying.letters() }]).await,
            None => Ok(()),
        }
    }

    fn failed(&self, error: &io::Error) -> Refusal {
        Refusal::Failed(format!("cannot read the dead letters in {}: {error}", self.directory.display()))
    }
}

/// The files, oldest first.
struct Files {
    /// Those to come, the next one last.
    paths: Vec<PathBuf>,
    /// The one that is written to, opened before the others were looked for: if it is set aside meanwhile, it is among them, too.
    current: Option<(PathBuf, File)>,
    open: Option<(PathBuf, Lines)>,
}

impl Files {
    fn of(directory: &Path) -> io::Result<Self> {
        let path = directory.join("dead-letters.ndjson");
        let current = if_there(File::open(&path))?.map(|file| (path.clone(), file));
        let mut paths = dead_letter_files(directory)?;
        paths.retain(|other| *other != path);
        paths.reverse();
        Ok(Self { paths, current, open: None })
    }

    /// Some lines; none at the end.
    fn block(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut block = Vec::new();
        while block.len() < BLOCK_BYTES {
            let (path, lines) = match &mut self.open {
                Some(open) => open,
                none => match next(&mut self.paths, &mut self.current)? {
                    Some(next) => none.insert(next),
                    None => break,
                },
            };
            let Some(line) = lines.next()? else {
                self.open = None;
                continue;
            };
            let problem = match line.found {
                Found::Letter(_) => {
                    block.extend_from_slice(&line.text);
                    block.push(b'\n');
                    continue;
                }
                Found::Torn => None,
                Found::Foreign(problem) => Some(problem),
            };
            let aside = Aside::Unread {
                file: path.display().to_string(),
                line: line.number,
                torn: problem.is_none(),
                problem: problem.unwrap_or_else(|| "half a line".into()),
            };
            serde_json::to_writer(&mut block, &aside)?;
            block.push(b'\n');
        }
        Ok(Some(block).filter(|block| !block.is_empty()))
    }
}

/// The next file.
fn next(paths: &mut Vec<PathBuf>, current: &mut Option<(PathBuf, File)>) -> io::Result<Option<(PathBuf, Lines)>> {
    let inode = |file: &File| file.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
    let last = current.as_ref().map(|(_, file)| inode(file)).transpose()?;
    while let Some(path) = paths.pop() {
        // One that is gone now: its letters are given again.
        let Some(file) = if_there(File::open(&path))? else { continue };
        if last != Some(inode(&file)?) {
            return Ok(Some((path, Lines::of(file))));
        }
    }
    Ok(current.take().map(|(path, file)| (path, Lines::of(file))))
}

fn if_there<T>(opened: io::Result<T>) -> io::Result<Option<T>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}
