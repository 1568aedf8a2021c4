//! The resource types that the simulated cluster serves: the built-in table, and what custom resource
//! definitions add to it.

use std::cmp::Ordering;
use std::sync::Arc;

/// One served group-version-resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceType {
    /// The API group; empty for the core group.
    pub group: String,
    /// The served version.
    pub version: String,
    /// The plural name, as in paths.
    pub plural: String,
    /// The singular name.
    pub singular: String,
    /// The kind.
    pub kind: String,
    /// Short names such as `deploy`.
    pub short_names: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Whether there is a `/status` subresource.
    pub status: bool,
    /// Whether a custom resource definition serves it. Its list items carry kind and apiVersion.
    pub custom: bool,
}

impl ResourceType {
    /// A custom resource, as a definition would declare it.
    #[must_use]
    pub fn custom(group: &str, version: &str, plural: &str, kind: &str, short_names: &[&str]) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            plural: plural.into(),
            singular: kind.to_lowercase(),
            kind: kind.into(),
            short_names: short_names.iter().map(|&name| name.into()).collect(),
            namespaced: true,
            status: false,
            custom: true,
        }
    }

    /// `v1`, `apps/v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `pods`, `deployments.apps`: how this crate's functions name a resource.
    #[must_use]
    pub fn name(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// What opens an object of this type: `{"kind":"Pod","apiVersion":"v1",`. Custom resources are maps, whose keys
    /// the API server sorts.
    pub(crate) fn opening(&self) -> String {
        if self.custom {
            return format!(r#"{{"apiVersion":"{}","kind":"{}","#, self.api_version(), self.kind);
        }
        format!(r#"{{"kind":"{}","apiVersion":"{}","#, self.kind, self.api_version())
    }

    /// Whether the API server counts generations. Namespaces, ConfigMaps and their like have none.
    pub(crate) fn has_generation(&self) -> bool {
        self.custom
            || matches!(self.plural.as_str(), "deployments" | "replicasets" | "pods" | "customresourcedefinitions")
    }

    pub(crate) fn verbs(&self) -> &'static [&'static str] {
        if self.custom {
            return &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
        }
        if self.plural == "namespaces" {
            return &["create", "delete", "get", "list", "patch", "update", "watch"];
        }
        &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    }

    /// What an empty object has besides its metadata: the body of a bookmark.
    pub(crate) fn empty_fields(&self) -> &'static str {
        match self.plural.as_str() {
            "namespaces" => r#","spec":{},"status":{}"#,
            "pods" => r#","spec":{"containers":null},"status":{}"#,
            "services" => r#","spec":{},"status":{"loadBalancer":{}}"#,
            "nodes" => r#","spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}}}"#,
            "events" => {
                r#","involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"reportingComponent":"","reportingInstance":"""#
            }
            "deployments" => {
                r#","spec":{"replicas":0,"selector":null,"template":{"metadata":{},"spec":{"containers":null}},"strategy":{}},"status":{}"#
            }
            "replicasets" => {
                r#","spec":{"replicas":0,"selector":null,"template":{"metadata":{},"spec":{"containers":null}}},"status":{"replicas":0}"#
            }
            "leases" => r#","spec":{}"#,
            "apiservices" => r#","spec":{"groupPriorityMinimum":0,"versionPriority":0},"status":{}"#,
            "customresourcedefinitions" => {
                r#","spec":{"group":"","names":{"plural":"","kind":""},"scope":"","versions":null},"status":{"conditions":null,"acceptedNames":{"plural":"","kind":""},"storedVersions":null}"#
            }
            _ => "",
        }
    }

    /// `kubectl get all` and its like.
    pub(crate) fn categories(&self) -> &'static [&'static str] {
        match self.plural.as_str() {
            "pods" | "services" | "deployments" | "replicasets" if !self.custom => &["all"],
            "customresourcedefinitions" | "apiservices" if !self.custom => &["api-extensions"],
            _ => &[],
        }
    }
}

/// Kubernetes' order of versions, the preferred one first: GA before beta before alpha, higher before lower, then
/// everything else by its letters.
pub(crate) fn by_priority(a: &str, b: &str) -> Ordering {
    let rank = |version: &str| {
        let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let rest = version.strip_prefix('v')?;
        let (major, stability, minor) = match (rest.split_once("beta"), rest.split_once("alpha")) {
            (Some((major, minor)), _) => (number(major)?, 1, number(minor)?),
            (_, Some((major, minor))) => (number(major)?, 0, number(minor)?),
            _ => (number(rest)?, 2, 0),
        };
        Some((stability, major, minor))
    };
    // None, a version of another form, is below every rank.
    rank(b).cmp(&rank(a)).then_with(|| a.cmp(b))
}

/// The custom resource that every simulated cluster starts with.
pub(crate) fn widgets() -> ResourceType {
    ResourceType::custom("shop.example.com", "v1", "widgets", "Widget", &["wd"])
}

/// The built-in types.
pub(crate) fn built_in() -> Vec<Arc<ResourceType>> {
    // group, version, plural, kind, short names, namespaced, status
    type Row = (&'static str, &'static str, &'static str, &'static str, &'static [&'static str], bool, bool);
    const TABLE: &[Row] = &[
        ("", "v1", "namespaces", "Namespace", &["ns"], false, true),
        ("", "v1", "pods", "Pod", &["po"], true, true),
        ("", "v1", "configmaps", "ConfigMap", &["cm"], true, false),
        ("", "v1", "secrets", "Secret", &[], true, false),
        ("", "v1", "services", "Service", &["svc"], true, true),
        ("", "v1", "nodes", "Node", &["no"], false, true),
        ("", "v1", "serviceaccounts", "ServiceAccount", &["sa"], true, false),
        ("", "v1", "events", "Event", &["ev"], true, false),
        ("apps", "v1", "deployments", "Deployment", &["deploy"], true, true),
        ("apps", "v1", "replicasets", "ReplicaSet", &["rs"], true, true),
        ("coordination.k8s.io", "v1", "leases", "Lease", &[], true, false),
        (
            "apiextensions.k8s.io",
            "v1",
            "customresourcedefinitions",
            "CustomResourceDefinition",
            &["crd", "crds"],
            false,
            true,
        ),
        ("apiregistration.k8s.io", "v1", "apiservices", "APIService", &[], false, true),
    ];
    TABLE
        .iter()
        .map(|&(group, version, plural, kind, short_names, namespaced, status)| {
            Arc::new(ResourceType {
                singular: kind.to_lowercase(),
                namespaced,
                status,
                custom: false,
                ..ResourceType::custom(group, version, plural, kind, short_names)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn versions_are_preferred_by_stability_and_number() {
        let expected =
            ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"];
        let mut versions = expected;
        versions.sort_unstable();
        versions.sort_by(|a, b| super::by_priority(a, b));
        assert_eq!(versions, expected);
    }
}
