//! Executes a plan: real pipelines and sequencers on one thread under a paused clock.

mod offset_reset;
mod snapshots;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{self as blobs, BlobOptions, BlobStore, fault::FaultStore},
    broker::{
        Broker, TopicPartition,
        memory::{MemoryBroker, MemoryFaults},
    },
    engine::{
        RecordEngine,
        fault::{EngineFaults, FaultEngine},
    },
    event::{Command, CommandAction, CommandResult, DecisionBody, Event, Validated},
    ingest::pipeline::PipelineReport,
    instance::{self, InstanceError},
    record::{Reason, TxState},
    rng::SplitMix64,
    sequencer::chain_group,
    status::Health,
    store::StateStore,
};

use super::{
    chain::Chain,
    checked_engine::CheckedEngine,
    commands::{self, reassigned},
    commits::{CommitCheck, read_messages},
    coverage::Coverage,
    gate::Gate,
    gated::{GatedBroker, GatedEngine},
    gated_objects::GatedObjects,
    panics,
    plan::{Lie, Plan, Poison, SLOTS, Step, Tx},
    swarm,
    trace::Observer,
};
use crate::harness::{
    Coin, GROUP, Made, PARTITIONS, World, WorldSettings, coinbase as coinbase_of, spend, spend_claiming,
};

/// Result of a run.
pub struct RunReport {
    /// Hash over the trace.
    pub hash: String,
    /// Lines of the trace, if they were requested.
    pub lines: Vec<String>,
    /// Counts of what the run exercised.
    pub coverage: Coverage,
    /// First failure, if any.
    pub failure: Option<String>,
}

/// Simulated time after the faults end within which every event must be consumed.
const CONSUMPTION_TIMEOUT: Duration = Duration::from_secs(900);
/// Separate generator for kills of rebuilds, so that older seeds keep their runs.
const REBUILD_KILLS: u64 = 0x6B69_6C6C;
/// Longest simulated time until a rebuild is killed, ms: most rebuilds take less, those with lost messages more.
const LONGEST_REBUILD_MS: u64 = 3_000;

/// Simulated time for which the polls of a resumed instance stay blocked: others have taken over meanwhile.
const POLLS_BLOCKED_FOR: Duration = Duration::from_millis(20);

/// Runs a plan with all checks.
pub fn run(plan: &Plan, keep_lines: bool) -> RunReport {
    let observer = Arc::new(Observer::new(keep_lines));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let ended = panics::catch_panic(|| runtime.block_on(Simulation::execute(plan, observer.clone())));
    drop(runtime);
    let failure = match ended {
        #[cfg(feature = "vault")]
        Ok(Ok(remains)) if super::vault::is_wanted(plan.rng_seed) => {
            observer.first_violations().or_else(|| super::vault::check(remains).err())
        }
        Ok(Ok(_)) => observer.first_violations(),
        Ok(Err(why)) | Err(why) => Some(observer.first_violations().unwrap_or(why)),
    };
    let (hash, lines, coverage) = observer.finish();
    RunReport { hash, lines, coverage, failure }
}

/// The log and the store that a history leaves, with the transactions that the history has made.
pub struct Remains {
    pub broker: MemoryBroker,
    pub store: StateStore,
    pub made: Vec<Made>,
}

type InstanceExit = Option<Result<PipelineReport, InstanceError>>;

struct Running {
    gate: Arc<Gate>,
    shutdown: CancellationToken,
    task: JoinHandle<InstanceExit>,
    health: Arc<Health>,
}

struct Simulation<'a> {
    plan: &'a Plan,
    world: World,
    faults: Arc<FaultEngine>,
    objects: FaultStore,
    observer: Arc<Observer>,
    commits: Arc<CommitCheck>,
    made: BTreeMap<u32, Made>,
    slots: [Option<Running>; SLOTS as usize],
    chain: Chain,
    snapshots: Option<snapshots::Snapshots>,
}

impl<'a> Simulation<'a> {
    async fn execute(plan: &'a Plan, observer: Arc<Observer>) -> Result<Remains, String> {
        let mut simulation = Self::new(plan, observer).await;
        for (id, made) in &simulation.made {
            simulation.observer.trace(format!("tx {id} is {}", made.txid));
        }
        for step in &plan.steps {
            simulation.observer.trace(format!("step {step}"));
            simulation.apply_step(step).await?;
            simulation.fail_on_violation()?;
        }
        simulation.heal_and_consume().await?;
        if offset_reset::is_wanted(plan.rng_seed) {
            simulation.read_again().await?;
        }
        // Before the end state is checked, which prunes by hand whatever the hold of a creation says.
        let snapshot = simulation.wait_for_snapshot().await?;
        simulation.check_end_state().await?;
        if let Some(snapshot) = snapshot {
            simulation.check_snapshot(snapshot).await?;
        }
        simulation.count_coverage().await;
        let Simulation { world, made, .. } = simulation;
        Ok(Remains { broker: world.broker, store: world.store, made: made.into_values().collect() })
    }

    async fn new(plan: &'a Plan, observer: Arc<Observer>) -> Self {
        let mut rng = SplitMix64::new(plan.rng_seed);
        let settings = WorldSettings {
            faults: swarm::log_faults(&plan.faults, rng.next_u64()),
            session_timeout: Duration::from_millis(plan.session_ms),
            batch_size: plan.batch,
            descendants_per_decision: if plan.batch > 8 { plan.batch } else { plan.batch.min(4) },
            window_events: 256,
            decision_bytes: None,
            loss_window: swarm::loss_window(&plan.faults),
            page_size: plan.page_size,
            inline_limit: plan.inline_limit,
            prune_after: plan.prune_after,
            partitions: PARTITIONS,
        };
        let mut world = World::with_settings(settings).await;
        let checked_engine = CheckedEngine {
            inner: world.memory.clone(),
            store: world.store.clone(),
            observer: observer.clone(),
            page_size: plan.page_size,
        };
        let faults = FaultEngine::new(Arc::new(checked_engine), rng.next_u64())
            .on(world.memory.clone(), world.clock.clone())
            .with(EngineFaults {
                longest_body: self::longest_body(plan),
                ..swarm::engine_faults(&plan.faults, plan.rng_seed)
            });
        let (rebuild_seed, longest_body) = (rng.next_u64(), longest_body(plan));
        // Another interleaving for the rebuild: rows are delayed, repeated and lost in other places than in the run.
        world.rebuild_engine = Some(Arc::new(move |engine: Arc<dyn RecordEngine>| {
            let faults = EngineFaults {
                lost_reply: 0.02,
                repeated: 0.02,
                delayed: 0.3,
                delay_within: Duration::from_millis(30),
                longest_body,
                ..EngineFaults::default()
            };
            Arc::new(FaultEngine::new(engine, rebuild_seed).with(faults))
        }));
        let mut kills = SplitMix64::new(plan.rng_seed ^ REBUILD_KILLS);
        for _ in 0..kills.below(3) {
            world.rebuild_kills.push(Duration::from_millis(kills.below(LONGEST_REBUILD_MS)));
        }
        let objects = FaultStore::new(world.objects.clone(), plan.rng_seed);
        objects.set(swarm::blob_faults(&plan.faults));
        let commits = CommitCheck::new(&world, observer.clone());
        let mut simulation = Simulation {
            plan,
            world,
            faults: Arc::new(faults),
            objects,
            observer,
            commits: Arc::new(commits),
            made: BTreeMap::new(),
            slots: [const { None }; SLOTS as usize],
            chain: Chain::new(plan.height_step),
            snapshots: None,
        };
        if snapshots::is_wanted(plan.rng_seed) {
            simulation.snapshots = Some(snapshots::Snapshots::begin(&simulation.world, plan.rng_seed));
        }
        for (id, tx) in &plan.txs {
            let made = simulation.make_transaction(*id, tx);
            simulation.made.insert(*id, made);
        }
        simulation
    }

    fn make_transaction(&self, id: u32, tx: &Tx) -> Made {
        match tx {
            Tx::Seed { outputs } => {
                let mut made = World::partial(id as u8, *outputs as usize);
                // Ids above 255 would have the tags of the first seeds.
                made.txid.0[31] ^= (id >> 8) as u8;
                made
            }
            Tx::Coinbase => coinbase_of(1_000 + id),
            Tx::Spend { inputs, outputs } => spend(&self.coins(inputs), *outputs as usize, id as u8),
        }
    }

    fn coins(&self, inputs: &[(u32, u32)]) -> Vec<Coin> {
        inputs.iter().map(|(tx, vout)| self.made[tx].coin(*vout)).collect()
    }

    fn fail_on_violation(&self) -> Result<(), String> {
        self.observer.first_violations().map_or(Ok(()), Err)
    }

    async fn apply_step(&mut self, step: &Step) -> Result<(), String> {
        let text = step.to_string();
        self.observer.count("steps", text.split(' ').next().unwrap_or_default());
        match step {
            Step::Seed { tx, other } => {
                let mut made = self.made[tx].clone();
                if let Some((satoshis, _)) = made.outputs.first_mut().filter(|_| *other) {
                    *satoshis += 1;
                }
                self.world.produce_partial(&made).await;
            }
            Step::Validate { tx, height, locked, lie } => self.produce_validated(*tx, *height, *locked, *lie).await,
            Step::Poison { kind } => self.produce_poison(*kind).await,
            Step::Mine { coinbase, listed } => {
                let events = self.chain.mine(*coinbase, &self.made[coinbase], &made_transactions(&self.made, listed));
                self.produce_blocks(events).await;
            }
            Step::MineSideChain { below, coinbase, listed } => {
                let listed = made_transactions(&self.made, listed);
                let events = self.chain.mine_side_chain(*coinbase, *below, &self.made[coinbase], &listed);
                self.produce_blocks(events).await;
            }
            Step::Reorg { disconnect, connect } => {
                let made = &self.made;
                let connect = connect
                    .iter()
                    .map(|run| (run.coinbase, &made[&run.coinbase], made_transactions(made, &run.listed)));
                let event = self.chain.reorg_event(*disconnect, connect);
                self.world.produce("reorgs", b"", event).await;
            }
            Step::Reconsider { tx } => {
                let action = CommandAction::Reconsider { txid: self.made[tx].txid };
                let event = Event::Command(Command { id: [*tx as u8; 16], action });
                self.world.produce("chain", b"command", event.encode()).await;
            }
            Step::Command { id, command } => {
                self.observer.count("commands", command.name());
                self.world.produce("chain", &commands::key(), command.event(*id, &self.made)).await;
            }
            Step::Sleep { ms } => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Step::Rebalance => consumer_groups().iter().for_each(|group| self.world.broker.rebalance(group)),
            Step::LoseAssignments => {
                consumer_groups().iter().for_each(|group| self.world.broker.lose_assignments(group));
            }
            Step::DeliverLate => self.faults.deliver_late().await,
            Step::Start { slot } => self.start(*slot).await?,
            other => self.apply_instance_step(other).await?,
        }
        Ok(())
    }

    async fn produce_blocks(&self, events: Vec<Vec<u8>>) {
        for event in events {
            self.world.produce("block-mined", b"", event).await;
        }
    }

    async fn apply_instance_step(&mut self, step: &Step) -> Result<(), String> {
        let (Step::Stop { slot }
        | Step::Crash { slot, .. }
        | Step::Pause { slot, .. }
        | Step::Deafen { slot }
        | Step::Wake { slot }) = step
        else {
            return Ok(());
        };
        let Some(running) = &self.slots[usize::from(*slot)] else { return Ok(()) };
        match step {
            Step::Stop { .. } => return self.stop(*slot).await,
            Step::Crash { ticks, .. } => running.gate.kill_after_ticks(*ticks),
            Step::Pause { lost, .. } => {
                running.gate.pause();
                if *lost {
                    self.expel(running);
                }
            }
            Step::Deafen { .. } => {
                running.gate.block_polls();
                self.expel(running);
            }
            _ => {
                running.gate.resume_without_polls();
                let gate = running.gate.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(POLLS_BLOCKED_FOR).await;
                    gate.allow_polls();
                });
            }
        }
        Ok(())
    }

    fn expel(&self, running: &Running) {
        for (group, member) in running.gate.members() {
            self.world.broker.expel(&group, member);
        }
    }

    /// Starts an instance in a slot whose instance has ended, or was never started.
    async fn start(&mut self, slot: u8) -> Result<(), String> {
        match self.slots[usize::from(slot)].take() {
            Some(running) if !running.task.is_finished() => {
                self.slots[usize::from(slot)] = Some(running);
                return Ok(());
            }
            Some(ended) => self.check_exit(ended).await?,
            None => {}
        }
        let gate = Arc::new(Gate::default());
        let engine = GatedEngine { gate: gate.clone(), inner: self.faults.clone() };
        let log = GatedBroker {
            name: slot,
            gate: gate.clone(),
            inner: self.world.broker.clone(),
            observer: self.observer.clone(),
            commits: self.commits.clone(),
        };
        let objects = GatedObjects { gate: gate.clone(), inner: Arc::new(self.objects.clone()) };
        let blobs = self.plan.inline_limit.map(|_| BlobStore::new(Arc::new(objects), BlobOptions::default()));
        let mut parts =
            self.world.parts(&StateStore::new(Arc::new(engine), self.world.store.settings).with_blobs(blobs));
        parts.broker = Arc::new(log);
        let health = parts.health.clone();
        let shutdown = CancellationToken::new();
        // Two sequencers at one chain have windows of different bounds.
        let started = self.world.owners.load(Ordering::Relaxed);
        let mut rng = SplitMix64::new(self.plan.rng_seed ^ started.rotate_left(32));
        let mut settings = self.world.settings.clone();
        settings.sequencer.window_events = [0, 1, 2, 3, 8, 256][rng.below(6) as usize];
        if let Ok(bound) = std::env::var("SIM_WINDOW") {
            settings.sequencer.window_events = bound.parse().unwrap();
        }
        let run = instance::run(settings, parts, shutdown.clone());
        let task = tokio::spawn(gate.clone().guard(run));
        self.slots[usize::from(slot)] = Some(Running { gate, shutdown, task, health });
        Ok(())
    }

    async fn check_exit(&self, running: Running) -> Result<(), String> {
        match running.task.await {
            Ok(None) => self.observer.count("instances", "crashed"),
            Ok(Some(Ok(_))) => self.observer.count("instances", "stopped in order"),
            Ok(Some(Err(error))) if error.may_be_retried() => self.observer.count("instances", "ended, may be retried"),
            Ok(Some(Err(error))) => return Err(format!("an instance ended with an error: {error}")),
            Err(error) => return Err(format!("the task of an instance panicked: {error}")),
        }
        Ok(())
    }

    async fn stop(&mut self, slot: u8) -> Result<(), String> {
        let Some(running) = self.slots[usize::from(slot)].take() else { return Ok(()) };
        running.gate.resume_fully();
        running.shutdown.cancel();
        let gate = running.gate.clone();
        match tokio::time::timeout(CONSUMPTION_TIMEOUT, self.check_exit(running)).await {
            Ok(ended) => ended,
            Err(_) if gate.is_dead() => Ok(()),
            Err(_) => Err("an instance does not shut down in time".to_owned()),
        }
    }

    /// Ends all faults, waits until every event is consumed, and stops all instances.
    async fn heal_and_consume(&mut self) -> Result<(), String> {
        self.observer.trace("heal".to_owned());
        self.world.broker.set_faults(MemoryFaults::default());
        self.faults.set(EngineFaults { longest_body: longest_body(self.plan), ..EngineFaults::default() });
        self.objects.set(blobs::fault::BlobFaults::default());
        self.slots.iter().flatten().for_each(|running| running.gate.clear_faults());
        // At least one instance that has not crashed must run.
        for slot in 0..SLOTS {
            let crashed = self.slots[usize::from(slot)].as_ref().is_some_and(|running| running.task.is_finished());
            if crashed || slot == 0 {
                self.start(slot).await?;
            }
        }
        let mut may_produce_again = self.plan.prune_after.is_some();
        loop {
            match tokio::time::timeout(CONSUMPTION_TIMEOUT, self.wait_until_consumed()).await {
                Ok(consumed) => consumed?,
                // A block waits for the event of a conflicting transaction of which only the tombstone or a stub is
                // left.
                Err(_) if std::mem::take(&mut may_produce_again) => {
                    self.produce_again().await?;
                    continue;
                }
                Err(_) => return Err(format!("not every event is consumed: {}", self.describe_stall().await)),
            }
            self.faults.deliver_late().await;
            for slot in 0..SLOTS {
                self.stop(slot).await?;
            }
            self.faults.deliver_late().await;
            if self.world.is_consumed().await {
                return self.fail_on_violation();
            }
            // A transaction in flight during a revocation may be contested only now.
            self.start(0).await?;
        }
    }

    /// Produces again the events of conflicting transactions without a body, as a validator would.
    async fn produce_again(&mut self) -> Result<(), String> {
        for step in &self.plan.steps {
            let (Step::Seed { tx, .. } | Step::Validate { tx, .. }) = step else { continue };
            let page = self.world.store.master(self.made[tx].txid).await.map_err(|error| error.to_string())?;
            if page.is_some_and(|page| page.conflicting && page.body().is_none()) {
                self.apply_step(step).await?;
            }
        }
        Ok(())
    }

    async fn wait_until_consumed(&self) -> Result<(), String> {
        loop {
            self.fail_on_violation()?;
            if self.world.is_consumed().await {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the readiness reasons of the instances and the state of the transactions.
    async fn describe_stall(&self) -> String {
        let reasons = self.slots.iter().flatten().map(|running| format!("{:?}\n", running.health.ready().reasons));
        reasons.collect::<String>() + &self.story().await
    }

    async fn story(&self) -> String {
        let used = self.plan.used();
        let named = self.made.iter().filter(|(id, _)| used.contains(id));
        let names = named.map(|(id, made)| format!("tx {id} is {}\n", made.txid));
        names.collect::<String>() + &self.world.story(&self.world.store).await
    }

    async fn check_end_state(&self) -> Result<(), String> {
        self.observer.trace("check".to_owned());
        if self.world.memory.restart_count() == 0 {
            self.world.check("the run").await;
        } else {
            self.world.check_after_forgetting("the run").await;
        }
        for step in &self.plan.steps {
            let Step::Validate { tx, lie: None, .. } = step else { continue };
            let txid = self.made[tx].txid;
            let page = self.world.store.master(txid).await.map_err(|error| error.to_string())?;
            match page.map(|page| page.state()) {
                Some(TxState::Live | TxState::Conflicting(utxo_store::record::Verdict::Conflicting(_))) => {}
                Some(TxState::Pruned(_)) if self.plan.prune_after.is_some() || self.plan.deletes(*tx) => {}
                state => return Err(format!("transaction {tx} ({txid}) ended as {state:?}\n{}", self.story().await)),
            }
        }
        self.fail_on_violation()
    }

    /// Counts faults, decisions, contests and final states.
    async fn count_coverage(&self) {
        for (kind, count) in self.faults.injected_by_kind() {
            (0..count).for_each(|_| self.observer.count("engine faults", kind));
        }
        for (kind, count) in self.objects.injected_by_kind() {
            (0..count).for_each(|_| self.observer.count("blob faults", kind));
        }
        for (kind, count) in self.world.broker.injected() {
            (0..count).for_each(|_| self.observer.count("log faults", kind));
        }
        for fault in self.plan.faults.keys() {
            self.observer.count("seeds with fault", fault);
        }
        for (topic, group) in [("decisions", "decisions"), ("chain", "chain")] {
            let partition = TopicPartition { topic: topic.into(), partition: 0 };
            for message in read_messages(&self.world.broker, &partition, 0, u64::MAX).await {
                let kind = match Event::decode(&message.payload) {
                    Ok(Event::Decision(decision)) => decision_kind(&decision.body),
                    Ok(Event::DecisionGroup(group)) => {
                        let void = if group.position == message.offset { "" } else { "void " };
                        format!("{void}group of {}", group.events.len().next_power_of_two())
                    }
                    Ok(Event::DecisionRun(run)) => {
                        let void = if run.position == message.offset { "" } else { "void " };
                        format!("{void}run of {}", run.bodies.len().next_power_of_two())
                    }
                    Ok(Event::Contest(contest)) => format!("contest: {}", reason_name(contest.reason)),
                    Ok(other) => other.kind().name().to_owned(),
                    Err(_) => "poison".to_owned(),
                };
                self.observer.count(group, &kind);
            }
        }
        for partition in 0..PARTITIONS {
            let partition = TopicPartition { topic: "dead-letters".into(), partition };
            let end = self.world.broker.watermarks(&partition).await.map_or(0, |(_, high)| high);
            (0..end).for_each(|_| self.observer.count("log", "dead letters"));
        }
        for made in self.made.values() {
            if let Ok(Some(page)) = self.world.store.master(made.txid).await {
                let state = format!("{:?}", page.state());
                let state = state.split([' ', '{']).next().unwrap_or_default();
                self.observer.count("transactions", state);
            }
        }
    }

    async fn produce_validated(&self, tx: u32, height: u32, locked: bool, lie: Option<Lie>) {
        let made = match lie {
            None => self.made[&tx].clone(),
            Some(lie) => self.with_false_claim(tx, lie),
        };
        let event = Validated { tx: &made.extended, height, locked };
        self.world.produce("txs", &made.txid.0, event.encode()).await;
    }

    /// Returns the same transaction with a false claim about its first previous output.
    fn with_false_claim(&self, tx: u32, lie: Lie) -> Made {
        let Tx::Spend { inputs, outputs } = &self.plan.txs[&tx] else { return self.made[&tx].clone() };
        let coins = self.coins(inputs);
        let mut claimed = coins.clone();
        match lie {
            Lie::Amount => claimed[0].satoshis += 1,
            Lie::Script => claimed[0].script.push(0x51),
            Lie::Owner => claimed[0] = reassigned(&coins[0]),
        }
        spend_claiming(&coins, &claimed, *outputs as usize, tx as u8)
    }

    async fn produce_poison(&self, kind: Poison) {
        let garbage = vec![9, 9, 9];
        let action = CommandAction::Reconsider { txid: utxo_store::tx::Txid([1; 32]) };
        let stray = Event::Command(Command { id: [1; 16], action });
        match kind {
            Poison::Garbage => self.world.produce("txs", b"no key", garbage).await,
            Poison::WrongKey => {
                let made = self.made.values().find(|made| !made.extended.is_empty());
                let bytes =
                    made.map_or(garbage, |made| Validated { tx: &made.extended, height: 1, locked: false }.encode());
                self.world.produce("txs", &[9; 32], bytes).await;
            }
            Poison::WrongTopic => self.world.produce("txs", b"command", stray.encode()).await,
            Poison::Chain => self.world.produce("chain", b"no key", garbage).await,
        }
    }
}

fn made_transactions<'m>(made: &'m BTreeMap<u32, Made>, txs: &[u32]) -> Vec<&'m Made> {
    txs.iter().map(|tx| &made[tx]).collect()
}

/// Limit of the inline body; without a blob store a larger body would halt its partition.
fn longest_body(plan: &Plan) -> Option<u64> {
    plan.inline_limit.and(plan.longest_body)
}

fn consumer_groups() -> [String; 2] {
    [GROUP.to_owned(), chain_group(GROUP)]
}

fn decision_kind(body: &DecisionBody) -> String {
    match body {
        DecisionBody::PassedOver { .. } => "passed over".to_owned(),
        DecisionBody::Accepted { by_block: true, losers, .. } if losers.is_empty() => "accepted by a block".to_owned(),
        DecisionBody::Accepted { by_block: true, .. } => "accepted by a block, with losers".to_owned(),
        DecisionBody::Accepted { .. } => "accepted".to_owned(),
        DecisionBody::Conflicting { reason, live: true, .. } => format!("no longer live: {}", reason_name(*reason)),
        DecisionBody::Conflicting { reason, .. } => format!("conflicting: {}", reason_name(*reason)),
        DecisionBody::Cone { members, .. } if members.is_empty() => "cone, closed".to_owned(),
        DecisionBody::Cone { .. } => "cone".to_owned(),
        DecisionBody::AcceptedPart { .. } => "accepted, a part".to_owned(),
        DecisionBody::CommandDone { result: CommandResult::Applied, .. } => "command done".to_owned(),
        DecisionBody::CommandDone { result: CommandResult::AlreadyApplied, .. } => "command: nothing to do".to_owned(),
        DecisionBody::CommandDone { result: CommandResult::Refused { code, .. }, .. } => format!("command: {code}"),
        DecisionBody::Closed => "closed".to_owned(),
        DecisionBody::Lifted { .. } => "lifted".to_owned(),
    }
}

fn reason_name(reason: Reason) -> String {
    let debug = format!("{reason:?}");
    debug.split([' ', '{']).next().unwrap_or_default().to_owned()
}
