//! A real nats-server with JetStream on. It can be killed and started again on the same port with the same streams.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use crate::locate::locate;
use crate::port::{loopback, on_free_port, on_same_port};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::unique_name;

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A nats-server. Holds nothing of a tokio runtime, so that tests with a runtime each can share it.
pub struct Nats {
    port: u16,
    // In the order of their end: the server, its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
}

impl Nats {
    /// A server of its own, for a test that stops or restarts it.
    pub async fn start() -> Result<Nats> {
        let scratch = Scratch::new("nats")?;
        let (port, process) = on_free_port(async |port| Ok((port, launch(port, &scratch).await?))).await?;
        Ok(Nats { port, process: Mutex::new(Some(process)), scratch })
    }

    /// The one of this test binary. It lives until the process ends; take a [`stream`](Self::stream) of it.
    pub async fn shared() -> &'static Nats {
        static SHARED: OnceCell<Nats> = OnceCell::const_new();
        let start = async || {
            let nats = Nats::start().await?;
            nats.scratch.keep_logs_on_any_panic();
            anyhow::Ok(nats)
        };
        match SHARED.get_or_try_init(start).await {
            Ok(nats) => nats,
            Err(error) => panic!("no nats-server: {error:#}"),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// `nats://127.0.0.1:PORT`, the same after each restart.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// A name for the stream or the subjects of one test, which begins with `prefix`. Nothing is created.
    pub fn stream(&self, prefix: &str) -> String {
        unique_name(prefix)
    }

    /// Kills the server with SIGKILL and waits for its end. Its streams stay.
    pub fn stop(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// Starts the stopped server on the same port with the same streams, and waits until it is ready.
    pub async fn start_again(&self) -> Result<()> {
        ensure!(self.process.lock().unwrap().is_none(), "nats-server runs already");
        let process = on_same_port(async || launch(self.port, &self.scratch).await).await?;
        *self.process.lock().unwrap() = Some(process);
        Ok(())
    }

    /// [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub async fn restart(&self) -> Result<()> {
        self.stop();
        self.start_again().await
    }
}

async fn launch(port: u16, scratch: &Scratch) -> Result<Process> {
    let store = scratch.data().join("jetstream");
    let mut process = Process::start(
        "nats-server",
        scratch.new_log("nats-server"),
        [
            locate("nats-server")?.display().to_string(),
            "--jetstream".into(),
            format!("--store_dir={}", store.display()),
            "--addr=127.0.0.1".into(),
            format!("--port={port}"),
        ],
    )?;
    process.until_ready(READY_WITHIN, async || ready(port).await).await?;
    Ok(process)
}

/// The server greets each connection with what it is and can do.
async fn ready(port: u16) -> Result<()> {
    let mut greeting = String::new();
    let connection = TcpStream::connect(loopback(port)).await?;
    BufReader::new(connection).read_line(&mut greeting).await?;
    ensure!(greeting.starts_with("INFO "), "it greets with {greeting:?}");
    ensure!(greeting.contains(r#""jetstream":true"#), "JetStream is not up");
    Ok(())
}
