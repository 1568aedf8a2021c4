//! The socket under a connection. A fault may ask it to end with a TCP reset: once all that was written is with the
//! kernel, the connection fails here and the socket closes without a FIN.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Tells the wire of one connection to reset it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reset(Arc<AtomicBool>);

impl Reset {
    /// Takes effect at the next flush.
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_asked(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

pub(crate) struct Wire {
    stream: TcpStream,
    reset: Reset,
}

impl Wire {
    pub(crate) fn new(stream: TcpStream, reset: Reset) -> Self {
        Self { stream, reset }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.reset.is_asked() {
            // Closing with a linger of zero sends RST. A socket that is dead already cannot be set, and need not be.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes the wire only after it has written all it had.
        if self.reset.is_asked() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.is_asked() {
            // A FIN first would let the client see a clean end.
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
