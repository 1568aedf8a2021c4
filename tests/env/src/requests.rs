//! What the API server was asked, by its own count: how many LISTs and WATCHes of which resource. It is the other end of
//! what a client says about itself.
//!
//! The counts do not tell who asked. The API server has clients of its own, which WATCH some resources from its start on,
//! and as long as streaming lists are on LIST nothing after it: on a server that a test has for itself, the difference of
//! two counts is what the test did.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::Apiserver;

/// Requests since the API server's last start. A resource is named as kubectl does: `configmaps`, `deployments.apps`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestCounts {
    lists: BTreeMap<String, u64>,
    watches: BTreeMap<String, u64>,
    open_watches: BTreeMap<String, u64>,
}

impl Apiserver {
    /// Reads the counts. A request is counted after its last byte, which may be a moment after the client has it.
    pub async fn requests(&self) -> Result<RequestCounts> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let metrics = self.client().await?.request_text(request).await.context("reading the API server's metrics")?;
        Ok(RequestCounts::read(&metrics))
    }
}

impl RequestCounts {
    /// LISTs of this resource, in all versions and scopes and whatever the answer was. Each page is one; a streaming list
    /// is none, it is a WATCH.
    pub fn lists(&self, resource: &str) -> u64 {
        self.lists.get(resource).copied().unwrap_or_default()
    }

    /// LISTs by resource; one that was not listed is not in it.
    pub fn lists_by_resource(&self) -> &BTreeMap<String, u64> {
        &self.lists
    }

    /// WATCHes of this resource, those that have ended and those that have not.
    pub fn watches(&self, resource: &str) -> u64 {
        self.watches.get(resource).copied().unwrap_or_default()
    }

    /// WATCHes of this resource that were open when the counts were read.
    pub fn open_watches(&self, resource: &str) -> u64 {
        self.open_watches.get(resource).copied().unwrap_or_default()
    }

    /// What came after `earlier`, which is from the same run of the API server. The open watches are those of now.
    pub fn since(&self, earlier: &RequestCounts) -> RequestCounts {
        RequestCounts {
            lists: difference(&self.lists, &earlier.lists),
            watches: difference(&self.watches, &earlier.watches),
            open_watches: self.open_watches.clone(),
        }
    }

    fn read(metrics: &str) -> RequestCounts {
        let mut counts = RequestCounts::default();
        for sample in metrics.lines().filter_map(Sample::read) {
            // The first counts a watch when it ends, the second is those that have not.
            let into = match (sample.name, sample.label("verb")) {
                ("apiserver_request_total", "LIST") => vec![&mut counts.lists],
                ("apiserver_request_total", "WATCH") => vec![&mut counts.watches],
                ("apiserver_longrunning_requests", "WATCH") => vec![&mut counts.watches, &mut counts.open_watches],
                _ => continue,
            };
            for counts in into {
                *counts.entry(sample.resource()).or_default() += sample.value;
            }
        }
        counts
    }
}

fn difference(later: &BTreeMap<String, u64>, earlier: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    later
        .iter()
        .map(|(resource, count)| (resource.clone(), count.saturating_sub(*earlier.get(resource).unwrap_or(&0))))
        .filter(|(_, count)| *count > 0)
        .collect()
}

/// One line of the Prometheus text format: `name{label="value",…} number`.
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    value: u64,
}

impl<'a> Sample<'a> {
    /// None for comments and what has no labels. The values read here have no quotes or commas in them.
    fn read(line: &'a str) -> Option<Sample<'a>> {
        let (name, rest) = line.split_once('{')?;
        let (labels, value) = rest.rsplit_once("} ")?;
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        Some(Sample {
            name,
            labels: labels.map(|(name, value)| (name, value.trim_matches('"'))).collect(),
            // Large numbers come as 1.2e+06.
            value: value.parse::<f64>().ok()? as u64,
        })
    }

    fn label(&self, name: &str) -> &'a str {
        self.labels.get(name).copied().unwrap_or_default()
    }

    fn resource(&self) -> String {
        match (self.label("resource"), self.label("group")) {
            (resource, "") => resource.to_owned(),
            (resource, group) => format!("{resource}.{group}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_summed_over_codes_scopes_and_versions() {
        let counts = RequestCounts::read(
            r#"# TYPE apiserver_request_total counter
apiserver_request_total{code="200",group="",resource="pods",scope="cluster",verb="LIST",version="v1"} 2
apiserver_request_total{code="410",group="",resource="pods",scope="namespace",verb="LIST",version="v1"} 1
apiserver_request_total{code="200",group="apps",resource="deployments",scope="cluster",verb="LIST",version="v1"} 1e+06
apiserver_request_total{code="200",group="",resource="pods",scope="resource",verb="GET",version="v1"} 9
apiserver_request_total{code="200",group="",resource="pods",scope="cluster",verb="WATCH",version="v1"} 4
apiserver_longrunning_requests{group="",resource="pods",scope="cluster",verb="WATCH",version="v1"} 3
apiserver_longrunning_requests{group="",resource="pods",scope="resource",verb="CONNECT",version="v1"} 5
process_start_time_seconds 1.7e+09
"#,
        );
        let lists = [("deployments.apps".to_owned(), 1_000_000), ("pods".to_owned(), 3)];
        assert_eq!(counts.lists_by_resource(), &BTreeMap::from(lists));
        assert_eq!((counts.lists("pods"), counts.lists("secrets")), (3, 0));
        assert_eq!((counts.watches("pods"), counts.open_watches("pods")), (7, 3));
    }
}
