//! The configuration: defaults < file < `KUBETIDE__…` environment < flags.
//!
//! Unknown keys, bad values and impossible combinations are refused at start, with the key's path, what was found and
//! what is allowed. `config/reference.yaml` is the manual; a test holds it equal to the defaults here.

use std::{
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
};

use config::{Environment, File, FileFormat};
use kubetide_sink_file::{FileConfig, StdoutConfig};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Config {
    /// Which cluster.
    pub cluster: Cluster,
    /// Where the change log and the checkpoints are kept.
    pub data_dir: PathBuf,
    /// What to capture.
    pub streams: Vec<Stream>,
    /// How to LIST.
    pub list: List,
    /// How to WATCH.
    pub watch: Watch,
    /// Where to push the log.
    pub sinks: Vec<Sink>,
    /// Logs.
    pub telemetry: Telemetry,
    /// How long a shutdown waits for the sinks.
    pub shutdown_grace_secs: u64,
}

/// `cluster`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// The name in the records; the context's name if not given.
    pub name: Option<String>,
    /// The cluster's uid; read from the namespace kube-system if not given.
    pub uid: Option<String>,
    /// The kubeconfig file; `$KUBECONFIG` or `~/.kube/config` if not given, and in a pod its service account.
    pub kubeconfig: Option<PathBuf>,
    /// The context in it; the current one if not given.
    pub context: Option<String>,
}

/// An item of `streams`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// `plural[.version][.group]`, a short name or a kind.
    pub resource: String,
    /// A stream for each of these; empty = one stream for all namespaces.
    #[serde(default)]
    pub namespaces: Vec<String>,
}

/// `list`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct List {
    /// Objects per page.
    pub page_size: NonZeroU32,
    /// How long one page may take.
    pub timeout_secs: NonZeroU64,
    /// How many LISTs may run at once.
    pub max_concurrent: NonZeroUsize,
}

/// `watch`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Watch {
    /// Ask for bookmarks, which keep idle streams resumable.
    pub bookmarks: bool,
    /// A watch is renewed after a random time from here…
    pub timeout_min_secs: NonZeroU32,
    /// …to here.
    pub timeout_max_secs: NonZeroU32,
    /// A stream that has had bookmarks and has none for this long is rebuilt.
    pub stall_timeout_secs: NonZeroU64,
}

/// An item of `sinks`: what all types have, and what the type needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sink {
    /// The keys of every sink.
    #[serde(flatten)]
    pub common: SinkCommon,
    /// The type and its keys.
    #[serde(flatten)]
    pub kind: SinkKind,
}

/// The keys of every sink.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SinkCommon {
    /// The sink's identity: its cursor is kept under this name.
    pub name: String,
    /// The streams it takes, by name; empty = all.
    #[serde(default)]
    pub streams: Vec<String>,
    /// When a batch is cut.
    #[serde(default)]
    pub batch: Batch,
    /// How failed batches are tried again.
    #[serde(default)]
    pub retry: Retry,
}

/// The type of a sink, with its own keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum SinkKind {
    /// NDJSON into a file.
    File(FileConfig),
    /// NDJSON into a pipe, one-liners on a terminal.
    Stdout(StdoutConfig),
}

/// `batch`: whichever comes first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Batch {
    /// Records.
    pub max_records: NonZeroUsize,
    /// Bytes.
    pub max_bytes: NonZeroUsize,
    /// Age of the oldest record.
    pub max_wait_ms: u64,
}

/// `retry`: exponential with full jitter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retry {
    /// The first pause, at most.
    pub initial_ms: NonZeroU64,
    /// The longest pause.
    pub max_ms: NonZeroU64,
}

/// `telemetry`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// How log lines look.
    pub log_format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or by module: `info,kubetide::source=debug`.
    pub log_level: String,
}

/// `telemetry.log_format`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: Cluster::default(),
            data_dir: "./kubetide-data".into(),
            streams: Vec::new(),
            list: List::default(),
            watch: Watch::default(),
            sinks: Vec::new(),
            telemetry: Telemetry::default(),
            // Less than the 30 s that Kubernetes gives a pod.
            shutdown_grace_secs: 25,
        }
    }
}

impl Default for List {
    fn default() -> Self {
        // 500 is what kubectl asks for.
        Self { page_size: nonzero_u32(500), timeout_secs: nonzero_u64(300), max_concurrent: nonzero_usize(4) }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            bookmarks: true,
            // client-go's range, so that API servers see watches renewed as they are used to.
            timeout_min_secs: nonzero_u32(300),
            timeout_max_secs: nonzero_u32(600),
            // Bookmarks come about once a minute: two missed in a row.
            stall_timeout_secs: nonzero_u64(150),
        }
    }
}

impl Default for Batch {
    fn default() -> Self {
        // 1 MiB is what brokers take by default.
        Self { max_records: nonzero_usize(500), max_bytes: nonzero_usize(1024 * 1024), max_wait_ms: 1000 }
    }
}

impl Default for Retry {
    fn default() -> Self {
        Self { initial_ms: nonzero_u64(500), max_ms: nonzero_u64(60_000) }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { log_format: LogFormat::Text, log_level: "info".into() }
    }
}

// The three below are called with constants; zero would become one.
fn nonzero_u32(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN)
}
fn nonzero_u64(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n).unwrap_or(NonZeroU64::MIN)
}
fn nonzero_usize(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN)
}

/// What is wrong with the configuration, with the key's path in front.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub String);

/// What the command line sets, over everything else.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--data-dir`
    pub data_dir: Option<PathBuf>,
}

/// The file's own shape: as [`Config`], with sinks not yet told apart.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Read {
    cluster: Cluster,
    data_dir: PathBuf,
    streams: Vec<Stream>,
    list: List,
    watch: Watch,
    sinks: Vec<Value>,
    telemetry: Telemetry,
    shutdown_grace_secs: u64,
}

impl Default for Read {
    fn default() -> Self {
        let Config { cluster, data_dir, list, watch, telemetry, shutdown_grace_secs, .. } = Config::default();
        Self { cluster, data_dir, streams: vec![], list, watch, sinks: vec![], telemetry, shutdown_grace_secs }
    }
}

/// Reads the file, the environment and the flags, and checks the result.
pub fn load(path: &Path, flags: &Flags) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError(format!("cannot read the configuration file {}: {error}", path.display())))?;
    let (format, name) = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => (FileFormat::Json, "JSON"),
        Some("toml") => (FileFormat::Toml, "TOML"),
        _ => (FileFormat::Yaml, "YAML"),
    };
    let not_readable =
        |error| ConfigError(format!("{}: not {name} that holds a configuration: {error}", path.display()));
    // Alone first, so that a mistake in the file is not blamed on the environment.
    config::Config::builder().add_source(File::from_str(&text, format)).build().map_err(not_readable)?;
    let layers = config::Config::builder()
        .add_source(File::from_str(&text, format))
        .add_source(Environment::with_prefix("KUBETIDE").prefix_separator("__").separator("__"))
        .build()
        .map_err(not_readable)?;
    let read: Read = serde_path_to_error::deserialize(layers)
        .map_err(|error| explain(&error.path().to_string(), &error.inner().to_string(), &[]))?;
    let mut sinks = Vec::new();
    for (index, value) in read.sinks.into_iter().enumerate() {
        sinks.push(read_sink(&format!("sinks[{index}]"), value)?);
    }
    let mut config = Config {
        cluster: read.cluster,
        data_dir: read.data_dir,
        streams: read.streams,
        list: read.list,
        watch: read.watch,
        sinks,
        telemetry: read.telemetry,
        shutdown_grace_secs: read.shutdown_grace_secs,
    };
    if let Some(data_dir) = &flags.data_dir {
        config.data_dir.clone_from(data_dir);
    }
    config.validate()?;
    Ok(config)
}

const SINK_TYPES: [&str; 2] = ["file", "stdout"];
const SINK_COMMON: [&str; 4] = ["name", "streams", "batch", "retry"];

/// One item of `sinks`: the common keys, the type, and the keys that the type alone has.
fn read_sink(path: &str, value: Value) -> Result<Sink, ConfigError> {
    let Value::Object(mut own) = value else {
        return Err(ConfigError(format!("{path}: found {value}, expected a map with name and type")));
    };
    let kind = own.remove("type");
    let mut common = Map::new();
    for key in SINK_COMMON {
        common.extend(own.remove_entry(key));
    }
    let common: SinkCommon = read_part(path, common, &[])?;
    let kind = match kind.as_ref().and_then(Value::as_str) {
        Some("file") => SinkKind::File(read_part(path, own, &SINK_COMMON)?),
        Some("stdout") => SinkKind::Stdout(read_part(path, own, &SINK_COMMON)?),
        Some(other) => {
            let hint = nearest(other, SINK_TYPES).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            let allowed = SINK_TYPES.join(", ");
            return Err(ConfigError(format!("{path}.type: found {other}, allowed: {allowed}{hint}")));
        }
        None => return Err(ConfigError(format!("{path}.type: missing, allowed: {}", SINK_TYPES.join(", ")))),
    };
    Ok(Sink { common, kind })
}

fn read_part<T: DeserializeOwned>(path: &str, part: Map<String, Value>, also: &[&str]) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(Value::Object(part)).map_err(|error| {
        let inner = error.path().to_string();
        let path = if inner == "." { path.to_owned() } else { format!("{path}.{inner}") };
        explain(&path, &error.inner().to_string(), also)
    })
}

/// Puts the path in front, and for an unknown key the allowed ones and the nearest behind.
fn explain(path: &str, message: &str, also: &[&str]) -> ConfigError {
    let path = path.trim_start_matches("./");
    let Some((unknown, expected)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once("`, "))
    else {
        return ConfigError(format!("{path}: {message}"));
    };
    let mut allowed: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    allowed.extend(also);
    allowed.extend(also.first().map(|_| "type"));
    // The path of an unknown key ends with that key already, or names its parent.
    let path = match path.strip_suffix(unknown).map(|parent| parent.trim_end_matches('.')) {
        _ if path == "." => unknown.to_owned(),
        Some("") => unknown.to_owned(),
        Some(parent) => format!("{parent}.{unknown}"),
        None => format!("{path}.{unknown}"),
    };
    let hint =
        nearest(unknown, allowed.iter().copied()).map(|near| format!("did you mean {near}? ")).unwrap_or_default();
    ConfigError(format!("{path}: unknown key; {hint}allowed: {}", allowed.join(", ")))
}

/// The word that was probably meant.
pub(crate) fn nearest<'a>(word: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    among
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&word, &candidate.to_lowercase()), candidate))
        // Below this the suggestion is a guess.
        .filter(|(score, _)| *score > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, candidate)| candidate)
}

impl Config {
    /// What a type cannot express.
    fn validate(&self) -> Result<(), ConfigError> {
        let refuse = |message: String| Err(ConfigError(message));
        if self.streams.is_empty() {
            return refuse("streams: empty; name at least one, such as `- resource: deployments.apps`".into());
        }
        if self.sinks.is_empty() {
            return refuse("sinks: empty; name at least one, such as `- {name: out, type: stdout}`".into());
        }
        if self.watch.timeout_min_secs > self.watch.timeout_max_secs {
            let Watch { timeout_min_secs: min, timeout_max_secs: max, .. } = self.watch;
            return refuse(format!(
                "watch.timeout_min_secs: found {min}, which is more than watch.timeout_max_secs ({max})"
            ));
        }
        for (index, stream) in self.streams.iter().enumerate() {
            if stream.resource.is_empty() {
                return refuse(format!("streams[{index}].resource: empty, expected a resource such as pods"));
            }
            if let Some(at) = stream.namespaces.iter().position(String::is_empty) {
                return refuse(format!(
                    "streams[{index}].namespaces[{at}]: empty; leave the list empty for all namespaces"
                ));
            }
        }
        for (index, sink) in self.sinks.iter().enumerate() {
            let SinkCommon { name, retry, .. } = &sink.common;
            let well_formed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            if name.is_empty() || name.len() > 63 || !name.chars().all(well_formed) {
                return refuse(format!("sinks[{index}].name: found {name:?}, allowed: 1 to 63 of a-z, 0-9 and -"));
            }
            if let Some(first) = self.sinks[..index].iter().position(|other| other.common.name == *name) {
                return refuse(format!(
                    "sinks[{index}].name: found {name}, which is the name of sinks[{first}] already"
                ));
            }
            if retry.initial_ms > retry.max_ms {
                let Retry { initial_ms, max_ms } = retry;
                return refuse(format!(
                    "sinks[{index}].retry.initial_ms: found {initial_ms}, which is more than max_ms ({max_ms})"
                ));
            }
            if let SinkKind::File(FileConfig { path }) = &sink.kind
                && path.as_os_str().is_empty()
            {
                return refuse(format!("sinks[{index}].path: empty, expected a file"));
            }
        }
        let stdouts = self.sinks.iter().filter(|sink| matches!(sink.kind, SinkKind::Stdout(_))).count();
        if stdouts > 1 {
            return refuse(format!("sinks: {stdouts} of type stdout; one at most, or their lines would mix"));
        }
        if let Err(error) = tracing_subscriber::EnvFilter::builder().parse(&self.telemetry.log_level) {
            let level = &self.telemetry.log_level;
            return refuse(format!(
                "telemetry.log_level: found {level:?} ({error}), allowed: error, warn, info, debug, trace"
            ));
        }
        Ok(())
    }
}
