//! Expected state of a store, its digest by `schemas/digest.md`, and the differences of a real store.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::Arc,
};

use bytes::Bytes;
use utxo_store::{
    record::{Body, MinedIn, Page, Reason, Reassignment, Slot, StoredOutput, TxState, Verdict},
    store::digest::StateDigest,
    tx::{Transaction, Txid, varint},
};

use super::Complaint;

/// A slot with its restrictions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalSlot {
    pub slot: Slot,
    pub spendable_from: Option<u32>,
    /// Reassignments, oldest first.
    pub reassignments: Vec<Reassignment>,
}

/// The part of a transaction that the digest covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalTx {
    pub body: Option<Body>,
    pub coinbase: bool,
    pub locked: bool,
    pub frozen: bool,
    pub conflicting: bool,
    pub spending_height: Option<u32>,
    pub unmined_since: Option<u32>,
    pub preserve_until: Option<u32>,
    pub verdict: Option<Verdict>,
    /// Blocks of the longest chain that list the transaction.
    pub mined: BTreeSet<MinedIn>,
    pub slots: Vec<LogicalSlot>,
}

/// Expected state of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Transactions with a body that are not pruned.
    pub txs: BTreeMap<Txid, LogicalTx>,
    /// Ids of blocks off the longest chain.
    pub side_blocks: BTreeSet<u32>,
}

impl Expected {
    /// Computes the state digest.
    pub fn digest(&self) -> StateDigest {
        let mut sum = [0_u8; 32];
        for (txid, tx) in &self.txs {
            add(&mut sum, blake3::hash(&canonical(txid, tx)).as_bytes());
        }
        StateDigest(sum)
    }

    /// Takes the claims about spent outputs from the records of a store.
    pub fn claiming_as(mut self, records: &[Arc<Page>]) -> Self {
        for page in records.iter().filter(|page| page.number == 0) {
            if let (Some(tx), Some(body @ Body::Transaction(_))) = (self.txs.get_mut(&page.txid), page.body()) {
                tx.body = Some(body.clone());
            }
        }
        self
    }

    /// Returns the differences between the records of a store and this state.
    pub fn compare<'a>(&self, records: impl IntoIterator<Item = &'a Page>) -> Vec<Complaint> {
        let mut pages: BTreeMap<Txid, BTreeMap<u32, &Page>> = BTreeMap::new();
        for page in records {
            pages.entry(page.txid).or_default().insert(page.number, page);
        }
        let mut found = BTreeMap::new();
        for (txid, pages) in &pages {
            if let Some(tx) = self.logical(pages) {
                found.insert(*txid, tx);
            }
        }
        let mut complaints = Vec::new();
        for txid in self.txs.keys().chain(found.keys()).collect::<BTreeSet<_>>() {
            match (self.txs.get(txid), found.get(txid)) {
                (Some(expected), Some(found)) => differences(txid, expected, found, &mut complaints),
                (Some(_), None) => complaints.push(about(txid, "is missing in the store".to_owned())),
                (None, _) => complaints.push(about(txid, "is in the store, but must not be".to_owned())),
            }
        }
        complaints
    }

    /// Reads the logical transaction of its pages; `None` for stubs and tombstones.
    fn logical(&self, pages: &BTreeMap<u32, &Page>) -> Option<LogicalTx> {
        let page = pages.get(&0)?;
        let master = page.master.as_deref()?;
        if page.utxos.is_none() || matches!(page.state(), TxState::Pruned(_)) {
            return None;
        }
        let slots = pages.values().flat_map(|page| {
            page.utxos.iter().flatten().zip(0..).map(|(slot, offset)| LogicalSlot {
                slot: *slot,
                spendable_from: page.utxo_spendable_in.get(&offset).copied(),
                reassignments: page.reassignments.iter().filter(|entry| entry.offset == offset).cloned().collect(),
            })
        });
        let side = |mined: &&MinedIn| !self.side_blocks.contains(&mined.block_id);
        Some(LogicalTx {
            body: master.body.clone(),
            coinbase: page.is_coinbase,
            locked: page.locked,
            frozen: page.frozen,
            conflicting: page.conflicting,
            spending_height: page.spending_height,
            unmined_since: master.unmined_since,
            preserve_until: master.preserve_until,
            verdict: master.verdict.filter(|verdict| !(page.is_coinbase && *verdict == Verdict::Accepted)),
            mined: master.mined.iter().filter(side).copied().collect(),
            slots: slots.collect(),
        })
    }
}

fn about(txid: &Txid, what: String) -> Complaint {
    Complaint { about: txid.to_string(), what }
}

fn differences(txid: &Txid, expected: &LogicalTx, found: &LogicalTx, complaints: &mut Vec<Complaint>) {
    let mut field = |name: &str, expected: &dyn Debug, found: &dyn Debug| {
        let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
        if expected != found {
            complaints.push(about(txid, format!("{name} must be {expected}, but is {found}")));
        }
    };
    field("body", &expected.body, &found.body);
    field("coinbase", &expected.coinbase, &found.coinbase);
    field("locked", &expected.locked, &found.locked);
    field("frozen", &expected.frozen, &found.frozen);
    field("conflicting", &expected.conflicting, &found.conflicting);
    field("spendingHeight", &expected.spending_height, &found.spending_height);
    field("unminedSince", &expected.unmined_since, &found.unmined_since);
    field("preserveUntil", &expected.preserve_until, &found.preserve_until);
    field("verdict", &expected.verdict, &found.verdict);
    field("mined", &expected.mined, &found.mined);
    field("number of slots", &expected.slots.len(), &found.slots.len());
    for (vout, (expected, found)) in expected.slots.iter().zip(&found.slots).enumerate() {
        field(&format!("slot {vout}"), expected, found);
    }
}

/// Adds modulo 2^256, least significant byte first.
fn add(sum: &mut [u8; 32], more: &[u8; 32]) {
    let mut carry = 0;
    for (digit, more) in sum.iter_mut().zip(more) {
        let total = u16::from(*digit) + u16::from(*more) + carry;
        *digit = total as u8;
        carry = total >> 8;
    }
}

/// Encodes the canonical form, field by field as in the table of `schemas/digest.md`.
fn canonical(txid: &Txid, tx: &LogicalTx) -> Vec<u8> {
    let mut out = vec![1];
    out.extend(txid.0);
    let (kind, hash) = body(tx.body.as_ref());
    out.push(kind);
    out.extend(hash);
    out.push(u8::from(tx.coinbase) + 2 * u8::from(tx.locked) + 4 * u8::from(tx.frozen) + 8 * u8::from(tx.conflicting));
    for number in [tx.spending_height, tx.unmined_since, tx.preserve_until] {
        out.push(number.is_some().into());
        out.extend(number.map(u32::to_le_bytes).into_iter().flatten());
    }
    match tx.verdict {
        None | Some(Verdict::Accepted) => out.push(0),
        Some(Verdict::Pending) => out.push(1),
        Some(Verdict::Conflicting(why)) => {
            out.push(3);
            out.extend(reason(why));
        }
    }
    out.extend((tx.mined.len() as u32).to_le_bytes());
    for mined in &tx.mined {
        out.extend([mined.block_id, mined.height, mined.subtree].map(u32::to_le_bytes).concat());
    }
    out.extend((tx.slots.len() as u32).to_le_bytes());
    tx.slots.iter().for_each(|each| slot(each, &mut out));
    out
}

fn slot(logical: &LogicalSlot, out: &mut Vec<u8>) {
    let (kind, hash, spender) = match logical.slot {
        Slot::Nil => (0, None, None),
        Slot::Unspent(hash) => (1, Some(hash), None),
        Slot::Spent(hash, spender) => (2, Some(hash), Some(spender)),
        Slot::Frozen(hash) => (3, Some(hash), None),
    };
    let more = logical.spendable_from.map_or(0, |_| 0x10) + if logical.reassignments.is_empty() { 0 } else { 0x20 };
    out.push(kind + more);
    out.extend(hash.iter().flat_map(|hash| hash.0));
    if let Some(spender) = spender {
        out.extend(spender.txid.0);
        out.extend(spender.input.to_le_bytes());
    }
    out.extend(logical.spendable_from.map(u32::to_le_bytes).into_iter().flatten());
    if logical.reassignments.is_empty() {
        return;
    }
    out.extend((logical.reassignments.len() as u32).to_le_bytes());
    for entry in &logical.reassignments {
        out.extend(entry.utxo_hash.0);
        out.extend(entry.new_utxo_hash.0);
        out.extend(entry.block_height.to_le_bytes());
        stored(&entry.output, out);
    }
}

fn stored(output: &StoredOutput, out: &mut Vec<u8>) {
    out.extend(output.satoshis.to_le_bytes());
    out.extend((output.script.len() as u32).to_le_bytes());
    out.extend(&output.script);
}

fn reason(reason: Reason) -> Vec<u8> {
    let none = [0; 32];
    let (code, input, txid): (u8, u32, [u8; 32]) = match reason {
        Reason::DoubleSpend { input, winner } => (0, input, winner.0),
        Reason::ConflictingParent { parent } => (1, 0, parent.0),
        Reason::MissingParent { parent } => (2, 0, parent.0),
        Reason::PrunedParent { parent } => (3, 0, parent.0),
        Reason::Immature { input } => (4, input, none),
        Reason::Mismatch { input } => (5, input, none),
        Reason::NoSuchOutput { input } => (6, input, none),
        Reason::NotYetSpendable { input } => (7, input, none),
        Reason::Frozen { input } => (8, input, none),
        Reason::Locked { parent } => (9, 0, parent.0),
        Reason::History { input } => (10, input, none),
        Reason::Found => (11, 0, none),
        Reason::Command => (12, 0, none),
        Reason::Disconnected => (13, 0, none),
        Reason::Seeded => (14, 0, none),
    };
    [vec![code], input.to_le_bytes().to_vec(), txid.to_vec()].concat()
}

fn body(body: Option<&Body>) -> (u8, [u8; 32]) {
    match body {
        Some(Body::Transaction(bytes)) => (0, *blake3::hash(&extended(bytes)).as_bytes()),
        Some(Body::Outputs(outputs)) => {
            let mut bytes = outputs.count().to_le_bytes().to_vec();
            for output in outputs.iter() {
                bytes.push(output.is_some().into());
                output.iter().for_each(|output| stored(output, &mut bytes));
            }
            (1, *blake3::hash(&bytes).as_bytes())
        }
        Some(Body::External(_)) | None => (2, [0; 32]),
    }
}

/// Returns the extended format of a transaction in either format; an input of a coinbase gets 0 satoshis and an empty
/// script.
fn extended(bytes: &Bytes) -> Vec<u8> {
    let Ok(tx) = Transaction::parse(bytes) else { return bytes.to_vec() };
    if tx.is_extended() {
        return bytes.to_vec();
    }
    let mut out = tx.version().to_le_bytes().to_vec();
    out.extend([0, 0, 0, 0, 0, 0xEF]);
    varint::write(&mut out, tx.input_count() as u64);
    for input in tx.inputs() {
        out.extend(input.raw_standard());
        out.extend([0; 9]);
    }
    varint::write(&mut out, tx.output_count() as u64);
    tx.raw_outputs().for_each(|output| out.extend(output));
    out.extend(tx.lock_time().to_le_bytes());
    out
}
