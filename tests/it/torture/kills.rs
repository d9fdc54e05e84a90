//! Kill tests: SIGKILL to instances on fjall and on Aerospike, and to the Aerospike server, which keeps its records in
//! a file or in memory and is restarted; under load, at random moments, in rounds. After each round every event is
//! handled, all instances stop gracefully, and `verify` and the model check the store.
//!
//! `make kill-test KILLS=200 RATE=100 SEED=7 KIND=fjall|aerospike|file|memory|nodes`; `make test` runs a few of each.

use std::{
    panic::{self, AssertUnwindSafe},
    time::{Duration, Instant},
};

use utxo_store::rng::SplitMix64;

use super::{
    TestBed, env_number, env_seed,
    instances::{HostProcess, INSTANCES, InstanceProcesses, InstanceSet},
    judge,
    load::LoadGenerator,
    nodes::NodeLosses,
    produce_during, report_failure,
};
use crate::{
    aerospike_cluster::AerospikeCluster,
    aerospike_server::{AerospikeServer, FIT, Setup},
    kafka_server::KafkaServer,
};

/// Kills between two checks; a server in memory is checked after each kill.
const KILLS_A_ROUND: u64 = 10;

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
        mut kill: impl FnMut(&mut dyn InstanceSet, &mut SplitMix64) -> bool,
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
                done += u64::from(kill(instances, rng));
            }
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
    fn run_rounds(
        mut self,
        testbed: &TestBed,
        instances: &mut dyn InstanceSet,
        mut kill: impl FnMut(&mut dyn InstanceSet, &mut SplitMix64) -> bool,
    ) -> KillSummary {
        while self.kills_left() > 0 {
            let kills = self.kills_left().min(KILLS_A_ROUND);
            self.kill_under_load(testbed, instances, kills, &mut kill);
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
            |instances, _| {
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
                kill_run.kill_under_load(&testbed, &mut instances, 0, |_, _| false);
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

/// Kills and freezes nodes of a cluster with two copies, one after the other, and kills all of them at once. The
/// instances continue by themselves.
fn kill_nodes(kafka: &KafkaServer, plan: KillPlan) -> Option<KillSummary> {
    let mut cluster = AerospikeCluster::cuttable().or_else(AerospikeCluster::whole)?;
    let mut testbed = TestBed::aerospike_at(kafka.bootstrap_servers(), || cluster.url());
    testbed.has_lost_writes = true;
    let mut losses = NodeLosses::new(&mut cluster);
    let kill = |_: &mut dyn InstanceSet, rng: &mut SplitMix64| {
        losses.end(rng);
        let is_lost = losses.turn(rng, true).is_some();
        // Some losses come while lost writes are being applied again.
        pause(rng, 0, 6_000);
        losses.end(rng);
        is_lost
    };
    Some(report_panics(&testbed, plan, || {
        KillRun::new("nodes of a cluster with two copies", plan).run_rounds(
            &testbed,
            &mut InstanceProcesses::new(&testbed, false),
            kill,
        )
    }))
}

fn report_panics(testbed: &TestBed, plan: KillPlan, work: impl FnOnce() -> KillSummary) -> KillSummary {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|why| report_failure(testbed, plan.seed, why))
}

/// Runs three tenths of the kills for each kind, and one tenth for a server in memory, where each costs a rebuild. KIND
/// selects one kind for all.
fn run_kinds(plan: KillPlan) {
    let Some(kafka) = KafkaServer::shared() else { return };
    let of = |kills: u64| KillPlan { kills, ..plan };
    let (third, emptied) = (plan.kills * 3 / 10, plan.kills / 10);
    let summaries = match std::env::var("KIND").as_deref() {
        Ok("fjall") => vec![Some(kill_instances_on_fjall(kafka, plan))],
        Ok("aerospike") => vec![kill_instances_on_aerospike(kafka, plan)],
        Ok("file") => vec![kill_server_with_a_file(kafka, plan)],
        Ok("memory") => vec![kill_server_in_memory(kafka, plan)],
        Ok("nodes") => vec![kill_nodes(kafka, plan)],
        Ok(other) => panic!("KIND={other} is none of fjall, aerospike, file, memory, nodes"),
        Err(_) => vec![
            Some(kill_instances_on_fjall(kafka, of(third))),
            kill_instances_on_aerospike(kafka, of(third)),
            kill_server_with_a_file(kafka, of(plan.kills - 2 * third - emptied)),
            kill_server_in_memory(kafka, of(emptied)),
        ],
    };
    let summaries: Vec<KillSummary> = summaries.into_iter().flatten().collect();
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
