//! Tests of the fields that the digest covers, of the fields it leaves out, and of its golden samples.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::record::{
    Blob, Key, MinedIn, PartialOutputs, Reason, Reassignment, Slot, SpendingData, Stamp, StoredOutput, Verdict,
    build::{BlockListing, NewTxState},
};
use crate::store::testing::*;
use crate::tx::{Txid, UtxoHash};

/// Returns a store with these pages and two blocks.
pub(in crate::store) async fn holding(pages: impl IntoIterator<Item = Page>) -> StateStore {
    let store = store(100);
    store.sequenced(Key::Block(3), crate::record::Sequenced::PutBlock(block(3, true))).await;
    store.sequenced(Key::Block(4), crate::record::Sequenced::PutBlock(block(4, false))).await;
    for page in pages {
        store.plant(page).await;
    }
    store
}

async fn survey(store: &StateStore) -> Survey {
    super::survey(store, |_| ()).await.unwrap()
}

async fn digest(pages: impl IntoIterator<Item = Page>) -> StateDigest {
    survey(&holding(pages).await).await.digest
}

fn holder(id: u8, input: u32) -> SpendingData {
    SpendingData { txid: Txid([id; 32]), input }
}

/// Returns a page of three outputs, the second spent, the third frozen; a coinbase that is mined on the longest chain.
pub(in crate::store) fn sample() -> Page {
    let mut page = seeded(7, 3);
    let slots = page.utxos.as_mut().unwrap();
    slots[1] = Slot::Spent(slots[1].hash().unwrap(), holder(9, 2));
    slots[2] = Slot::Frozen(slots[2].hash().unwrap());
    page.spent_utxos = 1;
    page.spending_height = Some(200);
    page.is_coinbase = true;
    page
}

fn slot(page: &mut Page, at: usize) -> &mut Slot {
    &mut page.utxos.as_mut().unwrap()[at]
}

fn change_outputs(outputs: &mut PartialOutputs, change: fn(&mut Vec<Option<StoredOutput>>)) {
    let mut dense = outputs.iter().map(Option::<&StoredOutput>::cloned).collect();
    change(&mut dense);
    *outputs = dense.into_iter().collect();
}

pub(in crate::store) type Change = (&'static str, fn(&mut Page));

/// Returns a change of the [`sample`] for each field that the digest covers.
pub(in crate::store) fn changes() -> [Change; 26] {
    [
        ("txid", |page| page.txid.0[0] ^= 1),
        ("amount of an output", |page| match &mut master(page).body {
            Some(Body::Outputs(outputs)) => {
                change_outputs(outputs, |outputs| outputs[0].as_mut().unwrap().satoshis += 1);
            }
            _ => unreachable!(),
        }),
        ("script of an output", |page| match &mut master(page).body {
            Some(Body::Outputs(outputs)) => change_outputs(outputs, |outputs| {
                outputs[0].as_mut().unwrap().script = Bytes::from_static(&[0x51, 1]);
            }),
            _ => unreachable!(),
        }),
        ("a gap", |page| match &mut master(page).body {
            Some(Body::Outputs(outputs)) => change_outputs(outputs, |outputs| outputs[2] = None),
            _ => unreachable!(),
        }),
        ("kind of body", |page| master(page).body = Some(Body::Transaction(transaction(&[], &[])))),
        ("no body", |page| master(page).body = None),
        ("hash of a slot", |page| *slot(page, 0) = Slot::Unspent(UtxoHash([1; 32]))),
        ("spent slot", |page| *slot(page, 0) = Slot::Spent(slot(page, 0).hash().unwrap(), holder(9, 0))),
        ("spender", |page| *slot(page, 1) = Slot::Spent(slot(page, 1).hash().unwrap(), holder(8, 2))),
        ("input of the spender", |page| *slot(page, 1) = Slot::Spent(slot(page, 1).hash().unwrap(), holder(9, 1))),
        ("frozen slot", |page| *slot(page, 2) = Slot::Unspent(slot(page, 2).hash().unwrap())),
        ("nil slot", |page| *slot(page, 2) = Slot::Nil),
        ("number of slots", |page| master(page).total_utxos += 1),
        ("coinbase", |page| page.is_coinbase = false),
        ("spending height", |page| page.spending_height = Some(201)),
        ("no spending height", |page| page.spending_height = None),
        ("locked", |page| page.locked = true),
        ("frozen", |page| page.frozen = true),
        ("pending", |page| {
            page.conflicting = true;
            master(page).verdict = Some(Verdict::Pending);
        }),
        ("spendable from", |page| _ = page.utxo_spendable_in.insert(0, 500)),
        ("reassigned", |page| page.reassignments.push(reassignment())),
        ("preserved", |page| master(page).preserve_until = Some(0)),
        ("mined elsewhere", |page| master(page).mined[0].height += 1),
        ("mined twice", |page| master(page).mined.push(MinedIn { block_id: 3, height: 103, subtree: 0 })),
        ("unmined since", |page| master(page).unmined_since = Some(0)),
        ("pruned spender does not count, but its slot does", |page| {
            *slot(page, 0) = Slot::Spent(slot(page, 0).hash().unwrap(), holder(9, 3));
            page.pruned_spenders.insert(0);
        }),
    ]
}

#[tokio::test]
async fn each_covered_field_changes_the_digest() {
    let mut seen = vec![("nothing", digest([sample()]).await)];
    for (what, change) in changes() {
        let mut page = sample();
        change(&mut page);
        let found = digest([page]).await;
        for (other, digest) in &seen {
            assert_ne!(found, *digest, "{what} against {other}");
        }
        seen.push((what, found));
    }
}

/// A live transaction has one form, whether it was contested or its block was disconnected once.
#[tokio::test]
async fn an_accepted_verdict_does_not_change_the_digest() {
    let mut page = sample();
    let never_contested = digest([page.clone()]).await;
    master(&mut page).verdict = Some(Verdict::Accepted);
    assert_eq!(digest([page]).await, never_contested);
}

fn reassignment() -> Reassignment {
    let output = StoredOutput { satoshis: 5, script: Bytes::from_static(&[0x52]) };
    let (utxo_hash, new_utxo_hash) = (UtxoHash([3; 32]), UtxoHash([4; 32]));
    Reassignment { offset: 0, utxo_hash, new_utxo_hash, block_height: 9, output }
}

#[tokio::test]
async fn every_field_of_a_reassignment_changes_the_digest() {
    let changes: [fn(&mut Reassignment); 6] = [
        |entry| entry.offset = 1,
        |entry| entry.utxo_hash.0[0] = 9,
        |entry| entry.new_utxo_hash.0[0] = 9,
        |entry| entry.block_height = 8,
        |entry| entry.output.satoshis = 6,
        |entry| entry.output.script = Bytes::from_static(&[0x53]),
    ];
    let with = |entry| Page { reassignments: vec![entry], ..sample() };
    let mut seen = vec![digest([with(reassignment())]).await];
    for change in changes {
        let mut entry = reassignment();
        change(&mut entry);
        let found = digest([with(entry)]).await;
        assert!(!seen.contains(&found));
        seen.push(found);
    }
}

#[tokio::test]
async fn every_reason_changes_the_digest() {
    let id = Txid([5; 32]);
    let reasons = [
        Reason::DoubleSpend { input: 1, winner: id },
        Reason::DoubleSpend { input: 2, winner: id },
        Reason::DoubleSpend { input: 1, winner: Txid([6; 32]) },
        Reason::ConflictingParent { parent: id },
        Reason::MissingParent { parent: id },
        Reason::PrunedParent { parent: id },
        Reason::Immature { input: 1 },
        Reason::Mismatch { input: 1 },
        Reason::NoSuchOutput { input: 1 },
        Reason::NotYetSpendable { input: 1 },
        Reason::Frozen { input: 1 },
        Reason::Locked { parent: id },
        Reason::History { input: 1 },
        Reason::Found,
        Reason::Command,
        Reason::Disconnected,
        Reason::Seeded,
    ];
    let mut seen = Vec::new();
    for reason in reasons {
        let mut page = Page { conflicting: true, ..sample() };
        master(&mut page).verdict = Some(Verdict::Conflicting(reason));
        let found = digest([page]).await;
        assert!(!seen.contains(&found), "{reason:?}");
        seen.push(found);
    }
}

#[tokio::test]
async fn bookkeeping_does_not_change_the_digest() {
    let changes: [Change; 10] = [
        ("contested", |page| _ = page.contested.insert(0)),
        ("created at", |page| master(page).created_at += 1),
        ("stamp", |page| page.chain_pos = Some(Stamp { offset: 9, phase: crate::record::Phase::Prune })),
        ("delete at height", |page| page.delete_at_height = Some(7)),
        ("conflicting children", |page| _ = master(page).conflicting_children.insert(Txid([1; 32]))),
        ("pruned spenders", |page| _ = page.pruned_spenders.insert(1)),
        ("side chain", |page| master(page).mined.push(MinedIn { block_id: 4, height: 104, subtree: 0 })),
        ("repeated triple", |page| {
            let mined = master(page).mined[0];
            master(page).mined.push(mined);
        }),
        ("all-spent pages", |page| _ = master(page).spent_pages.insert(1)),
        ("creating", |page| page.creating_at = Some(4)),
    ];
    let expected = digest([sample()]).await;
    for (what, change) in changes {
        let mut page = sample();
        change(&mut page);
        assert_eq!(digest([page]).await, expected, "{what}");
    }
}

#[tokio::test]
async fn the_order_of_mined_triples_does_not_change_the_digest() {
    let mined = |ids: [u32; 2]| {
        let mut page = sample();
        master(&mut page).mined = ids.map(|block_id| MinedIn { block_id, height: 100, subtree: 0 }).to_vec();
        page
    };
    assert_eq!(digest([mined([0, 3])]).await, digest([mined([3, 0])]).await);
}

#[tokio::test]
async fn a_disconnected_block_removes_its_mined_triples_from_the_digest() {
    let on_three = || {
        let mut page = sample();
        master(&mut page).mined.push(MinedIn { block_id: 3, height: 103, subtree: 0 });
        page
    };
    let store = holding([on_three()]).await;
    let before = survey(&store).await;
    store.sequenced(Key::Block(3), crate::record::Sequenced::PutBlock(block(3, false))).await;
    let after = survey(&store).await;
    assert_eq!(after.digest, digest([sample()]).await);
    assert_ne!(before.digest, after.digest);
    assert_eq!((before.stats.blocks, before.stats.side_blocks), (1, 1));
    assert_eq!((after.stats.blocks, after.stats.side_blocks), (0, 2));
}

#[tokio::test]
async fn stubs_and_pruned_transactions_are_left_out() {
    let store = holding([sample()]).await;
    let before = survey(&store).await;
    store.sequenced(Key::master(Txid([1; 32])), crate::record::Sequenced::MarkContested).await;
    let mut pruned = Page { conflicting: true, ..seeded(2, 1) };
    master(&mut pruned).verdict = Some(Verdict::Conflicting(Reason::Command));
    store.plant(pruned).await;
    assert_ne!(survey(&store).await.digest, before.digest);
    store
        .sequenced(Key::master(Txid([2; 32])), crate::record::Sequenced::Prune { height: 900, keep_until: None })
        .await;
    let after = survey(&store).await;
    assert_eq!(after.digest, before.digest);
    assert_eq!((after.stats.stubs, after.stats.tombstones, after.stats.contested), (1, 1, 2));
    assert_eq!(digest([]).await, StateDigest::default());
}

/// Returns seven outputs, one of them data, on pages of `batch_size`, with spent, frozen and reassigned slots.
fn paged(batch_size: u32) -> Vec<Page> {
    let parent = outpoint(Txid([1; 32]), 0);
    let mut bytes = transaction(&[(parent, 900)], &[1, 2, 3, 4, 5, 6, 7]).to_vec();
    // Output 3 becomes data.
    let at = bytes.windows(2).rposition(|pair| pair == [0x51, 3]).unwrap();
    bytes[at..at + 2].copy_from_slice(&[0x00, 0x6a]);
    let start = NewTxState {
        listed: BlockListing::LongestChain(MinedIn { block_id: 3, height: 103, subtree: 1 }),
        ..NewTxState::default()
    };
    let mut pages = pages(&bytes.into(), &start, batch_size);
    let mut at = |vout: u32, change: &dyn Fn(&mut Page, u32)| {
        change(&mut pages[(vout / batch_size) as usize], vout % batch_size);
    };
    at(1, &|page, offset| {
        let slot = slot(page, offset as usize);
        *slot = Slot::Spent(slot.hash().unwrap(), holder(8, 0));
        page.spent_utxos += 1;
    });
    at(4, &|page, offset| {
        let slot = slot(page, offset as usize);
        *slot = Slot::Frozen(slot.hash().unwrap());
    });
    at(5, &|page, offset| {
        page.utxo_spendable_in.insert(offset, 1_000);
        page.reassignments.push(Reassignment { offset, ..reassignment() });
        page.record_utxos += 1;
    });
    pages
}

#[tokio::test]
async fn page_boundaries_do_not_change_the_digest() {
    let mut surveys = Vec::new();
    for batch_size in [1, 2, 3, 5, 100] {
        let store = store(batch_size);
        for page in paged(batch_size) {
            store.plant(page).await;
        }
        let mut found = survey(&store).await;
        assert_eq!(found.stats.paged, u64::from(batch_size < 7));
        found.stats.paged = 0;
        surveys.push(found);
    }
    assert!(surveys.iter().all(|survey| *survey == surveys[0]), "{surveys:?}");
    let stats = &surveys[0].stats;
    assert_eq!((stats.transactions, stats.inputs, stats.outputs, stats.slots), (1, 1, 7, 6));
    assert_eq!((stats.spent_inside, stats.unspent, stats.frozen), (1, 5, 1));
    // All outputs but the spent 2, the data output of 4, and the reassigned 6, whose slot has 5 now.
    assert_eq!(stats.unspent_satoshis, 28 - 2 - 4 - 6 + 5);
}

#[tokio::test]
async fn a_missing_page_changes_the_digest_and_does_not_stop_the_scan() {
    let whole = store(2);
    let damaged = store(2);
    for page in paged(2) {
        if page.number != 2 {
            damaged.plant(page.clone()).await;
        }
        whole.plant(page).await;
    }
    assert_ne!(survey(&whole).await.digest, survey(&damaged).await.digest);
    // Outputs 4 and 5 are missing; the outputs after them still have their own amounts.
    assert_eq!(survey(&damaged).await.stats.unspent_satoshis, 1 + 3 + 7);
}

#[tokio::test]
async fn the_format_of_a_coinbase_does_not_change_the_digest() {
    let standard = coinbase(50);
    let mut extended = Vec::new();
    crate::tx::Transaction::parse(&standard).unwrap().write_extended(&mut extended, |_, _| None).unwrap();
    assert_eq!(digest([page(&standard)]).await, digest([page(&extended.into())]).await);
}

#[tokio::test]
async fn an_unreadable_external_body_is_named() {
    let mut page = page(&coinbase(50));
    master(&mut page).body = Some(Body::External(Blob::First(None)));
    let txid = page.txid.to_string();
    let error = super::survey(&holding([page]).await, |_| ()).await.unwrap_err().to_string();
    assert!(error.contains(&txid) && error.contains("blob store"), "{error}");
}

#[tokio::test]
async fn seeded_parents_are_counted_separately() {
    let store = store(100);
    store.plant(seeded(1, 3)).await;
    let parent = Txid([1; 32]);
    let bytes = transaction(&[(outpoint(parent, 0), 1_000), (outpoint(parent, 2), 1_000)], &[700, 800, 20]);
    store.accept(&bytes).await;
    store.accept(&transaction(&[(outpoint(txid(&bytes), 1), 800)], &[800])).await;
    store.plant(page(&coinbase(5_000))).await;
    let mut scanned = 0;
    let stats = super::survey(&store, |count| scanned = count).await.unwrap().stats;
    assert_eq!(scanned, 4);
    let expected = StoreStats {
        transactions: 3,
        coinbases: 1,
        inputs: 3,
        outputs: 5,
        slots: 5,
        spent_inside: 1,
        spent_outside: 2,
        unspent: 4,
        unspent_satoshis: 700 + 20 + 800 + 5_000,
        unmined: 3,
        seeded: crate::store::stats::SeededStats {
            transactions: 1,
            outputs: 3,
            slots: 3,
            unspent: 1,
            unspent_satoshis: 1_000,
        },
        ..StoreStats::default()
    };
    assert_eq!(stats, expected);
}

proptest! {
    #[test]
    fn the_order_of_a_sum_does_not_matter(mut terms in prop::collection::vec(any::<[u8; 32]>(), 0..20), seed: u64) {
        let sum = |terms: &[[u8; 32]]| {
            let mut sum = StateDigest::default();
            terms.iter().for_each(|term| sum += StateDigest(*term));
            sum
        };
        let expected = sum(&terms);
        let places = terms.len().max(1) as u64;
        for place in 0..terms.len() {
            terms.swap(place, (seed.rotate_left(place as u32) % places) as usize);
        }
        prop_assert_eq!(sum(&terms), expected);
    }
}

#[test]
fn a_sum_carries_and_wraps() {
    let mut sum = StateDigest([0xff; 32]);
    sum += StateDigest({
        let mut two = [0; 32];
        two[0] = 2;
        two
    });
    let mut one = [0; 32];
    one[0] = 1;
    assert_eq!(sum.0, one);
    let text = sum.to_string();
    assert!(text.starts_with("01") && text == hex::encode(sum.0));
}

/// Returns the canonical form of a page as in `schemas/digest.md`.
fn form(page: &Page) -> Vec<u8> {
    let mut form = Vec::new();
    let body = master(&mut page.clone()).body.clone().unwrap();
    let side = SideBlocks([4].into());
    assert!(canonical::write_head(page, BodyHash::of(&body), &side, &mut form));
    canonical::write_slots(page, &mut form);
    form
}

/// Returns a partial transaction that has a value in every field.
fn full_sample() -> Page {
    let mut page = Page { conflicting: true, ..sample() };
    page.utxo_spendable_in.insert(0, 1_100);
    page.reassignments.push(reassignment());
    let bins = master(&mut page);
    bins.unmined_since = Some(100);
    bins.preserve_until = Some(500);
    bins.verdict = Some(Verdict::Conflicting(Reason::DoubleSpend { input: 1, winner: Txid([6; 32]) }));
    bins.mined.push(MinedIn { block_id: 4, height: 104, subtree: 0 });
    page
}

#[tokio::test]
async fn the_golden_samples_match_the_schema() {
    let schema = include_str!("../../schemas/digest.md");
    let listed: String = schema.chars().filter(|c| !c.is_whitespace()).collect();
    for (name, page) in [("coinbase", page(&coinbase(50))), ("partial", full_sample())] {
        let (form, digest) = (hex::encode(form(&page)), digest([page]).await);
        assert_eq!(digest.to_string(), blake3::hash(&hex::decode(&form).unwrap()).to_hex().as_str());
        assert!(listed.contains(&format!("```{form}```")), "{name}: {form}");
        assert!(schema.contains(&digest.to_string()), "{name}: {digest}");
    }
}
