//! Kill tests: SIGKILL to instances on fjall and on Aerospike, and to the Aerospike server, which keeps its records in
//! a file or in memory and is restarted; on a cluster, losses of instances, brokers and nodes. Under load, at random
//! moments, in rounds. After each round every event is handled, all instances stop gracefully, and `verify` and the
//! model check the store.
//!
//! `make kill-test KILLS=200 RATE=100 SEED=7 KIND=fjall|aerospike|file|memory|cluster`; `make test` runs a few of each.

use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    time::{Duration, Instant},
};

use utxo_store::rng::SplitMix64;

use super::{
    TestBed,
    brokers::{BrokerLosses, start_brokers},
    env_number, env_seed,
    instances::{HostProcess, INSTANCES, InstanceProcesses, InstanceSet},
    judge,
    load::LoadGenerator,
    nodes::NodeLosses,
    produce_during, report_failure,
};
use crate::{
    aerospike_cluster::AerospikeCluster,
    aerospike_server::{AerospikeServer, FIT, Setup},
    kafka_server::{KafkaServer, addresses},
};

/// Kills between two checks; a server in memory is checked after each kill.
const KILLS_A_ROUND: u64 = 10;
/// The same on a cluster, whose copies are completed before each check.
const LOSSES_A_ROUND: u64 = 25;

/// A kind of kill: chooses the processes that are killed in a run, and brings them back at the end of a round.
trait Killer {
    /// Kills; returns whether it did.
    fn kill(&mut self, instances: &mut dyn InstanceSet, rng: &mut SplitMix64) -> bool;

    /// Brings back what is still away, at the end of a round.
    fn end_round(&mut self, _rng: &mut SplitMix64) {}
}

impl<F: FnMut(&mut dyn InstanceSet, &mut SplitMix64) -> bool> Killer for F {
    fn kill(&mut self, instances: &mut dyn InstanceSet, rng: &mut SplitMix64) -> bool {
        self(instances, rng)
    }
}

/// Settings of one kill test.
#[derive(Debug, Clone, Copy)]
struct KillPlan {
    kills: u64,
    /// Moments of the load per second.
    rate: u64,
    seed: u64,
}

/// Result of one kind of kill.
#[derive(Debug, Default)]
struct KillSummary {
    kind: &'static str,
    kills: u64,
    rounds: u64,
    transactions: usize,
    messages: u64,
    /// Longest time from the end of the load until every event was handled, in seconds.
    handled_after: f64,
    took: f64,
}

impl KillSummary {
    const HEAD: &'static str = "kind                                          kills  judged  transactions  messages  \
                                all handled (s)  took (s)";

    fn to_line(&self) -> String {
        let KillSummary { kind, kills, rounds, transactions, messages, handled_after, took } = self;
        format!("{kind:<45}{kills:>6}{rounds:>8}{transactions:>14}{messages:>10}{handled_after:>17.1}{took:>10.0}")
    }
}

/// State of a running kill test.
struct KillRun {
    plan: KillPlan,
    generator: LoadGenerator,
    rng: SplitMix64,
    summary: KillSummary,
    started: Instant,
}

impl KillRun {
    fn new(kind: &'static str, plan: KillPlan) -> Self {
        eprintln!("{kind}: {plan:?}");
        KillRun {
            plan,
            generator: LoadGenerator::new(plan.seed),
            rng: SplitMix64::new(plan.seed ^ u64::from_be_bytes(*b"killings")),
            summary: KillSummary { kind, ..KillSummary::default() },
            started: Instant::now(),
        }
    }

    fn kills_left(&self) -> u64 {
        self.plan.kills.saturating_sub(self.summary.kills)
    }

    /// Kills `kills` times under load; before each kill every instance is started.
    fn kill_under_load(
        &mut self,
        testbed: &TestBed,
        instances: &mut dyn InstanceSet,
        kills: u64,
        killer: &mut dyn Killer,
    ) {
        let KillRun { generator, rng, summary, plan, .. } = self;
        let (messages, done) = produce_during(&testbed.bench, generator, plan.rate, || {
            let mut done = 0;
            while done < kills {
                for slot in 0..INSTANCES {
                    instances.start(slot);
                }
                pause(rng, 300, 6_000);
                instances.check_alive();
                done += u64::from(killer.kill(instances, rng));
            }
            killer.end_round(rng);
        });
        summary.messages += messages;
        done.unwrap_or_else(|why| panic::resume_unwind(why));
        summary.kills += kills;
    }

    /// Waits until every event is handled, stops all instances gracefully, and checks the store.
    fn judge_round(&mut self, testbed: &TestBed, instances: &mut dyn InstanceSet) {
        let ended = Instant::now();
        judge::wait_until_all_is_handled(testbed, instances);
        self.summary.handled_after = self.summary.handled_after.max(ended.elapsed().as_secs_f64());
        instances.stop_all();
        judge::judge_store(testbed);
        self.summary.rounds += 1;
        self.summary.transactions = self.generator.transactions();
        self.summary.took = self.started.elapsed().as_secs_f64();
        eprintln!("{}", self.summary.to_line());
    }

    /// Runs rounds until all kills are done; at the end a rebuild must have the same digest.
    fn run_rounds(self, testbed: &TestBed, instances: &mut dyn InstanceSet, killer: impl Killer) -> KillSummary {
        self.run_rounds_of(KILLS_A_ROUND, testbed, instances, &mut { killer })
    }

    /// Runs rounds of this many kills, as [`run_rounds`](Self::run_rounds) does.
    fn run_rounds_of(
        mut self,
        kills_a_round: u64,
        testbed: &TestBed,
        instances: &mut dyn InstanceSet,
        killer: &mut dyn Killer,
    ) -> KillSummary {
        while self.kills_left() > 0 {
            let kills = self.kills_left().min(kills_a_round);
            self.kill_under_load(testbed, instances, kills, killer);
            self.judge_round(testbed, instances);
        }
        judge::judge(testbed);
        self.summary.took = self.started.elapsed().as_secs_f64();
        self.summary
    }
}

fn pause(rng: &mut SplitMix64, least_ms: u64, most_ms: u64) {
    std::thread::sleep(Duration::from_millis(least_ms + rng.below(most_ms - least_ms)));
}

/// Kills all instances at once: they share one process with the store.
fn kill_instances_on_fjall(kafka: &KafkaServer, plan: KillPlan) -> KillSummary {
    let testbed = TestBed::fjall(kafka.bootstrap_servers());
    report_panics(&testbed, plan, || {
        KillRun::new("instances on fjall", plan).run_rounds(
            &testbed,
            &mut HostProcess::new(&testbed),
            |instances: &mut dyn InstanceSet, _: &mut SplitMix64| {
                instances.kill_all();
                true
            },
        )
    })
}

/// Kills one instance, sometimes all.
fn kill_instances_on_aerospike(kafka: &KafkaServer, plan: KillPlan) -> Option<KillSummary> {
    let server = AerospikeServer::start_own(Setup { durable: false, namespace: FIT })?;
    let testbed = TestBed::aerospike(kafka.bootstrap_servers(), &server);
    let kill = |instances: &mut dyn InstanceSet, rng: &mut SplitMix64| match rng.below(8) {
        0 => {
            instances.kill_all();
            true
        }
        _ => instances.kill(rng.below(INSTANCES as u64) as usize),
    };
    Some(report_panics(&testbed, plan, || {
        KillRun::new("instances on Aerospike", plan).run_rounds(
            &testbed,
            &mut InstanceProcesses::new(&testbed, true),
            kill,
        )
    }))
}

/// Kills a server that returns with its flushed records, deleted ones included. The instances continue by themselves:
/// before each kill, and at the end, none may have ended.
fn kill_server_with_a_file(kafka: &KafkaServer, plan: KillPlan) -> Option<KillSummary> {
    let mut server = AerospikeServer::start_own(Setup { durable: true, namespace: FIT })?;
    let mut testbed = TestBed::aerospike(kafka.bootstrap_servers(), &server);
    testbed.has_lost_writes = true;
    let kill = |_: &mut dyn InstanceSet, rng: &mut SplitMix64| {
        server.kill();
        pause(rng, 0, 3_000);
        server.restart();
        // Some kills come while lost writes are being applied again.
        pause(rng, 0, 6_000);
        true
    };
    Some(report_panics(&testbed, plan, || {
        KillRun::new("Aerospike, its records in a file", plan).run_rounds(
            &testbed,
            &mut InstanceProcesses::new(&testbed, false),
            kill,
        )
    }))
}

/// Kills a server that returns empty. Running instances end and new ones refuse to start; a rebuild creates the store
/// of the group in another set.
fn kill_server_in_memory(kafka: &KafkaServer, plan: KillPlan) -> Option<KillSummary> {
    let mut server = AerospikeServer::start_own(Setup { durable: false, namespace: FIT })?;
    let mut testbed = TestBed::aerospike(kafka.bootstrap_servers(), &server);
    testbed.has_lost_writes = true;
    let mut kill_run = KillRun::new("Aerospike, its records in memory", plan);
    for life in 1..=plan.kills {
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            let mut instances = InstanceProcesses::new(&testbed, false);
            if life == 1 {
                // For a group without commits an empty store is a new store.
                kill_run.kill_under_load(&testbed, &mut instances, 0, &mut |_: &mut dyn InstanceSet, _: &mut _| false);
                kill_run.judge_round(&testbed, &mut instances);
            }
            let mut emptied = |instances: &mut dyn InstanceSet, rng: &mut SplitMix64| {
                pause(rng, 0, 5_000);
                instances.check_alive();
                server.kill();
                pause(rng, 0, 2_000);
                server.restart();
                true
            };
            kill_run.kill_under_load(&testbed, &mut instances, 1, &mut emptied);
            instances.wait_until_all_have_failed();
            judge::check_start_is_refused(&testbed, "the namespace was lost");
            testbed.set_rebuild_target(server.url(), &format!("blobs-{life}"));
            let rebuilt = judge::rebuild(&testbed);
            eprintln!("life {life}: {rebuilt}");
        }));
        result.unwrap_or_else(|why| report_failure(&testbed, plan.seed, why));
        testbed.use_rebuilt_store();
        let judged = panic::catch_unwind(AssertUnwindSafe(|| {
            kill_run.judge_round(&testbed, &mut InstanceProcesses::new(&testbed, false))
        }));
        judged.unwrap_or_else(|why| report_failure(&testbed, plan.seed, why));
    }
    Some(kill_run.summary)
}

/// Losses on a cluster: a node with two copies as soon as the copies are complete, else a broker or an instance.
struct ClusterKiller<'c> {
    nodes: NodeLosses<'c>,
    brokers: BrokerLosses<'c>,
    counts: BTreeMap<&'static str, u64>,
}

impl ClusterKiller<'_> {
    fn lose(&mut self, instances: &mut dyn InstanceSet, rng: &mut SplitMix64) -> Option<&'static str> {
        self.brokers.end_if_due();
        if let Some(loss) = self.nodes.turn(rng, true) {
            return Some(loss);
        }
        match rng.below(10) {
            0 if self.brokers.kill(rng) => Some("broker killed"),
            1 if self.brokers.freeze(rng) => Some("broker frozen"),
            2 => {
                instances.kill_all();
                Some("all instances killed")
            }
            3.. if instances.kill(rng.below(INSTANCES as u64) as usize) => Some("instance killed"),
            _ => None,
        }
    }
}

impl Killer for ClusterKiller<'_> {
    fn kill(&mut self, instances: &mut dyn InstanceSet, rng: &mut SplitMix64) -> bool {
        let loss = self.lose(instances, rng);
        loss.inspect(|loss| *self.counts.entry(loss).or_default() += 1).is_some()
    }

    fn end_round(&mut self, rng: &mut SplitMix64) {
        self.brokers.end();
        self.nodes.end(rng);
        eprintln!("losses: {:?}", self.counts);
    }
}

/// Kills, freezes and cuts off nodes of a cluster with two copies, kills all of them at once, and kills brokers and
/// instances.
fn kill_on_a_cluster(plan: KillPlan) -> Option<KillSummary> {
    let mut kafka = start_brokers(3)?;
    let mut cluster = AerospikeCluster::cuttable().or_else(AerospikeCluster::whole)?;
    let mut testbed = TestBed::aerospike_at(&addresses(&kafka), || cluster.url());
    testbed.has_lost_writes = true;
    let (brokers, nodes) = (BrokerLosses::new(&mut kafka), NodeLosses::new(&mut cluster));
    let mut killer = ClusterKiller { nodes, brokers, counts: BTreeMap::new() };
    Some(report_panics(&testbed, plan, || {
        let mut instances = InstanceProcesses::new(&testbed, false);
        let kill_run = KillRun::new("a cluster of three nodes and three brokers", plan);
        kill_run.run_rounds_of(LOSSES_A_ROUND, &testbed, &mut instances, &mut killer)
    }))
}

fn report_panics(testbed: &TestBed, plan: KillPlan, work: impl FnOnce() -> KillSummary) -> KillSummary {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|why| report_failure(testbed, plan.seed, why))
}

/// Runs three tenths of the kills for each kind, and one tenth for a server in memory, where each costs a rebuild. KIND
/// selects one kind for all.
fn run_kinds(plan: KillPlan) {
    if std::env::var("KIND").is_ok_and(|kind| kind == "cluster") {
        return print_summaries(kill_on_a_cluster(plan).into_iter().collect());
    }
    let Some(kafka) = KafkaServer::shared() else { return };
    let of = |kills: u64| KillPlan { kills, ..plan };
    let (third, emptied) = (plan.kills * 3 / 10, plan.kills / 10);
    let summaries = match std::env::var("KIND").as_deref() {
        Ok("fjall") => vec![Some(kill_instances_on_fjall(kafka, plan))],
        Ok("aerospike") => vec![kill_instances_on_aerospike(kafka, plan)],
        Ok("file") => vec![kill_server_with_a_file(kafka, plan)],
        Ok("memory") => vec![kill_server_in_memory(kafka, plan)],
        Ok(other) => panic!("KIND={other} is none of fjall, aerospike, file, memory, cluster"),
        Err(_) => vec![
            Some(kill_instances_on_fjall(kafka, of(third))),
            kill_instances_on_aerospike(kafka, of(third)),
            kill_server_with_a_file(kafka, of(plan.kills - 2 * third - emptied)),
            kill_server_in_memory(kafka, of(emptied)),
        ],
    };
    print_summaries(summaries.into_iter().flatten().collect());
}

fn print_summaries(summaries: Vec<KillSummary>) {
    eprintln!("\n{}", KillSummary::HEAD);
    summaries.iter().for_each(|summary| eprintln!("{}", summary.to_line()));
    let (kills, judged) =
        summaries.iter().fold((0, 0), |(kills, judged), summary| (kills + summary.kills, judged + summary.rounds));
    eprintln!("{kills} kills, {judged} judgements");
}

/// Entry of `make kill-test`.
#[test]
#[ignore = "takes half an hour"]
fn a_long_kill_test() {
    run_kinds(KillPlan { kills: env_number("KILLS", 200), rate: env_number("RATE", 100), seed: env_seed() });
}

const FEW_KILLS: KillPlan = KillPlan { kills: 2, rate: 100, seed: 3 };

#[test]
fn killed_instances_on_fjall_lose_no_event() {
    KafkaServer::shared().map(|kafka| kill_instances_on_fjall(kafka, FEW_KILLS));
}

#[test]
fn killed_instances_on_aerospike_lose_no_event() {
    KafkaServer::shared().and_then(|kafka| kill_instances_on_aerospike(kafka, FEW_KILLS));
}

#[test]
fn a_killed_server_with_a_file_is_recovered_from_the_log() {
    KafkaServer::shared().and_then(|kafka| kill_server_with_a_file(kafka, FEW_KILLS));
}

#[test]
fn a_killed_server_in_memory_is_rebuilt() {
    KafkaServer::shared().and_then(|kafka| kill_server_in_memory(kafka, KillPlan { kills: 1, ..FEW_KILLS }));
}
