use bytes::Bytes;

use super::*;
use crate::record::{
    Blob, Body, Key, MinedIn, Reason, Sequenced, SpendingData,
    build::{BlockListing, NewTxState},
};
use crate::store::testing::*;
use crate::tx::UtxoHash;

const PARENT: Txid = Txid([1; 32]);

async fn violations(store: &StateStore) -> Vec<Violation> {
    let mut found = Vec::new();
    verify(store, |_| (), |violation| found.push(violation)).await.unwrap();
    found.sort();
    found
}

fn spend_of_parent(vouts: &[u32], output: u64) -> Bytes {
    let inputs: Vec<_> = vouts.iter().map(|vout| (outpoint(PARENT, *vout), 1_000)).collect();
    transaction(&inputs, &[output])
}

/// A store with a partial transaction of five outputs.
async fn with_parent() -> StateStore {
    let store = store(100);
    store.plant(seeded(1, 5)).await;
    store
}

fn conflicting(bytes: &Bytes, verdict: Verdict) -> Page {
    pages(bytes, &NewTxState { verdict: Some(verdict), ..NewTxState::default() }, 100).remove(0)
}

const LOST: Verdict = Verdict::Conflicting(Reason::Command);

/// A store with every kind of record of a healthy store.
#[tokio::test]
async fn a_healthy_store_has_no_violations() {
    let store = with_parent().await;
    store.sequenced(Key::Block(3), Sequenced::PutBlock(block(3, true))).await;
    store.plant(page(&coinbase(5_000))).await;
    let first = spend_of_parent(&[0, 3], 500);
    store.accept(&first).await;
    store.mine(txid(&first), 3).await;
    let second = transaction(&[(outpoint(txid(&first), 0), 500)], &[400, 50]);
    store.accept(&second).await;
    // A conflicting transaction whose slot another one holds; a contested one that holds a slot; a stub.
    store.plant(conflicting(&transaction(&[(outpoint(txid(&first), 0), 500)], &[1]), LOST)).await;
    let waiting = spend_of_parent(&[1], 7);
    store.spend_inputs(&waiting).await;
    store.plant(conflicting(&waiting, Verdict::Pending)).await;
    store.sequenced(Key::master(Txid([8; 32])), Sequenced::MarkContested).await;
    store.sequenced(Key::master(PARENT), Sequenced::Freeze { offset: 4 }).await;
    // A spender that was pruned and has no record.
    let mut pruned = seeded(2, 1);
    take(&mut pruned, 0, 9, 0);
    pruned.pruned_spenders.insert(0);
    store.plant(pruned).await;
    let mut progress = 0;
    assert_eq!(verify(&store, |seen| progress = seen, |violation| panic!("{violation}")).await.unwrap(), 8);
    assert_eq!(progress, 8);
}

#[tokio::test]
async fn a_healthy_store_of_many_pages_has_no_violations() {
    for (batch_size, all_spent) in [(1, Some(6)), (2, Some(3)), (5, None)] {
        let store = store(batch_size);
        for page in paged(batch_size, |_| ()) {
            store.plant(page).await;
        }
        let parent = paged(batch_size, |_| ()).remove(0).txid;
        store.accept(&transaction(&[(outpoint(parent, 6), 7), (outpoint(parent, 0), 1)], &[8])).await;
        if let Some(page) = all_spent {
            store.must_apply(Key::master(parent), crate::record::Operation::SetPageSpent { page, spent: true }).await;
        }
        assert_eq!(violations(&store).await, [], "{batch_size}");
    }
}

/// The pages of a mined transaction of seven outputs, after `change`.
fn paged(batch_size: u32, change: impl FnOnce(&mut Vec<Page>)) -> Vec<Page> {
    let bytes = transaction(&[(outpoint(Txid([7; 32]), 0), 90)], &[1, 2, 3, 4, 5, 6, 7]);
    let mined_in = MinedIn { block_id: 0, height: 100, subtree: 0 };
    let start = NewTxState { listed: BlockListing::LongestChain(mined_in), ..NewTxState::default() };
    let mut pages = pages(&bytes, &start, batch_size);
    change(&mut pages);
    pages
}

fn take(page: &mut Page, at: usize, id: u8, input: u32) {
    let slot = &mut page.utxos.as_mut().unwrap()[at];
    *slot = Slot::Spent(slot.hash().unwrap(), SpendingData { txid: Txid([id; 32]), input });
    page.spent_utxos += 1;
}

#[tokio::test]
async fn a_slot_of_a_live_input_that_is_free_or_taken_is_a_violation() {
    let store = with_parent().await;
    let rival = spend_of_parent(&[1], 5);
    store.accept(&rival).await;
    let live = page(&spend_of_parent(&[0, 1], 6));
    let txid = live.txid;
    store.plant(live).await;
    let holder = SpendingData { txid: id(&rival), input: 0 };
    let expected = [
        Violation::InputNotTaken { txid, input: 0, outpoint: outpoint(PARENT, 0), holder: None },
        Violation::InputNotTaken { txid, input: 1, outpoint: outpoint(PARENT, 1), holder: Some(holder) },
    ];
    assert_eq!(violations(&store).await, expected);
}

fn id(bytes: &Bytes) -> Txid {
    crate::store::testing::txid(bytes)
}

#[tokio::test]
async fn a_slot_that_names_another_input_of_the_spender_is_a_violation() {
    let store = store(100);
    let live = page(&spend_of_parent(&[0], 6));
    let mut parent = seeded(1, 1);
    let slot = &mut parent.utxos.as_mut().unwrap()[0];
    *slot = Slot::Spent(slot.hash().unwrap(), SpendingData { txid: live.txid, input: 1 });
    parent.spent_utxos = 1;
    let (txid, outpoint) = (live.txid, outpoint(PARENT, 0));
    store.plant(parent).await;
    store.plant(live).await;
    let spender = SpendingData { txid, input: 1 };
    let expected = [
        Violation::InputNotTaken { txid, input: 0, outpoint, holder: Some(spender) },
        Violation::SpenderNeverNamedIt { outpoint, spender },
    ];
    assert_eq!(violations(&store).await, expected);
}

#[tokio::test]
async fn an_input_that_names_no_slot_is_a_violation() {
    let store = with_parent().await;
    let live = page(&spend_of_parent(&[5], 6));
    let txid = live.txid;
    store.plant(live).await;
    assert_eq!(violations(&store).await, [Violation::NoSuchSlot { txid, input: 0, outpoint: outpoint(PARENT, 5) }]);
}

#[tokio::test]
async fn a_live_child_of_a_conflicting_parent_is_a_violation() {
    let store = store(100);
    let parent = conflicting(&coinbase(9), LOST);
    let (parent_id, child) = (parent.txid, page(&transaction(&[(outpoint(parent.txid, 0), 9)], &[9])));
    let txid = child.txid;
    store.plant(parent).await;
    store.plant(child).await;
    assert_eq!(violations(&store).await, [Violation::ConflictingParent { txid, parent: parent_id }]);
}

#[tokio::test]
async fn absent_pruned_and_stub_parents_are_no_violation() {
    let store = store(100);
    store.plant(page(&spend_of_parent(&[0], 6))).await;
    assert_eq!(violations(&store).await, []);
    store.sequenced(Key::master(PARENT), Sequenced::MarkContested).await;
    assert_eq!(violations(&store).await, []);
}

#[tokio::test]
async fn a_spender_without_a_record_is_a_violation() {
    let store = with_parent().await;
    let bytes = spend_of_parent(&[2], 6);
    store.spend_inputs(&bytes).await;
    let spender = SpendingData { txid: id(&bytes), input: 0 };
    assert_eq!(violations(&store).await, [Violation::SpenderMissing { outpoint: outpoint(PARENT, 2), spender }]);
    store.plant(page(&bytes)).await;
    assert_eq!(violations(&store).await, []);
}

#[tokio::test]
async fn a_spender_that_does_not_spend_the_slot_is_a_violation() {
    let store = store(100);
    let other = page(&coinbase(9));
    let mut parent = seeded(1, 2);
    for (at, txid) in [(0, other.txid), (1, Txid([2; 32]))] {
        let slot = &mut parent.utxos.as_mut().unwrap()[at];
        *slot = Slot::Spent(slot.hash().unwrap(), SpendingData { txid, input: 0 });
    }
    parent.spent_utxos = 2;
    let spender = SpendingData { txid: other.txid, input: 0 };
    for page in [parent, other, seeded(2, 1)] {
        store.plant(page).await;
    }
    let expected = [
        Violation::SpenderNeverNamedIt { outpoint: outpoint(PARENT, 0), spender },
        Violation::SpenderNeverNamedIt {
            outpoint: outpoint(PARENT, 1),
            spender: SpendingData { txid: Txid([2; 32]), input: 0 },
        },
    ];
    assert_eq!(violations(&store).await, expected);
}

#[tokio::test]
async fn a_conflicting_transaction_that_holds_slots_is_a_violation() {
    let store = with_parent().await;
    let whole = spend_of_parent(&[0], 6);
    let stub = spend_of_parent(&[1], 7);
    store.spend_inputs(&whole).await;
    store.spend_inputs(&stub).await;
    store.plant(conflicting(&whole, LOST)).await;
    let reason = Reason::Command;
    store.sequenced(Key::master(id(&stub)), Sequenced::MarkConflicting { reason, height: 1 }).await;
    let holds = |vout, bytes: &Bytes| Violation::ConflictingHoldsSlot {
        outpoint: outpoint(PARENT, vout),
        spender: SpendingData { txid: id(bytes), input: 0 },
    };
    assert_eq!(violations(&store).await, [holds(0, &whole), holds(1, &stub)]);
    // A pruned transaction must have settled its slots before.
    store.sequenced(Key::master(id(&whole)), Sequenced::Prune { height: 900, keep_until: None }).await;
    assert_eq!(violations(&store).await, [holds(0, &whole), holds(1, &stub)]);
}

type Damage = fn(&mut Vec<Page>);

#[tokio::test]
async fn each_damage_of_a_page_is_its_own_violation() {
    let txid = paged(2, |_| ()).remove(0).txid;
    let count = |page, bin, stored, counted| Violation::Count { txid, page, bin, stored, counted };
    let slot_hash = |vout| Violation::SlotHash { outpoint: outpoint(txid, vout) };
    let missing_spender = |vout| Violation::SpenderMissing {
        outpoint: outpoint(txid, vout),
        spender: SpendingData { txid: Txid([9; 32]), input: 0 },
    };
    let cases: [(Damage, Vec<Violation>); 15] = [
        (
            |pages| pages.iter_mut().take(2).for_each(|page| page.creating_at = Some(77)),
            [0, 1].map(|page| Violation::Creating { txid, page, since: 77 }).to_vec(),
        ),
        (|pages| pages[2].spent_utxos = 1, vec![count(2, "spentUtxos", 1, 0)]),
        (|pages| pages[0].record_utxos = 3, vec![count(0, "recordUtxos", 3, 2)]),
        (|pages| master(&mut pages[0]).total_utxos = 8, vec![count(0, "totalUtxos", 8, 7)]),
        (|pages| pages[1].locked = true, vec![Violation::Flag { txid, page: 1, bin: "locked" }]),
        (|pages| pages[1].frozen = true, vec![Violation::Flag { txid, page: 1, bin: "frozen" }]),
        (|pages| pages[1].is_coinbase = true, vec![Violation::Flag { txid, page: 1, bin: "isCoinbase" }]),
        (|pages| pages[1].conflicting = true, vec![Violation::Flag { txid, page: 1, bin: "conflicting" }]),
        (
            |pages| _ = master(&mut pages[0]).spent_pages.insert(2),
            vec![Violation::SpentPages { txid, page: 2, listed: true }],
        ),
        (
            |pages| _ = master(&mut pages[0]).spent_pages.insert(4),
            vec![Violation::SpentPages { txid, page: 4, listed: true }],
        ),
        (
            |pages| take(&mut pages[3], 0, 9, 0),
            vec![missing_spender(6), Violation::SpentPages { txid, page: 3, listed: false }],
        ),
        (|pages| drop(pages.remove(2)), vec![Violation::MissingPage { txid, page: 2 }]),
        (|pages| drop(pages.remove(0)), [1, 2, 3].map(|page| Violation::OrphanedPage { txid, page }).to_vec()),
        (
            |pages| {
                let bins = master(&mut pages[0]);
                (bins.total_extra_recs, bins.total_utxos) = (2, 6);
            },
            vec![Violation::OrphanedPage { txid, page: 3 }],
        ),
        (
            |pages| {
                pages[1].utxos.as_mut().unwrap()[1] = Slot::Unspent(UtxoHash([1; 32]));
                pages[3].utxos.as_mut().unwrap()[0] = Slot::Frozen(UtxoHash([1; 32]));
            },
            vec![slot_hash(3), slot_hash(6)],
        ),
    ];
    for (number, (damage, mut expected)) in cases.into_iter().enumerate() {
        let store = store(2);
        for page in paged(2, damage) {
            store.plant(page).await;
        }
        expected.sort();
        assert_eq!(violations(&store).await, expected, "case {number}");
    }
}

#[tokio::test]
async fn a_missing_damaged_foreign_or_external_body_is_a_violation() {
    let other = coinbase(6);
    let bodies = [
        (None, "no body"),
        (Some(Body::Transaction(coinbase(5).slice(..20))), "damaged"),
        (Some(Body::Transaction(other)), "hashes to"),
        (Some(Body::External(Blob::First(None))), "blob store"),
    ];
    for (body, word) in bodies {
        let mut page = page(&coinbase(5));
        master(&mut page).body = body;
        let txid = page.txid;
        let store = store(100);
        store.plant(page).await;
        let found = violations(&store).await;
        let named =
            matches!(&found[0], Violation::Body { txid: named, problem } if *named == txid && problem.contains(word));
        assert!(named, "{word}: {found:?}");
    }
}

/// More records and checks than one batch holds: the last batch counts like the first.
#[tokio::test]
async fn a_large_store_is_checked_in_batches() {
    let store = store(100);
    let mut previous = coinbase(1_000_000);
    store.plant(page(&previous)).await;
    for n in 0..1_200_u64 {
        let next = transaction(&[(outpoint(id(&previous), 0), 1_000_000 - n)], &[999_999 - n]);
        if n % 400 == 0 {
            store.plant(page(&next)).await;
        } else {
            store.accept(&next).await;
        }
        previous = next;
    }
    let mut progress = Vec::new();
    let mut found = 0;
    let seen = verify(
        &store,
        |seen| progress.push(seen),
        |violation| {
            assert!(matches!(violation, Violation::InputNotTaken { holder: None, .. }), "{violation}");
            found += 1;
        },
    );
    assert_eq!(seen.await.unwrap(), 1_201);
    assert_eq!((found, progress.len() > 1, progress.last()), (3, true, Some(&1_201)));
}

#[test]
fn violations_are_displayed_and_serialized() {
    let violation = Violation::InputNotTaken {
        txid: Txid([2; 32]),
        input: 4,
        outpoint: outpoint(PARENT, 3),
        holder: Some(SpendingData { txid: Txid([3; 32]), input: 0 }),
    };
    let text = violation.to_string();
    assert!(text.contains("input 4 of 0202") && text.contains("0101:3") && text.contains("input 0 of 0303"), "{text}");
    let json = serde_json::to_value(&violation).unwrap();
    assert_eq!(json["violation"], "input_not_taken");
    assert_eq!(json["outpoint"], outpoint(PARENT, 3).to_string());
}

/// A lost second chance shows only in the state of the store.
#[tokio::test]
async fn a_conflicting_transaction_that_nothing_bars_is_a_violation() {
    let parent_fell = Verdict::Conflicting(Reason::ConflictingParent { parent: PARENT });
    let lost = spend_of_parent(&[0, 1], 7);
    let is_lost = |found: &[Violation]| {
        let [Violation::Unbarred { txid: of, reason }] = found else { return false };
        *of == txid(&lost) && reason.contains("parent")
    };
    for verdict in [parent_fell, Verdict::Conflicting(Reason::DoubleSpend { input: 1, winner: Txid([9; 32]) })] {
        let store = with_parent().await;
        store.plant(conflicting(&lost, verdict)).await;
        let found = violations(&store).await;
        assert!(matches!(&found[..], [Violation::Unbarred { txid: of, .. }] if *of == txid(&lost)), "{found:?}");
    }
    // Each of these bars the transaction: a live rival, a lock, a freeze, an undecided rival, a verdict by command.
    let rival = spend_of_parent(&[1], 9);
    let store = with_parent().await;
    store.plant(conflicting(&lost, parent_fell)).await;
    assert!(is_lost(&violations(&store).await));
    store.accept(&rival).await;
    assert_eq!(violations(&store).await, []);
    for bar in [Sequenced::SetLocked(true), Sequenced::Freeze { offset: 1 }] {
        let store = with_parent().await;
        store.plant(conflicting(&lost, parent_fell)).await;
        store.sequenced(Key::master(PARENT), bar).await;
        assert_eq!(violations(&store).await, []);
    }
    let store = with_parent().await;
    store.plant(conflicting(&lost, parent_fell)).await;
    store.spend_inputs(&rival).await;
    store.plant(conflicting(&rival, Verdict::Pending)).await;
    assert_eq!(violations(&store).await, []);
    let store = with_parent().await;
    store.plant(conflicting(&lost, Verdict::Conflicting(Reason::Command))).await;
    assert_eq!(violations(&store).await, []);
    let store = with_parent().await;
    let due = Page { delete_at_height: Some(0), ..conflicting(&lost, parent_fell) };
    store.plant(due).await;
    assert_eq!(violations(&store).await, [], "the transaction is due to be pruned");
}
