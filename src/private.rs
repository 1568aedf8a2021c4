//! What kubetide makes on the volume is for its owner alone: it holds the state of a cluster. A directory that was there before it,
//! such as a mounted volume with a group of its own, is left as it is.

use std::{
    fs::{DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
};

/// Makes a directory, and those above it that are missing.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// For opening a file that may be made by it.
pub(crate) fn file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}
