//! Pruning in a history that was thought of without it: a retention of a few blocks, blocks that let it pass, and events that come
//! once more when what they made is forgotten. Of dice of their own: all else stays as it is.

use utxo_store::seeded::Seeded;

use super::{
    plan::{Plan, Step, Tx},
    swarm,
};

/// Prunes in a quarter of the histories, in all of them with `SIM_PRUNE=1`.
pub fn forget_some(plan: &mut Plan, seed: u64) {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"pruning!"));
    let is_asked = std::env::var("SIM_PRUNE").is_ok_and(|asked| asked == "1");
    let is_fourth = dice.below(4) == 0;
    if swarm::is_out("prune") || !(is_asked || is_fourth) {
        return;
    }
    plan.prune_after = Some(plan.height_step * *dice.pick(&[1, 1, 2, 3]));
    let share: f64 = *dice.pick(&[0.05, 0.15, 0.3]);
    let mut happened: Vec<Step> = Vec::new();
    for step in std::mem::take(&mut plan.steps) {
        if matches!(step, Step::Validate { .. } | Step::Seed { .. }) {
            happened.push(step.clone());
        }
        plan.steps.push(step);
        if dice.chance(share) {
            moment(plan, &mut dice, &happened);
        }
    }
    for _ in 0..2 + dice.below(4) {
        moment(plan, &mut dice, &happened);
        mine(plan, &mut dice);
    }
    moment(plan, &mut dice, &happened);
}

/// Where coinbases mature each block is a run of a hundred, and the log has them once for each feed that begins again.
const MOST_BLOCKS: usize = 1_000;

fn blocks(plan: &Plan) -> usize {
    let runs = plan.steps.iter().filter(|step| matches!(step, Step::Mine { .. })).count();
    runs * plan.height_step as usize
}

/// A block, time to prune what is due by it, something that has happened before.
fn moment(plan: &mut Plan, dice: &mut Seeded, happened: &[Step]) {
    let has_room = blocks(plan) < MOST_BLOCKS;
    if dice.below(2) == 0 && has_room {
        mine(plan, dice);
    }
    if dice.below(2) == 0 {
        let ms = 1 + dice.below(400);
        plan.steps.push(Step::Sleep { ms });
    }
    for _ in 0..dice.below(3) {
        if !happened.is_empty() {
            plan.steps.push(dice.pick(happened).clone());
        }
    }
    if dice.below(8) == 0 && !plan.txs.is_empty() {
        let tx = dice.below(plan.txs.len() as u64) as u32;
        plan.steps.push(Step::Reconsider { tx });
    }
}

/// A block that lists all that it can.
fn mine(plan: &mut Plan, dice: &mut Seeded) {
    let share = *dice.pick(&[0.0, 0.5, 1.0, 1.0]);
    let mut listed = Vec::new();
    for (id, tx) in &plan.txs {
        if matches!(tx, Tx::Spend { .. }) && dice.chance(share) {
            listed.push(*id);
        }
    }
    let coinbase = plan.txs.len() as u32;
    plan.txs.insert(coinbase, Tx::Coinbase);
    plan.steps.push(Step::Mine { coinbase, listed });
}
