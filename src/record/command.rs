//! [`CommandRecord`]: result of a command, stored under the command's id.

use serde::{Deserialize, Serialize};

use super::Stamp;

/// Result of a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum CommandResult {
    /// The command changed the state.
    Applied,
    /// The state was already as the command asks for.
    AlreadyApplied,
    /// The command changed nothing.
    Refused {
        /// Reason as a code: `FROZEN`, `TX_NOT_FOUND`, …
        code: String,
        /// Reason in one line.
        message: String,
    },
}

/// Record of an executed command. The record is never deleted, so that a repeat is recognised however late it comes.
/// The state digest does not contain command records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRecord {
    /// Id that the sender of the command chose; the key of the record.
    pub id: [u8; 16],
    /// BLAKE3 of the command as an event (bin `asked`): another command under the same id has another hash.
    pub event_digest: [u8; 32],
    /// Offset in `utxo.chain` at which the command was executed.
    pub chain_offset: u64,
    /// Result of the execution.
    pub result: CommandResult,
    /// `chainPos`: stamp of the sequencer's last change
    pub chain_pos: Option<Stamp>,
}
