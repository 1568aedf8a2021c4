//! The few defaults of created objects that a client sees at once.

use serde_json::{Map, Value, json};

use crate::managed::metadata_mut;
use crate::resource::ResourceType;

pub(crate) fn fill(kind: &ResourceType, object: &mut Map<String, Value>) {
    match (kind.group.as_str(), kind.plural.as_str()) {
        ("", "secrets") => {
            object.entry("type").or_insert_with(|| "Opaque".into());
            let Some(Value::Object(texts)) = object.remove("stringData") else {
                return;
            };
            let data = object.entry("data").or_insert_with(|| json!({}));
            for (name, text) in texts {
                data[name] = base64(text.as_str().unwrap_or_default().as_bytes()).into();
            }
        }
        ("", "namespaces") => {
            let metadata = metadata_mut(object);
            let name = metadata.get("name").cloned().unwrap_or_default();
            let labels = metadata.entry("labels").or_insert_with(|| json!({}));
            labels["kubernetes.io/metadata.name"] = name;
            object.insert("spec".into(), json!({"finalizers": ["kubernetes"]}));
            object.insert("status".into(), json!({"phase": "Active"}));
        }
        _ => {}
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let bits = three.iter().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * at) & 63) as usize];
            text.push(if at <= three.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn string_data_becomes_base64_of_every_length() {
        assert_eq!(super::base64(b""), "");
        assert_eq!(super::base64(b"b"), "Yg==");
        assert_eq!(super::base64(b"be"), "YmU=");
        assert_eq!(super::base64(b"bee?"), "YmVlPw==");
    }
}
