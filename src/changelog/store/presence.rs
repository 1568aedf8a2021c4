//! Whether fjall's files are all there, before it opens them. Much of what is missing it takes for what was never made, and clears
//! away what belonged to it.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use super::manifest::{missing, unreadable};
use crate::{changelog::OpenError, private};

/// What fjall makes last of a new store.
const VERSION: &str = "version";
/// Empty, and locked while the store is open. Without it fjall refuses the store, though nothing is lost: backups leave it out.
const LOCK: &str = "lock";
/// The one journal of a store that was only being made.
const FIRST_JOURNAL: &str = "0.jnl";

/// Refuses a store that lacks a file, by the file's name. What holds nothing is made anew: the lock, and the beginnings of a store
/// that was only being made.
pub(super) fn check(store: &Path) -> Result<(), OpenError> {
    let names = names_in(store)?;
    if names.is_empty() {
        return Ok(());
    }
    let keyspaces = store.join("keyspaces");
    let made = names_in(&keyspaces)?;
    if !names.iter().any(|name| name == VERSION) {
        return if made.is_empty() { clear_beginnings(store, &names) } else { Err(missing(&store.join(VERSION))) };
    }
    if !names.iter().any(|name| name == "keyspaces") {
        return Err(missing(&keyspaces));
    }
    check_journals(store, &names)?;
    check_keyspaces(&keyspaces, &made)?;
    if !names.iter().any(|name| name == LOCK) {
        let lock = store.join(LOCK);
        let made = private::file().create(true).truncate(false).write(true).open(&lock);
        made.map_err(|source| OpenError::Directory { operation: "make", path: lock, source })?;
    }
    Ok(())
}

/// Journals are numbered without a gap, removed from the oldest on, and there is always one.
fn check_journals(store: &Path, names: &[String]) -> Result<(), OpenError> {
    let numbers = names.iter().filter_map(|name| name.strip_suffix(".jnl")?.parse::<u64>().ok());
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        let problem = "its journal, a file *.jnl, is missing".into();
        return Err(OpenError::Damaged { file: store.into(), offset: 0, problem });
    }
    match numbers.windows(2).find(|pair| pair[1] - pair[0] > 1) {
        Some(pair) => Err(missing(&store.join(format!("{}.jnl", pair[0] + 1)))),
        None => Ok(()),
    }
}

/// Keyspaces are made one after the other, `current` last in each: only the youngest can be without.
fn check_keyspaces(keyspaces: &Path, made: &[String]) -> Result<(), OpenError> {
    let numbers = made.iter().filter_map(|name| name.parse::<u64>().ok());
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    let Some((youngest, others)) = numbers.split_last() else { return Ok(()) };
    if *youngest > 0 && others.first() != Some(&0) {
        return Err(missing(&keyspaces.join("0")));
    }
    for number in &numbers {
        let keyspace = keyspaces.join(number.to_string());
        let is_empty = || Ok::<_, OpenError>(names_in(&keyspace.join("tables"))?.is_empty());
        if !names_in(&keyspace)?.iter().any(|name| name == "current") && (number != youngest || !is_empty()?) {
            return Err(missing(&keyspace.join("current")));
        }
    }
    Ok(())
}

/// fjall cannot go on with a new store that it has not finished. Nothing was ever written to its journal.
fn clear_beginnings(store: &Path, names: &[String]) -> Result<(), OpenError> {
    let journals: Vec<_> = names.iter().filter(|name| name.ends_with(".jnl")).collect();
    match journals[..] {
        [] => Ok(()),
        [journal] if journal == FIRST_JOURNAL => {
            let journal = store.join(journal);
            let mut beginning = Vec::new();
            let read = File::open(&journal).and_then(|file| file.take(4096).read_to_end(&mut beginning));
            read.map_err(|source| unreadable(&journal, source))?;
            if beginning.iter().any(|byte| *byte != 0) {
                return Err(missing(&store.join(VERSION)));
            }
            let removed = fs::remove_file(&journal);
            removed.map_err(|source| OpenError::Directory { operation: "remove", path: journal, source })
        }
        _ => Err(missing(&store.join(VERSION))),
    }
}

/// None for a directory that is not there.
fn names_in(directory: &Path) -> Result<Vec<String>, OpenError> {
    let failed = |source| unreadable(directory, source);
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<io::Result<_>>().map_err(failed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_store_that_was_only_being_made_is_made_again_and_one_that_has_lost_its_version_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path();
        fs::create_dir(store.join("keyspaces")).unwrap();
        let journal = store.join(FIRST_JOURNAL);
        fs::write(store.join(LOCK), "").unwrap();
        fs::write(&journal, vec![0; 10_000]).unwrap();
        check(store).unwrap();
        drop(fjall::Database::builder(store).open().unwrap());
        check(store).unwrap();
        fs::remove_file(store.join(VERSION)).unwrap();
        fs::remove_dir_all(store.join("keyspaces")).unwrap();
        fs::write(&journal, [vec![1], vec![0; 10_000]].concat()).unwrap();
        let refused = check(store);
        assert!(matches!(&refused, Err(OpenError::Damaged { file, .. }) if file.ends_with(VERSION)), "{refused:?}");
    }

    #[test]
    fn a_gap_between_journals_is_refused_by_the_name_of_the_one_that_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        drop(fjall::Database::builder(directory.path()).open().unwrap());
        let journal = |number: u32| directory.path().join(format!("{number}.jnl"));
        fs::write(journal(1), "").unwrap();
        check(directory.path()).unwrap();
        fs::rename(journal(1), journal(2)).unwrap();
        let refused = check(directory.path());
        assert!(matches!(&refused, Err(OpenError::Damaged { file, .. }) if *file == journal(1)), "{refused:?}");
    }
}
