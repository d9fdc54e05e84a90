use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::*;
use crate::{
    blob::BlobStore,
    clock::Clock,
    engine::{self, RecordEngine, Row, conformance::RULES, fault::FaultEngine, memory::MemoryEngine},
    record::{
        HeldSlot, Key, Marks, Operation, Outcome, Page, Reason, Rejection, Reply, Sequenced, Spend, SpendSlot, TxState,
        Verdict, build::NewTxState,
    },
    store::{
        StateStore,
        restart_detector::RestartDetector,
        testing,
        verify::{Violation, verify},
    },
};

const SETTINGS: PruneSettings =
    PruneSettings { keep_tombstones: Some(144), step_size: 3, dry_run: false, is_exclusive: true };
const LOST: Reason = Reason::Command;

/// Basis at which every event below offset 50 is committed.
fn basis(height: u32) -> PruneBasis {
    PruneBasis::new(PruneTerms { height, retention: RULES.retention, committed: 50 }, 0)
}

async fn prune_as(store: &StateStore, basis: PruneBasis, settings: PruneSettings) -> (PruneTotals, PruneStep) {
    let detector = RestartDetector::new(store.engine.clone(), Duration::ZERO);
    let mut pass = PrunePass::new(settings, basis);
    loop {
        match pass.step(store, &detector).await.unwrap() {
            PruneStep::Progressed(_) => {}
            step => return (pass.pruned(), step),
        }
    }
}

async fn prune(store: &StateStore, height: u32) -> PruneTotals {
    let (pruned, step) = prune_as(store, basis(height), SETTINGS).await;
    assert_eq!(step, PruneStep::Done);
    pruned
}

async fn state(store: &StateStore, txid: Txid) -> Option<TxState> {
    store.master(txid).await.unwrap().map(|page| page.state())
}

fn pruned_at(height: u32) -> Option<TxState> {
    Some(TxState::Pruned(height))
}

async fn violations(store: &StateStore) -> Vec<String> {
    let mut found = Vec::new();
    verify(store, |_| {}, |violation: Violation| found.push(violation.to_string())).await.unwrap();
    found
}

/// A transaction that spends these outputs of 1,000 satoshis each.
fn spending(parents: &[(Txid, u32)], outputs: usize) -> Bytes {
    let inputs: Vec<_> = parents.iter().map(|(txid, vout)| (testing::outpoint(*txid, *vout), 1_000)).collect();
    testing::transaction(&inputs, &vec![1_000; outputs])
}

/// A partial transaction of height 100 and three descendants, mined at 101, 103 and 105.
async fn three(store: &StateStore) -> [Txid; 4] {
    let partial = testing::seeded(1, 1);
    let mut chain = vec![partial.txid];
    store.plant(partial).await;
    for block in [1, 3, 5] {
        let bytes = spending(&[(chain[chain.len() - 1], 0)], 1);
        store.accept(&bytes).await;
        chain.push(testing::txid(&bytes));
        store.mine(testing::txid(&bytes), block).await;
    }
    chain.try_into().unwrap()
}

#[tokio::test]
async fn a_transaction_is_pruned_retention_after_its_last_spender() {
    let store = testing::store(5);
    let [partial, first, second, third] = three(&store).await;
    let at = |txid| state(&store, txid);
    assert_eq!(prune(&store, 388).await.total(), 0);
    prune(&store, 389).await;
    assert_eq!((at(partial).await, at(first).await), (pruned_at(389), Some(TxState::Live)));
    prune(&store, 391).await;
    assert_eq!((at(first).await, at(second).await), (pruned_at(391), Some(TxState::Live)));
    assert_eq!(prune(&store, 393).await, PruneTotals { examined: 1, spent: 1, ..PruneTotals::default() });
    prune(&store, 500).await;
    assert_eq!((at(second).await, at(third).await), (pruned_at(393), Some(TxState::Live)), "an output is unspent");
    assert_eq!(violations(&store).await, [""; 0]);
}

/// A tombstone answers a repeated create and refuses a spend.
#[tokio::test]
async fn a_pruned_transaction_is_not_created_or_spent_again() {
    let store = testing::store(5);
    let [partial, first, second, third] = three(&store).await;
    prune(&store, 391).await;
    let page = store.master(second).await.unwrap().unwrap();
    let again = testing::page(&spending(&[(partial, 0)], 1));
    assert_eq!(again.txid, first);
    let created = store.apply_one(Row { key: Key::master(first), operation: Operation::Create(again.into()) }).await;
    assert_eq!(created.unwrap(), Outcome::AlreadyApplied(Reply::State(TxState::Pruned(391))));
    prune(&store, 393).await;
    assert_eq!(state(&store, second).await, pruned_at(393));
    // The parent has no further output, so that the tombstone answers instead of a marked slot.
    let rival = spend(third, page.txid);
    let outcome = store.apply_one(Row { key: Key::master(second), operation: Operation::Spend(rival) }).await.unwrap();
    assert_eq!(outcome, Outcome::Rejected(Rejection::Pruned(393)));
}

fn spend(spender: Txid, parent: Txid) -> Spend {
    let slot = SpendSlot {
        offset: 0,
        input: 0,
        utxo_hash: crate::tx::utxo_hash(&parent, 0, &testing::script(0), 1_000),
        satoshis: 1_000,
        script: testing::script(0),
    };
    Spend { spender, height: 10_000, slots: vec![slot].into(), marks: Marks::Respect, signals: false }
}

/// A parent with another unspent output stays, and its slot is marked "spender pruned".
#[tokio::test]
async fn a_slot_names_its_pruned_spender_for_good() {
    let store = testing::store(5);
    let parent = testing::seeded(1, 2);
    let txid = parent.txid;
    store.plant(parent).await;
    let child = spending(&[(txid, 0)], 1);
    store.accept(&child).await;
    let grandchild = spending(&[(testing::txid(&child), 0)], 1);
    store.accept(&grandchild).await;
    for bytes in [&child, &grandchild] {
        store.mine(testing::txid(bytes), 1).await;
    }
    prune(&store, 389).await;
    assert_eq!(state(&store, testing::txid(&child)).await, pruned_at(389));
    let page = store.master(txid).await.unwrap().unwrap();
    assert_eq!((page.state(), &page.pruned_spenders), (TxState::Live, &[0].into()));
    let again = Operation::Spend(spend(testing::txid(&child), txid));
    let outcome = store.apply_one(Row { key: Key::master(txid), operation: again }).await.unwrap();
    assert_eq!(outcome, Outcome::Rejected(Rejection::SpenderPruned(0)));
    assert_eq!(violations(&store).await, [""; 0]);
}

/// Blocks of a side chain do not count, neither for the transaction nor for its spender.
#[tokio::test]
async fn only_blocks_of_the_longest_chain_count() {
    let store = testing::store(5);
    let [partial, first, ..] = three(&store).await;
    let side = testing::block(9, false);
    let put = |block| Row { key: Key::Block(9), operation: stamped(2, Sequenced::PutBlock(block)) };
    store.apply_one(put(side)).await.unwrap();
    let mined_in = crate::record::MinedIn { block_id: 9, height: 109, subtree: 0 };
    for txid in [partial, first] {
        store.sequenced(Key::master(txid), Sequenced::SetMined { mined_in, longest_chain: false }).await;
    }
    prune(&store, 389).await;
    assert_eq!(state(&store, partial).await, pruned_at(389));
    // The same block on the longest chain.
    let store = testing::store(5);
    let [partial, first, ..] = three(&store).await;
    store.sequenced(Key::master(first), Sequenced::SetMined { mined_in, longest_chain: true }).await;
    prune(&store, 396).await;
    assert_eq!(state(&store, partial).await, Some(TxState::Live));
    prune(&store, 397).await;
    assert_eq!(state(&store, partial).await, pruned_at(397));
}

fn stamped(offset: u64, operation: Sequenced) -> Operation {
    Operation::Sequenced(Stamp { offset, phase: crate::record::Phase::Apply }, operation)
}

#[tokio::test]
async fn a_parent_of_an_unmined_spender_is_kept() {
    let store = testing::store(5);
    let parent = testing::seeded(1, 1);
    let txid = parent.txid;
    store.plant(parent).await;
    store.accept(&spending(&[(txid, 0)], 1)).await;
    assert_eq!(prune(&store, 900).await, PruneTotals { examined: 1, kept: 1, ..PruneTotals::default() });
    assert_eq!(prune(&store, 900).await.examined, 0, "examined once at each height");
    assert_eq!(prune(&store, 901).await.examined, 1);
    assert_eq!(state(&store, txid).await, Some(TxState::Live));
}

/// The sequencer may have to handle the events since the last commit again.
#[tokio::test]
async fn a_record_changed_by_an_uncommitted_event_is_not_pruned() {
    let store = testing::store(5);
    let [partial, first, ..] = three(&store).await;
    let locked =
        |txid, offset, locked| Row { key: Key::master(txid), operation: stamped(offset, Sequenced::SetLocked(locked)) };
    for (txid, offset) in [(partial, 50), (first, 50)] {
        store.apply_one(locked(txid, offset, true)).await.unwrap();
        store.apply_one(locked(txid, offset + 1, false)).await.unwrap();
    }
    let (pruned, step) = prune_as(&store, basis(391), SETTINGS).await;
    assert_eq!((pruned.total(), step), (0, PruneStep::Uncommitted));
    let later = PruneBasis::new(PruneTerms { committed: 52, ..basis(391).terms }, 0);
    assert_eq!(prune_as(&store, later, SETTINGS).await.0.spent, 2);
}

#[tokio::test]
async fn a_preserved_transaction_stays_until_its_height() {
    let store = testing::store(5);
    let [partial, ..] = three(&store).await;
    store.sequenced(Key::master(partial), Sequenced::Preserve { until: 600 }).await;
    prune(&store, 599).await;
    assert_eq!(state(&store, partial).await, Some(TxState::Live));
    prune(&store, 600).await;
    assert_eq!(state(&store, partial).await, pruned_at(600));
}

#[tokio::test]
async fn a_conflicting_transaction_settles_its_slots_and_keeps_its_body() {
    let store = testing::store(5);
    let parent = testing::seeded(1, 2);
    let txid = parent.txid;
    store.plant(parent).await;
    let bytes = spending(&[(txid, 0)], 1);
    let lost = testing::txid(&bytes);
    store.spend_inputs(&bytes).await;
    store.plant(testing::page(&bytes).contested()).await;
    store.sequenced(Key::master(lost), Sequenced::MarkConflicting { reason: LOST, height: 100 }).await;
    assert_eq!(prune(&store, 387).await.total(), 0);
    assert_eq!(prune(&store, 388).await, PruneTotals { examined: 1, conflicting: 1, ..PruneTotals::default() });
    let (parent, tombstone) = (store.master(txid).await.unwrap().unwrap(), store.master(lost).await.unwrap().unwrap());
    assert_eq!((parent.spent_utxos, parent.contested.contains(&0)), (0, true));
    assert_eq!((tombstone.state(), tombstone.verdict()), (TxState::Pruned(388), Some(Verdict::Conflicting(LOST))));
    assert!(tombstone.body().is_some());
    assert_eq!(prune(&store, 388 + 143).await.total(), 0);
    assert_eq!(prune(&store, 388 + 144).await.tombstones, 1);
    let name = store.master(lost).await.unwrap().unwrap();
    assert_eq!((name.state(), name.body()), (TxState::Pruned(388), None), "the name stays");
}

/// Marks wait for the durability lag before tombstones are written, and tombstones shrink to their names.
#[tokio::test(start_paused = true)]
async fn marks_are_durable_before_tombstones_are_written() {
    let clock = Clock::simulated(1_000);
    let second = Duration::from_secs(1);
    let memory = Arc::new(MemoryEngine::with_loss_window(RULES, clock.clone(), second));
    let engine = Arc::new(FaultEngine::with_restarts(memory, clock, 1));
    let store = StateStore { engine: engine.clone(), ..testing::store(5) };
    let [partial, first, ..] = three(&store).await;
    tokio::time::sleep(10 * second).await;
    let mut detector = RestartDetector::new(engine.clone(), 5 * second);
    detector.baseline().await.unwrap();
    let settings = PruneSettings { keep_tombstones: Some(1), ..SETTINGS };
    for restarts in [true, false] {
        let mut pass = PrunePass::new(settings, basis(391));
        let until = loop {
            match pass.step(&store, &detector).await.unwrap() {
                PruneStep::Progressed(_) => {}
                PruneStep::WaitUntil(until) => break until,
                step => panic!("{step:?}"),
            }
        };
        assert!(until > tokio::time::Instant::now() + 4 * second);
        assert_eq!(state(&store, partial).await, Some(TxState::Live));
        if restarts {
            engine.restart_nodes(second, |_| true);
        }
        tokio::time::sleep_until(until).await;
        if restarts {
            let stopped = loop {
                match pass.step(&store, &detector).await {
                    Ok(PruneStep::Progressed(_)) => {}
                    stopped => break stopped,
                }
            };
            assert!(matches!(stopped, Err(PruneError::NodeRestarted)), "{stopped:?}");
            detector.baseline().await.unwrap();
            continue;
        }
        while pass.step(&store, &detector).await.unwrap() != PruneStep::Done {}
        assert_eq!((state(&store, partial).await, state(&store, first).await), (pruned_at(391), pruned_at(391)));
    }
    assert_eq!(prune_as(&store, basis(392), settings).await.0.tombstones, 2);
    let left = store.master(partial).await.unwrap().unwrap();
    assert_eq!((left.state(), left.delete_at_height), (TxState::Pruned(391), None));
}

/// A transaction of three pages with its body in the blob store, all spent by one child.
async fn wide(store: &StateStore) -> (Bytes, Txid) {
    let parent = testing::seeded(1, 1);
    let bytes = testing::transaction(&[(testing::outpoint(parent.txid, 0), 1_000)], &[200; 5]);
    let txid = testing::txid(&bytes);
    store.plant(parent).await;
    store.spend_inputs(&bytes).await;
    for mut page in testing::pages(&bytes, &NewTxState::default(), 2) {
        if page.number == 0 {
            let placed = store.externalize_once(&page).await.unwrap();
            testing::master(&mut page).body = placed.or(page.body().cloned());
        }
        store.plant(page).await;
    }
    let spends: Vec<_> = (0..5).map(|vout| (testing::outpoint(txid, vout), 200)).collect();
    let child = testing::transaction(&spends, &[1_000]);
    store.accept(&child).await;
    for number in [1, 2] {
        let report = Operation::SetPageSpent { page: number, spent: true };
        store.must_apply(Key::master(txid), report).await;
    }
    for (mined, block) in [(txid, 1), (testing::txid(&child), 2)] {
        store.mine(mined, block).await;
    }
    (bytes, txid)
}

async fn pages(store: &StateStore, txid: Txid) -> Vec<Option<TxState>> {
    let pages = store.pages(txid, 0, 3).await.unwrap();
    pages.iter().map(|page| page.as_deref().map(Page::state)).collect()
}

/// The master of a wide transaction lacks a page that is all spent: a late repeat of an earlier report has removed it.
#[tokio::test]
async fn a_page_that_its_master_lacks_is_reported_when_its_spender_is_pruned() {
    let store = testing::store(2);
    let (_, txid) = wide(&store).await;
    let page = store.pages(txid, 1, 2).await.unwrap().pop().flatten().unwrap();
    let child = page.utxos.as_ref().unwrap()[0].spender().unwrap().txid;
    let grandchild = spending(&[(child, 0)], 1);
    store.accept(&grandchild).await;
    store.mine(testing::txid(&grandchild), 2).await;
    store.sequenced(Key::master(txid), Sequenced::SetPageSpent { page: 2, spent: false }).await;
    prune(&store, 600).await;
    assert_eq!(state(&store, child).await, pruned_at(600));
    assert_eq!(pages(&store, txid).await, [pruned_at(600); 3]);
}

/// A pass was stopped after the slot of a conflicting transaction was settled, and before the master heard of the page.
#[tokio::test]
async fn a_page_that_an_earlier_pass_has_settled_is_reported() {
    let store = testing::store(2);
    let parent = testing::transaction(&[(testing::outpoint(Txid([9; 32]), 0), 1_000)], &[200; 4]);
    let txid = testing::txid(&parent);
    for page in testing::pages(&parent, &NewTxState::default(), 2) {
        store.plant(page).await;
    }
    let spend = |vout| testing::transaction(&[(testing::outpoint(txid, vout), 200)], &[200]);
    let bytes = spend(2);
    let lost = testing::txid(&bytes);
    store.spend_inputs(&bytes).await;
    store.accept(&spend(3)).await;
    store.must_apply(Key::master(txid), Operation::SetPageSpent { page: 1, spent: true }).await;
    store.plant(testing::page(&bytes).contested()).await;
    store.sequenced(Key::master(lost), Sequenced::MarkConflicting { reason: LOST, height: 100 }).await;
    let page = store.pages(txid, 1, 2).await.unwrap().remove(0).unwrap();
    let holder = page.utxos.as_ref().unwrap()[0].spender().unwrap();
    store.sequenced(Key::Page(txid, 1), Sequenced::Settle(vec![HeldSlot { offset: 0, holder }])).await;
    prune(&store, 388).await;
    assert_eq!(state(&store, lost).await, pruned_at(388));
    let master = store.master(txid).await.unwrap().unwrap();
    assert_eq!(master.master.as_ref().unwrap().spent_pages, [].into());
}

#[tokio::test]
async fn all_pages_are_pruned_and_the_blob_with_the_tombstones() {
    let mut store = testing::store(2).with_blobs(Some(BlobStore::memory()));
    store.settings.inline_limit = 10;
    let (_, txid) = wide(&store).await;
    let blob = crate::blob::BlobName::tx(txid);
    let has_blob = async || store.blobs.as_ref().unwrap().exists(blob).await.unwrap();
    prune(&store, 389).await;
    assert_eq!(state(&store, txid).await, Some(TxState::Live));
    prune(&store, 390).await;
    assert_eq!(pages(&store, txid).await, [pruned_at(390); 3]);
    assert_eq!(violations(&store).await, [""; 0]);
    assert!(has_blob().await);
    prune(&store, 390 + 144).await;
    assert_eq!(pages(&store, txid).await, [pruned_at(390); 3]);
    assert!(!has_blob().await);
}

/// The set of all-spent pages may be too early: the counts of the pages decide.
#[tokio::test]
async fn an_unspent_page_keeps_the_whole_transaction() {
    let store = testing::store(2);
    let (_, txid) = wide(&store).await;
    let page = store.pages(txid, 1, 2).await.unwrap().remove(0).unwrap();
    let holder = page.utxos.as_ref().unwrap()[1].spender().unwrap();
    let freed = Sequenced::Settle(vec![crate::record::HeldSlot { offset: 1, holder }]);
    store.sequenced(Key::Page(txid, 1), freed).await;
    assert_eq!(prune(&store, 900).await.kept, 1);
    assert_eq!(pages(&store, txid).await, [Some(TxState::Live); 3]);
}

/// A pass dies before each of its writes in turn; the next pass ends in the same state.
#[tokio::test]
async fn a_killed_pass_is_completed_by_the_next() {
    let mut writes = 0;
    loop {
        let mut store = testing::store(2).with_blobs(Some(BlobStore::memory()));
        store.settings.inline_limit = 10;
        let (_, txid) = wide(&store).await;
        let dying = Arc::new(Dying { inner: store.engine.clone(), left: std::sync::atomic::AtomicI64::new(writes) });
        let dying = StateStore { engine: dying, ..store.clone() };
        let detector = RestartDetector::new(store.engine.clone(), Duration::ZERO);
        let mut died = false;
        for height in [390, 390 + 144] {
            let mut pass = PrunePass::new(SETTINGS, basis(height));
            while !died {
                match pass.step(&dying, &detector).await {
                    Ok(PruneStep::Done) => break,
                    Ok(_) => {}
                    Err(_) => died = true,
                }
                // A pruned transaction's slots are marked in its parents before.
                let parent = store.master(Txid([1; 32])).await.unwrap();
                let parent = parent.filter(|page| page.pruned.is_none());
                if let (Some(TxState::Pruned(_)), Some(parent)) = (state(&store, txid).await, parent) {
                    assert_eq!(parent.pruned_spenders, [0].into());
                }
            }
            prune(&store, height).await;
            assert_eq!(pages(&store, txid).await, [pruned_at(390); 3], "after {writes} writes, at {height}");
        }
        if !died {
            assert!(writes > 5);
            return;
        }
        writes += 1;
    }
}

/// An engine that accepts `left` batches and then refuses every write.
struct Dying {
    inner: Arc<dyn RecordEngine>,
    left: std::sync::atomic::AtomicI64,
}

impl engine::EngineDecorator for Dying {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        if self.left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) > 0 {
            return self.inner.apply(rows).await;
        }
        rows.iter()
            .map(|row| {
                Err(crate::engine::EngineError {
                    kind: crate::engine::ErrorKind::Fatal,
                    operation: "apply",
                    key: row.key.to_string(),
                    message: "dead".into(),
                })
            })
            .collect()
    }
}

#[tokio::test]
async fn a_dry_run_counts_and_changes_nothing() {
    let store = testing::store(5);
    let chain = three(&store).await;
    let (pruned, step) = prune_as(&store, basis(393), PruneSettings { dry_run: true, ..SETTINGS }).await;
    assert_eq!((pruned.spent, pruned.examined, step), (3, 3, PruneStep::Done));
    for txid in chain {
        assert_eq!(state(&store, txid).await, Some(TxState::Live));
    }
    assert_eq!(prune(&store, 393).await.spent, 3);
}
