//! A place in JSON text that only moves on: over whole values, keys and punctuation, refusing whatever a JSON parser would refuse.
//! It makes nothing of what it passes: no trees, no copies.

use std::borrow::Cow;

/// The API server takes deeper JSON than most parsers; beyond this it is not an object anyone wrote.
const MAX_DEPTH: usize = 512;

/// What was walked, or what is wrong there. Never object content.
pub(super) type Walked<T = ()> = Result<T, &'static str>;

/// What is wrong with an object that is too deep.
pub(super) const TOO_DEEP: &str = "deeper than 512 levels";
const NOT_A_VALUE: &str = "not a JSON value";

/// A place in a text.
#[derive(Clone)]
pub(super) struct Json<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    /// How many containers are open around it.
    depth: usize,
}

impl<'a> Json<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// At `at`, of which somebody knows that a value begins there.
    pub(super) const fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, depth: 0 }
    }

    #[inline(always)]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The next byte that is not white space.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<u8> {
        let byte = self.peek();
        // The API server writes none: one comparison is all that it costs.
        if matches!(byte, Some(0..=b' ')) {
            self.at = behind_space(self.bytes, self.at);
            return self.peek();
        }
        byte
    }

    /// Enters an object or an array; false if it is empty and already left again.
    #[inline(always)]
    pub(super) fn enter(&mut self, close: u8) -> Walked<bool> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(TOO_DEEP);
        }
        if self.next() == Some(close) {
            self.leave();
            return Ok(false);
        }
        Ok(true)
    }

    #[inline(always)]
    fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// The key that comes next, quotes included; the place is then before its value.
    #[inline(always)]
    pub(super) fn key(&mut self) -> Walked<&'a [u8]> {
        if self.next() != Some(b'"') {
            return Err("not a key");
        }
        let from = self.at;
        self.string()?;
        let key = &self.bytes[from..self.at];
        if self.next() != Some(b':') {
            return Err("a key without a value");
        }
        self.at += 1;
        Ok(key)
    }

    /// Behind a member or an item: whether another one follows. If not, the container is left.
    #[inline(always)]
    pub(super) fn another(&mut self, close: u8) -> Walked<bool> {
        match self.next() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.leave();
                Ok(false)
            }
            _ => Err("neither comma nor closing bracket behind a value"),
        }
    }

    /// Passes any value.
    pub(super) fn value(&mut self) -> Walked {
        // On a copy, which stays in registers.
        let mut json = Json { bytes: self.bytes, at: self.at, depth: self.depth };
        let walked = json.pass();
        (self.at, self.depth) = (json.at, json.depth);
        walked
    }

    #[inline(always)]
    fn pass(&mut self) -> Walked {
        // One bit for each container around the place: set for an object. Innermost last.
        let mut objects = [0_u64; MAX_DEPTH / 64];
        let base = self.depth;
        loop {
            match self.next() {
                Some(b'"') => self.string()?,
                Some(b'{') => {
                    if self.enter(b'}')? {
                        let level = self.depth - 1;
                        objects[level / 64] |= 1 << (level % 64);
                        self.key()?;
                        continue;
                    }
                }
                Some(b'[') => {
                    if self.enter(b']')? {
                        let level = self.depth - 1;
                        objects[level / 64] &= !(1 << (level % 64));
                        continue;
                    }
                }
                Some(b'-' | b'0'..=b'9') => self.at = number(self.bytes, self.at)?,
                Some(b't') => self.literal(b"true")?,
                Some(b'f') => self.literal(b"false")?,
                Some(b'n') => self.literal(b"null")?,
                _ => return Err(NOT_A_VALUE),
            }
            loop {
                if self.depth == base {
                    return Ok(());
                }
                let level = self.depth - 1;
                if objects[level / 64] & (1 << (level % 64)) == 0 {
                    if self.another(b']')? {
                        break;
                    }
                } else if self.another(b'}')? {
                    self.key()?;
                    break;
                }
            }
        }
    }

    /// Passes a string.
    #[inline(always)]
    pub(super) fn string(&mut self) -> Walked {
        self.at += 1;
        loop {
            while let Some(chunk) = self.bytes[self.at..].first_chunk::<16>() {
                let plain = plain(chunk);
                self.at += plain;
                if plain < 16 {
                    break;
                }
            }
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(b'\\') => self.at = escape(self.bytes, self.at)?,
                Some(0..=0x1f) => return Err("a control character in a string"),
                // Near the end, where there is no whole chunk.
                Some(_) => self.at += 1,
                None => return Err("a string without an end"),
            }
        }
    }

    #[inline(always)]
    fn literal(&mut self, word: &[u8]) -> Walked {
        if self.bytes[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(NOT_A_VALUE)
        }
    }
}

// What follows takes and gives places rather than the whole `Json`, so that the loop above can keep its own in registers.

#[cold]
fn behind_space(bytes: &[u8], mut at: usize) -> usize {
    while matches!(bytes.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// Behind the escape that begins at `at`.
fn escape(bytes: &[u8], at: usize) -> Walked<usize> {
    match bytes.get(at + 1) {
        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(at + 2),
        Some(b'u') => match unit(bytes, at)? {
            // Half a character stands for nothing: other parsers refuse it.
            0xdc00..=0xdfff => Err("half a character"),
            0xd800..=0xdbff => {
                let low = bytes[at + 6..].starts_with(b"\\u").then(|| unit(bytes, at + 6));
                if matches!(low, Some(Ok(0xdc00..=0xdfff))) { Ok(at + 12) } else { Err("half a character") }
            }
            _ => Ok(at + 6),
        },
        _ => Err("a bad escape"),
    }
}

/// The four digits of the `\uXXXX` at `at`.
fn unit(bytes: &[u8], at: usize) -> Walked<u16> {
    let digits = bytes.get(at + 2..at + 6).ok_or("a cut escape")?;
    digits.iter().try_fold(0, |unit, digit| {
        let digit = char::from(*digit).to_digit(16).ok_or("a bad escape")?;
        Ok(unit << 4 | u16::try_from(digit).map_err(|_| "a bad escape")?)
    })
}

/// Behind the number that begins at `at`.
fn number(bytes: &[u8], mut at: usize) -> Walked<usize> {
    if bytes.get(at) == Some(&b'-') {
        at += 1;
    }
    let whole = digits(bytes, at)?;
    if bytes[at] == b'0' && whole > at + 1 {
        return Err("a number with a leading zero");
    }
    at = whole;
    if bytes.get(at) == Some(&b'.') {
        at = digits(bytes, at + 1)?;
    }
    if matches!(bytes.get(at), Some(b'e' | b'E')) {
        at += 1;
        if matches!(bytes.get(at), Some(b'+' | b'-')) {
            at += 1;
        }
        at = digits(bytes, at)?;
    }
    Ok(at)
}

/// Behind the digits that begin at `at`, at least one.
fn digits(bytes: &[u8], at: usize) -> Walked<usize> {
    let count = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count > 0 { Ok(at + count) } else { Err("a bad number") }
}

/// The text of a quoted string. An escaped one is unescaped, so that nothing hides behind another spelling.
pub(super) fn text(quoted: &[u8]) -> Walked<Cow<'_, str>> {
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).ok_or(NOT_A_VALUE)?;
    if memchr::memchr(b'\\', inner).is_some() {
        serde_json::from_slice::<String>(quoted).map(Cow::Owned).map_err(|_| "a bad escape or bad UTF-8")
    } else {
        std::str::from_utf8(inner).map(Cow::Borrowed).map_err(|_| "bad UTF-8")
    }
}

/// How many bytes of the chunk are plain text of a string: all, or those before the first quote, backslash or control character.
///
/// Both halves are looked at in any case: most strings end within a chunk, and where is not for the processor to guess.
#[inline(always)]
fn plain(chunk: &[u8; 16]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let stops = |bytes: u64| {
        let (quotes, backslashes) = (bytes ^ (ONES * 0x22), bytes ^ (ONES * 0x5c));
        // A borrow can only spoil the bytes behind one that was found, and the first one is all that is asked for.
        let found = (quotes.wrapping_sub(ONES) & !quotes)
            | (backslashes.wrapping_sub(ONES) & !backslashes)
            | (bytes.wrapping_sub(ONES * 0x20) & !bytes);
        found & HIGH
    };
    let both = u128::from_le_bytes(*chunk);
    let found = u128::from(stops(both as u64)) | u128::from(stops((both >> 64) as u64)) << 64;
    (found.trailing_zeros() / 8) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_string_ends_where_looking_at_each_byte_would_end_it(
            letters in any::<[u8; 16]>(), stops in prop::collection::vec((0_usize..16, prop::sample::select(vec![b'"', b'\\', 0, 0x1f])), 0..3),
        ) {
            let mut chunk = letters.map(|byte| if matches!(byte, b'"' | b'\\' | 0..=0x1f) { byte | 0x80 } else { byte });
            stops.iter().for_each(|(at, byte)| chunk[*at] = *byte);
            prop_assert_eq!(plain(&chunk), stops.iter().map(|(at, _)| *at).min().unwrap_or(16));
        }
    }
}
