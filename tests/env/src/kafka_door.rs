//! A guarded listener of a Kafka broker: TLS by an authority of its own, with client certificates or passwords on request. Beside it the
//! open listener stays, so that a test can look at what came through.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

use crate::ClientCertificate;
use crate::port::{free_port, loopback};
use crate::scratch::Scratch;
use crate::unique_name;

/// Who is let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// Whoever trusts the broker's certificate.
    Tls,
    /// Whoever shows a certificate of the broker's authority.
    ClientCertificate,
    /// Whoever knows the password of this user, by `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`; or has an unsigned token, by `OAUTHBEARER`.
    Password {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
}

/// The listener behind a [`Door`].
pub struct Guard {
    door: Door,
    port: u16,
    issuer: CertifiedIssuer<'static, KeyPair>,
    ca: PathBuf,
    directory: PathBuf,
}

impl Guard {
    pub(crate) fn new(door: &Door, scratch: &Scratch) -> Result<Guard> {
        let issuer = authority("authority of a test broker")?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress(loopback(0).ip())];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &issuer).context("signing the broker's certificate")?;
        scratch.write("broker.pem", format!("{}{}", key.serialize_pem(), certificate.pem()))?;
        let ca = scratch.write("broker-ca.pem", issuer.pem())?;
        Ok(Guard { door: door.clone(), port: free_port(), issuer, ca, directory: scratch.data() })
    }

    /// For `bootstrap.servers`.
    pub fn bootstrap(&self) -> String {
        loopback(self.port).to_string()
    }

    /// The certificate of who signed the broker's.
    pub fn ca(&self) -> &PathBuf {
        &self.ca
    }

    /// A certificate that the broker trusts.
    pub fn client_certificate(&self) -> Result<ClientCertificate> {
        self.signed_by(&self.issuer)
    }

    /// A certificate that it does not trust.
    pub fn strangers_certificate(&self) -> Result<ClientCertificate> {
        self.signed_by(&authority("somebody else")?)
    }

    fn signed_by(&self, issuer: &CertifiedIssuer<'static, KeyPair>) -> Result<ClientCertificate> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "client of a test");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, issuer).context("signing a client's certificate")?;
        let name = self.directory.join(unique_name("client"));
        let paths = ClientCertificate { certificate: name.with_extension("crt"), key: name.with_extension("key") };
        std::fs::write(&paths.certificate, certificate.pem())?;
        std::fs::write(&paths.key, key.serialize_pem())?;
        Ok(paths)
    }

    pub(crate) fn listener(&self) -> String {
        format!(",GUARDED://{}", self.bootstrap())
    }

    pub(crate) fn protocol(&self) -> String {
        let protocol = if matches!(self.door, Door::Password { .. }) { "SASL_SSL" } else { "SSL" };
        format!(",GUARDED:{protocol}")
    }

    pub(crate) fn properties(&self) -> String {
        let directory = self.directory.display();
        let required = if self.door == Door::ClientCertificate { "required" } else { "none" };
        let mut properties = format!(
            "ssl.keystore.type=PEM\n\
             ssl.keystore.location={directory}/broker.pem\n\
             ssl.truststore.type=PEM\n\
             ssl.truststore.location={directory}/broker-ca.pem\n\
             ssl.client.auth={required}\n"
        );
        if let Door::Password { user, password } = &self.door {
            let listener = "listener.name.guarded";
            let module = "org.apache.kafka.common.security";
            properties.push_str(&format!(
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER\n\
                 {listener}.plain.sasl.jaas.config={module}.plain.PlainLoginModule required user_{user}=\"{password}\";\n\
                 {listener}.scram-sha-256.sasl.jaas.config={module}.scram.ScramLoginModule required;\n\
                 {listener}.scram-sha-512.sasl.jaas.config={module}.scram.ScramLoginModule required;\n\
                 {listener}.oauthbearer.sasl.jaas.config={module}.oauthbearer.OAuthBearerLoginModule required \
                 unsecuredLoginStringClaim_sub=\"broker\";\n"
            ));
        }
        properties
    }

    /// Users of SCRAM are made when the data directory is.
    pub(crate) fn format_arguments(&self) -> Vec<String> {
        let Door::Password { user, password } = &self.door else { return Vec::new() };
        let add =
            |mechanism: &str| ["--add-scram".to_owned(), format!("{mechanism}=[name={user},password={password}]")];
        ["SCRAM-SHA-256", "SCRAM-SHA-512"].iter().flat_map(|mechanism| add(mechanism)).collect()
    }
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(params, KeyPair::generate()?).context("making an authority")
}
