//! The sink for Kafka: `type: kafka`.
//!
//! Records go through one idempotent producer, keyed by object, and count as delivered when all in-sync replicas have them. With
//! `delivery: exactly_once` a batch and its cursor are one transaction. What is sent for a record is decided in `message`, which does no I/O.

mod catalog;
mod config;
mod connection;
mod credentials;
mod cursor;
mod failure;
mod feedback;
mod flight;
mod message;
mod properties;
mod sink;
mod topic;
mod transaction;

pub use config::{CleanupPolicy, Compression, CreateTopics, KafkaConfig, Mechanism, Property, Sasl};
pub use sink::KafkaSink;
