//! Copies of events that wait. An event is a slice of the batch that it was read with, and an event that waits would
//! keep the whole batch in memory.

use std::sync::Arc;

use bytes::Bytes;

use super::{InputGroup, PreparedPartialTx, PreparedTx};
use crate::{
    broker::Message,
    record::{Body, Page, SpendSlot},
};

impl PreparedTx {
    /// Returns a copy that shares no memory with the batch that the event was read with.
    pub fn detach_from_batch(&self) -> PreparedTx {
        let source = copy_message(&self.source);
        if self.is_by_reference {
            return PreparedTx {
                groups: self.groups.clone(),
                page: self.page.clone(),
                others: self.others.clone(),
                source,
                ..*self
            };
        }
        let rebase = |part: &Bytes| rebase_slice(part, &self.source.payload, &source.payload);
        let slot = |slot: &SpendSlot| SpendSlot { script: rebase(&slot.script), ..slot.clone() };
        let group = |group: &InputGroup| InputGroup {
            slots: Arc::new(group.slots.iter().map(slot).collect()),
            parent: group.parent,
            page: group.page,
        };
        PreparedTx {
            txid: self.txid,
            height: self.height,
            groups: self.groups.iter().map(group).collect(),
            page: Arc::new(rebase_page(&self.page, rebase)),
            others: self.others.as_ref().map(|others| Arc::new(others.with_bytes(rebase))),
            source,
            is_by_reference: false,
        }
    }
}

impl PreparedPartialTx {
    /// Returns a copy that shares no memory with the batch that the event was read with.
    pub fn detach_from_batch(&self) -> PreparedPartialTx {
        let source = copy_message(&self.source);
        if self.is_by_reference {
            return PreparedPartialTx { page: self.page.clone(), others: self.others.clone(), source, ..*self };
        }
        let rebase = |part: &Bytes| rebase_slice(part, &self.source.payload, &source.payload);
        PreparedPartialTx {
            txid: self.txid,
            page: Arc::new(rebase_page(&self.page, rebase)),
            others: self.others.as_ref().map(|others| Arc::new(others.with_bytes(rebase))),
            source,
            is_by_reference: false,
        }
    }
}

fn copy_message(message: &Message) -> Message {
    let Message { offset, timestamp_ms, key, payload, headers } = message;
    Message {
        offset: *offset,
        timestamp_ms: *timestamp_ms,
        key: Bytes::copy_from_slice(key),
        headers: headers.iter().map(|(name, value)| (name.clone(), Bytes::copy_from_slice(value))).collect(),
        payload: Bytes::copy_from_slice(payload),
    }
}

fn rebase_page(page: &Page, rebase: impl Fn(&Bytes) -> Bytes) -> Page {
    let mut page = page.clone();
    match page.master.as_mut().and_then(|master| master.body.as_mut()) {
        Some(Body::Transaction(body)) => *body = rebase(body),
        Some(Body::Outputs(outputs)) => *outputs = outputs.with_scripts(rebase),
        Some(Body::External(_)) | None => {}
    }
    page
}

/// Returns the part of `copy` at the position of `part` in `whole`; a new copy where `part` is no part of `whole`.
fn rebase_slice(part: &Bytes, whole: &Bytes, copy: &Bytes) -> Bytes {
    let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    match start.checked_add(part.len()) {
        Some(end) if end <= copy.len() => copy.slice(start..end),
        _ => Bytes::copy_from_slice(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{
            BodyReference, ContentHash, PartialOutput, PartialTxEvent, PartialTxReference, Validated,
            ValidatedReference,
        },
        ingest::flight::SubmittedTx,
        prepare::{PrepareSettings, PreparedEvent, prepare_loaded},
        record::build::InlineBodies,
        tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
    };

    #[test]
    fn a_detached_event_is_equal_and_holds_no_memory_of_its_batch() {
        let outpoint = |vout| Outpoint { txid: Txid([7; 32]), vout };
        let spent = Output { satoshis: 9_000, script: &[0x51, 0x52] };
        let builder = TransactionBuilder::default().input(outpoint(0), &[1], u32::MAX, Some(spent)).input(
            outpoint(150),
            &[2],
            u32::MAX,
            Some(spent),
        );
        let extended = (0..5).fold(builder, |builder, vout| builder.output(vout, &[0x51])).extended();
        let txid = Transaction::parse(&extended).unwrap().txid();
        let whole = Validated { tx: &extended, height: 200, locked: false }.encode();
        let output = |vout| PartialOutput { vout, satoshis: 9_000, script: &[0x51, 0x52] };
        let seeded = PartialTxEvent { txid, coinbase: false, height: 200, outputs: vec![output(0), output(3)] };
        let (outputs, partial) = (Bytes::from(seeded.encode_outputs()), seeded.encode());
        let reference = || BodyReference { key: "k".into(), length: 9, blake3: ContentHash([0; 32]) };
        let whole_reference = ValidatedReference { txid, tx: reference(), height: 200, locked: false }.encode();
        let partial_reference =
            PartialTxReference { txid, coinbase: false, height: 200, outputs: reference() }.encode();
        let extended = Bytes::from(extended);
        let events = [
            (&whole, None),
            (&partial, None),
            (&whole_reference, Some(&extended)),
            (&partial_reference, Some(&outputs)),
        ];
        for ((payload, body), utxo_batch_size) in events.into_iter().flat_map(|event| [(event, 100), (event, 2)]) {
            // The broker delivers a message like this: a slice of one allocation, behind other messages.
            let batch = Bytes::from([&[9; 40], &txid.0[..], payload, &[8; 300]].concat());
            let message = Message {
                offset: 3,
                timestamp_ms: 1,
                key: batch.slice(40..72),
                payload: batch.slice(72..72 + payload.len()),
                headers: vec![("h".into(), batch.slice(0..4))],
            };
            let settings = PrepareSettings { network: Network::Regtest, utxo_batch_size, inline: InlineBodies::All };
            let (detached, before) = match prepare_loaded(&settings, &message, body).unwrap() {
                PreparedEvent::Validated(tx) => {
                    (SubmittedTx::Validated(tx.clone()).detach_from_batch(), SubmittedTx::Validated(tx))
                }
                PreparedEvent::Seeded(seed) => {
                    (SubmittedTx::Seeded(seed.clone()).detach_from_batch(), SubmittedTx::Seeded(seed))
                }
            };
            assert_eq!(format!("{detached:?}"), format!("{before:?}"));
            drop((before, message));
            assert!(batch.is_unique(), "with {utxo_batch_size} slots a page the batch is still in use");
        }
    }

    #[test]
    fn a_slice_of_other_memory_is_copied() {
        let whole = Bytes::from(vec![1, 2, 3, 4]);
        let copy = Bytes::copy_from_slice(&whole);
        for part in [whole.slice(1..3), Bytes::from(vec![2, 3]), Bytes::new(), whole.slice(4..)] {
            let rebased = rebase_slice(&part, &whole, &copy);
            assert_eq!(rebased, part);
            let inside = (copy.as_ptr() as usize..=copy.as_ptr() as usize + 4).contains(&(rebased.as_ptr() as usize));
            assert!(inside || !whole.as_ptr_range().contains(&part.as_ptr()));
        }
    }
}
