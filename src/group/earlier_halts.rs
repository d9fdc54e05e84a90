//! Halts that a start lifts: the halts that existed before the process of an instance started. Later halts are lifted
//! by an operator (`POST /partitions/N/retry`).

use std::{collections::BTreeMap, sync::OnceLock};

use crate::{broker::CommittedOffset, group::commit_metadata::Halt};

/// The halts in the group's commits as of the first read of this process. An operator who starts an instance after a
/// halt has the halted event tried again; an instance that was running before the halt keeps the halt. The order of
/// start and halt cannot be told from the clocks of two machines, so the halts themselves are compared.
#[derive(Debug, Default)]
pub struct EarlierHalts(OnceLock<BTreeMap<i32, Halt>>);

impl EarlierHalts {
    /// Records the halts in the present commits, given by partition. Only the first call counts: an instance that
    /// begins anew within its process, because the broker was away, has not been started by an operator.
    pub fn record_existing<'a>(&self, committed: impl IntoIterator<Item = (i32, &'a CommittedOffset)>) {
        self.0.get_or_init(|| {
            let halt = |(number, committed)| Some((number, Halt::from_commit(committed)?));
            committed.into_iter().filter_map(halt).collect()
        });
    }

    /// Returns the halt in a commit of this partition, unless the halt is an earlier one.
    pub fn remaining_halt(&self, partition: i32, committed: &CommittedOffset) -> Option<Halt> {
        let earlier = self.0.get().and_then(|halts| halts.get(&partition));
        Halt::from_commit(committed).filter(|halt| earlier != Some(halt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halted(since_ms: u64) -> CommittedOffset {
        let metadata = format!(r#"{{"read":9,"pos":5,"halt":{{"why":"x","since":{since_ms}}}}}"#);
        CommittedOffset { offset: 3, metadata }
    }

    #[test]
    fn only_a_halt_from_before_the_start_is_lifted() {
        let halts = EarlierHalts::default();
        assert!(halts.remaining_halt(1, &halted(5)).is_some(), "no commits are recorded yet");
        halts.record_existing([(1, &halted(5))]);
        halts.record_existing([(1, &halted(5)), (2, &halted(5))]);
        assert_eq!(halts.remaining_halt(1, &halted(5)), None);
        assert!(halts.remaining_halt(2, &halted(5)).is_some(), "the halt is later than the start");
        for since_ms in [4, 6] {
            assert!(halts.remaining_halt(1, &halted(since_ms)).is_some(), "another halt, whatever the clock says");
        }
    }
}
