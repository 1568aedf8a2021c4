//! `kubetide.sock` in the data directory: made private before anyone can find it, and gone with the process.
//!
//! The path of a socket may have 107 bytes, a data directory more. So the directory is opened, and the socket is named
//! through that: `/proc/self/fd/N/kubetide.sock`.

use std::{
    fs::{self, File, Permissions},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

const NAME: &str = "kubetide.sock";
/// Where the socket is made: nobody else can enter it.
const NURSERY: &str = "kubetide.sock.new";

/// A socket that listens; the file goes with the value.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Makes the socket. One that a killed process has left is replaced: the lock on the directory is ours.
    pub(super) fn bind(data_dir: &Path) -> io::Result<Self> {
        let nursery = data_dir.join(NURSERY);
        match fs::remove_dir_all(&nursery) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::DirBuilder::new().mode(0o700).create(&nursery)?;
        let directory = File::open(&nursery)?;
        let listener = UnixListener::bind(through(&directory))?;
        fs::set_permissions(nursery.join(NAME), Permissions::from_mode(0o600))?;
        let path = data_dir.join(NAME);
        fs::rename(nursery.join(NAME), &path)?;
        fs::remove_dir(&nursery)?;
        Ok(Self { listener, path })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // If it is gone already, all the better.
        let _ = fs::remove_file(&self.path);
    }
}

/// Connects to the process that has the directory. None if nobody listens there.
pub(super) async fn connect(data_dir: &Path) -> io::Result<Option<UnixStream>> {
    let directory = File::open(data_dir)?;
    match UnixStream::connect(through(&directory)).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error),
    }
}

fn through(directory: &File) -> PathBuf {
    format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()).into()
}
