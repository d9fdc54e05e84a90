//! How to reach a cluster, and the policies of every request.

use std::{path::PathBuf, time::Duration};

use aerospike::{AdminPolicy, BatchPolicy, QueryDuration, QueryPolicy, policy::BasePolicy};

/// Where a store is and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AerospikeSettings {
    /// Nodes to ask first: `host:port` or `host:tls-name:port`, separated by commas.
    pub hosts: String,
    /// The namespace; it must exist.
    pub namespace: String,
    /// The set of transaction pages; block records and the meta record have sets named after it.
    pub set: String,
    /// Where the bodies of external transactions are. The engine itself has no use for it.
    pub external_store: Option<String>,
    /// How the cluster is reached.
    pub access: Access,
}

/// How a cluster is reached, and what is accepted of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// User and password, where the cluster asks for them (Enterprise Edition).
    pub login: Option<(String, String)>,
    /// Certificates (PEM) of the authority that signed the nodes' own; given: connections are encrypted.
    pub tls_ca_file: Option<PathBuf>,
    /// Addresses that the nodes give to clients outside their network (`alternate-access-address`).
    pub alternate_addresses: bool,
    /// How long one request may take.
    pub timeout: Duration,
    /// Connections to each node at most; not fewer than requests in flight.
    pub connections: usize,
    /// `utxo_batch_size`: a page of so many spent slots must fit the server's `max-record-size`. `None`: not checked.
    pub utxo_batch_size: Option<u32>,
    /// And beside it a body of so many bytes: larger ones go to the blob store.
    pub inline_limit: u64,
    /// Community Edition with a replication factor above 1: a cluster that falls in two can then accept both of two
    /// conflicting spends. Refused unless this says that it was thought of.
    pub accept_replication: bool,
    /// Secondary indexes that are missing are created. Whoever only reads does without.
    pub creates_indexes: bool,
}

impl Default for Access {
    fn default() -> Self {
        Access {
            login: None,
            tls_ca_file: None,
            alternate_addresses: false,
            timeout: Duration::from_secs(5),
            connections: 256,
            utxo_batch_size: None,
            inline_limit: 0,
            accept_replication: false,
            creates_indexes: true,
        }
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("user", &self.login.as_ref().map(|(user, _)| user))
            .field("tls_ca_file", &self.tls_ca_file)
            .field("timeout", &self.timeout)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl AerospikeSettings {
    /// Default limits, no encryption, no login.
    pub fn new(hosts: impl Into<String>, namespace: impl Into<String>, set: impl Into<String>) -> Self {
        AerospikeSettings {
            hosts: hosts.into(),
            namespace: namespace.into(),
            set: set.into(),
            external_store: None,
            access: Access::default(),
        }
    }
}

/// One policy for each kind of request.
pub(super) struct Policies {
    pub batch: BatchPolicy,
    pub query: QueryPolicy,
    pub admin: AdminPolicy,
}

impl Policies {
    pub fn new(settings: &AerospikeSettings) -> Self {
        let timeout = settings.access.timeout.as_millis() as u32;
        // The client never sends again by itself: what may have been done is answered as unknown, and whoever asked
        // repeats it.
        let base = |total_timeout| BasePolicy {
            total_timeout,
            socket_timeout: timeout,
            max_retries: 0,
            ..BasePolicy::default()
        };
        let mut batch = BatchPolicy { base_policy: base(timeout), ..BatchPolicy::write_default() };
        // Without it a row that was done can come back as one that was not.
        batch.respond_all_keys = true;
        let query = QueryPolicy {
            // A scan may take as long as it takes; a node that says nothing for the timeout is away.
            base_policy: base(0),
            expected_duration: QueryDuration::Long,
            ..QueryPolicy::default()
        };
        Policies { batch, query, admin: AdminPolicy { timeout } }
    }
}
