//! The largest message of a topic, compared with what producer and consumer are set to. Pure.

use std::collections::BTreeMap;

use crate::event::Topic;

const MAX_MESSAGE_BYTES: &str = "max.message.bytes";

/// Largest message of a topic that this program creates, bytes. Blocks and decisions of some hundred thousand
/// transactions fit, and a consumer has memory for such messages.
const NEW_TOPIC_BYTES: u64 = 16 << 20;

/// Bytes of a batch besides the payload of its one message, at most: key, headers, framing. A dead letter has the
/// headers of its source and its own.
const OVERHEAD_BYTES: u64 = 64 << 10;

/// Sizes of messages that the producer and the consumer are set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageLimits {
    /// Largest event of a transaction that a producer publishes as one message (`objects.inline_event_bytes`).
    pub inline_event_bytes: u64,
    /// Largest answer that a consumer receives (`receive.message.max.bytes`).
    pub receive_bytes: u64,
}

/// Returns the limit of a topic that is created. A dead letter has the size of its source and further headers.
pub fn topic_limit(topic: Topic) -> (String, String) {
    let bytes = NEW_TOPIC_BYTES + if topic == Topic::DeadLetters { OVERHEAD_BYTES } else { 0 };
    (MAX_MESSAGE_BYTES.to_owned(), bytes.to_string())
}

/// Returns the problem of a topic whose limit does not fit producer and consumer; an unknown limit has none.
pub fn find_problem(topic: Topic, config: &BTreeMap<String, String>, limits: &MessageLimits) -> Option<String> {
    let MessageLimits { inline_event_bytes, receive_bytes } = limits;
    let limit: u64 = config.get(MAX_MESSAGE_BYTES)?.parse().ok()?;
    let most = receive_bytes.saturating_sub(OVERHEAD_BYTES);
    if limit > most {
        return Some(format!(
            "has {MAX_MESSAGE_BYTES}={limit}: a consumer receives at most {receive_bytes} bytes at once, set \
             {MAX_MESSAGE_BYTES} to at most {most}, or raise receive.message.max.bytes in kafka.properties"
        ));
    }
    let least = inline_event_bytes + OVERHEAD_BYTES;
    (topic == Topic::ValidatedTxs && limit < least).then(|| {
        format!(
            "has {MAX_MESSAGE_BYTES}={limit}: producers publish events of up to {inline_event_bytes} bytes as one \
             message, set {MAX_MESSAGE_BYTES} to at least {least}, or lower objects.inline_event_bytes"
        )
    })
}

/// Returns the weakness of a topic of dead letters that is too narrow for the largest event.
pub fn find_caution(topic: Topic, config: &BTreeMap<String, String>, limits: &MessageLimits) -> Option<String> {
    let limit: u64 = config.get(MAX_MESSAGE_BYTES)?.parse().ok()?;
    let least = limits.inline_event_bytes + OVERHEAD_BYTES;
    (topic == Topic::DeadLetters && limit < least).then(|| {
        format!(
            "has {MAX_MESSAGE_BYTES}={limit}: the dead letter of a large event loses its payload, set \
             {MAX_MESSAGE_BYTES} to at least {least}"
        )
    })
}

#[cfg(test)]
pub(crate) const LIMITS: MessageLimits = MessageLimits { inline_event_bytes: 512 << 10, receive_bytes: 100_000_000 };

#[cfg(test)]
mod tests {
    use super::*;

    fn config(limit: u64) -> BTreeMap<String, String> {
        [(MAX_MESSAGE_BYTES.to_owned(), limit.to_string())].into()
    }

    #[test]
    fn created_topics_and_the_brokers_default_fit_the_defaults() {
        for topic in Topic::all() {
            for config in [[topic_limit(topic)].into(), config(1_048_588), BTreeMap::new()] {
                assert_eq!(find_problem(topic, &config, &LIMITS), None, "{topic:?} {config:?}");
                assert_eq!(find_caution(topic, &config, &LIMITS), None, "{topic:?} {config:?}");
            }
        }
    }

    #[test]
    fn a_limit_that_producer_or_consumer_exceed_is_a_problem() {
        let problem = |topic, limit| find_problem(topic, &config(limit), &LIMITS).unwrap_or_default();
        let narrow = problem(Topic::ValidatedTxs, 589_823);
        assert!(narrow.starts_with("has max.message.bytes=589823") && narrow.contains("at least 589824"), "{narrow}");
        assert_eq!(problem(Topic::ValidatedTxs, 589_824), "");
        assert_eq!(problem(Topic::BlockMined, 1_000), "");
        for topic in Topic::all() {
            let wide = problem(topic, 99_934_465);
            assert!(wide.contains("set max.message.bytes to at most 99934464, or raise"), "{wide}");
            assert_eq!(problem(topic, 99_934_464), "");
        }
        let caution = |topic, limit| find_caution(topic, &config(limit), &LIMITS);
        assert!(caution(Topic::DeadLetters, 589_823).is_some_and(|caution| caution.ends_with("at least 589824")));
        assert_eq!(caution(Topic::Chain, 1), None);
    }
}
