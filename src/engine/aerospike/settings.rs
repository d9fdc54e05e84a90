//! Settings of a cluster, and the policies of every request.

use std::{path::PathBuf, time::Duration};

use super::layout::Layout;
use aerospike::{AdminPolicy, BatchPolicy, QueryDuration, QueryPolicy, policy::BasePolicy};

/// Location of a store, and the access to its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AerospikeSettings {
    /// Nodes to contact first: `host:port` or `host:tls-name:port`, separated by commas.
    pub hosts: String,
    /// Name of the namespace, which must exist.
    pub namespace: String,
    /// The set of transaction pages; the sets of other records are named after it.
    pub set: String,
    /// URL of the blob store with the external bodies. The engine does not use it.
    pub external_store: Option<String>,
    /// Most connections to a node (`ConnectionQueueSize`); `None`: [`Access::connections`].
    pub connection_queue_size: Option<usize>,
    /// Layout of the pages of a new store; `None`: the default. A store that exists must have this layout.
    pub layout: Option<Layout>,
    /// Access to the cluster: login, encryption, limits.
    pub access: Access,
}

/// Access to a cluster: login, encryption and limits.
#[derive(Clone, PartialEq, Eq)]
pub struct Access {
    /// User and password, where the cluster demands a login (Enterprise Edition).
    pub login: Option<(String, String)>,
    /// Certificates (PEM) of the authority that signed the nodes' certificates. With a file, connections are encrypted.
    pub tls_ca_file: Option<PathBuf>,
    /// Use the addresses that nodes announce for clients outside their network (`alternate-access-address`).
    pub alternate_addresses: bool,
    /// Timeout of one request.
    pub timeout: Duration,
    /// Connections to each node, at most; not fewer than requests in flight.
    pub connections: usize,
    /// `utxo_batch_size`: a page with this many spent slots must fit the server's `max-record-size`. `None`: not
    /// checked.
    pub utxo_batch_size: Option<u32>,
    /// Bytes of an inline body beside those slots, at most; larger bodies go to the blob store.
    pub inline_limit: u64,
    /// Create secondary indexes that are missing, set fences around the members of a cluster, and admit empty nodes.
    /// Processes that only read leave this off.
    pub manages_cluster: bool,
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
            manages_cluster: true,
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
            connection_queue_size: None,
            layout: None,
            access: Access::default(),
        }
    }
}

/// The policies of requests, by kind.
pub(super) struct Policies {
    pub batch: BatchPolicy,
    pub query: QueryPolicy,
    pub admin: AdminPolicy,
}

impl Policies {
    pub fn new(settings: &AerospikeSettings) -> Self {
        let timeout = settings.access.timeout.as_millis() as u32;
        // The client does not retry: a write that may have taken effect is answered as unknown, and the caller repeats
        // it.
        let base = |total_timeout| BasePolicy {
            total_timeout,
            socket_timeout: timeout,
            max_retries: 0,
            ..BasePolicy::default()
        };
        let mut batch = BatchPolicy { base_policy: base(timeout), ..BatchPolicy::write_default() };
        // Without this flag a row that was done can come back as one that was not.
        batch.respond_all_keys = true;
        let query = QueryPolicy {
            // A scan has no time limit as a whole; a node that sends nothing within the socket timeout counts as
            // unreachable.
            base_policy: base(0),
            expected_duration: QueryDuration::Long,
            ..QueryPolicy::default()
        };
        Policies { batch, query, admin: AdminPolicy { timeout } }
    }
}
