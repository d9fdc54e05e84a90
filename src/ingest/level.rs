//! How a bound on all partitions together is divided among them.

/// The greatest bound that each partition may be given, so that all together never hold more than `in_all`: where `held` is what each
/// holds now, one that holds more than its bound keeps that until it is done, and those that hold less have so much less each.
///
/// Only what is held already counts, so it may be asked for again whenever partitions come and go: a sum that was within `in_all`
/// stays so. Where nothing is held it is an equal share, which it is never more than.
pub fn level(in_all: u64, held: impl IntoIterator<Item = u64>) -> u64 {
    let mut held: Vec<u64> = held.into_iter().collect();
    held.sort_unstable();
    let mut room = in_all;
    while let Some(most) = held.last() {
        let share = room / held.len() as u64;
        if *most <= share {
            return share;
        }
        room = room.saturating_sub(*most);
        held.pop();
    }
    // Nobody is there, or all together hold too much.
    if room == in_all { in_all } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_holds_much_leaves_less_for_the_others() {
        assert_eq!(level(100, []), 100);
        assert_eq!(level(100, [0, 0, 0, 0]), 25);
        assert_eq!(level(100, [100]), 100);
        assert_eq!(level(100, [100, 0, 0]), 0, "all of it is in one hand yet");
        assert_eq!(level(100, [60, 0, 0]), 20);
        assert_eq!(level(100, [60, 30, 0, 0]), 5);
        assert_eq!(level(100, [101]), 0);
        assert_eq!(level(0, [0, 5]), 0);
    }

    proptest! {
        /// Against the definition, by trying.
        #[test]
        fn it_is_the_greatest_that_keeps_the_sum(in_all in 0u64..300, held in prop::collection::vec(0u64..120, 1..8)) {
            let sum = |level: u64| held.iter().map(|held| level.max(*held)).sum::<u64>();
            let found = level(in_all, held.iter().copied());
            prop_assert!(sum(found) <= in_all || (found == 0 && sum(0) > in_all));
            prop_assert!(sum(found + 1) > in_all);
        }

        /// Partitions come, go, read up to the level that they were told last, and complete: the sum stays within the bound.
        #[test]
        fn partitions_that_come_and_go_never_hold_more_in_all(
            in_all in 1u64..2_000,
            steps in prop::collection::vec((0u8..4, 0i32..8, 1u64..300), 1..300),
        ) {
            let mut held: BTreeMap<i32, u64> = BTreeMap::new();
            let mut now = level(in_all, []);
            for (step, number, bytes) in steps {
                match step {
                    0 => _ = held.entry(number).or_default(),
                    1 => _ = held.remove(&number),
                    2 => {
                        if let Some(held) = held.get_mut(&number) {
                            *held = (*held + bytes).min(now).max(*held);
                        }
                    }
                    _ => {
                        if let Some(held) = held.get_mut(&number) {
                            *held = held.saturating_sub(bytes);
                        }
                    }
                }
                if step < 2 {
                    now = level(in_all, held.values().copied());
                }
                prop_assert!(held.values().sum::<u64>() <= in_all, "{held:?}");
            }
        }
    }
}
