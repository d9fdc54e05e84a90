//! The topic of outcomes: refused events, and transactions that became live, mined and unmined. `World::check` compares
//! the whole topic with the history (`model/outcomes.rs`); these tests name contents and crashes.

use std::{collections::BTreeSet, time::Duration};

use utxo_store::{
    broker::{Broker, OutgoingMessage, partitioner::partition_of},
    event::{Event, OutcomeBatch, OutcomeChange, OutcomeEvent, OutcomeKind, OutcomeSource, Validated},
    record::TxState,
    tx::Txid,
};

use crate::{
    harness::{Made, PARTITIONS, World, coinbase, spend, spend_to},
    made_blocks::{MadeBlock, reorg},
    model::Logs,
};

/// Everything that the topic of outcomes has.
#[derive(Default)]
struct Outcomes {
    single: Vec<OutcomeEvent>,
    changes: BTreeSet<(OutcomeChange, Txid)>,
    messages: usize,
}

impl Outcomes {
    async fn read(world: &World) -> Self {
        let settings = &world.settings;
        let logs = Logs::read(&world.broker, &settings.pipeline.topic, &settings.topics).await.unwrap();
        let mut outcomes = Outcomes { messages: logs.outcomes.len(), ..Outcomes::default() };
        for logged in &logs.outcomes {
            match Event::decode(&logged.message.payload).unwrap() {
                Event::Outcome(outcome) => outcomes.single.push(outcome),
                Event::OutcomeBatch(OutcomeBatch { change, txids }) => {
                    outcomes.changes.extend(txids.iter().map(|txid| (change, txid)));
                }
                other => panic!("{other:?}"),
            }
        }
        outcomes
    }

    /// Returns the transactions with this change.
    fn of(&self, wanted: impl Fn(&OutcomeChange) -> bool) -> BTreeSet<Txid> {
        self.changes.iter().filter(|(change, _)| wanted(change)).map(|(_, txid)| *txid).collect()
    }
}

fn txids<'a>(of: impl IntoIterator<Item = &'a Made>) -> BTreeSet<Txid> {
    of.into_iter().map(|made| made.txid).collect()
}

fn validated(made: &Made) -> Vec<u8> {
    Validated { tx: &made.extended, height: 200, locked: false }.encode()
}

#[tokio::test(start_paused = true)]
async fn each_refused_event_of_a_known_transaction_has_an_outcome() {
    let world = World::new().await;
    let seed = world.seed(1, 3).await;
    // By its body, whatever the key says; by the key, where the body names no transaction; unknown.
    let wrong_key = spend(&[seed.coin(0)], 1, 1);
    world.produce("txs", &[7; 32], validated(&wrong_key)).await;
    world.produce("txs", &[8; 32], b"no event".to_vec()).await;
    world.produce("txs", b"no txid", b"no event".to_vec()).await;
    let misplaced = spend(&[seed.coin(0)], 1, 2);
    let own = partition_of(&misplaced.txid.0, PARTITIONS).unwrap();
    let elsewhere = OutgoingMessage {
        topic: "txs".into(),
        partition: Some((own + 1) % PARTITIONS),
        key: misplaced.txid.0.to_vec().into(),
        payload: validated(&misplaced).into(),
        ..OutgoingMessage::default()
    };
    world.broker.producer().await.unwrap().produce(elsewhere).await.unwrap();
    let overspend = spend_to(&[seed.coin(1)], vec![(seed.outputs[1].0 + 1, vec![0x51])], 3);
    world.validate(&overspend).await;
    let mut other_seed = seed.clone();
    other_seed.outputs[2].0 += 1;
    world.produce_partial(&other_seed).await;
    world.run_until_consumed().await;

    let outcomes = Outcomes::read(&world).await;
    let mut refused = BTreeSet::new();
    for OutcomeEvent { txid, source, kind } in outcomes.single {
        let (OutcomeSource::Validated { partition, offset }, OutcomeKind::Refused { code, message }) = (source, kind)
        else {
            panic!("no event was contested")
        };
        assert!(offset < world.end("txs", partition).await && !message.is_empty(), "{txid}");
        refused.insert((txid, code));
    }
    let expected = [
        (wrong_key.txid, "DECODE"),
        (Txid([8; 32]), "DECODE"),
        (misplaced.txid, "DECODE"),
        (overspend.txid, "INVALID"),
        (seed.txid, "SEED_MISMATCH"),
    ];
    assert_eq!(refused, expected.map(|(txid, code)| (txid, code.to_owned())).into());
    assert_eq!(world.count("dead-letters").await, 6);
    assert_eq!(outcomes.changes, [(OutcomeChange::Live, seed.txid)].into());
    world.check("refused events").await;
}

#[tokio::test(start_paused = true)]
async fn live_mined_and_unmined_transactions_are_published() {
    let world = World::new().await;
    let seed = world.seed(1, 40).await;
    let made: Vec<Made> = (0..40).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    for made in &made {
        world.validate(made).await;
    }
    let (first, second) = made.split_at(20);
    let listed = |made: &[Made]| made.iter().flat_map(|made| made.txid.0).collect::<Vec<u8>>();
    let block = |id, height, listed: Vec<u8>| MadeBlock { listed, ..MadeBlock::new(id, height, &coinbase(id), &[]) };
    let left = block(1, 101, listed(first));
    let aside = MadeBlock { previous: left.previous, ..block(2, 101, listed(second)) };
    world.bring(1, &left).await;
    world.bring_aside(2, &aside).await;
    world.run_until_consumed().await;
    world.produce("reorgs", b"", reorg(3, std::slice::from_ref(&left), std::slice::from_ref(&aside))).await;
    world.run_until_consumed().await;

    let outcomes = Outcomes::read(&world).await;
    let is_of = |change: &OutcomeChange, block: &MadeBlock| match *change {
        OutcomeChange::Mined { block_id, height, hash, .. } | OutcomeChange::Unmined { block_id, height, hash, .. } => {
            (block_id, height, hash) == (block.block_id, block.height, block.hash)
        }
        OutcomeChange::Live => false,
    };
    let mined =
        |block: &MadeBlock| outcomes.of(|change| matches!(change, OutcomeChange::Mined { .. }) && is_of(change, block));
    let unmined = |block: &MadeBlock| {
        outcomes.of(|change| matches!(change, OutcomeChange::Unmined { .. }) && is_of(change, block))
    };
    assert_eq!(outcomes.of(|change| *change == OutcomeChange::Live), txids(made.iter().chain([&seed])));
    assert_eq!((mined(&left), unmined(&left)), (txids(first.iter().chain([&left.coinbase])), mined(&left)));
    assert_eq!((mined(&aside), unmined(&aside)), (txids(second.iter().chain([&aside.coinbase])), BTreeSet::new()));
    // One message a flush and partition: far fewer than transactions.
    assert!(outcomes.messages < 40, "{}", outcomes.messages);
    world.check("live, mined and unmined").await;
}

/// The outcome waits longer than a commit: an offset that is committed before its outcome would not be read again.
#[tokio::test(start_paused = true)]
async fn no_outcome_is_lost_by_a_kill_after_a_commit() {
    let mut world = World::new().await;
    let seed = world.seed(1, 4).await;
    let made: Vec<Made> = (0..4).map(|vout| spend(&[seed.coin(vout)], 1, 1)).collect();
    for made in &made {
        world.validate(made).await;
    }
    world.settings.pipeline.live_outcomes = Some(Duration::from_secs(60));
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(world.page(&made[3]).await.unwrap().state(), TxState::Live);
    assert_eq!((world.count("outcomes").await, world.committed_txs().await), (0, 0));
    running.kill().await;
    world.settings.pipeline.live_outcomes = Some(Duration::from_millis(5));
    world.run_until_consumed().await;
    let live = Outcomes::read(&world).await.of(|change| *change == OutcomeChange::Live);
    assert_eq!(live, txids(made.iter().chain([&seed])));
    world.check("outcomes of a killed instance").await;
}

/// A shutdown waits for the outcomes, and the offsets are committed.
#[tokio::test(start_paused = true)]
async fn a_shutdown_publishes_what_is_gathered() {
    let mut world = World::new().await;
    world.settings.pipeline.live_outcomes = Some(Duration::from_secs(2));
    let seed = world.seed(1, 1).await;
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((world.page(&seed).await.is_some(), world.count("outcomes").await), (true, 0));
    running.stop().await;
    assert_eq!((world.count("outcomes").await, world.committed_txs().await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn outcomes_that_are_switched_off_are_not_published() {
    let mut world = World::new().await;
    world.settings.pipeline.live_outcomes = None;
    world.settings.sequencer.mined_outcomes = false;
    let seed = world.seed(1, 2).await;
    let made = spend(&[seed.coin(0)], 1, 1);
    world.validate(&made).await;
    let block = MadeBlock::new(1, 101, &coinbase(1), &[&made]);
    world.bring(1, &block).await;
    world.run_until_consumed().await;
    world.produce("reorgs", b"", reorg(2, std::slice::from_ref(&block), &[])).await;
    world.run_until_consumed().await;
    // The coinbase of the block is conflicting, which is always published.
    let outcomes = Outcomes::read(&world).await;
    assert_eq!((outcomes.single.len(), outcomes.changes.len(), outcomes.messages), (1, 0, 1));
    world.check("no live and no mined outcomes").await;
}
