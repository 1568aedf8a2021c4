//! The sinks that write lines: a file, and standard output.
//!
//! Both write one record per line, in the format that they are asked for; standard output shows one-liners for people
//! instead when it is a terminal.

mod config;
mod message;
mod place;
mod sink;
mod stdout;
mod tidy;
mod writer;

pub use config::{Compression, FileConfig, Rotate, StdoutConfig};
pub use sink::FileSink;
pub use stdout::StdoutSink;
