//! The changes: makes them in the simulated cluster at a steady pace, and keeps account of what the receiver is owed.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    time::Duration,
};

use anyhow::bail;
use kubetide_simulator::{Busy, Cluster};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    fold::{Key, State},
    verdict::told,
};

/// What the pipeline captures, as the configuration and the simulator name it, and as records do.
pub(super) const STREAMS: [(&str, &str); 5] = [
    ("deployments.apps", "apps/deployments"),
    ("replicasets.apps", "apps/replicasets"),
    ("pods", "core/pods"),
    ("configmaps", "core/configmaps"),
    ("widgets.shop.example.com", "shop.example.com/widgets"),
];

/// Makes some 300 objects in the captured streams.
const WORKLOADS: usize = 48;
/// So many steps without a change in a captured stream mean that there will be none.
const STEPS_AT_MOST: usize = 10_000;

const CONFIG_MAPS: &str = "configmaps";
const WIDGETS: &str = "widgets.shop.example.com";
/// Objects that the busy cluster leaves alone, for the act in which objects go unseen.
const OURS: [(&str, &str, &str); 6] = [
    (CONFIG_MAPS, "shop", "feature-flags"),
    (CONFIG_MAPS, "shop", "banner-autumn"),
    (CONFIG_MAPS, "billing", "rates-2024"),
    (CONFIG_MAPS, "growth", "campaign-spring"),
    (WIDGETS, "shop", "old-gadget"),
    (WIDGETS, "platform", "trial-gizmo"),
];

/// Makes a cluster change.
pub(super) struct Churn {
    cluster: Cluster,
    busy: Busy,
    rate: u32,
    /// Changes that are still to be made, and when the next one is due.
    left: usize,
    due: Instant,
    /// The version of every captured object that the receiver is told of.
    current: BTreeMap<Key, u64>,
    /// The newest version of each, and a hash of what the receiver sees of it: a write that changes neither is not told.
    looked_at: HashMap<Key, (u64, u64)>,
    /// What was made and has not arrived.
    owed: HashSet<State>,
    /// Whether the pipeline can learn of every change. If not, it owes only where they lead to.
    seen: bool,
    made: usize,
}

impl Churn {
    /// Fills the cluster; the same seed fills it with the same objects.
    pub(super) fn settle(cluster: Cluster, seed: u64, rate: u32) -> anyhow::Result<Self> {
        let mut busy = Busy::new(seed);
        busy.settle(&cluster, WORKLOADS);
        let mut churn = Self {
            cluster,
            busy,
            rate: rate.max(1),
            left: 0,
            due: Instant::now(),
            current: BTreeMap::new(),
            looked_at: HashMap::new(),
            owed: HashSet::new(),
            seen: true,
            made: 0,
        };
        for ours in OURS {
            churn.create(ours)?;
        }
        churn.current = churn.look();
        Ok(churn)
    }

    /// Begins to make so many changes; [`Self::go_on`] makes those that are due.
    pub(super) fn begin(&mut self, changes: usize) {
        self.left = changes;
        self.due = Instant::now();
    }

    /// How many changes there are in a second.
    pub(super) fn per_second(&self) -> usize {
        self.rate as usize
    }

    /// How many of the changes that were begun are still to be made.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// Whether all changes that were begun are made.
    pub(super) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Makes the changes that are due.
    pub(super) fn go_on(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        while self.left > 0 && self.due <= now {
            let made = self.change()?;
            self.left = self.left.saturating_sub(made);
            self.due += Duration::from_secs(1) / self.rate;
        }
        Ok(())
    }

    /// Steps until a captured object has changed.
    fn change(&mut self) -> anyhow::Result<usize> {
        for _ in 0..STEPS_AT_MOST {
            self.busy.step(&self.cluster);
            let made = self.note();
            if made > 0 {
                return Ok(made);
            }
        }
        bail!("the simulated cluster has come to rest")
    }

    /// From now on the pipeline sees nothing; what it is owed is only where the changes lead to.
    pub(super) fn lose_sight(&mut self) {
        self.seen = false;
    }

    /// The pipeline sees again.
    pub(super) fn regain_sight(&mut self) {
        self.seen = true;
    }

    /// Objects go; the first of them comes back under its name, as another object. Gives their places.
    pub(super) fn delete_ours(&mut self) -> anyhow::Result<Key> {
        for (resource, namespace, name) in OURS {
            let deleted = self.cluster.delete(resource, namespace, name);
            deleted.map_err(|status| anyhow::anyhow!("cannot delete {namespace}/{name}: {status:?}"))?;
        }
        self.note();
        let [recreated, ..] = OURS;
        self.create(recreated)?;
        self.note();
        Ok(Key::new(stream_of(recreated.0), recreated.1, recreated.2))
    }

    fn create(&self, (resource, namespace, name): (&str, &str, &str)) -> anyhow::Result<()> {
        let metadata = json!({"namespace": namespace, "name": name, "labels": {"team": namespace}});
        let object = if resource == CONFIG_MAPS {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"enabled": "true"}})
        } else {
            let spec = json!({"size": 1});
            json!({"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": metadata, "spec": spec})
        };
        let created = self.cluster.create(resource, object);
        created.map_err(|status| anyhow::anyhow!("cannot create {namespace}/{name}: {status:?}"))?;
        Ok(())
    }

    /// Holds the cluster against what it was, and enters the difference into the account.
    fn note(&mut self) -> usize {
        let now = self.look();
        let mut changes = Vec::new();
        for (key, version) in &now {
            if self.current.get(key) != Some(version) {
                changes.push(State { key: key.clone(), version: *version, deleted: false });
            }
        }
        for (key, version) in &self.current {
            if !now.contains_key(key) {
                changes.push(State { key: key.clone(), version: *version, deleted: true });
            }
        }
        let made = changes.len();
        self.made += made;
        if self.seen {
            self.owed.extend(changes);
        }
        self.current = now;
        made
    }

    fn look(&mut self) -> BTreeMap<Key, u64> {
        let mut told = BTreeMap::new();
        for (resource, stream) in STREAMS {
            for item in self.cluster.list(resource) {
                let key = Key::new(stream, item.namespace(), item.name());
                let before = self.looked_at.get(&key).copied();
                let version = match before {
                    Some((version, _)) if version == item.version() => self.current.get(&key).copied(),
                    _ => {
                        let content = content_of(&item.json());
                        self.looked_at.insert(key.clone(), (item.version(), content));
                        self.current.get(&key).copied().filter(|_| before.is_some_and(|(_, known)| known == content))
                    }
                };
                told.insert(key, version.unwrap_or(item.version()));
            }
        }
        told
    }

    /// What has arrived is not owed any more.
    pub(super) fn arrived(&mut self, state: &State) {
        self.owed.remove(state);
    }

    /// How many changes have not arrived.
    pub(super) fn owed(&self) -> usize {
        self.owed.len()
    }

    /// How many changes were made, in all.
    pub(super) fn made(&self) -> usize {
        self.made
    }

    /// The version of every captured object.
    pub(super) fn current(&self) -> &BTreeMap<Key, u64> {
        &self.current
    }

    /// Every captured object, whole.
    pub(super) fn objects(&self) -> anyhow::Result<BTreeMap<Key, Value>> {
        let mut objects = BTreeMap::new();
        for (resource, stream) in STREAMS {
            for item in self.cluster.list(resource) {
                let key = Key::new(stream, item.namespace(), item.name());
                objects.insert(key, serde_json::from_slice(&item.json())?);
            }
        }
        Ok(objects)
    }
}

/// A hash of what the receiver sees of an object, less the fields that every write changes.
fn content_of(object: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let object = serde_json::from_slice(object).map(|object: Value| told(object).to_string());
    object.unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

fn stream_of(resource: &str) -> &str {
    STREAMS.iter().find(|(known, _)| *known == resource).map_or(resource, |(_, stream)| stream)
}
