//! Stage 4: from the log to a sink. Cuts batches, retries, and moves the cursor when, and only when, the sink has
//! acknowledged.

mod again;
mod batch;
mod dead_letter;
mod deliver;
mod filter;
mod order;
mod pump;
mod remains;

pub use batch::{Batcher, Cut, Limits, Portion};
pub use dead_letter::{DeadLetters, Found, Line, Lines, NotTaken, Outline, Place, Subject, Taken, dead_letter_files};
pub use deliver::Refusals;
pub use filter::Filter;
pub use order::{Noted, Order, Ordered, Orders};
pub use pump::{DeliveryError, Policy, Pump};
