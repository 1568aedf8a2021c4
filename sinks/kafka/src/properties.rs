//! `properties`: what of librdkafka may be set by hand, and what not.

use std::collections::BTreeMap;

use kubetide_sink::ConfigProblem;
use rdkafka::{ClientConfig, error::KafkaError};

use crate::config::Property;

/// What is refused, and why. A name that ends in a dot stands for all that begin with it.
const DENIED: &[(&str, &str)] = &[
    ("bootstrap.servers", "use brokers"),
    ("metadata.broker.list", "use brokers"),
    ("security.protocol", "use tls and sasl"),
    ("ssl.", "use tls"),
    ("enable.ssl.certificate.verification", "use tls; certificates are always verified"),
    ("sasl.", "use sasl"),
    ("enable.sasl.oauthbearer.unsecure.jwt", "use sasl"),
    ("compression.codec", "use compression"),
    ("compression.type", "use compression"),
    ("acks", "it is always all: Ok means durable"),
    ("request.required.acks", "it is always all: Ok means durable"),
    ("enable.idempotence", "it is always true: nothing is repeated or reordered by a retry"),
    ("enable.gapless.guarantee", "it is always true: nothing is written behind a message that was refused"),
    ("max.in.flight", "it is part of the order of records"),
    ("max.in.flight.requests.per.connection", "it is part of the order of records"),
    ("queuing.strategy", "it is part of the order of records"),
    ("partitioner", "it is always murmur2_random, as of Java clients"),
    ("sticky.partitioning.linger.ms", "every message has a key"),
    ("message.timeout.ms", "it is always 0: a message that expires would be overtaken by the next; use retry"),
    ("delivery.timeout.ms", "it is always 0: a message that expires would be overtaken by the next; use retry"),
    ("transactional.id", "use delivery: exactly_once; it is kubetide-<cluster uid>-<sink>"),
    ("transaction.timeout.ms", "it is always one minute: fencing rests on it"),
    ("allow.auto.create.topics", "use create_topics"),
    ("queue.buffering.max.kbytes", "memory is bounded by batch.max_bytes"),
    ("queue.buffering.max.messages", "memory is bounded by batch.max_records"),
    ("delivery.report.only.error", "every acknowledgement is awaited"),
    ("isolation.level", "it is always read_committed"),
    ("plugin.library.paths", "no foreign code is loaded"),
    ("log_level", "use telemetry.log_level"),
];

/// Says which property may not be set, or is none.
pub(crate) fn check(properties: &BTreeMap<String, Property>) -> Result<(), ConfigProblem> {
    for (name, value) in properties {
        let key = format!("properties.{name}");
        let denied = |denied: &str| name == denied || denied.ends_with('.') && name.starts_with(denied);
        if let Some((_, instead)) = DENIED.iter().find(|(of, _)| denied(of)) {
            return Err(ConfigProblem::new(key, format!("cannot be set here: {instead}")));
        }
        // librdkafka knows its properties best.
        let tried = ClientConfig::new().set(name, value.to_text()).create_native_config();
        if let Err(KafkaError::ClientConfig(_, problem, _, _)) = tried {
            return Err(ConfigProblem::new(key, problem));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn refused(name: &str, value: &str) -> Option<String> {
        let properties = BTreeMap::from([(name.to_owned(), Property::Text(value.into()))]);
        check(&properties).err().map(|problem| problem.to_string())
    }

    #[test]
    fn what_weakens_a_guarantee_is_refused_with_what_to_use() {
        for (name, _) in DENIED {
            let name = if name.ends_with('.') { format!("{name}anything") } else { (*name).to_owned() };
            let refused = refused(&name, "1").unwrap();
            assert!(refused.starts_with(&format!("properties.{name}: cannot be set here: ")), "{refused}");
        }
        assert_eq!(
            refused("ssl.ca.location", "/ca").unwrap(),
            "properties.ssl.ca.location: cannot be set here: use tls"
        );
    }

    #[test]
    fn what_librdkafka_does_not_know_or_take_is_refused_and_the_rest_is_passed_on() {
        let unknown = refused("linger", "1").unwrap();
        assert!(unknown.starts_with("properties.linger: ") && unknown.contains("No such configuration"), "{unknown}");
        assert!(refused("linger.ms", "soon").unwrap().starts_with("properties.linger.ms: "));
        for (name, value) in
            [("linger.ms", "20"), ("client.id", "a"), ("retries", "9"), ("socket.keepalive.enable", "true")]
        {
            assert_eq!(refused(name, value), None);
        }
    }

    /// An alias of a denied property would be a way around the list.
    #[test]
    fn no_other_name_of_a_denied_property_gets_through() {
        for (name, value) in [
            ("acks", "0"),
            ("request.required.acks", "0"),
            ("max.in.flight", "9"),
            ("delivery.timeout.ms", "5"),
            ("compression.type", "none"),
            ("metadata.broker.list", "other:9092"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.mechanisms", "PLAIN"),
        ] {
            assert!(refused(name, value).is_some(), "{name}");
        }
    }
}
