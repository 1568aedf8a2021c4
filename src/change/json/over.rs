//! Passing a value without asking what it is made of: only strings and brackets are told apart, so that nothing is too deep. For
//! what is not kept, and for text that cannot be walked.

/// Behind the value that begins at `at`, which need not be right inside; none if the text ends before it does.
pub(in crate::change) fn over(bytes: &[u8], mut at: usize) -> Option<usize> {
    let mut open = 0_usize;
    loop {
        match bytes.get(at)? {
            b'"' => at = over_string(bytes, at)?,
            b'{' | b'[' => (open, at) = (open + 1, at + 1),
            b'}' | b']' => (open, at) = (open.checked_sub(1)?, at + 1),
            _ if open == 0 => {
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
                return bytes[at..].iter().position(ends).map(|length| at + length);
            }
            _ => at += 1,
        }
        if open == 0 {
            return Some(at);
        }
    }
}

/// Behind the string that begins at `at`.
pub(in crate::change) fn over_string(bytes: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        // Whatever is escaped does not end it.
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_with_its_last_bracket_however_deep_it_is_and_whatever_its_strings_hold() {
        let deep = format!("{}1{}", r#"{"a":["#.repeat(5000), "]}".repeat(5000));
        for value in [deep.as_str(), r#"{"]}":"\\\"}]","b":[1,"["]}"#, r#""a\"b""#, "{}", "-1.5e3", "null"] {
            for behind in [",1", "}", " ,"] {
                assert_eq!(over(format!("{value}{behind}").as_bytes(), 0), Some(value.len()), "{value}{behind}");
            }
            let cut = &value.as_bytes()[..value.len() - 1];
            assert_eq!(over(cut, 0), None, "{}", cut.escape_ascii());
        }
        assert_eq!(over(b"]", 0), None);
    }
}
