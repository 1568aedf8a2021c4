//! A real nats-server with JetStream on. It can be killed and started again on the same port with the same streams, and
//! with another configuration: users, limits, TLS.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use crate::locate::locate;
use crate::nats_tls::NatsTls;
use crate::port::{loopback, on_free_port, on_same_port};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::unique_name;

const READY_WITHIN: Duration = Duration::from_secs(30);

/// A nats-server. Holds nothing of a tokio runtime, so that tests with a runtime each can share it.
pub struct Nats {
    port: u16,
    tls: Option<NatsTls>,
    // In the order of their end: the server, its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
}

impl Nats {
    /// A server of its own, for a test that stops or restarts it.
    pub async fn start() -> Result<Nats> {
        Nats::start_with("").await
    }

    /// A server of its own with more configuration, in the server's own language: `authorization { token: a }`.
    pub async fn start_with(config: &str) -> Result<Nats> {
        Nats::launch_in(Scratch::new("nats")?, None, config).await
    }

    /// A server of its own that speaks TLS only, and may ask its clients for a certificate.
    pub async fn start_with_tls(asks_clients: bool) -> Result<Nats> {
        let scratch = Scratch::new("nats")?;
        let tls = NatsTls::new(asks_clients, &scratch)?;
        Nats::launch_in(scratch, Some(tls), "").await
    }

    async fn launch_in(scratch: Scratch, tls: Option<NatsTls>, config: &str) -> Result<Nats> {
        write_config(&scratch, tls.as_ref(), config)?;
        let (port, process) = on_free_port(async |port| Ok((port, launch(port, &scratch).await?))).await?;
        Ok(Nats { port, tls, process: Mutex::new(Some(process)), scratch })
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

    /// The certificates, of a server that was started with TLS.
    pub fn tls(&self) -> &NatsTls {
        self.tls.as_ref().expect("the server was started with TLS")
    }

    /// Replaces the configuration that it was started with, from the next start on.
    pub fn configure(&self, config: &str) -> Result<()> {
        write_config(&self.scratch, self.tls.as_ref(), config)
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

const CONFIG: &str = "nats.conf";

fn write_config(scratch: &Scratch, tls: Option<&NatsTls>, config: &str) -> Result<()> {
    let tls = tls.map(NatsTls::config).unwrap_or_default();
    scratch.write(CONFIG, format!("{tls}{config}\n"))?;
    Ok(())
}

async fn launch(port: u16, scratch: &Scratch) -> Result<Process> {
    let store = scratch.data().join("jetstream");
    let mut process = Process::start(
        "nats-server",
        scratch.new_log("nats-server"),
        [
            locate("nats-server")?.display().to_string(),
            format!("--config={}", scratch.data().join(CONFIG).display()),
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
