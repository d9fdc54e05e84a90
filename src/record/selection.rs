//! [`Selection`]: the parts of a page that a reader needs, and the pure function that selects them.

use super::{Body, Master, Page, Slot, StoredOutput};
use crate::tx::{Output, Transaction};

/// Parts of a page to read. The flags, heights and verdict that decide whether an output can be spent are always read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// Reads the stored data of the transaction: version, fee, sizes, blocks, conflicting children, place of the body.
    pub meta: bool,
    /// Reads these slots of the page.
    pub slots: Option<SlotRange>,
    /// Reads the outputs of those slots, where the page has its outputs inline.
    pub output: bool,
}

/// Slots of a page with successive offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotRange {
    /// Offset of the first slot in its page.
    pub first: u32,
    /// Number of slots, at least 1.
    pub count: u32,
}

impl Selection {
    /// The stored data of a transaction, without slots and body.
    pub const META: Selection = Selection { meta: true, slots: None, output: false };
}

/// The selected parts of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedPage {
    /// The page without its slots, and without the inputs and outputs of an inline body. A field that was not selected
    /// is as in [`Page::empty`]. `utxos` is an empty list if the page has slots.
    pub page: Page,
    /// Offset of the first selected slot; 0 without selected slots.
    pub first: u32,
    /// The selected slots; fewer than selected, where the page ends before.
    pub slots: Vec<Slot>,
    /// The outputs of the selected slots; empty: not selected, or in a body that has to be read as a whole.
    pub outputs: Vec<Option<StoredOutput>>,
}

impl SelectedPage {
    /// Selects parts of a page.
    pub fn of(page: &Page, selection: Selection) -> Self {
        let SlotRange { first, count } = selection.slots.unwrap_or(SlotRange { first: 0, count: 0 });
        let in_range = |slots: &Vec<Slot>| slots.iter().skip(first as usize).take(count as usize).copied().collect();
        let slots = page.utxos.as_ref().map(in_range).unwrap_or_default();
        let body = page.body().filter(|_| selection.output && count > 0);
        let outputs = body.map(|body| outputs_in(body, first as usize, count as usize)).unwrap_or_default();
        SelectedPage { page: select_fields(page, selection), first, slots, outputs }
    }

    /// Returns the slot at an offset of the page; `None`: not selected, or beyond the last slot.
    pub fn slot(&self, offset: u32) -> Option<Slot> {
        self.slots.get(self.index(offset)?).copied()
    }

    /// Returns the output of the slot at an offset of the page; `None`: not selected, absent, or not inline.
    pub fn output(&self, offset: u32) -> Option<&StoredOutput> {
        self.outputs.get(self.index(offset)?)?.as_ref()
    }

    fn index(&self, offset: u32) -> Option<usize> {
        offset.checked_sub(self.first).map(|index| index as usize)
    }
}

fn select_fields(page: &Page, selection: Selection) -> Page {
    let master = page.master.as_deref();
    let selected = Page {
        number: page.number,
        utxos: page.utxos.as_ref().map(|_| Vec::new()),
        record_utxos: page.record_utxos,
        locked: page.locked,
        conflicting: page.conflicting,
        frozen: page.frozen,
        creating_at: page.creating_at,
        spending_height: page.spending_height,
        utxo_spendable_in: page.utxo_spendable_in.clone(),
        reassignments: if selection.output { page.reassignments.clone() } else { Vec::new() },
        pruned: page.pruned,
        master: master.map(|master| Box::new(Master { verdict: master.verdict, ..Master::default() })),
        ..Page::empty(page.txid)
    };
    if !selection.meta {
        return selected;
    }
    let external = |body: &Body| matches!(body, Body::External(_));
    Page {
        version: page.version,
        lock_time: page.lock_time,
        fee: page.fee,
        size_in_bytes: page.size_in_bytes,
        extended_size: page.extended_size,
        spent_utxos: page.spent_utxos,
        is_coinbase: page.is_coinbase,
        delete_at_height: page.delete_at_height,
        master: master.map(|master| Box::new(Master { body: master.body.clone().filter(external), ..master.clone() })),
        ..selected
    }
}

/// Returns outputs of an inline body; none: the body has none in this range, or is elsewhere.
fn outputs_in(body: &Body, first: usize, count: usize) -> Vec<Option<StoredOutput>> {
    match body {
        Body::Outputs(outputs) => outputs.iter().skip(first).take(count).map(Option::<&StoredOutput>::cloned).collect(),
        Body::Transaction(bytes) => {
            let stored = |Output { satoshis, script }| Some(StoredOutput { satoshis, script: bytes.slice_ref(script) });
            let parsed = Transaction::parse(bytes).ok();
            parsed.iter().flat_map(|tx| tx.outputs().skip(first).take(count).map(stored)).collect()
        }
        Body::External(_) => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{outpoint, page, transaction};
    use crate::tx::Txid;

    #[test]
    fn a_selection_has_what_was_selected_and_nothing_else() {
        let bytes = transaction(&[(outpoint(Txid([1; 32]), 0), 900)], &[10, 11]);
        let whole = page(&bytes);
        let status = SelectedPage::of(&whole, Selection::default());
        assert_eq!((status.page.fee, status.page.utxos.as_deref(), status.slot(0)), (0, Some(&[][..]), None));
        assert_eq!(status.page.state(), whole.state());
        let meta = SelectedPage::of(&whole, Selection::META);
        assert_eq!((meta.page.fee, meta.page.body()), (whole.fee, None));
        let select = |first, count| Selection { slots: Some(SlotRange { first, count }), output: true, meta: false };
        let slots = whole.utxos.as_deref().unwrap();
        for (first, count) in [(0, 1), (0, 2), (1, 1), (1, 5), (2, 1)] {
            let selected = SelectedPage::of(&whole, select(first, count));
            for offset in 0..4 {
                let expected = slots.get(offset as usize).filter(|_| (first..first + count).contains(&offset));
                assert_eq!(selected.slot(offset).as_ref(), expected, "{first}, {count}, {offset}");
                let satoshis = selected.output(offset).map(|output| output.satoshis);
                assert_eq!(satoshis, expected.map(|_| u64::from(offset) + 10), "{first}, {count}, {offset}");
            }
        }
    }
}
