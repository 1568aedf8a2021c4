//! TLS for a nats-server: an authority that nobody else trusts, and what it signs for both ends.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use crate::certificate::ClientCertificate;
use crate::scratch::Scratch;
use crate::unique_name;

/// The certificates around one server.
pub struct NatsTls {
    /// The authority, in PEM: what a client must trust.
    pub ca: PathBuf,
    /// What a client shows to a server that asks for it.
    pub client: ClientCertificate,
    server: ClientCertificate,
    asks_clients: bool,
}

impl NatsTls {
    pub(crate) fn new(asks_clients: bool, scratch: &Scratch) -> Result<NatsTls> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "authority of a nats-server");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("making an authority")?;
        let ca = scratch.write("ca.pem", issuer.pem())?;
        let client = signed(&issuer, ExtendedKeyUsagePurpose::ClientAuth, scratch)?;
        let server = signed(&issuer, ExtendedKeyUsagePurpose::ServerAuth, scratch)?;
        Ok(NatsTls { ca, client, server, asks_clients })
    }

    /// The part of the server's configuration.
    pub(crate) fn config(&self) -> String {
        let verify = if self.asks_clients { ", verify: true" } else { "" };
        format!(
            "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\"{verify} }}\n",
            self.server.certificate.display(),
            self.server.key.display(),
            self.ca.display()
        )
    }
}

fn signed(
    issuer: &CertifiedIssuer<'static, KeyPair>,
    usage: ExtendedKeyUsagePurpose,
    scratch: &Scratch,
) -> Result<ClientCertificate> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    params.extended_key_usages = vec![usage];
    let certificate = params.signed_by(&key, issuer).context("signing a certificate")?;
    let name = unique_name("end");
    Ok(ClientCertificate {
        certificate: scratch.write(&format!("{name}.crt"), certificate.pem())?,
        key: scratch.write(&format!("{name}.key"), key.serialize_pem())?,
    })
}
