//! What the API server says that it serves, in both forms of its discovery. A write is answered before they know of it, and
//! they do not learn at the same moment: whoever changes what is served waits until both say so.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroupList, APIResourceList};
use kube::core::discovery::v2::APIGroupDiscovery;

/// A version of a group as aggregated discovery has it, the one document for all groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    /// Its own API server does not answer.
    pub(crate) stale: bool,
    pub(crate) resources: BTreeSet<String>,
}

/// The versions of a group by name; none if there is no such group.
pub(crate) async fn aggregated(client: &kube::Client, group: &str) -> Result<BTreeMap<String, Version>> {
    let groups = client.list_api_groups_aggregated().await?.items;
    let ours =
        |found: &APIGroupDiscovery| found.metadata.as_ref().is_some_and(|own| own.name.as_deref() == Some(group));
    let versions = groups.into_iter().filter(ours).flat_map(|group| group.versions);
    Ok(versions
        .map(|version| {
            let resources = version.resources.into_iter().filter_map(|resource| resource.resource).collect();
            let stale = version.freshness.as_deref() == Some("Stale");
            (version.version.unwrap_or_default(), Version { stale, resources })
        })
        .collect())
}

/// The versions of a group that have this resource, by the older form: a list of groups, and a document for each version.
pub(crate) async fn listed(client: &kube::Client, group: &str, resource: &str) -> Result<BTreeSet<String>> {
    let groups: APIGroupList = client.request(http::Request::get("/apis").body(Vec::new())?).await?;
    let mut having = BTreeSet::new();
    for version in groups.groups.into_iter().filter(|found| found.name == group).flat_map(|group| group.versions) {
        let request = http::Request::get(format!("/apis/{}", version.group_version)).body(Vec::new())?;
        match client.request::<APIResourceList>(request).await {
            Ok(document) if document.resources.iter().any(|found| found.name == resource) => {
                having.insert(version.version);
            }
            // 404: it has gone since; 503: its API server does not answer.
            Ok(_) | Err(kube::Error::Api(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(having)
}
