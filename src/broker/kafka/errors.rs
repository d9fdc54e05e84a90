//! Classification of librdkafka's errors by the caller's possible reaction.

use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    types::{RDKafkaConfRes, RDKafkaErrorCode},
};

use crate::broker::{BrokerError, BrokerErrorKind};

/// Translates an error of `operation` on `what` (a topic, partition or group).
pub(super) fn translate(operation: &'static str, what: &str, error: &KafkaError) -> BrokerError {
    let why = match error {
        // The value is not shown: under a misspelt name it may be a password.
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, name, _) => {
            format!("librdkafka knows no property {name}")
        }
        KafkaError::ClientConfig(_, _, name, _) => format!("property {name} has a value that librdkafka does not take"),
        error => error.to_string(),
    };
    BrokerError::new(kind(error), operation, format!("{what}: {why}"))
}

/// Returns whether the code of a client's fatal error says that another process has taken the client's instance id.
pub(super) fn is_fencing(code: Code) -> bool {
    code == Code::FencedInstanceId
}

/// Error of a fenced member: the process has to end, whatever it was doing.
pub(super) fn fenced(operation: &'static str, instance_id: Option<&str>) -> BrokerError {
    let name = instance_id.unwrap_or_default();
    let message = format!(
        "another process has joined the group as `{name}` (kafka.instance_id): this process ends, the other one \
         continues"
    );
    BrokerError::new(BrokerErrorKind::Fenced, operation, message)
}

pub(super) fn kind(error: &KafkaError) -> BrokerErrorKind {
    match error {
        KafkaError::MessageConsumptionFatal(_) => BrokerErrorKind::Fatal,
        KafkaError::ClientConfig(..) | KafkaError::ClientCreation(_) | KafkaError::Nul(_) => BrokerErrorKind::Fatal,
        KafkaError::Canceled => BrokerErrorKind::Fatal,
        error => error.rdkafka_error_code().map_or(BrokerErrorKind::Retryable, kind_of_code),
    }
}

/// True where a topic or partition does not exist (any more). A consumer continues where the topic is created again;
/// [`TopicGuard`](crate::broker::identity::TopicGuard) checks that the topic is still the same.
pub(super) fn is_unknown_topic(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicId)
    )
}

/// Class of an error code.
///
/// A refused login is retryable here: a cluster that has accepted this client before counts as unavailable, and
/// [`ConnectionErrors`](super::connection_errors::ConnectionErrors) refuses a client that was never accepted. Commits
/// during a rebalance fail with `RebalanceInProgress`, `IllegalGeneration` or `UnknownMemberId` and are retryable, too:
/// the next attempt carries the new generation, or finds the partition revoked.
pub(super) fn kind_of_code(code: RDKafkaErrorCode) -> BrokerErrorKind {
    match code {
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => BrokerErrorKind::TooLarge,
        Code::OffsetOutOfRange | Code::AutoOffsetReset => BrokerErrorKind::OutOfRange,
        Code::FencedInstanceId => BrokerErrorKind::Fenced,
        Code::Fatal | Code::Fenced | Code::OutOfOrderSequenceNumber => BrokerErrorKind::Fatal,
        Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicOrPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed
        | Code::GroupAuthorizationFailed
        | Code::ClusterAuthorizationFailed
        | Code::OffsetMetadataTooLarge
        | Code::PolicyViolation
        | Code::InvalidConfig
        | Code::InvalidPartitions
        | Code::InvalidReplicationFactor
        | Code::InvalidArgument => BrokerErrorKind::Refused,
        _ => BrokerErrorKind::Retryable,
    }
}

/// Translates the failure of a message that was produced to `topic`.
pub(super) fn translate_produce(topic: &str, error: &KafkaError) -> BrokerError {
    let translated = translate("produce", topic, error);
    match error.rdkafka_error_code().and_then(remedy_for_refusal) {
        Some(remedy) => {
            let message = format!("{}; {remedy}", translated.message);
            BrokerError { kind: BrokerErrorKind::Rejected, message, ..translated }
        }
        None => translated,
    }
}

/// Remedy for a message that a broker refuses for good; `None`: a retry may succeed, or another class says more.
/// librdkafka itself repeats what Kafka calls retriable, so a code of this table is final.
fn remedy_for_refusal(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::InvalidTimestamp => {
            "set message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic to \
             9223372036854775807, and check the clocks"
        }
        Code::InvalidRecord => {
            "set cleanup.policy=delete for the topic, and look which plugin of the brokers refuses records"
        }
        Code::PolicyViolation => "look which policy of the brokers refuses the record",
        Code::TopicAuthorizationFailed => "let this login write to the topic (`kafka-acls --operation Write`)",
        Code::ClusterAuthorizationFailed => {
            "let this login do IdempotentWrite (`kafka-acls --operation IdempotentWrite --cluster`)"
        }
        Code::TransactionalIdAuthorizationFailed => "let this login write (`kafka-acls --operation Write`)",
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition | Code::UnknownTopicId => {
            "the topic, or its partition, was deleted: restore the topic"
        }
        Code::InvalidTopic => "correct the topic's name",
        Code::UnsupportedForMessageFormat | Code::UnsupportedVersion => "update the brokers",
        Code::InvalidMessageSize | Code::InvalidRequiredAcks | Code::InvalidRequest => "look into the brokers' log",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes of Kafka's protocol that no retry heals, compared with codes that heal or have a class of their own.
    #[test]
    fn final_refusals_of_a_broker_differ_from_errors_that_heal() {
        let kind = |code| translate_produce("t", &KafkaError::MessageProduction(code)).kind;
        for code in [
            Code::InvalidTimestamp,
            Code::InvalidRecord,
            Code::PolicyViolation,
            Code::TopicAuthorizationFailed,
            Code::ClusterAuthorizationFailed,
            Code::UnknownTopicOrPartition,
            Code::UnknownTopicId,
            Code::UnsupportedForMessageFormat,
        ] {
            assert_eq!(kind(code), BrokerErrorKind::Rejected, "{code:?}");
        }
        for code in [
            Code::NotEnoughReplicas,
            Code::NotLeaderForPartition,
            Code::MessageTimedOut,
            Code::RequestTimedOut,
            Code::KafkaStorageError,
            Code::InvalidDifferentRecord,
            Code::UnknownProducerId,
            Code::QueueFull,
        ] {
            assert_eq!(kind(code), BrokerErrorKind::Retryable, "{code:?}");
        }
        assert_eq!(kind(Code::MessageSizeTooLarge), BrokerErrorKind::TooLarge);
        assert_eq!(kind(Code::Fatal), BrokerErrorKind::Fatal);
        let message = translate_produce("t", &KafkaError::MessageProduction(Code::InvalidTimestamp)).to_string();
        assert!(message.starts_with("produce: t: "), "{message}");
        assert!(message.contains("message.timestamp.before.max.ms"), "{message}");
    }

    #[test]
    fn a_commit_during_a_rebalance_is_tried_again() {
        for code in [Code::RebalanceInProgress, Code::IllegalGeneration, Code::UnknownMemberId, Code::RequestTimedOut] {
            assert_eq!(kind(&KafkaError::ConsumerCommit(code)), BrokerErrorKind::Retryable, "{code:?}");
        }
    }

    /// A broker that has just started may not know its users yet, or may present an untrusted certificate.
    #[test]
    fn a_consumer_retries_a_refused_login() {
        for code in [Code::Authentication, Code::SaslAuthenticationFailed, Code::SSL, Code::AllBrokersDown] {
            assert_eq!(kind(&KafkaError::MessageConsumption(code)), BrokerErrorKind::Retryable, "{code:?}");
        }
    }

    #[test]
    fn the_value_of_a_property_is_not_shown() {
        let refused = |name: &str, value: &str| {
            let config = rdkafka::ClientConfig::new().set(name, value).clone();
            let error = config.create::<rdkafka::consumer::BaseConsumer>().err().unwrap();
            translate("connect", "localhost:1", &error).to_string()
        };
        let shown = refused("sasl.pasword", "hunter2");
        assert!(shown.contains("sasl.pasword") && !shown.contains("hunter2"), "{shown}");
        let shown = refused("security.protocol", "hunter2");
        assert!(shown.contains("security.protocol") && !shown.contains("hunter2"), "{shown}");
    }

    #[test]
    fn errors_that_no_retry_heals_are_not_retryable() {
        assert_eq!(kind(&KafkaError::MessageProduction(Code::MessageSizeTooLarge)), BrokerErrorKind::TooLarge);
        assert_eq!(kind(&KafkaError::MessageConsumption(Code::AutoOffsetReset)), BrokerErrorKind::OutOfRange);
        assert_eq!(kind(&KafkaError::MessageConsumptionFatal(Code::Fenced)), BrokerErrorKind::Fatal);
    }
}
