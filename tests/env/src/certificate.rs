//! Client certificates, and the authority that the API server trusts for them. The certificate names the user; it needs
//! no entry anywhere else.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use crate::{Apiserver, unique_name};

/// A certificate and its key, both as PEM. Whoever replaces the files rotates it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The certificate's file.
    pub certificate: PathBuf,
    /// The key's file.
    pub key: PathBuf,
}

/// When a certificate is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// As long as a test can run.
    Now,
    /// It was, until 2001.
    Expired,
}

impl Apiserver {
    /// A new certificate of this user, who is in `group` if there is one; `system:masters` has all rights. The API server
    /// refuses an expired one with 401.
    ///
    /// Other rights are granted to the name, as to a [`User`](crate::User) with this name.
    pub fn client_certificate(&self, user: &str, group: Option<&str>, validity: Validity) -> Result<ClientCertificate> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if validity == Validity::Expired {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.client_authority.issuer).context("signing a certificate")?;
        let name = unique_name("client");
        Ok(ClientCertificate {
            certificate: self.scratch.write(&format!("{name}.crt"), certificate.pem())?,
            key: self.scratch.write(&format!("{name}.key"), key.serialize_pem())?,
        })
    }
}

/// Who signs the client certificates of one API server.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Result<Authority> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "client authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("making an authority")?;
        Ok(Authority { issuer })
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }
}
