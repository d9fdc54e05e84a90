//! Kill tests of snapshots: SIGKILL to `snapshot create` and `snapshot restore` as processes, and to the instances
//! beside them. In each round load goes on while a snapshot of the live store is created; the snapshot is restored into
//! other engines; each restored store is read up to the end by instances that are killed, too, and must then have the
//! digest of the live store. On Aerospike the last store of a round is the live store of the next one. At the end the
//! store equals the model of the logs and a rebuild.
//!
//! `make kill-test-snapshot KILLS=50 RATE=100 SEED=7`; `make test` runs a few kills on fjall and on Aerospike.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    panic::{self, AssertUnwindSafe},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use utxo_store::rng::SplitMix64;

use super::{
    TestBed, arguments, env_number, env_seed,
    instances::{INSTANCES, InstanceProcesses, InstanceSet},
    judge,
    load::LoadGenerator,
    produce_during, report_failure,
};
use crate::{
    aerospike_server::{AerospikeServer, FIT, Setup, configuration},
    kafka_server::KafkaServer,
    run::until,
};

/// Kills of each command in a round, and of the instances that read a restored store.
const KILLS_A_STEP: u64 = 4;
/// Time of a command before its length is known.
const UNKNOWN_LENGTH: Duration = Duration::from_millis(1_500);
/// Longest time for which a command is refused because of what a kill has left: the session of a killed instance, or
/// the hold of a creation without a plan.
const REFUSAL_BOUND: Duration = Duration::from_secs(120);
/// Reasons of such a refusal.
const PASSING_REFUSALS: [&str; 4] = [
    "of the instances of this store run",
    "nothing is pruned for",
    "has not caught up",
    // The first start after a restored store has caught up begins a new era of the chain.
    "was discarded: the chain began a new era meanwhile",
];

/// End of the counts that are no kills.
const NO_KILL: &str = " refused";

/// Settings of one run.
#[derive(Debug, Clone, Copy)]
struct SnapshotKillPlan {
    kills: u64,
    /// Moments of the load per second.
    rate: u64,
    seed: u64,
    /// Whether the snapshots are restored into every engine, in rounds; otherwise into fjall, once.
    is_long: bool,
}

/// Kills of the run, by what was killed.
struct Killer {
    rng: SplitMix64,
    left: u64,
    counts: BTreeMap<String, u64>,
    /// Time that each command takes without a kill.
    lengths: BTreeMap<String, Duration>,
}

impl Killer {
    fn count(&mut self, what: &str) {
        *self.counts.entry(what.to_owned()).or_default() += 1;
        self.left = self.left.saturating_sub(1);
    }

    /// Repeats a command until it has ended by itself, and kills its process `kills` times before. `beside` runs once
    /// at a random moment of each attempt. Returns the line that the command has printed.
    fn repeat_until_done(
        &mut self,
        step: &str,
        kills: u64,
        testbed: &TestBed,
        command: impl Fn(&mut SplitMix64) -> Command,
        mut beside: impl FnMut(&mut Self),
    ) -> Value {
        let (mut killed, mut refused_since) = (0, None);
        let log = testbed.bench.path("snapshot.log");
        loop {
            let length = self.lengths.get(step).copied().unwrap_or(UNKNOWN_LENGTH);
            let mut moment = || Duration::from_millis(self.rng.below(length.as_millis() as u64 + 1));
            let (kill_at, beside_at) = (moment(), moment());
            let is_to_be_killed = killed < kills && self.left > 0;
            let mut command = command(&mut self.rng);
            let mut child = command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(File::create(&log).unwrap())
                .spawn()
                .unwrap();
            let (started, mut has_run_beside) = (Instant::now(), false);
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if is_to_be_killed && started.elapsed() >= kill_at {
                    child.kill().unwrap();
                }
                if !has_run_beside && started.elapsed() >= beside_at {
                    has_run_beside = true;
                    beside(self);
                }
                thread::sleep(Duration::from_millis(2));
            };
            if status.signal() == Some(9) {
                self.count(step);
                killed += 1;
                refused_since = None;
                continue;
            }
            let stderr = fs::read_to_string(&log).unwrap();
            if status.code() == Some(0) {
                self.lengths.insert(step.to_owned(), started.elapsed());
                let stdout = std::io::read_to_string(child.stdout.take().unwrap()).unwrap();
                return serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
            }
            let reason = stderr.lines().last().unwrap_or_default().to_owned();
            let is_passing = PASSING_REFUSALS.iter().any(|passing| reason.contains(passing));
            let since = *refused_since.get_or_insert_with(Instant::now);
            assert!(is_passing && since.elapsed() < REFUSAL_BOUND, "{step}, after {killed} kills: {status}: {stderr}");
            *self.counts.entry(format!("{step} refused")).or_default() += 1;
            thread::sleep(Duration::from_millis(500));
        }
    }

    fn pause(&mut self, most_ms: u64) {
        thread::sleep(Duration::from_millis(self.rng.below(most_ms)));
    }

    /// Kills one instance, or all of them.
    fn kill_instances(&mut self, what: &str, instances: &mut dyn InstanceSet) {
        let slot = self.rng.below(INSTANCES as u64) as usize;
        let is_killed = if self.rng.below(4) == 0 { None } else { Some(instances.kill(slot)) };
        match is_killed {
            Some(false) => {}
            Some(true) => self.count(what),
            None => {
                instances.kill_all();
                self.count(what);
            }
        }
    }

    /// Lets instances read the store up to the end, kills them meanwhile, and stops them in order.
    fn catch_up(&mut self, what: &str, kills: u64, testbed: &TestBed, instances: &mut dyn InstanceSet) {
        for _ in 0..kills.min(self.left) {
            start_all(instances);
            self.pause(4_000);
            instances.check_alive();
            self.kill_instances(what, instances);
        }
        judge::wait_until_all_is_handled(testbed, instances);
        instances.stop_all();
    }
}

fn start_all(instances: &mut dyn InstanceSet) {
    for slot in 0..INSTANCES {
        instances.start(slot);
    }
}

/// One instance over a store that one process can open.
struct OneInstance<'t>(InstanceProcesses<'t>);

impl InstanceSet for OneInstance<'_> {
    fn start(&mut self, slot: usize) -> bool {
        slot == 0 && self.0.start(slot)
    }

    fn kill(&mut self, _: usize) -> bool {
        self.0.kill(0)
    }

    fn stop(&mut self, slot: usize) -> bool {
        self.0.stop(slot)
    }

    fn kill_all(&mut self) {
        self.0.kill_all();
    }

    fn freeze(&mut self, slot: usize, frozen: bool) -> bool {
        self.0.freeze(slot, frozen)
    }

    fn process(&self, slot: usize) -> Option<u32> {
        self.0.process(slot)
    }

    fn check_alive(&mut self) {
        self.0.check_alive();
    }

    fn stop_all(&mut self) {
        self.0.stop_all();
    }
}

/// A store into which a snapshot is restored.
struct RestoreTarget {
    engine: &'static str,
    url: String,
    /// Name of the folder of its blobs, where the engine bounds its records.
    blobs: Option<String>,
}

impl RestoreTarget {
    fn fjall(testbed: &TestBed, round: u64) -> Self {
        let path = testbed.bench.path(&format!("restored-{round}"));
        RestoreTarget { engine: "fjall", url: format!("fjall://{}", path.display()), blobs: None }
    }

    fn aerospike(server: &AerospikeServer, round: u64) -> Self {
        RestoreTarget { engine: "aerospike", url: server.url(), blobs: Some(format!("blobs-restored-{round}")) }
    }

    #[cfg(feature = "sql")]
    fn postgres() -> Option<Self> {
        let url = crate::postgres_server::shared_database()?.url();
        Some(RestoreTarget { engine: "postgres", url, blobs: None })
    }

    #[cfg(not(feature = "sql"))]
    fn postgres() -> Option<Self> {
        None
    }

    /// Location of the store, as arguments of a command.
    fn arguments(&self, testbed: &TestBed) -> Vec<String> {
        let mut location = arguments([("--store", self.url.clone())]);
        if let Some(blobs) = &self.blobs {
            location.extend(arguments([("--blobs", format!("file://{}", testbed.bench.path(blobs).display()))]));
        }
        location
    }
}

/// A run: the live store, its load, and the kills.
struct SnapshotRun {
    testbed: TestBed,
    generator: LoadGenerator,
    killer: Killer,
    plan: SnapshotKillPlan,
    messages: u64,
}

impl SnapshotRun {
    fn new(mut testbed: TestBed, plan: SnapshotKillPlan) -> Self {
        let place = format!("file://{}", testbed.bench.path("snapshots").display());
        testbed.set("SNAPSHOT__URL", &place);
        testbed.has_lost_writes = true;
        let killer = Killer {
            rng: SplitMix64::new(plan.seed ^ u64::from_be_bytes(*b"snapkill")),
            left: plan.kills,
            counts: BTreeMap::new(),
            lengths: BTreeMap::new(),
        };
        SnapshotRun { testbed, generator: LoadGenerator::new(plan.seed), killer, plan, messages: 0 }
    }

    /// Returns a command that creates a snapshot; each attempt may ask for other parts.
    fn creation(testbed: &TestBed, rng: &mut SplitMix64) -> Command {
        let parts = rng.pick(&["1", "3", "8"]);
        testbed.command(&["snapshot", "create", "--json", "--chunk-mib", "1", "--parts", parts])
    }

    /// Creates a snapshot beside running instances and their load, kills the command and the instances meanwhile, and
    /// then lets the instances handle every event.
    fn create_beside_load(&mut self, instances_of: impl Fn(&TestBed) -> InstanceProcesses<'_>) {
        let SnapshotRun { testbed, generator, killer, plan, messages, .. } = self;
        let testbed = &*testbed;
        let mut instances = instances_of(testbed);
        let (sent, created) = produce_during(&testbed.bench, generator, plan.rate, || {
            start_all(&mut instances);
            // The command opens the blob store, which an instance has to create first.
            until("an instance has opened the store", || testbed.bench.path("blobs/utxo-store.blobs").exists());
            thread::sleep(Duration::from_secs(if plan.is_long { 10 } else { 4 }));
            let kill_instance = |killer: &mut Killer| {
                instances.check_alive();
                if killer.left > 0 && killer.rng.below(2) == 0 {
                    killer.kill_instances("instances beside the creation", &mut instances);
                }
                start_all(&mut instances);
            };
            let command = |rng: &mut SplitMix64| Self::creation(testbed, rng);
            killer.repeat_until_done("create", KILLS_A_STEP, testbed, command, kill_instance)
        });
        *messages += sent;
        let created = created.unwrap_or_else(|why| panic::resume_unwind(why));
        eprintln!("created: {created}");
        judge::wait_until_all_is_handled(testbed, &mut instances);
        instances.stop_all();
    }

    /// Creates a snapshot of a store that one process can open: between two parts of the load.
    fn create_between_loads(&mut self) {
        for is_created in [false, true] {
            let SnapshotRun { testbed, generator, killer, plan, messages, .. } = self;
            let testbed = &*testbed;
            let mut instances = OneInstance(InstanceProcesses::new(testbed, false));
            let (sent, done) = produce_during(&testbed.bench, generator, plan.rate, || {
                start_all(&mut instances);
                thread::sleep(Duration::from_secs(4));
                if !is_created {
                    instances.stop_all();
                    let command = |rng: &mut SplitMix64| Self::creation(testbed, rng);
                    killer.repeat_until_done("create", KILLS_A_STEP, testbed, command, |_| {});
                }
            });
            *messages += sent;
            done.unwrap_or_else(|why| panic::resume_unwind(why));
            judge::wait_until_all_is_handled(testbed, &mut instances);
            instances.stop_all();
        }
    }

    /// Restores the newest snapshot, lets instances read the restored store up to the end, and compares its digest with
    /// the live store's. The restored store is the configured one then. Returns its report of `verify`.
    fn restore_into(&mut self, target: &RestoreTarget, live: &Value) -> Value {
        let SnapshotRun { testbed, killer, .. } = self;
        let location = target.arguments(testbed);
        let args: Vec<&str> =
            ["snapshot", "restore", "--json"].into_iter().chain(location.iter().map(String::as_str)).collect();
        let step = format!("restore into {}", target.engine);
        let command = |_: &mut SplitMix64| testbed.command(&args);
        let restored = killer.repeat_until_done(&step, KILLS_A_STEP, testbed, command, |_| {});
        eprintln!("{step}: {restored}");
        testbed.set("STORE__URL", &target.url);
        match &target.blobs {
            Some(blobs) => {
                let blobs = format!("file://{}", testbed.bench.path(blobs).display());
                testbed.set("STORE__BLOBS__URL", &blobs);
            }
            None => testbed.variables.retain(|(key, _)| key != "UTXO_STORE__STORE__BLOBS__URL"),
        }
        testbed.live = location;
        let mut processes = InstanceProcesses::new(testbed, false);
        let mut one;
        let instances: &mut dyn InstanceSet = match target.engine {
            "fjall" => {
                one = OneInstance(processes);
                &mut one
            }
            _ => &mut processes,
        };
        killer.catch_up(&format!("instances on restored {}", target.engine), KILLS_A_STEP, testbed, instances);
        let found = judge::verify(testbed);
        assert_eq!(found["digest"], live["digest"], "{step}: {found}, live: {live}");
        found
    }

    fn print(&self, rounds: u64, started: Instant) {
        let kills: u64 =
            self.killer.counts.iter().filter(|(what, _)| !what.ends_with(NO_KILL)).map(|(_, count)| count).sum();
        eprintln!(
            "snapshots: {kills} kills in {rounds} rounds, {} transactions in {} messages, {:.0} s: {:?}",
            self.generator.transactions(),
            self.messages,
            started.elapsed().as_secs_f64(),
            self.killer.counts
        );
    }
}

/// Kills commands and instances over a live store on fjall, which no instance uses while a snapshot is created.
fn kill_on_fjall(kafka: &KafkaServer, plan: SnapshotKillPlan) {
    let started = Instant::now();
    let mut run = SnapshotRun::new(TestBed::fjall(kafka.bootstrap_servers()), plan);
    eprintln!("snapshots of fjall: {plan:?}");
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        run.create_between_loads();
        let live = judge::verify(&run.testbed);
        let target = RestoreTarget::fjall(&run.testbed, 1);
        run.restore_into(&target, &live);
        run.print(1, started);
        judge::judge_store(&run.testbed);
    }));
    done.unwrap_or_else(|why| report_failure(&run.testbed, plan.seed, why));
}

/// Kills commands and instances over a live store on Aerospike.
fn kill_on_aerospike(kafka: &KafkaServer, plan: SnapshotKillPlan) {
    let setup = Setup { durable: true, namespace: FIT };
    // The durability lag is 5.5 s instead of 10 s.
    let configuration = configuration(setup).replace("filesize 1G", "filesize 1G\n    flush-max-ms 100");
    let Some(server) = AerospikeServer::start_configured(&configuration) else { return };
    let started = Instant::now();
    let mut run = SnapshotRun::new(TestBed::aerospike(kafka.bootstrap_servers(), &server), plan);
    eprintln!("snapshots of Aerospike: {plan:?}");
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        for round in 1.. {
            run.create_beside_load(|testbed| InstanceProcesses::new(testbed, false));
            let mut live = judge::verify(&run.testbed);
            let mut targets = vec![RestoreTarget::fjall(&run.testbed, round)];
            if plan.is_long {
                targets.extend(RestoreTarget::postgres());
                // The last one is the live store of the next round.
                targets.push(RestoreTarget::aerospike(&server, round));
            }
            for target in &targets {
                live = run.restore_into(target, &live);
            }
            run.print(round, started);
            if run.killer.left == 0 || !plan.is_long {
                break;
            }
        }
        match plan.is_long {
            true => judge::judge(&run.testbed),
            false => drop(judge::judge_store(&run.testbed)),
        }
    }));
    done.unwrap_or_else(|why| report_failure(&run.testbed, plan.seed, why));
}

/// Entry of `make kill-test-snapshot`.
#[test]
#[ignore = "takes half an hour"]
fn a_long_kill_test_of_snapshots() {
    let plan = SnapshotKillPlan {
        kills: env_number("KILLS", 50),
        rate: env_number("RATE", 100),
        seed: env_seed(),
        is_long: true,
    };
    if let Some(kafka) = KafkaServer::shared() {
        kill_on_aerospike(kafka, plan);
    }
}

const FEW_KILLS: SnapshotKillPlan = SnapshotKillPlan { kills: 6, rate: 200, seed: 5, is_long: false };

#[test]
fn killed_snapshots_of_fjall_are_created_and_restored() {
    if let Some(kafka) = KafkaServer::shared() {
        kill_on_fjall(kafka, FEW_KILLS);
    }
}

#[test]
fn killed_snapshots_of_aerospike_are_created_and_restored() {
    if let Some(kafka) = KafkaServer::shared() {
        kill_on_aerospike(kafka, FEW_KILLS);
    }
}
