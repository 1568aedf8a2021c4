//! The sink against a guarded broker: TLS, client certificates, passwords, tokens, and credentials that change.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod real_kafka;

use std::path::{Path, PathBuf};

use kubetide_sink::{Decision, Sink as _};
use kubetide_sink_kafka::KafkaSink;
use kubetide_test_env::{Door, Guard, Kafka};
use real_kafka::{assert_exactly, exactly_once, insist, make_topic, read, sink, states};
use serde_json::{Value, json};

const PASSWORD: &str = "canary-5f1c0b";

fn with_password() -> Door {
    Door::Password { user: "kubetide".into(), password: PASSWORD.into() }
}

fn sasl(mechanism: &str, password: &Path, guard: &Guard) -> Value {
    json!({
        "tls": {"ca": guard.ca()},
        "sasl": {"mechanism": mechanism, "username": "kubetide", "password": {"file": password}},
    })
}

fn write(directory: &tempfile::TempDir, name: &str, content: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, content).unwrap();
    path
}

/// What an operator sees: that he must act, and no credential.
async fn held(sink: &mut KafkaSink, seq: u64) -> String {
    let error = sink.deliver(&states(seq, seq, 1), None).await.unwrap_err();
    assert_eq!(error.decision, Decision::Hold, "{error}");
    let shown = format!("{error} {error:?} {sink:?}");
    assert!(!shown.contains("canary"), "{shown}");
    shown
}

#[tokio::test]
async fn tls_needs_the_right_authority() {
    let kafka = Kafka::start_guarded(Door::Tls).await.unwrap();
    let (guard, topic) = (kafka.guard(), kafka.topic("tls"));
    let mut right = sink(&guard.bootstrap(), &topic, json!({"tls": {"ca": guard.ca()}}));
    right.deliver(&states(1, 10, 2), None).await.unwrap();
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 10, 2);
    // The public authorities have not signed it.
    let mut public = sink(&guard.bootstrap(), &topic, json!({"tls": {}}));
    let shown = held(&mut public, 11).await;
    assert!(shown.contains("certificate"), "{shown}");
    let missing = json!({"tls": {"ca": "/nowhere/ca.pem"}});
    let shown = held(&mut sink(&guard.bootstrap(), &topic, missing), 11).await;
    assert!(shown.contains("/nowhere/ca.pem"), "{shown}");
}

#[tokio::test]
async fn a_client_certificate_is_shown_and_read_again_when_it_has_changed() {
    let kafka = Kafka::start_guarded(Door::ClientCertificate).await.unwrap();
    let (guard, topic) = (kafka.guard(), kafka.topic("mtls"));
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("tls.crt"), directory.path().join("tls.key"));
    let put = |of: kubetide_test_env::ClientCertificate| {
        std::fs::copy(of.certificate, &cert).unwrap();
        std::fs::copy(of.key, &key).unwrap();
    };
    put(guard.strangers_certificate().unwrap());
    let mut sink = sink(&guard.bootstrap(), &topic, json!({"tls": {"ca": guard.ca(), "cert": cert, "key": key}}));
    held(&mut sink, 1).await;
    put(guard.client_certificate().unwrap());
    insist(&mut sink, &states(1, 10, 2), None).await.unwrap();
    put(guard.client_certificate().unwrap());
    sink.deliver(&states(11, 20, 2), None).await.unwrap();
    put(guard.strangers_certificate().unwrap());
    held(&mut sink, 21).await;
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 20, 2);
}

#[tokio::test]
async fn a_password_is_proven_by_every_mechanism_and_read_again_when_it_has_changed() {
    let kafka = Kafka::start_guarded(with_password()).await.unwrap();
    let guard = kafka.guard();
    let directory = tempfile::tempdir().unwrap();
    for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"] {
        let topic = kafka.topic("password");
        let password = write(&directory, "password", "canary-wrong\n");
        let mut sink = sink(&guard.bootstrap(), &topic, sasl(mechanism, &password, guard));
        let shown = held(&mut sink, 1).await;
        assert!(shown.to_lowercase().contains("authentication"), "{mechanism}: {shown}");
        write(&directory, "password", &format!("{PASSWORD}\n"));
        insist(&mut sink, &states(1, 10, 2), None).await.unwrap();
        // Between two writes of a rotation: what it has is still good.
        std::fs::remove_file(&password).unwrap();
        sink.deliver(&states(11, 20, 2), None).await.unwrap();
        write(&directory, "password", "canary-wrong");
        held(&mut sink, 21).await;
        assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 20, 2);
    }
}

#[tokio::test]
async fn exactly_once_goes_through_the_same_door() {
    let kafka = Kafka::start_guarded(with_password()).await.unwrap();
    let (guard, topic) = (kafka.guard(), kafka.topic("once"));
    let directory = tempfile::tempdir().unwrap();
    let password = write(&directory, "password", "canary-wrong");
    let config = real_kafka::config(&guard.bootstrap(), &topic, sasl("SCRAM-SHA-512", &password, guard));
    let mut sink = KafkaSink::open(&config, exactly_once("s")).unwrap();
    assert_eq!(sink.restore().await.unwrap_err().decision, Decision::Hold);
    write(&directory, "password", PASSWORD);
    assert_eq!(sink.restore().await.unwrap(), None);
    sink.deliver(&states(1, 10, 2), Some(&"10".into())).await.unwrap();
    assert_eq!(sink.restore().await.unwrap(), Some("10".into()));
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 10, 2);
}

/// A token as Kafka's own validator for tests takes it: not signed.
fn token(expires_in_secs: i64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let part = |value: Value| base64url(value.to_string().as_bytes());
    let claims = json!({"sub": "kubetide", "iat": now - 60, "exp": now + expires_in_secs});
    format!("{}.{}.", part(json!({"alg": "none"})), part(claims))
}

fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().chain(&[0, 0]).take(3).fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte));
        let digits = (0..=chunk.len()).map(|at| char::from(ALPHABET[bits >> (18 - 6 * at) & 63]));
        out.extend(digits);
    }
    out
}

#[tokio::test]
async fn a_token_is_read_from_its_file_whenever_it_is_needed() {
    let kafka = Kafka::start_guarded(with_password()).await.unwrap();
    let (guard, topic) = (kafka.guard(), kafka.topic("token"));
    make_topic(&kafka.bootstrap(), &topic, 3, &[]).await;
    let directory = tempfile::tempdir().unwrap();
    let path = write(&directory, "token", &token(3600));
    let more = json!({
        "create_topics": null,
        "tls": {"ca": guard.ca()},
        "sasl": {"mechanism": "OAUTHBEARER", "token": {"file": path}},
    });
    let mut sink = sink(&guard.bootstrap(), &topic, more);
    sink.deliver(&states(1, 10, 2), None).await.unwrap();
    assert_exactly(&read(&kafka.bootstrap(), &topic).await, 1, 10, 2);
}
