//! What is kept of a command.

use super::Stamp;

/// What became of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandResult {
    /// It was done.
    Applied,
    /// There was nothing to do.
    AlreadyApplied,
    /// It was not done.
    Refused {
        /// Why, as a code: `FROZEN`, `TX_NOT_FOUND`, …
        code: String,
        /// Why, in one line.
        message: String,
    },
}

/// Under the id of a command, for good: so that a repeat of it is known, however late it comes. Not part of the digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandRecord {
    /// The command's own id.
    pub id: [u8; 16],
    /// BLAKE3 of the command as an event: another request under the same id is none that was executed.
    pub asked: [u8; 32],
    /// Where in `utxo.chain` it was executed.
    pub chain_offset: u64,
    /// What became of it.
    pub result: CommandResult,
    /// `chainPos`
    pub chain_pos: Option<Stamp>,
}
