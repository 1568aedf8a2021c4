//! The socket, and answers from a log that is written by hand.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
