//! Generator of plans: one seed gives one plan.

use std::collections::{BTreeMap, BTreeSet};

use utxo_store::rng::SplitMix64;

use super::{
    commands, latecomers,
    plan::{BASE_HEIGHT, Lie, MATURITY, Plan, Poison, SLOTS, Step, Tx},
    pruning,
    reorgs::add_reorgs,
    swarm,
};

type Output = (u32, u32);

/// Height at which every coinbase of a plan is mature.
const MATURE_HEIGHT: u32 = 100_000;

struct HistoryWriter {
    rng: SplitMix64,
    /// Generator for the kinds of events that were added later: the plans of older seeds stay as they were.
    later_rng: SplitMix64,
    on: BTreeSet<&'static str>,
    plan: Plan,
    /// Unspent outputs that honest payments use.
    coins: Vec<Output>,
    /// Unspent outputs of coinbases.
    coinbase_outputs: Vec<Output>,
    honest: BTreeSet<u32>,
    /// Transactions that a block could list, in the order of their creation.
    minable: Vec<u32>,
    /// Steps that are inserted at some later moment.
    later: Vec<Step>,
    instances: u8,
    blocks: u32,
}

/// Returns the plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let mut rng = SplitMix64::new(seed);
    let mut later_rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"later on"));
    let mut on = swarm::events(&mut rng);
    on.extend(swarm::later_events(&mut later_rng));
    let mut fault_rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"faulting"));
    let inner_seed = rng.next_u64() >> 16;
    // Blocks by the dozen cost time, and only a plan that spends coinbases needs mature ones.
    let runs = *rng.pick(&[1, 50]);
    let plan = Plan {
        rng_seed: inner_seed,
        height_step: if on.contains("coinbase spend") { runs } else { 1 },
        session_ms: *rng.pick(&[0, 0, 500, 5_000]),
        batch: *rng.pick(&[1, 2, 16]),
        page_size: swarm::page_size(seed),
        inline_limit: swarm::inline_limit(seed),
        longest_body: swarm::longest_body(seed),
        prune_after: None,
        faults: swarm::faults(&mut rng).into_iter().chain(swarm::later_faults(&mut fault_rng)).collect(),
        txs: BTreeMap::new(),
        steps: Vec::new(),
    };
    let instances = *rng.pick(&[1, 1, 2, 2, 3, 4]);
    let mut writer = HistoryWriter {
        rng,
        later_rng,
        on,
        plan,
        coins: Vec::new(),
        coinbase_outputs: Vec::new(),
        honest: BTreeSet::new(),
        minable: Vec::new(),
        later: Vec::new(),
        instances,
        blocks: 0,
    };
    writer.write();
    add_partial_events(&mut writer.plan, seed);
    vary_later_heights(&mut writer.plan, seed);
    add_reorgs(&mut writer.plan, seed);
    latecomers::add_latecomers(&mut writer.plan, seed);
    commands::add_commands(&mut writer.plan, seed);
    pruning::add_pruning(&mut writer.plan, seed);
    writer.plan.with_honest_blocks()
}

/// In half of the histories the later events of a transaction name another height than the first event, whose height
/// counts. A separate generator keeps the rest of the plan as it was.
fn vary_later_heights(plan: &mut Plan, seed: u64) {
    let mut rng = SplitMix64::new(seed ^ u64::from_be_bytes(*b"higher  "));
    let mut produced = BTreeSet::new();
    if rng.below(2) == 0 {
        return;
    }
    for step in &mut plan.steps {
        if let Step::Validate { tx, height, .. } = step
            && !produced.insert(*tx)
        {
            *height += 1 + rng.below(9) as u32;
        }
    }
}

/// Adds partial transactions of the same txid before or after whole ones. A separate generator keeps the rest of the
/// plan as it was.
fn add_partial_events(plan: &mut Plan, seed: u64) {
    let mut rng = SplitMix64::new(seed ^ 0x5EED_ED00);
    if rng.below(3) > 0 {
        return;
    }
    let share = *rng.pick(&[0.1, 0.3]);
    let mut at = 0;
    while at < plan.steps.len() {
        let validated = match plan.steps[at] {
            Step::Validate { tx, lie: None, locked: false, .. } => Some(tx),
            _ => None,
        };
        if let Some(tx) = validated
            && rng.chance(share)
        {
            let other = rng.below(4) == 0;
            let place = match rng.below(4) {
                0 => at.saturating_sub(rng.below(10) as usize),
                1 => at,
                2 => at + 1,
                _ => plan.steps.len().min(at + rng.below(20) as usize),
            };
            plan.steps.insert(place, Step::Seed { tx, other });
            at += 1;
        }
        at += 1;
    }
}

impl HistoryWriter {
    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    /// Returns true once in `of` times, if the kind is enabled.
    fn chooses(&mut self, kind: &'static str, of: u64) -> bool {
        self.on.contains(kind) && self.rng.below(of) == 0
    }

    fn push_step(&mut self, step: Step) {
        self.plan.steps.push(step);
    }

    fn write(&mut self) {
        for _ in 0..1 + self.below(3) {
            self.add_seed();
        }
        for slot in 0..self.instances {
            self.push_step(Step::Start { slot });
        }
        if self.plan.faults.contains_key(swarm::NODE_FORGETS) {
            // An instance begins only once the meta record is durable.
            self.push_step(Step::Sleep { ms: 1_000 });
        }
        let moments = 3 + self.below(*[10, 25, 45].get(self.plan.rng_seed as usize % 3).unwrap_or(&10));
        for _ in 0..moments {
            self.write_moment();
        }
        for step in std::mem::take(&mut self.later) {
            self.push_step(step);
        }
        if self.on.contains("block") {
            self.add_block(0);
        }
    }

    fn add_seed(&mut self) {
        let outputs = 2 + self.below(6) as u32;
        let tx = self.add_tx(Tx::Seed { outputs });
        self.coins.extend((0..outputs).map(|vout| (tx, vout)));
        self.push_step(Step::Seed { tx, other: false });
    }

    fn add_tx(&mut self, tx: Tx) -> u32 {
        let id = self.plan.txs.len() as u32;
        self.plan.txs.insert(id, tx);
        id
    }

    fn add_spend(&mut self, inputs: Vec<Output>, outputs: u32) -> u32 {
        let tx = self.add_tx(Tx::Spend { inputs, outputs });
        self.minable.push(tx);
        tx
    }

    fn pick_coin(&mut self) -> Option<Output> {
        let index = self.below(self.coins.len());
        (index < self.coins.len()).then(|| self.coins.swap_remove(index))
    }

    fn validated_step(&mut self, tx: u32) -> Step {
        let locked = self.chooses("locked", 8);
        Step::Validate { tx, height: MATURE_HEIGHT, locked, lie: None }
    }

    fn write_moment(&mut self) {
        match self.rng.below(10) {
            0..8 => self.add_payment(),
            _ => self.add_rare_event(),
        }
        if self.chooses("block", 6) {
            let steps_back = if self.chooses("early block", 3) { 1 + self.below(6) } else { 0 };
            self.add_block(steps_back);
        }
        if !self.later.is_empty() && self.rng.below(4) == 0 {
            let step = self.later.remove(0);
            self.push_step(step);
        }
        self.add_instance_fault();
        if self.rng.below(3) == 0 {
            let ms = *self.rng.pick(&[1, 5, 20, 60, 300]);
            let ms = 1 + self.rng.below(ms);
            self.push_step(Step::Sleep { ms });
        }
    }

    /// Adds an honest transaction over some coins, and the irregular events that accompany it.
    fn add_payment(&mut self) {
        let wanted = if self.chooses("crossing", 2) { 2 } else { 1 + self.below(3) };
        let coins: Vec<Output> = (0..wanted).filter_map(|_| self.pick_coin()).collect();
        if coins.is_empty() {
            return self.add_seed();
        }
        let outputs = if self.chooses("fan-out", 3) { 8 } else { 1 + self.below(3) as u32 };
        let honest = self.add_spend(coins.clone(), outputs);
        self.honest.insert(honest);
        let mut made = vec![honest];
        let mut events = Vec::new();
        if self.chooses("crossing", 2) && coins.len() > 1 {
            let crossed = coins.iter().rev().copied().collect();
            made.push(self.add_spend(crossed, 1));
        }
        if self.chooses("double spend", 3) {
            self.add_rival(&coins, &mut made);
        }
        if self.chooses("triple spend", 4) {
            self.add_rival(&coins, &mut made);
            self.add_rival(&coins, &mut made);
        }
        if self.chooses("missing parent", 4) {
            self.add_orphan(&coins, &mut made);
        }
        events.extend(made.iter().map(|tx| self.validated_step(*tx)).collect::<Vec<_>>());
        if self.chooses("lie", 3) {
            self.add_lie(&mut events);
        }
        if self.chooses("duplicate", 3) {
            let again = events[self.below(events.len())].clone();
            if self.rng.below(2) == 0 { events.push(again) } else { self.later.push(again) }
        }
        if self.on.contains("child first") {
            let places = self.below(events.len());
            events.rotate_left(places);
            if self.rng.below(2) == 0 {
                events.reverse();
            }
        }
        self.plan.steps.extend(events);
        self.coins.extend((0..outputs).map(|vout| (honest, vout)));
    }

    /// Adds a rival that spends some of the same coins and sometimes another honest one; sometimes with descendants.
    fn add_rival(&mut self, coins: &[Output], made: &mut Vec<u32>) {
        let mut taken = coins[..1 + self.below(coins.len())].to_vec();
        if self.rng.below(3) == 0 && !self.coins.is_empty() {
            let index = self.below(self.coins.len());
            taken.push(self.coins[index]);
        }
        if self.rng.below(2) == 0 {
            taken.reverse();
        }
        let rival = self.add_spend(taken, 2);
        made.push(rival);
        if self.chooses("descendants", 2) {
            let child = self.add_spend(vec![(rival, 0)], 2);
            let mut both = vec![(child, 0), (rival, 1)];
            if self.rng.below(3) == 0
                && let Some(index) = self.coins.len().checked_sub(1)
            {
                both.push(self.coins[index]);
            }
            let grandchild = self.add_spend(both, 1);
            made.extend([child, grandchild]);
        }
    }

    /// Adds a child whose parent is never produced, or only later.
    fn add_orphan(&mut self, coins: &[Output], made: &mut Vec<u32>) {
        let mut inputs = vec![coins[0]];
        if self.rng.below(2) == 0
            && let Some(coin) = self.pick_coin()
        {
            inputs = vec![coin];
        }
        let parent = self.add_spend(inputs, 2);
        let child = self.add_spend(vec![(parent, 0)], 1);
        made.push(child);
        if self.chooses("descendants", 2) {
            made.push(self.add_spend(vec![(child, 0), (parent, 1)], 1));
        }
        if self.chooses("late parent", 2) {
            let event = self.validated_step(parent);
            self.later.push(event);
            if self.rng.below(2) == 0 {
                let again = self.validated_step(child);
                self.later.push(again);
            }
        }
    }

    /// Adds an event with a wrong claim, in place of the honest event, before it or after it.
    fn add_lie(&mut self, events: &mut Vec<Step>) {
        let index = self.below(events.len());
        let mut wrong = events[index].clone();
        if let Step::Validate { lie, .. } = &mut wrong {
            *lie = Some(*self.rng.pick(&[Lie::Amount, Lie::Script]));
        }
        match self.rng.below(4) {
            0 => events[index] = wrong,
            1 => events.insert(index, wrong),
            2 => events.push(wrong),
            _ => self.later.push(wrong),
        }
    }

    fn add_rare_event(&mut self) {
        if self.chooses("poison", 2) {
            let kind = *self.rng.pick(&[Poison::Garbage, Poison::WrongKey, Poison::WrongTopic, Poison::Chain]);
            self.push_step(Step::Poison { kind });
        }
        if self.chooses("reconsider", 2) && !self.plan.txs.is_empty() {
            let tx = self.below(self.plan.txs.len()) as u32;
            self.push_step(Step::Reconsider { tx });
        }
        if self.chooses("coinbase spend", 2)
            && let Some((coinbase, vout)) = self.coinbase_outputs.pop()
        {
            let tx = self.add_spend(vec![(coinbase, vout)], 2);
            let event = self.validated_step(tx);
            self.push_step(event);
            if self.rng.below(2) == 0 {
                self.coins.extend([(tx, 0), (tx, 1)]);
            }
        }
        if self.chooses("immature", 2)
            && let Some((coinbase, vout)) = self.coinbase_outputs.pop()
        {
            let tx = self.add_spend(vec![(coinbase, vout)], 1);
            let height = BASE_HEIGHT + self.below(MATURITY as usize) as u32;
            self.push_step(Step::Validate { tx, height, locked: false, lie: None });
        }
        if self.rng.below(6) == 0 {
            self.add_seed();
        }
    }

    /// Adds a block `steps_back` steps before the last one: events of listed transactions may then follow the block.
    fn add_block(&mut self, steps_back: usize) {
        self.blocks += 1;
        let coinbase = self.add_tx(Tx::Coinbase);
        let losers_too = self.on.contains("loser in block");
        let share = *self.rng.pick(&[0.3, 0.7, 1.0]);
        let mut listed: Vec<u32> =
            self.minable.iter().copied().filter(|tx| losers_too || self.honest.contains(tx)).collect();
        listed.retain(|_| self.rng.chance(share));
        if losers_too && self.rng.below(2) == 0 {
            // Rivals come first, to win against the honest ones; parents still come before their children.
            listed.sort_by_key(|tx| self.honest.contains(tx));
        }
        let before = self.plan.steps.len().saturating_sub(steps_back);
        let children_of_losers =
            if self.on.contains("children of losers") { self.children_of_losers(&listed) } else { Vec::new() };
        self.plan.steps.insert(before, Step::Mine { coinbase, listed });
        self.plan.steps.splice(before + 1..before + 1, children_of_losers);
        self.coinbase_outputs.push((coinbase, 0));
    }

    /// Returns steps that validate children of transactions which the block makes conflicting, while they become so.
    fn children_of_losers(&mut self, listed: &[u32]) -> Vec<Step> {
        let inputs_of = |plan: &Plan, tx: &u32| match plan.txs.get(tx) {
            Some(Tx::Spend { inputs, .. }) => inputs.clone(),
            _ => Vec::new(),
        };
        let taken: BTreeSet<Output> = listed.iter().flat_map(|tx| inputs_of(&self.plan, tx)).collect();
        let conflicts =
            |tx: &u32| !listed.contains(tx) && inputs_of(&self.plan, tx).iter().any(|input| taken.contains(input));
        let beaten: Vec<u32> = self.honest.iter().copied().filter(conflicts).collect();
        let mut steps = Vec::new();
        for output in self.coins.clone().into_iter().filter(|(tx, _)| beaten.contains(tx)).take(8) {
            let most = *self.later_rng.pick(&[2, 8, 30]);
            let ms = 1 + self.later_rng.below(most);
            let tx = self.add_spend(vec![output], 1);
            steps.extend([Step::Sleep { ms }, Step::Validate { tx, height: MATURE_HEIGHT, locked: false, lie: None }]);
        }
        steps
    }

    /// Adds crashes, stops, pauses and rebalances.
    fn add_instance_fault(&mut self) {
        let slot = self.below(usize::from(self.instances)) as u8;
        if self.chooses("crash", 8) {
            let most = *self.rng.pick(&[10, 60, 400]);
            let ticks = 1 + self.rng.below(most);
            self.push_step(Step::Crash { slot, ticks });
            self.later.insert(0, Step::Start { slot });
        }
        if self.chooses("stop", 12) {
            self.push_step(Step::Stop { slot });
            self.later.insert(0, Step::Start { slot });
        }
        for (kind, step) in [
            ("pause", Step::Pause { slot, lost: false }),
            ("zombie", Step::Pause { slot, lost: true }),
            ("deaf zombie", Step::Deafen { slot }),
        ] {
            if self.chooses(kind, 10) {
                self.push_step(step);
                if self.instances < SLOTS && self.rng.below(2) == 0 {
                    self.push_step(Step::Start { slot: self.instances });
                    self.instances += 1;
                }
                self.later.push(Step::Wake { slot });
            }
        }
        for (kind, step) in [
            ("rebalance", Step::Rebalance),
            ("lose assignments", Step::LoseAssignments),
            ("deliver late", Step::DeliverLate),
        ] {
            if self.chooses(kind, 12) {
                self.push_step(step);
            }
        }
    }
}
