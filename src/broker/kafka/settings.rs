//! Typed settings of the Kafka client. Further properties pass through, unless they would break a guarantee.

use std::{collections::BTreeMap, time::Duration};

use rdkafka::{ClientConfig, config::RDKafkaLogLevel};

use super::{
    inbox::BATCHES_AHEAD,
    refused::{PropertyRefusal, refusal},
    security::KafkaSecurity,
};
use crate::{
    broker::{BrokerError, BrokerErrorKind},
    text::not_one_of,
};

/// Share of a reader in the fetch budget: each reader is opened alone and gets 1/16 of the budget.
const READER_SHARES: usize = 16;

/// Least time for which a broker delays the answer to a reader at the end of a partition. A marker of a Kafka
/// transaction is passed after as long.
const READER_FETCH_WAIT: Duration = Duration::from_millis(250);
/// Least bytes of one fetch and of one batch. The fetch budget is exceeded where a partition's share is smaller.
const MIN_FETCH_BYTES: u64 = 1 << 10;

/// Limits of the messages that are fetched ahead for one partition. Together they use the partition's share of the
/// fetch budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PrefetchLimits {
    /// Size of librdkafka's queue in KiB; librdkafka fetches while the queue holds less.
    queue_kbytes: u64,
    /// Bytes of one fetch, beside the queue.
    fetch_bytes: u32,
    /// Bytes of one batch; at most [`BATCHES_AHEAD`] batches wait in the inbox.
    pub(super) batch_bytes: usize,
}

/// Protocol by which a consumer group assigns partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "lowercase", parse_err_ty = String, parse_err_fn = not_one_of::<Self>)]
pub enum GroupProtocol {
    /// A member assigns the partitions ([`AssignmentStrategy`]).
    #[default]
    Classic,
    /// The brokers assign the partitions, and set session timeout and heartbeats (KIP-848, Kafka 4.0 and later).
    Consumer,
}

/// Strategy by which a consumer group of the classic protocol assigns partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::Display, strum::EnumString, strum::VariantNames)]
#[strum(serialize_all = "kebab-case", parse_err_ty = String, parse_err_fn = not_one_of::<Self>)]
pub enum AssignmentStrategy {
    /// Assigns evenly; a rebalance revokes only the partitions that move.
    #[default]
    CooperativeSticky,
    /// Assigns contiguous ranges of each topic; a rebalance revokes every partition.
    Range,
    /// Assigns partitions in turn; a rebalance revokes every partition.
    #[strum(serialize = "roundrobin")]
    RoundRobin,
}

/// Settings of a Kafka client.
#[derive(Clone)]
pub struct KafkaSettings {
    /// Addresses of brokers, `host:port,…` (`bootstrap.servers`).
    pub brokers: String,
    /// Name of the client in the brokers' logs (`client.id`).
    pub client_id: String,
    /// Rack of the client (`client.rack`): brokers that select by rack let the client read from a replica there.
    pub rack: Option<String>,
    /// Name of a static member (`group.instance.id`): a restart within the session timeout moves no partition.
    pub group_instance_id: Option<String>,
    /// Protocol of the consumer group (`group.protocol`).
    pub group_protocol: GroupProtocol,
    /// Assignment strategy of the classic protocol (`partition.assignment.strategy`).
    pub assignment: AssignmentStrategy,
    /// Time without a heartbeat after which the group removes a member (`session.timeout.ms`). Classic protocol only.
    pub session_timeout: Duration,
    /// Time between heartbeats (`heartbeat.interval.ms`), at most a third of the session timeout. Classic protocol
    /// only.
    pub heartbeat_interval: Duration,
    /// Longest time between polls, and the time of a member for a revocation (`max.poll.interval.ms`).
    pub max_poll_interval: Duration,
    /// Bytes for which a broker delays the answer to a fetch (`fetch.min.bytes`).
    pub fetch_min_bytes: u32,
    /// Longest delay of the answer to a fetch (`fetch.wait.max.ms`).
    pub fetch_wait_max: Duration,
    /// Most bytes of a partition in one fetch (`max.partition.fetch.bytes`).
    pub max_partition_fetch_bytes: u32,
    /// Most bytes in memory that are read and not polled, over all partitions of a subscription: in librdkafka and in
    /// waiting batches. A fetch, or a batch, with a single message may exceed its share.
    pub fetch_budget_bytes: u64,
    /// Most messages of a batch.
    pub batch_messages: usize,
    /// Most bytes of keys, payloads and headers of a batch; a single message may be larger.
    pub batch_bytes: usize,
    /// Timeout of a request for metadata, watermarks or committed offsets, and of a seek.
    pub request_timeout: Duration,
    /// Timeout of one commit of offsets.
    pub commit_timeout: Duration,
    /// Time that a revocation waits for [`finish_revocation`](crate::broker::Consumer::finish_revocation).
    pub revocation_timeout: Duration,
    /// Time to leave a group before the consumer is abandoned.
    pub close_timeout: Duration,
    /// Time after which the delivery of a produced message is given up (`message.timeout.ms`).
    pub delivery_timeout: Duration,
    /// Replication factor of topics created by this client; `None`: the cluster's default.
    pub replication_factor: Option<i32>,
    /// Security of the connections; `None`: as `pass_through` says, by default unencrypted and without a login.
    pub security: Option<KafkaSecurity>,
    /// Further properties of librdkafka, e.g. `socket.timeout.ms`.
    pub pass_through: BTreeMap<String, String>,
}

impl KafkaSettings {
    /// Default settings for the cluster at `brokers` (`host:port,…`).
    #[cfg(feature = "testkit")]
    pub fn new(brokers: impl Into<String>) -> Self {
        KafkaSettings {
            brokers: brokers.into(),
            client_id: "utxo-store".into(),
            rack: None,
            group_instance_id: None,
            group_protocol: GroupProtocol::default(),
            assignment: AssignmentStrategy::default(),
            session_timeout: Duration::from_secs(30),
            heartbeat_interval: Duration::from_secs(3),
            max_poll_interval: Duration::from_secs(300),
            fetch_min_bytes: 64 << 10,
            fetch_wait_max: Duration::from_millis(50),
            max_partition_fetch_bytes: 4 << 20,
            fetch_budget_bytes: 256 << 20,
            batch_messages: 1_000,
            batch_bytes: 512 << 10,
            request_timeout: Duration::from_secs(10),
            commit_timeout: Duration::from_secs(10),
            revocation_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(10),
            delivery_timeout: Duration::from_secs(120),
            replication_factor: None,
            security: None,
            pass_through: BTreeMap::new(),
        }
    }

    /// Refuses contradictory values, and pass-through properties that have a setting or are fixed.
    pub fn check(&self) -> Result<(), BrokerError> {
        let refused = |message: String| Err(BrokerError::new(BrokerErrorKind::Refused, "configure Kafka", message));
        if self.group_protocol == GroupProtocol::Consumer && self.group_instance_id.is_some() {
            return refused(
                "group.instance.id and the group protocol `consumer`: a member that was killed is refused under its \
                 name until its session ends"
                    .to_owned(),
            );
        }
        if self.heartbeat_interval * 3 > self.session_timeout {
            return refused(format!(
                "heartbeat interval {:?} is more than a third of the session timeout {:?}",
                self.heartbeat_interval, self.session_timeout
            ));
        }
        if self.max_poll_interval < self.session_timeout {
            return refused(format!(
                "maximum poll interval {:?} is below the session timeout {:?}",
                self.max_poll_interval, self.session_timeout
            ));
        }
        if self.revocation_timeout + self.commit_timeout >= self.max_poll_interval {
            return refused(format!(
                "revocation timeout {:?} and commit timeout {:?} do not fit into the maximum poll interval {:?}",
                self.revocation_timeout, self.commit_timeout, self.max_poll_interval
            ));
        }
        let linger_ms = self.pass_through.get("linger.ms").and_then(|ms| ms.parse().ok()).unwrap_or(0);
        if self.delivery_timeout <= Duration::from_millis(linger_ms) {
            return refused(format!(
                "delivery timeout {:?} is not longer than linger.ms, which is {linger_ms}",
                self.delivery_timeout
            ));
        }
        let is_passed_through =
            |why: &PropertyRefusal| matches!(why, PropertyRefusal::SetBySecurity(_)) && self.security.is_none();
        let refusal_of = |key: &String| refusal(key).filter(|why| !is_passed_through(why));
        match self.pass_through.keys().find_map(|key| refusal_of(key).map(|why| (key, why))) {
            Some((key, why)) => refused(format!("{key} {why}")),
            None => Ok(()),
        }
    }

    /// Configuration that all clients share.
    pub(super) fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        for (key, value) in &self.pass_through {
            config.set(key, value);
        }
        for (key, value) in self.security.iter().flat_map(KafkaSecurity::properties) {
            config.set(key, value);
        }
        if let Some(rack) = &self.rack {
            config.set("client.rack", rack);
        }
        // A lower level would drop the lines that the property `debug` requests.
        let level =
            if self.pass_through.contains_key("debug") { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info };
        config.set("bootstrap.servers", &self.brokers).set("client.id", &self.client_id).set_log_level(level);
        config
    }

    /// Divides the fetch budget among partitions: librdkafka limits each partition's queue separately, and requests a
    /// whole fetch while a queue is not full.
    pub(super) fn prefetch_limits(&self, partitions: usize) -> PrefetchLimits {
        let share = self.fetch_budget_bytes / partitions.max(1) as u64;
        let at_most = |most: u64, part: u64| most.min((share / part).max(MIN_FETCH_BYTES));
        let fetch_bytes = at_most(self.max_partition_fetch_bytes.into(), 2);
        let batch_bytes = at_most(self.batch_bytes as u64, 8);
        let queue_bytes = share.saturating_sub(fetch_bytes + BATCHES_AHEAD as u64 * batch_bytes);
        PrefetchLimits {
            queue_kbytes: (queue_bytes >> 10).clamp(1, 2_097_151),
            // Neither limit is above its setting.
            fetch_bytes: u32::try_from(fetch_bytes).unwrap_or(self.max_partition_fetch_bytes),
            batch_bytes: usize::try_from(batch_bytes).unwrap_or(self.batch_bytes),
        }
    }

    /// Configuration of a client that reads; `partitions` partitions share the fetch budget.
    pub(super) fn consumer_config(&self, group: &str, partitions: usize) -> ClientConfig {
        let prefetch = self.prefetch_limits(partitions);
        let mut config = self.client_config();
        config
            .set("group.id", group)
            .set("group.protocol", "classic")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .set("allow.auto.create.topics", "false")
            .set("fetch.queue.backoff.ms", "20")
            .set("queued.min.messages", "10000")
            .set("queued.max.messages.kbytes", prefetch.queue_kbytes.to_string())
            .set("fetch.min.bytes", self.fetch_min_bytes.to_string())
            .set("fetch.wait.max.ms", self.fetch_wait_max.as_millis().to_string())
            .set("max.partition.fetch.bytes", prefetch.fetch_bytes.to_string())
            .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
            .set("heartbeat.interval.ms", self.heartbeat_interval.as_millis().to_string())
            .set("max.poll.interval.ms", self.max_poll_interval.as_millis().to_string());
        config
    }

    /// Configuration of a reader of so many partitions: brokers answer a fetch with the first message. A long wait at
    /// the end of a partition thus delays no message, and saves requests of idle readers.
    pub(super) fn reader_config(&self, group: &str, partitions: usize) -> ClientConfig {
        let mut config = self.consumer_config(group, READER_SHARES * partitions);
        let wait = self.fetch_wait_max.max(READER_FETCH_WAIT);
        config.set("fetch.min.bytes", "1").set("fetch.wait.max.ms", wait.as_millis().to_string());
        config
    }

    /// Configuration of a group member with `partitions` partitions.
    pub(super) fn member_config(&self, group: &str, partitions: usize) -> ClientConfig {
        let mut config = self.consumer_config(group, partitions);
        match self.group_protocol {
            GroupProtocol::Classic => {
                config.set("partition.assignment.strategy", self.assignment.to_string());
            }
            GroupProtocol::Consumer => {
                // The brokers set these values; librdkafka refuses to start with them.
                config.set("group.protocol", "consumer").remove("session.timeout.ms").remove("heartbeat.interval.ms");
            }
        }
        if let Some(id) = &self.group_instance_id {
            config.set("group.instance.id", id);
        }
        config
    }

    /// Configuration of an idempotent producer with `acks=all`.
    pub(super) fn producer_config(&self) -> ClientConfig {
        let mut config = self.client_config();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // The topic's own limit decides: the client's default of 1 MB would refuse a dead letter of a full-size
            // event.
            .set("message.max.bytes", "1000000000")
            // Feed, decisions and contests wait for acknowledgements and must not wait for a batch to fill, too. Under
            // load, batches fill while earlier batches are in flight.
            .set("linger.ms", self.pass_through.get("linger.ms").map_or("0", String::as_str))
            .set("message.timeout.ms", self.delivery_timeout.as_millis().to_string())
            .set("partitioner", "murmur2_random");
        config
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use rdkafka::consumer::BaseConsumer;

    use super::*;
    use crate::broker::kafka::{HAS_TLS, KafkaBroker, SaslMechanism, SecurityProtocol};

    #[test]
    fn properties_that_break_a_guarantee_are_refused_by_name() {
        for key in ["enable.auto.commit", "auto.offset.reset", "acks", "group.protocol", "test.mock.num.brokers"] {
            let mut settings = KafkaSettings::new("localhost:9092");
            settings.pass_through.insert(key.into(), "true".into());
            let error = settings.check().unwrap_err();
            assert!(error.message.starts_with(key), "{error}");
        }
    }

    #[test]
    fn members_of_the_consumer_protocol_set_no_classic_properties() {
        let mut settings = KafkaSettings::new("localhost:9092");
        settings.group_protocol = GroupProtocol::Consumer;
        settings.check().unwrap();
        let member = settings.member_config("group", 8);
        assert_eq!(member.get("group.protocol"), Some("consumer"));
        for classic in ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"] {
            assert_eq!(member.get(classic), None);
        }
        member.create::<BaseConsumer>().unwrap();
        assert_eq!(settings.reader_config("group", 1).get("group.protocol"), Some("classic"));
        settings.group_instance_id = Some("a".into());
        assert!(settings.check().unwrap_err().message.starts_with("group.instance.id"));
    }

    #[test]
    fn other_properties_pass_through_and_cannot_override_fixed_ones() {
        let mut settings = KafkaSettings::new("localhost:9092");
        settings.pass_through.insert("socket.timeout.ms".into(), "5000".into());
        settings.check().unwrap();
        let config = settings.member_config("group", 8);
        assert_eq!(config.get("socket.timeout.ms"), Some("5000"));
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(
            config.get("queued.max.messages.kbytes"),
            Some("27648"),
            "32 MiB per partition, less a fetch and two batches"
        );
        assert_eq!(config.get("max.partition.fetch.bytes"), Some("4194304"));
    }

    #[test]
    fn every_client_has_the_configured_rack() {
        let nowhere = KafkaSettings::new("localhost:9092");
        let settings = KafkaSettings { rack: Some("a".into()), ..nowhere.clone() };
        let member = settings.member_config("group", 8);
        for config in [&member, &settings.reader_config("group", 1), &settings.producer_config()] {
            assert_eq!(config.get("client.rack"), Some("a"));
        }
        member.create::<BaseConsumer>().unwrap();
        assert_eq!(nowhere.member_config("group", 8).get("client.rack"), None);
    }

    proptest! {
        /// The budget holds for any number of partitions with at least 8 KiB each.
        #[test]
        fn all_prefetched_messages_fit_into_the_budget(
            partitions in 1usize..20_000,
            bytes_each in 8_192u64..1 << 24,
            batch_bytes in 1_024usize..1 << 24,
            max_partition_fetch_bytes in 1_024u32..1 << 26,
        ) {
            let fetch_budget_bytes = bytes_each * partitions as u64;
            let settings = KafkaSettings {
                fetch_budget_bytes,
                batch_bytes,
                max_partition_fetch_bytes,
                ..KafkaSettings::new("localhost:9092")
            };
            let prefetch = settings.prefetch_limits(partitions);
            let queue_bytes = prefetch.queue_kbytes << 10;
            let each = queue_bytes + u64::from(prefetch.fetch_bytes) + 2 * prefetch.batch_bytes as u64;
            prop_assert!(each * partitions as u64 <= fetch_budget_bytes, "{prefetch:?}");
            prop_assert!(prefetch.batch_bytes <= batch_bytes && prefetch.fetch_bytes <= max_partition_fetch_bytes);
        }
    }

    #[test]
    fn security_properties_pass_only_without_security_settings() {
        let mut settings = KafkaSettings::new("localhost:9092");
        settings.pass_through.insert("sasl.password".into(), "hunter2".into());
        settings.check().unwrap();
        settings.security = Some(KafkaSecurity::default());
        let error = settings.check().unwrap_err().message;
        assert_eq!(error, "sasl.password is set by kafka.security.password");
    }

    #[test]
    fn clients_with_tls_and_logins_can_be_created_with_openssl() {
        for (protocol, mechanism) in [
            (SecurityProtocol::Plaintext, None),
            (SecurityProtocol::Ssl, None),
            (SecurityProtocol::SaslSsl, Some(SaslMechanism::Plain)),
            (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::Plain)),
            (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::ScramSha512)),
            (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::OAuthBearer)),
        ] {
            let word = mechanism.filter(|mechanism| mechanism.needs_password()).map(|_| "x".to_owned());
            let security = Some(KafkaSecurity {
                protocol,
                mechanism,
                username: word.clone(),
                password: word,
                ..KafkaSecurity::default()
            });
            let made = KafkaBroker::new(KafkaSettings { security, ..KafkaSettings::new("localhost:1") });
            let needs_tls = protocol.is_encrypted() || !matches!(mechanism, None | Some(SaslMechanism::Plain));
            assert_eq!(
                made.err().map(|error| error.to_string()).is_none(),
                HAS_TLS || !needs_tls,
                "{protocol} {mechanism:?}"
            );
        }
    }

    #[test]
    fn contradictory_timeouts_are_refused() {
        let good = KafkaSettings::new("localhost:9092");
        let slow_heartbeat = KafkaSettings { heartbeat_interval: Duration::from_secs(20), ..good.clone() };
        let slow_drain = KafkaSettings { revocation_timeout: Duration::from_secs(295), ..good.clone() };
        let slow_linger = KafkaSettings {
            delivery_timeout: Duration::from_secs(5),
            pass_through: [("linger.ms".to_owned(), "5000".to_owned())].into(),
            ..good.clone()
        };
        good.check().unwrap();
        assert!(slow_heartbeat.check().unwrap_err().message.contains("heartbeat"));
        assert!(slow_drain.check().unwrap_err().message.contains("revocation"));
        assert!(slow_linger.check().unwrap_err().message.contains("linger.ms, which is 5000"));
    }
}
