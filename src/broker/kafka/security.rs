//! Security of the connections to a cluster: encryption, login and certificates.

use std::path::PathBuf;

use crate::text::not_one_of;

/// True where this build includes OpenSSL, which TLS, SCRAM and OAUTHBEARER need.
pub const HAS_TLS: bool = cfg!(feature = "tls");

/// Protocol of the connections to brokers (`security.protocol`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "snake_case", parse_err_ty = String, parse_err_fn = not_one_of::<Self>)]
pub enum SecurityProtocol {
    /// Neither encryption nor a login.
    #[default]
    Plaintext,
    /// Encryption, optionally with a client certificate.
    Ssl,
    /// A login without encryption.
    SaslPlaintext,
    /// A login with encryption.
    SaslSsl,
}

/// Mechanism of the login (`sasl.mechanism`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "UPPERCASE", parse_err_ty = String, parse_err_fn = not_one_of::<Self>)]
pub enum SaslMechanism {
    /// The client sends the password itself.
    Plain,
    /// The client proves the password with SHA-256 and does not send it.
    #[strum(serialize = "SCRAM-SHA-256")]
    ScramSha256,
    /// The client proves the password with SHA-512 and does not send it.
    #[strum(serialize = "SCRAM-SHA-512")]
    ScramSha512,
    /// The client sends a token; the properties `sasl.oauthbearer.…` configure the token.
    OAuthBearer,
}

impl SecurityProtocol {
    /// True where the connection is encrypted.
    pub fn is_encrypted(self) -> bool {
        matches!(self, SecurityProtocol::Ssl | SecurityProtocol::SaslSsl)
    }

    /// True where the client logs in.
    pub fn has_login(self) -> bool {
        matches!(self, SecurityProtocol::SaslPlaintext | SecurityProtocol::SaslSsl)
    }
}

impl SaslMechanism {
    /// True where the mechanism needs a user and a password.
    pub fn needs_password(self) -> bool {
        self != SaslMechanism::OAuthBearer
    }
}

/// Security of the connections to a cluster. The type has no `Debug`, since two of its fields are secrets.
#[derive(Clone, Default)]
pub struct KafkaSecurity {
    /// Protocol of the connections: encryption, login, both or neither.
    pub protocol: SecurityProtocol,
    /// Mechanism of the login; `None`: librdkafka's default.
    pub mechanism: Option<SaslMechanism>,
    /// User name of the login.
    pub username: Option<String>,
    /// Password of the login, a secret.
    pub password: Option<String>,
    /// File of the trusted certificate authorities (PEM); `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    /// File of the client certificate (PEM), intermediate certificates included.
    pub certificate_file: Option<PathBuf>,
    /// File of the client certificate's private key (PEM).
    pub key_file: Option<PathBuf>,
    /// Password of the private key, a secret.
    pub key_password: Option<String>,
    /// True: a broker's certificate may be issued for another host than the host of the connection.
    pub allows_any_host: bool,
}

impl KafkaSecurity {
    /// Names and values of librdkafka's properties.
    pub(super) fn properties(&self) -> impl Iterator<Item = (&'static str, String)> {
        let file = |file: &Option<PathBuf>| file.as_ref().map(|file| file.display().to_string());
        let host = if self.allows_any_host { "none" } else { "https" };
        [
            ("security.protocol", Some(self.protocol.to_string())),
            ("sasl.mechanism", self.mechanism.map(|mechanism| mechanism.to_string())),
            ("sasl.username", self.username.clone()),
            ("sasl.password", self.password.clone()),
            ("ssl.ca.location", file(&self.ca_file)),
            ("ssl.certificate.location", file(&self.certificate_file)),
            ("ssl.key.location", file(&self.key_file)),
            ("ssl.key.password", self.key_password.clone()),
            ("ssl.endpoint.identification.algorithm", self.protocol.is_encrypted().then(|| host.to_owned())),
        ]
        .into_iter()
        .filter_map(|(property, value)| Some((property, value?)))
    }
}
