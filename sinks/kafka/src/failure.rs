//! What an error of Kafka's asks for.

use kubetide_sink::{Decision, SinkError};
use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode},
    types::RDKafkaErrorCode as Code,
};

/// What an error says about what was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The broker is away, busy, or not the leader any more.
    Away,
    /// The broker will not take anything until somebody acts.
    Closed,
    /// The broker takes no message, or no batch of messages, as large as this.
    TooLarge,
    /// The broker takes no such message.
    Refused,
    /// Somebody else writes under the same identity.
    Fenced,
}

/// What this code says.
pub(crate) const fn meaning(code: RDKafkaErrorCode) -> Meaning {
    match code {
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::SecurityDisabled
        | Code::TopicAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownPartition
        | Code::UnknownTopicId
        | Code::InvalidTopic
        | Code::InvalidConfig
        | Code::InvalidPartitions
        | Code::InvalidReplicationFactor
        | Code::InvalidTransactionTimeout
        | Code::PolicyViolation
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::UnsupportedCompressionType
        | Code::UnsupportedForMessageFormat => Meaning::Closed,
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => Meaning::TooLarge,
        // The last one is said of the others in a batch with such a message: alone they will be taken.
        Code::InvalidRecord | Code::InvalidTimestamp | Code::InvalidDifferentRecord => Meaning::Refused,
        Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch => Meaning::Fenced,
        _ => Meaning::Away,
    }
}

/// Retry or hold, for what concerns no single record.
pub(crate) fn error(what: &str, error: &KafkaError) -> SinkError {
    let code = error.rdkafka_error_code();
    let decision = match code.map(meaning) {
        Some(Meaning::Closed) => Decision::Hold,
        _ => Decision::Retry { after: None },
    };
    SinkError::new(decision, format!("{what}: {error}"))
}

/// What a message of librdkafka about a connection asks for. One that fails on a certificate fails again, whoever did not like whose; one
/// that was cut off otherwise may be a broker that is starting.
pub(crate) fn of_connection(code: RDKafkaErrorCode, reason: &str) -> Decision {
    let reason = reason.to_lowercase();
    let certificate = ["certificate", "verify failed", "unknown ca"].iter().any(|word| reason.contains(word));
    match meaning(code) {
        Meaning::Closed => Decision::Hold,
        _ if certificate => Decision::Hold,
        _ => Decision::Retry { after: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_let_in_waits_for_an_operator_and_who_finds_nobody_tries_again() {
        let again = Decision::Retry { after: None };
        for (code, reason, decision) in [
            (Code::Authentication, "SASL authentication error: invalid credentials", Decision::Hold),
            (
                Code::SSL,
                "SSL handshake failed: certificate verify failed: broker certificate could not be verified",
                Decision::Hold,
            ),
            (
                Code::BrokerTransportFailure,
                "Receive failed: ssl/tls alert bad certificate: SSL alert number 42",
                Decision::Hold,
            ),
            (Code::BrokerTransportFailure, "Receive failed: tlsv1 alert unknown ca", Decision::Hold),
            (Code::SSL, "SSL handshake failed: Disconnected: connecting to a PLAINTEXT broker listener?", again),
            (Code::BrokerTransportFailure, "Connect to ipv4#127.0.0.1:9092 failed: Connection refused", again),
            (Code::Resolve, "Failed to resolve 'kafka:9092'", again),
            (Code::AllBrokersDown, "1/1 brokers are down", again),
        ] {
            assert_eq!(of_connection(code, reason), decision, "{reason}");
        }
    }

    #[test]
    fn every_answer_of_a_broker_has_its_meaning() {
        for (code, expected) in [
            (Code::TopicAuthorizationFailed, Meaning::Closed),
            (Code::UnknownTopicOrPartition, Meaning::Closed),
            (Code::MessageSizeTooLarge, Meaning::TooLarge),
            (Code::MessageBatchTooLarge, Meaning::TooLarge),
            (Code::InvalidRecord, Meaning::Refused),
            (Code::InvalidTimestamp, Meaning::Refused),
            (Code::InvalidDifferentRecord, Meaning::Refused),
            (Code::InvalidProducerEpoch, Meaning::Fenced),
            (Code::Fenced, Meaning::Fenced),
            (Code::NotLeaderForPartition, Meaning::Away),
            (Code::NotEnoughReplicas, Meaning::Away),
            (Code::OutOfOrderSequenceNumber, Meaning::Away),
            (Code::Unknown, Meaning::Away),
        ] {
            assert_eq!(meaning(code), expected, "{code:?}");
        }
    }
}
