//! Fills a cluster for benchmarks: as many objects as asked, in the mix of a real cluster, as recipes of about a
//! hundred bytes each.

use std::sync::Arc;

use crate::cluster::{Cluster, key_of};
use crate::dice::{Dice, suffix};
use crate::manifest::{App, Deployment, Phase, Plain, Pod, Recipe, ReplicaSet, Sort};
use crate::object::Body;
use crate::shelf::State;
use crate::status::Status;

/// Objects per application: a Deployment, a ReplicaSet, six Pods, two ConfigMaps, a Secret, a Service.
const PER_APP: usize = 12;
const PODS: u32 = 6;
/// Applications per namespace.
const PER_NAMESPACE: usize = 20;

impl Cluster {
    /// Adds `objects` objects (namespaces included): half of them Pods, the rest Deployments, ReplicaSets,
    /// ConfigMaps, Secrets and Services. May be called again for more.
    pub fn populate(&self, objects: usize) {
        let mut left = objects;
        let mut dice = Dice::new(self.options().seed ^ self.version());
        let mut namespace: Arc<str> = Arc::from("");
        let mut apps = 0;
        while left > 0 {
            let mut state = self.lock();
            let mut batch = Vec::new();
            if apps % PER_NAMESPACE == 0 {
                namespace = format!("team-{}", suffix(dice.roll())).into();
                batch.push(Recipe::namespace(&namespace, state.next_uid(), state.now()));
            }
            app(&mut state, &namespace, apps, &mut dice, &mut batch);
            apps += 1;
            for recipe in batch.into_iter().take(left) {
                state.put_recipe(recipe);
                left -= 1;
            }
        }
    }

    /// Adds `objects` ConfigMaps of 1 to 3 KB, in a namespace of their own.
    pub fn populate_config_maps(&self, objects: usize) {
        let mut state = self.lock();
        let now = state.now();
        let namespace: Arc<str> = format!("bulk-{}", suffix(state.version)).into();
        let recipe = Recipe::namespace(&namespace, state.next_uid(), now);
        state.put_recipe(recipe);
        for number in 0..objects {
            let recipe = plain(&mut state, Sort::ConfigMap, &namespace, &format!("settings-{number:07}"));
            state.put_recipe(recipe);
        }
    }
}

impl Cluster {
    /// Changes an object in the cheapest way there is: one edit more of a ConfigMap, a later status of a Pod. For
    /// benchmarks, where the cluster must be faster than its client. Gives the version.
    pub fn touch(&self, resource: &str, namespace: &str, name: &str) -> Result<u64, Status> {
        let mut state = self.lock();
        let shelf = state.shelf(resource)?;
        let kind = &shelf.kind;
        let object = shelf.objects.get(key_of(namespace, name).as_str());
        let object = object.ok_or_else(|| Status::not_found(&kind.plural, &kind.group, name))?;
        let Body::Recipe(recipe) = &object.body else {
            drop(state);
            // Written by someone as a whole object: count in it.
            return self.update(resource, namespace, name, |object| {
                let count = object["metadata"]["annotations"]["touched"].as_str().and_then(|text| text.parse().ok());
                object["metadata"]["annotations"]["touched"] = (count.unwrap_or(0u64) + 1).to_string().into();
            });
        };
        let mut recipe = recipe.clone();
        match &mut recipe {
            Recipe::Deployment(it) => it.at += 1,
            Recipe::ReplicaSet(it) => it.at += 1,
            Recipe::Pod(it) => it.at += 1,
            Recipe::Plain(it) => {
                it.edits += 1;
                it.at += 1;
            }
        }
        Ok(state.put_recipe(recipe))
    }
}

fn app(state: &mut State, namespace: &Arc<str>, number: usize, dice: &mut Dice, batch: &mut Vec<Recipe>) {
    batch.reserve(PER_APP);
    let now = state.now();
    let (uid, seed) = (state.next_uid(), dice.roll());
    let app =
        Arc::new(App { namespace: Arc::clone(namespace), name: format!("app-{number:05}"), uid, seed, created: now });
    let (revision, replicas, ready, at) = (1, PODS, PODS, now);
    let editor = "argocd-controller";
    let deployment =
        Deployment { app: Arc::clone(&app), replicas, ready, revision, generation: 1, editor, edited: now, at };
    batch.push(Recipe::Deployment(deployment));
    let owner = state.next_uid();
    let set = ReplicaSet { app: Arc::clone(&app), uid: owner, revision, replicas, ready, created: now, at };
    batch.push(Recipe::ReplicaSet(set));
    for _ in 0..PODS {
        let (app, uid) = (Arc::clone(&app), state.next_uid());
        batch.push(Recipe::Pod(Pod { app, owner, uid, revision, phase: Phase::Running, created: now, at }));
    }
    for (sort, suffix) in [
        (Sort::ConfigMap, "-config"),
        (Sort::ConfigMap, "-dashboards"),
        (Sort::Secret, "-credentials"),
        (Sort::Service, ""),
    ] {
        batch.push(plain(state, sort, namespace, &format!("{}{suffix}", app.name)));
    }
}

fn plain(state: &mut State, sort: Sort, namespace: &Arc<str>, name: &str) -> Recipe {
    let (uid, now) = (state.next_uid(), state.now());
    let namespace = Arc::clone(namespace);
    Recipe::Plain(Plain { sort, namespace, name: name.into(), uid, edits: 0, created: now, at: now })
}
