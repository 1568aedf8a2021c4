//! HTTP for probes and Prometheus: `/livez`, `/readyz`, `/metrics`.
//!
//! Capturing does not depend on it: an address that cannot be had is tried again, and every connection has one request and
//! ten seconds. What is served comes from [`Vitals`], and holds no object content.

mod health;

#[cfg(test)]
mod tests;

use std::{net::SocketAddr, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::vitals::Vitals;

/// Whoever has the address now is most often an instance on its way out.
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// Probes and scrapes are over in milliseconds; who is slower is not one of them.
const LONGEST_CONNECTION: Duration = Duration::from_secs(10);
/// A kubelet, a few Prometheus servers and people: far fewer at once. Others wait their turn.
const MOST_CONNECTIONS: usize = 256;
/// When a connection cannot be accepted the process is out of file descriptors, and some should come free.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Serves until `stop` is cancelled.
pub async fn serve(listen: SocketAddr, vitals: Vitals, stop: CancellationToken) {
    if let Some(listener) = stop.run_until_cancelled(bind(listen)).await {
        answer(listener, vitals, stop).await;
    }
}

/// Takes the address, however long that takes.
async fn bind(listen: SocketAddr) -> TcpListener {
    let mut told = None;
    loop {
        let bound = TcpListener::bind(listen).await.and_then(|listener| Ok((listener.local_addr()?, listener)));
        match bound {
            Ok((address, listener)) => {
                info!("admin listens on {address}");
                return listener;
            }
            Err(error) => {
                // Once is enough, unless it is something else now.
                if told.replace(error.kind()) != Some(error.kind()) {
                    error!(%listen, %error, "admin cannot listen: no probe is answered; trying again every 5 s");
                }
                sleep(BIND_AGAIN).await;
            }
        }
    }
}

async fn answer(listener: TcpListener, vitals: Vitals, stop: CancellationToken) {
    let routes = health::routes(vitals);
    let mut connections = JoinSet::new();
    let accepting = async {
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                    Ok((stream, _)) => _ = connections.spawn(converse(stream, routes.clone())),
                    Err(error) => {
                        warn!(%error, "admin cannot accept a connection");
                        sleep(ACCEPT_AGAIN).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    };
    let _: Option<()> = stop.run_until_cancelled(accepting).await;
    connections.shutdown().await;
}

/// One request and its answer.
async fn converse(stream: TcpStream, routes: Router) {
    let service = TowerToHyperService::new(routes);
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    match timeout(LONGEST_CONNECTION, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "admin connection broke"),
        Err(_) => debug!("admin connection was too slow"),
    }
}
