//! Exactly once: the records and the cursor as one atomic batch.
//!
//! The cursor is the last message of the batch. It is stored only if the message before it on its subject is the one that
//! this writer knows, else nothing of the batch is. So a second writer is found out by the server, and so is a batch that
//! has come through although nobody said so.

use std::time::Duration;

use async_nats::jetstream::{message::StreamMessage, stream::LastRawMessageErrorKind};
use bytes::Bytes;
use kubetide_sink::{Batch, Decision, SinkError};
use ulid::Ulid;

use crate::{
    at_least_once::fits,
    config::RECORDS_AT_ONCE,
    connection::Connection,
    message::{Making, WRITER},
    verdict::{Answer, Refusal},
};

/// A batch of a thousand messages is written in well under a second.
const COMMIT_WITHIN: Duration = Duration::from_secs(30);
/// Somebody else may commit between our look at the cursor and our word; nobody does so forever.
const FENCE_ATTEMPTS: usize = 5;

/// The cursor in the stream, as this writer knows it.
#[derive(Debug)]
pub(crate) struct Fence {
    /// Another one for each opened sink.
    writer: String,
    /// The place of the last cursor; 0 if there was none, none if it was not looked up yet.
    known: Option<u64>,
    /// A commit was sent, and what came of it is not known.
    in_doubt: bool,
    batches: u64,
}

/// What became of a commit whose outcome was not told.
enum Found {
    Committed,
    NotCommitted,
}

impl Fence {
    pub(crate) fn new() -> Self {
        Self { writer: Ulid::generate().to_string(), known: None, in_doubt: false, batches: 0 }
    }

    /// The cursor that was committed last. Whoever wrote it cannot write another one after this.
    pub(crate) async fn restore(
        &mut self,
        connection: &mut Connection,
        making: &Making,
    ) -> Result<Option<Bytes>, SinkError> {
        for _ in 0..FENCE_ATTEMPTS {
            let last = look(connection, making).await?;
            let (behind, cursor) = last.map_or((0, Bytes::new()), |last| (last.sequence, last.payload));
            // The same cursor once more, but ours.
            let mut mark = making.cursor(&cursor, &self.writer, behind);
            let what = format!("publish on {}", mark.subject);
            let number = connection.publish(&mut mark).await?;
            match answer_to(connection, number, &what, COMMIT_WITHIN).await? {
                Answer::Stored { sequence } => {
                    (self.known, self.in_doubt) = (Some(sequence), false);
                    return Ok(Some(cursor).filter(|cursor| !cursor.is_empty()));
                }
                Answer::Refused(refusal) if refusal.is_fence() => {}
                other => return Err(refused(other, &what)),
            }
        }
        Err(SinkError::retry(format!("another process keeps writing to {}", making.subjects.cursor())))
    }

    /// Writes the records and the cursor, all or nothing. After an error other than about a single record the connection is
    /// not to be used again.
    pub(crate) async fn commit(
        &mut self,
        connection: &mut Connection,
        making: &Making,
        batch: &Batch,
        cursor: &Bytes,
        max_message: usize,
    ) -> Result<(), SinkError> {
        if self.known.is_none() {
            // Delivery asks for the cursor before it delivers; without that nobody is fenced off yet.
            self.restore(connection, making).await?;
        }
        if self.in_doubt && matches!(self.resolve(connection, making, cursor).await?, Found::Committed) {
            return Ok(());
        }
        let (first, commit) = self.send(connection, making, batch, cursor, max_message).await?;
        let what = format!("commit a batch of {} records with {}", batch.records.len(), making.subjects.cursor());
        match verdict_of(connection, first, commit, &what).await? {
            Answer::Stored { sequence } => {
                (self.known, self.in_doubt) = (Some(sequence), false);
                Ok(())
            }
            Answer::Refused(refusal) if refusal.is_fence() => match self.resolve(connection, making, cursor).await? {
                Found::Committed => Ok(()),
                Found::NotCommitted => Err(refusal_to_retry(&refusal, &what)),
            },
            other => {
                // The server has told that nothing is stored.
                self.in_doubt = !matches!(other, Answer::Refused(_) | Answer::NoStream);
                let error = refused(other, &what);
                Err(match (error.decision, batch.records.len()) {
                    // The server says this of a batch without saying of which record.
                    (Decision::Oversize | Decision::Poison, 2..) => SinkError::new(Decision::Split, error.message),
                    (Decision::Split, 1) => SinkError::new(Decision::Oversize, error.message),
                    (Decision::Oversize | Decision::Poison | Decision::Split, 0) => SinkError::hold(error.message),
                    _ => error,
                })
            }
        }
    }

    /// Sends the batch, and returns the numbers of its first and its last message: those are answered. The server has a message while the
    /// next one is made; of a record that cannot be sent it hears nothing more, and forgets the batch.
    async fn send(
        &mut self,
        connection: &mut Connection,
        making: &Making,
        batch: &Batch,
        cursor: &Bytes,
        max_message: usize,
    ) -> Result<(Option<u64>, u64), SinkError> {
        if batch.records.len() > RECORDS_AT_ONCE {
            let problem = format!("a batch of {}, allowed at once: {RECORDS_AT_ONCE}", batch.records.len());
            return Err(SinkError::new(Decision::Split, problem));
        }
        self.batches += 1;
        let id = format!("{}-{}", self.writer, self.batches);
        let mut first = None;
        let mut sequence = 0_u64;
        for (index, record) in batch.records.iter().enumerate() {
            let Some(mut message) = making.message(record, false) else { continue };
            sequence += 1;
            message.headers.extend(part(&id, sequence));
            let sent = match fits(&message, max_message) {
                Ok(()) if sequence == 1 => connection.publish(&mut message).await.map(|number| first = Some(number)),
                Ok(()) => connection.publish_unanswered(&mut message).await,
                Err(too_large) => Err(too_large),
            };
            sent.map_err(|error| match error.decision {
                // All or nothing: what is before the record cannot be durable without it, so it must come to be the first.
                Decision::Oversize | Decision::Poison if index > 0 => SinkError::new(Decision::Split, error.message),
                _ => error,
            })?;
        }
        let mut last = making.cursor(cursor, &self.writer, self.known.unwrap_or_default());
        last.headers.extend(part(&id, sequence + 1));
        last.headers.push(("Nats-Batch-Commit", "1".into()));
        self.in_doubt = true;
        Ok((first, connection.publish(&mut last).await?))
    }

    /// Finds out what became of the commit of this cursor.
    async fn resolve(
        &mut self,
        connection: &mut Connection,
        making: &Making,
        cursor: &Bytes,
    ) -> Result<Found, SinkError> {
        let subject = making.subjects.cursor();
        let Some(last) = look(connection, making).await? else {
            if self.known != Some(0) {
                tracing::warn!(subject, "the cursor is gone from the stream, beginning a new one");
            }
            (self.known, self.in_doubt) = (Some(0), false);
            return Ok(Found::NotCommitted);
        };
        let is_ours = last.headers.get(WRITER).is_some_and(|writer| writer.as_str() == self.writer);
        if is_ours && Some(last.sequence) == self.known {
            self.in_doubt = false;
            return Ok(Found::NotCommitted);
        }
        if is_ours && last.payload == cursor {
            (self.known, self.in_doubt) = (Some(last.sequence), false);
            return Ok(Found::Committed);
        }
        Err(SinkError::fatal(match is_ours {
            true => format!("the cursor on {subject} is not the one that was to be committed: start again from it"),
            false => format!("another process has the identity of this sink: it has written to {subject}"),
        }))
    }
}

fn part(id: &str, sequence: u64) -> [(&'static str, String); 2] {
    [("Nats-Batch-Id", id.to_owned()), ("Nats-Batch-Sequence", sequence.to_string())]
}

/// The last message on the cursor's subject, as the stream's leader has it.
async fn look(connection: &mut Connection, making: &Making) -> Result<Option<StreamMessage>, SinkError> {
    let subject = making.subjects.cursor();
    let what = format!("read {subject} in the stream {}", making.stream);
    let stream = connection.jetstream().get_stream_no_info(&making.stream).await;
    let stream = stream.map_err(|error| SinkError::hold(format!("{what}: {error}")))?;
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Ok(Some(message)),
        Err(error) => match error.kind() {
            LastRawMessageErrorKind::NoMessageFound => Ok(None),
            LastRawMessageErrorKind::JetStream(refused) => Err(connection.unanswered(Some(&refused), &what)),
            _ => Err(connection.unanswered(None, &what)),
        },
    }
}

/// The answer to this message.
pub(crate) async fn answer_to(
    connection: &mut Connection,
    number: u64,
    what: &str,
    within: Duration,
) -> Result<Answer, SinkError> {
    loop {
        match connection.answer(within).await {
            Ok((of, answer)) if of == number => return Ok(answer),
            Ok(_) => {}
            Err(trouble) => return Err(trouble.verdict(what)),
        }
    }
}

/// The answer to the commit, or the one to the first message where that tells more.
async fn verdict_of(
    connection: &mut Connection,
    first: Option<u64>,
    commit: u64,
    what: &str,
) -> Result<Answer, SinkError> {
    let mut cause = None;
    loop {
        match connection.answer(COMMIT_WITHIN).await {
            Ok((of, Answer::Refused(refusal))) if of == commit && refusal.is_incomplete() => {
                return Ok(cause.unwrap_or(Answer::Refused(refusal)));
            }
            Ok((of, answer)) if of == commit => return Ok(answer),
            Ok((of, answer @ Answer::Refused(_))) if Some(of) == first => cause = Some(answer),
            Ok(_) => {}
            Err(trouble) => return Err(trouble.verdict(what)),
        }
    }
}

fn refused(answer: Answer, what: &str) -> SinkError {
    match answer {
        Answer::Refused(refusal) => refusal.verdict(what),
        Answer::NoStream => SinkError::retry(format!("{what}: no stream takes it now")),
        Answer::Stored { .. } | Answer::Staged | Answer::Unreadable => {
            SinkError::retry(format!("{what}: the answer is not one of JetStream"))
        }
    }
}

/// The cursor is where it should be, and still the server says it is not: it is just storing one.
fn refusal_to_retry(refusal: &Refusal, what: &str) -> SinkError {
    SinkError::retry(refusal.verdict(what).message)
}
