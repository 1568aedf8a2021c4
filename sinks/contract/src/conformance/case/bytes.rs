//! Objects whose bytes a careless sink would change.

use crate::conformance::{
    Bench, Finding,
    load::{CANARY, dense},
    run::Run,
};

/// What stands in a JSON string, and what stands for what it may not be taken for.
const TEXTS: [&str; 14] = [
    "",
    " ",
    r"\u0000\u0001\u001f\u007f",
    r"\r\n\n\r\t\b\f",
    r#"\"}},{\"schema\":\"kubetide.change.v1\",\"log\":{\"seq\":1}}"#,
    "]}},]}",
    r"\ud83d\ude00\u00e9\/",
    "\u{1F600}é\u{7f}\u{80}\u{2028}\u{2029}\u{feff}\u{ffff}",
    "//79/P8AAQID+/==",
    "H4sIAAAAAAAA/+y9bXMc",
    r"\\x00\\xff\\n",
    "%00%0d%0a${jndi:x}{{.}}<!--]]>",
    "kubetide-id: x: y; $JS.API.> NATS/1.0",
    "'; -- \u{202e}abc",
];

/// Objects that mean the same to a parser in other bytes.
const OBJECTS: [&str; 5] = [
    r#"{"b":1.50,"a":"\u00e9\/é","n":1e2,"big":12345678901234567890123,"b":2}"#,
    r#"{"z":{ },"data":{"key":"//79/P8AAQID","bin":"\u0000\u001f\ud83d\ude00"},"x":"]}},\"data\":{"}"#,
    " {\"spaces\" : [ 1 ,\t2 ] }",
    r#"{"n":-0.0,"m":1E-7,"deep":[[[[[[[[{}]]]]]]]]}"#,
    "{}",
];

pub(super) async fn binary_strings(bench: &mut dyn Bench) -> Result<(), Finding> {
    let mut run = Run::begin(bench).await?;
    let mut records: Vec<_> = TEXTS.iter().map(|text| run.load.with(text)).collect();
    records.extend(OBJECTS.iter().map(|object| run.load.of((*object).to_owned())));
    // Alone, and among others: what is next to it must not be touched either.
    for record in records.drain(..4).collect::<Vec<_>>() {
        run.deliver(vec![record]).await?;
    }
    run.deliver(records).await?;
    run.judge().await
}

pub(super) async fn large_object(bench: &mut dyn Bench) -> Result<(), Finding> {
    const LARGE: usize = 3 << 19;
    let mut run = Run::begin(bench).await?;
    let mut records = run.load.take(3);
    records.push(run.load.with(&dense(LARGE, 1)));
    // As large, and small when it is compressed.
    records.push(run.load.of(format!(r#"{{"canary":"{CANARY}","data":"{}"}}"#, "0123456789abcdef".repeat(LARGE / 16))));
    records.extend(run.load.take(3));
    run.deliver(records).await?;
    run.judge().await
}
