//! A receiver of webhooks on loopback that answers anything it is told to: late, never, with a lie, with a reset. It records
//! what was posted, and commits the records of a request or not. It has a thread of its own, so that it works the same under
//! any test's runtime, paused clocks included.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::port::{free_port, loopback};
use crate::webhook_answer::{Answer, Posted, Script};
use crate::webhook_connection;
use crate::webhook_tls::ServerTls;

/// A receiver of webhooks. It ends, with its connections, when dropped.
///
/// What it was told and what it has recorded stay while it is stopped: it is a process with a database.
pub struct WebhookReceiver {
    port: u16,
    tls: Option<TlsAcceptor>,
    script: Arc<Script>,
    serving: Option<JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl WebhookReceiver {
    /// Listens without TLS. Until it is told otherwise, it commits everything and answers 204.
    pub fn start() -> Result<WebhookReceiver> {
        WebhookReceiver::listening(None)
    }

    /// The same with TLS.
    pub fn start_with_tls(tls: &ServerTls) -> Result<WebhookReceiver> {
        WebhookReceiver::listening(Some(tls.acceptor()?))
    }

    fn listening(tls: Option<TlsAcceptor>) -> Result<WebhookReceiver> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("webhook")
            .enable_all()
            .build()
            .context("starting the receiver's runtime")?;
        let listener = {
            let _inside = runtime.enter();
            listen_on(free_port).context("listening on a free port")?
        };
        let port = listener.local_addr()?.port();
        let mut receiver = WebhookReceiver { port, tls, script: Arc::default(), serving: None, runtime: Some(runtime) };
        receiver.serve(listener);
        Ok(receiver)
    }

    /// Listens again on the same port, after [`WebhookReceiver::stop`].
    pub fn start_again(&mut self) -> Result<()> {
        let listener = {
            let _inside = self.runtime().enter();
            listen_on(|| self.port).with_context(|| format!("listening on port {}", self.port))?
        };
        self.serve(listener);
        Ok(())
    }

    fn serve(&mut self, listener: TcpListener) {
        let accepting = accept(listener, self.tls.clone(), self.script.clone());
        self.serving = Some(self.runtime().spawn(accepting));
    }

    fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("there until it is dropped")
    }

    /// As if the process were killed: every connection ends, requests in progress are dropped, new connections are refused.
    /// What was committed stays.
    pub async fn stop(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            // It was aborted, which is not of interest.
            let _ = serving.await;
        }
    }

    /// The URL to post to. With TLS it names `localhost`, which the certificate is for.
    pub fn url(&self) -> String {
        match self.tls {
            Some(_) => format!("https://localhost:{}/changes", self.port),
            None => format!("http://127.0.0.1:{}/changes", self.port),
        }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Answers like this from now on, once what [`WebhookReceiver::answer_next`] has is used up.
    pub fn answer(&self, answer: Answer) {
        self.script.answer(answer);
    }

    /// Answers what this says from now on, after a look at the request.
    pub fn answer_by(&self, answer: impl Fn(&Posted) -> Answer + Send + Sync + 'static) {
        self.script.answer_by(answer);
    }

    /// Answers the next requests like this, one each.
    pub fn answer_next(&self, answers: impl IntoIterator<Item = Answer>) {
        self.script.answer_next(answers);
    }

    /// Every request whose body came in whole, in their order.
    pub fn requests(&self) -> Vec<Posted> {
        self.script.requests()
    }

    /// Waits until there are so many requests, and returns them all.
    pub async fn requests_when(&self, count: usize) -> Vec<Posted> {
        self.script.wait_for(count).await;
        self.requests()
    }

    /// The values of all committed requests, in the order in which they were committed. One that was committed twice is there
    /// twice.
    pub fn committed(&self) -> Vec<Value> {
        self.requests().iter().filter(|posted| posted.committed).flat_map(Posted::values).collect()
    }

    /// How many connections were accepted since the start; with TLS, before their handshake.
    pub fn connections(&self) -> usize {
        self.script.connections()
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not the plain drop: that may not wait inside a test's runtime.
            runtime.shutdown_background();
        }
    }
}

/// A parallel test that looks for a port of its own may hold one for a moment: it is tried again for a second.
fn listen_on(port: impl Fn() -> u16) -> io::Result<TcpListener> {
    let mut attempts = 100;
    loop {
        match listen(port()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => attempts -= 1,
            outcome => return outcome,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // The port is bound again after `stop`, while old connections linger on it.
    socket.set_reuseaddr(true)?;
    socket.bind(loopback(port))?;
    socket.listen(1024)
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, script: Arc<Script>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => {
                if let Ok((stream, _)) = accepted {
                    script.connected();
                    connections.spawn(webhook_connection::serve(stream, tls.clone(), script.clone()));
                }
            }
        }
    }
}
