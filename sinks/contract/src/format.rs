//! Records as bytes and as text: pure functions, the same for every sink and every command.

mod diff;
mod edit;
mod line;
mod native;
mod span;

pub use diff::diff;
pub use edit::{Edit, Known, Was, edits, pointed, was};
pub use line::{Brief, Detail, News, Style, line};
pub use native::native;
pub use span::{cut_end, cut_middle, shown, width};
