//! Labels of metrics with a fixed list of values.

use strum::VariantNames;

use super::Label;
use crate::{
    engine::ErrorKind,
    event::{Command, CommandAction, DeadLetterClass, Event, OutcomeChange, OutcomeKind},
    record::{Operation, Sequenced},
};

/// Declares enums that implement [`Label`]; a value is the variant in snake case.
macro_rules! labels {
    ($(
        $(#[$attribute:meta])*
        $name:ident { $($(#[$variant_attribute:meta])* $variant:ident),* $(,)? }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, VariantNames)]
        #[strum(serialize_all = "snake_case")]
        #[allow(missing_docs, reason = "a variant without a comment is what its name says")]
        pub enum $name { $($(#[$variant_attribute])* $variant),* }

        label_by_variants!($name);
    )*};
}

/// Implements [`Label`] by the names of the variants.
macro_rules! label_by_variants {
    ($name:ident) => {
        impl Label for $name {
            const VALUES: &'static [&'static str] = Self::VARIANTS;
            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label_by_variants!(DeadLetterClass);
label_by_variants!(ErrorKind);

labels! {
    /// Operation of the engine.
    OperationKind {
        Create,
        CreateContested,
        Spend,
        ClearCreating,
        /// Copies hints between the pages of a transaction.
        Housekeeping,
        /// Takes or releases a lock record.
        LockRecord,
        /// Writes the meta record.
        Meta,
        /// Sets or unsets mined.
        Mined,
        /// Any other operation of the sequencer.
        Sequenced,
        /// Replaces a record with a tombstone.
        Prune,
        /// Reads records by key.
        Read,
        /// Finds records by an index.
        Query,
        /// Reads a page of a set.
        Scan,
    }

    /// Kind of an event.
    EventKind {
        Validated,
        /// A partial transaction (event `Seeded`).
        Seeded,
        BlockMined,
        Reorg,
        Contest,
        /// A second chance (command `Reconsider`).
        Reconsider,
        /// Any other command of an operator.
        Command,
    }

    /// Result with which a transaction left the pipeline.
    Completion {
        Live,
        /// The event was done before: the transaction was found live, or pruned since.
        AlreadyLive,
        /// The transaction is stored as contested, and the sequencer decides.
        Contested,
        DeadLetter,
        /// The event changes nothing: its transaction is conflicting, or stored by another event.
        PassedOver,
    }

    /// Content of a published outcome.
    PublishedOutcome {
        Accepted,
        Conflicting,
        Refused,
        /// Result of a command.
        Command,
        Live,
        Mined,
        Unmined,
    }

    /// Verdict on a contested transaction.
    VerdictKind { Accepted, Conflicting }

    /// Kind of a pruned record.
    PrunedKind {
        /// A transaction with every output spent by mined transactions.
        Spent,
        Conflicting,
        /// A tombstone that was shrunk.
        Tombstone,
    }

    /// Operation of a blob store.
    BlobOperation {
        PutTx,
        /// Reads a transaction, or some outputs of one.
        GetTx,
        PutOutputs,
        GetOutputs,
        #[cfg_attr(
            not(any(feature = "testkit", feature = "vault")),
            expect(dead_code, reason = "the metric has had the label from the start")
        )]
        Exists,
        Delete,
    }

    /// Kind of a blob by its content; the value ends the blob's name.
    BlobKind {
        /// A whole transaction in extended format (a coinbase: in the format of its event).
        Tx,
        /// The known outputs of a partial transaction.
        Outputs,
    }

    /// Class of a blob store's error by what the caller may do.
    BlobErrorKind {
        /// The request changed nothing; send the same request again after a pause.
        Retryable,
        /// The request may have taken effect; send the same request again, because requests are idempotent.
        Unknown,
        /// The store forbids the request or is full, and a person has to change that. Retries are harmless and succeed
        /// after the change.
        Denied,
        /// The stored bytes do not match the blob's name. A retry does not help; nothing was written.
        Corrupt,
        /// The bytes to store do not match the blob's name. Nothing was sent.
        Invalid,
    }

    /// Direction of a transfer.
    TransferDirection {
        Read,
        /// Bytes sent to the blob store, whatever the outcome of the request.
        Written,
    }

    /// Result of a lookup in the cache.
    CacheResult { Hit, Miss }

    /// Reason why no offset was committed.
    CommitFailure {
        /// The consumed offsets could not be recorded in the meta record.
        Store,
        /// The store did not answer whether one of its nodes has restarted.
        Nodes,
        /// The broker refused the commit, or did not answer.
        Broker,
    }

    /// Reason of a drain.
    DrainReason { Revocation, Shutdown }

    /// Change of the assignment.
    RebalanceChange {
        Assigned,
        /// Partitions were revoked after a drain.
        Revoked,
        /// Partitions were lost without a chance to commit.
        Lost,
    }

    /// Cause of a try of a parked transaction.
    TryCause {
        /// An outcome has named what the transaction waits for.
        Outcome,
        /// The pause of the transaction has ended.
        Retry,
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
            Operation::AcquireLockRecord { .. } | Operation::ReleaseLockRecord { .. } => OperationKind::LockRecord,
            Operation::CreateMeta(_) | Operation::ReplaceMeta(_) | Operation::PutSentinel(_) => OperationKind::Meta,
            Operation::Restore(_) => OperationKind::Create,
            Operation::Sequenced(
                _,
                Sequenced::SetMined { .. } | Sequenced::WasMined(_) | Sequenced::UnsetMined { .. },
            ) => OperationKind::Mined,
            Operation::Sequenced(_, Sequenced::Prune { .. }) => OperationKind::Prune,
            Operation::Sequenced(..) | Operation::SequencedAll(_) => OperationKind::Sequenced,
        }
    }
}

impl Completion {
    /// Returns whether the transaction is live by its event, or was live before it was pruned.
    pub fn is_live(self) -> bool {
        matches!(self, Completion::Live | Completion::AlreadyLive)
    }
}

impl From<&OutcomeKind> for PublishedOutcome {
    fn from(kind: &OutcomeKind) -> Self {
        match kind {
            OutcomeKind::Accepted => PublishedOutcome::Accepted,
            OutcomeKind::Conflicting { .. } => PublishedOutcome::Conflicting,
            OutcomeKind::Refused { .. } => PublishedOutcome::Refused,
            OutcomeKind::Command { .. } => PublishedOutcome::Command,
        }
    }
}

impl From<OutcomeChange> for PublishedOutcome {
    fn from(change: OutcomeChange) -> Self {
        match change {
            OutcomeChange::Live => PublishedOutcome::Live,
            OutcomeChange::Mined { .. } => PublishedOutcome::Mined,
            OutcomeChange::Unmined { .. } => PublishedOutcome::Unmined,
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

impl From<bool> for CacheResult {
    fn from(hit: bool) -> Self {
        if hit { CacheResult::Hit } else { CacheResult::Miss }
    }
}
