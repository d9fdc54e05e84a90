//! Max-min fair share of a limit over all partitions.

/// Returns the greatest limit that each partition may have, so that all partitions together never hold more than
/// `total` bytes. `held`: the unfinished bytes of each partition. A partition that holds more than its limit keeps its
/// bytes until they are completed, and the limits of the others are lower by as much.
///
/// The result depends only on the bytes that are held now, so it may be computed again whenever partitions are assigned
/// or revoked: a sum within `total` stays within. Where no bytes are held, the result is an equal share, which is the
/// greatest possible result.
pub fn max_min_fair_share(total: u64, held: impl IntoIterator<Item = u64>) -> u64 {
    let mut held: Vec<u64> = held.into_iter().collect();
    held.sort_unstable();
    let mut room = total;
    while let Some(most) = held.last() {
        let share = room / held.len() as u64;
        if *most <= share {
            return share;
        }
        room = room.saturating_sub(*most);
        held.pop();
    }
    // No partition is assigned, or all together hold too much.
    if room == total { total } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_partition_with_many_bytes_lowers_the_share_of_the_others() {
        assert_eq!(max_min_fair_share(100, []), 100);
        assert_eq!(max_min_fair_share(100, [0, 0, 0, 0]), 25);
        assert_eq!(max_min_fair_share(100, [100]), 100);
        assert_eq!(max_min_fair_share(100, [100, 0, 0]), 0, "one partition holds everything");
        assert_eq!(max_min_fair_share(100, [60, 0, 0]), 20);
        assert_eq!(max_min_fair_share(100, [60, 30, 0, 0]), 5);
        assert_eq!(max_min_fair_share(100, [101]), 0);
        assert_eq!(max_min_fair_share(0, [0, 5]), 0);
    }

    proptest! {
        /// Compares the result with the definition, by trying the next limit.
        #[test]
        fn share_is_the_greatest_that_keeps_the_sum(
            total in 0u64..300,
            held in prop::collection::vec(0u64..120, 1..8),
        ) {
            let sum = |limit: u64| held.iter().map(|held| limit.max(*held)).sum::<u64>();
            let found = max_min_fair_share(total, held.iter().copied());
            prop_assert!(sum(found) <= total || (found == 0 && sum(0) > total));
            prop_assert!(sum(found + 1) > total);
        }

        /// Partitions are assigned, revoked, read up to their last limit, and complete: the sum stays within the limit.
        #[test]
        fn sum_stays_within_the_limit_across_assignments(
            total in 1u64..2_000,
            steps in prop::collection::vec((0u8..4, 0i32..8, 1u64..300), 1..300),
        ) {
            let mut held: BTreeMap<i32, u64> = BTreeMap::new();
            let mut limit = max_min_fair_share(total, []);
            for (step, number, bytes) in steps {
                match step {
                    0 => _ = held.entry(number).or_default(),
                    1 => _ = held.remove(&number),
                    2 => {
                        if let Some(held) = held.get_mut(&number) {
                            *held = (*held + bytes).min(limit).max(*held);
                        }
                    }
                    _ => {
                        if let Some(held) = held.get_mut(&number) {
                            *held = held.saturating_sub(bytes);
                        }
                    }
                }
                if step < 2 {
                    limit = max_min_fair_share(total, held.values().copied());
                }
                prop_assert!(held.values().sum::<u64>() <= total, "{held:?}");
            }
        }
    }
}
