//! Custom resources: kinds that appear while the API server runs, change the versions they are served in, and go.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion,
};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::poll::until;
use crate::{Apiserver, discovery};

/// A kind to be defined, with any content. There is no conversion between its versions: only `apiVersion` differs.
#[derive(Debug, Clone)]
pub struct Crd {
    group: String,
    plural: String,
    kind: String,
    scope: &'static str,
    short_names: Vec<String>,
    versions: Vec<String>,
}

impl Crd {
    /// A namespaced kind, served as v1: `Crd::new("example.com", "widgets", "Widget")`. On a shared server the group should
    /// be the test's own.
    pub fn new(group: &str, plural: &str, kind: &str) -> Crd {
        Crd {
            group: group.to_owned(),
            plural: plural.to_owned(),
            kind: kind.to_owned(),
            scope: "Namespaced",
            short_names: Vec::new(),
            versions: vec!["v1".to_owned()],
        }
    }

    /// Not in namespaces.
    pub fn cluster_scoped(self) -> Crd {
        Crd { scope: "Cluster", ..self }
    }

    /// Served in these versions, and stored in the first.
    pub fn versions(self, versions: &[&str]) -> Crd {
        Crd { versions: owned(versions), ..self }
    }

    /// More names, as `cm` for `configmaps`.
    pub fn short_names(self, names: &[&str]) -> Crd {
        Crd { short_names: owned(names), ..self }
    }

    /// The name of the definition, and of the resource as kubectl has it: `widgets.example.com`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    fn definition(&self) -> Result<CustomResourceDefinition> {
        let stored = self.versions.first();
        let versions = self.versions.iter().map(|version| served(version, Some(version) == stored));
        Ok(serde_json::from_value(json!({
            "metadata": {"name": self.name()},
            "spec": {
                "group": self.group,
                "scope": self.scope,
                "names": {
                    "plural": self.plural,
                    "singular": self.kind.to_lowercase(),
                    "kind": self.kind,
                    "listKind": format!("{}List", self.kind),
                    "shortNames": self.short_names,
                },
                "versions": versions.collect::<Result<Vec<_>>>()?,
            },
        }))?)
    }
}

impl Apiserver {
    /// Defines a kind, and waits until it is established, in discovery, and can be listed.
    pub async fn create_crd(&self, crd: &Crd) -> Result<()> {
        let definitions = self.definitions().await?;
        let name = crd.name();
        definitions
            .create(&PostParams::default(), &crd.definition()?)
            .await
            .with_context(|| format!("creating CustomResourceDefinition {name}"))?;
        until(&format!("{name} is established"), async || {
            let status = definitions.get(&name).await?.status.unwrap_or_default();
            let mut conditions = status.conditions.into_iter().flatten();
            Ok(conditions.any(|condition| condition.type_ == "Established" && condition.status == "True"))
        })
        .await?;
        self.until_served(crd, crd.versions.iter().cloned().collect()).await
    }

    /// Serves a kind in exactly these versions from now on, new ones among them or not, and waits until discovery says so
    /// and each can be listed. The stored version stays, served or not.
    pub async fn set_served_versions(&self, crd: &Crd, versions: &[&str]) -> Result<()> {
        let definitions = self.definitions().await?;
        let name = crd.name();
        let mut defined = definitions.get(&name).await?.spec.versions;
        for version in &mut defined {
            version.served = versions.contains(&version.name.as_str());
        }
        for version in versions {
            if !defined.iter().any(|known| known.name == *version) {
                defined.push(served(version, false)?);
            }
        }
        let patch = Patch::Merge(json!({"spec": {"versions": defined}}));
        definitions
            .patch(&name, &PatchParams::default(), &patch)
            .await
            .with_context(|| format!("changing the versions of {name}"))?;
        self.until_served(crd, owned(versions).into_iter().collect()).await
    }

    /// Takes a kind away with all its objects, and waits until it is gone from the API and from discovery.
    pub async fn delete_crd(&self, crd: &Crd) -> Result<()> {
        let definitions = self.definitions().await?;
        let name = crd.name();
        definitions
            .delete(&name, &DeleteParams::default())
            .await
            .with_context(|| format!("deleting CustomResourceDefinition {name}"))?;
        let gone = async || Ok(definitions.get_opt(&name).await?.is_none());
        until(&format!("{name} is gone"), gone).await?;
        self.until_served(crd, BTreeSet::new()).await
    }

    async fn definitions(&self) -> Result<Api<CustomResourceDefinition>> {
        Ok(Api::all(self.client().await?))
    }

    async fn until_served(&self, crd: &Crd, versions: BTreeSet<String>) -> Result<()> {
        let client = self.client().await?;
        until(&format!("discovery has {} in exactly {versions:?}", crd.name()), async || {
            let aggregated: BTreeSet<String> = discovery::aggregated(&client, &crd.group)
                .await?
                .into_iter()
                .filter(|(_, version)| !version.stale && version.resources.contains(&crd.plural))
                .map(|(name, _)| name)
                .collect();
            Ok(aggregated == versions && discovery::listed(&client, &crd.group, &crd.plural).await? == versions)
        })
        .await?;
        // A resource in discovery may still answer for a moment with 429, "storage is (re)initializing"; not to a LIST with
        // a limit, which goes past the watch cache.
        until(&format!("{} can be listed", crd.name()), async || {
            for version in &versions {
                let path = format!("/apis/{}/{version}/{}", crd.group, crd.plural);
                match client.request::<Value>(http::Request::get(path).body(Vec::new())?).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if status.code == 429 => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(true)
        })
        .await
    }
}

fn served(version: &str, stored: bool) -> Result<CustomResourceDefinitionVersion> {
    Ok(serde_json::from_value(json!({
        "name": version,
        "served": true,
        "storage": stored,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
    }))?)
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
