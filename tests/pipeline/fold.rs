//! What a consumer makes of the records of one sink, by the rules of docs/records.md.

use std::collections::{BTreeMap, BTreeSet};

use kubetide_simulator::{Cluster, Item};
use serde_json::Value;

use crate::instance::{State, cleaned};

/// Stream, namespace and name.
type Key = (String, String, String);

/// What a control record is about: a stream, or all that the sink takes.
const EVERYTHING: &str = "";

/// The state of the cluster as the records tell it.
#[derive(Default)]
pub struct Fold {
    objects: BTreeMap<Key, (String, Value)>,
    /// Snapshots under way by what they are of: their ids, and what they have shown.
    snapshots: BTreeMap<String, (String, BTreeSet<Key>)>,
}

impl Fold {
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut fold = Self::default();
        records.into_iter().for_each(|record| fold.take(record));
        fold
    }

    pub fn take(&mut self, record: &Value) {
        let text = |field: &str| record[field].as_str().unwrap_or_default().to_owned();
        let stream = text("stream");
        let key = (stream.clone(), text("namespace"), text("name"));
        match text("op").as_str() {
            "snapshot" | "create" | "update" => {
                for (of, (_, shown)) in &mut self.snapshots {
                    if of == EVERYTHING || *of == stream {
                        shown.insert(key.clone());
                    }
                }
                self.objects.insert(key, (text("uid"), record["object"].clone()));
            }
            "delete" if self.objects.get(&key).is_some_and(|(uid, _)| *uid == text("uid")) => {
                self.objects.remove(&key);
            }
            "snapshot_started" => {
                let under_way = self.snapshots.entry(stream).or_default();
                if under_way.0 != text("id") {
                    *under_way = (text("id"), BTreeSet::new());
                }
            }
            "snapshot_finished" => {
                if let Some((_, shown)) = self.snapshots.remove(&stream) {
                    self.objects.retain(|key, _| stream != EVERYTHING && key.0 != stream || shown.contains(key));
                }
            }
            _ => {}
        }
    }

    /// Whether this object is among them.
    pub fn has(&self, name: &str) -> bool {
        self.objects.keys().any(|(_, _, known)| known == name)
    }

    /// What is otherwise than it is, if anything.
    pub fn differs_from(&self, there_is: &State) -> Option<String> {
        let version = |object: Option<&Value>| object.map(|object| object["metadata"]["resourceVersion"].to_string());
        let keys: BTreeSet<&Key> = self.objects.keys().chain(there_is.keys()).collect();
        keys.into_iter().find_map(|key| {
            let (here, there) = (self.objects.get(key).map(|(_, object)| object), there_is.get(key));
            (here != there).then(|| format!("{key:?} is {:?} instead of {:?}", version(here), version(there)))
        })
    }
}

/// What there is, as a consumer should have it.
pub fn there_is(cluster: &Cluster) -> State {
    let items = cluster.list("configmaps");
    let key = |item: &Item| ("core/configmaps".into(), item.namespace().into(), item.name().into());
    items.iter().map(|item| (key(item), cleaned(serde_json::from_slice(&item.json()).unwrap()))).collect()
}
