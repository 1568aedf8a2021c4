//! The key of redaction: where it comes from, and that nobody else can read it.
//!
//! By default it is made once and stays with the data directory: with another key every mark would change.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use tracing::warn;

use crate::{change::RedactKey, config::Reference};

/// In the data directory.
const FILE: &str = "redact.key";
/// Shorter ones can be guessed.
const MIN_BYTES: usize = 16;

/// Why there is no key. Never says anything of what is in it.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or made.
    #[error("cannot {verb} the key of redaction {}: {source}", path.display())]
    File {
        /// What was tried.
        verb: &'static str,
        /// Which file.
        path: PathBuf,
        /// What came of it.
        source: io::Error,
    },
    /// Others can read it.
    #[error(
        "the key of redaction {} can be read by others (mode {mode:04o}); make it yours alone: chmod 600 {}",
        path.display(), path.display()
    )]
    Open {
        /// Which file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The variable of the environment is not there.
    #[error("record.redact_key.env: the variable {0} is not set, or is not text")]
    NotSet(String),
    /// It is no key.
    #[error("{place}: the key of redaction has {found} bytes, expected at least {MIN_BYTES}")]
    Short {
        /// Where it is from.
        place: String,
        /// How long it is.
        found: usize,
    },
}

/// The key that the configuration names, or else the one of the data directory, which is made if it is not there.
pub fn load(reference: Option<&Reference>, data_dir: &Path) -> Result<RedactKey, KeyError> {
    match reference {
        Some(Reference::Env(name)) => {
            let value = std::env::var(name).map_err(|_| KeyError::NotSet(name.clone()))?;
            key_of(format!("record.redact_key.env ({name})"), value.as_bytes())
        }
        Some(Reference::File(path)) => {
            let bytes = fs::read(path).map_err(|source| KeyError::File { verb: "read", path: path.clone(), source })?;
            key_of(format!("record.redact_key.file ({})", path.display()), &bytes)
        }
        None => {
            let path = data_dir.join(FILE);
            make(&path, data_dir).map_err(|source| KeyError::File { verb: "make", path: path.clone(), source })?;
            close_to_others(&path)?;
            let bytes =
                fs::read(&path).map_err(|source| KeyError::File { verb: "read", path: path.clone(), source })?;
            key_of(path.display().to_string(), &bytes)
        }
    }
}

/// A volume with an fsGroup gives its group every file at each start of the pod: what is ours is closed again. What cannot be
/// closed may at most be open to that group.
fn close_to_others(path: &Path) -> Result<(), KeyError> {
    let failed = |source| KeyError::File { verb: "read", path: path.into(), source };
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match fs::set_permissions(path, fs::Permissions::from_mode(0o600)) {
        Ok(()) => {
            warn!(key = %path.display(), mode = %format!("{mode:04o}"), "the key of redaction was open to others, made it 0600")
        }
        Err(_) if mode & 0o007 != 0 => return Err(KeyError::Open { path: path.into(), mode }),
        Err(error) => {
            warn!(key = %path.display(), mode = %format!("{mode:04o}"), %error, "the key of redaction is open to its group")
        }
    }
    Ok(())
}

fn key_of(place: String, bytes: &[u8]) -> Result<RedactKey, KeyError> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    if bytes.len() < MIN_BYTES {
        return Err(KeyError::Short { place, found: bytes.len() });
    }
    Ok(RedactKey::new(bytes))
}

/// Makes a key where there is none: whole and durable under its name, or not there at all.
fn make(path: &Path, directory: &Path) -> io::Result<()> {
    if path.try_exists()? {
        return Ok(());
    }
    let draft = path.with_extension("key.new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let key: [u8; 32] = rand::random();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    writeln!(file, "{hex}")?;
    file.sync_all()?;
    // The directory is ours alone: nobody has made one meanwhile.
    fs::rename(&draft, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn refused(reference: Option<&Reference>, directory: &Path) -> String {
        load(reference, directory).unwrap_err().to_string()
    }

    #[test]
    fn the_key_is_made_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        load(None, directory.path()).unwrap();
        let path = directory.path().join(FILE);
        let made = fs::read(&path).unwrap();
        assert_eq!((made.len(), fs::metadata(&path).unwrap().permissions().mode() & 0o777), (65, 0o600));
        load(None, directory.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), made);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let other = tempfile::tempdir().unwrap();
        load(None, other.path()).unwrap();
        assert_ne!(fs::read(other.path().join(FILE)).unwrap(), made);
    }

    #[test]
    fn a_key_that_a_volume_has_opened_to_others_is_closed_again_and_stays_the_same() {
        let directory = tempfile::tempdir().unwrap();
        load(None, directory.path()).unwrap();
        let path = directory.path().join(FILE);
        let made = fs::read(&path).unwrap();
        for mode in [0o660, 0o644] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            load(None, directory.path()).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(fs::read(&path).unwrap(), made);
        }
    }

    #[test]
    fn a_short_or_missing_key_is_refused_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let file = Reference::File(path.clone());
        assert!(refused(Some(&file), directory.path()).contains("cannot read"));
        fs::write(&path, "fifteen bytes..\n").unwrap();
        let message = refused(Some(&file), directory.path());
        assert!(message.contains("15 bytes") && !message.contains("fifteen"), "{message}");
        fs::write(&path, "sixteen bytes...\r\n").unwrap();
        assert!(load(Some(&file), directory.path()).is_ok());
        let unset = Reference::Env("KUBETIDE_NO_SUCH_KEY".into());
        assert!(refused(Some(&unset), directory.path()).contains("KUBETIDE_NO_SUCH_KEY"));
        assert!(!directory.path().join(FILE).exists());
    }
}
