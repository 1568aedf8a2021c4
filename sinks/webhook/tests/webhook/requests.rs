//! What is sent: the records as they are, under an id and a signature that others can check.

use kubetide_sink::{Body, Control, Decision, Format, Record, Scope, Terms, What, sample};
use kubetide_sink_webhook::WebhookSink;
use kubetide_test_env::{Answer, Posted, WebhookReceiver};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::{Files, batch, config, deliver, refused, sink};

// The base64 of 32 bytes each.
const OLD: &str = "whsec_b2xkIHNlY3JldCBvbGQgc2VjcmV0IG9sZCBzZWNyZXQ=";
const NEW: &str = "whsec_bmV3IHNlY3JldCBuZXcgc2VjcmV0IG5ldyBzZWNyZXQ=";

fn verified_by(posted: &Posted, secret: &str) -> bool {
    Webhook::new(secret).unwrap().verify(&posted.unpacked(), &posted.headers).is_ok()
}

#[tokio::test]
async fn a_request_is_a_signed_array_of_records() {
    let receiver = WebhookReceiver::start().unwrap();
    let files = Files::new();
    let mut sink = sink(&receiver.url(), &json!({"secret": files.reference("secret", OLD)}));
    let sent = batch([1, 2, 3]);
    deliver(&mut sink, &sent).await.unwrap();
    let posted = &receiver.requests()[0];
    assert_eq!((posted.method.as_str(), posted.uri.as_str()), ("POST", "/changes"));
    assert_eq!(posted.header("content-type"), "application/json");
    assert_eq!(posted.header("webhook-id"), format!("msg_{}", sent.id));
    assert!(posted.header("user-agent").starts_with("kubetide/"), "{}", posted.header("user-agent"));
    assert!(verified_by(posted, OLD));
    assert!(!verified_by(posted, NEW));
    let mut forged = posted.clone();
    forged.body = posted.body.iter().map(|byte| if *byte == b'3' { b'4' } else { *byte }).collect::<Vec<_>>().into();
    assert!(!verified_by(&forged, OLD));
    let values = receiver.committed();
    assert_eq!(values.iter().map(|value| value["object"]["a"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(values.iter().all(|value| value["schema"] == "kubetide.change.v1"));
}

#[tokio::test]
async fn while_a_secret_is_rotated_both_verify() {
    let receiver = WebhookReceiver::start().unwrap();
    let files = Files::new();
    let (new, old) = (files.reference("new", NEW), files.reference("old", OLD));
    deliver(&mut sink(&receiver.url(), &json!({"secret": [new, old]})), &batch([1])).await.unwrap();
    let posted = &receiver.requests()[0];
    assert!(verified_by(posted, NEW) && verified_by(posted, OLD));
    let signatures: Vec<_> = posted.header("webhook-signature").split(' ').collect();
    assert_eq!(signatures.len(), 2);
    // The newest is the first.
    let mut first_only = posted.clone();
    first_only.headers.insert("webhook-signature", signatures[0].parse().unwrap());
    assert!(verified_by(&first_only, NEW) && !verified_by(&first_only, OLD));
}

#[tokio::test]
async fn without_a_secret_there_is_an_id_and_no_signature() {
    let receiver = WebhookReceiver::start().unwrap();
    deliver(&mut sink(&receiver.url(), &json!({})), &batch([1])).await.unwrap();
    let posted = &receiver.requests()[0];
    assert!(!posted.header("webhook-id").is_empty() && !posted.headers.contains_key("webhook-signature"));
}

#[tokio::test]
async fn the_same_records_are_the_same_id_and_bytes_also_from_another_process_and_others_are_not() {
    let receiver = WebhookReceiver::start().unwrap();
    for compression in ["none", "gzip", "zstd"] {
        let before = receiver.requests().len();
        receiver.answer_next([Answer::status(503)]);
        let mut first = sink(&receiver.url(), &json!({"compression": compression}));
        refused(&mut first, &batch([1, 2])).await;
        deliver(&mut first, &batch([1, 2])).await.unwrap();
        deliver(&mut sink(&receiver.url(), &json!({"compression": compression})), &batch([1, 2])).await.unwrap();
        deliver(&mut first, &batch([1])).await.unwrap();
        let requests = receiver.requests().split_off(before);
        for again in &requests[1..3] {
            assert_eq!(again.header("webhook-id"), requests[0].header("webhook-id"));
            assert_eq!(again.body, requests[0].body);
        }
        assert_ne!(requests[3].header("webhook-id"), requests[0].header("webhook-id"));
    }
}

#[tokio::test]
async fn a_compressed_body_unpacks_to_the_bytes_that_were_signed() {
    let receiver = WebhookReceiver::start().unwrap();
    let files = Files::new();
    let secret = files.reference("secret", OLD);
    for compression in ["none", "gzip", "zstd"] {
        let keys = json!({"compression": compression, "secret": secret});
        deliver(&mut sink(&receiver.url(), &keys), &batch(1..=100)).await.unwrap();
    }
    let [plain, gzip, zstd] = <[Posted; 3]>::try_from(receiver.requests()).unwrap();
    assert!(!plain.headers.contains_key("content-encoding"));
    for (packed, encoding) in [(&gzip, "gzip"), (&zstd, "zstd")] {
        assert_eq!(packed.header("content-encoding"), encoding);
        assert_eq!(packed.unpacked(), &plain.body[..]);
        assert!(packed.body.len() < plain.body.len() / 4);
        assert!(verified_by(packed, OLD));
    }
}

#[tokio::test]
async fn a_large_object_and_one_full_of_control_characters_arrive_as_they_are() {
    let receiver = WebhookReceiver::start().unwrap();
    let large = format!(r#"{{"data":"{}"}}"#, "0123456789abcdef".repeat(96 * 1024));
    assert!(large.len() > 3 << 19);
    let odd = r#"{"a":"\u0000\u001f\u2028\\\" \ud83d\ude00","n":1.50e+3}"#;
    let records = vec![sample::record(1, large.clone()), sample::record(2, odd)];
    deliver(&mut sink(&receiver.url(), &json!({})), &sample::batch(records)).await.unwrap();
    let body = String::from_utf8(receiver.requests()[0].body.to_vec()).unwrap();
    assert!(body.contains(&large) && body.contains(odd));
    assert_eq!(receiver.committed().len(), 2);
}

#[tokio::test]
async fn nothing_is_sent_where_there_is_nothing_to_send() {
    let receiver = WebhookReceiver::start().unwrap();
    deliver(&mut sink(&receiver.url(), &json!({})), &batch([])).await.unwrap();
    let mut debezium = formatted(&receiver, Format::Debezium);
    deliver(&mut debezium, &sample::batch(vec![control(1), control(2)])).await.unwrap();
    assert!(receiver.requests().is_empty());
}

#[tokio::test]
async fn each_format_has_its_content_type_and_control_records_stay_out_of_debezium() {
    let receiver = WebhookReceiver::start().unwrap();
    let records = || sample::batch(vec![control(1), sample::record(2, "{}"), control(3)]);
    for (format, content_type, count) in [
        (Format::Native, "application/json", 3),
        (Format::CloudEvents, "application/cloudevents-batch+json", 3),
        (Format::Debezium, "application/json", 1),
    ] {
        deliver(&mut formatted(&receiver, format), &records()).await.unwrap();
        let posted = receiver.requests().pop().unwrap();
        assert_eq!((posted.header("content-type"), posted.values().len()), (content_type, count), "{format:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_about_the_first_record_that_was_sent() {
    let receiver = WebhookReceiver::start().unwrap();
    let mut sink = formatted(&receiver, Format::Debezium);
    let sent = sample::batch(vec![control(1), control(2), sample::record(3, "{}"), control(4)]);
    for (status, decision, durable) in [
        (422, Decision::Poison, 2),
        (413, Decision::Oversize, 2),
        // What may have been taken must come again under the same id: nothing is taken out of the batch.
        (503, Decision::Retry { after: None }, 0),
    ] {
        receiver.answer(Answer::status(status));
        let error = refused(&mut sink, &sent).await;
        assert_eq!((error.decision, error.durable), (decision, durable));
    }
}

fn formatted(receiver: &WebhookReceiver, format: Format) -> WebhookSink {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let terms = Terms { format, ..sample::terms("hook") };
    WebhookSink::open(&config(&receiver.url(), &Value::Object(serde_json::Map::new())), terms).unwrap()
}

fn control(seq: u64) -> Record {
    let what = Control { what: What::SnapshotStarted, scope: Scope::Stream };
    Record { body: Body::Control(what), ..sample::record(seq, "") }
}
