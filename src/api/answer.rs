//! The one function that answers, whoever asks and whether the process runs or not.

use std::sync::Arc;

use bytes::Bytes;
use kubetide_sink::Stream;
use tokio::{sync::mpsc, task::JoinSet};

use super::{
    Answer, BLOCKS, Desk, Question, Refusal, Reply, Stopped, Words, changes, item, letters, log, objects, sinks,
};
use crate::changelog::Phase;

/// Answers a question. What is wrong with the question itself is said at once; what goes wrong later ends the answer.
pub async fn answer(desk: &Desk, question: Question) -> Result<Answer, Refusal> {
    match question {
        Question::Streams => {
            let streams = streams(desk)?;
            Ok(begin(async move |reply| reply.items(&streams).await))
        }
        Question::Sinks => {
            let sinks = sinks::sinks(desk).await?;
            Ok(begin(async move |reply| reply.items(&sinks).await))
        }
        Question::Log => {
            let log = log::log(desk).await?;
            Ok(begin(async move |reply| reply.items(&[log]).await))
        }
        Question::Verify => {
            let view = desk.view.clone();
            Ok(begin(async move |reply| log::verify(&view, &reply).await))
        }
        Question::Changes(wanted) => {
            let reading = changes::Reading::new(desk, *wanted).await?;
            Ok(begin(async move |reply| reading.run(&reply).await))
        }
        Question::Letters(sink) => {
            let reading = letters::Reading::new(desk, &sink)?;
            Ok(begin(async move |reply| reading.run(&reply).await))
        }
        Question::Objects(wanted) => {
            let reading = objects::Reading::new(desk, wanted).await?;
            Ok(begin(async move |reply| reading.run(&reply).await))
        }
    }
}

/// The writer of an answer ends with its reader, or with what it has to say.
fn begin<F>(write: impl FnOnce(Reply) -> F) -> Answer
where
    F: Future<Output = Result<(), Stopped>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BLOCKS);
    let mut writers = JoinSet::new();
    write_watched(&mut writers, sender.clone(), write(Reply(sender)));
    Answer { blocks: receiver, _writers: writers }
}

/// Lets somebody write an answer. What stops them ends it, a panic too: it must not look complete.
pub(super) fn write_watched<F>(writers: &mut JoinSet<()>, failed: mpsc::Sender<Result<Bytes, Refusal>>, write: F)
where
    F: Future<Output = Result<(), Stopped>> + Send + 'static,
{
    writers.spawn(async move {
        let mut writing = JoinSet::new();
        writing.spawn(write);
        let refusal = match writing.join_next().await {
            Some(Ok(Err(Stopped::Refused(refusal)))) => refusal,
            Some(Err(_)) => Refusal::Failed("the answer is not complete: a task that writes it has broken down".into()),
            Some(Ok(Ok(()) | Err(Stopped::Unread))) | None => return,
        };
        // If nobody reads any more, nobody needs to know.
        let _ = failed.send(Err(refusal)).await;
    });
}

fn streams(desk: &Desk) -> Result<Vec<item::Stream>, Refusal> {
    let known = desk.view.known().streams().map_err(Refusal::failed)?;
    let told = known.into_iter().map(|(stream, state)| {
        let (phase, position, at) = match state.phase {
            Phase::New => ("new", None, None),
            Phase::Listing { .. } => ("listing", None, None),
            Phase::Watching { position, at } => ("watching", Some(position.to_string()), Some(at)),
            Phase::Removed { position, at } => ("removed", position.map(|position| position.to_string()), Some(at)),
        };
        item::Stream { stream: stream.to_string(), phase: phase.into(), position, at, asked_as: state.asked_as }
    });
    Ok(told.collect())
}

/// The streams that these words stand for: a name, a name without its namespace, or a resource alone. All for none.
/// Those that are no longer followed too: their records are in the log.
pub(super) fn streams_for(desk: &Desk, words: &Words) -> Result<Vec<Arc<Stream>>, Refusal> {
    let known = desk.view.known().streams().map_err(Refusal::failed)?;
    named(known.into_iter().map(|(stream, _)| Arc::new(stream)).collect(), words)
}

/// The same, but only those that are followed: what was known of the others is as old as their removal.
pub(super) fn followed_for(desk: &Desk, words: &Words) -> Result<Vec<Arc<Stream>>, Refusal> {
    let known = desk.view.known().streams().map_err(Refusal::failed)?;
    let is_removed = |phase: &Phase| matches!(phase, Phase::Removed { .. });
    let (removed, followed): (Vec<_>, Vec<_>) = known.into_iter().partition(|(_, state)| is_removed(&state.phase));
    let followed: Vec<_> = followed.into_iter().map(|(stream, _)| Arc::new(stream)).collect();
    for word in &words.0 {
        let is_followed = followed.iter().any(|stream| stands_for(word, stream));
        if let Some((stream, _)) = removed.iter().find(|(stream, _)| !is_followed && stands_for(word, stream)) {
            let why = "its objects are not known any more, its records are in the log";
            return Err(Refusal::Absent(format!("stream {stream} is no longer followed: {why}")));
        }
    }
    named(followed, words)
}

fn named(known: Vec<Arc<Stream>>, words: &Words) -> Result<Vec<Arc<Stream>>, Refusal> {
    if words.is_empty() {
        return Ok(known);
    }
    let mut found = Vec::new();
    for word in &words.0 {
        let before = found.len();
        found.extend(known.iter().filter(|stream| stands_for(word, stream)).cloned());
        if found.len() == before {
            let names: Vec<String> = known.iter().map(ToString::to_string).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            return Err(unknown("stream", word, &names));
        }
    }
    Ok(found)
}

fn stands_for(word: &str, stream: &Stream) -> bool {
    let name = stream.to_string();
    name == word || stream.resource == word || name.split('@').next() == Some(word)
}

/// What was found, what is allowed, and what was probably meant.
pub(super) fn unknown(what: &str, found: &str, allowed: &[&str]) -> Refusal {
    /// More would not be read.
    const SHOWN: usize = 12;
    let near = nearest(found, allowed.iter().copied());
    let near = near.map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    let more = allowed.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let allowed = match allowed {
        [] => format!("there is no {what}"),
        allowed => format!("allowed: {}", allowed[..allowed.len().min(SHOWN)].join(", ")),
    };
    Refusal::Usage(format!("{what}: found {found}; {near}{allowed}{more}"))
}

/// The word that is near enough to have been meant.
pub(super) fn nearest<'a>(word: &str, among: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let score = |other: &str| {
        // `deploymnts` is meant to be `apps/deployments`, and `c3` to be `default/c3`.
        let bare = other.rsplit_once('/').map_or(other, |(_, bare)| bare.split('@').next().unwrap_or(bare));
        strsim::jaro_winkler(&word, other).max(strsim::jaro_winkler(&word, bare))
    };
    // Below this a suggestion is a guess.
    let near = among.map(|other| (score(other), other)).filter(|(score, _)| *score > 0.8);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[tokio::test]
    async fn an_answer_whose_writer_fails_does_not_look_complete() {
        let mut answer = begin(async |reply| {
            reply.items(&[1]).await?;
            panic!("on purpose");
        });
        assert_eq!(answer.next().await.unwrap().unwrap(), "1\n");
        assert!(matches!(answer.next().await, Some(Err(Refusal::Failed(_)))), "it ends with a refusal");
        assert!(answer.next().await.is_none());
    }
}
