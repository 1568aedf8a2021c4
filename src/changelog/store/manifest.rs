//! fjall's lists of its own files, held against their checksums and against the files that there are before it opens them.
//!
//! For each keyspace `v<n>` lists the tables and blob files there are, and `current` has its number and its checksum. fjall does not
//! look at the checksum: a flipped bit in the list opens well, and most rows are gone without a word. So does a keyspace whose blob
//! files are gone with their directory.

use std::{
    fs,
    io::{self, Read as _},
    path::Path,
};

use xxhash_rust::xxh3::xxh3_128;

use crate::changelog::OpenError;

/// The number of the list, its checksum, and the kind of checksum (0: XXH3 with 128 bits).
const CURRENT_LEN: usize = 8 + 16 + 1;

/// Refuses a store of which a list of files is not what was written. A store that is not there yet has none.
pub(super) fn check(store: &Path) -> Result<(), OpenError> {
    let keyspaces = store.join("keyspaces");
    let entries = match fs::read_dir(&keyspaces) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(&keyspaces, error)),
    };
    for entry in entries {
        check_keyspace(&entry.map_err(|error| unreadable(&keyspaces, error))?.path())?;
    }
    Ok(())
}

fn check_keyspace(keyspace: &Path) -> Result<(), OpenError> {
    let current = keyspace.join("current");
    let bytes = match fs::read(&current) {
        Ok(bytes) => bytes,
        // A keyspace that was only being made: fjall makes it anew.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(&current, error)),
    };
    let damaged =
        |file: &Path, problem: &str| OpenError::Damaged { file: file.into(), offset: 0, problem: problem.into() };
    let Ok(bytes) = <[u8; CURRENT_LEN]>::try_from(bytes) else {
        return Err(damaged(&current, "the file is not as long as it was written"));
    };
    let (number, rest) = bytes.split_at(8);
    let (checksum, kind) = rest.split_at(16);
    if kind != [0] {
        return Err(damaged(&current, "not a checksum that is known"));
    }
    let number = number.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let list = keyspace.join(format!("v{number}"));
    let content = match fs::read(&list) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(damaged(&current, &format!("it names v{number}, which is not there")));
        }
        Err(error) => return Err(unreadable(&list, error)),
    };
    if xxh3_128(&content).to_le_bytes() != *checksum {
        return Err(damaged(&list, "the checksum of the store's list of files does not match"));
    }
    let Ok([tables, blobs]) = listed(&content) else {
        return Err(damaged(&list, "the store's list of files cannot be read"));
    };
    for (directory, numbers) in [("tables", tables), ("blobs", blobs)] {
        for number in numbers {
            let file = keyspace.join(directory).join(number.to_string());
            if !file.try_exists().map_err(|error| unreadable(&file, error))? {
                return Err(missing(&file));
            }
        }
    }
    Ok(())
}

/// The numbers of the tables and of the blob files in a list.
fn listed(list: &[u8]) -> io::Result<[Vec<u64>; 2]> {
    // Behind a number: the kind of checksum and the checksum; of a table, also a seqno.
    const BLOB_REST: usize = 1 + 16;
    const TABLE_REST: usize = BLOB_REST + 8;
    let archive = sfa::Reader::from_reader(&mut io::Cursor::new(list)).map_err(io::Error::other)?;
    let section = |name: &[u8]| {
        let entry = archive.toc().section(name)?;
        let (from, len) = (usize::try_from(entry.pos()).ok()?, usize::try_from(entry.len()).ok()?);
        list.get(from..from.checked_add(len)?)
    };
    let mut tables = section(b"tables").ok_or(io::ErrorKind::InvalidData)?;
    let mut blobs = section(b"blob_files").ok_or(io::ErrorKind::InvalidData)?;
    let mut numbers = [Vec::new(), Vec::new()];
    let [levels] = taken(&mut tables)?;
    for _level in 0..levels {
        let [runs] = taken(&mut tables)?;
        for _run in 0..runs {
            for _table in 0..u32::from_le_bytes(taken(&mut tables)?) {
                numbers[0].push(u64::from_le_bytes(taken(&mut tables)?));
                taken::<TABLE_REST>(&mut tables)?;
            }
        }
    }
    for _blob in 0..u32::from_le_bytes(taken(&mut blobs)?) {
        numbers[1].push(u64::from_le_bytes(taken(&mut blobs)?));
        taken::<BLOB_REST>(&mut blobs)?;
    }
    Ok(numbers)
}

fn taken<const LEN: usize>(bytes: &mut &[u8]) -> io::Result<[u8; LEN]> {
    let mut taken = [0; LEN];
    bytes.read_exact(&mut taken)?;
    Ok(taken)
}

pub(super) fn missing(file: &Path) -> OpenError {
    OpenError::Damaged { file: file.into(), offset: 0, problem: "the file is missing".into() }
}

pub(super) fn unreadable(path: &Path, source: io::Error) -> OpenError {
    OpenError::Directory { operation: "read", path: path.into(), source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    /// A store whose rows are in tables, as of any process that has run for a while.
    fn made(path: &Path) {
        let database = fjall::Database::builder(path).open().unwrap();
        for name in ["rows", "meta"] {
            let keyspace = database.keyspace(name, fjall::KeyspaceCreateOptions::default).unwrap();
            keyspace.insert("key", "value").unwrap();
            keyspace.rotate_memtable_and_wait().unwrap();
        }
    }

    #[test]
    fn every_wrong_bit_and_every_cut_of_the_lists_is_refused_by_file() {
        let directory = tempfile::tempdir().unwrap();
        check(directory.path()).unwrap();
        made(directory.path());
        check(directory.path()).unwrap();
        let mut tried = 0;
        for keyspace in fs::read_dir(directory.path().join("keyspaces")).unwrap() {
            let keyspace = keyspace.unwrap().path();
            let current = keyspace.join("current");
            let number = u64::from_le_bytes(fs::read(&current).unwrap()[..8].try_into().unwrap());
            let list = keyspace.join(format!("v{number}"));
            for file in [&current, &list] {
                let whole = fs::read(file).unwrap();
                let flipped = (0..whole.len() * 8).map(|bit| {
                    let mut bytes = whole.clone();
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    bytes
                });
                for wrong in flipped.chain((0..whole.len()).map(|len| whole[..len].to_vec())) {
                    fs::write(file, &wrong).unwrap();
                    let refused = check(directory.path());
                    // Another number may lead to an older list, which is whole and not the one that was meant.
                    let named = matches!(&refused, Err(OpenError::Damaged { file, .. }) if file.starts_with(&keyspace));
                    assert!(named, "{}: {refused:?}", file.display());
                    tried += 1;
                }
                fs::write(file, &whole).unwrap();
            }
        }
        assert!(tried > 2_000, "{tried}");
        check(directory.path()).unwrap();
    }
}
