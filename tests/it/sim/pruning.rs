//! Pruning in a generated history: a retention of a few blocks, blocks that let the retention pass, and repeated events
//! of pruned transactions. A separate generator keeps the rest of the plan as it was.

use utxo_store::rng::SplitMix64;

use super::{
    plan::{Plan, Step, Tx},
    swarm,
};

/// Enables pruning in a quarter of the histories, or in all with `SIM_PRUNE=1`.
pub fn add_pruning(plan: &mut Plan, seed: u64) {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"pruning!"));
    let is_forced = std::env::var("SIM_PRUNE").is_ok_and(|text| text == "1");
    let is_fourth = rng.below(4) == 0;
    if swarm::is_excluded("prune") || !(is_forced || is_fourth) {
        return;
    }
    plan.prune_after = Some(plan.height_step * *rng.pick(&[1, 1, 2, 3]));
    let share: f64 = *rng.pick(&[0.05, 0.15, 0.3]);
    let mut happened: Vec<Step> = Vec::new();
    for step in std::mem::take(&mut plan.steps) {
        if matches!(step, Step::Validate { .. } | Step::Seed { .. }) {
            happened.push(step.clone());
        }
        plan.steps.push(step);
        if rng.chance(share) {
            write_moment(plan, &mut rng, &happened);
        }
    }
    for _ in 0..2 + rng.below(4) {
        write_moment(plan, &mut rng, &happened);
        mine_listed(plan, &mut rng);
    }
    write_moment(plan, &mut rng, &happened);
}

/// Limit of blocks in one plan. With mature coinbases each mined step is a hundred blocks, and the log holds them once
/// for each feed that starts again.
const MAX_BLOCKS: usize = 1_000;

fn block_count(plan: &Plan) -> usize {
    let runs = plan.steps.iter().filter(|step| matches!(step, Step::Mine { .. })).count();
    runs * plan.height_step as usize
}

/// Adds a block, time for the pruning that it makes due, and repeats of earlier events.
fn write_moment(plan: &mut Plan, rng: &mut SplitMix64, happened: &[Step]) {
    let has_room = block_count(plan) < MAX_BLOCKS;
    if rng.below(2) == 0 && has_room {
        mine_listed(plan, rng);
    }
    if rng.below(2) == 0 {
        let ms = 1 + rng.below(400);
        plan.steps.push(Step::Sleep { ms });
    }
    for _ in 0..rng.below(3) {
        if !happened.is_empty() {
            plan.steps.push(rng.pick(happened).clone());
        }
    }
    if rng.below(8) == 0 && !plan.txs.is_empty() {
        let tx = rng.below(plan.txs.len() as u64) as u32;
        plan.steps.push(Step::Reconsider { tx });
    }
}

/// Adds a block that lists a share of all transactions; [`Plan::with_honest_blocks`] removes what no miner could list.
fn mine_listed(plan: &mut Plan, rng: &mut SplitMix64) {
    let share = *rng.pick(&[0.0, 0.5, 1.0, 1.0]);
    let mut listed = Vec::new();
    for (id, tx) in &plan.txs {
        if matches!(tx, Tx::Spend { .. }) && rng.chance(share) {
            listed.push(*id);
        }
    }
    let coinbase = plan.txs.len() as u32;
    plan.txs.insert(coinbase, Tx::Coinbase);
    plan.steps.push(Step::Mine { coinbase, listed });
}
