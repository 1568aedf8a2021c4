//! A real kube-apiserver with its etcd: RBAC on, no nodes, and no controllers unless a test starts them, so nothing changes
//! but what a test changes.
//! It can be stopped and started on the same port, and made to forget its history, which is how a watch from an older
//! version comes to expire with 410. What else it can be made to do is in the files beside this one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::OnceCell;

use crate::certificate::Authority;
use crate::etcd::Etcd;
use crate::locate::locate;
use crate::poll::until;
use crate::port::{loopback, on_free_port, on_same_port};
use crate::process::Process;
use crate::scratch::Scratch;
use crate::{kubeconfig, service_account, unique_name, user};

/// The server is there in about 5 seconds on an idle machine; a busy one gets its time.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// A kube-apiserver with its own etcd. Holds nothing of a tokio runtime: tests with a runtime each can share it.
pub struct Apiserver {
    port: u16,
    flags: Vec<String>,
    kubeconfig: PathBuf,
    pub(crate) users_taken: AtomicUsize,
    pub(crate) client_authority: Authority,
    // In the order of their end: the API server, its store, their directory.
    process: Mutex<Option<Process>>,
    pub(crate) etcd: Etcd,
    pub(crate) scratch: Scratch,
}

/// Options of an [`Apiserver`].
#[derive(Default)]
pub struct Builder {
    flags: Vec<String>,
}

impl Builder {
    /// Feature gates as the flag takes them: `WatchList=false`.
    pub fn feature_gates(self, gates: &str) -> Builder {
        self.flag(format!("--feature-gates={gates}"))
    }

    /// Any flag of kube-apiserver: `--watch-cache=false`.
    pub fn flag(mut self, flag: impl Into<String>) -> Builder {
        self.flags.push(flag.into());
        self
    }

    /// Starts etcd and the API server, and waits until both are ready.
    pub async fn start(self) -> Result<Apiserver> {
        let scratch = Scratch::new("apiserver")?;
        let etcd = Etcd::start(&scratch).await?;
        scratch.write("service-account.key", service_account::key())?;
        scratch.write("tokens.csv", user::tokens())?;
        let client_authority = Authority::new()?;
        scratch.write("client-ca.crt", client_authority.pem())?;
        let flags = self.flags;
        let (port, process) =
            on_free_port(async |port| Ok((port, launch(port, &flags, &etcd, &scratch).await?))).await?;
        let kubeconfig = kubeconfig::with_token(&scratch, port, user::ADMIN_TOKEN);
        Ok(Apiserver {
            port,
            flags,
            kubeconfig,
            users_taken: AtomicUsize::new(0),
            client_authority,
            process: Mutex::new(Some(process)),
            etcd,
            scratch,
        })
    }
}

impl Apiserver {
    /// A server of its own, for a test that stops, restarts or compacts it.
    pub async fn start() -> Result<Apiserver> {
        Apiserver::builder().start().await
    }

    /// A server of its own with other options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// The one of this test binary. It lives until the process ends; take a [`namespace`](Self::namespace) of it.
    pub async fn shared() -> &'static Apiserver {
        static SHARED: OnceCell<Apiserver> = OnceCell::const_new();
        let start = async || {
            let apiserver = Apiserver::start().await?;
            apiserver.scratch.keep_logs_on_any_panic();
            anyhow::Ok(apiserver)
        };
        match SHARED.get_or_try_init(start).await {
            Ok(apiserver) => apiserver,
            Err(error) => panic!("no kube-apiserver: {error:#}"),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// The port it listens on, the same after each restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// A kubeconfig with all rights. The file goes with the server.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A new client with all rights, for the current runtime, without hidden retries.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.kubeconfig).await
    }

    /// Creates a namespace for one test and returns its name, which begins with `prefix`.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let name = unique_name(prefix);
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::<Namespace>::all(self.client().await?)
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("creating namespace {name}"))?;
        Ok(name)
    }

    /// Kills the API server with SIGKILL and waits for its end. etcd stays.
    pub fn stop(&self) {
        drop(self.process.lock().unwrap().take());
    }

    /// Starts the stopped API server on the same port with the same data, and waits until it is ready.
    pub async fn start_again(&self) -> Result<()> {
        ensure!(self.process.lock().unwrap().is_none(), "the API server runs already");
        let process = on_same_port(async || launch(self.port, &self.flags, &self.etcd, &self.scratch).await).await?;
        *self.process.lock().unwrap() = Some(process);
        Ok(())
    }

    /// [`stop`](Self::stop) and [`start_again`](Self::start_again).
    ///
    /// The server fills its memory anew from etcd's present: a watch from a version before the last write expires, save
    /// those of `events`, which are served from etcd's history.
    pub async fn restart(&self) -> Result<()> {
        self.stop();
        self.start_again().await
    }

    /// Makes etcd forget its history up to now. The API server still answers watches of most resources from its memory;
    /// those of `events`, which it does not keep there, expire.
    pub async fn compact(&self) -> Result<()> {
        self.etcd.compact().await
    }

    /// Compacts and restarts. From then on a watch of anything, from any version seen before, expires: HTTP 200, then an
    /// ERROR event with code 410.
    pub async fn forget_history(&self) -> Result<()> {
        self.stop();
        self.compact().await?;
        self.start_again().await
    }

    /// Waits until the running API server is ready again after something was done to its store.
    pub(crate) async fn until_ready(&self) -> Result<()> {
        until("the API server is ready", async || Ok(ready(&self.kubeconfig).await.is_ok())).await
    }
}

async fn launch(port: u16, flags: &[String], etcd: &Etcd, scratch: &Scratch) -> Result<Process> {
    let data = scratch.data();
    let file = |name: &str| data.join(name).display().to_string();
    let key = file("service-account.key");
    let mut command = vec![
        locate("kube-apiserver")?.display().to_string(),
        format!("--etcd-servers={}", etcd.url()),
        // It makes its certificate there once, and finds it again after a restart.
        format!("--cert-dir={}", file("certificates")),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".into(),
        "--advertise-address=127.0.0.1".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={key}"),
        format!("--service-account-signing-key-file={key}"),
        "--authorization-mode=RBAC".into(),
        format!("--token-auth-file={}", file("tokens.csv")),
        format!("--client-ca-file={}", file("client-ca.crt")),
        // No controller makes service accounts here, and pods would wait for theirs.
        "--disable-admission-plugins=ServiceAccount".into(),
        "--service-cluster-ip-range=10.0.0.0/24".into(),
        "--endpoint-reconciler-type=none".into(),
    ];
    command.extend_from_slice(flags);
    let mut process = Process::start("kube-apiserver", scratch.new_log("kube-apiserver"), command)?;
    let kubeconfig = kubeconfig::with_token(scratch, port, user::ADMIN_TOKEN);
    process.until_ready(READY_WITHIN, async || ready(&kubeconfig).await).await?;
    Ok(process)
}

/// `/readyz` speaks for the hooks after the start, the RBAC bootstrap among them, but not for the first namespaces and the
/// ConfigMap with the client authority: without them a test could see them come.
async fn ready(kubeconfig: &Path) -> Result<()> {
    let client = client(kubeconfig).await?;
    let answer = client.request_text(http::Request::get("/readyz").body(Vec::new())?).await?;
    ensure!(answer == "ok", "/readyz says {answer}");
    let namespaces = Api::<Namespace>::all(client.clone());
    for name in ["default", "kube-system"] {
        namespaces.get(name).await?;
    }
    Api::<ConfigMap>::namespaced(client, "kube-system").get("extension-apiserver-authentication").await?;
    Ok(())
}

pub(crate) async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    // The first to come installs it; another test may have.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config =
        kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    config.proxy_url = None;
    Ok(kube::Client::try_from(config)?)
}
