//! The pipeline and the sequencer on a log and a store in memory.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    broker::{Message, memory::MemoryFaults},
    engine::Row,
    event::Validated,
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{
        HeldSlot, Key, Marks, Operation, Outcome, Page, Phase, Reason, Sequenced, Slot, SpendingData, Stamp, TxState,
        Verdict,
    },
};

use crate::harness::{Coin, Made, World, spend};

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

async fn holder(world: &World, made: &Made, vout: usize) -> Slot {
    world.page(made).await.unwrap().utxos.as_ref().unwrap()[vout]
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_transactions_is_created_spent_and_mined() {
    run_chain_of_transactions(World::new().await).await;
}

pub async fn run_chain_of_transactions(world: World) {
    let seed = world.seed(1, 2).await;
    let parent = spend(&[seed.coin(0)], 2, 1);
    let child = spend(&[parent.coin(0), seed.coin(1)], 1, 2);
    world.validate(&parent).await;
    world.validate(&child).await;
    world.mine(1, &[&parent, &child]).await;
    world.run_until_consumed().await;
    for made in [&seed, &parent, &child] {
        assert_eq!(state(&world, made).await, TxState::Live);
    }
    assert_eq!(holder(&world, &parent, 0).await.spender().unwrap().txid, child.txid);
    assert_eq!(holder(&world, &parent, 1).await.spender(), None);
    let page = world.page(&child).await.unwrap();
    assert_eq!(page.master.as_ref().unwrap().mined[0].block_id, 1);
    assert_eq!(page.master.as_ref().unwrap().unmined_since, None);
    assert_eq!(world.count("chain").await, 1, "nothing was contested");
}

#[tokio::test(start_paused = true)]
async fn one_of_two_rivals_wins_and_the_rebuild_agrees() {
    run_two_rivals(World::new().await).await;
}

pub async fn run_two_rivals(world: World) {
    let seed = world.seed(1, 2).await;
    let (first, second) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0), seed.coin(1)], 1, 2));
    let child = spend(&[second.coin(0)], 1, 3);
    for made in [&first, &second, &child] {
        world.validate(made).await;
    }
    world.run_until_consumed().await;
    let winner = holder(&world, &seed, 0).await.spender().unwrap().txid;
    let rebuilt = world.rebuild().await;
    for made in [&seed, &first, &second, &child] {
        let (live, again) = (world.page(made).await.unwrap(), rebuilt.master(made.txid).await.unwrap().unwrap());
        assert_eq!(live.state(), again.state(), "{}", made.txid);
        assert_eq!(live.utxos, again.utxos, "{}", made.txid);
    }
    if winner == first.txid {
        let lost = Verdict::Conflicting(Reason::DoubleSpend { input: 0, winner });
        assert_eq!(state(&world, &second).await, TxState::Conflicting(lost));
        let expected_conflict = Verdict::Conflicting(Reason::ConflictingParent { parent: second.txid });
        assert_eq!(state(&world, &child).await, TxState::Conflicting(expected_conflict));
        assert_eq!(holder(&world, &seed, 1).await.spender(), None, "a loser holds no slots");
    } else {
        assert_eq!(state(&world, &child).await, TxState::Live);
        assert_eq!(state(&world, &second).await, TxState::Live);
    }
}

#[tokio::test(start_paused = true)]
async fn a_listed_loser_wins_and_its_rival_conflicts_with_its_children() {
    run_listed_loser(World::new().await).await;
}

pub async fn run_listed_loser(world: World) {
    let seed = world.seed(1, 2).await;
    let (rival, listed) = (spend(&[seed.coin(0)], 2, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[rival.coin(0)], 1, 3);
    let grandchild = spend(&[child.coin(0), rival.coin(1), seed.coin(1)], 1, 4);
    let running = world.start();
    for made in [&rival, &child, &grandchild] {
        world.validate(made).await;
    }
    world.until_consumed().await;
    world.validate(&listed).await;
    world.until_consumed().await;
    assert!(matches!(state(&world, &listed).await, TxState::Conflicting(Verdict::Conflicting(_))));
    world.mine(1, &[&listed]).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &listed).await, TxState::Live);
    for made in [&rival, &child, &grandchild] {
        assert!(matches!(state(&world, made).await, TxState::Conflicting(Verdict::Conflicting(_))), "{}", made.txid);
    }
    assert_eq!(holder(&world, &seed, 0).await.spender().unwrap().txid, listed.txid);
    assert_eq!(holder(&world, &seed, 1).await.spender(), None);
    let rebuilt = world.rebuild().await;
    for made in [&seed, &rival, &listed, &child, &grandchild] {
        let (live, again) = (world.page(made).await.unwrap(), rebuilt.master(made.txid).await.unwrap().unwrap());
        assert_eq!((live.state(), &live.utxos), (again.state(), &again.utxos), "{}", made.txid);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_parent_is_proven_missing_and_a_late_one_gives_a_second_chance() {
    run_missing_parent(World::new().await).await;
}

pub async fn run_missing_parent(world: World) {
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let running = world.start();
    world.validate(&child).await;
    world.until_consumed().await;
    let missing = Verdict::Conflicting(Reason::MissingParent { parent: parent.txid });
    assert_eq!(state(&world, &child).await, TxState::Conflicting(missing));
    assert_eq!(world.count("dead-letters").await, 1);
    world.validate(&parent).await;
    world.validate(&child).await;
    world.until_consumed().await;
    assert_eq!(state(&world, &child).await, TxState::Live, "a later event of the child opens the verdict again");
    assert_eq!(holder(&world, &parent, 0).await.spender().unwrap().txid, child.txid);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn poison_becomes_dead_letters_and_the_rest_goes_on() {
    run_poison(World::new().await).await;
}

pub async fn run_poison(world: World) {
    let seed = world.seed(1, 1).await;
    let good = spend(&[seed.coin(0)], 1, 1);
    world.produce("txs", &good.txid.0, vec![1, 2, 3]).await;
    world
        .produce(
            "txs",
            &[9; 32],
            utxo_store::event::Validated { tx: &good.extended, height: 1, locked: false }.encode(),
        )
        .await;
    world.validate(&good).await;
    let report = world.run_until_consumed().await;
    assert_eq!((report.dead_letters, world.count("dead-letters").await), (2, 2));
    assert_eq!(state(&world, &good).await, TxState::Live);
}

/// Protects: the offset of poison is completed once the broker has acknowledged its dead letter, not when the letter
/// was sent.
#[tokio::test(start_paused = true)]
async fn poison_is_not_committed_before_its_dead_letter_is_acknowledged() {
    let world = World::new().await;
    world.seed(1, 1).await;
    world.run_until_consumed().await;
    let committed = world.committed_txs().await;
    world.produce("txs", b"no key", vec![9]).await;
    world.broker.set_faults(MemoryFaults { produce_refused: 1.0, ..MemoryFaults::default() });
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((world.count("dead-letters").await, world.committed_txs().await), (0, committed));
    world.broker.set_faults(MemoryFaults::default());
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.count("dead-letters").await, 1);
    world.check("a dead letter that had to wait").await;
}

#[tokio::test(start_paused = true)]
async fn a_block_waits_for_its_transactions_and_the_rest_goes_on() {
    run_waiting_block(World::new().await).await;
}

pub async fn run_waiting_block(world: World) {
    let seed = world.seed(1, 2).await;
    let (late, other) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1)], 1, 2));
    let running = world.start();
    world.mine(1, &[&late]).await;
    world.validate(&other).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(state(&world, &other).await, TxState::Live);
    let report = running.health.ready();
    assert!(report.reasons["chain_running"].contains(&late.txid.to_string()), "{report:?}");
    world.validate(&late).await;
    world.until_consumed().await;
    assert!(running.health.ready().ok);
    assert_eq!(world.page(&late).await.unwrap().master.as_ref().unwrap().unmined_since, None);
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_killed_at_any_moment_ends_in_the_same_state() {
    for kill_after_ms in [0, 1, 3, 7, 20, 60, 150] {
        let world = World::new().await;
        let seed = world.seed(1, 40).await;
        let mut listed = Vec::new();
        for vout in 0..40 {
            let parent = spend(&[seed.coin(vout)], 2, 1);
            let rival = spend(&[seed.coin(vout)], 1, 2);
            let child = spend(&[parent.coin(0)], 1, 3);
            for made in [&child, &parent, &rival] {
                world.validate(made).await;
            }
            listed.extend([parent, child]);
        }
        world.mine(1, &listed.iter().collect::<Vec<_>>()).await;
        let running = world.start();
        tokio::time::sleep(Duration::from_millis(kill_after_ms)).await;
        running.kill().await;
        world.run_until_consumed().await;
        let rebuilt = world.rebuild().await;
        for made in listed.iter().chain([&seed]) {
            let (live, again) = (world.page(made).await.unwrap(), rebuilt.master(made.txid).await.unwrap().unwrap());
            assert_eq!(live.state(), TxState::Live, "killed after {kill_after_ms} ms: {}", made.txid);
            assert_eq!((live.state(), &live.utxos), (again.state(), &again.utxos), "killed after {kill_after_ms} ms");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_contested_one_of_two_events_decides_the_claims() {
    for (claims, last) in [(vec![false, true], true), (vec![true, false], true), (vec![false, false], false)] {
        for (at_once, behind_a_rival) in [(true, false), (false, false), (true, true), (false, true)] {
            let world = World::new().await;
            let seed = world.seed(1, 1).await;
            let running = world.start();
            world.until_consumed().await;
            if behind_a_rival {
                world.validate(&spend(&[seed.coin(0)], 1, 9)).await;
                world.until_consumed().await;
            }
            let right = spend(&[seed.coin(0)], 1, 1);
            for (script, is_right) in (0x60..).zip(&claims) {
                let claimed = Coin { script: vec![script], ..seed.coin(0) };
                let made = if *is_right { right.clone() } else { spend(&[claimed], 1, 1) };
                assert_eq!(made.txid, right.txid, "an id does not commit to what is spent");
                world.validate(&made).await;
                if !at_once {
                    world.until_consumed().await;
                }
            }
            world.until_consumed().await;
            let live = state(&world, &right).await == TxState::Live;
            assert_eq!(live, last && !behind_a_rival, "{claims:?} at once: {at_once}");
            if live {
                let page = world.page(&right).await.unwrap();
                let body = page.master.as_ref().unwrap().body.clone();
                assert_eq!(body, Some(utxo_store::record::Body::Transaction(right.extended)), "{claims:?}");
            }
            running.stop().await;
            world.check(&format!("{claims:?} at once: {at_once}, behind a rival: {behind_a_rival}")).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_with_a_used_id_halts_the_chain_before_a_write() {
    let world = World::new().await;
    let running = world.start();
    world.mine(1, &[]).await;
    let second = world.mine_as(1, 2, &[]).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let report = running.health.ready();
    assert!(report.reasons["chain_running"].contains("has the id 1 of block"), "{report:?}");
    assert!(world.page(&second).await.is_none());
    running.stop().await;
}

/// A stub became conflicting with its parent, was filled by its event, and its contest was not acknowledged. A rival
/// took one of the two slots that its spend had taken before, and the other slot was not settled.
#[tokio::test(start_paused = true)]
async fn a_redelivered_loser_releases_its_last_slot() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let (loser, winner) = (spend(&[seed.coin(0), seed.coin(1)], 1, 1), spend(&[seed.coin(1)], 1, 2));
    world.validate(&winner).await;
    world.run_until_consumed().await;

    let event = Validated { tx: &loser.extended, height: 200, locked: false }.encode();
    let key = bytes::Bytes::copy_from_slice(&loser.txid.0);
    let message = Message { offset: 0, timestamp_ms: 1, key, payload: event.into(), headers: vec![] };
    let Ok(PreparedEvent::Validated(tx)) = prepare(&PrepareSettings::of(&world.store), &message) else { panic!() };
    let mut taken = tx.spend(&tx.groups[0], Marks::Respect);
    Arc::make_mut(&mut taken.slots).truncate(1);
    let mut page = Page::clone(&tx.page);
    page.conflicting = true;
    page.master.as_mut().unwrap().verdict = Some(Verdict::Pending);
    let reason = Reason::DoubleSpend { input: 1, winner: winner.txid };
    let mark_conflicting = Sequenced::MarkConflicting { reason, height: 100 };
    let stamp = Stamp { offset: 0, phase: Phase::Apply };
    let master = Key::master(loser.txid);
    for (key, operation) in [
        (Key::master(seed.txid), Operation::Spend(taken)),
        (master, Operation::CreateContested(page.into())),
        (master, Operation::Sequenced(stamp, mark_conflicting)),
    ] {
        let outcomes = world.store.engine.apply(&[Row { key, operation }]).await;
        assert!(matches!(outcomes[..], [Ok(Outcome::Applied(_))]), "{outcomes:?}");
    }
    assert_eq!(holder(&world, &seed, 0).await.spender().unwrap().txid, loser.txid);

    world.validate(&loser).await;
    world.run_until_consumed().await;
    assert_eq!(holder(&world, &seed, 1).await.spender().unwrap().txid, winner.txid);
    assert_eq!(holder(&world, &seed, 0).await.spender(), None, "a loser holds no slots");
}

#[tokio::test(start_paused = true)]
async fn a_child_read_before_its_coinbase_has_a_second_chance() {
    let world = World::new().await;
    let running = world.start();
    let coinbase = crate::harness::coinbase(1);
    let (child, immature) = (spend(&[coinbase.coin(0)], 1, 1), spend(&[coinbase.coin(0)], 1, 2));
    world.validate_at(&immature, 200).await;
    world.until_consumed().await;
    world.validate_at(&child, 300).await;
    world.until_consumed().await;
    for made in [&child, &immature] {
        let missing = Verdict::Conflicting(Reason::MissingParent { parent: coinbase.txid });
        assert_eq!(state(&world, made).await, TxState::Conflicting(missing));
    }
    assert_eq!(world.mine(1, &[]).await.txid, coinbase.txid);
    world.until_consumed().await;
    assert!(running.health.ready().ok, "{:?}", running.health.ready());
    assert_eq!(state(&world, &coinbase).await, TxState::Live);
    assert_eq!(state(&world, &child).await, TxState::Live);
    assert!(matches!(state(&world, &immature).await, TxState::Conflicting(_)));
    running.stop().await;
    world.check("a coinbase child before its block").await;
}

/// A node lost the spend of a mined transaction, and a rival took the slot, so that both are live. The mined
/// transaction stays.
#[tokio::test(start_paused = true)]
async fn the_mined_one_of_two_live_rivals_stays_live() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (mined, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let running = world.start();
    world.validate(&mined).await;
    world.mine(1, &[&mined]).await;
    world.until_consumed().await;

    let forgotten = HeldSlot { offset: 0, holder: SpendingData { txid: mined.txid, input: 0 } };
    let stamp = Stamp { offset: 0, phase: Phase::Evaluate };
    let operation = Operation::Sequenced(stamp, Sequenced::Settle(vec![forgotten]));
    let outcomes = world.store.engine.apply(&[Row { key: Key::master(seed.txid), operation }]).await;
    assert!(matches!(outcomes[..], [Ok(Outcome::Applied(_))]), "{outcomes:?}");
    world.validate(&rival).await;
    world.until_consumed().await;
    assert_eq!(state(&world, &rival).await, TxState::Live);

    world.validate(&mined).await;
    world.until_consumed().await;
    assert_eq!(state(&world, &mined).await, TxState::Live);
    assert!(matches!(state(&world, &rival).await, TxState::Conflicting(Verdict::Conflicting(_))));
    assert_eq!(holder(&world, &seed, 0).await.spender().unwrap().txid, mined.txid);
    running.stop().await;
}
