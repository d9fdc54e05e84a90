//! Memory of its own for what waits. What was read is a slice of a whole batch, and one that waits would hold all of it.

use std::sync::Arc;

use bytes::Bytes;

use super::{PreparedSeed, PreparedTx, SpendGroup};
use crate::{
    broker::Message,
    record::{Body, Page, SpendSlot},
};

impl PreparedTx {
    /// The same, sharing no memory with the batch that it was read with.
    pub fn apart(&self) -> PreparedTx {
        let source = message_apart(&self.source);
        let moved = |part: &Bytes| moved(part, &self.source.payload, &source.payload);
        let slot = |slot: &SpendSlot| SpendSlot { script: moved(&slot.script), ..slot.clone() };
        let group = |group: &SpendGroup| SpendGroup {
            slots: Arc::new(group.slots.iter().map(slot).collect()),
            parent: group.parent,
            page: group.page,
        };
        PreparedTx {
            txid: self.txid,
            height: self.height,
            groups: self.groups.iter().map(group).collect(),
            page: Arc::new(page_apart(&self.page, moved)),
            others: self.others.as_ref().map(|others| Arc::new(others.with_bytes(moved))),
            source,
        }
    }
}

impl PreparedSeed {
    /// The same, sharing no memory with the batch that it was read with.
    pub fn apart(&self) -> PreparedSeed {
        let source = message_apart(&self.source);
        let moved = |part: &Bytes| moved(part, &self.source.payload, &source.payload);
        PreparedSeed {
            txid: self.txid,
            page: Arc::new(page_apart(&self.page, moved)),
            others: self.others.as_ref().map(|others| Arc::new(others.with_bytes(moved))),
            source,
        }
    }
}

fn message_apart(message: &Message) -> Message {
    let Message { offset, timestamp_ms, key, payload, headers } = message;
    Message {
        offset: *offset,
        timestamp_ms: *timestamp_ms,
        key: Bytes::copy_from_slice(key),
        headers: headers.iter().map(|(name, value)| (name.clone(), Bytes::copy_from_slice(value))).collect(),
        payload: Bytes::copy_from_slice(payload),
    }
}

fn page_apart(page: &Page, moved: impl Fn(&Bytes) -> Bytes) -> Page {
    let mut page = page.clone();
    match page.master.as_mut().and_then(|master| master.body.as_mut()) {
        Some(Body::Transaction(body)) => *body = moved(body),
        Some(Body::Outputs(outputs)) => {
            outputs.iter_mut().flatten().for_each(|output| *output = output.with_script(&moved));
        }
        Some(Body::External(_)) | None => {}
    }
    page
}

/// The same part of `copy` as `part` is of `whole`; a copy where it lies elsewhere.
fn moved(part: &Bytes, whole: &Bytes, copy: &Bytes) -> Bytes {
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
        event::{Seeded, SeededOutput, Validated},
        ingest::flight::Work,
        prepare::{PrepareSettings, Prepared, prepare},
        record::build::Inline,
        tx::{Network, Outpoint, Output, Transaction, TransactionBuilder, Txid},
    };

    #[test]
    fn what_is_kept_apart_is_the_same_and_holds_nothing_of_its_batch() {
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
        let output = |vout| SeededOutput { vout, satoshis: 9_000, script: &[0x51, 0x52] };
        let partial = Seeded { txid, coinbase: false, height: 200, outputs: vec![output(0), output(3)] }.encode();
        for (utxo_batch_size, payload) in [(100, &whole), (2, &whole), (100, &partial), (2, &partial)] {
            // As the broker hands them on: behind others, in one allocation.
            let batch = Bytes::from([&[9; 40], &txid.0[..], payload, &[8; 300]].concat());
            let message = Message {
                offset: 3,
                timestamp_ms: 1,
                key: batch.slice(40..72),
                payload: batch.slice(72..72 + payload.len()),
                headers: vec![("h".into(), batch.slice(0..4))],
            };
            let settings = PrepareSettings { network: Network::Regtest, utxo_batch_size, inline: Inline::All };
            let (apart, before) = match prepare(&settings, &message).unwrap() {
                Prepared::Validated(tx) => (Work::Validated(tx.clone()).apart(), Work::Validated(tx)),
                Prepared::Seeded(seed) => (Work::Seeded(seed.clone()).apart(), Work::Seeded(seed)),
            };
            assert_eq!(format!("{apart:?}"), format!("{before:?}"));
            drop((before, message));
            assert!(batch.is_unique(), "with {utxo_batch_size} slots a page something of it is held");
        }
    }

    #[test]
    fn what_lies_elsewhere_is_copied() {
        let whole = Bytes::from(vec![1, 2, 3, 4]);
        let copy = Bytes::copy_from_slice(&whole);
        for part in [whole.slice(1..3), Bytes::from(vec![2, 3]), Bytes::new(), whole.slice(4..)] {
            let moved = moved(&part, &whole, &copy);
            assert_eq!(moved, part);
            let inside = (copy.as_ptr() as usize..=copy.as_ptr() as usize + 4).contains(&(moved.as_ptr() as usize));
            assert!(inside || !whole.as_ptr_range().contains(&part.as_ptr()));
        }
    }
}
