//! Converts the configuration to the settings of the layers below. Pure.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    blob::{BlobAccess, BlobOptions, BlobUrl, EventBodyLimits},
    broker::kafka::{AssignmentStrategy, KafkaSecurity, KafkaSettings},
    config::{Config, Secret, Security},
    engine::{OpenOptions, aerospike::Access, sql::SqlAccess},
    group::{dead_letters::DeadLetterLimits, partition::PartitionLimits},
    ingest::{dispatch::DispatchSettings, pipeline::PipelineSettings, plan::PlanSettings},
    instance::InstanceSettings,
    preflight::message_size::MessageLimits,
    record::Rules,
    sequencer::{PruneTask, RecoveryTask, SequencerSettings, SequencerTopics, VerdictMemory},
    store::{StoreSettings, prune::PruneSettings},
    telemetry::Metrics,
};

/// Longest time for a commit of offsets, or for leaving a group; at most a quarter of `kafka.max_poll_interval_ms`.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Default of librdkafka's `receive.message.max.bytes`.
const DEFAULT_RECEIVE_BYTES: u64 = 100_000_000;
/// Longest time for which live transactions are gathered for one message: short for a client that waits, and long
/// enough that the messages cost nothing beside the events.
const LONGEST_OUTCOME_PAUSE: Duration = Duration::from_millis(50);

/// Makes the rules of record operations: retention and network.
fn record_rules(config: &Config) -> Rules {
    Rules { retention: config.store.block_height_retention, network: config.store.network }
}

/// Makes the options with which an engine is opened.
pub fn engine_options(config: &Config) -> OpenOptions {
    let access = Access {
        utxo_batch_size: Some(config.store.utxo_batch_size),
        inline_limit: inline_limit(config),
        ..cluster_access(config)
    };
    let sql = SqlAccess { utxo_batch_size: Some(config.store.utxo_batch_size), ..sql_access(config) };
    OpenOptions { rules: record_rules(config), access, sql }
}

/// Makes the options with which an Aerospike cluster is read: login, TLS, timeouts, connections.
pub fn cluster_access(config: &Config) -> Access {
    let cluster = &config.store.aerospike;
    Access {
        login: cluster.user.clone().zip(cluster.password.as_ref().map(|password| password.as_str().to_owned())),
        tls_ca_file: cluster.tls_ca_file.as_ref().map(PathBuf::from),
        alternate_addresses: cluster.alternate_addresses,
        timeout: Duration::from_millis(cluster.timeout_ms),
        connections: cluster.connections as usize,
        ..Access::default()
    }
}

/// Makes the options with which a database is read: password, timeout, connections.
pub fn sql_access(config: &Config) -> SqlAccess {
    let sql = &config.store.sql;
    SqlAccess {
        password: sql.password.as_ref().map(|password| password.as_str().to_owned()),
        max_open: sql.max_open_connections,
        max_idle: sql.max_idle_connections,
        timeout: ms(sql.timeout_ms),
        utxo_batch_size: None,
    }
}

/// Makes the login and the options of the blob store.
pub fn blob_settings(config: &Config, metrics: &Arc<Metrics>) -> (BlobAccess, BlobOptions) {
    let blobs = &config.store.blobs;
    let login = blobs.access_key_id.clone().zip(blobs.secret_access_key.as_ref());
    let access = BlobAccess {
        login: login.map(|(id, secret)| (id, secret.as_str().to_owned())),
        retries: blobs.retries as usize,
    };
    let options = BlobOptions {
        timeout: ms(blobs.timeout_ms),
        least_rate: blobs.min_bytes_per_s,
        cache_bytes: usize::try_from(blobs.cache_bytes).unwrap_or(usize::MAX),
        cache_time: ms(blobs.cache_ttl_ms),
        whole_read_bytes: usize::try_from(blobs.whole_read_bytes).unwrap_or(usize::MAX),
        part_bytes: usize::try_from(blobs.part_bytes).ok(),
        metrics: metrics.clone(),
    };
    (access, options)
}

/// Returns the place of the objects with the transaction ids of large blocks; `None`: not configured.
pub fn block_objects_url(config: &Config) -> Option<&BlobUrl> {
    config.sequencer.objects_url.as_ref().or(config.objects.url.as_ref())
}

/// Makes the limits on dead letters of one partition.
pub fn dead_letter_limits(config: &Config) -> DeadLetterLimits {
    let ingest = &config.ingest;
    DeadLetterLimits { consecutive: ingest.dead_letter_consecutive, ratio: ingest.dead_letter_ratio.0 }
}

/// Makes the limits of events by reference.
pub fn event_body_limits(config: &Config) -> EventBodyLimits {
    EventBodyLimits {
        inline_event_bytes: config.objects.inline_event_bytes as usize,
        max_body_bytes: config.objects.max_body_bytes,
    }
}

/// Returns the sizes of messages that the producer and the consumer are set to.
pub fn message_limits(config: &Config) -> MessageLimits {
    let receive_bytes = config.kafka.properties.get("receive.message.max.bytes").and_then(|bytes| bytes.parse().ok());
    MessageLimits {
        inline_event_bytes: config.objects.inline_event_bytes.into(),
        receive_bytes: receive_bytes.unwrap_or(DEFAULT_RECEIVE_BYTES),
    }
}

/// Returns the greatest size of an inline body, bytes. Larger bodies go to the blob store, if there is one.
fn inline_limit(config: &Config) -> u64 {
    if config.store.externalize_all_transactions { 0 } else { config.store.max_tx_size_in_store }
}

/// Makes the settings of the store. The store serves the sequencer, so the batch size and the concurrency are the
/// sequencer's.
pub fn store_settings(config: &Config) -> StoreSettings {
    StoreSettings {
        network: config.store.network,
        rules: record_rules(config),
        utxo_batch_size: config.store.utxo_batch_size,
        batch_size: config.sequencer.mined_batch_size as usize,
        concurrency: config.sequencer.concurrency as usize,
        retry_pause: (ms(config.ingest.retry_pause_ms), ms(config.ingest.retry_pause_max_ms)),
        inline_limit: inline_limit(config),
    }
}

/// Makes the settings of an instance: topics, group and limits.
pub fn instance_settings(config: &Config) -> InstanceSettings {
    InstanceSettings {
        pipeline: pipeline_settings(config),
        sequencer: SequencerSettings {
            block_wait: ms(config.sequencer.block_wait_ms),
            descendants_per_decision: config.sequencer.descendants_per_decision as usize,
            verdict_memory: VerdictMemory::default(),
            window_events: 256,
            commit_interval: ms(config.ingest.commit_interval_ms),
            prune: config.prune.enabled.then(|| prune_task(config)),
            recovery: recovery_task(config),
            mined_outcomes: config.outcomes.mined,
        },
        topics: sequencer_topics(config),
        sequencer_enabled: config.sequencer.enabled,
        durability_lag: config.ingest.durability_lag_ms.map(ms),
    }
}

/// Makes the settings of the pruning that an instance does by itself.
pub fn prune_task(config: &Config) -> PruneTask {
    let keep_tombstones = Some(config.prune.keep_tombstones).filter(|blocks| *blocks > 0);
    let step_size = config.prune.batch_size as usize;
    let pass = PruneSettings { keep_tombstones, step_size, dry_run: false, is_exclusive: false };
    PruneTask { per_second: config.prune.per_second, pass }
}

fn recovery_task(config: &Config) -> Option<RecoveryTask> {
    let recovery = &config.recovery;
    (recovery.interval_ms > 0).then(|| RecoveryTask {
        interval: ms(recovery.interval_ms),
        older_than: ms(recovery.older_than_ms),
        batch_size: recovery.batch_size as usize,
    })
}

/// Makes the settings of the Kafka client.
///
/// A revocation waits for a drain and a commit, at most half of `kafka.max_poll_interval_ms`: after that the partitions
/// are revoked without the commit.
pub fn kafka_settings(config: &Config) -> KafkaSettings {
    let kafka = &config.kafka;
    let max_poll_interval = ms(kafka.max_poll_interval_ms);
    let commit_timeout = COMMIT_TIMEOUT.min(max_poll_interval / 4);
    let drain = ms(config.ingest.drain_timeout_ms) + commit_timeout;
    KafkaSettings {
        client_id: kafka.client_id.clone(),
        rack: kafka.rack.clone(),
        group_instance_id: kafka.instance_id.clone(),
        group_protocol: kafka.group_protocol,
        assignment: kafka.assignment.unwrap_or(match kafka.instance_id {
            // Cooperative rebalances lose partitions that a static member gives up when it dies before it reports that.
            Some(_) => AssignmentStrategy::Range,
            None => AssignmentStrategy::CooperativeSticky,
        }),
        session_timeout: ms(kafka.session_timeout_ms),
        heartbeat_interval: ms(kafka.heartbeat_interval_ms),
        max_poll_interval,
        fetch_min_bytes: kafka.fetch_min_bytes,
        fetch_wait_max: ms(kafka.fetch_wait_max_ms),
        max_partition_fetch_bytes: kafka.max_partition_fetch_bytes,
        fetch_budget_bytes: kafka.fetch_budget_bytes,
        batch_messages: kafka.batch_messages as usize,
        batch_bytes: kafka.batch_bytes as usize,
        // A seek takes two requests, during which the consumer does not poll.
        request_timeout: ms(kafka.request_timeout_ms).min(max_poll_interval / 2),
        delivery_timeout: ms(kafka.delivery_timeout_ms),
        replication_factor: kafka.replication_factor.and_then(|copies| i32::try_from(copies).ok()),
        commit_timeout,
        revocation_timeout: drain.min(max_poll_interval / 2),
        close_timeout: commit_timeout,
        security: kafka.security.is_configured().then(|| kafka_security(&kafka.security)),
        pass_through: kafka.properties.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        brokers: kafka.brokers.as_str().to_owned(),
    }
}

fn kafka_security(security: &Security) -> KafkaSecurity {
    let reveal = |secret: &Option<Secret>| secret.as_ref().map(|secret| secret.as_str().to_owned());
    KafkaSecurity {
        protocol: security.protocol,
        mechanism: security.mechanism,
        username: security.username.clone(),
        password: reveal(&security.password),
        ca_file: security.ca_file.as_ref().map(PathBuf::from),
        certificate_file: security.certificate_file.as_ref().map(PathBuf::from),
        key_file: security.key_file.as_ref().map(PathBuf::from),
        key_password: reveal(&security.key_password),
        allows_any_host: !security.endpoint_identification,
    }
}

fn pipeline_settings(config: &Config) -> PipelineSettings {
    let ingest = &config.ingest;
    PipelineSettings {
        topic: config.kafka.topics.validated_txs.as_str().into(),
        partitions: None,
        group: config.kafka.group.clone(),
        plan: PlanSettings {
            retry_min_ms: ingest.retry_pause_ms,
            retry_max_ms: ingest.retry_pause_max_ms,
            flag_grace_ms: ingest.flag_grace_ms,
            rules: record_rules(config),
        },
        dispatch: DispatchSettings {
            batch_size: ingest.batch_size as usize,
            batch_age: ms(ingest.batch_age_ms),
            in_flight_batches: ingest.in_flight_batches as usize,
        },
        max_active: ingest.max_in_flight_transactions as usize,
        max_not_durable: ingest.max_not_durable_transactions as usize,
        bounds: PartitionLimits {
            span: ingest.max_uncommitted_span.into(),
            bytes: ingest.unfinished_bytes_per_partition,
        },
        bytes_in_all: ingest.unfinished_bytes_total,
        dead_letter_limits: dead_letter_limits(config),
        missing_parent_grace_ms: ingest.missing_parent_grace_ms,
        commit_interval: ms(ingest.commit_interval_ms),
        drain_timeout: ms(ingest.drain_timeout_ms),
        live_outcomes: config.outcomes.live.then_some(LONGEST_OUTCOME_PAUSE),
    }
}

fn sequencer_topics(config: &Config) -> SequencerTopics {
    let topics = &config.kafka.topics;
    SequencerTopics {
        block_mined: topics.block_mined.to_string(),
        reorgs: topics.reorgs.to_string(),
        chain: topics.chain.to_string(),
        decisions: topics.decisions.to_string(),
        outcomes: topics.outcomes.to_string(),
        dead_letters: topics.dead_letters.to_string(),
    }
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        broker::kafka::{SaslMechanism, SecurityProtocol},
        tx::Network,
    };

    fn config(settings: &[(&str, &str)]) -> Config {
        let variables = settings.iter().map(|(key, value)| (format!("UTXO_STORE__{key}").into(), (*value).into()));
        Config::load_from(None, variables).unwrap()
    }

    #[test]
    fn each_setting_reaches_its_component() {
        let config = config(&[
            ("KAFKA__GROUP", "g"),
            ("KAFKA__TOPICS__VALIDATED_TXS", "txs"),
            ("KAFKA__TOPICS__BLOCK_MINED", "blocks"),
            ("KAFKA__TOPICS__REORGS", "reorgs"),
            ("KAFKA__TOPICS__CHAIN", "chain"),
            ("KAFKA__TOPICS__DECISIONS", "decisions"),
            ("KAFKA__TOPICS__OUTCOMES", "outcomes"),
            ("KAFKA__TOPICS__DEAD_LETTERS", "dead"),
            ("STORE__NETWORK", "regtest"),
            ("STORE__UTXO_BATCH_SIZE", "11"),
            ("STORE__BLOCK_HEIGHT_RETENTION", "12"),
            ("INGEST__BATCH_SIZE", "13"),
            ("INGEST__BATCH_AGE_MS", "14"),
            ("INGEST__IN_FLIGHT_BATCHES", "15"),
            ("INGEST__MAX_IN_FLIGHT_TRANSACTIONS", "16"),
            ("INGEST__UNFINISHED_BYTES_PER_PARTITION", "1048577"),
            ("INGEST__MAX_UNCOMMITTED_SPAN", "18"),
            ("INGEST__MISSING_PARENT_GRACE_MS", "19"),
            ("INGEST__FLAG_GRACE_MS", "20"),
            ("INGEST__RETRY_PAUSE_MS", "21"),
            ("INGEST__RETRY_PAUSE_MAX_MS", "22"),
            ("INGEST__COMMIT_INTERVAL_MS", "23"),
            ("INGEST__DEAD_LETTER_CONSECUTIVE", "24"),
            ("INGEST__DEAD_LETTER_RATIO", "0.25"),
            ("INGEST__DRAIN_TIMEOUT_MS", "26"),
            ("INGEST__DURABILITY_LAG_MS", "31"),
            ("INGEST__MAX_NOT_DURABLE_TRANSACTIONS", "32"),
            ("OUTCOMES__LIVE", "false"),
            ("OUTCOMES__MINED", "false"),
            ("SEQUENCER__ENABLED", "false"),
            ("SEQUENCER__BLOCK_WAIT_MS", "27"),
            ("SEQUENCER__MINED_BATCH_SIZE", "28"),
            ("SEQUENCER__CONCURRENCY", "29"),
            ("SEQUENCER__DESCENDANTS_PER_DECISION", "30"),
            ("PRUNE__ENABLED", "true"),
            ("PRUNE__PER_SECOND", "33"),
            ("PRUNE__BATCH_SIZE", "34"),
            ("PRUNE__KEEP_TOMBSTONES", "35"),
            ("RECOVERY__INTERVAL_MS", "36"),
            ("RECOVERY__OLDER_THAN_MS", "1037"),
            ("RECOVERY__BATCH_SIZE", "38"),
        ]);

        let InstanceSettings { pipeline, sequencer, topics, sequencer_enabled, durability_lag } =
            instance_settings(&config);
        assert_eq!((&*pipeline.topic, &*pipeline.group), ("txs", "g"));
        assert_eq!(pipeline.plan.rules, Rules { retention: 12, network: Network::Regtest });
        let dispatch = pipeline.dispatch;
        assert_eq!((dispatch.batch_size, dispatch.batch_age, dispatch.in_flight_batches), (13, ms(14), 15));
        assert_eq!((pipeline.max_active, pipeline.max_not_durable), (16, 32));
        assert_eq!((pipeline.bounds.bytes, pipeline.bounds.span), (1_048_577, 18));
        assert_eq!(pipeline.missing_parent_grace_ms, 19);
        let plan = pipeline.plan;
        assert_eq!((plan.flag_grace_ms, plan.retry_min_ms, plan.retry_max_ms), (20, 21, 22));
        assert_eq!((pipeline.commit_interval, pipeline.drain_timeout), (ms(23), ms(26)));
        let limits = pipeline.dead_letter_limits;
        assert_eq!((limits.consecutive, limits.ratio), (24, 0.25));
        assert!(!sequencer_enabled);
        assert_eq!((pipeline.live_outcomes, sequencer.mined_outcomes), (None, false));
        assert_eq!(durability_lag, Some(ms(31)));
        assert_eq!((sequencer.block_wait, sequencer.descendants_per_decision), (ms(27), 30));
        assert_eq!(sequencer.commit_interval, ms(23));
        let prune = sequencer.prune.unwrap();
        assert_eq!((prune.per_second, prune.pass.step_size, prune.pass.keep_tombstones), (33, 34, Some(35)));
        let recovery = sequencer.recovery.unwrap();
        assert_eq!((recovery.interval, recovery.older_than, recovery.batch_size), (ms(36), ms(1_037), 38));
        let names = [topics.block_mined, topics.reorgs, topics.chain, topics.decisions, topics.outcomes];
        assert_eq!(names, ["blocks", "reorgs", "chain", "decisions", "outcomes"]);
        assert_eq!(topics.dead_letters, "dead");

        let store = store_settings(&config);
        assert_eq!((store.network, store.utxo_batch_size, store.rules.retention), (Network::Regtest, 11, 12));
        assert_eq!((store.batch_size, store.concurrency, store.retry_pause), (28, 29, (ms(21), ms(22))));
    }

    #[test]
    fn the_kafka_client_has_the_configured_settings() {
        let kafka = kafka_settings(&config(&[
            ("KAFKA__BROKERS", "a:1,b:2"),
            ("KAFKA__CLIENT_ID", "me"),
            ("KAFKA__INSTANCE_ID", "me-0"),
            ("KAFKA__RACK", "here"),
            ("KAFKA__SESSION_TIMEOUT_MS", "9001"),
            ("KAFKA__HEARTBEAT_INTERVAL_MS", "901"),
            ("KAFKA__MAX_POLL_INTERVAL_MS", "90001"),
            ("KAFKA__FETCH_WAIT_MAX_MS", "7"),
            ("KAFKA__FETCH_MIN_BYTES", "8"),
            ("KAFKA__ASSIGNMENT", "range"),
            ("KAFKA__MAX_PARTITION_FETCH_BYTES", "2000"),
            ("KAFKA__FETCH_BUDGET_BYTES", "2000000"),
            ("KAFKA__BATCH_MESSAGES", "9"),
            ("KAFKA__BATCH_BYTES", "3000"),
            ("KAFKA__REQUEST_TIMEOUT_MS", "4000"),
            ("KAFKA__DELIVERY_TIMEOUT_MS", "5000"),
            ("KAFKA__REPLICATION_FACTOR", "3"),
            ("KAFKA__PROPERTIES__SOCKET_TIMEOUT_MS", "6000"),
        ]));
        assert_eq!((&*kafka.brokers, &*kafka.client_id), ("a:1,b:2", "me"));
        assert_eq!((kafka.group_instance_id.as_deref(), kafka.rack.as_deref()), (Some("me-0"), Some("here")));
        assert_eq!((kafka.session_timeout, kafka.heartbeat_interval), (ms(9_001), ms(901)));
        assert_eq!((kafka.max_poll_interval, kafka.fetch_wait_max, kafka.fetch_min_bytes), (ms(90_001), ms(7), 8));
        assert_eq!((kafka.assignment, kafka.replication_factor), (AssignmentStrategy::Range, Some(3)));
        assert_eq!((kafka.max_partition_fetch_bytes, kafka.fetch_budget_bytes), (2_000, 2_000_000));
        assert_eq!((kafka.batch_messages, kafka.batch_bytes), (9, 3_000));
        assert_eq!((kafka.request_timeout, kafka.delivery_timeout), (ms(4_000), ms(5_000)));
        assert_eq!(kafka.pass_through["socket.timeout.ms"], "6000");
        assert!(kafka.security.is_none(), "properties can set the protocol instead");
    }

    #[test]
    fn a_login_reaches_the_client() {
        let kafka = kafka_settings(&config(&[
            ("KAFKA__SECURITY__PROTOCOL", "sasl_plaintext"),
            ("KAFKA__SECURITY__MECHANISM", "PLAIN"),
            ("KAFKA__SECURITY__USERNAME", "me"),
            ("KAFKA__SECURITY__PASSWORD", "word"),
        ]));
        let KafkaSecurity { protocol, mechanism, username, password, allows_any_host, .. } = kafka.security.unwrap();
        assert_eq!((protocol, mechanism), (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::Plain)));
        assert_eq!((username.as_deref(), password.as_deref(), allows_any_host), (Some("me"), Some("word"), false));
    }

    #[test]
    fn an_interval_of_0_turns_recovery_off() {
        assert!(instance_settings(&config(&[("RECOVERY__INTERVAL_MS", "0")])).sequencer.recovery.is_none());
        assert!(instance_settings(&Config::default()).sequencer.recovery.is_some());
    }

    #[test]
    fn static_members_use_range_by_default() {
        assert_eq!(kafka_settings(&Config::default()).assignment, AssignmentStrategy::CooperativeSticky);
        assert_eq!(kafka_settings(&config(&[("KAFKA__INSTANCE_ID", "a")])).assignment, AssignmentStrategy::Range);
        let both = [("KAFKA__INSTANCE_ID", "a"), ("KAFKA__ASSIGNMENT", "roundrobin")];
        assert_eq!(kafka_settings(&config(&both)).assignment, AssignmentStrategy::RoundRobin);
    }

    #[test]
    fn a_revocation_fits_into_any_poll_interval() {
        let defaults = kafka_settings(&Config::default());
        assert_eq!(defaults.revocation_timeout, Duration::from_secs(30), "a drain of 20 s and a commit of 10 s");
        for (poll, drain) in [("2000", "0"), ("10000", "20000"), ("86400000", "600000")] {
            let kafka = kafka_settings(&config(&[
                ("KAFKA__SESSION_TIMEOUT_MS", "2000"),
                ("KAFKA__HEARTBEAT_INTERVAL_MS", "300"),
                ("KAFKA__MAX_POLL_INTERVAL_MS", poll),
                ("INGEST__DRAIN_TIMEOUT_MS", drain),
            ]));
            kafka.check().unwrap();
        }
    }
}
