//! Checks the login and the certificates for the brokers, reads secrets from files, and warns of weak settings.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use figment::{Profile, value::Value};

use super::Checker;
use crate::{
    broker::kafka::{self, HAS_TLS, PropertyRefusal, SaslMechanism, SecurityProtocol},
    config::{
        Config,
        settings::{Kafka, Security, Store},
        types::Secret,
    },
    text::decode_utf8,
};

/// Most bytes of a file with a secret: a longer file has another purpose.
const LONGEST_SECRET: u64 = 64 << 10;
const NO_TLS: &str = "which this build does not have: build it with --features tls";
const PASSWORD: &str = "kafka.security.password";
const KEY_PASSWORD: &str = "kafka.security.key_password";
const CLUSTER_PASSWORD: &str = "store.aerospike.password";
const DATABASE_PASSWORD: &str = "store.sql.password";
const BLOB_SECRET: &str = "store.blobs.secret_access_key";

impl Checker<'_> {
    /// Reads the secrets that are given as files.
    pub(super) fn read_secrets(&mut self, kafka: &mut Option<Kafka>, store: &mut Option<Store>) {
        if let Some(Kafka { security, .. }) = kafka {
            self.read_secret(PASSWORD, &mut security.password, security.password_file.as_deref());
            let Security { key_password, key_password_file, .. } = security;
            self.read_secret(KEY_PASSWORD, key_password, key_password_file.as_deref());
        }
        if let Some(Store { aerospike, sql, blobs, .. }) = store {
            self.read_secret(CLUSTER_PASSWORD, &mut aerospike.password, aerospike.password_file.as_deref());
            self.read_secret(DATABASE_PASSWORD, &mut sql.password, sql.password_file.as_deref());
            let (secret, file) = (&mut blobs.secret_access_key, blobs.secret_access_key_file.as_deref());
            self.read_secret(BLOB_SECRET, secret, file);
        }
    }

    /// Checks that a finished configuration has the secret of each file that it names: only
    /// [`read_secrets`](Self::read_secrets) reads such a file.
    pub(super) fn check_secrets_are_read(&mut self, kafka: &Kafka, store: &Store) {
        let (security, cluster) = (&kafka.security, &store.aerospike);
        let (database, blobs) = (&store.sql, &store.blobs);
        for (key, secret, file) in [
            (PASSWORD, &security.password, &security.password_file),
            (KEY_PASSWORD, &security.key_password, &security.key_password_file),
            (CLUSTER_PASSWORD, &cluster.password, &cluster.password_file),
            (DATABASE_PASSWORD, &database.password, &database.password_file),
            (BLOB_SECRET, &blobs.secret_access_key, &blobs.secret_access_key_file),
        ] {
            if file.is_some() && secret.is_none() {
                let problem = format!("is read with a settings file or the environment only: set {key}");
                self.refuse(&format!("{key}_file"), problem);
            }
        }
    }

    fn read_secret(&mut self, key: &str, secret: &mut Option<Secret>, file: Option<&str>) {
        let Some(file) = file else { return };
        let file_key = format!("{key}_file");
        if secret.is_some() {
            self.refuse(&file_key, format!("is given beside {key}: one of them is enough"));
            return;
        }
        // A relative path is not quoted: it may be the secret itself, written into the wrong setting.
        if !file.starts_with('/') {
            self.refuse(&file_key, "must be the absolute path of a file".to_owned());
            return;
        }
        match read_secret_file(file) {
            Ok(read) => *secret = Some(read),
            Err(problem) => self.refuse(&file_key, format!("names {} {problem}", describe_file(file))),
        }
    }

    pub(super) fn check_security(&mut self, kafka: &Kafka) {
        let security = &kafka.security;
        self.check_login(security);
        self.check_certificates(security);
        self.check_deprecated_properties(kafka);
        let needs_tls = security.mechanism.is_some_and(|mechanism| mechanism != SaslMechanism::Plain);
        if !HAS_TLS && security.protocol.is_encrypted() {
            self.refuse("kafka.security.protocol", format!("is {}, {NO_TLS}", security.protocol));
        } else if !HAS_TLS && needs_tls {
            self.refuse("kafka.security.mechanism", format!("takes OpenSSL, {NO_TLS}"));
        }
    }

    fn check_login(&mut self, security: &Security) {
        let Security { protocol, mechanism, username, .. } = security;
        let given = [
            ("kafka.security.username", username.is_some()),
            // An unreadable file is reported by `read_secret` already.
            (PASSWORD, security.password.is_some() || security.password_file.is_some()),
        ];
        match mechanism {
            None if protocol.has_login() => {
                let problem = format!("is {protocol}, which needs kafka.security.mechanism");
                self.refuse("kafka.security.protocol", problem);
            }
            None => {
                for (key, _) in given.into_iter().filter(|(_, is_given)| *is_given) {
                    self.refuse(key, "is given without kafka.security.mechanism".to_owned());
                }
            }
            Some(mechanism) if !protocol.has_login() => {
                let with_login =
                    if protocol.is_encrypted() { SecurityProtocol::SaslSsl } else { SecurityProtocol::SaslPlaintext };
                let problem = format!(
                    "is {mechanism}, but kafka.security.protocol is {protocol}, which has no login: set {with_login}"
                );
                self.refuse("kafka.security.mechanism", problem);
            }
            Some(mechanism) => {
                for (key, is_given) in given {
                    match (is_given, mechanism.needs_password()) {
                        (true, false) => self.refuse(key, format!("is given, but {mechanism} takes none")),
                        (false, true) => {
                            self.refuse("kafka.security.mechanism", format!("is {mechanism}, which needs {key}"))
                        }
                        (true, true) | (false, false) => {}
                    }
                }
            }
        }
    }

    fn check_certificates(&mut self, security: &Security) {
        let Security { protocol, ca_file, certificate_file, key_file, .. } = security;
        let key_password = security.key_password.is_some() || security.key_password_file.is_some();
        let files = [
            ("kafka.security.ca_file", ca_file),
            ("kafka.security.certificate_file", certificate_file),
            ("kafka.security.key_file", key_file),
        ];
        let unused = files.iter().map(|(key, file)| (*key, file.is_some())).chain([
            ("kafka.security.key_password", key_password && key_file.is_none()),
            ("kafka.security.endpoint_identification", !security.endpoint_identification),
        ]);
        if !protocol.is_encrypted() {
            for (key, _) in unused.filter(|(_, is_set)| *is_set) {
                self.refuse(key, format!("is set, but kafka.security.protocol is {protocol}, which encrypts nothing"));
            }
            return;
        }
        for (key, file) in files {
            if let Some(Err(error)) =
                file.as_ref().map(|file| File::open(file).and_then(|mut file| file.read(&mut [0])))
            {
                let file = describe_file(file.as_deref().unwrap_or_default());
                self.refuse(key, format!("names {file} cannot be read: {error}"));
            }
        }
        for (key, given, needed) in [
            (
                "kafka.security.certificate_file",
                certificate_file.is_some(),
                ("kafka.security.key_file", key_file.is_some()),
            ),
            (
                "kafka.security.key_file",
                key_file.is_some(),
                ("kafka.security.certificate_file", certificate_file.is_some()),
            ),
            ("kafka.security.key_password", key_password, ("kafka.security.key_file", key_file.is_some())),
        ] {
            if given && !needed.1 {
                self.refuse(key, format!("is given without {}", needed.0));
            }
        }
    }

    /// Accepts properties that have a setting in `[kafka.security]` only while nothing in that section is set.
    fn check_deprecated_properties(&mut self, kafka: &Kafka) {
        let mut refused = Vec::new();
        for (name, value) in kafka.properties.iter() {
            let Some(refusal @ PropertyRefusal::SetBySecurity(_)) = kafka::refusal(name) else { continue };
            let needs_tls = match name {
                "security.protocol" => matches!(value.to_ascii_lowercase().as_str(), "ssl" | "sasl_ssl"),
                "sasl.mechanism" | "sasl.mechanisms" => {
                    value.starts_with("SCRAM") || value.parse() == Ok(SaslMechanism::OAuthBearer)
                }
                _ => false,
            };
            if kafka.security.is_configured() {
                refused.push((name, refusal.to_string()));
            } else if needs_tls && !HAS_TLS {
                refused.push((name, format!("needs TLS, {NO_TLS}")));
            }
        }
        for (name, problem) in refused {
            self.refuse_property(name, problem);
        }
    }

    fn refuse_property(&mut self, name: &str, problem: String) {
        let path = ["kafka", "properties", name];
        // figment cannot find the property by its path, because the name has dots.
        let source = self.raw.map(|raw| {
            let value = raw.find_value("kafka.properties").ok();
            let tag = value.as_ref().and_then(Value::as_dict).and_then(|table| table.get(name)).map(Value::tag);
            let metadata = tag.and_then(|tag| raw.get_metadata(tag));
            metadata.map_or("nowhere".to_owned(), |metadata| metadata.interpolate(&Profile::Default, &path))
        });
        let source = source.unwrap_or_else(|| super::FINISHED.to_owned());
        self.errors.push(super::ConfigError { key: path.join("."), source, problem });
    }
}

/// Describes the file that a setting names, up to the word after which the problem follows. A file that does not exist
/// is not quoted: the text may be the secret itself.
fn describe_file(file: &str) -> String {
    if Path::new(file).exists() { format!("{file:?}, which") } else { "a file that".to_owned() }
}

/// Reads the one line of a file. An error completes the sentence "the file …" and quotes nothing of the content.
fn read_secret_file(file: &str) -> Result<Secret, String> {
    let cannot_be_read = |error: io::Error| format!("cannot be read: {error}");
    let mut bytes = Vec::new();
    File::open(file).and_then(|file| file.take(LONGEST_SECRET + 1).read_to_end(&mut bytes)).map_err(cannot_be_read)?;
    if bytes.len() as u64 > LONGEST_SECRET {
        return Err(format!("is larger than {LONGEST_SECRET} bytes"));
    }
    let text = decode_utf8(&bytes).map_err(|_| "is no UTF-8 text")?;
    let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    Secret::new(line).map_err(str::to_owned)
}

impl Security {
    /// Returns true if a setting of the section differs from its default.
    pub fn is_configured(&self) -> bool {
        *self != Config::default().kafka.security
    }
}

impl Config {
    /// Returns a line for each setting that is accepted and that weakens security or has no effect.
    pub fn warnings(&self) -> Vec<String> {
        let security = &self.kafka.security;
        let mut warnings = Vec::new();
        if security.protocol == SecurityProtocol::SaslPlaintext {
            let sent = match security.mechanism {
                Some(SaslMechanism::Plain) => "the password itself",
                _ => "every message after the login",
            };
            warnings.push(format!(
                "kafka.security.protocol is sasl_plaintext: {sent} goes over the line unencrypted; sasl_ssl encrypts it"
            ));
        }
        if !security.endpoint_identification {
            let why = "every owner of a certificate of its authority can pose as a broker";
            warnings.push(format!("kafka.security.endpoint_identification is off: {why}"));
        }
        if self.http.control && self.http.tokens_file.is_none() && !self.http.listen.ip().is_loopback() {
            let (listen, why) =
                (self.http.listen, "every client that reaches it can pause partitions and clear halts without a login");
            warnings.push(format!("http.control is on, and http.listen is {listen}: {why}"));
        }
        let deprecated = self.kafka.properties.iter().filter_map(|(name, _)| match kafka::refusal(name) {
            Some(PropertyRefusal::SetBySecurity(setting)) => {
                Some(format!("kafka.properties.{name} is deprecated: set {setting} instead"))
            }
            _ => None,
        });
        warnings.extend(deprecated);
        if !self.aliases.is_empty() {
            let aliases = self.aliases.join(", ");
            warnings.push(format!("settings under names of the reference: {aliases}; a name of this store wins"));
        }
        if !self.ignored_names.is_empty() {
            let names = self.ignored_names.join(", ");
            warnings.push(format!(
                "names that are not read: {names}; a variable is UTXO_STORE__SECTION__KEY, `utxo-store config \
                 sample` has the reference's name of each setting, and docs/operating/configure.md says why some names \
                 have no setting"
            ));
        }
        warnings
    }
}
