//! What differs between two canonical forms of one transaction, in words.

use serde::Serialize;

use crate::tx::Txid;

use super::super::{
    Store,
    canonical::{BodyHash, SideBlocks},
    digest::SurveyError,
    dump::{Dumped, DumpedMined, DumpedOutput, DumpedReassignment, DumpedSlot},
};

/// No more are told of one transaction: it may have a million slots.
pub const MOST_FIELDS: usize = 20;

/// A field that differs, with what both say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Field {
    /// As in `schemas/digest.md`; outputs and slots with their number.
    pub field: String,
    /// In the first store.
    pub store: String,
    /// In the other one.
    pub against: String,
}

/// A transaction as one store has it.
pub(super) struct Seen {
    body: BodyHash,
    total_utxos: u32,
    dumped: Dumped,
}

impl Seen {
    /// `None`: the digest leaves it out by now.
    pub(super) async fn read(store: &Store, side: &SideBlocks, txid: Txid) -> Result<Option<Self>, SurveyError> {
        let Some(master) = store.master(txid).await? else { return Ok(None) };
        let Some(dumped) = store.dumped(&master, side).await? else { return Ok(None) };
        let body = store.body_unless_damaged(&master).await?.as_deref().map_or(BodyHash::MISSING, BodyHash::of);
        let total_utxos = master.master.as_deref().map_or(0, |bins| bins.total_utxos);
        // Its hash says whether it differs, and it may be large.
        Ok(Some(Seen { body, total_utxos, dumped: Dumped { tx: None, ..dumped } }))
    }

    /// What is there once, in the order of the canonical form.
    fn once(&self) -> [(&'static str, String); 11] {
        let Dumped { coinbase, locked, frozen, conflicting, spending_height, unmined_since, .. } = &self.dumped;
        let optional = |height: Option<u32>| height.map_or("none".to_owned(), |height| height.to_string());
        [
            ("body", self.body.to_string()),
            ("coinbase", coinbase.to_string()),
            ("locked", locked.to_string()),
            ("frozen", frozen.to_string()),
            ("conflicting", conflicting.to_string()),
            ("spendingHeight", optional(*spending_height)),
            ("unminedSince", optional(*unmined_since)),
            ("preserveUntil", optional(self.dumped.preserve_until)),
            ("verdict", self.verdict()),
            ("mined", listed(self.dumped.mined.iter().map(block_in_words))),
            ("slot count", self.total_utxos.to_string()),
        ]
    }

    fn verdict(&self) -> String {
        match (self.dumped.verdict, &self.dumped.reason) {
            // What is live is live, whether it was contested or not.
            (None | Some("accepted"), _) => "live".to_owned(),
            (Some(verdict), Some(reason)) => format!("{verdict}: {reason}"),
            (Some(verdict), None) => verdict.to_owned(),
        }
    }

    fn outputs(&self) -> &[Option<DumpedOutput>] {
        self.dumped.outputs.as_deref().unwrap_or_default()
    }
}

/// The first fields that differ.
pub(super) fn differing(here: &Seen, there: &Seen) -> Vec<Field> {
    let once = here.once().into_iter().zip(there.once());
    let once = once.filter(|((_, here), (_, there))| here != there).map(|((field, store), (_, against))| Field {
        field: field.to_owned(),
        store,
        against,
    });
    let output = |output: &Option<DumpedOutput>| output.as_ref().map_or("gap".to_owned(), output_in_words);
    let outputs = numbered("output", here.outputs(), there.outputs(), output);
    let slots = numbered("slot", &here.dumped.slots, &there.dumped.slots, slot_in_words);
    once.chain(outputs).chain(slots).take(MOST_FIELDS).collect()
}

/// Those of two lists that differ, by their number.
fn numbered<'a, T: PartialEq>(
    what: &'static str,
    here: &'a [T],
    there: &'a [T],
    in_words: impl Fn(&T) -> String + 'a,
) -> impl Iterator<Item = Field> + 'a {
    (0..here.len().max(there.len())).map(|at| (at, here.get(at), there.get(at))).filter(|(_, a, b)| a != b).map(
        move |(at, store, against)| {
            let told = |one: Option<&T>| one.map_or("none".to_owned(), &in_words);
            Field { field: format!("{what} {at}"), store: told(store), against: told(against) }
        },
    )
}

fn slot_in_words(slot: &DumpedSlot) -> String {
    let mut words = vec![slot.state.to_owned()];
    words.extend(slot.hash.map(|hash| format!("hash {hash}")));
    words.extend(slot.spender.map(|spender| format!("by {spender}")));
    words.extend(slot.spendable_from.map(|height| format!("spendable from {height}")));
    words.extend(slot.reassignments.iter().map(reassignment_in_words));
    words.join(", ")
}

fn reassignment_in_words(entry: &DumpedReassignment) -> String {
    let DumpedReassignment { utxo_hash, new_utxo_hash, block_height, output } = entry;
    format!("reassigned at {block_height} from {utxo_hash} to {new_utxo_hash} ({})", output_in_words(output))
}

fn output_in_words(output: &DumpedOutput) -> String {
    format!("{} satoshis, script {}", output.satoshis, output.script)
}

fn block_in_words(mined: &DumpedMined) -> String {
    let DumpedMined { block_id, height, subtree } = mined;
    format!("block {block_id} at height {height}, subtree {subtree}")
}

fn listed(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join("; ") }
}
