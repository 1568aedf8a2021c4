//! Copies of an object that tools keep as text in its annotations.
//!
//! Which tools do is not known, so what a copy cannot do without is looked for: quotes, line ends or brackets. The text counts, not
//! its spelling.

use crate::change::json::text;

/// Parts of an object of which a copy of it has one, in JSON or at the beginning of a line of YAML.
const PARTS: [[&str; 2]; 4] = [
    ["\"metadata\"", "\nmetadata:"],
    ["\"spec\"", "\nspec:"],
    ["\"data\"", "\ndata:"],
    ["\"stringData\"", "\nstringData:"],
];

/// Whether the value of an annotation may be the text of anything with a structure. For what is secret as a whole: a text too many
/// is redacted rather than one too few.
pub(super) fn may_be(value: &[u8]) -> bool {
    match value {
        // Without a backslash there are neither quotes nor line ends in it.
        [b'"', inner @ .., _] if !inner.contains(&b'\\') => has_bracket(inner),
        [b'"', ..] => text(value).map_or(true, |text| {
            has_bracket(text.as_bytes())
                || text.contains(|letter: char| matches!(letter, '"' | '\\') || letter.is_control())
        }),
        other => has_bracket(other),
    }
}

/// Whether the value of an annotation looks like the text of an object.
pub(super) fn is_of_object(value: &[u8]) -> bool {
    match value {
        [b'"', inner @ ..] if inner.contains(&b'\\') => {
            text(value).map_or(true, |text| PARTS.as_flattened().iter().any(|part| text.contains(part)))
        }
        _ => false,
    }
}

fn has_bracket(text: &[u8]) -> bool {
    matches!(text.trim_ascii_start().first(), Some(b'{' | b'['))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_yaml_and_a_diff_of_them_may_be_copies_and_a_plain_text_is_none() {
        for copy in [
            r#""{\"apiVersion\":\"v1\",\"data\":{\"a\":\"b\"}}""#,
            r#""apiVersion: v1\nspec:\n  a: b\n""#,
            r#""--- a\n+++ b\n   1 + {\"metadata\":{}}""#,
            r#""\u007b\u0022spec\u0022:1}""#,
        ] {
            assert!(may_be(copy.as_bytes()) && is_of_object(copy.as_bytes()), "{copy}");
        }
        for text in [r#""{a: b}""#, r#"" [1]""#, r#""a \"b\"""#, r#""\u000a""#, "{}"] {
            assert!(may_be(text.as_bytes()) && !is_of_object(text.as_bytes()), "{text}");
        }
        for plain in [r#""""#, r#""a plain text, of metadata: spec""#, r#""\u0041 \/""#, "null", "7"] {
            assert!(!may_be(plain.as_bytes()) && !is_of_object(plain.as_bytes()), "{plain}");
        }
    }
}
