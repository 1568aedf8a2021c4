//! An authority that nobody else trusts, and the certificates it signs for both ends of a connection.

use std::sync::Arc;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::Validity;

/// An authority of one test.
pub struct PrivateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// How a server does TLS.
pub struct ServerTls {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    clients: Option<CertificateDer<'static>>,
}

/// A certificate and its key.
struct Signed {
    certificate: rcgen::Certificate,
    key: KeyPair,
}

impl PrivateAuthority {
    /// A new one with this name.
    pub fn new(name: &str) -> Result<PrivateAuthority> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("making an authority")?;
        Ok(PrivateAuthority { issuer })
    }

    /// What whoever trusts it has.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// What a server on loopback shows to its clients: a certificate for `localhost` and `127.0.0.1`.
    pub fn server(&self, validity: Validity) -> Result<ServerTls> {
        let mut params = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let Signed { certificate, key } = self.sign(params, validity)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        Ok(ServerTls { certificate: certificate.der().clone(), key, clients: None })
    }

    /// What a client of this name shows to its server: certificate and key, in PEM.
    pub fn client(&self, name: &str, validity: Validity) -> Result<(String, String)> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let Signed { certificate, key } = self.sign(params, validity)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    fn sign(&self, mut params: CertificateParams, validity: Validity) -> Result<Signed> {
        if validity == Validity::Expired {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer).context("signing a certificate")?;
        Ok(Signed { certificate, key })
    }
}

impl ServerTls {
    /// Takes only clients that show a certificate of this authority.
    #[must_use]
    pub fn requiring(self, clients: &PrivateAuthority) -> ServerTls {
        ServerTls { clients: Some(clients.issuer.der().clone()), ..self }
    }

    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor> {
        // The first to come installs it; another test may have.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = ServerConfig::builder();
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.clone())?;
                builder.with_client_cert_verifier(WebPkiClientVerifier::builder(Arc::new(roots)).build()?)
            }
        };
        let config = builder.with_single_cert(vec![self.certificate.clone()], self.key.clone_key())?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
