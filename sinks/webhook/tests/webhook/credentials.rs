//! Credentials: sent where they belong, read again when they change, shown nowhere.

use kubetide_sink::{Decision, sample};
use kubetide_test_env::{Answer, WebhookReceiver};
use serde_json::json;
use standardwebhooks::Webhook;

use crate::{Files, batch, config, deliver, open, refused, sink};

#[tokio::test]
async fn headers_and_authorization_are_sent() {
    let receiver = WebhookReceiver::start().unwrap();
    let files = Files::new();
    let headers = json!({"x-tenant": "blue", "X-Api-Key": files.reference("key", "k3y\n")});
    let bearer = json!({"bearer": files.reference("token", "t0k3n\n")});
    deliver(&mut sink(&receiver.url(), &json!({"headers": headers, "auth": bearer})), &batch([1])).await.unwrap();
    let basic = json!({"basic": {"username": "aladdin", "password": files.reference("password", "open:sesame")}});
    deliver(&mut sink(&receiver.url(), &json!({"auth": basic})), &batch([2])).await.unwrap();
    let requests = receiver.requests();
    assert_eq!((requests[0].header("x-tenant"), requests[0].header("x-api-key")), ("blue", "k3y"));
    assert_eq!(requests[0].header("authorization"), "Bearer t0k3n");
    assert_eq!(requests[1].header("authorization"), "Basic YWxhZGRpbjpvcGVuOnNlc2FtZQ==");
    assert!(!requests[1].headers.contains_key("x-tenant"));
}

#[tokio::test]
async fn a_replaced_file_is_used_by_the_next_request_on_the_same_connection() {
    let receiver = WebhookReceiver::start().unwrap();
    let files = Files::new();
    let url = files.reference("url", receiver.url());
    let bearer = json!({"bearer": files.reference("token", "old")});
    let secret = files.reference("secret", "whsec_b2xk");
    let mut sink = sink("", &json!({"url": url, "auth": bearer, "secret": secret}));
    receiver.answer_by(|posted| match posted.header("authorization") {
        "Bearer new" => Answer::status(204),
        _ => Answer::status(401),
    });
    assert_eq!(refused(&mut sink, &batch([1])).await.decision, Decision::Hold);
    files.write("token", "new");
    files.write("secret", "whsec_bmV3");
    files.write("url", format!("{}?v=2", receiver.url()));
    deliver(&mut sink, &batch([1])).await.unwrap();
    let posted = &receiver.requests()[1];
    assert_eq!(posted.uri, "/changes?v=2");
    assert!(Webhook::new("whsec_bmV3").unwrap().verify(&posted.body, &posted.headers).is_ok());
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn a_file_that_is_missing_is_refused_at_the_start_and_waited_for_later() {
    let receiver = WebhookReceiver::start().unwrap();
    let files = Files::new();
    let bearer = json!({"auth": {"bearer": files.reference("token", "t0k3n")}});
    let mut sink = sink(&receiver.url(), &bearer);
    std::fs::remove_file(files.0.path().join("token")).unwrap();
    let problem = open(&receiver.url(), &bearer).err().unwrap();
    assert_eq!(problem.key, "auth.bearer");
    let error = refused(&mut sink, &batch([1])).await;
    assert_eq!(error.decision, Decision::Retry { after: None });
    assert!(error.message.contains("auth.bearer") && error.message.contains("token"), "{error}");
    files.write("token", "t0k3n");
    deliver(&mut sink, &batch([1])).await.unwrap();
}

#[tokio::test]
async fn no_credential_and_no_object_is_in_any_error_or_debug() {
    let canary = "C4N4RY";
    let mut receiver = WebhookReceiver::start().unwrap();
    let files = Files::new();
    let url = format!("{}/{canary}?key={canary}", receiver.url());
    let basic = json!({"basic": {"username": canary, "password": files.reference("password", canary)}});
    let keys = json!({
        "headers": {"x-api-key": canary, "x-other": files.reference("other", canary)},
        "auth": basic,
        "secret": files.reference("secret", canary),
        "timeout_secs": 1,
    });
    let mut sink = sink(&url, &keys);
    let sent = sample::batch(vec![sample::record(1, format!(r#"{{"a":"{canary}"}}"#))]);
    let mut shown = vec![format!("{:?}", config(&url, &keys)), format!("{sent:?}")];
    let quoting = |status| Answer::status(status).with_body(format!("no {canary} here")).with_header("x-echo", canary);
    let location = format!("https://other.example/{canary}");
    let mut answers: Vec<_> = [400, 401, 403, 404, 413, 422, 429, 500, 503].map(quoting).into();
    answers.push(Answer::status(302).with_header("location", &location));
    answers.push(Answer::status(302).with_header("location", &format!("http://{canary}:{canary}@[")));
    answers.extend([Answer::reset(), Answer::hang()]);
    for answer in answers {
        receiver.answer(answer);
        let error = refused(&mut sink, &sent).await;
        shown.push(format!("{error} {error:?}"));
    }
    receiver.stop().await;
    let error = refused(&mut sink, &sent).await;
    shown.push(format!("{error} {error:?}"));
    files.write("secret", format!("whsec_{canary}!"));
    shown.push(refused(&mut sink, &sent).await.to_string());
    shown.push(open(&url, &keys).err().unwrap().to_string());
    for text in shown {
        assert!(!text.contains(canary), "{text}");
    }
}
