//! A record, read back from its native form: what was set aside is delivered again byte for byte.
//!
//! The objects in it are not parsed: their bytes are cut out of the line as they stand there.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{Actor, Body, Change, Class, Cluster, Difference, Id, Op, Origin, Record, Stream, Truncated};

/// Why a record cannot be read back. Never with what is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It speaks of a whole stream, and means something only at its place in the log.
    #[error("it is a control record")]
    Control,
    /// It is not what the native format is.
    #[error("{0}")]
    Malformed(String),
}

impl From<serde_json::Error> for Unreadable {
    fn from(error: serde_json::Error) -> Self {
        // Its own words may quote what it has found.
        let what = match error.classify() {
            serde_json::error::Category::Data => "a member is missing or of another type",
            _ => "it is not JSON",
        };
        Self::Malformed(format!("{what} (byte {})", error.column()))
    }
}

#[derive(Deserialize)]
struct Head {
    schema: String,
    op: String,
}

#[derive(Deserialize)]
struct Native<'a> {
    id: String,
    log: Place,
    origin: String,
    cluster: Cluster,
    stream: String,
    group: String,
    version: String,
    resource: String,
    kind: String,
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    previous_resource_version: Option<String>,
    generation: Option<i64>,
    observed_at: Timestamp,
    snapshot: Option<Named>,
    problem: Option<String>,
    truncated: Option<Cut>,
    change: Option<Differs>,
    actor: Option<Actor>,
    #[serde(borrow)]
    patch: Option<&'a RawValue>,
    #[serde(borrow)]
    before: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Place {
    id: String,
    seq: u64,
}

#[derive(Deserialize)]
struct Named {
    id: String,
}

#[derive(Deserialize)]
struct Cut {
    bytes: u64,
    object_sha256: Option<String>,
}

#[derive(Deserialize)]
struct Differs {
    classes: Vec<String>,
    paths: Vec<String>,
}

/// Reads what [`native`](super::native()) has written of a change: written again, it is the same bytes.
pub fn read_native(bytes: &Bytes) -> Result<Record, Unreadable> {
    let Head { schema, op } = serde_json::from_slice(bytes)?;
    if schema != "kubetide.change.v1" {
        return Err(Unreadable::Malformed("it has another schema than kubetide.change.v1".into()));
    }
    let Some(op) = [Op::Snapshot, Op::Create, Op::Update, Op::Delete].into_iter().find(|known| known.as_str() == op)
    else {
        return Err(Unreadable::Control);
    };
    let native: Native<'_> = serde_json::from_slice(bytes)?;
    let raw = |raw: Option<&RawValue>| raw.map(|raw| cut_out(bytes, raw));
    let origins = [Origin::Watch, Origin::List];
    let change = Change {
        op,
        origin: known(origins, |origin| origin.as_str() == native.origin, "origin")?,
        namespace: native.namespace,
        name: native.name,
        uid: native.uid,
        resource_version: native.resource_version,
        previous_resource_version: native.previous_resource_version,
        generation: native.generation,
        snapshot: native.snapshot.map(|snapshot| unhex(&snapshot.id).map(Id)).transpose()?,
        difference: native.change.map(difference).transpose()?,
        actor: native.actor,
        patch: raw(native.patch),
        before: raw(native.before),
        object: raw(native.object),
        problem: native.problem,
        truncated: native.truncated.map(truncated).transpose()?,
    };
    // The stream's name ends with its namespace, if it has one.
    let mut stream = Stream {
        cluster: native.cluster,
        group: native.group,
        version: native.version,
        resource: native.resource,
        kind: native.kind,
        namespace: None,
    };
    let limited_to = native.stream.strip_prefix(&stream.to_string()).and_then(|rest| rest.strip_prefix('@'));
    stream.namespace = limited_to.map(str::to_owned);
    if stream.to_string() != native.stream {
        return Err(Unreadable::Malformed("its stream is not that of its group and resource".into()));
    }
    Ok(Record {
        id: Id(unhex(&native.id)?),
        log_id: native.log.id.into(),
        seq: native.log.seq,
        stream: Arc::new(stream),
        observed_at: native.observed_at,
        body: Body::Change(change),
    })
}

/// The bytes of a value, with what stands around it up to the comma and the colon: a parser leaves out spaces.
fn cut_out(bytes: &Bytes, raw: &RawValue) -> Bytes {
    let value = bytes.slice_ref(raw.get().as_bytes());
    let start = value.as_ptr() as usize - bytes.as_ptr() as usize;
    let end = start + value.len();
    let space = |byte: &&u8| matches!(**byte, b' ' | b'\t' | b'\r' | b'\n');
    let before = bytes[..start].iter().rev().take_while(space).count();
    let behind = bytes[end..].iter().take_while(space).count();
    bytes.slice(start - before..end + behind)
}

fn difference(written: Differs) -> Result<Difference, Unreadable> {
    let class = |word: &String| known(Class::ALL, |class| class.as_str() == word, "class");
    let classes = written.classes.iter().map(class).collect::<Result<_, _>>()?;
    Ok(Difference { classes, paths: written.paths })
}

fn truncated(cut: Cut) -> Result<Truncated, Unreadable> {
    let object_sha256 = cut.object_sha256.as_deref().map(unhex).transpose()?;
    Ok(Truncated { bytes: cut.bytes, object_sha256 })
}

fn known<T, const N: usize>(all: [T; N], is: impl Fn(&T) -> bool, what: &str) -> Result<T, Unreadable> {
    all.into_iter().find(is).ok_or_else(|| Unreadable::Malformed(format!("its {what} is not known")))
}

fn unhex<const N: usize>(text: &str) -> Result<[u8; N], Unreadable> {
    let mut bytes = [0; N];
    let pairs = text.as_bytes().chunks(2);
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let read = pairs.map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?));
    let read: Option<Vec<u8>> = read.collect();
    let read = read.filter(|read| read.len() == N && text.bytes().all(|byte| !byte.is_ascii_uppercase()));
    let read = read.ok_or_else(|| Unreadable::Malformed(format!("an id is not {} hexadecimal digits", 2 * N)))?;
    bytes.copy_from_slice(&read);
    Ok(bytes)
}
