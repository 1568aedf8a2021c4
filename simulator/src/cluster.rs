//! The simulated cluster: objects by resource type, one resourceVersion that rises with every write, and a
//! bounded history per type. Thread-safe; a write takes one short lock and never waits for a watcher.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::custom::{self, DEFINITIONS, Versions};
use crate::manifest::Recipe;
use crate::object::Object;
use crate::resource::{self, ResourceType};
use crate::shelf::State;
use crate::status::Status;
use crate::writer::Writer;

/// How a cluster is made.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Fixes uids and times.
    pub seed: u64,
    /// Events kept per resource type; older versions are 410 Expired. The API server keeps 100 to 102,400.
    pub history: usize,
    /// How often a watch gets a bookmark. The API server: about once a minute.
    pub bookmark_interval: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self { seed: 1, history: 10_000, bookmark_interval: Duration::from_secs(60) }
    }
}

/// A handle to one simulated cluster; clones share it.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ClusterOptions,
    state: Mutex<State>,
}

/// One object of a cluster, as `list` gives it.
#[derive(Clone, Debug)]
pub struct Item {
    key: Arc<str>,
    kind: Arc<ResourceType>,
    object: Arc<Object>,
}

impl Item {
    /// The namespace; empty for cluster-scoped objects.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.key.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.split_once('/').map_or(&self.key, |(_, name)| name)
    }

    /// The object's own resourceVersion.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.object.version
    }

    /// The object with kind and apiVersion, byte for byte as a GET gives it.
    #[must_use]
    pub fn json(&self) -> Bytes {
        self.object.whole(&self.kind)
    }
}

impl Cluster {
    /// A cluster with the namespaces that every cluster has, and the custom resource `widgets.shop.example.com`.
    #[must_use]
    pub fn new(options: ClusterOptions) -> Self {
        let state = State::new(options.seed, options.history);
        let cluster = Self { inner: Arc::new(Inner { options, state: Mutex::new(state) }) };
        {
            let mut state = cluster.lock();
            for kind in resource::built_in() {
                state.serve(Versions::only(kind));
            }
            for name in ["kube-system", "default", "kube-public", "kube-node-lease"] {
                let recipe = Recipe::namespace(name, state.next_uid(), state.now());
                state.put_recipe(recipe);
            }
            state.register();
        }
        cluster.add_custom(&resource::widgets());
        cluster
    }

    pub(crate) fn options(&self) -> &ClusterOptions {
        &self.inner.options
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A writer that panicked left the last complete state: every commit is the last step of a write.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster's current resourceVersion.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.lock().version
    }

    /// How many objects a resource (`pods`, `deployments.apps`) has.
    #[must_use]
    pub fn len(&self, resource: &str) -> usize {
        self.lock().shelf(resource).map_or(0, |shelf| shelf.objects.len())
    }

    /// All objects of a resource, in key order.
    #[must_use]
    pub fn list(&self, resource: &str) -> Vec<Item> {
        let state = self.lock();
        let Ok(shelf) = state.shelf(resource) else {
            return Vec::new();
        };
        let item = |(key, object): (&Arc<str>, &Arc<Object>)| Item {
            key: Arc::clone(key),
            kind: Arc::clone(&shelf.kind),
            object: Arc::clone(object),
        };
        shelf.objects.iter().map(item).collect()
    }

    /// One object with kind and apiVersion; the namespace is empty for cluster-scoped ones.
    #[must_use]
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Bytes> {
        let state = self.lock();
        let shelf = state.shelf(resource).ok()?;
        shelf.objects.get(key_of(namespace, name).as_str()).map(|object| object.whole(&shelf.kind))
    }

    /// The uid of the `kube-system` namespace, by which clients tell clusters apart.
    #[must_use]
    pub fn uid(&self) -> String {
        let namespace = self.get("namespaces", "", "kube-system");
        let read = namespace.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        read.and_then(|object| object["metadata"]["uid"].as_str().map(str::to_owned)).unwrap_or_default()
    }

    /// The resource types that are served now, one for each version.
    #[must_use]
    pub fn resource_types(&self) -> Vec<Arc<ResourceType>> {
        let state = self.lock();
        state.shelves.values().filter(|shelf| shelf.served).flat_map(|shelf| shelf.versions.iter().cloned()).collect()
    }

    /// Writes as this field manager.
    #[must_use]
    pub fn by<'a>(&'a self, manager: &'a str) -> Writer<'a> {
        Writer { cluster: self, manager, subresource: "", version: "" }
    }

    /// Creates an object, as field manager `kubectl-create`; gives its version.
    pub fn create(&self, resource: &str, object: Value) -> Result<u64, Status> {
        self.by("kubectl-create").create(resource, object)
    }

    /// Changes an object, as field manager `kubectl-edit`; gives its version.
    pub fn update(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        change: impl FnMut(&mut Value),
    ) -> Result<u64, Status> {
        self.by("kubectl-edit").update(resource, namespace, name, change)
    }

    /// Deletes an object, and what is in it if it is a namespace or a definition; gives the delete's version.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> Result<u64, Status> {
        let mut state = self.lock();
        let kind = Arc::clone(&state.shelf(resource)?.kind);
        let key = key_of(namespace, name);
        if !state.shelf(resource)?.objects.contains_key(key.as_str()) {
            return Err(Status::not_found(&kind.plural, &kind.group, name));
        }
        match kind.plural.as_str() {
            "namespaces" => state.empty_namespace(name),
            "customresourcedefinitions" => state.retire(name),
            _ => {}
        }
        state.remove(&kind.name(), &key).ok_or_else(|| Status::not_found(&kind.plural, &kind.group, name))
    }

    /// Serves a custom resource, by creating its definition.
    pub fn add_custom(&self, kind: &ResourceType) {
        self.add_custom_versions(kind, &[]);
    }

    /// Serves a custom resource in its own version, which is the stored one, and in these, without conversion. Does
    /// nothing if there is a definition already.
    pub fn add_custom_versions(&self, kind: &ResourceType, others: &[&str]) {
        // The only refusal of a definition that was made here is that it exists.
        let _ = self.create(DEFINITIONS, custom::definition(kind, others));
    }

    /// Serves a version of a custom resource (`widgets.shop.example.com`) from now on, or no longer.
    pub fn set_served(&self, name: &str, version: &str, served: bool) -> Result<u64, Status> {
        self.update(DEFINITIONS, "", name, |definition| {
            for it in definition["spec"]["versions"].as_array_mut().into_iter().flatten() {
                if it["name"] == version {
                    it["served"] = served.into();
                }
            }
        })
    }

    /// Stops serving a custom resource (`widgets.shop.example.com`): deletes its objects and its definition.
    pub fn remove_custom(&self, name: &str) -> Result<u64, Status> {
        self.delete(DEFINITIONS, "", name)
    }

    /// Forgets all events so far: every older version is 410 Expired, as after an etcd compaction and an
    /// API-server restart.
    pub fn forget_history(&self) {
        let mut state = self.lock();
        // A version of its own, so that what was current a moment ago is too old now.
        state.version += 1;
        let version = state.version;
        for shelf in state.shelves.values_mut() {
            shelf.history.forget(version);
            shelf.changed.send_replace(version);
        }
    }

    /// Raises the version without a change that anyone watches, as writes elsewhere in etcd do.
    pub fn skip_versions(&self, by: u64) {
        self.lock().version += by;
    }

    pub(crate) fn put_recipe(&self, recipe: Recipe) -> u64 {
        self.lock().put_recipe(recipe)
    }

    /// Changes an object that is still there; one that someone deleted stays deleted.
    pub(crate) fn revise(&self, recipe: Recipe) {
        let mut state = self.lock();
        let there = state.shelves.get(recipe.resource()).is_some_and(|it| it.objects.contains_key(&*recipe.key()));
        if there {
            state.put_recipe(recipe);
        }
    }
}

/// `namespace/name`, or `name` without a namespace.
pub(crate) fn key_of(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}
