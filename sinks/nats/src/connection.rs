//! One connection: opened, used until something goes wrong with it, dropped.
//!
//! The client would reconnect by itself and then send what is still in its queue, in front of or behind what delivery sends
//! again meanwhile: holes and reordering. So it is given no second connection; a message that was not sent when the
//! connection broke is never sent by it. Delivery tries again, with a new connection and credentials read anew.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_nats::{AuthError, Client, ConnectOptions, Event, ServerError, Subscriber, connection::State, jetstream};
use bytes::Bytes;
use futures::StreamExt as _;
use kubetide_sink::{Decision, SinkError};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    NatsConfig,
    access::Access,
    message::Outgoing,
    verdict::{self, Answer, Refusal, Trouble},
};

/// For TCP, TLS and the greeting, with one server.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// For all of them.
const CONNECT_ALL_WITHIN: Duration = Duration::from_secs(20);
/// For what is asked of JetStream itself.
const ASK_WITHIN: Duration = Duration::from_secs(10);
/// Complaints beyond these say nothing new.
const COMPLAINTS: usize = 16;

/// A connection to one of the servers.
pub(crate) struct Connection {
    client: Client,
    jetstream: jetstream::Context,
    /// Answers come to subjects below this one.
    inbox: String,
    answers: Subscriber,
    /// What the server has against us without saying against which message.
    complaints: mpsc::Receiver<String>,
    next: u64,
}

impl Connection {
    /// Connects to any of the servers. Takes a bounded time whatever they do.
    pub(crate) async fn open(config: &NatsConfig, access: &Access, name: &str) -> Result<Self, SinkError> {
        let servers = config.servers.join(", ");
        let hold = |problem: String| SinkError::hold(format!("connect to {servers}: {problem}"));
        let (options, complaints) = options(config, access, name).map_err(|error| hold(error.to_string()))?;
        let is_up = options.is_up;
        let connected = timeout(CONNECT_ALL_WITHIN, options.options.connect(&config.servers)).await;
        let client = match connected {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return Err(verdict::of_connect(&error, &servers)),
            Err(_) => return Err(SinkError::retry(format!("connect to {servers}: no answer in time"))),
        };
        is_up.store(true, Ordering::Relaxed);
        if !client.server_info().jetstream {
            return Err(hold("the server has JetStream switched off".into()));
        }
        let inbox = client.new_inbox();
        let broken = |_| Trouble::Broken.verdict(&format!("connect to {servers}"));
        let answers = client.subscribe(format!("{inbox}.*")).await.map_err(broken)?;
        let jetstream =
            jetstream::context::ContextBuilder::new().timeout(ASK_WITHIN).max_ack_inflight(1).build(client.clone());
        Ok(Self { client, jetstream, inbox, answers, complaints, next: 0 })
    }

    /// Whether it still is one, as far as is known.
    pub(crate) fn is_up(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// The most that the server takes in one message, headers included.
    pub(crate) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// Whether the server is at least this new.
    pub(crate) fn is_at_least(&self, major: i64, minor: i64, patch: i64) -> bool {
        self.client.is_server_compatible(major, minor, patch)
    }

    /// What the server calls its version.
    pub(crate) fn version(&self) -> String {
        self.client.server_info().version
    }

    /// To ask JetStream for what is not a publish.
    pub(crate) const fn jetstream(&self) -> &jetstream::Context {
        &self.jetstream
    }

    /// Sends a message, in the order of the calls, and returns the number that its answer will have.
    pub(crate) async fn publish(&mut self, message: &mut Outgoing) -> Result<u64, SinkError> {
        let number = self.next;
        self.next += 1;
        let reply = format!("{}.{number}", self.inbox);
        self.send(message, Some(reply)).await?;
        Ok(number)
    }

    /// Sends a message that is not answered.
    pub(crate) async fn publish_unanswered(&mut self, message: &mut Outgoing) -> Result<(), SinkError> {
        self.send(message, None).await
    }

    async fn send(&mut self, message: &mut Outgoing, reply: Option<String>) -> Result<(), SinkError> {
        let headers = message.headers().map_err(|header| {
            let problem = format!("publish on {}: the header {header} cannot hold its value", message.subject);
            SinkError::new(Decision::Poison, problem)
        })?;
        let (subject, body) = (message.subject.clone(), Bytes::from(std::mem::take(&mut message.body)));
        let sent = async {
            match reply {
                Some(reply) => self.client.publish_with_reply_and_headers(subject, reply, headers, body).await,
                None => self.client.publish_with_headers(subject, headers, body).await,
            }
        };
        // It waits only where its queue is full, because the server does not read.
        match timeout(ASK_WITHIN, sent).await {
            Ok(Ok(())) => Ok(()),
            // The connection has ended: the size was checked before, and the subject is one.
            Ok(Err(_)) => Err(Trouble::Broken.verdict(&format!("publish on {}", message.subject))),
            Err(_) => Err(Trouble::Silent.verdict(&format!("publish on {}", message.subject))),
        }
    }

    /// The next answer, with the number of the message that it is to.
    pub(crate) async fn answer(&mut self, within: Duration) -> Result<(u64, Answer), Trouble> {
        let deadline = tokio::time::sleep(within);
        tokio::pin!(deadline);
        loop {
            tokio::select! {
                biased;
                message = self.answers.next() => {
                    let Some(message) = message else { return Err(self.forbidden().unwrap_or(Trouble::Broken)) };
                    let number = message.subject.rsplit('.').next().and_then(|number| number.parse().ok());
                    // A subject that is not one of ours cannot come; if it does, it answers nothing.
                    if let Some(number) = number {
                        return Ok((number, Answer::read(&message)));
                    }
                }
                Some(says) = self.complaints.recv() => {
                    if verdict::is_about_credentials(&says) {
                        return Err(Trouble::Forbidden(says));
                    }
                }
                () = &mut deadline => return Err(Trouble::Silent),
            }
        }
    }

    /// What the server had against us before it closed the connection or stayed silent, if it is about who we are.
    pub(crate) fn forbidden(&mut self) -> Option<Trouble> {
        std::iter::from_fn(|| self.complaints.try_recv().ok())
            .find(|says| verdict::is_about_credentials(says))
            .map(Trouble::Forbidden)
    }

    /// Why a question to JetStream failed: it was refused, or there was no answer.
    pub(crate) fn unanswered(&mut self, refused: Option<&jetstream::Error>, what: &str) -> SinkError {
        match refused {
            Some(error) => Refusal::from(error).verdict(what),
            None => self.forbidden().unwrap_or(Trouble::Silent).verdict(what),
        }
    }
}

struct Options {
    options: ConnectOptions,
    /// Set when the first connection stands: there is no other.
    is_up: Arc<AtomicBool>,
}

fn options(
    config: &NatsConfig,
    access: &Access,
    name: &str,
) -> Result<(Options, mpsc::Receiver<String>), crate::access::AccessError> {
    let is_up = Arc::new(AtomicBool::new(false));
    let (complain, complaints) = mpsc::channel(COMPLAINTS);
    let tls = access.client_config()?;
    let (was_up, access) = (is_up.clone(), access.clone());
    // The only way to keep this client from reconnecting is to refuse to say who we are.
    let identify = move |nonce: Vec<u8>| {
        let auth = match was_up.load(Ordering::Relaxed) {
            true => Err(AuthError::new("a sink uses a connection once")),
            false => access.auth(&nonce),
        };
        async move { auth }
    };
    let listen = move |event: Event| {
        if let Event::ServerError(ServerError::Other(says)) = event {
            // Full: there is enough to read.
            let _ = complain.try_send(says);
        }
        async {}
    };
    let mut options = ConnectOptions::with_auth_callback(identify)
        .name(name)
        .connection_timeout(CONNECT_WITHIN)
        .request_timeout(Some(ASK_WITHIN))
        .ignore_discovered_servers()
        // Each server is tried once, and after a disconnect no longer than that.
        .max_reconnects(config.servers.len())
        .event_callback(listen);
    if let Some(tls) = tls {
        options = options.require_tls(true).tls_client_config(tls);
    }
    Ok((Options { options, is_up }, complaints))
}
