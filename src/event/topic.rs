//! Topics of the store, and the kinds of events that each topic carries.

use strum::{EnumIter, IntoEnumIterator};

#[cfg(test)]
use super::Kind;

/// Topics by purpose. The settings may give a topic another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, EnumIter)]
pub enum Topic {
    /// Whole and partial transactions; many partitions, by txid.
    ValidatedTxs,
    /// Mined blocks from the node; one partition.
    BlockMined,
    /// Reorgs from the node; one partition.
    Reorgs,
    /// The chain log, which the sequencer consumes; one partition.
    Chain,
    /// Decisions of the sequencer, written ahead; one partition.
    Decisions,
    /// Outcomes for validators and clients; many partitions, by txid.
    Outcomes,
    /// Events that cannot be applied; partitions as the source topic.
    DeadLetters,
}

impl Topic {
    /// Returns every topic, in the order of the enum.
    pub fn all() -> impl ExactSizeIterator<Item = Topic> {
        Topic::iter()
    }

    /// Returns the name of the topic unless the settings give another.
    pub const fn default_name(self) -> &'static str {
        match self {
            Topic::ValidatedTxs => "utxo.validated-txs",
            Topic::BlockMined => "utxo.block-mined",
            Topic::Reorgs => "utxo.reorgs",
            Topic::Chain => "utxo.chain",
            Topic::Decisions => "utxo.decisions",
            Topic::Outcomes => "utxo.outcomes",
            Topic::DeadLetters => "utxo.dead-letters",
        }
    }

    /// Returns whether the feed of the chain copies the events of the topic, and passes over deleted messages.
    pub const fn is_fed(self) -> bool {
        matches!(self, Topic::BlockMined | Topic::Reorgs)
    }

    /// Returns whether the topic has one order of events, and so exactly one partition.
    pub const fn is_single_partition(self) -> bool {
        match self {
            Topic::BlockMined | Topic::Reorgs | Topic::Chain | Topic::Decisions => true,
            Topic::ValidatedTxs | Topic::Outcomes | Topic::DeadLetters => false,
        }
    }

    /// Returns whether a rebuild reads the whole topic. Such a topic must have neither retention nor compaction.
    pub const fn is_state_source(self) -> bool {
        match self {
            Topic::ValidatedTxs | Topic::BlockMined | Topic::Reorgs | Topic::Chain | Topic::Decisions => true,
            Topic::Outcomes | Topic::DeadLetters => false,
        }
    }

    /// Returns the kinds of events that the topic may carry. A dead letter may hold any bytes, also no event at all.
    #[cfg(test)]
    pub const fn kinds(self) -> &'static [Kind] {
        match self {
            Topic::ValidatedTxs => &[Kind::Validated, Kind::Seeded, Kind::ValidatedReference, Kind::SeededReference],
            Topic::BlockMined => &[Kind::BlockMined],
            Topic::Reorgs => &[Kind::Reorg],
            Topic::Chain => &[Kind::BlockMined, Kind::Reorg, Kind::Contest, Kind::Command],
            Topic::Decisions => &[Kind::Decision, Kind::DecisionGroup, Kind::DecisionRun],
            Topic::Outcomes => &[Kind::Outcome, Kind::OutcomeBatch],
            Topic::DeadLetters => &Kind::ALL,
        }
    }
}
