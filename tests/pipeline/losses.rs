//! A sink that delivers exactly once, and a volume that is lost or that is restored from an older copy: the receiver is told that
//! history is missing, and ends up with what there is.

use std::path::Path;

use serde_json::{Value, json};

use super::{Pipeline, assert_exactly, fold::Fold, receiver::Receiver, seq};
use crate::instance::count;

/// Something in the cluster that is neither changed nor deleted by the churn.
const PASSING: &str = "passing";

/// The volume is lost while things are deleted.
pub async fn a_lost_volume(pipeline: &mut Pipeline, receiver: &mut impl Receiver) {
    pipeline.make(PASSING);
    pipeline.run_through(1, async |_| {}).await;
    let first = pipeline.log().await;
    let before = first.len();
    pipeline.delivered(&first).await;
    let records = receiver.records().await;
    assert_exactly(records, &first);
    assert!(Fold::of(records).has(PASSING));
    pipeline.instance.kill();
    pipeline.lose_the_volume();
    pipeline.remove(PASSING);

    pipeline.run_through(1, async |_| {}).await;
    let second = pipeline.log().await;
    pipeline.delivered(&second).await;
    let records = receiver.records().await;
    assert_gap(&records[before], "log_lost", before);
    assert_exactly(&records[before + 1..], &second);
    assert_eq!(Fold::of(records).differs_from(&pipeline.there_is()), None);
    eprintln!("lost after {before} records: one gap, and the {} of the new log once each", second.len());
    assert!(pipeline.instance.terminate().success());
}

/// The volume is restored from a copy that is older than what the receiver has; the API server's history does not reach back to it.
/// `meanwhile` is what happens before the receiver is asked how far it is; it is given the last place that the log ever had.
pub async fn a_restored_volume(
    pipeline: &mut Pipeline,
    receiver: &mut impl Receiver,
    meanwhile: impl AsyncFnOnce(&mut Pipeline, u64),
) {
    pipeline.run_through(1, async |_| {}).await;
    let first = pipeline.log().await;
    pipeline.delivered(&first).await;
    assert!(pipeline.instance.terminate().success());
    let copy = tempfile::tempdir().unwrap();
    copy_whole(pipeline.instance.path(""), copy.path());

    pipeline.make(PASSING);
    pipeline.run_through(1, async |_| {}).await;
    let second = pipeline.log().await;
    pipeline.delivered(&second).await;
    assert!(pipeline.instance.terminate().success());
    let before = second.len();
    let records = receiver.records().await;
    assert_exactly(records, &second);
    assert!(Fold::of(records).has(PASSING));

    // The copy knows nothing of what has come after it, and nobody will tell that it is gone.
    pipeline.remove(PASSING);
    pipeline.server.cluster().forget_history();
    pipeline.lose_the_volume();
    copy_whole(copy.path(), pipeline.instance.path(""));
    meanwhile(pipeline, before as u64).await;
    pipeline.run_through(1, async |_| {}).await;
    let third = pipeline.log().await;
    pipeline.delivered(&third).await;
    let records = receiver.records().await;
    assert_gap(&records[before], "log_rewound", before);
    assert_exactly(&records[before + 1..], &third);
    assert_eq!(Fold::of(records).differs_from(&pipeline.there_is()), None);
    assert_eq!(count(&records[before + 1..], "gap"), 1, "the API server had forgotten, which is a gap of the stream");
    eprintln!(
        "copied at {}, restored at {before}: one gap, and the {} of the restored log once each",
        first.len(),
        third.len()
    );
    assert!(pipeline.instance.terminate().success());
}

fn assert_gap(record: &Value, reason: &str, last: usize) {
    let told = (&record["op"], &record["reason"], &record["scope"], &record["from"]["seq"]);
    assert_eq!(told, (&json!("gap"), &json!(reason), &json!("log"), &json!(last)), "{record}");
    assert_eq!(seq(record), 0);
}

fn copy_whole(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let mut copy = std::process::Command::new("cp");
    let status = copy.args(["-a", "--"]).arg(from.join("data")).arg(from.join("out.ndjson")).arg(to).status().unwrap();
    assert!(status.success());
}
