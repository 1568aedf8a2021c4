//! Where strings begin and end: the quotes, backslashes and control characters of a text, found 64 bytes at a time.
//!
//! A walk that looks for the end of each string from its beginning waits for one string before it can look at the next. Stops are found
//! without knowing what they stand for, so that the processor is ahead of the walk.

use wide::{i8x16, u8x16};

const BLOCK: usize = 64;
/// How many bytes from a stop on are looked at together.
const AHEAD: usize = 8;

/// A block, and as much behind it as is looked at from its last byte on.
type Block = [u8; BLOCK + AHEAD];

/// In place of a block at the end of the text. No stop is what comes first in it.
const NO_BLOCK: &Block = &[0; BLOCK + AHEAD];

/// The stops of a text from some place on, each once.
#[derive(Clone)]
pub(super) struct Stops<'a> {
    /// Where the block begins.
    base: usize,
    /// One bit for each stop in the block that was not given yet: at least one.
    left: u64,
    block: &'a Block,
    /// Whether all blocks so far are.
    is_ascii: bool,
}

impl<'a> Stops<'a> {
    /// From the block of `at` on, or a little before: whoever begins within a block passes by what is before it.
    pub(super) fn from(bytes: &'a [u8], at: usize) -> Self {
        // The block before it, of which nothing is left.
        let base = (at - at % BLOCK).wrapping_sub(BLOCK);
        let mut stops = Self { base, left: 0, block: NO_BLOCK, is_ascii: true };
        stops.fill(bytes);
        stops
    }

    /// Whether all was ASCII from where it began to the last stop that was given, or maybe to some bytes behind it.
    pub(super) const fn is_ascii(&self) -> bool {
        self.is_ascii
    }

    /// Where the next stop is. Behind the text there is no end of them.
    #[inline(always)]
    pub(super) const fn place(&self) -> usize {
        self.base + self.left.trailing_zeros() as usize
    }

    /// The bytes from the next stop on. Near the end of the text: none, which is no shape of anything.
    #[inline(always)]
    pub(super) fn ahead(&self) -> u64 {
        let at = self.left.trailing_zeros() as usize;
        self.block[at..].first_chunk().map_or(0, |next| u64::from_le_bytes(*next))
    }

    /// Passes by all stops before `at`.
    #[inline(always)]
    pub(super) fn pass(&mut self, bytes: &'a [u8], at: usize) {
        while self.place() < at {
            self.skip(bytes);
        }
    }

    /// Passes by the next stop.
    #[inline(always)]
    pub(super) fn skip(&mut self, bytes: &'a [u8]) {
        self.left &= self.left - 1;
        if self.left == 0 {
            self.fill(bytes);
        }
    }

    /// Passes by the next two.
    #[inline(always)]
    pub(super) fn skip_two(&mut self, bytes: &'a [u8]) {
        let once = self.left & (self.left - 1);
        let twice = once & once.wrapping_sub(1);
        // Nearly always both are in the block: one question instead of two.
        if twice == 0 {
            self.skip(bytes);
            self.skip(bytes);
        } else {
            self.left = twice;
        }
    }

    #[inline(always)]
    fn fill(&mut self, bytes: &'a [u8]) {
        while self.left == 0 {
            self.base = self.base.wrapping_add(BLOCK);
            let block = bytes.get(self.base..).and_then(<[u8]>::first_chunk);
            self.block = block.unwrap_or(NO_BLOCK);
            let (left, is_ascii) = match block {
                Some(block) => in_block(block),
                None => in_last_block(bytes, self.base),
            };
            self.left = left;
            self.is_ascii &= is_ascii;
        }
    }
}

/// One bit for each stop in the block, and whether all of it is ASCII.
// Not inlined: it would be in every place that asks for a stop, and needs the registers of them all.
#[inline(never)]
fn in_block(block: &Block) -> (u64, bool) {
    let (parts, _) = block.as_chunks::<16>();
    let mut odd = i8x16::ZERO;
    let mut stops = 0;
    for part in parts[..BLOCK / 16].iter().rev() {
        let bytes = u8x16::new(*part);
        let found = bytes.simd_eq(u8x16::splat(b'"')) | bytes.simd_eq(u8x16::splat(b'\\'));
        stops = stops << 16 | u64::from(found.to_bitmask());
        // As signed numbers, control characters and all that is not ASCII are below the rest.
        odd |= i8x16::from(part.map(u8::cast_signed)).simd_lt(i8x16::splat(0x20));
    }
    if odd.any() { in_odd_block(block, stops) } else { (stops, true) }
}

/// The same for a block that has control characters or is not ASCII: the API server writes hardly any.
#[inline(never)]
fn in_odd_block(block: &Block, stops: u64) -> (u64, bool) {
    let (parts, _) = block.as_chunks::<16>();
    let controls = parts[..BLOCK / 16].iter().rev().fold(0, |controls, part| {
        let part = u8x16::new(*part);
        controls << 16 | u64::from(part.min(u8x16::splat(0x1f)).simd_eq(part).to_bitmask())
    });
    (stops | controls, block[..BLOCK].is_ascii())
}

#[cold]
fn in_last_block(bytes: &[u8], base: usize) -> (u64, bool) {
    // What is behind the end is a stop.
    let mut block = [0; BLOCK + AHEAD];
    if let Some(rest) = bytes.get(base..) {
        block[..rest.len()].copy_from_slice(rest);
    }
    in_block(&block)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_stop_is_given_once_and_in_order(
            text in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"\"\\\0\x1f\x20\x7f\x80\xa2\xdc\xff".as_slice())], 0..300),
            from in 0_usize..300,
        ) {
            let from = from.min(text.len());
            let is_stop = |at: &usize| matches!(text[*at], b'"' | b'\\' | 0..=0x1f);
            let expected: Vec<_> = (from..text.len()).filter(is_stop).collect();
            let mut stops = Stops::from(&text, from);
            let mut found = Vec::new();
            loop {
                stops.pass(&text, from);
                let stop = stops.place();
                stops.skip(&text);
                if stop >= text.len() {
                    break;
                }
                found.push(stop);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
