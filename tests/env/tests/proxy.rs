//! Each mode of the proxy, against an echo server. No real server is needed.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kubetide_test_env::{Mode, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

/// How long silence is watched before it counts as silence.
const SILENCE: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(10);

/// Sends back what it gets. It ends with the test's runtime.
async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await.ok();
            });
        }
    });
    address
}

async fn proxied() -> (Proxy, TcpStream) {
    let proxy = Proxy::start(echo_server().await).unwrap();
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    (proxy, client)
}

async fn echoes(client: &mut TcpStream, word: &[u8]) {
    client.write_all(word).await.unwrap();
    let mut answer = vec![0; word.len()];
    timeout(SOON, client.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, word);
}

async fn is_silent(client: &mut TcpStream) {
    let read = timeout(SILENCE, client.read(&mut [0])).await;
    assert!(read.is_err(), "{read:?}");
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn bytes_pass_and_connections_are_counted() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"hello").await;
    let mut second = TcpStream::connect(proxy.address()).await.unwrap();
    echoes(&mut second, b"there").await;
    assert_eq!((proxy.connections(), proxy.open_connections()), (2, 2));
    until("all bytes are counted", || proxy.bytes_to_client() == 10).await;
    drop(second);
    until("one is closed", || proxy.open_connections() == 1).await;
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn the_end_of_one_direction_leaves_the_other_open() {
    let (_proxy, mut client) = proxied().await;
    client.write_all(b"last words").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = Vec::new();
    timeout(SOON, client.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"last words");
}

#[tokio::test]
async fn a_delay_holds_back_each_direction() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"quick").await;
    let delay = Duration::from_millis(150);
    proxy.set(Mode::Delay(delay));
    let before = Instant::now();
    echoes(&mut client, b"slow").await;
    assert!(before.elapsed() >= 2 * delay, "{:?}", before.elapsed());
}

#[tokio::test]
async fn a_cut_resets_the_connections_there_are_and_no_later_one() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"hello").await;
    proxy.cut();
    let read = timeout(SOON, client.read(&mut [0])).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut later = TcpStream::connect(proxy.address()).await.unwrap();
    echoes(&mut later, b"hello").await;
    until("the first is gone", || proxy.open_connections() == 1).await;
}

#[tokio::test]
async fn a_close_ends_the_connections_there_are_in_order() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"hello").await;
    proxy.close();
    assert_eq!(timeout(SOON, client.read(&mut [0])).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_cut_after_bytes_lets_exactly_these_through() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"not counted").await;
    proxy.set(Mode::CutAfter(7));
    client.write_all(b"0123456789").await.unwrap();
    let mut answer = [0; 7];
    timeout(SOON, client.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(&answer, b"0123456");
    let rest = timeout(SOON, client.read(&mut [0])).await.unwrap();
    assert_eq!(rest.unwrap_err().kind(), ErrorKind::ConnectionReset);
    until("all bytes are counted", || proxy.bytes_to_client() == 11 + 7).await;
}

#[tokio::test]
async fn a_hang_stops_old_and_new_connections_until_it_ends() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"hello").await;
    proxy.set(Mode::Hang);
    let mut later = TcpStream::connect(proxy.address()).await.unwrap();
    client.write_all(b"1").await.unwrap();
    later.write_all(b"2").await.unwrap();
    is_silent(&mut client).await;
    is_silent(&mut later).await;
    proxy.set(Mode::Pass);
    let (mut first, mut second) = ([0], [0]);
    timeout(SOON, client.read_exact(&mut first)).await.unwrap().unwrap();
    timeout(SOON, later.read_exact(&mut second)).await.unwrap().unwrap();
    assert_eq!((first, second), ([b'1'], [b'2']));
}

#[tokio::test]
async fn a_black_hole_takes_new_connections_for_good_and_spares_the_old() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"hello").await;
    proxy.set(Mode::BlackHole);
    let mut lost = TcpStream::connect(proxy.address()).await.unwrap();
    lost.write_all(b"anyone?").await.unwrap();
    is_silent(&mut lost).await;
    echoes(&mut client, b"still here").await;
    proxy.set(Mode::Pass);
    is_silent(&mut lost).await;
    let mut later = TcpStream::connect(proxy.address()).await.unwrap();
    echoes(&mut later, b"hello").await;
    proxy.cut();
    assert!(timeout(SOON, lost.read(&mut [0])).await.unwrap().is_err());
}

#[tokio::test]
async fn a_refusal_is_for_new_connections_until_it_ends() {
    let (proxy, mut client) = proxied().await;
    echoes(&mut client, b"hello").await;
    proxy.set(Mode::Refuse);
    let deadline = Instant::now() + SOON;
    loop {
        match TcpStream::connect(proxy.address()).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => break,
            _ => assert!(Instant::now() < deadline),
        }
    }
    echoes(&mut client, b"still here").await;
    proxy.set(Mode::Pass);
    let mut later = loop {
        match TcpStream::connect(proxy.address()).await {
            Ok(later) => break later,
            Err(_) => assert!(Instant::now() < deadline),
        }
    };
    echoes(&mut later, b"hello").await;
}

#[tokio::test]
async fn a_target_that_is_away_looks_like_a_reset() {
    let away = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::start(away).unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert!(timeout(SOON, client.read(&mut [0])).await.unwrap().is_err());
}
