//! The list of settings: key, type, default, range, unit, the seed's key and help, each said once.
//!
//! The checked structs, what the raw stage accepts, the commented sample (`deploy/utxo-store.toml`) and the defaults all
//! follow from this list. A default is written as TOML writes it.

use crate::{
    blob::BlobUrl,
    broker::kafka::{AssignmentStrategy, GroupProtocol, SaslMechanism, SecurityProtocol},
    engine::StoreUrl,
    telemetry::LogFormat,
    tx::Network,
};

use super::{
    check::Checker,
    types::{Brokers, Kind, LogFilter, Properties, Ratio, Secret, SettingType, TopicName},
};

/// A group of settings: a table of the TOML file.
#[derive(Debug)]
pub struct Section {
    /// Path of the table, e.g. `kafka.topics`.
    pub key: &'static str,
    /// What it is about, line by line.
    pub help: &'static [&'static str],
    /// Its settings, in the order of the sample.
    pub settings: &'static [Setting],
}

/// One setting.
#[derive(Debug)]
pub struct Setting {
    /// Its whole path, e.g. `kafka.brokers`.
    pub key: &'static str,
    /// What sort of TOML value it takes.
    pub kind: Kind,
    /// Its default as TOML; `None`: absent unless given.
    pub default: Option<&'static str>,
    /// For settings without a default: what one looks like, as TOML.
    pub example: Option<&'static str>,
    /// Least and greatest number that is accepted.
    pub range: Option<(u64, u64)>,
    /// What a number counts.
    pub unit: Option<&'static str>,
    /// The seed's name of this setting.
    pub seed: Option<&'static str>,
    /// What it does, line by line.
    pub help: &'static [&'static str],
}

impl Setting {
    /// The last part of the key.
    pub fn name(&self) -> &'static str {
        self.key.rsplit_once('.').map_or(self.key, |(_, name)| name)
    }
}

/// The setting with this key.
pub fn find(key: &str) -> Option<&'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings).find(|setting| setting.key == key)
}

/// Whether `key` is a table of the file (or holds one).
pub fn is_section(key: &str) -> bool {
    SECTIONS.iter().any(|section| section.key == key)
}

macro_rules! optional {
    () => {
        None
    };
    ($($value:tt)+) => {
        Some($($value)+)
    };
}

macro_rules! settings {
    ($(
        $(#[doc = $section_help:literal])+
        [$section:literal] $group:ident {
            $(
                $(#[doc = $help:literal])+
                $name:ident: $type:ty
                    $(= $default:literal)?
                    $(, example $example:literal)?
                    $(, range $low:literal to $high:literal)?
                    $(, unit $unit:literal)?
                    $(, seed $seed:literal)?
                ;
            )*
            $(nested $(#[doc = $sub_help:literal])+ $sub:ident: $sub_type:ident;)*
        }
    )*) => {
        $(
            $(#[doc = $section_help])+
            #[derive(Debug, Clone, PartialEq)]
            pub struct $group {
                $(
                    $(#[doc = $help])+
                    $(#[doc = concat!("\nUnit: ", $unit, ".")])?
                    pub $name: $type,
                )*
                $($(#[doc = $sub_help])+ pub $sub: $sub_type,)*
            }

            impl $group {
                /// Takes every setting before looking at any, so that all errors are found.
                pub(super) fn take(checker: &mut Checker<'_>) -> Option<Self> {
                    $(let $name = checker.take::<$type>(
                        concat!($section, ".", stringify!($name)),
                        optional!($(($low, $high))?),
                    );)*
                    $(let $sub = $sub_type::take(checker);)*
                    Some(Self { $($name: $name?,)* $($sub: $sub?,)* })
                }
            }
        )*

        /// All settings, in the order of the sample.
        pub static SECTIONS: &[Section] = &[$(Section {
            key: $section,
            help: &[$($section_help),+],
            settings: &[$(Setting {
                key: concat!($section, ".", stringify!($name)),
                kind: <$type as SettingType>::KIND,
                default: optional!($(stringify!($default))?),
                example: optional!($(stringify!($example))?),
                range: optional!($(($low, $high))?),
                unit: optional!($($unit)?),
                seed: optional!($($seed)?),
                help: &[$($help),+],
            }),*],
        }),*];
    };
}

settings! {
    /// The log: where events come from and where this store's own go.
    ["kafka"] Kafka {
        /// Brokers to ask first: `host:port`, separated by commas; an IPv6 address in brackets. file:///path/log.jsonl
        /// is the log that a demo has kept (demo --data-dir), which can only be looked at (inspect, dead-letters list,
        /// command list).
        brokers: Brokers = "127.0.0.1:9092";
        /// Consumer group. Instances that share it share the partitions; its committed offsets are where a start resumes.
        group: String = "utxo-store";
        /// How this client is named in the brokers' logs and quotas.
        client_id: String = "utxo-store";
        /// Where this client is (`client.rack`), as the brokers say of themselves (broker.rack): it reads from the copy of a partition that is in
        /// its rack, where the brokers have replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector, and saves what
        /// goes between availability zones. Without it: from leaders.
        rack: Option<String>, example "eu-west-1a";
        /// Static membership (`group.instance.id`), one of its own for each instance: a restart within the session
        /// timeout takes its partitions back without a rebalance. Such instances do not go by cooperative-sticky (see assignment).
        /// Of two under one name the first ends, with exit code 5.
        instance_id: Option<String>, example "utxo-store-0";
        /// Who spreads the partitions over the instances of the group: classic (the instances, see assignment) or consumer (the brokers, which are Kafka
        /// 4.0 or later: KIP-848). By the latter the brokers say how long a session is (group.consumer.session.timeout.ms) and when heartbeats are due, and
        /// instance_id is not to be had: one that was killed would be refused under its name until its session ends. All instances of a
        /// group say the same.
        group_protocol: GroupProtocol = "classic";
        /// Without a heartbeat for so long, an instance is taken for dead and its partitions go to others. By the classic protocol, as the next.
        session_timeout_ms: u64 = 45_000, range 1_000 to 3_600_000, unit "ms";
        /// Time between heartbeats; at most a third of the session timeout.
        heartbeat_interval_ms: u64 = 3_000, range 100 to 600_000, unit "ms";
        /// An instance that does not poll for so long leaves the group.
        max_poll_interval_ms: u64 = 300_000, range 1_000 to 86_400_000, unit "ms";
        /// How long a broker holds back a fetch that has less than `fetch_min_bytes` to say.
        fetch_wait_max_ms: u64 = 50, range 1 to 60_000, unit "ms";
        /// How instances spread the partitions by the classic protocol: cooperative-sticky (only what has to move is taken away), range or
        /// roundrobin (everything is, at every change). All instances of a group say the same. Unless it is set: cooperative-sticky, and
        /// range where instance_id is set, as cooperative-sticky hands out in two steps: an instance that is killed between them and
        /// comes back under its name gets what it had, and the second step never comes.
        assignment: Option<AssignmentStrategy>, example "range";
        /// From how many bytes on a broker answers a fetch at once.
        fetch_min_bytes: u32 = 65_536, range 1 to 100_000_000, unit "bytes";
        /// The most that one fetch takes of a partition; a message that is larger comes alone.
        max_partition_fetch_bytes: u32 = 4_194_304, range 1_024 to 1_000_000_000, unit "bytes";
        /// What may be held ahead of who reads, over all partitions of a topic, whoever has them: fetched, and in batches that wait. With many
        /// partitions fetches and batches are smaller than they may be. It holds for the transactions and for the chain, each for itself.
        fetch_budget_bytes: u64 = 268_435_456, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// Messages of one partition that are handed on together, at the most …
        batch_messages: u32 = 1_000, range 1 to 1_000_000, unit "messages";
        /// … and bytes of them, keys and headers too; a message that is larger goes alone.
        batch_bytes: u32 = 524_288, range 1_024 to 1_000_000_000, unit "bytes";
        /// How long a broker may take to answer a question (topics, ends, offsets, a seek) before it counts as away; at most half of
        /// `max_poll_interval_ms`.
        request_timeout_ms: u64 = 10_000, range 100 to 600_000, unit "ms";
        /// How long a message that is written may take to be acknowledged, with all repeats, before its event waits and writes it again.
        delivery_timeout_ms: u64 = 120_000, range 1_000 to 86_400_000, unit "ms";
        /// Copies of each topic that `utxo-store topics create` makes, unless it is told otherwise; of three or more all but one have to be
        /// in sync. Otherwise as many as the cluster makes by default.
        replication_factor: Option<u32>, example 3, range 1 to 1_000, unit "copies";
        /// Further librdkafka properties, passed through as they are (ssl.cipher.suites, socket.*, …). What has a setting of its own
        /// here, and what safety rests on, is refused. Environment: UTXO_STORE__KAFKA__PROPERTIES__SSL_CIPHER_SUITES.
        properties: Properties;
        nested
        /// How brokers are talked to.
        security: Security;
        nested
        /// Topic names.
        topics: Topics;
    }

    /// How brokers are talked to: encrypted or not, as whom, and to whom. TLS, SCRAM and OAUTHBEARER need a build with --features tls.
    ["kafka.security"] Security {
        /// plaintext, ssl (encrypted), sasl_plaintext (a login over an open line) or sasl_ssl (both).
        protocol: SecurityProtocol = "plaintext";
        /// How to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, or OAUTHBEARER, whose tokens follow from kafka.properties (sasl.oauthbearer.*;
        /// librdkafka is built without OIDC here: enable.sasl.oauthbearer.unsecure.jwt is all that there is).
        mechanism: Option<SaslMechanism>, example "SCRAM-SHA-512";
        /// As whom.
        username: Option<String>, example "utxo-store";
        /// Its password. Better given by file, or in the environment: UTXO_STORE__KAFKA__SECURITY__PASSWORD.
        password: Option<Secret>, example "not in a file that others read";
        /// A file with the password as its one line; it is read at a start.
        password_file: Option<String>, example "/run/secrets/kafka-password";
        /// Certificates (PEM) of the authorities that brokers' certificates are from. Without: those that the system trusts.
        ca_file: Option<String>, example "/etc/utxo-store/kafka-ca.pem";
        /// Our own certificate (PEM), for brokers that ask for one (mTLS), with those between it and its authority behind it.
        certificate_file: Option<String>, example "/etc/utxo-store/kafka-client.pem";
        /// Its private key (PEM).
        key_file: Option<String>, example "/etc/utxo-store/kafka-client.key";
        /// What the key is encrypted with, if it is. Better given by file, or in the environment: UTXO_STORE__KAFKA__SECURITY__KEY_PASSWORD.
        key_password: Option<Secret>, example "not in a file that others read";
        /// A file with that password as its one line.
        key_password_file: Option<String>, example "/run/secrets/kafka-key-password";
        /// Whether a broker's certificate has to be for the host that kafka.brokers (or the cluster) names. Off, whoever has any
        /// certificate of the authority can pose as a broker.
        endpoint_identification: bool = true;
    }

    /// Topic names. The first three are read, `chain` is read and written, the others are written.
    ["kafka.topics"] Topics {
        /// Validated transactions and seeded ones; many partitions, by txid (murmur2, as the Java client does). Their number is
        /// fixed for the life of a store.
        validated_txs: TopicName = "utxo.validated-txs";
        /// Mined blocks; one partition.
        block_mined: TopicName = "utxo.block-mined";
        /// Reorganisations; one partition.
        reorgs: TopicName = "utxo.reorgs";
        /// The sequencer's log: blocks, reorgs, commands and contests in one order; one partition.
        chain: TopicName = "utxo.chain";
        /// What the sequencer decided, written before it is done; one partition.
        decisions: TopicName = "utxo.decisions";
        /// Refusals, conflicts and results of commands, for validators and clients; many partitions, by txid.
        outcomes: TopicName = "utxo.outcomes";
        /// Messages that cannot be applied, with whence and why.
        dead_letters: TopicName = "utxo.dead-letters";
    }

    /// The state that the log produces.
    ["store"] Store {
        /// Where it lives: fjall:///absolute/path (embedded, durable), aerospike://host:3000,host2/namespace?set=txmeta (beside
        /// store.blobs.url: its records are bounded), memory:// (gone at the end) or null:/// (discards).
        url: StoreUrl = "fjall:///var/lib/utxo-store", seed "utxostore";
        /// Network: main, test or regtest. It decides from which height on an output is unspendable by its script.
        network: Network = "main";
        /// Output slots a record. Fixed for the life of a store: it is kept there and checked at every start.
        utxo_batch_size: u32 = 20_000, range 1 to 1_000_000, unit "slots",
            seed "utxo_store_batch_size (UtxoBatchSize)";
        /// Blocks for which a fully spent or conflicting transaction is kept; 0 keeps all.
        block_height_retention: u32 = 288, range 0 to 10_000_000, unit "blocks", seed "BlockHeightRetention";
        /// Bodies of transactions whose extended form is larger go to the blob store, and those of several records; without a
        /// blob store, which Aerospike does not go without, all are kept with their records. What the store finds too large for a
        /// record goes there, too.
        max_tx_size_in_store: u64 = 1_048_576, range 0 to 4_294_967_295, unit "bytes",
            seed "utxo_store_max_tx_size_in_store (MaxTxSizeInStoreInBytes)";
        /// Keep the body of every transaction in the blob store, whatever its size.
        externalize_all_transactions: bool = false,
            seed "utxo_store_externalize_all_transactions (ExternalizeAllTransactions)";
        nested
        /// How an Aerospike cluster is reached.
        aerospike: Cluster;
        nested
        /// Where bodies of transactions are kept that are too large for a record.
        blobs: Blobs;
    }

    /// How an Aerospike cluster is reached, where store.url names one.
    ["store.aerospike"] Cluster {
        /// The user to log in as, where the cluster asks for one (Enterprise Edition); read-write, sindex-admin.
        user: Option<String>, example "utxo-store";
        /// Its password. Better given in the environment: UTXO_STORE__STORE__AEROSPIKE__PASSWORD.
        password: Option<Secret>, example "not in a file";
        /// A file with the password as its one line, instead.
        password_file: Option<String>, example "/run/secrets/aerospike-password";
        /// Certificates (PEM) of the authority that signed those of the nodes; given: connections are encrypted. A node's
        /// certificate is for its host, or for the name that is given with it: `host:name:port` in store.url.
        tls_ca_file: Option<String>, example "/etc/utxo-store/aerospike-ca.pem";
        /// Use the addresses that the nodes give to clients outside their network (alternate-access-address).
        alternate_addresses: bool = false;
        /// How long one request may take.
        timeout_ms: u64 = 5_000, range 100 to 600_000, unit "ms", seed "database timeout (DBTimeout)";
        /// Connections to each node at most; not fewer than batches on their way at once.
        connections: u32 = 256, range 1 to 65_536, unit "connections";
        /// Accept Community Edition with a replication factor above 1, although a cluster that falls in two can then accept
        /// both of two conflicting spends.
        accept_replication: bool = false;
    }

    /// The blob store: bodies of transactions that are too large for a record. All instances of one store share it.
    ["store.blobs"] Blobs {
        /// Where it is: file:///absolute/path (on one machine, or shared), s3://bucket/prefix?region=eu-1&endpoint=http://host:9000
        /// (needs a build with --features aws), memory:// (gone at the end: beside records that are, too). An empty place becomes the
        /// blob store of this store, once and for good. The store URL's parameter externalStore says the same; where both are
        /// given they must agree.
        url: Option<BlobUrl>, example "file:///var/lib/utxo-store-blobs", seed "externalStore";
        /// How long a request may take besides its bytes, and how long there may be no byte of an answer.
        timeout_ms: u64 = 30_000, range 100 to 600_000, unit "ms";
        /// As much longer as its bytes take at this rate: the slowest line on which large blobs still come through, be they written or
        /// read. Requests at the same time share the line.
        least_bytes_per_s: u64 = 65_536, range 1 to 1_073_741_824, unit "bytes/s";
        /// How often a request to S3 or HTTP is repeated by itself, within the time that it may take.
        retries: u32 = 3, range 0 to 100, unit "retries";
        /// Blobs of more bytes are sent to S3 in parts of so many.
        part_bytes: u64 = 16_777_216, range 5_242_880 to 1_073_741_824, unit "bytes";
        /// Transactions that were read and will be asked for again are kept up to so many bytes in all; 0 keeps none …
        cache_bytes: u64 = 268_435_456, range 0 to 1_099_511_627_776, unit "bytes", seed "UseExternalTxCache";
        /// … for so long.
        cache_ms: u64 = 10_000, range 0 to 600_000, unit "ms";
        /// Transactions are read whole only as long as so many bytes of them are on their way at once; a larger one is read alone.
        whole_read_bytes: u64 = 268_435_456, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// Access key of S3. Without one AWS's own variables (AWS_*) count, or the machine's role.
        access_key_id: Option<String>, example "AKIA…";
        /// Its secret. Better given in the environment: UTXO_STORE__STORE__BLOBS__SECRET_ACCESS_KEY.
        secret_access_key: Option<Secret>, example "not in a file";
        /// A file with the secret as its one line, instead.
        secret_access_key_file: Option<String>, example "/run/secrets/s3-secret";
    }

    /// The pipeline: from validated transactions to records.
    ["ingest"] Ingest {
        /// A batch of record operations is sent when it has so many …
        batch_size: u32 = 256, range 1 to 65_536, unit "operations", seed "StoreBatcherSize";
        /// … or when its oldest one has waited so long.
        batch_age_ms: u64 = 10, range 0 to 10_000, unit "ms", seed "StoreBatcherDurationMillis";
        /// Batches that may be on their way to the store at once.
        in_flight_batches: u32 = 32, range 1 to 4_096, unit "batches", seed "StoreBatcherConcurrency";
        /// Transactions between read and done, parked ones apart; at the bound nothing more is read.
        max_in_flight_transactions: u32 = 65_536, range 1 to 16_777_216, unit "transactions";
        /// Transactions that are done, and that a node of the store may still forget by dying; at the bound nothing more is read, so
        /// that no more than these go through within `durability_lag_ms`. Each takes some 200 bytes of memory.
        max_unsafe_transactions: u32 = 1_048_576, range 1 to 268_435_456, unit "transactions";
        /// Bytes of events of a partition that were read and are not completed, parked ones above all; at the bound the
        /// partition is paused.
        unfinished_bytes: u64 = 67_108_864, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// The same of all partitions of this instance together: each has an equal share of it, where that is less. Should others be assigned
        /// while one holds more than that, they have so much less until it is done. It counts payloads; while it waits a usual transaction takes
        /// 7 times its payload of memory, the smallest 18 times. Beyond it go a batch of each partition, and events greater than their share.
        unfinished_bytes_in_all: u64 = 268_435_456, range 1_048_576 to 1_099_511_627_776, unit "bytes";
        /// How far past a child every other partition must have been read before its parent counts as missing.
        missing_parent_grace_ms: u64 = 60_000, range 0 to 86_400_000, unit "ms";
        /// How long an event waits on a flag of its parent (locked) before it is contested; shorter than
        /// `sequencer.block_wait_ms`, as a block behind which the unlock stands must not wait for ever.
        flag_grace_ms: u64 = 60_000, range 0 to 86_400_000, unit "ms";
        /// Pause before the first retry of what the store could not do, or of what waits for its parent; doubled each time, with jitter, …
        retry_pause_ms: u64 = 50, range 1 to 600_000, unit "ms";
        /// … up to this. Those that wait for their parents pause for up to an eighth of it, and where many wait for as long as it takes to
        /// try 5,000 of them a second; but the oldest, for which all others wait, from a 32nd of it on.
        retry_pause_max_ms: u64 = 5_000, range 1 to 3_600_000, unit "ms";
        /// Time between commits of offsets.
        commit_interval_ms: u64 = 1_000, range 10 to 600_000, unit "ms";
        /// Messages read beyond the watermark of a partition; at the bound the partition is paused.
        max_uncommitted_span: u32 = 1_000_000, range 1 to 1_000_000_000, unit "messages";
        /// So many dead letters in a row halt their partition.
        dead_letter_consecutive: u32 = 100, range 1 to 1_000_000, unit "dead letters";
        /// So great a share of dead letters among the events of a minute halts their partition.
        dead_letter_ratio: Ratio = 0.05, range 0 to 1;
        /// How long a shutdown or a revocation waits for what is in flight.
        drain_timeout_ms: u64 = 20_000, range 0 to 600_000, unit "ms";
        /// How long an offset waits, complete, before it is committed: longer than the store may lose writes that it has
        /// acknowledged. Five times as long, unless it is set; none for a store that syncs, whatever is set.
        durability_lag_ms: Option<u64>, example 5_000, range 1 to 3_600_000, unit "ms";
    }

    /// The one consumer of the chain topic: blocks, reorgs, commands and contests.
    ["sequencer"] Sequencer {
        /// Whether this instance takes part in being the sequencer.
        enabled: bool = true;
        /// How long a block waits for transactions that it lists and that are not there; then the chain halts, naming them.
        block_wait_ms: u64 = 600_000, range 0 to 86_400_000, unit "ms";
        /// Transactions marked as mined in one batch.
        mined_batch_size: u32 = 1_024, range 1 to 65_536, unit "transactions", seed "MaxMinedBatchSize";
        /// Batches that may be on their way to the store at once. With more than some sixteen it takes memory, and is slower.
        concurrency: u32 = 8, range 1 to 4_096, unit "batches", seed "MaxMinedRoutines";
        /// Where the objects are that large blocks refer to for their transaction ids: a URL as store.blobs.url takes (https:// too), reached as it
        /// says for the blob store. Nothing is written there. Without it such a block halts the chain.
        objects_url: Option<BlobUrl>, example "s3://blocks/subtrees?region=eu-1";
        /// Members of a cone that one decision names at most.
        cone_chunk: u32 = 1_000, range 1 to 20_000, unit "transactions";
    }

    /// Forgetting: transactions whose outputs are all spent by what is mined, and conflicting ones, `store.block_height_retention` blocks
    /// behind that. Whoever holds the chain prunes, between its events.
    ["prune"] Prune {
        /// Whether this instance prunes; `utxo-store prune` does so by hand. What is pruned does not come back: keep the log, which does.
        enabled: bool = true;
        /// Transactions that are forgotten in a second at the most. To forget one costs three to four times what it costs to take one in, on fjall
        /// and on Aerospike: where more than these come in for long, raise it, or the store grows.
        per_second: u32 = 1_000, range 1 to 10_000_000, unit "transactions/s";
        /// Transactions that are looked at in one step: a chain event waits for no more than these.
        batch_size: u32 = 512, range 1 to 65_536, unit "transactions";
        /// Blocks for which a pruned transaction that was conflicting keeps its body, so that a block can still bring it; 0 keeps it for
        /// good. The blobs of others are kept as long; its own goes when `utxo-store prune` meets it, while no instance runs. A few bytes of
        /// each, by which it is recognised should it come again, stay.
        keep_tombstones: u32 = 144, range 0 to 10_000_000, unit "blocks";
    }

    /// How a process of `utxo-store run` looks after itself.
    ["run"] Run {
        /// When one of its loops stands still for so long, whatever it waits for, the process says which, and ends with exit code 4; nothing is
        /// lost by that. A store, a broker or a blob store that is away, a halt, a long block or a drain is no such standstill. 0: never.
        watchdog_ms: u64 = 120_000, range 0 to 86_400_000, unit "ms";
    }

    /// Metrics, health and the state page over HTTP.
    ["http"] Http {
        /// Address to listen on; port 0 takes a free one.
        listen: std::net::SocketAddr = "127.0.0.1:9464";
        /// Whether halts may be lifted and partitions paused by POST (README, "When something halts"). The port has no login: keep it on
        /// loopback, or behind a proxy that asks for one.
        control: bool = false;
        /// With work at hand and nothing of the transactions, or of the chain, moving for so long, `/health/live` fails.
        stall_limit_ms: u64 = 300_000, range 1_000 to 86_400_000, unit "ms";
    }

    /// What is logged, on standard error.
    ["log"] Log {
        /// Level (error, warn, info, debug, trace) or a filter such as `info,utxo_store::ingest=debug`.
        level: LogFilter = "info";
        /// auto (pretty on a terminal, JSON otherwise), pretty or json.
        format: LogFormat = "auto";
    }
}
