//! Nothing goes wrong: batches of all sizes.

use crate::conformance::{Bench, Finding, courier::OnHold, run::Run};

pub(super) async fn order(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    for count in [1, 100, 2, 300] {
        run.deliver_next(count).await?;
    }
    run.judge().await
}

pub(super) async fn empty_batch(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    run.deliver(Vec::new()).await?;
    run.deliver_next(5).await?;
    // As where a sink wants none of what the log has had since: its place moves on all the same.
    let mut passed = run.parcel(Vec::new()).reaches(run.courier.acknowledged + 3);
    run.load.skip(3);
    run.finish(&mut passed, OnHold::Tell).await?;
    // Where the receiver keeps the cursor, it has this one.
    run.restart().await?;
    run.deliver_next(5).await?;
    run.judge().await
}

pub(super) async fn many_records(bench: &mut dyn Bench) -> Result<(), Finding> {
    const RECORDS: usize = 10_000;
    // The default of `batch.max_records`.
    const BATCH: usize = 500;
    let mut run = Run::begin(bench).await?;
    for _ in 0..RECORDS / BATCH {
        run.deliver_next(BATCH).await?;
    }
    run.judge().await
}
