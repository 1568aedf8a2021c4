//! The process that the sink is in ends and starts again: in order, between `Ok` and the cursor, in the middle.

use tokio::time::{Instant, timeout};

use crate::conformance::{Bench, Finding, courier::OnHold, load::Dice, run::Run};

pub(super) async fn restart(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    for _ in 0..3 {
        run.deliver_next(50).await?;
        run.deliver_next(20).await?;
        run.restart().await?;
    }
    run.deliver_next(1).await?;
    run.judge().await
}

pub(super) async fn duplicate_bound(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    for round in 0..4 {
        let records = run.load.take(60 + round);
        run.deliver(records.clone()).await?;
        // Killed before the cursor was written.
        run.restart().await?;
        run.deliver_again(&records).await?;
        run.judge().await?;
    }
    Ok(())
}

pub(super) async fn stop_in_the_middle(bench: &mut dyn Bench) -> Result<(), Finding> {
    const BATCH: usize = 400;
    const SEED: u64 = 7;
    let mut dice = Dice::new(SEED);
    let mut run = Run::begin(bench).await?;
    let began = Instant::now();
    run.deliver_next(BATCH).await?;
    // How long a batch takes that is the first of its process, as each one here is.
    let whole = began.elapsed();
    for _ in 0..3 {
        let records = run.load.take(BATCH);
        for _ in 0..3 {
            let mut parcel = run.parcel(records.clone());
            // Mostly before its end, and now and then behind it.
            let moment = whole.mul_f64(1.1 * dice.share());
            if let Ok(ended) = timeout(moment, run.push(&mut parcel, OnHold::Tell)).await {
                ended?;
            }
            run.restart().await?;
            if run.promises().exactly_once {
                // All of it is there, or nothing.
                run.judge().await?;
                if run.is_committed(&records) {
                    break;
                }
            }
        }
        run.deliver_again(&records).await?;
        run.judge().await?;
    }
    Ok(())
}
