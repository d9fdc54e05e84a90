//! Reads of outputs: whether a spend at a height would be refused, by which obstacle, and the output itself
//! (`docs/semantics.md`, "Reads").

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};

use crate::{
    engine::EngineError,
    record::{Key, Page, SelectedPage, Selection, Slot, SlotRange, SpendingData, StoredOutput, TxState, Verdict},
    tx::{Outpoint, Txid, UtxoHash},
};

use super::{
    StateStore,
    read::{ReadError, TxReader},
    spend_status::SpendStatus,
};

/// Number of bodies that one read of outputs loads at the same time.
const BODIES_AT_A_TIME: usize = 4;

/// Slots that nobody asked for and that a read takes along, at most, between two slots that were asked for: a slot
/// costs less than a row of its own.
const GAP: u32 = 16;

/// State of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputState {
    /// Outpoint of the output.
    pub outpoint: Outpoint,
    /// First obstacle to a spend.
    pub status: SpendStatus,
    /// Input that spends the output; `None`: the output is unspent, or has no slot.
    pub spender: Option<SpendingData>,
    /// Hash that the slot commits to; `None`: the output has no slot.
    pub utxo_hash: Option<UtxoHash>,
    /// Amount and locking script, if asked for; of a reassigned output those of the new owner. `None`: the output has
    /// no slot.
    pub output: Option<StoredOutput>,
    /// Height of the block of the longest chain that lists the transaction, if asked for: the greatest, where blocks of
    /// several branches do. `None`: no block of the longest chain.
    pub mined_height: Option<u32>,
}

impl OutputState {
    /// Returns whether the output exists and was not in the records that were read.
    pub fn is_in_body(&self) -> bool {
        self.utxo_hash.is_some() && self.output.is_none()
    }
}

/// Question about an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputQuery {
    /// Outpoint of the output.
    pub outpoint: Outpoint,
    /// Hash of the output that the spender names; `None`: not compared.
    pub hash: Option<UtxoHash>,
}

/// Conditions and extent of a read of outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputOptions {
    /// Height of the first block that can list the spender; `None`: neither maturity nor freezes until a height count.
    pub height: Option<u32>,
    /// Reads amount and locking script, from the body where the record does not hold the outputs.
    pub output: bool,
    /// Reads the height of the block that lists the transaction.
    pub mined: bool,
}

/// Reader of the outputs of a store.
#[derive(Clone, Copy)]
pub struct OutputReader<'a> {
    store: &'a StateStore,
}

/// The rows of one read that answer queries: each master and each run of slots is read once.
#[derive(Debug, PartialEq, Eq)]
struct ReadPlan {
    rows: Vec<(Key, Selection)>,
    /// Rows of each query, in the order of the queries.
    places: Vec<RowIndexes>,
}

/// Rows of one query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct RowIndexes {
    /// Row of the master; `None`: the master has the slot.
    master: Option<usize>,
    /// Row of the page that has the slot.
    page: usize,
}

/// The records of one output.
struct OutputRecords<'a> {
    master: Option<&'a SelectedPage>,
    /// Number of the page that has the slot, and that page; `None`: the master has the slot.
    page: Option<(u32, Option<&'a SelectedPage>)>,
    /// Offset of the slot in its page.
    offset: u32,
}

impl ReadPlan {
    /// Plans the read of outputs; `locate` returns the page and the offset of an output's slot.
    fn of(queries: &[OutputQuery], options: OutputOptions, locate: impl Fn(Outpoint) -> (u32, u32)) -> Self {
        let mut sorted: Vec<(Txid, u32, u32, usize)> = Vec::with_capacity(queries.len());
        sorted.extend(queries.iter().enumerate().map(|(index, query)| {
            let (number, offset) = locate(query.outpoint);
            (query.outpoint.txid, number, offset, index)
        }));
        sorted.sort_unstable();
        let mut plan = ReadPlan { rows: Vec::new(), places: vec![RowIndexes::default(); queries.len()] };
        // An output may have a script of megabytes: none is read that nobody asked for.
        let gap = if options.output { 0 } else { GAP };
        let mut master: Option<(Txid, usize)> = None;
        for (txid, number, offset, index) in sorted {
            if number > 0 && master.is_none_or(|(known, _)| known != txid) {
                // The master tells a page that is missing from a page that no transaction of this size has.
                master = Some((txid, plan.rows.len()));
                plan.rows.push((Key::master(txid), Selection::META));
            }
            let selection = Selection { meta: options.mined && number == 0, slots: None, output: options.output };
            plan.select_slot(Key::Page(txid, number), offset, gap, selection);
            let master = master.filter(|_| number > 0).map(|(_, row)| row);
            plan.places[index] = RowIndexes { master, page: plan.rows.len() - 1 };
        }
        plan
    }

    /// Widens the last row by a slot, or adds a row. The slots of a page come in ascending order.
    fn select_slot(&mut self, key: Key, offset: u32, gap: u32, selection: Selection) {
        if let Some((last, Selection { slots: Some(slots), .. })) = self.rows.last_mut()
            && *last == key
            && offset - slots.first <= slots.count.saturating_add(gap)
        {
            slots.count = slots.count.max(offset - slots.first + 1);
            return;
        }
        let slots = Some(SlotRange { first: offset, count: 1 });
        self.rows.push((key, Selection { slots, ..selection }));
    }
}

impl<'a> OutputReader<'a> {
    /// Creates the reader of this store.
    pub fn of(store: &'a StateStore) -> Self {
        OutputReader { store }
    }

    /// Reads the state of one output.
    ///
    /// # Errors
    /// The engine answers with an error that no retry heals, a page is missing, or the body cannot be read.
    pub async fn read_one(&self, query: OutputQuery, options: OutputOptions) -> Result<OutputState, ReadError> {
        let mut states = self.read(&[query], options).await;
        states.pop().unwrap_or_else(|| unreachable!("one state for one query"))
    }

    /// Reads the states of outputs, with one batch of reads for all records. `state[i]` belongs to `queries[i]`; an
    /// output whose records or body cannot be read has an error of its own.
    pub async fn read(&self, queries: &[OutputQuery], options: OutputOptions) -> Vec<Result<OutputState, ReadError>> {
        let mut states = self.read_records(queries, options).await;
        if options.output {
            self.load_outputs(&mut states).await;
        }
        states
    }

    /// Reads as [`read`](Self::read) does, from records alone: an output whose body is in the blob store has a state
    /// without amount and script ([`OutputState::is_in_body`]).
    pub async fn read_records(
        &self,
        queries: &[OutputQuery],
        options: OutputOptions,
    ) -> Vec<Result<OutputState, ReadError>> {
        let locate = |outpoint| self.store.locate_slot(outpoint);
        let ReadPlan { rows, places } = ReadPlan::of(queries, options, locate);
        let read = self.store.read_selected(rows).await;
        let page_of = |row: usize| read[row].as_ref().map(Option::as_ref).map_err(EngineError::clone);
        let state = |(query, places): (&OutputQuery, RowIndexes)| {
            let (number, offset) = locate(query.outpoint);
            let page = page_of(places.page)?;
            let records = match places.master {
                None => OutputRecords { master: page, page: None, offset },
                Some(row) => OutputRecords { master: page_of(row)?, page: Some((number, page)), offset },
            };
            records.state(query, options)
        };
        queries.iter().zip(places).map(state).collect()
    }

    /// Loads the outputs that no record holds from the bodies of their transactions.
    async fn load_outputs(&self, states: &mut [Result<OutputState, ReadError>]) {
        let mut missing: BTreeMap<Txid, Vec<(usize, u32, UtxoHash)>> = BTreeMap::new();
        for (index, state) in states.iter().enumerate() {
            if let Ok(state) = state
                && let Some(hash) = state.utxo_hash
                && state.is_in_body()
            {
                missing.entry(state.outpoint.txid).or_default().push((index, state.outpoint.vout, hash));
            }
        }
        let load = |(txid, outputs): (Txid, Vec<(usize, u32, UtxoHash)>)| async move {
            let hashes: BTreeMap<u32, UtxoHash> = outputs.iter().map(|(_, vout, hash)| (*vout, *hash)).collect();
            let reader = TxReader::of(self.store);
            let read = reader.outputs_by_hash(txid, &hashes);
            (outputs, self.store.within_limit(txid, read).await.unwrap_or_else(|error| Err(error.into())))
        };
        let mut loading = stream::iter(missing).map(load).buffer_unordered(BODIES_AT_A_TIME);
        while let Some((outputs, loaded)) = loading.next().await {
            for (index, vout, _) in outputs {
                match (&loaded, &mut states[index]) {
                    (Ok(loaded), Ok(state)) => state.output = loaded.get(&vout).cloned(),
                    (Err(error), state) => *state = Err(error.clone()),
                    (Ok(_), Err(_)) => {}
                }
            }
        }
    }
}

impl OutputRecords<'_> {
    /// Returns the state of the output by its records.
    fn state(self, query: &OutputQuery, options: OutputOptions) -> Result<OutputState, ReadError> {
        let height = options.height;
        let mined_height = self.master.filter(|_| options.mined).and_then(|master| mined_height(&master.page));
        let OutputQuery { outpoint, hash } = *query;
        let state = |status, page: Option<&SelectedPage>| {
            let slot = page.and_then(|page| page.slot(self.offset)).filter(|slot| *slot != Slot::Nil);
            let reassigned =
                page.and_then(|found| found.page.reassignments.iter().rev().find(|entry| entry.offset == self.offset));
            let output = match reassigned {
                Some(entry) => Some(entry.output.clone()),
                None => page.and_then(|page| page.output(self.offset)).cloned(),
            };
            OutputState {
                outpoint,
                status,
                spender: slot.and_then(|slot| slot.spender()),
                utxo_hash: slot.and_then(|slot| slot.hash()),
                output: output.filter(|_| slot.is_some()),
                mined_height,
            }
        };
        let Some(master) = self.master else { return Ok(state(SpendStatus::NotFound, None)) };
        let verdict = master.page.verdict().unwrap_or(Verdict::Pending);
        let page = match self.page {
            None => master,
            Some((_, Some(page))) => page,
            Some((number, None)) => {
                let has_page = master.page.extra_pages() >= number;
                return match record_status(master, verdict, height) {
                    Some(status) => Ok(state(status, None)),
                    None if has_page => Err(ReadError::MissingPage { txid: outpoint.txid, page: number }),
                    None => Ok(state(SpendStatus::NoSuchOutput, None)),
                };
            }
        };
        let status = match record_status(page, verdict, height) {
            // The reason is in the master.
            Some(SpendStatus::Creating) if self.page.is_some() => {
                record_status(master, verdict, height).unwrap_or(SpendStatus::Creating)
            }
            Some(status) => status,
            None => slot_status(page, self.offset, hash, height),
        };
        Ok(state(status, Some(page)))
    }
}

fn mined_height(master: &Page) -> Option<u32> {
    let fields = master.master.as_deref().filter(|fields| fields.unmined_since.is_none())?;
    fields.mined.iter().map(|block| block.height).max()
}

/// Returns the obstacle that the record as a whole is; `None`: the slot decides.
fn record_status(selected: &SelectedPage, verdict: Verdict, height: Option<u32>) -> Option<SpendStatus> {
    let page = &selected.page;
    match page.state() {
        TxState::Pruned(height) => return Some(SpendStatus::Pruned(height)),
        _ if page.creating_at.is_some() => return Some(SpendStatus::Creating),
        TxState::Stub(_) | TxState::Conflicting(_) => return Some(SpendStatus::Conflicting(verdict)),
        TxState::Live | TxState::Creating => {}
    }
    if page.locked {
        return Some(SpendStatus::Locked);
    }
    page.spending_height.filter(|from| height.is_some_and(|height| *from > height)).map(SpendStatus::Immature)
}

/// Returns the obstacle that the slot is. A slot with a history is as free as any other: the sequencer decides about a
/// spend of such a slot, and accepts the spend of a free one.
fn slot_status(selected: &SelectedPage, offset: u32, hash: Option<UtxoHash>, height: Option<u32>) -> SpendStatus {
    let slot = selected.slot(offset).unwrap_or(Slot::Nil);
    let Some(found) = slot.hash() else { return SpendStatus::NoSuchOutput };
    if hash.is_some_and(|hash| hash != found) {
        return SpendStatus::HashMismatch(found);
    }
    if selected.page.frozen || matches!(slot, Slot::Frozen(_)) {
        return SpendStatus::Frozen;
    }
    if let Some(spender) = slot.spender() {
        return SpendStatus::Spent(spender);
    }
    match selected.page.utxo_spendable_in.get(&offset) {
        Some(from) if height.is_some_and(|height| *from > height) => SpendStatus::NotYetSpendable(*from),
        _ => SpendStatus::Unspent,
    }
}

#[cfg(test)]
#[path = "outputs_tests.rs"]
mod tests;
