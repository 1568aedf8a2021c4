//! The key with which the API server signs service account tokens. It wants one to start; nobody here uses the tokens.

/// A fresh P-256 key as SEC1 PEM. The format needs no more than the secret number itself, so no cryptography is needed
/// to make one.
pub(crate) fn key() -> String {
    const BEFORE: [u8; 7] = [0x30, 0x31, 0x02, 0x01, 0x01, 0x04, 0x20];
    /// The curve's name, prime256v1.
    const AFTER: [u8; 12] = [0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    // Each number below the curve's order is a key; a first byte of 1 makes it one.
    let mut secret = [1; 32];
    for eight in secret[1..].chunks_mut(8) {
        eight.copy_from_slice(&crate::unique().to_be_bytes()[..eight.len()]);
    }
    let der = [&BEFORE[..], &secret, &AFTER].concat();
    format!("-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----\n", base64(&der))
}

/// Of a length that needs no padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (triples, rest) = bytes.as_chunks::<3>();
    assert!(rest.is_empty());
    triples
        .iter()
        .flat_map(|&[a, b, c]| {
            let bits = u32::from_be_bytes([0, a, b, c]);
            [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift) as usize & 63]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_in_rfc_4648() {
        assert_eq!(base64(b"foobar"), "Zm9vYmFy");
        assert_eq!(base64(&[0xfb, 0xff, 0xbf]), "+/+/");
    }
}
