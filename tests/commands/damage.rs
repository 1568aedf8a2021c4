//! What can still be told of a log with damaged files: all of it but what is in them.

use std::{fs, path::PathBuf};

use serde_json::{Value, json};

use super::{Case, on_terminal};

/// Files of half a MiB.
const SMALL_FILES: &str = "log: {max_bytes: 4194304}\n";

/// A log of several files, none of which is in memory.
async fn written() -> Case {
    let mut case = Case::with(SMALL_FILES).await;
    let mut state = 1_u64;
    let mut noise = || {
        // Half of it is left when it is compressed.
        let digit = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            char::from_digit((state >> 60) as u32, 16).unwrap()
        };
        (0..150_000).map(digit).collect::<String>()
    };
    for number in 0..48 {
        let data = json!({"noise": noise()});
        let object = json!({"metadata": {"name": format!("n{number}"), "namespace": "default"}, "data": data});
        case.server.cluster().create("configmaps", object).unwrap();
    }
    case.kubetide.start();
    case.kubetide.records_when_listed(1).await;
    for value in ["1", "2", "3", "4"] {
        case.server
            .cluster()
            .update("configmaps", "default", "n0", |map: &mut Value| map["data"] = json!({"n": value}))
            .unwrap();
        let before = case.kubetide.records().len();
        case.kubetide.records_when("the update is delivered", |records| records.len() > before).await;
    }
    case.settled().await;
    assert!(case.kubetide.terminate().success());
    case.kubetide.start();
    case.kubetide.readiness_when("it is ready", |status, _| status == 200).await;
    case
}

/// First seqs and paths.
async fn files(case: &Case) -> Vec<(u64, PathBuf)> {
    let log: Value = serde_json::from_str(&case.said(&["log", "list", "--output", "json"]).await).unwrap();
    let of = |segment: &Value| {
        (segment["first_seq"].as_u64().unwrap(), case.data().join("log").join(segment["file"].as_str().unwrap()))
    };
    log["segments"].as_array().unwrap().iter().map(of).collect()
}

fn flip(path: &PathBuf, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 4;
    fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_named_wherever_it_is_and_spoils_only_what_is_in_it() {
    let mut case = written().await;
    let files = files(&case).await;
    let head = 54;
    assert!(files.len() >= 4, "the test needs more files: {files:?}");
    let name = |at: usize| files[at].1.file_name().unwrap().to_str().unwrap();
    flip(&files[1].1, 20);
    // The first frame's payload.
    flip(&files[2].1, 2_000);
    let (bad, good) = (files[2].0.to_string(), files[3].0.to_string());
    for live in [true, false] {
        let verified = case.run(&["log", "verify"]).await;
        assert_eq!(verified.code, Some(1), "{verified:#?}");
        assert_eq!(verified.stdout.lines().count(), 1 + files.len(), "every file is told of: {verified:#?}");
        let damaged: Vec<&str> = verified.stdout.lines().filter(|line| line.ends_with("damaged")).collect();
        assert_eq!(damaged.len(), 2, "{verified:#?}");
        for at in [1, 2] {
            assert!(damaged[at - 1].starts_with(name(at)), "{verified:#?}");
            assert!(verified.stderr.contains(&format!("{} is damaged at byte ", name(at))), "{verified:#?}");
        }
        let verified = case.run(&["log", "verify", "--output", "json"]).await;
        let items: Vec<Value> = verified.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((verified.code, items.len()), (Some(1), files.len()));
        assert_eq!(items.iter().filter(|item| !item["damage"].is_null()).count(), 2, "{items:#?}");

        assert_eq!(case.said(&["log", "list"]).await.matches(".seg").count(), files.len());
        let whole = case.said(&["log", "export", "--from", &good]).await;
        assert_eq!(whole.lines().count() as u64, head + 1 - files[3].0);
        let shown = case.said(&["log", "show", &head.to_string()]).await;
        assert!(shown.contains("~ data.n: \"3\" → \"4\""), "what came behind the damage is known: {shown}");
        let after = case.said(&["log", "show", &good]).await;
        assert!(after.contains("\"op\": "), "{after}");
        let tail = case.said(&["tail", "--no-follow", "--lines", "3", "--op", "update"]).await;
        assert_eq!(tail.lines().filter(|line| line.contains("default/n0")).count(), 3, "{tail}");
        let spoilt: [&[&str]; 3] =
            [&["log", "show", &bad], &["log", "export", "--to", &bad], &["tail", "--no-follow", "--lines", "999"]];
        for arguments in spoilt {
            let refused = case.run(arguments).await;
            assert_eq!(refused.code, Some(1), "{arguments:?}: {refused:#?}");
            assert!(refused.stderr.contains(".seg") && !refused.stderr.contains("oldest"), "{refused:#?}");
        }
        if live {
            assert!(case.kubetide.terminate().success());
        }
    }
    // With this, everything else is refused: it is what the store was built on.
    flip(&files.last().unwrap().1, 20);
    case.run(&["log", "list"]).await.assert_refused(1, &[name(files.len() - 1)]);
    let verified = case.run(&["log", "verify"]).await;
    assert_eq!((verified.code, verified.stdout.matches("damaged").count()), (Some(1), 3), "{verified:#?}");
    assert_eq!(verified.stderr.matches(" is damaged at byte ").count(), 3, "each is named once: {verified:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_never_wider_than_the_terminal() {
    let case = Case::running().await;
    for arguments in [&["objects", "list"][..], &["sink", "list"], &["log", "list"], &["log", "verify"]] {
        let mut command = case.command(arguments);
        command.env("NO_COLOR", "1");
        let text = on_terminal(command, 40);
        let rows: Vec<&str> = text.lines().take_while(|line| !line.trim().is_empty()).collect();
        assert!(rows.len() > 1 && rows.iter().all(|row| row.trim_end().chars().count() <= 40), "{arguments:?}\n{text}");
    }
}
