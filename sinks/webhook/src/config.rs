//! The keys of `type: webhook`, and what is wrong with them that their types do not see.

use std::{collections::BTreeMap, num::NonZeroU64};

use kubetide_sink::{ConfigProblem, Pem, Reference, Text, Tls};
use reqwest::{
    Url,
    header::{HeaderName, HeaderValue},
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

/// The keys of `type: webhook`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WebhookConfig {
    /// Where batches are posted to, `http` or `https`. A reference, if the path or the query is itself a secret.
    pub url: Text,
    /// What requests are signed with, newest first; none: they are not signed.
    #[serde(default)]
    pub secret: Secrets,
    /// Further headers, by name.
    #[serde(default)]
    pub headers: BTreeMap<String, Text>,
    /// What goes into `authorization`.
    #[serde(default)]
    pub auth: Option<Auth>,
    /// Whom to trust, and what to show. With a `ca`, that one alone is trusted.
    #[serde(default)]
    pub tls: Option<Tls>,
    /// How the body is compressed.
    #[serde(default)]
    pub compression: Compression,
    /// A request has so long, from connecting to the end of the answer.
    #[serde(default = "default_timeout")]
    pub timeout_secs: NonZeroU64,
}

// What receivers and the proxies in front of them commonly allow themselves.
const fn default_timeout() -> NonZeroU64 {
    const { NonZeroU64::new(30).unwrap() }
}

/// The keys of the signature, newest first. Each request carries a signature by each of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Secrets(pub Vec<Reference>);

/// What goes into `authorization`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Auth {
    /// A token.
    Bearer(Reference),
    /// A user and a password.
    Basic {
        /// The user.
        username: Text,
        /// The password.
        password: Reference,
    },
}

/// How the body is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// `content-encoding: gzip`
    Gzip,
    /// `content-encoding: zstd`
    Zstd,
}

impl<'de> Deserialize<'de> for Secrets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let one = |value| serde_json::from_value::<Reference>(value).map_err(D::Error::custom);
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Self::default()),
            Value::Array(values) => values.into_iter().map(one).collect::<Result<_, _>>().map(Self),
            value => Ok(Self(vec![one(value)?])),
        }
    }
}

// By hand: somebody may write the credential itself here, in whatever shape, which must not come back in the message.
impl<'de> Deserialize<'de> for Auth {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Shape {
            Bearer(Reference),
            Basic(Basic),
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Basic {
            username: Text,
            password: Reference,
        }
        let expected = "expected {bearer: REFERENCE} or {basic: {username: TEXT, password: REFERENCE}}, where a reference is \
                        {file: PATH} or {env: NAME}; what was found is not repeated here";
        match serde_json::from_value(Value::deserialize(deserializer)?) {
            Ok(Shape::Bearer(token)) => Ok(Self::Bearer(token)),
            Ok(Shape::Basic(Basic { username, password })) => Ok(Self::Basic { username, password }),
            Err(_) => Err(D::Error::custom(expected)),
        }
    }
}

impl WebhookConfig {
    /// What is wrong with it, as far as that can be seen without reading any reference.
    pub fn check(&self, exactly_once: bool) -> Result<(), ConfigProblem> {
        if exactly_once {
            let problem = "a webhook cannot take records and cursor in one transaction; allowed is at_least_once, under which a \
                           receiver knows what comes again by webhook-id and by the records' ids";
            return Err(ConfigProblem::new("delivery", problem));
        }
        if let Text::Plain(url) = &self.url {
            self.endpoint(url)?;
        }
        self.check_headers()?;
        if let Some(Auth::Basic { username: Text::Plain(username), .. }) = &self.auth {
            check_username(username)?;
        }
        match &self.tls {
            Some(Tls { cert: Some(_), key: None, .. }) => {
                Err(ConfigProblem::new("tls.key", "missing: tls.cert needs it"))
            }
            Some(Tls { cert: None, key: Some(_), .. }) => {
                Err(ConfigProblem::new("tls.cert", "missing: tls.key needs it"))
            }
            _ => Ok(()),
        }
    }

    /// This text as the URL to post to. Problems do not repeat it: there may be a token in it.
    pub(crate) fn endpoint(&self, text: &str) -> Result<Url, ConfigProblem> {
        let refused = |problem: &str| Err(ConfigProblem::new("url", problem));
        let Ok(url) = Url::parse(text) else {
            return refused("not a URL; expected one such as https://cmdb.example.com/changes");
        };
        if !matches!(url.scheme(), "http" | "https") {
            return refused("its scheme is neither http nor https");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return refused(
                "there are credentials in it; they belong into auth: {basic: {username: TEXT, password: REFERENCE}}",
            );
        }
        if url.scheme() == "http" && self.pems().next().is_some() {
            return Err(ConfigProblem::new("tls", "the url is http, which has no TLS; expected https"));
        }
        Ok(url)
    }

    /// The files of TLS that are given, by key.
    pub(crate) fn pems(&self) -> impl Iterator<Item = (&'static str, &Pem)> {
        let tls = self.tls.iter();
        tls.flat_map(|tls| [("tls.ca", &tls.ca), ("tls.cert", &tls.cert), ("tls.key", &tls.key)])
            .filter_map(|(key, pem)| Some((key, pem.as_ref()?)))
    }

    fn check_headers(&self) -> Result<(), ConfigProblem> {
        let mut seen: Vec<HeaderName> = Vec::new();
        for (name, value) in &self.headers {
            let problem = |problem: &str| ConfigProblem::new(format!("headers.{name}"), problem);
            let header = HeaderName::try_from(name).map_err(|_| problem("this is not the name of a header"))?;
            if is_ours(&header, self.auth.is_some()) {
                return Err(problem("kubetide sets this one itself"));
            }
            if seen.contains(&header) {
                return Err(problem("given twice; case makes no difference in these names"));
            }
            if let Text::Plain(value) = value {
                HeaderValue::try_from(value).map_err(|_| problem("the value cannot be sent in a header"))?;
            }
            seen.push(header);
        }
        Ok(())
    }
}

/// The part of `basic` before the colon has none itself (RFC 7617).
pub(crate) fn check_username(username: &str) -> Result<(), ConfigProblem> {
    if username.contains(':') {
        return Err(ConfigProblem::new("auth.basic.username", "there is a colon in it, which a user name cannot have"));
    }
    Ok(())
}

/// Headers that say what is sent, how, and by whom.
fn is_ours(name: &HeaderName, with_auth: bool) -> bool {
    const OURS: [&str; 14] = [
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    ];
    let name = name.as_str();
    OURS.contains(&name) || name.starts_with("webhook-") || with_auth && name == "authorization"
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::json;

    use super::*;

    fn config(more: Value) -> WebhookConfig {
        let mut value = json!({"url": "https://cmdb.example.com/changes"});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(value).unwrap()
    }

    fn problem(more: Value) -> ConfigProblem {
        config(more).check(false).unwrap_err()
    }

    #[test]
    fn the_url_alone_is_enough() {
        let config = config(json!({}));
        assert_eq!(config.check(false), Ok(()));
        assert_eq!((config.timeout_secs.get(), config.compression), (30, Compression::None));
        assert_eq!((&config.secret, &config.auth, &config.tls), (&Secrets::default(), &None, &None));
        let printed = serde_json::to_value(&config).unwrap();
        assert_eq!(serde_json::from_value::<WebhookConfig>(printed).unwrap(), config);
    }

    #[test]
    fn a_secret_is_one_reference_or_a_list_of_them() {
        let (new, old) = (json!({"file": "/new"}), json!({"env": "OLD"}));
        assert_eq!(config(json!({"secret": new})).secret.0.len(), 1);
        let both = config(json!({"secret": [new, old], "auth": {"basic": {"username": "u", "password": old}}}));
        assert_eq!(both.secret.0, [Reference::File("/new".into()), Reference::Env("OLD".into())]);
        let printed = serde_json::to_value(&both).unwrap();
        assert_eq!(serde_json::from_value::<WebhookConfig>(printed).unwrap(), both);
    }

    #[test]
    fn a_url_that_cannot_be_posted_to_is_refused_and_not_repeated() {
        let canary = "hunter2";
        for (url, expected) in [
            (format!("{canary} "), "not a URL"),
            (format!("ftp://example.com/{canary}"), "neither http nor https"),
            (format!("https://u:{canary}@example.com"), "credentials"),
            (format!("https://{canary}@example.com"), "credentials"),
        ] {
            let found = problem(json!({"url": url}));
            assert_eq!(found.key, "url");
            assert!(found.problem.contains(expected) && !found.problem.contains(canary), "{found}");
        }
    }

    #[test]
    fn a_credential_that_was_written_down_is_refused_and_not_repeated() {
        let canary = "hunter2";
        let value = |key: &str, value: Value| json!({"url": "https://example.com", key: value});
        for value in [
            value("auth", json!(canary)),
            value("auth", json!({canary: 1})),
            value("auth", json!({"bearer": canary})),
            value("auth", json!({"basic": {"username": "u", "password": canary}})),
            value("auth", json!({"basic": {canary: "u"}})),
            value("secret", json!(canary)),
            value("secret", json!([{"env": "A"}, canary])),
        ] {
            let refused = serde_json::from_value::<WebhookConfig>(value).unwrap_err().to_string();
            assert!(refused.contains("{file: PATH}") && !refused.contains(canary), "{refused}");
        }
        let config = config(json!({"url": format!("https://example.com/{canary}"), "headers": {"x-api-key": canary}}));
        assert!(!format!("{config:?}").contains(canary));
    }

    #[test]
    fn headers_that_say_what_is_sent_are_ours() {
        for name in ["webhook-id", "Webhook-Signature", "Content-Type", "content-length", "HOST", "content-encoding"] {
            let found = problem(json!({"headers": {name: "x"}}));
            assert_eq!((found.key, found.problem.contains("itself")), (format!("headers.{name}"), true));
        }
        let with_auth = json!({"auth": {"bearer": {"env": "T"}}, "headers": {"Authorization": "x"}});
        assert_eq!(problem(with_auth).key, "headers.Authorization");
        assert_eq!(config(json!({"headers": {"Authorization": {"env": "T"}, "x-tenant": "a"}})).check(false), Ok(()));
    }

    #[test]
    fn headers_that_cannot_be_sent_are_refused() {
        for headers in
            [json!({"a b": "x"}), json!({"": "x"}), json!({"x-a": "line\nbreak"}), json!({"x-a": "1", "X-A": "2"})]
        {
            assert!(problem(json!({ "headers": headers })).key.starts_with("headers."));
        }
    }

    #[test]
    fn half_a_certificate_tls_without_tls_and_a_colon_in_a_user_are_refused() {
        assert_eq!(problem(json!({"tls": {"cert": "/c.pem"}})).key, "tls.key");
        assert_eq!(problem(json!({"tls": {"key": "/k.pem"}})).key, "tls.cert");
        assert_eq!(problem(json!({"url": "http://a.example", "tls": {"ca": "/ca.pem"}})).key, "tls");
        assert_eq!(config(json!({"url": "http://a.example", "tls": {}})).check(false), Ok(()));
        let basic = json!({"basic": {"username": "a:b", "password": {"env": "P"}}});
        assert_eq!(problem(json!({ "auth": basic })).key, "auth.basic.username");
    }

    #[test]
    fn exactly_once_is_refused() {
        assert_eq!(config(json!({})).check(true).unwrap_err().key, "delivery");
    }
}
