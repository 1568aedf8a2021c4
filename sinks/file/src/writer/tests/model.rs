//! Any course of deliveries, crashes and rotations against the simplest model: what was acknowledged, one after the other.

use proptest::prelude::*;

use super::*;
use crate::Compression;

#[derive(Clone, Debug)]
enum Step {
    /// Acknowledged.
    Deliver(Vec<usize>),
    /// Killed before it was acknowledged, after this part of it was on the disk; and again, and again; then it comes through.
    Crash(Vec<usize>, Vec<f64>),
    /// Stopped and started in order.
    Restart,
    Pass(u64),
    /// The compression has the time it needs.
    Tidied,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let batch = || prop::collection::vec(0..60_usize, 1..5);
    let step = prop_oneof![
        4 => batch().prop_map(Step::Deliver),
        4 => (batch(), prop::collection::vec(0.0..=1.0, 1..3)).prop_map(|(batch, parts)| Step::Crash(batch, parts)),
        1 => Just(Step::Restart),
        1 => (0..200_u64).prop_map(Step::Pass),
        1 => Just(Step::Tidied),
    ];
    prop::collection::vec(step, 1..25)
}

fn rotates() -> impl Strategy<Value = Rotate> {
    let packed = prop::sample::select(&[Compression::None, Compression::Gzip, Compression::Zstd][..]);
    (prop::option::of(1..600_u64), prop::option::of(1..300_u64), packed).prop_map(|(bytes, age, compression)| Rotate {
        max_bytes: bytes.and_then(NonZeroU64::new),
        max_age_secs: age.and_then(NonZeroU64::new),
        keep: 0,
        compression,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_files_joined_are_what_was_acknowledged_each_line_once_and_in_order(rotate in rotates(), steps in steps()) {
        let mut case = Case::new(rotate);
        let (mut wanted, mut is_certain) = (Vec::new(), false);
        for step in steps {
            match step {
                Step::Deliver(lengths) => {
                    let batch = case.batch(&lengths);
                    case.write(&batch, is_certain);
                    wanted.extend(batch);
                    is_certain = true;
                }
                Step::Crash(lengths, parts) => {
                    let batch = case.batch(&lengths);
                    for part in parts {
                        let before = (File::open(case.path()).unwrap(), case.len());
                        case.write(&batch, is_certain);
                        case.writer = None;
                        // What was acknowledged is on the disk; of what was not, any part.
                        let acknowledged = if is_at(&before.0, &case.path()) { before.1 } else { 0 };
                        let kept = ((case.len() - acknowledged) as f64 * part) as u64;
                        OpenOptions::new().write(true).open(case.path()).unwrap().set_len(acknowledged + kept).unwrap();
                        if acknowledged + kept == 0 {
                            // Perhaps not even its name.
                            fs::remove_file(case.path()).unwrap();
                        }
                        case.restart();
                        is_certain = false;
                    }
                    case.write(&batch, is_certain);
                    wanted.extend(batch);
                    is_certain = true;
                }
                Step::Restart => {
                    case.restart();
                    is_certain = false;
                }
                Step::Pass(seconds) => case.now += Duration::from_secs(seconds),
                Step::Tidied => case.writer.as_mut().unwrap().tidied(),
            }
        }
        case.restart();
        case.writer.as_mut().unwrap().tidied();
        prop_assert_eq!(String::from_utf8(case.joined()), String::from_utf8(wanted));
        let rotated = case.rotated();
        prop_assert!(rotated.iter().all(|name| name.ends_with(case.rotate.compression.suffix())), "{:?}", rotated);
        prop_assert!(rotated.is_empty() || case.rotate.is_on());
        if let (Some(most), Some(latest)) = (case.rotate.max_bytes, rotated.last()) {
            let link = fs::read_link(case.directory.path().join("out.latest")).unwrap();
            prop_assert_eq!(link.to_str(), Some(&**latest));
            let batches_fit = fs::read_to_string(case.path()).unwrap().len() as u64 <= most.get().max(4 * 120);
            prop_assert!(batches_fit);
        }
    }
}
