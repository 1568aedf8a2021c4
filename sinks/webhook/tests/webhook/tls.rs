//! Whom the sink trusts, and what it shows.

use kubetide_sink::Decision;
use kubetide_test_env::{PrivateAuthority, Validity, WebhookReceiver};
use serde_json::{Value, json};

use crate::{Files, batch, deliver, open, refused, sink};

const RETRY: Decision = Decision::Retry { after: None };

fn receiver(authority: &PrivateAuthority, validity: Validity) -> WebhookReceiver {
    WebhookReceiver::start_with_tls(&authority.server(validity).unwrap()).unwrap()
}

fn trusting(files: &Files, authority: &PrivateAuthority) -> Value {
    json!({"tls": {"ca": files.write("ca.pem", authority.pem())}})
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_given_and_no_other() {
    let (ours, theirs) = (PrivateAuthority::new("ours").unwrap(), PrivateAuthority::new("theirs").unwrap());
    let receiver = receiver(&ours, Validity::Now);
    let files = Files::new();
    deliver(&mut sink(&receiver.url(), &trusting(&files, &ours)), &batch([1])).await.unwrap();
    let by_address = receiver.url().replace("localhost", "127.0.0.1");
    deliver(&mut sink(&by_address, &trusting(&files, &ours)), &batch([2])).await.unwrap();
    assert_eq!(receiver.committed().len(), 2);

    for keys in [trusting(&files, &theirs), json!({})] {
        let error = refused(&mut sink(&receiver.url(), &keys), &batch([3])).await;
        assert_eq!(error.decision, Decision::Hold, "{error}");
        assert!(error.message.contains("certificate"), "{error}");
    }
    assert_eq!(receiver.requests().len(), 2);
}

#[tokio::test]
async fn a_certificate_that_has_expired_or_is_for_another_name_is_held() {
    let authority = PrivateAuthority::new("ours").unwrap();
    let files = Files::new();
    let keys = trusting(&files, &authority);
    let expired = receiver(&authority, Validity::Expired);
    let error = refused(&mut sink(&expired.url(), &keys), &batch([1])).await;
    assert_eq!(error.decision, Decision::Hold, "{error}");
    assert!(error.message.contains("expired"), "{error}");

    let other = receiver(&authority, Validity::Now);
    let by_other_name = other.url().replace("localhost", "127.0.0.2");
    // Nobody listens there, unless the machine takes all of 127.0.0.0/8 for itself, as Linux does with sockets on 0.0.0.0.
    let error = refused(&mut sink(&by_other_name, &keys), &batch([1])).await;
    assert_eq!(error.decision, RETRY, "{error}");
}

#[tokio::test]
async fn a_receiver_that_wants_a_certificate_gets_ours_and_the_new_one_when_it_was_replaced() {
    let (authority, clients) = (PrivateAuthority::new("servers").unwrap(), PrivateAuthority::new("clients").unwrap());
    let tls = authority.server(Validity::Now).unwrap().requiring(&clients);
    let receiver = WebhookReceiver::start_with_tls(&tls).unwrap();
    let files = Files::new();
    let ca = files.write("ca.pem", authority.pem());
    let without = refused(&mut sink(&receiver.url(), &json!({"tls": {"ca": ca}})), &batch([1])).await;
    assert_eq!(without.decision, Decision::Hold, "{without}");

    let (cert, key) = clients.client("first", Validity::Now).unwrap();
    let (cert, key) = (files.write("tls.crt", cert), files.write("tls.key", key));
    let keys = json!({"tls": {"ca": ca, "cert": cert, "key": key}});
    let mut with = sink(&receiver.url(), &keys);
    deliver(&mut with, &batch([1])).await.unwrap();
    deliver(&mut with, &batch([2])).await.unwrap();
    let connections = receiver.connections();
    let (cert, key) = clients.client("second", Validity::Now).unwrap();
    files.write("tls.crt", cert);
    // Between the two files there is a moment in which they do not go together.
    assert_eq!(refused(&mut with, &batch([3])).await.decision, RETRY);
    files.write("tls.key", key);
    deliver(&mut with, &batch([3])).await.unwrap();
    let shown: Vec<_> = receiver.requests().into_iter().map(|posted| posted.client_certificate.unwrap()).collect();
    assert_eq!(shown.len(), 3);
    assert_eq!(shown[0], shown[1]);
    assert_ne!(shown[1], shown[2]);
    assert_eq!(receiver.connections(), connections + 1);

    let (cert, key) = clients.client("late", Validity::Expired).unwrap();
    files.write("tls.crt", cert);
    files.write("tls.key", key);
    let expired = refused(&mut with, &batch([4])).await;
    assert_eq!(expired.decision, Decision::Hold, "{expired}");
}

#[tokio::test]
async fn a_replaced_authority_is_trusted_by_the_next_request() {
    let (old, new) = (PrivateAuthority::new("old").unwrap(), PrivateAuthority::new("new").unwrap());
    let receiver = receiver(&new, Validity::Now);
    let files = Files::new();
    let mut sink = sink(&receiver.url(), &trusting(&files, &old));
    assert_eq!(refused(&mut sink, &batch([1])).await.decision, Decision::Hold);
    trusting(&files, &new);
    deliver(&mut sink, &batch([1])).await.unwrap();
}

#[tokio::test]
async fn a_receiver_without_tls_behind_https_is_held() {
    let plain = WebhookReceiver::start().unwrap();
    let url = plain.url().replace("http:", "https:");
    let files = Files::new();
    let keys = trusting(&files, &PrivateAuthority::new("ours").unwrap());
    assert_eq!(refused(&mut sink(&url, &keys), &batch([1])).await.decision, Decision::Hold);
}

#[tokio::test]
async fn what_is_no_certificate_or_no_key_is_refused_at_the_start() {
    let authority = PrivateAuthority::new("ours").unwrap();
    let files = Files::new();
    let (cert, key) = authority.client("one", Validity::Now).unwrap();
    let (_, other_key) = authority.client("two", Validity::Now).unwrap();
    let (ca, nothing) = (files.write("ca.pem", authority.pem()), files.write("nothing.pem", "nothing"));
    let (cert, key) = (files.write("tls.crt", cert), files.write("tls.key", key));
    let other_key = files.write("other.key", other_key);
    let problem = |tls: Value| open("https://localhost:1/", &json!({ "tls": tls })).err().unwrap();
    assert_eq!(problem(json!({"ca": nothing})).key, "tls.ca");
    assert_eq!(problem(json!({"ca": ca, "cert": nothing, "key": key})).key, "tls.cert");
    assert_eq!(problem(json!({"ca": ca, "cert": cert, "key": nothing})).key, "tls.cert");
    assert!(problem(json!({"ca": ca, "cert": cert, "key": other_key})).key.starts_with("tls"));
    assert!(open("https://localhost:1/", &json!({"tls": {"ca": ca, "cert": cert, "key": key}})).is_ok());
}
