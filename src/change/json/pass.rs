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

/// Within a key. In managedFields quotes are escaped, and next to nothing else is.
const ESCAPED_QUOTE: Shape = Shape::of(b"\\\"");

/// Behind a key: an array, its first object and the first key of that.
const OBJECTS_FOLLOW: Shape = Shape::of(b"\":[{\"");
/// Behind the last text of an object in an array: the next object's first key.
const NEXT_OBJECT_FOLLOWS: Shape = Shape::of(b"\"},{\"");

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

/// The containers around the place.
struct Around {
    /// One bit for each, the innermost last: set for an object.
    inner: u64,
    /// What `inner` was at every 64th of them.
    outer: [u64; MAX_DEPTH / 64],
}

impl Around {
    /// Enters one at this depth.
    #[inline(always)]
    fn push(&mut self, depth: usize, is_object: bool) {
        if depth.is_multiple_of(64) {
            self.outer[depth / 64] = self.inner;
        }
        self.inner = self.inner << 1 | u64::from(is_object);
    }

    /// Leaves one that was entered at this depth.
    #[inline(always)]
    fn pop(&mut self, depth: usize) {
        self.inner >>= 1;
        if depth.is_multiple_of(64) {
            self.inner = self.outer[depth / 64];
        }
    }

    /// Whether the innermost is an object.
    #[inline(always)]
    const fn in_object(&self) -> bool {
        self.inner & 1 != 0
    }

    /// Whether the one around it is.
    #[inline(always)]
    const fn of_object(&self) -> bool {
        self.inner & 2 != 0
    }
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
        let base = self.depth;
        let mut around = Around { inner: 0, outer: [0; MAX_DEPTH / 64] };
        loop {
            let mut at_key = false;
            match self.next() {
                Some(b'"') => {
                    self.string()?;
                }
                Some(b'{') => {
                    if self.enter(b'}')? {
                        around.push(self.depth - 1, true);
                        at_key = true;
                    }
                }
                Some(b'[') => {
                    if self.enter(b']')? {
                        around.push(self.depth - 1, false);
                        continue;
                    }
                }
                Some(_) => self.at = word(self.bytes, self.at)?,
                None => return Err(NOT_A_VALUE),
            }
            // Behind a value, or at a key.
            loop {
                if at_key {
                    if self.next() != Some(b'"') {
                        return Err("not a key");
                    }
                    if !self.members(&mut around, base)? {
                        break;
                    }
                    at_key = false;
                }
                if self.depth == base {
                    return Ok(());
                }
                match self.next() {
                    Some(b',') => {
                        self.at += 1;
                        if !around.in_object() {
                            break;
                        }
                        at_key = true;
                    }
                    Some(b'}') if around.in_object() => {
                        self.leave();
                        around.pop(self.depth);
                    }
                    Some(b']') if !around.in_object() => {
                        self.leave();
                        around.pop(self.depth);
                    }
                    _ => return Err("neither comma nor closing bracket behind a value"),
                }
            }
        }
    }

    /// Members from a key on, as long as they have the shapes above. The place is then behind a value, and if not, before one.
    #[inline(always)]
    fn members(&mut self, around: &mut Around, base: usize) -> Walked<bool> {
        // Behind the key's first quote.
        self.stops.pass(self.bytes, self.at + 1);
        loop {
            let shape = self.stops.ahead();
            if TEXT_FOLLOWS.is(shape) {
                self.stops.skip_two(self.bytes);
                let shape = self.stops.ahead();
                let is_item = self.depth > base + 1 && !around.of_object();
                if !(KEY_FOLLOWS.is(shape) || NEXT_OBJECT_FOLLOWS.is(shape) && is_item) {
                    self.end()?;
                    return Ok(true);
                }
            } else if EMPTY_AND_KEY_FOLLOW.is(shape) {
                if self.depth == MAX_DEPTH {
                    return Err(TOO_DEEP);
                }
            } else if OBJECT_FOLLOWS.is(shape) {
                if self.depth == MAX_DEPTH {
                    return Err(TOO_DEEP);
                }
                around.push(self.depth, true);
                self.depth += 1;
            } else if EMPTY_AND_END_FOLLOW.is(shape) && self.depth < MAX_DEPTH {
                self.at = self.stops.place() + 4;
                self.stops.skip(self.bytes);
                return Ok(true);
            } else if OBJECTS_FOLLOW.is(shape) && self.depth < MAX_DEPTH - 1 {
                around.push(self.depth, false);
                around.push(self.depth + 1, true);
                self.depth += 2;
            } else if !ESCAPED_QUOTE.is(shape) {
                self.end()?;
                self.colon()?;
                return Ok(false);
            }
            self.stops.skip_two(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    /// Whether the text is one value and nothing else.
    fn passes(text: &str) -> Result<bool, &'static str> {
        let pass = |text: &str| {
            let mut json = Json::new(text.as_bytes());
            json.value().map(|()| json.next().is_none())
        };
        // Near the end of a text no shape is looked for: with space behind it, all of it is far from there.
        let far = pass(&format!("{text}{}", " ".repeat(100)));
        assert_eq!(pass(text) == Ok(true), far == Ok(true), "{text}");
        far
    }

    #[test]
    fn an_object_behind_another_is_the_next_item_of_an_array_within_the_value() {
        assert_eq!(passes(r#"[{"a":"b"},{"a":"b"}]"#), Ok(true));
        assert_eq!(passes(r#"{"a":"b"},{"a":"b"}"#), Ok(false));
        assert!(passes(r#"{"x":{"a":"b"},{"a":"b"}}"#).is_err());
        // The array is somebody else's, who looks at each item.
        let items = format!(r#"[{{"a":"b"}},{{"a":"b"}}]{}"#, " ".repeat(100));
        let mut json = Json::new(items.as_bytes());
        assert_eq!(json.enter(b']'), Ok(true));
        assert_eq!(json.value().map(|()| json.at), Ok(10));
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
        // An array and an object at once.
        let both = |outer: &str, inmost: &str, end: &str| {
            passes(&[outer, &"{\"a\":[".repeat(254), inmost, &"]}".repeat(254), end].concat())
        };
        assert_eq!(both("", "{\"a\":[{\"b\":[]}]}", ""), Ok(true));
        assert_eq!(both("[", "{\"a\":[{\"b\":1}]}", "]"), Ok(true));
        assert_eq!(both("[", "{\"a\":[{\"b\":[]}]}", "]"), Err(TOO_DEEP));
        assert_eq!(both("[[", "{\"a\":[{\"b\":1}]}", "]]"), Err(TOO_DEEP));
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
            "\"},{\"",
            "\"}],\"",
            "\":{}},\"",
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
        fn every_container_ends_with_its_own_bracket(
            objects in prop::collection::vec(any::<bool>(), 1..200),
            siblings in prop::sample::select(vec!["", "\"a\":\"b\",", "\"a\":{},"]),
            swapped in any::<prop::sample::Index>(),
        ) {
            let opened = |is_object: &bool| if *is_object { format!("{{{siblings}\"a\":") } else { "[".into() };
            let open: String = objects.iter().map(opened).collect();
            let close: Vec<u8> = objects.iter().rev().map(|is_object| if *is_object { b'}' } else { b']' }).collect();
            let mut other = close.clone();
            let at = swapped.index(other.len());
            other[at] = if other[at] == b'}' { b']' } else { b'}' };
            for inmost in ["1", "\"x\"", "{\"a\":\"b\"}", "[{\"a\":\"b\"},{\"a\":\"b\"}]"] {
                let whole = |close: &[u8]| [open.as_bytes(), inmost.as_bytes(), close].concat();
                prop_assert_eq!(passes(&String::from_utf8_lossy(&whole(&close))), Ok(true));
                prop_assert!(passes(&String::from_utf8_lossy(&whole(&other))).is_err());
            }
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
