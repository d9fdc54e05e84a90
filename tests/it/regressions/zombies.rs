//! Instances that do not know yet that others have taken over, and late writes of dead instances.

use std::sync::Arc;

use utxo_store::{
    broker::{Broker, NewTopic},
    event::{CommandAction, DecidedInput, Decision, DecisionBody, Descendant},
    record::{Outcome, Reason, Rejection, Sequenced, SpendingData, TxState},
    sequencer::{chain_group, decisions::DecisionLog},
    tx::{Outpoint, Txid},
};

use super::{
    has_lost, holder,
    holding_engine::{HoldingEngine, is_sequenced, is_spend},
    state,
};
use crate::harness::{GROUP, World, spend};

/// Expels every member of the chain's group; requests in flight stay in flight.
fn expel_chain_members(world: &World) {
    let group = chain_group(GROUP);
    for member in world.broker.members(&group) {
        world.broker.expel(&group, member);
    }
}

/// The spender loses by its own contest, or becomes conflicting with its parent. Protects: a settled slot is marked, so
/// that no spend takes it without a contest.
#[tokio::test(start_paused = true)]
async fn a_late_spend_of_a_zombie_after_the_verdict_is_refused() {
    for with_its_parent in [false, true] {
        let world = World::new().await;
        let (seed, free) = (world.seed(1, 1).await, world.seed(2, 1).await);
        let (first, second) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
        let taken = if with_its_parent { first.coin(0) } else { seed.coin(0) };
        let loser = spend(&[taken, free.coin(0)], 1, 3);
        let honest = spend(&[free.coin(0)], 1, 4);
        let (parent, spender) = (free.txid, loser.txid);
        let holding = HoldingEngine::hold_first(&world, move |row| is_spend(row, parent, spender));
        let zombie = holding.in_front_of(&world).start();
        world.validate(&first).await;
        world.until_consumed().await;
        world.validate(&loser).await;
        holding.wait_for_held(1).await;
        zombie.kill().await;

        let running = world.start();
        world.until_consumed().await;
        world.validate(&second).await;
        world.until_consumed().await;
        if with_its_parent {
            world.mine(1, &[&second]).await;
            world.until_consumed().await;
        }
        assert!(has_lost(&world, &loser).await);
        let late = holding.release().await;
        assert!(matches!(late[..], [Outcome::Rejected(Rejection::Contested(0))]), "{with_its_parent}: {late:?}");
        assert_eq!(holder(&world, &free.coin(0)).await, None);
        world.validate(&honest).await;
        world.until_consumed().await;
        assert_eq!(state(&world, &honest).await, TxState::Live);
        running.stop().await;
        world.check("a zombie's late spend").await;
    }
}

/// Protects: the first of several decisions for one step counts, in the store and in every rebuild.
#[tokio::test(start_paused = true)]
async fn of_two_sequencers_at_one_offset_the_first_decision_counts() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let running = world.start();
    world.validate(&winner).await;
    world.until_consumed().await;
    // The other sequencer evaluated the contest when no transaction held the slot.
    let by = |made: &crate::harness::Made| SpendingData { txid: made.txid, input: 0 };
    let outpoint = seed.coin(0).outpoint;
    let inputs = vec![DecidedInput { input: 0, outpoint, holder: Some(by(&loser)) }];
    let other = DecisionBody::Accepted { txid: loser.txid, height: 200, inputs, losers: vec![], by_block: false };
    world.validate(&loser).await;
    world.until_consumed().await;
    let late = Decision { chain_offset: 0, step: 0, body: other };
    world.produce("decisions", b"", late.encode()).await;
    running.stop().await;
    let running = world.start();
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(holder(&world, &seed.coin(0)).await, Some(winner.txid));
    assert!(has_lost(&world, &loser).await);
    world.check("two decisions").await;
}

/// While a sequencer evaluates, another one writes its decision, with another reason that also holds. Protects: a
/// sequencer applies the decision that counts in the log, not its own.
#[tokio::test(start_paused = true)]
async fn a_sequencer_applies_the_decision_that_another_wrote_first() {
    let world = World::without_windows().await;
    let seed = world.seed(1, 2).await;
    let rivals = [spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1)], 1, 2)];
    let loser = spend(&[seed.coin(0), seed.coin(1)], 1, 3);
    let parent = seed.txid;
    let holding = HoldingEngine::hold_first(&world, move |row| {
        is_sequenced(row, parent, |op| matches!(op, Sequenced::Respend(_)))
    });
    let running = holding.in_front_of(&world).start();
    for rival in &rivals {
        world.validate(rival).await;
    }
    world.until_consumed().await;
    world.validate(&loser).await;
    holding.wait_for_held(1).await;
    let reason = Reason::DoubleSpend { input: 1, winner: rivals[1].txid };
    let body = DecisionBody::Conflicting { txid: loser.txid, reason, height: 200, live: false };
    world.produce("decisions", b"", Decision { chain_offset: 0, step: 0, body }.encode()).await;
    holding.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(super::reason(&world, &loser).await, Some(reason));
    world.check("what another has decided meanwhile").await;
}

/// Two sequencers write the same decision, whose second half is larger than a message may be. One sequencer has gone on
/// by the time the other, after its first half, notices that. Protects: no void parts are written among later
/// decisions, such as descendants.
#[tokio::test(start_paused = true)]
async fn a_late_sequencer_writes_no_parts_into_later_decisions() {
    let broker = World::new().await.broker;
    let config = vec![("max.message.bytes".to_owned(), "340".to_owned())];
    broker.create_topics(&[NewTopic { name: "small".into(), partitions: 1, config }]).await.unwrap();
    let producer = broker.producer().await.unwrap();
    let broker: Arc<dyn Broker> = Arc::new(broker);
    let open = || DecisionLog::open(broker.clone(), producer.clone(), "small", 0, 0);
    let holder = SpendingData { txid: Txid([1; 32]), input: 0 };
    let input = |input| DecidedInput {
        input,
        outpoint: Outpoint { txid: Txid([9; 32]), vout: input },
        holder: (input >= 4).then_some(holder),
    };
    let (txid, inputs) = (Txid([2; 32]), (0..8).map(input).collect());
    let accepted = DecisionBody::Accepted { txid, height: 5, inputs, losers: vec![], by_block: false };

    let (mut ahead, mut behind) = (open().await.unwrap(), open().await.unwrap());
    ahead.publish(0, accepted.clone()).await.unwrap();
    assert_eq!(ahead.table().next_joined(0, 0), Some((accepted.clone(), 5)), "one half, and then four parts");
    ahead.publish(0, DecisionBody::Closed).await.unwrap();
    behind.publish(0, accepted.clone()).await.unwrap();
    assert_eq!(behind.table().next_joined(0, 0), Some((accepted, 5)));
    let again = open().await.unwrap();
    assert_eq!(again.table().next_step(0), 6, "no decision comes after `Closed`");
}

/// Parts of an abandoned decision are among the decisions on descendants. Protects: void parts are skipped, also when
/// descendants are read from the decisions.
#[tokio::test(start_paused = true)]
async fn void_parts_between_descendants_are_ignored() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let root = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[root.coin(0)], 1, 2);
    for made in [&root, &child] {
        world.validate(made).await;
    }
    world.run_until_consumed().await;
    world.command(1, CommandAction::SetConflicting { txid: root.txid }).await;
    let (txid, reason) = (root.txid, Reason::Command);
    let void = DecisionBody::AcceptedPart {
        whole: [7; 16],
        part: 0,
        parts: 2,
        txid,
        height: 200,
        inputs: vec![],
        losers: vec![],
        by_block: false,
    };
    let member = Descendant { txid: child.txid, parent: txid, live: true };
    let decisions = [
        DecisionBody::Conflicting { txid, reason, height: 200, live: true },
        void.clone(),
        DecisionBody::Cone { members: vec![member], height: 200 },
        void,
        DecisionBody::Cone { members: vec![], height: 200 },
    ];
    for (body, step) in decisions.into_iter().zip(0..) {
        world.produce("decisions", b"", Decision { chain_offset: 0, step, body }.encode()).await;
    }
    world.run_until_consumed().await;
    assert_eq!(super::reason(&world, &child).await, Some(Reason::ConflictingParent { parent: txid }));
    assert_eq!(holder(&world, &root.coin(0)).await, None);
    world.check("void parts").await;
}

/// A sequencer is about to take a slot for a contestant; another one decides, and a block decides differently again.
/// Protects: a record refuses an operation with an earlier stamp.
#[tokio::test(start_paused = true)]
async fn a_zombie_that_evaluates_a_decided_offset_is_refused() {
    let world = World::without_windows().await;
    let seed = world.seed(1, 1).await;
    let (first, second) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let parent = seed.txid;
    let holding = HoldingEngine::hold_first(&world, move |row| {
        is_sequenced(row, parent, |op| matches!(op, Sequenced::Respend(_)))
    });
    let zombie = holding.in_front_of(&world).start();
    world.validate(&first).await;
    world.until_consumed().await;
    world.validate(&second).await;
    holding.wait_for_held(1).await;
    expel_chain_members(&world);

    let running = world.start();
    world.mine(1, &[&second]).await;
    world.until_consumed().await;
    let late = holding.release().await;
    assert!(matches!(late[..], [Outcome::Rejected(Rejection::StaleStamp(_))]), "{late:?}");
    assert_eq!((state(&world, &second).await, has_lost(&world, &first).await), (TxState::Live, true));
    zombie.stop().await;
    running.stop().await;
    world.check("a zombie evaluates").await;
}

/// A sequencer is about to flag a loser and mark its descendants; another one does so, and a block accepts the loser.
/// Protects: a record refuses an operation with an earlier stamp.
#[tokio::test(start_paused = true)]
async fn a_zombie_that_marks_descendants_after_the_root_won_is_refused() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (first, second) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 2, 2));
    let child = spend(&[second.coin(0)], 1, 3);
    let root = second.txid;
    let wanted = |operation: &Sequenced| matches!(operation, Sequenced::MarkConflicting { .. });
    let holding = HoldingEngine::hold_first(&world, move |row| is_sequenced(row, root, wanted));
    let zombie = holding.in_front_of(&world).start();
    world.validate(&first).await;
    world.until_consumed().await;
    world.validate(&second).await;
    world.validate(&child).await;
    holding.wait_for_held(1).await;
    expel_chain_members(&world);

    let running = world.start();
    world.mine(1, &[&second]).await;
    world.until_consumed().await;
    let late = holding.release().await;
    assert!(matches!(late[..], [Outcome::Rejected(Rejection::StaleStamp(_))]), "{late:?}");
    // The zombie continues with its stale view.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    for made in [&second, &child] {
        assert_eq!(state(&world, made).await, TxState::Live, "{}", made.txid);
    }
    assert!(matches!(super::reason(&world, &first).await, Some(Reason::DoubleSpend { .. })));
    zombie.stop().await;
    running.stop().await;
    world.check("a zombie marks descendants").await;
}
