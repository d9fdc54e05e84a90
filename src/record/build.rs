//! The pages that a transaction starts as.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::{Body, Master, MinedIn, Page, Slot, StoredOutput, Verdict};
use crate::tx::{InvalidTransaction, Network, Transaction, Txid, has_slot, utxo_hash};

/// A coinbase is spendable in a block this much higher than its own.
pub const COINBASE_MATURITY: u32 = 100;

/// What the pages of a transaction depend on besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Decides which outputs get a slot.
    pub network: Network,
    /// The block that the transaction can first be in, or is in.
    pub height: u32,
    /// Slots a page (`utxo_batch_size`); at least 1.
    pub batch_size: u32,
    /// Now, ms since the epoch.
    pub created_at: u64,
}

/// How a transaction of the log starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// Its outputs are not spendable yet.
    pub locked: bool,
    /// The body goes to the blob store. It always does where there is more than one page.
    pub external: bool,
    /// It is contested, and conflicting until the sequencer says otherwise; `Pending` where it has not spoken yet.
    pub verdict: Option<Verdict>,
    /// The block that lists it already.
    pub listed: Listed,
}

/// Whether a block lists a transaction that is being created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listed {
    /// None does.
    #[default]
    No,
    /// One of the longest chain.
    LongestChain(MinedIn),
    /// One of a side chain.
    SideChain(MinedIn),
}

/// An output of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeededOutput {
    /// Its index.
    pub vout: u32,
    /// Amount and script.
    pub output: StoredOutput,
}

/// A partial transaction: only (some of) its outputs are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    /// Its id, which cannot be checked.
    pub txid: Txid,
    /// Whether it is a coinbase.
    pub coinbase: bool,
    /// The outputs that are known, in any order.
    pub outputs: Vec<SeededOutput>,
}

/// Why there is no page of a partial transaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSeed {
    /// No output is known.
    #[error("a partial transaction without outputs")]
    NoOutputs,
    /// One output comes twice.
    #[error("output {0} is there twice")]
    RepeatedOutput(u32),
    /// It would need more than one page. Also keeps a short message from asking for a huge record.
    #[error("output {vout} does not fit a page of {batch_size} slots")]
    TooWide {
        /// The output.
        vout: u32,
        /// Slots a page.
        batch_size: u32,
    },
}

/// The pages of `transaction`, the master first. `body` holds its bytes: the format that it came in is kept.
///
/// More than one page: each starts with `creating`, unless it is contested: then `conflicting` bars it.
///
/// # Errors
/// An input without previous output, an overspend, a sum that overflows: its fee cannot be told.
pub fn pages_of(
    transaction: &Transaction<'_>,
    body: Bytes,
    txid: Txid,
    setting: &Setting,
    start: &Start,
) -> Result<Vec<Page>, InvalidTransaction> {
    let mut whole = empty_page(txid);
    whole.version = transaction.version();
    whole.lock_time = transaction.lock_time();
    whole.fee = transaction.fee()?;
    whole.size_in_bytes = transaction.standard_len() as u64;
    whole.extended_size = transaction.extended_len() as u64;
    whole.locked = start.locked;
    whole.conflicting = start.verdict.is_some();
    set_coinbase(&mut whole, transaction.is_coinbase(), setting.height);

    let slots = slots_of(transaction, &txid, setting);
    let extra = extra_pages(slots.len(), setting.batch_size);
    let external = start.external || extra > 0;
    let (mined, unmined_since) = match start.listed {
        Listed::No => (vec![], Some(setting.height)),
        Listed::LongestChain(mined_in) => (vec![mined_in], None),
        Listed::SideChain(mined_in) => (vec![mined_in], Some(setting.height)),
    };
    let master = Master {
        total_utxos: slots.len() as u32,
        total_extra_recs: extra,
        mined,
        unmined_since,
        body: Some(if external { Body::External } else { Body::Transaction(body) }),
        verdict: start.verdict,
        ..empty_master(setting)
    };
    if extra > 0 && start.verdict.is_none() {
        whole.creating_at = Some(setting.created_at);
    }
    Ok(split(whole, slots, master, setting.batch_size))
}

/// The one page of a partial transaction, mined on the longest chain in block 0 (before this store began).
///
/// # Errors
/// See [`InvalidSeed`].
pub fn seeded_page(seed: &Seed, setting: &Setting) -> Result<Page, InvalidSeed> {
    let greatest = seed.outputs.iter().map(|output| output.vout).max().ok_or(InvalidSeed::NoOutputs)?;
    if greatest >= setting.batch_size {
        return Err(InvalidSeed::TooWide { vout: greatest, batch_size: setting.batch_size });
    }
    let mut outputs = vec![None; greatest as usize + 1];
    let mut slots = vec![Slot::Nil; greatest as usize + 1];
    for SeededOutput { vout, output } in &seed.outputs {
        if outputs[*vout as usize].replace(output.clone()).is_some() {
            return Err(InvalidSeed::RepeatedOutput(*vout));
        }
        slots[*vout as usize] = slot_of(&seed.txid, *vout, &output.script, output.satoshis, setting);
    }
    let mut page = empty_page(seed.txid);
    set_coinbase(&mut page, seed.coinbase, setting.height);
    page.record_utxos = count(&slots);
    page.master = Some(Box::new(Master {
        total_utxos: slots.len() as u32,
        mined: vec![MinedIn { block_id: 0, height: setting.height, subtree: 0 }],
        body: Some(Body::Outputs(outputs)),
        ..empty_master(setting)
    }));
    page.utxos = Some(slots);
    Ok(page)
}

fn slots_of(transaction: &Transaction<'_>, txid: &Txid, setting: &Setting) -> Vec<Slot> {
    let outputs = transaction.outputs().zip(0..);
    outputs.map(|(output, vout)| slot_of(txid, vout, output.script, output.satoshis, setting)).collect()
}

fn slot_of(txid: &Txid, vout: u32, script: &[u8], satoshis: u64, setting: &Setting) -> Slot {
    if has_slot(script, setting.height, setting.network) {
        Slot::Unspent(utxo_hash(txid, vout, script, satoshis))
    } else {
        Slot::Nil
    }
}

fn extra_pages(slots: usize, batch_size: u32) -> u32 {
    (slots.div_ceil(batch_size.max(1) as usize) as u32).saturating_sub(1)
}

fn split(whole: Page, slots: Vec<Slot>, master: Master, batch_size: u32) -> Vec<Page> {
    let page = |number: usize, slots: Vec<Slot>| Page {
        number: number as u32,
        record_utxos: count(&slots),
        utxos: Some(slots),
        ..whole.clone()
    };
    let mut pages: Vec<Page> = if master.total_extra_recs == 0 {
        vec![page(0, slots)]
    } else {
        let chunks = slots.chunks(batch_size.max(1) as usize);
        chunks.enumerate().map(|(number, slots)| page(number, slots.to_vec())).collect()
    };
    pages[0].master = Some(Box::new(master));
    pages
}

fn count(slots: &[Slot]) -> u32 {
    slots.iter().filter(|slot| **slot != Slot::Nil).count() as u32
}

fn set_coinbase(page: &mut Page, is_coinbase: bool, height: u32) {
    page.is_coinbase = is_coinbase;
    page.spending_height = is_coinbase.then(|| height.saturating_add(COINBASE_MATURITY));
}

fn empty_page(txid: Txid) -> Page {
    Page {
        txid,
        number: 0,
        version: 0,
        lock_time: 0,
        fee: 0,
        size_in_bytes: 0,
        extended_size: 0,
        utxos: None,
        spent_utxos: 0,
        record_utxos: 0,
        is_coinbase: false,
        locked: false,
        conflicting: false,
        frozen: false,
        creating_at: None,
        spending_height: None,
        contested: BTreeSet::new(),
        pruned_spenders: BTreeSet::new(),
        utxo_spendable_in: BTreeMap::new(),
        reassignments: Vec::new(),
        chain_pos: None,
        delete_at_height: None,
        pruned: None,
        master: None,
    }
}

fn empty_master(setting: &Setting) -> Master {
    Master {
        total_utxos: 0,
        total_extra_recs: 0,
        mined: Vec::new(),
        created_at: setting.created_at,
        unmined_since: None,
        body: None,
        conflicting_children: BTreeSet::new(),
        spent_pages: BTreeSet::new(),
        verdict: None,
        preserve_until: None,
    }
}
