//! The sink: one POST for each batch.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use jiff::Timestamp;
use kubetide_sink::{Batch, ConfigProblem, Decision, Format, Id, Sink, SinkError, Terms};
use reqwest::{
    Client, Response, Url,
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue},
};

use crate::{
    WebhookConfig, answer,
    client::client,
    credentials::{Credentials, TlsMaterial},
    message::{self, Body},
};

/// So much of an answer is read, that its connection can be used again. Nothing is made of it.
const ANSWER_READ: usize = 16 * 1024;

/// How long that may take. The status was there already.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// A webhook.
pub struct WebhookSink {
    config: Arc<WebhookConfig>,
    format: Format,
    connection: Connection,
}

/// A client, and what it was made of.
#[derive(Clone)]
struct Connection {
    client: Client,
    tls: Arc<TlsMaterial>,
}

/// What is sent.
struct Request {
    url: Url,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl WebhookSink {
    /// Reads what the configuration refers to; the receiver need not be there. A provider of TLS is installed by then.
    pub fn open(config: &WebhookConfig, terms: Terms) -> Result<Self, ConfigProblem> {
        config.check(terms.exactly_once)?;
        let tls = Credentials::read(config)?.tls;
        let connection = Connection { client: client(&tls, timeout(config))?, tls: Arc::new(tls) };
        Ok(Self { config: Arc::new(config.clone()), format: terms.format, connection })
    }

    /// Reads the credentials anew, and compresses and signs with them. Their files were there when the sink was opened: what is
    /// wrong with them now may be that they are being replaced.
    async fn prepare(&mut self, id: Id, json: Vec<u8>) -> Result<Request, SinkError> {
        let (config, format, connection) = (self.config.clone(), self.format, self.connection.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            let credentials = Credentials::read(&config)?;
            let connection = connection.with(credentials.tls, &config)?;
            let mut headers = credentials.headers;
            let (id, now) = (message::webhook_id(id), Timestamp::now().as_second());
            if let Some(signatures) = message::signatures(&credentials.keys, &id, now, &json) {
                headers.insert("webhook-signature", written(signatures)?);
            }
            headers.insert("webhook-id", written(id)?);
            headers.insert("webhook-timestamp", now.into());
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.array_type()));
            if let Some(encoding) = config.compression.encoding() {
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding));
            }
            let body = config.compression.compress(json);
            let body = body.map_err(|error| ConfigProblem::new("compression", error.to_string()))?;
            Ok::<_, ConfigProblem>((connection, Request { url: credentials.url, headers, body }))
        });
        let prepared = prepared.await.map_err(|panic| SinkError::fatal(format!("prepare a request: {panic}")))?;
        let (connection, request) =
            prepared.map_err(|problem| SinkError::retry(format!("prepare a request: {problem}")))?;
        self.connection = connection;
        Ok(request)
    }

    async fn post(&self, request: Request, values: usize) -> Result<(), SinkError> {
        let Request { url, headers, body } = request;
        let sent = self.connection.client.post(url.clone()).headers(headers).body(body).send().await;
        let response = sent.map_err(|error| answer::of_failure(&error, &url, timeout(&self.config)))?;
        let answer = answer::of_status(response.status(), response.headers(), &url, values, Timestamp::now());
        drain(response).await;
        answer
    }
}

#[async_trait]
impl Sink for WebhookSink {
    async fn deliver(&mut self, batch: &Batch, _cursor: Option<&Bytes>) -> Result<(), SinkError> {
        let Some(Body { json, first, values }) = Body::of(self.format, &batch.records) else { return Ok(()) };
        let request = self.prepare(batch.id, json).await?;
        self.post(request, values).await.map_err(|error| match error.decision {
            // About the first value that was sent: the format leaves out what is before it. Any other failure leaves the batch as
            // it is, and so the id of what may have been taken already.
            Decision::Poison | Decision::Oversize => error.behind(first),
            _ => error,
        })
    }
}

impl Connection {
    /// This one, or another if TLS is to be done with something else.
    fn with(self, tls: TlsMaterial, config: &WebhookConfig) -> Result<Self, ConfigProblem> {
        if tls == *self.tls {
            return Ok(self);
        }
        Ok(Self { client: client(&tls, timeout(config))?, tls: Arc::new(tls) })
    }
}

fn timeout(config: &WebhookConfig) -> Duration {
    Duration::from_secs(config.timeout_secs.get())
}

fn written(text: String) -> Result<HeaderValue, ConfigProblem> {
    HeaderValue::try_from(text).map_err(|_| ConfigProblem::new("secret", "gave a signature that is no header"))
}

async fn drain(mut response: Response) {
    let reading = async {
        let mut read = 0;
        while let Ok(Some(chunk)) = response.chunk().await {
            read += chunk.len();
            if read > ANSWER_READ {
                return;
            }
        }
    };
    // What is not read by then costs a connection, and nothing else.
    let _ = tokio::time::timeout(ANSWER_PATIENCE, reading).await;
}
