//! A server that forgot its history: 410 in the forms in which it comes.

use super::subject::{names, version_of};

#[tokio::test]
async fn a_watch_from_a_too_old_version_is_http_200_and_error_410() {
    let server = crate::forgetful().await;
    let subject = &server.subject;
    let old = version_of(&subject.config_map("a").await);
    let last = subject.edit("a", "2").await;
    server.forget().await;
    subject.config_map("b").await;
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={old}")).await;
    let event = watch.next().await.unwrap();
    assert_eq!(event["type"], "ERROR");
    let status = &event["object"];
    assert_eq!(
        (&status["kind"], &status["code"], &status["reason"]),
        (&"Status".into(), &410.into(), &"Expired".into())
    );
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("too old resource version: {old} (")), "{message}");
    assert_eq!(watch.next().await, None);

    // A new list shows all, and its version can be watched from.
    let list = subject.get(&subject.path("configmaps")).await;
    assert_eq!(names(&list), ["a", "b"]);
    assert_eq!(version_of(&list["items"][0]), version_of(&last));
    let mut watch = subject.watch("configmaps", &format!("resourceVersion={}", version_of(&list))).await;
    let made = subject.config_map("c").await;
    assert_eq!(watch.brief().await, ("ADDED".into(), "c".into(), version_of(&made)));
}

#[tokio::test]
async fn a_continue_token_of_a_forgotten_version_is_410_with_a_token_for_an_inconsistent_rest() {
    let server = crate::forgetful().await;
    let subject = &server.subject;
    for name in ["a", "b", "c"] {
        subject.config_map(name).await;
    }
    let path = subject.path("configmaps");
    let first = subject.get(&format!("{path}?limit=1")).await;
    subject.config_map("d").await;
    server.forget().await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let status = subject.expect(410, "GET", &format!("{path}?limit=1&continue={token}"), None).await;
    assert_eq!(status["reason"], "Expired");
    let token = status["metadata"]["continue"].as_str().unwrap();
    let rest = subject.get(&format!("{path}?continue={token}")).await;
    assert_eq!(names(&rest), ["b", "c", "d"]);
}

#[tokio::test]
async fn an_exact_list_of_a_forgotten_version_is_410() {
    let server = crate::forgetful().await;
    let subject = &server.subject;
    let old = version_of(&subject.config_map("a").await);
    subject.edit("a", "2").await;
    server.forget().await;
    let path = format!("{}?resourceVersion={old}&resourceVersionMatch=Exact", subject.path("configmaps"));
    let status = subject.expect(410, "GET", &path, None).await;
    assert_eq!(status["reason"], "Expired");
}
