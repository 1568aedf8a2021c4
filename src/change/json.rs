//! A place in JSON text that only moves on: over whole values, keys and punctuation, refusing whatever a JSON parser would refuse.
//! It makes nothing of what it passes: no trees, no copies.

mod over;
mod pass;
mod stops;

use std::borrow::Cow;

pub(super) use over::{over, over_string};
use stops::Stops;

/// The API server takes deeper JSON than most parsers; beyond this it is not an object anyone wrote.
const MAX_DEPTH: usize = 512;

/// What was walked, or what is wrong there. Never object content.
pub(super) type Walked<T = ()> = Result<T, &'static str>;

/// What is wrong with an object that is too deep.
pub(super) const TOO_DEEP: &str = "deeper than 512 levels";
const NOT_A_VALUE: &str = "not a JSON value";

/// A string as it stands in a text.
#[derive(Clone, Copy)]
pub(super) struct Quoted<'a> {
    /// The quotes included.
    pub(super) bytes: &'a [u8],
    /// Whether there are no escapes in it.
    is_plain: bool,
}

impl<'a> Quoted<'a> {
    /// What is between the quotes, if it stands there as it is.
    #[inline(always)]
    pub(super) fn plain(&self) -> Option<&'a [u8]> {
        if self.is_plain { self.bytes.get(1..self.bytes.len() - 1) } else { None }
    }

    /// Its text, unescaped.
    pub(super) fn text(&self) -> Walked<Cow<'a, str>> {
        match self.plain() {
            Some(plain) => std::str::from_utf8(plain).map(Cow::Borrowed).map_err(|_| "bad UTF-8"),
            None => text(self.bytes),
        }
    }
}

/// A place in a text.
#[derive(Clone)]
pub(super) struct Json<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    /// How many containers are open around it.
    depth: usize,
    /// All from the place on, and maybe some before it.
    stops: Stops<'a>,
}

impl<'a> Json<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self::at(bytes, 0)
    }

    /// At `at`, of which somebody knows that a value begins there.
    pub(super) fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at, depth: 0, stops: Stops::from(bytes, at) }
    }

    /// Whether all that was passed is ASCII. What is not can only be in a string, and of that every block was looked at.
    pub(super) const fn is_ascii(&self) -> bool {
        self.stops.is_ascii()
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

    /// Goes on at `at`: what is before it was passed by other means.
    pub(super) fn jump(&mut self, at: usize) {
        self.stops.pass(self.bytes, at);
        self.at = at;
    }

    #[inline(always)]
    fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// The key that comes next; the place is then before its value.
    #[inline(always)]
    pub(super) fn key(&mut self) -> Walked<Quoted<'a>> {
        if self.next() != Some(b'"') {
            return Err("not a key");
        }
        let key = self.quoted()?;
        self.colon()?;
        Ok(key)
    }

    /// The string that begins here.
    #[inline(always)]
    pub(super) fn quoted(&mut self) -> Walked<Quoted<'a>> {
        let from = self.at;
        let is_plain = self.string()?;
        Ok(Quoted { bytes: &self.bytes[from..self.at], is_plain })
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

    /// Passes a string; whether there are no escapes in it.
    #[inline(always)]
    fn string(&mut self) -> Walked<bool> {
        self.stops.pass(self.bytes, self.at + 1);
        self.end()
    }

    /// Passes the rest of a string from the next stop on; whether there are no escapes in that.
    #[inline(always)]
    fn end(&mut self) -> Walked<bool> {
        let mut is_plain = true;
        loop {
            let stop = self.stops.place();
            match self.bytes.get(stop) {
                Some(b'"') => {
                    self.stops.skip(self.bytes);
                    self.at = stop + 1;
                    return Ok(is_plain);
                }
                // An escape may hide a stop, or more than one.
                Some(b'\\') => {
                    is_plain = false;
                    let behind = escape(self.bytes, stop)?;
                    self.stops.pass(self.bytes, behind);
                }
                Some(_) => return Err("a control character in a string"),
                None => return Err("a string without an end"),
            }
        }
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
    match &bytes[at..] {
        [b'-' | b'0'..=b'9', ..] => number(bytes, at),
        [b't', b'r', b'u', b'e', ..] | [b'n', b'u', b'l', b'l', ..] => Ok(at + 4),
        [b'f', b'a', b'l', b's', b'e', ..] => Ok(at + 5),
        _ => Err(NOT_A_VALUE),
    }
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
