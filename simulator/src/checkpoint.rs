//! A cluster that changes under its clients: a backup of etcd that is restored, and another cluster behind the same
//! address. Versions go back, later writes use them again, and nobody tells the clients.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::custom::Versions;
use crate::object::{Body, Object, Text};
use crate::shelf::{Shelf, State};

/// What a cluster held at one moment: its objects and its version, not its history.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    version: u64,
    shelves: Vec<(Versions, Objects)>,
}

type Objects = BTreeMap<Arc<str>, Arc<Object>>;

impl Checkpoint {
    /// The cluster's version at that moment.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }
}

impl Cluster {
    /// What the cluster holds now, to be restored later: a backup of etcd.
    #[must_use]
    pub fn checkpoint(&self) -> Checkpoint {
        let state = self.lock();
        let served = state.shelves.values().filter(|shelf| shelf.served);
        let versions = |shelf: &Shelf| Versions { storage: Arc::clone(&shelf.kind), served: shelf.versions.clone() };
        let shelves = served.map(|shelf| (versions(shelf), shelf.objects.clone())).collect();
        Checkpoint { version: state.version, shelves }
    }

    /// Goes back to a checkpoint: objects, definitions and the version are those of then, the history is empty, and
    /// every watch is cut, as when etcd is restored from a backup. Later writes use the same versions again; new
    /// objects still get uids that were never used. With the checkpoint of another cluster, that cluster now answers at
    /// this one's address.
    pub fn restore(&self, checkpoint: &Checkpoint) {
        let mut state = self.lock();
        state.version = checkpoint.version;
        state.shelves.clear();
        for (versions, objects) in &checkpoint.shelves {
            state.serve(versions.clone());
            if let Some(shelf) = state.shelves.get_mut(&versions.storage.name()) {
                shelf.objects = objects.clone();
            }
        }
        state.cut_watches();
    }

    /// Gives `kube-system` another uid, by which clients take this for another cluster, and cuts every watch. There is no
    /// event for it: no API server would send one.
    pub fn set_uid(&self, uid: &str) {
        let mut state = self.lock();
        if let Some(shelf) = state.shelves.get_mut("namespaces") {
            change_uid(shelf, "kube-system", uid);
        }
        state.cut_watches();
    }
}

fn change_uid(shelf: &mut Shelf, key: &str, uid: &str) {
    let Some(object) = shelf.objects.get_mut(key) else {
        return;
    };
    if let Ok(Value::Object(mut whole)) = serde_json::from_slice(&object.whole(&shelf.kind)) {
        whole["metadata"]["uid"] = uid.into();
        let body = Body::Text(Text::of(&whole, &shelf.kind, object.version));
        *object = Arc::new(Object { version: object.version, body });
    }
}

impl State {
    fn cut_watches(&self) {
        self.replaced.send_modify(|times| *times += 1);
    }
}
