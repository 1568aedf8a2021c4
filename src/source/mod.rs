//! Stage 1: LIST and WATCH. Follows streams and tells the log what it sees; knows nothing of sinks.
//!
//! [`cluster`] connects, [`names`] turns the configuration's words into streams, [`api`] is the port to the API server,
//! [`machine`] decides what a stream does next, [`follow`] does it.

pub mod api;
pub mod cluster;
pub mod follow;
mod lines;
pub mod machine;
pub mod names;
