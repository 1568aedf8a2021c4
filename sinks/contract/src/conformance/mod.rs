//! The suite that every sink passes on its real receiver. It knows nothing of any receiver: a [`Bench`] puts a sink and its
//! receiver before it.
//!
//! ```text
//! Case ──▶ Run: log ──▶ Courier: retry, split, bury, hold ──▶ Sink ──▶ receiver
//!            ▲          Ledger: what may be there, how often ◀── Bench::kept ──┘
//! ```
//!
//! The courier is delivery in small: it obeys every decision of the sink as delivery does, and it notes in the ledger what was
//! handed over, acknowledged, cut short or set aside. A case says what happens meanwhile, and then holds against the
//! ledger what the receiver has. Only behind the feature `conformance`, for tests.

mod bench;
mod case;
mod courier;
mod ledger;
mod load;
mod run;

use std::{fmt, time::Duration};

use tokio::time::Instant;

pub use bench::{Bench, Kept, Promises, Repeats};
pub use case::Case;

/// With this variable of the environment the suite runs only the cases that it names, separated by commas.
pub const ONLY: &str = "KUBETIDE_CASES";

/// A case ends within this, whatever the sink does: the longest one restarts its receiver twice.
const LONGEST_CASE: Duration = Duration::from_secs(150);

/// What a sink did that it must not do, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Finding(String);

impl Finding {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// What came of a case that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The sink does as it must.
    Passed,
    /// The case cannot occur with this receiver, for this reason.
    CannotOccur(&'static str),
}

/// What came of the cases, in the order in which they were run.
#[derive(Debug, Default)]
pub struct Report {
    lines: Vec<(Case, Result<Outcome, Finding>, Duration)>,
}

impl Report {
    /// What was found.
    pub fn findings(&self) -> impl Iterator<Item = (Case, &Finding)> {
        self.lines.iter().filter_map(|(case, came, _)| Some((*case, came.as_ref().err()?)))
    }
}

/// One line for each case.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (case, came, took) in &self.lines {
            let (name, took) = (case.name(), took.as_secs_f64());
            match came {
                Ok(Outcome::Passed) => writeln!(f, "passed         {name} in {took:.1} s")?,
                Ok(Outcome::CannotOccur(reason)) => writeln!(f, "cannot occur   {name}: {reason}")?,
                Err(finding) => writeln!(f, "FOUND          {name}: {finding}")?,
            }
        }
        Ok(())
    }
}

/// Runs one case on a bench of its own.
pub async fn run(case: Case, bench: &mut dyn Bench) -> Result<Outcome, Finding> {
    if let Some(reason) = bench.cannot(case) {
        return Ok(Outcome::CannotOccur(reason));
    }
    let ended = tokio::time::timeout(LONGEST_CASE, case.play(bench)).await;
    ended.unwrap_or_else(|_| Err(Finding::new(format!("not at an end after {LONGEST_CASE:?}"))))?;
    Ok(Outcome::Passed)
}

/// Runs every case, or those that [`ONLY`] names, one after the other, each on the bench that `set_up` makes for it. Those that stop
/// the receiver come last. Panics where [`ONLY`] names what is no case.
pub async fn run_all<B: Bench>(mut set_up: impl AsyncFnMut(Case) -> B) -> Report {
    let cases = match std::env::var(ONLY) {
        Ok(names) => named(&names).unwrap_or_else(|problem| panic!("{ONLY}: {problem}")),
        Err(_) => Case::ALL.into(),
    };
    let mut report = Report::default();
    for case in cases {
        let mut bench = set_up(case).await;
        let began = Instant::now();
        let came = run(case, &mut bench).await;
        report.lines.push((case, came, began.elapsed()));
    }
    report
}

/// The cases that are named here, separated by commas, in their own order.
fn named(names: &str) -> Result<Vec<Case>, String> {
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    if let Some(unknown) = names.iter().find(|name| Case::ALL.iter().all(|case| case.name() != **name)) {
        return Err(format!("found {unknown:?}, allowed: {}", Case::ALL.map(Case::name).join(" ")));
    }
    Ok(Case::ALL.into_iter().filter(|case| names.contains(&case.name())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_asked_for_by_name_and_what_is_no_name_is_not_passed_over() {
        assert_eq!(named("poison, order"), Ok(vec![Case::Order, Case::Poison]));
        for wrong in ["", "poisson", "order,"] {
            assert!(named(wrong).is_err_and(|problem| problem.contains("poison oversize")), "{wrong}");
        }
    }
}
