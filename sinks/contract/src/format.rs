//! Records as bytes and as text: pure functions, the same for every sink and every command.

pub mod cloudevents;
pub mod debezium;
mod diff;
mod edit;
mod json;
mod line;
mod message;
mod native;
mod raw;
mod read;
mod span;
mod tree;

pub use diff::diff;
pub use edit::{Edit, Known, Was, edits, pointed, was};
pub use line::{Brief, Detail, News, Style, line};
pub use message::{Carrier, Format, Message, headers};
pub(crate) use native::letter;
pub use native::native;
pub use raw::Raw;
pub use read::{Unreadable, read_native};
pub use span::{cut_end, cut_middle, shown, width};
