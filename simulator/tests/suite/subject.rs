//! A server under test: raw requests by `kube::Client`, so that both servers are spoken to in the same way.

use std::any::Any;
use std::time::Duration;

use kube::client::Body;
use serde_json::{Value, json};

/// Far longer than anything here takes: it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// What makes a watch a streaming list.
pub const STREAMING: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// Accepts aggregated discovery.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

pub struct Subject {
    pub client: kube::Client,
    /// A namespace that belongs to the test alone.
    pub namespace: String,
    /// What must live as long as the test.
    _server: Box<dyn Any + Send + Sync>,
}

/// An open watch.
pub struct Watch {
    body: Body,
    read: Vec<u8>,
}

impl Subject {
    /// `server` lives as long as the subject.
    pub fn new(client: kube::Client, namespace: &str, server: impl Any + Send + Sync) -> Self {
        Self { client, namespace: namespace.to_owned(), _server: Box::new(server) }
    }

    /// The path of a collection in the test's namespace: `configmaps`, `apps/v1/deployments`.
    pub fn path(&self, resource: &str) -> String {
        let (root, plural) = match resource.rsplit_once('/') {
            Some((group_version, plural)) => (format!("/apis/{group_version}"), plural),
            None => ("/api/v1".to_owned(), resource),
        };
        format!("{root}/namespaces/{}/{plural}", self.namespace)
    }

    pub async fn request(&self, method: &str, path: &str, accept: &str, body: Option<Value>) -> (u16, Vec<u8>) {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("Accept", accept)
            .header("Content-Type", if method == "PATCH" { "application/merge-patch+json" } else { "application/json" })
            .body(Body::from(body.map_or_else(Vec::new, |body| body.to_string().into_bytes())))
            .unwrap();
        let exchange = async {
            let response = self.client.send(request).await.unwrap();
            (response.status().as_u16(), response.into_body().collect_bytes().await.unwrap().to_vec())
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or_else(|_| panic!("{method} {path} hangs"))
    }

    pub async fn json(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let (code, bytes) = self.request(method, path, "application/json", body).await;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::String(text)))
    }

    /// A GET that must succeed.
    pub async fn get(&self, path: &str) -> Value {
        self.expect(200, "GET", path, None).await
    }

    pub async fn expect(&self, code: u16, method: &str, path: &str, body: Option<Value>) -> Value {
        let (found, value) = self.json(method, path, body).await;
        assert_eq!(found, code, "{method} {path}: {value}");
        value
    }

    /// Creates an object; a Status must say why not.
    pub async fn create(&self, resource: &str, object: Value) -> Value {
        self.expect(201, "POST", &self.path(resource), Some(object)).await
    }

    pub async fn config_map(&self, name: &str) -> Value {
        self.create("configmaps", config_map(name, "1")).await
    }

    /// Replaces a ConfigMap's data and label without a condition.
    pub async fn edit(&self, name: &str, turn: &str) -> Value {
        let path = format!("{}/{name}", self.path("configmaps"));
        self.expect(200, "PUT", &path, Some(config_map(name, turn))).await
    }

    pub async fn delete(&self, resource: &str, name: &str) -> Value {
        self.expect(200, "DELETE", &format!("{}/{name}", self.path(resource)), None).await
    }

    /// The collection's version now.
    pub async fn version(&self, resource: &str) -> String {
        let list = self.get(&format!("{}?limit=1", self.path(resource))).await;
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    pub async fn watch(&self, resource: &str, query: &str) -> Watch {
        self.watch_as(resource, query, "application/json").await
    }

    pub async fn watch_as(&self, resource: &str, query: &str, accept: &str) -> Watch {
        self.watch_at(&format!("{}?watch=true&{query}", self.path(resource)), accept).await
    }

    pub async fn watch_at(&self, path: &str, accept: &str) -> Watch {
        let request = http::Request::get(path).header("Accept", accept).body(Body::empty()).unwrap();
        let response = tokio::time::timeout(PATIENCE, self.client.send(request)).await.unwrap().unwrap();
        assert_eq!(response.status(), 200, "{path}");
        Watch { body: response.into_body(), read: Vec::new() }
    }

    /// The group of the test's custom resource.
    pub fn group(&self) -> String {
        format!("{}.example.com", self.namespace)
    }

    /// Serves a custom resource of a group that is the test's own; gives `group/version/plural`.
    pub async fn custom_resource(&self) -> String {
        self.custom_resource_in(&["v1"]).await
    }

    /// The same in several versions, of which the first is stored.
    pub async fn custom_resource_in(&self, versions: &[&str]) -> String {
        let group = self.group();
        let version = |name: &&str| {
            json!({
                "name": name,
                "served": true,
                "storage": *name == versions[0],
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            })
        };
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("gadgets.{group}")},
            "spec": {
                "group": group,
                "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "shortNames": ["gd"]},
                "scope": "Namespaced",
                "versions": versions.iter().map(version).collect::<Vec<_>>(),
            },
        });
        self.expect(201, "POST", DEFINITIONS, Some(definition)).await;
        for version in versions {
            self.until_answers(&self.path(&format!("{group}/{version}/gadgets")), 200).await;
        }
        format!("{group}/{}/gadgets", versions[0])
    }

    /// The path of the test's definition.
    pub fn definition(&self) -> String {
        format!("{DEFINITIONS}/gadgets.{}", self.group())
    }

    /// Serves a version of the test's custom resource, or no longer; gives the definition.
    pub async fn serve(&self, version: &str, served: bool) -> Value {
        loop {
            let mut definition = self.get(&self.definition()).await;
            for it in definition["spec"]["versions"].as_array_mut().unwrap() {
                if it["name"] == version {
                    it["served"] = served.into();
                }
            }
            let (code, answer) = self.json("PUT", &self.definition(), Some(definition)).await;
            // The API server writes its status meanwhile.
            if code != 409 {
                assert_eq!(code, 200, "{answer}");
                return answer;
            }
        }
    }

    pub async fn remove_custom_resource(&self) {
        self.expect(200, "DELETE", &self.definition(), None).await;
    }

    pub async fn gadget(&self, resource: &str, name: &str) -> Value {
        let api_version = resource.trim_end_matches("/gadgets");
        let metadata = json!({"name": name, "labels": {"app": "web"}});
        let gadget = json!({"apiVersion": api_version, "kind": "Gadget", "metadata": metadata, "spec": {"size": 1}});
        // The API server may list a new resource a moment before it takes objects.
        loop {
            let (code, made) = self.json("POST", &self.path(resource), Some(gadget.clone())).await;
            if code == 201 {
                return made;
            }
            assert!(matches!(code, 404 | 503), "{made}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Asks until the answer is as wanted: the real server changes what it serves in the background.
    pub async fn until(&self, path: &str, accept: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let asking = async {
            loop {
                let (_, bytes) = self.request("GET", path, accept, None).await;
                last = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
                if wanted(&last) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let outcome = tokio::time::timeout(PATIENCE, asking).await;
        outcome.unwrap_or_else(|_| panic!("{path} never answers as wanted: {last}"));
        last
    }

    /// Asks until the answer has this code: the real server changes what it serves in the background.
    pub async fn until_answers(&self, path: &str, code: u16) {
        let asking = async {
            while self.json("GET", path, None).await.0 != code {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| panic!("{path} never answers {code}"));
    }
}

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

impl Watch {
    /// The next line as bytes; None at a clean end.
    pub async fn line(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = self.read.iter().position(|&byte| byte == b'\n') {
                return Some(self.read.drain(..=end).collect());
            }
            let frame = tokio::time::timeout(PATIENCE, http_body_util::BodyExt::frame(&mut self.body));
            match frame.await.expect("the watch hangs") {
                Some(frame) => self.read.extend_from_slice(&frame.unwrap().into_data().unwrap()),
                None => {
                    assert!(self.read.is_empty(), "the watch ended inside a line");
                    return None;
                }
            }
        }
    }

    /// The next event; None at a clean end.
    pub async fn next(&mut self) -> Option<Value> {
        Some(serde_json::from_slice(&self.line().await?).unwrap())
    }

    /// The next event that tells something: a server may send a bookmark at any time, the first two seconds after the watch began.
    pub async fn telling(&mut self) -> Value {
        loop {
            let event = self.next().await.expect("the watch ended");
            let ends_initial_events =
                &event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
            if event["type"] != "BOOKMARK" || ends_initial_events {
                return event;
            }
        }
    }

    /// The next event that tells something: its type, its object's name and its version.
    pub async fn brief(&mut self) -> (String, String, String) {
        let event = self.telling().await;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &event["object"]["metadata"];
        (text(&event["type"]), text(&metadata["name"]), text(&metadata["resourceVersion"]))
    }

    /// Everything up to the clean end.
    pub async fn rest(&mut self) -> Vec<Value> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// `app` is the same for all, `turn` differs with each edit.
pub fn config_map(name: &str, turn: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "web", "turn": turn}},
        "data": {"turn": turn},
    })
}

pub fn version_of(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

pub fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

pub fn newer(a: &str, b: &str) -> bool {
    a.parse::<u64>().unwrap() > b.parse::<u64>().unwrap()
}
