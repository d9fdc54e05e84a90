use super::*;
use crate::{
    record::{Page, Reason, Sequenced, build::NewTxState},
    rng::SplitMix64,
    store::{
        read::tests::{PARENT, holder, paged_store},
        testing::*,
    },
    tx::utxo_hash,
};

async fn status_of(store: &StateStore, outpoint: Outpoint, hash: Option<UtxoHash>, height: Option<u32>) -> SpendStatus {
    let options = OutputOptions { height, output: false, ..OutputOptions::default() };
    OutputReader::of(store).read_one(OutputQuery { outpoint, hash }, options).await.unwrap().status
}

type Change = fn(&mut Page);

/// Obstacles to a spend, from the last to the first in the order of refusal: each one precedes those before it.
#[tokio::test]
async fn spend_status_follows_the_order_of_refusal() {
    let bars: [(Change, SpendStatus); 8] = [
        (|page| _ = page.utxo_spendable_in.insert(0, 300), SpendStatus::NotYetSpendable(300)),
        (
            |page| {
                let slot = &mut page.utxos.as_mut().unwrap()[0];
                *slot = Slot::Spent(slot.hash().unwrap(), holder(8, 0));
            },
            SpendStatus::Spent(holder(8, 0)),
        ),
        (|page| page.frozen = true, SpendStatus::Frozen),
        (|page| page.utxos.as_mut().unwrap()[0] = Slot::Nil, SpendStatus::NoSuchOutput),
        (|page| page.spending_height = Some(300), SpendStatus::Immature(300)),
        (|page| page.locked = true, SpendStatus::Locked),
        (
            |page| {
                page.conflicting = true;
                master(page).verdict = Some(Verdict::Conflicting(Reason::Command));
            },
            SpendStatus::Conflicting(Verdict::Conflicting(Reason::Command)),
        ),
        (|page| page.creating_at = Some(5), SpendStatus::Creating),
    ];
    let mut page = seeded(1, 1);
    for (bar, expected) in bars {
        bar(&mut page);
        let store = store(100);
        store.plant(page.clone()).await;
        let status = status_of(&store, outpoint(PARENT, 0), None, Some(299)).await;
        assert_eq!(status, expected);
    }
}

#[tokio::test]
async fn spend_status_of_absent_hashed_delayed_and_pruned_outputs() {
    let store = store(100);
    let at = |vout| outpoint(PARENT, vout);
    assert_eq!(status_of(&store, at(0), None, None).await, SpendStatus::NotFound);
    let mut page = seeded(1, 2);
    page.utxo_spendable_in.insert(1, 300);
    store.plant(page).await;
    let hash = utxo_hash(&PARENT, 0, &script(0), 1_000);
    let cases = [
        (at(0), Some(hash), None, SpendStatus::Unspent),
        (at(0), Some(UtxoHash([7; 32])), None, SpendStatus::HashMismatch(hash)),
        (at(1), None, Some(300), SpendStatus::Unspent),
        (at(1), None, Some(299), SpendStatus::NotYetSpendable(300)),
        (at(1), None, None, SpendStatus::Unspent),
        (at(2), None, None, SpendStatus::NoSuchOutput),
        (at(100), None, None, SpendStatus::NoSuchOutput),
    ];
    for (outpoint, hash, height, expected) in cases {
        assert_eq!(status_of(&store, outpoint, hash, height).await, expected, "{outpoint}");
    }
    let (reason, other) = (Reason::Command, seeded(2, 1));
    let txid = other.txid;
    store.plant(other).await;
    store.sequenced(Key::master(txid), Sequenced::MarkConflicting { reason, height: 1 }).await;
    store.sequenced(Key::master(txid), Sequenced::Prune { height: 900, keep_until: None }).await;
    assert_eq!(status_of(&store, outpoint(txid, 0), None, None).await, SpendStatus::Pruned(900));
}

#[tokio::test]
async fn spend_status_is_read_from_the_page_of_the_output() {
    let (store, bytes) = paged_store().await;
    let expected = [
        SpendStatus::Unspent,
        SpendStatus::Unspent,
        SpendStatus::Unspent,
        SpendStatus::Spent(holder(8, 6)),
        SpendStatus::Frozen,
        SpendStatus::Unspent,
        SpendStatus::Unspent,
        SpendStatus::NoSuchOutput,
        SpendStatus::NoSuchOutput,
    ];
    for (vout, expected) in (0..).zip(expected) {
        assert_eq!(status_of(&store, outpoint(txid(&bytes), vout), None, None).await, expected, "{vout}");
    }
}

#[tokio::test]
async fn a_slot_with_a_history_answers_as_any_other_slot() {
    let store = store(100);
    let mut page = seeded(1, 2);
    page.contested.extend([0, 1]);
    let slot = &mut page.utxos.as_mut().unwrap()[1];
    *slot = Slot::Spent(slot.hash().unwrap(), holder(8, 0));
    page.spent_utxos = 1;
    store.plant(page).await;
    assert_eq!(status_of(&store, outpoint(PARENT, 0), None, None).await, SpendStatus::Unspent);
    assert_eq!(status_of(&store, outpoint(PARENT, 1), None, None).await, SpendStatus::Spent(holder(8, 0)));
}

#[tokio::test]
async fn a_batch_has_one_state_for_each_query() {
    let (store, bytes) = paged_store().await;
    let id = txid(&bytes);
    let broken = transaction(&[(outpoint(PARENT, 0), 900)], &[1, 2, 3]);
    store.plant(pages(&broken, &NewTxState::default(), 2).remove(0)).await;
    let outpoints =
        [outpoint(id, 6), outpoint(txid(&broken), 2), outpoint(txid(&broken), 4), outpoint(PARENT, 0), outpoint(id, 5)];
    let queries = outpoints.map(|outpoint| OutputQuery { outpoint, hash: None });
    let options = OutputOptions { height: None, output: true, ..OutputOptions::default() };
    let states = OutputReader::of(&store).read(&queries, options).await;
    let output = |index: usize| states[index].as_ref().unwrap().output.as_ref().map(|output| output.satoshis);
    assert_eq!((output(0), output(4)), (Some(16), Some(99)), "output 5 was reassigned");
    assert!(matches!(states[1], Err(ReadError::MissingPage { page: 1, .. })), "{:?}", states[1]);
    assert_eq!(states[2].as_ref().unwrap().status, SpendStatus::NoSuchOutput);
    assert_eq!(states[3].as_ref().unwrap().status, SpendStatus::NotFound);
}

#[test]
fn a_read_of_outputs_has_each_master_and_each_run_of_slots_once() {
    let at = |txid, vout| OutputQuery { outpoint: Outpoint { txid: Txid([txid; 32]), vout }, hash: None };
    let locate = |outpoint: Outpoint| (outpoint.vout / 100, outpoint.vout % 100);
    let meta = |txid| (Key::master(Txid([txid; 32])), Selection::META);
    let run = |txid, page, first, count, output| {
        let slots = Some(SlotRange { first, count });
        (Key::Page(Txid([txid; 32]), page), Selection { slots, output, meta: false })
    };
    // Out of order, with a repeated outpoint, a gap that is read along, and a gap that is not.
    let queries = [at(2, 150), at(1, 7), at(1, 5), at(1, 7), at(2, 151), at(1, 99), at(1, 24), at(2, 250)];
    let plan = ReadPlan::of(&queries, OutputOptions::default(), locate);
    let rows =
        [run(1, 0, 5, 20, false), run(1, 0, 99, 1, false), meta(2), run(2, 1, 50, 2, false), run(2, 2, 50, 1, false)];
    assert_eq!(plan.rows, rows);
    let (master, alone) = (|page| RowIndexes { master: Some(2), page }, |page| RowIndexes { master: None, page });
    assert_eq!(plan.places, [master(3), alone(0), alone(0), alone(0), master(3), alone(1), alone(0), master(4)]);
    let with_outputs = ReadPlan::of(&queries[1..3], OutputOptions { output: true, ..OutputOptions::default() }, locate);
    assert_eq!(with_outputs.rows, [run(1, 0, 5, 1, true), run(1, 0, 7, 1, true)]);
}

/// Each answer of a batch is that of the output alone, whatever the batch reads together.
#[tokio::test]
async fn a_batch_answers_as_single_reads_do() {
    let (store, bytes) = paged_store().await;
    let mut random = SplitMix64::new(31);
    for options in
        [OutputOptions::default(), OutputOptions { height: Some(200), output: true, ..OutputOptions::default() }]
    {
        let (known, unknown) = (txid(&bytes), Txid([77; 32]));
        let queries: Vec<OutputQuery> = (0..60)
            .map(|_| {
                let txid = if random.below(8) == 0 { unknown } else { known };
                OutputQuery { outpoint: Outpoint { txid, vout: random.below(12) as u32 }, hash: None }
            })
            .collect();
        let reader = OutputReader::of(&store);
        let batch = reader.read(&queries, options).await;
        for (query, state) in queries.into_iter().zip(batch) {
            assert_eq!(state.unwrap(), reader.read_one(query, options).await.unwrap(), "{query:?}");
        }
    }
}
