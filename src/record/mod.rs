//! What one record is, and what one operation does to it.
//!
//! [`apply`] is a pure function: `(key, record, operation) -> (record', outcome)`. No I/O, no clock, no async. Engines make
//! it atomic and durable: the memory and fjall engines call it, the Aerospike engine compiles each operation to one
//! `operate` that does the same.

pub mod beyond;
pub mod build;
pub mod codec;

mod command;
mod operation;
mod ops;
mod page;

pub use command::{CommandRecord, CommandResult};
pub use operation::*;
pub use ops::{Effect, apply, respend_refusal, spend_all};
pub use page::*;

use crate::tx::Txid;

/// Where a record lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Page `page` of a transaction; page 0 is the master.
    Page(Txid, u32),
    /// The lock record of a transaction that is being created over several pages (`txid ‖ 0xFFFFFFFF`).
    LockRecord(Txid),
    /// What the sequencer knows of a block, by its local id.
    Block(u32),
    /// Who this store is; one a set.
    Meta,
    /// What became of a command, by its own id.
    Command([u8; 16]),
    /// One of the records whose absence tells that a part of the namespace is gone.
    Sentinel(u8),
}

impl Key {
    /// The master record of `txid`.
    pub fn master(txid: Txid) -> Self {
        Key::Page(txid, 0)
    }

    /// The transaction that it is about, if it is about one.
    pub fn txid(&self) -> Option<Txid> {
        match self {
            Key::Page(txid, _) | Key::LockRecord(txid) => Some(*txid),
            Key::Block(_) | Key::Meta | Key::Command(_) | Key::Sentinel(_) => None,
        }
    }
}

/// One record of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// A page of a transaction.
    Page(std::sync::Arc<Page>),
    /// See [`LockRecord`].
    LockRecord(LockRecord),
    /// See [`BlockRecord`].
    Block(BlockRecord),
    /// See [`MetaRecord`].
    Meta(MetaRecord),
    /// See [`CommandRecord`].
    Command(CommandRecord),
    /// Says which store it belongs to: `store_id` of its [`MetaRecord`].
    Sentinel([u8; 16]),
}

impl Record {
    /// The page, where this is one.
    pub fn page(&self) -> Option<&Page> {
        match self {
            Record::Page(page) => Some(page),
            _ => None,
        }
    }
}
