//! Commands through the whole pipeline: what each does, and that it does so once, whoever dies where.

use std::{sync::Arc, time::Duration};

use utxo_store::{
    cli::command::{Asked, Became, Topics, ask, audit},
    event::{Action, Command, CommandResult, Decision, DecisionBody, Event, OutcomeKind},
    record::{Reason, Slot, TxState, Verdict},
    tx::Txid,
};

use crate::{
    model::Logs,
    regressions::held::{Held, is_create_of},
    world::{Coin, Made, Running, World, WorldSettings, spend, spend_claiming},
};

impl World {
    /// Publishes a command under this id.
    pub async fn command(&self, id: u8, action: Action<'_>) {
        let key = action.subject().0;
        self.produce("chain", &key, Event::Command(Command { id: [id; 16], action }).encode()).await;
    }

    /// What became of the command with this id, each time that it was told.
    pub async fn results(&self, id: u8) -> Vec<CommandResult> {
        let logs = Logs::read(&self.broker, &self.settings.pipeline.topic, &self.settings.topics).await.unwrap();
        let told = logs.outcomes.iter().filter_map(|logged| match Event::decode(&logged.message.payload).unwrap() {
            Event::Outcome(outcome) => Some((outcome.chain_offset, outcome.kind)),
            _ => None,
        });
        let mut told: Vec<_> = told
            .filter_map(|(at, kind)| match kind {
                OutcomeKind::Command { id: named, result } if named == [id; 16] => Some((at, result)),
                _ => None,
            })
            .collect();
        told.sort_by_key(|(at, _)| *at);
        // Whoever died before it had committed tells it again.
        told.dedup();
        told.into_iter().map(|(_, result)| result).collect()
    }

    pub async fn slot(&self, coin: &Coin) -> Slot {
        self.store.slot(coin.outpoint).await.unwrap().expect("it has a slot")
    }
}

/// The code of a command that was refused, or what else became of it.
async fn became(world: &World, id: u8) -> String {
    match world.results(id).await.pop() {
        Some(CommandResult::Refused { code, message }) => {
            assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
            code
        }
        Some(CommandResult::Applied) => "done".to_owned(),
        Some(CommandResult::AlreadyApplied) => "nothing".to_owned(),
        None => "untold".to_owned(),
    }
}

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

async fn lost_for(world: &World, made: &Made) -> Option<Reason> {
    match state(world, made).await {
        TxState::Conflicting(Verdict::Conflicting(reason)) => Some(reason),
        _ => None,
    }
}

/// Whoever holds the chain is killed so late, if at all; then somebody else goes on.
const KILLS: [Option<u64>; 8] = [None, Some(0), Some(1), Some(2), Some(4), Some(7), Some(12), Some(40)];

async fn consume(world: &World, kill_after_ms: Option<u64>) {
    if let Some(ms) = kill_after_ms {
        let running = world.start();
        tokio::time::sleep(Duration::from_millis(ms)).await;
        running.kill().await;
    }
    world.run_until_consumed().await;
}

/// Output 3 lies on the second page where there are several.
#[tokio::test(start_paused = true)]
async fn an_output_is_frozen_given_to_a_new_owner_and_spent_by_no_other() {
    for page_size in [1_000, 2] {
        for kill in KILLS {
            frozen_and_given_away(World::with_settings(WorldSettings::paged(page_size)).await, kill).await;
        }
    }
}

pub async fn frozen_and_given_away(world: World, kill: Option<u64>) {
    let what = format!("pages of {}, killed after {kill:?}", world.store.settings.utxo_batch_size);
    let seed = world.seed(1, 4).await;
    let (coin, outpoint) = (seed.coin(3), seed.coin(3).outpoint);
    let new = Coin { script: vec![0x53, 0x99], ..coin.clone() };
    let reassign = Action::Reassign {
        outpoint,
        utxo_hash: coin.utxo_hash(),
        new_script: &new.script,
        satoshis: new.satoshis,
        height: 100,
        spendable_after: 1_000,
    };
    world.command(1, reassign.clone()).await;
    world.command(2, Action::Freeze { outpoint }).await;
    world.command(3, Action::Freeze { outpoint }).await;
    consume(&world, kill).await;
    for (id, expected) in [(1, "NOT_FROZEN"), (2, "done"), (3, "ALREADY_FROZEN")] {
        assert_eq!(became(&world, id).await, expected, "{what}, command {id}");
    }
    let old = spend(std::slice::from_ref(&coin), 1, 1);
    world.validate_at(&old, 200).await;
    consume(&world, kill).await;
    assert_eq!(lost_for(&world, &old).await, Some(Reason::Frozen { input: 0 }), "{what}");

    let other = utxo_store::tx::UtxoHash([7; 32]);
    let Action::Reassign { height, spendable_after, .. } = reassign else { unreachable!() };
    let wrong = Action::Reassign {
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
    world.command(7, Action::Unfreeze { outpoint }).await;
    consume(&world, kill).await;
    let expected = [(4, "UTXO_HASH_MISMATCH"), (5, "done"), (6, "ALREADY_REASSIGNED"), (7, "NOT_FROZEN")];
    for (id, expected) in expected {
        assert_eq!(became(&world, id).await, expected, "{what}, command {id}");
    }
    let one = std::slice::from_ref;
    let claiming = |claimed: &Coin, tag| spend_claiming(one(&coin), one(claimed), 1, tag);
    let (as_before, early, owners) = (claiming(&coin, 2), claiming(&new, 3), claiming(&new, 4));
    world.validate_at(&as_before, 2_000).await;
    world.validate_at(&early, 1_099).await;
    consume(&world, kill).await;
    world.validate_at(&owners, 1_100).await;
    consume(&world, kill).await;
    assert_eq!(lost_for(&world, &as_before).await, Some(Reason::Mismatch { input: 0 }), "{what}");
    assert_eq!(lost_for(&world, &early).await, Some(Reason::NotYetSpendable { input: 0 }), "{what}");
    assert_eq!(world.slot(&coin).await.spender().map(|by| by.txid), Some(owners.txid), "{what}");
    world.check(&what).await;
}

/// A child waits for its parent's lock, or has waited too long; and one is barred by a freeze until that ends.
#[tokio::test(start_paused = true)]
async fn what_a_lock_or_a_freeze_has_barred_has_a_second_chance() {
    for kill in KILLS {
        barred(World::with_settings(WorldSettings::paged(2)).await, kill).await;
    }
}

pub async fn barred(world: World, kill: Option<u64>) {
    let what = format!("killed after {kill:?}");
    let seed = world.seed(1, 3).await;
    let parent = spend(&[seed.coin(0)], 4, 1);
    let (child, barred) = (spend(&[parent.coin(3)], 1, 2), spend(&[seed.coin(1)], 1, 3));
    world.validate(&parent).await;
    world.command(1, Action::Lock { txid: parent.txid }).await;
    world.command(2, Action::Lock { txid: parent.txid }).await;
    world.command(3, Action::Freeze { outpoint: seed.coin(1).outpoint }).await;
    consume(&world, kill).await;
    assert_eq!([became(&world, 1).await, became(&world, 2).await], ["done", "nothing"], "{what}");
    world.validate(&child).await;
    world.validate(&barred).await;
    consume(&world, kill).await;
    assert_eq!(lost_for(&world, &child).await, Some(Reason::Locked { parent: parent.txid }), "{what}");
    assert_eq!(lost_for(&world, &barred).await, Some(Reason::Frozen { input: 0 }), "{what}");
    world.command(4, Action::Unlock { txid: parent.txid }).await;
    world.command(5, Action::Unfreeze { outpoint: seed.coin(1).outpoint }).await;
    consume(&world, kill).await;
    for made in [&child, &barred] {
        assert_eq!(state(&world, made).await, TxState::Live, "{what}");
    }
    world.check(&what).await;
}

/// Children that were barred twice, one after the other: the verdict names the first bar, and the chance that came of its end met the
/// second, which changes no verdict.
/// Protects: when a bar is lifted, whoever it bars to the end is looked at again, whatever the verdict says.
#[tokio::test(start_paused = true)]
async fn who_was_barred_twice_has_a_second_chance_when_the_last_bar_is_lifted() {
    for kill in KILLS {
        let what = format!("killed after {kill:?}");
        let world = World::with_settings(WorldSettings::paged(2)).await;
        let seed = world.seed(1, 5).await;
        let parents: Vec<Made> = (0..3).map(|number| spend(&[seed.coin(number)], 4, number as u8 + 1)).collect();
        let [late, one, other] = &parents[..] else { unreachable!() };
        let children = [
            // Missing, and locked when it comes; missing, and another parent locked; two locked; an output frozen, and a parent locked; missing,
            // and an output frozen.
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
            world.command(id, Action::Lock { txid: parent.txid }).await;
        }
        for (id, coin) in [(3, 3), (8, 4)] {
            world.command(id, Action::Freeze { outpoint: seed.coin(coin).outpoint }).await;
        }
        consume(&world, kill).await;
        for id in [1, 2, 3, 8] {
            assert_eq!(became(&world, id).await, "done", "{what}");
        }
        for child in &children {
            world.validate(child).await;
        }
        consume(&world, kill).await;
        let missing = Some(Reason::MissingParent { parent: late.txid });
        let locked = |parent: &Made| Some(Reason::Locked { parent: parent.txid });
        let fell = [missing, missing, locked(one), Some(Reason::Frozen { input: 0 }), missing];
        let fallen = async || {
            let mut reasons = Vec::new();
            for child in &children {
                reasons.push(lost_for(&world, child).await);
            }
            reasons
        };
        assert_eq!(fallen().await, fell, "{what}");

        world.validate_locked(late).await;
        world.command(4, Action::Unlock { txid: one.txid }).await;
        world.command(5, Action::Unfreeze { outpoint: seed.coin(3).outpoint }).await;
        consume(&world, kill).await;
        assert_eq!(state(&world, late).await, TxState::Live, "{what}");
        assert!(world.page(late).await.unwrap().locked, "{what}");
        assert_eq!(fallen().await, fell, "{what}: another bar is left of each");

        world.command(6, Action::Unlock { txid: other.txid }).await;
        consume(&world, kill).await;
        assert_eq!(fallen().await, [missing, missing, None, None, missing], "{what}");
        world.command(7, Action::Unlock { txid: late.txid }).await;
        consume(&world, kill).await;
        assert_eq!(fallen().await, [None, None, None, None, missing], "{what}");
        world.command(9, Action::Unfreeze { outpoint: seed.coin(4).outpoint }).await;
        consume(&world, kill).await;
        for child in &children {
            assert_eq!(state(&world, child).await, TxState::Live, "{what}");
        }
        world.check(&what).await;
    }
}

/// The same, where a block lifts the last one: what it lists is locked no more. Whom the verdict's reason bars still comes again with no block.
#[tokio::test(start_paused = true)]
async fn who_was_barred_twice_has_a_second_chance_when_a_block_lifts_the_last_bar() {
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
            assert_eq!(lost_for(&world, child).await, missing, "{what}");
        }
        assert!(matches!(lost_for(&world, &loser).await, Some(Reason::DoubleSpend { .. })), "{what}");
        assert!(matches!(lost_for(&world, &never).await, Some(Reason::MissingParent { .. })), "{what}");
        world.mine(1, &[&late, &other, &known]).await;
        consume(&world, kill).await;
        for child in &children {
            assert_eq!(state(&world, child).await, TxState::Live, "{what}");
        }
        let logs = Logs::read(&world.broker, &world.settings.pipeline.topic, &world.settings.topics).await.unwrap();
        for made in [&loser, &never] {
            let again = logs.chain.iter().filter(|logged| match Event::decode(&logged.message.payload).unwrap() {
                Event::Command(command) => matches!(command.action, Action::Reconsider { txid } if txid == made.txid),
                _ => false,
            });
            assert_eq!(again.count(), 0, "{what}: it comes again in vain");
        }
        world.check(&what).await;
    }
}

/// A child of a locked parent falls with another parent, by the very block that lists the locked one.
/// Protects: whoever falls by an event has no second chance by the same event.
#[tokio::test(start_paused = true)]
async fn who_falls_by_the_block_that_unlocks_its_parent_is_not_looked_at_again() {
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
        world.command(1, Action::Lock { txid: parent.txid }).await;
        world.validate(&winner).await;
        consume(&world, kill).await;
        assert!(matches!(lost_for(&world, &winner).await, Some(Reason::DoubleSpend { .. })), "{what}");
        world.mine(1, &[&parent, &winner]).await;
        consume(&world, kill).await;
        assert!(matches!(lost_for(&world, &child).await, Some(Reason::ConflictingParent { .. })), "{what}");
        world.check(&what).await;
    }
}

/// Part 7 of the issue: created locked because its event says so, then unlocked by a command; mining is `regressions/chain.rs`.
#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_created_locked_is_unlocked_by_a_command() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let parent = spend(&[seed.coin(0)], 1, 1);
    let child = spend(&[parent.coin(0)], 1, 2);
    let running = world.start();
    world.validate_locked(&parent).await;
    world.validate(&child).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(world.page(&parent).await.unwrap().locked);
    assert!(world.page(&child).await.is_none(), "it waits");
    world.command(1, Action::Unlock { txid: parent.txid }).await;
    world.until_consumed().await;
    running.stop().await;
    assert!(!world.page(&parent).await.unwrap().locked);
    assert_eq!(state(&world, &child).await, TxState::Live);
    assert!(world.page(&child).await.unwrap().verdict().is_none(), "nobody had to decide");
    world.check("created locked").await;
}

#[tokio::test(start_paused = true)]
async fn a_repeat_of_an_id_changes_nothing_and_is_answered_again() {
    for kill in KILLS {
        let what = format!("killed after {kill:?}");
        let world = World::new().await;
        let seed = world.seed(1, 1).await;
        let outpoint = seed.coin(0).outpoint;
        world.command(1, Action::Freeze { outpoint }).await;
        world.command(2, Action::Unfreeze { outpoint }).await;
        consume(&world, kill).await;
        world.command(1, Action::Freeze { outpoint }).await;
        world.command(2, Action::Lock { txid: seed.txid }).await;
        world.command(1, Action::Freeze { outpoint }).await;
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

/// It falls with all that descends from it; its rival gets its chance; and then it can be deleted for good.
#[tokio::test(start_paused = true)]
async fn a_transaction_is_made_conflicting_and_deleted() {
    for page_size in [1_000, 2] {
        for kill in KILLS {
            made_conflicting_and_deleted(World::with_settings(WorldSettings::paged(page_size)).await, kill).await;
        }
    }
}

pub async fn made_conflicting_and_deleted(world: World, kill: Option<u64>) {
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
    world.command(1, Action::Delete { txid: made.txid }).await;
    world.command(2, Action::SetConflicting { txid: mined.txid }).await;
    world.command(3, Action::SetConflicting { txid: made.txid }).await;
    world.command(4, Action::SetConflicting { txid: made.txid }).await;
    consume(&world, kill).await;
    let expected = [(1, "INVALID_SPEND"), (2, "INVALID_SPEND"), (3, "done"), (4, "nothing")];
    for (id, expected) in expected {
        assert_eq!(became(&world, id).await, expected, "{what}, command {id}");
    }
    assert_eq!(lost_for(&world, &made).await, Some(Reason::Command), "{what}");
    let fell = Some(Reason::ConflictingParent { parent: made.txid });
    assert_eq!(lost_for(&world, &child).await, fell, "{what}");
    assert_eq!(state(&world, &rival).await, TxState::Live, "{what}");

    world.command(5, Action::Preserve { txid: made.txid, until: 500 }).await;
    world.command(6, Action::Preserve { txid: made.txid, until: 400 }).await;
    world.command(7, Action::Delete { txid: made.txid }).await;
    world.command(8, Action::Delete { txid: child.txid }).await;
    world.command(9, Action::Delete { txid: child.txid }).await;
    consume(&world, kill).await;
    let expected = [(5, "done"), (6, "nothing"), (7, "NOT_PRUNABLE"), (8, "done"), (9, "TX_NOT_FOUND")];
    for (id, expected) in expected {
        assert_eq!(became(&world, id).await, expected, "{what}, command {id}");
    }
    assert_eq!(state(&world, &child).await, TxState::Pruned(101), "{what}");
    world.validate(&child).await;
    consume(&world, kill).await;
    assert_eq!(state(&world, &child).await, TxState::Pruned(101), "{what}: its event brings nothing back");
    world.check(&what).await;
}

/// Refused by name, and the chain goes on.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_done_is_refused_by_name() {
    let world = World::with_settings(WorldSettings::paged(2)).await;
    let seed = world.seed(1, 3).await;
    let spender = spend(&[seed.coin(0)], 1, 1);
    world.validate(&spender).await;
    world.run_until_consumed().await;
    let at = |vout| Coin { outpoint: utxo_store::tx::Outpoint { txid: seed.txid, vout }, ..seed.coin(0) }.outpoint;
    let nobody = Txid([9; 32]);
    let long = vec![0x51; 10_001];
    let reassign = |new_script: &'static [u8], height, spendable_after| Action::Reassign {
        outpoint: at(1),
        utxo_hash: seed.coin(1).utxo_hash(),
        new_script,
        satoshis: 1,
        height,
        spendable_after,
    };
    let long: &'static [u8] = long.leak();
    let spent = Action::Unspend { outpoint: at(0), spender: spender.txid, input: 0 };
    let commands = [
        (Action::Lock { txid: nobody }, "TX_NOT_FOUND"),
        (Action::Delete { txid: nobody }, "TX_NOT_FOUND"),
        (Action::Freeze { outpoint: at(0) }, "SPENT"),
        (Action::Freeze { outpoint: at(3) }, "UTXO_NOT_FOUND"),
        (Action::Freeze { outpoint: at(u32::MAX) }, "UTXO_NOT_FOUND"),
        (Action::Unfreeze { outpoint: at(4) }, "UTXO_NOT_FOUND"),
        (Action::Unfreeze { outpoint: at(1) }, "NOT_FROZEN"),
        (spent, "INVALID_SPEND"),
        (Action::Unspend { outpoint: at(9), spender: nobody, input: 0 }, "UTXO_NOT_FOUND"),
        (Action::Unspend { outpoint: at(1), spender: nobody, input: 0 }, "nothing"),
        (Action::FreezeUntil { outpoint: at(1), height: u32::MAX }, "INVALID_HEIGHT"),
        (Action::FreezeUntil { outpoint: at(1), height: u32::MAX - 1 }, "done"),
        (Action::FreezeUntil { outpoint: at(1), height: u32::MAX - 1 }, "nothing"),
        (Action::Preserve { txid: seed.txid, until: u32::MAX }, "INVALID_HEIGHT"),
        (reassign(b"\x51", u32::MAX, 0), "INVALID_HEIGHT"),
        (reassign(b"\x51", u32::MAX - 1_000, 1_000), "INVALID_HEIGHT"),
        (reassign(long, 1, 1), "SCRIPT_TOO_LONG"),
        (Action::Freeze { outpoint: at(1) }, "done"),
        (Action::FreezeUntil { outpoint: at(1), height: 5 }, "FROZEN"),
        (Action::Unspend { outpoint: at(1), spender: nobody, input: 0 }, "FROZEN"),
    ];
    for ((action, _), id) in commands.iter().zip(1..) {
        world.command(id, action.clone()).await;
    }
    world.run_until_consumed().await;
    for ((action, expected), id) in commands.iter().zip(1..) {
        assert_eq!(became(&world, id).await, *expected, "{action:?}");
    }
    world.check("refused by name").await;
}

/// A transaction whose record an instance is about to create, and a command that locks it.
async fn locked_before_it_is_there() -> (World, Made, Arc<Held>, Running) {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let made = spend(&[seed.coin(0)], 1, 1);
    let txid = made.txid;
    let held = Held::until_let_go(&world, move |row| is_create_of(row, txid));
    let running = held.before(&world).start();
    world.validate(&made).await;
    held.until_kept(1).await;
    world.command(1, Action::Lock { txid }).await;
    (world, made, held, running)
}

/// Protects: a command waits for its transaction as long as that may still come.
#[tokio::test(start_paused = true)]
async fn a_command_waits_for_a_transaction_that_was_produced_before_it() {
    let (world, made, held, running) = locked_before_it_is_there().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(became(&world, 1).await, "untold");
    held.let_go().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(became(&world, 1).await, "done");
    assert!(world.page(&made).await.unwrap().locked);
    world.check("a command that waits").await;
}

/// Its transaction waits for a parent whose contest stands behind the command, or for one that never comes, which is only proven once
/// the chain goes on.
/// Protects: no command stops the chain.
#[tokio::test(start_paused = true)]
async fn a_command_does_not_wait_for_what_waits_for_the_chain() {
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
    world.command(1, Action::Lock { txid: child.txid }).await;
    world.command(2, Action::Lock { txid: orphan.txid }).await;
    world.run_until_consumed().await;
    assert_eq!(became(&world, 1).await, "TX_NOT_FOUND");
    assert_eq!(became(&world, 2).await, "TX_NOT_FOUND");
    assert!(matches!(lost_for(&world, &child).await, Some(Reason::ConflictingParent { .. })));
    assert!(matches!(lost_for(&world, &orphan).await, Some(Reason::MissingParent { .. })));
    world.check("commands that do not wait").await;
}

fn topics() -> Topics {
    Topics { chain: "chain".into(), decisions: "decisions".into(), outcomes: "outcomes".into() }
}

/// What `utxo-store command` does: it publishes, waits for the answer, and lists what became of the alert operations.
#[tokio::test(start_paused = true)]
async fn a_client_is_answered_and_the_alert_operations_are_listed() {
    let world = World::new().await;
    let seed = world.seed(1, 2).await;
    let outpoint = seed.coin(0).outpoint;
    let asked = [
        Asked::new([1; 16], Action::Freeze { outpoint }),
        Asked::new([2; 16], Action::Reconsider { txid: seed.txid }),
        Asked::new([3; 16], Action::Lock { txid: Txid([9; 32]) }),
    ];
    let ask_for = async |asked: &[Asked]| {
        let answers = ask(&world.broker, &topics(), asked, Duration::from_secs(60)).await.unwrap();
        answers.into_iter().map(|answer| answer.became).collect::<Vec<_>>()
    };
    assert_eq!(ask_for(&asked[..1]).await, [Became::Unanswered], "nobody is there");
    let running = world.start();
    let answers = ask_for(&asked).await;
    assert_eq!(answers[..2], [Became::Applied, Became::Unchanged]);
    assert!(matches!(&answers[2], Became::Refused { code, .. } if code == "TX_NOT_FOUND"), "{answers:?}");
    assert_eq!(ask_for(&[Asked::new([4; 16], Action::Unfreeze { outpoint })]).await, [Became::Applied]);
    assert_eq!(ask_for(&asked[..1]).await, [Became::Applied], "a repeat is answered again");
    world.until_consumed().await;
    running.stop().await;
    let listed = audit(&world.broker, &topics(), false).await.unwrap();
    let shown = listed.iter().map(|entry| (entry.chain_offset, entry.repeats, entry.became.clone()));
    let done = Some(Became::Applied);
    let expected = [(0, None), (1, Some(0)), (4, None), (5, Some(0))];
    assert_eq!(shown.collect::<Vec<_>>(), expected.map(|(at, repeats)| (at, repeats, done.clone())));
    assert!(listed[2].to_string().contains("unfreeze") && listed[2].to_string().ends_with(": done"), "{}", listed[2]);
    assert_eq!(audit(&world.broker, &topics(), true).await.unwrap().len(), 5, "and the lock that was refused");
    world.check("a client").await;
}

/// Two sequencers are at one command, and the later one finds that its step is taken.
/// Protects: the list of commands tells of the result that counts, not of the first that was written.
#[tokio::test(start_paused = true)]
async fn what_is_listed_of_a_command_is_what_counts() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    world.command(1, Action::Freeze { outpoint: seed.coin(0).outpoint }).await;
    let done = |result| DecisionBody::CommandDone { id: [1; 16], executed_at: 0, result };
    let refused = CommandResult::Refused { code: "TX_NOT_FOUND".into(), message: String::new() };
    let decisions =
        [(0, DecisionBody::PassedOver { txid: seed.txid }), (0, done(refused)), (1, done(CommandResult::Applied))];
    for (step, body) in decisions {
        let decision = Event::Decision(Decision { chain_offset: 0, step, body });
        world.produce("decisions", &0_u64.to_be_bytes(), decision.encode()).await;
    }
    let listed = audit(&world.broker, &topics(), false).await.unwrap();
    assert_eq!(listed.into_iter().map(|entry| entry.became).collect::<Vec<_>>(), [Some(Became::Applied)]);
}

/// Another sequencer has decided on a command that this one still evaluates, and comes to something else.
/// Protects: nobody is told what was not decided.
#[tokio::test(start_paused = true)]
async fn what_is_told_of_a_command_is_what_was_decided() {
    let (world, _, held, running) = locked_before_it_is_there().await;
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
    held.let_go().await;
    world.until_consumed().await;
    running.stop().await;
    assert_eq!(world.results(1).await, [result]);
    world.check_without_model("told as decided").await;
}

/// A transaction is accepted by a verdict, made conflicting and deleted; whoever did that dies before any of it is committed.
/// Protects: a verdict that is applied again passes over who was deleted since, and does not halt the chain.
#[tokio::test(start_paused = true)]
async fn a_verdict_on_what_was_deleted_since_is_applied_again() {
    let mut world = World::new().await;
    world.settings.sequencer.commit_interval = Duration::from_secs(3_600);
    let seed = world.seed(1, 1).await;
    let accepted = spend(&[seed.coin(0)], 1, 1);
    let outpoint = seed.coin(0).outpoint;
    let running = world.start();
    world.command(1, Action::Freeze { outpoint }).await;
    world.command(2, Action::Unfreeze { outpoint }).await;
    while became(&world, 2).await != "done" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The slot has a history.
    world.validate(&accepted).await;
    while world.page(&accepted).await.is_none_or(|page| page.state() != TxState::Live) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    world.command(3, Action::SetConflicting { txid: accepted.txid }).await;
    world.command(4, Action::Delete { txid: accepted.txid }).await;
    while !matches!(state(&world, &accepted).await, TxState::Pruned(_)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.kill().await;
    world.settings.sequencer.commit_interval = Duration::from_millis(100);
    world.run_until_consumed().await;
    assert!(matches!(state(&world, &accepted).await, TxState::Pruned(_)));
    assert_eq!(became(&world, 4).await, "done");
    world.check("a verdict on what was deleted").await;
}

/// Two transactions spend one coin, and an operator wants neither.
/// Protects: what an operator has made conflicting has no second chance by itself, though its rival falls, too.
#[tokio::test(start_paused = true)]
async fn what_an_operator_made_conflicting_stays_so_when_its_rival_falls() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (one, other) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 2));
    world.validate(&one).await;
    world.run_until_consumed().await;
    world.command(1, Action::SetConflicting { txid: one.txid }).await;
    world.validate(&other).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &other).await, TxState::Live);
    world.command(2, Action::SetConflicting { txid: other.txid }).await;
    world.run_until_consumed().await;
    for made in [&one, &other] {
        assert_eq!(lost_for(&world, made).await, Some(Reason::Command));
    }
    world.command(3, Action::Reconsider { txid: one.txid }).await;
    world.run_until_consumed().await;
    assert_eq!(state(&world, &one).await, TxState::Live);
    world.check("two that nobody wants").await;
}
