//! The list of settings: key, type, default, range, unit, name in the reference document, and help text.
//!
//! The checked structs, the keys that the raw stage accepts, the commented sample (`deploy/utxo-store.toml`) and the
//! defaults all follow from this list. A default is written as TOML writes it.

use crate::{
    blob::BlobUrl,
    broker::kafka::{AssignmentStrategy, GroupProtocol, SaslMechanism, SecurityProtocol},
    engine::StoreUrl,
    telemetry::LogFormat,
    tx::Network,
};

use super::{
    check::Checker,
    declare::{optional, settings},
    types::{Brokers, LogFilter, Properties, Ratio, Secret, SettingType, TopicName},
};

pub use super::section::{Section, Setting};

/// Returns the setting with this key.
pub fn find(key: &str) -> Option<&'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings).find(|setting| setting.key == key)
}

/// Returns true if `key` is a table of the file.
pub fn is_section(key: &str) -> bool {
    SECTIONS.iter().any(|section| section.key == key)
}

settings! {
    /// The log: the source of events and the destination of the messages that the store produces.
    ["kafka"] Kafka {
        /// Bootstrap brokers: `host:port`, separated by commas; an IPv6 address in brackets. file:///path/log.jsonl
        /// names the log that a demo has saved (demo --data-dir); only inspect, dead-letters list and command list read
        /// such a log.
        brokers: Brokers = "127.0.0.1:9092";
        /// Consumer group. Instances with the same group share the partitions. A start resumes at the committed offsets
        /// of the group.
        group: String = "utxo-store";
        /// Name of this client in the brokers' logs and quotas.
        client_id: String = "utxo-store";
        /// Rack of this client (`client.rack`), one of the brokers' values of broker.rack. The client reads from the
        /// replica in its rack, where the brokers have
        /// replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector. This saves traffic between
        /// availability zones. Not set: the client reads from partition leaders.
        rack: Option<String>, example "eu-west-1a";
        /// Static membership (`group.instance.id`); each instance has its own value. A restart within the session
        /// timeout gets the same partitions back without a rebalance. Not allowed with the assignment
        /// cooperative-sticky. Of two processes with one value the earlier process ends with exit code 5.
        instance_id: Option<String>, example "utxo-store-0";
        /// Protocol of the consumer group: classic (one of the instances assigns the partitions, see assignment) or
        /// consumer (the brokers assign; KIP-848, Kafka 4.0 or later). With consumer the brokers set the session length
        /// and the heartbeat interval (group.consumer.session.timeout.ms and group.consumer.heartbeat.interval.ms), and
        /// instance_id must not be set: a killed instance would be refused under its name until its session ends. All
        /// instances of a group have the same value.
        group_protocol: GroupProtocol = "classic";
        /// Time without a heartbeat after which the group removes an instance and reassigns its partitions. Classic
        /// protocol only.
        session_timeout_ms: u64 = 45_000, range 1_000 to 3_600_000, unit "ms";
        /// Time between heartbeats; at most a third of the session timeout. Classic protocol only.
        heartbeat_interval_ms: u64 = 3_000, range 100 to 600_000, unit "ms";
        /// An instance that does not poll for this long leaves the group.
        max_poll_interval_ms: u64 = 300_000, range 1_000 to 86_400_000, unit "ms";
        /// Time for which a broker delays the answer to a fetch that has less than `fetch_min_bytes`.
        fetch_wait_max_ms: u64 = 50, range 1 to 60_000, unit "ms";
        /// Assignment strategy of the classic protocol: cooperative-sticky (only the partitions that move are revoked),
        /// range or roundrobin (every partition is revoked at every change). All instances of a group have the same
        /// value. Not set: cooperative-sticky, or range where instance_id is set. Reason: cooperative-sticky assigns in
        /// two steps; an instance that is killed between the two steps and comes back under its name gets the
        /// partitions that it had, and the second step never comes.
        assignment: Option<AssignmentStrategy>, example "range";
        /// Size from which a broker answers a fetch at once.
        fetch_min_bytes: u32 = 65_536, range 1 to 100_000_000, unit "bytes";
        /// Largest part of one fetch per partition; a larger message comes alone.
        max_partition_fetch_bytes: u32 = 4_194_304, range 1_024 to 1_000_000_000, unit "bytes";
        /// Most bytes that are fetched ahead of the reader, over all partitions of a topic, whichever instance has
        /// them: fetched messages, and batches that wait. With many partitions fetches and batches become smaller. The
        /// budget applies to the transactions and to the chain separately.
        fetch_budget_bytes: u64 = 268_435_456, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// Most messages of one batch of a partition.
        batch_messages: u32 = 1_000, range 1 to 1_000_000, unit "messages";
        /// Most bytes of one batch of a partition, keys and headers included; a larger message goes alone.
        batch_bytes: u32 = 524_288, range 1_024 to 1_000_000_000, unit "bytes";
        /// Time after which a broker that does not answer a request (topics, end offsets, committed offsets, a seek)
        /// counts as away; at most half of `max_poll_interval_ms`.
        request_timeout_ms: u64 = 10_000, range 100 to 600_000, unit "ms";
        /// Time within which a produced message must be acknowledged, all retries included. After this time its event
        /// waits and the message is produced again.
        delivery_timeout_ms: u64 = 120_000, range 1_000 to 86_400_000, unit "ms";
        /// Replicas of each topic: `utxo-store topics create` creates that many (--replication-factor overrides the
        /// setting), and `topics check` and `run --check` demand that many. With three or more replicas all but one
        /// have to be in sync. Not set: 3 in a cluster of three or more brokers, else the default of the cluster.
        replication_factor: Option<u32>, example 3, range 1 to 1_000, unit "copies";
        /// Further librdkafka properties, passed through unchanged (ssl.cipher.suites, socket.*, …). A property that
        /// has a setting here, or on which a guarantee rests, is refused. Environment:
        /// UTXO_STORE__KAFKA__PROPERTIES__SSL_CIPHER_SUITES.
        properties: Properties;
        nested
        /// Encryption and login of the connections to the brokers.
        security: Security;
        nested
        /// Names of the seven topics.
        topics: Topics;
    }

    /// Encryption of the connections to the brokers, the login, and the check of the brokers' identity. TLS, SCRAM
    /// and OAUTHBEARER need a build with --features tls.
    ["kafka.security"] Security {
        /// plaintext, ssl (encrypted), sasl_plaintext (a login over an open connection) or sasl_ssl (both).
        protocol: SecurityProtocol = "plaintext";
        /// SASL mechanism of the login: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER. The tokens of OAUTHBEARER
        /// follow from kafka.properties (sasl.oauthbearer.*); librdkafka is built without OIDC, so that
        /// enable.sasl.oauthbearer.unsecure.jwt is the only source.
        mechanism: Option<SaslMechanism>, example "SCRAM-SHA-512";
        /// User of the login.
        username: Option<String>, example "utxo-store";
        /// Password of the user. Better given by file, or in the environment: UTXO_STORE__KAFKA__SECURITY__PASSWORD.
        password: Option<Secret>, example "not in a file that others read";
        /// File with the password as its one line; read at a start.
        password_file: Option<String>, example "/run/secrets/kafka-password";
        /// Certificates (PEM) of the authorities that sign the brokers' certificates. Not set: the authorities that the
        /// system trusts.
        ca_file: Option<String>, example "/etc/utxo-store/kafka-ca.pem";
        /// Certificate (PEM) of this client, for brokers that require one (mTLS). Intermediate certificates follow in
        /// the same file.
        certificate_file: Option<String>, example "/etc/utxo-store/kafka-client.pem";
        /// Private key (PEM) of the certificate.
        key_file: Option<String>, example "/etc/utxo-store/kafka-client.key";
        /// Password of the private key, where the key is encrypted. Better given by file, or in the environment:
        /// UTXO_STORE__KAFKA__SECURITY__KEY_PASSWORD.
        key_password: Option<Secret>, example "not in a file that others read";
        /// File with the private key's password as its one line.
        key_password_file: Option<String>, example "/run/secrets/kafka-key-password";
        /// A broker's certificate must name the host that kafka.brokers (or the cluster) names. With false every owner
        /// of a certificate of the authority can pose as a broker.
        endpoint_identification: bool = true;
    }

    /// Topic names. The store reads the first three, reads and writes chain and decisions, and writes the others.
    ["kafka.topics"] Topics {
        /// Validated transactions and partial transactions; many partitions, by txid (murmur2, as the Java client
        /// does). The number of partitions is fixed for the life of a store.
        validated_txs: TopicName = "utxo.validated-txs";
        /// Mined blocks; one partition.
        block_mined: TopicName = "utxo.block-mined";
        /// Reorgs (blocks disconnected and connected); one partition.
        reorgs: TopicName = "utxo.reorgs";
        /// The chain log: blocks, reorgs, commands and contests in one order; one partition.
        chain: TopicName = "utxo.chain";
        /// The sequencer's decisions, written before they are applied; one partition.
        decisions: TopicName = "utxo.decisions";
        /// Outcomes for validators and clients: refused, conflicting, live, mined, results of commands; many
        /// partitions, by txid. The number of partitions is read at a start.
        outcomes: TopicName = "utxo.outcomes";
        /// Messages that cannot be applied, with source and reason.
        dead_letters: TopicName = "utxo.dead-letters";
    }

    /// Objects to which events refer: bodies of transactions that are too large for a message, and transaction ids of
    /// large blocks. Objects are part of the log: producers write them, and they are kept as long as the events.
    ["objects"] EventObjects {
        /// Place of the objects: a URL as store.blobs.url accepts (https:// too, to read), reached by the settings of
        /// the blob store. The store deletes nothing there. Not set: producers publish every transaction as one
        /// message, and an event that refers to an object halts its partition.
        url: Option<BlobUrl>, example "s3://events/objects?region=eu-1";
        /// Largest event of a transaction that a producer (generate, the publisher of the library) publishes as one
        /// message; the body of a larger one becomes an object. At least 64 KiB less than the max.message.bytes of the
        /// topic. Without objects.url no event is too large before the topic refuses the event.
        inline_event_bytes: u32 = 524_288, range 1_024 to 900_000_000, unit "bytes";
        /// Largest body that an instance reads from an object; a larger one halts its partition. The body is in memory
        /// from the read until its event is completed.
        max_body_bytes: u64 = 268_435_456, range 1_048_576 to 4_294_967_295, unit "bytes";
    }

    /// The state that the log produces.
    ["store"] Store {
        /// Store URL: fjall:///absolute/path (embedded, durable), aerospike://host:3000,host2/namespace?set=txmeta
        /// (needs store.blobs.url, since its records are bounded), sqlite:///absolute/path or
        /// postgres://user@host:5432/database (feature sql), memory:// (lost with the process) or null:/// (discards
        /// every write).
        url: StoreUrl = "fjall:///var/lib/utxo-store", reference "utxostore";
        /// Network: main, test or regtest. Decides from which height on an output is unspendable by its script.
        network: Network = "main";
        /// Output slots per record. Fixed for the life of a store: the meta record holds the value, and every start
        /// compares. A spend rewrites the record, so that its cost grows with this number. The reference has 20,000.
        utxo_batch_size: u32 = 1_000, range 1 to 1_000_000, unit "slots",
            reference "utxo_store_batch_size (UtxoBatchSize)";
        /// Blocks for which a fully spent or conflicting transaction is kept before pruning; 0 keeps all.
        block_height_retention: u32 = 288, range 0 to 10_000_000, unit "blocks", reference "BlockHeightRetention";
        /// Largest body (extended form) that is stored inline. Larger bodies, bodies of transactions with several
        /// records, and bodies that the engine finds too large for a record go to the blob store. Without a blob store
        /// every body stays with its records; Aerospike needs a blob store.
        max_tx_size_in_store: u64 = 1_048_576, range 0 to 4_294_967_295, unit "bytes",
            reference "utxo_store_max_tx_size_in_store (MaxTxSizeInStoreInBytes)";
        /// Store the body of every transaction in the blob store, whatever its size.
        externalize_all_transactions: bool = false,
            reference "utxo_store_externalize_all_transactions (ExternalizeAllTransactions)";
        nested
        /// Connection to an Aerospike cluster.
        aerospike: Cluster;
        nested
        /// Connection to a database.
        sql: Database;
        nested
        /// The store of bodies that are too large for a record.
        blobs: Blobs;
    }

    /// Connection to an Aerospike cluster, where store.url names one.
    ["store.aerospike"] Cluster {
        /// User of the login (Enterprise Edition); roles: read-write, sindex-admin.
        user: Option<String>, example "utxo-store";
        /// Password of the user. Better given in the environment: UTXO_STORE__STORE__AEROSPIKE__PASSWORD.
        password: Option<Secret>, example "not in a file";
        /// File with the password as its one line, instead of the password.
        password_file: Option<String>, example "/run/secrets/aerospike-password";
        /// Certificates (PEM) of the authority that signs the nodes' certificates. Set: connections are encrypted. The
        /// certificate of a node names its host, or the name given as `host:name:port` in store.url.
        tls_ca_file: Option<String>, example "/etc/utxo-store/aerospike-ca.pem";
        /// Use the addresses that the nodes give to clients outside their network (alternate-access-address).
        alternate_addresses: bool = false;
        /// Timeout of one request.
        timeout_ms: u64 = 5_000, range 100 to 600_000, unit "ms", reference "database timeout (DBTimeout)";
        /// Most connections to each node; not fewer than the batches in flight.
        connections: u32 = 256, range 1 to 65_536, unit "connections";
    }

    /// Connection to a database, where store.url names one.
    ["store.sql"] Database {
        /// Password of the login to PostgreSQL, where the URL has none. Better given in the environment:
        /// UTXO_STORE__STORE__SQL__PASSWORD.
        password: Option<Secret>, example "not in a file";
        /// File with the password as its one line, instead of the password.
        password_file: Option<String>, example "/run/secrets/postgres-password";
        /// Most open connections to PostgreSQL.
        max_open_connections: u32 = 100, range 2 to 10_000, unit "connections", reference "PostgresMaxOpenConns";
        /// Most connections to PostgreSQL that stay open while no request uses them.
        max_idle_connections: u32 = 10, range 0 to 10_000, unit "connections", reference "PostgresMaxIdleConns";
        /// Time of one transaction of the database, with the wait for a connection.
        timeout_ms: u64 = 30_000, range 100 to 600_000, unit "ms", reference "database timeout (DBTimeout)";
    }

    /// The blob store: bodies of transactions that are too large for a record. All instances of one store share the
    /// blob store.
    ["store.blobs"] Blobs {
        /// Blob store URL: file:///absolute/path (one machine, or a shared file system),
        /// s3://bucket/prefix?region=eu-1&endpoint=http://host:9000, memory:// (only beside records in memory). An
        /// empty place becomes the blob store of this store, once and for good. The parameter externalStore of the
        /// store URL says the same; where both are given they must be equal.
        url: Option<BlobUrl>, example "file:///var/lib/utxo-store-blobs", reference "externalStore";
        /// Time that a request may take besides its bytes, and the longest time without a byte of an answer.
        timeout_ms: u64 = 30_000, range 100 to 600_000, unit "ms";
        /// Slowest accepted rate: the timeout of a request grows by its bytes divided by this rate, for writes and
        /// reads. Simultaneous requests share the line.
        min_bytes_per_s: u64 = 65_536, range 1 to 1_073_741_824, unit "bytes/s";
        /// Retries of a request to S3 or HTTP, within the time of the request.
        retries: u32 = 3, range 0 to 100, unit "retries";
        /// Part size of a multipart upload to S3; larger blobs are uploaded in parts of this size.
        part_bytes: u64 = 16_777_216, range 5_242_880 to 1_073_741_824, unit "bytes";
        /// Most bytes of the cache of bodies that will be read again; 0: no cache.
        cache_bytes: u64 = 268_435_456, range 0 to 1_099_511_627_776, unit "bytes", reference "UseExternalTxCache";
        /// Time for which the cache holds a body.
        cache_ttl_ms: u64 = 10_000, range 0 to 600_000, unit "ms";
        /// Most bytes of bodies that are read whole at the same time; a larger body is read alone.
        whole_read_bytes: u64 = 268_435_456, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// Access key of S3. Not set: the variables of AWS (AWS_*), or the role of the machine.
        access_key_id: Option<String>, example "AKIA…";
        /// Secret of the access key. Better given in the environment: UTXO_STORE__STORE__BLOBS__SECRET_ACCESS_KEY.
        secret_access_key: Option<Secret>, example "not in a file";
        /// File with the secret as its one line, instead of the secret.
        secret_access_key_file: Option<String>, example "/run/secrets/s3-secret";
    }

    /// The pipeline: from validated transactions to records.
    ["ingest"] Ingest {
        /// Number of record operations at which a batch is sent.
        batch_size: u32 = 256, range 1 to 65_536, unit "operations", reference "StoreBatcherSize";
        /// Age of the oldest operation at which a batch is sent.
        batch_age_ms: u64 = 10, range 0 to 10_000, unit "ms", reference "StoreBatcherDurationMillis";
        /// Most batches on their way to the store at once.
        in_flight_batches: u32 = 32, range 1 to 4_096, unit "batches", reference "StoreBatcherConcurrency";
        /// Most transactions in flight, parked ones excluded. At the limit polling pauses.
        max_in_flight_transactions: u32 = 65_536, range 1 to 16_777_216, unit "transactions";
        /// Most completed transactions that are not durable: the store could still lose their writes. At the limit
        /// polling pauses, so that no more than this number completes within `durability_lag_ms`. Each takes some 200
        /// bytes of memory.
        max_not_durable_transactions: u32 = 1_048_576, range 1 to 268_435_456, unit "transactions";
        /// Most bytes of events of a partition that were read and are not completed, parked events above all. At the
        /// limit the partition is paused.
        unfinished_bytes_per_partition: u64 = 67_108_864, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// The same over all partitions of this instance. Each partition has an equal share of the sum, where the
        /// share is smaller than `unfinished_bytes_per_partition`. Where the unfinished events of a partition exceed
        /// its share when others are assigned, the others have less until the excess is completed. The limit counts
        /// payloads, and bodies in objects; while an event waits, a usual transaction takes 7 times its payload of
        /// memory, the smallest 18 times. Outside the limit: one batch per partition, and events larger than the share.
        /// Bodies are read from objects up to this sum, and the oldest event of a partition is always read.
        unfinished_bytes_total: u64 = 268_435_456, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// Time past the child's timestamp up to which every other partition must have been read before the parent
        /// counts as missing.
        missing_parent_grace_ms: u64 = 60_000, range 0 to 86_400_000, unit "ms";
        /// Time that an event waits for a flag of its parent (locked) before the event is contested. Shorter than
        /// `sequencer.block_wait_ms`: the unlock may come later in the chain log than a block that waits.
        flag_grace_ms: u64 = 60_000, range 0 to 86_400_000, unit "ms";
        /// Pause before the first retry of a failed request to the store, or of a parked transaction; doubled each
        /// time, with jitter.
        retry_pause_ms: u64 = 50, range 1 to 600_000, unit "ms";
        /// Longest pause between retries. Outcomes wake parked transactions before; where very many are due, they are
        /// retried later, so that all of them ask for 2,000 rows a second.
        retry_pause_max_ms: u64 = 5_000, range 1 to 3_600_000, unit "ms";
        /// Time between commits of offsets.
        commit_interval_ms: u64 = 1_000, range 10 to 600_000, unit "ms";
        /// Most messages read beyond the watermark of a partition. At the limit the partition is paused.
        max_uncommitted_span: u32 = 1_000_000, range 1 to 1_000_000_000, unit "messages";
        /// Dead letters in a row that halt their partition.
        dead_letter_consecutive: u32 = 100, range 1 to 1_000_000, unit "dead letters";
        /// Share of dead letters among the events of a minute that halts their partition.
        dead_letter_ratio: Ratio = 0.05, range 0 to 1;
        /// Longest drain of a shutdown or a revocation.
        drain_timeout_ms: u64 = 20_000, range 0 to 600_000, unit "ms";
        /// Time from the completion of an offset to its durability: longer than the time for which the store may lose
        /// acknowledged writes. Not set: five times that time. Ignored for a store that syncs: no lag.
        durability_lag_ms: Option<u64>, example 5_000, range 1 to 3_600_000, unit "ms";
    }

    /// The one consumer of the chain log: blocks, reorgs, commands and contests.
    ["sequencer"] Sequencer {
        /// Join the group of the chain, so that this instance can become the sequencer.
        enabled: bool = true;
        /// Longest wait of a block for transactions that the block lists and the store does not have. After this time
        /// the chain halts and names the missing transactions.
        block_wait_ms: u64 = 600_000, range 0 to 86_400_000, unit "ms";
        /// Transactions marked as mined in one batch.
        mined_batch_size: u32 = 1_024, range 1 to 65_536, unit "transactions", reference "MaxMinedBatchSize";
        /// Most batches on their way to the store at once. More than about sixteen take memory and are slower.
        concurrency: u32 = 8, range 1 to 4_096, unit "batches", reference "MaxMinedRoutines";
        /// Place of the objects with the transaction ids of large blocks, where it is not objects.url: a URL as
        /// store.blobs.url accepts (https:// too), reached by the settings of the blob store. The store writes nothing
        /// there. Neither of the two set: a block that refers to an object halts the chain.
        objects_url: Option<BlobUrl>, example "s3://blocks/subtrees?region=eu-1";
        /// Most descendants of a transaction that one decision names.
        descendants_per_decision: u32 = 1_000, range 1 to 20_000, unit "transactions";
    }

    /// Outcomes besides refusals, conflicts and results of commands, which are always published. Each message names
    /// many transactions.
    ["outcomes"] Outcomes {
        /// Publish the transactions that became live by their events. Without these outcomes a transaction whose parent
        /// is created by another instance waits for its next retry.
        live: bool = true;
        /// Publish the transactions that a block has mined, and those that a reorg has made unmined.
        mined: bool = true;
    }

    /// Pruning of transactions whose outputs are all spent by mined transactions, and of conflicting transactions,
    /// `store.block_height_retention` blocks later. The instance that has the chain prunes between chain events.
    ["prune"] Prune {
        /// Prune in this instance; `utxo-store prune` prunes by hand. Pruned transactions do not come back: keep the
        /// log, from which a rebuild restores them.
        enabled: bool = true;
        /// Most transactions pruned per second. To prune one transaction costs three to four times as much as to ingest
        /// one, on fjall and on Aerospike: where more come in for long, raise the value, or the store grows.
        per_second: u32 = 1_000, range 1 to 10_000_000, unit "transactions/s";
        /// Transactions examined in one step; a chain event waits for a step for 1 s at most.
        batch_size: u32 = 512, range 1 to 65_536, unit "transactions";
        /// Blocks for which the tombstone of a transaction that was conflicting keeps its body, since a block can still
        /// list the transaction; 0 keeps the body for good. The blobs of others are kept as long. The blob of a
        /// conflicting transaction stays, except on fjall: there `utxo-store prune` deletes the blob. A few bytes of
        /// each transaction stay for good.
        keep_tombstones: u32 = 144, range 0 to 10_000_000, unit "blocks";
    }

    /// Recovery of half-created transactions of several pages, in the background of the instance that has the chain.
    /// The next read of the event completes the transaction, too; recovery is for events that are not read for long, as
    /// those of a halted or paused partition.
    ["recovery"] BackgroundRecovery {
        /// Time between two passes. 0: no recovery in the background; `utxo-store recover` completes by hand.
        interval_ms: u64 = 60_000, range 0 to 86_400_000, unit "ms";
        /// Least age of a transaction that is completed: longer than a creation takes.
        older_than_ms: u64 = 120_000, range 1_000 to 86_400_000, unit "ms";
        /// Most pages, and so most transactions, that one pass looks at, oldest first.
        batch_size: u32 = 100, range 1 to 65_536, unit "pages";
    }

    /// Snapshots of the store (`utxo-store snapshot`).
    ["snapshot"] Snapshots {
        /// Place of the snapshots: a URL as store.blobs.url accepts, reached by the settings of the blob store. The
        /// commands of `utxo-store snapshot` use the place unless --to or --from names another. `run --check` and
        /// `topics check` then demand that the topics keep the log beyond the newest complete snapshot, instead of the
        /// whole log.
        url: Option<BlobUrl>, example "s3://backup/snapshots?region=eu-1";
    }

    /// The vault: outputs of watched scripts, soft locks and coin selection (`utxo-store vault run`).
    ["vault"] Vault {
        /// Database of the vault, which holds nothing else: sqlite:///path or postgres://user@host/database. Any number
        /// of processes share a database of PostgreSQL; a file has one process. Limits and password as of store.sql.
        url: Option<StoreUrl>, example "sqlite:///var/lib/utxo-store/vault.sqlite";
        /// Consumer group with which the processes of the vault share the partitions of the log.
        group: String = "utxo-store-vault";
        /// URL of the API (http://host:port) that answers for the store. Not set: the vault opens store.url itself,
        /// which a store in a directory permits to one process only.
        answers_url: Option<String>, example "http://127.0.0.1:9464";
        /// File with the bearer token for vault.answers_url, with the role read. The token stands alone in the file,
        /// which is read again when the server refuses the token.
        answers_token_file: Option<String>, example "/etc/utxo-store/answers-token";
        /// Lease of a session that names none.
        lease_ms: u64 = 60_000, range 1_000 to 2_592_000_000, unit "ms";
        /// Longest lease of a session, and longest time of a lock that ends by itself.
        longest_lease_ms: u64 = 86_400_000, range 1_000 to 2_592_000_000, unit "ms";
        /// Time after which the lock of a selection ends that names neither a lock nor a time.
        selection_ttl_ms: u64 = 300_000, range 1_000 to 2_592_000_000, unit "ms";
        /// Age of an answer of the store after which the vault asks again without an event.
        oldest_answer_ms: u64 = 3_600_000, range 1_000 to 2_592_000_000, unit "ms";
        /// Time for which the vault keeps outputs that are spent or never became live, locks that have ended, and the
        /// answers of requests.
        retention_ms: u64 = 1_209_600_000, range 60_000 to 31_536_000_000, unit "ms";
    }

    /// Supervision of a process of `utxo-store run` by itself.
    ["run"] Run {
        /// Time without progress of a loop after which the process names the stalled loop and ends with exit code 4; no
        /// data is lost. A store, a broker or a blob store that is away, a halt, a long block and a drain are no stall.
        /// 0: never.
        watchdog_ms: u64 = 120_000, range 0 to 86_400_000, unit "ms";
    }

    /// Metrics, health, the state page, and the read service over HTTP.
    ["http"] Http {
        /// Address to listen on; port 0 takes a free port.
        listen: std::net::SocketAddr = "127.0.0.1:9464";
        /// Serve the API under /v1 in `run`, too (docs/reference/api.md); `serve` always serves the API.
        api: bool = false;
        /// Accept requests (POST) that clear halts and pause partitions (docs/operating/halts-and-recovery.md). With
        /// http.tokens_file they need a token with the role `command`; without, keep the port on loopback.
        control: bool = false;
        /// File of bearer tokens, one a line: a role (read, submit, command, or wallet:OWNER,OWNER for the vault), a
        /// space, the token. Read again when the file changes; the streams of a token that is gone end. Without the
        /// file the API is served on loopback only.
        tokens_file: Option<String>, example "/etc/utxo-store/tokens";
        /// Certificate chain (PEM) of the server: HTTPS instead of HTTP. Needs http.tls_key_file. Both files are read
        /// again when one changes.
        tls_certificate_file: Option<String>, example "/etc/utxo-store/http.pem";
        /// Private key (PEM) of http.tls_certificate_file.
        tls_key_file: Option<String>, example "/etc/utxo-store/http-key.pem";
        /// Largest body of a request. A body has one transaction or many, as bytes or as text of twice their length;
        /// objects.max_body_bytes bounds each transaction by itself.
        max_body_bytes: u64 = 67_108_864, range 1_024 to 4_294_967_296, unit "bytes";
        /// Memory of all requests of the API together: the bodies, three times, and what the answers need. A request
        /// without room is answered with status 429.
        max_bytes_in_flight: u64 = 536_870_912, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// Most keys of a batch request.
        max_batch: u32 = 10_000, range 1 to 100_000;
        /// Longest time for one request, without the wait that the request asks for.
        timeout_ms: u64 = 5_000, range 100 to 300_000, unit "ms";
        /// Greatest distance of the height of a submitted transaction above the tip of the store.
        max_height_ahead: u32 = 1, range 1 to 1_000_000, unit "blocks";
        /// Most requests that are handled at the same time. One more is answered with status 429.
        max_requests: u32 = 256, range 1 to 65_536;
        /// Most open streams (outcomes, unmined transactions, raw transactions). One more is answered with status 429.
        max_streams: u32 = 2_048, range 1 to 65_536;
        /// Most open connections. A few more answer one request each, of a probe or for metrics; any other request gets
        /// status 429 there. More connections wait.
        max_connections: u32 = 4_096, range 1 to 65_536;
        /// Time without progress of the transactions, or of the chain, with work at hand, after which `/health/live`
        /// fails.
        stall_limit_ms: u64 = 300_000, range 1_000 to 86_400_000, unit "ms";
    }

    /// Log records on standard error.
    ["log"] Log {
        /// Level (error, warn, info, debug, trace) or a filter such as `info,utxo_store::ingest=debug`.
        level: LogFilter = "info";
        /// auto (pretty on a terminal, JSON otherwise), pretty or json.
        format: LogFormat = "auto";
    }
}
