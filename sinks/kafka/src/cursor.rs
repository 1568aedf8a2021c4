//! The cursor of a sink, as it stands in the cursor topic.
//!
//! All sinks write to partition 0 of one compacted topic, each under its own key, within its transactions. What counts is the last cursor
//! that was committed, so the topic is read up to where it ended when the writer before us was fenced off. A transaction of another
//! sink that is still open there hides what is behind it: it is waited for. The search goes backwards, because the
//! last cursor is nearly always near the end.

use std::{
    sync::Weak,
    time::{Duration, Instant},
};

use bytes::Bytes;
use kubetide_sink::SinkError;
use rdkafka::{
    ClientConfig, Message as _, Offset, TopicPartitionList,
    config::FromClientConfigAndContext as _,
    consumer::{BaseConsumer, Consumer as _},
    error::{KafkaError, KafkaResult},
    types::RDKafkaErrorCode as Code,
};

use crate::{
    connection,
    failure::{self, Meaning},
    feedback::Context,
};

/// All cursors are here: compaction keeps the last of each.
pub(crate) const PARTITION: i32 = 0;

/// Another sink's transaction ends within its timeout, or is ended.
const PATIENCE: Duration = Duration::from_secs(90);

/// One look at the topic.
const LOOK: Duration = Duration::from_secs(5);

/// How far back the search begins, and how much wider it gets.
const NEAR: i64 = 1_000;
const WIDER: i64 = 10;

type Consumer = BaseConsumer<Context>;

/// What is behind the beginning of a transaction that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hidden {
    /// May be the last cursor: the end of the transaction is waited for.
    Awaited,
    /// Is left out. The transaction may be our own, which nobody will end while we wait.
    Ignored,
}

/// The last committed cursor under this key. Blocks, as long as `asked` is alive.
pub(crate) fn read(
    client: &ClientConfig,
    context: impl Fn() -> Context,
    topic: &str,
    key: &str,
    hidden: Hidden,
    asked: &Weak<()>,
) -> Result<Option<Bytes>, SinkError> {
    let what = format!("read the cursor from {topic}");
    let consumer = |isolation: &str| {
        let mut client = client.clone();
        for (name, value) in [
            // Never joined: only a consumer that has one can be given a partition.
            ("group.id", key),
            ("isolation.level", isolation),
            ("enable.partition.eof", "true"),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "earliest"),
            // At its end the broker would wait half a second for more, which is not to come.
            ("fetch.wait.max.ms", "10"),
        ] {
            client.set(name, value);
        }
        Consumer::from_config_and_context(&client, context()).map_err(|error| connection::cannot(&what, error))
    };
    let failed = |error: KafkaError| failure::error(&what, &error);
    let deadline = Instant::now() + PATIENCE;
    let over = || Instant::now() > deadline || asked.strong_count() == 0;
    let (start, end) = ends(&consumer("read_uncommitted")?, topic, &over).map_err(failed)?;
    let consumer = consumer("read_committed")?;
    // As this consumer sees it, the topic ends where the first open transaction begins.
    let end = loop {
        let stable = ends(&consumer, topic, &over).map_err(failed)?.1;
        match hidden {
            Hidden::Ignored => break stable,
            Hidden::Awaited if stable >= end => break end,
            Hidden::Awaited if over() => {
                return Err(SinkError::retry(format!("{what}: a transaction of another sink is open there")));
            }
            Hidden::Awaited => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let (mut before, mut width) = (end, NEAR);
    while before > start {
        let from = start.max(before - width);
        if let Some(found) = last(&consumer, topic, key.as_bytes(), from..before, &over).map_err(failed)? {
            return Ok(Some(found));
        }
        (before, width) = (from, width * WIDER);
    }
    Ok(None)
}

/// Where the topic begins and ends.
fn ends(consumer: &Consumer, topic: &str, over: &dyn Fn() -> bool) -> KafkaResult<(i64, i64)> {
    loop {
        // Serves what librdkafka wants to tell, such as that it needs a token.
        if let Some(Err(error)) = consumer.poll(Duration::ZERO) {
            stop(error, over)?;
        }
        match consumer.fetch_watermarks(topic, PARTITION, LOOK) {
            Ok(ends) => return Ok(ends),
            Err(error) => stop(error, over)?,
        }
    }
}

/// The last value under this key between two offsets.
fn last(
    consumer: &Consumer,
    topic: &str,
    key: &[u8],
    offsets: std::ops::Range<i64>,
    over: &dyn Fn() -> bool,
) -> KafkaResult<Option<Bytes>> {
    let mut at = TopicPartitionList::new();
    at.add_partition_offset(topic, PARTITION, Offset::Offset(offsets.start))?;
    consumer.assign(&at)?;
    let mut found = None;
    loop {
        match consumer.poll(LOOK) {
            Some(Ok(message)) if message.offset() >= offsets.end => return Ok(found),
            Some(Ok(message)) if message.key() == Some(key) => found = message.payload().map(Bytes::copy_from_slice),
            Some(Ok(_)) => {}
            Some(Err(KafkaError::PartitionEOF(_))) => return Ok(found),
            Some(Err(error)) => stop(error, over)?,
            None => stop(KafkaError::NoMessageReceived, over)?,
        }
    }
}

/// Gives up on what a broker that comes back cannot mend, or when it takes too long.
fn stop(error: KafkaError, over: &dyn Fn() -> bool) -> KafkaResult<()> {
    let code = error.rdkafka_error_code();
    // The group is never joined, so no right to it is needed.
    let closed =
        code.is_some_and(|code| code != Code::GroupAuthorizationFailed && failure::meaning(code) == Meaning::Closed);
    if closed || over() { Err(error) } else { Ok(()) }
}
