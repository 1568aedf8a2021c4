//! The receiver is slow, is killed, is away.

use tokio::time::Instant;

use crate::conformance::{Bench, Finding, courier::OnHold, run::Run};

pub(super) async fn slow(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    run.deliver_next(20).await?;
    run.bench.slow(true).await;
    let first = run.deliver_next(200).await;
    let second = run.deliver_next(1).await;
    run.bench.slow(false).await;
    first.and(second)?;
    run.deliver_next(100).await?;
    run.judge().await
}

pub(super) async fn ack_before_cursor(bench: &mut dyn Bench) -> Result<(), Finding> {
    const BATCH: usize = 400;
    let mut run = Run::begin(bench).await?;
    let began = Instant::now();
    run.deliver_next(BATCH).await?;
    let whole = began.elapsed();
    if run.promises().exactly_once {
        // In the middle: then the cursor and its records are there together, or not at all.
        let records = run.load.take(BATCH);
        let mut parcel = run.parcel(records.clone());
        run.push_until_killed(&mut parcel, whole / 2).await?;
        run.bench.start().await;
        run.restart().await?;
        run.judge().await?;
        run.deliver_again(&records).await?;
    }
    run.deliver_next(BATCH).await?;
    // Right behind the `Ok`.
    run.bench.stop().await;
    run.end();
    run.bench.start().await;
    run.judge().await?;
    run.restart().await?;
    run.deliver_next(10).await?;
    run.judge().await
}

pub(super) async fn restart(bench: &mut dyn Bench) -> Result<(), Finding> {
    const BATCH: usize = 1000;
    let mut run = Run::begin(bench).await?;
    run.deliver_next(BATCH).await?;
    let began = Instant::now();
    run.deliver_next(BATCH).await?;
    let whole = began.elapsed();
    let records = run.load.take(BATCH);
    let mut parcel = run.parcel(records);
    run.push_through_a_kill(&mut parcel, whole / 2).await?;
    run.deliver_next(10).await?;
    run.judge().await
}

pub(super) async fn gone_at_start(bench: &mut dyn Bench) -> Result<(), Finding> {
    bench.stop().await;
    let mut run = Run::open(bench).await;
    let records = run.load.take(30);
    let mut parcel = run.parcel(records);
    run.first_contact(&mut parcel).await?;
    run.restore().await?;
    run.finish(&mut parcel, OnHold::Tell).await?;
    run.deliver_next(10).await?;
    run.judge().await
}
