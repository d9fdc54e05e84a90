//! Transactions that hold a slot of one parent while another parent has yet to come. Meanwhile the first parent may
//! fall, and be live again. Of dice of their own: everything else of a history stays as it is without them.

use utxo_store::seeded::Seeded;

use super::{
    plan::{Plan, Run, Step, Tx},
    swarm,
};

/// Height at which nothing is immature any more.
const LATE: u32 = 100_000;

/// Adds such transactions to a third of the histories, or with `SIM_LATECOMERS=1` to all of them.
pub fn add_latecomers(plan: &mut Plan, seed: u64) {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"latecome"));
    let all = std::env::var("SIM_LATECOMERS").is_ok_and(|text| text == "1");
    if swarm::is_out("latecomers") || (dice.below(3) > 0 && !all) {
        return;
    }
    let share: f64 = *dice.pick(&[0.05, 0.2]);
    let mut author = Author { dice, plan, chain: Vec::new(), late: Vec::new() };
    for step in std::mem::take(&mut author.plan.steps) {
        author.follow_chain(&step);
        let first_parent = author.first_parent_of(&step);
        author.plan.steps.push(step);
        if let Some(parent) = first_parent
            && author.dice.chance(share)
        {
            author.add_child(parent);
        }
        author.produce_late_parent(false);
    }
    while !author.late.is_empty() {
        author.produce_late_parent(true);
    }
}

struct Author<'p> {
    dice: Seeded,
    plan: &'p mut Plan,
    /// Coinbases of the longest chain, by run.
    chain: Vec<u32>,
    /// Events of parents that are still to be produced.
    late: Vec<Vec<Step>>,
}

impl Author<'_> {
    fn tx(&mut self, tx: Tx) -> u32 {
        let id = self.plan.txs.len() as u32;
        self.plan.txs.insert(id, tx);
        id
    }

    fn follow_chain(&mut self, step: &Step) {
        match step {
            Step::Mine { coinbase, .. } => self.chain.push(*coinbase),
            Step::Reorg { leave, come } => {
                self.chain.truncate(self.chain.len().saturating_sub(*leave));
                self.chain.extend(come.iter().map(|run| run.coinbase));
            }
            _ => {}
        }
    }

    /// An output that the child may hold while it waits: of the transaction of this step, or of the last coinbase.
    fn first_parent_of(&mut self, step: &Step) -> Option<(u32, u32)> {
        match step {
            Step::Validate { tx, .. } => match self.plan.txs.get(tx)? {
                Tx::Spend { outputs, .. } => Some((*tx, self.dice.below(u64::from(*outputs)) as u32)),
                Tx::Seed { .. } | Tx::Coinbase => None,
            },
            Step::Mine { coinbase, .. } => Some((*coinbase, 0)),
            _ => None,
        }
    }

    /// A child of this output and of a parent that comes later, and perhaps a child of that child.
    fn add_child(&mut self, mut held: (u32, u32)) {
        let is_of_coinbase = matches!(self.plan.txs.get(&held.0), Some(Tx::Coinbase));
        if is_of_coinbase && self.dice.below(2) == 0 {
            let heir = self.tx(Tx::Spend { inputs: vec![held], outputs: 2 });
            self.validate(heir);
            held = (heir, 0);
        }
        let seed = self.tx(Tx::Seed { outputs: 1 });
        let parent = self.tx(Tx::Spend { inputs: vec![(seed, 0)], outputs: 2 });
        let mut inputs = vec![held, (parent, 0)];
        if self.dice.below(2) == 0 {
            inputs.reverse();
        }
        let child = self.tx(Tx::Spend { inputs, outputs: 2 });
        self.validate(child);
        if self.dice.below(3) == 0 {
            let grandchild = self.tx(Tx::Spend { inputs: vec![(child, 0)], outputs: 1 });
            self.validate(grandchild);
        }
        let event = Step::Validate { tx: parent, height: LATE, locked: false, lie: None };
        self.late.push(vec![Step::Seed { tx: seed, other: false }, event]);
        if is_of_coinbase && self.dice.below(4) < 3 {
            self.disconnect_and_connect();
        }
    }

    fn validate(&mut self, tx: u32) {
        self.plan.steps.push(Step::Validate { tx, height: LATE, locked: false, lie: None });
    }

    /// The last run leaves the longest chain, and comes back.
    fn disconnect_and_connect(&mut self) {
        let Some(coinbase) = self.chain.last().copied() else { return };
        for step in [
            Step::Reorg { leave: 1, come: Vec::new() },
            Step::Reorg { leave: 0, come: vec![Run { coinbase, listed: Vec::new() }] },
        ] {
            let ms = 1 + self.dice.below(30);
            self.plan.steps.extend([Step::Sleep { ms }, step]);
        }
    }

    fn produce_late_parent(&mut self, is_due: bool) {
        if !self.late.is_empty() && (is_due || self.dice.below(8) == 0) {
            self.plan.steps.extend(self.late.remove(0));
        }
    }
}
