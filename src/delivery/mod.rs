//! Stage 4: from the log to a sink. Cuts batches, retries, and moves the cursor when, and only when, the sink has
//! acknowledged.

mod batch;
mod order;
mod pump;

pub use batch::{Batcher, Cut, Limits};
pub use order::{Order, Ordered, Orders};
pub use pump::{DeliveryError, Pump};
