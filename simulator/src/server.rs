//! The HTTP/1.1 server on loopback: it accepts connections, asks the fault hook about each request, counts it,
//! and hands it to discovery, LIST, WATCH or the writes. It stops when it is dropped.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::bend::bend;
use crate::cluster::Cluster;
use crate::fault::{Fault, Hook};
use crate::request::{RequestInfo, Verb};
use crate::response::{HttpResponse, Payload, Reply};
use crate::status::Status;
use crate::wire::{Reset, Wire};
use crate::{discovery, list, watch as watching, write};

/// The API server's limit for a request body.
const MAX_BODY: usize = 3 * 1024 * 1024;

/// How a server behaves.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// The bearer token that every request must carry; None asks for none.
    pub token: Option<String>,
    /// The fault hook.
    pub hook: Option<Hook>,
    /// Knows only the older discovery of a request per group version, as API servers before 1.27 do.
    pub legacy_discovery: bool,
}

/// A running API server.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Whether connections are to be refused, and whether they are accepted now.
    refuse: watch::Sender<bool>,
    accepting: watch::Receiver<bool>,
    accept_loop: JoinHandle<()>,
}

struct Shared {
    cluster: Cluster,
    options: Mutex<ServerOptions>,
    number: AtomicU64,
    requests: Mutex<Requests>,
    cut: watch::Sender<u64>,
}

/// How many requests came, by verb and resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    counts: BTreeMap<(Verb, String), u64>,
}

impl Requests {
    /// Requests with this verb for this resource (`pods`, `deployments.apps`).
    #[must_use]
    pub fn count(&self, verb: Verb, resource: &str) -> u64 {
        self.counts.get(&(verb, resource.to_owned())).copied().unwrap_or(0)
    }

    /// Requests with this verb for any resource.
    #[must_use]
    pub fn of(&self, verb: Verb) -> u64 {
        self.counts.iter().filter(|((counted, _), _)| *counted == verb).map(|(_, count)| count).sum()
    }

    /// Every count.
    pub fn iter(&self) -> impl Iterator<Item = (Verb, &str, u64)> {
        self.counts.iter().map(|((verb, resource), count)| (*verb, resource.as_str(), *count))
    }
}

impl Server {
    /// Starts on a free loopback port.
    pub async fn start(cluster: Cluster) -> io::Result<Self> {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), cluster, ServerOptions::default()).await
    }

    /// Starts on this address.
    pub async fn start_on(address: SocketAddr, cluster: Cluster, options: ServerOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            cluster,
            options: Mutex::new(options),
            number: AtomicU64::new(0),
            requests: Mutex::default(),
            cut: watch::Sender::new(0),
        });
        let (refuse, refused) = watch::channel(false);
        let (accepts, accepting) = watch::channel(true);
        let accept_loop = tokio::spawn(accept(listener, address, Arc::clone(&shared), refused, accepts));
        Ok(Self { shared, address, refuse, accepting, accept_loop })
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The cluster it serves.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.shared.cluster
    }

    /// Writes a kubeconfig for this server into a directory; its context is `simulated`.
    pub fn kubeconfig(&self, directory: &Path) -> io::Result<PathBuf> {
        let token = lock(&self.shared.options).token.clone();
        let user = token.map_or_else(|| "{}".to_owned(), |token| format!("{{token: {token:?}}}"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: simulated\n\
             clusters:\n- name: simulated\n  cluster: {{server: \"{}\"}}\n\
             users:\n- name: simulated\n  user: {user}\n\
             contexts:\n- name: simulated\n  context: {{cluster: simulated, user: simulated, namespace: default}}\n",
            self.url()
        );
        let path = directory.join("kubeconfig");
        std::fs::write(&path, text)?;
        Ok(path)
    }

    /// Replaces the fault hook; None answers everything as it should be.
    pub fn set_hook(&self, hook: Option<Hook>) {
        lock(&self.shared.options).hook = hook;
    }

    /// Replaces the bearer token that requests must carry.
    pub fn set_token(&self, token: Option<String>) {
        lock(&self.shared.options).token = token;
    }

    /// Answers discovery in the older form only, or in both. A client that accepts only the newer one gets 406.
    pub fn set_legacy_discovery(&self, legacy: bool) {
        lock(&self.shared.options).legacy_discovery = legacy;
    }

    /// Cuts every open watch without an end of its body, as a dying API server does.
    pub fn cut_all_watches(&self) {
        self.shared.cut.send_modify(|count| *count += 1);
    }

    /// True: closes the port and every connection, as if the API server were down. False: accepts again, on
    /// the same port. Returns when that is so.
    pub async fn refuse(&self, refuse: bool) {
        self.refuse.send_replace(refuse);
        let mut accepting = self.accepting.clone();
        // The sender goes away only with the accept loop, which lives as long as this server.
        let _ = accepting.wait_for(|&accepting| accepting != refuse).await;
    }

    /// What was asked so far.
    #[must_use]
    pub fn requests(&self) -> Requests {
        lock(&self.shared.requests).clone()
    }

    /// Starts counting from zero.
    pub fn reset_requests(&self) {
        *lock(&self.shared.requests) = Requests::default();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The loop owns the connections: they end with it.
        self.accept_loop.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing here is left half-changed by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    mut refused: watch::Receiver<bool>,
    accepts: watch::Sender<bool>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        if *refused.borrow_and_update() {
            listener = None;
            connections.shutdown().await;
            accepts.send_replace(false);
            if refused.changed().await.is_err() {
                return;
            }
            continue;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => match TcpListener::bind(address).await {
                Ok(open) => open,
                Err(error) => {
                    // Another process holds the port for a moment; the caller waits for us.
                    tracing::warn!(%error, %address, "cannot listen again, trying on");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
            },
        };
        accepts.send_if_modified(|accepting| !std::mem::replace(accepting, true));
        tokio::select! {
            outcome = refused.changed() => if outcome.is_err() { return },
            accepted = open.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(serve(stream, Arc::clone(&shared))); }
                Err(error) => tracing::warn!(%error, "cannot accept a connection"),
            },
            _ = connections.join_next(), if !connections.is_empty() => {}
        }
        listener = Some(open);
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Watch events are small and must not wait for each other.
    let _ = stream.set_nodelay(true);
    let reset = Reset::default();
    let wire = Wire::new(stream, reset.clone());
    let service = service_fn(move |request| {
        let (shared, reset) = (Arc::clone(&shared), reset.clone());
        async move { shared.answer(request, reset).await }
    });
    // An error here is a client that went away, or a fault doing its work.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(wire), service).await;
}

/// Closes the connection without an answer.
#[derive(Debug)]
struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the simulator dropped the request")
    }
}

impl std::error::Error for Dropped {}

impl From<Infallible> for Dropped {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Shared {
    async fn answer(&self, request: http::Request<Incoming>, reset: Reset) -> Result<HttpResponse, Dropped> {
        let (head, body) = request.into_parts();
        let number = self.number.fetch_add(1, Ordering::Relaxed) + 1;
        let info = RequestInfo::read(number, &head);
        // From here on, so that a watch that was counted is a watch that can be cut.
        let cut = self.cut.subscribe();
        *lock(&self.requests).counts.entry((info.verb, info.resource.clone())).or_default() += 1;
        let ServerOptions { token, hook, .. } = lock(&self.options).clone();
        let bearer = head.headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let welcome = token.is_none_or(|token| bearer.and_then(|text| text.strip_prefix("Bearer ")) == Some(&token));
        if !welcome {
            return Ok(Reply::from(Status::of_code(401, None)).into_http());
        }
        let fault = hook.map_or(Fault::Pass, |hook| hook(&info));
        match &fault {
            Fault::Drop => return Err(Dropped),
            Fault::Hang => std::future::pending().await,
            Fault::Delay(time) => tokio::time::sleep(*time).await,
            Fault::Status { code, retry_after } => {
                let status = if *code == 403 { Status::forbidden(&info) } else { Status::of_code(*code, *retry_after) };
                return Ok(Reply::from(status).into_http());
            }
            _ => {}
        }
        let body = Limited::new(body, MAX_BODY).collect().await.map(|body| body.to_bytes());
        let reply = match body {
            Ok(body) => self.route(&info, &body, cut, &fault).unwrap_or_else(Reply::from),
            Err(_) => Status::new(413, "RequestEntityTooLarge", "limit is 3145728").into(),
        };
        if fault == Fault::Pass {
            return Ok(reply.into_http());
        }
        let (code, media_type, retry_after) = (reply.code, reply.media_type, reply.retry_after);
        let payload = Payload::Stream(bend(reply.chunks(), fault, reset));
        Ok(Reply { code, media_type, retry_after, payload }.into_http())
    }

    fn route(
        &self,
        request: &RequestInfo,
        body: &Bytes,
        cut: watch::Receiver<u64>,
        fault: &Fault,
    ) -> Result<Reply, Status> {
        let cluster = &self.cluster;
        if matches!(request.verb, Verb::Discovery) {
            return discovery::answer(cluster, request, !lock(&self.options).legacy_discovery);
        }
        if !request.resource.starts_with("selfsubjectaccessreviews.") {
            let state = cluster.lock();
            let kind = state.shelves.get(&request.resource).map(|shelf| shelf.at(&request.version));
            let Some(Ok(kind)) = kind else {
                return discovery::not_served(&state, request);
            };
            let subresource = request.subresource.as_str();
            let misplaced = !kind.namespaced && !request.namespace.is_empty();
            if misplaced || !(subresource.is_empty() || (subresource == "status" && kind.status)) {
                return Err(Status::of_code(404, None));
            }
        }
        match request.verb {
            Verb::List | Verb::Page => list::list(cluster, request),
            Verb::Watch | Verb::StreamingList => watching::watch(cluster, request, cut, fault),
            Verb::Get => list::get(cluster, request),
            _ => write::write(cluster, request, body),
        }
    }
}
