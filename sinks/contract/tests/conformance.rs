//! The suite itself: a good sink passes every case, and for every case there is a broken sink that it finds.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "conformance/broken.rs"]
mod broken;
#[path = "conformance/memory.rs"]
mod memory;
#[path = "conformance/receiver.rs"]
mod receiver;

use std::collections::BTreeSet;

use broken::{BROKEN, Flaw};
use kubetide_sink::conformance::{self, Case, Outcome, Promises, Repeats};
use memory::MemoryBench;

const AT_LEAST_ONCE: Promises = Promises { exactly_once: false, repeats: Repeats::OneBatch };
const DEDUPLICATED: Promises = Promises { exactly_once: false, repeats: Repeats::Nothing };
const EXACTLY_ONCE: Promises = Promises { exactly_once: true, repeats: Repeats::Nothing };

#[tokio::test(start_paused = true)]
async fn a_sink_that_keeps_its_promises_passes_every_case() {
    for promises in [AT_LEAST_ONCE, DEDUPLICATED, EXACTLY_ONCE] {
        let report = conformance::run_all(async |_| MemoryBench::new(promises, None)).await;
        println!("{promises:?}\n{report}");
        assert_eq!(report.findings().count(), 0, "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_case_finds_a_sink_that_is_broken() {
    let (mut finds, mut wrong) = (BTreeSet::new(), Vec::new());
    for (flaw, promises, case, says) in BROKEN {
        let came = conformance::run(case, &mut MemoryBench::new(promises, Some(flaw))).await;
        println!("{:20} {flaw:?}: {came:?}", case.name());
        match came {
            Err(finding) if finding.to_string().contains(says) => drop(finds.insert(case)),
            other => wrong.push(format!("{flaw:?} in {case:?}, expected {says:?}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let blind: Vec<_> = Case::ALL.into_iter().filter(|case| !finds.contains(case)).collect();
    assert!(blind.is_empty(), "nothing shows that these can fail: {blind:?}");
}

#[tokio::test(start_paused = true)]
async fn a_case_that_cannot_occur_is_said_with_its_reason_and_not_played() {
    let mut bench = MemoryBench::new(AT_LEAST_ONCE, Some(Flaw::SwallowsPoison));
    bench.takes_anything = true;
    let came = conformance::run(Case::Poison, &mut bench).await;
    assert_eq!(came, Ok(Outcome::CannotOccur("memory takes anything")));
    let report = conformance::run_all(async |_| {
        let mut bench = MemoryBench::new(AT_LEAST_ONCE, None);
        bench.takes_anything = true;
        bench
    });
    let report = report.await.to_string();
    assert!(report.contains("cannot occur   poison: memory takes anything\n"), "{report}");
    assert_eq!(report.lines().count(), Case::ALL.len());
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let names: BTreeSet<_> = Case::ALL.iter().map(|case| case.name()).collect();
    assert_eq!(names.len(), Case::ALL.len());
}
