//! Who the sink says it is, and TLS: what is right works, what is wrong holds, and what was put right heals.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use kubetide_sink::{Decision, Sink as _, SinkError};
use kubetide_sink_nats::NatsSink;
use kubetide_test_env::Nats;
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::support::{Place, changes};

fn is_held(error: &SinkError, secrets: &[&str]) {
    assert_eq!((error.decision, error.durable), (Decision::Hold, 0), "{error}");
    assert!(secrets.iter().all(|secret| !error.message.contains(secret)), "{error}");
}

async fn try_once(sink: &mut NatsSink) -> Result<(), SinkError> {
    sink.deliver(&changes(1..=2), None).await
}

/// A sink with a wrong credential holds; when the file has the right one it delivers.
async fn heals(nats: &Nats, credentials: Value, file: &Path, wrong: &str, right: &str) {
    std::fs::write(file, wrong).unwrap();
    let place = Place::on(nats, "credentials");
    let mut sink = place.sink(json!({"credentials": credentials}));
    let error = try_once(&mut sink).await.unwrap_err();
    is_held(&error, &[wrong, right]);
    assert!(error.message.contains("uthoriz") || error.message.contains("credentials."), "{error}");
    std::fs::write(file, right).unwrap();
    try_once(&mut sink).await.unwrap();
}

#[tokio::test]
async fn a_wrong_token_password_or_nkey_holds_until_the_file_has_the_right_one() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());

    let nats = Nats::start_with("authorization { token: opensesame }").await.unwrap();
    heals(&nats, json!({"token": {"file": file}}), &file, "opensesam", "opensesame\n").await;

    let users = format!("{{user: me, password: swordfish}}, {{nkey: {}}}", user.public_key());
    nats.configure(&format!("authorization {{ users: [{users}] }}")).unwrap();
    nats.restart().await.unwrap();
    heals(&nats, json!({"user": "me", "password": {"file": file}}), &file, "swordfis", "swordfish").await;
    let (wrong, right) = (stranger.seed().unwrap(), user.seed().unwrap());
    heals(&nats, json!({"nkey": {"file": file}}), &file, &wrong, &right).await;
    heals(&nats, json!({"nkey": {"file": file}}), &file, "no seed", &right).await;

    std::fs::remove_file(&file).unwrap();
    let mut sink = Place::on(&nats, "gone").sink(json!({"credentials": {"token": {"file": file}}}));
    let error = try_once(&mut sink).await.unwrap_err();
    is_held(&error, &[]);
    assert!(error.message.contains("secret"), "{error}");
}

#[tokio::test]
async fn a_password_that_is_changed_on_the_server_is_used_from_the_file_from_then_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "first").unwrap();
    let config = |password| format!("authorization {{ user: me, password: {password} }}");
    let nats = Nats::start_with(&config("first")).await.unwrap();
    let place = Place::on(&nats, "rotated");
    let mut sink = place.sink(json!({"credentials": {"user": "me", "password": {"file": file}}}));
    try_once(&mut sink).await.unwrap();
    nats.configure(&config("second")).unwrap();
    nats.restart().await.unwrap();
    // The first one may still find the old connection gone.
    let _ = try_once(&mut sink).await;
    is_held(&try_once(&mut sink).await.unwrap_err(), &["first"]);
    std::fs::write(&file, "second").unwrap();
    try_once(&mut sink).await.unwrap();
}

#[tokio::test]
async fn what_the_user_may_not_do_is_said_at_once() {
    let config =
        "authorization { users: [{user: me, password: pass, permissions: {publish: {deny: [\"*.sample.>\"]}}}] }";
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "pass").unwrap();
    let nats = Nats::start_with(config).await.unwrap();
    let place = Place::on(&nats, "denied");
    let mut sink = place.sink(json!({"credentials": {"user": "me", "password": {"file": file}}}));
    let began = Instant::now();
    let error = try_once(&mut sink).await.unwrap_err();
    is_held(&error, &[]);
    assert!(error.message.to_lowercase().contains("permissions violation"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test]
async fn the_rights_that_the_manual_names_are_enough() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "pass").unwrap();
    let api = ["INFO", "CREATE", "MSG.GET"].map(|call| format!("\"$JS.API.STREAM.{call}.KUBETIDE\"")).join(", ");
    let allowed = format!("{{publish: [\"kubetide.>\", {api}], subscribe: \"_INBOX.>\"}}");
    let config = format!("authorization {{ users: [{{user: me, password: pass, permissions: {allowed}}}] }}");
    let nats = Nats::start_with(&config).await.unwrap();
    let place = Place { url: nats.url(), stream: "KUBETIDE".into() };
    let config = json!({
        "servers": [nats.url()], "create_stream": {}, "credentials": {"user": "me", "password": {"file": file}},
    });
    let mut sink = NatsSink::open(&serde_json::from_value(config).unwrap(), place.terms(true)).unwrap();
    sink.restore().await.unwrap();
    sink.deliver(&changes(1..=3), Some(&"c".into())).await.unwrap();
}

fn token(claims: &Value, issuer: &KeyPair) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({"typ": "JWT", "alg": "ed25519-nkey"})), part(claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn claims(name: &str, subject: &KeyPair, issuer: &KeyPair, nats: Value) -> Value {
    let now = jiff::Timestamp::now().as_second();
    json!({"jti": name, "iat": now, "iss": issuer.public_key(), "sub": subject.public_key(), "name": name, "nats": nats})
}

#[tokio::test]
async fn a_creds_file_of_an_operators_account_is_taken_and_that_of_a_stranger_is_not() {
    let (operator, account, system) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let unlimited = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
    });
    let bare = json!({"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": true});
    let of_account = |limits| json!({"type": "account", "version": 2, "limits": limits});
    let of_operator = json!({"type": "operator", "version": 2, "system_account": system.public_key()});
    let operators = token(&claims("o", &operator, &operator, of_operator), &operator);
    let accounts = token(&claims("a", &account, &operator, of_account(unlimited)), &operator);
    let systems = token(&claims("sys", &system, &operator, of_account(bare)), &operator);
    let nats = Nats::start_with(&format!(
        "operator: {operators}\nsystem_account: {sys}\nresolver: MEMORY\nresolver_preload: {{ {}: {accounts}, {sys}: {systems} }}",
        account.public_key(),
        sys = system.public_key(),
    ))
    .await
    .unwrap();
    let creds = |signer: &KeyPair| {
        let user = KeyPair::new_user();
        let of_user = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1});
        let jwt = token(&claims("u", &user, signer, of_user), signer);
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed().unwrap()
        )
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("user.creds");
    let stranger = KeyPair::new_account();
    heals(&nats, json!({"creds": {"file": file}}), &file, &creds(&stranger), &creds(&account)).await;
}

#[tokio::test]
async fn a_server_is_trusted_by_its_own_authority_only() {
    let nats = Nats::start_with_tls(false).await.unwrap();
    let other = Nats::start_with_tls(false).await.unwrap();
    let place = Place::on(&nats, "tls");
    try_once(&mut place.sink(json!({"tls": {"ca": nats.tls().ca}}))).await.unwrap();
    // A certificate that the server does not ask for does no harm.
    let client = &nats.tls().client;
    let with_cert = json!({"ca": nats.tls().ca, "cert": client.certificate, "key": client.key});
    try_once(&mut place.sink(json!({"tls": with_cert}))).await.unwrap();
    for tls in [json!({"ca": other.tls().ca}), json!({})] {
        let error = try_once(&mut place.sink(json!({"tls": tls}))).await.unwrap_err();
        is_held(&error, &[]);
        assert!(error.message.contains("certificate"), "{error}");
    }
    // A server that speaks no TLS does not get our credentials.
    let plain = Place::shared("no-tls").await;
    let error = try_once(&mut plain.sink(json!({"tls": {"ca": nats.tls().ca}}))).await.unwrap_err();
    assert!(matches!(error.decision, Decision::Hold | Decision::Retry { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_it_and_without_it_the_sink_holds_until_it_is_there() {
    let nats = Nats::start_with_tls(true).await.unwrap();
    let other = Nats::start_with_tls(true).await.unwrap();
    let place = Place::on(&nats, "mtls");
    let error = try_once(&mut place.sink(json!({"tls": {"ca": nats.tls().ca}}))).await.unwrap_err();
    is_held(&error, &[]);
    let directory = tempfile::tempdir().unwrap();
    let [cert, key] = ["cert", "key"].map(|name| directory.path().join(name));
    let mut sink = place.sink(json!({"tls": {"ca": nats.tls().ca, "cert": cert, "key": key}}));
    let put = |from: &Nats| {
        let client = &from.tls().client;
        std::fs::copy(&client.certificate, &cert).unwrap();
        std::fs::copy(&client.key, &key).unwrap();
    };
    is_held(&try_once(&mut sink).await.unwrap_err(), &[]);
    put(&other);
    is_held(&try_once(&mut sink).await.unwrap_err(), &[]);
    put(&nats);
    try_once(&mut sink).await.unwrap();
}
