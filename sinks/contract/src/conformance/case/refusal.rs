//! The receiver refuses: one record for good, one for its size, all of them until somebody acts.

use crate::conformance::{
    Bench, Finding,
    courier::{OnHold, Pushed},
    load::dense,
    run::Run,
};

pub(super) async fn poison(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    run.deliver_next(10).await?;
    // The first, two in a row, the last; and two states of one object behind another one of it. Where a receiver takes a batch or none of it, each try to
    // find one may cost a connection: no more than that.
    for (count, places) in [(4, &[0, 1, 3][..]), (16, &[8, 15])] {
        let mut records = run.load.take(count);
        for place in places {
            let record = &mut records[*place];
            *record = run.bench.poison(record.clone()).await;
            run.courier.ledger.poisoned(record);
        }
        run.deliver(records).await?;
    }
    run.deliver_next(20).await?;
    run.judge().await
}

pub(super) async fn oversize(bench: &mut dyn Bench) -> Result<(), Finding> {
    // So that a batch of the others stays well below it.
    const LIMIT: usize = 100_000;
    let mut run = Run::begin(bench).await?;
    run.deliver_next(10).await?;
    run.bench.limit(LIMIT).await;
    let mut records = run.load.take(5);
    for seed in [1, 2] {
        let large = run.load.with(&dense(3 * LIMIT, seed));
        run.courier.ledger.enlarged(&large);
        records.push(large);
        records.extend(run.load.take(3));
    }
    run.deliver(records).await?;
    run.deliver_next(20).await?;
    run.judge().await
}

pub(super) async fn hold(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    run.bench.shut().await;
    let records = run.load.take(30);
    let mut parcel = run.parcel(records);
    for _ in 0..3 {
        if run.push(&mut parcel, OnHold::Tell).await? == Pushed::Taken {
            return Err(Finding::new("the receiver takes nothing, and the sink says that it does"));
        }
    }
    run.bench.mend().await;
    run.finish(&mut parcel, OnHold::TryAgain).await?;
    run.deliver_next(10).await?;
    run.judge().await
}

pub(super) async fn credential_rotation(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    run.deliver_next(20).await?;
    run.bench.rotate().await;
    let records = run.load.take(20);
    let mut parcel = run.parcel(records);
    if run.push(&mut parcel, OnHold::Tell).await? == Pushed::Taken {
        return Err(Finding::new("the credential is not good any more, and the sink says that all is taken"));
    }
    run.bench.hand_over().await;
    // The very same sink.
    run.finish(&mut parcel, OnHold::TryAgain).await?;
    run.deliver_next(10).await?;
    run.judge().await
}
