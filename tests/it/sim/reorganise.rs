//! Reorgs and side chains in a history that was thought of without them. Of dice of their own: all else stays as it is.

use std::collections::BTreeMap;

use utxo_store::seeded::Seeded;

use super::{
    plan::{Plan, Run, Step, Tx},
    swarm,
};

/// Height at which nothing is immature any more.
const LATE: u32 = 100_000;

/// Knows the chain, as far as the plan has come, whatever of it turns out to be honest.
struct Reorganiser<'p> {
    dice: Seeded,
    plan: &'p mut Plan,
    /// By name: what a run stands on.
    runs: BTreeMap<u32, Option<u32>>,
    chain: Vec<u32>,
    /// Runs that leave at once, at the most.
    depth: u64,
}

/// Adds reorgs and side chains to a third of the histories, or with `SIM_REORGS=1` to all of them.
pub fn reorganise(plan: &mut Plan, seed: u64) {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"reorgs! "));
    let all = std::env::var("SIM_REORGS").is_ok_and(|text| text == "1");
    if swarm::is_out("reorgs") || (dice.below(3) > 0 && !all) {
        return;
    }
    let share: f64 = *dice.pick(&[0.05, 0.15, 0.4]);
    let depths: &[u64] = if plan.height_step == 1 { &[1, 2, 3, 6] } else { &[1, 1, 3] };
    let depth = *dice.pick(depths);
    let steps = std::mem::take(&mut plan.steps);
    let mut author = Reorganiser { dice, plan, runs: BTreeMap::new(), chain: Vec::new(), depth };
    for step in steps {
        let mined = matches!(step, Step::Mine { .. });
        if let Step::Mine { coinbase, .. } = step {
            author.comes(coinbase);
            author.chain.push(coinbase);
        }
        author.plan.steps.push(step);
        let likely = if mined { share.max(0.3) } else { share / 3.0 };
        if author.dice.chance(likely) {
            author.moment();
        }
    }
}

impl Reorganiser<'_> {
    fn below(&mut self, bound: usize) -> usize {
        self.dice.below(bound as u64) as usize
    }

    fn comes(&mut self, name: u32) {
        self.runs.entry(name).or_insert(self.chain.last().copied());
    }

    fn moment(&mut self) {
        match self.dice.below(6) {
            0 => self.aside(),
            1 => self.heir(),
            2 => {
                // There and back.
                self.reorg();
                self.reorg();
            }
            _ => self.reorg(),
        }
        if self.dice.below(3) == 0 {
            let ms = 1 + self.dice.below(60);
            self.plan.steps.push(Step::Sleep { ms });
        }
    }

    fn coinbase(&mut self) -> u32 {
        self.tx(Tx::Coinbase)
    }

    fn tx(&mut self, tx: Tx) -> u32 {
        let id = self.plan.txs.len() as u32;
        self.plan.txs.insert(id, tx);
        id
    }

    /// What a block lists, of all that there is; what an honest miner could not list is left out later.
    fn listed(&mut self) -> Vec<u32> {
        let share = *self.dice.pick(&[0.0, 0.4, 1.0]);
        let mut spends: Vec<u32> = Vec::new();
        for (id, tx) in &self.plan.txs {
            if matches!(tx, Tx::Spend { .. }) && self.dice.chance(share) {
                spends.push(*id);
            }
        }
        spends
    }

    /// A run that was there before, if it fits, or a new one.
    fn run(&mut self) -> Run {
        let tip = self.chain.last().copied();
        let fits = |(name, parent): &(&u32, &Option<u32>)| **parent == tip && !self.chain.contains(name);
        let again: Vec<u32> = self.runs.iter().filter(fits).map(|(name, _)| *name).collect();
        if !again.is_empty() && self.dice.below(5) < 3 {
            return Run { coinbase: again[self.below(again.len())], listed: Vec::new() };
        }
        Run { coinbase: self.coinbase(), listed: self.listed() }
    }

    fn reorg(&mut self) {
        let leave = (1 + self.dice.below(self.depth) as usize).min(self.chain.len());
        self.chain.truncate(self.chain.len() - leave);
        let mut come = Vec::new();
        for _ in 0..self.below(leave + 2) {
            let run = self.run();
            self.comes(run.coinbase);
            self.chain.push(run.coinbase);
            come.push(run);
        }
        self.plan.steps.push(Step::Reorg { leave, come });
        if self.dice.below(3) == 0 {
            self.heir();
        }
    }

    fn aside(&mut self) {
        let below = self.below(3).min(self.chain.len());
        let base = self.chain[..self.chain.len() - below].last().copied();
        let (coinbase, listed) = (self.coinbase(), self.listed());
        self.runs.insert(coinbase, base);
        self.plan.steps.push(Step::MineAside { below, coinbase, listed });
    }

    /// A transaction that spends a coinbase, on the longest chain or not, and perhaps a child of it.
    fn heir(&mut self) {
        let names: Vec<u32> = self.runs.keys().copied().collect();
        if names.is_empty() {
            return;
        }
        let coinbase = names[self.below(names.len())];
        let mut events = Vec::new();
        let heir = self.tx(Tx::Spend { inputs: vec![(coinbase, 0)], outputs: 2 });
        events.push(heir);
        if self.dice.below(2) == 0 {
            events.push(self.tx(Tx::Spend { inputs: vec![(heir, 0)], outputs: 1 }));
        }
        if self.dice.below(3) == 0 {
            events.push(self.tx(Tx::Spend { inputs: vec![(coinbase, 0)], outputs: 1 }));
        }
        for tx in events {
            let at = self.plan.steps.len() - self.below(4).min(self.plan.steps.len());
            self.plan.steps.insert(at, Step::Validate { tx, height: LATE, locked: false, lie: None });
        }
    }
}
