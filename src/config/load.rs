//! Reads the configuration from its layers, and says in plain words what is wrong with it.
//!
//! The layers become one tree of values first. It is then read strictly: `page_size: 1.5` and `name: 007` are refused
//! rather than rounded or respelled.

use std::path::{Path, PathBuf};

use config::{Environment, File, FileFormat};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Config, Sink, SinkCommon, SinkKind, sink::ReadKeys};

const SINK_COMMON: [&str; 11] = [
    "name",
    "format",
    "streams",
    "filter",
    "delivery",
    "start",
    "when_behind",
    "batch",
    "retry",
    "oversize",
    "dead_letter",
];

/// What is wrong with the configuration, with the key's path in front.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(super) String);

/// What the command line sets, over everything else.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--data-dir`
    pub data_dir: Option<PathBuf>,
}

/// Reads the file, the environment and the flags, and checks the result.
pub fn load(path: &Path, flags: &Flags) -> Result<Config, ConfigError> {
    let mut layers = read_layers(path)?;
    let sinks = layers.remove("sinks");
    if let Value::Object(defaults) = serde_json::to_value(Config::default()).unwrap_or_default() {
        read_text(&mut layers, &defaults);
    }
    let mut config: Config = read_part("", layers, &["sinks"])?;
    config.sinks = sinks.map(read_sinks).transpose()?.unwrap_or_default();
    if let Some(data_dir) = &flags.data_dir {
        config.data_dir.clone_from(data_dir);
    }
    config.validate()?;
    Ok(config)
}

/// The file with the environment over it, as one tree.
fn read_layers(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError(format!("cannot read the configuration file {}: {error}", path.display())))?;
    let (format, name) = match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => (FileFormat::Json, "JSON"),
        Some("toml") => (FileFormat::Toml, "TOML"),
        _ => (FileFormat::Yaml, "YAML"),
    };
    let unreadable = |error: config::ConfigError| {
        // The YAML parser names a key that is there twice in the words of Rust.
        let problem = error.to_string().replace("String(\"", "\"").replace("\"): ", "\": ");
        let problem = in_plain_words(problem.trim_end());
        ConfigError(format!("the configuration file {} is not {name} with keys: {problem}", path.display()))
    };
    config::Config::builder()
        .add_source(File::from_str(&text, format))
        // Set to nothing is not set.
        .add_source(Environment::with_prefix("KUBETIDE").prefix_separator("__").separator("__").ignore_empty(true))
        .build()
        .and_then(config::Config::try_deserialize)
        .map_err(unreadable)
}

/// The environment knows text only: it is read as a number or as true or false where the default is one.
fn read_text(values: &mut Map<String, Value>, defaults: &Map<String, Value>) {
    for (key, value) in values {
        match (value, defaults.get(key)) {
            (Value::Object(values), Some(Value::Object(defaults))) => read_text(values, defaults),
            (value, Some(Value::Number(_) | Value::Bool(_))) => {
                let read = value.as_str().and_then(|text| serde_json::from_str(text.trim()).ok());
                if let Some(read @ (Value::Number(_) | Value::Bool(_))) = read {
                    *value = read;
                }
            }
            _ => {}
        }
    }
}

fn read_sinks(sinks: Value) -> Result<Vec<Sink>, ConfigError> {
    let items: Vec<Value> = read_value("sinks", sinks, &[])?;
    items.into_iter().enumerate().map(|(index, item)| read_sink(&format!("sinks[{index}]"), item)).collect()
}

/// One item of `sinks`: the common keys, the type, and the keys that the type alone has.
fn read_sink(path: &str, value: Value) -> Result<Sink, ConfigError> {
    let mut own: Map<String, Value> = read_value(path, value, &[])?;
    let kind = own.remove("type");
    let mut common = Map::new();
    for key in SINK_COMMON {
        common.extend(own.remove_entry(key));
    }
    let also = &[&SINK_COMMON[..], &["type"]].concat();
    let word = kind.as_ref().and_then(Value::as_str);
    let keys = Keys { path, own, also };
    let Some(kind) = word.and_then(|word| SinkKind::read(word, keys)).transpose()? else {
        let hint = word.map(|word| hint(word, SinkKind::TYPES)).unwrap_or_default();
        let found = kind.as_ref().map_or("missing".to_owned(), |kind| format!("found {kind}"));
        return Err(ConfigError(format!("{path}.type: {found}; {hint}allowed: {}", SinkKind::TYPES.join(", "))));
    };
    let common: SinkCommon = read_part(path, common, &[])?;
    Ok(Sink { common, kind })
}

/// The keys that a type alone has.
struct Keys<'a> {
    path: &'a str,
    own: Map<String, Value>,
    also: &'a [&'a str],
}

impl ReadKeys<ConfigError> for Keys<'_> {
    fn keys<T: DeserializeOwned>(self) -> Result<T, ConfigError> {
        read_part(self.path, self.own, self.also)
    }
}

/// Reads a map at `path`. The keys `also` are allowed there too, though they are read elsewhere.
fn read_part<T: DeserializeOwned>(path: &str, part: Map<String, Value>, also: &[&str]) -> Result<T, ConfigError> {
    read_value(path, Value::Object(part), also)
}

fn read_value<T: DeserializeOwned>(path: &str, value: Value, also: &[&str]) -> Result<T, ConfigError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let inner = error.path().to_string();
        let also = if inner.contains(['.', '[']) { &[] } else { also };
        let path = match (path, inner.as_str()) {
            (path, ".") => path.to_owned(),
            ("", inner) => inner.to_owned(),
            (path, inner) => format!("{path}.{inner}"),
        };
        explain(&path, &error.inner().to_string(), also)
    })
}

/// What serde says, in the words of someone who writes a configuration.
fn explain(path: &str, message: &str, also: &[&str]) -> ConfigError {
    if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return ConfigError(format!("{path}.{key}: missing, and there is no default"));
    }
    // `… `found`, expected one of `this`, `that``
    let among = |kind: &str| {
        let (found, expected) = message.strip_prefix(kind)?.split_once("`, ")?;
        let allowed: Vec<&str> = expected.split('`').skip(1).step_by(2).chain(also.iter().copied()).collect();
        Some((found, format!("{}allowed: {}", hint(found, &allowed), allowed.join(", "))))
    };
    let problem = match (among("unknown field `"), among("unknown variant `")) {
        (Some((_, allowed)), _) => format!("unknown key; {allowed}"),
        (_, Some((found, allowed))) => format!("found {found}; {allowed}"),
        _ => in_plain_words(message),
    };
    // Whoever looks for the mistake in the file should not have to.
    let variable = format!("KUBETIDE__{}", path.replace('.', "__").to_uppercase());
    match std::env::var_os(&variable).filter(|value| !value.is_empty()) {
        Some(_) => ConfigError(format!("{path} (set by {variable}): {problem}")),
        None => ConfigError(format!("{path}: {problem}")),
    }
}

/// ``invalid value: integer `0`, expected a nonzero u32`` → `found 0, expected a whole number from 1 to 4294967295`
fn in_plain_words(message: &str) -> String {
    let invalid = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let Some((found, expected)) = invalid.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let found = match found {
        "sequence" => "a list",
        "map" => "a map",
        "null" | "unit value" => "nothing",
        // integer `0`, string "abc"
        value => value.find(['`', '"']).map_or(value, |from| value[from..].trim_matches('`')),
    };
    let expected = match expected {
        "a nonzero u32" => "a whole number from 1 to 4294967295",
        "u8" => "a whole number from 0 to 255",
        "u32" => "a whole number from 0 to 4294967295",
        "a nonzero u64" | "a nonzero usize" => "a whole number from 1",
        "u64" => "a whole number from 0",
        "a boolean" => "true or false",
        "a string" | "path string" => "text in quotes",
        "a sequence" => "a list",
        shape if shape.starts_with("struct ") => "a map",
        other => other,
    };
    format!("found {found}, expected {expected}")
}

/// `did you mean this? `, if one of the words is near.
fn hint(word: &str, among: &[&str]) -> String {
    let word = word.to_lowercase();
    let near = among
        .iter()
        .map(|candidate| (strsim::jaro_winkler(&word, candidate), candidate))
        // Below this the suggestion is a guess.
        .filter(|(score, _)| *score > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    near.map(|(_, near)| format!("did you mean {near}? ")).unwrap_or_default()
}
