//! The keys of the two sinks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The keys of `type: file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// The file to append to. Made if it is missing, with its directory.
    pub path: PathBuf,
}

/// The keys of `type: stdout`: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdoutConfig {}
