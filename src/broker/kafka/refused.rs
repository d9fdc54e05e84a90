//! The one list of librdkafka's properties that are not passed through, each with why, and with the setting to use instead.

use std::fmt;

/// Why a property is not passed through. Shown it completes the sentence "`property` …".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// This setting sets it.
    SetBy(&'static str),
    /// This setting of `kafka.security` sets it; where none of them says anything it is still passed through, as it was before they were there.
    Moved(&'static str),
    /// It is fixed: what would break otherwise.
    Fixed(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::SetBy(setting) | Refusal::Moved(setting) => write!(f, "is set by {setting}"),
            Refusal::Fixed(why) => write!(f, "is refused: {why}"),
        }
    }
}

/// Everything of librdkafka's mock cluster: it would take the cluster's place.
const MOCK: &str = "test.mock.";

/// All of them but [`MOCK`]'s. Two names of one property stand together.
pub const REFUSED: &[(&[&str], Refusal)] = &[
    (&["bootstrap.servers", "metadata.broker.list"], Refusal::SetBy("kafka.brokers")),
    (&["group.id"], Refusal::SetBy("kafka.group")),
    (&["client.id"], Refusal::SetBy("kafka.client_id")),
    (&["client.rack"], Refusal::SetBy("kafka.rack")),
    (&["group.instance.id"], Refusal::SetBy("kafka.instance_id")),
    (&["group.protocol"], Refusal::SetBy("kafka.group_protocol")),
    (&["partition.assignment.strategy"], Refusal::SetBy("kafka.assignment")),
    (&["session.timeout.ms"], Refusal::SetBy("kafka.session_timeout_ms")),
    (&["heartbeat.interval.ms"], Refusal::SetBy("kafka.heartbeat_interval_ms")),
    (&["max.poll.interval.ms"], Refusal::SetBy("kafka.max_poll_interval_ms")),
    (&["fetch.wait.max.ms"], Refusal::SetBy("kafka.fetch_wait_max_ms")),
    (&["fetch.min.bytes"], Refusal::SetBy("kafka.fetch_min_bytes")),
    (&["max.partition.fetch.bytes", "fetch.message.max.bytes"], Refusal::SetBy("kafka.max_partition_fetch_bytes")),
    (&["queued.max.messages.kbytes"], Refusal::SetBy("kafka.fetch_budget_bytes")),
    (&["message.timeout.ms", "delivery.timeout.ms"], Refusal::SetBy("kafka.delivery_timeout_ms")),
    (&["queue.buffering.max.ms"], Refusal::SetBy("kafka.properties.linger.ms")),
    (&["security.protocol"], Refusal::Moved("kafka.security.protocol")),
    (&["sasl.mechanism", "sasl.mechanisms"], Refusal::Moved("kafka.security.mechanism")),
    (&["sasl.username"], Refusal::Moved("kafka.security.username")),
    (&["sasl.password"], Refusal::Moved("kafka.security.password")),
    (&["ssl.ca.location", "enable.ssl.certificate.verification"], Refusal::Moved("kafka.security.ca_file")),
    (&["ssl.certificate.location"], Refusal::Moved("kafka.security.certificate_file")),
    (&["ssl.key.location"], Refusal::Moved("kafka.security.key_file")),
    (&["ssl.key.password"], Refusal::Moved("kafka.security.key_password")),
    (&["ssl.endpoint.identification.algorithm"], Refusal::Moved("kafka.security.endpoint_identification")),
    (
        &[
            "enable.auto.commit",
            "auto.commit.enable",
            "auto.commit.interval.ms",
            "enable.auto.offset.store",
            "offset.store.method",
            "offset.store.path",
            "offset.store.sync.interval.ms",
        ],
        Refusal::Fixed("offsets are committed only when everything that their events ask for is in the store"),
    ),
    (&["auto.offset.reset"], Refusal::Fixed("offsets that are gone must be an error, never skipped silently")),
    (&["isolation.level"], Refusal::Fixed("events of aborted transactions must not be read")),
    (
        &["queued.min.messages", "fetch.queue.backoff.ms"],
        Refusal::Fixed("how much is fetched ahead follows from kafka.fetch_budget_bytes"),
    ),
    (
        &["enable.partition.eof"],
        Refusal::Fixed("the ends of partitions must be heard of: that a parent is missing is proven by them"),
    ),
    (
        &["group.protocol.type", "group.remote.assignor"],
        Refusal::Fixed("with kafka.group_protocol = consumer the brokers choose how partitions are spread"),
    ),
    (
        &[
            "enable.idempotence",
            "acks",
            "request.required.acks",
            "max.in.flight.requests.per.connection",
            "max.in.flight",
            "enable.gapless.guarantee",
            "message.send.max.retries",
            "retries",
            "queuing.strategy",
            "transactional.id",
            "transaction.timeout.ms",
        ],
        Refusal::Fixed("what is acknowledged must be in all in-sync replicas, once and in order"),
    ),
    (
        &["delivery.report.only.error", "enabled_events"],
        Refusal::Fixed("every acknowledgement must be heard of: events are complete only behind it"),
    ),
    (&["message.max.bytes"], Refusal::Fixed("what a topic takes is for the topic to say (max.message.bytes)")),
    (&["partitioner"], Refusal::Fixed("keys must go where the Java client puts them")),
    (
        &["api.version.request", "api.version.fallback.ms", "broker.version.fallback"],
        Refusal::Fixed("by an older protocol messages would lose their headers, and the producer its order"),
    ),
    (&["allow.auto.create.topics"], Refusal::Fixed("a topic that is misspelt must not be made")),
    (&["topic.blacklist"], Refusal::Fixed("a topic that is there must not seem to be missing")),
    (&["log.queue"], Refusal::Fixed("log records go where [log] says")),
];

/// Why a property is not passed through; `None`: it is.
pub fn refusal(property: &str) -> Option<Refusal> {
    if property.starts_with(MOCK) {
        return Some(Refusal::Fixed("it would put a mock in the place of the cluster"));
    }
    REFUSED.iter().find(|(names, _)| names.contains(&property)).map(|(_, refusal)| *refusal)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rdkafka::{ClientConfig, error::KafkaError, types::RDKafkaConfRes};

    use super::*;
    use crate::broker::kafka::{KafkaSecurity, KafkaSettings, SaslMechanism, SecurityProtocol};

    fn is_known(property: &str) -> bool {
        // No number, no boolean and no word: a value that text alone takes.
        let made = ClientConfig::new().set(property, "?").create_native_config();
        !matches!(made.err(), Some(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)))
    }

    #[test]
    fn every_name_is_one_of_librdkafkas_and_stands_once() {
        assert!(!is_known("no.such.property"));
        let mut seen = BTreeSet::new();
        for name in REFUSED.iter().flat_map(|(names, _)| *names) {
            assert!(is_known(name) && seen.insert(name), "{name}");
        }
    }

    /// Else a property would be taken, and nothing come of it.
    #[test]
    fn whatever_this_program_sets_is_refused() {
        let word = || Some("word".to_owned());
        let security = KafkaSecurity {
            protocol: SecurityProtocol::SaslSsl,
            mechanism: Some(SaslMechanism::Plain),
            ca_file: word().map(Into::into),
            certificate_file: word().map(Into::into),
            key_file: word().map(Into::into),
            key_password: word(),
            username: word(),
            password: word(),
            any_host: true,
        };
        assert_eq!(security.properties().count(), 9);
        let settings = KafkaSettings {
            group_instance_id: word(),
            security: Some(security),
            ..KafkaSettings::new("localhost:9092")
        };
        for config in [settings.member("group", 1), settings.reading_at_once("group"), settings.producing()] {
            let map = config.config_map();
            let passed = map.into_keys().filter(|name| refusal(name).is_none() && *name != "linger.ms");
            assert_eq!(passed.collect::<Vec<_>>(), Vec::<&str>::new());
        }
    }
}
