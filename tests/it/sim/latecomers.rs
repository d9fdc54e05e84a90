//! Transactions that spend one parent while another parent is not produced yet. Meanwhile the first parent may become
//! conflicting and live again. A separate generator keeps the rest of the plan as it was.

use utxo_store::rng::SplitMix64;

use super::{
    plan::{Plan, Run, Step, Tx},
    swarm,
};

/// Height at which every coinbase of a plan is mature.
const MATURE_HEIGHT: u32 = 100_000;

/// Adds such transactions to a third of the histories, or to all with `SIM_LATECOMERS=1`.
pub fn add_latecomers(plan: &mut Plan, seed: u64) {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"latecome"));
    let all = std::env::var("SIM_LATECOMERS").is_ok_and(|text| text == "1");
    if swarm::is_excluded("latecomers") || (rng.below(3) > 0 && !all) {
        return;
    }
    let share: f64 = *rng.pick(&[0.05, 0.2]);
    let mut writer = LatecomerWriter { rng, plan, chain: Vec::new(), late: Vec::new() };
    for step in std::mem::take(&mut writer.plan.steps) {
        writer.follow_chain(&step);
        let first_parent = writer.first_parent_of(&step);
        writer.plan.steps.push(step);
        if let Some(parent) = first_parent
            && writer.rng.chance(share)
        {
            writer.add_child(parent);
        }
        writer.produce_late_parent(false);
    }
    while !writer.late.is_empty() {
        writer.produce_late_parent(true);
    }
}

struct LatecomerWriter<'p> {
    rng: SplitMix64,
    plan: &'p mut Plan,
    /// Coinbases of the longest chain, one for each run.
    chain: Vec<u32>,
    /// Events of late parents that are still to be produced.
    late: Vec<Vec<Step>>,
}

impl LatecomerWriter<'_> {
    fn add_tx(&mut self, tx: Tx) -> u32 {
        let id = self.plan.txs.len() as u32;
        self.plan.txs.insert(id, tx);
        id
    }

    fn follow_chain(&mut self, step: &Step) {
        match step {
            Step::Mine { coinbase, .. } => self.chain.push(*coinbase),
            Step::Reorg { disconnect, connect } => {
                self.chain.truncate(self.chain.len().saturating_sub(*disconnect));
                self.chain.extend(connect.iter().map(|run| run.coinbase));
            }
            _ => {}
        }
    }

    /// Returns an output that the child may spend at once: of the transaction of this step, or of the last coinbase.
    fn first_parent_of(&mut self, step: &Step) -> Option<(u32, u32)> {
        match step {
            Step::Validate { tx, .. } => match self.plan.txs.get(tx)? {
                Tx::Spend { outputs, .. } => Some((*tx, self.rng.below(u64::from(*outputs)) as u32)),
                Tx::Seed { .. } | Tx::Coinbase => None,
            },
            Step::Mine { coinbase, .. } => Some((*coinbase, 0)),
            _ => None,
        }
    }

    /// Adds a child of `first_parent` and of a parent that is produced later, and perhaps a grandchild.
    fn add_child(&mut self, mut first_parent: (u32, u32)) {
        let is_of_coinbase = matches!(self.plan.txs.get(&first_parent.0), Some(Tx::Coinbase));
        if is_of_coinbase && self.rng.below(2) == 0 {
            let coinbase_spend = self.add_tx(Tx::Spend { inputs: vec![first_parent], outputs: 2 });
            self.validate(coinbase_spend);
            first_parent = (coinbase_spend, 0);
        }
        let seed = self.add_tx(Tx::Seed { outputs: 1 });
        let parent = self.add_tx(Tx::Spend { inputs: vec![(seed, 0)], outputs: 2 });
        let mut inputs = vec![first_parent, (parent, 0)];
        if self.rng.below(2) == 0 {
            inputs.reverse();
        }
        let child = self.add_tx(Tx::Spend { inputs, outputs: 2 });
        self.validate(child);
        if self.rng.below(3) == 0 {
            let grandchild = self.add_tx(Tx::Spend { inputs: vec![(child, 0)], outputs: 1 });
            self.validate(grandchild);
        }
        let event = Step::Validate { tx: parent, height: MATURE_HEIGHT, locked: false, lie: None };
        self.late.push(vec![Step::Seed { tx: seed, other: false }, event]);
        if is_of_coinbase && self.rng.below(4) < 3 {
            self.disconnect_and_connect();
        }
    }

    fn validate(&mut self, tx: u32) {
        self.plan.steps.push(Step::Validate { tx, height: MATURE_HEIGHT, locked: false, lie: None });
    }

    /// Adds two reorgs that disconnect the last run and connect it again.
    fn disconnect_and_connect(&mut self) {
        let Some(coinbase) = self.chain.last().copied() else { return };
        for step in [
            Step::Reorg { disconnect: 1, connect: Vec::new() },
            Step::Reorg { disconnect: 0, connect: vec![Run { coinbase, listed: Vec::new() }] },
        ] {
            let ms = 1 + self.rng.below(30);
            self.plan.steps.extend([Step::Sleep { ms }, step]);
        }
    }

    fn produce_late_parent(&mut self, is_due: bool) {
        if !self.late.is_empty() && (is_due || self.rng.below(8) == 0) {
            self.plan.steps.extend(self.late.remove(0));
        }
    }
}
