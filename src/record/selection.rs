//! [`Selection`]: the parts of a page that a reader needs, and the pure function that selects them.

use super::{Body, Master, Page, Slot, StoredOutput};
use crate::tx::{Output, Transaction};

/// Parts of a page to read. The flags, heights and verdict that decide whether an output can be spent are always read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// Reads the stored data of the transaction: version, fee, sizes, blocks, conflicting children, place of the body.
    pub meta: bool,
    /// Reads the slot with this offset in the page.
    pub slot: Option<u32>,
    /// Reads the output of that slot, where the page has its outputs inline.
    pub output: bool,
}

impl Selection {
    /// The stored data of a transaction, without slots and body.
    pub const META: Selection = Selection { meta: true, slot: None, output: false };
}

/// The selected parts of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedPage {
    /// The page without its slots, and without the inputs and outputs of an inline body. A field that was not selected
    /// is as in [`Page::empty`]. `utxos` is an empty list if the page has slots.
    pub page: Page,
    /// The selected slot; `None`: not selected, or beyond the last slot.
    pub slot: Option<Slot>,
    /// The output of the selected slot; `None`: not selected, absent, or in a body that has to be read as a whole.
    pub output: Option<StoredOutput>,
}

impl SelectedPage {
    /// Selects parts of a page.
    pub fn of(page: &Page, selection: Selection) -> Self {
        let slot = selection.slot.and_then(|offset| page.utxos.as_ref()?.get(offset as usize).copied());
        let wanted = selection.slot.filter(|_| selection.output);
        let output = wanted.and_then(|offset| output_at(page.body()?, offset));
        SelectedPage { page: select_fields(page, selection), slot, output }
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

/// Returns an output of an inline body; `None`: the body has no such output, or is elsewhere.
fn output_at(body: &Body, offset: u32) -> Option<StoredOutput> {
    match body {
        Body::Outputs(outputs) => outputs.get(offset as usize)?.clone(),
        Body::Transaction(bytes) => {
            let Output { satoshis, script } = Transaction::parse(bytes).ok()?.outputs().nth(offset as usize)?;
            Some(StoredOutput { satoshis, script: bytes.slice_ref(script) })
        }
        Body::External(_) => None,
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
        assert_eq!((status.page.fee, status.page.utxos.as_deref(), status.slot), (0, Some(&[][..]), None));
        assert_eq!(status.page.state(), whole.state());
        let meta = SelectedPage::of(&whole, Selection::META);
        assert_eq!((meta.page.fee, meta.page.body()), (whole.fee, None));
        let second = SelectedPage::of(&whole, Selection { slot: Some(1), output: true, meta: false });
        assert_eq!(second.slot, whole.utxos.as_ref().map(|slots| slots[1]));
        assert_eq!(second.output.unwrap().satoshis, 11);
        let beyond = SelectedPage::of(&whole, Selection { slot: Some(2), output: true, meta: false });
        assert_eq!((beyond.slot, beyond.output), (None, None));
    }
}
