//! Where strings begin and end: the quotes, backslashes and control characters of a text, found 64 bytes at a time.
//!
//! A walk that looks for the end of each string from its beginning waits for one string before it can look at the next. Stops are found
//! without knowing what they stand for, so that the processor is ahead of the walk.

use wide::u8x16;

const BLOCK: usize = 64;

/// The stops of a text from some place on, each once.
#[derive(Clone)]
pub(super) struct Stops {
    /// Where the block begins.
    base: usize,
    /// One bit for each stop in the block that was not given yet.
    left: u64,
}

impl Stops {
    /// From the block of `at` on, or a little before: whoever begins within a block passes by what is before it.
    pub(super) const fn from(at: usize) -> Self {
        // The block before it, of which nothing is left.
        Self { base: (at - at % BLOCK).wrapping_sub(BLOCK), left: 0 }
    }

    /// The next stop. Behind the text there is no end of them.
    #[inline(always)]
    pub(super) fn next(&mut self, bytes: &[u8]) -> usize {
        self.fill(bytes);
        let stop = self.base + self.left.trailing_zeros() as usize;
        self.left &= self.left - 1;
        stop
    }

    /// The next stop that is at `at` or behind it.
    #[inline(always)]
    pub(super) fn next_from(&mut self, bytes: &[u8], at: usize) -> usize {
        loop {
            let stop = self.next(bytes);
            if stop >= at {
                return stop;
            }
        }
    }

    /// Passes by the next stop, of which somebody knows where it is.
    #[inline(always)]
    pub(super) fn skip(&mut self, bytes: &[u8]) {
        self.fill(bytes);
        self.left &= self.left - 1;
    }

    #[inline(always)]
    fn fill(&mut self, bytes: &[u8]) {
        while self.left == 0 {
            self.base = self.base.wrapping_add(BLOCK);
            self.left = in_block(bytes, self.base);
        }
    }
}

/// One bit for each stop in the block that begins at `base`.
// Not inlined: it would be in every place that asks for a stop, and needs the registers of them all.
#[inline(never)]
fn in_block(bytes: &[u8], base: usize) -> u64 {
    match bytes.get(base..).and_then(<[u8]>::first_chunk) {
        Some(block) => stops(block),
        None => in_last_block(bytes, base),
    }
}

#[cold]
fn in_last_block(bytes: &[u8], base: usize) -> u64 {
    // What is behind the end is a stop.
    let mut block = [0; BLOCK];
    if let Some(rest) = bytes.get(base..) {
        block[..rest.len()].copy_from_slice(rest);
    }
    stops(&block)
}

#[inline(always)]
fn stops(block: &[u8; BLOCK]) -> u64 {
    let (parts, _) = block.as_chunks::<16>();
    parts.iter().rev().fold(0, |stops, part| {
        let part = u8x16::new(*part);
        let found = part.simd_eq(u8x16::splat(b'"'))
            | part.simd_eq(u8x16::splat(b'\\'))
            | part.min(u8x16::splat(0x1f)).simd_eq(part);
        stops << 16 | u64::from(found.to_bitmask())
    })
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
            let mut stops = Stops::from(from);
            let mut found = Vec::new();
            loop {
                let stop = stops.next_from(&text, from);
                if stop >= text.len() {
                    break;
                }
                found.push(stop);
            }
            prop_assert_eq!(found, expected);
        }
    }
}
