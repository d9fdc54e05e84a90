//! The watchdog: no legitimate wait trips it, and a stalled thread ends a real process.

use std::{
    fs,
    io::Read,
    os::fd::AsRawFd,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{
        BlobOptions, BlobStore,
        fault::{BlobFault, FaultStore},
    },
    broker::{Broker, BrokerErrorKind, OutgoingMessage},
    engine::fault::EngineFaults,
    instance::{self, InstanceParts},
    liveness::{LoopStatus, StallDetector},
    record::Key,
    sequencer::chain_group,
    status::Health,
    store::StateStore,
    telemetry::DrainReason,
};

use crate::{
    failing_broker::{FailingBroker, LogCall},
    harness::{GROUP, Running, World, WorldSettings, spend},
    health::failing_world,
    run::{Bench, Instance, block_on, until},
    waiting_events::partition_of,
};

const LIMIT: Duration = Duration::from_secs(10);
const WORKER: &str = "the chain's worker";
const LOOK: Duration = Duration::from_secs(1);

/// An instance with a watchdog that records stalled loops.
struct Watched {
    running: Running,
    stalled: Arc<Mutex<Vec<LoopStatus>>>,
    looking: JoinHandle<()>,
}

impl Watched {
    fn start(world: &World) -> Self {
        Self::start_on(world, Arc::new(world.broker.clone()))
    }

    fn start_on(world: &World, broker: Arc<dyn Broker>) -> Self {
        let shutdown = CancellationToken::new();
        let store = StateStore { engine: world.nodes.clone(), ..world.store.clone() };
        let health = Arc::new(Health::new(world.clock.clone(), Duration::from_secs(600)).with_watchdog(Some(LIMIT)));
        let parts = InstanceParts { broker, health: health.clone(), ..world.parts(&store) };
        let metrics = parts.metrics.clone();
        let task = tokio::spawn(instance::run(world.settings.clone(), parts, shutdown.clone()));
        let stalled = Arc::new(Mutex::new(Vec::new()));
        let (seen, liveness) = (stalled.clone(), health.liveness().clone());
        let looking = tokio::spawn(async move {
            let mut watch = StallDetector::new(&liveness, LOOK);
            loop {
                tokio::time::sleep(LOOK).await;
                seen.lock().unwrap().extend(watch.check());
            }
        });
        Watched { running: Running { shutdown, task, health, metrics }, stalled, looking }
    }

    /// Fails if a loop stalls within this time, or if the loops are not those of an instance.
    async fn assert_no_stall_for(&self, seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        assert_eq!(*self.stalled.lock().unwrap(), []);
        let mut loops: Vec<_> =
            self.running.health.liveness().loops().into_iter().map(|monitor| monitor.name).collect();
        loops.sort();
        // Only an instance that holds the chain has a worker.
        loops.retain(|name| name != WORKER);
        assert_eq!(loops, ["the pipeline's loop", "the sequencer's loop"]);
    }

    fn unmet(&self) -> Vec<&'static str> {
        self.running.health.ready().reasons.keys().copied().collect()
    }

    async fn kill(self) {
        self.looking.abort();
        self.running.kill().await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_instance_with_rare_commits_trips_nothing() {
    let mut world = World::new().await;
    let hour = Duration::from_secs(3_600);
    (world.settings.pipeline.commit_interval, world.settings.sequencer.commit_interval) = (hour, hour);
    let watched = Watched::start(&world);
    world.seed(1, 1).await;
    watched.assert_no_stall_for(600).await;
    watched.kill().await;
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_store_trips_nothing() {
    let (world, engine) = failing_world().await;
    let watched = Watched::start(&world);
    world.seed(1, 1).await;
    watched.assert_no_stall_for(5).await;
    engine.fail_applies(|_| true);
    world.seed(2, 1).await;
    world.mine(1, &[]).await;
    watched.assert_no_stall_for(600).await;
    assert!(watched.unmet().contains(&"store_reachable"), "{:?}", watched.unmet());
    *engine.hangs.lock().unwrap() = Some(Key::master(World::partial(3, 1).txid));
    engine.fail_applies(|_| false);
    world.seed(3, 1).await;
    watched.assert_no_stall_for(600).await;
    watched.kill().await;
}

/// The incarnation is unknown, and an instance that acquires the chain has to read it.
#[tokio::test(start_paused = true)]
async fn nodes_that_do_not_answer_trip_nothing() {
    let world = World::forgetful().await;
    let watched = Watched::start(&world);
    world.seed(1, 1).await;
    world.until_consumed().await;
    world.nodes.set(EngineFaults { failed_read: 1.0, ..EngineFaults::default() });
    for group in [GROUP.to_owned(), chain_group(GROUP)] {
        world.broker.lose_assignments(&group);
    }
    watched.assert_no_stall_for(600).await;
    assert!(watched.unmet().contains(&"offsets_committed"), "{:?}", watched.unmet());
    world.nodes.set(EngineFaults::default());
    world.seed(2, 1).await;
    world.until_consumed().await;
    watched.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_halted_partition_and_a_waiting_block_trip_nothing() {
    let mut world = World::new().await;
    world.settings.pipeline.dead_letter_limits.consecutive = 3;
    let seed = world.seed(1, 1).await;
    let watched = Watched::start(&world);
    for _ in 0..20 {
        world.produce("txs", b"poison", vec![9]).await;
    }
    world.mine(1, &[&spend(&[seed.coin(0)], 1, 1)]).await;
    watched.assert_no_stall_for(600).await;
    assert_eq!(watched.unmet(), ["chain_running", "partitions_running"]);
    watched.kill().await;
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_blob_store_trips_nothing() {
    let mut world = World::with_settings(WorldSettings::with_blobs(2, 0)).await;
    let objects = FaultStore::new(world.objects.clone(), 1);
    let options = BlobOptions { cache_time: Duration::ZERO, ..BlobOptions::default() };
    world.store.blobs = Some(BlobStore::new(Arc::new(objects.clone()), options));
    let seed = world.seed(1, 5).await;
    let watched = Watched::start(&world);
    world.until_consumed().await;
    objects.fail_all(Some(BlobFault::LostRequest));
    let paid = spend(&[seed.coin(0), seed.coin(1)], 2, 1);
    world.validate(&paid).await;
    world.mine(1, &[&paid]).await;
    watched.assert_no_stall_for(600).await;
    objects.fail_all(None);
    world.until_consumed().await;
    watched.kill().await;
}

/// A revocation waits for an answer that does not come, far longer than the limit.
#[tokio::test(start_paused = true)]
async fn a_draining_rebalance_trips_nothing() {
    let (mut world, engine) = failing_world().await;
    world.settings.pipeline.drain_timeout = LIMIT * 30;
    let watched = Watched::start(&world);
    world.seed(1, 1).await;
    watched.assert_no_stall_for(5).await;
    *engine.hangs.lock().unwrap() = Some(Key::master(World::partial(2, 1).txid));
    world.seed(2, 1).await;
    watched.assert_no_stall_for(5).await;
    world.broker.rebalance(GROUP);
    watched.assert_no_stall_for(100).await;
    assert_eq!(watched.running.metrics.drain_seconds.of(DrainReason::Revocation).get_sample_count(), 0);
    let pipeline = |monitor: &LoopStatus| monitor.name.contains("pipeline") && monitor.waits_for == Some("a rebalance");
    assert!(watched.running.health.liveness().loops().iter().any(pipeline), "the pipeline is draining");
    watched.assert_no_stall_for(400).await;
    let drained = watched.running.metrics.drain_seconds.of(DrainReason::Revocation);
    assert_eq!((drained.get_sample_count(), drained.get_sample_sum().round()), (1, 300.0));
    watched.kill().await;
}

/// A batch in a partition that stays does not delay the other partitions, which are revoked.
#[tokio::test(start_paused = true)]
async fn a_rebalance_drains_only_revoked_partitions() {
    let (mut world, engine) = failing_world().await;
    world.settings.pipeline.drain_timeout = LIMIT * 30;
    let first = Watched::start(&world);
    world.seed(1, 1).await;
    first.assert_no_stall_for(5).await;
    // The first transaction of one partition hangs; one of the three partitions goes to the instance that joins.
    let stays = (2..).find(|tag| partition_of(&World::partial(*tag, 1)) == 0).unwrap();
    *engine.hangs.lock().unwrap() = Some(Key::master(World::partial(stays, 1).txid));
    world.seed(stays, 1).await;
    first.assert_no_stall_for(5).await;
    let second = world.start();
    first.assert_no_stall_for(20).await;
    let drained = first.running.metrics.drain_seconds.of(DrainReason::Revocation);
    assert_eq!((drained.get_sample_count(), drained.get_sample_sum().round()), (1, 0.0));
    assert!(first.running.metrics.in_flight.get() > 0, "the hanging batch is still in flight");
    second.stop().await;
    first.kill().await;
}

#[tokio::test(start_paused = true)]
async fn many_descendants_on_a_slow_store_trip_nothing() {
    let world = World::new().await;
    let seed = world.seed(1, 1).await;
    let (first, winner) = (spend(&[seed.coin(0)], 1, 1), spend(&[seed.coin(0)], 1, 99));
    let mut cone = vec![first];
    for tag in 2..30 {
        let child = spend(&[cone[cone.len() - 1].coin(0)], 1, tag);
        cone.push(child);
    }
    for made in &cone {
        world.validate(made).await;
    }
    let watched = Watched::start(&world);
    world.until_consumed().await;
    let slow = EngineFaults { delayed: 1.0, delay_within: Duration::from_secs(15), ..EngineFaults::default() };
    world.nodes.set(slow);
    world.validate(&winner).await;
    world.mine(1, &[&winner]).await;
    watched.assert_no_stall_for(120).await;
    assert!(!world.is_consumed().await, "the sequencer is still working on the descendants");
    watched.assert_no_stall_for(600).await;
    world.nodes.set(EngineFaults::default());
    world.until_consumed().await;
    watched.kill().await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_does_not_answer_trips_nothing() {
    let world = World::new().await;
    let (broker, rules) = FailingBroker::over(&world);
    let watched = Watched::start_on(&world, broker);
    watched.assert_no_stall_for(5).await;
    let retryable = Some(BrokerErrorKind::Retryable);
    rules.refuse(move |call, _| retryable.filter(|_| call != LogCall::Next));
    world.seed(1, 1).await;
    world.mine(1, &[]).await;
    watched.assert_no_stall_for(600).await;
    rules.refuse(|_, _| None);
    world.until_consumed().await;
    watched.kill().await;
}

/// Protects: the worker of the chain has a watch of its own. The worker stalls within an event, and the other loops go
/// on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_blocked_chain_worker_is_the_only_stalled_loop() {
    let (world, engine) = failing_world().await;
    let watched = Watched::start(&world);
    world.seed(1, 1).await;
    world.mine(1, &[]).await;
    world.until_consumed().await;
    let monitor = || watched.running.health.liveness().loops().into_iter().find(|monitor| monitor.name == WORKER);
    assert!(monitor().is_some_and(|monitor| monitor.since < LIMIT), "{:?}", monitor());
    let blocks = LIMIT * 2;
    engine.fail_applies(move |key| {
        if let Key::Block(_) = key {
            std::thread::sleep(blocks);
        }
        false
    });
    world.mine(2, &[]).await;
    tokio::time::sleep(LIMIT + LOOK * 5).await;
    let stalled: Vec<String> = watched.stalled.lock().unwrap().iter().map(|standing| standing.name.clone()).collect();
    assert!(!stalled.is_empty() && stalled.iter().all(|name| name == WORKER), "{stalled:?}");
    watched.kill().await;
}

/// Returns the threads of a process with this name.
pub fn threads(pid: u32, name: &str) -> Vec<libc::pid_t> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let named = tasks.filter_map(|task| {
        let task = task.unwrap().path();
        let is_it = fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name);
        is_it.then(|| task.file_name().unwrap().to_str().unwrap().parse().unwrap())
    });
    named.collect()
}

/// Stops one thread of a child for as long as the process lives, as a debugger does; returns `false` where ptrace is
/// not allowed.
fn stop_thread(thread: libc::pid_t) -> bool {
    let (sender, stopped) = std::sync::mpsc::channel();
    // The tracing thread has to stay, because its end would continue the stopped thread.
    std::thread::spawn(move || {
        let none = std::ptr::null_mut::<libc::c_void>();
        let mut status = 0;
        // SAFETY: the arguments are numbers and a place for the status; the thread belongs to a child of this process.
        unsafe {
            let seized = libc::ptrace(libc::PTRACE_SEIZE, thread, none, none) == 0
                && libc::ptrace(libc::PTRACE_INTERRUPT, thread, none, none) == 0
                && libc::waitpid(thread, &mut status, libc::__WALL) == thread;
            sender.send(seized).unwrap();
            // The tracer sees the end of the thread first.
            while seized && libc::waitpid(thread, &mut status, libc::__WALL) == thread && libc::WIFSTOPPED(status) {}
        }
    });
    stopped.recv().unwrap()
}

#[test]
fn a_stalled_polling_thread_ends_the_process() {
    let bench = Bench::new();
    let mut instance = bench.start_with(&[("UTXO_STORE__RUN__WATCHDOG_MS", "3000")]);
    let thread = threads(instance.child.id(), "kafka-consumer")[0];
    if !stop_thread(thread) {
        eprintln!("SKIPPED: a thread that stands: ptrace is not allowed here");
        return;
    }
    assert_eq!(instance.wait().code(), Some(4));
    let log = fs::read_to_string(bench.path("run.log")).unwrap();
    let line = log.lines().find(|line| line.contains("watchdog: loop stalled")).unwrap_or_else(|| panic!("{log}"));
    for words in ["the Kafka polling thread of", "\"seconds\":3", "\"exit_code\":4"] {
        assert!(line.contains(words), "{words}: {line}");
    }

    // No data is lost: the next instance continues.
    bench.seed(20);
    let mut instance = bench.start();
    until("everything is committed", || bench.committed() == 20);
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}

/// The reader of the log stops: a writing thread waits with a lock that all others need.
#[test]
fn an_unread_log_ends_the_process() {
    let bench = Bench::new();
    let file = bench.path("http-address");
    let variables = [("UTXO_STORE__RUN__WATCHDOG_MS", "2000")];
    let mut command = bench.command(&["run", "--http-address-file", file.to_str().unwrap()], &variables);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = child.stderr.take().unwrap();
    // SAFETY: the argument is the number of an open file.
    assert!(unsafe { libc::fcntl(log.as_raw_fd(), libc::F_SETPIPE_SZ, 4_096) } > 0);
    let enough = Arc::new(AtomicBool::new(false));
    let reading = std::thread::spawn({
        let enough = enough.clone();
        move || {
            let mut bytes = [0; 1_024];
            while !enough.load(Relaxed) && log.read(&mut bytes).is_ok_and(|count| count > 0) {}
            // The pipe stays open and is not read.
            log
        }
    });
    let mut instance = Instance { child, address: String::new() };
    until("the address is known", || file.exists());
    instance.address = fs::read_to_string(&file).unwrap().trim().to_owned();
    until("it is ready", || instance.get("/health/ready").starts_with("HTTP/1.1 200"));
    enough.store(true, Relaxed);
    // Each message makes a log line, and this many halt the partition, which the loop logs.
    let message = OutgoingMessage {
        topic: bench.topic("validated-txs"),
        key: b"poison".to_vec().into(),
        payload: vec![9].into(),
        ..OutgoingMessage::default()
    };
    block_on(async { bench.broker().producer().await.unwrap().produce_all(vec![message; 300]).await.unwrap() });
    let log = reading.join().unwrap();
    assert_eq!(instance.wait().code(), Some(4));
    drop(log);
}

/// A whole process that was stopped (by a debugger, a suspended machine) has not stalled.
#[test]
fn a_stopped_and_continued_process_is_not_ended() {
    let bench = Bench::new();
    let mut instance = bench.start_with(&[("UTXO_STORE__RUN__WATCHDOG_MS", "2000")]);
    instance.signal("STOP");
    std::thread::sleep(Duration::from_secs(5));
    instance.signal("CONT");
    bench.seed(20);
    until("everything is committed", || bench.committed() == 20);
    std::thread::sleep(Duration::from_secs(3));
    assert!(instance.child.try_wait().unwrap().is_none());
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
}
