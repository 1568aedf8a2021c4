//! Room on the volume: how much of it is left alone, and which failures are nothing but the want of it.

use std::{io, path::Path};

/// The store and the cursors need room too, the store at times for a second copy of what it merges: this much of the volume is
/// left free…
const RESERVE_BYTES: u64 = 256 * 1024 * 1024;
/// …or, of a small one, this part.
const RESERVE_PART: u64 = 20;

/// Why nothing may be appended for want of room on the volume that `path` is on, if so.
pub fn shortage(path: &Path) -> Option<String> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let (available, total) = (stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize);
    let reserve = RESERVE_BYTES.min(total / RESERVE_PART);
    (available < reserve)
        .then(|| format!("the volume has {available} bytes left, and {reserve} are kept for the store and the cursors"))
}

/// Whether the volume was full, or the share of it that there is a right to. It may be otherwise later.
pub(super) fn was_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error comes from a full volume.
pub fn is_want_of_room(error: &(dyn std::error::Error + 'static)) -> bool {
    system_errors(error).any(was_full)
}

/// What the operating system said, wherever in an error that is.
pub(super) fn system_errors<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a io::Error> + use<'a> {
    std::iter::successors(Some(error), |error| error.source()).filter_map(|error| error.downcast_ref::<io::Error>())
}
