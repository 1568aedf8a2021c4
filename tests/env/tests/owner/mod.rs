//! A process that owns servers, to be killed: the playground. Its temporary directory is ours, so that we see what it
//! leaves behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Starts a playground with this server, sends this signal to its process group, as Ctrl-C and CI runners do, and waits
/// until nothing of it is left: no process, no file. `programs` are the ones that must have been running.
pub(crate) fn nothing_outlives_its_owner(server: &str, programs: &[&str], signal: Signal) {
    let temporary = tempfile::tempdir().unwrap();
    let mut owner = Command::new(env!("CARGO_BIN_EXE_playground"))
        .arg(server)
        .env("TMPDIR", temporary.path())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let ready = BufReader::new(owner.stdout.take().unwrap()).lines().any(|line| line.unwrap().starts_with("ready"));
    assert!(ready, "the playground did not get ready");

    let family = descendants(&owner);
    for program in programs {
        assert!(family.iter().any(|process| &process.name == program), "{program} does not run: {family:?}");
    }
    assert!(fs::read_dir(temporary.path()).unwrap().count() > 0);

    kill_process_group(Pid::from_child(&owner), signal).unwrap();
    owner.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let alive: Vec<_> = family.iter().filter(|process| process.lives()).collect();
        let files: Vec<_> = fs::read_dir(temporary.path()).unwrap().collect();
        if alive.is_empty() && files.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left behind: {alive:?} {files:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[derive(Debug)]
struct Process {
    pid: u32,
    parent: u32,
    /// Cut at 15 characters by the kernel; the servers' names are shorter.
    name: String,
    /// Tells it from a later process with the same pid.
    started: String,
}

impl Process {
    fn read(pid: u32) -> Option<Process> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (before, after) = stat.rsplit_once(") ")?;
        let fields: Vec<_> = after.split(' ').collect();
        let dead = fields[0] == "Z";
        (!dead).then(|| Process {
            pid,
            parent: fields[1].parse().unwrap(),
            name: before.split_once('(').unwrap().1.to_owned(),
            started: fields[19].to_owned(),
        })
    }

    fn lives(&self) -> bool {
        Process::read(self.pid).is_some_and(|now| now.started == self.started)
    }
}

fn descendants(owner: &Child) -> Vec<Process> {
    let mut all: Vec<_> = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter_map(Process::read)
        .collect();
    let mut family: Vec<Process> = Vec::new();
    loop {
        let (kin, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|process| {
            process.parent == owner.id() || family.iter().any(|known| known.pid == process.parent)
        });
        if kin.is_empty() {
            return family;
        }
        family.extend(kin);
        all = rest;
    }
}
