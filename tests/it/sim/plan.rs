//! A history and its faults as plain data: what a seed gives, what shrinking reduces and what a run executes.

use std::collections::{BTreeMap, BTreeSet};

use super::orders::Order;

/// Everything that decides a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Of all dice that are thrown inside the run.
    pub dice: u64,
    /// Blocks are mined in runs of so many, of which only the last lists anything: so a coinbase can mature. The last of
    /// run `n` is at height `BASE_HEIGHT + n * height_step`.
    pub height_step: u32,
    /// How long a group waits for a member that fell silent, ms.
    pub session_ms: u64,
    /// Rows a batch of the pipeline, and members a chunk of a cone.
    pub batch: usize,
    /// Slots a page.
    pub page_size: u32,
    /// Bodies of more bytes go to the blob store, and those of several pages; `None`: there is none.
    pub inline_limit: Option<u64>,
    /// The engine takes no record with a larger body, so that this goes to the blob store, too; `None`, or no blob store: it takes any.
    pub longest_body: Option<u64>,
    /// What is due is pruned, so many blocks behind what makes it due; `None`: nothing is.
    pub prune_after: Option<u32>,
    /// Probabilities of the faults that are on, by name.
    pub faults: BTreeMap<&'static str, f64>,
    /// The transactions that steps may name.
    pub txs: BTreeMap<u32, Tx>,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// Height below the first block.
pub const BASE_HEIGHT: u32 = 100;
/// Blocks until the outputs of a coinbase can be spent.
pub const MATURITY: u32 = 100;
/// Slots a page where everything has one.
pub const ONE_PAGE: u32 = 1_000;
/// Instances that a plan may name.
pub const SLOTS: u8 = 4;

/// How a transaction is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tx {
    /// A partial one.
    Seed {
        /// Number of outputs.
        outputs: u32,
    },
    /// Of a block.
    Coinbase,
    /// One that spends outputs (transaction, index) of earlier ones.
    Spend {
        /// What it spends.
        inputs: Vec<(u32, u32)>,
        /// Number of outputs.
        outputs: u32,
    },
}

/// What an event claims wrongly of the output that its first input spends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    Amount,
    Script,
    /// That it is the new owner's: true once it was reassigned.
    Owner,
}

/// A message that nobody can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poison {
    /// No event at all.
    Garbage,
    /// Under the key of another transaction.
    WrongKey,
    /// A command in the topic of transactions.
    WrongTopic,
    /// No event, in the chain.
    Chain,
}

/// A run of blocks. One whose coinbase had a run before is that run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Of its last block.
    pub coinbase: u32,
    /// What that lists.
    pub listed: Vec<u32>,
}

/// One step of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Produces the event of a partial transaction, with other outputs than a whole one of the same id if `other`.
    Seed { tx: u32, other: bool },
    /// Produces the event of a transaction.
    Validate { tx: u32, height: u32, locked: bool, lie: Option<Lie> },
    /// Produces what is no event.
    Poison { kind: Poison },
    /// Produces the next run of blocks; `listed` and `coinbase` are those of its last one.
    Mine { coinbase: u32, listed: Vec<u32> },
    /// Produces a run of blocks of a side chain, which stands so many runs below the tip.
    MineAside { below: usize, coinbase: u32, listed: Vec<u32> },
    /// Produces a reorg: so many runs leave the longest chain, and others come.
    Reorg { leave: usize, come: Vec<Run> },
    /// Produces a `Reconsider`.
    Reconsider { tx: u32 },
    /// Produces another command, under this id.
    Command { id: u32, order: Order },
    /// Lets time pass.
    Sleep { ms: u64 },
    /// Starts an instance, where none runs.
    Start { slot: u8 },
    /// Shuts an instance down in order.
    Stop { slot: u8 },
    /// Has an instance crash after so many more of its polls and calls.
    Crash { slot: u8, ticks: u64 },
    /// Freezes an instance; `lost`: its group gives its partitions away.
    Pause { slot: u8, lost: bool },
    /// Takes an instance's partitions away and keeps that from it: it goes on as a zombie.
    Deafen { slot: u8 },
    /// Ends `Pause` and `Deafen`.
    Wake { slot: u8 },
    /// Every partition is given up and handed out anew.
    Rebalance,
    /// Every member loses its partitions without being asked.
    LoseAssignments,
    /// Writes that are late arrive now.
    DeliverLate,
}

impl Plan {
    /// Leaves in each block only what an honest miner could list: with its parents, valid at its height, and no two
    /// that spend the same output; and only what is produced at all, or the chain would wait for ever. Shrinking relies
    /// on it.
    pub fn with_honest_blocks(mut self) -> Self {
        let mut miner = Miner::new(&self);
        let steps = std::mem::take(&mut self.steps);
        self.steps = steps.into_iter().filter_map(|step| miner.honest(&self, step)).collect();
        self
    }

    /// Whether a command deletes it, if it may be deleted.
    pub fn deletes(&self, tx: u32) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Command { order, .. } if order.deletes() == Some(tx)))
    }

    /// The transactions that steps name, with all that they descend from.
    pub fn used(&self) -> BTreeSet<u32> {
        let named = self.steps.iter().flat_map(|step| match step {
            Step::Seed { tx, .. } | Step::Validate { tx, .. } | Step::Reconsider { tx } => vec![*tx],
            Step::Mine { coinbase, listed } | Step::MineAside { coinbase, listed, .. } => {
                [&[*coinbase], listed.as_slice()].concat()
            }
            Step::Reorg { come, .. } => {
                come.iter().flat_map(|run| [&[run.coinbase], run.listed.as_slice()].concat()).collect()
            }
            Step::Command { order, .. } => order.names(),
            _ => Vec::new(),
        });
        let mut open: Vec<u32> = named.collect();
        let mut used = BTreeSet::new();
        while let Some(tx) = open.pop() {
            if used.insert(tx)
                && let Some(Tx::Spend { inputs, .. }) = self.txs.get(&tx)
            {
                open.extend(inputs.iter().map(|(parent, _)| parent));
            }
        }
        used
    }
}

/// Knows what a block may list.
struct Miner {
    /// Produced at least once. A miner knows what is spent, whatever an event claims of it.
    produced: BTreeSet<u32>,
    seeded: BTreeSet<u32>,
    /// By name: what a run stands on, and what it lists.
    runs: BTreeMap<u32, (Option<u32>, Vec<u32>)>,
    /// The longest chain.
    chain: Vec<u32>,
    /// The most runs that it has had.
    longest: usize,
}

/// What is mined and spent on a chain.
struct Mined {
    /// Height at which the outputs of what is mined can be spent.
    from: BTreeMap<u32, u32>,
    spent: BTreeSet<(u32, u32)>,
}

impl Miner {
    fn new(plan: &Plan) -> Self {
        let events = |wanted: fn(&Step) -> Option<u32>| plan.steps.iter().filter_map(wanted).collect::<BTreeSet<_>>();
        // Of a partial and a whole one, the first says what the transaction is.
        let mut first: BTreeMap<u32, &Step> = BTreeMap::new();
        for step in &plan.steps {
            if let Step::Seed { tx, .. } | Step::Validate { tx, .. } = step {
                first.entry(*tx).or_insert(step);
            }
        }
        let seeded = first.iter().filter(|(_, step)| matches!(step, Step::Seed { other: false, .. }));
        let seeded: BTreeSet<u32> = seeded.map(|(tx, _)| *tx).collect();
        let otherwise = first.iter().filter(|(_, step)| matches!(step, Step::Seed { other: true, .. }));
        let otherwise: BTreeSet<u32> = otherwise.map(|(tx, _)| *tx).collect();
        let produced = events(|step| match step {
            Step::Validate { tx, .. } => Some(*tx),
            _ => None,
        });
        let orders = || {
            plan.steps.iter().filter_map(|step| match step {
                Step::Command { order, .. } => Some(order),
                _ => None,
            })
        };
        let deleted: BTreeSet<u32> = orders().filter_map(Order::deletes).collect();
        let barred: BTreeSet<(u32, u32)> = orders().filter_map(Order::bars).collect();
        // What a command may bar, or delete, no block lists: it would halt the chain.
        let is_free = |tx: &u32| match plan.txs.get(tx) {
            Some(Tx::Spend { inputs, .. }) => inputs.iter().all(|input| !barred.contains(input)),
            _ => true,
        };
        let honest = produced.difference(&otherwise).copied();
        let produced = honest.filter(|tx| !deleted.contains(tx) && is_free(tx)).collect();
        Miner { produced, seeded, runs: BTreeMap::new(), chain: Vec::new(), longest: 0 }
    }

    /// The same step, if an honest miner could have it.
    fn honest(&mut self, plan: &Plan, step: Step) -> Option<Step> {
        Some(match step {
            Step::Mine { coinbase, listed } => {
                let run = self.run(plan, 0, Run { coinbase, listed })?;
                self.comes(coinbase);
                Step::Mine { coinbase, listed: run.listed }
            }
            Step::MineAside { below, coinbase, listed } => {
                let below = below.min(self.chain.len());
                // What is on the longest chain is on no other.
                let run = (!self.chain.contains(&coinbase)).then_some(Run { coinbase, listed })?;
                Step::MineAside { below, coinbase, listed: self.run(plan, below, run)?.listed }
            }
            Step::Reorg { leave, come } => {
                let leave = leave.min(self.may_leave(plan));
                self.chain.truncate(self.chain.len() - leave);
                let mut honest = Vec::new();
                for run in come {
                    let name = run.coinbase;
                    if let Some(run) = self.run(plan, 0, run) {
                        self.comes(name);
                        honest.push(run);
                    }
                }
                Step::Reorg { leave, come: honest }
            }
            step => step,
        })
    }

    fn comes(&mut self, name: u32) {
        self.chain.push(name);
        self.longest = self.longest.max(self.chain.len());
    }

    /// Runs that may leave at once: no block from so far below that what it lists may be pruned.
    fn may_leave(&self, plan: &Plan) -> usize {
        let deepest = plan.prune_after.map_or(usize::MAX, |blocks| (blocks / plan.height_step) as usize);
        deepest.saturating_sub(self.longest - self.chain.len()).min(self.chain.len())
    }

    /// The run as it is, or was, on top of the longest chain without so many runs; `None`: it was elsewhere.
    fn run(&mut self, plan: &Plan, below: usize, run: Run) -> Option<Run> {
        let base = self.chain[..self.chain.len() - below].to_vec();
        if let Some((parent, listed)) = self.runs.get(&run.coinbase) {
            let fits = *parent == base.last().copied();
            return fits.then(|| Run { listed: listed.clone(), ..run });
        }
        let mut mined = self.mined_on(plan, &base);
        let height = BASE_HEIGHT + (base.len() as u32 + 1) * plan.height_step;
        let listed: Vec<u32> =
            run.listed.into_iter().filter(|tx| self.produced.contains(tx) && mined.admits(plan, *tx, height)).collect();
        self.runs.insert(run.coinbase, (base.last().copied(), listed.clone()));
        Some(Run { listed, ..run })
    }

    fn mined_on(&self, plan: &Plan, chain: &[u32]) -> Mined {
        let from = self.seeded.iter().map(|tx| (*tx, 0)).collect();
        let mut mined = Mined { from, spent: BTreeSet::new() };
        for (name, number) in chain.iter().zip(1..) {
            let height = BASE_HEIGHT + number * plan.height_step;
            for tx in &self.runs[name].1 {
                mined.admits(plan, *tx, height);
            }
            mined.from.insert(*name, height + MATURITY);
        }
        mined
    }
}

impl Mined {
    /// Takes a transaction, if it can be in a block of this height.
    fn admits(&mut self, plan: &Plan, tx: u32, height: u32) -> bool {
        let Some(Tx::Spend { inputs, .. }) = plan.txs.get(&tx) else { return false };
        let spendable = |parent: &u32| self.from.get(parent).is_some_and(|from| *from <= height);
        let fits = !self.from.contains_key(&tx)
            && inputs.iter().all(|outpoint| spendable(&outpoint.0) && !self.spent.contains(outpoint));
        if fits {
            self.spent.extend(inputs);
            self.from.insert(tx, 0);
        }
        fits
    }
}
