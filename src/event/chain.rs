//! Events that only `utxo.chain` carries: contests and commands. Blocks and reorgs are in `block`.

use super::{
    declare,
    json::values::{block_hash, hex_array, hex_bytes},
};
use crate::{
    record::Reason,
    tx::{Outpoint, Txid, UtxoHash},
};

declare! {
    /// Hands a transaction that the fast path cannot apply freely to the sequencer.
    pub struct Contest {
        /// Txid of the contested transaction.
        pub txid: Txid,
        /// Position of the transaction's own event.
        pub position: EventPosition,
        /// BLAKE3 of the transaction's body in that event, hashed as in the state digest.
        pub body: [u8; 32] as "block_hash",
        /// Reason of the contest.
        pub reason: Reason,
    }
}

declare! {
    /// Position of the message that holds an event.
    pub struct EventPosition {
        /// Name of the topic.
        pub topic: String,
        /// Number of the partition.
        pub partition: i32,
        /// Offset of the message itself, not the next to read.
        pub offset: u64,
        /// Timestamp of the message in its topic, milliseconds since the epoch.
        pub timestamp_ms: i64,
    }
}

declare! {
    /// Asks the sequencer for a change; written by an operator, a client or the sequencer itself.
    #[serde(bound(deserialize = "'de: 'a"))]
    pub struct Command<'a> {
        /// Id that the sender chooses. The result names the id, and a repeated id changes nothing.
        pub id: [u8; 16] as "hex_array",
        /// Requested change and its subject.
        pub action: CommandAction<'a>,
    }
}

declare! {
    /// Change that a [`Command`] asks for.
    pub enum CommandAction<'a> {
        /// Makes the outputs of a transaction spendable.
        Unlock = 0, "unlock" {
            /// Transaction that the command changes.
            txid: Txid,
        },
        /// Makes the outputs of a transaction not spendable yet.
        Lock = 1, "lock" {
            /// Transaction that the command changes.
            txid: Txid,
        },
        /// Makes an output unspendable until it is unfrozen or reassigned.
        Freeze = 2, "freeze" {
            /// Output that the command changes.
            outpoint: Outpoint,
        },
        /// Makes a frozen output spendable again.
        Unfreeze = 3, "unfreeze" {
            /// Output that the command changes.
            outpoint: Outpoint,
        },
        /// Makes an output unspendable below a height.
        FreezeUntil = 4, "freeze-until" {
            /// Output that the command changes.
            outpoint: Outpoint,
            /// Height from which the output is spendable.
            height: u32,
        },
        /// Gives a frozen output to a new owner.
        Reassign = 5, "reassign" {
            /// Output that the command changes.
            outpoint: Outpoint,
            /// UTXO hash that the output must have now.
            utxo_hash: UtxoHash,
            /// The new owner's locking script.
            new_script: &'a [u8] as "hex_bytes",
            /// Amount of the output, satoshis.
            satoshis: u64,
            /// Block height of the reassignment.
            height: u32,
            /// Blocks after `height` from which the new owner can spend.
            spendable_after: u32,
        },
        /// Frees an output that the named input of the named transaction holds.
        Unspend = 6, "unspend" {
            /// Output that the command changes.
            outpoint: Outpoint,
            /// Transaction that holds the output.
            spender: Txid,
            /// Index of the spending input.
            input: u32,
        },
        /// Makes a transaction and its descendants conflicting.
        SetConflicting = 7, "set-conflicting" {
            /// Transaction that the command changes.
            txid: Txid,
        },
        /// Opens the verdict of a conflicting transaction again.
        Reconsider = 8, "reconsider" {
            /// Transaction that the command changes.
            txid: Txid,
        },
        /// Protects a transaction from pruning.
        Preserve = 9, "preserve" {
            /// Transaction that the command changes.
            txid: Txid,
            /// Block height until which the transaction is protected.
            until: u32,
        },
        /// Turns a transaction that is conflicting by verdict into a tombstone.
        Delete = 10, "delete" {
            /// Transaction that the command changes.
            txid: Txid,
        },
        /// Makes all outputs of a transaction unspendable until the transaction is unfrozen.
        FreezeTransaction = 11, "freeze-transaction" {
            /// Transaction that the command changes.
            txid: Txid,
        },
        /// Ends the freezing of a transaction. An output that was frozen alone stays frozen.
        UnfreezeTransaction = 12, "unfreeze-transaction" {
            /// Transaction that the command changes.
            txid: Txid,
        },
    }
}

impl CommandAction<'_> {
    /// Returns the index of the output that the command changes; `None`: the command changes a whole transaction.
    pub fn vout(&self) -> Option<u32> {
        match self {
            CommandAction::Freeze { outpoint }
            | CommandAction::Unfreeze { outpoint }
            | CommandAction::FreezeUntil { outpoint, .. }
            | CommandAction::Reassign { outpoint, .. }
            | CommandAction::Unspend { outpoint, .. } => Some(outpoint.vout),
            _ => None,
        }
    }

    /// Returns the transaction that the command changes.
    pub fn subject(&self) -> Txid {
        match self {
            CommandAction::Unlock { txid }
            | CommandAction::Lock { txid }
            | CommandAction::SetConflicting { txid }
            | CommandAction::Reconsider { txid }
            | CommandAction::Preserve { txid, .. }
            | CommandAction::Delete { txid }
            | CommandAction::FreezeTransaction { txid }
            | CommandAction::UnfreezeTransaction { txid } => *txid,
            CommandAction::Freeze { outpoint }
            | CommandAction::Unfreeze { outpoint }
            | CommandAction::FreezeUntil { outpoint, .. }
            | CommandAction::Reassign { outpoint, .. }
            | CommandAction::Unspend { outpoint, .. } => outpoint.txid,
        }
    }
}

declare! {
    describe enum Reason {
        /// An input is spent by another transaction.
        DoubleSpend = 0, "double-spend" {
            /// Index of the input.
            input: u32,
            /// Transaction that spends the same output.
            winner: Txid,
        },
        /// A parent is conflicting by verdict.
        ConflictingParent = 1, "conflicting-parent" {
            /// Txid of the parent.
            parent: Txid,
        },
        /// A parent is missing: no event before the transaction's own event creates the parent.
        MissingParent = 2, "missing-parent" {
            /// Txid of the parent.
            parent: Txid,
        },
        /// A parent was pruned before its slot was taken.
        PrunedParent = 3, "pruned-parent" {
            /// Txid of the parent.
            parent: Txid,
        },
        /// A coinbase parent was immature at the transaction's height.
        Immature = 4, "immature" {
            /// Index of the input.
            input: u32,
        },
        /// The slot's hash, script or amount differs from the previous output that the input claims.
        Mismatch = 5, "mismatch" {
            /// Index of the input.
            input: u32,
        },
        /// The parent has no such output, or one without a slot.
        NoSuchOutput = 6, "no-such-output" {
            /// Index of the input.
            input: u32,
        },
        /// The slot is spendable only from a later height on.
        NotYetSpendable = 7, "not-yet-spendable" {
            /// Index of the input.
            input: u32,
        },
        /// The slot, or its transaction, is frozen.
        Frozen = 8, "frozen" {
            /// Index of the input.
            input: u32,
        },
        /// A parent stayed locked longer than the grace period.
        Locked = 9, "locked" {
            /// Txid of the parent.
            parent: Txid,
        },
        /// A slot has a history, so the sequencer must decide. Reason of a contest only, never of a verdict.
        History = 10, "history" {
            /// Index of the input.
            input: u32,
        },
        /// The transaction's own record was found contested. Reason of a contest only, never of a verdict.
        Found = 11, "found",
        /// A command of an operator made the transaction conflicting.
        Command = 12, "command",
        /// The block of a coinbase left the longest chain.
        Disconnected = 13, "disconnected",
        /// The first event of the transaction was a partial one, so that the whole one possibly holds no slots. Reason
        /// of a contest only, never of a verdict.
        Seeded = 14, "seeded",
    }
}
