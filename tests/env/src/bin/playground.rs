//! `make servers`: the real servers of the tests to play with, until Ctrl-C. Names of servers as arguments (kube, kafka,
//! nats) start only those.
#![allow(clippy::print_stdout, reason = "it prints what to connect to")]

use anyhow::{Result, ensure};
use kubetide_test_env::{Apiserver, Kafka, Nats};
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for name in &wanted {
        ensure!(["kube", "kafka", "nats"].contains(&name.as_str()), "no such server: {name} (kube, kafka, nats)");
    }
    let wants = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name);
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;

    let serve = async {
        // The values live until the signal drops this future; their servers end with them.
        let _servers = tokio::try_join!(kube(wants("kube")), kafka(wants("kafka")), nats(wants("nats")))?;
        println!("ready; Ctrl-C ends it and removes everything\n");
        std::future::pending::<Result<()>>().await
    };
    tokio::select! {
        outcome = serve => outcome,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

async fn kube(wanted: bool) -> Result<Option<Apiserver>> {
    if !wanted {
        return Ok(None);
    }
    let apiserver = Apiserver::start().await?;
    let kubeconfig = apiserver.kubeconfig().display();
    println!("kube-apiserver  {}", apiserver.url());
    println!("    export KUBECONFIG={kubeconfig}");
    println!("    kubectl create configmap first --from-literal=key=value\n");
    Ok(Some(apiserver))
}

async fn kafka(wanted: bool) -> Result<Option<Kafka>> {
    if !wanted {
        return Ok(None);
    }
    let kafka = Kafka::start().await?;
    println!("kafka           {}", kafka.bootstrap());
    println!("    kcat -b {} -L\n", kafka.bootstrap());
    Ok(Some(kafka))
}

async fn nats(wanted: bool) -> Result<Option<Nats>> {
    if !wanted {
        return Ok(None);
    }
    let nats = Nats::start().await?;
    println!("nats-server     {}", nats.url());
    println!("    nats --server {} stream ls\n", nats.url());
    Ok(Some(nats))
}
