//! Connects to the cluster and learns who it is.

use http::{Request, StatusCode};
use kube::{
    Client,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use kubetide_sink::Cluster as Identity;
use serde::Deserialize;

use super::api::{self, ApiError};
use crate::config;

/// Why there is no cluster to work with.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The configuration must change.
    #[error("{0}")]
    Config(String),
    /// The API server does not answer: try again later.
    #[error("{0}")]
    Unreachable(String),
    /// The API server answers, but not to us.
    #[error("{0}")]
    Refused(String),
}

/// The cluster that is captured.
#[derive(Clone)]
pub struct Cluster {
    /// The client; one connection for each watch.
    pub client: Client,
    /// Name and uid.
    pub identity: Identity,
}

impl Cluster {
    /// Connects with the kubeconfig, or in a pod with its service account, and reads the cluster's uid.
    pub async fn connect(config: &config::Cluster) -> Result<Self, ConnectError> {
        let (mut kube_config, context) = kube_config(config).await?;
        // Ours to decide: hidden retries would stretch every failure and hide its Retry-After.
        kube_config.default_retry = false;
        // Watches are quiet for minutes; stalls are found by the bookmarks that do not come.
        kube_config.read_timeout = None;
        let url = kube_config.cluster_url.clone();
        let name = config.name.clone().or(context).ok_or_else(|| {
            ConnectError::Config("cluster.name: missing; in a pod there is no context to take it from".into())
        })?;
        let client = Client::try_from(kube_config).map_err(|error| {
            ConnectError::Config(format!("cannot use the credentials for {url}: {}", chain(&error)))
        })?;
        let uid = match &config.uid {
            Some(uid) => uid.clone(),
            None => read_uid(&client, &url.to_string()).await?,
        };
        Ok(Self { client, identity: Identity { name, uid } })
    }
}

/// The client's configuration, and the name of the context it comes from.
async fn kube_config(config: &config::Cluster) -> Result<(kube::Config, Option<String>), ConnectError> {
    let default_file = || std::env::home_dir().map(|home| home.join(".kube/config")).filter(|file| file.exists());
    let named = config.kubeconfig.is_some() || config.context.is_some() || std::env::var_os("KUBECONFIG").is_some();
    if !named && default_file().is_none() {
        let in_cluster = kube::Config::incluster().map_err(|error| {
            let error = chain(&error);
            ConnectError::Config(format!(
                "no cluster: there is no kubeconfig (cluster.kubeconfig, $KUBECONFIG, ~/.kube/config), and this is not a pod: {error}"
            ))
        })?;
        return Ok((in_cluster, None));
    }
    let unreadable = |key: &str, error: KubeconfigError| {
        ConnectError::Config(match error {
            KubeconfigError::ReadConfig(error, path) => format!("{key}: cannot read {}: {error}", path.display()),
            // The parser's own message quotes the file, and with it credentials.
            KubeconfigError::Parse(error) => match error.location() {
                Some(at) => format!("{key}: not a kubeconfig: line {}, column {}", at.line(), at.column()),
                None => format!("{key}: not a kubeconfig"),
            },
            error => format!("{key}: cannot use it: {}", chain(&error)),
        })
    };
    let kubeconfig = match &config.kubeconfig {
        Some(path) => Kubeconfig::read_from(path)
            .map_err(|error| unreadable(&format!("cluster.kubeconfig ({})", path.display()), error))?,
        None => Kubeconfig::read().map_err(|error| unreadable("$KUBECONFIG or ~/.kube/config", error))?,
    };
    let context = config.context.clone().or_else(|| kubeconfig.current_context.clone());
    let known: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    if let Some(context) = &context
        && !known.contains(&context.as_str())
    {
        let known = known.join(", ");
        return Err(ConnectError::Config(format!("cluster.context: found {context}, the kubeconfig has: {known}")));
    }
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let kube_config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(|error| ConnectError::Config(format!("cannot use the kubeconfig: {}", chain(&error))))?;
    Ok((kube_config, context))
}

#[derive(Deserialize)]
struct Namespace {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
}

/// The uid of kube-system, which stands for the cluster's.
async fn read_uid(client: &Client, url: &str) -> Result<String, ConnectError> {
    match get::<Namespace>(client, "/api/v1/namespaces/kube-system").await {
        Ok(namespace) => Ok(namespace.metadata.uid),
        Err(error) => {
            let hint = match error.status() {
                None => "; check that the API server runs, and that cluster.context is the one you mean",
                Some(StatusCode::UNAUTHORIZED) => "; check the credentials in the kubeconfig",
                Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => {
                    "; give cluster.uid, or the right to get the namespace kube-system"
                }
                Some(_) => "",
            };
            Err(refused(&error, &format!("cannot read the cluster's uid from {url}: {error}{hint}")))
        }
    }
}

/// Which of the two it is: nobody there, or somebody who says no.
pub fn refused(error: &ApiError, message: &str) -> ConnectError {
    if error.is_refusal() { ConnectError::Refused(message.into()) } else { ConnectError::Unreachable(message.into()) }
}

/// Reads one JSON document. For the start, when nothing runs yet: it does not wait for long.
pub async fn get<T: serde::de::DeserializeOwned>(client: &Client, path: &str) -> Result<T, ApiError> {
    let request = Request::get(path).body(Body::empty()).map_err(|error| ApiError::failed(error.to_string()))?;
    let read = async {
        let body = api::body_of(api::send(client, request).await?).await?;
        serde_json::from_slice(&body)
            .map_err(|error| ApiError::failed(format!("{path}: not what was expected: {error}")))
    };
    let limit = std::time::Duration::from_secs(30);
    tokio::time::timeout(limit, read)
        .await
        .unwrap_or_else(|_| Err(ApiError::failed(format!("{path}: no answer in 30 s"))))
}

/// An error with its causes, in one line. A cause that its error already tells is not repeated.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
