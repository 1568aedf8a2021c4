//! An aggregated API whose server is not there, as when metrics-server is down: discovery is then incomplete.

use anyhow::{Context, Result};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::poll::until;
use crate::{Apiserver, discovery};

impl Apiserver {
    /// Registers an aggregated API that a Service which does not exist would serve, and waits until the API server has
    /// noticed that it does not.
    ///
    /// Kubernetes 1.36 then says in aggregated discovery that the group has this version with `freshness: Stale`, and no
    /// resources. The older discovery has the group and version in `/apis`, and answers `/apis/GROUP/VERSION` with 503 and
    /// plain text. All other groups are served as before.
    pub async fn dead_api_service(&self, group: &str, version: &str) -> Result<()> {
        let client = self.client().await?;
        let services = Api::<APIService>::all(client.clone());
        let name = name(group, version);
        let service: APIService = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "group": group,
                "version": version,
                // Where it comes in discovery; nothing depends on it here.
                "groupPriorityMinimum": 1000,
                "versionPriority": 15,
                "insecureSkipTLSVerify": true,
                "service": {"namespace": "default", "name": "does-not-exist"},
            },
        }))?;
        services
            .create(&PostParams::default(), &service)
            .await
            .with_context(|| format!("creating APIService {name}"))?;
        until(&format!("APIService {name} is found dead"), async || {
            let status = services.get(&name).await?.status.unwrap_or_default();
            let dead = status
                .conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == "Available" && condition.status == "False");
            let stale = discovery::aggregated(&client, group).await?.get(version).is_some_and(|version| version.stale);
            Ok(stale && dead)
        })
        .await
    }

    /// Takes an aggregated API away, and waits until discovery has forgotten it.
    pub async fn remove_api_service(&self, group: &str, version: &str) -> Result<()> {
        let client = self.client().await?;
        let name = name(group, version);
        Api::<APIService>::all(client.clone())
            .delete(&name, &DeleteParams::default())
            .await
            .with_context(|| format!("deleting APIService {name}"))?;
        until(&format!("{group}/{version} is gone"), async || {
            Ok(!discovery::aggregated(&client, group).await?.contains_key(version))
        })
        .await
    }
}

/// Prescribed by Kubernetes.
fn name(group: &str, version: &str) -> String {
    format!("{version}.{group}")
}
