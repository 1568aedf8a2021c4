//! Realistic objects as recipes: a few numbers that render, with the object's version, into the bytes that a
//! real cluster would hold, managedFields and all. The same recipe always gives the same bytes.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::dice::{letters, mix, suffix};
use crate::object::{Draft, Text};
use crate::pod;

/// What a workload's objects share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) namespace: Arc<str>,
    pub(crate) name: String,
    pub(crate) uid: u128,
    pub(crate) seed: u64,
    pub(crate) created: i64,
}

impl App {
    /// `web-6c9d4b7f5d`: the ReplicaSet of a revision.
    pub(crate) fn replica_set(&self, revision: u32) -> String {
        format!("{}-{}", self.name, self.template_hash(revision))
    }

    pub(crate) fn template_hash(&self, revision: u32) -> String {
        letters(self.seed ^ u64::from(revision), 10)
    }
}

/// How far a Pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Scheduled,
    Running,
    Terminating,
}

/// An object in a few numbers. Times are virtual seconds.
#[derive(Clone, Debug)]
pub(crate) enum Recipe {
    Deployment(Deployment),
    ReplicaSet(ReplicaSet),
    Pod(Pod),
    Plain(Plain),
}

#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    pub(crate) app: Arc<App>,
    pub(crate) replicas: u32,
    pub(crate) ready: u32,
    pub(crate) revision: u32,
    pub(crate) generation: u32,
    /// Who wrote the spec last, and when.
    pub(crate) editor: &'static str,
    pub(crate) edited: i64,
    /// When the controller wrote the status last.
    pub(crate) at: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct ReplicaSet {
    pub(crate) app: Arc<App>,
    pub(crate) uid: u128,
    pub(crate) revision: u32,
    pub(crate) replicas: u32,
    pub(crate) ready: u32,
    pub(crate) created: i64,
    pub(crate) at: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) app: Arc<App>,
    pub(crate) owner: u128,
    pub(crate) uid: u128,
    pub(crate) revision: u32,
    pub(crate) phase: Phase,
    pub(crate) created: i64,
    pub(crate) at: i64,
}

impl Pod {
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.app.replica_set(self.revision), suffix(self.uid as u64))
    }

    pub(crate) fn node(&self) -> String {
        format!("node-{}", self.uid % 4)
    }
}

/// The kinds that need no more than a name, a seed and a count of edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Namespace,
    Node,
    ConfigMap,
    Secret,
    Service,
    Lease,
    Widget,
}

#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub(crate) sort: Sort,
    pub(crate) namespace: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) uid: u128,
    pub(crate) edits: u32,
    pub(crate) created: i64,
    pub(crate) at: i64,
}

impl Recipe {
    pub(crate) fn namespace(name: &str, uid: u128, now: i64) -> Self {
        let (namespace, name) = (Arc::from(""), Arc::from(name));
        Self::Plain(Plain { sort: Sort::Namespace, namespace, name, uid, edits: 0, created: now, at: now })
    }

    pub(crate) fn resource(&self) -> &'static str {
        match self {
            Self::Deployment(_) => "deployments.apps",
            Self::ReplicaSet(_) => "replicasets.apps",
            Self::Pod(_) => "pods",
            Self::Plain(plain) => match plain.sort {
                Sort::Namespace => "namespaces",
                Sort::Node => "nodes",
                Sort::ConfigMap => "configmaps",
                Sort::Secret => "secrets",
                Sort::Service => "services",
                Sort::Lease => "leases.coordination.k8s.io",
                Sort::Widget => "widgets.shop.example.com",
            },
        }
    }

    /// `namespace/name`, or `name`.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Deployment(it) => format!("{}/{}", it.app.namespace, it.app.name),
            Self::ReplicaSet(it) => {
                format!("{}/{}", it.app.namespace, it.app.replica_set(it.revision))
            }
            Self::Pod(it) => format!("{}/{}", it.app.namespace, it.name()),
            Self::Plain(it) => crate::cluster::key_of(&it.namespace, &it.name),
        }
    }

    pub(crate) fn render(&self, version: u64) -> Text {
        let mut draft = Draft::new();
        match self {
            Self::Deployment(it) => pod::deployment(it, version, &mut draft),
            Self::ReplicaSet(it) => pod::replica_set(it, version, &mut draft),
            Self::Pod(it) => pod::pod(it, version, &mut draft),
            Self::Plain(it) => it.render(version, &mut draft),
        }
        draft.finish()
    }
}

/// The metadata that every object has; what follows the labels is the caller's.
pub(crate) struct Identity<'a> {
    pub(crate) name: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) uid: u128,
    pub(crate) version: u64,
    pub(crate) generation: Option<u32>,
    pub(crate) created: i64,
    pub(crate) labels: &'a str,
}

impl Identity<'_> {
    pub(crate) fn write(&self, out: &mut Draft) {
        out.open_metadata();
        put(out, format_args!(r#""name":"{}","#, self.name));
        if !self.namespace.is_empty() {
            put(out, format_args!(r#""namespace":"{}","#, self.namespace));
        }
        put(out, format_args!(r#""uid":"{}","#, uid_text(self.uid)));
        out.version(self.version);
        if let Some(generation) = self.generation {
            put(out, format_args!(r#","generation":{generation}"#));
        }
        put(out, format_args!(r#","creationTimestamp":"{}""#, clock(self.created)));
        out.labels(self.labels);
    }
}

/// Writes into a draft, which cannot fail.
pub(crate) fn put(out: &mut Draft, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// One managedFields entry; `fields` is the FieldsV1 object as JSON.
pub(crate) fn managed(out: &mut Draft, manager: &str, api_version: &str, at: i64, fields: &str, subresource: &str) {
    put(
        out,
        format_args!(
            r#"{{"manager":"{manager}","operation":"Update","apiVersion":"{api_version}","time":"{}","fieldsType":"FieldsV1","fieldsV1":{fields}"#,
            clock(at)
        ),
    );
    if !subresource.is_empty() {
        put(out, format_args!(r#","subresource":"{subresource}""#));
    }
    out.push("}");
}

impl Plain {
    fn render(&self, version: u64, out: &mut Draft) {
        let seed = self.uid as u64;
        let custom = self.sort == Sort::Widget;
        out.push("{");
        let labels = match self.sort {
            Sort::Namespace => format!(r#"{{"kubernetes.io/metadata.name":"{}"}}"#, self.name),
            _ => format!(r#"{{"app.kubernetes.io/name":"{0}","team":"team-{1}"}}"#, self.name, seed % 7),
        };
        let generation = custom.then_some(self.edits + 1);
        let (name, namespace) = (&*self.name, &*self.namespace);
        let (uid, created, labels) = (self.uid, self.created, labels.as_str());
        Identity { name, namespace, uid, version, generation, created, labels }.write(out);
        let (manager, api_version, fields) = match self.sort {
            Sort::Namespace => {
                ("kubectl-create", "v1", r#"{"f:metadata":{"f:labels":{".":{},"f:kubernetes.io/metadata.name":{}}}}"#)
            }
            Sort::Node => ("kubelet", "v1", r#"{"f:metadata":{"f:labels":{}},"f:status":{"f:conditions":{}}}"#),
            Sort::ConfigMap => {
                ("kubectl-client-side-apply", "v1", r#"{"f:data":{".":{}},"f:metadata":{"f:labels":{}}}"#)
            }
            Sort::Secret => {
                ("external-secrets", "v1", r#"{"f:data":{".":{},"f:password":{},"f:token":{}},"f:type":{}}"#)
            }
            Sort::Service => ("argocd-controller", "v1", r#"{"f:spec":{"f:ports":{},"f:selector":{},"f:type":{}}}"#),
            Sort::Lease => {
                ("kubelet", "coordination.k8s.io/v1", r#"{"f:spec":{"f:holderIdentity":{},"f:renewTime":{}}}"#)
            }
            Sort::Widget => {
                ("kubectl-edit", "shop.example.com/v1", r#"{"f:spec":{".":{},"f:colour":{},"f:size":{},"f:parts":{}}}"#)
            }
        };
        out.push(r#","managedFields":["#);
        managed(out, manager, api_version, self.at, fields, "");
        out.push("]");
        out.close_metadata();
        self.content(mix(seed ^ u64::from(self.edits)), out);
    }

    /// What the object says; `turn` changes with every edit, the size does not.
    fn content(&self, turn: u64, out: &mut Draft) {
        let seed = self.uid as u64;
        match self.sort {
            Sort::Namespace => out.push(r#","spec":{"finalizers":["kubernetes"]},"status":{"phase":"Active"}"#),
            Sort::Node => put(
                out,
                format_args!(
                    r#","spec":{{"podCIDR":"10.244.{}.0/24"}},"status":{{"capacity":{{"cpu":"16","memory":"65536Mi","pods":"110"}},"conditions":[{{"type":"Ready","status":"True","lastHeartbeatTime":"{}","reason":"KubeletReady","message":"kubelet is posting ready status"}}],"nodeInfo":{{"kubeletVersion":"v1.36.3"}}}}"#,
                    seed % 250,
                    clock(self.at)
                ),
            ),
            Sort::ConfigMap => {
                put(out, format_args!(r#","data":{{"revision":"{}","application.properties":""#, self.edits));
                // 1 to 3 KB in all; one line changes with each edit.
                for line in 0..12 + seed % 28 {
                    let value = if line == turn % 12 { turn } else { mix(seed ^ line) };
                    put(out, format_args!(r"server.setting.{line}=value-{value:016x}-{line}\n"));
                }
                out.push(r#""}"#);
            }
            Sort::Secret => {
                let (a, b) = (mix(turn), mix(turn ^ 1));
                // Hexadecimal digits are valid base64, in a length that is a multiple of four.
                put(
                    out,
                    format_args!(
                        r#","data":{{"password":"{a:016x}{b:016x}","token":"{b:016x}{a:016x}{a:016x}{b:016x}"}},"type":"Opaque""#
                    ),
                );
            }
            Sort::Service => put(
                out,
                format_args!(
                    r#","spec":{{"ports":[{{"name":"http","protocol":"TCP","port":80,"targetPort":8080}}],"selector":{{"app":"{}"}},"clusterIP":"10.96.{}.{}","type":"ClusterIP","sessionAffinity":"None","internalTrafficPolicy":"Cluster"}},"status":{{"loadBalancer":{{}}}}"#,
                    self.name,
                    seed % 250,
                    (seed >> 8) % 250
                ),
            ),
            Sort::Lease => put(
                out,
                format_args!(
                    r#","spec":{{"holderIdentity":"{}","leaseDurationSeconds":40,"renewTime":"{}.000000Z"}}"#,
                    self.name,
                    clock(self.at).trim_end_matches('Z')
                ),
            ),
            Sort::Widget => put(
                out,
                format_args!(
                    r#","spec":{{"colour":"{}","size":{},"parts":[{{"name":"handle","count":{}}},{{"name":"wheel","count":4}}]}}"#,
                    ["red", "green", "blue", "black"][(turn % 4) as usize],
                    1 + turn % 40,
                    1 + turn % 3
                ),
            ),
        }
    }
}

/// A uid as Kubernetes writes it (a version 4 UUID).
pub(crate) fn uid_text(uid: u128) -> String {
    let (a, b) = ((uid >> 64) as u64, uid as u64);
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | ((b >> 48) & 0x3fff),
        b & 0xffff_ffff_ffff
    )
}

/// Virtual seconds as RFC 3339.
pub(crate) fn clock(seconds: i64) -> String {
    // The virtual clock starts in 2026 and rises slowly: always in range.
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}
