//! Facts about an output from an answer of the store, and the time of the next question. Pure functions.

use crate::{
    record::StoredOutput,
    store::{outputs::OutputState, spend_status::SpendStatus},
};

use super::types::{Facts, Standing};

/// Pauses between two questions about an output that the store does not know yet, or that may change without another
/// event: the first, and the longest.
const FIRST_PAUSE_MS: i64 = 500;
const LONGEST_PAUSE_MS: i64 = 600_000;

impl Facts {
    /// Returns the facts of an answer about an output of this script and amount. Each answer replaces all facts.
    pub fn of(state: &OutputState, expected: &StoredOutput) -> Self {
        let mut facts = Facts { height: state.mined_height, spender: state.spender, ..Facts::default() };
        let is_other = state.output.as_ref().is_some_and(|output| output != expected);
        facts.standing = match state.status {
            // The transaction has another output under this number, or the output has another owner now.
            _ if is_other => Standing::Absent,
            SpendStatus::NotFound | SpendStatus::Creating => Standing::Unknown,
            SpendStatus::Pruned(_) | SpendStatus::NoSuchOutput | SpendStatus::HashMismatch(_) => Standing::Absent,
            SpendStatus::Conflicting(_) => Standing::Conflicting,
            SpendStatus::Locked | SpendStatus::Frozen => Standing::Frozen,
            SpendStatus::Spent(_) => Standing::Spent,
            SpendStatus::Unspent => Standing::Unspent,
            SpendStatus::Immature(from) | SpendStatus::NotYetSpendable(from) => {
                facts.spendable_from = Some(from);
                match facts.spender {
                    Some(_) => Standing::Spent,
                    None => Standing::Unspent,
                }
            }
        };
        facts
    }
}

/// Returns the pause before the next question about an output, milliseconds; `None`: the next event, or the look at old
/// answers, asks again. `asks`: questions since the last event, with the one that has this answer.
pub fn next_pause(standing: Standing, asks: i64) -> Option<i64> {
    match standing {
        // The store comes to the event later than the vault, or the verdict is open.
        Standing::Unknown | Standing::Conflicting => {
            Some(FIRST_PAUSE_MS.saturating_mul(1 << (asks - 1).clamp(0, 20)).min(LONGEST_PAUSE_MS))
        }
        Standing::Unspent | Standing::Spent | Standing::Frozen | Standing::Absent => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        record::{SpendingData, Verdict},
        tx::{Outpoint, Txid, UtxoHash},
    };

    fn output() -> StoredOutput {
        StoredOutput { satoshis: 7, script: vec![0x51].into() }
    }

    fn state(status: SpendStatus) -> OutputState {
        OutputState {
            outpoint: Outpoint { txid: Txid([1; 32]), vout: 0 },
            status,
            spender: None,
            utxo_hash: None,
            output: Some(output()),
            mined_height: Some(9),
        }
    }

    #[test]
    fn every_status_has_a_standing() {
        let spender = SpendingData { txid: Txid([2; 32]), input: 1 };
        for (status, standing) in [
            (SpendStatus::NotFound, Standing::Unknown),
            (SpendStatus::Creating, Standing::Unknown),
            (SpendStatus::Pruned(5), Standing::Absent),
            (SpendStatus::NoSuchOutput, Standing::Absent),
            (SpendStatus::HashMismatch(UtxoHash([1; 32])), Standing::Absent),
            (SpendStatus::Conflicting(Verdict::Pending), Standing::Conflicting),
            (SpendStatus::Locked, Standing::Frozen),
            (SpendStatus::Frozen, Standing::Frozen),
            (SpendStatus::Spent(spender), Standing::Spent),
            (SpendStatus::Unspent, Standing::Unspent),
            (SpendStatus::Immature(100), Standing::Unspent),
            (SpendStatus::NotYetSpendable(100), Standing::Unspent),
        ] {
            let facts = Facts::of(&state(status), &output());
            assert_eq!((facts.standing, facts.height), (standing, Some(9)), "{status:?}");
            let from = matches!(status, SpendStatus::Immature(_) | SpendStatus::NotYetSpendable(_)).then_some(100);
            assert_eq!(facts.spendable_from, from);
        }
    }

    /// An output that is frozen until a height and spent before the freeze has a spender.
    #[test]
    fn a_spender_outweighs_a_height() {
        let spender = Some(SpendingData { txid: Txid([2; 32]), input: 1 });
        let facts = Facts::of(&OutputState { spender, ..state(SpendStatus::Immature(100)) }, &output());
        assert_eq!((facts.standing, facts.spender), (Standing::Spent, spender));
    }

    #[test]
    fn an_output_of_another_owner_is_absent() {
        let other = StoredOutput { satoshis: 8, ..output() };
        assert_eq!(Facts::of(&state(SpendStatus::Unspent), &other).standing, Standing::Absent);
    }

    #[test]
    fn pauses_double_up_to_ten_minutes() {
        let pauses: Vec<_> = (1..14).map(|asks| next_pause(Standing::Unknown, asks).unwrap()).collect();
        assert_eq!(pauses[..3], [500, 1_000, 2_000]);
        assert_eq!(pauses[11..], [600_000, 600_000]);
        assert_eq!(next_pause(Standing::Spent, 1), None);
    }
}
