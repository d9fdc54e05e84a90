//! Losers that a block lists are accepted together: their verdicts are one record, and their rivals share one walk of
//! descendants.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    broker::{Broker, TopicPartition},
    event::{DecisionBody, Event},
    record::{Operation, Sequenced, TxState},
    sequencer::decisions::DecisionLog,
    tx::Txid,
};

use crate::{
    harness::{Made, World, spend},
    regressions::{has_lost, holder, holding_engine::HoldingEngine, state},
};

/// Live payments with a child each, and rivals of the payments that have lost.
struct Lost {
    seeds: Vec<Made>,
    payments: Vec<Made>,
    children: Vec<Made>,
    rivals: Vec<Made>,
}

impl Lost {
    async fn begin(world: &World, count: u8) -> Self {
        let mut seeds = Vec::new();
        for id in 1..=count {
            seeds.push(world.seed(id, 1).await);
        }
        let spend_all = |of: &[Made], tag: u8| -> Vec<Made> {
            of.iter().zip(tag..).map(|(made, tag)| spend(&[made.coin(0)], 1, tag)).collect()
        };
        let (payments, rivals) = (spend_all(&seeds, 1), spend_all(&seeds, 101));
        let children = spend_all(&payments, 201);
        let running = world.start();
        for made in payments.iter().chain(&children).chain(&rivals) {
            world.validate(made).await;
            world.until_consumed().await;
        }
        running.stop().await;
        Lost { seeds, payments, children, rivals }
    }

    async fn mine_rivals(&self, world: &World) {
        world.mine(1, &self.rivals.iter().collect::<Vec<_>>()).await;
    }

    async fn check_rivals_won(&self, world: &World) {
        for (rival, seed) in self.rivals.iter().zip(&self.seeds) {
            assert_eq!(state(world, rival).await, TxState::Live);
            assert_eq!(holder(world, &seed.coin(0)).await, Some(rival.txid));
        }
        for made in self.payments.iter().chain(&self.children) {
            assert!(has_lost(world, made).await, "{}", made.txid);
        }
    }
}

/// Returns the number of verdicts of each run in the decisions topic, and the number of decisions on descendants of the
/// block's event.
async fn runs_and_walks(world: &World) -> (Vec<usize>, usize) {
    let partition = TopicPartition { topic: "decisions".into(), partition: 0 };
    let end = world.end("decisions", 0).await;
    let mut reader = world.broker.read(&partition, 0).await.unwrap();
    let (mut runs, mut walks) = (Vec::new(), 0);
    while reader.position() < end {
        for message in reader.next(Duration::from_millis(1)).await.unwrap() {
            match Event::decode(&message.payload).unwrap() {
                Event::DecisionRun(run) if run.position == message.offset => runs.push(run.bodies.len()),
                Event::Decision(decision) => walks += usize::from(matches!(decision.body, DecisionBody::Cone { .. })),
                _ => {}
            }
        }
    }
    (runs, walks)
}

#[tokio::test(start_paused = true)]
async fn a_block_accepts_its_losers_in_one_record() {
    let world = World::new().await;
    let lost = Lost::begin(&world, 8).await;
    let (_, before) = runs_and_walks(&world).await;
    lost.mine_rivals(&world).await;
    world.run_until_consumed().await;
    lost.check_rivals_won(&world).await;
    let (runs, walks) = runs_and_walks(&world).await;
    assert_eq!(runs, [8]);
    assert_eq!(walks - before, 5, "four chunks of two children, and the empty one");
    world.check("a block with eight losers").await;
}

/// One live transaction holds the coins of two listed losers, and one of its outputs is spent. Protects: the verdict on
/// the second loser is made after the first one is applied.
#[tokio::test(start_paused = true)]
async fn losers_with_one_rival_are_accepted_one_after_the_other() {
    let world = World::new().await;
    let seed = world.seed(1, 3).await;
    let payment = spend(&[seed.coin(0), seed.coin(1)], 1, 1);
    let other = spend(&[seed.coin(2)], 1, 2);
    let rivals: Vec<Made> = (0..3).map(|vout| spend(&[seed.coin(vout)], 1, 101 + vout as u8)).collect();
    let running = world.start();
    for made in [&payment, &other].into_iter().chain(&rivals) {
        world.validate(made).await;
        world.until_consumed().await;
    }
    world.mine(1, &rivals.iter().collect::<Vec<_>>()).await;
    world.until_consumed().await;
    running.stop().await;
    for rival in &rivals {
        assert_eq!(state(&world, rival).await, TxState::Live);
    }
    assert!(has_lost(&world, &payment).await && has_lost(&world, &other).await);
    assert_eq!(runs_and_walks(&world).await.0, [2]);
    world.check("two listed losers with one rival").await;
}

/// A block lists a loser and its child, which has lost with it. Protects: the child is accepted once its parent is.
#[tokio::test(start_paused = true)]
async fn a_listed_child_is_accepted_after_its_listed_parent() {
    let world = World::new().await;
    let lost = Lost::begin(&world, 3).await;
    let family: Vec<Made> = lost.rivals.iter().zip(151..).map(|(rival, tag)| spend(&[rival.coin(0)], 1, tag)).collect();
    let running = world.start();
    for child in &family {
        world.validate(child).await;
        world.until_consumed().await;
    }
    world.mine(1, &family.iter().chain(&lost.rivals).collect::<Vec<_>>()).await;
    world.until_consumed().await;
    running.stop().await;
    lost.check_rivals_won(&world).await;
    for child in &family {
        assert_eq!(state(&world, child).await, TxState::Live);
    }
    assert_eq!(runs_and_walks(&world).await.0, [3, 3], "the parents, then the children");
    world.check("listed losers with their children").await;
}

/// The sequencer dies between the run and its operations, and the next one dies in the middle of them. Protects: the
/// next sequencer applies the verdicts of the run, with one walk of descendants.
#[tokio::test(start_paused = true)]
async fn a_run_without_effect_is_applied_by_the_next_sequencer() {
    for mark_is_first in [true, false] {
        let world = World::new().await;
        let lost = Lost::begin(&world, 5).await;
        let holding = HoldingEngine::hold_all(&world, move |row| match &row.operation {
            Operation::Sequenced(_, Sequenced::MarkConflicting { .. }) => mark_is_first,
            Operation::Sequenced(_, Sequenced::Accept) => !mark_is_first,
            _ => false,
        });
        let dying = holding.in_front_of(&world).start();
        lost.mine_rivals(&world).await;
        holding.wait_for_held(1).await;
        dying.kill().await;
        let running = world.start();
        world.until_consumed().await;
        running.stop().await;
        holding.release().await;
        lost.check_rivals_won(&world).await;
        assert_eq!(runs_and_walks(&world).await.0, [5]);
        world.check("a run without effect").await;
    }
}

fn accepted(tag: u8) -> DecisionBody {
    let (txid, losers) = (Txid([tag; 32]), vec![Txid([100 + tag; 32])]);
    DecisionBody::Accepted { txid, height: 7, inputs: vec![], losers, by_block: true }
}

/// Two sequencers handle one block. Protects: a run behind a record that its sequencer had not read counts for none of
/// its verdicts, for every reader.
#[tokio::test(start_paused = true)]
async fn a_run_behind_an_unread_record_is_void() {
    let world = World::new().await;
    let broker: Arc<dyn Broker> = Arc::new(world.broker.clone());
    let producer = broker.producer().await.unwrap();
    let open = || DecisionLog::open(broker.clone(), producer.clone(), "decisions", 0, 0);
    let (mut first, mut second) = (open().await.unwrap(), open().await.unwrap());
    second.publish(0, accepted(2)).await.unwrap();
    assert_eq!(first.publish_run(0, vec![accepted(1), accepted(2), accepted(3)]).await.unwrap(), Some(false));
    let third = open().await.unwrap();
    for log in [&first, &third] {
        assert_eq!((log.table().get(0, 0), log.table().next_step(0)), (Some(&accepted(2)), 1));
    }
    // The next run of the same sequencer counts: the sequencer has read the other record.
    assert_eq!(first.publish_run(0, vec![accepted(1), accepted(3)]).await.unwrap(), Some(true));
    second.catch_up().await.unwrap();
    assert_eq!((second.table().get(0, 2), second.table().next_step(0)), (Some(&accepted(3)), 3));
}
