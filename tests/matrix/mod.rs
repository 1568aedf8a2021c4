//! The parts of the fault matrix: what goes wrong when, and what was written and must be told.

#![allow(dead_code, unreachable_pub, reason = "parts of one test binary")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

pub mod ledger;
pub mod schedule;
