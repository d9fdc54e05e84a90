//! The pages of a transaction besides its master, made one at a time: a transaction of a million outputs has fifty, and
//! whoever creates them need not hold more than a few.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use bytes::Bytes;

use super::{Setting, count, slot_of};
use crate::{
    record::{Body, Page, Slot, StoredOutput},
    tx::{Network, Output, Outputs, Transaction, Txid, amount_size, has_slot},
};

/// What all pages but the master are made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherPages {
    /// A page without slots.
    blank: Page,
    source: Source,
    setting: Setting,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// The bytes of a whole transaction, where in them the outputs of each page start, and how many there are.
    Whole { bytes: Bytes, starts: Vec<usize>, outputs: u32 },
    /// A partial transaction.
    Partial(Arc<Vec<Option<StoredOutput>>>),
}

impl OtherPages {
    /// Of the outputs that the master leaves; and those pages on which there is nothing to spend.
    pub(super) fn of_outputs(
        blank: Page,
        bytes: Bytes,
        mut left: Outputs<'_>,
        setting: &Setting,
    ) -> (Option<Self>, BTreeSet<u32>) {
        let size = setting.slots_a_page();
        let outputs = (size + left.len()) as u32;
        let (mut starts, mut empty) = (Vec::new(), BTreeSet::new());
        while left.len() > 0 {
            starts.push(left.position());
            let has_slot = |output: &Output<'_>| has_slot(&blank.txid, output.script, setting.height, setting.network);
            let slots = left.by_ref().take(size).filter(has_slot);
            if slots.count() == 0 {
                empty.insert(starts.len() as u32);
            }
        }
        let source = Source::Whole { bytes, starts, outputs };
        (Some(OtherPages { blank, source, setting: *setting }), empty)
    }

    /// The same, with other memory for the bytes of a whole transaction, equal to those that there are.
    pub(crate) fn with_bytes(&self, moved: impl Fn(&Bytes) -> Bytes) -> Self {
        let source = match &self.source {
            Source::Whole { bytes, starts, outputs } => {
                Source::Whole { bytes: moved(bytes), starts: starts.clone(), outputs: *outputs }
            }
            Source::Partial(outputs) => Source::Partial(Arc::new(
                outputs.iter().map(|output| output.as_ref().map(|output| output.with_script(&moved))).collect(),
            )),
        };
        OtherPages { blank: self.blank.clone(), source, setting: self.setting }
    }

    /// The same of a partial transaction, given all its outputs.
    pub(super) fn of_partial(
        blank: Page,
        outputs: Vec<Option<StoredOutput>>,
        setting: &Setting,
    ) -> (Option<Self>, BTreeSet<u32>) {
        let others = OtherPages { blank, source: Source::Partial(Arc::new(outputs)), setting: *setting };
        let empty = others.numbers().filter(|number| count(&others.slots(*number).0) == 0).collect();
        (Some(others), empty)
    }

    /// None: of a transaction of one page, whose body is kept elsewhere.
    pub(super) fn none(txid: Txid, setting: &Setting) -> Self {
        let source = Source::Whole { bytes: Bytes::new(), starts: Vec::new(), outputs: 0 };
        OtherPages { blank: Page::empty(txid), source, setting: *setting }
    }

    /// Those of a transaction that is stored already, from its master and body. `None`: it has none, or the body does not tell.
    pub fn of_stored(master: &Page, body: &Body, network: Network, batch_size: u32) -> Option<Self> {
        let bins = master.master.as_deref().filter(|bins| bins.total_extra_recs > 0)?;
        // What decided then which outputs get a slot.
        let height = bins.unmined_since.or_else(|| bins.mined.first().map(|mined| mined.height))?;
        let setting = Setting { network, height, batch_size, created_at: bins.created_at };
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
                outputs.by_ref().take(setting.slots_a_page()).for_each(drop);
                Self::of_outputs(blank, bytes.clone(), outputs, &setting)
            }
            Body::Outputs(outputs) => Self::of_partial(blank, outputs.clone(), &setting),
            Body::External(_) => return None,
        };
        others.filter(|others| others.count() == bins.total_extra_recs)
    }

    /// Whose pages they are.
    pub fn txid(&self) -> Txid {
        self.blank.txid
    }

    /// How many there are: `totalExtraRecs`.
    pub fn count(&self) -> u32 {
        match &self.source {
            Source::Whole { starts, .. } => starts.len() as u32,
            Source::Partial(outputs) => (outputs.len().div_ceil(self.setting.slots_a_page()) as u32).saturating_sub(1),
        }
    }

    /// Their numbers, from 1.
    pub fn numbers(&self) -> Range<u32> {
        1..self.count() + 1
    }

    /// Page `number`, `creating` since then; without slots where there is no such page.
    pub fn page(&self, number: u32, creating_at: u64) -> Page {
        let (slots, amount_sizes) = self.slots(number);
        Page {
            number,
            record_utxos: count(&slots),
            utxos: Some(slots),
            amount_sizes: amount_sizes.into(),
            creating_at: Some(creating_at),
            ..self.blank.clone()
        }
    }

    /// With how many bytes each amount takes in the hash of its slot.
    fn slots(&self, number: u32) -> (Vec<Slot>, Vec<u8>) {
        let first = number * self.setting.batch_size.max(1);
        match &self.source {
            Source::Whole { bytes, starts, outputs } => {
                let Some(start) = (number as usize).checked_sub(1).and_then(|place| starts.get(place)) else {
                    return Default::default();
                };
                let (mut at, end) = (*start, first.saturating_add(self.setting.batch_size.max(1)).min(*outputs));
                let slot = |vout| {
                    let (output, next) =
                        Output::read_at(bytes, at).expect("these bytes have been walked up to their end");
                    at = next;
                    let slot = slot_of(&self.blank.txid, vout, output.script, output.satoshis, &self.setting);
                    (slot, amount_size(output.satoshis))
                };
                (first..end).map(slot).unzip()
            }
            Source::Partial(outputs) => {
                let slots = slots_of_partial(&self.blank.txid, outputs, first, &self.setting);
                let sizes = outputs.iter().skip(first as usize).take(slots.len()).map(StoredOutput::amount_size_of);
                (slots, sizes.collect())
            }
        }
    }
}

/// The slots of the page that begins with output `first`.
pub(super) fn slots_of_partial(
    txid: &Txid,
    outputs: &[Option<StoredOutput>],
    first: u32,
    setting: &Setting,
) -> Vec<Slot> {
    let slot = |(output, vout): (&Option<StoredOutput>, u32)| match output {
        Some(output) => slot_of(txid, vout, &output.script, output.satoshis, setting),
        None => Slot::Nil,
    };
    outputs.iter().zip(0..).skip(first as usize).take(setting.slots_a_page()).map(slot).collect()
}
