//! What the log does with files, and no more: the place where a test puts a disk that loses, tears and refuses.
//!
//! The contract is that of a file system which promises as little as POSIX does: what is written lasts after `sync_data` of
//! the file, a name after `sync_directory`. Before that, any part of it may last and any other may not.

#[cfg(test)]
pub(super) mod faulty;

use std::{
    fmt,
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
};

use crate::private;

/// Where files are.
pub(super) trait Disk: Send + Sync {
    /// Makes an empty file for reading and writing, in place of one that may have had its name. It is for its owner alone.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Opens a file that is there.
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>>;

    /// The names in a directory, in no order.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;

    /// Gives a file another name, in place of one that may have had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Takes a file's name away. Whoever has it open can still read it.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable, and the absence of others.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// One open file. All access is by offset: nobody else moves it.
pub(super) trait DiskFile: fmt::Debug + Send + Sync {
    /// Reads some bytes; none only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes some of the bytes and says how many.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;

    /// Makes durable what was written and how long the file is. After an error what is on the disk is unknown, and trying again
    /// tells nothing: the kernel may have dropped what it could not write.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts the file, or lengthens it with zeros.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// How long the file is.
    fn len(&self) -> io::Result<u64>;
}

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Reads until the buffer is full or the file ends, and says how much that was.
pub(super) fn read_up_to(file: &dyn DiskFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// Writes all of it. After an error some of it may be in the file.
pub(super) fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The file system of the machine.
pub(super) struct Volume;

impl Volume {
    /// To hand out where a disk is asked for.
    pub(super) fn shared() -> Arc<dyn Disk> {
        Arc::new(Self)
    }
}

impl Disk for Volume {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(private::file().create(true).truncate(true).read(true).write(true).open(path)?))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::options().read(true).write(access == Access::Write).open(path)?))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            // None of our names is anything but ASCII.
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

impl DiskFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(self, bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}
