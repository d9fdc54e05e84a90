//! Labels of metrics with a fixed list of values.

use strum::VariantNames;

use super::Label;
use crate::{
    engine::ErrorKind,
    event::{Command, CommandAction, DeadLetterClass, Event},
    record::{Operation, Sequenced},
};

/// Declares enums that implement [`Label`].
macro_rules! labels {
    ($(
        $(#[$attribute:meta])*
        $name:ident { $($(#[$variant_attribute:meta])* $variant:ident = $value:literal),* $(,)? }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Operation of the engine.
    OperationKind {
        /// Creates a page of a transaction.
        Create = "create",
        /// Stores a contested transaction.
        CreateContested = "create_contested",
        /// Spends slots of a page.
        Spend = "spend",
        /// Clears the flag `creating` of a page.
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
        /// Replaces a record with a tombstone.
        Prune = "prune",
        /// Reads records by key.
        Read = "read",
        /// Finds records by an index.
        Query = "query",
        /// Reads a page of a set.
        Scan = "scan",
    }

    /// Kind of an event.
    EventKind {
        /// A validated transaction (event `Validated`).
        Validated = "validated",
        /// A partial transaction (event `Seeded`).
        Seeded = "seeded",
        /// A mined block (event `BlockMined`).
        BlockMined = "block_mined",
        /// A reorganization of the chain (event `Reorg`).
        Reorg = "reorg",
        /// A contested transaction (event `Contest`).
        Contest = "contest",
        /// A second chance (command `Reconsider`).
        Reconsider = "reconsider",
        /// Any other command of an operator.
        Command = "command",
    }

    /// Result with which a transaction left the pipeline.
    Completion {
        /// The transaction is live.
        Live = "live",
        /// The transaction is stored as contested, and the sequencer decides.
        Contested = "contested",
        /// The event was published as a dead letter.
        DeadLetter = "dead_letter",
        /// The event was done before: the transaction is pruned, or was passed over.
        PassedOver = "passed_over",
    }

    /// Verdict on a contested transaction.
    VerdictKind {
        /// The transaction is live.
        Accepted = "accepted",
        /// The transaction is conflicting.
        Conflicting = "conflicting",
    }

    /// Kind of a pruned record.
    PrunedKind {
        /// A transaction with every output spent by mined transactions.
        Spent = "spent",
        /// A transaction that is conflicting.
        Conflicting = "conflicting",
        /// A tombstone that was shrunk.
        Tombstone = "tombstone",
    }

    /// Operation of a blob store.
    BlobOperation {
        /// Stores a whole transaction.
        PutTx = "put_tx",
        /// Reads a transaction, or some outputs of one.
        GetTx = "get_tx",
        /// Stores outputs of a partial transaction.
        PutOutputs = "put_outputs",
        /// Reads outputs of a partial transaction.
        GetOutputs = "get_outputs",
        /// Looks up whether a blob exists.
        #[cfg_attr(not(feature = "testkit"), expect(dead_code, reason = "the metric has had the label from the start"))]
        Exists = "exists",
        /// Deletes one stored blob.
        Delete = "delete",
    }

    /// Kind of a blob by its content; the value ends the blob's name.
    BlobKind {
        /// A whole transaction in extended format (a coinbase: in the format of its event).
        Tx = "tx",
        /// The known outputs of a partial transaction.
        Outputs = "outputs",
    }

    /// Class of a blob store's error by what the caller may do.
    BlobErrorKind {
        /// The request changed nothing; send the same request again after a pause.
        Retryable = "retryable",
        /// The request may have taken effect; send the same request again, because requests are idempotent.
        Unknown = "unknown",
        /// The store forbids the request or is full, and a person has to change that. Retries are harmless and succeed
        /// after the change.
        Denied = "denied",
        /// The stored bytes do not match the blob's name. A retry does not help; nothing was written.
        Corrupt = "corrupt",
        /// The bytes to store do not match the blob's name. Nothing was sent.
        Invalid = "invalid",
    }

    /// Direction of a transfer.
    TransferDirection {
        /// Bytes read from the blob store.
        Read = "read",
        /// Bytes sent to the blob store, whatever the outcome of the request.
        Written = "written",
    }

    /// Result of a lookup in the cache.
    CacheResult {
        /// The body was in the cache.
        Hit = "hit",
        /// The body was not in the cache.
        Miss = "miss",
    }

    /// Reason why no offset was committed.
    CommitFailure {
        /// The consumed offsets could not be recorded in the meta record.
        Store = "store",
        /// The store did not answer whether one of its nodes has restarted.
        Nodes = "nodes",
        /// The broker refused the commit, or did not answer.
        Broker = "broker",
    }

    /// Reason of a drain.
    DrainReason {
        /// Partitions of the instance were revoked.
        Revocation = "revocation",
        /// The instance shut down.
        Shutdown = "shutdown",
    }

    /// Change of the assignment.
    RebalanceChange {
        /// Partitions were assigned to the instance.
        Assigned = "assigned",
        /// Partitions were revoked after a drain.
        Revoked = "revoked",
        /// Partitions were lost without a chance to commit.
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
            Operation::SetPageSpent { .. } => OperationKind::Housekeeping,
            #[cfg(feature = "testkit")]
            Operation::SetDeleteAtHeight(_) => OperationKind::Housekeeping,
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
    /// Kind of an event of the chain log; `None`: the event does not belong there.
    pub fn of_chain(event: &Event<'_>) -> Option<Self> {
        Some(match event {
            Event::BlockMined(_) => EventKind::BlockMined,
            Event::Reorg(_) => EventKind::Reorg,
            Event::Contest(_) => EventKind::Contest,
            Event::Command(Command { action: CommandAction::Reconsider { .. }, .. }) => EventKind::Reconsider,
            Event::Command(_) => EventKind::Command,
            _ => return None,
        })
    }
}

impl Label for DeadLetterClass {
    const VALUES: &'static [&'static str] = Self::VARIANTS;
    fn index(self) -> usize {
        self as usize
    }
}

impl Label for ErrorKind {
    const VALUES: &'static [&'static str] = Self::VARIANTS;
    fn index(self) -> usize {
        self as usize
    }
}

impl From<bool> for CacheResult {
    fn from(hit: bool) -> Self {
        if hit { CacheResult::Hit } else { CacheResult::Miss }
    }
}
