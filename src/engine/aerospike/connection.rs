//! Connects to a cluster: hosts, encryption, login.

use std::{io, path::Path, sync::Arc, time::Duration};

use aerospike::{AuthMode, Client, ClientPolicy, Host, ResultCode, ToHosts};

use super::{errors::describe_error, settings::AerospikeSettings};

/// An error that keeps a cluster from being used as a store. Each error is one line and says what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants and name the fields")]
pub enum OpenAerospikeError {
    /// The setting is no list of hosts.
    #[error("cannot read the hosts `{hosts}`: {problem}; give `host:port`, separated by commas")]
    Hosts { hosts: String, problem: String },
    /// No node answers, or no node can be used.
    #[error("cannot connect to any node of {hosts}: {problem}; {}", remedy(.problem))]
    Unreachable { hosts: String, problem: String },
    /// The certificates of the authority cannot be read.
    #[error("cannot read the certificates in {file}: {problem}; check store.aerospike.tls_ca_file")]
    Certificates { file: String, problem: String },
    /// The cluster answers, but does not fit this store.
    #[error("cannot use the cluster: {problem}; {remedy}")]
    Unfit { problem: String, remedy: String },
}

/// Returns the remedy for an error of the client, by its text: the client wraps the server's refusal of a login or a
/// certificate into its own text.
fn remedy(problem: &str) -> &'static str {
    use ResultCode::{
        InvalidCredential, InvalidPassword, InvalidUser, NotAuthenticated, SecurityNotEnabled, SecurityNotSupported,
    };
    let mentions = |codes: &[ResultCode]| codes.iter().any(|code| problem.contains(&code.into_string()));
    if mentions(&[SecurityNotSupported, SecurityNotEnabled]) {
        "the server has no users: leave store.aerospike.user and its password out"
    } else if mentions(&[InvalidUser, InvalidPassword, InvalidCredential, NotAuthenticated]) {
        "check store.aerospike.user and its password"
    } else if problem.contains("certificate") {
        "check store.aerospike.tls_ca_file, and that the certificate is for the host, or give the certificate's name \
         (host:name:port)"
    } else if problem.contains("enterprise only") {
        "Community Edition has no encryption: leave store.aerospike.tls_ca_file out"
    } else {
        "check that the server runs and listens there"
    }
}

/// Pause between two attempts to reach a cluster.
pub const CONNECT_PAUSE: Duration = Duration::from_millis(100);

/// Connects to the cluster. A starting server refuses clients until it knows its partitions; the attempts therefore go
/// on for the timeout of one request.
///
/// # Errors
/// The hosts are no list, the certificates cannot be read, or no node answers.
pub async fn connect(settings: &AerospikeSettings) -> Result<Client, OpenAerospikeError> {
    let hosts = hosts(settings)?;
    let policy = client_policy(settings)?;
    let deadline = tokio::time::Instant::now() + settings.access.timeout;
    loop {
        let problem = match Client::new(&policy, &hosts).await {
            Ok(client) if client.is_connected() => return Ok(client),
            Ok(_) => "no node answered".to_owned(),
            Err(error) => describe_error(&error),
        };
        if tokio::time::Instant::now() + CONNECT_PAUSE > deadline {
            return Err(OpenAerospikeError::Unreachable { hosts: settings.hosts.clone(), problem });
        }
        tokio::time::sleep(CONNECT_PAUSE).await;
    }
}

/// Parses the hosts of the settings.
///
/// # Errors
/// The hosts are no list.
pub fn hosts(settings: &AerospikeSettings) -> Result<Vec<Host>, OpenAerospikeError> {
    let mut hosts = settings.hosts.to_hosts().map_err(|error| OpenAerospikeError::Hosts {
        hosts: settings.hosts.clone(),
        problem: describe_error(&error),
    })?;
    for host in &mut hosts {
        // A node's certificate must contain this name.
        host.tls_name.get_or_insert_with(|| host.name.clone());
    }
    Ok(hosts)
}

/// Longest time that the client waits for a node when it asks all members for their partitions. A node that has died
/// must not delay the answers of the others for the whole timeout of a request.
const TEND_TIMEOUT: Duration = Duration::from_secs(1);

/// Connects to the members of one view, and to no node that they name.
///
/// # Errors
/// As [`connect`].
pub async fn connect_to_members(
    settings: &AerospikeSettings,
    members: Vec<Host>,
) -> Result<Client, OpenAerospikeError> {
    let mut policy = client_policy(settings)?;
    policy.seed_only_cluster = true;
    policy.timeout = policy.timeout.min(TEND_TIMEOUT.as_millis() as u32);
    let unreachable = |problem| OpenAerospikeError::Unreachable { hosts: settings.hosts.clone(), problem };
    let client = Client::new(&policy, &members).await.map_err(|error| unreachable(describe_error(&error)))?;
    match client.nodes().len() == members.len() {
        true => Ok(client),
        false => Err(unreachable(format!("{} of {} members answered", client.nodes().len(), members.len()))),
    }
}

fn client_policy(settings: &AerospikeSettings) -> Result<ClientPolicy, OpenAerospikeError> {
    let access = &settings.access;
    let mut policy = ClientPolicy {
        timeout: access.timeout.as_millis() as u32,
        max_conns_per_node: access.connections,
        // The client's circuit breaker would refuse all requests for whole seconds after a burst of busy keys. The
        // callers of this engine pause by themselves.
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

/// Builds a configuration that trusts only certificates signed by the authority in `file`.
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
        return Err(invalid("the file has no certificate".into()));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(error.to_string()))?
        .with_root_certificates(authorities)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
