//! A server that is stopped in the middle of its work: its connections stay, and nothing is answered.

use rustix::process::{Pid, Signal, kill_process};

use super::{
    Pipeline, assert_exactly, is_torture,
    receiver::{Lines, Receiver},
};

/// The server that hangs while this is there.
struct Hung(Pid);

impl Hung {
    /// The one process whose command line is like this.
    fn new(is_it: impl Fn(&str) -> bool) -> Self {
        let processes =
            std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let numbers = processes.filter_map(|name| name.parse::<i32>().ok());
        let found = numbers.filter(|pid| {
            // Those that end meanwhile are not meant.
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            // Each runs under a shell that is given the same words.
            !line.starts_with("/bin/sh ") && is_it(&line)
        });
        let [pid] = found.collect::<Vec<_>>()[..] else { panic!("there is one such process") };
        let pid = Pid::from_raw(pid).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        Self(pid)
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// The receiver's server, which is known by its command line, hangs under load until the sink has given up waiting for an answer: what
/// became of what was sent is not known then. When it goes on, it is given everything once.
pub async fn a_server_that_hangs(pipeline: &mut Pipeline, receiver: &mut impl Receiver, is_it: impl Fn(&str) -> bool) {
    let changes = if is_torture() { 30_000 } else { 2_000 };
    let churn = pipeline.churn();
    pipeline.start().await;
    pipeline.delivering().await;
    let mut file = Lines::of(&pipeline.instance.path("out.ndjson"));
    let before = file.records().await.len();
    let hung = Hung::new(is_it);
    file.until("the file goes on", |records| records.len() > before + changes).await;
    pipeline.until_failing().await;
    drop(hung);
    drop(churn);
    let log = pipeline.log().await;
    pipeline.delivered(&log).await;
    assert!(pipeline.instance.terminate().success());
    assert_exactly(receiver.records().await, &log);
    eprintln!("hung for {changes} of {} records: each is there once", log.len());
}
