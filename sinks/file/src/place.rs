//! The names around a file that is rotated: those that were put aside, the link to the newest of them, what is not finished.
//!
//! Beside `changes.ndjson`: `changes-20261116T040000Z-000000042.ndjson` and so on, which sort in the order in which they were
//! written, `changes.latest`, and hidden files that end in `.part`.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use jiff::Timestamp;

use crate::Compression;

/// Where a file is, and what it is called.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) directory: PathBuf,
    stem: String,
    /// With its dot; or nothing.
    extension: String,
}

/// A file that was put aside. In the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rotated {
    /// When, as in the name.
    stamp: String,
    /// One more than that of the one before.
    number: u64,
    pub(crate) compression: Compression,
}

impl Place {
    /// Where the path leads to: links are followed, so that a file is renamed where it is.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let path = fs::canonicalize(path)?;
        let text = |part: Option<&std::ffi::OsStr>| {
            part.unwrap_or_default().to_str().map(str::to_owned).ok_or(io::ErrorKind::InvalidFilename)
        };
        let extension = match text(path.extension())? {
            extension if extension.is_empty() => extension,
            extension => format!(".{extension}"),
        };
        Ok(Self { directory: path.parent().unwrap_or(Path::new("/")).into(), stem: text(path.file_stem())?, extension })
    }

    /// The file that is written to.
    pub(crate) fn current(&self) -> PathBuf {
        self.directory.join(format!("{}{}", self.stem, self.extension))
    }

    /// The link to the one that was put aside last.
    pub(crate) fn latest(&self) -> PathBuf {
        self.directory.join(format!("{}.latest", self.stem))
    }

    /// What a file of this name is called until it is finished: hidden, and no match for `*.ndjson*`.
    pub(crate) fn unfinished(&self, name: &str) -> PathBuf {
        self.directory.join(format!(".{name}.part"))
    }

    pub(crate) fn path(&self, rotated: &Rotated) -> PathBuf {
        self.directory.join(self.name(rotated))
    }

    pub(crate) fn name(&self, Rotated { stamp, number, compression }: &Rotated) -> String {
        format!("{}-{stamp}-{number:09}{}{}", self.stem, self.extension, compression.suffix())
    }

    /// The file of that name, if it is one of ours.
    fn parse(&self, name: &str) -> Option<Rotated> {
        let (stamp, rest) = name.strip_prefix(&self.stem)?.strip_prefix('-')?.split_once('-')?;
        let is_stamp = stamp.len() == 16
            && stamp.bytes().enumerate().all(|(at, byte)| match at {
                8 => byte == b'T',
                15 => byte == b'Z',
                _ => byte.is_ascii_digit(),
            });
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffixes) = rest.split_at(digits);
        let suffix = suffixes.strip_prefix(&self.extension)?;
        let all = [Compression::None, Compression::Gzip, Compression::Zstd];
        let compression = all.into_iter().find(|compression| compression.suffix() == suffix)?;
        let number = number.parse().ok().filter(|_| is_stamp && digits >= 9)?;
        Some(Rotated { stamp: stamp.into(), number, compression })
    }

    /// Those that are there, oldest first.
    pub(crate) fn rotated(&self) -> io::Result<Vec<Rotated>> {
        let mut all: Vec<Rotated> = self.names()?.iter().filter_map(|name| self.parse(name)).collect();
        all.sort();
        Ok(all)
    }

    /// What was not finished.
    pub(crate) fn parts(&self) -> io::Result<Vec<PathBuf>> {
        let latest = format!("{}.latest", self.stem);
        let is_part = |name: &String| {
            let name = name.strip_prefix('.').and_then(|name| name.strip_suffix(".part"));
            name.is_some_and(|name| name == latest || self.parse(name).is_some())
        };
        Ok(self.names()?.iter().filter(|name| is_part(name)).map(|name| self.directory.join(name)).collect())
    }

    /// Those that are no UTF-8 are not ours.
    fn names(&self) -> io::Result<Vec<String>> {
        let name =
            |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().into_string().ok()).transpose();
        fs::read_dir(&self.directory)?.filter_map(name).collect()
    }

    /// The name for what is put aside now. Its number is above all that were given, also if the files were moved elsewhere, and
    /// its time is not before theirs, also if the clock was set back: it sorts last, and is never that of another file.
    pub(crate) fn next(&self, now: SystemTime) -> io::Result<PathBuf> {
        let mut all = self.rotated()?;
        // Where it leads to may be gone, its name is enough.
        let latest = fs::read_link(self.latest()).ok();
        all.extend(latest.and_then(|latest| self.parse(latest.file_name()?.to_str()?)));
        let now = Timestamp::try_from(now).map_err(io::Error::other)?.strftime("%Y%m%dT%H%M%SZ").to_string();
        let stamp = all.iter().map(|rotated| rotated.stamp.clone()).chain([now]).max().unwrap_or_default();
        let number = all.iter().map(|rotated| rotated.number).max().unwrap_or_default() + 1;
        Ok(self.path(&Rotated { stamp, number, compression: Compression::None }))
    }
}

impl Rotated {
    /// Whether the two hold the same lines.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.stamp, self.number) == (&other.stamp, other.number)
    }

    /// The same, compressed like this.
    pub(crate) fn with(&self, compression: Compression) -> Self {
        Self { compression, ..self.clone() }
    }
}

/// The name of a file is durable only when its directory is.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use std::time::Duration;

    use super::*;

    fn place(name: &str) -> (tempfile::TempDir, Place) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), "").unwrap();
        let place = Place::of(&directory.path().join(name)).unwrap();
        (directory, place)
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn names_sort_in_order_and_are_never_given_twice_whatever_the_clock_and_others_do() {
        for name in ["changes.ndjson", "changes", ".changes", "a-b.c.d"] {
            let (_directory, place) = place(name);
            let mut given: Vec<PathBuf> = Vec::new();
            for (round, seconds) in
                [1_700_000_000, 1_700_000_000, 1_700_000_000, 1_600_000_000, 1_600_000_000, 1_800_000_000]
                    .into_iter()
                    .enumerate()
            {
                let next = place.next(at(seconds)).unwrap();
                fs::write(&next, "").unwrap();
                if round % 2 == 1 {
                    // As after a compression, and after somebody has taken it away.
                    let latest = next.with_file_name(format!("{}.zst", next.file_name().unwrap().to_str().unwrap()));
                    fs::rename(&next, &latest).unwrap();
                    let _ = fs::remove_file(place.latest());
                    std::os::unix::fs::symlink(latest.file_name().unwrap(), place.latest()).unwrap();
                    given.iter().chain([&latest]).for_each(|path| drop(fs::remove_file(path)));
                }
                given.push(next);
            }
            assert!(given.is_sorted() && given.windows(2).all(|pair| pair[0] != pair[1]), "{given:?}");
        }
    }

    #[test]
    fn the_files_of_others_are_not_taken_for_ours() {
        let (_directory, place) = place("changes.ndjson");
        let ours = Rotated { stamp: "20261116T040000Z".into(), number: 42, compression: Compression::Zstd };
        assert_eq!(place.name(&ours), "changes-20261116T040000Z-000000042.ndjson.zst");
        assert_eq!(place.parse(&place.name(&ours)), Some(ours));
        for name in [
            "changes.ndjson",
            "changes-20261116T040000Z.ndjson",
            "changes-20261116T040000Z-42.ndjson",
            "changes-20261116T040000Z-000000042.json",
            "changes-20261116T040000Z-000000042.ndjson.bz2",
            "changes-20261116T040000Z-000000042-1.ndjson",
            "changes-x-20261116T040000Z-000000042.ndjson",
            "changes-20261116-0400000-000000042.ndjson",
            "changes-20261116T04000éZ-000000042.ndjson",
            "other-20261116T040000Z-000000042.ndjson",
        ] {
            assert_eq!(place.parse(name), None, "{name}");
        }
    }
}
