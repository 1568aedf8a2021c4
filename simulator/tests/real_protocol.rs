//! The real kube-apiserver speaks the protocol as the suite says: what the simulator imitates is true.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, missing_docs)] // a test

mod suite;

use kubetide_test_env::Apiserver;
use suite::Subject;

async fn subject() -> Subject {
    let server = Apiserver::shared().await;
    let (client, namespace) = (server.client().await.unwrap(), server.namespace("suite").await.unwrap());
    Subject::new(client, &namespace, ())
}

struct Forgetful {
    subject: Subject,
    server: Apiserver,
}

impl Forgetful {
    async fn forget(&self) {
        self.server.forget_history().await.unwrap();
    }
}

/// A server of the test's own: to forget, it must compact its store and restart.
async fn forgetful() -> Forgetful {
    let server = Apiserver::start().await.unwrap();
    let (client, namespace) = (server.client().await.unwrap(), server.namespace("suite").await.unwrap());
    Forgetful { subject: Subject::new(client, &namespace, ()), server }
}
