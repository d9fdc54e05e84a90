//! Bins of the records that are not pages.

use aerospike::Value;

use super::{
    super::{
        layout::Layout,
        names::{self, block, command, lock, meta},
    },
    Bins,
    page::{decode_stamp, stamp_number},
    values::{BadRecord, BinReader, int},
};
use crate::record::{
    BlockRecord, ChainTip, CommandRecord, CommandResult, ConsumedOffsets, Key, LockRecord, MetaRecord,
    codec::{
        decode_hold, decode_migration, decode_rebuilding, decode_restored, decode_topics, encode_hold,
        encode_migration, encode_rebuilding, encode_restored, encode_topics,
    },
};

/// The only kind of lock record in the reference document.
const LOCK_TYPE: &str = "tx_creation";

pub fn encode_lock_record(key: &Key, record: &LockRecord) -> Bins {
    let mut bins = vec![
        (lock::CREATED_AT, int(record.created_at)),
        (lock::LOCK_TYPE, Value::String(LOCK_TYPE.into())),
        (lock::PROCESS_ID, int(record.process_id)),
        (lock::HOSTNAME, Value::String(record.hostname.clone())),
        (lock::EXPECTED_RECS, int(record.expected_recs)),
        (lock::EXPIRES_AT, int(record.expires_at)),
        (lock::OWNER, int(record.owner)),
    ];
    // A scan finds the transaction of a lock record by this bin.
    if let Key::LockRecord(txid) = key {
        bins.push((names::TX_ID, Value::Blob(txid.0.to_vec())));
    }
    bins
}

pub fn decode_lock_record(bins: &mut BinReader) -> Result<LockRecord, BadRecord> {
    Ok(LockRecord {
        created_at: bins.required(lock::CREATED_AT)?,
        expires_at: bins.number(lock::EXPIRES_AT)?,
        process_id: bins.number(lock::PROCESS_ID)?,
        hostname: bins.text(lock::HOSTNAME)?,
        expected_recs: bins.number(lock::EXPECTED_RECS)?,
        owner: bins.number(lock::OWNER)?,
    })
}

pub fn encode_block(record: &BlockRecord) -> Bins {
    let mut bins = vec![
        (block::BLOCK_ID, int(record.block_id)),
        (block::HASH, Value::Blob(record.hash.to_vec())),
        (block::PREVIOUS, Value::Blob(record.previous.to_vec())),
        (block::HEIGHT, int(record.height)),
        (block::TIME, int(record.time)),
        (block::PROGRESS, int(record.progress)),
    ];
    if record.longest_chain {
        bins.push((block::LONGEST_CHAIN, Value::Bool(true)));
    }
    if let Some(stamp) = &record.chain_pos {
        bins.push((names::CHAIN_POS, Value::Int(stamp_number(stamp))));
    }
    bins
}

pub fn decode_block(block_id: u32, bins: &mut BinReader) -> Result<BlockRecord, BadRecord> {
    Ok(BlockRecord {
        block_id,
        hash: bins.array(block::HASH)?,
        previous: bins.array(block::PREVIOUS)?,
        height: bins.required(block::HEIGHT)?,
        time: bins.required(block::TIME)?,
        longest_chain: bins.flag(block::LONGEST_CHAIN)?,
        progress: bins.required(block::PROGRESS)?,
        chain_pos: bins.optional(names::CHAIN_POS)?.map(decode_stamp).transpose()?,
    })
}

pub fn encode_command(record: &CommandRecord) -> Bins {
    let event_digest = Value::Blob(record.event_digest.to_vec());
    let mut bins = vec![
        (command::COMMAND_ID, Value::Blob(record.id.to_vec())),
        (command::ASKED, event_digest),
        (command::CHAIN_OFFSET, int(record.chain_offset)),
    ];
    match &record.result {
        CommandResult::Applied => {}
        CommandResult::AlreadyApplied => bins.push((command::NOTHING_TO_DO, Value::Bool(true))),
        CommandResult::Refused { code, message } => {
            bins.push((command::CODE, Value::String(code.clone())));
            bins.push((command::MESSAGE, Value::String(message.clone())));
        }
    }
    if let Some(stamp) = &record.chain_pos {
        bins.push((names::CHAIN_POS, Value::Int(stamp_number(stamp))));
    }
    bins
}

pub fn decode_command(id: [u8; 16], bins: &mut BinReader) -> Result<CommandRecord, BadRecord> {
    let result = if bins.has(command::CODE) {
        CommandResult::Refused { code: bins.text(command::CODE)?, message: bins.text(command::MESSAGE)? }
    } else if bins.flag(command::NOTHING_TO_DO)? {
        CommandResult::AlreadyApplied
    } else {
        CommandResult::Applied
    };
    Ok(CommandRecord {
        id,
        event_digest: bins.array(command::ASKED)?,
        chain_offset: bins.required(command::CHAIN_OFFSET)?,
        result,
        chain_pos: bins.optional(names::CHAIN_POS)?.map(decode_stamp).transpose()?,
    })
}

pub fn encode_sentinel(store_id: &[u8; 16]) -> Bins {
    vec![(meta::STORE_ID, Value::Blob(store_id.to_vec()))]
}

pub fn decode_sentinel(bins: &mut BinReader) -> Result<[u8; 16], BadRecord> {
    bins.array(meta::STORE_ID)
}

pub fn encode_meta(layout: Layout, record: &MetaRecord) -> Bins {
    let mut bins = vec![
        (meta::STORE_ID, Value::Blob(record.store_id.to_vec())),
        (meta::LAYOUT_VERSION, int(record.layout_version + layout.version_offset())),
        (meta::NETWORK, Value::String(record.network.clone())),
        (meta::UTXO_BATCH_SIZE, int(record.utxo_batch_size)),
        (meta::RETENTION, int(record.retention)),
        (meta::PRUNE_HORIZON, int(record.prune_horizon)),
    ];
    if layout != Layout::Teranode {
        bins.push((meta::LAYOUT, Value::String(layout.to_string())));
    }
    if let Some(id) = record.chain_id {
        bins.push((meta::CHAIN_ID, Value::Blob(id.to_vec())));
    }
    if let Some(rebuilding) = &record.rebuilding {
        bins.push((meta::REBUILDING, Value::Blob(encode_rebuilding(rebuilding))));
    }
    if let Some(rebuilder) = record.rebuilder {
        bins.push((meta::REBUILDER, int(rebuilder)));
    }
    if let Some(partitions) = record.partitions {
        bins.push((meta::PARTITIONS, int(partitions)));
    }
    if record.has_blobs {
        bins.push((meta::HAS_BLOBS, Value::Bool(true)));
    }
    if record.has_sentinels {
        bins.push((meta::HAS_SENTINELS, Value::Bool(true)));
    }
    if record.reorg_floor > 0 {
        bins.push((meta::REORG_FLOOR, int(record.reorg_floor)));
    }
    if !record.topics.is_empty() {
        bins.push((meta::TOPICS, Value::Blob(encode_topics(&record.topics))));
    }
    for (ConsumedOffsets { chain, validated, .. }, chain_bin, validated_bin) in [
        (&record.consumed, meta::CONSUMED_CHAIN, meta::CONSUMED),
        (&record.replay_floor, meta::FLOOR_CHAIN, meta::FLOOR),
        (&record.durable, meta::DURABLE_CHAIN, meta::DURABLE),
    ] {
        if *chain > 0 {
            bins.push((chain_bin, int(*chain)));
        }
        if !validated.is_empty() {
            let numbers = validated.iter().flat_map(|(partition, offset)| [int(*partition), int(*offset)]);
            bins.push((validated_bin, Value::List(numbers.collect())));
        }
    }
    if record.consumed.height > 0 {
        bins.push((meta::EVENT_HEIGHT, int(record.consumed.height)));
    }
    if record.health_checks > 0 {
        bins.push((meta::HEALTH_CHECKS, int(record.health_checks)));
    }
    if let Some(hold) = &record.snapshot_hold {
        bins.push((meta::SNAPSHOT_HOLD, Value::Blob(encode_hold(hold))));
    }
    if let Some(restored) = &record.restored {
        bins.push((meta::RESTORED, Value::Blob(encode_restored(restored))));
    }
    if record.chain_era > 0 {
        bins.push((meta::CHAIN_ERA, int(record.chain_era)));
    }
    if let Some(migration) = &record.migration {
        bins.push((meta::MIGRATION, Value::Blob(encode_migration(migration))));
    }
    if let Some(tip) = &record.tip {
        bins.push((meta::TIP_OFFSET, int(tip.chain_offset)));
        bins.push((meta::TIP_HEIGHT, int(tip.height)));
        bins.push((meta::TIP_HASH, Value::Blob(tip.hash.to_vec())));
        bins.push((meta::MEDIAN_TIME, int(tip.median_time)));
    }
    bins
}

pub fn decode_meta(layout: Layout, bins: &mut BinReader) -> Result<MetaRecord, BadRecord> {
    match Layout::stored(bins.0.get(meta::LAYOUT)) {
        Ok(stored) if stored == layout => {}
        Ok(stored) => return Err(BadRecord::OtherLayout { stored, opened: layout }),
        Err(_) => return Err(BadRecord::LaterVersion(meta::LAYOUT)),
    }
    let layout_version: u32 = bins.required(meta::LAYOUT_VERSION)?;
    let rebuilding = bins.optional_blob(meta::REBUILDING)?.map(|bytes| decode_rebuilding(bytes).map(Box::new));
    let topics = bins.optional_blob(meta::TOPICS)?.map(decode_topics).transpose();
    let hold = bins.optional_blob(meta::SNAPSHOT_HOLD)?.map(decode_hold).transpose();
    let restored = bins.optional_blob(meta::RESTORED)?.map(|bytes| decode_restored(bytes).map(Box::new));
    let migration = bins.optional_blob(meta::MIGRATION)?.map(decode_migration).transpose();
    Ok(MetaRecord {
        store_id: bins.array(meta::STORE_ID)?,
        layout_version: layout_version.saturating_sub(layout.version_offset()),
        network: bins.text(meta::NETWORK)?,
        utxo_batch_size: bins.required(meta::UTXO_BATCH_SIZE)?,
        retention: bins.required(meta::RETENTION)?,
        prune_horizon: bins.required(meta::PRUNE_HORIZON)?,
        chain_id: bins.optional_array(meta::CHAIN_ID)?,
        rebuilding: rebuilding.transpose().map_err(|_| BadRecord::Bin(meta::REBUILDING))?,
        rebuilder: bins.optional(meta::REBUILDER)?,
        partitions: bins.optional(meta::PARTITIONS)?,
        has_blobs: bins.flag(meta::HAS_BLOBS)?,
        has_sentinels: bins.flag(meta::HAS_SENTINELS)?,
        consumed: ConsumedOffsets {
            height: bins.number(meta::EVENT_HEIGHT)?,
            ..decode_consumed(meta::CONSUMED_CHAIN, meta::CONSUMED, bins)?
        },
        replay_floor: decode_consumed(meta::FLOOR_CHAIN, meta::FLOOR, bins)?,
        durable: decode_consumed(meta::DURABLE_CHAIN, meta::DURABLE, bins)?,
        reorg_floor: bins.number(meta::REORG_FLOOR)?,
        topics: topics.map_err(|_| BadRecord::Bin(meta::TOPICS))?.unwrap_or_default(),
        tip: decode_tip(bins)?,
        health_checks: bins.number(meta::HEALTH_CHECKS)?,
        snapshot_hold: hold.map_err(|_| BadRecord::Bin(meta::SNAPSHOT_HOLD))?,
        restored: restored.transpose().map_err(|_| BadRecord::Bin(meta::RESTORED))?,
        chain_era: bins.number(meta::CHAIN_ERA)?,
        migration: migration.map_err(|_| BadRecord::Bin(meta::MIGRATION))?,
    })
}

fn decode_tip(bins: &mut BinReader) -> Result<Option<ChainTip>, BadRecord> {
    let Some(chain_offset) = bins.optional(meta::TIP_OFFSET)? else { return Ok(None) };
    let (height, hash) = (bins.required(meta::TIP_HEIGHT)?, bins.array(meta::TIP_HASH)?);
    Ok(Some(ChainTip { chain_offset, height, hash, median_time: bins.required(meta::MEDIAN_TIME)? }))
}

fn decode_consumed(
    chain: &'static str,
    validated: &'static str,
    bins: &mut BinReader,
) -> Result<ConsumedOffsets, BadRecord> {
    let numbers: Vec<u64> = bins.numbers(validated)?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    let pair = |[partition, offset]: &[u64; 2]| Some((u32::try_from(*partition).ok()?, *offset));
    let pairs = pairs.iter().map(pair).collect::<Option<_>>().filter(|_| rest.is_empty());
    Ok(ConsumedOffsets { chain: bins.number(chain)?, validated: pairs.ok_or(BadRecord::Bin(validated))?, height: 0 })
}
