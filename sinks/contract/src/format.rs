//! Records as bytes: pure functions, the same for every sink.

mod line;
mod native;

pub use line::{Brief, News, Style, line};
pub use native::native;
