//! How a cluster is talked to: encrypted or not, as whom, and to whom.

use std::path::PathBuf;

use crate::text::word_types;

/// Whether this build can encrypt. SCRAM and OAUTHBEARER take OpenSSL, too.
pub const HAS_TLS: bool = cfg!(feature = "tls");

word_types! {
    /// What is spoken with brokers (`security.protocol`).
    #[derive(Default)]
    SecurityProtocol {
        /// Neither encrypted nor logged in.
        #[default]
        Plaintext = "plaintext",
        /// Encrypted; a client may show a certificate.
        Ssl = "ssl",
        /// Logged in, and not encrypted.
        SaslPlaintext = "sasl_plaintext",
        /// Logged in and encrypted.
        SaslSsl = "sasl_ssl",
    }
    /// How a login is made (`sasl.mechanism`).
    SaslMechanism {
        /// The password itself is sent.
        Plain = "PLAIN",
        /// The password is proven, not sent.
        ScramSha256 = "SCRAM-SHA-256",
        /// The same, with a longer hash.
        ScramSha512 = "SCRAM-SHA-512",
        /// By a token, which `sasl.oauthbearer.…` properties say.
        OAuthBearer = "OAUTHBEARER",
    }
}

impl SecurityProtocol {
    /// Whether what is sent is encrypted.
    pub fn encrypts(self) -> bool {
        matches!(self, SecurityProtocol::Ssl | SecurityProtocol::SaslSsl)
    }

    /// Whether a login is asked for.
    pub fn logs_in(self) -> bool {
        matches!(self, SecurityProtocol::SaslPlaintext | SecurityProtocol::SaslSsl)
    }
}

impl SaslMechanism {
    /// Whether it takes a user and a password.
    pub fn takes_a_password(self) -> bool {
        self != SaslMechanism::OAuthBearer
    }
}

/// Security of the connections to a cluster. It has no `Debug`: two of these are secrets.
#[derive(Clone, Default)]
pub struct KafkaSecurity {
    /// Encrypted, logged in, both or neither.
    pub protocol: SecurityProtocol,
    /// How to log in.
    pub mechanism: Option<SaslMechanism>,
    /// As whom.
    pub username: Option<String>,
    /// What proves it.
    pub password: Option<String>,
    /// Certificates (PEM) of the authorities that a broker's is believed by; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The certificate (PEM) to show, with those between it and the authority.
    pub certificate_file: Option<PathBuf>,
    /// Its private key (PEM).
    pub key_file: Option<PathBuf>,
    /// What the key is encrypted with.
    pub key_password: Option<String>,
    /// Whether a broker's certificate may be for another host than the one that was connected to.
    pub any_host: bool,
}

impl KafkaSecurity {
    /// As librdkafka's properties.
    pub(super) fn properties(&self) -> impl Iterator<Item = (&'static str, String)> {
        let file = |file: &Option<PathBuf>| file.as_ref().map(|file| file.display().to_string());
        let host = if self.any_host { "none" } else { "https" };
        [
            ("security.protocol", Some(self.protocol.to_string())),
            ("sasl.mechanism", self.mechanism.map(|mechanism| mechanism.to_string())),
            ("sasl.username", self.username.clone()),
            ("sasl.password", self.password.clone()),
            ("ssl.ca.location", file(&self.ca_file)),
            ("ssl.certificate.location", file(&self.certificate_file)),
            ("ssl.key.location", file(&self.key_file)),
            ("ssl.key.password", self.key_password.clone()),
            ("ssl.endpoint.identification.algorithm", self.protocol.encrypts().then(|| host.to_owned())),
        ]
        .into_iter()
        .filter_map(|(property, value)| Some((property, value?)))
    }
}
