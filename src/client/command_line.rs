//! Commands as an operator writes them.

use std::fmt;

use crate::event::CommandAction;

/// Prints a command as the arguments of `utxo-store command` that publish the same command.
pub struct CommandLine<'a>(pub &'a CommandAction<'a>);

impl fmt::Display for CommandLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            CommandAction::Unlock { txid } => write!(f, "unlock {txid}"),
            CommandAction::Lock { txid } => write!(f, "lock {txid}"),
            CommandAction::Freeze { outpoint } => write!(f, "freeze {outpoint}"),
            CommandAction::Unfreeze { outpoint } => write!(f, "unfreeze {outpoint}"),
            CommandAction::FreezeUntil { outpoint, height } => write!(f, "freeze-until {outpoint} --height {height}"),
            CommandAction::Reassign { outpoint, utxo_hash, new_script, satoshis, height, spendable_after } => write!(
                f,
                "reassign {outpoint} --utxo-hash {utxo_hash} --script {} --satoshis {satoshis} --height {height} \
                 --spendable-after {spendable_after}",
                hex::encode(new_script)
            ),
            CommandAction::Unspend { outpoint, spender, input } => {
                write!(f, "unspend {outpoint} --input {input} --spender {spender}")
            }
            CommandAction::SetConflicting { txid } => write!(f, "set-conflicting {txid}"),
            CommandAction::Reconsider { txid } => write!(f, "reconsider {txid}"),
            CommandAction::Preserve { txid, until } => write!(f, "preserve {txid} --until {until}"),
            CommandAction::Delete { txid } => write!(f, "delete {txid}"),
            CommandAction::FreezeTransaction { txid } => write!(f, "freeze-transaction {txid}"),
            CommandAction::UnfreezeTransaction { txid } => write!(f, "unfreeze-transaction {txid}"),
        }
    }
}
