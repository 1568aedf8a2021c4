//! kubetide: change-data-capture for Kubernetes.
//!
//! ```text
//!  API server                  │ data directory (volume)                      │ receivers
//!  ┌──────────┐  raw bytes  ┌──┴───────────────┐  one frame    ┌──────────┐   │  batches   ┌──────┐
//!  │LIST/WATCH│ ──────────▶ │ source → change  │ ────────────▶ │changelog │ ──┼──────────▶ │ sink │
//!  └──────────┘  per stream │ clean, compare   │ records+rows  │seq 1,2,3…│   │  per sink  └──────┘
//!                           └──┬───────────────┘  +position    └──────────┘   │  cursor ◀── ack
//! ```
//!
//! The modules are in the order in which data walks through them: [`source`] → [`change`] → [`changelog`] → [`delivery`] →
//! sinks. Data never walks back up; only acknowledgements do. What holds, always:
//!
//! - a sink's cursor moves only past what that sink has acknowledged;
//! - a stream's position moves only in the frame with the records it covers;
//! - a break in history is a `gap` record, and what was missed is inferred by a complete LIST, deletes included;
//! - an error is never taken for absence.

pub mod source;

pub mod change;

pub mod changelog;

pub mod delivery;

pub mod admin;
pub mod api;
pub mod backoff;
mod blocking;
pub mod bridge;
pub mod cli;
pub mod clock;
pub mod config;
mod private;
mod telemetry;
pub mod vitals;
