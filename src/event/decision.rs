//! What the sequencer writes: decisions before they are done, and outcomes.

use super::declare;
use crate::{
    record::{CommandResult, Reason, SpendingData},
    tx::{Outpoint, Txid},
};

declare! {
    /// One step of what the sequencer decided about one event of the chain. The first record for an identity
    /// (`chain_offset`, `step`) counts; steps are contiguous.
    pub struct Decision {
        /// Offset in `utxo.chain` of the event.
        pub chain_offset: u64,
        /// Number of the step, from 0.
        pub step: u32,
        /// What was decided.
        pub body: DecisionBody,
    }
}

declare! {
    /// What a [`Decision`] says.
    pub enum DecisionBody {
        /// The transaction has its verdict already; nothing is done.
        PassedOver = 0, "passed-over" {
            /// The transaction.
            txid: Txid,
        },
        /// The transaction is live.
        Accepted = 1, "accepted" {
            /// The transaction.
            txid: Txid,
            /// Block height at the decision.
            height: u32,
            /// Every input, whoever held its slot.
            inputs: Vec<DecidedInput>,
            /// Transactions that become conflicting for it.
            losers: Vec<Txid>,
            /// A block on the longest chain brings it.
            by_block: bool,
        },
        /// The transaction is conflicting.
        Conflicting = 2, "conflicting" {
            /// The transaction.
            txid: Txid,
            /// Why.
            reason: Reason,
            /// Block height at the decision.
            height: u32,
            /// It had been live until now (a rebuild makes it live first).
            live: bool,
        },
        /// Transactions that descend from a conflicting one, and are conflicting with it.
        Cone = 3, "cone" {
            /// One level, or a part of one; an empty list closes the cone.
            members: Vec<ConeMember>,
            /// Block height at the decision.
            height: u32,
        },
        /// What became of a command.
        CommandDone = 4, "command-done" {
            /// The command's own id.
            id: [u8; 16],
            /// Offset in `utxo.chain` at which it was executed. Where that is not the event's own, this is a repeat: its result is
            /// that of the first time, and nothing is done.
            executed_at: u64,
            /// What became of it.
            result: CommandResult,
        },
        /// The last step for this event.
        Closed = 5, "closed",
        /// A part of an `accepted` that is larger than a message may be. It is decided, as a whole, once all its parts stand in
        /// steps directly behind each other, from the first to the last; anything else between them voids what was begun.
        AcceptedPart = 6, "accepted-part" {
            /// Which whole: the first bytes of BLAKE3 of the event that holds the `accepted`, with `chain_offset` and `step` 0.
            whole: [u8; 16],
            /// Number of the part, from 0.
            part: u32,
            /// How many there are.
            parts: u32,
            /// The transaction.
            txid: Txid,
            /// Block height at the decision.
            height: u32,
            /// The next of its inputs.
            inputs: Vec<DecidedInput>,
            /// The next of the transactions that become conflicting for it.
            losers: Vec<Txid>,
            /// A block on the longest chain brings it.
            by_block: bool,
        },
    }
}

declare! {
    /// One input of an accepted transaction.
    pub struct DecidedInput {
        /// Its index.
        pub input: u32,
        /// The output that it spends.
        pub outpoint: Outpoint,
        /// Who was found to hold the slot; none: it was free.
        pub holder: Option<SpendingData>,
    }
}

declare! {
    /// One transaction of a cone.
    pub struct ConeMember {
        /// The transaction.
        pub txid: Txid,
        /// The transaction through whose outputs it was found.
        pub parent: Txid,
        /// It had been live until now; otherwise it was contested, or is only a stub.
        pub live: bool,
    }
}

declare! {
    describe enum CommandResult {
        /// It was done.
        Applied = 0, "applied",
        /// There was nothing to do.
        AlreadyApplied = 1, "already-applied",
        /// It was not done.
        Refused = 2, "refused" {
            /// Why, as a code: `FROZEN`, `TX_NOT_FOUND`, …
            code: String,
            /// Why, in one line.
            message: String,
        },
    }
}

declare! {
    describe struct SpendingData {
        /// The spending transaction.
        txid: Txid,
        /// The index of its input.
        input: u32,
    }
}

declare! {
    /// What validators and clients are told.
    pub struct OutcomeEvent {
        /// The transaction; of a command, the one that it names.
        pub txid: Txid,
        /// Offset in `utxo.chain` of the event that led to it.
        pub chain_offset: u64,
        /// What became of it.
        pub kind: OutcomeKind,
    }
}

declare! {
    /// What an [`OutcomeEvent`] tells.
    pub enum OutcomeKind {
        /// The transaction was contested and is live.
        Accepted = 0, "accepted",
        /// The transaction was contested and is conflicting, or became so.
        Conflicting = 1, "conflicting" {
            /// Why.
            reason: Reason,
        },
        /// The transaction was refused.
        Refused = 2, "refused" {
            /// Why, as a code.
            code: String,
            /// Why, in one line.
            message: String,
        },
        /// A command was handled.
        Command = 3, "command" {
            /// The command's own id.
            id: [u8; 16],
            /// What became of it.
            result: CommandResult,
        },
    }
}
