//! The keys of the two sinks.

use std::{num::NonZeroU64, path::PathBuf};

use kubetide_sink::ConfigProblem;
use serde::{Deserialize, Serialize};

/// The keys of `type: file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// The file to append to. Made if it is missing, with its directory.
    pub path: PathBuf,
    /// When the file is put aside and a new one is begun.
    #[serde(default)]
    pub rotate: Rotate,
}

/// When a file is put aside, and what becomes of it. By default it grows for ever, and nothing is ever removed: a history is
/// not cut without having been asked to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rotate {
    /// Before the file would be larger than this; a batch that is larger by itself has a file of its own. Null: at no size.
    pub max_bytes: Option<NonZeroU64>,
    /// Once its first record is older than this. Null: at no age.
    pub max_age_secs: Option<NonZeroU64>,
    /// How many files that were put aside stay, the newest ones. 0: all.
    pub keep: u32,
    /// How files that were put aside are compressed.
    pub compression: Compression,
}

/// How files that were put aside are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// `.gz`
    Gzip,
    /// `.zst`
    Zstd,
}

/// The keys of `type: stdout`: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdoutConfig {}

impl FileConfig {
    /// What is wrong with the keys, as far as that can be told without the file.
    pub fn check(&self) -> Result<(), ConfigProblem> {
        if self.path.as_os_str().is_empty() {
            return Err(ConfigProblem::new("path", "empty, expected a file"));
        }
        let Rotate { keep, compression, .. } = &self.rotate;
        let without = |key: &str, found: String| {
            let problem =
                format!("found {found}, but nothing is ever rotated; set rotate.max_bytes or rotate.max_age_secs");
            Err(ConfigProblem::new(key, problem))
        };
        match self.rotate.is_on() {
            false if *keep > 0 => without("rotate.keep", keep.to_string()),
            false if *compression != Compression::None => without("rotate.compression", compression.word().to_owned()),
            true if self.path.extension().is_some_and(|extension| extension == "latest") => {
                let problem = format!(
                    "found {}, which is the name of the link to the file that was rotated last; name it otherwise",
                    self.path.display()
                );
                Err(ConfigProblem::new("path", problem))
            }
            _ => Ok(()),
        }
    }
}

impl Rotate {
    /// Whether a file is ever put aside.
    pub fn is_on(&self) -> bool {
        self.max_bytes.is_some() || self.max_age_secs.is_some()
    }
}

impl Compression {
    const fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// What it adds to the name of a file.
    pub(crate) const fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gzip => ".gz",
            Self::Zstd => ".zst",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    fn problem(text: &str) -> String {
        let config: FileConfig = serde_json::from_str(text).unwrap();
        config.check().unwrap_err().to_string()
    }

    #[test]
    fn a_bare_path_grows_for_ever_and_keeps_everything() {
        let config: FileConfig = serde_json::from_str(r#"{"path": "out.ndjson"}"#).unwrap();
        assert_eq!(config.check(), Ok(()));
        assert!(!config.rotate.is_on());
        assert_eq!(serde_json::to_string(&config.rotate).unwrap(), {
            r#"{"max_bytes":null,"max_age_secs":null,"keep":0,"compression":"none"}"#
        });
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_key() {
        assert_eq!(problem(r#"{"path": ""}"#), "path: empty, expected a file");
        for (rotate, found) in [
            (r#"{"keep": 3}"#, "rotate.keep: found 3, but nothing is ever rotated"),
            (r#"{"compression": "zstd"}"#, "rotate.compression: found zstd, but nothing is ever rotated"),
        ] {
            let problem = problem(&format!(r#"{{"path": "a", "rotate": {rotate}}}"#));
            assert!(problem.starts_with(found), "{problem}");
        }
        assert!(problem(r#"{"path": "a.latest", "rotate": {"max_bytes": 1}}"#).starts_with("path: found a.latest"));
        for wrong in [r#"{"max_bytes": 0}"#, r#"{"max_age_secs": 0}"#, r#"{"compression": "lz4"}"#, r#"{"size": 1}"#] {
            let config = format!(r#"{{"path": "a", "rotate": {wrong}}}"#);
            assert!(serde_json::from_str::<FileConfig>(&config).is_err(), "{wrong}");
        }
    }
}
