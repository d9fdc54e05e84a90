//! The canonical form of a transaction: the bytes that the state digest hashes (`schemas/digest.md`).
//!
//! The form is logical. Page boundaries, the place of a body, hints and bookkeeping do not change the form.

use std::{collections::BTreeSet, fmt};

use crate::{
    record::{Body, MinedIn, Page, Reason, Reassignment, Slot, Verdict},
    tx::{Output, Transaction},
};

use super::body::ParsedBody;

/// Version of the canonical form, its first byte.
pub const VERSION: u8 = 1;

const COINBASE: u8 = 1;
const LOCKED: u8 = 2;
const FROZEN: u8 = 4;
const CONFLICTING: u8 = 8;

const MISSING: u8 = 4;
const SPENDABLE_FROM: u8 = 0x10;
const REASSIGNED: u8 = 0x20;

/// Ids of the blocks that are known not to be on the longest chain. All other blocks are on the longest chain, or are
/// older than this store (block 0).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SideBlocks(pub BTreeSet<u32>);

impl SideBlocks {
    /// Returns the triples of the longest chain, ascending and without duplicates.
    pub fn on_longest_chain(&self, mined: &[MinedIn]) -> BTreeSet<MinedIn> {
        mined.iter().filter(|mined| !self.0.contains(&mined.block_id)).copied().collect()
    }
}

/// The kind of a body and its BLAKE3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyHash {
    kind: u8,
    hash: [u8; 32],
}

impl BodyHash {
    /// Hashes a body. Bytes that are no transaction are hashed as they are, since damage must change the digest.
    pub fn of(body: &Body) -> Self {
        match body {
            Body::Transaction(bytes) => BodyHash {
                kind: 0,
                hash: match Transaction::parse(bytes) {
                    Ok(transaction) => hash_extended(&transaction),
                    Err(_) => *blake3::hash(bytes).as_bytes(),
                },
            },
            Body::Outputs(outputs) => {
                let mut bytes = outputs.count().to_le_bytes().to_vec();
                for output in ParsedBody::Outputs(outputs).outputs() {
                    bytes.push(u8::from(output.is_some()));
                    if let Some(output) = output {
                        write_output(output, &mut bytes);
                    }
                }
                BodyHash { kind: 1, hash: *blake3::hash(&bytes).as_bytes() }
            }
            Body::External(_) => BodyHash::MISSING,
        }
    }

    /// Returns the BLAKE3 without the kind.
    pub fn hash(self) -> [u8; 32] {
        self.hash
    }

    /// Hash of a body that is missing.
    pub const MISSING: BodyHash = BodyHash { kind: 2, hash: [0; 32] };
}

impl fmt::Display for BodyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            0 => "whole",
            1 => "partial",
            _ => return f.write_str("missing"),
        };
        write!(f, "{kind}, BLAKE3 {}", hex::encode(self.hash))
    }
}

/// Hashes the extended form, whichever form is stored.
fn hash_extended(transaction: &Transaction<'_>) -> [u8; 32] {
    if transaction.is_extended() {
        return *blake3::hash(transaction.raw()).as_bytes();
    }
    let mut bytes = Vec::new();
    match transaction.write_extended(&mut bytes, |_, _| None) {
        Ok(()) => *blake3::hash(&bytes).as_bytes(),
        Err(_) => *blake3::hash(transaction.raw()).as_bytes(),
    }
}

/// Appends the part of the form before the slots.
///
/// Returns `false` and appends nothing for a page that is no master with slots: stubs, tombstones and other pages have
/// no canonical form of their own.
pub fn write_head(page: &Page, body: BodyHash, side: &SideBlocks, out: &mut Vec<u8>) -> bool {
    let Some(master) = page.master.as_deref().filter(|_| page.utxos.is_some()) else { return false };
    out.push(VERSION);
    out.extend(page.txid.0);
    out.push(body.kind);
    out.extend(body.hash);
    out.push(flags(page));
    write_optional(page.spending_height, out);
    write_optional(master.unmined_since, out);
    write_optional(master.preserve_until, out);
    write_verdict(master.verdict, out);
    let mined = side.on_longest_chain(&master.mined);
    write_count(mined.len(), out);
    for MinedIn { block_id, height, subtree } in mined {
        for number in [block_id, height, subtree] {
            out.extend(number.to_le_bytes());
        }
    }
    out.extend(master.total_utxos.to_le_bytes());
    true
}

/// Appends the slots of one page to the form.
pub fn write_slots(page: &Page, out: &mut Vec<u8>) {
    for (slot, offset) in page.utxos.iter().flatten().zip(0..) {
        let spendable_from = page.utxo_spendable_in.get(&offset);
        let reassigned: Vec<_> = page.reassignments.iter().filter(|entry| entry.offset == offset).collect();
        let flags = if spendable_from.is_some() { SPENDABLE_FROM } else { 0 }
            | if reassigned.is_empty() { 0 } else { REASSIGNED };
        write_slot(slot, flags, out);
        out.extend(spendable_from.into_iter().flat_map(|height| height.to_le_bytes()));
        if !reassigned.is_empty() {
            write_count(reassigned.len(), out);
            reassigned.into_iter().for_each(|entry| write_reassignment(entry, out));
        }
    }
}

/// Appends `count` slots of a page that is missing.
pub fn write_missing_slots(count: u32, out: &mut Vec<u8>) {
    out.resize(out.len() + count as usize, MISSING);
}

fn write_slot(slot: &Slot, flags: u8, out: &mut Vec<u8>) {
    let kind = match slot {
        Slot::Nil => 0,
        Slot::Unspent(_) => 1,
        Slot::Spent(..) => 2,
        Slot::Frozen(_) => 3,
    };
    out.push(kind | flags);
    out.extend(slot.hash().into_iter().flat_map(|hash| hash.0));
    if let Some(spender) = slot.spender() {
        out.extend(spender.txid.0);
        out.extend(spender.input.to_le_bytes());
    }
}

fn write_reassignment(entry: &Reassignment, out: &mut Vec<u8>) {
    out.extend(entry.utxo_hash.0);
    out.extend(entry.new_utxo_hash.0);
    out.extend(entry.block_height.to_le_bytes());
    write_output(Output { satoshis: entry.output.satoshis, script: &entry.output.script }, out);
}

fn write_output(output: Output<'_>, out: &mut Vec<u8>) {
    out.extend(output.satoshis.to_le_bytes());
    write_count(output.script.len(), out);
    out.extend(output.script);
}

fn flags(page: &Page) -> u8 {
    [(page.is_coinbase, COINBASE), (page.locked, LOCKED), (page.frozen, FROZEN), (page.conflicting, CONFLICTING)]
        .into_iter()
        .filter_map(|(is_set, flag)| is_set.then_some(flag))
        .sum()
}

fn write_verdict(verdict: Option<Verdict>, out: &mut Vec<u8>) {
    out.push(match verdict {
        // A live transaction has one form, whether it was contested once or not.
        None | Some(Verdict::Accepted) => 0,
        Some(Verdict::Pending) => 1,
        Some(Verdict::Conflicting(_)) => 3,
    });
    if let Some(Verdict::Conflicting(reason)) = verdict {
        write_reason(reason, out);
    }
}

fn write_reason(reason: Reason, out: &mut Vec<u8>) {
    let (code, input, txid) = match reason {
        Reason::DoubleSpend { input, winner } => (0, input, winner.0),
        Reason::ConflictingParent { parent } => (1, 0, parent.0),
        Reason::MissingParent { parent } => (2, 0, parent.0),
        Reason::PrunedParent { parent } => (3, 0, parent.0),
        Reason::Immature { input } => (4, input, [0; 32]),
        Reason::Mismatch { input } => (5, input, [0; 32]),
        Reason::NoSuchOutput { input } => (6, input, [0; 32]),
        Reason::NotYetSpendable { input } => (7, input, [0; 32]),
        Reason::Frozen { input } => (8, input, [0; 32]),
        Reason::Locked { parent } => (9, 0, parent.0),
        Reason::History { input } => (10, input, [0; 32]),
        Reason::Found => (11, 0, [0; 32]),
        Reason::Command => (12, 0, [0; 32]),
        Reason::Disconnected => (13, 0, [0; 32]),
        Reason::Seeded => (14, 0, [0; 32]),
    };
    out.push(code);
    out.extend(input.to_le_bytes());
    out.extend(txid);
}

fn write_optional(number: Option<u32>, out: &mut Vec<u8>) {
    out.push(u8::from(number.is_some()));
    out.extend(number.into_iter().flat_map(u32::to_le_bytes));
}

/// Appends a count as four bytes. A record is far smaller than 4 GiB, so that every count fits.
fn write_count(count: usize, out: &mut Vec<u8>) {
    out.extend((count as u32).to_le_bytes());
}
