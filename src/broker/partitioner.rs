//! Partition of a key, as the Java client and librdkafka's `murmur2_random` compute it.

/// Partition of a non-empty `key` in a topic of `partitions` partitions; `None`: the topic has no partition.
pub fn partition_of(key: &[u8], partitions: i32) -> Option<i32> {
    (partitions > 0).then(|| (murmur2(key) & 0x7fff_ffff) as i32 % partitions)
}

/// MurmurHash2 with 32 bits and Kafka's seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (i, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * i);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn hashes_as_the_java_client() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn a_topic_without_partitions_has_no_partition_for_a_key() {
        assert_eq!(partition_of(b"key", 0), None);
        assert_eq!(partition_of(b"key", 1), Some(0));
    }
}
