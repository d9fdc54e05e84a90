//! Binary form of records, for engines that store bytes.
//!
//! ```text
//! value   = version (1) ‖ kind (1) ‖ body
//! page    = flags (u32, LE) ‖ numbers ‖ what the flags announce ‖ slots ‖ the transaction's body, last
//! slot    = tag (1) ‖ nothing (nil) | hash (32; unspent, frozen) | hash ‖ spender (36; spent)
//! number  = LEB128; counts come before what they count
//! ```
//!
//! The value does not repeat the parts of the key (transaction id, page number, block id). The body of a transaction is
//! last, so that a decoded record shares the memory of the value instead of copying the body.

mod fields;
mod meta;
mod page;

use bytes::Bytes;

use super::{BlockRecord, CommandRecord, CommandResult, Key, LockRecord, Page, Record};
use crate::tx::Txid;
use fields::{RecordReader, RecordWriter};
use page::PageParts;

pub use meta::{
    decode_hold, decode_migration, decode_rebuilding, decode_restored, decode_topics, encode_hold, encode_migration,
    encode_rebuilding, encode_restored, encode_topics,
};

/// The layout in which most values are written, and the last one that this program reads. A page whose body is a first
/// blob has layout 2 where the page has the hash of the blob: an earlier program refuses the page by its layout.
const VERSION: u8 = 1;
const LAST_VERSION: u8 = 2;

/// Error of a value that [`encode`] cannot have written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The value ends early, or a count exceeds the bytes that follow.
    #[error("the value is cut short")]
    Truncated,
    /// The value has bytes after its last field.
    #[error("the value has bytes after its end")]
    Trailing,
    /// The value has the layout of another version of this program; holds its number.
    #[error("the value has layout {0}, this program reads layouts up to {LAST_VERSION}")]
    Version(u8),
    /// A field has an invalid value; holds its name.
    #[error("the value has a bad {0}")]
    Field(&'static str),
    /// The value is of a kind that does not belong under its key.
    #[error("the value is of another kind than its key")]
    Kind,
}

/// Appends the binary form of the record to `out`.
pub fn encode(record: &Record, out: &mut Vec<u8>) {
    let mut w = RecordWriter(out);
    w.byte(record.page().map_or(VERSION, page::version_of));
    match record {
        Record::Page(page) => {
            w.byte(0);
            page::write(page, PageParts::All, &mut w);
        }
        Record::LockRecord(lock_record) => {
            w.byte(1);
            write_lock_record(lock_record, &mut w);
        }
        Record::Block(block) => {
            w.byte(2);
            write_block(block, &mut w);
        }
        Record::Meta(meta) => {
            w.byte(3);
            meta::write_meta(meta, &mut w);
        }
        Record::Command(command) => {
            w.byte(4);
            write_command(command, &mut w);
        }
        Record::Sentinel(store_id) => {
            w.byte(5);
            w.raw(store_id);
        }
    }
}

/// Appends to `out` the binary form of the fields of a page that never change, or only with the whole page: a stub, a
/// tombstone, a reassigned slot. A body that is stored inline is left out, and so is the kind of the record.
pub fn encode_constants(page: &Page, out: &mut Vec<u8>) {
    let mut w = RecordWriter(out);
    w.byte(page::version_of(page));
    page::write(page, PageParts::Constants, &mut w);
}

/// Decodes what [`encode_constants`] wrote. The page shares the memory of the value.
///
/// # Errors
/// Fails for every value that is no binary form of this page.
pub fn decode_page(txid: Txid, number: u32, value: Bytes) -> Result<Page, CodecError> {
    let mut r = RecordReader(value);
    read_version(&mut r)?;
    let page = page::read(txid, number, &mut r)?;
    if r.0.is_empty() { Ok(page) } else { Err(CodecError::Trailing) }
}

/// Decodes the record that is stored under `key` as `value`. The record shares the memory of the value.
///
/// # Errors
/// Fails for every value that [`encode`] does not write for a record of this key.
pub fn decode(key: &Key, value: Bytes) -> Result<Record, CodecError> {
    let mut r = RecordReader(value);
    read_version(&mut r)?;
    let record = match (r.byte()?, key) {
        (0, Key::Page(txid, number)) => Record::Page(page::read(*txid, *number, &mut r)?.into()),
        (1, Key::LockRecord(_)) => Record::LockRecord(read_lock_record(&mut r)?),
        (2, Key::Block(id)) => Record::Block(read_block(*id, &mut r)?),
        (3, Key::Meta) => Record::Meta(Box::new(meta::read_meta(&mut r)?)),
        (4, Key::Command(id)) => Record::Command(read_command(*id, &mut r)?),
        (5, Key::Sentinel(_)) => Record::Sentinel(r.array()?),
        _ => return Err(CodecError::Kind),
    };
    if r.0.is_empty() { Ok(record) } else { Err(CodecError::Trailing) }
}

fn read_version(r: &mut RecordReader) -> Result<(), CodecError> {
    match r.byte()? {
        VERSION..=LAST_VERSION => Ok(()),
        version => Err(CodecError::Version(version)),
    }
}

fn write_lock_record(lock_record: &LockRecord, w: &mut RecordWriter) {
    let LockRecord { created_at, expires_at, process_id, hostname, expected_recs, owner } = lock_record;
    w.number(*created_at);
    w.number(*expires_at);
    w.number(*process_id);
    w.bytes(hostname.as_bytes());
    w.number(*expected_recs);
    w.number(*owner);
}

fn read_lock_record(r: &mut RecordReader) -> Result<LockRecord, CodecError> {
    Ok(LockRecord {
        created_at: r.u64()?,
        expires_at: r.u64()?,
        process_id: r.u32()?,
        hostname: r.text()?,
        expected_recs: r.u32()?,
        owner: r.u64()?,
    })
}

fn write_block(block: &BlockRecord, w: &mut RecordWriter) {
    let BlockRecord { block_id: _, hash, previous, height, time, longest_chain, progress, chain_pos } = block;
    w.raw(hash);
    w.raw(previous);
    w.number(*height);
    w.number(*time);
    w.byte(u8::from(*longest_chain));
    w.number(*progress);
    w.option(chain_pos.as_ref(), |w, stamp| w.stamp(stamp));
}

fn read_block(block_id: u32, r: &mut RecordReader) -> Result<BlockRecord, CodecError> {
    Ok(BlockRecord {
        block_id,
        hash: r.array()?,
        previous: r.array()?,
        height: r.u32()?,
        time: r.u32()?,
        longest_chain: r.bool()?,
        progress: r.u64()?,
        chain_pos: r.option(RecordReader::stamp)?,
    })
}

fn write_command(command: &CommandRecord, w: &mut RecordWriter) {
    let CommandRecord { id: _, event_digest, chain_offset, result, chain_pos } = command;
    w.raw(event_digest);
    w.number(*chain_offset);
    match result {
        CommandResult::Applied => w.byte(0),
        CommandResult::AlreadyApplied => w.byte(1),
        CommandResult::Refused { code, message } => {
            w.byte(2);
            w.bytes(code.as_bytes());
            w.bytes(message.as_bytes());
        }
    }
    w.option(chain_pos.as_ref(), RecordWriter::stamp);
}

fn read_command(id: [u8; 16], r: &mut RecordReader) -> Result<CommandRecord, CodecError> {
    Ok(CommandRecord {
        id,
        event_digest: r.array()?,
        chain_offset: r.u64()?,
        result: match r.byte()? {
            0 => CommandResult::Applied,
            1 => CommandResult::AlreadyApplied,
            2 => CommandResult::Refused { code: r.text()?, message: r.text()? },
            _ => return Err(CodecError::Field("result")),
        },
        chain_pos: r.option(RecordReader::stamp)?,
    })
}

#[cfg(test)]
pub(crate) mod tests;
