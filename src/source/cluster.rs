//! Connects to the cluster, learns who it is, and keeps the credentials fresh.

use std::{
    error::Error,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::StatusCode;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use kube::{
    Client,
    client::{AuthError, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use kubetide_sink::Cluster as Identity;
use serde::Deserialize;
use tokio::time::Instant;
use tower::BoxError;
use tracing::{debug, warn};

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

/// After a 401 a client is made anew at most this often…
const RENEWAL_REFUSED: Duration = Duration::from_secs(2);
/// …and while the API server cannot be reached: that is seldom the credentials' fault, and an exec plugin is not for free.
const RENEWAL_UNREACHABLE: Duration = Duration::from_secs(15);
/// A peer that is gone without a word is noticed after about a minute, also by the network in between.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The cluster that is captured.
#[derive(Clone)]
pub struct Cluster {
    /// Name and uid.
    pub identity: Identity,
    access: Arc<Access>,
}

struct Access {
    config: config::Cluster,
    /// Where the API server is, for messages.
    url: String,
    current: Mutex<Current>,
    /// Held by whoever makes the next client.
    renewing: tokio::sync::Mutex<()>,
    confirmed: tokio::sync::Mutex<Option<Instant>>,
}

struct Current {
    client: Client,
    made: Instant,
    /// Refused, or unable to connect: what it was made of may have changed. It is made anew when it is this old.
    doubted: Option<Duration>,
}

impl Cluster {
    /// Connects with the kubeconfig, or in a pod with its service account, and reads the cluster's uid.
    pub async fn connect(config: &config::Cluster) -> Result<Self, ConnectError> {
        let (kube_config, context) = kube_config(config).await?;
        let url = kube_config.cluster_url.to_string();
        let name = config.name.clone().or(context).ok_or_else(|| {
            ConnectError::Config("cluster.name: missing; in a pod there is no context to take it from".into())
        })?;
        let client = new_client(kube_config).await.map_err(|error| {
            ConnectError::Config(format!("cannot use the credentials for {url}: {}", chain(&error)))
        })?;
        let current = Mutex::new(Current { client, made: Instant::now(), doubted: None });
        let access = Access {
            config: config.clone(),
            url,
            current,
            renewing: tokio::sync::Mutex::default(),
            confirmed: tokio::sync::Mutex::default(),
        };
        let mut cluster = Self { identity: Identity { name, uid: String::new() }, access: Arc::new(access) };
        cluster.identity.uid = match &config.uid {
            Some(uid) => uid.clone(),
            None => cluster.read_uid().await.map_err(|error| cluster.explain(&error))?,
        };
        *cluster.access.confirmed.lock().await = Some(Instant::now());
        Ok(cluster)
    }

    /// The client to use now. If the last one was doubted, the credentials are read again.
    pub async fn client(&self) -> Client {
        if !self.current().is_outdated() {
            return self.current().client.clone();
        }
        let _one_at_a_time = self.access.renewing.lock().await;
        if self.current().is_outdated() {
            let made = self.renewed().await;
            let mut current = self.current();
            match made {
                Ok(client) => {
                    debug!("credentials were read again");
                    current.client = client;
                }
                // In the middle of being replaced, perhaps: the old ones go on meanwhile.
                Err(error) => warn!(%error, "cannot read the credentials again, using the old ones"),
            }
            (current.made, current.doubted) = (Instant::now(), None);
        }
        self.current().client.clone()
    }

    async fn renewed(&self) -> Result<Client, String> {
        let (config, _) = kube_config(&self.access.config).await.map_err(|error| error.to_string())?;
        new_client(config).await.map_err(|error| chain(&error))
    }

    /// The client was refused with 401: its credentials are read again.
    pub fn doubt_credentials(&self) {
        self.current().doubted = Some(RENEWAL_REFUSED);
    }

    /// The client could not connect: certificates or the address may have changed.
    pub fn doubt_address(&self) {
        self.current().doubted.get_or_insert(RENEWAL_UNREACHABLE);
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.access.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After the API server was lost sight of: that it is still the same cluster. One stream's answer is enough for all that
    /// lost it before. Where the uid is given by the configuration, it is taken at its word.
    pub async fn confirm(&self, lost: Instant) -> Result<(), ApiError> {
        if self.access.config.uid.is_some() {
            return Ok(());
        }
        let mut confirmed = self.access.confirmed.lock().await;
        if confirmed.is_some_and(|at| at > lost) {
            return Ok(());
        }
        // As of the question: who answers later may be another again.
        let asked = Instant::now();
        let found = match self.read_uid().await {
            Ok(uid) => uid,
            // The right to read it was taken away; that is no sign of another cluster.
            Err(error) if error.status() == Some(StatusCode::FORBIDDEN) => return Ok(()),
            Err(error) => return Err(error),
        };
        if found != self.identity.uid {
            let (url, known) = (&self.access.url, &self.identity.uid);
            return Err(ApiError::OtherCluster(format!(
                "the API server at {url} is another cluster now: its uid is {found}, this data directory belongs to {known}"
            )));
        }
        *confirmed = Some(asked);
        Ok(())
    }

    /// The uid of kube-system, which stands for the cluster's.
    async fn read_uid(&self) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        struct Namespace {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        struct Metadata {
            uid: String,
        }
        Ok(api::get::<Namespace>(self, "/api/v1/namespaces/kube-system", api::JSON).await?.metadata.uid)
    }

    fn explain(&self, error: &ApiError) -> ConnectError {
        let hint = match error.status() {
            None => "; check that the API server runs, and that cluster.context is the one you mean",
            Some(StatusCode::UNAUTHORIZED) => "; check the credentials in the kubeconfig",
            Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) => {
                "; give cluster.uid, or the right to get the namespace kube-system"
            }
            Some(_) => "",
        };
        refused(error, &format!("cannot read the cluster's uid from {}: {error}{hint}", self.access.url))
    }
}

impl Current {
    fn is_outdated(&self) -> bool {
        self.doubted.is_some_and(|age| self.made.elapsed() >= age)
    }
}

/// Makes a client. An exec plugin may run for a while.
async fn new_client(mut config: kube::Config) -> Result<Client, kube::Error> {
    // Ours to decide: hidden retries would stretch every failure and hide its Retry-After.
    config.default_retry = false;
    // Watches are quiet for minutes; stalls are found by the bookmarks that do not come.
    config.read_timeout = None;
    let make = move || -> Result<Client, kube::Error> {
        if config.proxy_url.is_some() {
            return Client::try_from(config);
        }
        // kube's own stack, but with keepalive: a watch is quiet for long, and what is in between forgets quiet connections.
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(config.connect_timeout);
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE / 3));
        http.set_keepalive_retries(Some(3));
        let https = config.rustls_https_connector_with_connector(http)?;
        let hyper = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(https);
        let service = tower::ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(config.auth_layer()?)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service(hyper);
        Ok(Client::new(service, config.default_namespace))
    };
    crate::blocking::blocking(make).await
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

/// Which of the two it is: nobody there, or somebody who says no.
pub fn refused(error: &ApiError, message: &str) -> ConnectError {
    if error.is_refusal() { ConnectError::Refused(message.into()) } else { ConnectError::Unreachable(message.into()) }
}

/// An error with its causes, in one line. A cause that its error already tells is not repeated.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let causes = || std::iter::successors(Some(error), |error| (*error).source());
    if let Some(text) = causes().find_map(of_plugin) {
        return text;
    }
    let mut text = error.to_string();
    for cause in causes().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// What is wrong with an exec plugin, if it is that. Its error quotes what the plugin was given and has printed, and these are
/// credentials; only what it says on standard error is meant for people.
fn of_plugin(error: &(dyn Error + 'static)) -> Option<String> {
    match error.downcast_ref::<AuthError>()? {
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said = api::unquoted(said.trim());
            let colon = if said.is_empty() { "" } else { ": " };
            Some(format!("the kubeconfig's exec plugin failed with {}{colon}{said}", out.status))
        }
        AuthError::AuthExecParse(_) => Some("the kubeconfig's exec plugin printed no credential".into()),
        _ => None,
    }
}
