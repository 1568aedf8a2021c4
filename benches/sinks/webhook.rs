//! `type: webhook`, beside a loop of reqwest that posts the same bodies one after the other. Both post to one receiver: first one
//! that reads and forgets, which costs next to nothing; then one that does what its answer says, and has the body durable before it.

use std::{
    convert::Infallible,
    fs::File,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kubetide_sink::{Format, Sink};
use kubetide_sink_webhook::{WebhookConfig, WebhookSink};
use reqwest::{Client, header::CONTENT_TYPE};
use serde_json::json;
use tokio::net::TcpListener;

use crate::{
    delivery::{deliver, terms},
    full_log::FullLog,
    rounds::{Lap, ROUNDS, Side, compare},
    usual_limits,
};

/// The percentage of reqwest's own loop that the sink is to reach.
const TARGET: f64 = 70.0;

#[derive(Clone)]
struct Part {
    records: usize,
    body: Bytes,
}

pub(crate) async fn measure(log: &FullLog) {
    let batches = log.batches(usual_limits()).await.into_iter();
    let parts: Vec<Part> = batches
        .map(|batch| {
            let mut body = Vec::new();
            for (index, record) in batch.records.iter().enumerate() {
                body.push(if index == 0 { b'[' } else { b',' });
                Format::Native.write(record, &mut body);
            }
            body.push(b']');
            Part { records: batch.records.len(), body: body.into() }
        })
        .collect();
    for (what, name, kept) in [
        ("a receiver that forgets", "forgets", None),
        ("a receiver that writes and syncs before it answers", "syncs", Some(tempfile::tempfile().unwrap())),
    ] {
        let receiver = Receiver::start(kept);
        let (mut ours, mut other) = (Side::new("kubetide"), Side::new("reqwest"));
        for round in 0..ROUNDS {
            let terms = terms(&format!("webhook-{name}-{round}"), false);
            ours.add(&deliver(log, open(&receiver), &terms, usual_limits()).await);
            let by_ours = receiver.taken();
            other.add(&tokio::spawn(post(receiver.url(), parts.clone())).await.unwrap());
            assert_eq!(receiver.taken(), by_ours, "both sides have sent the same");
        }
        let title = format!("webhook: {what}, {} requests of up to 500 records or 1 MiB", parts.len());
        compare(&title, &ours, &other, log.bytes_per_record, TARGET);
    }
}

pub(crate) fn open(receiver: &Receiver) -> Box<dyn Sink> {
    let config: WebhookConfig = serde_json::from_value(json!({"url": receiver.url()})).unwrap();
    Box::new(WebhookSink::open(&config, terms("webhook", false)).unwrap())
}

async fn post(url: String, parts: Vec<Part>) -> Lap {
    let client = Client::builder().http1_only().pool_max_idle_per_host(1).build().unwrap();
    let (mut records, mut begun) = (0, None);
    for (index, part) in parts.into_iter().enumerate() {
        let request = client.post(&url).header(CONTENT_TYPE, "application/json");
        let request = request.header("webhook-id", format!("msg_{index:032x}")).header("webhook-timestamp", 1);
        let response = request.body(part.body).send().await.unwrap();
        assert!(response.status().is_success());
        response.bytes().await.unwrap();
        match begun {
            None => begun = Some(Instant::now()),
            Some(_) => records += part.records,
        }
    }
    Lap { records, took: begun.unwrap().elapsed(), in_sink: None }
}

/// Reads requests, counts their bytes and says 204, on a thread of its own. It ends with the process.
pub(crate) struct Receiver {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl Receiver {
    /// Keeps the bodies in this file, durably.
    pub(crate) fn start(kept: Option<File>) -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, bytes) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
        let counted = bytes.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { serve(TcpListener::from_std(listener).unwrap(), &counted, kept.as_ref()).await });
        });
        Self { address, bytes }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/changes", self.address)
    }

    /// How many bytes came in since this was asked last.
    fn taken(&self) -> u64 {
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

/// One connection after the other: each side has one.
async fn serve(listener: TcpListener, bytes: &AtomicU64, kept: Option<&File>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let answer = service_fn(|request| read(request, bytes, kept));
        // How it ends is the client's to say.
        let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
    }
}

async fn read(
    request: Request<Incoming>,
    bytes: &AtomicU64,
    kept: Option<&File>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.unwrap().into_data() else { continue };
        bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        if let Some(mut file) = kept {
            file.write_all(&data).unwrap();
        }
    }
    if let Some(file) = kept {
        file.sync_data().unwrap();
    }
    let mut response = Response::new(Empty::new());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
