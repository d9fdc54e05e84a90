//! [`OtherPages`]: the pages of a transaction besides its master, built one at a time. A transaction of a million
//! outputs has fifty such pages, and its creator need not hold more than a few in memory.

use std::{collections::BTreeSet, ops::Range};

use bytes::Bytes;

use super::{PageParams, count_slots, slot_of};
use crate::{
    record::{Body, Page, PartialOutputs, Slot, StoredOutput},
    tx::{Network, Output, Outputs, Transaction, Txid, amount_size, has_slot},
};

/// Source of all pages of a transaction but the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherPages {
    /// Page without slots, from which every page is cloned.
    blank: Page,
    source: PageSource,
    params: PageParams,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum PageSource {
    /// Bytes of a whole transaction, the byte at which the outputs of each page start, and the number of all outputs.
    Whole { bytes: Bytes, starts: Vec<usize>, outputs: u32 },
    /// All outputs of a partial transaction, gaps included.
    Partial(PartialOutputs),
}

impl OtherPages {
    /// Builds the source for the outputs after those of the master. Also returns the pages without spendable outputs.
    pub(super) fn of_outputs(
        blank: Page,
        bytes: Bytes,
        mut left: Outputs<'_>,
        params: &PageParams,
    ) -> (Option<Self>, BTreeSet<u32>) {
        let size = params.slots_per_page();
        let outputs = (size + left.len()) as u32;
        let (mut starts, mut empty) = (Vec::new(), BTreeSet::new());
        while left.len() > 0 {
            starts.push(left.position());
            let has_slot = |output: &Output<'_>| has_slot(&blank.txid, output.script, params.height, params.network);
            let slots = left.by_ref().take(size).filter(has_slot);
            if slots.count() == 0 {
                empty.insert(starts.len() as u32);
            }
        }
        let source = PageSource::Whole { bytes, starts, outputs };
        (Some(OtherPages { blank, source, params: *params }), empty)
    }

    /// Replaces the memory of the bytes and scripts by equal bytes from `moved`.
    pub(crate) fn with_bytes(&self, moved: impl Fn(&Bytes) -> Bytes) -> Self {
        let source = match &self.source {
            PageSource::Whole { bytes, starts, outputs } => {
                PageSource::Whole { bytes: moved(bytes), starts: starts.clone(), outputs: *outputs }
            }
            PageSource::Partial(outputs) => PageSource::Partial(outputs.with_scripts(moved)),
        };
        OtherPages { blank: self.blank.clone(), source, params: self.params }
    }

    /// Builds the source for a partial transaction from all its outputs. Also returns the pages without spendable
    /// outputs.
    pub(super) fn of_partial(
        blank: Page,
        outputs: PartialOutputs,
        params: &PageParams,
    ) -> (Option<Self>, BTreeSet<u32>) {
        let has_slot = |output: &StoredOutput| has_slot(&blank.txid, &output.script, params.height, params.network);
        let with_slot = outputs.known().iter().filter(|(_, output)| has_slot(output));
        let filled: BTreeSet<u32> = with_slot.map(|(index, _)| index / params.batch_size.max(1)).collect();
        let others = OtherPages { blank, source: PageSource::Partial(outputs), params: *params };
        let empty = others.numbers().filter(|number| !filled.contains(number)).collect();
        (Some(others), empty)
    }

    /// Returns a source without pages, for a transaction of one page whose body goes to the blob store.
    pub(super) fn empty(txid: Txid, params: &PageParams) -> Self {
        let source = PageSource::Whole { bytes: Bytes::new(), starts: Vec::new(), outputs: 0 };
        OtherPages { blank: Page::empty(txid), source, params: *params }
    }

    /// Builds the source for a stored transaction from its master and body. `None`: the transaction has one page, or
    /// the body has no outputs.
    pub fn of_stored(master: &Page, body: &Body, network: Network, batch_size: u32) -> Option<Self> {
        let bins = master.master.as_deref().filter(|bins| bins.total_extra_recs > 0)?;
        // The reference system does not store the height whose rule the slots follow.
        let height = master.slot_height.or(bins.unmined_since);
        let height = height.or_else(|| bins.mined.first().map(|mined| mined.height))?;
        let params = PageParams { network, height, batch_size, created_at: bins.created_at, event: bins.created_by };
        let blank = Page {
            version: master.version,
            lock_time: master.lock_time,
            fee: master.fee,
            size_in_bytes: master.size_in_bytes,
            extended_size: master.extended_size,
            is_coinbase: master.is_coinbase,
            locked: master.locked,
            spending_height: master.spending_height,
            ..Page::empty(master.txid)
        };
        let (others, _) = match body {
            Body::Transaction(bytes) => {
                let mut outputs = Transaction::parse(bytes).ok()?.outputs();
                outputs.by_ref().take(params.slots_per_page()).for_each(drop);
                Self::of_outputs(blank, bytes.clone(), outputs, &params)
            }
            Body::Outputs(outputs) => Self::of_partial(blank, outputs.clone(), &params),
            Body::External(_) => return None,
        };
        others.filter(|others| others.count() == bins.total_extra_recs)
    }

    /// Returns the txid of the transaction.
    pub fn txid(&self) -> Txid {
        self.blank.txid
    }

    /// Returns the number of pages: `totalExtraRecs`.
    pub fn count(&self) -> u32 {
        match &self.source {
            PageSource::Whole { starts, .. } => starts.len() as u32,
            PageSource::Partial(outputs) => outputs.count().div_ceil(self.params.batch_size.max(1)).saturating_sub(1),
        }
    }

    /// Returns the numbers of the pages, from 1.
    pub fn numbers(&self) -> Range<u32> {
        1..self.count() + 1
    }

    /// Builds page `number`, `creating` since `creating_at` (ms). A page above the last has no slots.
    pub fn page(&self, number: u32, creating_at: u64) -> Page {
        let (slots, amount_sizes) = self.build_slots(number);
        Page {
            number,
            record_utxos: count_slots(&slots),
            utxos: Some(slots),
            amount_sizes: amount_sizes.into(),
            creating_at: Some(creating_at),
            slot_height: Some(self.params.height),
            ..self.blank.clone()
        }
    }

    /// Returns the slots of a page, and the number of bytes that each amount takes in the hash of its slot.
    fn build_slots(&self, number: u32) -> (Vec<Slot>, Vec<u8>) {
        let first = number * self.params.batch_size.max(1);
        match &self.source {
            PageSource::Whole { bytes, starts, outputs } => {
                let Some(start) = (number as usize).checked_sub(1).and_then(|place| starts.get(place)) else {
                    return Default::default();
                };
                let (mut at, end) = (*start, first.saturating_add(self.params.batch_size.max(1)).min(*outputs));
                let slot = |vout| {
                    let (output, next) =
                        Output::read_at(bytes, at).expect("these bytes have been walked up to their end");
                    at = next;
                    let slot = slot_of(&self.blank.txid, vout, output.script, output.satoshis, &self.params);
                    (slot, amount_size(output.satoshis))
                };
                (first..end).map(slot).unzip()
            }
            PageSource::Partial(outputs) => {
                let slots = build_partial_slots(&self.blank.txid, outputs, first, &self.params);
                let sizes = outputs.range(first..first.saturating_add(slots.len() as u32));
                let sizes = sizes.map(StoredOutput::amount_size_of).collect();
                (slots, sizes)
            }
        }
    }
}

/// Returns the slots of the page that begins with output `first`.
pub(super) fn build_partial_slots(txid: &Txid, outputs: &PartialOutputs, first: u32, params: &PageParams) -> Vec<Slot> {
    let slot = |(output, vout): (Option<&StoredOutput>, u32)| match output {
        Some(output) => slot_of(txid, vout, &output.script, output.satoshis, params),
        None => Slot::Nil,
    };
    outputs.range(first..first.saturating_add(params.batch_size.max(1))).zip(first..).map(slot).collect()
}
