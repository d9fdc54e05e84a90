//! Binary form of a page. An absent, false or empty field takes one bit.

use super::{
    CodecError, LAST_VERSION, VERSION,
    fields::{RecordReader, RecordWriter},
};
use crate::{
    record::{Blob, Body, CreatingEvent, Master, MinedIn, Page, Reassignment, Slot},
    tx::{Txid, UtxoHash},
};

/// Returns the layout in which a page is written.
pub fn version_of(page: &Page) -> u8 {
    match page.body() {
        Some(Body::External(Blob::First(Some(_)))) => LAST_VERSION,
        _ => VERSION,
    }
}

/// Forms in which a record refers to the blob of its body.
mod blob_form {
    pub const FIRST: u8 = 0;
    pub const OTHER: u8 = 1;
    pub const FIRST_WITH_HASH: u8 = 2;
}

/// Bits of the flags of a page. A bit announces a field; slots and the master's fields follow the fields of every page.
mod flag {
    pub const COINBASE: u32 = 1;
    pub const LOCKED: u32 = 1 << 1;
    pub const CONFLICTING: u32 = 1 << 2;
    pub const FROZEN: u32 = 1 << 3;
    pub const CREATING_AT: u32 = 1 << 4;
    pub const SPENDING_HEIGHT: u32 = 1 << 5;
    pub const CONTESTED: u32 = 1 << 6;
    pub const PRUNED_SPENDERS: u32 = 1 << 7;
    pub const SPENDABLE_IN: u32 = 1 << 8;
    pub const REASSIGNMENTS: u32 = 1 << 9;
    pub const CHAIN_POS: u32 = 1 << 10;
    pub const DELETE_AT_HEIGHT: u32 = 1 << 11;
    pub const PRUNED: u32 = 1 << 12;
    pub const UTXOS: u32 = 1 << 13;
    pub const MASTER: u32 = 1 << 14;
    pub const MINED: u32 = 1 << 15;
    pub const UNMINED_SINCE: u32 = 1 << 16;
    pub const CHILDREN: u32 = 1 << 17;
    pub const SPENT_PAGES: u32 = 1 << 18;
    pub const VERDICT: u32 = 1 << 19;
    pub const PRESERVE: u32 = 1 << 20;
    pub const TRANSACTION: u32 = 1 << 21;
    pub const OUTPUTS: u32 = 1 << 22;
    pub const EXTERNAL: u32 = 1 << 23;
    pub const AMOUNT_SIZES: u32 = 1 << 24;
    pub const SLOT_HEIGHT: u32 = 1 << 25;
    pub const CREATED_BY: u32 = 1 << 26;
    /// Bits of the fields that only a master has.
    pub const MASTER_ONLY: u32 = CREATED_BY | EXTERNAL | (EXTERNAL - 1) & !(MINED - 1);
    pub const ALL: u32 = (CREATED_BY << 1) - 1;
    /// Bits of the fields that never change, or only with the whole page: a stub, a tombstone, a reassigned slot.
    pub const CONSTANT: u32 = COINBASE | SPENDING_HEIGHT | AMOUNT_SIZES | SLOT_HEIGHT | MASTER | CREATED_BY | EXTERNAL;
}

/// Parts of a page that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageParts {
    All,
    /// The fields that never change, without a body that is stored inline. The number of spent slots is 0.
    Constants,
}

fn flags(page: &Page) -> u32 {
    let mut flags = 0;
    let mut set = |flag, is_present| flags |= if is_present { flag } else { 0 };
    set(flag::COINBASE, page.is_coinbase);
    set(flag::LOCKED, page.locked);
    set(flag::CONFLICTING, page.conflicting);
    set(flag::FROZEN, page.frozen);
    set(flag::CREATING_AT, page.creating_at.is_some());
    set(flag::SPENDING_HEIGHT, page.spending_height.is_some());
    set(flag::CONTESTED, !page.contested.is_empty());
    set(flag::PRUNED_SPENDERS, !page.pruned_spenders.is_empty());
    set(flag::SPENDABLE_IN, !page.utxo_spendable_in.is_empty());
    set(flag::REASSIGNMENTS, !page.reassignments.is_empty());
    set(flag::CHAIN_POS, page.chain_pos.is_some());
    set(flag::DELETE_AT_HEIGHT, page.delete_at_height.is_some());
    set(flag::PRUNED, page.pruned.is_some());
    set(flag::UTXOS, page.utxos.is_some());
    set(flag::AMOUNT_SIZES, !page.amount_sizes.is_empty());
    set(flag::SLOT_HEIGHT, page.slot_height.is_some());
    if let Some(master) = &page.master {
        set(flag::MASTER, true);
        set(flag::MINED, !master.mined.is_empty());
        set(flag::UNMINED_SINCE, master.unmined_since.is_some());
        set(flag::CHILDREN, !master.conflicting_children.is_empty());
        set(flag::SPENT_PAGES, !master.spent_pages.is_empty());
        set(flag::VERDICT, master.verdict.is_some());
        set(flag::PRESERVE, master.preserve_until.is_some());
        set(flag::CREATED_BY, master.created_by.is_some());
        set(flag::TRANSACTION, matches!(master.body, Some(Body::Transaction(_))));
        set(flag::OUTPUTS, matches!(master.body, Some(Body::Outputs(_))));
        set(flag::EXTERNAL, matches!(master.body, Some(Body::External(_))));
    }
    flags
}

pub(super) fn write(page: &Page, parts: PageParts, w: &mut RecordWriter) {
    let (flags, spent_utxos) = match parts {
        PageParts::All => (flags(page), page.spent_utxos),
        PageParts::Constants => (flags(page) & flag::CONSTANT, 0),
    };
    w.raw(&flags.to_le_bytes());
    w.number(page.version);
    w.number(page.lock_time);
    w.number(page.fee);
    w.number(page.size_in_bytes);
    w.number(page.extended_size);
    w.number(spent_utxos);
    w.number(page.record_utxos);
    let has = |flag: u32| flags & flag != 0;
    write_marks(page, has, w);
    if let Some(slots) = page.utxos.as_ref().filter(|_| has(flag::UTXOS)) {
        w.count(slots.len());
        slots.iter().for_each(|slot| write_slot(slot, w));
    }
    if has(flag::AMOUNT_SIZES) {
        w.bytes(&page.amount_sizes);
    }
    if let Some(master) = page.master.as_ref().filter(|_| has(flag::MASTER)) {
        write_master(master, has, w);
    }
}

/// Writes the fields that few pages have.
fn write_marks(page: &Page, has: impl Fn(u32) -> bool, w: &mut RecordWriter) {
    page.creating_at.filter(|_| has(flag::CREATING_AT)).into_iter().for_each(|ms| w.number(ms));
    page.spending_height.filter(|_| has(flag::SPENDING_HEIGHT)).into_iter().for_each(|height| w.number(height));
    for (flag, set) in [(flag::CONTESTED, &page.contested), (flag::PRUNED_SPENDERS, &page.pruned_spenders)] {
        if has(flag) {
            w.count(set.len());
            set.iter().for_each(|slot| w.number(*slot));
        }
    }
    if has(flag::SPENDABLE_IN) {
        w.count(page.utxo_spendable_in.len());
        for (slot, height) in &page.utxo_spendable_in {
            w.number(*slot);
            w.number(*height);
        }
    }
    if has(flag::REASSIGNMENTS) {
        w.count(page.reassignments.len());
        page.reassignments.iter().for_each(|reassignment| write_reassignment(reassignment, w));
    }
    page.chain_pos.iter().filter(|_| has(flag::CHAIN_POS)).for_each(|stamp| w.stamp(stamp));
    page.delete_at_height.filter(|_| has(flag::DELETE_AT_HEIGHT)).into_iter().for_each(|height| w.number(height));
    page.pruned.filter(|_| has(flag::PRUNED)).into_iter().for_each(|height| w.number(height));
    page.slot_height.filter(|_| has(flag::SLOT_HEIGHT)).into_iter().for_each(|height| w.number(height));
}

fn write_slot(slot: &Slot, w: &mut RecordWriter) {
    match slot {
        Slot::Nil => w.byte(0),
        Slot::Unspent(hash) => {
            w.byte(1);
            w.raw(&hash.0);
        }
        Slot::Spent(hash, by) => {
            w.byte(2);
            w.raw(&hash.0);
            w.spending_data(by);
        }
        Slot::Frozen(hash) => {
            w.byte(3);
            w.raw(&hash.0);
        }
    }
}

fn write_reassignment(reassignment: &Reassignment, w: &mut RecordWriter) {
    let Reassignment { offset, utxo_hash, new_utxo_hash, block_height, output } = reassignment;
    w.number(*offset);
    w.raw(&utxo_hash.0);
    w.raw(&new_utxo_hash.0);
    w.number(*block_height);
    w.output(output);
}

fn write_master(master: &Master, has: impl Fn(u32) -> bool, w: &mut RecordWriter) {
    w.number(master.total_utxos);
    w.number(master.total_extra_recs);
    w.number(master.created_at);
    if has(flag::MINED) {
        w.count(master.mined.len());
        for MinedIn { block_id, height, subtree } in &master.mined {
            w.number(*block_id);
            w.number(*height);
            w.number(*subtree);
        }
    }
    master.unmined_since.filter(|_| has(flag::UNMINED_SINCE)).into_iter().for_each(|height| w.number(height));
    if has(flag::CHILDREN) {
        w.count(master.conflicting_children.len());
        master.conflicting_children.iter().for_each(|child| w.raw(&child.0));
    }
    if has(flag::SPENT_PAGES) {
        w.count(master.spent_pages.len());
        master.spent_pages.iter().for_each(|page| w.number(*page));
    }
    master.verdict.iter().filter(|_| has(flag::VERDICT)).for_each(|verdict| w.verdict(verdict));
    master.preserve_until.filter(|_| has(flag::PRESERVE)).into_iter().for_each(|height| w.number(height));
    master.created_by.filter(|_| has(flag::CREATED_BY)).into_iter().for_each(|event| w.number(event.number()));
    match &master.body {
        Some(Body::Transaction(bytes)) if has(flag::TRANSACTION) => w.bytes(bytes),
        Some(Body::Outputs(outputs)) if has(flag::OUTPUTS) => {
            w.count(outputs.count() as usize);
            outputs.iter().for_each(|output| w.option(output, |w, output| w.output(output)));
        }
        Some(Body::External(blob)) if has(flag::EXTERNAL) => {
            w.byte(match blob {
                Blob::First(None) => blob_form::FIRST,
                Blob::First(Some(_)) => blob_form::FIRST_WITH_HASH,
                Blob::Other(_) => blob_form::OTHER,
            });
            blob.content_hash().iter().for_each(|hash| w.raw(hash));
        }
        _ => {}
    }
}

/// Reads the fields that the flags announce.
struct FlaggedFields<'a> {
    flags: u32,
    r: &'a mut RecordReader,
}

impl FlaggedFields<'_> {
    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn option<T>(
        &mut self,
        flag: u32,
        read: impl FnOnce(&mut RecordReader) -> Result<T, CodecError>,
    ) -> Result<Option<T>, CodecError> {
        if self.has(flag) { read(self.r).map(Some) } else { Ok(None) }
    }

    fn list<T, C: FromIterator<T> + Default>(
        &mut self,
        flag: u32,
        read: impl FnMut(&mut RecordReader) -> Result<T, CodecError>,
    ) -> Result<C, CodecError> {
        if self.has(flag) { self.r.list(read) } else { Ok(C::default()) }
    }
}

pub(super) fn read(txid: Txid, number: u32, r: &mut RecordReader) -> Result<Page, CodecError> {
    let flags = u32::from_le_bytes(r.array()?);
    let has_master = flags & flag::MASTER != 0;
    if flags & !flag::ALL != 0 || (!has_master && flags & flag::MASTER_ONLY != 0) {
        return Err(CodecError::Field("flags"));
    }
    let mut a = FlaggedFields { flags, r };
    Ok(Page {
        txid,
        number,
        version: a.r.u32()?,
        lock_time: a.r.u32()?,
        fee: a.r.u64()?,
        size_in_bytes: a.r.u64()?,
        extended_size: a.r.u64()?,
        spent_utxos: a.r.u32()?,
        record_utxos: a.r.u32()?,
        is_coinbase: a.has(flag::COINBASE),
        locked: a.has(flag::LOCKED),
        conflicting: a.has(flag::CONFLICTING),
        frozen: a.has(flag::FROZEN),
        creating_at: a.option(flag::CREATING_AT, RecordReader::u64)?,
        spending_height: a.option(flag::SPENDING_HEIGHT, RecordReader::u32)?,
        contested: a.list(flag::CONTESTED, RecordReader::u32)?,
        pruned_spenders: a.list(flag::PRUNED_SPENDERS, RecordReader::u32)?,
        utxo_spendable_in: a.list(flag::SPENDABLE_IN, |r| Ok((r.u32()?, r.u32()?)))?,
        reassignments: a.list(flag::REASSIGNMENTS, read_reassignment)?,
        chain_pos: a.option(flag::CHAIN_POS, RecordReader::stamp)?,
        delete_at_height: a.option(flag::DELETE_AT_HEIGHT, RecordReader::u32)?,
        pruned: a.option(flag::PRUNED, RecordReader::u32)?,
        slot_height: a.option(flag::SLOT_HEIGHT, RecordReader::u32)?,
        utxos: a.option(flag::UTXOS, |r| r.list(read_slot))?,
        amount_sizes: a.option(flag::AMOUNT_SIZES, RecordReader::bytes)?.unwrap_or_default(),
        master: if has_master { Some(Box::new(read_master(&mut a)?)) } else { None },
    })
}

fn read_slot(r: &mut RecordReader) -> Result<Slot, CodecError> {
    Ok(match r.byte()? {
        0 => Slot::Nil,
        1 => Slot::Unspent(UtxoHash(r.array()?)),
        2 => Slot::Spent(UtxoHash(r.array()?), r.spending_data()?),
        3 => Slot::Frozen(UtxoHash(r.array()?)),
        _ => return Err(CodecError::Field("slot")),
    })
}

fn read_reassignment(r: &mut RecordReader) -> Result<Reassignment, CodecError> {
    Ok(Reassignment {
        offset: r.u32()?,
        utxo_hash: UtxoHash(r.array()?),
        new_utxo_hash: UtxoHash(r.array()?),
        block_height: r.u32()?,
        output: r.output()?,
    })
}

fn read_master(a: &mut FlaggedFields) -> Result<Master, CodecError> {
    Ok(Master {
        total_utxos: a.r.u32()?,
        total_extra_recs: a.r.u32()?,
        created_at: a.r.u64()?,
        mined: a.list(flag::MINED, |r| Ok(MinedIn { block_id: r.u32()?, height: r.u32()?, subtree: r.u32()? }))?,
        unmined_since: a.option(flag::UNMINED_SINCE, RecordReader::u32)?,
        conflicting_children: a.list(flag::CHILDREN, RecordReader::txid)?,
        spent_pages: a.list(flag::SPENT_PAGES, RecordReader::u32)?,
        verdict: a.option(flag::VERDICT, RecordReader::verdict)?,
        preserve_until: a.option(flag::PRESERVE, RecordReader::u32)?,
        created_by: a.option(flag::CREATED_BY, RecordReader::u64)?.map(CreatingEvent::from_number),
        body: read_body(a)?,
    })
}

fn read_body(a: &mut FlaggedFields) -> Result<Option<Body>, CodecError> {
    match a.flags & (flag::TRANSACTION | flag::OUTPUTS | flag::EXTERNAL) {
        0 => Ok(None),
        flag::TRANSACTION => Ok(Some(Body::Transaction(a.r.bytes()?))),
        flag::OUTPUTS => Ok(Some(Body::Outputs(a.r.list(|r| r.option(RecordReader::output))?))),
        flag::EXTERNAL => Ok(Some(Body::External(match a.r.byte()? {
            blob_form::FIRST => Blob::First(None),
            blob_form::FIRST_WITH_HASH => Blob::First(Some(a.r.array()?)),
            blob_form::OTHER => Blob::Other(a.r.array()?),
            _ => return Err(CodecError::Field("blob")),
        }))),
        _ => Err(CodecError::Field("flags")),
    }
}
