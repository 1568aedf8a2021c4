//! What is sent for a record: where to, under which key, with which headers.

use kubetide_sink::{Body, Carrier, Format, Letter, Record, format};

use crate::topic::{Pattern, Topics};

/// Where a record goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// To the partition of its key.
    Key(String),
    /// To every partition of these topics: whoever reads one of them must know.
    Partitions(Pattern),
}

/// What is sent for a record.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Outgoing {
    pub(crate) key: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    /// None: a message that has headers alone.
    pub(crate) body: Option<Vec<u8>>,
    /// Whether a message with the same key and no value follows.
    pub(crate) then_tombstone: bool,
    /// Milliseconds since 1970.
    pub(crate) timestamp: i64,
}

impl Outgoing {
    /// About how many bytes the broker counts, before compression. Rather too many than too few.
    pub(crate) fn size(&self) -> usize {
        // Of a message: up to 21; of a batch with one message: 61 to 70.
        const FRAME: usize = 128;
        // Two lengths.
        const HEADER: usize = 6;
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len() + HEADER).sum();
        FRAME + self.key.len() + headers + self.body.as_ref().map_or(0, Vec::len)
    }
}

/// How the records of one sink become messages.
#[derive(Clone, Debug)]
pub(crate) struct Messages {
    pub(crate) format: Format,
    pub(crate) topics: Topics,
    pub(crate) control_topic: Option<String>,
}

impl Messages {
    /// Where the record goes; none if this format leaves it out.
    pub(crate) fn destination(&self, record: &Record) -> Option<Destination> {
        match &record.body {
            Body::Change(_) => Some(Destination::Key(self.topics.of(record))),
            Body::Control(_) if self.format == Format::Debezium => self.control_topic.clone().map(Destination::Key),
            Body::Control(_) => Some(Destination::Partitions(self.topics.about(record))),
        }
    }

    /// What is sent there.
    pub(crate) fn outgoing(&self, record: &Record) -> Outgoing {
        let (key, timestamp) = (key(record), record.observed_at.as_millisecond());
        match self.format.message(record, Carrier::Kafka) {
            Some(message) => Outgoing {
                key,
                headers: message.headers,
                body: Some(message.body),
                then_tombstone: message.then_tombstone,
                timestamp,
            },
            None => Outgoing { key, headers: format::headers(record), body: None, then_tombstone: false, timestamp },
        }
    }
}

/// What is being written: the records of a batch, or one dead letter.
#[derive(Clone, Copy)]
pub(crate) enum Writing<'a> {
    Records(&'a Messages),
    Letter(&'a str, &'a Letter),
}

impl Writing<'_> {
    /// Where a record goes; none if it is left out.
    pub(crate) fn destination(&self, record: &Record) -> Option<Destination> {
        match self {
            Self::Records(messages) => messages.destination(record),
            Self::Letter(topic, _) => Some(Destination::Key((*topic).to_owned())),
        }
    }

    /// What is sent there.
    pub(crate) fn outgoing(&self, record: &Record) -> Outgoing {
        match self {
            Self::Records(messages) => messages.outgoing(record),
            Self::Letter(_, letter) => {
                let mut body = Vec::with_capacity(record.weight());
                letter.write(&mut body);
                // The time of the record may be what it was refused for.
                let timestamp = letter.at.as_millisecond();
                Outgoing {
                    key: key(record),
                    headers: letter.headers(),
                    body: Some(body),
                    then_tombstone: false,
                    timestamp,
                }
            }
        }
    }
}

/// The key of a record: the object and never its uid, so that all states of one name are in one partition, and compaction keeps the last.
fn key(record: &Record) -> String {
    let stream = &record.stream;
    match &record.body {
        Body::Change(change) => {
            let namespace = if change.namespace.is_empty() { "_" } else { &change.namespace };
            let (cluster, group) = (&stream.cluster.name, stream.group_name());
            format!("{cluster}/{group}/{}/{namespace}/{}", stream.resource, change.name)
        }
        Body::Control(_) => format!("!control/{stream}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::sync::Arc;

    use kubetide_sink::{Change, Control, Op, Scope, Stream, What, sample};

    use super::*;

    fn messages(format: Format, topic: &str, control_topic: Option<&str>) -> Messages {
        let topics = Topics::new(topic, "sample").unwrap();
        Messages { format, topics, control_topic: control_topic.map(str::to_owned) }
    }

    fn native() -> Messages {
        messages(Format::Native, "k.{cluster}.{group}.{resource}", None)
    }

    fn change(edit: impl FnOnce(&mut Change)) -> Record {
        let mut record = sample::record(1, "{}");
        let Body::Change(change) = &mut record.body else { unreachable!() };
        edit(change);
        record
    }

    fn control(stream: Stream) -> Record {
        let body = Body::Control(Control { what: What::SnapshotStarted, scope: Scope::Stream });
        Record { stream: Arc::new(stream), body, ..sample::record(1, "{}") }
    }

    #[test]
    fn the_key_is_the_object_and_not_its_uid() {
        assert_eq!(key(&change(|_| {})), "sample/core/pods/default/pod-1");
        assert_eq!(key(&change(|change| change.uid = "other".into())), "sample/core/pods/default/pod-1");
        assert_eq!(key(&change(|change| change.namespace.clear())), "sample/core/pods/_/pod-1");
    }

    /// The one topic that the record goes to all partitions of, and whether it goes to these.
    fn about(messages: &Messages, record: &Record, names: [&str; 3]) -> (Option<String>, [bool; 3]) {
        let Some(Destination::Partitions(pattern)) = messages.destination(record) else { panic!("to one partition") };
        (pattern.only().map(str::to_owned), names.map(|name| pattern.has(name)))
    }

    #[test]
    fn a_control_record_goes_to_every_partition_of_its_streams_topic() {
        let record = control(sample::stream("pods", "Pod"));
        let (only, _) = about(&native(), &record, [""; 3]);
        assert_eq!(only.as_deref(), Some("k.sample.core.pods"));
        assert_eq!(key(&record), "!control/core/pods");
        let one = Stream { namespace: Some("a".into()), ..sample::stream("pods", "Pod") };
        assert_eq!(key(&control(one)), "!control/core/pods@a");
    }

    #[test]
    fn a_control_record_about_several_topics_goes_to_all_of_them_and_to_no_other() {
        let none = control(Stream::none_of(sample::stream("", "").cluster));
        assert_eq!(key(&none), "!control/*");
        let names = ["k.sample.core.pods", "k.sample.apps.deployments", "k.other.core.pods"];
        assert_eq!(about(&native(), &none, names), (None, [true, true, false]));
        let fixed = messages(Format::Native, "audit", None);
        assert_eq!(about(&fixed, &none, ["audit", "audit2", "k"]), (Some("audit".into()), [true, false, false]));

        let by_namespace = messages(Format::Native, "k.{resource}.{namespace}", None);
        let all = control(sample::stream("pods", "Pod"));
        assert_eq!(about(&by_namespace, &all, ["k.pods.a", "k.pods.b", "k.services.a"]), (None, [true, true, false]));
        let one = control(Stream { namespace: Some("a".into()), ..sample::stream("pods", "Pod") });
        assert_eq!(about(&by_namespace, &one, ["k.pods.a", "k.pods.b", "k.services.a"]).1, [true, false, false]);
    }

    #[test]
    fn debezium_has_control_records_on_a_topic_of_their_own_or_not_at_all() {
        let record = control(sample::stream("pods", "Pod"));
        assert_eq!(messages(Format::Debezium, "k", None).destination(&record), None);
        let with = messages(Format::Debezium, "k", Some("k-control"));
        assert_eq!(with.destination(&record), Some(Destination::Key("k-control".into())));
        let sent = with.outgoing(&record);
        assert_eq!((sent.body, sent.then_tombstone), (None, false));
        assert!(sent.headers.contains(&("kubetide-op", "snapshot_started".into())));
    }

    #[test]
    fn a_native_message_has_what_can_be_known_without_its_body_in_headers() {
        let sent = native().outgoing(&change(|change| change.op = Op::Delete));
        assert!(sent.headers.contains(&("kubetide-op", "delete".into())));
        assert!(sent.headers.contains(&("kubetide-seq", "1".into())));
        assert!(sent.body.unwrap().starts_with(b"{\"schema\":"));
        assert!(!sent.then_tombstone, "only Debezium has tombstones");
    }

    #[test]
    fn the_size_is_never_less_than_what_is_sent() {
        let sent = native().outgoing(&change(|_| {}));
        let headers: usize = sent.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(sent.size() > sent.key.len() + headers + sent.body.unwrap().len() + 70);
    }
}
