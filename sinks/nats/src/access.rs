//! What a connection is made with: who we are, and TLS. Read anew for each connection, so that a credential that was
//! replaced is used from the next one on.

use std::sync::Arc;

use async_nats::{Auth, AuthError};
use kubetide_sink::{ReferenceError, Tls};
use nkeys::KeyPair;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

use crate::{Credentials, NatsConfig};

/// What the references of a sink lead to. Two are equal if a new connection would be made with the same.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Access {
    identity: Identity,
    tls: Option<Material>,
}

/// Who we are.
#[derive(Clone, PartialEq, Eq)]
enum Identity {
    Nobody,
    Token(String),
    User {
        user: String,
        password: String,
    },
    /// The seed of a key, and the JWT that says who owns it if there is one.
    Key {
        seed: String,
        jwt: Option<String>,
    },
}

/// PEM, as it was read.
#[derive(Clone, PartialEq, Eq)]
struct Material {
    ca: Option<Vec<u8>>,
    cert: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

/// What is wrong with a credential or a certificate. Never says what it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("{key}: {problem}")]
    Content { key: &'static str, problem: String },
}

fn wrong(key: &'static str, problem: impl ToString) -> AccessError {
    AccessError::Content { key, problem: problem.to_string() }
}

impl Access {
    /// Reads files: not on the runtime.
    pub(crate) fn read(config: &NatsConfig) -> Result<Self, AccessError> {
        let tls = config.tls.as_ref().map(Material::read).transpose()?;
        Ok(Self { identity: Identity::read(&config.credentials)?, tls })
    }

    /// How to speak TLS; none where the configuration leaves that to the server.
    pub(crate) fn client_config(&self) -> Result<Option<ClientConfig>, AccessError> {
        self.tls.as_ref().map(Material::client_config).transpose()
    }

    /// Who we are, to a server that wants this signed.
    pub(crate) fn auth(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        match &self.identity {
            Identity::Nobody => {}
            Identity::Token(token) => auth.token = Some(token.clone()),
            Identity::User { user, password } => {
                (auth.username, auth.password) = (Some(user.clone()), Some(password.clone()));
            }
            Identity::Key { seed, jwt } => {
                let pair = KeyPair::from_seed(seed).map_err(AuthError::new)?;
                auth.signature = Some(pair.sign(nonce).map_err(AuthError::new)?);
                match jwt {
                    Some(jwt) => auth.jwt = Some(jwt.clone()),
                    None => auth.nkey = Some(pair.public_key()),
                }
            }
        }
        Ok(auth)
    }
}

impl Identity {
    fn read(credentials: &Credentials) -> Result<Self, AccessError> {
        if let Some(creds) = &credentials.creds {
            let text = creds.read_text()?;
            let mut blocks = decorated(&text);
            let (Some(jwt), Some(seed)) = (blocks.next(), blocks.next()) else {
                return Err(wrong("credentials.creds", "no JWT and seed in it, as in a .creds file"));
            };
            let (seed, jwt) = (usable("credentials.creds", seed)?, Some(jwt.to_owned()));
            return Ok(Self::Key { seed, jwt });
        }
        if let Some(nkey) = &credentials.nkey {
            let seed = usable("credentials.nkey", nkey.read_text()?.trim())?;
            return Ok(Self::Key { seed, jwt: None });
        }
        if let Some(token) = &credentials.token {
            return Ok(Self::Token(token.read_text()?));
        }
        match (&credentials.user, &credentials.password) {
            (Some(user), Some(password)) => Ok(Self::User { user: user.read()?, password: password.read_text()? }),
            _ => Ok(Self::Nobody),
        }
    }
}

/// What stands between lines of dashes, as in `-----BEGIN NATS USER JWT-----`.
fn decorated(text: &str) -> impl Iterator<Item = &str> {
    let is_dashes = |line: &&str| line.starts_with("---") && line.ends_with("---");
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let between = move |lines: &[&str]| is_dashes(&lines[0]) && is_dashes(&lines[2]) && !is_dashes(&lines[1]);
    let found: Vec<&str> = lines.windows(3).filter(|lines| between(lines)).map(|lines| lines[1]).collect();
    found.into_iter()
}

/// A seed that can sign.
fn usable(key: &'static str, seed: &str) -> Result<String, AccessError> {
    match KeyPair::from_seed(seed) {
        Ok(_) => Ok(seed.to_owned()),
        Err(_) => Err(wrong(key, "not the seed of an nkey")),
    }
}

impl Material {
    fn read(tls: &Tls) -> Result<Self, ReferenceError> {
        let read = |pem: &Option<kubetide_sink::Pem>| pem.as_ref().map(kubetide_sink::Pem::read).transpose();
        Ok(Self { ca: read(&tls.ca)?, cert: read(&tls.cert)?, key: read(&tls.key)? })
    }

    fn client_config(&self) -> Result<ClientConfig, AccessError> {
        // The provider is named: whether somebody has installed one for the process makes no difference here.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong("tls", error))?
            .with_root_certificates(self.roots()?);
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Ok(builder.with_no_client_auth());
        };
        let cert = certificates("tls.cert", cert)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| wrong("tls.key", "no private key in it"))?;
        builder.with_client_auth_cert(cert, key).map_err(|error| wrong("tls.cert", error))
    }

    fn roots(&self) -> Result<RootCertStore, AccessError> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                for certificate in certificates("tls.ca", ca)? {
                    roots.add(certificate).map_err(|error| wrong("tls.ca", error))?;
                }
            }
            None => {
                // Some that cannot be read do not matter as long as there are others.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(wrong("tls.ca", "missing, and this machine knows no public authorities"));
                }
            }
        }
        Ok(roots)
    }
}

fn certificates(key: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, AccessError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(wrong(key, "no certificate in it")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use serde_json::json;

    use super::*;

    fn config(credentials: serde_json::Value) -> NatsConfig {
        serde_json::from_value(json!({"servers": ["nats://a"], "credentials": credentials})).unwrap()
    }

    #[test]
    fn a_creds_file_is_a_jwt_and_a_seed_that_signs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.creds");
        let pair = KeyPair::new_user();
        let seed = pair.seed().unwrap();
        let text = format!(
            "-----BEGIN NATS USER JWT-----\nabc.def.g-_\n------END NATS USER JWT------\n\n*** IMPORTANT ***\nkeep it\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n***\n"
        );
        for text in [text.clone(), text.replace('\n', "\r\n")] {
            std::fs::write(&path, text).unwrap();
            let access = Access::read(&config(json!({"creds": {"file": path}}))).unwrap();
            let auth = access.auth(b"nonce").unwrap();
            assert_eq!(auth.jwt.as_deref(), Some("abc.def.g-_"));
            pair.verify(b"nonce", &auth.signature.unwrap()).unwrap();
        }
        std::fs::write(&path, &seed).unwrap();
        let auth = Access::read(&config(json!({"nkey": {"file": path}}))).unwrap().auth(b"n").unwrap();
        assert_eq!((auth.nkey, auth.jwt), (Some(pair.public_key()), None));
    }

    #[test]
    fn what_is_no_credential_is_refused_and_not_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("canary");
        std::fs::write(&path, "hunter2").unwrap();
        for key in ["creds", "nkey"] {
            let Err(error) = Access::read(&config(json!({key: {"file": path}}))) else { panic!("{key} was taken") };
            let says = error.to_string();
            assert!(says.contains(&format!("credentials.{key}")) && !says.contains("hunter2"), "{says}");
        }
        for key in ["ca", "cert"] {
            let mut tls = json!({"cert": path, "key": path});
            tls[key] = json!(path);
            let config = serde_json::from_value(json!({"servers": ["tls://a"], "tls": tls})).unwrap();
            let says = Access::read(&config).unwrap().client_config().unwrap_err().to_string();
            assert!(says.starts_with(&format!("tls.{key}")) && !says.contains("hunter2"), "{says}");
        }
    }
}
