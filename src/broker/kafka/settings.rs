//! Settings of the Kafka client, typed, with a pass-through that refuses what would break the guarantees.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use rdkafka::{ClientConfig, config::RDKafkaLogLevel};

use super::{
    inbox::BATCHES_AHEAD,
    refused::{Refusal, refusal},
    security::KafkaSecurity,
};
use crate::broker::{BrokerError, BrokerErrorKind};

/// Readers are opened each for itself: as if so many shared the fetch budget.
const READERS_AT_ONCE: usize = 16;

/// The least that a partition is fetched, or handed on, at once: with so many partitions that this is more than their share, the budget
/// is exceeded.
const LEAST_AT_ONCE: u64 = 1 << 10;

/// What is held ahead of whoever reads, of one partition: together its share of the fetch budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ahead {
    /// In librdkafka's queue; while it holds less, more is fetched.
    queue_kbytes: u64,
    /// Of one fetch, which comes on top.
    fetch_bytes: u32,
    /// Of a batch; few of them wait to be taken.
    pub(super) batch_bytes: usize,
}

/// How the members of a consumer group agree on who reads what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupProtocol {
    /// The members do: one of them spreads the partitions ([`AssignmentStrategy`]).
    #[default]
    Classic,
    /// The brokers do (KIP-848, Kafka 4.0 and later), and say how long sessions are and when heartbeats are due.
    Consumer,
}

impl GroupProtocol {
    const ALL: [Self; 2] = [GroupProtocol::Classic, GroupProtocol::Consumer];

    fn as_str(self) -> &'static str {
        match self {
            GroupProtocol::Classic => "classic",
            GroupProtocol::Consumer => "consumer",
        }
    }
}

impl fmt::Display for GroupProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for GroupProtocol {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = GroupProtocol::ALL.map(GroupProtocol::as_str).join(", ");
        let found = GroupProtocol::ALL.into_iter().find(|protocol| protocol.as_str() == text);
        found.ok_or_else(|| format!("must be one of {known}, not {text:?}"))
    }
}

/// How a consumer group of the classic protocol spreads partitions over its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AssignmentStrategy {
    /// Only what has to move is revoked.
    #[default]
    CooperativeSticky,
    /// Everything is revoked at every change; contiguous ranges of each topic.
    Range,
    /// Everything is revoked at every change; one after the other.
    RoundRobin,
}

impl AssignmentStrategy {
    const ALL: [Self; 3] =
        [AssignmentStrategy::CooperativeSticky, AssignmentStrategy::Range, AssignmentStrategy::RoundRobin];

    fn as_str(self) -> &'static str {
        match self {
            AssignmentStrategy::CooperativeSticky => "cooperative-sticky",
            AssignmentStrategy::Range => "range",
            AssignmentStrategy::RoundRobin => "roundrobin",
        }
    }
}

impl fmt::Display for AssignmentStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AssignmentStrategy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let known = AssignmentStrategy::ALL.map(AssignmentStrategy::as_str).join(", ");
        let found = AssignmentStrategy::ALL.into_iter().find(|strategy| strategy.as_str() == text);
        found.ok_or_else(|| format!("must be one of {known}, not {text:?}"))
    }
}

/// How to reach a Kafka cluster, and how to behave there.
#[derive(Clone)]
pub struct KafkaSettings {
    /// `bootstrap.servers`
    pub brokers: String,
    /// `client.id`
    pub client_id: String,
    /// `client.rack`: reads come from a copy there, where the brokers choose by that.
    pub rack: Option<String>,
    /// `group.instance.id`: static membership, so that a restart within the session timeout moves no partition.
    pub group_instance_id: Option<String>,
    /// `group.protocol`
    pub group_protocol: GroupProtocol,
    /// How partitions are spread, by the classic protocol.
    pub assignment: AssignmentStrategy,
    /// `session.timeout.ms`, by the classic protocol: how long the group waits for a silent member.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`, by the classic protocol: at most a third of the session timeout.
    pub heartbeat_interval: Duration,
    /// `max.poll.interval.ms`: also what the group grants a member to give partitions up.
    pub max_poll_interval: Duration,
    /// `fetch.min.bytes`
    pub fetch_min_bytes: u32,
    /// `fetch.wait.max.ms`
    pub fetch_wait_max: Duration,
    /// `max.partition.fetch.bytes`
    pub max_partition_fetch_bytes: u32,
    /// What may be held in memory ahead of whoever polls, over all partitions of a subscription: in librdkafka, and in batches that wait
    /// to be taken. A fetch brings one message at least, and so may a batch, however large it is.
    pub fetch_budget_bytes: u64,
    /// At most so many messages a batch.
    pub batch_messages: usize,
    /// At most so many bytes of keys, payloads and headers a batch (a single message may be larger).
    pub batch_bytes: usize,
    /// Bound of a request for metadata, watermarks, committed offsets, a seek.
    pub request_timeout: Duration,
    /// Bound of a commit.
    pub commit_timeout: Duration,
    /// For how long a revocation waits for [`finish_revocation`](crate::broker::Consumer::finish_revocation).
    pub revocation_timeout: Duration,
    /// Bound of leaving a group.
    pub close_timeout: Duration,
    /// `message.timeout.ms`: when to give up on delivering a produced message.
    pub delivery_timeout: Duration,
    /// Replication factor of topics created here; `None`: the cluster's default.
    pub replication_factor: Option<i32>,
    /// How the cluster is talked to; `None`: as what is passed through says, which is unencrypted if that says nothing.
    pub security: Option<KafkaSecurity>,
    /// Anything else that librdkafka knows, e.g. `socket.timeout.ms`.
    pub pass_through: BTreeMap<String, String>,
}

impl KafkaSettings {
    /// Defaults for a cluster that keeps up, at `brokers` (`host:port,…`).
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

    /// Refuses values that contradict each other, and pass-through keys that are ours to set.
    pub fn check(&self) -> Result<(), BrokerError> {
        let refused = |message: String| Err(BrokerError::new(BrokerErrorKind::Refused, "configure Kafka", message));
        if self.group_protocol == GroupProtocol::Consumer && self.group_instance_id.is_some() {
            return refused(
                "group.instance.id and the group protocol `consumer`: a member that was killed is refused under its name until its session ends".to_owned(),
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
        let passes = |why: &Refusal| matches!(why, Refusal::Moved(_)) && self.security.is_none();
        let why_not = |key: &String| refusal(key).filter(|why| !passes(why));
        match self.pass_through.keys().find_map(|key| why_not(key).map(|why| (key, why))) {
            Some((key, why)) => refused(format!("{key} {why}")),
            None => Ok(()),
        }
    }

    /// What all clients have in common.
    pub(super) fn client(&self) -> ClientConfig {
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
        // What `debug` asks for would be held back otherwise.
        let level =
            if self.pass_through.contains_key("debug") { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info };
        config.set("bootstrap.servers", &self.brokers).set("client.id", &self.client_id).set_log_level(level);
        config
    }

    /// Divides the fetch budget: librdkafka limits split queues each for itself, and asks for a whole fetch while one is not full.
    pub(super) fn ahead(&self, partitions: usize) -> Ahead {
        let share = self.fetch_budget_bytes / partitions.max(1) as u64;
        let at_once = |most: u64, part: u64| most.min((share / part).max(LEAST_AT_ONCE));
        let fetch_bytes = at_once(self.max_partition_fetch_bytes.into(), 2);
        let batch_bytes = at_once(self.batch_bytes as u64, 8);
        let queue_bytes = share.saturating_sub(fetch_bytes + BATCHES_AHEAD as u64 * batch_bytes);
        Ahead {
            queue_kbytes: (queue_bytes >> 10).clamp(1, 2_097_151),
            // Neither is more than it was.
            fetch_bytes: u32::try_from(fetch_bytes).unwrap_or(self.max_partition_fetch_bytes),
            batch_bytes: usize::try_from(batch_bytes).unwrap_or(self.batch_bytes),
        }
    }

    /// A client that reads; `partitions` share the fetch budget.
    pub(super) fn reading(&self, group: &str, partitions: usize) -> ClientConfig {
        let ahead = self.ahead(partitions);
        let mut config = self.client();
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
            .set("queued.max.messages.kbytes", ahead.queue_kbytes.to_string())
            .set("fetch.min.bytes", self.fetch_min_bytes.to_string())
            .set("fetch.wait.max.ms", self.fetch_wait_max.as_millis().to_string())
            .set("max.partition.fetch.bytes", ahead.fetch_bytes.to_string())
            .set("session.timeout.ms", self.session_timeout.as_millis().to_string())
            .set("heartbeat.interval.ms", self.heartbeat_interval.as_millis().to_string())
            .set("max.poll.interval.ms", self.max_poll_interval.as_millis().to_string());
        config
    }

    /// The same for who waits for the very next message of one partition: it is not held back for company.
    pub(super) fn reading_at_once(&self, group: &str) -> ClientConfig {
        let mut config = self.reading(group, READERS_AT_ONCE);
        config.set("fetch.min.bytes", "1");
        config
    }

    /// A group member.
    pub(super) fn member(&self, group: &str, partitions: usize) -> ClientConfig {
        let mut config = self.reading(group, partitions);
        match self.group_protocol {
            GroupProtocol::Classic => {
                config.set("partition.assignment.strategy", self.assignment.as_str());
            }
            GroupProtocol::Consumer => {
                // librdkafka refuses to start where it is told what the brokers say.
                config.set("group.protocol", "consumer").remove("session.timeout.ms").remove("heartbeat.interval.ms");
            }
        }
        if let Some(id) = &self.group_instance_id {
            config.set("group.instance.id", id);
        }
        config
    }

    /// A producer whose acknowledgement means something.
    pub(super) fn producing(&self) -> ClientConfig {
        let mut config = self.client();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            // The topic's own limit decides; the client's default of 1 MB would refuse a dead letter of a full-size event.
            .set("message.max.bytes", "1000000000")
            // Whoever waits for an acknowledgement (the feed, a decision, a contest) must not wait for company, too; under load
            // batches fill while others are on their way.
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
    fn what_breaks_the_guarantees_is_refused_by_name() {
        for key in ["enable.auto.commit", "auto.offset.reset", "acks", "group.protocol", "test.mock.num.brokers"] {
            let mut settings = KafkaSettings::new("localhost:9092");
            settings.pass_through.insert(key.into(), "true".into());
            let error = settings.check().unwrap_err();
            assert!(error.message.starts_with(key), "{error}");
        }
    }

    #[test]
    fn members_by_the_new_protocol_leave_to_the_brokers_what_they_say() {
        let mut settings = KafkaSettings::new("localhost:9092");
        settings.group_protocol = GroupProtocol::Consumer;
        settings.check().unwrap();
        let member = settings.member("group", 8);
        assert_eq!(member.get("group.protocol"), Some("consumer"));
        for classic in ["session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"] {
            assert_eq!(member.get(classic), None);
        }
        member.create::<BaseConsumer>().unwrap();
        assert_eq!(settings.reading_at_once("group").get("group.protocol"), Some("classic"));
        settings.group_instance_id = Some("a".into());
        assert!(settings.check().unwrap_err().message.starts_with("group.instance.id"));
    }

    #[test]
    fn the_rest_passes_through_and_cannot_shadow_ours() {
        let mut settings = KafkaSettings::new("localhost:9092");
        settings.pass_through.insert("socket.timeout.ms".into(), "5000".into());
        settings.check().unwrap();
        let config = settings.member("group", 8);
        assert_eq!(config.get("socket.timeout.ms"), Some("5000"));
        assert_eq!(config.get("enable.auto.commit"), Some("false"));
        assert_eq!(
            config.get("queued.max.messages.kbytes"),
            Some("27648"),
            "of 32 MiB, besides a fetch and two batches"
        );
        assert_eq!(config.get("max.partition.fetch.bytes"), Some("4194304"));
    }

    #[test]
    fn every_client_says_which_rack_it_is_in() {
        let nowhere = KafkaSettings::new("localhost:9092");
        let settings = KafkaSettings { rack: Some("a".into()), ..nowhere.clone() };
        let member = settings.member("group", 8);
        for config in [&member, &settings.reading_at_once("group"), &settings.producing()] {
            assert_eq!(config.get("client.rack"), Some("a"));
        }
        member.create::<BaseConsumer>().unwrap();
        assert_eq!(nowhere.member("group", 8).get("client.rack"), None);
    }

    proptest! {
        /// However many partitions, down to 8 KiB of each.
        #[test]
        fn all_that_is_held_ahead_fits_into_the_budget(
            partitions in 1usize..20_000,
            of_each in 8_192u64..1 << 24,
            batch_bytes in 1_024usize..1 << 24,
            max_partition_fetch_bytes in 1_024u32..1 << 26,
        ) {
            let fetch_budget_bytes = of_each * partitions as u64;
            let settings = KafkaSettings {
                fetch_budget_bytes,
                batch_bytes,
                max_partition_fetch_bytes,
                ..KafkaSettings::new("localhost:9092")
            };
            let ahead = settings.ahead(partitions);
            let each = (ahead.queue_kbytes << 10) + u64::from(ahead.fetch_bytes) + 2 * ahead.batch_bytes as u64;
            prop_assert!(each * partitions as u64 <= fetch_budget_bytes, "{ahead:?}");
            prop_assert!(ahead.batch_bytes <= batch_bytes && ahead.fetch_bytes <= max_partition_fetch_bytes);
        }
    }

    #[test]
    fn a_property_of_a_security_setting_passes_only_without_them() {
        let mut settings = KafkaSettings::new("localhost:9092");
        settings.pass_through.insert("sasl.password".into(), "hunter2".into());
        settings.check().unwrap();
        settings.security = Some(KafkaSecurity::default());
        let error = settings.check().unwrap_err().message;
        assert_eq!(error, "sasl.password is set by kafka.security.password");
    }

    #[test]
    fn clients_over_tls_and_with_logins_can_be_made_where_there_is_openssl() {
        for (protocol, mechanism) in [
            (SecurityProtocol::Plaintext, None),
            (SecurityProtocol::Ssl, None),
            (SecurityProtocol::SaslSsl, Some(SaslMechanism::Plain)),
            (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::Plain)),
            (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::ScramSha512)),
            (SecurityProtocol::SaslPlaintext, Some(SaslMechanism::OAuthBearer)),
        ] {
            let word = mechanism.filter(|mechanism| mechanism.takes_a_password()).map(|_| "x".to_owned());
            let security = Some(KafkaSecurity {
                protocol,
                mechanism,
                username: word.clone(),
                password: word,
                ..KafkaSecurity::default()
            });
            let made = KafkaBroker::new(KafkaSettings { security, ..KafkaSettings::new("localhost:1") });
            let needs_tls = protocol.encrypts() || !matches!(mechanism, None | Some(SaslMechanism::Plain));
            assert_eq!(
                made.err().map(|error| error.to_string()).is_none(),
                HAS_TLS || !needs_tls,
                "{protocol} {mechanism:?}"
            );
        }
    }

    #[test]
    fn timeouts_that_contradict_each_other_are_refused() {
        let good = KafkaSettings::new("localhost:9092");
        let slow_heart = KafkaSettings { heartbeat_interval: Duration::from_secs(20), ..good.clone() };
        let slow_drain = KafkaSettings { revocation_timeout: Duration::from_secs(295), ..good.clone() };
        let slow_company = KafkaSettings {
            delivery_timeout: Duration::from_secs(5),
            pass_through: [("linger.ms".to_owned(), "5000".to_owned())].into(),
            ..good.clone()
        };
        good.check().unwrap();
        assert!(slow_heart.check().unwrap_err().message.contains("heartbeat"));
        assert!(slow_drain.check().unwrap_err().message.contains("revocation"));
        assert!(slow_company.check().unwrap_err().message.contains("linger.ms, which is 5000"));
    }
}
