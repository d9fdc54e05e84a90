//! Decisions that a group made before a node of its store lost writes. Applied again and rebuilt, they give the same
//! state, whatever the store holds by then. Each log is one that a store with node restarts has led to, cut down and
//! written by hand.

use std::time::Duration;

use utxo_store::{
    broker::{Broker, Message, TopicPartition},
    engine::Row,
    event::{Command, CommandAction, Contest, DecidedInput, Decision, DecisionBody, Event, EventPosition},
    group::dead_letters::DeadLetterLimits,
    prepare::{PrepareSettings, PreparedEvent, prepare},
    record::{Body, Key, Operation, Phase, Reason, Sequenced, SpendingData, Stamp, TxState, Verdict},
    store::canonical::BodyHash,
};

use crate::{
    harness::{Coin, LOSS_WINDOW, Made, PARTITIONS, World, WorldSettings, coinbase, spend, spend_claiming},
    made_blocks::MadeBlock,
    regressions::holding_engine::{HoldingEngine, is_create_of},
};

/// Returns the events of a transaction with their partitions.
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

/// Produces a contest of a transaction by its `nth` event.
pub async fn contest(world: &World, made: &Made, nth: usize, reason: Reason) {
    let (partition, message) = events_of(world, made).await.remove(nth);
    let (offset, timestamp_ms) = (message.offset, message.timestamp_ms);
    let position = EventPosition { topic: "txs".into(), partition, offset, timestamp_ms };
    let Event::Validated(validated) = Event::decode(&message.payload).unwrap() else { panic!("no transaction") };
    let body = BodyHash::of(&Body::Transaction(message.payload.slice_ref(validated.tx))).hash();
    let event = Event::Contest(Contest { txid: made.txid, position, body, reason });
    world.produce("chain", &made.txid.0, event.encode()).await;
}

/// Produces all decisions on an event of the chain.
async fn produce_decisions(world: &World, chain_offset: u64, bodies: Vec<DecisionBody>) {
    for (body, step) in bodies.into_iter().chain([DecisionBody::Closed]).zip(0..) {
        produce_decision(world, chain_offset, step, body).await;
    }
}

/// Produces only the first decision on an event of the chain.
async fn produce_first_decision(world: &World, chain_offset: u64, body: DecisionBody) {
    produce_decision(world, chain_offset, 0, body).await;
}

async fn produce_decision(world: &World, chain_offset: u64, step: u32, body: DecisionBody) {
    let event = Event::Decision(Decision { chain_offset, step, body });
    world.produce("decisions", &chain_offset.to_be_bytes(), event.encode()).await;
}

/// Builds the decision that accepts a transaction; each input comes with the holder of its slot.
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

/// Runs an instance without a sequencer until these transactions are live and durable.
async fn run_until_durable(world: &World, live: &[&Made]) {
    let mut world = world.clone();
    world.settings.sequencer_enabled = false;
    let running = world.start();
    for made in live {
        while state(&world, made).await != Some(TxState::Live) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    tokio::time::sleep(LOSS_WINDOW * 10).await;
    running.stop().await;
}

async fn run(world: &World) {
    let running = world.start();
    world.until_consumed().await;
    running.stop().await;
}

/// A child of a transaction takes part in a decision, and the verdict on the transaction itself comes later: the
/// transaction was live, was lost, became a stub, and was contested.
#[tokio::test(start_paused = true)]
async fn a_verdict_may_stand_behind_its_consequences() {
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
    produce_decisions(&world, 0, vec![accepted(&winner, &inputs, &[], false)]).await;
    produce_decisions(&world, 1, vec![accepted(&parent, &[(&seed.coin(0), &parent)], &[], false)]).await;
    run(&world).await;
    for made in [&parent, &child, &winner] {
        assert_eq!(state(&world, made).await, Some(TxState::Live));
    }
    world.check_without_model("a verdict behind what follows from it").await;
}

/// A block made no decision, since its transaction was live. Later the transaction is contested, because a node lost
/// it, and accepted.
#[tokio::test(start_paused = true)]
async fn a_block_may_stand_before_the_verdict_on_its_transaction() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let (listed, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    world.validate(&listed).await;
    run_until_durable(&world, &[&listed]).await;
    world.validate(&rival).await;
    world.produce("chain", b"", MadeBlock::new(1, 101, &coinbase(1), &[&listed]).mined(1, true)).await;
    contest(&world, &listed, 0, Reason::History { input: 0 }).await;
    produce_decisions(&world, 1, vec![accepted(&listed, &[(&seed.coin(0), &rival)], &[], false)]).await;
    run(&world).await;
    let page = world.page(&listed).await.unwrap();
    assert_eq!((page.state(), page.master.as_ref().unwrap().unmined_since), (TxState::Live, None));
    world.check_without_model("a block before the verdict").await;
}

/// The first event of a transaction has wrong claims. The record was lost, the second event made the transaction live,
/// and the transaction lost to a block. The stored body is now the one of the first event.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_was_live_keeps_its_first_body() {
    let (world, loser) = play_wrong_claims_that_were_live(World::forgetful().await).await;
    let page = world.page(&loser).await.unwrap();
    assert!(matches!(page.state(), TxState::Conflicting(Verdict::Conflicting(_))));
    assert_eq!(page.body(), Some(&Body::Transaction(loser.extended.clone())));
    world.check_without_model("what was live").await;
}

/// Plays that history; returns the honest event of the loser.
async fn play_wrong_claims_that_were_live(world: World) -> (World, Made) {
    let seed = world.seed(1, 1).await;
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    let (lie, loser) = (spend_claiming(&[seed.coin(0)], &[wrong], 1, 1), spend(&[seed.coin(0)], 1, 1));
    let winner = spend(&[seed.coin(0)], 1, 2);
    for made in [&lie, &loser, &winner] {
        world.validate(made).await;
    }
    contest(&world, &winner, 0, Reason::History { input: 0 }).await;
    let verdict = accepted(&winner, &[(&seed.coin(0), &loser)], &[&loser], false);
    produce_decisions(&world, 0, vec![verdict, cone_ends()]).await;
    run(&world).await;
    (world, loser)
}

/// The same history, and in the rebuild the loser is created only after the decision.
#[tokio::test(start_paused = true)]
async fn a_rebuild_waits_for_the_loser_before_it_mends_the_claims() {
    let (world, loser) = play_wrong_claims_that_were_live(World::forgetful().await).await;
    let late = Duration::from_secs(1);
    let world = HoldingEngine::delay_in_rebuilds(world, late, is_create_of, loser.txid);
    world.check_without_model("the loser is late").await;
}

/// Makes a transaction live by its honest event, then contests the event of the same transaction that claims another
/// script of the spent output. Returns the transaction of the wrong event.
async fn contest_a_wrong_claim(world: &World, seed: &Made) -> Made {
    let honest = spend(&[seed.coin(0)], 1, 1);
    world.validate(&honest).await;
    run_until_durable(world, &[&honest]).await;
    let wrong = Coin { script: vec![0x52], ..seed.coin(0) };
    let lie = spend_claiming(&[seed.coin(0)], &[wrong], 1, 1);
    assert_eq!(lie.txid, honest.txid);
    world.validate(&lie).await;
    contest(world, &lie, 1, Reason::Mismatch { input: 0 }).await;
    lie
}

/// The contest of an event with wrong claims had its verdict. Then the verdict was lost, and another event of the
/// transaction made it live before the verdict was applied again.
#[tokio::test(start_paused = true)]
async fn a_verdict_is_reapplied_after_another_event_made_its_transaction_live() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let lie = contest_a_wrong_claim(&world, &seed).await;
    produce_decisions(&world, 0, vec![conflicting(&lie, Reason::Mismatch { input: 0 }, false), cone_ends()]).await;
    run(&world).await;
    let page = world.page(&lie).await.unwrap();
    assert_eq!(page.body(), Some(&Body::Transaction(lie.extended.clone())));
    world.check_without_model("another event made it live").await;
}

/// The same, but the node lost writes before all descendants were decided: the decisions behind the verdict are new,
/// and the verdict is applied again all the same (simulator, seed 53887).
#[tokio::test(start_paused = true)]
async fn a_verdict_is_reapplied_before_its_descendants_are_decided() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let lie = contest_a_wrong_claim(&world, &seed).await;
    produce_first_decision(&world, 0, conflicting(&lie, Reason::Mismatch { input: 0 }, false)).await;
    run(&world).await;
    let page = world.page(&lie).await.unwrap();
    assert_eq!(page.body(), Some(&Body::Transaction(lie.extended.clone())));
    world.check_without_model("before its cone was decided").await;
}

/// The first event of a transaction has wrong claims, and its contest was passed over, because a node had lost the
/// record. The second event lost for a conflicting parent and won by a `Reconsider`, which names neither event
/// (simulator, seed 40910).
#[tokio::test(start_paused = true)]
async fn a_winner_without_a_named_event_has_the_true_claims() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    let (lie, honest) = (spend_claiming(&[seed.coin(0)], &[wrong], 1, 1), spend(&[seed.coin(0)], 1, 1));
    for made in [&lie, &honest] {
        world.validate(made).await;
    }
    run_until_durable(&world, &[&seed]).await;
    assert_eq!(world.count("chain").await, 2, "each event is contested");
    let action = CommandAction::Reconsider { txid: honest.txid };
    world.produce("chain", b"", Event::Command(Command { id: [1; 16], action }).encode()).await;
    produce_decisions(&world, 0, vec![DecisionBody::PassedOver { txid: honest.txid }]).await;
    let reason = Reason::ConflictingParent { parent: seed.txid };
    produce_decisions(&world, 1, vec![conflicting(&honest, reason, false), cone_ends()]).await;
    produce_decisions(&world, 2, vec![accepted(&honest, &[(&seed.coin(0), &honest)], &[], false)]).await;
    run(&world).await;
    let page = world.page(&honest).await.unwrap();
    assert_eq!((page.state(), page.body()), (TxState::Live, Some(&Body::Transaction(honest.extended.clone()))));
    world.check_without_model("by no event of its own").await;
}

/// A slot names a contestant since before the verdict on its parent was applied again.
#[tokio::test(start_paused = true)]
async fn a_contestant_with_a_slot_of_a_conflicting_parent_conflicts() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let (parent, rival) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[parent.coin(0)], 1, 3);
    world.validate(&parent).await;
    run_until_durable(&world, &[&parent]).await;
    world.validate(&child).await;
    let mut pipeline = world.clone();
    pipeline.settings.sequencer_enabled = false;
    let running = pipeline.start();
    while state(&world, &child).await != Some(TxState::Live) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.kill().await;
    assert_eq!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(child.txid)), Some(1));
    let stub = Operation::Sequenced(Stamp::in_era(0, 0, Phase::Evaluate), Sequenced::MarkContested);
    world.store.apply(vec![Row { key: Key::master(child.txid), operation: stub }]).await.unwrap();
    world.validate(&rival).await;
    contest(&world, &parent, 0, Reason::History { input: 0 }).await;
    let reason = Reason::DoubleSpend { input: 0, winner: rival.txid };
    produce_decisions(&world, 0, vec![conflicting(&parent, reason, true), cone_ends()]).await;
    run(&world).await;
    let reason = Reason::ConflictingParent { parent: parent.txid };
    let expected_conflict = TxState::Conflicting(Verdict::Conflicting(reason));
    assert_eq!(state(&world, &child).await, Some(expected_conflict));
    world.check_without_model("a slot of a fallen parent").await;
}

/// A decision needs an output of a transaction that a node lost. The parent of the transaction needs its verdict first,
/// which stands behind the decision (simulator, seed 560).
#[tokio::test(start_paused = true)]
async fn a_decision_creates_the_stub_that_it_needs() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 2).await;
    let rival = spend(&[seed.coin(0)], 1, 9);
    world.validate(&rival).await;
    run_until_durable(&world, &[&rival]).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let winner = spend(&[child.coin(0), seed.coin(1)], 1, 3);
    for made in [&parent, &child, &winner] {
        world.validate(made).await;
    }
    contest(&world, &winner, 0, Reason::Found).await;
    let inputs = [(&child.coin(0), &winner), (&seed.coin(1), &winner)];
    produce_decisions(&world, 0, vec![accepted(&winner, &inputs, &[], false)]).await;
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

/// A decision spends an output on a page that a node lost, while the event that would create the page again waits for a
/// parent behind the decision (simulator, seed 563).
#[tokio::test(start_paused = true)]
async fn a_decision_recreates_the_page_that_it_needs() {
    let world = World::with_settings(WorldSettings { loss_window: LOSS_WINDOW, ..WorldSettings::paged(1) }).await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let wide = spend(&[parent.coin(0)], 2, 2);
    let winner = spend(&[wide.coin(1)], 1, 3);
    run_until_durable(&world, &[&seed]).await;
    world.validate(&wide).await;
    let (_, message) = events_of(&world, &wide).await.remove(0);
    let prepared = prepare(&PrepareSettings::of(&world.store), &message);
    let Ok(PreparedEvent::Validated(tx)) = prepared else { panic!("no event") };
    for operation in [Operation::Create(tx.page.clone()), Operation::ClearCreating] {
        world.store.apply(vec![Row { key: Key::master(wide.txid), operation }]).await.unwrap();
    }
    world.validate(&winner).await;
    contest(&world, &winner, 0, Reason::Found).await;
    produce_decisions(&world, 0, vec![accepted(&winner, &[(&wide.coin(1), &winner)], &[], false)]).await;
    let running = world.start();
    while state(&world, &winner).await != Some(TxState::Live) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.validate(&parent).await;
    world.until_consumed().await;
    running.stop().await;
    world.check_without_model("a page that a decision needs").await;
}

/// A node loses the record of a transaction; an event with wrong claims finds that the slots name the transaction
/// already (simulator, seed 136).
#[tokio::test(start_paused = true)]
async fn claims_are_compared_with_slots_already_held() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let honest = spend(&[seed.coin(0)], 1, 1);
    world.validate(&honest).await;
    let running = world.start();
    while state(&world, &honest).await != Some(TxState::Live) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(world.nodes.restart_nodes(LOSS_WINDOW, |key| *key == Key::master(honest.txid)), Some(1));
    let wrong = Coin { satoshis: 1_000_001, ..seed.coin(0) };
    world.validate(&spend_claiming(&[seed.coin(0)], &[wrong], 1, 1)).await;
    world.until_consumed().await;
    running.stop().await;
    let page = world.page(&honest).await.unwrap();
    assert_eq!((page.state(), page.body()), (TxState::Live, Some(&Body::Transaction(honest.extended.clone()))));
    world.check("held and claimed").await;
}

/// The verdict on a loser is applied again before a parent of it has returned; the returning parent learns of the
/// loser. The loser thus has a second chance when its rival becomes conflicting.
#[tokio::test(start_paused = true)]
async fn a_returning_parent_learns_of_its_conflicting_child() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 2).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let winner = spend(&[parent.coin(0), seed.coin(1)], 1, 2);
    let loser = spend(&[parent.coin(0)], 1, 3);
    let rival = spend(&[seed.coin(1)], 1, 4);
    run_until_durable(&world, &[&seed]).await;
    for made in [&winner, &loser] {
        world.validate(made).await;
    }
    let reason = Reason::DoubleSpend { input: 0, winner: winner.txid };
    contest(&world, &loser, 0, reason).await;
    produce_decisions(&world, 0, vec![conflicting(&loser, reason, false), cone_ends()]).await;
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

/// A node lost the parent of a live transaction, and a `Reconsider` comes before the parent returns.
#[tokio::test(start_paused = true)]
async fn a_reconsider_of_a_live_transaction_waits_for_a_lost_parent() {
    let world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    run_until_durable(&world, &[&seed]).await;
    world.validate(&child).await;
    let (_, message) = events_of(&world, &child).await.remove(0);
    let prepared = prepare(&PrepareSettings::of(&world.store), &message);
    let Ok(PreparedEvent::Validated(tx)) = prepared else { panic!("no event") };
    let create = Operation::Create(tx.page.clone());
    world.store.apply(vec![Row { key: Key::master(child.txid), operation: create }]).await.unwrap();
    let action = CommandAction::Reconsider { txid: child.txid };
    world.produce("chain", b"", Event::Command(Command { id: [1; 16], action }).encode()).await;
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.validate(&parent).await;
    world.until_consumed().await;
    running.stop().await;
    let page = world.page(&child).await.unwrap();
    assert_eq!((page.state(), page.verdict()), (TxState::Live, None), "the child never had a verdict");
    world.check_without_model("a forgotten parent").await;
}

/// A node lost a contestant between its decision and its verdict, and the partition of its event is halted; the chain
/// goes on (simulator, seeds 133, 230, 480, where the event waited for a parent whose contest stood behind).
#[tokio::test(start_paused = true)]
async fn a_lost_contestant_is_stored_again_by_its_contest() {
    let mut world = World::forgetful().await;
    let seed = world.seed(1, 1).await;
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    world.validate(&winner).await;
    run_until_durable(&world, &[&winner]).await;
    for _ in 0..3 {
        world.produce("txs", &loser.txid.0, vec![9]).await;
    }
    world.validate(&loser).await;
    let reason = Reason::DoubleSpend { input: 0, winner: winner.txid };
    contest(&world, &loser, 0, reason).await;
    produce_decisions(&world, 0, vec![conflicting(&loser, reason, false), cone_ends()]).await;
    let limits = std::mem::replace(
        &mut world.settings.pipeline.dead_letter_limits,
        DeadLetterLimits { consecutive: 3, ratio: 1.0 },
    );
    let running = world.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(running.health.ready().reasons.contains_key("partitions_running"), "the partition of the event is halted");
    let page = world.page(&loser).await.unwrap();
    assert_eq!(page.state(), TxState::Conflicting(Verdict::Conflicting(reason)));
    assert_eq!(page.body(), Some(&Body::Transaction(loser.extended.clone())));
    running.stop().await;
    world.settings.pipeline.dead_letter_limits = limits;
    run(&world).await;
    world.check_without_model("stored again").await;
}
