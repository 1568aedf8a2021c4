//! What a test has written into the cluster, and what must be told of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kubetide_simulator::Cluster;
use rand::{RngExt as _, rngs::StdRng};
use serde_json::{Value, json};

use crate::instance::{State, cleaned};

/// A stream, and the resource behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Captured {
    pub stream: &'static str,
    pub resource: &'static str,
    pub namespace: &'static str,
}

/// An object that only marks write: when it is told, so is everything before it.
pub const MARK: &str = "mark";

/// One state of one object, or its end.
struct Written {
    stream: &'static str,
    uid: String,
    version: u64,
    end: bool,
}

/// Everything that was written, by the only writer there is.
pub struct Ledger {
    cluster: Cluster,
    captured: Vec<Captured>,
    written: Vec<Written>,
    names: BTreeMap<&'static str, Vec<String>>,
    number: u64,
}

impl Ledger {
    pub fn new(cluster: Cluster, captured: Vec<Captured>) -> Self {
        let mut ledger = Self { cluster, captured, written: Vec::new(), names: BTreeMap::new(), number: 0 };
        ledger.captured.clone().into_iter().for_each(|of| ledger.create(of, MARK));
        ledger
    }

    pub fn captured(&self) -> &[Captured] {
        &self.captured
    }

    fn uid(&self, of: Captured, name: &str) -> String {
        let object: Value =
            serde_json::from_slice(&self.cluster.get(of.resource, of.namespace, name).unwrap()).unwrap();
        object["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    fn note(&mut self, of: Captured, uid: String, version: u64, end: bool) {
        self.written.push(Written { stream: of.stream, uid, version, end });
    }

    fn create(&mut self, of: Captured, name: &str) {
        self.number += 1;
        let mut object = json!({"metadata": {"name": name}, "data": {"n": self.number.to_string()}});
        if !of.namespace.is_empty() {
            object["metadata"]["namespace"] = of.namespace.into();
        }
        let version = self.cluster.create(of.resource, object).unwrap();
        let uid = self.uid(of, name);
        self.note(of, uid, version, false);
    }

    pub fn create_next(&mut self, of: Captured) {
        let name = format!("o{:05}", self.number);
        self.create(of, &name);
        self.names.entry(of.stream).or_default().push(name);
    }

    /// Changes an object; gives its version.
    pub fn update(&mut self, of: Captured, name: &str) -> u64 {
        self.number += 1;
        let number = self.number.to_string();
        let change = |object: &mut Value| object["data"]["n"] = number.as_str().into();
        let version = self.cluster.update(of.resource, of.namespace, name, change).unwrap();
        let uid = self.uid(of, name);
        self.note(of, uid, version, false);
        version
    }

    fn delete(&mut self, of: Captured, name: &str) {
        let uid = self.uid(of, name);
        let version = self.cluster.delete(of.resource, of.namespace, name).unwrap();
        self.note(of, uid, version, true);
    }

    /// One random write.
    pub fn churn(&mut self, random: &mut StdRng) {
        let of = self.captured[random.random_range(0..self.captured.len())];
        let names = self.names.entry(of.stream).or_default();
        let dice = random.random_range(0..100);
        if dice < 20 || names.len() < 10 {
            return self.create_next(of);
        }
        let at = random.random_range(0..names.len());
        let name = if dice < 35 { names.swap_remove(at) } else { names[at].clone() };
        match dice {
            // Gone before anyone has looked.
            50..60 => {
                self.create_next(of);
                let name = self.names.entry(of.stream).or_default().pop().unwrap();
                self.update(of, &name);
                self.delete(of, &name);
            }
            20..35 => self.delete(of, &name),
            35..50 => {
                self.delete(of, &name);
                self.create(of, &name);
            }
            _ => drop(self.update(of, &name)),
        }
    }

    /// What a receiver must have in the end.
    pub fn expected(&self) -> State {
        let mut state = State::new();
        for of in &self.captured {
            let items = self.cluster.list(of.resource);
            for item in items.iter().filter(|item| of.namespace.is_empty() || item.namespace() == of.namespace) {
                let key = (of.stream.to_owned(), item.namespace().to_owned(), item.name().to_owned());
                state.insert(key, cleaned(serde_json::from_slice(&item.json()).unwrap()));
            }
        }
        state
    }

    /// Checks the records of a whole run; `gaps` is how many each stream must have, at least and at most.
    pub fn check(&self, records: &[Value], gaps: (usize, usize)) {
        self.check_deletes(records);
        check_ids(records);
        check_order(records);
        for of in &self.captured {
            let own: Vec<&Value> = records.iter().filter(|record| record["stream"] == of.stream).collect();
            check_breaks(of.stream, &own, gaps);
            self.check_whole(of.stream, &own);
        }
    }

    /// A delete is told of what was deleted, once.
    fn check_deletes(&self, records: &[Value]) {
        let ended: BTreeSet<&str> =
            self.written.iter().filter(|written| written.end).map(|written| written.uid.as_str()).collect();
        let mut told = BTreeSet::new();
        for record in records.iter().filter(|record| record["op"] == "delete") {
            let uid = text(record, "uid");
            assert!(ended.contains(uid), "a delete of something that is there: {record}");
            assert!(told.insert(uid), "a second delete of the same object: {record}");
        }
    }

    /// Every state and every end is told, save those before the snapshot and those inside a gap.
    fn check_whole(&self, stream: &str, own: &[&Value]) {
        // From where to where history is missing.
        let mut missing = Vec::new();
        let mut from = 0;
        for record in own {
            match text(record, "op") {
                "gap" => from = record["from"]["resource_version"].as_str().unwrap_or("0").parse().unwrap(),
                "snapshot_finished" | "resync_finished" => missing.push((from, version(record))),
                _ => {}
            }
        }
        let states: BTreeSet<(&str, u64)> =
            own.iter().filter(|record| is_state(record)).map(|record| (text(record, "uid"), version(record))).collect();
        let ends: BTreeSet<&str> =
            own.iter().filter(|record| record["op"] == "delete").map(|record| text(record, "uid")).collect();
        for Written { uid, version, end, .. } in self.written.iter().filter(|written| written.stream == stream) {
            let excused = missing.iter().any(|(from, to)| from < version && version <= to);
            let told = if *end { ends.contains(uid.as_str()) } else { states.contains(&(uid.as_str(), *version)) };
            assert!(told || excused, "{stream}: version {version} (end: {end}) is not told; breaks: {missing:?}");
        }
    }
}

/// One gap and one resync for each break, and one snapshot.
fn check_breaks(stream: &str, own: &[&Value], (at_least, at_most): (usize, usize)) {
    let count = |op: &str| own.iter().filter(|record| record["op"] == op).count();
    let reasons: Vec<&str> =
        own.iter().filter(|record| record["op"] == "gap").map(|record| text(record, "reason")).collect();
    assert!(
        (at_least..=at_most).contains(&reasons.len()),
        "{stream}: {at_least} to {at_most} breaks, gaps: {reasons:?}"
    );
    assert!(reasons.iter().all(|reason| *reason == "expired"), "{stream}: {reasons:?}");
    assert_eq!(count("resync_finished"), reasons.len(), "{stream}: each gap is closed");
    assert_eq!((count("snapshot_started"), count("snapshot_finished")), (1, 1), "{stream}");
}

/// No id stands for two contents.
fn check_ids(records: &[Value]) {
    let mut contents: HashMap<&str, (&Value, bool)> = HashMap::new();
    for record in records {
        let content = (&record["object"], record["op"] == "delete");
        let before = contents.insert(text(record, "id"), content);
        assert!(before.is_none_or(|before| before == content), "one id for two contents: {record}");
    }
}

/// The records of one object come in the order of its versions, and nothing comes after its end.
fn check_order(records: &[Value]) {
    let mut last: HashMap<(&str, &str), (u64, bool)> = HashMap::new();
    for record in records.iter().filter(|record| record["uid"].is_string()) {
        let now = (version(record), record["op"] == "delete");
        if let Some((before, ended)) = last.insert((text(record, "stream"), text(record, "uid")), now) {
            let rises = if now.1 { before <= now.0 } else { before < now.0 };
            assert!(rises && !ended, "out of order, after version {before} (end: {ended}): {record}");
        }
    }
}

fn is_state(record: &Value) -> bool {
    matches!(record["op"].as_str(), Some("snapshot" | "create" | "update"))
}

fn text<'a>(record: &'a Value, key: &str) -> &'a str {
    record[key].as_str().unwrap()
}

/// The version of a record.
pub fn version(record: &Value) -> u64 {
    text(record, "resource_version").parse().unwrap()
}
