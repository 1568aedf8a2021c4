//! A restored backup: what came later is gone, and its versions are given out again.

use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use kubetide_test_env::Apiserver;

use super::{SOON, create, first_event};

#[tokio::test]
async fn a_restored_backup_forgets_later_objects_and_gives_their_versions_out_again() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let before = create(&client, "default", "before").await;
    let backup = apiserver.backup().await.unwrap();
    let number_of = |version: &str| version.parse::<u64>().unwrap();
    let mut newest = 0;
    for number in 0..100 {
        newest = number_of(&create(&client, "default", &format!("after-{number}")).await);
    }

    for _ in 0..2 {
        apiserver.restore(&backup).await.unwrap();
        let client = apiserver.client().await.unwrap();
        let objects = Api::<ConfigMap>::namespaced(client.clone(), "default");
        assert_eq!(objects.get("before").await.unwrap().metadata.resource_version.unwrap(), before);
        assert!(objects.get_opt("after-0").await.unwrap().is_none());
        let version = create(&client, "default", "instead").await;
        // Ours, or one of those that the API server itself had used.
        let again = number_of(&before) + 1..=newest;
        assert!(again.contains(&number_of(&version)), "{version} was not used before, {before} was the last one kept");
    }
}

#[tokio::test]
async fn a_watch_from_a_version_of_the_lost_time_skips_writes_without_an_error() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let backup = apiserver.backup().await.unwrap();
    let mut lost = String::new();
    for number in 0..30 {
        lost = create(&client, "default", &format!("lost-{number}")).await;
    }
    apiserver.restore(&backup).await.unwrap();

    let client = apiserver.client().await.unwrap();
    let number = |version: &str| version.parse::<u64>().unwrap();
    let mut new = vec![create(&client, "default", "new-0").await];
    assert!(number(&new[0]) < number(&lost));
    let (event, ()) = tokio::join!(first_event(&client, "configmaps", "default", &lost), async {
        while number(&new[new.len() - 1]) <= number(&lost) {
            new.push(create(&client, "default", &format!("new-{}", new.len())).await);
        }
    });
    assert_eq!(event["type"], "ADDED", "{event}");
    assert_eq!(event["object"]["metadata"]["resourceVersion"], new[new.len() - 1], "{event}");
}

#[tokio::test]
async fn a_watch_lives_through_a_backup() {
    let apiserver = Apiserver::start().await.unwrap();
    let client = apiserver.client().await.unwrap();
    let version = create(&client, "default", "before").await;
    let path = format!("/api/v1/namespaces/default/configmaps?watch=true&resourceVersion={version}");
    let watch = client.request_stream(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap();
    let _backup = apiserver.backup().await.unwrap();
    create(&client, "default", "after").await;
    let line = tokio::time::timeout(SOON, watch.lines().try_next()).await.unwrap().unwrap().unwrap();
    assert!(line.starts_with(r#"{"type":"ADDED""#), "{line}");
    assert!(line.contains(r#""name":"after""#), "{line}");
}
