//! What the references lead to now: read before each request, so that a file that was replaced is used by the next one.

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use kubetide_sink::{ConfigProblem, ReferenceError, Secret};
use reqwest::{
    Url,
    header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue},
};

use crate::{
    Auth, WebhookConfig,
    config::check_username,
    message::{BadSecret, SigningKey},
};

/// Everything of a request that is read from somewhere else. No `Debug`: nearly all of it is secret.
pub(crate) struct Credentials {
    pub(crate) url: Url,
    /// The configured headers and `authorization`.
    pub(crate) headers: HeaderMap,
    /// Newest first.
    pub(crate) keys: Vec<SigningKey>,
    pub(crate) tls: TlsMaterial,
}

/// The PEMs of `tls`. A client is made anew when they differ.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsMaterial {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) cert: Option<Vec<u8>>,
    pub(crate) key: Option<Vec<u8>>,
    /// Whether there will be TLS at all: without it, no authorities are needed on this machine.
    pub(crate) https: bool,
}

impl Credentials {
    /// Reads files: not for the runtime's own threads.
    pub(crate) fn read(config: &WebhookConfig) -> Result<Self, ConfigProblem> {
        let url = config.endpoint(&config.url.read().map_err(at("url"))?)?;
        let mut headers = HeaderMap::new();
        for (name, text) in &config.headers {
            let key = format!("headers.{name}");
            let name = HeaderName::try_from(name).map_err(|_| ConfigProblem::new(&key, "not the name of a header"))?;
            headers.insert(name, header(&key, &text.read().map_err(at(&key))?)?);
        }
        if let Some(auth) = &config.auth {
            headers.insert(AUTHORIZATION, authorization(auth)?);
        }
        let mut keys = Vec::new();
        for (index, reference) in config.secret.0.iter().enumerate() {
            let key = format!("secret[{index}]");
            keys.push(signing_key(&key, &reference.read().map_err(at(&key))?)?);
        }
        let mut tls = TlsMaterial { https: url.scheme() == "https", ..TlsMaterial::default() };
        for (key, pem) in config.pems() {
            let pem = Some(pem.read().map_err(at(key))?);
            match key {
                "tls.ca" => tls.ca = pem,
                "tls.cert" => tls.cert = pem,
                _ => tls.key = pem,
            }
        }
        Ok(Self { url, headers, keys, tls })
    }
}

fn at(key: &str) -> impl Fn(ReferenceError) -> ConfigProblem {
    move |error| ConfigProblem::new(key, error.to_string())
}

fn authorization(auth: &Auth) -> Result<HeaderValue, ConfigProblem> {
    match auth {
        Auth::Bearer(token) => {
            let key = "auth.bearer";
            let token = token.read_text().map_err(at(key))?;
            if token.is_empty() {
                return Err(ConfigProblem::new(key, "it is empty"));
            }
            header(key, &format!("Bearer {token}"))
        }
        Auth::Basic { username, password } => {
            let username = username.read().map_err(at("auth.basic.username"))?;
            check_username(&username)?;
            let key = "auth.basic.password";
            let password = password.read().map_err(at(key))?;
            let pair = [username.as_bytes(), b":", password.bytes()].concat();
            header(key, &format!("Basic {}", BASE64.encode(pair)))
        }
    }
}

fn header(key: &str, text: &str) -> Result<HeaderValue, ConfigProblem> {
    let mut value =
        HeaderValue::try_from(text).map_err(|_| ConfigProblem::new(key, "what is there cannot be sent in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn signing_key(key: &str, secret: &Secret) -> Result<SigningKey, ConfigProblem> {
    SigningKey::parse(secret.bytes()).map_err(|bad| {
        let problem = match bad {
            BadSecret::Empty => "it is empty",
            BadSecret::NotBase64 => "what is behind whsec_ is not base64",
        };
        ConfigProblem::new(key, problem)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::{Value, json};

    use super::*;

    fn read(directory: &std::path::Path, more: Value) -> Result<Credentials, ConfigProblem> {
        let text = more.to_string().replace("$", &directory.display().to_string());
        let mut value = json!({"url": "https://example.com/hook"});
        value.as_object_mut().unwrap().extend(serde_json::from_str::<serde_json::Map<_, _>>(&text).unwrap());
        Credentials::read(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn credentials_are_what_their_files_say_and_hidden_where_headers_are_shown() {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in [("token", "t0k3n\n"), ("password", "open:sesame\n"), ("url", "http://a.example/h\n")] {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        let basic = json!({"auth": {"basic": {"username": "aladdin", "password": {"file": "$/password"}}}});
        let basic = read(directory.path(), basic).ok().unwrap();
        // By `printf aladdin:open:sesame | base64`.
        assert_eq!(basic.headers[AUTHORIZATION], "Basic YWxhZGRpbjpvcGVuOnNlc2FtZQ==");
        assert!(!format!("{:?}", basic.headers).contains("YWxh"));
        let bearer =
            json!({"auth": {"bearer": {"file": "$/token"}}, "url": {"file": "$/url"}, "headers": {"X-A": "b"}});
        let bearer = read(directory.path(), bearer).ok().unwrap();
        assert_eq!(bearer.headers[AUTHORIZATION], "Bearer t0k3n");
        assert_eq!((bearer.headers["x-a"].as_bytes(), bearer.url.as_str()), (&b"b"[..], "http://a.example/h"));
        assert!(!bearer.tls.https && basic.tls.https);
    }

    #[test]
    fn what_cannot_be_used_names_its_key_and_place_and_not_itself() {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in [("lines", "hunter2\nhunter2"), ("secret", "whsec_hunter2!"), ("empty", "\n")] {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        for (more, key) in [
            (json!({"auth": {"bearer": {"file": "$/lines"}}}), "auth.bearer"),
            (json!({"auth": {"bearer": {"file": "$/empty"}}}), "auth.bearer"),
            (json!({"headers": {"x-a": {"file": "$/lines"}}}), "headers.x-a"),
            (json!({"secret": {"file": "$/secret"}}), "secret[0]"),
            (json!({"secret": {"file": "$/empty"}}), "secret[0]"),
            (json!({"tls": {"ca": "$/missing"}}), "tls.ca"),
            (json!({"url": {"file": "$/lines"}}), "url"),
        ] {
            let problem = read(directory.path(), more).err().unwrap();
            assert_eq!(problem.key, key);
            assert!(!problem.to_string().contains("hunter2"), "{problem}");
        }
    }
}
