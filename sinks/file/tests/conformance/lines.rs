//! A file, and a pipe with a reader, as receivers.

use std::{
    fs,
    io::{PipeReader, PipeWriter, Read as _, Write as _, pipe},
    path::PathBuf,
    process::Child,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use kubetide_sink::{
    Sink,
    conformance::{Bench, Case, Kept, Promises, Repeats},
};
use tempfile::TempDir;

use crate::process::start;

/// Kills a process and waits for its end.
fn kill(process: &mut Option<Child>) {
    if let Some(mut process) = process.take() {
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

fn kept(lines: impl Iterator<Item = impl AsRef<[u8]>>) -> Vec<Kept> {
    lines.map(|line| Kept { lane: 0, record: line.as_ref().to_vec() }).collect()
}

pub(crate) struct FileBench {
    directory: TempDir,
    process: Option<Child>,
}

impl FileBench {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), process: None }
    }

    /// The directory of the file, which an operator may get wrong.
    fn below(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn path(&self) -> PathBuf {
        self.below().join("changes.ndjson")
    }
}

impl Drop for FileBench {
    fn drop(&mut self) {
        kill(&mut self.process);
    }
}

#[async_trait(?Send)]
impl Bench for FileBench {
    fn promises(&self) -> Promises {
        // What a crash has cut off is written over with the same bytes.
        Promises { exactly_once: false, repeats: Repeats::Nothing }
    }

    fn cannot(&self, case: Case) -> Option<&'static str> {
        match case {
            Case::Poison => Some("a file takes any line"),
            Case::Oversize => Some("a file takes lines of any length"),
            Case::SlowReceiver => Some("a slow disk makes the write longer, and there is no other way to wait for it"),
            Case::ReceiverRestart => Some("a file has no process of its own that could end"),
            Case::GoneAtStart => Some("a path that cannot be opened is refused at the start"),
            Case::CredentialRotation => Some("a file asks for no credentials"),
            _ => None,
        }
    }

    async fn open(&mut self) -> Box<dyn Sink> {
        kill(&mut self.process);
        let (process, sink) = start(Some(self.path().to_str().unwrap()), None).await;
        self.process = Some(process);
        Box::new(sink)
    }

    async fn kept(&mut self) -> Vec<Kept> {
        let bytes = fs::read(self.path()).unwrap_or_default();
        // What has no end yet is no line.
        kept(bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n")))
    }

    /// The only process there is: what it has in its memory is gone.
    async fn stop(&mut self) {
        kill(&mut self.process);
    }

    async fn start(&mut self) {}

    async fn shut(&mut self) {
        fs::rename(self.below(), self.directory.path().join("aside")).unwrap();
        fs::write(self.below(), "no directory").unwrap();
    }

    async fn mend(&mut self) {
        fs::remove_file(self.below()).unwrap();
        fs::rename(self.directory.path().join("aside"), self.below()).unwrap();
    }
}

pub(crate) struct StdoutBench {
    /// The end that is handed to each process, as a shell or a container's log does.
    writer: PipeWriter,
    reader: Arc<Reader>,
    process: Option<Child>,
    /// How often the reader was asked how far it is.
    marks: usize,
}

/// What was read from the pipe.
#[derive(Default)]
struct Reader {
    bytes: Mutex<Vec<u8>>,
    is_slow: AtomicBool,
}

/// How each of our lines begins.
const BEGINNING: &[u8] = br#"{"schema":"kubetide."#;

impl StdoutBench {
    pub(crate) fn new() -> Self {
        let (from, writer) = pipe().unwrap();
        let reader = Arc::new(Reader::default());
        let reading = reader.clone();
        // It ends with the last writer.
        thread::spawn(move || reading.read(from));
        Self { writer, reader, process: None, marks: 0 }
    }
}

impl Reader {
    fn read(&self, mut from: PipeReader) {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut piece) {
            self.bytes.lock().unwrap().extend_from_slice(&piece[..read]);
            if self.is_slow.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Waits until this was read.
    async fn has(&self, mark: &[u8]) {
        let began = Instant::now();
        while !self.bytes.lock().unwrap().ends_with(mark) {
            assert!(began.elapsed() < Duration::from_secs(60), "the reader does not come to the end of the pipe");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for StdoutBench {
    fn drop(&mut self) {
        kill(&mut self.process);
    }
}

#[async_trait(?Send)]
impl Bench for StdoutBench {
    fn promises(&self) -> Promises {
        Promises { exactly_once: false, repeats: Repeats::OneBatch }
    }

    fn cannot(&self, case: Case) -> Option<&'static str> {
        match case {
            Case::Poison => Some("a pipe takes any line"),
            Case::Oversize => Some("a pipe takes lines of any length"),
            Case::Hold => Some("a process need not be let in to its own output"),
            Case::AckBeforeCursor => {
                Some("a pipe is not durable, and says so: what its reader had not read is lost with it")
            }
            Case::ReceiverRestart | Case::GoneAtStart => {
                Some("a pipe whose reader has ended stays so: the process ends too")
            }
            Case::CredentialRotation => Some("a pipe asks for no credentials"),
            _ => None,
        }
    }

    async fn open(&mut self) -> Box<dyn Sink> {
        kill(&mut self.process);
        let (process, sink) = start(None, Some(self.writer.try_clone().unwrap())).await;
        self.process = Some(process);
        Box::new(sink)
    }

    async fn kept(&mut self) -> Vec<Kept> {
        self.marks += 1;
        let mark = format!("mark {}\n", self.marks);
        self.writer.write_all(mark.as_bytes()).unwrap();
        self.reader.has(mark.as_bytes()).await;
        let bytes = self.reader.bytes.lock().unwrap();
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"mark "));
        kept(lines.map(behind_what_was_cut_off))
    }

    async fn slow(&mut self, is_slow: bool) {
        self.reader.is_slow.store(is_slow, Ordering::Relaxed);
    }
}

/// A process that is killed leaves half a line, and the next one begins right behind it: a reader takes what begins last.
fn behind_what_was_cut_off(line: &[u8]) -> &[u8] {
    let begins = |at: &usize| line[*at..].starts_with(BEGINNING);
    (0..line.len()).rfind(begins).map_or(line, |at| &line[at..])
}
