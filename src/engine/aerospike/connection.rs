//! Reaching a cluster: hosts, encryption, login.

use std::{io, path::Path, sync::Arc, time::Duration};

use aerospike::{AuthMode, Client, ClientPolicy, ResultCode, ToHosts};

use super::{errors::one_line, settings::AerospikeSettings};

/// Why a cluster cannot be used as a store. Each is one line and says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenAerospikeError {
    /// No list of hosts.
    #[error("`{hosts}` is no list of `host:port`: {problem}")]
    Hosts {
        /// What was given.
        hosts: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nobody answers, or not as one of this cluster should.
    #[error("no node of {hosts} can be used: {problem}; {}", remedy(.problem))]
    Unreachable {
        /// Who was asked.
        hosts: String,
        /// What came of it.
        problem: String,
    },
    /// The certificates cannot be read.
    #[error("the certificates in {file} cannot be used: {problem}")]
    Certificates {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The cluster answers, and is not fit for this store.
    #[error("{problem}: {remedy}")]
    Unfit {
        /// What is not as it must be.
        problem: String,
        /// What to change.
        remedy: String,
    },
}

/// The client wraps what a server says of a login or a certificate into its own text.
fn remedy(problem: &str) -> &'static str {
    use ResultCode::{
        InvalidCredential, InvalidPassword, InvalidUser, NotAuthenticated, SecurityNotEnabled, SecurityNotSupported,
    };
    let says = |codes: &[ResultCode]| codes.iter().any(|code| problem.contains(&code.into_string()));
    if says(&[SecurityNotSupported, SecurityNotEnabled]) {
        "this server knows no users: leave store.aerospike.user and its password out"
    } else if says(&[InvalidUser, InvalidPassword, InvalidCredential, NotAuthenticated]) {
        "check store.aerospike.user and its password"
    } else if problem.contains("certificate") {
        "check store.aerospike.tls_ca_file, and that the certificate is for the host, or give its name (host:name:port)"
    } else if problem.contains("enterprise only") {
        "Community Edition has no encryption: leave store.aerospike.tls_ca_file out"
    } else {
        "check that the server runs and listens there"
    }
}

/// Between two attempts to reach a cluster.
const PAUSE: Duration = Duration::from_millis(100);

/// Connects to the cluster. A server that is starting refuses clients until it knows its partitions, so that it is asked
/// again for as long as a request may take.
///
/// # Errors
/// Hosts that are none, certificates that cannot be read, nobody who answers.
pub async fn connect(settings: &AerospikeSettings) -> Result<Client, OpenAerospikeError> {
    let mut hosts = settings
        .hosts
        .to_hosts()
        .map_err(|error| OpenAerospikeError::Hosts { hosts: settings.hosts.clone(), problem: one_line(&error) })?;
    for host in &mut hosts {
        // The name that its certificate must bear.
        host.tls_name.get_or_insert_with(|| host.name.clone());
    }
    let policy = client_policy(settings)?;
    let deadline = tokio::time::Instant::now() + settings.access.timeout;
    loop {
        let problem = match Client::new(&policy, &hosts).await {
            Ok(client) if client.is_connected() => return Ok(client),
            Ok(_) => "no node answered".to_owned(),
            Err(error) => one_line(&error),
        };
        if tokio::time::Instant::now() + PAUSE > deadline {
            return Err(OpenAerospikeError::Unreachable { hosts: settings.hosts.clone(), problem });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn client_policy(settings: &AerospikeSettings) -> Result<ClientPolicy, OpenAerospikeError> {
    let access = &settings.access;
    let mut policy = ClientPolicy {
        timeout: access.timeout.as_millis() as u32,
        max_conns_per_node: access.connections,
        // The client's own circuit breaker would refuse whole seconds of work after a burst of busy keys; whoever calls
        // this engine pauses by itself.
        max_error_rate: 0,
        use_services_alternate: access.alternate_addresses,
        application_id: Some("utxo-store".into()),
        ..ClientPolicy::default()
    };
    if let Some((user, password)) = &access.login {
        policy.auth_mode = AuthMode::Internal(user.clone(), password.clone());
    }
    if let Some(file) = &access.tls_ca_file {
        let config = tls_config(file).map_err(|error| OpenAerospikeError::Certificates {
            file: file.display().to_string(),
            problem: error.to_string(),
        })?;
        policy.tls_policy = Some(config.into());
    }
    Ok(policy)
}

/// Trusts what the authority in `file` signed, and nothing else.
fn tls_config(file: &Path) -> io::Result<Arc<rustls::ClientConfig>> {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    let mut authorities = rustls::RootCertStore::empty();
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| invalid(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
        authorities.add(certificate).map_err(|error| invalid(error.to_string()))?;
    }
    if authorities.is_empty() {
        return Err(invalid("there is no certificate in it".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?
        .with_root_certificates(authorities)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
