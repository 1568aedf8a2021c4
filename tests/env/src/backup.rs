//! An older copy of the cluster, and the way back to it, as an operator restores etcd from a backup. The revision goes
//! back with the data: versions that clients have seen are given out again, for other writes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::{Apiserver, etcd};

/// What etcd knew when [`Apiserver::backup`] was called. The files go with the value, or with the server.
pub struct Backup {
    directory: TempDir,
}

impl Apiserver {
    /// Copies etcd's data directory.
    ///
    /// etcd stands still for that, about a second, so that the copy is of one moment; the API server goes on, and the
    /// watches of its clients do too. A write in that second fails.
    pub async fn backup(&self) -> Result<Backup> {
        let directory = TempDir::with_prefix_in("backup-", self.scratch.data()).context("creating a backup")?;
        self.etcd.stop();
        let copied = copy(&etcd::directory(&self.scratch), directory.path()).await;
        self.etcd.start_again(&self.scratch).await?;
        self.until_ready().await?;
        copied?;
        Ok(Backup { directory })
    }

    /// Stops the API server and etcd, puts the older data back, and starts both on their ports. A backup can be restored
    /// more than once.
    ///
    /// A client that held a watch sees its connection break. The server takes a watch from a version of the lost time
    /// without complaint (HTTP 200), is silent until its revision has passed that version, and never sends what was
    /// written on the way there.
    pub async fn restore(&self, backup: &Backup) -> Result<()> {
        let data = etcd::directory(&self.scratch);
        self.stop();
        self.etcd.stop();
        fs::remove_dir_all(&data).context("removing etcd's data")?;
        copy(backup.directory.path(), &data).await?;
        self.etcd.start_again(&self.scratch).await?;
        self.start_again().await
    }
}

/// Some 64 MB, most of it a preallocated log: too much for the thread of a test's runtime.
async fn copy(from: &Path, to: &Path) -> Result<()> {
    let what = format!("copying {} to {}", from.display(), to.display());
    let (from, to) = (from.to_owned(), to.to_owned());
    tokio::task::spawn_blocking(move || copy_directory(&from, &to)).await?.context(what)
}

fn copy_directory(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
