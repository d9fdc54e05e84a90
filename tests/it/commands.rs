//! Commands through the whole pipeline: the effect of each command, and that it happens once, whenever an instance
//! dies.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    cli::command::list_commands,
    client::{CommandOutcome, PendingCommand, submit_commands},
    config::{Config, Topics},
    event::{Command, CommandAction, CommandResult, Decision, DecisionBody, Event, OutcomeKind},
    record::{Reason, Slot, TxState, Verdict},
    tx::Txid,
};

use crate::{
    harness::{Coin, Made, Running, World, WorldSettings, spend, spend_claiming},
    model::Logs,
    regressions::holding_engine::{HoldingEngine, is_create_of},
};

impl World {
    /// Publishes a command under this id.
    pub async fn command(&self, id: u8, action: CommandAction<'_>) {
        let key = action.subject().0;
        self.produce("chain", &key, Event::Command(Command { id: [id; 16], action }).encode()).await;
    }

    /// Returns the outcomes of the command with this id, in the order of the chain.
    pub async fn results(&self, id: u8) -> Vec<CommandResult> {
        let logs = Logs::read(&self.broker, &self.settings.pipeline.topic, &self.settings.topics).await.unwrap();
        let outcomes =
            logs.outcomes.iter().filter_map(|logged| match Event::decode(&logged.message.payload).unwrap() {
                Event::Outcome(outcome) => Some((outcome.source.chain_offset()?, outcome.kind)),
                _ => None,
            });
        let mut outcomes: Vec<_> = outcomes
            .filter_map(|(at, kind)| match kind {
                OutcomeKind::Command { id: named, result } if named == [id; 16] => Some((at, result)),
                _ => None,
            })
            .collect();
        outcomes.sort_by_key(|(at, _)| *at);
        // A sequencer that died before its commit is followed by one that publishes the outcome again.
        outcomes.dedup();
        outcomes.into_iter().map(|(_, result)| result).collect()
    }

    pub async fn slot(&self, coin: &Coin) -> Slot {
        utxo_store::store::read::TxReader::of(&self.store)
            .slot(coin.outpoint)
            .await
            .unwrap()
            .expect("the output has a slot")
    }
}

/// Returns the code of a refused command, or another word for its outcome.
async fn outcome_of(world: &World, id: u8) -> String {
    match world.results(id).await.pop() {
        Some(CommandResult::Refused { code, message }) => {
            assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
            code
        }
        Some(CommandResult::Applied) => "done".to_owned(),
        Some(CommandResult::AlreadyApplied) => "nothing".to_owned(),
        None => "none".to_owned(),
    }
}

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

async fn conflict_reason(world: &World, made: &Made) -> Option<Reason> {
    match state(world, made).await {
        TxState::Conflicting(Verdict::Conflicting(reason)) => Some(reason),
        _ => None,
    }
}

/// Times in ms after which the first instance is killed, if at all; a second instance then continues.
const KILLS: [Option<u64>; 8] = [None, Some(0), Some(1), Some(2), Some(4), Some(7), Some(12), Some(40)];

async fn consume(world: &World, kill_after_ms: Option<u64>) {
    if let Some(ms) = kill_after_ms {
        let running = world.start();
        tokio::time::sleep(Duration::from_millis(ms)).await;
        running.kill().await;
    }
    world.run_until_consumed().await;
}

/// Output 3 lies on the second page where there are two.
#[tokio::test(start_paused = true)]
async fn a_frozen_output_is_reassigned_and_spent_only_by_the_new_owner() {
    for page_size in [1_000, 2] {
        for kill in KILLS {
            run_freeze_and_reassign(World::with_settings(WorldSettings::paged(page_size)).await, kill).await;
        }
    }
}

pub async fn run_freeze_and_reassign(world: World, kill: Option<u64>) {
    let what = format!("pages of {}, killed after {kill:?}", world.store.settings.utxo_batch_size);
    let seed = world.seed(1, 4).await;
    let (coin, outpoint) = (seed.coin(3), seed.coin(3).outpoint);
    let new = Coin { script: vec![0x53, 0x99], ..coin.clone() };
    let reassign = CommandAction::Reassign {
        outpoint,
        utxo_hash: coin.utxo_hash(),
        new_script: &new.script,
        satoshis: new.satoshis,
        height: 100,
        spendable_after: 1_000,
    };
    world.command(1, reassign.clone()).await;
    world.command(2, CommandAction::Freeze { outpoint }).await;
    world.command(3, CommandAction::Freeze { outpoint }).await;
    consume(&world, kill).await;
    for (id, expected) in [(1, "NOT_FROZEN"), (2, "done"), (3, "ALREADY_FROZEN")] {
        assert_eq!(outcome_of(&world, id).await, expected, "{what}, command {id}");
    }
    let old = spend(std::slice::from_ref(&coin), 1, 1);
    world.validate_at(&old, 200).await;
    consume(&world, kill).await;
    assert_eq!(conflict_reason(&world, &old).await, Some(Reason::Frozen { input: 0 }), "{what}");

    let other = utxo_store::tx::UtxoHash([7; 32]);
    let CommandAction::Reassign { height, spendable_after, .. } = reassign else { unreachable!() };
    let wrong = CommandAction::Reassign {
        outpoint,
        utxo_hash: other,
        new_script: &new.script,
        satoshis: new.satoshis,
        height,
        spendable_after,
    };
    world.command(4, wrong).await;
    world.command(5, reassign.clone()).await;
    world.command(6, reassign).await;
    world.command(7, CommandAction::Unfreeze { outpoint }).await;
    consume(&world, kill).await;
    let expected = [(4, "UTXO_HASH_MISMATCH"), (5, "done"), (6, "ALREADY_REASSIGNED"), (7, "NOT_FROZEN")];
    for (id, expected) in expected {
        assert_eq!(outcome_of(&world, id).await, expected, "{what}, command {id}");
    }
    let one = std::slice::from_ref;
    let claiming = |claimed: &Coin, tag| spend_claiming(one(&coin), one(claimed), 1, tag);
    let (as_before, early, owners) = (claiming(&coin, 2), claiming(&new, 3), claiming(&new, 4));
    world.validate_at(&as_before, 2_000).await;
    world.validate_at(&early, 1_099).await;
    consume(&world, kill).await;
    world.validate_at(&owners, 1_100).await;
    consume(&world, kill).await;
    assert_eq!(conflict_reason(&world, &as_before).await, Some(Reason::Mismatch { input: 0 }), "{what}");
    assert_eq!(conflict_reason(&world, &early).await, Some(Reason::NotYetSpendable { input: 0 }), "{what}");
    assert_eq!(world.slot(&coin).await.spender().map(|by| by.txid), Some(owners.txid), "{what}");
    world.check(&what).await;
}

/// A child waits for the lock of its parent, or has waited too long; another child is barred by a freeze until the
/// unfreeze.
#[tokio::test(start_paused = true)]
async fn a_child_barred_by_a_lock_or_freeze_has_a_second_chance() {
    for kill in KILLS {
        run_barred(World::with_settings(WorldSettings::paged(2)).await, kill).await;
    }
}

pub async fn run_barred(world: World, kill: Option<u64>) {
    let what = format!("killed after {kill:?}");
    let seed = world.seed(1, 3).await;
    let parent = spend(&[seed.coin(0)], 4, 1);
    let (child, barred) = (spend(&[parent.coin(3)], 1, 2), spend(&[seed.coin(1)], 1, 3));
    world.validate(&parent).await;
    world.command(1, CommandAction::Lock { txid: parent.txid }).await;
    world.command(2, CommandAction::Lock { txid: parent.txid }).await;
    world.command(3, CommandAction::Freeze { outpoint: seed.coin(1).outpoint }).await;
    consume(&world, kill).await;
    assert_eq!([outcome_of(&world, 1).await, outcome_of(&world, 2).await], ["done", "nothing"], "{what}");
    world.validate(&child).await;
    world.validate(&barred).await;
    consume(&world, kill).await;
    assert_eq!(conflict_reason(&world, &child).await, Some(Reason::Locked { parent: parent.txid }), "{what}");
    assert_eq!(conflict_reason(&world, &barred).await, Some(Reason::Frozen { input: 0 }), "{what}");
    world.command(4, CommandAction::Unlock { txid: parent.txid }).await;
    world.command(5, CommandAction::Unfreeze { outpoint: seed.coin(1).outpoint }).await;
    consume(&world, kill).await;
    for made in [&child, &barred] {
        assert_eq!(state(&world, made).await, TxState::Live, "{what}");
    }
    world.check(&what).await;
}

/// A command freezes a transaction of two pages. Children that took their slots before stay live; a later child of each
/// page is refused until the transaction is unfrozen. A rival of an earlier child loses, and the slot of an earlier
/// child that falls cannot be spent.
/// Protects: the flag bars every output that is free or becomes free, and no holder.
#[tokio::test(start_paused = true)]
async fn a_frozen_transaction_bars_later_spends_of_all_its_outputs() {
    for kill in KILLS {
        let what = format!("killed after {kill:?}");
        let world = World::with_settings(WorldSettings::paged(2)).await;
        let seed = world.seed(1, 1).await;
        let parent = spend(&[seed.coin(0)], 6, 1);
        let earlier = [0, 3, 2].map(|vout| spend(&[parent.coin(vout)], 1, vout as u8 + 2));
        for made in [&parent, &earlier[0], &earlier[1], &earlier[2]] {
            world.validate(made).await;
        }
        consume(&world, kill).await;
        world.command(1, CommandAction::FreezeTransaction { txid: parent.txid }).await;
        world.command(2, CommandAction::FreezeTransaction { txid: parent.txid }).await;
        consume(&world, kill).await;
        assert_eq!([outcome_of(&world, 1).await, outcome_of(&world, 2).await], ["done", "nothing"], "{what}");

        let later = [spend(&[parent.coin(1)], 1, 14), spend(&[parent.coin(4)], 1, 15)];
        let (rival, heir) = (spend(&[parent.coin(0)], 1, 6), spend(&[parent.coin(3)], 1, 7));
        // The slot of this rival is freed while the parent is frozen.
        let waiting = spend(&[parent.coin(2)], 1, 8);
        for made in [&later[0], &later[1], &rival, &waiting, &earlier[0]] {
            world.validate(made).await;
        }
        consume(&world, kill).await;
        world.command(3, CommandAction::SetConflicting { txid: earlier[1].txid }).await;
        world.command(5, CommandAction::SetConflicting { txid: earlier[2].txid }).await;
        consume(&world, kill).await;
        assert!(matches!(world.slot(&parent.coin(3)).await, Slot::Unspent(_)), "{what}: the fallen child has no slot");
        world.validate(&heir).await;
        consume(&world, kill).await;
        for made in [&later[0], &later[1], &heir, &waiting] {
            assert_eq!(conflict_reason(&world, made).await, Some(Reason::Frozen { input: 0 }), "{what}");
        }
        assert_eq!(state(&world, &earlier[0]).await, TxState::Live, "{what}");
        // The flag comes before the spender in the order of refusal.
        assert_eq!(conflict_reason(&world, &rival).await, Some(Reason::Frozen { input: 0 }), "{what}");

        world.command(4, CommandAction::UnfreezeTransaction { txid: parent.txid }).await;
        consume(&world, kill).await;
        for made in [&later[0], &later[1], &heir, &waiting] {
            assert_eq!(state(&world, made).await, TxState::Live, "{what}");
        }
        world.check(&what).await;
    }
}

/// An output is frozen alone, and its transaction, too. Protects: each bar ends by its own command.
#[tokio::test(start_paused = true)]
async fn an_output_that_was_frozen_alone_stays_frozen_with_its_transaction_unfrozen() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let outpoint = seed.coin(0).outpoint;
    world.command(1, CommandAction::Freeze { outpoint }).await;
    world.command(2, CommandAction::FreezeTransaction { txid: seed.txid }).await;
    world.run_until_consumed().await;
    let children = [0, 1].map(|vout| spend(&[seed.coin(vout)], 1, vout as u8 + 1));
    for child in &children {
        world.validate(child).await;
    }
    world.run_until_consumed().await;
    world.command(3, CommandAction::UnfreezeTransaction { txid: seed.txid }).await;
    world.run_until_consumed().await;
    assert_eq!(conflict_reason(&world, &children[0]).await, Some(Reason::Frozen { input: 0 }));
    assert_eq!(state(&world, &children[1]).await, TxState::Live);
    world.command(4, CommandAction::Unfreeze { outpoint }).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &children[0]).await, TxState::Live);
    world.check("frozen alone and as a whole").await;
}

/// Children are barred twice, one bar after the other. The verdict names the first bar; the second chance after its end
/// met the second bar, which changes no verdict.
/// Protects: when a bar is lifted, every child that it still bars is reconsidered, whatever its verdict names.
#[tokio::test(start_paused = true)]
async fn a_child_barred_twice_has_a_second_chance_after_the_last_bar() {
    for kill in KILLS {
        let what = format!("killed after {kill:?}");
        let world = World::with_settings(WorldSettings::paged(2)).await;
        let seed = world.seed(1, 5).await;
        let parents: Vec<Made> = (0..3).map(|number| spend(&[seed.coin(number)], 4, number as u8 + 1)).collect();
        let [late, one, other] = &parents[..] else { unreachable!() };
        let children = [
            // 1. The parent is missing, and locked when it comes. 2. A parent is missing and another one locked. 3.
            // Both parents are locked. 4. An output is frozen and a parent locked. 5. A parent is missing and an output
            // frozen.
            spend(&[late.coin(3)], 1, 11),
            spend(&[late.coin(0), one.coin(0)], 1, 12),
            spend(&[one.coin(1), other.coin(0)], 1, 13),
            spend(&[seed.coin(3), other.coin(1)], 1, 14),
            spend(&[late.coin(1), seed.coin(4)], 1, 15),
        ];
        for parent in [one, other] {
            world.validate(parent).await;
        }
        world.run_until_consumed().await;
        for (id, parent) in [(1, one), (2, other)] {
            world.command(id, CommandAction::Lock { txid: parent.txid }).await;
        }
        for (id, coin) in [(3, 3), (8, 4)] {
            world.command(id, CommandAction::Freeze { outpoint: seed.coin(coin).outpoint }).await;
        }
        consume(&world, kill).await;
        for id in [1, 2, 3, 8] {
            assert_eq!(outcome_of(&world, id).await, "done", "{what}");
        }
        for child in &children {
            world.validate(child).await;
        }
        consume(&world, kill).await;
        let missing = Some(Reason::MissingParent { parent: late.txid });
        let locked = |parent: &Made| Some(Reason::Locked { parent: parent.txid });
        let expected_conflict = [missing, missing, locked(one), Some(Reason::Frozen { input: 0 }), missing];
        let fallen = async || {
            let mut reasons = Vec::new();
            for child in &children {
                reasons.push(conflict_reason(&world, child).await);
            }
            reasons
        };
        assert_eq!(fallen().await, expected_conflict, "{what}");

        world.validate_locked(late).await;
        world.command(4, CommandAction::Unlock { txid: one.txid }).await;
        world.command(5, CommandAction::Unfreeze { outpoint: seed.coin(3).outpoint }).await;
        consume(&world, kill).await;
        assert_eq!(state(&world, late).await, TxState::Live, "{what}");
        assert!(world.page(late).await.unwrap().locked, "{what}");
        assert_eq!(fallen().await, expected_conflict, "{what}: each child has another bar left");

        world.command(6, CommandAction::Unlock { txid: other.txid }).await;
        consume(&world, kill).await;
        assert_eq!(fallen().await, [missing, missing, None, None, missing], "{what}");
        world.command(7, CommandAction::Unlock { txid: late.txid }).await;
        consume(&world, kill).await;
        assert_eq!(fallen().await, [None, None, None, None, missing], "{what}");
        world.command(9, CommandAction::Unfreeze { outpoint: seed.coin(4).outpoint }).await;
        consume(&world, kill).await;
        for child in &children {
            assert_eq!(state(&world, child).await, TxState::Live, "{what}");
        }
        world.check(&what).await;
    }
}

/// The same, where a block lifts the last bar by listing the locked parent. A child that the reason of its verdict
/// still bars is not reconsidered.
#[tokio::test(start_paused = true)]
async fn a_child_barred_twice_has_a_second_chance_by_a_block() {
    for kill in KILLS {
        let what = format!("killed after {kill:?}");
        let world = World::with_settings(WorldSettings::paged(2)).await;
        let seed = world.seed(1, 3).await;
        let (late, other) = (spend(&[seed.coin(0)], 4, 1), spend(&[seed.coin(1)], 1, 2));
        let known = spend(&[seed.coin(2)], 3, 3);
        let (winner, loser) = (spend(&[known.coin(0)], 1, 4), spend(&[known.coin(0)], 1, 5));
        let children = [spend(&[late.coin(3)], 1, 6), spend(&[late.coin(0), other.coin(0)], 1, 7)];
        let never = spend(&[spend(&[known.coin(2)], 1, 9).coin(0), known.coin(1)], 1, 8);
        for made in [&known, &winner] {
            world.validate(made).await;
        }
        world.run_until_consumed().await;
        world.validate_locked(&other).await;
        for child in children.iter().chain([&loser, &never]) {
            world.validate(child).await;
        }
        consume(&world, kill).await;
        world.validate_locked(&late).await;
        consume(&world, kill).await;
        let missing = Some(Reason::MissingParent { parent: late.txid });
        for child in &children {
            assert_eq!(conflict_reason(&world, child).await, missing, "{what}");
        }
        assert!(matches!(conflict_reason(&world, &loser).await, Some(Reason::DoubleSpend { .. })), "{what}");
        assert!(matches!(conflict_reason(&world, &never).await, Some(Reason::MissingParent { .. })), "{what}");
        world.mine(1, &[&late, &other, &known]).await;
        consume(&world, kill).await;
        for child in &children {
            assert_eq!(state(&world, child).await, TxState::Live, "{what}");
        }
        let logs = Logs::read(&world.broker, &world.settings.pipeline.topic, &world.settings.topics).await.unwrap();
        for made in [&loser, &never] {
            let again = logs.chain.iter().filter(|logged| match Event::decode(&logged.message.payload).unwrap() {
                Event::Command(command) => {
                    matches!(command.action, CommandAction::Reconsider { txid } if txid == made.txid)
                }
                _ => false,
            });
            assert_eq!(again.count(), 0, "{what}: a useless second chance was published");
        }
        world.check(&what).await;
    }
}

/// A child of a locked parent becomes conflicting with another parent, by the very block that lists the locked parent.
/// Protects: a transaction that becomes conflicting by an event has no second chance by the same event.
#[tokio::test(start_paused = true)]
async fn a_child_that_loses_by_the_unlocking_block_is_not_reconsidered() {
    for kill in KILLS {
        let what = format!("killed after {kill:?}");
        let world = World::new().await;
        let seed = world.seed(1, 2).await;
        let (parent, loser, winner) =
            (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(1)], 1, 2), spend(&[seed.coin(1)], 1, 3));
        let child = spend(&[parent.coin(0), loser.coin(0)], 1, 4);
        for made in [&parent, &loser, &child] {
            world.validate(made).await;
        }
        world.run_until_consumed().await;
        world.command(1, CommandAction::Lock { txid: parent.txid }).await;
        world.validate(&winner).await;
        consume(&world, kill).await;
        assert!(matches!(conflict_reason(&world, &winner).await, Some(Reason::DoubleSpend { .. })), "{what}");
        world.mine(1, &[&parent, &winner]).await;
        consume(&world, kill).await;
        assert!(matches!(conflict_reason(&world, &child).await, Some(Reason::ConflictingParent { .. })), "{what}");
        world.check(&what).await;
    }
}

/// A parent is created locked because its event says so, and is then unlocked by a command; `regressions/chain.rs` has
/// the unlock by a block.
#[tokio::test(start_paused = true)]
async fn a_transaction_created_locked_is_unlocked_by_a_command() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let running = world.start();
    world.validate_locked(&parent).await;
    world.validate(&child).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(world.page(&parent).await.unwrap().locked);
    assert!(world.page(&child).await.is_none(), "the child waits");
    world.command(1, CommandAction::Unlock { txid: parent.txid }).await;
    world.until_consumed().await;
    running.stop().await;
    assert!(!world.page(&parent).await.unwrap().locked);
    assert_eq!(state(&world, &child).await, TxState::Live);
    assert!(world.page(&child).await.unwrap().verdict().is_none(), "the child needed no decision");
    world.check("created locked").await;
}

#[tokio::test(start_paused = true)]
async fn a_repeated_command_id_changes_nothing_and_is_answered_again() {
    for kill in KILLS {
        let what = format!("killed after {kill:?}");
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let outpoint = seed.coin(0).outpoint;
        world.command(1, CommandAction::Freeze { outpoint }).await;
        world.command(2, CommandAction::Unfreeze { outpoint }).await;
        consume(&world, kill).await;
        world.command(1, CommandAction::Freeze { outpoint }).await;
        world.command(2, CommandAction::Lock { txid: seed.txid }).await;
        world.command(1, CommandAction::Freeze { outpoint }).await;
        consume(&world, kill).await;
        assert_eq!(world.results(1).await, vec![CommandResult::Applied; 3], "{what}");
        let [CommandResult::Applied, CommandResult::Refused { code, .. }] = &world.results(2).await[..] else {
            panic!("{what}: {:?}", world.results(2).await)
        };
        assert_eq!(code, "ID_USED", "{what}");
        assert!(matches!(world.slot(&seed.coin(0)).await, Slot::Unspent(_)), "{what}");
        assert!(!world.page(&seed).await.unwrap().locked, "{what}");
        world.check(&what).await;
    }
}

/// The transaction becomes conflicting with all its descendants; its rival gets a second chance; then the transaction
/// can be deleted.
#[tokio::test(start_paused = true)]
async fn a_transaction_is_made_conflicting_and_deleted() {
    for page_size in [1_000, 2] {
        for kill in KILLS {
            run_conflicting_and_deleted(World::with_settings(WorldSettings::paged(page_size)).await, kill).await;
        }
    }
}

pub async fn run_conflicting_and_deleted(world: World, kill: Option<u64>) {
    let what = format!("pages of {}, killed after {kill:?}", world.store.settings.utxo_batch_size);
    let seed = world.seed(1, 2).await;
    let (made, rival) = (spend(&[seed.coin(0)], 4, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[made.coin(3)], 1, 3);
    let mined = spend(&[seed.coin(1)], 1, 4);
    for event in [&made, &child, &mined] {
        world.validate(event).await;
    }
    world.mine(1, &[&mined]).await;
    consume(&world, kill).await;
    world.validate(&rival).await;
    world.command(1, CommandAction::Delete { txid: made.txid }).await;
    world.command(2, CommandAction::SetConflicting { txid: mined.txid }).await;
    world.command(3, CommandAction::SetConflicting { txid: made.txid }).await;
    world.command(4, CommandAction::SetConflicting { txid: made.txid }).await;
    consume(&world, kill).await;
    let expected = [(1, "INVALID_SPEND"), (2, "INVALID_SPEND"), (3, "done"), (4, "nothing")];
    for (id, expected) in expected {
        assert_eq!(outcome_of(&world, id).await, expected, "{what}, command {id}");
    }
    assert_eq!(conflict_reason(&world, &made).await, Some(Reason::Command), "{what}");
    let expected_conflict = Some(Reason::ConflictingParent { parent: made.txid });
    assert_eq!(conflict_reason(&world, &child).await, expected_conflict, "{what}");
    assert_eq!(state(&world, &rival).await, TxState::Live, "{what}");

    world.command(5, CommandAction::Preserve { txid: made.txid, until: 500 }).await;
    world.command(6, CommandAction::Preserve { txid: made.txid, until: 400 }).await;
    world.command(7, CommandAction::Delete { txid: made.txid }).await;
    world.command(8, CommandAction::Delete { txid: child.txid }).await;
    world.command(9, CommandAction::Delete { txid: child.txid }).await;
    consume(&world, kill).await;
    let expected = [(5, "done"), (6, "nothing"), (7, "NOT_PRUNABLE"), (8, "done"), (9, "TX_NOT_FOUND")];
    for (id, expected) in expected {
        assert_eq!(outcome_of(&world, id).await, expected, "{what}, command {id}");
    }
    assert_eq!(state(&world, &child).await, TxState::Pruned(101), "{what}");
    world.validate(&child).await;
    consume(&world, kill).await;
    assert_eq!(state(&world, &child).await, TxState::Pruned(101), "{what}: its event does not restore it");
    world.check(&what).await;
}

/// Each command is refused with its code, and the chain goes on.
#[tokio::test(start_paused = true)]
async fn an_impossible_command_is_refused_with_its_code() {
    let world = World::with_settings(WorldSettings::paged(2)).await;
    let seed = world.seed(1, 3).await;
    let spender = spend(&[seed.coin(0)], 1, 1);
    world.validate(&spender).await;
    world.run_until_consumed().await;
    let at = |vout| Coin { outpoint: utxo_store::tx::Outpoint { txid: seed.txid, vout }, ..seed.coin(0) }.outpoint;
    let nobody = Txid([9; 32]);
    let long = vec![0x51; 10_001];
    let reassign = |new_script: &'static [u8], height, spendable_after| CommandAction::Reassign {
        outpoint: at(1),
        utxo_hash: seed.coin(1).utxo_hash(),
        new_script,
        satoshis: 1,
        height,
        spendable_after,
    };
    let long: &'static [u8] = long.leak();
    let spent = CommandAction::Unspend { outpoint: at(0), spender: spender.txid, input: 0 };
    let commands = [
        (CommandAction::Lock { txid: nobody }, "TX_NOT_FOUND"),
        (CommandAction::Delete { txid: nobody }, "TX_NOT_FOUND"),
        (CommandAction::Freeze { outpoint: at(0) }, "SPENT"),
        (CommandAction::Freeze { outpoint: at(3) }, "UTXO_NOT_FOUND"),
        (CommandAction::Freeze { outpoint: at(u32::MAX) }, "UTXO_NOT_FOUND"),
        (CommandAction::Unfreeze { outpoint: at(4) }, "UTXO_NOT_FOUND"),
        (CommandAction::Unfreeze { outpoint: at(1) }, "NOT_FROZEN"),
        (spent, "INVALID_SPEND"),
        (CommandAction::Unspend { outpoint: at(9), spender: nobody, input: 0 }, "UTXO_NOT_FOUND"),
        (CommandAction::Unspend { outpoint: at(1), spender: nobody, input: 0 }, "nothing"),
        (CommandAction::FreezeUntil { outpoint: at(1), height: u32::MAX }, "INVALID_HEIGHT"),
        (CommandAction::FreezeUntil { outpoint: at(1), height: u32::MAX - 1 }, "done"),
        (CommandAction::FreezeUntil { outpoint: at(1), height: u32::MAX - 1 }, "nothing"),
        (CommandAction::Preserve { txid: seed.txid, until: u32::MAX }, "INVALID_HEIGHT"),
        (reassign(b"\x51", u32::MAX, 0), "INVALID_HEIGHT"),
        (reassign(b"\x51", u32::MAX - 1_000, 1_000), "INVALID_HEIGHT"),
        (reassign(long, 1, 1), "SCRIPT_TOO_LONG"),
        (CommandAction::Freeze { outpoint: at(1) }, "done"),
        (CommandAction::FreezeUntil { outpoint: at(1), height: 5 }, "FROZEN"),
        (CommandAction::Unspend { outpoint: at(1), spender: nobody, input: 0 }, "FROZEN"),
    ];
    for ((action, _), id) in commands.iter().zip(1..) {
        world.command(id, action.clone()).await;
    }
    world.run_until_consumed().await;
    for ((action, expected), id) in commands.iter().zip(1..) {
        assert_eq!(outcome_of(&world, id).await, *expected, "{action:?}");
    }
    world.check("refused by name").await;
}

/// An output is given to new owners with long scripts again and again. Protects: the reassignments of a page are
/// bounded, so that the page never becomes too large for the store, which would halt the chain.
#[tokio::test(start_paused = true)]
async fn reassignments_of_a_page_are_bounded() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let mut coin = seed.coin(1);
    let mut expected = Vec::new();
    for round in 0..27_u8 {
        let script = vec![round; 10_000];
        let fits = (usize::from(round) + 1) * 10_256 <= 262_144;
        let action = CommandAction::Reassign {
            outpoint: coin.outpoint,
            utxo_hash: coin.utxo_hash(),
            new_script: &script,
            satoshis: coin.satoshis,
            height: 100,
            spendable_after: 1,
        };
        world.command(2 * round + 1, CommandAction::Freeze { outpoint: coin.outpoint }).await;
        world.command(2 * round + 2, action).await;
        expected.push(if fits { "done" } else { "TOO_MANY_REASSIGNMENTS" });
        if fits {
            coin.script = script;
        }
    }
    world.run_until_consumed().await;
    assert_eq!(expected.iter().filter(|code| **code == "done").count(), 25);
    for (code, round) in expected.iter().zip(0..) {
        assert_eq!(outcome_of(&world, 2 * round + 2).await, *code, "{round}");
    }
    world.check("many reassignments").await;
}

/// Returns a transaction whose record an instance is about to create, and a command that locks the transaction.
async fn lock_before_create() -> (World, Made, Arc<HoldingEngine>, Running) {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let made = spend(&[seed.coin(0)], 1, 1);
    let txid = made.txid;
    let held = HoldingEngine::hold_all(&world, move |row| is_create_of(row, txid));
    let running = held.in_front_of(&world).start();
    world.validate(&made).await;
    held.wait_for_held(1).await;
    world.command(1, CommandAction::Lock { txid }).await;
    (world, made, held, running)
}

/// Protects: a command waits for its transaction as long as the transaction may still come.
#[tokio::test(start_paused = true)]
async fn a_command_waits_for_a_transaction_produced_before_it() {
    let (world, made, held, running) = lock_before_create().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(outcome_of(&world, 1).await, "none");
    held.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(outcome_of(&world, 1).await, "done");
    assert!(world.page(&made).await.unwrap().locked);
    world.check("a command that waits").await;
}

/// Waits until this command has a result, and returns the time since `begun`.
async fn until_answered(world: &World, id: u8, begun: tokio::time::Instant) -> Duration {
    while world.results(id).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    begun.elapsed()
}

/// The event of a transaction is read and not completed, and twenty commands name the transaction.
/// Protects: commands that are in the log together hold the chain as long as one.
#[tokio::test(start_paused = true)]
async fn commands_on_one_waiting_transaction_share_their_wait() {
    let (world, made, held, running) = lock_before_create().await;
    let begun = tokio::time::Instant::now();
    for id in 2..=20 {
        world.command(id, CommandAction::Lock { txid: made.txid }).await;
    }
    let (first, last) = (until_answered(&world, 1, begun).await, until_answered(&world, 20, begun).await);
    let grace = Duration::from_millis(world.settings.pipeline.missing_parent_grace_ms);
    assert!(first >= grace - Duration::from_millis(100) && last < grace * 3, "{first:?}, {last:?}");
    held.release().await;
    world.until_consumed().await;
    running.stop().await;
    for id in 1..=20 {
        assert_eq!(outcome_of(&world, id).await, "TX_NOT_FOUND");
    }
    world.check("commands that share a wait").await;
}

/// A transaction waits for a lock, in a store that can lose writes.
/// Protects: only the first command waits for the events whose writes a node may have lost.
#[tokio::test(start_paused = true)]
async fn only_the_first_command_waits_for_lost_events() {
    let mut world = World::forgetful().await;
    world.settings.pipeline.plan.flag_grace_ms = 3_600_000;
    let grace = Duration::from_secs(60);
    world.settings.pipeline.missing_parent_grace_ms = grace.as_millis() as u64;
    let seed = world.seed(1, 1).await;
    let root = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[root.coin(0)], 1, 2);
    world.validate_locked(&root).await;
    world.run_until_consumed().await;
    let running = world.start();
    world.validate(&child).await;
    tokio::time::sleep(Duration::from_secs(120)).await;
    let mut answers = Vec::new();
    for id in 1..=10 {
        let begun = tokio::time::Instant::now();
        world.command(id, CommandAction::Preserve { txid: seed.txid, until: 1_000 + u32::from(id) }).await;
        answers.push(until_answered(&world, id, begun).await);
    }
    assert!(answers[0] >= grace && answers[1..].iter().all(|after| *after < Duration::from_secs(2)), "{answers:?}");
    world.command(11, CommandAction::Unlock { txid: root.txid }).await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(state(&world, &child).await, TxState::Live);
    world.check("commands over a store that can lose writes").await;
}

/// The transaction of the first command waits for a parent whose contest stands behind the command. The transaction of
/// the second waits for a parent that never comes, which is proven only once the chain goes on.
/// Protects: no command stops the chain.
#[tokio::test(start_paused = true)]
async fn a_command_does_not_wait_for_a_transaction_that_waits_for_the_chain() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let (winner, loser) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    let child = spend(&[loser.coin(0)], 1, 3);
    let never = spend(&[seed.coin(1)], 1, 4);
    let orphan = spend(&[never.coin(0)], 1, 5);
    world.validate(&winner).await;
    world.run_until_consumed().await;
    for made in [&loser, &child, &orphan] {
        world.validate(made).await;
    }
    world.command(1, CommandAction::Lock { txid: child.txid }).await;
    world.command(2, CommandAction::Lock { txid: orphan.txid }).await;
    world.run_until_consumed().await;
    assert_eq!(outcome_of(&world, 1).await, "TX_NOT_FOUND");
    assert_eq!(outcome_of(&world, 2).await, "TX_NOT_FOUND");
    assert!(matches!(conflict_reason(&world, &child).await, Some(Reason::ConflictingParent { .. })));
    assert!(matches!(conflict_reason(&world, &orphan).await, Some(Reason::MissingParent { .. })));
    world.check("commands that do not wait").await;
}

/// Returns the topics of a world.
pub fn topics() -> Topics {
    let name = |name: &str| name.parse().unwrap();
    let (chain, decisions, outcomes) = (name("chain"), name("decisions"), name("outcomes"));
    Topics { chain, decisions, outcomes, ..Config::default().kafka.topics }
}

/// The work of `utxo-store command`: it publishes commands, waits for their outcomes, and lists the alert commands.
#[tokio::test(start_paused = true)]
async fn a_client_is_answered_and_alert_commands_are_listed() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let outpoint = seed.coin(0).outpoint;
    let pending = [
        PendingCommand::new([1; 16], CommandAction::Freeze { outpoint }),
        PendingCommand::new([2; 16], CommandAction::Reconsider { txid: seed.txid }),
        PendingCommand::new([3; 16], CommandAction::Lock { txid: Txid([9; 32]) }),
    ];
    let answers_of = async |pending: &[PendingCommand]| {
        submit_commands(&world.broker, &topics(), pending, Duration::from_secs(60)).await.unwrap()
    };
    let submit = async |pending: &[PendingCommand]| {
        answers_of(pending).await.into_iter().map(|answer| answer.outcome).collect::<Vec<_>>()
    };
    assert_eq!(submit(&pending[..1]).await, [CommandOutcome::Unanswered], "no instance is running");
    let running = world.start();
    let answers = answers_of(&pending).await;
    let lines: Vec<_> = answers.iter().map(ToString::to_string).collect();
    assert!(lines[0].starts_with(&format!("{outpoint} (id 0101")), "the answer names the output: {}", lines[0]);
    assert!(lines[1].starts_with(&format!("{} (id 0202", seed.txid)), "{}", lines[1]);
    let answers: Vec<_> = answers.into_iter().map(|answer| answer.outcome).collect();
    assert_eq!(answers[..2], [CommandOutcome::Applied, CommandOutcome::Unchanged]);
    assert_eq!(world.results(2).await, [CommandResult::AlreadyApplied], "the outcomes have the answer, too");
    assert!(matches!(&answers[2], CommandOutcome::Refused { code, .. } if code == "TX_NOT_FOUND"), "{answers:?}");
    assert_eq!(
        submit(&[PendingCommand::new([4; 16], CommandAction::Unfreeze { outpoint })]).await,
        [CommandOutcome::Applied]
    );
    assert_eq!(submit(&pending[..1]).await, [CommandOutcome::Applied], "a repeat is answered again");
    world.until_consumed().await;
    running.stop().await;
    let listed = list_commands(&world.broker, &topics(), false).await.unwrap();
    let shown = listed.iter().map(|entry| (entry.chain_offset, entry.repeats, entry.outcome.clone()));
    let done = Some(CommandOutcome::Applied);
    let expected = [(0, None), (1, Some(0)), (4, None), (5, Some(0))];
    assert_eq!(shown.collect::<Vec<_>>(), expected.map(|(at, repeats)| (at, repeats, done.clone())));
    assert!(listed[2].to_string().contains("unfreeze") && listed[2].to_string().ends_with(": done"), "{}", listed[2]);
    let all = list_commands(&world.broker, &topics(), true).await.unwrap();
    assert_eq!(all.len(), 5, "the list of all commands has the refused lock too");
    world.check("a client").await;
}

/// Two sequencers handle one command, and the later one finds its step taken.
/// Protects: the list of commands shows the result that counts, not the first one that was written.
#[tokio::test(start_paused = true)]
async fn the_command_list_shows_the_result_that_counts() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.command(1, CommandAction::Freeze { outpoint: seed.coin(0).outpoint }).await;
    let done = |result| DecisionBody::CommandDone { id: [1; 16], executed_at: 0, result };
    let refused = CommandResult::Refused { code: "TX_NOT_FOUND".into(), message: String::new() };
    let decisions =
        [(0, DecisionBody::PassedOver { txid: seed.txid }), (0, done(refused)), (1, done(CommandResult::Applied))];
    for (step, body) in decisions {
        let decision = Event::Decision(Decision { chain_offset: 0, step, body });
        world.produce("decisions", &0_u64.to_be_bytes(), decision.encode()).await;
    }
    let listed = list_commands(&world.broker, &topics(), false).await.unwrap();
    assert_eq!(listed.into_iter().map(|entry| entry.outcome).collect::<Vec<_>>(), [Some(CommandOutcome::Applied)]);
}

/// Another sequencer has decided on a command that this one still evaluates with another result.
/// Protects: the published outcome is the one that was decided.
#[tokio::test(start_paused = true)]
async fn a_command_outcome_is_the_one_that_was_decided() {
    let (world, _, held, running) = lock_before_create().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let result = CommandResult::AlreadyApplied;
    let done = DecisionBody::CommandDone { id: [1; 16], executed_at: 0, result: result.clone() };
    for (body, step) in [done, DecisionBody::Closed].into_iter().zip(0..) {
        let decision = Event::Decision(Decision { chain_offset: 0, step, body });
        world.produce("decisions", &0_u64.to_be_bytes(), decision.encode()).await;
    }
    while world.results(1).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    held.release().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.results(1).await, [result]);
    world.check_without_model("told as decided").await;
}

/// A verdict accepts a transaction, which is then made conflicting and deleted. The sequencer dies before it commits
/// any of this.
/// Protects: a verdict that is applied again passes over a transaction deleted since, and does not halt the chain.
#[tokio::test(start_paused = true)]
async fn a_verdict_on_a_transaction_deleted_since_is_reapplied() {
    let mut world = World::new().await;
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    let seed = world.seed(1, 1).await;
    let accepted = spend(&[seed.coin(0)], 1, 1);
    let outpoint = seed.coin(0).outpoint;
    let running = world.start();
    world.command(1, CommandAction::Freeze { outpoint }).await;
    world.command(2, CommandAction::Unfreeze { outpoint }).await;
    while outcome_of(&world, 2).await != "done" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The slot has a history by now, so that the spend is contested.
    world.validate(&accepted).await;
    while world.page(&accepted).await.is_none_or(|page| page.state() != TxState::Live) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.command(3, CommandAction::SetConflicting { txid: accepted.txid }).await;
    world.command(4, CommandAction::Delete { txid: accepted.txid }).await;
    while !matches!(state(&world, &accepted).await, TxState::Pruned(_)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.kill().await;
    world.settings.sequencer.commit_interval = Duration::from_millis(100);
    world.run_until_consumed().await;
    assert!(matches!(state(&world, &accepted).await, TxState::Pruned(_)));
    assert_eq!(outcome_of(&world, 4).await, "done");
    world.check("a verdict on what was deleted").await;
}

/// A command makes a parent conflicting together with its live child. The parent is deleted, the child is not. The
/// sequencer dies before it commits any of this (simulator, seeds 1543 and 1559).
/// Protects: a verdict that is applied again does not wait for the outputs of a parent deleted since.
#[tokio::test(start_paused = true)]
async fn a_verdict_on_the_child_of_a_parent_deleted_since_is_reapplied() {
    let mut world = World::new().await;
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    let parent = spend(&[world.seed(1, 1).await.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let running = world.start();
    world.validate(&parent).await;
    world.validate(&child).await;
    while world.page(&child).await.is_none_or(|page| page.state() != TxState::Live) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.command(1, CommandAction::SetConflicting { txid: parent.txid }).await;
    world.command(2, CommandAction::Delete { txid: parent.txid }).await;
    while !matches!(state(&world, &parent).await, TxState::Pruned(_)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.kill().await;
    world.settings.sequencer.commit_interval = Duration::from_millis(100);
    world.run_until_consumed().await;
    assert_eq!(conflict_reason(&world, &child).await, Some(Reason::ConflictingParent { parent: parent.txid }));
    world.check("a verdict on the child of a deleted parent").await;
}

/// Two transactions spend one coin, and an operator makes both conflicting.
/// Protects: a transaction that an operator made conflicting has no second chance when its rival becomes conflicting
/// too.
#[tokio::test(start_paused = true)]
async fn a_transaction_made_conflicting_stays_so_when_its_rival_conflicts() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (one, other) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    world.validate(&one).await;
    world.run_until_consumed().await;
    world.command(1, CommandAction::SetConflicting { txid: one.txid }).await;
    world.validate(&other).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &other).await, TxState::Live);
    world.command(2, CommandAction::SetConflicting { txid: other.txid }).await;
    world.run_until_consumed().await;
    for made in [&one, &other] {
        assert_eq!(conflict_reason(&world, made).await, Some(Reason::Command));
    }
    world.command(3, CommandAction::Reconsider { txid: one.txid }).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &one).await, TxState::Live);
    world.check("two rivals made conflicting").await;
}
