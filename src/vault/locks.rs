//! Rules of soft locks: who may lock which output, and when a lock ends. Pure functions.

use serde::Serialize;

use super::types::{LockId, OwnerId, Standing, WatchedOutput};

/// A soft lock: the id under which outputs are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// Id of the lock.
    pub id: LockId,
    pub(super) owner: OwnerId,
    /// The lock belongs to a session, which ends with its lease.
    pub session: bool,
    /// Time at which the lock ends by itself, milliseconds since the epoch; `None`: the lock lasts until released.
    pub expires_at: Option<i64>,
    /// The lock was released as a whole, or its session has ended.
    pub ended: bool,
}

impl Lock {
    /// Returns whether the lock keeps its outputs from others at this time, milliseconds since the epoch.
    pub fn is_in_force(&self, now: i64) -> bool {
        !self.ended && self.expires_at.is_none_or(|end| end > now)
    }
}

/// Reason why an output cannot be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReserveObstacle {
    /// The vault has no such output of the owner.
    Unknown,
    /// The store does not have the output as unspent.
    NotUnspent(Standing),
    /// A lock of another id has the output.
    Locked,
    /// An event names a spender of the output that the store does not show yet.
    Claimed,
    /// A transaction spends the output, which its lock does not have.
    NotReserved,
}

/// Returns why an output cannot be reserved under a lock; `None`: the output is free, or has this lock already.
/// `holder`: the lock that the output has.
pub fn find_obstacle(
    output: Option<&WatchedOutput>,
    lock: &Lock,
    holder: Option<&Lock>,
    now: i64,
) -> Option<ReserveObstacle> {
    // An output of another owner is not told from an unknown one.
    let Some(output) = output.filter(|output| output.owner == lock.owner) else {
        return Some(ReserveObstacle::Unknown);
    };
    if output.facts.standing != Standing::Unspent {
        return Some(ReserveObstacle::NotUnspent(output.facts.standing));
    }
    match output.lock.filter(|id| *id != lock.id).and(holder) {
        Some(holder) if holder.is_in_force(now) => Some(ReserveObstacle::Locked),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        tx::{Outpoint, Txid},
        vault::types::Facts,
    };

    const NOW: i64 = 1_000;

    fn lock(id: u128) -> Lock {
        Lock { id: LockId(uuid::Uuid::from_u128(id)), owner: 1, session: false, expires_at: None, ended: false }
    }

    fn output(standing: Standing, lock: Option<&Lock>) -> WatchedOutput {
        let outpoint = Outpoint { txid: Txid([1; 32]), vout: 0 };
        let facts = Facts { standing, ..Facts::default() };
        WatchedOutput { facts, lock: lock.map(|lock| lock.id), ..WatchedOutput::unasked(outpoint, 1, 1, 5) }
    }

    #[test]
    fn only_an_unspent_output_of_the_owner_can_be_reserved() {
        let own = lock(1);
        assert_eq!(find_obstacle(None, &own, None, NOW), Some(ReserveObstacle::Unknown));
        let free = output(Standing::Unspent, None);
        assert_eq!(find_obstacle(Some(&free), &own, None, NOW), None);
        let foreign = Lock { owner: 2, ..own };
        assert_eq!(find_obstacle(Some(&free), &foreign, None, NOW), Some(ReserveObstacle::Unknown));
        for standing in [Standing::Unknown, Standing::Spent, Standing::Frozen, Standing::Conflicting, Standing::Absent]
        {
            let found = find_obstacle(Some(&output(standing, None)), &own, None, NOW);
            assert_eq!(found, Some(ReserveObstacle::NotUnspent(standing)));
        }
    }

    #[test]
    fn a_lock_bars_others_until_its_end() {
        let (own, other) = (lock(1), lock(2));
        let held = output(Standing::Unspent, Some(&other));
        assert_eq!(find_obstacle(Some(&held), &own, Some(&other), NOW), Some(ReserveObstacle::Locked));
        assert_eq!(find_obstacle(Some(&held), &other, Some(&other), NOW), None, "its own lock");
        let leased = Lock { expires_at: Some(NOW + 1), ..other };
        assert_eq!(find_obstacle(Some(&held), &own, Some(&leased), NOW), Some(ReserveObstacle::Locked));
        for over in [Lock { expires_at: Some(NOW), ..other }, Lock { ended: true, ..other }] {
            assert_eq!(find_obstacle(Some(&held), &own, Some(&over), NOW), None);
        }
        assert_eq!(find_obstacle(Some(&held), &own, None, NOW), None, "the lock is no longer on record");
    }
}
