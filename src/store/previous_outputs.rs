//! Reads of the outputs that a transaction spends, as extended format needs them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    record::{Body, Key, Page, Selection, StoredOutput},
    tx::{Outpoint, Transaction, Txid},
};

use super::{
    StateStore, into_page,
    read::{ReadError, TxReader},
};

/// Memory of the records and bodies of the parents that a reader takes together, bytes. One parent can need more.
pub const GROUP_BYTES: u64 = 4 << 20;
/// Parents whose masters are read together without slots and bodies.
const MASTERS_AT_A_TIME: usize = 1_024;
/// Memory of one slot of a page.
const SLOT_BYTES: u64 = 80;
/// Estimated length of an output of a partial transaction, whose record has no size.
const PARTIAL_OUTPUT_BYTES: u64 = 64;
/// Memory of a body in the blob store while its outputs are read.
const STREAM_BYTES: u64 = 1 << 20;

/// Parents of a transaction with the inputs that spend their outputs.
type Parents = BTreeMap<Txid, Vec<(u32, Outpoint)>>;

/// Parents of a transaction, in the groups in which they are read.
pub struct ParentGroups {
    groups: Vec<Parents>,
    /// Number of the inputs.
    inputs: usize,
    /// Memory of the largest group, bytes.
    largest: u64,
}

impl ParentGroups {
    /// Returns the memory that the reads need at a time, bytes.
    pub fn bytes(&self) -> u64 {
        self.largest
    }
}

impl TxReader<'_> {
    /// Reads the outputs that a transaction spends, in the order of its inputs, all parents together. The body of each
    /// parent is hashed again; a reassigned output is that of the new owner. A coinbase spends no output.
    ///
    /// # Errors
    /// An input whose previous output cannot be read, with the reason.
    pub async fn previous_outputs(&self, transaction: &Transaction<'_>) -> Result<Vec<StoredOutput>, ReadError> {
        let parents = parents_of(transaction);
        let inputs = parents.values().map(Vec::len).sum();
        self.outputs_of_parents(ParentGroups { groups: vec![parents], inputs, largest: 0 }).await
    }

    /// Groups the parents of a transaction by the memory that their records and bodies need, `group_bytes` for a group.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals.
    pub async fn group_parents(
        &self,
        transaction: &Transaction<'_>,
        group_bytes: u64,
    ) -> Result<ParentGroups, ReadError> {
        let mut parents = parents_of(transaction);
        let inputs = parents.values().map(Vec::len).sum();
        let (mut groups, mut group, mut bytes_of_group, mut largest) = (Vec::new(), Parents::new(), 0, 0);
        let txids: Vec<Txid> = parents.keys().copied().collect();
        for txids in txids.chunks(MASTERS_AT_A_TIME) {
            let masters = txids.iter().map(|txid| (Key::master(*txid), Selection::META)).collect();
            for (txid, master) in txids.iter().zip(self.store.read_selected(masters).await) {
                let spent = parents.remove(txid).unwrap_or_default();
                let bytes = master?.map_or(0, |master| estimate_parent(self.store, &master.page, &spent));
                if bytes_of_group + bytes > group_bytes && !group.is_empty() {
                    groups.push(std::mem::take(&mut group));
                    bytes_of_group = 0;
                }
                group.insert(*txid, spent);
                bytes_of_group += bytes;
                largest = largest.max(bytes_of_group);
            }
        }
        groups.push(group);
        Ok(ParentGroups { groups, inputs, largest })
    }

    /// Reads the outputs of the parents, group by group.
    ///
    /// # Errors
    /// An input whose previous output cannot be read, with the reason.
    pub async fn outputs_of_parents(&self, parents: ParentGroups) -> Result<Vec<StoredOutput>, ReadError> {
        let mut outputs = vec![None; parents.inputs];
        for group in parents.groups {
            let spent = group.values().flatten().map(|(_, outpoint)| outpoint);
            let mut keys: BTreeSet<Key> = group.keys().map(|txid| Key::master(*txid)).collect();
            keys.extend(spent.map(|outpoint| Key::Page(outpoint.txid, self.store.locate_slot(*outpoint).0)));
            let keys: Vec<Key> = keys.into_iter().collect();
            let records = self.store.read(keys.clone()).await?.into_iter();
            let pages = records.zip(keys).filter_map(|(record, key)| Some((key, into_page(record)?))).collect();
            for (parent, inputs) in group {
                self.outputs_of(parent, &inputs, &pages, &mut outputs).await?;
            }
        }
        Ok(outputs.into_iter().flatten().collect())
    }

    async fn outputs_of(
        &self,
        parent: Txid,
        inputs: &[(u32, Outpoint)],
        pages: &BTreeMap<Key, Arc<Page>>,
        outputs: &mut [Option<StoredOutput>],
    ) -> Result<(), ReadError> {
        let master = pages.get(&Key::master(parent)).filter(|master| master.utxos.is_some());
        let stored = match master {
            Some(master) => {
                Some(self.outputs_at(master, inputs.iter().map(|(_, outpoint)| outpoint.vout).collect()).await?)
            }
            None => None,
        };
        for &(input, outpoint) in inputs {
            let stored = stored.as_ref().ok_or(ReadError::NoPreviousTransaction { input, outpoint })?;
            let (number, offset) = self.store.locate_slot(outpoint);
            let page = pages.get(&Key::Page(parent, number));
            let output = page.and_then(|page| output_of(page, offset, stored.get(&outpoint.vout)));
            outputs[input as usize] = Some(output.ok_or(ReadError::NoPreviousOutput { input, outpoint })?);
        }
        Ok(())
    }
}

fn parents_of(transaction: &Transaction<'_>) -> Parents {
    let mut parents = Parents::new();
    if !transaction.is_coinbase() {
        for (input, index) in transaction.inputs().zip(0..) {
            parents.entry(input.outpoint.txid).or_default().push((index, input.outpoint));
        }
    }
    parents
}

/// Returns the memory of the records and the body of a parent, of which `spent` outputs are read.
fn estimate_parent(store: &StateStore, master: &Page, spent: &[(u32, Outpoint)]) -> u64 {
    let slots = master.master.as_deref().map_or(0, |bins| u64::from(bins.total_utxos));
    let page_slots = u64::from(store.settings.utxo_batch_size).min(slots);
    let pages: BTreeSet<u32> = spent.iter().map(|(_, outpoint)| store.locate_slot(*outpoint).0).chain([0]).collect();
    let body = match master.body() {
        Some(Body::External(_)) if !master.is_partial() => STREAM_BYTES,
        _ => master.extended_size.max(slots * PARTIAL_OUTPUT_BYTES),
    };
    body + pages.len() as u64 * page_slots * SLOT_BYTES
}

/// The output of a slot: the output of the body, unless the slot was reassigned.
fn output_of(page: &Page, offset: u32, stored: Option<&StoredOutput>) -> Option<StoredOutput> {
    let slot = page.utxos.as_ref()?.get(offset as usize)?;
    slot.hash()?;
    if let Some(entry) = page.reassignments.iter().rev().find(|entry| entry.offset == offset) {
        return Some(entry.output.clone());
    }
    stored.cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::*;

    #[tokio::test]
    async fn groups_of_parents_have_the_outputs_of_all() {
        let store = store(100);
        for id in 1..=5 {
            store.plant(seeded(id, 5)).await;
        }
        let spends: Vec<_> =
            (0..15).map(|n: u32| (outpoint(Txid([5 - (n % 5) as u8; 32]), n / 5 * 2), 1_000)).collect();
        let bytes = transaction(&spends, &[900]);
        let transaction = Transaction::parse(&bytes).unwrap();
        let reader = TxReader::of(&store);
        let whole = reader.previous_outputs(&transaction).await.unwrap();
        assert_eq!(whole.len(), 15);
        let largest = reader.group_parents(&transaction, u64::MAX).await.unwrap().bytes();
        for group_bytes in [0, largest / 2, u64::MAX] {
            let parents = reader.group_parents(&transaction, group_bytes).await.unwrap();
            assert_eq!(
                parents.groups.len(),
                if group_bytes == 0 {
                    5
                } else if group_bytes == u64::MAX {
                    1
                } else {
                    3
                }
            );
            assert!(parents.bytes() <= largest);
            assert_eq!(reader.outputs_of_parents(parents).await.unwrap(), whole);
        }
        let absent = transaction_of_absent();
        let absent = Transaction::parse(&absent).unwrap();
        let parents = reader.group_parents(&absent, 0).await.unwrap();
        let error = reader.outputs_of_parents(parents).await.unwrap_err();
        assert!(matches!(error, ReadError::NoPreviousTransaction { input: 0, .. }), "{error}");
    }

    fn transaction_of_absent() -> bytes::Bytes {
        transaction(&[(outpoint(Txid([9; 32]), 0), 1_000)], &[900])
    }
}
