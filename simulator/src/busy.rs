//! A busy cluster: Deployments that roll out and scale, Pods that come, run and go, ConfigMaps and Secrets that
//! are edited, namespaces that live and die. One step is one write, as a watcher would see it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::dice::Dice;
use crate::manifest::{App, Deployment, Phase, Plain, Pod, Recipe, ReplicaSet, Sort};

const NAMES: [&str; 16] = [
    "web",
    "api",
    "checkout",
    "payments",
    "search",
    "catalog",
    "cart",
    "mailer",
    "ledger",
    "gateway",
    "sessions",
    "reports",
    "inventory",
    "pricing",
    "reviews",
    "shipping",
];
const TEAMS: [&str; 4] = ["shop", "billing", "platform", "growth"];
const EDITORS: [&str; 3] = ["kubectl-edit", "argocd-controller", "kubectl-client-side-apply"];

/// Writes that may wait: a few rollouts at once, and no more as time goes on.
const MOST_TASKS: usize = 60;
/// Short-lived namespaces and custom objects at one time.
const MOST_PASSING: usize = 6;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A Deployment got a new revision.
    Rollout,
    /// A Deployment's replica count was edited.
    Scale,
    /// A rollout or a scaling went on: a ReplicaSet, a Pod or a Deployment's status changed.
    Progress,
    /// A ConfigMap was edited.
    ConfigMap,
    /// A Secret was rotated.
    Secret,
    /// A custom object was edited, created or deleted.
    Custom,
    /// A namespace was created or deleted.
    Namespace,
    /// A node's lease was renewed.
    Heartbeat,
}

/// A workload with its current objects.
#[derive(Debug)]
struct Workload {
    deployment: Deployment,
    set: ReplicaSet,
    pods: Vec<Pod>,
    /// A rollout or a scaling is under way: the next waits for its end.
    moving: bool,
}

/// A write that waits for its turn.
#[derive(Debug)]
enum Task {
    Create(Recipe),
    Revise(Recipe),
    Delete(&'static str, String),
    /// A Pod of a workload reaches a phase; from Terminating on it is deleted by a task of its own.
    Pod(usize, u128, Phase),
    /// A workload starts a Pod.
    Start(usize),
    /// A workload's status catches up.
    Status(usize),
}

/// Makes a cluster busy; the same seed makes the same sequence of actions.
#[derive(Debug)]
pub struct Busy {
    dice: Dice,
    workloads: Vec<Workload>,
    plain: Vec<Plain>,
    tasks: VecDeque<Task>,
    made: u64,
}

impl Busy {
    /// A source of actions; it settles in the cluster with its first step.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), workloads: Vec::new(), plain: Vec::new(), tasks: VecDeque::new(), made: 0 }
    }

    /// Creates this many workloads, each with its Pods, ConfigMap, Secret, Service and Widget, at once.
    pub fn settle(&mut self, cluster: &Cluster, workloads: usize) {
        for team in TEAMS {
            if cluster.get("namespaces", "", team).is_none() {
                let (uid, now) = stamp(cluster);
                cluster.put_recipe(Recipe::namespace(team, uid, now));
            }
        }
        for number in 0..4 {
            let name = format!("node-{number}");
            self.make(cluster, Sort::Node, "", &name);
            self.make(cluster, Sort::Lease, "kube-node-lease", &name);
        }
        for _ in 0..workloads {
            self.launch(cluster);
        }
    }

    /// One action.
    pub fn step(&mut self, cluster: &Cluster) -> Action {
        if self.workloads.is_empty() {
            self.settle(cluster, 12);
        }
        // Work in progress goes first most of the time, so that rollouts overlap with edits; much of it goes first always.
        if !self.tasks.is_empty() && (self.tasks.len() > MOST_TASKS || self.dice.below(4) > 0) {
            return self.go_on(cluster);
        }
        match self.dice.below(100) {
            0..20 => self.roll_out(cluster),
            20..35 => self.scale(cluster),
            35..60 => self.edit(cluster, Sort::ConfigMap, Action::ConfigMap),
            60..68 => self.edit(cluster, Sort::Secret, Action::Secret),
            68..80 => self.edit(cluster, Sort::Widget, Action::Custom),
            80..84 => self.come_and_go(cluster),
            84..86 => self.namespace(cluster),
            86..96 => self.edit(cluster, Sort::Lease, Action::Heartbeat),
            _ => self.replace_pod(cluster),
        }
    }

    /// Steps until the cluster's version has risen by at least `versions`.
    pub fn run(&mut self, cluster: &Cluster, versions: u64) {
        let target = cluster.version() + versions;
        while cluster.version() < target {
            self.step(cluster);
        }
    }

    fn launch(&mut self, cluster: &Cluster) {
        let number = self.workloads.len();
        let team = TEAMS[self.dice.below(TEAMS.len())];
        let base = NAMES[number % NAMES.len()];
        let name = if number < NAMES.len() { base.to_owned() } else { format!("{base}-{}", number / NAMES.len()) };
        let (uid, now) = stamp(cluster);
        let app = Arc::new(App { namespace: team.into(), name, uid, seed: self.dice.roll(), created: now });
        for sort in [Sort::ConfigMap, Sort::Secret, Sort::Service, Sort::Widget] {
            let suffix = match sort {
                Sort::ConfigMap => "-config",
                Sort::Secret => "-credentials",
                _ => "",
            };
            self.make(cluster, sort, team, &format!("{}{suffix}", app.name));
        }
        let replicas = 2 + self.dice.below(3) as u32;
        let creator = if app.seed.is_multiple_of(2) { "kubectl-client-side-apply" } else { "argocd-controller" };
        let deployment = Deployment {
            app: Arc::clone(&app),
            replicas,
            ready: replicas,
            revision: 1,
            generation: 1,
            editor: creator,
            edited: now,
            at: now,
        };
        let (uid, now) = stamp(cluster);
        let set = ReplicaSet { app, uid, revision: 1, replicas, ready: replicas, created: now, at: now };
        cluster.put_recipe(Recipe::Deployment(deployment.clone()));
        cluster.put_recipe(Recipe::ReplicaSet(set.clone()));
        let mut workload = Workload { deployment, set, pods: Vec::new(), moving: false };
        for _ in 0..replicas {
            let mut pod = workload.new_pod(cluster);
            pod.phase = Phase::Running;
            cluster.put_recipe(Recipe::Pod(pod.clone()));
            workload.pods.push(pod);
        }
        self.workloads.push(workload);
    }

    fn make(&mut self, cluster: &Cluster, sort: Sort, namespace: &str, name: &str) {
        let (uid, now) = stamp(cluster);
        let plain =
            Plain { sort, namespace: namespace.into(), name: name.into(), uid, edits: 0, created: now, at: now };
        cluster.put_recipe(Recipe::Plain(plain.clone()));
        self.plain.push(plain);
    }

    fn go_on(&mut self, cluster: &Cluster) -> Action {
        let Some(task) = self.tasks.pop_front() else {
            return Action::Progress;
        };
        match task {
            Task::Create(recipe) => {
                cluster.put_recipe(recipe);
            }
            Task::Revise(recipe) => cluster.revise(recipe),
            Task::Delete(resource, key) => {
                let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
                // A test may have deleted it already.
                let _ = cluster.delete(resource, namespace, name);
            }
            Task::Start(at) => {
                let Some(workload) = self.workloads.get_mut(at) else {
                    return Action::Progress;
                };
                let pod = workload.new_pod(cluster);
                cluster.put_recipe(Recipe::Pod(pod.clone()));
                self.tasks.push_back(Task::Pod(at, pod.uid, Phase::Scheduled));
                self.tasks.push_back(Task::Pod(at, pod.uid, Phase::Running));
                workload.pods.push(pod);
            }
            Task::Pod(at, uid, phase) => self.advance(cluster, at, uid, phase),
            Task::Status(at) => {
                let Some(workload) = self.workloads.get_mut(at) else {
                    return Action::Progress;
                };
                let now = cluster.lock().now();
                let ready = workload.pods.iter().filter(|pod| pod.phase == Phase::Running).count() as u32;
                workload.deployment.ready = ready;
                workload.deployment.at = now;
                workload.set.ready = ready;
                workload.set.at = now;
                cluster.revise(Recipe::Deployment(workload.deployment.clone()));
                workload.moving = ready as usize != workload.pods.len();
                if workload.moving {
                    self.tasks.push_back(Task::Status(at));
                }
                self.tasks.push_back(Task::Revise(Recipe::ReplicaSet(workload.set.clone())));
            }
        }
        Action::Progress
    }

    fn advance(&mut self, cluster: &Cluster, at: usize, uid: u128, phase: Phase) {
        let Some(workload) = self.workloads.get_mut(at) else {
            return;
        };
        let Some(index) = workload.pods.iter().position(|pod| pod.uid == uid) else {
            return;
        };
        let pod = &mut workload.pods[index];
        // A Pod that is going does not come back.
        if pod.phase == Phase::Terminating {
            return;
        }
        pod.phase = phase;
        pod.at = cluster.lock().now();
        let recipe = Recipe::Pod(pod.clone());
        if phase == Phase::Terminating {
            self.tasks.push_back(Task::Delete("pods", recipe.key()));
            workload.pods.remove(index);
        }
        cluster.revise(recipe);
    }

    fn roll_out(&mut self, cluster: &Cluster) -> Action {
        let Some(at) = self.resting() else { return self.go_on(cluster) };
        let editor = EDITORS[self.dice.below(EDITORS.len())];
        let Some(workload) = self.workloads.get_mut(at) else {
            return Action::Rollout;
        };
        let (uid, now) = stamp(cluster);
        workload.moving = true;
        let deployment = &mut workload.deployment;
        deployment.revision += 1;
        deployment.generation += 1;
        (deployment.editor, deployment.edited) = (editor, now);
        cluster.revise(Recipe::Deployment(deployment.clone()));
        let old = workload.set.clone();
        workload.set = ReplicaSet {
            uid,
            revision: deployment.revision,
            replicas: deployment.replicas,
            ready: 0,
            created: now,
            at: now,
            ..old.clone()
        };
        self.tasks.push_back(Task::Create(Recipe::ReplicaSet(workload.set.clone())));
        for pod in &workload.pods {
            self.tasks.push_back(Task::Start(at));
            self.tasks.push_back(Task::Pod(at, pod.uid, Phase::Terminating));
        }
        self.tasks.push_back(Task::Status(at));
        // Old ReplicaSets would be kept at zero replicas; one round of history is enough here.
        self.tasks.push_back(Task::Delete("replicasets.apps", Recipe::ReplicaSet(old).key()));
        Action::Rollout
    }

    fn scale(&mut self, cluster: &Cluster) -> Action {
        let Some(at) = self.resting() else { return self.go_on(cluster) };
        let wanted = 1 + self.dice.below(6) as u32;
        let Some(workload) = self.workloads.get_mut(at) else {
            return Action::Scale;
        };
        let now = cluster.lock().now();
        workload.moving = true;
        let deployment = &mut workload.deployment;
        let wanted = if wanted == deployment.replicas { wanted + 1 } else { wanted };
        deployment.replicas = wanted;
        deployment.generation += 1;
        (deployment.editor, deployment.edited) = ("kubectl-edit", now);
        cluster.revise(Recipe::Deployment(deployment.clone()));
        workload.set.replicas = wanted;
        self.tasks.push_back(Task::Revise(Recipe::ReplicaSet(workload.set.clone())));
        let have = workload.pods.len();
        for _ in have..wanted as usize {
            self.tasks.push_back(Task::Start(at));
        }
        for pod in workload.pods.iter().skip(wanted as usize) {
            self.tasks.push_back(Task::Pod(at, pod.uid, Phase::Terminating));
        }
        self.tasks.push_back(Task::Status(at));
        Action::Scale
    }

    /// A Pod is evicted and replaced.
    fn replace_pod(&mut self, cluster: &Cluster) -> Action {
        let Some(at) = self.resting() else { return self.go_on(cluster) };
        let workload = &mut self.workloads[at];
        let Some(uid) = self.dice.pick(&workload.pods).map(|pod| pod.uid) else { return self.go_on(cluster) };
        workload.moving = true;
        self.tasks.push_back(Task::Start(at));
        self.tasks.push_back(Task::Status(at));
        self.advance(cluster, at, uid, Phase::Terminating);
        Action::Progress
    }

    /// A workload that nothing happens to now.
    fn resting(&mut self) -> Option<usize> {
        let at = self.dice.below(self.workloads.len());
        self.workloads.get(at).filter(|workload| !workload.moving).map(|_| at)
    }

    fn edit(&mut self, cluster: &Cluster, sort: Sort, action: Action) -> Action {
        let of_sort: Vec<usize> = (0..self.plain.len()).filter(|&at| self.plain[at].sort == sort).collect();
        let Some(&at) = self.dice.pick(&of_sort) else {
            return action;
        };
        let now = cluster.lock().now();
        let plain = &mut self.plain[at];
        plain.edits += 1;
        plain.at = now;
        cluster.revise(Recipe::Plain(plain.clone()));
        action
    }

    /// A short-lived Widget appears, or the oldest of them goes.
    fn come_and_go(&mut self, cluster: &Cluster) -> Action {
        let passing = |plain: &Plain| plain.sort == Sort::Widget && plain.name.starts_with("batch-");
        match self.passing(passing) {
            Some(gone) => {
                self.tasks.push_front(Task::Delete("widgets.shop.example.com", Recipe::Plain(gone).key()));
                self.go_on(cluster);
            }
            None => {
                self.made += 1;
                let team = TEAMS[self.dice.below(TEAMS.len())];
                self.make(cluster, Sort::Widget, team, &format!("batch-{}", self.made));
            }
        }
        Action::Custom
    }

    /// A preview namespace with one ConfigMap appears, or the oldest goes with all that is in it.
    fn namespace(&mut self, cluster: &Cluster) -> Action {
        match self.passing(|plain| plain.namespace.starts_with("preview-")) {
            Some(gone) => {
                // A test may have deleted it already.
                let _ = cluster.delete("namespaces", "", &gone.namespace);
            }
            None => {
                self.made += 1;
                let name = format!("preview-{}", self.made);
                let (uid, now) = stamp(cluster);
                cluster.put_recipe(Recipe::namespace(&name, uid, now));
                self.make(cluster, Sort::ConfigMap, &name, "settings");
            }
        }
        Action::Namespace
    }

    /// The oldest of these, if it is to go now; None: one more is to come.
    fn passing(&mut self, these: impl Fn(&Plain) -> bool) -> Option<Plain> {
        let count = self.plain.iter().filter(|plain| these(plain)).count();
        let go = count >= MOST_PASSING || (count > 0 && self.dice.below(2) == 0);
        let at = self.plain.iter().position(these).filter(|_| go)?;
        Some(self.plain.remove(at))
    }
}

impl Workload {
    fn new_pod(&self, cluster: &Cluster) -> Pod {
        let (uid, now) = stamp(cluster);
        Pod {
            app: Arc::clone(&self.deployment.app),
            owner: self.set.uid,
            uid,
            revision: self.set.revision,
            phase: Phase::Pending,
            created: now,
            at: now,
        }
    }
}

/// A new uid and the virtual time.
fn stamp(cluster: &Cluster) -> (u128, i64) {
    let mut state = cluster.lock();
    (state.next_uid(), state.now())
}
