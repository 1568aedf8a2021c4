//! A TCP proxy on loopback that spoils the way to a server: slow, cut, hung, black-holed or refused. How it behaves is
//! switched while it runs, for the connections there are and for those to come. It has a thread of its own, so that it
//! works the same under any test's runtime, paused clocks included.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, tcp};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::port::{free_port, loopback};

/// How a [`Proxy`] behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Bytes go through.
    Pass,
    /// Each piece of data, in both directions, waits this long first.
    Delay(Duration),
    /// Each connection passes exactly this many more bytes from server to client, then both its ends are reset.
    CutAfter(u64),
    /// Connections are accepted and stay open, and nothing moves on them, old or new, until another mode is set.
    Hang,
    /// New connections are accepted and never answered, in later modes neither, until they are cut. Those there are go
    /// on.
    BlackHole,
    /// New connections are refused. Those there are go on.
    Refuse,
}

/// A proxy in front of one address. It ends, with its connections, when dropped.
pub struct Proxy {
    port: u16,
    orders: watch::Sender<Orders>,
    counters: Arc<Counters>,
    runtime: Option<Runtime>,
}

#[derive(Clone, Copy)]
struct Orders {
    mode: Mode,
    /// How often the mode was set: what a connection counts for [`Mode::CutAfter`] begins with it.
    mode_number: u64,
    /// How often all connections were cut, and how the last time.
    cuts: u64,
    how: Cut,
}

#[derive(Clone, Copy)]
enum Cut {
    /// RST: what a firewall or a dead peer looks like.
    Reset,
    /// FIN: what a server that shuts down in order looks like.
    Close,
}

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    to_client: AtomicU64,
}

impl Proxy {
    /// Starts in [`Mode::Pass`]. The target need not be there yet: a connection to it is made for each client.
    pub fn start(target: SocketAddr) -> Result<Proxy> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("proxy")
            .enable_all()
            .build()
            .context("starting the proxy's runtime")?;
        let port = free_port();
        let listener = {
            let _inside = runtime.enter();
            listen(port).with_context(|| format!("listening on port {port}"))?
        };
        let (orders, ordered) = watch::channel(Orders { mode: Mode::Pass, mode_number: 0, cuts: 0, how: Cut::Reset });
        let counters = Arc::new(Counters::default());
        runtime.spawn(accept(listener, port, target, ordered, counters.clone()));
        Ok(Proxy { port, orders, counters, runtime: Some(runtime) })
    }

    /// The port to connect to instead of the target's.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address to connect to instead of the target's.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// Behaves like this from now on.
    pub fn set(&self, mode: Mode) {
        self.orders.send_modify(|orders| {
            orders.mode = mode;
            orders.mode_number += 1;
        });
    }

    /// Resets every connection there is, at both ends. New ones follow the mode.
    pub fn cut(&self) {
        self.end(Cut::Reset);
    }

    /// Closes every connection there is in order, at both ends. New ones follow the mode.
    pub fn close(&self) {
        self.end(Cut::Close);
    }

    fn end(&self, how: Cut) {
        self.orders.send_modify(|orders| {
            orders.cuts += 1;
            orders.how = how;
        });
    }

    /// Connections accepted since the start.
    pub fn connections(&self) -> u64 {
        self.counters.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    pub fn open_connections(&self) -> u64 {
        self.counters.open.load(Ordering::SeqCst)
    }

    /// Bytes that went from server to client since the start.
    pub fn bytes_to_client(&self) -> u64 {
        self.counters.to_client.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Not the plain drop: that may not wait inside a test's runtime.
            runtime.shutdown_background();
        }
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    // The port is bound again after `Refuse`, while old connections linger on it.
    socket.set_reuseaddr(true)?;
    socket.bind(loopback(port))?;
    socket.listen(1024)
}

async fn accept(
    listener: TcpListener,
    port: u16,
    target: SocketAddr,
    mut ordered: watch::Receiver<Orders>,
    counters: Arc<Counters>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        let refuse = ordered.borrow_and_update().mode == Mode::Refuse;
        match &listener {
            Some(_) if refuse => listener = None,
            None if !refuse => listener = listen(port).ok(),
            _ => {}
        }
        let client = tokio::select! {
            biased;
            changed = ordered.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            Some(_) = connections.join_next() => continue,
            Some(Ok((client, _))) = next(&listener) => client,
            // The port could not be bound again, or the accept failed: look again soon.
            () = tokio::time::sleep(Duration::from_millis(10)) => continue,
        };
        counters.accepted.fetch_add(1, Ordering::SeqCst);
        counters.open.fetch_add(1, Ordering::SeqCst);
        let connection =
            Connection { born_in: ordered.borrow().mode, ordered: ordered.clone(), counters: counters.clone() };
        connections.spawn(connection.run(client, target));
    }
}

async fn next(listener: &Option<TcpListener>) -> Option<io::Result<(TcpStream, SocketAddr)>> {
    match listener {
        Some(listener) => Some(listener.accept().await),
        None => None,
    }
}

struct Connection {
    born_in: Mode,
    ordered: watch::Receiver<Orders>,
    counters: Arc<Counters>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counters.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Connection {
    async fn run(mut self, mut client: TcpStream, target: SocketAddr) {
        let mut ordered = self.ordered.clone();
        let cuts = ordered.borrow().cuts;
        let mut server = None;
        let how = tokio::select! {
            biased;
            orders = ordered.wait_for(|orders| orders.cuts != cuts) => orders.map_or(Cut::Reset, |orders| orders.how),
            how = self.forward(&mut client, &mut server, target) => how,
        };
        if let Cut::Reset = how {
            for stream in [Some(&client), server.as_ref()].into_iter().flatten() {
                // Best effort: the peer may have closed it meanwhile.
                let _ = stream.set_zero_linger();
            }
        }
    }

    async fn forward(&mut self, client: &mut TcpStream, server: &mut Option<TcpStream>, target: SocketAddr) -> Cut {
        if self.born_in == Mode::BlackHole {
            std::future::pending::<()>().await;
        }
        if until_moving(&mut self.ordered).await.is_err() {
            return Cut::Reset;
        }
        let Ok(stream) = TcpStream::connect(target).await else {
            return Cut::Reset;
        };
        let server = server.insert(stream);
        for stream in [&*client, &*server] {
            let _ = stream.set_nodelay(true);
        }
        let (client_reader, client_writer) = client.split();
        let (server_reader, server_writer) = server.split();
        let up = pump(client_reader, server_writer, self.ordered.clone(), None);
        let down = pump(server_reader, client_writer, self.ordered.clone(), Some(&self.counters.to_client));
        match tokio::try_join!(up, down) {
            Ok(_) => Cut::Close,
            Err(_) => Cut::Reset,
        }
    }
}

async fn until_moving(ordered: &mut watch::Receiver<Orders>) -> io::Result<Orders> {
    match ordered.wait_for(|orders| orders.mode != Mode::Hang).await {
        Ok(orders) => Ok(*orders),
        Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

/// Moves bytes in one direction until the end of the stream; `counted` for the one towards the client, which is what
/// [`Mode::CutAfter`] is about.
async fn pump(
    mut from: tcp::ReadHalf<'_>,
    mut to: tcp::WriteHalf<'_>,
    mut ordered: watch::Receiver<Orders>,
    counted: Option<&AtomicU64>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut moved_in_mode = (0, 0);
    loop {
        let orders = until_moving(&mut ordered).await?;
        let limit = match (orders.mode, counted) {
            (Mode::CutAfter(limit), Some(_)) => {
                if moved_in_mode.0 != orders.mode_number {
                    moved_in_mode = (orders.mode_number, 0);
                }
                Some(limit - moved_in_mode.1)
            }
            _ => None,
        };
        if limit == Some(0) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let room = limit.map_or(buffer.len(), |limit| buffer.len().min(limit as usize));
        let read = tokio::select! {
            biased;
            _ = ordered.changed() => continue,
            read = from.read(&mut buffer[..room]) => read?,
        };
        if read == 0 {
            return to.shutdown().await;
        }
        if let Mode::Delay(delay) = orders.mode {
            tokio::time::sleep(delay).await;
        }
        to.write_all(&buffer[..read]).await?;
        moved_in_mode.1 += read as u64;
        if let Some(counter) = counted {
            counter.fetch_add(read as u64, Ordering::SeqCst);
        }
    }
}
