//! Records, and the effect of one operation on one record.
//!
//! [`apply`] is a pure function: `(key, record, operation) -> (record', outcome)`. It uses no I/O, no clock and no
//! async. Engines make the function atomic and durable: the memory and fjall engines call it, the Aerospike engine
//! compiles native operations to one `operate` with the same effect.

pub mod build;
pub mod codec;
pub mod page_refusal;

mod block;
mod body;
mod command;
mod lock_record;
mod meta;
mod operation;
mod ops;
mod outcome;
mod page;
mod selection;
mod verdict;

pub use block::BlockRecord;
pub use body::{Blob, Body, PartialOutputs, StoredOutput};
pub use command::{CommandRecord, CommandResult};
pub use lock_record::LockRecord;
pub use meta::{
    BoundTopic, ChainTip, ConsumedOffsets, LogEnds, MetaRecord, MigrationPart, Rebuilding, Restored, SnapshotHold,
};
pub use operation::*;
pub use ops::{Effect, apply, respend_refusal, spend_all};
pub use outcome::{Outcome, Rejection, Reply};
pub use page::*;
pub use selection::{SelectedPage, Selection, SlotRange};
pub use verdict::{Reason, Verdict};

use crate::tx::Txid;

/// Key of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Page `page` of a transaction; page 0 is the master.
    Page(Txid, u32),
    /// The lock record of a transaction that is being created over several pages (`txid ‖ 0xFFFFFFFF`).
    LockRecord(Txid),
    /// The block record of the block with this local id.
    Block(u32),
    /// The meta record; every set has exactly one.
    Meta,
    /// The result of the command with this id.
    Command([u8; 16]),
    /// A sentinel, by its number. The absence of a sentinel shows that a part of the namespace is lost.
    Sentinel(u8),
}

impl Key {
    /// Returns the key of the master of `txid`.
    pub fn master(txid: Txid) -> Self {
        Key::Page(txid, 0)
    }

    /// Returns the transaction of a page or of a lock record; `None` for other records.
    pub fn txid(&self) -> Option<Txid> {
        match self {
            Key::Page(txid, _) | Key::LockRecord(txid) => Some(*txid),
            Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => None,
        }
    }
}

/// Record of the store, of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A page of a transaction, master or further page.
    Page(std::sync::Arc<Page>),
    /// A temporary record, see [`LockRecord`].
    LockRecord(LockRecord),
    /// A block, see [`BlockRecord`].
    Block(BlockRecord),
    /// The identity of the store, see [`MetaRecord`].
    Meta(Box<MetaRecord>),
    /// The result of a command, see [`CommandRecord`].
    Command(CommandRecord),
    /// A sentinel; holds the `store_id` of the store's [`MetaRecord`].
    Sentinel([u8; 16]),
}

impl Record {
    /// Returns the page; `None` for other records.
    pub fn page(&self) -> Option<&Page> {
        match self {
            Record::Page(page) => Some(page),
            _ => None,
        }
    }
}
