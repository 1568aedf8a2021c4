//! When the cluster's history is not what it was: etcd restored from an older copy, another cluster behind the same address, a
//! forgotten past, a silent watch, a changed configuration. Each break is told, once, and what it hid is made good.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod instance;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use instance::{Instance, State, assert_bounded_repetition, changes_of, cleaned, count, fold};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Pod},
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use kubetide_test_env::{Apiserver, Mode, Proxy};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::watch,
};

/// The real server sends bookmarks about once a minute, and two seconds before the end of a watch. With short watches they
/// come often enough for a test.
const SHORT_WATCHES: &str = "watch: {timeout_min_secs: 4, timeout_max_secs: 4}\n";

fn is_torture() -> bool {
    std::env::var_os("KUBETIDE_TORTURE").is_some()
}

/// A namespace of its own and the ways to change config maps in it.
struct Space {
    namespace: String,
    client: Client,
    maps: Api<ConfigMap>,
}

impl Space {
    async fn new(server: &Apiserver, prefix: &str) -> Self {
        Self::at(server, &server.namespace(prefix).await.unwrap()).await
    }

    /// With a client of its own: a server that was restarted has closed the connections of the older ones.
    async fn at(server: &Apiserver, namespace: &str) -> Self {
        let client = server.client().await.unwrap();
        let maps = Api::namespaced(client.clone(), namespace);
        Self { namespace: namespace.to_owned(), client, maps }
    }

    /// Returns the version of what it wrote.
    async fn create(&self, name: &str, value: &str) -> u64 {
        let map = json!({"metadata": {"name": name}, "data": {"value": value}});
        let map = serde_json::from_value(map).unwrap();
        version_of(&self.maps.create(&PostParams::default(), &map).await.unwrap())
    }

    async fn update(&self, name: &str, value: &str) -> u64 {
        let patch = Patch::Merge(json!({"data": {"value": value}}));
        version_of(&self.maps.patch(name, &PatchParams::default(), &patch).await.unwrap())
    }

    async fn delete(&self, name: &str) {
        self.maps.delete(name, &DeleteParams::default()).await.unwrap();
    }

    fn stream(&self) -> String {
        format!("core/configmaps@{}", self.namespace)
    }

    fn streams(&self) -> [(&'static str, &str); 1] {
        [("configmaps", &self.namespace)]
    }

    async fn state(&self) -> State {
        let path = format!("/api/v1/namespaces/{}/configmaps", self.namespace);
        listed(&self.client, &self.stream(), &path, "v1", "ConfigMap").await
    }
}

fn version_of(map: &ConfigMap) -> u64 {
    map.metadata.resource_version.as_ref().unwrap().parse().unwrap()
}

/// What the API server itself lists, as a consumer should have it.
async fn listed(client: &Client, stream: &str, path: &str, api_version: &str, kind: &str) -> State {
    let list: Value = client.request(http::Request::get(path).body(vec![]).unwrap()).await.unwrap();
    let items = list["items"].as_array().unwrap().iter().map(|item| {
        let mut item = cleaned(item.clone());
        (item["kind"], item["apiVersion"]) = (kind.into(), api_version.into());
        let text = |key: &str| item["metadata"][key].as_str().unwrap_or_default().to_owned();
        ((stream.to_owned(), text("namespace"), text("name")), item)
    });
    items.collect()
}

/// The control records of a kind, in order.
fn controls<'a>(records: &'a [Value], op: &str) -> Vec<&'a Value> {
    records.iter().filter(|record| record["op"] == op).collect()
}

/// Asserts that there is one gap in these records, of this stream and for this reason, and that it was mended.
fn assert_one_gap<'a>(records: &'a [Value], stream: &str, reason: &str) -> &'a Value {
    let gaps = controls(records, "gap");
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let gap = gaps[0];
    assert_eq!((&gap["reason"], &gap["stream"], &gap["scope"]), (&json!(reason), &json!(stream), &json!("stream")));
    assert!(gap["from"]["resource_version"].as_str().is_some_and(|version| !version.is_empty()), "{gap}");
    let finished = controls(records, "resync_finished");
    assert_eq!(finished.len(), 1, "one break is mended once");
    finished[0]
}

fn ops_of<'a>(records: &'a [Value], name: &str) -> Vec<(&'a str, &'a str)> {
    let origin = |record: &'a Value| record["origin"].as_str().unwrap();
    changes_of(records, name).into_iter().map(|(op, record)| (op, origin(record))).collect()
}

/// An id stands for the same bytes wherever it occurs in the file, whatever happened to the cluster meanwhile.
fn assert_an_id_has_one_content(lines: &[String]) {
    #[derive(Deserialize)]
    struct Told<'a> {
        id: &'a str,
        #[serde(borrow)]
        object: Option<&'a RawValue>,
    }
    let mut told: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for line in lines {
        let Told { id, object } = serde_json::from_str(line).unwrap();
        let object = object.map(RawValue::get);
        let first = told.entry(id).or_insert(object);
        assert_eq!(*first, object, "id {id} stands for two things");
    }
    assert!(told.len() > 1);
}

async fn eventually<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = found().await {
            return found;
        }
        assert!(since.elapsed() < Duration::from_secs(60), "not seen in a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The admin pages of a running instance.
struct Admin {
    address: String,
}

impl Admin {
    /// Of the instance's latest start.
    async fn of(kubetide: &Instance, starts: usize) -> Self {
        let address = eventually("the admin address is logged", async || {
            let log = std::fs::read_to_string(kubetide.path("log")).unwrap();
            let addresses: Vec<&str> = log.split("admin listens on ").skip(1).collect();
            let latest = addresses.get(starts - 1)?;
            Some(latest.split_whitespace().next()?.to_owned())
        });
        Self { address: address.await }
    }

    async fn get(&self, path: &str) -> (u16, String) {
        let mut connection = tokio::net::TcpStream::connect(&self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// The sum of a counter over its series with this label; none if there is no such series.
    async fn counter(&self, name: &str, label: &str) -> Option<f64> {
        let (_, page) = self.get("/metrics").await;
        let series = page.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
        let values: Vec<f64> = series.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    async fn verified(&self, result: &str) -> Option<f64> {
        self.counter("kubetide_verifications_total", &format!("result=\"{result}\"")).await
    }
}

/// Writes all the while in a namespace that nobody watches, as in any cluster there is.
struct Life(tokio::task::JoinHandle<()>);

impl Life {
    /// In a namespace with a config map `filler`.
    fn of(elsewhere: Space) -> Self {
        Self(tokio::spawn(async move {
            for round in 0.. {
                elsewhere.update("filler", &format!("life {round}")).await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }))
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is written in the time that the restored cluster knows nothing of.
const LOST_WRITES: usize = 300;

/// A config map for each thing that can become of one by a restored backup, and the backup.
async fn prepare(space: &Space) {
    for name in ["kept", "changed", "reverted", "deleted"] {
        space.create(name, "before").await;
    }
}

/// What the backup does not know. Returns the last version.
async fn lose(space: &Space) -> u64 {
    space.create("lost", "lost").await;
    space.delete("deleted").await;
    space.update("reverted", "lost").await;
    for round in 0..LOST_WRITES {
        space.update("changed", &format!("lost {round}")).await;
    }
    space.update("lost", "lost last").await
}

/// Asserts what the restored backup has made of the config maps of [`prepare`], and that every id still has one content.
fn assert_restored(kubetide: &Instance, before: usize, records: &[Value], space: &Space) {
    let new = &records[before..];
    let finished = assert_one_gap(new, &space.stream(), "version_regressed");
    assert_eq!(ops_of(new, "lost"), [("delete", "list")]);
    assert_eq!(changes_of(new, "lost")[0].1["object"]["data"]["value"], "lost last", "with the last known state");
    assert_eq!(ops_of(new, "deleted"), [("create", "list")]);
    assert_eq!(ops_of(new, "reverted"), [("update", "list")]);
    assert_eq!(ops_of(new, "kept"), [], "what the backup has as it was is not told again");
    assert_eq!(finished["counts"]["delete"], 1);
    assert_an_id_has_one_content(&kubetide.lines());
    assert_bounded_repetition(&kubetide.lines(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_restored_while_kubetide_is_stopped_is_one_gap_and_a_compare_by_content() {
    let server = Apiserver::start().await.unwrap();
    let space = Space::new(&server, "restored").await;
    prepare(&space).await;
    let backup = server.backup().await.unwrap();
    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), "");
    kubetide.start();
    kubetide.records_when_listed(1).await;
    let lost = lose(&space).await;
    let before = kubetide.records_when("the lost time is told", |r| changes_of(r, "lost").len() == 2).await;
    assert!(kubetide.terminate().success());

    server.restore(&backup).await.unwrap();
    let space = Space::at(&server, &space.namespace).await;
    space.update("changed", "after").await;
    let now = space.create("new", "after").await;
    assert!(now < lost, "the restored cluster is still behind: {now}, {lost}");
    kubetide.start();
    let mended = |r: &[Value]| count(r, "resync_finished") == 1;
    let records = kubetide.records_when("the stream is whole again", mended).await;
    assert_eq!(fold(&records), space.state().await);
    let new = &records[before.len()..];
    assert_restored(&kubetide, before.len(), &records, &space);
    assert_eq!(ops_of(new, "changed"), [("update", "list")]);
    assert_eq!(ops_of(new, "new"), [("create", "list")]);
    assert_eq!(
        controls(new, "resync_finished")[0]["counts"],
        json!({"create": 2, "update": 2, "delete": 1, "unchanged": 1})
    );

    // Versions that were told before come again, for other contents.
    for round in 0..LOST_WRITES {
        space.update("changed", &format!("after {round}")).await;
    }
    space.create("last", "after").await;
    let records = kubetide.records_when("the watch goes on", |r| !changes_of(r, "last").is_empty()).await;
    assert_eq!(count(&records, "gap"), 1);
    assert_eq!(fold(&records), space.state().await);
    let versions = |records: &[Value]| -> BTreeSet<String> {
        let of = changes_of(records, "changed");
        of.iter().map(|(_, record)| record["resource_version"].as_str().unwrap().to_owned()).collect()
    };
    let (old, new) = (versions(&records[..before.len()]), versions(&records[before.len()..]));
    let reused = old.intersection(&new).count();
    assert!(reused > 0, "no version came again");
    assert_an_id_has_one_content(&kubetide.lines());
    println!("{reused} versions of one object came again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_restored_under_a_running_kubetide_is_one_gap_and_a_compare_by_content() {
    let server = Apiserver::start().await.unwrap();
    let space = Space::new(&server, "restored").await;
    prepare(&space).await;
    let backup = server.backup().await.unwrap();
    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), "");
    kubetide.start();
    kubetide.records_when_listed(1).await;
    lose(&space).await;
    let before = kubetide.records_when("the lost time is told", |r| changes_of(r, "lost").len() == 2).await;

    server.restore(&backup).await.unwrap();
    let space = Space::at(&server, &space.namespace).await;
    let mended = |r: &[Value]| count(r, "resync_finished") == 1;
    kubetide.records_when("the stream is whole again", mended).await;
    space.create("new", "after").await;
    space.update("kept", "after").await;
    let records = kubetide.records_when("the watch goes on", |r| changes_of(r, "kept").len() == 2).await;
    assert_eq!(fold(&records), space.state().await);
    assert_eq!(ops_of(&records[before.len()..], "new"), [("create", "watch")]);
    let resync = records.iter().rposition(|record| record["op"] == "resync_finished").unwrap();
    assert_restored(&kubetide, before.len(), &records[..=resync], &space);
}

/// Writes `objects` one after the other in the very versions that they had, save with another value. False if another writer
/// came in between.
async fn write_at(space: &Space, elsewhere: &Space, objects: &BTreeMap<u64, String>) -> bool {
    let mut next = elsewhere.update("filler", "first").await + 1;
    let first = *objects.keys().next().unwrap();
    assert!(next < first, "the restored server has written too much by itself: {next}, {first}");
    for round in 0.. {
        if next >= first {
            break;
        }
        next = elsewhere.update("filler", &round.to_string()).await + 1;
    }
    for (version, name) in objects {
        while next < *version {
            next = elsewhere.update("filler", &next.to_string()).await + 1;
        }
        if space.update(name, "again").await != *version {
            return false;
        }
        next = version + 1;
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_finds_versions_that_stand_for_other_contents_than_before() {
    let server = Apiserver::start().await.unwrap();
    let (space, elsewhere) = (Space::new(&server, "reused").await, Space::new(&server, "elsewhere").await);
    for number in 0..10 {
        space.create(&format!("map-{number}"), "before").await;
    }
    elsewhere.create("filler", "before").await;
    let backup = server.backup().await.unwrap();
    let config = format!("verify: {{interval_secs: 1}}\n{SHORT_WATCHES}");
    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), &config);
    kubetide.start();
    kubetide.records_when_listed(1).await;
    // Room for what the restored server writes by itself when it starts.
    for round in 0..LOST_WRITES {
        elsewhere.update("filler", &round.to_string()).await;
    }
    let mut objects = BTreeMap::new();
    for number in 0..10 {
        let name = format!("map-{number}");
        objects.insert(space.update(&name, "lost").await, name);
    }
    let before = kubetide.records_when("the lost time is told", |r| count(r, "update") == 10).await;
    assert!(kubetide.terminate().success());
    assert_eq!(count(&before, "gap"), 0);

    // The API server writes a lease now and then; another try then.
    let mut rounds = 0;
    let space = loop {
        rounds += 1;
        assert!(rounds <= 5, "no round without a write in between");
        server.restore(&backup).await.unwrap();
        let (space, elsewhere) =
            (Space::at(&server, &space.namespace).await, Space::at(&server, &elsewhere.namespace).await);
        if write_at(&space, &elsewhere, &objects).await {
            for round in 0..20 {
                elsewhere.update("filler", &format!("beyond {round}")).await;
            }
            break space;
        }
    };
    // The versions are all as they are known. Only the contents are not.
    let expected = space.state().await;
    let versions = |state: &State| -> Vec<Value> {
        state.values().map(|object| object["metadata"]["resourceVersion"].clone()).collect()
    };
    assert_eq!(versions(&fold(&before)), versions(&expected), "every version is used again");
    assert_ne!(fold(&before), expected);

    // The stream itself is quiet: it comes to know of a later version by bookmarks, which move only if something happens.
    let _life = Life::of(Space::at(&server, &elsewhere.namespace).await);
    let since = Instant::now();
    kubetide.start();
    let mended = |r: &[Value]| count(r, "resync_finished") == 1;
    let records = kubetide.records_when("the stream is whole again", mended).await;
    println!("found and mended in {:?}, {rounds} rounds", since.elapsed());
    assert_eq!(fold(&records), expected);
    let new = &records[before.len()..];
    let finished = assert_one_gap(new, &space.stream(), "divergence");
    assert_eq!(finished["counts"], json!({"create": 0, "update": 10, "delete": 0, "unchanged": 0}));
    for name in objects.values() {
        let (was, is) = (changes_of(&before, name).last().unwrap().1, changes_of(new, name)[0].1);
        assert_eq!(was["resource_version"], is["resource_version"]);
        assert_ne!(was["id"], is["id"], "another lineage");
        assert_eq!(ops_of(new, name), [("update", "list")]);
    }
    assert_an_id_has_one_content(&kubetide.lines());
    assert_bounded_repetition(&kubetide.lines(), 0);

    // Once mended, there is nothing to find any more.
    let admin = Admin::of(&kubetide, 2).await;
    eventually("three clean verifications", async || admin.verified("clean").await.filter(|clean| *clean >= 3.0)).await;
    assert_eq!(admin.verified("diverged").await, Some(1.0));
    assert_eq!(count(&kubetide.records(), "gap"), 1);
}

/// Creates and deletes config maps, as many per second as asked for, for as long as asked for. Returns how many writes it made.
async fn churn(space: &Space, per_second: u32, lasts: Duration) -> u32 {
    const WRITERS: u32 = 16;
    let since = Instant::now();
    let writers = (0..WRITERS).map(|writer| {
        let maps = space.maps.clone();
        tokio::spawn(async move {
            let (mut turns, mut written) = (0, 0);
            while since.elapsed() < lasts {
                // Ten of each writer are there at any time; each lives a little while.
                let name = |number: u32| format!("churn-{writer}-{number}");
                let (round, is_delete) = (turns / 2, turns % 2 == 1);
                if !is_delete {
                    let map = json!({"metadata": {"name": name(round)}, "data": {"round": round.to_string()}});
                    let map = serde_json::from_value(map).unwrap();
                    maps.create(&PostParams::default(), &map).await.unwrap();
                    written += 1;
                } else if round >= 10 {
                    maps.delete(&name(round - 10), &DeleteParams::default()).await.unwrap();
                    written += 1;
                }
                turns += 1;
                let due = Duration::from_secs_f64(f64::from(turns * WRITERS) / f64::from(per_second));
                tokio::time::sleep(due.saturating_sub(since.elapsed())).await;
            }
            written
        })
    });
    let mut all = 0;
    for writer in writers.collect::<Vec<_>>() {
        all += writer.await.unwrap();
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn verification_every_second_finds_nothing_under_heavy_churn() {
    let lasts = Duration::from_secs(if is_torture() { 60 } else { 8 });
    let server = Apiserver::start().await.unwrap();
    let space = Space::new(&server, "churn").await;
    for number in 0..50 {
        space.create(&format!("base-{number}"), "1").await;
    }
    // Several pages, so that each verification takes longer and sees more going on.
    let config = "verify: {interval_secs: 1}\nlist: {page_size: 50}\n";
    let mut kubetide = Instance::new(server.kubeconfig(), &space.streams(), config);
    kubetide.start();
    kubetide.records_when_listed(1).await;
    let admin = Admin::of(&kubetide, 1).await;
    let clean_before = admin.verified("clean").await.unwrap_or(0.0);
    let since = Instant::now();
    let written = churn(&space, 1000, lasts).await;
    let took = since.elapsed().as_secs_f64();
    let clean = admin.verified("clean").await.unwrap_or(0.0) - clean_before;
    let suspects = admin.counter("kubetide_verification_suspects_total", "stream=").await.unwrap_or(0.0);
    println!(
        "{:.0} writes per second, {clean} clean verifications in {took:.1} s, {suspects} suspects",
        f64::from(written) / took
    );

    let expected = space.state().await;
    let records = kubetide.records_when("the file tells the cluster's state", |r| fold(r) == expected).await;
    assert_eq!(admin.verified("diverged").await, None);
    assert_eq!(count(&records, "gap"), 0);
    // How many depends on the machine; that there were several while everything moved does not.
    assert!(clean >= 2.0, "{clean} verifications in {took} s");
    assert!(suspects > 0.0, "nothing was ever under way: this proves nothing");
    assert_bounded_repetition(&kubetide.lines(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_watch_is_seen_in_readiness_and_rebuilt_and_nothing_is_lost() {
    let server = Apiserver::shared().await;
    let space = Space::new(server, "silent").await;
    space.create("deleted", "1").await;
    space.create("updated", "1").await;
    let proxy = Proxy::start(server.address()).unwrap();
    // The server ends each watch long before it would count as stalled, if it is heard.
    let config = "watch: {timeout_min_secs: 3, timeout_max_secs: 3, stall_timeout_secs: 5}\n";
    let mut kubetide = Instance::new(&server.kubeconfig_at(proxy.port()), &space.streams(), config);
    kubetide.start();
    kubetide.records_when_listed(1).await;
    let admin = Admin::of(&kubetide, 1).await;
    let ready = async || Some(admin.get("/readyz").await).filter(|(status, _)| *status == 200);
    eventually("it is ready", ready).await;
    tokio::time::sleep(Duration::from_secs(7)).await;
    assert_eq!(admin.counter("kubetide_stalls_total", "stream=").await, None, "a quiet stream is not a silent one");
    assert_eq!(admin.get("/readyz").await, (200, "ok".into()));

    proxy.set(Mode::Hang);
    space.delete("deleted").await;
    space.update("updated", "2").await;
    space.create("created", "2").await;
    let red = async || Some(admin.get("/readyz").await).filter(|(status, _)| *status == 503);
    let (_, page) = eventually("readiness is red", red).await;
    assert!(page.contains(&format!("[-]stream/{}", space.stream())) && page.contains("stalled"), "{page}");
    let stalls = admin.counter("kubetide_stalls_total", &format!("stream=\"{}\"", space.stream())).await;
    assert_eq!(stalls, Some(1.0));
    // It stays red for as long as nothing comes.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(admin.get("/readyz").await.0, 503);

    proxy.set(Mode::Pass);
    eventually("it is ready again", ready).await;
    let records = kubetide.records_when("the silent time is told", |r| !changes_of(r, "created").is_empty()).await;
    assert_eq!(ops_of(&records, "deleted")[1..], [("delete", "watch")]);
    assert_eq!(ops_of(&records, "updated")[1..], [("update", "watch")]);
    assert_eq!(ops_of(&records, "created"), [("create", "watch")]);
    assert_eq!(count(&records, "gap"), 0, "silence is no break in history");
    assert_eq!(fold(&records), space.state().await);
    assert_bounded_repetition(&kubetide.lines(), 0);
}

/// An address behind which one server takes the place of another, as a load balancer or a DNS name that is pointed elsewhere.
struct Address {
    port: u16,
    target: watch::Sender<SocketAddr>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Address {
    async fn of(server: &Apiserver) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = watch::Sender::new(server.address());
        let mut current = target.subscribe();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    // All connections end with the switch.
                    _ = current.changed() => connections.abort_all(),
                    accepted = listener.accept() => {
                        let (mut client, _) = accepted.unwrap();
                        let target = *current.borrow();
                        connections.spawn(async move {
                            let mut server = tokio::net::TcpStream::connect(target).await.unwrap();
                            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                        });
                    }
                }
            }
        });
        Self { port, target, accepting }
    }

    fn becomes(&self, server: &Apiserver) {
        self.target.send_replace(server.address());
    }

    /// The two servers have authorities of their own; what is behind the address is not known by its certificate.
    fn kubeconfig(&self, directory: &Path) -> PathBuf {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port), "insecure-skip-tls-verify": true}}],
            "users": [{"name": "test", "user": {"token": "admin"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        let path = directory.join("kubeconfig.yaml");
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn uid_of(server: &Apiserver) -> String {
    let namespaces = Api::<Namespace>::all(server.client().await.unwrap());
    namespaces.get("kube-system").await.unwrap().metadata.uid.unwrap()
}

/// A process of the instance's whose end the test waits for. It is killed with the value.
struct Ending(Child);

impl Ending {
    fn start(kubetide: &Instance) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(["run", "--config"]).arg(kubetide.path("kubetide.yaml")).stdin(Stdio::null());
        let output = |name: &str| File::create(kubetide.path(name)).unwrap();
        Self(command.stdout(output("ending.out")).stderr(output("ending.err")).spawn().unwrap())
    }

    /// Its exit code and what it said.
    async fn wait(&mut self, kubetide: &Instance) -> (Option<i32>, String) {
        let status = eventually("it ends", async || self.0.try_wait().unwrap()).await;
        (status.code(), std::fs::read_to_string(kubetide.path("ending.err")).unwrap())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn assert_names_both_clusters((code, said): (Option<i32>, String), known: &str, found: &str) {
    assert_eq!(code, Some(1), "{said}");
    let error = said.lines().find(|line| line.starts_with("error: ")).expect("it says why");
    assert!(error.contains(known) && error.contains(found) && error.contains("--accept-new-cluster"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_is_refused_unless_accepted_and_then_takes_the_place_of_the_old_one() {
    let (old, new) = tokio::join!(Apiserver::start(), Apiserver::start());
    let (old, new) = (old.unwrap(), new.unwrap());
    let (known, found) = (uid_of(&old).await, uid_of(&new).await);
    let (before, after) = (Space::at(&old, "default").await, Space::at(&new, "default").await);
    for name in ["only-old", "both"] {
        before.create(name, "old").await;
    }
    for name in ["both", "only-new"] {
        after.create(name, "new").await;
    }
    let address = Address::of(&old).await;
    let directory = tempfile::tempdir().unwrap();
    let streams = [("configmaps", "default"), ("services", "default")];
    let mut kubetide = Instance::new(&address.kubeconfig(directory.path()), &streams, "");
    kubetide.start();
    let told = kubetide.records_when_listed(2).await;
    assert!(kubetide.terminate().success());

    address.becomes(&new);
    assert_names_both_clusters(Ending::start(&kubetide).wait(&kubetide).await, &known, &found);
    assert_eq!(kubetide.records().len(), told.len(), "nothing was told of it");

    kubetide.start_with(|command| {
        command.arg("--accept-new-cluster");
    });
    let records = kubetide.records_when("both are compared", |r| count(r, "resync_finished") == 2).await;
    assert!(kubetide.terminate().success());
    let fresh = &records[told.len()..];
    let gaps = controls(fresh, "gap");
    let streams: BTreeSet<&str> = gaps.iter().map(|gap| gap["stream"].as_str().unwrap()).collect();
    assert_eq!((gaps.len(), streams.len()), (2, 2), "one gap per stream");
    assert_eq!(ops_of(fresh, "only-old"), [("delete", "list")]);
    assert_eq!(ops_of(fresh, "both"), [("delete", "list"), ("create", "list")]);
    assert_eq!(ops_of(fresh, "only-new"), [("create", "list")]);
    assert_eq!(ops_of(fresh, "kubernetes"), [("delete", "list"), ("create", "list")]);
    assert!(told.iter().all(|record| record["cluster"]["uid"] == known.as_str()));
    assert!(fresh.iter().all(|record| record["cluster"]["uid"] == found.as_str()));
    let mut expected = after.state().await;
    let path = "/api/v1/namespaces/default/services";
    expected.extend(listed(&after.client, "core/services@default", path, "v1", "Service").await);
    assert_eq!(fold(&records), expected);

    // It is the data directory's cluster now.
    kubetide.start();
    after.create("later", "new").await;
    let records = kubetide.records_when("the watch goes on", |r| !changes_of(r, "later").is_empty()).await;
    assert!(kubetide.terminate().success());
    assert_eq!(ops_of(&records, "later"), [("create", "watch")]);
    assert_eq!(count(&records, "gap"), 2);
    assert_an_id_has_one_content(&kubetide.lines());

    // Another cluster takes the address while the process runs: it ends, and nothing of the other cluster is told.
    let mut running = Ending::start(&kubetide);
    after.create("last", "new").await;
    kubetide.records_when("it runs", |r| !changes_of(r, "last").is_empty()).await;
    address.becomes(&old);
    before.create("never", "old").await;
    assert_names_both_clusters(running.wait(&kubetide).await, &found, &known);
    assert_eq!(kubetide.records().len(), records.len() + 1);
}

fn deployment(name: &str, replicas: i32, image: &str) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": image}]}}},
    }))
    .unwrap()
}

/// What the controllers make of deployments, and how it is listed.
const WORKLOADS: [(&str, &str, &str, &str); 4] = [
    ("apps/deployments", "deployments.apps", "apps/v1", "Deployment"),
    ("apps/replicasets", "replicasets.apps", "apps/v1", "ReplicaSet"),
    ("core/pods", "pods", "v1", "Pod"),
    ("events.k8s.io/events", "events.events.k8s.io", "events.k8s.io/v1", "Event"),
];

async fn workloads(client: &Client, namespace: &str) -> State {
    let mut state = State::new();
    for (stream, _, api_version, kind) in WORKLOADS {
        let root = if api_version == "v1" { "api" } else { "apis" };
        let resource = stream.rsplit('/').next().unwrap();
        let path = format!("/{root}/{api_version}/namespaces/{namespace}/{resource}");
        state.extend(listed(client, &format!("{stream}@{namespace}"), &path, api_version, kind).await);
    }
    state
}

/// Each object's records come in the order of its versions, and each continues from the one before it.
fn assert_in_order_of_versions(records: &[Value]) {
    let mut last: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let mut told = BTreeSet::new();
    for record in records.iter().filter(|record| record["uid"].is_string()) {
        if !told.insert(record["id"].as_str().unwrap()) {
            // A kill may repeat a batch.
            continue;
        }
        let text = |key: &str| record[key].as_str().unwrap();
        let number = |version: &str| version.parse::<u64>().unwrap();
        let before = last.insert((text("stream"), text("uid")), text("resource_version"));
        assert_eq!(record["previous_resource_version"].as_str(), before, "{record}");
        let later = before.is_none_or(|before| number(before) < number(text("resource_version")));
        assert!(later, "{before:?}, then {record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_at_work_and_kills_leave_what_the_cluster_has() {
    let kills = if is_torture() { 20 } else { 5 };
    let server = Apiserver::shared().await;
    let _controllers = server.controller_manager().await.unwrap();
    let (client, namespace) = (server.client().await.unwrap(), server.namespace("work").await.unwrap());
    let deployments = Api::<Deployment>::namespaced(client.clone(), &namespace);
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let streams = WORKLOADS.map(|(_, word, _, _)| (word, namespace.as_str()));
    let mut kubetide = Instance::new(server.kubeconfig(), &streams, "");
    kubetide.start();
    kubetide.records_when_listed(4).await;

    let web = "app=web";
    let count_is = async |wanted: usize, image: &str| {
        eventually(&format!("there are {wanted} pods of {image}"), async || {
            let found = pods.list(&ListParams::default().labels(web)).await.unwrap().items;
            let is = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].image.as_deref() == Some(image);
            (found.len() == wanted && found.iter().all(is)).then_some(())
        })
        .await;
    };
    let scale = async |replicas: i32| {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
    };
    deployments.create(&PostParams::default(), &deployment("stays", 3, "example.com/stays:1")).await.unwrap();
    let work = async || {
        deployments.create(&PostParams::default(), &deployment("web", 30, "example.com/web:1")).await.unwrap();
        count_is(30, "example.com/web:1").await;
        scale(10).await;
        count_is(10, "example.com/web:1").await;
        scale(40).await;
        count_is(40, "example.com/web:1").await;
        // Rolled at once: without a kubelet no pod becomes ready.
        let template = json!({"strategy": {"type": "Recreate", "rollingUpdate": null}, "template": {"spec": {
            "containers": [{"name": "c", "image": "example.com/web:2"}]}}});
        let patch = Patch::Strategic(json!({"spec": template}));
        deployments.patch("web", &PatchParams::default(), &patch).await.unwrap();
        count_is(40, "example.com/web:2").await;
        deployments.delete("web", &DeleteParams::background()).await.unwrap();
        count_is(0, "").await;
    };
    let killing = async {
        for _ in 0..kills {
            tokio::time::sleep(Duration::from_millis(rand::random_range(200..1500))).await;
            kubetide.kill();
            kubetide.start();
        }
    };
    let working = async {
        // About as long as the kills take.
        for _ in 0..kills / 5 {
            work().await;
        }
    };
    tokio::join!(working, killing);

    // The controllers have settled when nothing changes any more.
    let mut expected = workloads(&client, &namespace).await;
    eventually("the controllers have settled", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = workloads(&client, &namespace).await;
        (now == std::mem::replace(&mut expected, now.clone())).then_some(())
    })
    .await;
    let records = kubetide.records_when("the file tells the cluster's state", |r| fold(r) == expected).await;
    assert!(kubetide.terminate().success());
    assert_eq!(count(&records, "gap"), 0, "a kill is not a break in history");
    let of = |stream: &str, op: &str| {
        let stream = format!("{stream}@{namespace}");
        records.iter().filter(|record| record["stream"] == stream.as_str() && record["op"] == op).count()
    };
    assert!(of("core/pods", "create") >= 103, "{}", of("core/pods", "create"));
    assert!(of("core/pods", "delete") >= 100 && of("events.k8s.io/events", "create") > 10);
    assert_in_order_of_versions(&records);
    let repeated = assert_bounded_repetition(&kubetide.lines(), kills);
    println!("{kills} kills, {} records, {repeated} repeated, {} objects at the end", records.len(), expected.len());
}

/// Writes other streams into the configuration of a stopped instance.
fn follow_instead(kubetide: &Instance, streams: &[(&str, &str)]) {
    let path = kubetide.path("kubetide.yaml");
    let config = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = config.split_once("streams:\n").unwrap();
    let (_, after) = rest.split_once("sinks:\n").unwrap();
    let entry =
        |(resource, namespace): &(&str, &str)| format!("  - {{resource: {resource}, namespaces: [{namespace}]}}\n");
    let streams: String = streams.iter().map(entry).collect();
    std::fs::write(path, format!("{before}streams:\n{streams}sinks:\n{after}")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_comes_and_goes_with_the_configuration_and_the_others_stay_where_they_were() {
    let server = Apiserver::start().await.unwrap();
    let space = Space::new(&server, "config").await;
    let namespace = space.namespace.as_str();
    let deployments = Api::<Deployment>::namespaced(space.client.clone(), namespace);
    let create = async |name: &str| {
        deployments.create(&PostParams::default(), &deployment(name, 1, "example.com/app:1")).await.unwrap();
    };
    space.create("a", "1").await;
    create("kept").await;
    create("deleted").await;
    let (maps, deploys) = (("configmaps", namespace), ("deployments.apps", namespace));
    let accounts = ("serviceaccounts", namespace);
    // In pages, so that the API server counts them as LISTs.
    let mut kubetide = Instance::new(server.kubeconfig(), &[maps, deploys], "list: {streaming: never}\n");
    kubetide.start();
    kubetide.records_when_listed(2).await;
    assert!(kubetide.terminate().success());
    let lists_before = server.requests().await.unwrap();
    assert!(lists_before.lists("configmaps") > 0, "the first start has listed");

    // One goes, another comes.
    follow_instead(&kubetide, &[maps, accounts]);
    kubetide.start();
    kubetide.records_when_listed(3).await;
    space.create("b", "1").await;
    let records = kubetide.records_when("the watch goes on", |r| !changes_of(r, "b").is_empty()).await;
    assert!(kubetide.terminate().success());
    let removed = controls(&records, "stream_removed");
    assert_eq!(removed.len(), 1);
    assert_eq!(removed[0]["stream"], format!("apps/deployments@{namespace}"));
    assert_eq!((count(&records, "delete"), count(&records, "gap")), (0, 0));

    // It is told once, and what happens to it meanwhile is not.
    kubetide.start();
    deployments.delete("deleted", &DeleteParams::default()).await.unwrap();
    create("created").await;
    space.create("c", "1").await;
    let records = kubetide.records_when("the watch goes on", |r| !changes_of(r, "c").is_empty()).await;
    assert!(kubetide.terminate().success());
    assert_eq!(count(&records, "stream_removed"), 1);
    assert!(changes_of(&records, "created").is_empty());
    let deployments_before = server.requests().await.unwrap();
    assert_eq!(deployments_before.since(&lists_before).lists("deployments.apps"), 0);

    // It comes back, and the other one goes.
    follow_instead(&kubetide, &[maps, deploys]);
    kubetide.start();
    space.create("d", "1").await;
    let back = |r: &[Value]| count(r, "resync_finished") == 1 && !changes_of(r, "d").is_empty();
    let all = kubetide.records_when("it is compared", back).await;
    assert!(kubetide.terminate().success());
    let new = &all[records.len()..];
    let finished = assert_one_gap(new, &format!("apps/deployments@{namespace}"), "config_changed");
    assert_eq!(finished["counts"], json!({"create": 1, "update": 0, "delete": 1, "unchanged": 1}));
    assert_eq!(ops_of(new, "deleted"), [("delete", "list")]);
    assert_eq!(ops_of(new, "created"), [("create", "list")]);
    assert_eq!(ops_of(new, "kept"), [("snapshot", "list")], "for whoever was given everything meanwhile");
    assert_eq!(controls(new, "stream_removed")[0]["stream"], format!("core/serviceaccounts@{namespace}"));
    let lists = server.requests().await.unwrap().since(&lists_before);
    assert_eq!(lists.lists("configmaps"), 0, "the one that stayed was never listed again");
    assert_eq!(lists.lists("deployments.apps"), 1);
    let maps = ["b", "c", "d"].map(|name| ops_of(&all, name));
    assert_eq!(maps, [const { [("create", "watch")] }; 3].map(Vec::from));
    assert_eq!(count(&all, "snapshot_started"), 3, "once for each stream there ever was");
    assert_bounded_repetition(&kubetide.lines(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_forgotten_in_a_long_pause_is_one_gap_per_stream_and_its_deletes_are_inferred() {
    let server = Apiserver::start().await.unwrap();
    let spaces = [Space::new(&server, "one").await, Space::new(&server, "two").await];
    for space in &spaces {
        for name in ["kept", "updated", "deleted"] {
            space.create(name, &format!("{name} in {}", space.namespace)).await;
        }
    }
    // Events are served from etcd, all others from the API server's memory: each has its own way to forget.
    let events = ("events.events.k8s.io", spaces[0].namespace.as_str());
    let streams = [spaces[0].streams()[0], spaces[1].streams()[0], events];
    let mut kubetide = Instance::new(server.kubeconfig(), &streams, "");
    kubetide.start();
    let before = kubetide.records_when_listed(3).await;
    assert!(kubetide.terminate().success());
    for space in &spaces {
        space.delete("deleted").await;
        space.update("updated", "later").await;
        space.create("created", "later").await;
    }
    server.forget_history().await.unwrap();
    kubetide.start();
    let mended = |r: &[Value]| count(r, "resync_finished") == 3;
    let records = kubetide.records_when("all are whole again", mended).await;
    let new = &records[before.len()..];
    let gaps = controls(new, "gap");
    let streams: BTreeSet<&str> = gaps.iter().map(|gap| gap["stream"].as_str().unwrap()).collect();
    assert_eq!((gaps.len(), streams.len()), (3, 3), "one gap per stream");
    assert!(gaps.iter().all(|gap| gap["reason"] == "expired"), "{gaps:?}");
    let mut expected = State::new();
    for space in &spaces {
        let space = Space::at(&server, &space.namespace).await;
        let of: Vec<Value> = new.iter().filter(|r| r["stream"] == space.stream().as_str()).cloned().collect();
        let (delete, was) = (changes_of(&of, "deleted")[0], changes_of(&before, "deleted"));
        let was = was.iter().find(|(_, record)| record["namespace"] == space.namespace.as_str()).unwrap().1;
        assert_eq!((delete.0, &delete.1["origin"]), ("delete", &json!("list")));
        assert_eq!((&delete.1["object"], &delete.1["uid"]), (&was["object"], &was["uid"]), "with the last known state");
        assert_eq!(ops_of(&of, "updated"), [("update", "list")]);
        assert_eq!(ops_of(&of, "created"), [("create", "list")]);
        assert_eq!(ops_of(&of, "kept"), []);
        expected.extend(space.state().await);
    }
    assert_eq!(fold(&records), expected);
    assert_an_id_has_one_content(&kubetide.lines());
    assert_bounded_repetition(&kubetide.lines(), 0);
}
