//! A server process that cannot outlive its owner. It runs under a small shell whose standard input is a pipe that the
//! owner holds; when the pipe ends, because the owner dropped it, exited or was killed, the shell kills the server.
//! (PR_SET_PDEATHSIG would tie a shared server to the test thread that happened to start it.)

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::port::PortTaken;

/// "$@" is the server. The reader is a subshell with a builtin, so that killing it leaves nothing behind.
const RUN: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
{ read -r _ <&3; kill -9 $server; } &
reader=$!
wait $server
code=$?
kill $reader 2>/dev/null
exit $code
"#;

/// Between two looks at a starting server.
const POLL: Duration = Duration::from_millis(50);

/// A shell that acts when its owner lets go of it.
pub(crate) struct Leash {
    shell: Child,
}

impl Leash {
    pub(crate) fn start<A: AsRef<OsStr>>(
        script: &str,
        arguments: impl IntoIterator<Item = A>,
        log: Option<File>,
    ) -> Result<Leash> {
        let output = |log: &Option<File>| -> Result<Stdio> {
            Ok(match log {
                Some(file) => file.try_clone()?.into(),
                None => Stdio::null(),
            })
        };
        let shell = Command::new("/bin/sh")
            .args(["-c", script, "sh"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(output(&log)?)
            .stderr(output(&log)?)
            .current_dir("/")
            // A Ctrl-C or a kill of the owner's process group is for the owner alone: the shell must live to clean up.
            .process_group(0)
            .spawn()
            .context("starting /bin/sh")?;
        Ok(Leash { shell })
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // What the shell has to do takes milliseconds; an error means that it was reaped already.
        let _ = self.shell.wait();
    }
}

pub(crate) struct Process {
    name: &'static str,
    log: PathBuf,
    leash: Leash,
}

impl Process {
    /// Starts `command`, with both of its outputs in `log`. Dropping the value kills the server and waits for its end.
    pub(crate) fn start<A: AsRef<OsStr>>(
        name: &'static str,
        log: PathBuf,
        command: impl IntoIterator<Item = A>,
    ) -> Result<Process> {
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let leash = Leash::start(RUN, command, Some(file)).with_context(|| format!("starting {name}"))?;
        Ok(Process { name, log, leash })
    }

    /// Waits until `ready` says so. Fails with [`PortTaken`] if the server ended for that reason, with the end of its
    /// log if it ended for another one or is not ready in time.
    pub(crate) async fn until_ready(&mut self, within: Duration, ready: impl AsyncFn() -> Result<()>) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.exited()? {
                bail!(self.failure(&format!("ended with {status} while starting")));
            }
            // A check may itself hang on a server that is half up.
            let answer = tokio::time::timeout(Duration::from_secs(5), ready()).await;
            let error = match answer {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => anyhow!("no answer"),
            };
            if Instant::now() > deadline {
                bail!(self.failure(&format!("was not ready after {within:?} ({error:#})")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits for a program that ends by itself, and fails unless it succeeds.
    pub(crate) async fn until_done(mut self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            match self.exited()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!(self.failure(&format!("ended with {status}"))),
                None if Instant::now() > deadline => {
                    bail!(self.failure(&format!("did not end in {within:?}")))
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
    }

    /// Halts the server, or lets it go on.
    pub(crate) fn halt(&self, is_halted: bool) -> Result<()> {
        let shell = self.leash.shell.id();
        // The first that the shell has started; the other one is its reader.
        let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"))?;
        let server = children.split_whitespace().next().with_context(|| format!("{} does not run", self.name))?;
        let signal = if is_halted { "-STOP" } else { "-CONT" };
        let status = Command::new("kill").args([signal, server]).status().context("starting kill")?;
        if status.success() { Ok(()) } else { bail!("kill {signal} of {} ended with {status}", self.name) }
    }

    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    fn exited(&mut self) -> Result<Option<ExitStatus>> {
        let name = self.name;
        self.leash.shell.try_wait().with_context(|| format!("waiting for {name}"))
    }

    fn failure(&self, what: &str) -> anyhow::Error {
        let log = fs::read_to_string(&self.log).unwrap_or_default().to_lowercase();
        if log.contains("address already in use") {
            return PortTaken.into();
        }
        anyhow!("{} {what}; the end of its log:\n{}", self.name, tail(&self.log))
    }
}

/// The last lines of a log.
pub(crate) fn tail(log: &Path) -> String {
    const LINES: usize = 30;
    let bytes = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn start(script: &str) -> (tempfile::TempDir, Process) {
        let directory = tempfile::tempdir().unwrap();
        let process = Process::start("script", directory.path().join("log"), ["/bin/sh", "-c", script]).unwrap();
        (directory, process)
    }

    #[tokio::test]
    async fn a_server_that_ends_while_starting_is_an_error_with_its_log() {
        let (_directory, mut process) = start("echo the cause; exit 7");
        let error = process.until_ready(SOON, async || bail!("not yet")).await.unwrap_err();
        assert!(error.to_string().contains("exit status: 7"), "{error}");
        assert!(error.to_string().contains("the cause"), "{error}");
    }

    #[tokio::test]
    async fn a_server_that_is_never_ready_is_an_error_after_the_deadline() {
        let (_directory, mut process) = start("echo still thinking; exec sleep 600");
        let within = Duration::from_millis(200);
        let error = process.until_ready(within, async || bail!("not yet")).await.unwrap_err();
        assert!(error.to_string().contains("not ready after 200ms (not yet)"), "{error}");
    }

    #[tokio::test]
    async fn a_taken_port_is_told_from_other_failures() {
        let (_directory, mut process) = start("echo 'listen tcp: bind: address already in use'; exit 1");
        let error = process.until_ready(SOON, async || bail!("not yet")).await.unwrap_err();
        assert!(error.is::<PortTaken>(), "{error}");
    }

    #[tokio::test]
    async fn dropping_the_value_kills_the_server() {
        let (_directory, mut process) = start("echo $$; exec sleep 600");
        let log = process.log().to_owned();
        let pid = async || match fs::read_to_string(&log)?.trim().parse::<u32>() {
            Ok(pid) => Ok(pid),
            Err(error) => bail!(error),
        };
        process.until_ready(SOON, async || pid().await.map(drop)).await.unwrap();
        let server = PathBuf::from(format!("/proc/{}", pid().await.unwrap()));
        assert!(server.exists());
        drop(process);
        assert!(!server.exists());
    }
}
