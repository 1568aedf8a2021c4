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
    message::{Making, Outgoing, WRITER},
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
        let messages = prepare(making, batch, max_message)?;
        let outcome = self.commit_prepared(connection, making, batch, messages, cursor).await;
        outcome.map_err(|error| match (error.decision, batch.records.len()) {
            // The server says this of a batch without saying of which record.
            (Decision::Oversize | Decision::Poison, 2..) => SinkError::new(Decision::Split, error.message),
            (Decision::Split, 1) => SinkError::new(Decision::Oversize, error.message),
            (Decision::Oversize | Decision::Poison | Decision::Split, 0) => SinkError::hold(error.message),
            _ => error,
        })
    }

    async fn commit_prepared(
        &mut self,
        connection: &mut Connection,
        making: &Making,
        batch: &Batch,
        messages: Vec<Outgoing>,
        cursor: &Bytes,
    ) -> Result<(), SinkError> {
        if self.known.is_none() {
            // Delivery asks for the cursor before it delivers; without that nobody is fenced off yet.
            self.restore(connection, making).await?;
        }
        if self.in_doubt && matches!(self.resolve(connection, making, cursor).await?, Found::Committed) {
            return Ok(());
        }
        self.in_doubt = true;
        let (first, commit) = self.send(connection, making, messages, cursor).await?;
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
                Err(refused(other, &what))
            }
        }
    }

    /// Sends the batch, and returns the numbers of its first and its last message: those are answered.
    async fn send(
        &mut self,
        connection: &mut Connection,
        making: &Making,
        messages: Vec<Outgoing>,
        cursor: &Bytes,
    ) -> Result<(Option<u64>, u64), SinkError> {
        self.batches += 1;
        let id = format!("{}-{}", self.writer, self.batches);
        let mut first = None;
        let mut sequence = 0_u64;
        for mut message in messages {
            sequence += 1;
            message.headers.extend(part(&id, sequence));
            if sequence == 1 {
                first = Some(connection.publish(&mut message).await?);
            } else {
                connection.publish_unanswered(&mut message).await?;
            }
        }
        let mut last = making.cursor(cursor, &self.writer, self.known.unwrap_or_default());
        last.headers.extend(part(&id, sequence + 1));
        last.headers.push(("Nats-Batch-Commit", "1".into()));
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

/// The messages of the batch, if they can be one atomic batch.
fn prepare(making: &Making, batch: &Batch, max_message: usize) -> Result<Vec<Outgoing>, SinkError> {
    let mut messages = Vec::with_capacity(batch.records.len());
    for (index, record) in batch.records.iter().enumerate() {
        let Some(message) = making.message(record, false) else { continue };
        // All or nothing: what is before the record cannot be durable without it, so it must come to be the first.
        let first_alone = |error: SinkError| match index {
            0 => error,
            _ => SinkError::new(Decision::Split, error.message),
        };
        // What is added for the batch has nearly the same size in every message.
        const PART: usize = 128;
        fits(&message, max_message.saturating_sub(PART)).map_err(first_alone)?;
        if let Err(header) = message.headers() {
            let problem = format!("the header {header} for {} cannot hold its value", message.subject);
            return Err(first_alone(SinkError::new(Decision::Poison, problem)));
        }
        messages.push(message);
    }
    if messages.len() > RECORDS_AT_ONCE {
        let problem = format!("a batch of {}, allowed at once: {RECORDS_AT_ONCE}", messages.len());
        return Err(SinkError::new(Decision::Split, problem));
    }
    Ok(messages)
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
