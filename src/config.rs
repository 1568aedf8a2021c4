//! The configuration: every key, its default and why.
//!
//! Defaults < file < `KUBETIDE__…` environment < flags. Unknown keys, bad values and impossible combinations are refused at
//! start, with the key's path, what was found and what is allowed. `config/reference.yaml` is the manual; a test holds it
//! equal to the defaults here.

mod load;
mod sink;

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroU64, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

pub use kubetide_sink::{Format, Reference};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error as _, Unexpected},
};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

pub use load::{ConfigError, Flags, load};
pub use sink::{
    Batch, DeadLetter, Delivery, LetterPlace, Oversize, Retry, Sink, SinkCommon, SinkKind, Start, WhenBehind,
};

use crate::change::Pattern;

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
    /// How what is known is held against the cluster.
    pub verify: Verify,
    /// What a record holds.
    pub record: Record,
    /// How the log is kept.
    pub log: Log,
    /// Where to push the log. Read apart, because what a sink may hold depends on its type.
    #[serde(skip_deserializing)]
    pub sinks: Vec<Sink>,
    /// Health and metrics.
    pub admin: Admin,
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
    /// `plural[.version][.group]`, a short name or a kind; `*` or `*.group` for all, those that appear later too.
    pub resource: String,
    /// A stream for each of these; empty = one stream for all namespaces.
    #[serde(default)]
    pub namespaces: Vec<String>,
    /// Namespaces that are left out.
    #[serde(default)]
    pub exclude_namespaces: Vec<String>,
    /// As in `kubectl get -l`.
    #[serde(default)]
    pub label_selector: String,
    /// As in `kubectl get --field-selector`.
    #[serde(default)]
    pub field_selector: String,
    /// How much of each object.
    #[serde(default)]
    pub content: Content,
    /// How changes are learnt.
    #[serde(default)]
    pub mode: Mode,
    /// How often it is listed in mode poll.
    #[serde(default = "default_poll_interval")]
    pub poll_interval_secs: NonZeroU64,
}

/// `streams[].content`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    /// Whole objects.
    #[default]
    Full,
    /// `metadata` alone, as PartialObjectMetadata.
    Metadata,
}

/// `streams[].mode`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// LIST once, then WATCH.
    #[default]
    Watch,
    /// LIST on an interval.
    Poll,
}

/// Often enough for an inventory, seldom enough for the API server.
const fn default_poll_interval() -> NonZeroU64 {
    const { NonZeroU64::new(300).unwrap() }
}

/// `verify`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Verify {
    /// About how often each stream is held against a metadata-only LIST; 0 = never.
    pub interval_secs: u64,
}

/// `list.streaming`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streaming {
    /// Where the API server can.
    #[default]
    Auto,
    /// Always in pages.
    Never,
}

/// `list`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct List {
    /// Objects per page.
    pub page_size: NonZeroU32,
    /// How long one page may take.
    pub timeout_secs: NonZeroU64,
    /// Whether a LIST comes as a watch that begins with all objects.
    pub streaming: Streaming,
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

/// `record`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Record {
    /// Whether an update tells the difference as a patch.
    pub patch: bool,
    /// Whether an update holds the object as it was before.
    pub before: bool,
    /// Paths of which a difference does not count.
    pub ignore: Vec<Pattern>,
    /// Paths that are cut out of objects.
    pub drop: Vec<Pattern>,
    /// Paths whose values are replaced by a keyed mark.
    pub redact: Vec<Pattern>,
    /// The key of the marks; none = made with the data directory, and kept in it.
    pub redact_key: Option<Reference>,
}

/// `log`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// When what was appended is made durable. Sinks see it only then.
    pub sync: Sync,
    /// How long records are kept that every sink has acknowledged.
    pub retention_secs: u64,
    /// How large the log may grow, whatever the sinks have acknowledged.
    pub max_bytes: NonZeroU64,
}

/// Below this a single group of records would not fit in.
const SMALLEST_LOG: u64 = 1024 * 1024;

/// `log.sync`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sync {
    /// With every group of records.
    #[default]
    Always,
    /// At most this often: fewer syncs, later delivery.
    Every(Duration),
}

/// `admin`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// The address of `/livez`, `/readyz` and `/metrics`; none = no HTTP at all.
    #[serde(deserialize_with = "address")]
    pub listen: Option<SocketAddr>,
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
            // Where the volume of a pod is mounted.
            data_dir: "/var/lib/kubetide".into(),
            streams: Vec::new(),
            list: List::default(),
            watch: Watch::default(),
            verify: Verify::default(),
            record: Record::default(),
            log: Log::default(),
            sinks: Vec::new(),
            admin: Admin::default(),
            telemetry: Telemetry::default(),
            // Less than the 30 s that Kubernetes gives a pod.
            shutdown_grace_secs: 25,
        }
    }
}

impl Default for List {
    fn default() -> Self {
        Self {
            // What kubectl asks for.
            page_size: const { NonZeroU32::new(500).unwrap() },
            timeout_secs: const { NonZeroU64::new(300).unwrap() },
            streaming: Streaming::Auto,
            // Enough to keep the writer busy, few enough not to be noticed by the API server.
            max_concurrent: const { NonZeroUsize::new(4).unwrap() },
        }
    }
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            bookmarks: true,
            // client-go's range, so that API servers see watches renewed as they are used to.
            timeout_min_secs: const { NonZeroU32::new(300).unwrap() },
            timeout_max_secs: const { NonZeroU32::new(600).unwrap() },
            // Bookmarks come about once a minute: two missed in a row.
            stall_timeout_secs: const { NonZeroU64::new(150).unwrap() },
        }
    }
}

impl Default for Verify {
    fn default() -> Self {
        // A few metadata-only LISTs a day are not noticed, and a divergence should not outlive a working day.
        Self { interval_secs: 21_600 }
    }
}

impl Default for Record {
    fn default() -> Self {
        // The patch is small and what people ask for; the object as it was doubles a record.
        let (ignore, drop, redact) = (Vec::new(), Vec::new(), Vec::new());
        Self { patch: true, before: false, ignore, drop, redact, redact_key: None }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self {
            sync: Sync::Always,
            // A day to notice that a receiver has lost something, and to replay it.
            retention_secs: 86_400,
            max_bytes: const { NonZeroU64::new(10 * 1024 * 1024 * 1024).unwrap() },
        }
    }
}

impl Serialize for Sync {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Always => serializer.serialize_str("always"),
            Self::Every(interval) => serializer.collect_str(&format_args!("{}ms", interval.as_millis())),
        }
    }
}

impl<'de> Deserialize<'de> for Sync {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = |unit: &str| text.strip_suffix(unit).and_then(|digits| digits.trim().parse::<u64>().ok());
        let interval = digits("ms").map(Duration::from_millis).or_else(|| digits("s").map(Duration::from_secs));
        match interval {
            _ if text == "always" => Ok(Self::Always),
            Some(interval) if (1..=60_000).contains(&interval.as_millis()) => Ok(Self::Every(interval)),
            _ => Err(D::Error::invalid_value(
                Unexpected::Str(&text),
                &"always, or an interval from 1ms to 60s such as 200ms or 1s",
            )),
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        // On every address: the kubelet and Prometheus come from outside the pod.
        Self { listen: Some(SocketAddr::from(([0, 0, 0, 0], 8080))) }
    }
}

impl Default for Telemetry {
    fn default() -> Self {
        Self { log_format: LogFormat::Text, log_level: "info".into() }
    }
}

impl Config {
    /// What a type cannot express.
    fn validate(&self) -> Result<(), ConfigError> {
        let Cluster { name, uid, .. } = &self.cluster;
        for (key, value) in [("cluster.name", name), ("cluster.uid", uid)] {
            if value.as_ref().is_some_and(String::is_empty) {
                return refuse(key, "empty; leave it out instead");
            }
        }
        if self.data_dir.as_os_str().is_empty() {
            return refuse("data_dir", "empty, expected a directory");
        }
        if self.watch.timeout_min_secs > self.watch.timeout_max_secs {
            let Watch { timeout_min_secs: min, timeout_max_secs: max, .. } = self.watch;
            return refuse(
                "watch.timeout_min_secs",
                format!("found {min}, which is more than watch.timeout_max_secs ({max})"),
            );
        }
        if self.log.max_bytes.get() < SMALLEST_LOG {
            let problem = format!("found {}, allowed: {SMALLEST_LOG} (1 MiB) and more", self.log.max_bytes);
            return refuse("log.max_bytes", problem);
        }
        self.telemetry.validate()?;
        self.validate_streams()?;
        sink::validate(&self.sinks)
    }

    fn validate_streams(&self) -> Result<(), ConfigError> {
        if self.streams.is_empty() {
            return refuse("streams", "empty; name at least one, such as `- resource: deployments.apps`");
        }
        for (index, stream) in self.streams.iter().enumerate() {
            if stream.resource.is_empty() {
                return refuse(format!("streams[{index}].resource"), "empty, expected a resource such as pods");
            }
            if stream.resource.contains('*') && stream.resource != "*" && !is_wildcard_of_group(&stream.resource) {
                let problem = format!("found {}, allowed: a resource, * or *.group such as *.apps", stream.resource);
                return refuse(format!("streams[{index}].resource"), problem);
            }
            for (key, namespaces) in
                [("namespaces", &stream.namespaces), ("exclude_namespaces", &stream.exclude_namespaces)]
            {
                if let Some(at) = namespaces.iter().position(|namespace| !is_name(namespace)) {
                    let problem = match namespaces[at].as_str() {
                        "" => "empty; leave the list empty for all namespaces".to_owned(),
                        other => format!("found {other:?}, which cannot be the name of a namespace"),
                    };
                    return refuse(format!("streams[{index}].{key}[{at}]"), problem);
                }
            }
            if let Some(at) = stream.exclude_namespaces.iter().position(|out| stream.namespaces.contains(out)) {
                let problem = format!("found {}, which is in namespaces too", stream.exclude_namespaces[at]);
                return refuse(format!("streams[{index}].exclude_namespaces[{at}]"), problem);
            }
        }
        Ok(())
    }
}

/// `*.apps`, `*.example.com`
fn is_wildcard_of_group(word: &str) -> bool {
    word.strip_prefix("*.").is_some_and(|group| !group.is_empty() && !group.contains('*'))
}

/// As namespaces may be called.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

impl Telemetry {
    fn validate(&self) -> Result<(), ConfigError> {
        let level = &self.log_level;
        // A word that is no level would be taken for a module, and everything else be silent.
        let mut plain = level.split(',').filter(|directive| !directive.contains(['=', '[']));
        if EnvFilter::builder().parse(level).is_err() || plain.any(|word| word.parse::<LevelFilter>().is_err()) {
            return refuse(
                "telemetry.log_level",
                format!(
                    "found {level:?}, allowed: error, warn, info, debug, trace, or by module: info,kubetide::source=debug"
                ),
            );
        }
        Ok(())
    }
}

/// An address, or nothing; what is neither is told with what was found.
fn address<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SocketAddr>, D::Error> {
    let read = |text: String| {
        let expected = &"an address and a port such as 0.0.0.0:8080, or null";
        text.parse().map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), expected))
    };
    Option::<String>::deserialize(value)?.map(read).transpose()
}

fn refuse(key: impl std::fmt::Display, problem: impl std::fmt::Display) -> Result<(), ConfigError> {
    Err(ConfigError(format!("{key}: {problem}")))
}
