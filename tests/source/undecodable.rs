//! Secrets that cannot be read: whatever is wrong with what the API server sends, nothing of it is quoted anywhere.

use kubetide_simulator::{Fault, Verb};
use serde_json::{Value, json};

use crate::{
    case::{Case, PAGED},
    ended::ended,
    instance::changes_of,
    secrets::{Canaries, Search},
};

/// Events of the Secret `odd` that nobody can carry: what is wrong, the event, and whether it still tells whose it is. ONE and TWO
/// are canaries, as JSON strings; META is what the Secret is known by; QUOTING is a message as the API server has them.
const EVENTS: [(&str, &str, bool); 17] = [
    ("too long", r#"{"type":"ADDED","object":{META,"stringData":{"a":ONE},"data":{"a":"LONG","b":TWO}}}"#, true),
    ("too long, and known too late", r#"{"type":"ADDED","object":{"stringData":{"a":ONE},"x":"LONG",META}}"#, false),
    ("too deep", r#"{"type":"ADDED","object":{META,"data":{"a":ONE,"b":DEEP}}}"#, true),
    ("too deep elsewhere", r#"{"type":"ADDED","object":{META,"data":{"a":ONE},"x":DEEP}}"#, true),
    ("data twice", r#"{"type":"ADDED","object":{META,"data":{"a":ONE},"data":{"a":TWO}}}"#, true),
    ("data twice, spelled", r#"{"type":"ADDED","object":{META,"data":{"a":ONE},"d\u0061ta":{"a":TWO}}}"#, true),
    ("bad UTF-8", r#"{"type":"ADDED","object":{META,"data":{"a":ONE,"b":"BAD"}}}"#, true),
    ("no identity", r#"{"type":"ADDED","object":{"data":{"a":ONE}}}"#, false),
    ("no object", r#"{"type":"ADDED","object":ONE}"#, false),
    ("it ends too early", r#"{"type":"ADDED","object":{META,"data":{"a":ONE,"b":TWO"#, false),
    ("something behind it", r#"{"type":"ADDED","object":{META,"data":{"a":ONE}}}TWO"#, false),
    ("an unknown type", r#"{"type":ONE,"object":{META,"data":{"a":TWO}}}"#, false),
    ("a type that is none", r#"{"type":[ONE],"object":{META,"data":{"a":TWO}}}"#, false),
    ("an error that is a Secret", r#"{"type":"ERROR","object":{META,"data":{"a":ONE},"code":TWO}}"#, false),
    ("an error that quotes", r#"{"type":"ERROR","object":{"kind":"Status","code":500,"message":QUOTING}}"#, false),
    ("a bookmark that is none", r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":[ONE]}}}"#, false),
    ("a bookmark of a word", r#"{"type":"BOOKMARK","object":{"metadata":ONE,"data":{"a":TWO}}}"#, false),
];

/// Lists of the same kind. One that is no list is asked for again.
const LISTS: [(&str, &str, bool); 6] = [
    ("too deep", r#"{HEAD,"items":[{META,"data":{"a":ONE,"b":DEEP}}]}"#, true),
    ("data twice", r#"{HEAD,"items":[{META,"data":{"a":ONE},"data":{"b":TWO}}]}"#, true),
    ("bad UTF-8", r#"{HEAD,"items":[{META,"data":{"a":ONE,"b":"BAD"}}]}"#, true),
    ("items that are none", r#"{HEAD,"items":ONE}"#, false),
    ("a version that is none", r#"{"metadata":{"resourceVersion":[ONE]},"items":[{META,"data":{"a":TWO}}]}"#, false),
    ("it ends too early", r#"{HEAD,"items":[{META,"data":{"a":ONE,"b":TWO"#, false),
];

fn filled(template: &str, version: u64, canaries: &mut Canaries) -> Vec<u8> {
    let meta = format!(r#""metadata":{{"name":"odd","namespace":"default","uid":"u","resourceVersion":"{version}"}}"#);
    let head = format!(r#""kind":"SecretList","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"}}"#);
    let quoting = format!("Object 'Kind' is missing in '{}'", json!({"data": {"a": canaries.next()}}));
    let mut text = template.replace("META", &meta).replace("HEAD", &head);
    text = text.replace("QUOTING", &Value::from(quoting).to_string());
    for place in ["ONE", "TWO"] {
        text = text.replace(place, &Value::from(canaries.next()).to_string());
    }
    text = text.replace("DEEP", &format!("{}{}", "[".repeat(600), "]".repeat(600)));
    let mut bytes = text.replace("LONG", &"x".repeat(17 * 1024 * 1024)).into_bytes();
    if let Some(at) = memchr::memmem::find(&bytes, b"BAD") {
        bytes[at] = 0xff;
    }
    bytes
}

/// Starts it so that it says all it can.
fn start(case: &mut Case) {
    case.kubetide.start_with(|command| {
        command.env("KUBETIDE__TELEMETRY__LOG_LEVEL", "trace");
    });
}

/// Another Secret comes through, and nothing of the canaries is anywhere.
async fn assert_silent(mut case: Case, wrong: &str, is_told: bool, search: &Search) {
    let control = format!("{:032x}", rand::random::<u128>());
    let after = json!({"metadata": {"name": "after", "namespace": "default", "labels": {"control": control}}});
    case.cluster().create("secrets", after).unwrap();
    let come = |records: &[Value]| !changes_of(records, "after").is_empty();
    let records = case.kubetide.records_when(&format!("it goes on after: {wrong}"), come).await;
    if is_told {
        let (_, odd) = changes_of(&records, "odd")[0];
        assert!(odd["object"].is_null() && odd["problem"].is_string(), "{wrong}: {odd}");
    }
    for path in ["/metrics", "/readyz?verbose"] {
        search.assert_absent(wrong, case.kubetide.page(path).unwrap().1.as_bytes());
    }
    let control = Search::of(&[control]);
    for arguments in [["log", "export"], ["objects", "list"], ["tail", "--no-follow"]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kubetide"));
        command.args(arguments).arg("--config").arg(case.kubetide.path("kubetide.yaml"));
        let said = ended(command).await;
        search.assert_absent(wrong, [said.stdout.as_bytes(), said.stderr.as_bytes()].concat().as_slice());
        assert!(arguments[0] != "log" || control.is_in(said.stdout.as_bytes()), "{wrong}: {said:?}");
    }
    assert!(case.kubetide.terminate().success());
    assert!(case.kubetide.log().contains("TRACE"), "the log tells all it can");
    assert!(search.assert_absent_below(&case.kubetide.path("")) > 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_in_an_event_that_cannot_be_read_is_quoted_nowhere() {
    for (wrong, template, is_told) in EVENTS {
        let mut canaries = Canaries::default();
        let mut case = Case::with(&[("secrets", "default")], PAGED).await;
        start(&mut case);
        case.kubetide.records_when_listed(1).await;
        case.server.refuse(true).await;
        let version = case.cluster().version() + 2;
        case.cluster().skip_versions(5);
        let line = filled(template, version, &mut canaries);
        let mut fault = Some(Fault::Line { after_lines: 0, line: line.into() });
        let (met, mut meets) = tokio::sync::watch::channel(false);
        case.fate(move |request| match request.verb {
            Verb::Watch if request.resource == "secrets" => {
                met.send_replace(true);
                fault.take().unwrap_or_default()
            }
            _ => Fault::Pass,
        });
        case.server.refuse(false).await;
        meets.wait_for(|met| *met).await.unwrap();
        assert_silent(case, wrong, is_told, &canaries.search()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_in_a_list_that_cannot_be_read_is_quoted_nowhere() {
    for (wrong, template, is_told) in LISTS {
        let mut canaries = Canaries::default();
        let mut case = Case::with(&[("secrets", "default")], PAGED).await;
        let body = filled(template, case.cluster().version(), &mut canaries);
        let mut fault = Some(Fault::Body(body.into()));
        case.fate(move |request| match request.verb {
            Verb::List if request.resource == "secrets" => fault.take().unwrap_or_default(),
            _ => Fault::Pass,
        });
        start(&mut case);
        case.kubetide.records_when_listed(1).await;
        assert_silent(case, wrong, is_told, &canaries.search()).await;
    }
}
