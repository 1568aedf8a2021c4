//! Seeded chance: SplitMix64, written out here because a run must repeat byte for byte on every machine and
//! with every version of every dependency.

/// A seeded source of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0..bound`; 0 for an empty range.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The bias of a remainder is irrelevant at these bounds.
        if bound == 0 { 0 } else { (self.roll() % bound as u64) as usize }
    }

    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> Option<&'a T> {
        choices.get(self.below(choices.len()))
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// SplitMix64's finalizer: a good hash of one number.
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The letters that Kubernetes uses in generated names: no vowels, so that no words appear.
const NAME_LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The five-letter suffix of a generated name.
pub(crate) fn suffix(n: u64) -> String {
    letters(n, 5)
}

/// `len` letters of a generated name.
pub(crate) fn letters(n: u64, len: usize) -> String {
    let mut rest = mix(n ^ 0x5eed);
    (0..len)
        .map(|_| {
            let letter = NAME_LETTERS[(rest % 27) as usize];
            rest /= 27;
            char::from(letter)
        })
        .collect()
}
