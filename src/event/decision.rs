//! Decisions of the sequencer, which are written before they are applied.

use super::{
    declare,
    json::values::{hex_array, required},
};
use crate::{
    record::{CommandResult, Reason, SpendingData},
    tx::{Outpoint, Txid, UtxoHash},
};

declare! {
    /// Step of the sequencer's decision about one event of the chain log. The first record with an identity
    /// (`chain_offset`, `step`) counts. Steps are contiguous.
    pub struct Decision {
        /// Offset in `utxo.chain` of the event that is decided.
        pub chain_offset: u64,
        /// Number of the step, from 0.
        pub step: u32,
        /// Content of the decision.
        pub body: DecisionBody,
    }
}

declare! {
    /// Decisions on several events of the chain log, all of which were evaluated before the first of them was applied.
    /// The group counts only if no other record stands between the records that its sequencer had read and the group.
    pub struct DecisionGroup {
        /// Offset in `utxo.decisions` up to which the sequencer had read the topic. A group at another offset is void.
        pub position: u64,
        /// Decided events, in the order of the chain. None of them has an earlier decision.
        pub events: Vec<DecidedEvent>,
    }
}

declare! {
    /// Verdicts on several transactions that one block lists, all of which were evaluated before the first of them was
    /// applied. The run counts only if no other record stands between the records that its sequencer had read and the
    /// run.
    pub struct DecisionRun {
        /// Offset in `utxo.decisions` up to which the sequencer had read the topic. A run at another offset is void.
        pub position: u64,
        /// Offset in `utxo.chain` of the event that is decided.
        pub chain_offset: u64,
        /// Step of the first decision.
        pub step: u32,
        /// Contents of the decisions, by step: `accepted`.
        pub bodies: Vec<DecisionBody>,
    }
}

declare! {
    /// All decisions on one event of the chain log.
    pub struct DecidedEvent {
        /// Offset in `utxo.chain` of the event that is decided.
        pub chain_offset: u64,
        /// Contents of the decisions, by step from 0. The last one is `closed`.
        pub bodies: Vec<DecisionBody>,
    }
}

declare! {
    /// Content of a [`Decision`].
    pub enum DecisionBody {
        /// The transaction already has a verdict; the event changes nothing.
        PassedOver = 0, "passed-over" {
            /// Txid of the transaction with the verdict.
            txid: Txid,
        },
        /// The transaction is live.
        Accepted = 1, "accepted" {
            /// Txid of the accepted transaction.
            txid: Txid,
            /// Block height at the decision.
            height: u32,
            /// All inputs, whichever transaction held the slot of each.
            inputs: Vec<DecidedInput>,
            /// Transactions that become conflicting because this one is accepted.
            losers: Vec<Txid>,
            /// A block on the longest chain lists the transaction.
            by_block: bool,
        },
        /// The transaction is conflicting.
        Conflicting = 2, "conflicting" {
            /// Txid of the refused transaction.
            txid: Txid,
            /// Reason of the refusal.
            reason: Reason,
            /// Block height at the decision.
            height: u32,
            /// The transaction was live until this decision (a rebuild makes it live first).
            live: bool,
        },
        /// Descendants of a conflicting transaction, which are conflicting with it.
        Cone = 3, "cone" {
            /// Level of descendants, or a part of a level; an empty list ends the descendants.
            members: Vec<Descendant>,
            /// Block height at the decision.
            height: u32,
        },
        /// The sequencer has handled a command.
        CommandDone = 4, "command-done" {
            /// The command's own id.
            id: [u8; 16] as "hex_array",
            /// Offset in `utxo.chain` at which the command was executed. If that is not the event's own offset, the
            /// event repeats the command: the result is the one of the execution, and the event changes nothing.
            executed_at: u64,
            /// Result of the execution.
            result: CommandResult,
        },
        /// The last step for this event.
        Closed = 5, "closed",
        /// Part of an `accepted` that exceeds the size limit of a message. The whole is decided once all parts are
        /// in consecutive steps, from the first to the last; any other record between them voids the earlier parts.
        AcceptedPart = 6, "accepted-part" {
            /// Identity of the whole: the first bytes of BLAKE3 of the event that holds the `accepted`, with
            /// `chain_offset` and `step` 0.
            whole: [u8; 16] as "hex_array",
            /// Number of the part, from 0.
            part: u32,
            /// Number of parts of the whole.
            parts: u32,
            /// Txid of the accepted transaction.
            txid: Txid,
            /// Block height at the decision.
            height: u32,
            /// The next of the transaction's inputs.
            inputs: Vec<DecidedInput>,
            /// The next of the transactions that become conflicting because this one is accepted.
            losers: Vec<Txid>,
            /// A block on the longest chain lists the transaction.
            by_block: bool,
        },
        /// An operator lets a transaction that a block lists spend outputs that commands have barred. The bars are
        /// lifted before the block is applied. The record stands at any step, and joins no other decision.
        Lifted = 7, "lifted" {
            /// Txid of the listed transaction.
            txid: Txid,
            /// Outputs that the transaction spends and that commands have frozen, delayed or reassigned.
            outputs: Vec<LiftedOutput>,
        },
    }
}

declare! {
    /// Output whose bars an operator lifts.
    pub struct LiftedOutput {
        /// Outpoint of the output.
        pub outpoint: Outpoint,
        /// UTXO hash of the former owner that gets the output back; none: the present owner keeps the output.
        pub owner: Option<UtxoHash> as "required",
    }
}

declare! {
    /// Input of an accepted transaction and the holder of its slot.
    pub struct DecidedInput {
        /// Index of the input.
        pub input: u32,
        /// Output that the input spends.
        pub outpoint: Outpoint,
        /// Holder of the slot at the decision; none: the slot was free.
        pub holder: Option<SpendingData> as "required",
    }
}

declare! {
    /// Descendant of a conflicting transaction.
    pub struct Descendant {
        /// Txid of the descendant.
        pub txid: Txid,
        /// Transaction whose outputs led to this descendant.
        pub parent: Txid,
        /// The descendant was live until this decision; otherwise it was contested, or is only a stub.
        pub live: bool,
    }
}

declare! {
    describe enum CommandResult {
        /// The command changed the state.
        Applied = 0, "applied",
        /// The state was already as the command asks for.
        AlreadyApplied = 1, "already-applied",
        /// The command changed nothing.
        Refused = 2, "refused" {
            /// Reason as a code: `FROZEN`, `TX_NOT_FOUND`, …
            code: String,
            /// Reason in one line.
            message: String,
        },
    }
}

declare! {
    describe struct SpendingData {
        /// Txid of the spending transaction.
        txid: Txid,
        /// Index of the spending input.
        input: u32,
    }
}

impl DecisionRun {
    /// Returns the decisions of the run, by step.
    pub(super) fn into_decisions(self) -> impl Iterator<Item = Decision> {
        let DecisionRun { chain_offset, step, bodies, .. } = self;
        bodies.into_iter().zip(step..).map(move |(body, step)| Decision { chain_offset, step, body })
    }
}

impl DecisionGroup {
    /// Returns the decisions of the group, by event and step.
    pub(super) fn into_decisions(self) -> impl Iterator<Item = Decision> {
        self.events.into_iter().flat_map(|DecidedEvent { chain_offset, bodies }| {
            bodies.into_iter().zip(0..).map(move |(body, step)| Decision { chain_offset, step, body })
        })
    }
}
