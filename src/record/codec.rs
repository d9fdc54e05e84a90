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
mod page;

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    BlockRecord, BoundTopic, ChainTip, CommandRecord, CommandResult, ConsumedOffsets, Key, LockRecord, LogEnds,
    MetaRecord, Page, Rebuilding, Record, Restored, SnapshotHold,
};
use crate::tx::Txid;
use fields::{RecordReader, RecordWriter};

const VERSION: u8 = 1;

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
    #[error("the value has layout {0}, this program reads layout {VERSION}")]
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
    w.byte(VERSION);
    match record {
        Record::Page(page) => {
            w.byte(0);
            page::write(page, &mut w);
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
            write_meta(meta, &mut w);
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

/// Appends the binary form of a page to `out`, without the kind.
pub fn encode_page(page: &Page, out: &mut Vec<u8>) {
    let mut w = RecordWriter(out);
    w.byte(VERSION);
    page::write(page, &mut w);
}

/// Decodes what [`encode_page`] wrote. The page shares the memory of the value.
///
/// # Errors
/// Fails for every value that [`encode_page`] does not write for this page.
pub fn decode_page(txid: Txid, number: u32, value: Bytes) -> Result<Page, CodecError> {
    let mut r = RecordReader(value);
    match r.byte()? {
        VERSION => {}
        version => return Err(CodecError::Version(version)),
    }
    let page = page::read(txid, number, &mut r)?;
    if r.0.is_empty() { Ok(page) } else { Err(CodecError::Trailing) }
}

/// Decodes the record that is stored under `key` as `value`. The record shares the memory of the value.
///
/// # Errors
/// Fails for every value that [`encode`] does not write for a record of this key.
pub fn decode(key: &Key, value: Bytes) -> Result<Record, CodecError> {
    let mut r = RecordReader(value);
    let version = r.byte()?;
    if version != VERSION {
        return Err(CodecError::Version(version));
    }
    let record = match (r.byte()?, key) {
        (0, Key::Page(txid, number)) => Record::Page(page::read(*txid, *number, &mut r)?.into()),
        (1, Key::LockRecord(_)) => Record::LockRecord(read_lock_record(&mut r)?),
        (2, Key::Block(id)) => Record::Block(read_block(*id, &mut r)?),
        (3, Key::Meta) => Record::Meta(Box::new(read_meta(&mut r)?)),
        (4, Key::Command(id)) => Record::Command(read_command(*id, &mut r)?),
        (5, Key::Sentinel(_)) => Record::Sentinel(r.array()?),
        _ => return Err(CodecError::Kind),
    };
    if r.0.is_empty() { Ok(record) } else { Err(CodecError::Trailing) }
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

fn write_meta(meta: &MetaRecord, w: &mut RecordWriter) {
    let MetaRecord {
        store_id,
        layout_version,
        network,
        utxo_batch_size,
        retention,
        prune_horizon,
        chain_id,
        rebuilding,
        rebuilder,
        partitions,
        has_blobs,
        has_sentinels,
        consumed,
        durable,
        replay_floor,
        reorg_floor,
        topics,
        tip,
        health_checks,
        snapshot_hold,
        restored,
    } = meta;
    w.raw(store_id);
    w.number(*layout_version);
    w.bytes(network.as_bytes());
    w.number(*utxo_batch_size);
    w.number(*retention);
    w.number(*prune_horizon);
    w.option(chain_id.as_ref(), |w, id| w.raw(id));
    w.option(rebuilding.as_ref(), |w, rebuilding| write_rebuilding(rebuilding, w));
    w.option(rebuilder.as_ref(), |w, attempt| w.number(*attempt));
    w.option(partitions.as_ref(), |w, count| w.number(*count));
    let has_durable = *durable != ConsumedOffsets::default();
    let has_snapshots = snapshot_hold.is_some() || restored.is_some();
    let has_chain = tip.is_some() || consumed.height > 0 || *health_checks > 0;
    w.byte(
        u8::from(*has_blobs)
            | u8::from(*has_sentinels) << 1
            | u8::from(!topics.is_empty()) << 2
            | u8::from(has_chain) << 3
            | u8::from(has_durable) << 4
            | u8::from(has_snapshots) << 5,
    );
    write_consumed(consumed, w);
    write_consumed(replay_floor, w);
    w.number(*reorg_floor);
    // A record without topics has the layout of earlier versions, which stored no topics.
    if !topics.is_empty() {
        write_topics(topics, w);
    }
    // A record without these has the layout of earlier versions, which stored none of them.
    if has_chain {
        w.number(consumed.height);
        w.number(*health_checks);
        w.option(tip.as_ref(), |w, tip| write_tip(tip, w));
    }
    if has_durable {
        write_consumed(durable, w);
    }
    if has_snapshots {
        w.option(snapshot_hold.as_ref(), |w, hold| write_hold(hold, w));
        w.option(restored.as_ref(), |w, restored| write_restored(restored, w));
    }
}

fn write_hold(SnapshotHold { snapshot, until_ms }: &SnapshotHold, w: &mut RecordWriter) {
    w.raw(snapshot);
    w.number(*until_ms);
}

fn read_hold(r: &mut RecordReader) -> Result<SnapshotHold, CodecError> {
    Ok(SnapshotHold { snapshot: r.array()?, until_ms: r.u64()? })
}

fn write_restored(restored: &Restored, w: &mut RecordWriter) {
    let Restored { snapshot, is_loading, nodes, chunks, until, handled, chain_end, chain_from, decisions_from } =
        restored;
    w.raw(snapshot);
    w.byte(u8::from(*is_loading));
    w.bytes(nodes.as_bytes());
    w.number(*chunks);
    write_consumed(until, w);
    write_consumed(handled, w);
    w.number(*chain_end);
    w.number(*chain_from);
    w.number(*decisions_from);
}

fn read_restored(r: &mut RecordReader) -> Result<Restored, CodecError> {
    Ok(Restored {
        snapshot: r.array()?,
        is_loading: r.bool()?,
        nodes: r.text()?,
        chunks: r.u64()?,
        until: read_consumed(r)?,
        handled: read_consumed(r)?,
        chain_end: r.u64()?,
        chain_from: r.u64()?,
        decisions_from: r.u64()?,
    })
}

/// Decodes one part of a meta record, which has to be all of the bytes.
fn decode_whole<T>(
    bytes: impl Into<Bytes>,
    read: impl FnOnce(&mut RecordReader) -> Result<T, CodecError>,
) -> Result<T, CodecError> {
    let mut r = RecordReader(bytes.into());
    let part = read(&mut r)?;
    if r.0.is_empty() { Ok(part) } else { Err(CodecError::Trailing) }
}

/// Encodes a hold, for engines that do not store a meta record as one value.
pub fn encode_hold(hold: &SnapshotHold) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_hold(hold, &mut RecordWriter(&mut bytes));
    bytes
}

/// Decodes the bytes that [`encode_hold`] writes.
///
/// # Errors
/// Fails for any other bytes, see [`CodecError`].
pub fn decode_hold(bytes: impl Into<Bytes>) -> Result<SnapshotHold, CodecError> {
    decode_whole(bytes, read_hold)
}

/// Encodes a restore, for engines that do not store a meta record as one value.
pub fn encode_restored(restored: &Restored) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_restored(restored, &mut RecordWriter(&mut bytes));
    bytes
}

/// Decodes the bytes that [`encode_restored`] writes.
///
/// # Errors
/// Fails for any other bytes, see [`CodecError`].
pub fn decode_restored(bytes: impl Into<Bytes>) -> Result<Restored, CodecError> {
    decode_whole(bytes, read_restored)
}

fn write_tip(ChainTip { chain_offset, height, hash, median_time }: &ChainTip, w: &mut RecordWriter) {
    w.number(*chain_offset);
    w.number(*height);
    w.raw(hash);
    w.number(*median_time);
}

/// Encodes bound topics, for engines that do not store a meta record as one value.
pub fn encode_topics(topics: &BTreeMap<String, BoundTopic>) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_topics(topics, &mut RecordWriter(&mut bytes));
    bytes
}

/// Decodes the bytes that [`encode_topics`] writes.
///
/// # Errors
/// Fails for any other bytes, see [`CodecError`].
pub fn decode_topics(bytes: impl Into<Bytes>) -> Result<BTreeMap<String, BoundTopic>, CodecError> {
    decode_whole(bytes, read_topics)
}

fn write_topics(topics: &BTreeMap<String, BoundTopic>, w: &mut RecordWriter) {
    w.count(topics.len());
    for (name, BoundTopic { id, first }) in topics {
        w.bytes(name.as_bytes());
        w.option(id.as_ref(), |w, id| w.raw(id));
        w.count(first.len());
        for (partition, id) in first {
            w.number(*partition);
            w.raw(id);
        }
    }
}

fn read_topics(r: &mut RecordReader) -> Result<BTreeMap<String, BoundTopic>, CodecError> {
    r.list(|r| {
        let name = r.text()?;
        let id = r.option(RecordReader::array)?;
        Ok((name, BoundTopic { id, first: r.list(|r| Ok((r.u32()?, r.array()?)))? }))
    })
}

/// Encodes a rebuild in progress, for engines that do not store a meta record as one value.
pub fn encode_rebuilding(rebuilding: &Rebuilding) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_rebuilding(rebuilding, &mut RecordWriter(&mut bytes));
    bytes
}

/// Decodes the bytes that [`encode_rebuilding`] writes.
///
/// # Errors
/// Fails for any other bytes, see [`CodecError`].
pub fn decode_rebuilding(bytes: impl Into<Bytes>) -> Result<Rebuilding, CodecError> {
    decode_whole(bytes, read_rebuilding)
}

/// Writes the offsets; only those of a meta record have a height, which follows at its end.
fn write_consumed(ConsumedOffsets { chain, validated, height: _ }: &ConsumedOffsets, w: &mut RecordWriter) {
    w.number(*chain);
    w.count(validated.len());
    for (partition, offset) in validated {
        w.number(*partition);
        w.number(*offset);
    }
}

fn write_rebuilding(rebuilding: &Rebuilding, w: &mut RecordWriter) {
    let Rebuilding { frontier, log: LogEnds { committed, ends, decisions }, nodes, reached, chain_state } = rebuilding;
    w.number(*frontier);
    write_consumed(committed, w);
    write_consumed(ends, w);
    w.number(*decisions);
    w.bytes(nodes.as_bytes());
    write_consumed(reached, w);
    w.bytes(chain_state.as_bytes());
}

fn read_meta(r: &mut RecordReader) -> Result<MetaRecord, CodecError> {
    let flags;
    let mut meta = MetaRecord {
        store_id: r.array()?,
        layout_version: r.u32()?,
        network: r.text()?,
        utxo_batch_size: r.u32()?,
        retention: r.u32()?,
        prune_horizon: r.u32()?,
        chain_id: r.option(RecordReader::array)?,
        rebuilding: r.option(|r| Ok(Box::new(read_rebuilding(r)?)))?,
        rebuilder: r.option(RecordReader::u64)?,
        partitions: r.option(RecordReader::u32)?,
        has_blobs: {
            flags = r.byte()?;
            flags & 1 != 0
        },
        has_sentinels: flags & 2 != 0,
        consumed: read_consumed(r)?,
        durable: ConsumedOffsets::default(),
        replay_floor: read_consumed(r)?,
        reorg_floor: r.u32()?,
        topics: if flags & 4 != 0 { read_topics(r)? } else { BTreeMap::new() },
        tip: None,
        health_checks: 0,
        snapshot_hold: None,
        restored: None,
    };
    if flags & 8 != 0 {
        (meta.consumed.height, meta.health_checks) = (r.u32()?, r.u64()?);
        meta.tip = r.option(read_tip)?;
    }
    if flags & 16 != 0 {
        meta.durable = read_consumed(r)?;
    }
    if flags & 32 != 0 {
        meta.snapshot_hold = r.option(read_hold)?;
        meta.restored = r.option(|r| Ok(Box::new(read_restored(r)?)))?;
    }
    if flags < 64 { Ok(meta) } else { Err(CodecError::Field("flag")) }
}

fn read_tip(r: &mut RecordReader) -> Result<ChainTip, CodecError> {
    Ok(ChainTip { chain_offset: r.u64()?, height: r.u32()?, hash: r.array()?, median_time: r.u32()? })
}

fn read_rebuilding(r: &mut RecordReader) -> Result<Rebuilding, CodecError> {
    Ok(Rebuilding {
        frontier: r.u64()?,
        log: LogEnds { committed: read_consumed(r)?, ends: read_consumed(r)?, decisions: r.u64()? },
        nodes: r.text()?,
        reached: read_consumed(r)?,
        chain_state: r.text()?,
    })
}

fn read_consumed(r: &mut RecordReader) -> Result<ConsumedOffsets, CodecError> {
    Ok(ConsumedOffsets { chain: r.u64()?, validated: r.list(|r| Ok((r.u32()?, r.u64()?)))?, height: 0 })
}

#[cfg(test)]
pub(crate) mod tests;
