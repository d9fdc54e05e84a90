//! Bins of a page.

use std::collections::{BTreeMap, BTreeSet};

use aerospike::Value;

use super::{
    super::{layout::Layout, names, packed::Packed},
    Bins, body,
    values::{BadRecord, BinReader, blob, blob_value, int, int_list, number, packed_list, pairs},
};
use crate::{
    event::{decode_reason, encode_reason},
    record::{
        CreatingEvent, Master, MinedIn, Page, Phase, Reassignment, SelectedPage, Selection, Slot, SpendingData, Stamp,
        StoredOutput, Verdict,
    },
    tx::{Txid, UtxoHash},
};

/// The 36 bytes that a frozen slot has in place of spending data.
const FROZEN_SPENDER: [u8; 36] = [0xFF; 36];

pub fn encode(page: &Page) -> Bins {
    let mut bins = Vec::with_capacity(20);
    bins.push((names::TX_ID, Value::Blob(page.txid.0.to_vec())));
    if page.number > 0 {
        bins.push((names::PAGE_NUMBER, int(page.number)));
    }
    // A stub and a tombstone are a few bytes: their zero counts are left out and read as 0.
    let has_slots = page.utxos.is_some();
    let mut count = |name, value: u64| {
        if has_slots || value != 0 {
            bins.push((name, int(value)));
        }
    };
    count(names::VERSION, page.version.into());
    count(names::LOCK_TIME, page.lock_time.into());
    count(names::FEE, page.fee);
    count(names::SIZE_IN_BYTES, page.size_in_bytes);
    count(names::EXTENDED_SIZE, page.extended_size);
    count(names::SPENT_UTXOS, page.spent_utxos.into());
    count(names::RECORD_UTXOS, page.record_utxos.into());
    if let Some(slots) = &page.utxos {
        bins.push((names::UTXOS, encode_slots(slots)));
    }
    if !page.amount_sizes.is_empty() {
        bins.push((names::AMOUNT_SIZES, blob_value(&page.amount_sizes)));
    }
    encode_rare_bins(page, &mut bins);
    if let Some(master) = &page.master {
        encode_master(page, master, &mut bins);
    }
    bins
}

/// Encodes the bins that few pages have.
fn encode_rare_bins(page: &Page, bins: &mut Bins) {
    // The reference takes a record without `isCoinbase` for damaged.
    if page.utxos.is_some() || page.is_coinbase {
        bins.push((names::IS_COINBASE, Value::Bool(page.is_coinbase)));
    }
    let flags = [
        (names::LOCKED, page.locked),
        (names::CONFLICTING, page.conflicting),
        (names::FROZEN, page.frozen),
        (names::CREATING, page.creating_at.is_some()),
    ];
    bins.extend(flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, Value::Bool(true))));
    let numbers = [(names::SPENDING_HEIGHT, page.spending_height), (names::SLOT_HEIGHT, page.slot_height)];
    bins.extend(numbers.into_iter().filter_map(|(name, value)| Some((name, int(value?)))));
    encode_shared(page, bins);
}

/// Encodes the bins of a page that both layouts have.
pub fn encode_shared(page: &Page, bins: &mut Bins) {
    let numbers = [
        (names::CREATING_AT, page.creating_at),
        (names::DELETE_AT_HEIGHT, page.delete_at_height.map(u64::from)),
        (names::PRUNED, page.pruned.map(u64::from)),
    ];
    bins.extend(numbers.into_iter().filter_map(|(name, value)| Some((name, int(value?)))));
    if let Some(stamp) = &page.chain_pos {
        bins.push((names::CHAIN_POS, Value::Int(stamp_number(stamp))));
    }
    if !page.contested.is_empty() {
        bins.push((names::CONTESTED, int_list(page.contested.iter().copied())));
    }
    if !page.pruned_spenders.is_empty() {
        bins.push((names::PRUNED_SPENDERS, Value::Blob(encode_bitmap(&page.pruned_spenders))));
    }
    if !page.utxo_spendable_in.is_empty() {
        let heights = page.utxo_spendable_in.iter().map(|(slot, height)| (int(*slot), int(*height)));
        // The reference reads a map without an order, and no other.
        bins.push((names::SPENDABLE_IN, Value::OrderedMap(heights.collect())));
    }
    if !page.reassignments.is_empty() {
        let entries = page.reassignments.iter().map(encode_reassignment).collect();
        bins.push((names::REASSIGNMENTS, Value::List(entries)));
    }
}

fn encode_master(page: &Page, master: &Master, bins: &mut Bins) {
    let has_slots = page.utxos.is_some();
    let mut count = |name, value: u64| {
        if has_slots || value != 0 {
            bins.push((name, int(value)));
        }
    };
    count(names::TOTAL_UTXOS, master.total_utxos.into());
    count(names::TOTAL_EXTRA_RECS, master.total_extra_recs.into());
    count(names::CREATED_AT, master.created_at);
    if has_slots || !master.mined.is_empty() {
        bins.push((names::BLOCK_IDS, int_list(master.mined.iter().map(|mined| mined.block_id))));
        bins.push((names::BLOCK_HEIGHTS, int_list(master.mined.iter().map(|mined| mined.height))));
        bins.push((names::SUBTREE_IDXS, int_list(master.mined.iter().map(|mined| mined.subtree))));
    }
    if let Some(event) = master.created_by {
        bins.push((names::CREATED_BY, int(event.number())));
    }
    if let Some(body) = &master.body {
        body::encode(page, body, bins);
    }
    if !master.spent_pages.is_empty() {
        bins.push((names::SPENT_EXTRA_RECS, int(master.spent_pages.len() as u64)));
    }
    encode_shared_of_master(master, bins);
}

/// Encodes the bins of a master that both layouts have.
pub fn encode_shared_of_master(master: &Master, bins: &mut Bins) {
    if let Some(height) = master.unmined_since {
        bins.push((names::UNMINED_SINCE, int(height)));
    }
    if let Some(height) = master.preserve_until {
        bins.push((names::PRESERVE_UNTIL, int(height)));
    }
    if !master.conflicting_children.is_empty() {
        bins.push((names::CONFLICTING_CHILDREN, encode_txids(&master.conflicting_children)));
    }
    if !master.spent_pages.is_empty() {
        bins.push((names::SPENT_PAGES, int_list(master.spent_pages.iter().copied())));
    }
    encode_verdict(master.verdict, bins);
}

fn encode_verdict(verdict: Option<Verdict>, bins: &mut Bins) {
    let Some(verdict) = verdict else { return };
    if let Verdict::Conflicting(reason) = verdict {
        bins.push((names::REASON, Value::Blob(encode_reason(&reason))));
    }
    bins.push((names::VERDICT, int(verdict.number())));
}

fn encode_slots(slots: &[Slot]) -> Value {
    // An unspent slot takes 35 bytes, a spent slot 71.
    let mut packed = Packed::with_capacity(5 + 71 * slots.len());
    packed.list(slots.len());
    for slot in slots {
        match slot_bytes(slot) {
            Some((hash, Some(spender))) => packed.blob_of(&[&hash, &spender]),
            Some((hash, None)) => packed.blob(&hash),
            None => packed.nil(),
        }
    }
    packed_list(packed)
}

/// Returns the hash of a slot and the 36 bytes that follow it; `None` for a nil slot.
pub fn slot_bytes(slot: &Slot) -> Option<([u8; 32], Option<[u8; 36]>)> {
    match slot {
        Slot::Nil => None,
        Slot::Unspent(hash) => Some((hash.0, None)),
        Slot::Spent(hash, spender) => Some((hash.0, Some(spending_data(spender)))),
        Slot::Frozen(hash) => Some((hash.0, Some(FROZEN_SPENDER))),
    }
}

/// Encodes a spender: transaction id and little-endian input index.
pub fn spending_data(spender: &SpendingData) -> [u8; 36] {
    let mut bytes = [0; 36];
    bytes[..32].copy_from_slice(&spender.txid.0);
    bytes[32..].copy_from_slice(&spender.input.to_le_bytes());
    bytes
}

pub fn decode_slot(value: Value) -> Result<Slot, BadRecord> {
    match value {
        Value::Nil => Ok(Slot::Nil),
        Value::Blob(bytes) => decode_slot_bytes(&bytes),
        _ => Err(BadRecord::Bin(names::UTXOS)),
    }
}

/// Decodes the hash of a slot, with its spender where the slot is spent or frozen.
pub fn decode_slot_bytes(bytes: &[u8]) -> Result<Slot, BadRecord> {
    let (hash, spender) = bytes.split_first_chunk::<32>().ok_or(BadRecord::Bin(names::UTXOS))?;
    let hash = UtxoHash(*hash);
    if spender.is_empty() {
        return Ok(Slot::Unspent(hash));
    }
    let spender: [u8; 36] = spender.try_into().map_err(|_| BadRecord::Bin(names::UTXOS))?;
    if spender == FROZEN_SPENDER {
        return Ok(Slot::Frozen(hash));
    }
    let (txid, input) = spender.split_first_chunk::<32>().ok_or(BadRecord::Bin(names::UTXOS))?;
    let input = u32::from_le_bytes(input.try_into().map_err(|_| BadRecord::Bin(names::UTXOS))?);
    Ok(Slot::Spent(hash, SpendingData { txid: Txid(*txid), input }))
}

fn encode_txids(txids: &BTreeSet<Txid>) -> Value {
    let mut packed = Packed::with_capacity(5 + 35 * txids.len());
    packed.list(txids.len());
    txids.iter().for_each(|txid| packed.blob(&txid.0));
    packed_list(packed)
}

fn encode_bitmap(slots: &BTreeSet<u32>) -> Vec<u8> {
    let mut bytes = vec![0; slots.last().map_or(0, |last| *last as usize / 8 + 1)];
    for slot in slots {
        bytes[*slot as usize / 8] |= 0x80 >> (slot % 8);
    }
    bytes
}

fn decode_bitmap(bytes: &[u8]) -> BTreeSet<u32> {
    let bits = bytes
        .iter()
        .zip(0_u32..)
        .flat_map(|(byte, at)| (0..8).filter(move |bit| byte & (0x80_u8 >> bit) != 0).map(move |bit| 8 * at + bit));
    bits.collect()
}

mod entry {
    pub const OFFSET: &str = "offset";
    pub const UTXO_HASH: &str = "utxoHash";
    pub const NEW_UTXO_HASH: &str = "newUtxoHash";
    pub const BLOCK_HEIGHT: &str = "blockHeight";
    /// Added: the amount of the new owner's output.
    pub const SATOSHIS: &str = "satoshis";
    /// Added: the script of the new owner's output.
    pub const SCRIPT: &str = "lockingScript";
}

fn encode_reassignment(entry: &Reassignment) -> Value {
    let pairs = [
        (entry::OFFSET, int(entry.offset)),
        (entry::UTXO_HASH, Value::Blob(entry.utxo_hash.0.to_vec())),
        (entry::NEW_UTXO_HASH, Value::Blob(entry.new_utxo_hash.0.to_vec())),
        (entry::BLOCK_HEIGHT, int(entry.block_height)),
        (entry::SATOSHIS, int(entry.output.satoshis)),
        (entry::SCRIPT, blob_value(&entry.output.script)),
    ];
    Value::SortedMap(pairs.into_iter().map(|(key, value)| (Value::String(key.into()), value)).collect())
}

fn decode_reassignment(value: Value) -> Result<Reassignment, BadRecord> {
    const BAD: BadRecord = BadRecord::Bin(names::REASSIGNMENTS);
    let mut pairs: BTreeMap<Value, Value> = pairs(names::REASSIGNMENTS, value)?.into_iter().collect();
    let mut take = |key: &str| pairs.remove(&Value::String(key.into()));
    let hash = |value: Option<Value>| -> Result<UtxoHash, BadRecord> {
        let bytes = blob(names::REASSIGNMENTS, value.ok_or(BAD)?)?;
        bytes.try_into().map(UtxoHash).map_err(|_| BAD)
    };
    Ok(Reassignment {
        offset: number(names::REASSIGNMENTS, &take(entry::OFFSET).ok_or(BAD)?)?,
        utxo_hash: hash(take(entry::UTXO_HASH))?,
        new_utxo_hash: hash(take(entry::NEW_UTXO_HASH))?,
        block_height: number(names::REASSIGNMENTS, &take(entry::BLOCK_HEIGHT).ok_or(BAD)?)?,
        output: StoredOutput {
            satoshis: take(entry::SATOSHIS).map_or(Ok(0), |value| number(names::REASSIGNMENTS, &value))?,
            script: take(entry::SCRIPT).map_or(Ok(Vec::new()), |value| blob(names::REASSIGNMENTS, value))?.into(),
        },
    })
}

/// Returns a stamp as one number. Numbers order as stamps do.
pub fn stamp_number(stamp: &Stamp) -> i64 {
    (stamp.offset << 2 | stamp.phase as u64) as i64
}

pub fn decode_stamp(number: u64) -> Result<Stamp, BadRecord> {
    let phase = match number & 3 {
        0 => Phase::Evaluate,
        1 => Phase::Apply,
        2 => Phase::Prune,
        _ => return Err(BadRecord::Bin(names::CHAIN_POS)),
    };
    Ok(Stamp { offset: number >> 2, phase })
}

/// Decodes a page. The reference system can have more bins than this program knows.
///
/// # Errors
/// [`BadRecord`].
pub fn decode(txid: Txid, number: u32, bins: &mut BinReader) -> Result<Page, BadRecord> {
    if [names::TX, names::FLAGS, names::UNSPENT, names::BLOCKS].iter().any(|bin| bins.has(bin)) {
        return Err(BadRecord::OtherLayout { stored: Layout::Compact, opened: Layout::Teranode });
    }
    if super::values::txid(names::TX_ID, bins.0.swap_remove(names::TX_ID))? != txid {
        return Err(BadRecord::Bin(names::TX_ID));
    }
    let utxos = bins.optional_list(names::UTXOS)?;
    let utxos = utxos.map(|slots| slots.into_iter().map(decode_slot).collect()).transpose()?;
    decode_fields(txid, number, utxos, bins)
}

/// Decodes the selected parts of a page.
///
/// # Errors
/// A bin has a type or a value that the bin cannot have.
pub fn decode_selected(
    txid: Txid,
    number: u32,
    selection: Selection,
    bins: &mut BinReader,
) -> Result<SelectedPage, BadRecord> {
    // The lists hold the selected elements, or fewer where the whole list ends before.
    let slots = bins.list(names::UTXOS)?.into_iter().map(decode_slot).collect::<Result<_, _>>()?;
    let outputs = match selection.output {
        true => bins.list(names::OUTPUTS)?.into_iter().map(body::decode_output).collect::<Result<_, _>>()?,
        false => Vec::new(),
    };
    let first = selection.slots.map_or(0, |slots| slots.first);
    // A stub and a tombstone have no count of slots.
    let utxos = bins.has(names::RECORD_UTXOS).then(Vec::new);
    Ok(SelectedPage { page: decode_fields(txid, number, utxos, bins)?, first, slots, outputs })
}

fn decode_fields(txid: Txid, number: u32, utxos: Option<Vec<Slot>>, bins: &mut BinReader) -> Result<Page, BadRecord> {
    let created_at: u64 = bins.number(names::CREATED_AT)?;
    let creating = bins.flag(names::CREATING)?;
    let mut page = Page {
        number,
        version: bins.number(names::VERSION)?,
        lock_time: bins.number(names::LOCK_TIME)?,
        fee: bins.number(names::FEE)?,
        size_in_bytes: bins.number(names::SIZE_IN_BYTES)?,
        extended_size: bins.number(names::EXTENDED_SIZE)?,
        utxos,
        amount_sizes: bins.optional_blob(names::AMOUNT_SIZES)?.unwrap_or_default().into(),
        spent_utxos: bins.number(names::SPENT_UTXOS)?,
        record_utxos: bins.number(names::RECORD_UTXOS)?,
        is_coinbase: bins.flag(names::IS_COINBASE)?,
        locked: bins.flag(names::LOCKED)?,
        conflicting: bins.flag(names::CONFLICTING)?,
        frozen: bins.flag(names::FROZEN)?,
        // The reference system does not store the time, so the creation of the record stands in.
        creating_at: bins.optional(names::CREATING_AT)?.or(creating.then_some(created_at)).filter(|_| creating),
        spending_height: bins.optional(names::SPENDING_HEIGHT)?,
        slot_height: bins.optional(names::SLOT_HEIGHT)?,
        ..Page::empty(txid)
    };
    decode_shared(&mut page, bins)?;
    if number == 0 {
        let master = decode_master(&page, created_at, bins)?;
        page.master = Some(Box::new(master));
    }
    Ok(page)
}

/// Decodes the bins of a page that both layouts have, besides `creatingAt`.
pub fn decode_shared(page: &mut Page, bins: &mut BinReader) -> Result<(), BadRecord> {
    let height = |(slot, height): (Value, Value)| {
        Ok((number(names::SPENDABLE_IN, &slot)?, number(names::SPENDABLE_IN, &height)?))
    };
    page.contested = bins.numbers(names::CONTESTED)?;
    page.pruned_spenders = decode_bitmap(&bins.optional_blob(names::PRUNED_SPENDERS)?.unwrap_or_default());
    page.utxo_spendable_in = bins.map(names::SPENDABLE_IN)?.into_iter().map(height).collect::<Result<_, _>>()?;
    let entries = bins.list(names::REASSIGNMENTS)?.into_iter();
    page.reassignments = entries.map(decode_reassignment).collect::<Result<_, _>>()?;
    page.chain_pos = bins.optional(names::CHAIN_POS)?.map(decode_stamp).transpose()?;
    page.delete_at_height = bins.optional(names::DELETE_AT_HEIGHT)?;
    page.pruned = bins.optional(names::PRUNED)?;
    Ok(())
}

fn decode_master(page: &Page, created_at: u64, bins: &mut BinReader) -> Result<Master, BadRecord> {
    let mut master = Master {
        total_utxos: bins.number(names::TOTAL_UTXOS)?,
        total_extra_recs: bins.number(names::TOTAL_EXTRA_RECS)?,
        mined: decode_mined(bins)?,
        created_at,
        body: body::decode(page, bins)?,
        created_by: bins.optional(names::CREATED_BY)?.map(CreatingEvent::from_number),
        ..Master::default()
    };
    decode_shared_of_master(&mut master, bins)?;
    Ok(master)
}

/// Decodes the bins of a master that both layouts have.
pub fn decode_shared_of_master(master: &mut Master, bins: &mut BinReader) -> Result<(), BadRecord> {
    let child = |child| super::values::txid(names::CONFLICTING_CHILDREN, Some(child));
    let children = bins.list(names::CONFLICTING_CHILDREN)?.into_iter();
    master.conflicting_children = children.map(child).collect::<Result<_, _>>()?;
    master.spent_pages = bins.numbers(names::SPENT_PAGES)?;
    master.verdict = decode_verdict(bins)?;
    master.unmined_since = bins.optional(names::UNMINED_SINCE)?;
    master.preserve_until = bins.optional(names::PRESERVE_UNTIL)?;
    Ok(())
}

fn decode_mined(bins: &mut BinReader) -> Result<Vec<MinedIn>, BadRecord> {
    let ids: Vec<u32> = bins.numbers(names::BLOCK_IDS)?;
    let heights: Vec<u32> = bins.numbers(names::BLOCK_HEIGHTS)?;
    let subtrees: Vec<u32> = bins.numbers(names::SUBTREE_IDXS)?;
    if ids.len() != heights.len() || ids.len() != subtrees.len() {
        return Err(BadRecord::Bin(names::BLOCK_IDS));
    }
    let triples = ids.into_iter().zip(heights).zip(subtrees);
    Ok(triples.map(|((block_id, height), subtree)| MinedIn { block_id, height, subtree }).collect())
}

fn decode_verdict(bins: &mut BinReader) -> Result<Option<Verdict>, BadRecord> {
    let reason = bins.optional_blob(names::REASON)?;
    Ok(match bins.optional::<u64>(names::VERDICT)? {
        None => None,
        Some(0) => Some(Verdict::Pending),
        Some(1) => Some(Verdict::Accepted),
        Some(2) => {
            let reason = decode_reason(&reason.ok_or(BadRecord::Bin(names::REASON))?);
            Some(Verdict::Conflicting(reason.map_err(|_| BadRecord::Bin(names::REASON))?))
        }
        Some(_) => return Err(BadRecord::Bin(names::VERDICT)),
    })
}
