//! Prints how fast the simulator is: `cargo run --release -p kubetide-simulator --example speed`.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // it prints figures, and ends at the first failure

use std::time::Instant;

use kubetide_simulator::{Busy, Cluster, ClusterOptions, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[tokio::main]
async fn main() {
    let cluster = Cluster::new(ClusterOptions { history: 200_000, ..ClusterOptions::default() });
    let mut busy = Busy::new(1);
    busy.settle(&cluster, 50);
    let (started, from) = (Instant::now(), cluster.version());
    busy.run(&cluster, 200_000);
    rate("writes in process", cluster.version() - from, started);

    let server = Server::start(cluster.clone()).await.unwrap();
    let path = format!("/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion={from}");
    let started = Instant::now();
    let (events, bytes, last) = read(&server, &path).await;
    let seconds = (last - started).as_secs_f64();
    println!(
        "watch of pods over HTTP: {events} events, {:.0} events/s, {:.0} MB/s",
        events as f64 / seconds,
        bytes as f64 / seconds / 1e6
    );

    let pod = cluster.list("pods").swap_remove(0);
    let started = Instant::now();
    for _ in 0..200_000 {
        cluster.touch("pods", pod.namespace(), pod.name()).unwrap();
    }
    rate("touches of one pod", 200_000, started);
    let started = Instant::now();
    for turn in 0..20_000 {
        let change = |object: &mut serde_json::Value| object["status"]["turn"] = turn.into();
        cluster.update("pods", pod.namespace(), pod.name(), change).unwrap();
    }
    rate("updates of one pod by closure (parsed and written each time)", 20_000, started);

    let cluster = Cluster::new(ClusterOptions::default());
    let started = Instant::now();
    cluster.populate(200_000);
    rate("objects populated", 200_000, started);
    println!("resident memory: {} MB", resident_mb());
    let server = Server::start(cluster.clone()).await.unwrap();
    for path in ["/api/v1/pods", "/api/v1/configmaps"] {
        let started = Instant::now();
        let (_, bytes, last) = read(&server, path).await;
        let seconds = (last - started).as_secs_f64();
        println!(
            "LIST {path} at once: {:.0} MB in {seconds:.2} s, {:.0} MB/s",
            bytes as f64 / 1e6,
            bytes as f64 / seconds / 1e6
        );
    }
    println!("resident memory: {} MB", resident_mb());
}

fn rate(what: &str, count: u64, started: Instant) {
    println!("{what}: {count}, {:.0}/s", count as f64 / started.elapsed().as_secs_f64());
}

/// Lines and bytes until the connection closes, and when the last of them came.
async fn read(server: &Server, path: &str) -> (usize, usize, Instant) {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut buffer = vec![0; 1 << 20];
    let (mut lines, mut bytes, mut last) = (0, 0, Instant::now());
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        if read == 0 {
            return (lines, bytes, last);
        }
        // The end of the body, after the timeout, is no event.
        if read > 16 {
            last = Instant::now();
        }
        bytes += read;
        lines += buffer[..read].windows(2).filter(|pair| pair == b"}\n").count();
    }
}

fn resident_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<u64>().ok()).unwrap_or(0) / 1024
}
