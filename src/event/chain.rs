//! What else `utxo.chain` carries: contests and commands.

use super::declare;
use crate::{
    record::Reason,
    tx::{Outpoint, Txid, UtxoHash},
};

declare! {
    /// The fast path could not decide a transaction and leaves it to the sequencer.
    pub struct Contest {
        /// The transaction.
        pub txid: Txid,
        /// Where its own event is.
        pub position: Position,
        /// BLAKE3 of the transaction as that event has it (of its body, as the digest hashes it).
        pub body: [u8; 32],
        /// Why.
        pub reason: Reason,
    }
}

declare! {
    /// Where a message is.
    pub struct Position {
        /// Topic name.
        pub topic: String,
        /// Partition number.
        pub partition: i32,
        /// The message's own offset.
        pub offset: u64,
        /// Milliseconds since the epoch, as the topic records it.
        pub timestamp_ms: i64,
    }
}

declare! {
    /// Somebody, or the sequencer itself, asks for a change.
    pub struct Command<'a> {
        /// Chosen by who asks; the result names it, and a repeat of it changes nothing.
        pub id: [u8; 16],
        /// What to do.
        pub action: Action<'a>,
    }
}

declare! {
    /// What a [`Command`] asks for.
    pub enum Action<'a> {
        /// Makes the outputs of a transaction spendable.
        Unlock = 0, "unlock" {
            /// The transaction.
            txid: Txid,
        },
        /// Makes the outputs of a transaction not spendable yet.
        Lock = 1, "lock" {
            /// The transaction.
            txid: Txid,
        },
        /// Bars an output until it is unfrozen or reassigned.
        Freeze = 2, "freeze" {
            /// The output.
            outpoint: Outpoint,
        },
        /// Frees a frozen output.
        Unfreeze = 3, "unfreeze" {
            /// The output.
            outpoint: Outpoint,
        },
        /// Bars an output below a height.
        FreezeUntil = 4, "freeze-until" {
            /// The output.
            outpoint: Outpoint,
            /// The height from which it is spendable.
            height: u32,
        },
        /// Gives a frozen output to a new owner.
        Reassign = 5, "reassign" {
            /// The output.
            outpoint: Outpoint,
            /// UTXO hash that it must have now.
            utxo_hash: UtxoHash,
            /// The new owner's locking script.
            new_script: &'a [u8],
            /// Its amount.
            satoshis: u64,
            /// Block height of the reassignment.
            height: u32,
            /// Blocks after `height` from which the new owner can spend.
            spendable_after: u32,
        },
        /// Frees an output, if that input of that transaction holds it.
        Unspend = 6, "unspend" {
            /// The output.
            outpoint: Outpoint,
            /// The transaction that spends it.
            spender: Txid,
            /// The index of its input.
            input: u32,
        },
        /// Makes a transaction, and all that descends from it, conflicting.
        SetConflicting = 7, "set-conflicting" {
            /// The transaction.
            txid: Txid,
        },
        /// Looks again at a conflicting transaction.
        Reconsider = 8, "reconsider" {
            /// The transaction.
            txid: Txid,
        },
        /// Keeps a transaction from being pruned.
        Preserve = 9, "preserve" {
            /// The transaction.
            txid: Txid,
            /// Until this block height.
            until: u32,
        },
        /// Turns a transaction that is conflicting by verdict into a tombstone.
        Delete = 10, "delete" {
            /// The transaction.
            txid: Txid,
        },
    }
}

impl Action<'_> {
    /// The transaction that is to be changed.
    pub fn subject(&self) -> Txid {
        match self {
            Action::Unlock { txid }
            | Action::Lock { txid }
            | Action::SetConflicting { txid }
            | Action::Reconsider { txid }
            | Action::Preserve { txid, .. }
            | Action::Delete { txid } => *txid,
            Action::Freeze { outpoint }
            | Action::Unfreeze { outpoint }
            | Action::FreezeUntil { outpoint, .. }
            | Action::Reassign { outpoint, .. }
            | Action::Unspend { outpoint, .. } => outpoint.txid,
        }
    }
}

declare! {
    describe enum Reason {
        /// An input is spent by another transaction.
        DoubleSpend = 0, "double-spend" {
            /// Index of the input.
            input: u32,
            /// The transaction that spends it.
            winner: Txid,
        },
        /// A parent is conflicting by verdict.
        ConflictingParent = 1, "conflicting-parent" {
            /// That parent.
            parent: Txid,
        },
        /// A parent was proven never to have been produced before it.
        MissingParent = 2, "missing-parent" {
            /// That parent.
            parent: Txid,
        },
        /// A parent was pruned before its slot was taken.
        PrunedParent = 3, "pruned-parent" {
            /// That parent.
            parent: Txid,
        },
        /// A coinbase parent was immature at the transaction's height.
        Immature = 4, "immature" {
            /// Index of the input.
            input: u32,
        },
        /// The slot's hash, script or amount differs from what the input says.
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
        /// A parent stayed locked longer than the grace.
        Locked = 9, "locked" {
            /// That parent.
            parent: Txid,
        },
        /// A slot has a history, so the sequencer must decide. Only ever why a transaction was contested, never a
        /// verdict.
        History = 10, "history" {
            /// Index of the input.
            input: u32,
        },
        /// The transaction's own record was found contested. Only ever why it was contested, never a verdict.
        Found = 11, "found",
        /// An operator said so.
        Command = 12, "command",
        /// A coinbase whose block left the longest chain.
        Disconnected = 13, "disconnected",
        /// The first event of the transaction was a partial one, so that this one may hold no slots. Only ever why it was
        /// contested, never a verdict.
        Seeded = 14, "seeded",
    }
}
