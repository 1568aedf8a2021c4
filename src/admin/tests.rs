//! Over real HTTP on loopback.

use std::net::Ipv4Addr;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    task::JoinHandle,
    time::Instant,
};

use super::*;
use crate::vitals::Asked;

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Only ever reached by a failure.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server on a free port, until it is dropped.
struct Served {
    address: SocketAddr,
    vitals: Vitals,
    stop: CancellationToken,
    server: JoinHandle<()>,
}

impl Served {
    async fn new() -> Self {
        let (vitals, stop) = (Vitals::new(), CancellationToken::new());
        let listener = bind(ANYWHERE).await;
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(answer(listener, vitals.clone(), stop.clone()));
        Self { address, vitals, stop, server }
    }

    /// The status, the headers and the body.
    async fn get(&self, path: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: admin\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), body.to_owned())
    }

    async fn page(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.get(path).await;
        (status, body)
    }

    /// Stops, and waits until it has stopped.
    async fn stop(self) {
        self.stop.cancel();
        timeout(PATIENCE, self.server).await.expect("it stops").unwrap();
    }
}

#[tokio::test]
async fn readyz_is_ok_in_two_letters_and_every_check_on_request() {
    let served = Served::new().await;
    served.vitals.stream("core/pods", Asked::Named).synced();
    served.vitals.unresolved(&[]);
    served.vitals.stream("example.com/widgets", Asked::Wildcard).failed("403 Forbidden", true, 1);
    served.vitals.sink("audit");
    assert_eq!(served.page("/readyz").await, (200, "ok".into()));
    let checks = "[+]log ok\n[+]discovery ok\n[+]resources ok\n[+]sink/audit ok\n[+]stream/core/pods ok\n\
        [~]stream/example.com/widgets degraded: 403 Forbidden (for 0 s)\nreadyz check passed\n";
    for query in ["verbose", "verbose=1", "a=b&verbose", "verbose="] {
        assert_eq!(served.page(&format!("/readyz?{query}")).await, (200, checks.into()));
    }
    assert_eq!(served.page("/readyz?verboser").await, (200, "ok".into()));
}

#[tokio::test]
async fn readyz_is_503_with_what_failed_and_on_request_with_the_rest() {
    let served = Served::new().await;
    served.vitals.stream("core/pods", Asked::Named).synced();
    served.vitals.unresolved(&[]);
    served.vitals.stream("apps/deployments", Asked::Named).failed("403 Forbidden", true, 1);
    let failed = "[-]stream/apps/deployments failed: 403 Forbidden (for 0 s)\n";
    assert_eq!(served.page("/readyz").await, (503, format!("{failed}readyz check failed\n")));
    let all =
        format!("[+]log ok\n[+]discovery ok\n[+]resources ok\n{failed}[+]stream/core/pods ok\nreadyz check failed\n");
    assert_eq!(served.page("/readyz?verbose").await, (503, all));
}

#[tokio::test]
async fn livez_does_not_depend_on_readiness() {
    let served = Served::new().await;
    assert_eq!(served.page("/readyz").await.0, 503);
    assert_eq!(served.page("/livez").await, (200, "ok".into()));
    assert_eq!(served.page("/livez?verbose").await, (200, "[+]committer ok\nlivez check passed\n".into()));
}

#[tokio::test(start_paused = true)]
async fn livez_is_503_when_the_committer_is_silent() {
    let vitals = Vitals::new();
    vitals.heartbeat();
    tokio::time::advance(Duration::from_secs(61)).await;
    let request = http::Request::get("/livez").body(axum::body::Body::empty()).unwrap();
    let answer =
        hyper::service::Service::call(&TowerToHyperService::new(health::routes(vitals)), request).await.unwrap();
    assert_eq!(answer.status(), 503);
    let body = axum::body::to_bytes(answer.into_body(), 1_000).await.unwrap();
    assert_eq!(body, "[-]committer failed: no sign of life for more than 60 s\nlivez check failed\n");
}

#[tokio::test]
async fn metrics_are_prometheus_text() {
    let served = Served::new().await;
    served.vitals.stream("core/pods", Asked::Named).bookmark();
    let (status, head, body) = served.get("/metrics").await;
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("\nkubetide_bookmarks_total{stream=\"core/pods\"} 1\n"), "{body}");
}

#[tokio::test]
async fn other_paths_are_not_found_and_nothing_can_be_written() {
    let served = Served::new().await;
    let (status, body) = served.page("/healthz").await;
    assert_eq!(status, 404);
    assert!(body.contains("/readyz"), "{body}");
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"POST /readyz HTTP/1.1\r\nhost: admin\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
}

#[tokio::test]
async fn a_stop_does_not_wait_for_connections_and_frees_the_address() {
    let served = Served::new().await;
    let address = served.address;
    // Open and half a request, for ever.
    let idle = TcpStream::connect(address).await.unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /readyz HT").await.unwrap();
    assert_eq!(served.page("/livez").await.0, 200);
    served.stop().await;
    std::net::TcpListener::bind(address).unwrap();
    drop((idle, slow));
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_taken_is_tried_again_every_5_s() {
    let holder = std::net::TcpListener::bind(ANYWHERE).unwrap();
    let address = holder.local_addr().unwrap();
    let began = Instant::now();
    let mut binding = std::pin::pin!(bind(address));
    assert!(timeout(Duration::from_secs(12), &mut binding).await.is_err(), "it is taken");
    drop(holder);
    let listener = binding.await;
    assert_eq!(listener.local_addr().unwrap(), address);
    assert_eq!(began.elapsed().as_secs(), 15, "the third time after 5 s");
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait_for_an_address() {
    let holder = std::net::TcpListener::bind(ANYWHERE).unwrap();
    let stop = CancellationToken::new();
    let server = tokio::spawn(serve(holder.local_addr().unwrap(), Vitals::new(), stop.clone()));
    tokio::time::sleep(Duration::from_secs(7)).await;
    stop.cancel();
    timeout(Duration::from_secs(1), server).await.expect("it stops").unwrap();
}

#[tokio::test]
async fn more_connections_than_are_served_at_once_wait_their_turn() {
    let served = Served::new().await;
    let mut idle = Vec::new();
    for _ in 0..MOST_CONNECTIONS {
        idle.push(TcpStream::connect(served.address).await.unwrap());
    }
    let mut turn = std::pin::pin!(served.page("/livez"));
    assert!(timeout(Duration::from_millis(50), &mut turn).await.is_err(), "all places are taken");
    drop(idle);
    assert_eq!(timeout(PATIENCE, turn).await.expect("it is answered"), (200, "ok".into()));
}
