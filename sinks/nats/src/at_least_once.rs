//! At least once: a window of publishes on their way, each with its own acknowledgement.
//!
//! On the first failure no more is sent; what is on its way is waited for, and what lies before the first message without an
//! acknowledgement is durable. What was stored behind that comes again, and the server knows it by its id.

use std::{collections::VecDeque, time::Duration};

use kubetide_sink::{Batch, Decision, SinkError};

use crate::{
    connection::Connection,
    message::{Making, Order, Outgoing},
    verdict::{Answer, Trouble},
};

/// So many messages are on their way: enough to hide the way to the server and its fsync.
const IN_FLIGHT: usize = 256;
/// A server from which nothing comes for so long is taken to be away. It acknowledges in milliseconds.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Publishes the batch. After an error other than about a single record the connection is not to be used again.
pub(crate) async fn publish(
    connection: &mut Connection,
    making: &Making,
    batch: &Batch,
    max_message: usize,
) -> Result<(), SinkError> {
    let mut window = Window::default();
    let mut order = Order::of(batch);
    for (index, record) in batch.records.iter().enumerate() {
        let Some(mut message) = making.message(record, true) else { continue };
        if let Err(error) = fits(&message, max_message) {
            window.empty(connection).await;
            return window.outcome().and_then(|()| Err(error.behind(index)));
        }
        let after = order.after(record, window.sent());
        while !window.has_room() || after.is_some_and(|after| !window.is_stored(after)) {
            window.advance(connection).await;
            if window.is_spoilt {
                window.empty(connection).await;
                return window.outcome();
            }
        }
        match connection.publish(&mut message).await {
            Ok(number) => window.push(index, number, message.subject),
            Err(error) => {
                window.empty(connection).await;
                return window.outcome().and_then(|()| Err(error.behind(index)));
            }
        }
    }
    window.empty(connection).await;
    window.outcome()
}

/// Whether the server takes a message of this size.
pub(crate) fn fits(message: &Outgoing, max_message: usize) -> Result<(), SinkError> {
    let size = message.size();
    if size <= max_message {
        return Ok(());
    }
    let Outgoing { subject, .. } = message;
    let problem = format!("the message for {subject} has {size} bytes with its headers, allowed: {max_message}");
    Err(SinkError::new(Decision::Oversize, problem))
}

/// The messages that are not known to be stored yet, oldest first.
#[derive(Default)]
struct Window {
    open: VecDeque<Slot>,
    /// How many messages are stored before the oldest open one.
    stored: usize,
    /// The number of the oldest open one.
    first: u64,
    /// A message was not stored, or there is no answer: nothing more may be sent.
    is_spoilt: bool,
    /// Why no answer comes any more.
    trouble: Option<Trouble>,
}

struct Slot {
    /// Its record's place in the batch.
    record: usize,
    subject: String,
    answer: Option<Answer>,
}

impl Window {
    /// How many messages were sent.
    fn sent(&self) -> usize {
        self.stored + self.open.len()
    }

    fn has_room(&self) -> bool {
        self.open.len() < IN_FLIGHT
    }

    /// Whether this message and all before it are stored.
    fn is_stored(&self, message: usize) -> bool {
        message < self.stored
    }

    fn push(&mut self, record: usize, number: u64, subject: String) {
        if self.open.is_empty() {
            self.first = number;
        }
        self.open.push_back(Slot { record, subject, answer: None });
    }

    /// Waits for one answer.
    async fn advance(&mut self, connection: &mut Connection) {
        match connection.answer(ANSWER_WITHIN).await {
            Ok((number, answer)) => self.take(number, answer),
            Err(trouble) => (self.is_spoilt, self.trouble) = (true, Some(trouble)),
        }
    }

    fn take(&mut self, number: u64, answer: Answer) {
        let place = number.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        // Another number is that of a message which was given up; its answer is of no use any more.
        let Some(slot) = place.and_then(|place| self.open.get_mut(place)) else { return };
        self.is_spoilt |= !matches!(answer, Answer::Stored { .. });
        slot.answer = Some(answer);
        while let Some(Slot { answer: Some(Answer::Stored { .. }), .. }) = self.open.front() {
            self.open.pop_front();
            self.stored += 1;
            self.first += 1;
        }
    }

    /// Waits until every message on its way has an answer, or none comes any more.
    async fn empty(&mut self, connection: &mut Connection) {
        while self.trouble.is_none() && self.open.iter().any(|slot| slot.answer.is_none()) {
            self.advance(connection).await;
        }
    }

    /// What became of the batch as far as it was sent.
    fn outcome(self) -> Result<(), SinkError> {
        let Some(Slot { record, subject, answer }) = self.open.into_iter().next() else { return Ok(()) };
        let what = format!("publish on {subject}");
        let error = match answer {
            Some(Answer::Refused(refusal)) => refusal.verdict(&what),
            // It may be about to be made, or without a leader; if it stays away, the next look at it will say so.
            Some(Answer::NoStream) => SinkError::retry(format!("{what}: no stream takes it now")),
            Some(Answer::Staged | Answer::Unreadable | Answer::Stored { .. }) => SinkError::hold(format!(
                "{what}: the answer is not one of JetStream; who else listens on this subject?"
            )),
            None => self.trouble.unwrap_or(Trouble::Silent).verdict(&what),
        };
        Err(error.behind(record))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use proptest::prelude::*;

    use super::*;

    const STORED: Answer = Answer::Stored { sequence: 1 };

    proptest! {
        /// Answers in any order, some of them bad or missing: what is called durable is what is stored before the first
        /// message that is not.
        #[test]
        fn only_what_lies_before_the_first_unstored_message_is_durable(
            answers in prop::collection::vec((prop::option::weighted(0.9, prop::bool::weighted(0.9)), any::<u32>()), 1..50),
            base in 0_u64..5,
        ) {
            let mut window = Window::default();
            for index in 0..answers.len() {
                // Every other record is left out by the format.
                window.push(index * 2, base + index as u64, "s".into());
            }
            let mut coming: Vec<(usize, bool)> =
                answers.iter().enumerate().filter_map(|(index, (answer, _))| Some((index, (*answer)?))).collect();
            coming.sort_by_key(|(index, _)| answers[*index].1);
            for (index, is_good) in coming {
                window.take(base + index as u64, if is_good { STORED } else { Answer::NoStream });
            }
            let all_good = answers.iter().position(|(answer, _)| *answer != Some(true));
            prop_assert_eq!(window.sent(), answers.len());
            prop_assert_eq!(window.stored, all_good.unwrap_or(answers.len()));
            match (window.outcome(), all_good) {
                (Ok(()), None) => {}
                (Err(error), Some(first)) => prop_assert_eq!(error.durable, first * 2),
                (outcome, _) => prop_assert!(false, "{:?}", outcome),
            }
        }
    }

    #[test]
    fn an_answer_to_a_message_of_another_batch_is_nobodys() {
        let mut window = Window::default();
        window.push(0, 5, "s".into());
        window.take(4, STORED);
        window.take(6, STORED);
        assert_eq!(window.outcome().unwrap_err().durable, 0);
    }
}
