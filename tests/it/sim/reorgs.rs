//! Reorgs and side chains in a generated history. A separate generator keeps the rest of the plan as it was.

use std::collections::BTreeMap;

use utxo_store::rng::SplitMix64;

use super::{
    plan::{Plan, Run, Step, Tx},
    swarm,
};

/// Height at which every coinbase of a plan is mature.
const MATURE_HEIGHT: u32 = 100_000;

/// Writer that follows the chain of the plan, before dishonest blocks are removed.
struct ReorgWriter<'p> {
    rng: SplitMix64,
    plan: &'p mut Plan,
    /// Parent of each run, by the run's coinbase.
    runs: BTreeMap<u32, Option<u32>>,
    chain: Vec<u32>,
    /// Maximum number of runs that one reorg disconnects.
    depth: u64,
}

/// Adds reorgs and side chains to a third of the histories, or to all with `SIM_REORGS=1`.
pub fn add_reorgs(plan: &mut Plan, seed: u64) {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"reorgs! "));
    let all = std::env::var("SIM_REORGS").is_ok_and(|text| text == "1");
    if swarm::is_excluded("reorgs") || (rng.below(3) > 0 && !all) {
        return;
    }
    let share: f64 = *rng.pick(&[0.05, 0.15, 0.4]);
    let depths: &[u64] = if plan.height_step == 1 { &[1, 2, 3, 6] } else { &[1, 1, 3] };
    let depth = *rng.pick(depths);
    let steps = std::mem::take(&mut plan.steps);
    let mut writer = ReorgWriter { rng, plan, runs: BTreeMap::new(), chain: Vec::new(), depth };
    for step in steps {
        let mined = matches!(step, Step::Mine { .. });
        if let Step::Mine { coinbase, .. } = step {
            writer.record_run(coinbase);
            writer.chain.push(coinbase);
        }
        writer.plan.steps.push(step);
        let likely = if mined { share.max(0.3) } else { share / 3.0 };
        if writer.rng.chance(likely) {
            writer.write_moment();
        }
    }
}

impl ReorgWriter<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn record_run(&mut self, name: u32) {
        self.runs.entry(name).or_insert(self.chain.last().copied());
    }

    fn write_moment(&mut self) {
        match self.rng.below(6) {
            0 => self.add_side_chain(),
            1 => self.add_coinbase_spend(),
            2 => {
                // The second reorg may connect what the first disconnected.
                self.add_reorg();
                self.add_reorg();
            }
            _ => self.add_reorg(),
        }
        if self.rng.below(3) == 0 {
            let ms = 1 + self.rng.below(60);
            self.plan.steps.push(Step::Sleep { ms });
        }
    }

    fn add_coinbase(&mut self) -> u32 {
        self.add_tx(Tx::Coinbase)
    }

    fn add_tx(&mut self, tx: Tx) -> u32 {
        let id = self.plan.txs.len() as u32;
        self.plan.txs.insert(id, tx);
        id
    }

    /// Chooses the transactions that a block lists; [`Plan::with_honest_blocks`] later removes what no miner could
    /// list.
    fn choose_listed(&mut self) -> Vec<u32> {
        let share = *self.rng.pick(&[0.0, 0.4, 1.0]);
        let mut spends: Vec<u32> = Vec::new();
        for (id, tx) in &self.plan.txs {
            if matches!(tx, Tx::Spend { .. }) && self.rng.chance(share) {
                spends.push(*id);
            }
        }
        spends
    }

    /// Returns a known run that fits on the tip, or a new one.
    fn choose_run(&mut self) -> Run {
        let tip = self.chain.last().copied();
        let fits = |(name, parent): &(&u32, &Option<u32>)| **parent == tip && !self.chain.contains(name);
        let known: Vec<u32> = self.runs.iter().filter(fits).map(|(name, _)| *name).collect();
        if !known.is_empty() && self.rng.below(5) < 3 {
            return Run { coinbase: known[self.below(known.len())], listed: Vec::new() };
        }
        Run { coinbase: self.add_coinbase(), listed: self.choose_listed() }
    }

    fn add_reorg(&mut self) {
        let disconnect = (1 + self.rng.below(self.depth) as usize).min(self.chain.len());
        self.chain.truncate(self.chain.len() - disconnect);
        let mut connect = Vec::new();
        for _ in 0..self.below(disconnect + 2) {
            let run = self.choose_run();
            self.record_run(run.coinbase);
            self.chain.push(run.coinbase);
            connect.push(run);
        }
        self.plan.steps.push(Step::Reorg { disconnect, connect });
        if self.rng.below(3) == 0 {
            self.add_coinbase_spend();
        }
    }

    fn add_side_chain(&mut self) {
        let below = self.below(3).min(self.chain.len());
        let base = self.chain[..self.chain.len() - below].last().copied();
        let (coinbase, listed) = (self.add_coinbase(), self.choose_listed());
        self.runs.insert(coinbase, base);
        self.plan.steps.push(Step::MineSideChain { below, coinbase, listed });
    }

    /// Adds a transaction that spends a coinbase, on the longest chain or not, and perhaps a child.
    fn add_coinbase_spend(&mut self) {
        let names: Vec<u32> = self.runs.keys().copied().collect();
        if names.is_empty() {
            return;
        }
        let coinbase = names[self.below(names.len())];
        let mut events = Vec::new();
        let coinbase_spend = self.add_tx(Tx::Spend { inputs: vec![(coinbase, 0)], outputs: 2 });
        events.push(coinbase_spend);
        if self.rng.below(2) == 0 {
            events.push(self.add_tx(Tx::Spend { inputs: vec![(coinbase_spend, 0)], outputs: 1 }));
        }
        if self.rng.below(3) == 0 {
            events.push(self.add_tx(Tx::Spend { inputs: vec![(coinbase, 0)], outputs: 1 }));
        }
        for tx in events {
            let at = self.plan.steps.len() - self.below(4).min(self.plan.steps.len());
            self.plan.steps.insert(at, Step::Validate { tx, height: MATURE_HEIGHT, locked: false, lie: None });
        }
    }
}
