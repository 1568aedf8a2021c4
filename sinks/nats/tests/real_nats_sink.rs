//! `type: nats` on a real nats-server: what is stored, in which order, how often, and what is said when it cannot be.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "real_nats_sink/access.rs"]
mod access;
#[path = "real_nats_sink/delivery.rs"]
mod delivery;
#[path = "real_nats_sink/exactly_once.rs"]
mod exactly_once;
#[path = "real_nats_sink/faults.rs"]
mod faults;
#[path = "real_nats_sink/letters.rs"]
mod letters;
#[path = "real_nats_sink/support.rs"]
mod support;
