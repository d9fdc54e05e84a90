//! A command as a person reads it.

use std::fmt;

use crate::event::Action;

/// What follows `utxo-store command` to ask for it.
pub struct Line<'a>(pub &'a Action<'a>);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Action::Unlock { txid } => write!(f, "unlock {txid}"),
            Action::Lock { txid } => write!(f, "lock {txid}"),
            Action::Freeze { outpoint } => write!(f, "freeze {outpoint}"),
            Action::Unfreeze { outpoint } => write!(f, "unfreeze {outpoint}"),
            Action::FreezeUntil { outpoint, height } => write!(f, "freeze-until {outpoint} --height {height}"),
            Action::Reassign { outpoint, utxo_hash, new_script, satoshis, height, spendable_after } => write!(
                f,
                "reassign {outpoint} --utxo-hash {utxo_hash} --script {} --satoshis {satoshis} --height {height} \
                 --spendable-after {spendable_after}",
                hex::encode(new_script)
            ),
            Action::Unspend { outpoint, spender, input } => {
                write!(f, "unspend {outpoint} --input {input} --spender {spender}")
            }
            Action::SetConflicting { txid } => write!(f, "set-conflicting {txid}"),
            Action::Reconsider { txid } => write!(f, "reconsider {txid}"),
            Action::Preserve { txid, until } => write!(f, "preserve {txid} --until {until}"),
            Action::Delete { txid } => write!(f, "delete {txid}"),
        }
    }
}
