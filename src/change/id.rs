//! The id of a record: the same after any retry, restart or relist, and different for any two states.

use kubetide_sink::{Id, Stream};
use sha2::{Digest as _, Sha256};

use super::ResourceVersion;

/// What the id of an object's record stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The object in one version, however it came to be known: snapshot, create and update agree.
    State,
    /// The end of an object.
    Delete,
}

/// The id of a change.
///
/// For a delete, `version` is the version that was *logged* last, never the DELETED event's own: so a delete that
/// was seen and one that was inferred have the same id.
pub fn of_change(stream: &Stream, uid: &str, version: &ResourceVersion, of: Of, lineage: u64) -> Id {
    let of = match of {
        Of::State => "state",
        Of::Delete => "delete",
    };
    hash(&[&stream.cluster.uid, &stream.group, &stream.resource, uid, version.as_str(), of, &lineage.to_string()])
}

/// The id of a control record: its place in its log.
pub fn of_control(log_id: &str, seq: u64) -> Id {
    hash(&[log_id, &seq.to_string()])
}

/// The first 16 bytes of SHA-256 over the parts, each behind its length as 4 bytes big-endian.
pub fn hash(parts: &[&str]) -> Id {
    let mut hash = Hash::default();
    parts.iter().for_each(|part| hash.add(part.as_bytes()));
    hash.id()
}

/// The same for parts that come one by one.
#[derive(Default)]
pub struct Hash(Sha256);

impl Hash {
    /// The next part.
    pub fn add(&mut self, part: &[u8]) {
        // Parts are names and versions: far below 4 GiB.
        self.0.update((part.len() as u32).to_be_bytes());
        self.0.update(part);
    }

    /// The id of all of them.
    pub fn id(self) -> Id {
        let digest = self.0.finalize();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Id(id)
    }
}

#[cfg(test)]
mod tests {
    use kubetide_sink::{Cluster, sample};

    use super::*;

    fn stream(group: &str, resource: &str) -> Stream {
        let cluster = Cluster { name: "any".into(), uid: "8f2b7e9c-0d1a-4c55-9a57-3f0f5f7f3a10".into() };
        Stream { cluster, group: group.into(), ..sample::stream(resource, "Any") }
    }

    /// Made by an independent program: `hashlib.sha256` over `struct.pack(">I", len(p)) + p` for each part.
    #[test]
    fn ids_equal_the_golden_vectors() {
        let uid = "5d3c1c0e-6f6d-4a8e-8f43-0e7f6b1f2c11";
        let version = ResourceVersion::new("1350346");
        let id = |stream: &Stream, of, lineage| of_change(stream, uid, &version, of, lineage).to_string();
        let deployments = stream("apps", "deployments");
        assert_eq!(id(&deployments, Of::State, 0), "df9d03deeb93154253148fbdc644115c");
        assert_eq!(id(&deployments, Of::Delete, 0), "2561f5824845f36f11787a19d5bc6c44");
        assert_eq!(id(&deployments, Of::State, 12), "5cb4c04c1120f04db5fe6a58e2cae680");
        assert_eq!(id(&stream("", "pods"), Of::State, 0), "8beaafe69db6a75ac88906c131757d0a");
        assert_eq!(of_control("01JCXZ3V9T6Q0W8Y2K4M6N8P0R", 1042).to_string(), "974c334e1e5962f3d7f2d043403ac112");
    }
}
