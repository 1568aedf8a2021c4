//! Passing a whole value that nobody looks into: most of every object. One loop, no recursion, and the shapes that most members have
//! are told from eight bytes at once.

use super::{Json, MAX_DEPTH, NOT_A_VALUE, TOO_DEEP, Walked, word};

/// Between a key and a text: the quotes at both ends included.
const TEXT_FOLLOWS: Shape = Shape::of(b"\":\"");
/// Behind a key: an empty object, and the next key. A third of what is in managedFields.
const EMPTY_AND_KEY_FOLLOW: Shape = Shape::of(b"\":{},\"");
/// Behind a key: an object and its first key.
const OBJECT_FOLLOWS: Shape = Shape::of(b"\":{\"");
/// Behind a text: the next key.
const KEY_FOLLOWS: Shape = Shape::of(b"\",\"");
/// Behind a key: an empty object, the last of its own.
const EMPTY_AND_END_FOLLOW: Shape = Shape::of(b"\":{}}");

/// What some of the next eight bytes may be.
struct Shape {
    bytes: u64,
    mask: u64,
}

impl Shape {
    const fn of(bytes: &[u8]) -> Self {
        let (mut shape, mut at) = (Self { bytes: 0, mask: 0 }, 0);
        while at < bytes.len() {
            shape.bytes |= (bytes[at] as u64) << (8 * at);
            shape.mask |= 0xff << (8 * at);
            at += 1;
        }
        shape
    }

    #[inline(always)]
    const fn is(&self, next: u64) -> bool {
        next & self.mask == self.bytes
    }
}

/// What a value was found to be the next of.
enum Next {
    Value,
    Key,
    Behind,
}

impl Json<'_> {
    /// Passes any value.
    pub(in crate::change) fn value(&mut self) -> Walked {
        // On a copy, which stays in registers.
        let mut json = self.clone();
        let walked = json.pass();
        *self = json;
        walked
    }

    #[inline(always)]
    fn pass(&mut self) -> Walked {
        // One bit for each container around the place: set for an object. Innermost last.
        let mut objects = [0_u64; MAX_DEPTH / 64];
        let base = self.depth;
        let mut close = 0;
        let mut next = Next::Value;
        loop {
            match next {
                Next::Value => {
                    let first = self.next();
                    next = Next::Behind;
                    if first == Some(b'"') {
                        self.string()?;
                    } else if first == Some(b'{') {
                        if self.enter(b'}')? {
                            close = b'}';
                            open_object(&mut objects, self.depth);
                            next = Next::Key;
                        }
                    } else if first == Some(b'[') {
                        if self.enter(b']')? {
                            close = b']';
                            let level = self.depth - 1;
                            objects[level / 64] &= !(1 << (level % 64));
                            next = Next::Value;
                        }
                    } else if first.is_some() {
                        self.at = word(self.bytes, self.at)?;
                    } else {
                        return Err(NOT_A_VALUE);
                    }
                }
                Next::Key => {
                    if self.next() != Some(b'"') {
                        return Err("not a key");
                    }
                    next = self.members(&mut objects)?;
                    close = b'}';
                }
                Next::Behind => {
                    if self.depth == base {
                        return Ok(());
                    }
                    let byte = self.next();
                    if byte == Some(b',') {
                        self.at += 1;
                        next = if close == b'}' { Next::Key } else { Next::Value };
                    } else if byte == Some(close) {
                        self.leave();
                        if self.depth > base {
                            let level = self.depth - 1;
                            close = if objects[level / 64] & (1 << (level % 64)) == 0 { b']' } else { b'}' };
                        }
                    } else {
                        return Err("neither comma nor closing bracket behind a value");
                    }
                }
            }
        }
    }

    /// Members from a key on, as long as they have the shapes above; what comes then.
    #[inline(always)]
    fn members(&mut self, objects: &mut [u64; MAX_DEPTH / 64]) -> Walked<Next> {
        // The stop of the key's first quote.
        let mut stop = self.stops.next_from(self.bytes, self.at + 1);
        loop {
            let mut shape = self.shape(stop);
            if TEXT_FOLLOWS.is(shape) {
                self.stops.skip(self.bytes);
                stop = self.stops.next(self.bytes);
                shape = self.shape(stop);
                if KEY_FOLLOWS.is(shape) {
                    self.stops.skip(self.bytes);
                    stop = self.stops.next(self.bytes);
                    continue;
                }
                self.end(stop)?;
                return Ok(Next::Behind);
            }
            if EMPTY_AND_KEY_FOLLOW.is(shape) {
                if self.depth == MAX_DEPTH {
                    return Err(TOO_DEEP);
                }
            } else if OBJECT_FOLLOWS.is(shape) {
                if self.depth == MAX_DEPTH {
                    return Err(TOO_DEEP);
                }
                self.depth += 1;
                open_object(objects, self.depth);
            } else if EMPTY_AND_END_FOLLOW.is(shape) && self.depth < MAX_DEPTH {
                self.at = stop + 4;
                return Ok(Next::Behind);
            } else if self.bytes.get(stop) == Some(&b'\\') {
                stop = self.behind_escape(stop)?;
                continue;
            } else {
                self.end(stop)?;
                self.colon()?;
                return Ok(Next::Value);
            }
            self.stops.skip(self.bytes);
            stop = self.stops.next(self.bytes);
        }
    }

    /// The eight bytes from `at` on. Near the end of the text: none, which is no shape of anything.
    #[inline(always)]
    fn shape(&self, at: usize) -> u64 {
        self.bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |next| u64::from_le_bytes(*next))
    }
}

#[inline(always)]
fn open_object(objects: &mut [u64; MAX_DEPTH / 64], depth: usize) {
    let level = depth - 1;
    objects[level / 64] |= 1 << (level % 64);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Whether the text is one value and nothing else.
    fn passes(text: &str) -> Result<bool, &'static str> {
        let mut json = Json::new(text.as_bytes());
        json.value().map(|()| json.next().is_none())
    }

    #[test]
    fn the_limit_of_depth_is_the_same_in_every_shape() {
        for (open, inmost, close) in [
            ("[", "[]", "]"),
            ("{\"a\":", "{}", "}"),
            ("{\"a\": ", "{}", "}"),
            ("{\"a\":", "{\"a\":1}", "}"),
            ("{\"a\":", "{\"a\":1,\"b\":2}", "}"),
        ] {
            let nested = |depth: usize| [&open.repeat(depth - 1), inmost, &close.repeat(depth - 1)].concat();
            assert_eq!(passes(&nested(MAX_DEPTH)), Ok(true), "{open}");
            assert_eq!(passes(&nested(MAX_DEPTH + 1)), Err(TOO_DEEP), "{open}");
        }
        // An empty object at the limit that another member follows.
        let followed =
            |depth: usize| format!("{}{{\"a\":{{}},\"b\":1}}{}", "{\"a\":".repeat(depth - 2), "}".repeat(depth - 2));
        assert_eq!(passes(&followed(MAX_DEPTH)), Ok(true));
        assert_eq!(passes(&followed(MAX_DEPTH + 1)), Err(TOO_DEEP));
    }

    /// Members of all shapes, whole or not.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "{\"",
            "\":\"",
            "\":{},\"",
            "\":{\"",
            "\",\"",
            "\":{}}",
            "\"}",
            "\"},\"",
            "}",
            "]",
            ",",
            ":",
            "\"",
            "\\\"",
            "\\\\",
            "\\",
            "\\u00e9",
            "\\ud83d\\ude00",
            "\\ud83d",
            "\n",
            " ",
            "\":[\"",
            "\"],\"",
            "\":[{\"",
            "\":1,\"",
            "\":true}",
            "a",
            "é",
            "a text longer than any block of sixty-four bytes is",
        ]);
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    /// Mostly right, so that the shapes are gone through to the end.
    fn members() -> impl Strategy<Value = String> {
        let text = prop::sample::select(vec![
            "a",
            "",
            "\\\"",
            "k:{\\\"type\\\":\\\"Ready\\\"}",
            "\\\\",
            "a text longer than any block of sixty-four bytes is, and longer",
        ]);
        let leaf = prop_oneof![
            text.clone().prop_map(|text| format!("\"{text}\"")),
            prop::sample::select(vec!["{}", "[]", "1", "null", "{ }"]).prop_map(String::from)
        ];
        leaf.prop_recursive(6, 64, 6, move |inner| {
            let space = prop::sample::select(vec!["", "", "", "", "", " ", "\n"]);
            let member = (text.clone(), space, inner.clone())
                .prop_map(|(key, space, value)| format!("\"{key}\":{space}{value}"));
            prop_oneof![
                3 => prop::collection::vec(member, 0..6).prop_map(|members| format!("{{{}}}", members.join(","))),
                1 => prop::collection::vec(inner, 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn a_value_passes_where_a_real_parser_takes_it_and_nowhere_else(text in pieces()) {
            let text = format!("{{\"{text}");
            prop_assert_eq!(passes(&text) == Ok(true), serde_json::from_str::<Value>(&text).is_ok());
        }

        #[test]
        fn members_pass_whole_and_not_with_a_byte_less_or_another(text in members(), at in any::<prop::sample::Index>(), with in prop::sample::select(b"\"\\{}[]:, a\n".to_vec())) {
            prop_assert_eq!(passes(&text), Ok(true));
            let at = at.index(text.len());
            let mut other = text.clone().into_bytes();
            other[at] = with;
            let mut less = text.into_bytes();
            less.remove(at);
            for damaged in [other, less] {
                let damaged = String::from_utf8(damaged).unwrap_or_default();
                prop_assert_eq!(passes(&damaged) == Ok(true), serde_json::from_str::<Value>(&damaged).is_ok(), "{}", damaged);
            }
        }
    }
}
