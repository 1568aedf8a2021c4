//! A place in JSON text that only moves on: over whole values, keys and punctuation, refusing whatever a JSON parser would refuse.
//! It makes nothing of what it passes: no trees, no copies.

mod pass;
mod stops;

use std::borrow::Cow;

use stops::Stops;

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
    /// All from the place on, and maybe some before it.
    stops: Stops,
}

impl<'a> Json<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self::at(bytes, 0)
    }

    /// At `at`, of which somebody knows that a value begins there.
    pub(super) const fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, depth: 0, stops: Stops::from(at) }
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
        self.colon()?;
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

    /// Passes a string.
    #[inline(always)]
    pub(super) fn string(&mut self) -> Walked {
        let stop = self.stops.next_from(self.bytes, self.at + 1);
        self.end(stop)
    }

    /// Passes the rest of a string from a stop in it on.
    #[inline(always)]
    fn end(&mut self, mut stop: usize) -> Walked {
        loop {
            let byte = self.bytes.get(stop);
            if byte == Some(&b'"') {
                self.at = stop + 1;
                return Ok(());
            }
            stop = match byte {
                Some(b'\\') => self.behind_escape(stop)?,
                Some(_) => return Err("a control character in a string"),
                None => return Err("a string without an end"),
            };
        }
    }

    /// The stop behind the escape that begins at a stop.
    #[inline(always)]
    fn behind_escape(&mut self, stop: usize) -> Walked<usize> {
        // In managedFields quotes are escaped, and next to nothing else is.
        let behind = if self.bytes.get(stop + 1) == Some(&b'"') { stop + 2 } else { escape(self.bytes, stop)? };
        Ok(self.stops.next_from(self.bytes, behind))
    }

    #[inline(always)]
    fn colon(&mut self) -> Walked {
        if self.next() != Some(b':') {
            return Err("a key without a value");
        }
        self.at += 1;
        Ok(())
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

/// Behind the number, `true`, `false` or `null` that begins at `at`.
fn word(bytes: &[u8], at: usize) -> Walked<usize> {
    let word: &[u8] = match bytes[at] {
        b't' => b"true",
        b'f' => b"false",
        b'n' => b"null",
        b'-' | b'0'..=b'9' => return number(bytes, at),
        _ => return Err(NOT_A_VALUE),
    };
    if bytes[at..].starts_with(word) { Ok(at + word.len()) } else { Err(NOT_A_VALUE) }
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
