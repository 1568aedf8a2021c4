//! A simulated cluster with twenty config maps, a kubetide for it, and a hook that notes every request.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kubetide_simulator::{Cluster, ClusterOptions, Fault, RequestInfo, Server, Verb};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::instance::{Instance, State, cleaned, count, fold};

pub const STREAM: &str = "core/configmaps@default";
/// In pages of six.
pub const PAGED: &str = "list: {page_size: 6, streaming: never}\n";
/// The verbs by which a stream lists.
pub const LISTS: &[Verb] = &[Verb::List, Verb::Page, Verb::StreamingList];

type Fate = Box<dyn FnMut(&RequestInfo) -> Fault + Send>;

pub struct Case {
    pub server: Server,
    pub kubetide: Instance,
    asked: Arc<Mutex<Vec<(Instant, RequestInfo)>>>,
    fate: Arc<Mutex<Fate>>,
    _directory: TempDir,
}

impl Case {
    /// Config maps, listed in pages.
    pub async fn new() -> Self {
        Self::with(&[("configmaps", "default")], PAGED).await
    }

    /// Config maps, listed as is the default.
    pub async fn streaming() -> Self {
        Self::with(&[("configmaps", "default")], "list: {page_size: 6, timeout_secs: 1}\n").await
    }

    /// These streams, and more configuration.
    pub async fn with(streams: &[(&str, &str)], more: &str) -> Self {
        let options = ClusterOptions { bookmark_interval: Duration::from_millis(200), ..ClusterOptions::default() };
        let server = Server::start(Cluster::new(options)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = server.kubeconfig(directory.path()).unwrap();
        let kubetide = Instance::new(&kubeconfig, streams, more);
        let fate: Arc<Mutex<Fate>> = Arc::new(Mutex::new(Box::new(|_| Fault::Pass)));
        let asked: Arc<Mutex<Vec<(Instant, RequestInfo)>>> = Arc::default();
        let (hooked, noted) = (fate.clone(), asked.clone());
        server.set_hook(Some(Arc::new(move |request| {
            noted.lock().unwrap().push((Instant::now(), request.clone()));
            (hooked.lock().unwrap())(request)
        })));
        let case = Self { server, kubetide, asked, fate, _directory: directory };
        (0..20).for_each(|number| case.create(number));
        case
    }

    pub fn cluster(&self) -> &Cluster {
        self.server.cluster()
    }

    pub fn create(&self, number: u64) {
        let object = json!({"metadata": {"name": format!("c{number:03}"), "namespace": "default"}, "data": {"n": "0"}});
        self.cluster().create("configmaps", object).unwrap();
    }

    pub fn update(&self, number: u64, value: u64) {
        let name = format!("c{number:03}");
        let change = |map: &mut Value| map["data"]["n"] = value.to_string().into();
        self.cluster().update("configmaps", "default", &name, change).unwrap();
    }

    pub fn delete(&self, number: u64) {
        self.cluster().delete("configmaps", "default", &format!("c{number:03}")).unwrap();
    }

    /// Every request from now on meets what this says.
    pub fn fate(&self, fate: impl FnMut(&RequestInfo) -> Fault + Send + 'static) {
        *self.fate.lock().unwrap() = Box::new(fate);
    }

    /// The first `times` requests for config maps with one of these verbs meet these faults in turn; all others pass.
    pub fn afflict(&self, verbs: &'static [Verb], times: u64, faults: Vec<Fault>) -> Arc<AtomicU64> {
        let met = Arc::new(AtomicU64::new(0));
        let counted = met.clone();
        self.fate(move |request| {
            if request.resource != "configmaps" || !verbs.contains(&request.verb) || is_beside(request) {
                return Fault::Pass;
            }
            let number = counted.fetch_add(1, Ordering::Relaxed);
            if number < times { faults[number as usize % faults.len()].clone() } else { Fault::Pass }
        });
        met
    }

    /// The requests of streams with one of these verbs, and when they came. Looks at the version alone are left out.
    pub fn asked(&self, verbs: &[Verb], resource: &str) -> Vec<(Instant, RequestInfo)> {
        let asked = self.asked.lock().unwrap();
        let of = asked.iter().filter(|(_, request)| {
            verbs.contains(&request.verb) && request.resource == resource && !is_beside(request)
        });
        of.cloned().collect()
    }

    /// Every request so far.
    pub fn all_asked(&self) -> Vec<RequestInfo> {
        self.asked.lock().unwrap().iter().map(|(_, request)| request.clone()).collect()
    }

    pub fn count(&self, verb: Verb) -> usize {
        self.asked(&[verb], "configmaps").len()
    }

    /// History is forgotten while no watch is open, and `meanwhile` happens.
    pub async fn break_history(&self, meanwhile: impl FnOnce()) {
        self.server.refuse(true).await;
        meanwhile();
        self.cluster().forget_history();
        self.server.refuse(false).await;
    }

    pub fn expected(&self) -> State {
        let items = self.cluster().list("configmaps");
        let of_namespace = items.iter().filter(|item| item.namespace() == "default");
        let object = |json: &[u8]| cleaned(serde_json::from_slice(json).unwrap());
        let key = |name: &str| (STREAM.to_owned(), "default".to_owned(), name.to_owned());
        of_namespace.map(|item| (key(item.name()), object(&item.json()))).collect()
    }

    /// Waits until the receiver has what the cluster has, and returns the records.
    pub async fn level(&mut self) -> Vec<Value> {
        let expected = self.expected();
        self.kubetide.records_when("the file tells the cluster's state", |records| fold(records) == expected).await
    }

    /// Starts it, and waits for the first snapshot of the config maps.
    pub async fn snapshot(&mut self) -> Vec<Value> {
        self.kubetide.start();
        self.kubetide.records_when_listed(1).await
    }

    /// Waits until so many breaks are mended, and returns the records.
    pub async fn mended(&mut self, breaks: usize) -> Vec<Value> {
        let wanted = "every break is mended";
        self.kubetide.records_when(wanted, |records| count(records, "resync_finished") == breaks).await
    }

    pub async fn until(&self, wanted: &str, ready: impl Fn() -> bool) {
        let since = Instant::now();
        while !ready() {
            assert!(since.elapsed() < Duration::from_secs(60), "not seen: {wanted}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A look at the API server's version before a resume: no LIST of the stream.
fn is_beside(request: &RequestInfo) -> bool {
    request.param("fieldSelector") == "metadata.name=-" || request.param("limit") == "1"
}

pub fn status(code: u16) -> Fault {
    Fault::Status { code, retry_after: None }
}

pub fn ops(records: &[Value]) -> BTreeMap<&str, usize> {
    let mut ops = BTreeMap::new();
    for record in records {
        *ops.entry(record["op"].as_str().unwrap()).or_default() += 1;
    }
    ops
}

pub fn reasons(records: &[Value]) -> Vec<&str> {
    let gaps = records.iter().filter(|record| record["op"] == "gap");
    gaps.map(|record| record["reason"].as_str().unwrap()).collect()
}
