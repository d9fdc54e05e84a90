//! From a seed to a plan.

use std::collections::{BTreeMap, BTreeSet};

use utxo_store::seeded::Seeded;

use super::{
    forget, latecomers, orders,
    plan::{BASE_HEIGHT, Lie, MATURITY, Plan, Poison, SLOTS, Step, Tx},
    reorganise::reorganise,
    swarm,
};

type Output = (u32, u32);

/// Height at which nothing is immature any more.
const LATE: u32 = 100_000;

struct Author {
    dice: Seeded,
    /// Of the kinds of events that were thought of later.
    later_dice: Seeded,
    on: BTreeSet<&'static str>,
    plan: Plan,
    /// Outputs that honest users have to spend.
    coins: Vec<Output>,
    /// Outputs of coinbases.
    rewards: Vec<Output>,
    honest: BTreeSet<u32>,
    /// What a block could list, in the order in which it was made.
    minable: Vec<u32>,
    /// Events that come some time later.
    later: Vec<Step>,
    instances: u8,
    blocks: u32,
}

/// The plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let mut dice = Seeded::new(seed);
    let mut later_dice = Seeded::new(seed ^ u64::from_be_bytes(*b"later on"));
    let mut on = swarm::events(&mut dice);
    on.extend(swarm::later_events(&mut later_dice));
    let mut faulty_dice = Seeded::new(seed ^ u64::from_be_bytes(*b"faulting"));
    let inner_dice = dice.next_u64() >> 16;
    // Only who spends coinbases needs them to mature: blocks by the dozen cost time.
    let runs = *dice.pick(&[1, 50]);
    let plan = Plan {
        dice: inner_dice,
        height_step: if on.contains("coinbase spend") { runs } else { 1 },
        session_ms: *dice.pick(&[0, 0, 500, 5_000]),
        batch: *dice.pick(&[1, 2, 16]),
        page_size: swarm::page_size(seed),
        inline_limit: swarm::inline_limit(seed),
        longest_body: swarm::longest_body(seed),
        prune_after: None,
        faults: swarm::faults(&mut dice).into_iter().chain(swarm::later_faults(&mut faulty_dice)).collect(),
        txs: BTreeMap::new(),
        steps: Vec::new(),
    };
    let instances = *dice.pick(&[1, 1, 2, 2, 3, 4]);
    let mut author = Author {
        dice,
        later_dice,
        on,
        plan,
        coins: Vec::new(),
        rewards: Vec::new(),
        honest: BTreeSet::new(),
        minable: Vec::new(),
        later: Vec::new(),
        instances,
        blocks: 0,
    };
    author.write();
    seed_some(&mut author.plan, seed);
    say_other_heights(&mut author.plan, seed);
    reorganise(&mut author.plan, seed);
    latecomers::add_latecomers(&mut author.plan, seed);
    orders::command_some(&mut author.plan, seed);
    forget::forget_some(&mut author.plan, seed);
    author.plan.with_honest_blocks()
}

/// In half of the histories the later events of a transaction say another height than the first, which counts. Of dice of their own.
fn say_other_heights(plan: &mut Plan, seed: u64) {
    let mut dice = Seeded::new(seed ^ u64::from_be_bytes(*b"higher  "));
    let mut said = BTreeSet::new();
    if dice.below(2) == 0 {
        return;
    }
    for step in &mut plan.steps {
        if let Step::Validate { tx, height, .. } = step
            && !said.insert(*tx)
        {
            *height += 1 + dice.below(9) as u32;
        }
    }
}

/// Partial transactions besides whole ones of the same id, before them or after them. Of dice of their own: all else stays as
/// it is without them.
fn seed_some(plan: &mut Plan, seed: u64) {
    let mut dice = Seeded::new(seed ^ 0x5EED_ED00);
    if dice.below(3) > 0 {
        return;
    }
    let share = *dice.pick(&[0.1, 0.3]);
    let mut at = 0;
    while at < plan.steps.len() {
        let validated = match plan.steps[at] {
            Step::Validate { tx, lie: None, locked: false, .. } => Some(tx),
            _ => None,
        };
        if let Some(tx) = validated
            && dice.chance(share)
        {
            let other = dice.below(4) == 0;
            let place = match dice.below(4) {
                0 => at.saturating_sub(dice.below(10) as usize),
                1 => at,
                2 => at + 1,
                _ => plan.steps.len().min(at + dice.below(20) as usize),
            };
            plan.steps.insert(place, Step::Seed { tx, other });
            at += 1;
        }
        at += 1;
    }
}

impl Author {
    fn below(&mut self, bound: usize) -> usize {
        self.dice.below(bound as u64) as usize
    }

    /// One time in `of`, if that kind is on.
    fn now(&mut self, kind: &'static str, of: u64) -> bool {
        self.on.contains(kind) && self.dice.below(of) == 0
    }

    fn does(&mut self, step: Step) {
        self.plan.steps.push(step);
    }

    fn write(&mut self) {
        for _ in 0..1 + self.below(3) {
            self.seed();
        }
        for slot in 0..self.instances {
            self.does(Step::Start { slot });
        }
        if self.plan.faults.contains_key(swarm::FORGETS) {
            // Nothing begins before the meta record is safe.
            self.does(Step::Sleep { ms: 1_000 });
        }
        let moments = 3 + self.below(*[10, 25, 45].get(self.plan.dice as usize % 3).unwrap_or(&10));
        for _ in 0..moments {
            self.moment();
        }
        for step in std::mem::take(&mut self.later) {
            self.does(step);
        }
        if self.on.contains("block") {
            self.block(0);
        }
    }

    fn seed(&mut self) {
        let outputs = 2 + self.below(6) as u32;
        let tx = self.tx(Tx::Seed { outputs });
        self.coins.extend((0..outputs).map(|vout| (tx, vout)));
        self.does(Step::Seed { tx, other: false });
    }

    fn tx(&mut self, tx: Tx) -> u32 {
        let id = self.plan.txs.len() as u32;
        self.plan.txs.insert(id, tx);
        id
    }

    fn spend(&mut self, inputs: Vec<Output>, outputs: u32) -> u32 {
        let tx = self.tx(Tx::Spend { inputs, outputs });
        self.minable.push(tx);
        tx
    }

    fn pick_coin(&mut self) -> Option<Output> {
        let index = self.below(self.coins.len());
        (index < self.coins.len()).then(|| self.coins.swap_remove(index))
    }

    fn validate(&mut self, tx: u32) -> Step {
        let locked = self.now("locked", 8);
        Step::Validate { tx, height: LATE, locked, lie: None }
    }

    fn moment(&mut self) {
        match self.dice.below(10) {
            0..8 => self.payment(),
            _ => self.oddity(),
        }
        if self.now("block", 6) {
            let back = if self.now("early block", 3) { 1 + self.below(6) } else { 0 };
            self.block(back);
        }
        if !self.later.is_empty() && self.dice.below(4) == 0 {
            let step = self.later.remove(0);
            self.does(step);
        }
        self.fate();
        if self.dice.below(3) == 0 {
            let ms = *self.dice.pick(&[1, 5, 20, 60, 300]);
            let ms = 1 + self.dice.below(ms);
            self.does(Step::Sleep { ms });
        }
    }

    /// An honest transaction over some coins, and whatever comes with it.
    fn payment(&mut self) {
        let wanted = if self.now("crossing", 2) { 2 } else { 1 + self.below(3) };
        let coins: Vec<Output> = (0..wanted).filter_map(|_| self.pick_coin()).collect();
        if coins.is_empty() {
            return self.seed();
        }
        let outputs = if self.now("fan-out", 3) { 8 } else { 1 + self.below(3) as u32 };
        let honest = self.spend(coins.clone(), outputs);
        self.honest.insert(honest);
        let mut made = vec![honest];
        let mut events = Vec::new();
        if self.now("crossing", 2) && coins.len() > 1 {
            let crossed = coins.iter().rev().copied().collect();
            made.push(self.spend(crossed, 1));
        }
        if self.now("double spend", 3) {
            self.rival(&coins, &mut made);
        }
        if self.now("triple spend", 4) {
            self.rival(&coins, &mut made);
            self.rival(&coins, &mut made);
        }
        if self.now("missing parent", 4) {
            self.orphan(&coins, &mut made);
        }
        events.extend(made.iter().map(|tx| self.validate(*tx)).collect::<Vec<_>>());
        if self.now("lie", 3) {
            self.lie(&mut events);
        }
        if self.now("duplicate", 3) {
            let again = events[self.below(events.len())].clone();
            if self.dice.below(2) == 0 { events.push(again) } else { self.later.push(again) }
        }
        if self.on.contains("child first") {
            let turn = self.below(events.len());
            events.rotate_left(turn);
            if self.dice.below(2) == 0 {
                events.reverse();
            }
        }
        self.plan.steps.extend(events);
        self.coins.extend((0..outputs).map(|vout| (honest, vout)));
    }

    /// Spends some of the same coins, sometimes another honest one too, and sometimes has children.
    fn rival(&mut self, coins: &[Output], made: &mut Vec<u32>) {
        let mut taken = coins[..1 + self.below(coins.len())].to_vec();
        if self.dice.below(3) == 0 && !self.coins.is_empty() {
            let index = self.below(self.coins.len());
            taken.push(self.coins[index]);
        }
        if self.dice.below(2) == 0 {
            taken.reverse();
        }
        let rival = self.spend(taken, 2);
        made.push(rival);
        if self.now("descendants", 2) {
            let child = self.spend(vec![(rival, 0)], 2);
            let mut both = vec![(child, 0), (rival, 1)];
            if self.dice.below(3) == 0
                && let Some(index) = self.coins.len().checked_sub(1)
            {
                both.push(self.coins[index]);
            }
            let grandchild = self.spend(both, 1);
            made.extend([child, grandchild]);
        }
    }

    /// A child whose parent is never produced, or only later.
    fn orphan(&mut self, coins: &[Output], made: &mut Vec<u32>) {
        let mut inputs = vec![coins[0]];
        if self.dice.below(2) == 0
            && let Some(coin) = self.pick_coin()
        {
            inputs = vec![coin];
        }
        let parent = self.spend(inputs, 2);
        let child = self.spend(vec![(parent, 0)], 1);
        made.push(child);
        if self.now("descendants", 2) {
            made.push(self.spend(vec![(child, 0), (parent, 1)], 1));
        }
        if self.now("late parent", 2) {
            let event = self.validate(parent);
            self.later.push(event);
            if self.dice.below(2) == 0 {
                let again = self.validate(child);
                self.later.push(again);
            }
        }
    }

    /// A wrong claim, instead of the honest event, before it or after it.
    fn lie(&mut self, events: &mut Vec<Step>) {
        let index = self.below(events.len());
        let mut wrong = events[index].clone();
        if let Step::Validate { lie, .. } = &mut wrong {
            *lie = Some(*self.dice.pick(&[Lie::Amount, Lie::Script]));
        }
        match self.dice.below(4) {
            0 => events[index] = wrong,
            1 => events.insert(index, wrong),
            2 => events.push(wrong),
            _ => self.later.push(wrong),
        }
    }

    fn oddity(&mut self) {
        if self.now("poison", 2) {
            let kind = *self.dice.pick(&[Poison::Garbage, Poison::WrongKey, Poison::WrongTopic, Poison::Chain]);
            self.does(Step::Poison { kind });
        }
        if self.now("reconsider", 2) && !self.plan.txs.is_empty() {
            let tx = self.below(self.plan.txs.len()) as u32;
            self.does(Step::Reconsider { tx });
        }
        if self.now("coinbase spend", 2)
            && let Some((reward, vout)) = self.rewards.pop()
        {
            let tx = self.spend(vec![(reward, vout)], 2);
            let event = self.validate(tx);
            self.does(event);
            if self.dice.below(2) == 0 {
                self.coins.extend([(tx, 0), (tx, 1)]);
            }
        }
        if self.now("immature", 2)
            && let Some((reward, vout)) = self.rewards.pop()
        {
            let tx = self.spend(vec![(reward, vout)], 1);
            let height = BASE_HEIGHT + self.below(MATURITY as usize) as u32;
            self.does(Step::Validate { tx, height, locked: false, lie: None });
        }
        if self.dice.below(6) == 0 {
            self.seed();
        }
    }

    /// A block, so many steps before the last one: what it lists then stands behind it.
    fn block(&mut self, back: usize) {
        self.blocks += 1;
        let coinbase = self.tx(Tx::Coinbase);
        let losers_too = self.on.contains("loser in block");
        let share = *self.dice.pick(&[0.3, 0.7, 1.0]);
        let mut listed: Vec<u32> =
            self.minable.iter().copied().filter(|tx| losers_too || self.honest.contains(tx)).collect();
        listed.retain(|_| self.dice.chance(share));
        if losers_too && self.dice.below(2) == 0 {
            // Rivals first, so that they have a chance against the honest ones; parents still before their children.
            listed.sort_by_key(|tx| self.honest.contains(tx));
        }
        let before = self.plan.steps.len().saturating_sub(back);
        let heirs = if self.on.contains("children of losers") { self.heirs(&listed) } else { Vec::new() };
        self.plan.steps.insert(before, Step::Mine { coinbase, listed });
        self.plan.steps.splice(before + 1..before + 1, heirs);
        self.rewards.push((coinbase, 0));
    }

    /// Children of what such a block beats, which come while that falls.
    fn heirs(&mut self, listed: &[u32]) -> Vec<Step> {
        let inputs_of = |plan: &Plan, tx: &u32| match plan.txs.get(tx) {
            Some(Tx::Spend { inputs, .. }) => inputs.clone(),
            _ => Vec::new(),
        };
        let taken: BTreeSet<Output> = listed.iter().flat_map(|tx| inputs_of(&self.plan, tx)).collect();
        let falls =
            |tx: &u32| !listed.contains(tx) && inputs_of(&self.plan, tx).iter().any(|input| taken.contains(input));
        let beaten: Vec<u32> = self.honest.iter().copied().filter(falls).collect();
        let mut steps = Vec::new();
        for output in self.coins.clone().into_iter().filter(|(tx, _)| beaten.contains(tx)).take(8) {
            let most = *self.later_dice.pick(&[2, 8, 30]);
            let ms = 1 + self.later_dice.below(most);
            let tx = self.spend(vec![output], 1);
            steps.extend([Step::Sleep { ms }, Step::Validate { tx, height: LATE, locked: false, lie: None }]);
        }
        steps
    }

    /// What becomes of instances.
    fn fate(&mut self) {
        let slot = self.below(usize::from(self.instances)) as u8;
        if self.now("crash", 8) {
            let most = *self.dice.pick(&[10, 60, 400]);
            let ticks = 1 + self.dice.below(most);
            self.does(Step::Crash { slot, ticks });
            self.later.insert(0, Step::Start { slot });
        }
        if self.now("stop", 12) {
            self.does(Step::Stop { slot });
            self.later.insert(0, Step::Start { slot });
        }
        for (kind, step) in [
            ("pause", Step::Pause { slot, lost: false }),
            ("zombie", Step::Pause { slot, lost: true }),
            ("deaf zombie", Step::Deafen { slot }),
        ] {
            if self.now(kind, 10) {
                self.does(step);
                if self.instances < SLOTS && self.dice.below(2) == 0 {
                    self.does(Step::Start { slot: self.instances });
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
            if self.now(kind, 12) {
                self.does(step);
            }
        }
    }
}
