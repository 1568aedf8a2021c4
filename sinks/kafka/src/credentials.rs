//! What the sink shows to the brokers, as it is in its files now, and the configuration of a client with it.

use kubetide_sink::{ReferenceError, SinkError, Terms};
use rdkafka::{ClientConfig, config::RDKafkaLogLevel};

use crate::config::{KafkaConfig, Mechanism, Sasl};

/// Certificates and passwords. No `Debug`: it is shown nowhere.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Credentials {
    /// Reads them anew.
    pub(crate) fn read(config: &KafkaConfig) -> Result<Self, SinkError> {
        let read = || -> Result<Self, ReferenceError> {
            let tls = config.tls.clone().unwrap_or_default();
            let pem = |pem: Option<kubetide_sink::Pem>| pem.map(|pem| pem.reference().read_text()).transpose();
            let sasl = config.sasl.as_ref();
            Ok(Self {
                ca: pem(tls.ca)?,
                cert: pem(tls.cert)?,
                key: pem(tls.key)?,
                username: sasl.and_then(|sasl| sasl.username.as_ref()).map(|text| text.read()).transpose()?,
                password: sasl
                    .and_then(|sasl| sasl.password.as_ref())
                    .map(|password| password.read_text())
                    .transpose()?,
            })
        };
        read().map_err(|error| SinkError::hold(format!("read credentials: {error}")))
    }

    /// Who a token is of: brokers take it from the token itself.
    pub(crate) fn principal(&self) -> &str {
        self.username.as_deref().unwrap_or("kubetide")
    }

    /// What every client of this sink is made with.
    pub(crate) fn client(&self, config: &KafkaConfig, terms: &Terms) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("client.id", format!("kubetide-{}", terms.name));
        // A sink that is away a night should be there soon when the brokers are.
        client.set("reconnect.backoff.max.ms", "5000");
        for (name, value) in &config.properties {
            client.set(name, value.to_text());
        }
        client.set("bootstrap.servers", config.brokers.join(","));
        client.set(
            "security.protocol",
            match (&config.sasl, &config.tls) {
                (None, None) => "PLAINTEXT",
                (None, Some(_)) => "SSL",
                (Some(_), None) => "SASL_PLAINTEXT",
                (Some(_), Some(_)) => "SASL_SSL",
            },
        );
        let mut optional = |name: &str, value: &Option<String>| {
            if let Some(value) = value {
                client.set(name, value);
            }
        };
        optional("ssl.ca.pem", &self.ca);
        optional("ssl.certificate.pem", &self.cert);
        optional("ssl.key.pem", &self.key);
        optional("sasl.username", &self.username);
        optional("sasl.password", &self.password);
        if config.tls.is_some() && self.ca.is_none() {
            // The OpenSSL that is built in does not know where the system keeps its authorities.
            client.set("ssl.ca.location", "probe");
        }
        if let Some(Sasl { mechanism, .. }) = &config.sasl {
            client.set("sasl.mechanism", mechanism.as_str());
            if *mechanism == Mechanism::OAuthBearer {
                client.remove("sasl.username");
            }
        }
        let debug = config.properties.contains_key("debug");
        client.set_log_level(if debug { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info });
        client
    }
}
