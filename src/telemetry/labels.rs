//! The labels whose values are known beforehand.

use super::Label;
use crate::{
    engine::ErrorKind,
    event::{Action, Command, DeadLetterClass, Event},
    record::{Operation, Sequenced},
};

/// Enums as labels.
macro_rules! labels {
    ($(
        $(#[$attribute:meta])*
        $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $value:literal),* $(,)? }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_attribute])* $variant),* }

        impl Label for $name {
            const VALUES: &'static [&'static str] = &[$($value),*];
            fn index(self) -> usize {
                self as usize
            }
        }
    )*};
}

labels! {
    /// What an engine is asked to do.
    OperationKind {
        /// Puts a page.
        Create = "create",
        /// Stores a contested transaction.
        CreateContested = "create_contested",
        /// Takes slots.
        Spend = "spend",
        /// Clears `creating`.
        ClearCreating = "clear_creating",
        /// Copies hints between the pages of a transaction.
        Housekeeping = "housekeeping",
        /// Takes or releases a lock record.
        LockRecord = "lock_record",
        /// Writes the meta record.
        Meta = "meta",
        /// Sets or unsets mined.
        Mined = "mined",
        /// Any other operation of the sequencer.
        Sequenced = "sequenced",
        /// Makes a tombstone.
        Prune = "prune",
        /// Reads records by key.
        Read = "read",
        /// Finds records by an index.
        Query = "query",
        /// Reads a set.
        Scan = "scan",
    }

    /// What an event asks for.
    EventKind {
        /// `Validated`
        Validated = "validated",
        /// `Seeded`
        Seeded = "seeded",
        /// `BlockMined`
        BlockMined = "block_mined",
        /// `Reorg`
        Reorg = "reorg",
        /// `Contest`
        Contest = "contest",
        /// `Reconsider`
        Reconsider = "reconsider",
        /// Any other command.
        Command = "command",
    }

    /// How a transaction left the pipeline.
    Completion {
        /// It is live.
        Live = "live",
        /// It is stored contested, and its fate is the sequencer's.
        Contested = "contested",
        /// It is a dead letter.
        DeadLetter = "dead_letter",
        /// It was done already: pruned, or passed over.
        PassedOver = "passed_over",
    }

    /// What became of a contested transaction.
    VerdictKind {
        /// It is live.
        Accepted = "accepted",
        /// It is conflicting.
        Conflicting = "conflicting",
    }

    /// What was pruned.
    PrunedKind {
        /// A transaction, all of whose outputs are spent by what is mined.
        Spent = "spent",
        /// A conflicting transaction.
        Conflicting = "conflicting",
        /// What was left of a transaction.
        Tombstone = "tombstone",
    }

    /// What a blob store is asked to do.
    BlobOperation {
        /// Stores a transaction.
        PutTx = "put_tx",
        /// Reads a transaction, or some of its outputs.
        GetTx = "get_tx",
        /// Stores outputs of a partial transaction.
        PutOutputs = "put_outputs",
        /// Reads outputs of a partial transaction.
        GetOutputs = "get_outputs",
        /// Asks whether there is a blob.
        Exists = "exists",
        /// Deletes a blob.
        Delete = "delete",
    }

    /// The two sorts of blobs.
    BlobLabel {
        /// A whole transaction.
        Tx = "tx",
        /// Outputs of a partial one.
        Outputs = "outputs",
    }

    /// Class of a blob store's error: the caller's possible reaction.
    BlobFailure {
        /// Nothing was done; a repeat may succeed.
        Retryable = "retryable",
        /// The outcome is unknown; a repeat is idempotent.
        Unknown = "unknown",
        /// The store forbids the request or has no room.
        Denied = "denied",
        /// The stored bytes do not match the blob's name.
        Corrupt = "corrupt",
        /// The bytes to store do not match the blob's name.
        Invalid = "invalid",
    }

    /// Which way bytes went.
    Direction {
        /// From the store.
        Read = "read",
        /// To the store, whatever became of them.
        Written = "written",
    }

    /// Whether it was at hand.
    CacheResult {
        /// It was.
        Hit = "hit",
        /// It was not.
        Miss = "miss",
    }

    /// Why nothing was committed.
    CommitFailure {
        /// What is consumed could not be written into the store first.
        Store = "store",
        /// Nobody knew whether a node of the store had forgotten.
        Nodes = "nodes",
        /// The broker refused it, or did not answer.
        Broker = "broker",
    }

    /// Why what moved had to come to its end.
    Drain {
        /// Partitions were given up.
        Revocation = "revocation",
        /// The instance stopped.
        Shutdown = "shutdown",
    }

    /// What happened to the assignment.
    Rebalance {
        /// Partitions were added.
        Assigned = "assigned",
        /// Partitions were given up in order.
        Revoked = "revoked",
        /// Partitions were gone before they could be given up.
        Lost = "lost",
    }
}

impl From<&Operation> for OperationKind {
    fn from(operation: &Operation) -> Self {
        match operation {
            Operation::Create(_) => OperationKind::Create,
            Operation::CreateContested(_) => OperationKind::CreateContested,
            Operation::Spend(_) => OperationKind::Spend,
            Operation::ClearCreating => OperationKind::ClearCreating,
            Operation::SetPageSpent { .. } | Operation::SetDeleteAtHeight(_) => OperationKind::Housekeeping,
            Operation::AcquireLockRecord { .. } | Operation::ReleaseLockRecord { .. } => OperationKind::LockRecord,
            Operation::CreateMeta(_) | Operation::ReplaceMeta(_) | Operation::PutSentinel(_) => OperationKind::Meta,
            Operation::Sequenced(
                _,
                Sequenced::SetMined { .. } | Sequenced::WasMined(_) | Sequenced::UnsetMined { .. },
            ) => OperationKind::Mined,
            Operation::Sequenced(_, Sequenced::Prune { .. }) => OperationKind::Prune,
            Operation::Sequenced(..) => OperationKind::Sequenced,
        }
    }
}

impl EventKind {
    /// The kind of an event that stands in the chain; `None`: it does not belong there.
    pub fn of_chain(event: &Event<'_>) -> Option<Self> {
        Some(match event {
            Event::BlockMined(_) => EventKind::BlockMined,
            Event::Reorg(_) => EventKind::Reorg,
            Event::Contest(_) => EventKind::Contest,
            Event::Command(Command { action: Action::Reconsider { .. }, .. }) => EventKind::Reconsider,
            Event::Command(_) => EventKind::Command,
            _ => return None,
        })
    }
}

impl Label for DeadLetterClass {
    const VALUES: &'static [&'static str] = &["decode", "invalid", "missing-parent", "seed-mismatch", "unsupported"];
    fn index(self) -> usize {
        self as usize
    }
}

impl Label for ErrorKind {
    const VALUES: &'static [&'static str] = &["retryable", "unknown", "too_big", "fatal"];
    fn index(self) -> usize {
        match self {
            ErrorKind::Retryable => 0,
            ErrorKind::Unknown => 1,
            ErrorKind::TooBig => 2,
            ErrorKind::Fatal => 3,
        }
    }
}

impl From<bool> for CacheResult {
    fn from(hit: bool) -> Self {
        if hit { CacheResult::Hit } else { CacheResult::Miss }
    }
}
