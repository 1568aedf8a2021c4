//! `metadata.resourceVersion`, and the one place where two of them are compared.

use std::{cmp::Ordering, fmt};

use serde::{Deserialize, Serialize};

/// A resourceVersion, kept as the API server spelled it.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResourceVersion(String);

impl ResourceVersion {
    /// Wraps the API server's text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The API server's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Which of two versions of one group-resource is newer, where that can be told.
    ///
    /// Kubernetes' own rule: digits without a leading zero, longer is greater, else lexicographic. Anything else
    /// can only be equal or different.
    pub fn order(&self, other: &Self) -> Option<Ordering> {
        if self == other {
            return Some(Ordering::Equal);
        }
        let comparable =
            |text: &str| !text.is_empty() && !text.starts_with('0') && text.bytes().all(|b| b.is_ascii_digit());
        (comparable(&self.0) && comparable(&other.0))
            .then(|| self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0)))
    }

    /// Whether this version is the same as `other` or certainly before it.
    pub fn is_covered_by(&self, other: &Self) -> bool {
        matches!(self.order(other), Some(Ordering::Less | Ordering::Equal))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_the_rule_of_kubernetes() {
        let order = |a: &str, b: &str| ResourceVersion::new(a).order(&ResourceVersion::new(b));
        assert_eq!(order("9", "10"), Some(Ordering::Less));
        assert_eq!(order("101", "99"), Some(Ordering::Greater));
        assert_eq!(order("12345678901234567890123", "12345678901234567890124"), Some(Ordering::Less));
        assert_eq!(order("abc", "abc"), Some(Ordering::Equal));
        assert_eq!(order("abc", "abd"), None);
        assert_eq!(order("010", "9"), None);
        assert_eq!(order("", "1"), None);
    }
}
