//! A dead letter as one message, acknowledged before delivery goes on behind its record.
//!
//! Also with `delivery: exactly_once` it is published by itself: it may be in another stream than the records and the cursor. If it
//! comes again, its id tells the server that it has it.

use kubetide_sink::SinkError;

use crate::{
    at_least_once::{ANSWER_WITHIN, fits},
    connection::Connection,
    exactly_once::answer_to,
    message::Outgoing,
    verdict::Answer,
};

/// Publishes it and waits until it is stored.
pub(crate) async fn publish(
    connection: &mut Connection,
    mut message: Outgoing,
    max_message: usize,
) -> Result<(), SinkError> {
    fits(&message, max_message)?;
    let subject = message.subject.clone();
    let what = format!("publish a dead letter on {subject}");
    let number = connection.publish(&mut message).await?;
    match answer_to(connection, number, &what, ANSWER_WITHIN).await? {
        Answer::Stored { .. } => Ok(()),
        Answer::Refused(refusal) => Err(refusal.verdict(&what)),
        Answer::NoStream => Err(SinkError::hold(format!(
            "{what}: no stream takes it: add {subject} to the subjects of one, or make one for it"
        ))),
        Answer::Staged | Answer::Unreadable => Err(SinkError::hold(format!(
            "{what}: the answer is not one of JetStream; who else listens on this subject?"
        ))),
    }
}
