//! Side chains, reorgs and commands: what they mean. The store has no counterpart yet.

use utxo_store::event::{Block, Command, Reorg};

use super::{Logged, replay::Replay};

impl Replay<'_> {
    /// A block on a side chain.
    pub fn side_block(&mut self, _logged: &Logged, block: &Block<'_>) {
        self.complain(format!("block {} is on a side chain", block.height));
    }

    /// The longest chain changed.
    pub fn reorg(&mut self, _logged: &Logged, reorg: &Reorg<'_>) {
        self.complain(format!("reorg {}", reorg.sequence));
    }

    /// Somebody asks for a change.
    pub fn command(&mut self, command: &Command<'_>) {
        self.complain(format!("command {:?}", command.action));
    }
}
