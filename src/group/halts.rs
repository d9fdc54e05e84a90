//! Which halts an instance lifts by itself: those that stood when its process started. Others an operator lifts (`pipeline/orders.rs`).

use std::{collections::BTreeMap, sync::OnceLock};

use crate::{broker::Committed, group::partition::Halt};

/// The halts that the group's commits told of when this process first looked. An operator who starts an instance after a halt
/// has it tried again; whoever ran already leaves it standing. The clocks of two machines would not tell which of them it is.
#[derive(Debug, Default)]
pub struct EarlierHalts(OnceLock<BTreeMap<i32, Halt>>);

impl EarlierHalts {
    /// What is committed now, by partition. Only the first look counts: an instance that begins anew within its process, because
    /// the broker was away, has not been started by anybody.
    pub fn look<'a>(&self, committed: impl IntoIterator<Item = (i32, &'a Committed)>) {
        self.0.get_or_init(|| {
            let halts = committed.into_iter().filter_map(|(number, committed)| Some((number, Halt::of(committed)?)));
            halts.collect()
        });
    }

    /// What still holds of the halt in a commit of this partition.
    pub fn standing(&self, partition: i32, committed: &Committed) -> Option<Halt> {
        let earlier = self.0.get().and_then(|halts| halts.get(&partition));
        Halt::of(committed).filter(|halt| earlier != Some(halt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halted(since_ms: u64) -> Committed {
        Committed { offset: 3, metadata: format!(r#"{{"read":9,"pos":5,"halt":{{"why":"x","since":{since_ms}}}}}"#) }
    }

    #[test]
    fn what_stood_at_the_start_is_lifted_and_nothing_else() {
        let halts = EarlierHalts::default();
        assert!(halts.standing(1, &halted(5)).is_some(), "nobody has looked");
        halts.look([(1, &halted(5))]);
        halts.look([(1, &halted(5)), (2, &halted(5))]);
        assert_eq!(halts.standing(1, &halted(5)), None);
        assert!(halts.standing(2, &halted(5)).is_some(), "it came after the start");
        for since_ms in [4, 6] {
            assert!(halts.standing(1, &halted(since_ms)).is_some(), "another one, whatever its machine's clock says");
        }
    }
}
