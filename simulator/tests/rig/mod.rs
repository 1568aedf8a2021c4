//! A simulated cluster and raw HTTP to it: what a client library would hide is what these tests are about.
#![allow(dead_code, reason = "each test target uses its part of it")]

use std::sync::Arc;
use std::time::Duration;

use kubetide_simulator::{Cluster, ClusterOptions, Fault, Hook, Server, Verb};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The parameters of a streaming list.
pub const STREAMING: &str = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// How long silence is watched before it counts as silence.
pub const SILENCE: Duration = Duration::from_millis(300);

pub async fn server() -> (Cluster, Server) {
    let cluster = Cluster::new(ClusterOptions::default());
    let server = Server::start(cluster.clone()).await.unwrap();
    (cluster, server)
}

/// Sends a GET on a connection of its own.
pub async fn ask(server: &Server, path: &str, accept: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Everything the server sends until the connection ends, and how it ended.
pub async fn raw_bytes(server: &Server, path: &str, accept: &str) -> (Vec<u8>, std::io::Result<()>) {
    let mut stream = ask(server, path, accept).await;
    let mut read = Vec::new();
    let outcome = stream.read_to_end(&mut read).await;
    (read, outcome.map(drop))
}

/// The code and the body of an answer.
pub async fn get(server: &Server, path: &str, accept: &str) -> (u16, Value) {
    let (read, outcome) = raw_bytes(server, path, accept).await;
    outcome.unwrap();
    let text = String::from_utf8(read).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    let body = if head.contains("chunked") { unchunk(body) } else { body.to_owned() };
    (code, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// The events of a watch that ends.
pub async fn events(server: &Server, path: &str) -> Vec<Value> {
    let (read, outcome) = raw_bytes(server, path, "application/json").await;
    outcome.unwrap();
    let text = String::from_utf8(read).unwrap();
    let body = unchunk(text.split_once("\r\n\r\n").unwrap().1);
    body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Types and names of events.
pub fn briefs(events: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let brief = |event: &Value| format!("{} {}", text(&event["type"]), text(&event["object"]["metadata"]["name"]));
    events.iter().map(|event| brief(event).trim().to_owned()).collect()
}

/// Undoes chunked transfer coding.
pub fn unchunk(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap().min(rest.len());
        whole.push_str(&rest[..size]);
        body = rest.get(size + 2..).unwrap_or_default();
    }
    whole
}

pub fn on(verb: Verb, fault: Fault) -> Option<Hook> {
    Some(Arc::new(move |request| if request.verb == verb { fault.clone() } else { Fault::Pass }))
}

pub fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"}})
}

/// Waits until so many requests of this verb have come.
pub async fn until_asked(server: &Server, verb: Verb, times: u64) {
    while server.requests().of(verb) < times {
        tokio::task::yield_now().await;
    }
}
