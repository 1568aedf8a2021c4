//! One connection to a receiver of webhooks.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;

use crate::webhook_answer::{Answer, End, Posted, ResponseBody, Script};

/// Serves until the connection ends. Its failures are the client's to see.
pub(crate) async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, script: Arc<Script>) {
    let _ = stream.set_nodelay(true);
    let Ok((stream, handle)) = with_handle(stream) else { return };
    let reset = Arc::new(AtomicBool::new(false));
    match tls {
        None => exchange(stream, None, script, reset.clone()).await,
        Some(acceptor) => {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let shown = stream.get_ref().1.peer_certificates();
            let shown = shown.and_then(|chain| chain.first()).map(|certificate| certificate.to_vec());
            exchange(stream, shown, script, reset.clone()).await;
        }
    }
    if reset.load(Ordering::SeqCst) {
        // hyper has closed its end by now; this is the last one, and with it goes an RST.
        let _ = handle.set_zero_linger();
    }
}

/// The same connection twice: hyper takes one for itself.
fn with_handle(stream: TcpStream) -> std::io::Result<(TcpStream, TcpStream)> {
    let stream = stream.into_std()?;
    let handle = stream.try_clone()?;
    Ok((TcpStream::from_std(stream)?, TcpStream::from_std(handle)?))
}

async fn exchange<S>(stream: S, shown: Option<Vec<u8>>, script: Arc<Script>, reset: Arc<AtomicBool>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    TokioIo<S>: Read + Write,
{
    let service = service_fn(|request| {
        let (script, shown, reset) = (script.clone(), shown.clone(), reset.clone());
        async move { answer(request, shown, &script, &reset).await }
    });
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    shown: Option<Vec<u8>>,
    script: &Script,
    reset: &AtomicBool,
) -> Result<Response<Answered>, Dropped> {
    let (head, body) = request.into_parts();
    let mut posted = Posted {
        method: head.method.to_string(),
        uri: head.uri.to_string(),
        headers: head.headers,
        body: Bytes::new(),
        client_certificate: shown,
        committed: false,
    };
    let answer = match script.answer_unread(&posted) {
        Some(answer) => answer,
        None => {
            posted.body = body.collect().await.map_err(|_| Dropped)?.to_bytes();
            script.answer_read(posted)
        }
    };
    let Answer { pause, end, .. } = answer;
    if !pause.is_zero() {
        // A timer takes a millisecond to say that no time has passed.
        tokio::time::sleep(pause).await;
    }
    match end {
        End::Hang => std::future::pending().await,
        End::Reset => {
            reset.store(true, Ordering::SeqCst);
            Err(Dropped)
        }
        End::Status { status, headers, body, .. } => {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(name, value);
            }
            response.body(Answered::new(body)).map_err(|error| panic!("{error}"))
        }
    }
}

/// The request is not answered: hyper closes the connection.
#[derive(Debug)]
struct Dropped;

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("dropped on purpose")
    }
}

impl std::error::Error for Dropped {}

/// The body of an answer.
struct Answered {
    bytes: Bytes,
    hangs: bool,
    wait: Option<Pin<Box<Sleep>>>,
}

impl Answered {
    fn new(body: ResponseBody) -> Answered {
        let ResponseBody { bytes, late, hangs } = body;
        let wait = (!late.is_zero()).then(|| Box::pin(tokio::time::sleep(late)));
        Answered { bytes, hangs, wait }
    }
}

impl Body for Answered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        match std::mem::take(&mut self.bytes) {
            bytes if !bytes.is_empty() => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            _ if !self.hangs => Poll::Ready(None),
            // Nobody wakes this up: it goes with its connection.
            _ => Poll::Pending,
        }
    }

    fn size_hint(&self) -> SizeHint {
        if self.hangs { SizeHint::default() } else { SizeHint::with_exact(self.bytes.len() as u64) }
    }
}
