//! What a group decided before a node of its store forgot: applied again, and rebuilt, it comes to the same, whatever the
//! store shows by then. Each log here is one that a forgetful store has led to, cut down and written by hand.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, Message, TopicPartition},
    engine::Row,
    event::{Action, Command, Contest, DecidedInput, Decision, DecisionBody, Event, Position},
    group::dead_letters::DeadLetterLimits,
    prepare::{PrepareSettings, Prepared, prepare},
    record::{Body, Key, Operation, Phase, Reason, Sequenced, SpendingData, Stamp, TxState, Verdict},
    store::canonical::BodyHash,
};

use crate::{
    made_blocks::MadeBlock,
    regressions::held::{Held, is_create_of},
    world::{Coin, MAY_FORGET, Made, PARTITIONS, World, WorldSettings, coinbase, spend, spend_claiming},
};

/// The events of a transaction, with their partition.
async fn events_of(world: &World, made: &Made) -> Vec<(i32, Message)> {
    let mut events = Vec::new();
    for number in 0..PARTITIONS {
        let partition = TopicPartition { topic: "txs".into(), partition: number };
        let end = world.broker.watermarks(&partition).await.unwrap().1;
        let mut reader = world.broker.read(&partition, 0).await.unwrap();
        while reader.position() < end {
            let messages = reader.next(Duration::from_millis(1)).await.unwrap();
            let of = |message: &Message| *message.key == made.txid.0 && Event::decode(&message.payload).is_ok();
            events.extend(messages.into_iter().filter(of).map(|message| (number, message)));
        }
    }
    events
}

/// A contest of a transaction by its `nth` event.
async fn contest(world: &World, made: &Made, nth: usize, reason: Reason) {
    let (partition, message) = events_of(world, made).await.remove(nth);
    let (offset, timestamp_ms) = (message.offset, message.timestamp_ms);
    let position = Position { topic: "txs".into(), partition, offset, timestamp_ms };
    let Event::Validated(validated) = Event::decode(&message.payload).unwrap() else { panic!("no transaction") };
    let body = BodyHash::of(&Body::Transaction(message.payload.slice_ref(validated.tx))).hash();
    let event = Event::Contest(Contest { txid: made.txid, position, body, reason });
    world.produce("chain", &made.txid.0, event.encode()).await;
}

/// All that was decided on an event of the chain.
async fn decided(world: &World, chain_offset: u64, bodies: Vec<DecisionBody>) {
    for (body, step) in bodies.into_iter().chain([DecisionBody::Closed]).zip(0..) {
        decision(world, chain_offset, step, body).await;
    }
}

/// The first that was decided on an event of the chain, and nothing behind it.
async fn decided_first(world: &World, chain_offset: u64, body: DecisionBody) {
    decision(world, chain_offset, 0, body).await;
}

async fn decision(world: &World, chain_offset: u64, step: u32, body: DecisionBody) {
    let event = Event::Decision(Decision { chain_offset, step, body });
    world.produce("decisions", &chain_offset.to_be_bytes(), event.encode()).await;
}

/// An accepted transaction; each input with who held its slot.
fn accepted(made: &Made, inputs: &[(&Coin, &Made)], losers: &[&Made], by_block: bool) -> DecisionBody {
    let inputs = inputs.iter().zip(0..).map(|((coin, holder), input)| DecidedInput {
        input,
        outpoint: coin.outpoint,
        holder: Some(SpendingData { txid: holder.txid, input: if holder.txid == made.txid { input } else { 0 } }),
    });
    let losers = losers.iter().map(|loser| loser.txid).collect();
    DecisionBody::Accepted { txid: made.txid, height: 0, inputs: inputs.collect(), losers, by_block }
}

fn conflicting(made: &Made, reason: Reason, live: bool) -> DecisionBody {
    DecisionBody::Conflicting { txid: made.txid, reason, height: 0, live }
}

fn cone_ends() -> DecisionBody {
    DecisionBody::Cone { members: Vec::new(), height: 0 }
}

async fn state(world: &World, made: &Made) -> Option<TxState> {
    world.page(made).await.map(|page| page.state())
}

/// Runs an instance without a sequencer until these are live and it cannot be forgotten any more.
async fn stored_for_good(world: &World, live: &[&Made]) {
    let mut world = world.clone();
    world.settings.sequencer_enabled = false;
    let running = world.start();
    for made in live {
        while state(&world, made).await != Some(TxState::Live) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    tokio::time::sleep(MAY_FORGET * 10).await;
    running.stop().await;
}

async fn run(world: &World) {
    let running = world.start();
    world.until_consumed().await;
    running.stop().await;
}

/// A child of a transaction takes part in a decision, and the transaction itself has its verdict only behind that: it had been
/// live, was forgotten, called for, and so contested.
#[tokio::test(start_paused = true)]
async fn a_verdict_that_stands_behind_what_follows_from_it() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 2).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let winner = spend(&[child.coin(0), seed.coin(1)], 1, 3);
    for made in [&parent, &child, &winner] {
        world.validate(made).await;
    }
    contest(&world, &winner, 0, Reason::Found).await;
    contest(&world, &parent, 0, Reason::Found).await;
    let inputs = [(&child.coin(0), &winner), (&seed.coin(1), &winner)];
    decided(&world, 0, vec![accepted(&winner, &inputs, &[], false)]).await;
    decided(&world, 1, vec![accepted(&parent, &[(&seed.coin(0), &parent)], &[], false)]).await;
    run(&world).await;
    for made in [&parent, &child, &winner] {
        assert_eq!(state(&world, made).await, Some(TxState::Live));
    }
    world.check_without_model("a verdict behind what follows from it").await;
}

/// A block decided nothing, since what it lists was live; behind it that is contested, because a node forgot it, and accepted.
#[tokio::test(start_paused = true)]
async fn a_block_that_stands_before_the_verdict_on_what_it_lists() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let (listed, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    world.validate(&listed).await;
    stored_for_good(&world, &[&listed]).await;
    world.validate(&rival).await;
    world.produce("chain", b"", MadeBlock::new(1, 101, &coinbase(1), &[&listed]).mined(1, true)).await;
    contest(&world, &listed, 0, Reason::History { input: 0 }).await;
    decided(&world, 1, vec![accepted(&listed, &[(&seed.coin(0), &rival)], &[], false)]).await;
    run(&world).await;
    let page = world.page(&listed).await.unwrap();
    assert_eq!((page.state(), page.master.as_ref().unwrap().unmined_since), (TxState::Live, None));
    world.check_without_model("a block before the verdict").await;
}

/// The first event of a transaction claims wrongly what it spends. It was forgotten, the second made the transaction live, and it
/// lost to a block. What is stored of it now is by the first event.
#[tokio::test(start_paused = true)]
async fn what_was_live_had_claimed_nothing_that_is_wrong() {
    let (world, loser) = a_liar_that_was_live(World::forgetful().await).await;
    let page = world.page(&loser).await.unwrap();
    assert!(matches!(page.state(), TxState::Conflicting(Verdict::Conflicting(_))));
    assert_eq!(page.body(), Some(&Body::Transaction(loser.extended.clone())));
    world.check_without_model("what was live").await;
}

/// That history, with the honest event of the loser.
async fn a_liar_that_was_live(world: World) -> (World, Made) {
    let seed = world.seed(1, 1).await;
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    let (lie, loser) = (spend_claiming(&[seed.coin(0)], &[wrong], 1, 1), spend(&[seed.coin(0)], 1, 1));
    let winner = spend(&[seed.coin(0)], 1, 2);
    for made in [&lie, &loser, &winner] {
        world.validate(made).await;
    }
    contest(&world, &winner, 0, Reason::History { input: 0 }).await;
    let verdict = accepted(&winner, &[(&seed.coin(0), &loser)], &[&loser], false);
    decided(&world, 0, vec![verdict, cone_ends()]).await;
    run(&world).await;
    (world, loser)
}

/// The same, and in the rebuild the loser comes only after the decision.
#[tokio::test(start_paused = true)]
async fn a_rebuild_waits_for_who_fell_before_it_mends_the_claims() {
    let (world, loser) = a_liar_that_was_live(World::forgetful().await).await;
    let late = Duration::from_secs(1);
    Held::late_in_rebuilds(world, late, is_create_of, loser.txid).check_without_model("who fell is late").await;
}

/// The contest of an event that claims wrongly had its verdict; then that was forgotten, and another event of the transaction made it
/// live before the verdict was applied again.
#[tokio::test(start_paused = true)]
async fn a_verdict_is_applied_again_to_what_another_event_made_live() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let honest = spend(&[seed.coin(0)], 1, 1);
    world.validate(&honest).await;
    stored_for_good(&world, &[&honest]).await;
    let wrong = Coin { script: vec![0x52], ..seed.coin(0) };
    let lie = spend_claiming(&[seed.coin(0)], &[wrong], 1, 1);
    assert_eq!(lie.txid, honest.txid);
    world.validate(&lie).await;
    contest(&world, &lie, 1, Reason::Mismatch { input: 0 }).await;
    decided(&world, 0, vec![conflicting(&lie, Reason::Mismatch { input: 0 }, false), cone_ends()]).await;
    run(&world).await;
    let page = world.page(&lie).await.unwrap();
    assert_eq!(page.body(), Some(&Body::Transaction(lie.extended.clone())));
    world.check_without_model("another event made it live").await;
}

/// The same, but the node forgot before all of the verdict's cone was decided: what is decided behind the verdict is new, and the
/// verdict is applied again all the same (simulator, seed 53887).
#[tokio::test(start_paused = true)]
async fn a_verdict_is_applied_again_before_its_cone_was_decided() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let honest = spend(&[seed.coin(0)], 1, 1);
    world.validate(&honest).await;
    stored_for_good(&world, &[&honest]).await;
    let wrong = Coin { script: vec![0x52], ..seed.coin(0) };
    let lie = spend_claiming(&[seed.coin(0)], &[wrong], 1, 1);
    world.validate(&lie).await;
    contest(&world, &lie, 1, Reason::Mismatch { input: 0 }).await;
    decided_first(&world, 0, conflicting(&lie, Reason::Mismatch { input: 0 }, false)).await;
    run(&world).await;
    let page = world.page(&lie).await.unwrap();
    assert_eq!(page.body(), Some(&Body::Transaction(lie.extended.clone())));
    world.check_without_model("before its cone was decided").await;
}

/// The first event of a transaction claims wrongly what it spends, and its contest was passed over, because a node had forgotten it. It
/// lost by the second, for a parent that was conflicting, and won by a `Reconsider`, which names neither (simulator, seed 40910).
#[tokio::test(start_paused = true)]
async fn who_wins_by_no_event_of_its_own_has_the_claims_that_are_true() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    let (lie, honest) = (spend_claiming(&[seed.coin(0)], &[wrong], 1, 1), spend(&[seed.coin(0)], 1, 1));
    for made in [&lie, &honest] {
        world.validate(made).await;
    }
    stored_for_good(&world, &[&seed]).await;
    assert_eq!(world.count("chain").await, 2, "each event is contested");
    let action = Action::Reconsider { txid: honest.txid };
    world.produce("chain", b"", Event::Command(Command { id: [1; 16], action }).encode()).await;
    decided(&world, 0, vec![DecisionBody::PassedOver { txid: honest.txid }]).await;
    let reason = Reason::ConflictingParent { parent: seed.txid };
    decided(&world, 1, vec![conflicting(&honest, reason, false), cone_ends()]).await;
    decided(&world, 2, vec![accepted(&honest, &[(&seed.coin(0), &honest)], &[], false)]).await;
    run(&world).await;
    let page = world.page(&honest).await.unwrap();
    assert_eq!((page.state(), page.body()), (TxState::Live, Some(&Body::Transaction(honest.extended.clone()))));
    world.check_without_model("by no event of its own").await;
}

/// A slot names a contestant since before its parent's verdict was applied again.
#[tokio::test(start_paused = true)]
async fn a_contestant_that_holds_a_slot_of_a_fallen_parent() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let (parent, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[parent.coin(0)], 1, 3);
    world.validate(&parent).await;
    stored_for_good(&world, &[&parent]).await;
    world.validate(&child).await;
    let mut pipeline = world.clone();
    pipeline.settings.sequencer_enabled = false;
    let running = pipeline.start();
    while state(&world, &child).await != Some(TxState::Live) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.kill().await;
    assert_eq!(world.nodes.forget(MAY_FORGET, |key| *key == Key::master(child.txid)), Some(1));
    let stub = Operation::Sequenced(Stamp::in_era(0, 0, Phase::Evaluate), Sequenced::MarkContested);
    world.store.apply(vec![Row { key: Key::master(child.txid), operation: stub }]).await.unwrap();
    world.validate(&rival).await;
    contest(&world, &parent, 0, Reason::History { input: 0 }).await;
    let reason = Reason::DoubleSpend { input: 0, winner: rival.txid };
    decided(&world, 0, vec![conflicting(&parent, reason, true), cone_ends()]).await;
    run(&world).await;
    let fell = TxState::Conflicting(Verdict::Conflicting(Reason::ConflictingParent { parent: parent.txid }));
    assert_eq!(state(&world, &child).await, Some(fell));
    world.check_without_model("a slot of a fallen parent").await;
}

/// A decision needs an output of a transaction that a node forgot, whose parent has to have its verdict first, and that stands
/// behind the decision (simulator, seed 560).
#[tokio::test(start_paused = true)]
async fn what_a_decision_needs_is_called_for() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 2).await;
    let rival = spend(&[seed.coin(0)], 1, 9);
    world.validate(&rival).await;
    stored_for_good(&world, &[&rival]).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let winner = spend(&[child.coin(0), seed.coin(1)], 1, 3);
    for made in [&parent, &child, &winner] {
        world.validate(made).await;
    }
    contest(&world, &winner, 0, Reason::Found).await;
    let inputs = [(&child.coin(0), &winner), (&seed.coin(1), &winner)];
    decided(&world, 0, vec![accepted(&winner, &inputs, &[], false)]).await;
    run(&world).await;
    assert_eq!(state(&world, &rival).await, Some(TxState::Live));
    for made in [&parent, &child, &winner] {
        assert!(
            matches!(state(&world, made).await, Some(TxState::Conflicting(Verdict::Conflicting(_)))),
            "{}",
            made.txid
        );
    }
    world.check_without_model("called for").await;
}

/// A decision gives away an output on a page that a node forgot, while the event that would make the page again waits for what stands
/// behind the decision (simulator, seed 563).
#[tokio::test(start_paused = true)]
async fn a_page_that_a_decision_needs_is_made_again() {
    let world = World::with_settings(WorldSettings { may_forget: MAY_FORGET, ..WorldSettings::paged(1) }).await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let wide = spend(&[parent.coin(0)], 2, 2);
    let winner = spend(&[wide.coin(1)], 1, 3);
    stored_for_good(&world, &[&seed]).await;
    world.validate(&wide).await;
    let (_, message) = events_of(&world, &wide).await.remove(0);
    let Ok(Prepared::Validated(tx)) = prepare(&PrepareSettings::of(&world.store), &message) else { panic!("no event") };
    for operation in [Operation::Create(tx.page.clone()), Operation::ClearCreating] {
        world.store.apply(vec![Row { key: Key::master(wide.txid), operation }]).await.unwrap();
    }
    world.validate(&winner).await;
    contest(&world, &winner, 0, Reason::Found).await;
    decided(&world, 0, vec![accepted(&winner, &[(&wide.coin(1), &winner)], &[], false)]).await;
    let running = world.start();
    while state(&world, &winner).await != Some(TxState::Live) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.validate(&parent).await;
    world.until_consumed().await;
    running.stop().await;
    world.check_without_model("a page that a decision needs").await;
}

/// A node forgets the record of a transaction; an event that claims wrongly what it spends finds that its slots name it already
/// (simulator, seed 136).
#[tokio::test(start_paused = true)]
async fn slots_that_are_held_are_compared_with_what_is_claimed() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let honest = spend(&[seed.coin(0)], 1, 1);
    world.validate(&honest).await;
    let running = world.start();
    while state(&world, &honest).await != Some(TxState::Live) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.nodes.forget(MAY_FORGET, |key| *key == Key::master(honest.txid)), Some(1));
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    world.validate(&spend_claiming(&[seed.coin(0)], &[wrong], 1, 1)).await;
    world.until_consumed().await;
    running.stop().await;
    let page = world.page(&honest).await.unwrap();
    assert_eq!((page.state(), page.body()), (TxState::Live, Some(&Body::Transaction(honest.extended.clone()))));
    world.check("held and claimed").await;
}

/// A loser's verdict is applied again before a parent of it has come back, and with that the parent learns of it. So it has a second
/// chance when its rival falls.
#[tokio::test(start_paused = true)]
async fn a_loser_is_named_to_a_parent_that_comes_again() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 2).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let winner = spend(&[parent.coin(0), seed.coin(1)], 1, 2);
    let loser = spend(&[parent.coin(0)], 1, 3);
    let rival = spend(&[seed.coin(1)], 1, 4);
    stored_for_good(&world, &[&seed]).await;
    for made in [&winner, &loser] {
        world.validate(made).await;
    }
    let reason = Reason::DoubleSpend { input: 0, winner: winner.txid };
    contest(&world, &loser, 0, reason).await;
    decided(&world, 0, vec![conflicting(&loser, reason, false), cone_ends()]).await;
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.validate(&parent).await;
    world.until_consumed().await;
    assert_eq!(state(&world, &winner).await, Some(TxState::Live));
    assert_eq!(state(&world, &loser).await, Some(TxState::Conflicting(Verdict::Conflicting(reason))));
    world.validate(&rival).await;
    world.mine(1, &[&rival]).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &rival).await, Some(TxState::Live));
    assert_eq!(state(&world, &loser).await, Some(TxState::Live));
    world.check_without_model("named to its parent").await;
}

/// A node forgot the parent of what is live, and a `Reconsider` comes before the parent comes again.
#[tokio::test(start_paused = true)]
async fn a_reconsider_of_what_is_live_waits_for_a_forgotten_parent() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    stored_for_good(&world, &[&seed]).await;
    world.validate(&child).await;
    let (_, message) = events_of(&world, &child).await.remove(0);
    let Ok(Prepared::Validated(tx)) = prepare(&PrepareSettings::of(&world.store), &message) else { panic!("no event") };
    let create = Operation::Create(tx.page.clone());
    world.store.apply(vec![Row { key: Key::master(child.txid), operation: create }]).await.unwrap();
    let action = Action::Reconsider { txid: child.txid };
    world.produce("chain", b"", Event::Command(Command { id: [1; 16], action }).encode()).await;
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.validate(&parent).await;
    world.until_consumed().await;
    running.stop().await;
    let page = world.page(&child).await.unwrap();
    assert_eq!((page.state(), page.verdict()), (TxState::Live, None), "nothing was ever against it");
    world.check_without_model("a forgotten parent").await;
}

/// A node forgot a contestant between its decision and its verdict, and the partition of its event stands: the chain does not
/// (simulator, seeds 133, 230, 480, where the event waited for a parent whose contest stood behind).
#[tokio::test(start_paused = true)]
async fn a_forgotten_contestant_is_stored_again_by_its_contest() {
    let mut world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    world.validate(&winner).await;
    stored_for_good(&world, &[&winner]).await;
    for _ in 0..3 {
        world.produce("txs", &loser.txid.0, vec![9]).await;
    }
    world.validate(&loser).await;
    let reason = Reason::DoubleSpend { input: 0, winner: winner.txid };
    contest(&world, &loser, 0, reason).await;
    decided(&world, 0, vec![conflicting(&loser, reason, false), cone_ends()]).await;
    let limits = std::mem::replace(
        &mut world.settings.pipeline.dead_letter_limits,
        DeadLetterLimits { consecutive: 3, ratio: 1.0 },
    );
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(running.health.ready().reasons.contains_key("partitions_running"), "its partition stands");
    let page = world.page(&loser).await.unwrap();
    assert_eq!(page.state(), TxState::Conflicting(Verdict::Conflicting(reason)));
    assert_eq!(page.body(), Some(&Body::Transaction(loser.extended.clone())));
    running.stop().await;
    world.settings.pipeline.dead_letter_limits = limits;
    run(&world).await;
    world.check_without_model("stored again").await;
}
