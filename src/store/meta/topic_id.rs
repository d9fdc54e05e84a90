//! Identity of a topic of one partition: the id of its record at offset 0.

use std::time::Duration;

use crate::broker::{Broker, BrokerError, BrokerErrorKind, TopicPartition};

/// Time within which the record at offset 0 must be delivered.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);

/// Computes the id of a chain topic: BLAKE3 of timestamp (ms since the epoch, 8 bytes, little-endian) ‖ key ‖ value of
/// its record at offset 0. The timestamp distinguishes topics whose logs begin with the same event.
pub fn compute_chain_id(timestamp_ms: i64, key: &[u8], value: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&timestamp_ms.to_le_bytes());
    hasher.update(key);
    hasher.update(value);
    *hasher.finalize().as_bytes()
}

/// Reads the record at offset 0 of a partition, and computes its id ([`compute_chain_id`]). `None`: the partition has
/// no record at offset 0 yet, or has lost that record.
///
/// # Errors
/// [`BrokerError`]; retryable where the record exists and was not delivered within 5 s.
pub async fn read_topic_id(broker: &dyn Broker, partition: &TopicPartition) -> Result<Option<[u8; 32]>, BrokerError> {
    let (low, high) = broker.watermarks(partition).await?;
    if low > 0 || high == 0 {
        return Ok(None);
    }
    let mut reader = broker.read(partition, 0).await?;
    let Some(first) = reader.next(FIRST_TIMEOUT).await?.into_iter().next() else {
        // A slow broker must not look like another topic.
        let message = format!("{partition}: record at offset 0 exists, but was not delivered within {FIRST_TIMEOUT:?}");
        return Err(BrokerError::new(BrokerErrorKind::Retryable, "identify topic", message));
    };
    Ok((first.offset == 0).then(|| compute_chain_id(first.timestamp_ms, &first.key, &first.payload)))
}
