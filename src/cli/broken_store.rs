//! A panic within the store ends the process, with a message for people.
//!
//! fjall panics at some of what it does not understand in its own files, and once more while it clears up after that: the process
//! would be aborted without a word. And where one of its threads has ended in this way, nothing may be built on it any more. What
//! was acknowledged is in the log, as after any crash.

use std::path::Path;

/// The crates of the store.
const CRATES: [&str; 4] = ["fjall", "lsm-tree", "sfa", "byteview"];

/// From now on a panic within the store of this data directory ends the process with 1.
pub(super) fn ends_the_process(data_dir: &Path) {
    let store = data_dir.join("store");
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let within = panic.location().and_then(|at| Some((within_store(at.file())?, at.line())));
        // Not what the panic says: it may quote what is stored.
        let Some((file, line)) = within else { return otherwise(panic) };
        anstream::eprintln!(
            "error: the store in {} has failed ({file}:{line}); nothing that was logged is lost: start again; if it fails again, its files are damaged: restore the data directory from a copy, or move it away and start anew with a new snapshot",
            store.display()
        );
        std::process::exit(1);
    }));
}

/// The file's name from its crate's on, if that is one of the store: `…/fjall-3.1.13/src/db.rs`, or without a version where crates
/// are vendored.
fn within_store(file: &str) -> Option<&str> {
    let (directory, _) = file.rsplit_once("/src/")?;
    let at = directory.rfind('/').map_or(0, |slash| slash + 1);
    let version_of = |name: &str| directory[at..].strip_prefix(name).map(|rest| rest.trim_start_matches('-'));
    let is_version = |rest: &str| rest.is_empty() || rest.starts_with(|first: char| first.is_ascii_digit());
    CRATES.iter().any(|name| version_of(name).is_some_and(is_version)).then(|| &file[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_by_its_crate_and_not_by_where_that_was_built() {
        assert_eq!(within_store("/any/where/lsm-tree-3.1.10/src/manifest.rs"), Some("lsm-tree-3.1.10/src/manifest.rs"));
        assert_eq!(within_store("/any/where/fjall-3.1.13/src/db.rs"), Some("fjall-3.1.13/src/db.rs"));
        assert_eq!(within_store("vendor/fjall/src/db.rs"), Some("fjall/src/db.rs"));
        for other in
            ["src/changelog/store.rs", "/fjall-1/registry/serde-1.0.0/src/lib.rs", "/any/fjall-utils-1.0.0/src/lib.rs"]
        {
            assert_eq!(within_store(other), None, "{other}");
        }
    }
}
