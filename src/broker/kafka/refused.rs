//! The list of librdkafka's properties that are not passed through, each with the reason or with the setting to use.

use PropertyRefusal::{Fixed, SetBy, SetBySecurity};

/// Reason why a property is not passed through. `Display` completes the sentence "`property` …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PropertyRefusal {
    /// Name of the setting that sets the property.
    #[error("is set by {0}")]
    SetBy(&'static str),
    /// Name of the setting of `kafka.security` that sets the property. Without any setting of `kafka.security` the
    /// property is passed through: configurations from before these settings stay valid.
    #[error("is set by {0}")]
    SetBySecurity(&'static str),
    /// The guarantee that another value would break: the property is fixed.
    #[error("is refused: {0}")]
    Fixed(&'static str),
}

/// Prefix of the properties of librdkafka's mock cluster, which would replace the real cluster.
const MOCK: &str = "test.mock.";

/// Refused properties, except those with the prefix [`MOCK`]. Synonyms of one property share an entry.
pub const REFUSED_PROPERTIES: &[(&[&str], PropertyRefusal)] = &[
    (&["bootstrap.servers", "metadata.broker.list"], SetBy("kafka.brokers")),
    (&["group.id"], SetBy("kafka.group")),
    (&["client.id"], SetBy("kafka.client_id")),
    (&["client.rack"], SetBy("kafka.rack")),
    (&["group.instance.id"], SetBy("kafka.instance_id")),
    (&["group.protocol"], SetBy("kafka.group_protocol")),
    (&["partition.assignment.strategy"], SetBy("kafka.assignment")),
    (&["session.timeout.ms"], SetBy("kafka.session_timeout_ms")),
    (&["heartbeat.interval.ms"], SetBy("kafka.heartbeat_interval_ms")),
    (&["max.poll.interval.ms"], SetBy("kafka.max_poll_interval_ms")),
    (&["fetch.wait.max.ms"], SetBy("kafka.fetch_wait_max_ms")),
    (&["fetch.min.bytes"], SetBy("kafka.fetch_min_bytes")),
    (&["max.partition.fetch.bytes", "fetch.message.max.bytes"], SetBy("kafka.max_partition_fetch_bytes")),
    (&["queued.max.messages.kbytes"], SetBy("kafka.fetch_budget_bytes")),
    (&["message.timeout.ms", "delivery.timeout.ms"], SetBy("kafka.delivery_timeout_ms")),
    (&["queue.buffering.max.ms"], SetBy("kafka.properties.linger.ms")),
    (&["security.protocol"], SetBySecurity("kafka.security.protocol")),
    (&["sasl.mechanism", "sasl.mechanisms"], SetBySecurity("kafka.security.mechanism")),
    (&["sasl.username"], SetBySecurity("kafka.security.username")),
    (&["sasl.password"], SetBySecurity("kafka.security.password")),
    (&["ssl.ca.location", "enable.ssl.certificate.verification"], SetBySecurity("kafka.security.ca_file")),
    (&["ssl.certificate.location"], SetBySecurity("kafka.security.certificate_file")),
    (&["ssl.key.location"], SetBySecurity("kafka.security.key_file")),
    (&["ssl.key.password"], SetBySecurity("kafka.security.key_password")),
    (&["ssl.endpoint.identification.algorithm"], SetBySecurity("kafka.security.endpoint_identification")),
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
        Fixed("offsets are committed only when everything that their events ask for is in the store"),
    ),
    (&["auto.offset.reset"], Fixed("an offset that the log no longer holds must be an error, never skipped silently")),
    (&["isolation.level"], Fixed("events of aborted transactions must not be read")),
    (
        &["queued.min.messages", "fetch.queue.backoff.ms"],
        Fixed("the amount that is fetched ahead follows from kafka.fetch_budget_bytes"),
    ),
    (&["enable.partition.eof"], Fixed("the ends of partitions must be reported: they prove that a parent is missing")),
    (
        &["group.protocol.type", "group.remote.assignor"],
        Fixed("with kafka.group_protocol = consumer the brokers assign the partitions"),
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
        Fixed("an acknowledged message must be in all in-sync replicas, once and in order"),
    ),
    (
        &["delivery.report.only.error", "enabled_events"],
        Fixed("every acknowledgement must be reported: an event is completed only after it"),
    ),
    (&["message.max.bytes"], Fixed("the topic limits the size of a message (max.message.bytes)")),
    (&["partitioner"], Fixed("keys must go where the Java client puts them")),
    (
        &["api.version.request", "api.version.fallback.ms", "broker.version.fallback"],
        Fixed("by an older protocol messages would lose their headers, and the producer its order"),
    ),
    (&["allow.auto.create.topics"], Fixed("a misspelt topic must not be created")),
    (&["topic.blacklist"], Fixed("an existing topic must not seem to be missing")),
    (&["log.queue"], Fixed("the settings of [log] say where log records go")),
];

/// Reason why a property is not passed through; `None`: the property is passed through.
pub fn refusal(property: &str) -> Option<PropertyRefusal> {
    if property.starts_with(MOCK) {
        return Some(Fixed("a mock cluster would replace the real cluster"));
    }
    REFUSED_PROPERTIES.iter().find(|(names, _)| names.contains(&property)).map(|(_, refusal)| *refusal)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rdkafka::{ClientConfig, error::KafkaError, types::RDKafkaConfRes};

    use super::*;
    use crate::broker::kafka::{KafkaSecurity, KafkaSettings, SaslMechanism, SecurityProtocol};

    fn is_known(property: &str) -> bool {
        // `?` is no number, boolean or enumerated word: a property refuses it unless its value is free text.
        let made = ClientConfig::new().set(property, "?").create_native_config();
        !matches!(made.err(), Some(KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, ..)))
    }

    #[test]
    fn every_refused_name_is_known_to_librdkafka_and_listed_once() {
        assert!(!is_known("no.such.property"));
        let mut seen = BTreeSet::new();
        for name in REFUSED_PROPERTIES.iter().flat_map(|(names, _)| *names) {
            assert!(is_known(name) && seen.insert(name), "{name}");
        }
    }

    /// A property that is accepted and then overwritten would have no effect.
    #[test]
    fn every_property_that_this_program_sets_is_refused() {
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
            allows_any_host: true,
        };
        assert_eq!(security.properties().count(), 9);
        let settings = KafkaSettings {
            group_instance_id: word(),
            security: Some(security),
            ..KafkaSettings::new("localhost:9092")
        };
        for config in
            [settings.member_config("group", 1), settings.reader_config("group", 1), settings.producer_config()]
        {
            let map = config.config_map();
            let passed = map.into_keys().filter(|name| refusal(name).is_none() && *name != "linger.ms");
            assert_eq!(passed.collect::<Vec<_>>(), Vec::<&str>::new());
        }
    }
}
