//! Bins of a page in the layout `compact`.
//!
//! ```text
//! tx      = txid (32) ‖ page number (u32, LE) ‖ page without what changes, and without a body that is stored inline
//! body    = transaction in extended format; a partial transaction has `outputs`
//! slot    = size of the output's amount (1; 0: unknown) ‖ hash (32) ‖ nothing | spender (36)
//! blocks  = list of: height ‖ block id ‖ subtree index (u32, BE, each)
//! unspent = recordUtxos − spentUtxos
//! flags   = bits, `layout::flag`
//! ```
//!
//! The other bins are those of the reference system, and as rare.

use aerospike::Value;
use bytes::{Buf, Bytes};

use super::{
    super::{
        layout::{Layout, flag},
        names,
        packed::Packed,
    },
    Bins, body,
    page::{
        decode_shared, decode_shared_of_master, decode_slot_bytes, encode_shared, encode_shared_of_master, slot_bytes,
    },
    values::{BadRecord, BinReader, blob, blob_value, int, packed_list},
};
use crate::{
    record::{
        Body, Master, MinedIn, Page, SelectedPage, Selection, Slot,
        codec::{self, CodecError},
    },
    tx::{Transaction, Txid, amount_size},
};

/// Bytes of `tx` before the page: transaction id and page number.
const HEAD: usize = 36;

pub fn encode(page: &Page) -> Bins {
    let mut bins = Vec::with_capacity(8);
    bins.push((names::TX, Value::Blob(encode_constants(page))));
    if let Some(slots) = &page.utxos {
        bins.push((names::UTXOS, encode_slots(page, slots)));
    }
    let unspent = i64::from(page.record_utxos) - i64::from(page.spent_utxos);
    if page.utxos.is_some() || unspent != 0 {
        bins.push((names::UNSPENT, Value::Int(unspent)));
    }
    let flags = flags(page);
    if flags != 0 {
        bins.push((names::FLAGS, int(flags)));
    }
    encode_shared(page, &mut bins);
    if let Some(master) = &page.master {
        encode_master(master, &mut bins);
    }
    bins
}

fn encode_constants(page: &Page) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + 64 + page.amount_sizes.len());
    bytes.extend_from_slice(&page.txid.0);
    bytes.extend_from_slice(&page.number.to_le_bytes());
    codec::encode_constants(page, &mut bytes);
    bytes
}

fn flags(page: &Page) -> u16 {
    let children = page.master.as_ref().is_some_and(|master| !master.conflicting_children.is_empty());
    let is_due = page.master.is_some() && page.delete_at_height.is_some();
    let bits = [
        (flag::CREATING, page.creating_at.is_some()),
        (flag::CONFLICTING, page.conflicting),
        (flag::LOCKED, page.locked),
        (flag::FROZEN, page.frozen),
        (flag::NO_SLOTS, page.utxos.is_none()),
        (flag::SPENDING_HEIGHT, page.spending_height.is_some()),
        (flag::CONTESTED, !page.contested.is_empty()),
        (flag::SPENDABLE_IN, !page.utxo_spendable_in.is_empty()),
        (flag::REASSIGNED, !page.reassignments.is_empty()),
        (flag::CHILDREN, children),
        (flag::EARLY_DUE, is_due && !page.conflicting && page.spent_utxos < page.record_utxos),
    ];
    bits.into_iter().filter(|(_, is_set)| *is_set).map(|(bit, _)| bit).sum()
}

fn encode_master(master: &Master, bins: &mut Bins) {
    match &master.body {
        Some(Body::Transaction(bytes)) => bins.push((names::BODY, blob_value(bytes))),
        Some(Body::Outputs(outputs)) => bins.push((names::OUTPUTS, body::partial_outputs(outputs))),
        Some(Body::External(_)) | None => {}
    }
    if master.total_extra_recs > 0 {
        bins.push((names::TOTAL_EXTRA_RECS, int(master.total_extra_recs)));
    }
    if !master.mined.is_empty() {
        bins.push((names::BLOCKS, encode_blocks(&master.mined)));
    }
    encode_shared_of_master(master, bins);
}

pub fn encode_blocks(blocks: &[MinedIn]) -> Value {
    let mut packed = Packed::with_capacity(3 + 14 * blocks.len());
    packed.list(blocks.len());
    blocks.iter().for_each(|block| packed.blob(&encode_block(block)));
    packed_list(packed)
}

/// Encodes an entry of `blocks`. Entries order by height, then by block id.
pub fn encode_block(MinedIn { block_id, height, subtree }: &MinedIn) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&height.to_be_bytes());
    bytes[4..8].copy_from_slice(&block_id.to_be_bytes());
    bytes[8..].copy_from_slice(&subtree.to_be_bytes());
    bytes
}

pub fn decode_block(value: Value) -> Result<MinedIn, BadRecord> {
    let bytes: [u8; 12] = blob(names::BLOCKS, value)?.try_into().map_err(|_| BadRecord::Bin(names::BLOCKS))?;
    let number = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok(MinedIn { height: number(0), block_id: number(4), subtree: number(8) })
}

/// Sizes of the amounts of a page's outputs, as its slots have them.
pub struct AmountSizes<'a> {
    page: &'a Page,
    /// Sizes by offset, of outputs that are stored inline.
    inline: Vec<u8>,
}

impl<'a> AmountSizes<'a> {
    pub fn of(page: &'a Page) -> Self {
        let inline = match page.body() {
            _ if !page.amount_sizes.is_empty() => Vec::new(),
            Some(Body::Transaction(bytes)) => {
                let transaction = Transaction::parse(bytes).ok();
                transaction.iter().flat_map(|tx| tx.outputs().map(|output| amount_size(output.satoshis))).collect()
            }
            Some(Body::Outputs(outputs)) => {
                outputs.iter().map(|output| output.map_or(0, |output| amount_size(output.satoshis))).collect()
            }
            Some(Body::External(_)) | None => Vec::new(),
        };
        AmountSizes { page, inline }
    }

    /// Returns the size at an offset. 0 stands for an output that the page does not have: the filters of spends refuse
    /// the slot, and the pure function decides. A reassigned slot has another output than the transaction.
    pub fn at(&self, offset: usize) -> u8 {
        if self.page.reassignments.iter().any(|reassigned| reassigned.offset as usize == offset) {
            return 0;
        }
        let sizes = if self.inline.is_empty() { &self.page.amount_sizes[..] } else { &self.inline[..] };
        sizes.get(offset).copied().unwrap_or(0)
    }
}

fn encode_slots(page: &Page, slots: &[Slot]) -> Value {
    let sizes = AmountSizes::of(page);
    // An unspent slot takes 36 bytes, a spent slot 72.
    let mut packed = Packed::with_capacity(5 + 72 * slots.len());
    packed.list(slots.len());
    for (offset, slot) in slots.iter().enumerate() {
        match slot_bytes(slot) {
            Some((hash, Some(spender))) => packed.blob_of(&[&[sizes.at(offset)], &hash, &spender]),
            Some((hash, None)) => packed.blob_of(&[&[sizes.at(offset)], &hash]),
            None => packed.nil(),
        }
    }
    packed_list(packed)
}

/// Decodes a slot: the size before the hash is made anew at each write.
fn decode_sized_slot(value: Value) -> Result<Slot, BadRecord> {
    match value {
        Value::Blob(bytes) if !bytes.is_empty() => decode_slot_bytes(&bytes[1..]),
        Value::Nil => Ok(Slot::Nil),
        _ => Err(BadRecord::Bin(names::UTXOS)),
    }
}

/// Splits `tx` into transaction id, page number and the encoded page.
pub fn split_tx(bytes: &[u8]) -> Result<(Txid, u32, &[u8]), BadRecord> {
    let (txid, rest) = bytes.split_first_chunk::<32>().ok_or(BadRecord::Bin(names::TX))?;
    let (number, page) = rest.split_first_chunk::<4>().ok_or(BadRecord::Bin(names::TX))?;
    Ok((Txid(*txid), u32::from_le_bytes(*number), page))
}

/// Decodes a page, whose bins must be those of this layout and no others.
///
/// # Errors
/// [`BadRecord`].
pub fn decode(txid: Txid, number: u32, bins: &mut BinReader) -> Result<Page, BadRecord> {
    let (mut page, flags) = decode_fields(txid, number, bins)?;
    let slots = bins.optional_list(names::UTXOS)?;
    page.utxos = slots.map(|slots| slots.into_iter().map(decode_sized_slot).collect()).transpose()?;
    // The flags of a whole page say what the bins have: another sum is damage.
    if self::flags(&page) != flags {
        return Err(BadRecord::Bin(names::FLAGS));
    }
    match bins.first_name() {
        None => Ok(page),
        Some(name) => Err(BadRecord::UnknownBin(name.to_owned(), Layout::Compact)),
    }
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
    let slots = bins.list(names::UTXOS)?.into_iter().map(decode_sized_slot).collect::<Result<_, _>>()?;
    let (mut page, flags) = decode_fields(txid, number, bins)?;
    page.utxos = (flags & flag::NO_SLOTS == 0).then(Vec::new);
    // `tx` is read as a whole: the selection of its outputs and fields is that of the pure function.
    let selected = SelectedPage::of(&page, selection);
    Ok(SelectedPage { slots, ..selected })
}

/// Decodes a page besides its slots; the second value are the flags.
fn decode_fields(txid: Txid, number: u32, bins: &mut BinReader) -> Result<(Page, u16), BadRecord> {
    let Some(tx) = bins.optional_blob(names::TX)? else {
        return Err(match bins.has(names::TX_ID) {
            true => BadRecord::OtherLayout { stored: Layout::Teranode, opened: Layout::Compact },
            false => BadRecord::Bin(names::TX),
        });
    };
    let (stored_txid, stored_number, _) = split_tx(&tx)?;
    if (stored_txid, stored_number) != (txid, number) {
        return Err(BadRecord::Bin(names::TX));
    }
    let mut constants = Bytes::from(tx);
    constants.advance(HEAD);
    let mut page = codec::decode_page(txid, number, constants).map_err(|error| match error {
        CodecError::Version(_) => BadRecord::LaterVersion(names::TX),
        _ => BadRecord::Bin(names::TX),
    })?;
    let flags: u64 = bins.number(names::FLAGS)?;
    let flags = u16::try_from(flags).ok().filter(|flags| flags & !flag::ALL == 0);
    let flags = flags.ok_or(BadRecord::LaterVersion(names::FLAGS))?;
    let has = |bit| flags & bit != 0;
    page.conflicting = has(flag::CONFLICTING);
    page.locked = has(flag::LOCKED);
    page.frozen = has(flag::FROZEN);
    page.creating_at = bins.optional(names::CREATING_AT)?;
    let unspent: u32 = bins.number(names::UNSPENT)?;
    page.spent_utxos = page.record_utxos.checked_sub(unspent).ok_or(BadRecord::Bin(names::UNSPENT))?;
    decode_shared(&mut page, bins)?;
    if let Some(master) = page.master.as_deref_mut() {
        master.mined = bins.list(names::BLOCKS)?.into_iter().map(decode_block).collect::<Result<_, _>>()?;
        decode_shared_of_master(master, bins)?;
        // `tx` has the number too; the bin is for filters.
        bins.number::<u32>(names::TOTAL_EXTRA_RECS)?;
        if let Some(body) = decode_inline_body(bins)? {
            master.body = Some(body);
        }
    }
    Ok((page, flags))
}

/// Decodes the body of a master that stores the body inline, where the bin was read.
fn decode_inline_body(bins: &mut BinReader) -> Result<Option<Body>, BadRecord> {
    if let Some(bytes) = bins.optional_blob(names::BODY)? {
        return Ok(Some(Body::Transaction(bytes.into())));
    }
    let outputs = bins.optional_list(names::OUTPUTS)?;
    let outputs = outputs.map(|outputs| outputs.into_iter().map(body::decode_output).collect());
    Ok(outputs.transpose()?.map(Body::Outputs))
}
