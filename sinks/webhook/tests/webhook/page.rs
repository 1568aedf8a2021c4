//! The receiver on the page about webhooks, as it stands there.

use std::{
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use kubetide_sink::Decision;
use kubetide_test_env::WebhookReceiver;
use serde_json::json;

use crate::{Files, batch, deliver, refused, sink};

struct Python(Child);

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_receiver_on_the_page_verifies_and_takes_each_record_once() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sinks/webhook.md");
    let page = std::fs::read_to_string(page).unwrap();
    let program = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    // A port that was free a moment ago.
    let mut free = WebhookReceiver::start().unwrap();
    free.stop().await;
    assert!(program.contains("8000"));
    let files = Files::new();
    let program = files.write("receiver.py", program.replace("8000", &free.port().to_string()));
    let (old, new) = ("whsec_b2xkIHNlY3JldA==", "whsec_bmV3IHNlY3JldA==");
    let directory = program.parent().unwrap();
    let mut command = Command::new("python3");
    command.arg(&program).current_dir(directory).env("SECRETS", format!("{old} {new}"));
    let _python = Python(command.spawn().unwrap());

    let mut ours = sink(&free.url(), &json!({"secret": files.reference("new", new)}));
    let mut tries = 0;
    while let Err(error) = deliver(&mut ours, &batch([1, 2])).await {
        // Until it listens.
        assert!(error.message.contains("cannot connect") && tries < 200, "{error}");
        tries += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    deliver(&mut ours, &batch([1, 2])).await.unwrap();
    deliver(&mut ours, &batch([2, 3])).await.unwrap();
    let mut others = sink(&free.url(), &json!({"secret": files.reference("other", "whsec_b3RoZXI=")}));
    assert_eq!(refused(&mut others, &batch([4])).await.decision, Decision::Hold);
    assert_eq!(refused(&mut sink(&free.url(), &json!({})), &batch([5])).await.decision, Decision::Hold);

    let count = "import sqlite3; db = sqlite3.connect('changes.sqlite'); \
                 print([db.execute(f'SELECT count(*) FROM {table}').fetchone()[0] for table in ('batches', 'changes')])";
    let counted = Command::new("python3").args(["-c", count]).current_dir(directory).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&counted.stdout).trim(), "[2, 3]");
}
