//! Random histories, each from its seed: rivals, children of losers, repeats, children before parents, missing parents,
//! poison, blocks that list losers, kills. After each: no invariant is broken, and a rebuild gives the same state.
//!
//! `SEED=n` replays one; `SEEDS=n` runs so many.

use std::time::Duration;

use utxo_store::{broker::memory::MemoryFaults, engine::fault::Faults, record::TxState, seeded::Seeded};

use crate::world::{Coin, Made, World, spend};

struct History {
    random: Seeded,
    world: World,
    coins: Vec<Coin>,
    /// Live as far as honest users know: what blocks may list, parents first.
    honest: Vec<(Made, Vec<usize>)>,
    mined: Vec<bool>,
    sequence: u64,
    tag: u8,
}

impl History {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn tag(&mut self) -> u8 {
        self.tag = self.tag.wrapping_add(1);
        self.tag
    }

    fn pick_coin(&mut self) -> Option<Coin> {
        let count = self.coins.len() as u64;
        (count > 0).then(|| self.below(count) as usize).map(|index| self.coins.swap_remove(index))
    }

    /// An honest transaction over one or two coins, and sometimes its rivals with children.
    async fn step(&mut self) {
        let Some(first) = self.pick_coin() else { return };
        let second = if self.below(3) == 0 { self.pick_coin() } else { None };
        let coins: Vec<Coin> = std::iter::once(first).chain(second).collect();
        let (outputs, tag) = (1 + self.below(3) as usize, self.tag());
        let honest = spend(&coins, outputs, tag);
        let mut events = vec![honest.clone()];
        if self.below(4) == 0 {
            events.extend(self.rivals(&coins));
        }
        if self.below(6) == 0 {
            events.push(honest.clone());
        }
        if self.below(8) == 0 {
            let (missing, tag) = (spend(&coins, 1, 250), self.tag());
            events.push(spend(&[missing.coin(0)], 1, tag));
        }
        let turn = self.below(events.len() as u64) as usize;
        events.rotate_left(turn);
        for made in &events {
            self.world.validate(made).await;
            if self.below(30) == 0 {
                self.world.produce("txs", b"no key", vec![9, 9, 9]).await;
            }
        }
        let parents = coins.iter().filter_map(|coin| self.place_of(coin)).collect();
        self.coins.extend((0..outputs as u32).map(|vout| honest.coin(vout)));
        self.honest.push((honest, parents));
        self.mined.push(false);
    }

    fn place_of(&self, coin: &Coin) -> Option<usize> {
        self.honest.iter().position(|(made, _)| made.txid == coin.outpoint.txid)
    }

    /// Transactions that spend (some of) the same coins, and what descends from them; one also takes an honest coin.
    fn rivals(&mut self, coins: &[Coin]) -> Vec<Made> {
        let mut made = Vec::new();
        for _ in 0..1 + self.below(2) {
            let mut taken = coins[..1 + self.below(coins.len() as u64) as usize].to_vec();
            if self.below(3) == 0 && !self.coins.is_empty() {
                let index = self.below(self.coins.len() as u64) as usize;
                taken.push(self.coins[index].clone());
            }
            let tag = self.tag();
            let rival = spend(&taken, 2, tag);
            if self.below(2) == 0 {
                let (child, tag) = (spend(&[rival.coin(0)], 1, 0), self.tag());
                made.push(spend(&[child.coin(0), rival.coin(1)], 1, tag));
                made.push(child);
            }
            made.push(rival);
        }
        made
    }

    /// A block with some of the honest transactions, parents first.
    async fn block(&mut self) {
        self.sequence += 1;
        let mut listed = Vec::new();
        for index in 0..self.honest.len() {
            let parents_mined = self.honest[index].1.iter().all(|parent| self.mined[*parent]);
            if !self.mined[index] && parents_mined && self.below(4) > 0 {
                self.mined[index] = true;
                listed.push(self.honest[index].0.clone());
            }
        }
        let listed: Vec<&Made> = listed.iter().collect();
        self.world.mine(self.sequence, &listed).await;
    }
}

/// Each kind of fault is on in some histories and off in others.
fn sometimes(random: &mut Seeded, probability: f64) -> f64 {
    if random.below(3) == 0 { probability } else { 0.0 }
}

fn log_faults(random: &mut Seeded, seed: u64) -> MemoryFaults {
    MemoryFaults {
        seed,
        duplicate: sometimes(random, 0.1),
        delay: sometimes(random, 0.2),
        delay_max: Duration::from_millis(200),
        rebalance: sometimes(random, 0.02),
        lost_assignment: sometimes(random, 0.02),
        produce_refused: sometimes(random, 0.1),
        produce_unacknowledged: sometimes(random, 0.1),
    }
}

fn store_faults(random: &mut Seeded) -> Faults {
    Faults {
        lost_request: sometimes(random, 0.05),
        lost_reply: sometimes(random, 0.05),
        late: sometimes(random, 0.03),
        late_within_calls: 200,
        half_applied: sometimes(random, 0.05),
        key_busy: sometimes(random, 0.05),
        repeated: sometimes(random, 0.05),
        failed_read: sometimes(random, 0.05),
        delayed: sometimes(random, 0.2),
        delay_within: Duration::from_millis(50),
    }
}

async fn run(seed: u64) {
    let mut random = Seeded::new(seed);
    let kills = random.below(3);
    let (steps, instances) = (5 + random.below(40), 1 + random.below(2));
    let (log_faults, store_faults) = (log_faults(&mut random, seed), store_faults(&mut random));
    // With room for one entry, what has more is decided in parts.
    let decision_bytes = (random.below(2) == 0).then_some(240);
    let world = World::with(log_faults, store_faults, decision_bytes).await;
    let mut history =
        History { random, world: world.clone(), coins: vec![], honest: vec![], mined: vec![], sequence: 0, tag: 0 };
    for tag in 0..2 {
        let made = world.seed(200 + tag, 6).await;
        history.coins.extend((0..6).map(|vout| made.coin(vout)));
    }
    let mut running: Vec<_> = (0..instances).map(|_| world.start()).collect();
    for _ in 0..steps {
        history.step().await;
        if history.below(6) == 0 {
            history.block().await;
        }
        if history.below(3) == 0 {
            tokio::time::sleep(Duration::from_millis(history.below(60))).await;
        }
        if kills > 0 && history.below(12) == 0 {
            running.remove(0).kill().await;
            running.push(world.start());
        }
    }
    history.block().await;
    world.until_consumed().await;
    for instance in running {
        instance.stop().await;
    }
    world.check(&format!("seed {seed}")).await;
    for (index, (made, _)) in history.honest.iter().enumerate() {
        if history.mined[index] {
            let state = world.page(made).await.unwrap().state();
            assert_eq!(state, TxState::Live, "seed {seed}: {} was mined", made.txid);
        }
    }
}

#[test]
fn histories_leave_no_violation_and_rebuild_to_the_same_state() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds: Vec<u64> = match number("SEED") {
        Some(seed) => vec![seed],
        None => (0..number("SEEDS").unwrap_or(100)).collect(),
    };
    if std::env::var_os("RUST_LOG").is_some() {
        utxo_store::telemetry::init_logging(utxo_store::config::LogFormat::Pretty, &std::env::var("RUST_LOG").unwrap())
            .unwrap();
    }
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async {
                tokio::time::timeout(Duration::from_secs(36_000), run(seed)).await.expect("it stands")
            });
        }));
        if let Err(panic) = outcome {
            eprintln!("replay with: SEED={seed} cargo test --test it histories");
            std::panic::resume_unwind(panic);
        }
    }
}
