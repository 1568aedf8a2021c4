//! What the cluster's lock guards: the version and, per resource type, a shelf of objects with its history.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::custom::Versions;
use crate::dice::mix;
use crate::history::{Event, History};
use crate::manifest::Recipe;
use crate::object::{Body, Object, Text};
use crate::resource::ResourceType;
use crate::status::Status;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) version: u64,
    seed: u64,
    uids: u64,
    history: usize,
    pub(crate) shelves: BTreeMap<String, Shelf>,
    /// Groups that discovery does not show.
    pub(crate) hidden: BTreeSet<String>,
    /// Changes when the state was replaced by another: every watch is cut.
    pub(crate) replaced: watch::Sender<u64>,
}

/// The objects of one resource type.
#[derive(Debug)]
pub(crate) struct Shelf {
    /// The version that objects are stored in.
    pub(crate) kind: Arc<ResourceType>,
    /// The versions that are served, the preferred one first.
    pub(crate) versions: Vec<Arc<ResourceType>>,
    /// By `namespace/name` (or `name`): byte order of this key is etcd's order.
    pub(crate) objects: BTreeMap<Arc<str>, Arc<Object>>,
    pub(crate) history: History,
    /// The version of the last write; watchers wait on it.
    pub(crate) changed: watch::Sender<u64>,
    /// False once its definition was removed: open watches drain and end.
    pub(crate) served: bool,
    /// Rises with every change of its definition: a watch ends with the era that it was opened in.
    pub(crate) era: u64,
}

impl Shelf {
    /// The resource in one of its versions.
    pub(crate) fn at(&self, version: &str) -> Result<Arc<ResourceType>, Status> {
        let found = self.versions.iter().find(|kind| kind.version == version).filter(|_| self.served);
        found.map(Arc::clone).ok_or_else(|| Status::of_code(404, None))
    }
}

impl State {
    pub(crate) fn new(seed: u64, history: usize) -> Self {
        let (shelves, replaced) = (BTreeMap::new(), watch::Sender::new(0));
        Self { version: 1, seed, uids: 0, history: history.max(1), shelves, hidden: BTreeSet::new(), replaced }
    }

    /// The shelf of `pods`, `deployments.apps`, or of a plural that only one group has.
    pub(crate) fn shelf(&self, resource: &str) -> Result<&Shelf, Status> {
        let shelf = self.shelves.get(resource).or_else(|| {
            let mut named = self.shelves.values().filter(|shelf| shelf.kind.plural == resource);
            named.next().filter(|_| named.next().is_none())
        });
        shelf.filter(|shelf| shelf.served).ok_or_else(|| Status::of_code(404, None))
    }

    /// Serves these versions of a resource.
    pub(crate) fn serve(&mut self, versions: Versions) {
        if self.shelves.contains_key(&versions.storage.name()) {
            return self.serve_anew(versions);
        }
        let (version, history) = (self.version, self.history);
        let shelf = Shelf {
            objects: BTreeMap::new(),
            history: History::new(history, version),
            changed: watch::Sender::new(version),
            served: true,
            era: 0,
            kind: versions.storage,
            versions: versions.served,
        };
        self.shelves.insert(shelf.kind.name(), shelf);
    }

    /// Serves a resource by another definition than before: open watches end, and every older version is 410 Expired,
    /// because the API server builds its cache anew.
    pub(crate) fn serve_anew(&mut self, versions: Versions) {
        if let Some(shelf) = self.shelves.get_mut(&versions.storage.name()) {
            shelf.kind = versions.storage;
            shelf.versions = versions.served;
            shelf.served = true;
            shelf.era += 1;
            shelf.history.forget(self.version);
            shelf.changed.send_replace(self.version);
        }
    }

    pub(crate) fn empty_namespace(&mut self, namespace: &str) {
        let prefix = format!("{namespace}/");
        let mut doomed = Vec::new();
        for (name, shelf) in self.shelves.iter().filter(|(_, shelf)| shelf.kind.namespaced) {
            let inside =
                shelf.objects.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded)).map(|(key, _)| key);
            doomed.extend(inside.take_while(|key| key.starts_with(&prefix)).map(|key| (name.clone(), Arc::clone(key))));
        }
        for (name, key) in doomed {
            self.remove(&name, &key);
        }
    }

    pub(crate) fn next_uid(&mut self) -> u128 {
        self.uids += 1;
        let high = mix(self.seed ^ mix(self.uids));
        u128::from(high) << 64 | u128::from(mix(high ^ self.uids))
    }

    /// Virtual time in seconds: the year 2026 and a second for every eight versions.
    pub(crate) fn now(&self) -> i64 {
        1_767_225_600 + (self.version / 8) as i64
    }

    pub(crate) fn put(&mut self, kind: &ResourceType, key: &str, object: &Map<String, Value>) -> u64 {
        let version = self.version + 1;
        self.commit(&kind.name(), key, Body::Text(Text::of(object, kind, version)))
    }

    pub(crate) fn put_recipe(&mut self, recipe: Recipe) -> u64 {
        let key = recipe.key();
        self.commit(recipe.resource(), &key, Body::Recipe(recipe))
    }

    fn commit(&mut self, name: &str, key: &str, body: Body) -> u64 {
        let Some(shelf) = self.shelves.get_mut(name).filter(|shelf| shelf.served) else {
            return self.version;
        };
        self.version += 1;
        let version = self.version;
        let object = Arc::new(Object { version, body });
        let (key, before) = match shelf.objects.get_key_value(key) {
            Some((key, before)) => (Arc::clone(key), Some(Arc::clone(before))),
            None => (Arc::from(key), None),
        };
        shelf.objects.insert(Arc::clone(&key), Arc::clone(&object));
        shelf.history.push(Event { version, key, before, after: Some(object) });
        shelf.changed.send_replace(version);
        version
    }

    pub(crate) fn remove(&mut self, name: &str, key: &str) -> Option<u64> {
        let shelf = self.shelves.get_mut(name)?;
        let (key, before) = shelf.objects.remove_entry(key)?;
        self.version += 1;
        let version = self.version;
        shelf.history.push(Event { version, key, before: Some(before), after: None });
        shelf.changed.send_replace(version);
        Some(version)
    }
}
