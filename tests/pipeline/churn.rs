//! A cluster that never rests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use kubetide_simulator::Cluster;

use super::NAMESPACE;

/// Changes, deletes and makes objects of a cluster until it is dropped. What the tests make themselves it leaves alone.
pub struct Churn {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Churn {
    pub fn start(cluster: &Cluster, per_second: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (cluster, stopped) = (cluster.clone(), stop.clone());
        let items = cluster.list("configmaps");
        let others = items.iter().filter(|item| item.namespace() != NAMESPACE);
        let names: Vec<(String, String)> = others.map(|item| (item.namespace().into(), item.name().into())).collect();
        let thread = std::thread::spawn(move || {
            let began = Instant::now();
            for turn in 0_u64.. {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (namespace, name) = &names[(turn as usize * 7919) % names.len()];
                if turn % 50 == 49 {
                    let _ = cluster.delete("configmaps", namespace, name);
                } else if cluster.touch("configmaps", namespace, name).is_err() {
                    let object = serde_json::json!({"metadata": {"namespace": namespace, "name": name}, "data": {"turn": turn.to_string()}});
                    cluster.create("configmaps", object).unwrap();
                }
                let due = Duration::from_micros(turn * 1_000_000 / per_second);
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Churn {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
