//! The directory of a server: `logs/` and `data/`. It is removed when its owner is gone, in whatever way: a small shell
//! waits on a pipe that the owner holds, and the kernel closes that pipe even after SIGKILL. When the owning test
//! panics the logs stay, and their path and last lines are printed with the failure.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use anyhow::{Context, Result};

use crate::process::{Leash, tail};

/// $1 is the directory. Tried again for a while: a server that dies at the same moment may still be writing.
const REMOVE: &str = r#"
read -r _
[ -e "$1/keep" ] && set -- "$1/data"
for _ in 1 2 3 4 5 6 7 8 9 10; do
  rm -rf "$1" && exit 0
  sleep 0.2
done
"#;

pub(crate) struct Scratch {
    root: PathBuf,
    /// Removes the directory when dropped; after `drop` below has had its say.
    _remover: Leash,
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Result<Scratch> {
        let root = tempfile::Builder::new()
            .prefix(&format!("kubetide-{name}-"))
            .tempdir()
            .context("creating a directory for a server")?
            .keep();
        let remover = Leash::start(REMOVE, [&root], None)?;
        let scratch = Scratch { root, _remover: remover };
        for directory in [scratch.data(), scratch.logs()] {
            fs::create_dir(&directory).with_context(|| format!("creating {}", directory.display()))?;
        }
        Ok(scratch)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// A log file of its own for each start, so that what it says is about this start.
    pub(crate) fn new_log(&self, name: &str) -> PathBuf {
        (1..)
            .map(|start| self.logs().join(format!("{name}-{start}.log")))
            .find(|path| !path.exists())
            .expect("the numbers do not end")
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.data().join(name);
        fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// A shared server outlives the test that fails, and is never dropped: any panic in the process keeps its logs.
    pub(crate) fn keep_logs_on_any_panic(&self) {
        static SHARED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
        static HOOK: Once = Once::new();
        SHARED.lock().unwrap().push(self.root.clone());
        HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                previous(panic);
                for root in SHARED.lock().unwrap().iter() {
                    keep(root);
                }
            }));
        });
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            keep(&self.root);
            for log in logs(&self.root) {
                eprintln!("--- {}\n{}", log.display(), tail(&log));
            }
        }
    }
}

fn keep(root: &Path) {
    // Best effort: this runs while a test fails for another reason.
    if fs::write(root.join("keep"), "").is_ok() {
        eprintln!("server logs kept in {}", root.join("logs").display());
    }
}

fn logs(root: &Path) -> Vec<PathBuf> {
    let mut logs: Vec<_> =
        fs::read_dir(root.join("logs")).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect();
    logs.sort();
    logs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_removed_with_its_owner() {
        let scratch = Scratch::new("removed").unwrap();
        let root = scratch.root.clone();
        scratch.write("file", "content").unwrap();
        assert!(root.join("data/file").exists());
        drop(scratch);
        assert!(!root.exists());
    }

    #[test]
    fn the_logs_stay_when_the_owner_panics_and_the_data_does_not() {
        let scratch = Scratch::new("panicked").unwrap();
        let root = scratch.root.clone();
        let log = scratch.new_log("server");
        fs::write(&log, "the cause").unwrap();
        let outcome = std::thread::spawn(move || {
            let _scratch = scratch;
            panic!("on purpose");
        })
        .join();
        assert!(outcome.is_err());
        assert_eq!(fs::read_to_string(&log).unwrap(), "the cause");
        assert!(!root.join("data").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
