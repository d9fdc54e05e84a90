//! Which topic carries what.

use super::Kind;

/// The topics, by what they are for; their names are configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topic {
    /// Many partitions, by txid.
    ValidatedTxs,
    /// One partition.
    BlockMined,
    /// One partition.
    Reorgs,
    /// One partition: the sequencer's log.
    Chain,
    /// One partition: what the sequencer decided.
    Decisions,
    /// Many partitions, by txid.
    Outcomes,
    /// As the source.
    DeadLetters,
}

impl Topic {
    /// All of them.
    pub const ALL: [Topic; 7] = [
        Topic::ValidatedTxs,
        Topic::BlockMined,
        Topic::Reorgs,
        Topic::Chain,
        Topic::Decisions,
        Topic::Outcomes,
        Topic::DeadLetters,
    ];

    /// Its name unless the configuration says otherwise.
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

    /// Whether it is a log of one order, and so of one partition.
    pub const fn is_one_order(self) -> bool {
        match self {
            Topic::BlockMined | Topic::Reorgs | Topic::Chain | Topic::Decisions => true,
            Topic::ValidatedTxs | Topic::Outcomes | Topic::DeadLetters => false,
        }
    }

    /// Whether a rebuild reads all of it, so that nothing of it may ever go.
    pub const fn makes_the_state(self) -> bool {
        match self {
            Topic::ValidatedTxs | Topic::BlockMined | Topic::Reorgs | Topic::Chain | Topic::Decisions => true,
            Topic::Outcomes | Topic::DeadLetters => false,
        }
    }

    /// The kinds of events that it may carry. Dead letters may hold anything, also what is no event.
    pub const fn kinds(self) -> &'static [Kind] {
        match self {
            Topic::ValidatedTxs => &[Kind::Validated, Kind::Seeded],
            Topic::BlockMined => &[Kind::BlockMined],
            Topic::Reorgs => &[Kind::Reorg],
            Topic::Chain => &[Kind::BlockMined, Kind::Reorg, Kind::Contest, Kind::Command],
            Topic::Decisions => &[Kind::Decision],
            Topic::Outcomes => &[Kind::Outcome],
            Topic::DeadLetters => &Kind::ALL,
        }
    }
}
