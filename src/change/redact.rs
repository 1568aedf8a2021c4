//! What stands in place of a secret: a mark that changes when the secret does, and tells nothing else.
//!
//! It depends on a key, on the object and on the path: without the key it cannot be guessed, and equal secrets in two places
//! cannot be linked.

use std::{fmt, sync::Arc};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

/// The key of all marks.
#[derive(Clone)]
pub struct RedactKey {
    keyed: Arc<Hmac<Sha256>>,
    hash: [u8; 32],
}

impl RedactKey {
    /// Of these bytes, whatever their number.
    pub fn new(bytes: &[u8]) -> Self {
        // HMAC takes keys of every length: there is no other case.
        let keyed = Hmac::new_from_slice(bytes).unwrap_or_else(|_| Hmac::new(&Default::default()));
        let mut hash = Sha256::new();
        hash.update(b"kubetide redact key\0");
        hash.update(bytes);
        Self { keyed: Arc::new(keyed), hash: hash.finalize().into() }
    }

    /// Tells two keys apart, and nothing else of them.
    pub(super) fn hash(&self) -> String {
        self.hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Appends the mark of a value, as a JSON string.
    pub(super) fn mark(&self, uid: &str, path: &str, value: &[u8], out: &mut Vec<u8>) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut keyed = (*self.keyed).clone();
        for part in [uid.as_bytes(), b"|", path.as_bytes(), b"|", value] {
            keyed.update(part);
        }
        out.extend_from_slice(b"\"redacted:");
        for byte in &keyed.finalize().into_bytes()[..8] {
            out.extend([HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        }
        out.push(b'"');
    }
}

/// Whether a value is what [`RedactKey::mark`] writes.
pub(super) fn is_mark(value: &str) -> bool {
    let digits = value.strip_prefix("redacted:").filter(|digits| digits.len() == 16);
    digits.is_some_and(|digits| digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')))
}

// By hand: a key is never printed.
impl fmt::Debug for RedactKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedactKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by an independent program: `hmac.new(key, b"uid|/data/a|secret", "sha256").hexdigest()[:16]`.
    #[test]
    fn marks_equal_the_golden_vector() {
        let mut out = Vec::new();
        RedactKey::new(b"0123456789abcdef0123456789abcdef").mark("uid", "/data/a", b"secret", &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "\"redacted:779dbde2c73bfd4d\"");
    }
}
