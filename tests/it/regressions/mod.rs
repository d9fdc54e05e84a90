//! Named regressions: one small scenario for each history that a review or the simulator found, with the one list of
//! them.

mod chain;
mod commands;
mod contests;
pub mod holding_engine;
mod pages;
mod parents;
mod reorgs;
mod zombies;

use utxo_store::{
    record::{Reason, TxState, Verdict},
    tx::Txid,
};

use crate::harness::{Coin, Made, World};

pub async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

async fn reason(world: &World, made: &Made) -> Option<Reason> {
    match state(world, made).await {
        TxState::Conflicting(Verdict::Conflicting(reason)) => Some(reason),
        _ => None,
    }
}

pub async fn has_lost(world: &World, made: &Made) -> bool {
    reason(world, made).await.is_some()
}

/// Returns the spender that the slot of an output names.
pub async fn holder(world: &World, coin: &Coin) -> Option<Txid> {
    let slot =
        utxo_store::store::read::TxReader::of(&world.store).slot(coin.outpoint).await.unwrap().expect("it has a slot");
    slot.spender().map(|spender| spender.txid)
}

/// A scenario: its file (here or in the parent directory) and its test.
struct Scenario(&'static str, &'static str);

/// Histories on the real code, with their scenarios.
const HISTORIES: &[(&str, &[Scenario])] = &[
    (
        "a late spend of a zombie after the verdict",
        &[Scenario("zombies", "a_late_spend_of_a_zombie_after_the_verdict_is_refused")],
    ),
    ("two holders crossing", &[Scenario("contests", "two_crossing_holders_get_one_winner")]),
    (
        "a repeated parent in a batch with its child while another transaction holds the slot",
        &[Scenario("contests", "a_repeated_parent_does_not_apply_attached_spends")],
    ),
    (
        "a child created while its parent becomes conflicting",
        &[
            Scenario("contests", "a_child_created_while_its_parent_becomes_conflicting_is_refused"),
            Scenario("contests", "a_child_spent_just_before_its_parent_is_flagged_conflicts_too"),
        ],
    ),
    (
        "two sequencers at one offset, and a zombie that marks descendants",
        &[
            Scenario("zombies", "of_two_sequencers_at_one_offset_the_first_decision_counts"),
            Scenario("zombies", "a_sequencer_applies_the_decision_that_another_wrote_first"),
            Scenario("zombies", "a_zombie_that_evaluates_a_decided_offset_is_refused"),
            Scenario("zombies", "a_zombie_that_marks_descendants_after_the_root_won_is_refused"),
        ],
    ),
    (
        "a crash between decision and apply, after a node lost what the evaluation took",
        &[Scenario("node_restarts", "a_decision_is_applied_after_a_crash_and_a_node_restart")],
    ),
    (
        "a node that loses the spend of a live transaction, or a verdict and its slot together",
        &[
            Scenario("node_restarts", "a_lost_spend_of_a_live_transaction_is_decided_again"),
            Scenario("node_restarts", "a_verdict_lost_with_its_slot_is_applied_again"),
            Scenario("pipeline", "the_mined_one_of_two_live_rivals_stays_live"),
        ],
    ),
    (
        "a node that loses writes between a verdict and its last descendant, between two events of a transaction, or a \
         parent (simulator, seeds 53887, 102339, 133)",
        &[
            Scenario("reapplied_decisions", "a_verdict_is_reapplied_before_its_descendants_are_decided"),
            Scenario("reapplied_decisions", "a_lost_contestant_is_stored_again_by_its_contest"),
            Scenario("reapplied_decisions", "a_returning_parent_learns_of_its_conflicting_child"),
            Scenario("reapplied_decisions", "a_reconsider_of_a_live_transaction_waits_for_a_lost_parent"),
            Scenario("node_restarts", "a_later_event_creates_no_record_in_place_of_a_lost_one"),
            Scenario("node_restarts", "a_later_event_creates_no_record_after_the_first_completed"),
            Scenario("node_restarts", "a_partial_event_creates_no_record_of_a_whole_transaction"),
            Scenario("node_restarts", "wrong_claims_decide_nothing_while_the_honest_record_is_lost"),
        ],
    ),
    (
        "a block that lists a transaction whose parent's contest comes after the block in the log",
        &[Scenario("chain", "a_listed_parent_wins_before_its_contest_later_in_the_log")],
    ),
    (
        "a child that a verdict found without a body, reconsidered before its own contest (simulator, seed 1934)",
        &[Scenario("contests", "a_slot_of_a_conflicting_parent_does_not_make_a_child_win")],
    ),
    (
        "a block and the reorg that replaces the block, applied again after a node restart (simulator, seed 12549)",
        &[Scenario("reorgs", "a_block_whose_rival_a_later_reorg_mined_is_applied_again")],
    ),
    (
        "a contest behind a block that waits for a transaction which displaces the rival's holder",
        &[Scenario("chain", "a_contest_behind_a_waiting_block_depends_on_what_the_block_brings")],
    ),
    (
        "a lock, and a block that needs the unlock",
        &[
            Scenario("chain", "a_block_unlocks_a_listed_parent_before_its_child_wins"),
            Scenario("chain", "a_block_accepts_a_locked_loser_and_its_child"),
        ],
    ),
    (
        "a lock, a block that needs the unlock, the unlock after the block",
        &[Scenario("commands", "a_lock_does_not_bar_a_block_whose_unlock_comes_later")],
    ),
    (
        "a rebuild that applies a lock or freeze before the honest holder",
        &[Scenario("commands", "a_rebuild_ignores_locks_and_freezes_for_transactions_that_won")],
    ),
    (
        "a command on a transaction that a later block accepts (simulator, seed 39 with SIM_COMMANDS)",
        &[Scenario("commands", "a_rebuild_applies_a_command_before_the_block_that_accepts_its_subject")],
    ),
    (
        "a block that lists the spend of the former owner of a reassigned output (review)",
        &[Scenario("commands", "a_block_with_a_spend_of_a_former_owner_halts_the_chain")],
    ),
    (
        "a verdict applied again over a slot that was frozen after its holder became conflicting (review)",
        &[Scenario("commands", "a_reapplied_verdict_leaves_a_slot_that_was_frozen_later")],
    ),
    (
        "a spend while a freeze that a node lost is applied again (review)",
        &[Scenario("commands", "a_spend_during_a_reapplied_freeze_is_refused")],
    ),
    ("Unspend of a spender still in flight", &[Scenario("commands", "unspend_contests_a_spender_in_flight")]),
    (
        "a rebuild of: D spends f1, B f0, A f0 and f1, delivered B A D",
        &[Scenario("contests", "a_rebuild_ignores_the_slots_that_a_loser_had_taken")],
    ),
    (
        "a rebuild that settles a slot before the honest holder",
        &[Scenario("contests", "a_rebuild_ignores_marks_for_transactions_that_won")],
    ),
    (
        "a redelivered loser whose child is conflicting, too",
        &[
            Scenario("contests", "a_redelivered_loser_is_complete_at_once"),
            Scenario("pipeline", "a_redelivered_loser_releases_its_last_slot"),
        ],
    ),
    (
        "a coinbase child while the chain is behind",
        &[
            Scenario("chain", "a_coinbase_child_waits_while_the_chain_is_behind"),
            Scenario("pipeline", "a_child_read_before_its_coinbase_has_a_second_chance"),
        ],
    ),
    (
        "a missing parent that is produced later",
        &[
            Scenario("pipeline", "a_missing_parent_is_proven_missing_and_a_late_one_gives_a_second_chance"),
            Scenario("parents", "a_child_does_not_wait_for_a_later_parent_whose_own_parent_is_missing"),
            Scenario("parents", "a_parent_created_between_the_verdict_and_its_stub_gives_a_second_chance"),
            Scenario("parents", "a_late_spend_of_a_parent_created_after_the_verdict_is_refused"),
        ],
    ),
    (
        "a partial transaction whose whole event comes second, or that comes late itself (simulator, seeds 5870, 6787, \
         7597, 212)",
        &[
            Scenario("partial_and_whole", "a_block_lists_the_child_of_a_second_whole_event_that_waits"),
            Scenario("partial_and_whole", "a_block_waits_for_a_partial_transaction_behind_it"),
            Scenario("partial_and_whole", "a_late_spend_of_a_second_whole_event_takes_no_slot"),
        ],
    ),
    (
        "a two-page transaction contested between creation and clearing, with a child on page 1",
        &[
            Scenario("pages", "a_half_created_holder_is_completed_not_contested"),
            Scenario("pages", "a_holder_without_a_master_is_contested_with_all_pages"),
            Scenario("pages", "the_child_of_the_last_page_conflicts_with_its_paged_parent"),
        ],
    ),
    (
        "a page that is all spent before its master is created again, or before a settle reports that it is not \
         (simulator, seeds 5599, 300346)",
        &[
            Scenario("pages", "a_page_spent_during_a_settle_stays_recorded_as_all_spent"),
            Scenario("pages", "a_recreated_master_records_that_its_page_is_all_spent"),
        ],
    ),
    (
        "a block that lists a transaction with a page that is creating again (simulator, seed 301034)",
        &[Scenario("pages", "a_block_completes_a_page_whose_clearing_a_node_lost")],
    ),
    (
        "a late set-mined after a disconnect",
        &[
            Scenario("reorgs", "a_late_set_mined_of_a_disconnected_block_is_refused"),
            Scenario("reorgs", "a_late_disconnect_of_a_reconnected_coinbase_is_refused"),
        ],
    ),
    (
        "many children that become conflicting together, and a node that loses their parents (review)",
        &[Scenario("contests", "many_conflicting_children_release_the_slots_of_their_rivals")],
    ),
    (
        "a reorg while parents are parked",
        &[Scenario("reorgs", "a_reorg_waits_only_for_the_parked_transactions_that_it_lists")],
    ),
    (
        "a reorg interrupted before each of its writes",
        &[Scenario("reorgs", "a_reorg_interrupted_before_any_write_is_completed")],
    ),
    (
        "D spends coinbase c; c is disconnected and connected again, with D before, between and after",
        &[Scenario("reorgs", "a_disconnected_coinbase_returns_with_its_spender_at_every_moment")],
    ),
    (
        "a command and a block before the verdict that accepts their transaction, in a rebuild (seed 10296)",
        &[Scenario("reorgs", "a_rebuild_sets_a_listed_transaction_mined_that_a_later_block_accepts")],
    ),
    (
        "true claims that meet a rival after wrong claims, and come again (seed 17902)",
        &[Scenario("contests", "an_event_with_true_claims_that_met_a_rival_is_judged_once_it_comes_again")],
    ),
    (
        "a preserved transaction that is deleted before the first block (seed 119)",
        &[Scenario("commands", "before_the_first_block_a_deletion_goes_by_the_height_of_the_record")],
    ),
];

const FILES: &[(&str, &str)] = &[
    ("chain", include_str!("chain.rs")),
    ("commands", include_str!("commands.rs")),
    ("contests", include_str!("contests.rs")),
    ("pages", include_str!("pages.rs")),
    ("parents", include_str!("parents.rs")),
    ("reorgs", include_str!("reorgs.rs")),
    ("zombies", include_str!("zombies.rs")),
    ("reapplied_decisions", include_str!("../reapplied_decisions.rs")),
    ("node_restarts", include_str!("../node_restarts.rs")),
    ("pipeline", include_str!("../pipeline.rs")),
    ("partial_and_whole", include_str!("../partial_and_whole.rs")),
];

fn is_test(text: &str, name: &str) -> bool {
    let is_fn = |line: &&str| line.contains(&format!("fn {name}("));
    let mut before = "";
    text.lines().any(|line| {
        let found = is_fn(&line) && before.contains("test");
        before = line;
        found
    })
}

#[test]
fn every_listed_history_has_a_scenario() {
    for (history, scenarios) in HISTORIES {
        for Scenario(file, name) in *scenarios {
            let (_, text) = FILES.iter().find(|(known, _)| known == file).unwrap();
            assert!(is_test(text, name), "{history}: no test {name} in {file}.rs");
        }
    }
}
