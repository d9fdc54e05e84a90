//! Differences between two canonical forms of one transaction, as text.

use serde::Serialize;

use crate::{
    record::{MinedIn, StoredOutput},
    tx::Txid,
};

use super::super::{
    StateStore,
    canonical::{BodyHash, SideBlocks},
    digest::SurveyError,
    dump::{DumpedReassignment, DumpedSlot, DumpedTx, dump_transaction},
};

/// Largest number of fields that are named of one transaction, which may have a million slots.
pub const MAX_FIELDS: usize = 20;

/// A field that differs, with the value in each store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldDifference {
    /// Name of the field as in `schemas/digest.md`; outputs and slots with their number.
    pub field: String,
    /// Value in the first store.
    pub store: String,
    /// Value in the second store.
    pub against: String,
}

/// A transaction of one store, ready to be compared.
pub(super) struct ComparedTx {
    body: BodyHash,
    total_utxos: u32,
    dumped: DumpedTx,
}

impl ComparedTx {
    /// Reads a transaction; `None`: the digest leaves the transaction out by now.
    pub(super) async fn read(store: &StateStore, side: &SideBlocks, txid: Txid) -> Result<Option<Self>, SurveyError> {
        let Some(master) = store.master(txid).await? else { return Ok(None) };
        let Some(dumped) = dump_transaction(store, &master, side).await? else { return Ok(None) };
        let body = store.read_intact_body(&master).await?.as_deref().map_or(BodyHash::MISSING, BodyHash::of);
        let total_utxos = master.master.as_deref().map_or(0, |bins| bins.total_utxos);
        // The hash of the body is compared instead: the body may be large.
        Ok(Some(ComparedTx { body, total_utxos, dumped: DumpedTx { tx: None, ..dumped } }))
    }

    /// Returns the fields that occur once, in the order of the canonical form.
    fn single_fields(&self) -> [(&'static str, String); 11] {
        let DumpedTx { coinbase, locked, frozen, conflicting, spending_height, unmined_since, .. } = &self.dumped;
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
            ("mined", join_or_none(self.dumped.mined.iter().map(format_block))),
            ("slot count", self.total_utxos.to_string()),
        ]
    }

    fn verdict(&self) -> String {
        match (self.dumped.verdict, &self.dumped.reason) {
            // A live transaction has one form, whether it was contested once or not.
            (None | Some("accepted"), _) => "live".to_owned(),
            (Some(verdict), Some(reason)) => format!("{verdict}: {reason}"),
            (Some(verdict), None) => verdict.to_owned(),
        }
    }

    fn outputs(&self) -> &[Option<StoredOutput>] {
        self.dumped.outputs.as_deref().unwrap_or_default()
    }
}

/// Returns the first fields that differ, at most [`MAX_FIELDS`].
pub(super) fn find_differing(here: &ComparedTx, there: &ComparedTx) -> Vec<FieldDifference> {
    let single = here.single_fields().into_iter().zip(there.single_fields());
    let single = single
        .filter(|((_, here), (_, there))| here != there)
        .map(|((field, store), (_, against))| FieldDifference { field: field.to_owned(), store, against });
    let output = |output: &Option<StoredOutput>| output.as_ref().map_or("gap".to_owned(), format_output);
    let outputs = find_differing_elements("output", here.outputs(), there.outputs(), output);
    let slots = find_differing_elements("slot", &here.dumped.slots, &there.dumped.slots, format_slot);
    single.chain(outputs).chain(slots).take(MAX_FIELDS).collect()
}

/// Returns the elements of two lists that differ, each with its number.
fn find_differing_elements<'a, T: PartialEq>(
    what: &'static str,
    here: &'a [T],
    there: &'a [T],
    format: impl Fn(&T) -> String + 'a,
) -> impl Iterator<Item = FieldDifference> + 'a {
    (0..here.len().max(there.len())).map(|at| (at, here.get(at), there.get(at))).filter(|(_, a, b)| a != b).map(
        move |(at, store, against)| {
            let text = |one: Option<&T>| one.map_or("none".to_owned(), &format);
            FieldDifference { field: format!("{what} {at}"), store: text(store), against: text(against) }
        },
    )
}

fn format_slot(slot: &DumpedSlot) -> String {
    let mut words = vec![slot.state.to_owned()];
    words.extend(slot.hash.map(|hash| format!("hash {hash}")));
    words.extend(slot.spender.map(|spender| format!("by {spender}")));
    words.extend(slot.spendable_from.map(|height| format!("spendable from {height}")));
    words.extend(slot.reassignments.iter().map(format_reassignment));
    words.join(", ")
}

fn format_reassignment(entry: &DumpedReassignment) -> String {
    let DumpedReassignment { utxo_hash, new_utxo_hash, block_height, output } = entry;
    format!("reassigned at {block_height} from {utxo_hash} to {new_utxo_hash} ({})", format_output(output))
}

fn format_output(output: &StoredOutput) -> String {
    format!("{} satoshis, script {}", output.satoshis, hex::encode(&output.script))
}

fn format_block(mined: &MinedIn) -> String {
    let MinedIn { block_id, height, subtree } = mined;
    format!("block {block_id} at height {height}, subtree {subtree}")
}

fn join_or_none(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join("; ") }
}
