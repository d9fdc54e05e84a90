//! A history with its faults as plain data: generated from a seed, reduced by shrinking, executed by a run.

use std::collections::{BTreeMap, BTreeSet};

use super::commands::PlannedCommand;

/// All inputs of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Seed of every random generator inside the run.
    pub rng_seed: u64,
    /// Blocks in one run of blocks. Only the last block of a run lists transactions, so that a coinbase can mature. The
    /// last block of run `n` is at height `BASE_HEIGHT + n * height_step`.
    pub height_step: u32,
    /// Session timeout of a consumer group, ms.
    pub session_ms: u64,
    /// Rows per batch of the pipeline, and descendants per decision.
    pub batch: usize,
    /// Slots per page.
    pub page_size: u32,
    /// Bodies of more bytes go to the blob store, as do those of several pages; `None` means that there is no blob
    /// store.
    pub inline_limit: Option<u64>,
    /// The engine refuses records with a larger inline body, which then goes to the blob store. `None` (also without a
    /// blob store) means that the engine accepts any.
    pub longest_body: Option<u64>,
    /// Blocks between a record's becoming due and its pruning; `None` disables pruning.
    pub prune_after: Option<u32>,
    /// Probability of each enabled fault, by name.
    pub faults: BTreeMap<&'static str, f64>,
    /// Transactions that the steps name.
    pub txs: BTreeMap<u32, Tx>,
    /// Steps in the order of their execution.
    pub steps: Vec<Step>,
}

/// Height of the parent of the first block.
pub const BASE_HEIGHT: u32 = 100;
/// Blocks until the outputs of a coinbase can be spent.
pub const MATURITY: u32 = 100;
/// Slots per page in plans in which every transaction has one page.
pub const ONE_PAGE: u32 = 1_000;
/// Number of instances that a plan may name.
pub const SLOTS: u8 = 4;

/// Origin of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tx {
    /// Partial transaction without inputs.
    Seed {
        /// Number of outputs.
        outputs: u32,
    },
    /// Coinbase of a block.
    Coinbase,
    /// Transaction that spends outputs (transaction, index) of earlier ones.
    Spend {
        /// Spent outputs as (transaction, index).
        inputs: Vec<(u32, u32)>,
        /// Number of outputs.
        outputs: u32,
    },
}

/// The wrong claim of an event about the output that its first input spends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    Amount,
    Script,
    /// The claim that the new owner has the output; true after a reassignment.
    Owner,
}

/// A message that no consumer can apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poison {
    /// Bytes that are no event, in the topic of transactions.
    Garbage,
    /// Event of a transaction under the key of another one.
    WrongKey,
    /// Command in the topic of transactions.
    WrongTopic,
    /// Bytes that are no event, in the chain topic.
    Chain,
}

/// A run of blocks. A run whose coinbase is known is the known run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Coinbase of the last block.
    pub coinbase: u32,
    /// Transactions that the last block lists.
    pub listed: Vec<u32>,
}

/// One step of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Produces the event of a partial transaction; `other` gives it other outputs than the whole one of the same txid
    /// has.
    Seed { tx: u32, other: bool },
    /// Produces the event of a transaction.
    Validate { tx: u32, height: u32, locked: bool, lie: Option<Lie> },
    /// Produces a message that cannot be applied.
    Poison { kind: Poison },
    /// Produces the next run of blocks; `listed` and `coinbase` belong to its last block.
    Mine { coinbase: u32, listed: Vec<u32> },
    /// Produces a run of blocks on a side chain whose parent lies `below` runs below the tip.
    MineSideChain { below: usize, coinbase: u32, listed: Vec<u32> },
    /// Produces a reorg: so many runs disconnect the longest chain, and others connect.
    Reorg { disconnect: usize, connect: Vec<Run> },
    /// Produces a `Reconsider` command.
    Reconsider { tx: u32 },
    /// Produces any other command, under this id.
    Command { id: u32, command: PlannedCommand },
    /// Lets time pass.
    Sleep { ms: u64 },
    /// Starts an instance in a free slot.
    Start { slot: u8 },
    /// Shuts an instance down gracefully.
    Stop { slot: u8 },
    /// Kills an instance after this many more of its polls and calls.
    Crash { slot: u8, ticks: u64 },
    /// Freezes an instance; with `lost` the group reassigns its partitions.
    Pause { slot: u8, lost: bool },
    /// Expels an instance from its groups and blocks its polls, so that it continues as a zombie.
    Deafen { slot: u8 },
    /// Ends `Pause` and `Deafen`.
    Wake { slot: u8 },
    /// Revokes and reassigns every partition.
    Rebalance,
    /// Every member loses its partitions without a drain.
    LoseAssignments,
    /// Delivers the delayed writes of the engine now.
    DeliverLate,
}

impl Plan {
    /// Keeps in each block only transactions that an honest miner could list: after their parents, valid at the height,
    /// without rivals, and produced at some time, since the chain would wait for others for ever. Shrinking relies on
    /// this.
    pub fn with_honest_blocks(mut self) -> Self {
        let mut miner = Miner::new(&self);
        let steps = std::mem::take(&mut self.steps);
        self.steps = steps.into_iter().filter_map(|step| miner.honest_step(&self, step)).collect();
        self
    }

    /// Whether a command deletes the transaction.
    pub fn deletes(&self, tx: u32) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Command { command, .. } if command.deleted() == Some(tx)))
    }

    /// Returns the transactions that the steps name, and all their ancestors.
    pub fn used(&self) -> BTreeSet<u32> {
        let named = self.steps.iter().flat_map(|step| match step {
            Step::Seed { tx, .. } | Step::Validate { tx, .. } | Step::Reconsider { tx } => vec![*tx],
            Step::Mine { coinbase, listed } | Step::MineSideChain { coinbase, listed, .. } => {
                [&[*coinbase], listed.as_slice()].concat()
            }
            Step::Reorg { connect, .. } => {
                connect.iter().flat_map(|run| [&[run.coinbase], run.listed.as_slice()].concat()).collect()
            }
            Step::Command { command, .. } => command.transactions(),
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

/// Miner that decides which transactions a block may list.
struct Miner {
    /// Transactions produced at least once. A miner knows the spent outputs, whatever an event claims about them.
    produced: BTreeSet<u32>,
    seeded: BTreeSet<u32>,
    /// Parent and listed transactions of each run, by the run's coinbase.
    runs: BTreeMap<u32, (Option<u32>, Vec<u32>)>,
    /// Runs of the longest chain.
    chain: Vec<u32>,
    /// Maximum number of runs that the longest chain has had.
    longest: usize,
}

/// Mined and spent outputs of one chain.
struct Mined {
    /// Height from which the outputs of each mined transaction are spendable.
    from: BTreeMap<u32, u32>,
    spent: BTreeSet<(u32, u32)>,
}

impl Miner {
    fn new(plan: &Plan) -> Self {
        let events = |wanted: fn(&Step) -> Option<u32>| plan.steps.iter().filter_map(wanted).collect::<BTreeSet<_>>();
        // The first event of a txid, partial or whole, defines the transaction.
        let mut first: BTreeMap<u32, &Step> = BTreeMap::new();
        for step in &plan.steps {
            if let Step::Seed { tx, .. } | Step::Validate { tx, .. } = step {
                first.entry(*tx).or_insert(step);
            }
        }
        let seeded = first.iter().filter(|(_, step)| matches!(step, Step::Seed { other: false, .. }));
        let seeded: BTreeSet<u32> = seeded.map(|(tx, _)| *tx).collect();
        let contradicted = first.iter().filter(|(_, step)| matches!(step, Step::Seed { other: true, .. }));
        let contradicted: BTreeSet<u32> = contradicted.map(|(tx, _)| *tx).collect();
        let produced = events(|step| match step {
            Step::Validate { tx, .. } => Some(*tx),
            _ => None,
        });
        let commands = || {
            plan.steps.iter().filter_map(|step| match step {
                Step::Command { command, .. } => Some(command),
                _ => None,
            })
        };
        let deleted: BTreeSet<u32> = commands().filter_map(PlannedCommand::deleted).collect();
        let is_barred = |output: &(u32, u32)| commands().any(|command| command.may_bar(*output));
        // No block lists a transaction that a command may bar or delete: such a block would halt the chain.
        let is_free = |tx: &u32| match plan.txs.get(tx) {
            Some(Tx::Spend { inputs, .. }) => !inputs.iter().any(is_barred),
            _ => true,
        };
        let honest = produced.difference(&contradicted).copied();
        let produced = honest.filter(|tx| !deleted.contains(tx) && is_free(tx)).collect();
        Miner { produced, seeded, runs: BTreeMap::new(), chain: Vec::new(), longest: 0 }
    }

    /// Returns the step as an honest miner could produce it.
    fn honest_step(&mut self, plan: &Plan, step: Step) -> Option<Step> {
        Some(match step {
            Step::Mine { coinbase, listed } => {
                let run = self.honest_run(plan, 0, Run { coinbase, listed })?;
                self.connect_run(coinbase);
                Step::Mine { coinbase, listed: run.listed }
            }
            Step::MineSideChain { below, coinbase, listed } => {
                let below = below.min(self.chain.len());
                // A run of the longest chain is on no side chain.
                let run = (!self.chain.contains(&coinbase)).then_some(Run { coinbase, listed })?;
                Step::MineSideChain { below, coinbase, listed: self.honest_run(plan, below, run)?.listed }
            }
            Step::Reorg { disconnect, connect } => {
                let disconnect = disconnect.min(self.max_disconnected(plan));
                self.chain.truncate(self.chain.len() - disconnect);
                let mut honest = Vec::new();
                for run in connect {
                    let name = run.coinbase;
                    if let Some(run) = self.honest_run(plan, 0, run) {
                        self.connect_run(name);
                        honest.push(run);
                    }
                }
                Step::Reorg { disconnect, connect: honest }
            }
            step => step,
        })
    }

    fn connect_run(&mut self, name: u32) {
        self.chain.push(name);
        self.longest = self.longest.max(self.chain.len());
    }

    /// Returns the maximum number of runs that a reorg may disconnect: a deeper block may list pruned transactions.
    fn max_disconnected(&self, plan: &Plan) -> usize {
        let deepest = plan.prune_after.map_or(usize::MAX, |blocks| (blocks / plan.height_step) as usize);
        deepest.saturating_sub(self.longest - self.chain.len()).min(self.chain.len())
    }

    /// Returns the run on top of the longest chain without its last `below` runs; `None` if the run is known with
    /// another parent.
    fn honest_run(&mut self, plan: &Plan, below: usize, run: Run) -> Option<Run> {
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
    /// Adds the transaction and returns true, if a block of this height can list it.
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
