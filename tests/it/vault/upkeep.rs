//! Rows over time: what is kept, what is removed, and amounts that no live output has.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use utxo_store::{
    event::{Event, OutcomeEvent, OutcomeKind, OutcomeSource},
    record::{SpendingData, Verdict},
    store::spend_status::SpendStatus,
    tx::{Outpoint, Txid},
    vault::{Asker, AskerSettings, LockCondition},
};

use super::{fake_store::FakeWorld, on_each_database, outpoint, owner};

/// Publishes a verdict on a transaction, and lets the vault ask.
async fn judge(world: &FakeWorld, at: Outpoint) {
    let (source, kind) = (OutcomeSource::Chain { offset: 0 }, OutcomeKind::Accepted);
    let outcome = OutcomeEvent { txid: at.txid, source, kind };
    world.publish("outcomes", &at.txid.0, Event::Outcome(outcome).encode()).await;
    world.settle().await;
}

/// Lets an asker with this retention look at the rows.
async fn look(world: &FakeWorld, retention: Duration) {
    let asker = Asker::new(world.vault.clone(), AskerSettings { retention, ..AskerSettings::default() });
    let shutdown = CancellationToken::new();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        shutdown.cancel();
    };
    let (ran, ()) = tokio::join!(asker.run(&shutdown), stop);
    ran.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_old_row_is_removed_only_if_its_output_cannot_come_back() {
    on_each_database(async |url: &str| {
        let world = FakeWorld::new(url, &["alice"]).await;
        let (contested, spent, deep, never) = (outpoint(1), outpoint(2), outpoint(3), outpoint(4));
        for (at, satoshis) in [(contested, 1_000), (spent, 2_000), (deep, 3_000)] {
            world.add(at, "alice", satoshis, Some(10)).await;
        }
        world.publish_output(never, "alice", 4_000).await;
        world.settle().await;
        world.store.set_tip(5_000, 2);
        world.store.change(contested, |state| state.status = SpendStatus::Conflicting(Verdict::Pending));
        for (at, spender, height) in [(spent, 71, None), (deep, 72, Some(11))] {
            let spender = Outpoint { txid: Txid([spender; 32]), vout: 0 };
            world.store.put(spender, "other", 1, height);
            let data = SpendingData { txid: spender.txid, input: 0 };
            world.store.change(at, |state| (state.status, state.spender) = (SpendStatus::Spent(data), Some(data)));
        }
        for at in [contested, spent, deep] {
            judge(&world, at).await;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        look(&world, Duration::from_millis(1)).await;
        // The contest ends, the unmined spender falls, and so does the deep one, which cannot happen.
        for at in [contested, spent, deep] {
            world.store.change(at, |state| (state.status, state.spender) = (SpendStatus::Unspent, None));
            judge(&world, at).await;
        }
        let listed = world.vault.outputs(&owner("alice"), &LockCondition::Any, None, 10).await.unwrap();
        let numbers: Vec<u8> = listed.iter().map(|listed| listed.output.outpoint.txid.0[0]).collect();
        assert_eq!(numbers, [1, 2], "{url}: 3 was spent by a deep block, and 4 was never live");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn amounts_that_no_output_can_have_are_left_out_and_sums_are_never_out_of_range() {
    on_each_database(async |url: &str| {
        let world = FakeWorld::new(url, &["alice"]).await;
        for number in 1..=3 {
            world.publish_output(outpoint(number), "alice", u64::MAX).await;
        }
        let all = 2_100_000_000_000_000;
        for vout in 0..5_000 {
            if vout % 500 == 0 {
                world.settle().await;
            }
            world.publish_output(Outpoint { txid: Txid([9; 32]), vout }, "alice", all).await;
        }
        world.settle().await;
        let pending = world.vault.balance(&owner("alice")).await.unwrap().balance.pending;
        assert_eq!((pending.outputs, pending.satoshis), (5_000, 5_000 * all), "{url}");
    })
    .await;
}
