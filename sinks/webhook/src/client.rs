//! The HTTP client: one kept connection, nothing sent twice and nowhere else.

use std::time::Duration;

use kubetide_sink::ConfigProblem;
use reqwest::{Certificate, Client, Identity, redirect, retry};

use crate::credentials::TlsMaterial;

/// A client that shows and trusts this. Reads the machine's authorities: not for the runtime's own threads.
pub(crate) fn client(tls: &TlsMaterial, timeout: Duration) -> Result<Client, ConfigProblem> {
    let mut builder = Client::builder()
        .user_agent(concat!("kubetide/", env!("CARGO_PKG_VERSION")))
        .timeout(timeout)
        // Credentials and objects go to the configured host and to no other.
        .redirect(redirect::Policy::none())
        // Whether to try again is delivery's decision. What never got onto the wire of a kept connection is all the same sent
        // on a new one (hyper): that cannot repeat anything.
        .retry(retry::never())
        .http1_only()
        .pool_max_idle_per_host(1);
    if let Some(pem) = &tls.ca {
        builder = builder.tls_certs_only(authorities(pem)?);
    } else if !tls.https {
        // There may be no authorities on this machine, which is no obstacle then.
        builder = builder.tls_certs_only([]);
    }
    if let (Some(cert), Some(key)) = (&tls.cert, &tls.key) {
        let pem = [cert.as_slice(), b"\n", key].concat();
        let identity = Identity::from_pem(&pem).map_err(|_| {
            ConfigProblem::new("tls.cert", "tls.cert is not a certificate in PEM, or tls.key not a key")
        })?;
        builder = builder.identity(identity);
    }
    builder
        .build()
        .map_err(|error| ConfigProblem::new("tls", format!("cannot be used: {}", crate::answer::root(&error))))
}

fn authorities(pem: &[u8]) -> Result<Vec<Certificate>, ConfigProblem> {
    match Certificate::from_pem_bundle(pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(ConfigProblem::new("tls.ca", "there is no certificate in PEM in it")),
    }
}
