//! The simulator speaks the protocol: the suite that `real_protocol` runs against the real kube-apiserver.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, missing_docs)] // a test

mod suite;

use kubetide_simulator::{Cluster, ClusterOptions, Server};
use serde_json::json;
use suite::Subject;

async fn subject() -> Subject {
    forgetful().await.subject
}

struct Forgetful {
    subject: Subject,
    cluster: Cluster,
}

impl Forgetful {
    async fn forget(&self) {
        self.cluster.forget_history();
    }
}

async fn forgetful() -> Forgetful {
    let cluster = Cluster::new(ClusterOptions::default());
    let server = Server::start(cluster.clone()).await.unwrap();
    cluster.create("namespaces", json!({"metadata": {"name": "suite"}})).unwrap();
    let mut config = kube::Config::new(server.url().parse().unwrap());
    config.default_retry = false;
    let client = kube::Client::try_from(config).unwrap();
    let subject = Subject::new(client, "suite", server);
    Forgetful { subject, cluster }
}
