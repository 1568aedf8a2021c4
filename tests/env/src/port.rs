//! Free loopback ports. They are taken from below the range that the kernel gives to outgoing connections, so that a
//! server which is stopped for a moment finds its port free when it starts again. Two test binaries may still pick the
//! same one: then the server says so, and `on_free_port` tries another.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::Result;

/// Below 32768, where Linux starts handing out ephemeral ports.
const FIRST: u16 = 18_000;
const COUNT: u16 = 14_000;

/// A server did not start because another process has its port.
#[derive(Debug)]
pub(crate) struct PortTaken;

impl fmt::Display for PortTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the port is taken")
    }
}

impl std::error::Error for PortTaken {}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A port that nobody listens on now, and that this process has not handed out before.
pub(crate) fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    // A random start keeps parallel test binaries apart.
    let next = NEXT.get_or_init(|| AtomicU16::new((crate::unique() % u64::from(COUNT)) as u16));
    (0..COUNT)
        .map(|_| FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT)
        .find(|port| TcpListener::bind(loopback(*port)).is_ok())
        .expect("one of 14000 ports is free")
}

/// A port is tried again at most so often; each time takes as long as the server needs to notice.
const ATTEMPTS: usize = 5;

/// Runs `start` with a free port, and again with another one as long as it fails with [`PortTaken`].
pub(crate) async fn on_free_port<T>(start: impl AsyncFn(u16) -> Result<T>) -> Result<T> {
    on_same_port(async || start(free_port()).await).await
}

/// Runs `start` again as long as it fails with [`PortTaken`]: a parallel test that looks for a port of its own may hold
/// the one of a stopped server for a moment.
pub(crate) async fn on_same_port<T>(start: impl AsyncFn() -> Result<T>) -> Result<T> {
    let mut attempt = 1;
    loop {
        match start().await {
            Err(error) if error.is::<PortTaken>() && attempt < ATTEMPTS => attempt += 1,
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_answered_with_another_one() {
        let mut seen = Vec::new();
        let seen_by = std::sync::Mutex::new(&mut seen);
        let port = on_free_port(async |port| {
            let mut seen = seen_by.lock().unwrap();
            seen.push(port);
            if seen.len() < 3 {
                anyhow::bail!(PortTaken)
            }
            Ok(port)
        })
        .await
        .unwrap();
        assert_eq!(seen.len(), 3);
        assert_eq!(seen[2], port);
        assert_ne!(seen[0], seen[1]);
    }

    #[tokio::test]
    async fn another_failure_is_not_tried_again() {
        let attempts = std::sync::atomic::AtomicUsize::new(0);
        let outcome: Result<()> = on_free_port(async |_| {
            attempts.fetch_add(1, Ordering::Relaxed);
            anyhow::bail!("no such program")
        })
        .await;
        assert_eq!(outcome.unwrap_err().to_string(), "no such program");
        assert_eq!(attempts.into_inner(), 1);
    }

    #[test]
    fn a_port_that_is_listened_on_is_not_handed_out() {
        // Not every bind succeeds: a child that another test starts holds our sockets between fork and exec.
        let held: Vec<_> = (0..50).filter_map(|_| TcpListener::bind(loopback(free_port())).ok()).collect();
        assert!(held.len() > 25, "most ports that are called free are free");
        for _ in 0..50 {
            let port = free_port();
            assert!(held.iter().all(|held| held.local_addr().unwrap().port() != port));
        }
    }
}
