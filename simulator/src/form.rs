//! The form in which a client wants objects: whole, or their metadata alone.

use serde_json::{Map, Value};

use crate::object::{METADATA_ORDER, Object};
use crate::request::RequestInfo;
use crate::resource::ResourceType;
use crate::status::Status;

/// What the client wants to see of each object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Whole,
    Metadata,
    /// A list of metadata. Nothing but a LIST can give it: a watch that is asked for it ends at its first event.
    MetadataList,
}

impl Form {
    pub(crate) fn of(request: &RequestInfo) -> Self {
        let wants = |form: &str| request.accept.split([',', ';']).any(|part| part.trim() == form);
        if wants("as=PartialObjectMetadataList") {
            Self::MetadataList
        } else if wants("as=PartialObjectMetadata") {
            Self::Metadata
        } else {
            Self::Whole
        }
    }

    /// The form of a GET.
    pub(crate) fn of_object(request: &RequestInfo, kind: &ResourceType) -> Result<Self, Status> {
        match Self::of(request) {
            Self::MetadataList if kind.custom => Err(Status::new(500, "", "content is not a list")),
            Self::MetadataList => {
                Err(refused("you requested PartialObjectMetadataList, but the requested object is not a list"))
            }
            form => Ok(form),
        }
    }

    /// The form of each item in a LIST.
    pub(crate) fn of_items(request: &RequestInfo) -> Result<Self, Status> {
        match Self::of(request) {
            Self::Whole => Ok(Self::Whole),
            Self::MetadataList => Ok(Self::Metadata),
            Self::Metadata => Err(refused("you requested PartialObjectMetadata, but the requested object is a list")),
        }
    }

    /// An object by itself, in a GET or a watch event.
    pub(crate) fn write(self, object: &Object, kind: &ResourceType, out: &mut Vec<u8>) {
        let text = object.text();
        match self {
            Self::Whole => {
                out.extend_from_slice(kind.opening().as_bytes());
                out.extend_from_slice(&text.bytes[1..]);
            }
            Self::Metadata | Self::MetadataList => {
                out.extend_from_slice(br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":"#);
                match serde_json::from_slice(text.metadata()) {
                    // A struct for every type, also for those whose whole objects are maps.
                    Ok(metadata) if kind.custom => out.extend_from_slice(in_order(&metadata).as_bytes()),
                    _ => out.extend_from_slice(text.metadata()),
                }
                out.push(b'}');
            }
        }
    }
}

fn refused(message: &str) -> Status {
    Status::new(406, "NotAcceptable", message)
}

fn in_order(metadata: &Map<String, Value>) -> String {
    let others = metadata.keys().map(String::as_str).filter(|field| !METADATA_ORDER.contains(field));
    let fields = METADATA_ORDER.iter().copied().chain(others);
    let pairs = fields.filter_map(|field| Some(format!("{}:{}", Value::from(field), metadata.get(field)?)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}
