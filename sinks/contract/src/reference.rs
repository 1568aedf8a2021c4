//! Where credentials are: in a variable of the environment or in a file, never in the configuration itself.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

/// Where a credential is; the configuration never holds one itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// In a variable of the environment.
    Env(String),
    /// In a file.
    File(PathBuf),
}

/// What a reference leads to. Shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

/// The reference leads nowhere. Says where, and nothing of what is there.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// The variable of the environment is not there.
    #[error("the variable {0} is not set, or is not text")]
    NotSet(String),
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What came of it.
        source: std::io::Error,
    },
    /// It is not what it is taken for.
    #[error("{place} is not text")]
    NotText {
        /// Where it is.
        place: String,
    },
}

impl Reference {
    /// What is there now. The line end that editors put behind the last line of a file is not part of it.
    pub fn read(&self) -> Result<Secret, ReferenceError> {
        match self {
            Self::Env(name) => {
                let value = std::env::var(name).map_err(|_| ReferenceError::NotSet(name.clone()))?;
                Ok(Secret(value.into_bytes()))
            }
            Self::File(path) => {
                let mut bytes = read_file(path)?;
                if bytes.ends_with(b"\n") {
                    bytes.pop();
                }
                if bytes.ends_with(b"\r") {
                    bytes.pop();
                }
                Ok(Secret(bytes))
            }
        }
    }

    /// What is there now, as text.
    pub fn read_text(&self) -> Result<String, ReferenceError> {
        String::from_utf8(self.read()?.0).map_err(|_| ReferenceError::NotText { place: self.to_string() })
    }
}

/// Where it is.
impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "the variable {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Secret {
    /// The credential itself.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

// By hand: somebody may write the credential itself here, which must not come back in the message.
impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "expected a reference: {file: PATH} or {env: NAME}; what was found is not repeated here";
        reference(&Value::deserialize(deserializer)?).ok_or_else(|| D::Error::custom(expected))
    }
}

fn reference(value: &Value) -> Option<Reference> {
    let members = value.as_object().filter(|members| members.len() == 1)?;
    let text = |key: &str| Some(members.get(key)?.as_str()?.to_owned()).filter(|text| !text.is_empty());
    text("env").map(Reference::Env).or_else(|| text("file").map(|path| Reference::File(path.into())))
}

/// Certificates or a key in PEM: the path of a file, or a reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Pem(Reference);

impl Pem {
    /// The PEM as it is now.
    pub fn read(&self) -> Result<Vec<u8>, ReferenceError> {
        self.0.read().map(|secret| secret.0)
    }

    /// Where it is.
    pub const fn reference(&self) -> &Reference {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Pem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected =
            "expected the path of a PEM file, {file: PATH} or {env: NAME}; what was found is not repeated here";
        let read = match Value::deserialize(deserializer)? {
            // Somebody may put the PEM itself here.
            Value::String(path) if !path.is_empty() && !path.contains('\n') => Some(Reference::File(path.into())),
            value => reference(&value),
        };
        read.map(Self).ok_or_else(|| D::Error::custom(expected))
    }
}

/// A value that may be secret or not: text as it is, or a reference to it.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Text {
    /// As it is.
    Plain(String),
    /// Somewhere else.
    Reference(Reference),
}

impl Text {
    /// The text as it is now.
    pub fn read(&self) -> Result<String, ReferenceError> {
        match self {
            Self::Plain(text) => Ok(text.clone()),
            Self::Reference(reference) => reference.read_text(),
        }
    }
}

// By hand: a header may turn out to hold a credential.
impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(_) => f.write_str("Plain(not shown)"),
            Self::Reference(reference) => write!(f, "{reference:?}"),
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "expected text, {file: PATH} or {env: NAME}; what was found is not repeated here";
        let read = match Value::deserialize(deserializer)? {
            Value::String(text) => Some(Self::Plain(text)),
            value => reference(&value).map(Self::Reference),
        };
        read.ok_or_else(|| D::Error::custom(expected))
    }
}

/// `tls` of a sink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// Who may have signed the receiver's certificate; the public authorities if not given.
    pub ca: Option<Pem>,
    /// What the sink shows to the receiver.
    pub cert: Option<Pem>,
    /// The key to it.
    pub key: Option<Pem>,
}

fn read_file(path: &Path) -> Result<Vec<u8>, ReferenceError> {
    std::fs::read(path).map_err(|source| ReferenceError::File { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_credential_that_was_written_down_is_refused_and_not_repeated() {
        let canary = "hunter2";
        for value in [json!(canary), json!({"file": ""}), json!({"file": "a", "env": canary}), json!([canary])] {
            let refused = serde_json::from_value::<Reference>(value).unwrap_err().to_string();
            assert!(refused.contains("{file: PATH}") && !refused.contains(canary), "{refused}");
        }
        let pem = serde_json::from_value::<Pem>(json!(format!("-----BEGIN\n{canary}"))).unwrap_err().to_string();
        assert!(!pem.contains(canary), "{pem}");
        assert!(!format!("{:?}", Text::Plain(canary.into())).contains(canary));
    }

    #[test]
    fn a_file_is_read_as_it_is_now_less_its_last_line_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let reference: Reference = serde_json::from_value(json!({"file": path})).unwrap();
        assert!(reference.read().unwrap_err().to_string().contains("token"));
        for (content, secret) in [("a\n", "a"), ("b\r\n", "b"), (" c", " c"), ("d\n\n", "d\n")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(reference.read().unwrap().bytes(), secret.as_bytes());
        }
        assert!(!format!("{:?}", reference.read().unwrap()).contains('d'));
    }
}
