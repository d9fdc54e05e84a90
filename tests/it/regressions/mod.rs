//! Named regressions: each history that a review or the simulator found, as a small scenario, and the one list of them.

mod chain;
mod commands;
mod contests;
pub mod held;
mod pages;
mod parents;
mod reorgs;
mod zombies;

use utxo_store::{
    record::{Reason, TxState, Verdict},
    tx::Txid,
};

use crate::world::{Coin, Made, World};

async fn state(world: &World, made: &Made) -> TxState {
    world.page(made).await.unwrap().state()
}

async fn reason(world: &World, made: &Made) -> Option<Reason> {
    match state(world, made).await {
        TxState::Conflicting(Verdict::Conflicting(reason)) => Some(reason),
        _ => None,
    }
}

async fn has_lost(world: &World, made: &Made) -> bool {
    reason(world, made).await.is_some()
}

/// Who holds an output.
async fn holder(world: &World, coin: &Coin) -> Option<Txid> {
    let slot = world.store.slot(coin.outpoint).await.unwrap().expect("it has a slot");
    slot.spender().map(|spender| spender.txid)
}

/// Where a history runs: a file of this directory's parent, and a test in it.
struct Scenario(&'static str, &'static str);

/// Histories on the real code.
const HERE: &[(&str, &[Scenario])] = &[
    ("a zombie's late spend after the verdict", &[Scenario("zombies", "a_late_spend_of_a_zombie_after_the_verdict")]),
    ("two holders crossing", &[Scenario("contests", "two_holders_that_cross")]),
    (
        "a duplicate parent in a batch with its child while another holds the slot",
        &[Scenario("contests", "a_duplicate_parent_with_its_child_while_another_holds_the_slot")],
    ),
    (
        "a child created while its parent becomes conflicting",
        &[
            Scenario("contests", "a_child_that_is_created_while_its_parent_becomes_conflicting"),
            Scenario("contests", "a_child_that_comes_just_before_its_parent_is_flagged"),
        ],
    ),
    (
        "two sequencers evaluating one offset, and a zombie walking a cone",
        &[
            Scenario("zombies", "of_two_sequencers_at_one_offset_the_first_decision_counts"),
            Scenario("zombies", "a_sequencer_carries_out_what_another_has_decided_meanwhile"),
            Scenario("zombies", "a_zombie_evaluates_an_offset_that_is_decided"),
            Scenario("zombies", "a_zombie_walks_a_cone_after_its_root_has_won"),
        ],
    ),
    (
        "a crash between decision and apply, after the node forgot what evaluating took",
        &[Scenario("forgetting", "a_crash_between_decision_and_apply_after_which_a_node_forgot_what_evaluating_took")],
    ),
    (
        "a node that forgets the spend of a live transaction, or a verdict and its slot together",
        &[
            Scenario("forgetting", "a_node_that_forgets_the_spend_of_a_live_transaction"),
            Scenario("forgetting", "a_node_that_forgets_a_verdict_and_its_slot_together"),
            Scenario("pipeline", "of_two_live_rivals_the_mined_one_stays_and_the_contest_ends"),
        ],
    ),
    (
        "a node that forgets between a verdict and the end of its cone, between two events of a transaction, or a parent \
         (simulator, seeds 53887, 102339, 133)",
        &[
            Scenario("applied_again", "a_verdict_is_applied_again_before_its_cone_was_decided"),
            Scenario("applied_again", "a_forgotten_contestant_is_stored_again_by_its_contest"),
            Scenario("applied_again", "a_loser_is_named_to_a_parent_that_comes_again"),
            Scenario("applied_again", "a_reconsider_of_what_is_live_waits_for_a_forgotten_parent"),
            Scenario("forgetting", "a_later_event_makes_no_record_where_that_of_the_first_was_forgotten"),
            Scenario("forgetting", "a_later_event_makes_no_record_where_the_first_has_ended"),
            Scenario("forgetting", "a_partial_event_makes_no_record_of_a_whole_transaction"),
            Scenario("forgetting", "nothing_is_decided_by_wrong_claims_while_the_honest_record_is_forgotten"),
        ],
    ),
    (
        "a block that lists a transaction whose parent's contest stands behind the block in the log",
        &[Scenario("chain", "a_block_lists_the_child_of_a_parent_whose_contest_stands_behind_the_block")],
    ),
    (
        "a lock, and a block that needs the unlock",
        &[
            Scenario("chain", "a_lock_and_a_block_that_needs_the_unlock"),
            Scenario("chain", "a_block_lists_a_locked_loser_and_its_child"),
        ],
    ),
    (
        "a lock, a block that needs the unlock, the unlock behind the block",
        &[Scenario("commands", "an_unlock_behind_the_block_that_needs_it")],
    ),
    (
        "rebuild with a lock or freeze applied before its honest holder arrives",
        &[Scenario("commands", "a_rebuild_locks_and_freezes_before_an_honest_holder_arrives")],
    ),
    (
        "a command on what a block behind it lets win (simulator, seed 39 with SIM_COMMANDS)",
        &[Scenario("commands", "a_rebuild_of_a_command_before_the_block_that_lets_its_transaction_win")],
    ),
    (
        "a block that lists the spend of who owned a reassigned output before (review)",
        &[Scenario("commands", "a_block_that_lists_the_spend_of_a_former_owner")],
    ),
    (
        "a verdict done again over a slot that was frozen behind the fall of who had it (review)",
        &[Scenario("commands", "a_verdict_that_is_done_again_over_a_slot_that_was_frozen_since")],
    ),
    (
        "a spend while a freeze that a node forgot is done again (review)",
        &[Scenario("commands", "a_spend_while_a_forgotten_freeze_is_done_again")],
    ),
    ("Unspend of a spender still in flight", &[Scenario("commands", "an_unspend_of_a_spender_that_is_in_flight")]),
    (
        "rebuild of: D spends f1, B f0, A f0 and f1, delivered B A D",
        &[Scenario("contests", "a_rebuild_of_who_was_barred_by_what_a_loser_had_taken")],
    ),
    (
        "rebuild with a settled slot applied before its honest holder arrives",
        &[Scenario("contests", "a_rebuild_settles_a_slot_before_its_honest_holder_arrives")],
    ),
    (
        "a redelivered loser whose child died with it",
        &[
            Scenario("contests", "a_redelivered_loser_whose_child_died_with_it"),
            Scenario("pipeline", "a_redelivered_loser_gives_back_the_one_slot_of_a_page_that_it_holds"),
        ],
    ),
    (
        "a coinbase child while the chain is behind",
        &[
            Scenario("chain", "a_coinbase_child_while_the_chain_is_behind"),
            Scenario(
                "pipeline",
                "a_coinbase_whose_child_was_read_before_the_block_is_stored_and_the_child_has_a_second_chance",
            ),
        ],
    ),
    (
        "a missing parent that comes after all, as a later event",
        &[
            Scenario("pipeline", "a_missing_parent_is_proven_missing_and_a_late_one_gives_a_second_chance"),
            Scenario("parents", "a_child_before_its_parent_whose_own_parent_never_comes"),
            Scenario("parents", "a_missing_parent_that_comes_between_the_verdict_and_its_stub"),
            Scenario("parents", "a_late_spend_of_a_missing_parent_that_has_just_come"),
        ],
    ),
    (
        "a partial transaction whose whole event comes second, or that comes late itself (simulator, seeds 5870, 6787, 7597, 212)",
        &[
            Scenario("seeded_twice", "a_block_lists_the_child_of_one_that_came_second_and_waits_for_its_parent"),
            Scenario("seeded_twice", "a_partial_transaction_that_comes_behind_a_block_that_needs_it"),
            Scenario("seeded_twice", "a_late_spend_of_one_that_came_second_and_held_nothing"),
        ],
    ),
    (
        "a two-page transaction contested between its creation and its clearing, with a child on page 1",
        &[
            Scenario("pages", "a_holder_that_is_contested_between_its_creation_and_its_clearing"),
            Scenario("pages", "a_holder_that_is_contested_before_its_master_is_there"),
            Scenario("pages", "a_wide_loser_falls_with_the_child_of_its_last_page"),
        ],
    ),
    (
        "a page that is all spent before its master is there again, or before that hears that it is not (simulator, seeds 5599, 300346)",
        &[
            Scenario("pages", "a_page_is_all_spent_before_its_master_hears_that_it_is_not"),
            Scenario("pages", "a_master_that_a_node_forgot_learns_again_that_a_page_is_all_spent"),
        ],
    ),
    (
        "a block that lists a transaction of which a page is half created again (simulator, seed 301034)",
        &[Scenario("pages", "a_block_lists_a_transaction_of_which_a_node_forgot_that_a_page_was_cleared")],
    ),
    (
        "a stale set-mined after a disconnect",
        &[
            Scenario("reorgs", "a_late_set_mined_after_its_block_has_left"),
            Scenario("reorgs", "a_late_disconnect_after_the_same_coinbase_has_come_again"),
        ],
    ),
    (
        "many that fall together, and a node that forgets their parents (review)",
        &[Scenario("contests", "many_fall_together_and_each_rival_gets_its_coin")],
    ),
    ("a reorg while parents are parked", &[Scenario("reorgs", "a_reorg_while_parents_are_parked")]),
    (
        "a reorg that dies before each of its writes",
        &[Scenario("reorgs", "a_reorg_that_dies_before_each_of_its_writes")],
    ),
    (
        "D spends coinbase c; c leaves; c returns, with D before, between and after",
        &[Scenario("reorgs", "a_coinbase_leaves_and_returns_with_its_spender_before_between_and_after")],
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
    ("applied_again", include_str!("../applied_again.rs")),
    ("forgetting", include_str!("../forgetting.rs")),
    ("pipeline", include_str!("../pipeline.rs")),
    ("seeded_twice", include_str!("../seeded_twice.rs")),
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
fn every_history_of_the_list_has_its_scenario() {
    for (history, scenarios) in HERE {
        for Scenario(file, name) in *scenarios {
            let (_, text) = FILES.iter().find(|(known, _)| known == file).unwrap();
            assert!(is_test(text, name), "{history}: no test {name} in {file}.rs");
        }
    }
}
