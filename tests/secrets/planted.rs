//! A namespace of a real cluster with canaries in every place where a secret is kept.

use http::{Method, Request};
use kube::Client;
use kubetide_test_env::Apiserver;
use serde_json::{Value, json};

use crate::secrets::{Canaries, base64, helm_release};

/// Stream and path of what is captured.
pub const STREAMS: [(&str, &str); 4] = [
    ("core/secrets", "api/v1/namespaces/NAMESPACE/secrets"),
    ("core/configmaps", "api/v1/namespaces/NAMESPACE/configmaps"),
    ("apps/deployments", "apis/apps/v1/namespaces/NAMESPACE/deployments"),
    ("core/pods", "api/v1/namespaces/NAMESPACE/pods"),
];
/// Where kubectl and kapp keep what was applied.
const COPIES: [&str; 2] = ["kubectl.kubernetes.io/last-applied-configuration", "kapp.k14s.io/original"];

pub struct Space {
    client: Client,
    pub namespace: String,
    pub canaries: Canaries,
    /// Not a secret: a label of every object, to be found wherever the canaries must not be.
    pub control: String,
}

impl Space {
    pub async fn new(server: &Apiserver) -> Self {
        let namespace = server.namespace("secrets").await.unwrap();
        let control = format!("{:032x}", rand::random::<u128>());
        Self { client: server.client().await.unwrap(), namespace, canaries: Canaries::default(), control }
    }

    /// A server that was restarted has closed its connections.
    pub async fn reconnect(&mut self, server: &Apiserver) {
        self.client = server.client().await.unwrap();
    }

    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> String {
        let mut request = Request::builder().method(method.clone()).uri(format!("/{path}"));
        if body.is_some() {
            let is_patch = method == Method::PATCH;
            let kind = if is_patch { "application/merge-patch+json" } else { "application/json" };
            request = request.header("content-type", kind);
        }
        let body = body.map(|body| serde_json::to_vec(body).unwrap()).unwrap_or_default();
        self.client.request_text(request.body(body).unwrap()).await.unwrap()
    }

    fn path(&self, stream: &str) -> String {
        let (_, path) = STREAMS.iter().find(|(known, _)| *known == stream).unwrap();
        path.replace("NAMESPACE", &self.namespace)
    }

    /// What the API server itself lists.
    pub async fn listed(&self, stream: &str) -> String {
        self.ask(Method::GET, &self.path(stream), None).await
    }

    pub async fn create(&self, stream: &str, object: &Value) {
        self.ask(Method::POST, &self.path(stream), Some(object)).await;
    }

    /// Merges this into an object.
    pub async fn patch(&self, stream: &str, name: &str, patch: &Value) {
        self.ask(Method::PATCH, &format!("{}/{name}", self.path(stream)), Some(patch)).await;
    }

    pub async fn delete(&self, stream: &str, name: &str) {
        let now = json!({"gracePeriodSeconds": 0});
        self.ask(Method::DELETE, &format!("{}/{name}", self.path(stream)), Some(&now)).await;
    }

    /// Objects of all kinds with new canaries.
    pub async fn plant(&mut self, wave: &str) {
        for (stream, object) in self.planted(wave) {
            self.create(stream, &object).await;
        }
    }

    /// The same objects with other canaries.
    pub async fn rotate(&mut self, wave: &str) {
        for (stream, object) in self.planted(wave) {
            let name = object["metadata"]["name"].as_str().unwrap();
            // The environment of a pod cannot change: another pod takes its name.
            if stream == "core/pods" {
                self.delete(stream, name).await;
                self.create(stream, &object).await;
            } else {
                self.ask(Method::PUT, &format!("{}/{name}", self.path(stream)), Some(&object)).await;
            }
        }
    }

    pub async fn uproot(&self, wave: &str) {
        for (stream, name) in names(wave) {
            self.delete(stream, &name).await;
        }
    }

    fn planted(&mut self, wave: &str) -> Vec<(&'static str, Value)> {
        let control = self.control.clone();
        let canaries = &mut self.canaries;
        // Another one each time: what is captured as metadata alone changes too.
        let round = canaries.count().to_string();
        let release = format!("sh.helm.release.v1.{wave}.v1");
        let metadata = |name: &str| json!({"name": name, "labels": {"control": control, "round": round}});
        let secret = |name: String| json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata(&name)});
        let mut objects = Vec::new();

        let (mut data, mut text) = (secret(format!("{wave}-data")), secret(format!("{wave}-text")));
        for key in ["a", "b", "c", "d", "e"] {
            data["data"][key] = base64(&canaries.next()).into();
            text["stringData"][key] = canaries.next().into();
        }
        objects.extend([("core/secrets", data), ("core/secrets", text)]);

        let mut applied = secret(format!("{wave}-applied"));
        applied["data"]["a"] = base64(&canaries.next()).into();
        applied["stringData"]["b"] = canaries.next().into();
        objects.push(("core/secrets", with_copies(applied)));

        let manifest = |secret: String| {
            let template = json!({"kind": "Secret", "stringData": {"password": secret}}).to_string();
            helm_release(&json!({"name": wave, "manifest": template, "config": {"password": secret}}).to_string())
        };
        let mut helm = secret(release.clone());
        helm["type"] = "helm.sh/release.v1".into();
        helm["data"]["release"] = base64(&manifest(canaries.next())).into();
        objects.push(("core/secrets", helm));
        let helm = json!({"metadata": metadata(&release), "data": {"release": manifest(canaries.next())}});
        objects.push(("core/configmaps", helm));

        let mut pod = || {
            let env = [canaries.next(), canaries.next()].map(|value| json!({"name": "PASSWORD", "value": value}));
            let [first, second] = env;
            let container = |name: &str, env: Value| json!({"name": name, "image": "example.com/web:1", "env": [env]});
            json!({"containers": [container("first", first), container("second", second)]})
        };
        let web = json!({"app": wave});
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(&format!("{wave}-web")),
            "spec": {"selector": {"matchLabels": web}, "template": {"metadata": {"labels": web}, "spec": pod()}},
        });
        objects.push(("apps/deployments", with_copies(deployment)));
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata(&format!("{wave}-pod")), "spec": pod()});
        objects.push(("core/pods", with_copies(pod)));
        objects
    }
}

/// The streams and names of what a wave plants.
pub fn names(wave: &str) -> [(&'static str, String); 7] {
    let secret = |name: &str| ("core/secrets", format!("{wave}-{name}"));
    let release = format!("sh.helm.release.v1.{wave}.v1");
    [
        secret("data"),
        secret("text"),
        secret("applied"),
        ("core/secrets", release.clone()),
        ("core/configmaps", release),
        ("apps/deployments", format!("{wave}-web")),
        ("core/pods", format!("{wave}-pod")),
    ]
}

/// The object with itself as text in its annotations.
fn with_copies(mut object: Value) -> Value {
    let copy = format!("{object}\n");
    for key in COPIES {
        object["metadata"]["annotations"][key] = copy.clone().into();
    }
    object
}
