//! What is done at which path of an object, compiled: the scanner goes down this tree beside the object, and leaves it, and with
//! it all cost, where no rule leads on.

use std::collections::BTreeSet;

use super::pattern::{Pattern, Token};

/// Holds the whole object a second time, as text.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Annotations in which other tools than kubectl keep the object a second time, with everything in it that is redacted.
const EMBEDDING: [&str; 7] = [
    "banzaicloud.com/last-applied",
    "kapp.k14s.io/original",
    "kapp.k14s.io/original-diff",
    "kapp.k14s.io/original-diff-full",
    "kopf.dev/last-handled-configuration",
    "kopf.zalando.org/last-handled-configuration",
    "objectset.rio.cattle.io/applied",
];

/// An annotation of Secrets that holds a token in clear: OpenShift keeps there what is in the Secret that it was made from.
const TOKEN: &str = "openshift.io/token-secret.value";

/// What is at a path, or is done to it. Where two apply, the later one here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Nothing.
    Pass,
    /// Redacted if it looks like the text of an object.
    RedactCopy,
    /// Redacted if it may be the text of anything with a structure.
    RedactText,
    /// Redacted if the object is a release of Helm.
    RedactRelease,
    /// Redacted unless it is an object, whose members have rules of their own.
    RedactUnlessObject,
    /// Redacted.
    Redact,
    /// Cut out.
    Cut,
    Kind,
    ApiVersion,
    Namespace,
    Name,
    Uid,
    Version,
    Generation,
    /// Cut out, entry by entry.
    ManagedFields,
}

/// A place in the tree.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) role: Role,
    pub(super) members: Vec<Member>,
    /// Where every other member and item leads.
    pub(super) any: Option<usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// The name as the place of an item.
    index: Option<usize>,
    pub(super) node: usize,
}

impl Node {
    /// Whether there are rules below.
    pub(super) fn leads_on(&self) -> bool {
        !self.members.is_empty() || self.any.is_some()
    }

    /// Where the item at `index` leads.
    pub(super) fn item(&self, index: usize) -> Option<usize> {
        let named = self.members.iter().find(|member| member.index == Some(index));
        named.map(|member| member.node).or(self.any)
    }
}

/// The tree of one stream.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    nodes: Vec<Node>,
    /// Whether anything is redacted at all.
    pub(super) redacts: bool,
}

/// Paths under way, each with what is left of it.
type Live<'a> = Vec<(&'a [Token], Role)>;

impl Rules {
    /// The rules for the objects of a resource.
    pub(super) fn of(group: &str, resource: &str, drop: &[Pattern], redact: &[Pattern]) -> Self {
        let name = |name: &str| Token::Name(name.into());
        let metadata = |own: &str| vec![name("metadata"), name(own)];
        let annotation = |own: &str| vec![name("metadata"), name("annotations"), name(own)];
        let mut paths: Vec<(Vec<Token>, Role)> = vec![
            (vec![name("kind")], Role::Kind),
            (vec![name("apiVersion")], Role::ApiVersion),
            (metadata("namespace"), Role::Namespace),
            (metadata("name"), Role::Name),
            (metadata("uid"), Role::Uid),
            (metadata("resourceVersion"), Role::Version),
            (metadata("generation"), Role::Generation),
            (metadata("managedFields"), Role::ManagedFields),
            (annotation(LAST_APPLIED), Role::Cut),
        ];
        match (group, resource) {
            ("", "secrets") => {
                paths.push((annotation(TOKEN), Role::Redact));
                for part in ["data", "stringData"] {
                    paths.push((vec![name(part)], Role::RedactUnlessObject));
                    paths.push((vec![name(part), Token::Any], Role::Redact));
                }
            }
            ("", "configmaps") => paths.push((vec![name("data"), name("release")], Role::RedactRelease)),
            _ => {}
        }
        // Tools that are not known here keep copies too.
        let annotations = || vec![name("metadata"), name("annotations"), Token::Any];
        let copies = if (group, resource) == ("", "secrets") { Role::RedactText } else { Role::RedactCopy };
        if copies == Role::RedactText || !redact.is_empty() {
            paths.push((annotations(), copies));
            paths.extend(EMBEDDING.map(|key| (annotation(key), Role::Redact)));
        }
        paths.extend(drop.iter().map(|pattern| (pattern.tokens().to_vec(), Role::Cut)));
        paths.extend(redact.iter().map(|pattern| (pattern.tokens().to_vec(), Role::Redact)));
        let redacts = paths.iter().any(|(_, role)| (Role::RedactCopy..=Role::Redact).contains(role));
        let mut rules = Self { nodes: Vec::new(), redacts };
        rules.add(&paths.iter().map(|(tokens, role)| (tokens.as_slice(), *role)).collect());
        rules
    }

    /// Adds the node at which these paths are, and those below; returns its place.
    fn add(&mut self, live: &Live<'_>) -> usize {
        let at = self.nodes.len();
        let here = live.iter().filter(|(tokens, _)| tokens.is_empty());
        let role = here.map(|(_, role)| *role).max().unwrap_or(Role::Pass);
        self.nodes.push(Node { role, members: Vec::new(), any: None });
        // What is cut or redacted as a whole has no inside.
        if role >= Role::Redact {
            return at;
        }
        let next = |wanted: Option<&str>| -> Live<'_> {
            let leads = |token: &Token| match token {
                Token::Any => true,
                Token::Name(name) => Some(name.as_str()) == wanted,
            };
            let steps = live.iter().filter_map(|(tokens, role)| Some((tokens.split_first()?, *role)));
            steps.filter(|((first, _), _)| leads(first)).map(|((_, rest), role)| (rest, role)).collect()
        };
        let names: BTreeSet<&str> = live
            .iter()
            .filter_map(|(tokens, _)| match tokens.first() {
                Some(Token::Name(name)) => Some(name.as_str()),
                _ => None,
            })
            .collect();
        for name in names {
            let node = self.add(&next(Some(name)));
            let canonical = name == "0" || !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
            let index = name.parse().ok().filter(|_| canonical);
            self.nodes[at].members.push(Member { name: name.into(), index, node });
        }
        let rest = next(None);
        if !rest.is_empty() {
            let any = self.add(&rest);
            self.nodes[at].any = Some(any);
        }
        at
    }

    pub(super) const fn root() -> usize {
        0
    }

    pub(super) fn node(&self, at: usize) -> &Node {
        &self.nodes[at]
    }
}
