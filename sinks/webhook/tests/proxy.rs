//! Proxies are taken from the environment, which belongs to a whole process: each case is a process of its own, made of this
//! same binary.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::mpsc,
    thread,
    time::Duration,
};

use kubetide_sink::{Sink as _, sample};
use kubetide_sink_webhook::WebhookSink;
use kubetide_test_env::{PrivateAuthority, Validity, WebhookReceiver};
use serde_json::json;

/// Only in a process that one of the tests below has started.
#[tokio::test]
#[ignore = "the other tests run it, each with another environment"]
async fn delivers_to_the_url_in_the_environment() {
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let tls = std::env::var("HOOK_CA").ok().map(|ca| json!({ "ca": ca }));
    let config = json!({"url": std::env::var("HOOK_URL").unwrap(), "tls": tls});
    let mut sink = WebhookSink::open(&serde_json::from_value(config).unwrap(), sample::terms("hook")).unwrap();
    sink.deliver(&sample::batch(vec![sample::record(1, "{}")]), None).await.unwrap();
}

/// Runs it with these variables and no other ones about proxies.
fn deliver_with(variables: &[(&str, &str)]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "delivers_to_the_url_in_the_environment"]);
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_proxy_for_http_is_asked_for_the_whole_url() {
    let proxy = WebhookReceiver::start().unwrap();
    let proxy_url = proxy.url().replace("/changes", "");
    // A name that only the proxy could resolve.
    deliver_with(&[("HOOK_URL", "http://cmdb.invalid:8080/changes"), ("http_proxy", &proxy_url)]);
    let requests = proxy.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        (requests[0].uri.as_str(), requests[0].header("host")),
        ("http://cmdb.invalid:8080/changes", "cmdb.invalid:8080")
    );
}

#[test]
fn no_proxy_is_honoured() {
    let (proxy, receiver) = (WebhookReceiver::start().unwrap(), WebhookReceiver::start().unwrap());
    let proxy_url = proxy.url().replace("/changes", "");
    deliver_with(&[("HOOK_URL", &receiver.url()), ("HTTP_PROXY", &proxy_url), ("NO_PROXY", "127.0.0.0/8")]);
    assert_eq!((proxy.requests().len(), receiver.committed().len()), (0, 1));
}

#[test]
fn a_proxy_for_https_sees_host_and_port_and_nothing_else() {
    let authority = PrivateAuthority::new("ours").unwrap();
    let receiver = WebhookReceiver::start_with_tls(&authority.server(Validity::Now).unwrap()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let ca = directory.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let (proxy, asked) = tunnel();
    deliver_with(&[("HOOK_URL", &receiver.url()), ("HOOK_CA", ca.to_str().unwrap()), ("HTTPS_PROXY", &proxy)]);
    assert_eq!(
        asked.recv_timeout(Duration::from_secs(10)).unwrap(),
        format!("CONNECT localhost:{} HTTP/1.1", receiver.port())
    );
    assert_eq!(receiver.committed().len(), 1);
}

/// A proxy for one CONNECT, and what it was asked.
fn tunnel() -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (ask, asked) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let mut lines = BufReader::new(client.try_clone().unwrap()).lines().map(Result::unwrap);
        let request = lines.next().unwrap();
        let target = request.split(' ').nth(1).unwrap();
        let server = TcpStream::connect(target).unwrap();
        lines.find(String::is_empty).unwrap();
        ask.send(request).unwrap();
        (&client).write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
        let _ = std::io::copy(&mut &client, &mut &server);
    });
    (url, asked)
}
