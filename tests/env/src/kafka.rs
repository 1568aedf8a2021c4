//! A real Kafka broker, its own controller (KRaft), one node. It can be killed and started again on the same port with
//! the same data. It may have a guarded listener besides the open one: see `kafka_door.rs`.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use crate::kafka_door::{Door, Guard};
use crate::locate::locate;
use crate::port::{free_port, loopback, on_free_port, on_same_port};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::unique_name;

/// Up in about 5 seconds on an idle machine; a busy one gets its time.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Any 16 bytes in base64: it only has to be the same each time.
const CLUSTER_ID: &str = "kubetide-tests-clusteA";

/// A broker. Holds nothing of a tokio runtime, so that tests with a runtime each can share it.
pub struct Kafka {
    port: u16,
    guard: Option<Guard>,
    // In the order of their end: the broker, its directory.
    process: Mutex<Option<Process>>,
    scratch: Scratch,
}

impl Kafka {
    /// A broker of its own, for a test that stops or restarts it.
    pub async fn start() -> Result<Kafka> {
        Kafka::start_with(&[]).await
    }

    /// A broker of its own with more server properties, such as `("num.partitions", "3")`. They win over ours.
    pub async fn start_with(properties: &[(&str, &str)]) -> Result<Kafka> {
        Kafka::start_behind(None, properties).await
    }

    /// A broker of its own with this door as a second listener.
    pub async fn start_guarded(door: Door) -> Result<Kafka> {
        Kafka::start_behind(Some(door), &[]).await
    }

    async fn start_behind(door: Option<Door>, properties: &[(&str, &str)]) -> Result<Kafka> {
        let scratch = Scratch::new("kafka")?;
        let (port, guard, process) = on_free_port(async |port| {
            let guard = door.as_ref().map(|door| Guard::new(door, &scratch)).transpose()?;
            configure(port, properties, guard.as_ref(), &scratch).await?;
            Ok((port, guard, launch(port, &scratch).await?))
        })
        .await?;
        Ok(Kafka { port, guard, process: Mutex::new(Some(process)), scratch })
    }

    /// The guarded listener, of a broker that was started with one.
    pub fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("the broker was started with a door")
    }

    /// What Kafka's own console consumer prints: `partition<TAB>key<TAB>value` for each message of a topic that is committed. It ends
    /// when nothing has come for some seconds.
    pub async fn console_consumer(&self, topic: &str) -> Result<Vec<String>> {
        let bootstrap = self.bootstrap();
        let mut arguments = vec!["org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", &bootstrap];
        arguments.extend([
            "--topic",
            topic,
            "--from-beginning",
            "--isolation-level",
            "read_committed",
            "--timeout-ms",
            "5000",
        ]);
        for property in ["print.key=true", "print.partition=true"] {
            arguments.extend(["--property", property]);
        }
        let command = java(&arguments)?;
        let output = tokio::process::Command::new(&command[0]).args(&command[1..]).kill_on_drop(true).output().await?;
        let text = String::from_utf8(output.stdout)?;
        ensure!(!text.is_empty(), "no message, but: {}", String::from_utf8_lossy(&output.stderr));
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The one of this test binary. It lives until the process ends; take a [`topic`](Self::topic) of it.
    pub async fn shared() -> &'static Kafka {
        static SHARED: OnceCell<Kafka> = OnceCell::const_new();
        let start = async || {
            let kafka = Kafka::start().await?;
            kafka.scratch.keep_logs_on_any_panic();
            anyhow::Ok(kafka)
        };
        match SHARED.get_or_try_init(start).await {
            Ok(kafka) => kafka,
            Err(error) => panic!("no Kafka: {error:#}"),
        }
    }

    /// Where it listens. Clients go there whatever address they began with: it is what the broker advertises.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// For `bootstrap.servers`; the same after each restart.
    pub fn bootstrap(&self) -> String {
        self.address().to_string()
    }

    /// A name for the topic of one test, which begins with `prefix`. The broker creates it at the first use.
    pub fn topic(&self, prefix: &str) -> String {
        unique_name(prefix)
    }

    /// Kills the broker with SIGKILL and waits for its end. Its data stays.
    pub fn stop(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// Starts the stopped broker on the same port with the same data, and waits until it is ready.
    pub async fn start_again(&self) -> Result<()> {
        ensure!(self.process.lock().unwrap().is_none(), "Kafka runs already");
        let process = on_same_port(async || launch(self.port, &self.scratch).await).await?;
        *self.process.lock().unwrap() = Some(process);
        Ok(())
    }

    /// Halts the broker with SIGSTOP, or lets it go on: its connections stay, and nothing is answered meanwhile.
    pub fn halt(&self, is_halted: bool) -> Result<()> {
        self.process.lock().unwrap().as_ref().context("Kafka does not run")?.halt(is_halted)
    }

    /// Gives this user another password, by SCRAM-SHA-512. Who is connected stays so until the broker is started again.
    pub async fn set_password(&self, user: &str, password: &str) -> Result<()> {
        let (bootstrap, config) = (self.bootstrap(), format!("SCRAM-SHA-512=[password={password}]"));
        let mut arguments = vec!["kafka.admin.ConfigCommand", "--bootstrap-server", &bootstrap, "--alter"];
        arguments.extend(["--entity-type", "users", "--entity-name", user, "--add-config", &config]);
        let log = self.scratch.new_log("kafka-password");
        Process::start("kafka.admin.ConfigCommand", log, java(&arguments)?)?.until_done(READY_WITHIN).await
    }

    /// [`stop`](Self::stop) and [`start_again`](Self::start_again).
    pub async fn restart(&self) -> Result<()> {
        self.stop();
        self.start_again().await
    }
}

/// Writes the properties and formats an empty data directory.
async fn configure(port: u16, properties: &[(&str, &str)], guard: Option<&Guard>, scratch: &Scratch) -> Result<()> {
    let data = scratch.data().join("kafka");
    if data.exists() {
        fs::remove_dir_all(&data).with_context(|| format!("removing {}", data.display()))?;
    }
    let controller = loopback(free_port());
    let broker = loopback(port);
    let mut content = format!(
        "process.roles=broker,controller\n\
         node.id=1\n\
         controller.quorum.voters=1@{controller}\n\
         listeners=PLAINTEXT://{broker},CONTROLLER://{controller}{listener}\n\
         controller.listener.names=CONTROLLER\n\
         listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocol}\n\
         inter.broker.listener.name=PLAINTEXT\n\
         log.dirs={}\n\
         offsets.topic.replication.factor=1\n\
         offsets.topic.num.partitions=1\n\
         transaction.state.log.replication.factor=1\n\
         transaction.state.log.min.isr=1\n\
         transaction.state.log.num.partitions=1\n\
         share.coordinator.state.topic.replication.factor=1\n\
         share.coordinator.state.topic.min.isr=1\n\
         group.initial.rebalance.delay.ms=0\n",
        data.display(),
        listener = guard.map(Guard::listener).unwrap_or_default(),
        protocol = guard.map(Guard::protocol).unwrap_or_default(),
    );
    content.push_str(&guard.map(Guard::properties).unwrap_or_default());
    for (key, value) in properties {
        content.push_str(&format!("{key}={value}\n"));
    }
    let file = scratch.write("server.properties", content)?;
    let file = file.display().to_string();
    let mut format = java(&["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", &file])?;
    format.extend(guard.map(Guard::format_arguments).unwrap_or_default());
    Process::start("kafka.tools.StorageTool", scratch.new_log("kafka-format"), format)?.until_done(READY_WITHIN).await
}

async fn launch(port: u16, scratch: &Scratch) -> Result<Process> {
    let command = java(&["kafka.Kafka", &scratch.data().join("server.properties").display().to_string()])?;
    let mut process = Process::start("kafka", scratch.new_log("kafka"), command)?;
    let log = process.log().to_owned();
    process.until_ready(READY_WITHIN, async || ready(port, &log).await).await?;
    Ok(process)
}

fn java(main: &[&str]) -> Result<Vec<String>> {
    let mut command = vec![
        locate("java")?.display().to_string(),
        // A small broker that is up soon, not one that is fast for long.
        "-Xmx512m".into(),
        "-XX:+UseSerialGC".into(),
        "-XX:TieredStopAtLevel=1".into(),
        "-cp".into(),
        format!("{}/*", locate("kafka")?.display()),
    ];
    command.extend(main.iter().map(|word| (*word).to_owned()));
    Ok(command)
}

/// It listens some time before it serves; the log says when it does.
async fn ready(port: u16, log: &Path) -> Result<()> {
    let log = fs::read_to_string(log).context("reading Kafka's log")?;
    ensure!(log.contains("Kafka Server started"), "its log does not say that it has started");
    TcpStream::connect(loopback(port)).await?;
    Ok(())
}
