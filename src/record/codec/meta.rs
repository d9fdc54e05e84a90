//! The binary form of a meta record, and of its parts for engines that do not store a meta record as one value.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    CodecError,
    fields::{RecordReader, RecordWriter},
};
use crate::record::{
    BoundTopic, ChainTip, ConsumedOffsets, LogEnds, MetaRecord, MigrationPart, Rebuilding, Restored, SnapshotHold,
};

/// Second byte of flags: the record has an era.
const CHAIN_ERA: u8 = 1;

pub(super) fn write_meta(meta: &MetaRecord, w: &mut RecordWriter) {
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
        chain_era,
        migration,
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
            | u8::from(has_snapshots) << 5
            | u8::from(migration.is_some()) << 6
            | u8::from(*chain_era > 0) << 7,
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
    if let Some(migration) = migration {
        write_migration(migration, w);
    }
    // The last bit of the flags: a later field announces itself behind this one.
    if *chain_era > 0 {
        w.byte(CHAIN_ERA);
        w.number(*chain_era);
    }
}

fn write_migration(migration: &MigrationPart, w: &mut RecordWriter) {
    let (part, id) = match migration {
        MigrationPart::Copy(id) => (0, id),
        MigrationPart::Source(id) => (1, id),
    };
    w.byte(part);
    w.raw(id);
}

fn read_migration(r: &mut RecordReader) -> Result<MigrationPart, CodecError> {
    match r.byte()? {
        0 => Ok(MigrationPart::Copy(r.array()?)),
        1 => Ok(MigrationPart::Source(r.array()?)),
        _ => Err(CodecError::Field("migration")),
    }
}

/// Encodes a migration, for engines that do not store a meta record as one value.
pub fn encode_migration(migration: &MigrationPart) -> Vec<u8> {
    encode_whole(|w| write_migration(migration, w))
}

/// Decodes the bytes that [`encode_migration`] writes.
///
/// # Errors
/// Fails for any other bytes, see [`CodecError`].
pub fn decode_migration(bytes: impl Into<Bytes>) -> Result<MigrationPart, CodecError> {
    decode_whole(bytes, read_migration)
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

/// Encodes one part of a meta record by itself.
fn encode_whole(write: impl FnOnce(&mut RecordWriter)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut RecordWriter(&mut bytes));
    bytes
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
    encode_whole(|w| write_hold(hold, w))
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
    encode_whole(|w| write_restored(restored, w))
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
    encode_whole(|w| write_topics(topics, w))
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
    encode_whole(|w| write_rebuilding(rebuilding, w))
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

pub(super) fn read_meta(r: &mut RecordReader) -> Result<MetaRecord, CodecError> {
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
        chain_era: 0,
        migration: None,
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
    if flags & 64 != 0 {
        meta.migration = Some(read_migration(r)?);
    }
    if flags & 128 != 0 {
        match r.byte()? {
            CHAIN_ERA => meta.chain_era = r.u32()?,
            _ => return Err(CodecError::Field("flag")),
        }
    }
    Ok(meta)
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
