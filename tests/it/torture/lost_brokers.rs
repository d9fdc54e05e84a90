//! Losses of brokers, one kind after the other, on one cluster of three brokers under load. After each kind every event
//! is handled, and the store equals the model and a rebuild.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig,
    error::RDKafkaErrorCode,
    producer::{BaseProducer, BaseRecord, FutureProducer, FutureRecord, Producer as _},
};
use utxo_store::broker::{Broker, NewTopic, TopicPartition, kafka::KafkaBroker, partitioner::partition_of};

use super::{
    PARTITIONS, TestBed,
    instances::{HostProcess, InstanceSet},
    judge,
    load::LoadGenerator,
    produce_during, report_failure,
};
use crate::{
    cluster_view::{ClusterView, OFFSETS, PartitionView, TRANSACTIONS},
    kafka_server::{ClusterSetup, KafkaServer, addresses},
    run::{block_on, until},
    small_disk::SmallDisk,
    transactional::seeded,
};

const BROKERS: usize = 3;
/// Moments of the load per second.
const RATE: u64 = 100;
/// Time between two looks at the end offsets.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Size of the disk that is filled. Files of indices are sparse.
const DISK_MEGABYTES: u32 = 64;
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Three brokers and a controller.
struct Cluster {
    servers: Vec<KafkaServer>,
    brokers: String,
    view: ClusterView,
    /// Disk of half of the partitions of the last broker. Dropped after the servers.
    disk: Option<SmallDisk>,
}

impl Cluster {
    fn start() -> Option<Self> {
        let disk = SmallDisk::mount(DISK_MEGABYTES);
        let setup = ClusterSetup {
            brokers: BROKERS,
            has_own_controller: true,
            last_log_directory: disk.as_ref().map(SmallDisk::path),
            ..ClusterSetup::default()
        };
        let servers = KafkaServer::cluster(&setup)?;
        let brokers = addresses(&servers[..BROKERS]);
        Some(Cluster { servers, view: ClusterView::new(&brokers), brokers, disk })
    }

    /// Returns the broker with this number, the number that the cluster gives it.
    fn broker(&mut self, number: usize) -> &mut KafkaServer {
        &mut self.servers[number - 1]
    }

    /// Returns the leader of a partition that has one.
    fn leader(&self, topic: &str, partition: i32) -> usize {
        let mut leader = None;
        until("the partition has a leader", || {
            leader = self.view.leader(topic, partition);
            leader.is_some()
        });
        leader.unwrap()
    }

    fn wait_until_whole(&self) {
        until("every copy is in sync", || self.view.is_whole());
    }

    /// Waits until another broker leads each partition that this broker led.
    fn wait_until_replaced(&self, lost: usize) {
        until("the lost broker leads no partition, and every partition has a leader", || {
            let partitions = self.view.partitions(None);
            !partitions.is_empty() && partitions.iter().all(|view| view.leader.is_some_and(|leader| leader != lost))
        });
    }
}

/// Returns the end offset of each partition of a topic; `None` for a partition whose leader does not answer.
fn ends(broker: &KafkaBroker, topic: &str) -> Vec<Option<u64>> {
    let at = |partition| TopicPartition { topic: topic.into(), partition };
    block_on(async {
        let mut ends = Vec::new();
        for partition in 0..PARTITIONS {
            ends.push(broker.watermarks(&at(partition)).await.ok().map(|(_, end)| end));
        }
        ends
    })
}

/// Returns the group's committed offset of each partition; `None`: no coordinator answers.
fn committed(broker: &KafkaBroker, testbed: &TestBed) -> Option<Vec<u64>> {
    let topic = testbed.bench.topic("validated-txs");
    let partitions: Vec<_> =
        (0..PARTITIONS).map(|partition| TopicPartition { topic: topic.as_str().into(), partition }).collect();
    let committed = block_on(async { broker.committed(&testbed.bench.group(), &partitions).await.ok() })?;
    Some(committed.into_iter().map(|committed| committed.map_or(0, |committed| committed.offset)).collect())
}

/// Measures for how long no outcome of a partition was published: no event was handled, or none was acknowledged.
#[derive(Default)]
struct StandstillWatch {
    longest: Mutex<Duration>,
    is_watching: AtomicBool,
    is_over: AtomicBool,
}

impl StandstillWatch {
    /// Watches until [`is_over`](Self::is_over) is set.
    fn run(&self, testbed: &TestBed) {
        let (broker, topic) = (testbed.bench.broker(), testbed.bench.topic("outcomes"));
        let mut last: Vec<(Option<u64>, Instant)> = vec![(None, Instant::now()); PARTITIONS as usize];
        while !self.is_over.load(Relaxed) {
            thread::sleep(LOOK_EVERY);
            if !self.is_watching.load(Relaxed) {
                last.fill((None, Instant::now()));
                continue;
            }
            for (last, end) in last.iter_mut().zip(ends(&broker, &topic)) {
                let now = Instant::now();
                if last.0.is_some() && end > last.0 {
                    let mut longest = self.longest.lock().unwrap();
                    *longest = longest.max(now - last.1);
                }
                if last.0.is_none() || end > last.0 {
                    *last = (end, now);
                }
            }
        }
    }
}

/// Ends the watch when dropped, so that a panic leaves no thread behind.
struct EndOfWatch<'a>(&'a StandstillWatch);

impl Drop for EndOfWatch<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Relaxed);
    }
}

/// Cluster, store, instances and witnesses of a scenario.
struct Scenario<'a, 'b> {
    cluster: &'a mut Cluster,
    testbed: &'b TestBed,
    instances: &'a mut HostProcess<'b>,
    client: KafkaBroker,
    watch: &'a StandstillWatch,
}

impl Scenario<'_, '_> {
    /// Kills a broker, and measures standstills from now on.
    fn kill(&mut self, broker: usize) {
        self.watch.is_watching.store(true, Relaxed);
        self.cluster.broker(broker).kill();
    }

    /// Starts a broker again, and waits until it has every message.
    fn bring_back(&mut self, broker: usize) {
        let started = Instant::now();
        self.cluster.broker(broker).start_again();
        self.cluster.wait_until_whole();
        eprintln!("  every copy is in sync {:.1} s after the start of the broker", started.elapsed().as_secs_f64());
    }

    fn topic(&self, name: &str) -> String {
        self.testbed.bench.topic(name)
    }

    /// Waits until every event that is in the log now is committed.
    fn wait_until_committed(&mut self, what: &str) {
        let (started, topic) = (Instant::now(), self.topic("validated-txs"));
        let mut targets = Vec::new();
        until("every partition has an end offset", || {
            targets = ends(&self.client, &topic);
            targets.iter().all(Option::is_some)
        });
        until(what, || {
            self.instances.check_alive();
            let done = committed(&self.client, self.testbed);
            done.is_some_and(|done| done.iter().zip(&targets).all(|(done, target)| *done >= target.unwrap()))
        });
        eprintln!("  {what}: after {:.1} s", started.elapsed().as_secs_f64());
    }

    /// Runs `topics check`; returns its exit code and what it prints.
    fn check_topics(&self) -> (Option<i32>, String) {
        let output = self.testbed.command(&["topics", "check"]).output().unwrap();
        let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.code(), printed)
    }
}

/// Runs one scenario on topics of its own under load. Fails unless all is handled at the end, and the store equals the
/// model and a rebuild. Prints the longest standstill since the first loss.
fn run_scenario(name: &str, cluster: &mut Cluster, seed: u64, work: impl FnOnce(&mut Scenario<'_, '_>)) {
    eprintln!("{name}");
    let started = Instant::now();
    let testbed = TestBed::fjall(&cluster.brokers);
    cluster.wait_until_whole();
    let watch = StandstillWatch::default();
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut instances = HostProcess::new(&testbed);
        let (messages, done) = thread::scope(|scope| {
            scope.spawn(|| watch.run(&testbed));
            let _end = EndOfWatch(&watch);
            produce_during(&testbed.bench, &mut LoadGenerator::new(seed), RATE, || {
                instances.start(0);
                instances.start(1);
                let (client, instances) = (testbed.bench.broker(), &mut instances);
                let mut scenario = Scenario { cluster, testbed: &testbed, instances, client, watch: &watch };
                scenario.wait_until_committed("the first events are committed");
                work(&mut scenario);
            })
        });
        done.unwrap_or_else(|why| panic::resume_unwind(why));
        eprintln!("  {messages} messages in {:.1} s", started.elapsed().as_secs_f64());
        judge::wait_until_all_is_handled(&testbed, &mut instances);
        instances.stop_all();
        judge::judge(&testbed);
    }));
    done.unwrap_or_else(|why| report_failure(&testbed, seed, why));
    let longest = *watch.longest.lock().unwrap();
    eprintln!("{name}: {:.1} s, longest standstill {:.1} s", started.elapsed().as_secs_f64(), longest.as_secs_f64());
}

/// The leader of a partition of events, and then the leader of the decisions.
fn lose_leaders(cluster: &mut Cluster) {
    run_scenario("leaders are killed", cluster, 11, |scenario| {
        for topic in ["validated-txs", "decisions"] {
            let leader = scenario.cluster.leader(&scenario.topic(topic), 0);
            scenario.kill(leader);
            scenario.cluster.wait_until_replaced(leader);
            scenario.wait_until_committed("all until the new leaders is committed");
            scenario.bring_back(leader);
        }
    });
}

/// One broker does not come back: instances leave and join, and another store begins on new topics. Then the broker is
/// replaced by one of the same number with an empty disk.
fn lose_a_broker_for_good(cluster: &mut Cluster) {
    let mut gone = 0;
    run_scenario("a broker is gone for good", cluster, 12, |scenario| {
        gone = scenario.cluster.leader(&scenario.topic("chain"), 0);
        scenario.kill(gone);
        scenario.cluster.wait_until_replaced(gone);
        scenario.instances.start(2);
        scenario.wait_until_committed("all until a third instance joined is committed");
        scenario.instances.stop(0);
        scenario.wait_until_committed("all until the first instance stopped is committed");
        let (code, printed) = scenario.check_topics();
        assert_eq!(code, Some(0), "{printed}");
        let missing = "has 2 of 3 copies in sync: bring the missing broker back";
        assert_eq!(printed.matches(missing).count(), 7, "{printed}");

        // Two brokers give new topics three copies, of which the lost broker has one.
        let other = TestBed::fjall(&scenario.cluster.brokers);
        let topics = scenario.cluster.view.partitions(Some(&other.bench.topic("validated-txs")));
        assert!(topics.iter().all(|view| view.replicas.len() == BROKERS && view.in_sync.len() == 2), "{topics:?}");
        let mut instances = HostProcess::new(&other);
        let (_, done) = produce_during(&other.bench, &mut LoadGenerator::new(13), RATE, || {
            instances.start(0);
            thread::sleep(Duration::from_secs(2));
        });
        done.unwrap_or_else(|why| panic::resume_unwind(why));
        judge::wait_until_all_is_handled(&other, &mut instances);
        instances.stop_all();
        judge::judge(&other);
    });
    let started = Instant::now();
    cluster.broker(gone).replace_disk();
    cluster.wait_until_whole();
    eprintln!("a replaced broker has every message after {:.1} s", started.elapsed().as_secs_f64());
}

/// Topic that no instance knows.
const PROBE: &str = "probe";

/// Returns the error of a message that the cluster does not take; the client does not repeat the message.
fn produce_refused(scenario: &Scenario<'_, '_>) -> Option<RDKafkaErrorCode> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &scenario.cluster.brokers).set("acks", "all");
    config.set("message.send.max.retries", "0").set("message.timeout.ms", "3000");
    let producer: FutureProducer = config.create().unwrap();
    let (key, payload) = (b"no key".as_slice(), b"no event".as_slice());
    let topic = scenario.topic(PROBE);
    let record = FutureRecord::to(&topic).partition(0).key(key).payload(payload);
    let delivered = block_on(producer.send(record, Duration::ZERO));
    delivered.err().and_then(|(error, _)| error.rdkafka_error_code())
}

/// Two of three brokers are gone: nothing is written. Then the last one goes, too, and a broker returns that lacks
/// acknowledged messages: it must not lead.
fn lose_two_brokers(cluster: &mut Cluster) {
    run_scenario("two brokers of three are gone", cluster, 14, |scenario| {
        let chain = scenario.topic("chain");
        let probe = NewTopic { name: scenario.topic(PROBE), partitions: 1, config: Vec::new() };
        block_on(scenario.client.create_topics(&[probe])).unwrap();
        let last = scenario.cluster.leader(&scenario.topic("validated-txs"), 0);
        let others: Vec<usize> = (1..=BROKERS).filter(|broker| *broker != last).collect();
        scenario.kill(others[0]);
        scenario.cluster.wait_until_replaced(others[0]);
        scenario.wait_until_committed("all until the first loss is committed");
        scenario.kill(others[1]);
        scenario.cluster.wait_until_replaced(others[1]);
        until("the cluster refuses a message", || {
            produce_refused(scenario) == Some(RDKafkaErrorCode::NotEnoughReplicas)
        });
        let (code, printed) = scenario.check_topics();
        let takes_no_writes = "takes no writes: 1 of its copies are in sync, and min.insync.replicas=2";
        assert_eq!((code, printed.matches(takes_no_writes).count()), (Some(1), 7), "{printed}");
        let before = committed(&scenario.client, scenario.testbed);
        thread::sleep(Duration::from_secs(3));
        scenario.instances.check_alive();
        // Without a second copy no offset is committed.
        assert_eq!(before, committed(&scenario.client, scenario.testbed));

        scenario.kill(last);
        scenario.cluster.broker(others[0]).restart();
        until("the broker that is back is known", || {
            scenario.cluster.view.partitions(Some(&chain)).iter().any(|view| view.leader.is_none())
        });
        for _ in 0..30 {
            let leaders = scenario.cluster.view.partitions(Some(&chain));
            assert!(leaders.iter().all(|view| view.leader.is_none()), "{leaders:?}");
            thread::sleep(Duration::from_millis(100));
        }
        let (code, printed) = scenario.check_topics();
        let remedy = "has no leader for partitions [0]: bring their brokers back";
        assert!(code == Some(1) && printed.contains(remedy), "{printed}");
        // The brokers were killed: Kafka trusts no copy in particular, and may wait for both that were in sync last.
        scenario.cluster.broker(last).restart();
        let started = Instant::now();
        while scenario.cluster.view.leader(&chain, 0).is_none() && started.elapsed() < Duration::from_secs(5) {
            thread::sleep(LOOK_EVERY);
        }
        let leader = scenario.cluster.view.leader(&chain, 0);
        eprintln!(
            "  with the last leader back, the leader is {leader:?} after {:.1} s",
            started.elapsed().as_secs_f64()
        );
        assert_ne!(leader, Some(others[0]), "a copy that lacks messages leads");
        scenario.bring_back(others[1]);
        scenario.wait_until_committed("all until the brokers were back is committed");
    });
}

/// The broker that coordinates the groups is killed while an instance joins, and while one leaves; and the coordinator
/// of a validator's transaction between its messages and its commit.
fn lose_coordinators(cluster: &mut Cluster) {
    run_scenario("coordinators are killed during rebalances", cluster, 15, |scenario| {
        let validator: BaseProducer = ClientConfig::new()
            .set("bootstrap.servers", &scenario.cluster.brokers)
            .set("transactional.id", "validator")
            .create()
            .unwrap();
        validator.init_transactions(TRANSACTION_TIMEOUT).unwrap();
        for (round, topic) in [OFFSETS, TRANSACTIONS].into_iter().enumerate() {
            validator.begin_transaction().unwrap();
            for tag in 0..20 {
                let (_, (_, key, payload)) = seeded(100 * (round as u8 + 1) + tag);
                let partition = partition_of(&key, PARTITIONS).unwrap();
                let to = scenario.topic("validated-txs");
                validator.send(BaseRecord::to(&to).partition(partition).key(&key).payload(&payload)).unwrap();
            }
            validator.flush(TRANSACTION_TIMEOUT).unwrap();
            let coordinator = scenario.cluster.leader(topic, 0);
            match round {
                0 => scenario.instances.start(2),
                _ => scenario.instances.stop(1),
            };
            thread::sleep(Duration::from_millis(100));
            scenario.kill(coordinator);
            let killed = Instant::now();
            validator.commit_transaction(TRANSACTION_TIMEOUT).unwrap();
            eprintln!("  the validator's transaction is committed after {:.1} s", killed.elapsed().as_secs_f64());
            scenario.cluster.wait_until_replaced(coordinator);
            scenario.wait_until_committed("all until the new coordinator is committed");
            scenario.bring_back(coordinator);
        }
    });
}

/// The disk of half of the partitions of one broker is full.
fn fill_a_disk(cluster: &mut Cluster) {
    if cluster.disk.is_none() {
        return;
    }
    run_scenario("the disk of a broker is full", cluster, 16, |scenario| {
        let disk = scenario.cluster.disk.as_ref().unwrap();
        let has_copy = |view: &PartitionView| view.in_sync.contains(&BROKERS);
        scenario.watch.is_watching.store(true, Relaxed);
        disk.fill();
        let filled = Instant::now();
        until("the broker takes the disk out of use", || {
            let partitions = scenario.cluster.view.partitions(None);
            !partitions.is_empty() && !partitions.iter().all(has_copy)
        });
        eprintln!("  the disk is out of use {:.1} s after it was full", filled.elapsed().as_secs_f64());
        thread::sleep(Duration::from_secs(5));
        let partitions = scenario.cluster.view.partitions(None);
        let kept = partitions.iter().filter(|view| has_copy(view)).count();
        let led = partitions.iter().filter(|view| view.leader == Some(BROKERS)).count();
        eprintln!("  the broker keeps {kept} of {} copies, and leads {led} partitions", partitions.len());
        assert!(partitions.iter().all(|view| view.leader.is_some()), "{partitions:?}");
        scenario.wait_until_committed("all is committed without the disk");
        scenario.cluster.disk.as_ref().unwrap().free();
        scenario.cluster.broker(BROKERS).kill();
        scenario.bring_back(BROKERS);
        scenario.wait_until_committed("all is committed with the disk");
    });
}

/// Entry of `make lost-brokers`. One cluster serves all: a start of four servers takes longer than a scenario.
#[test]
#[ignore = "takes six minutes"]
fn a_group_outlasts_each_loss_of_a_broker() {
    let Some(mut cluster) = Cluster::start() else { return };
    lose_leaders(&mut cluster);
    lose_a_broker_for_good(&mut cluster);
    lose_two_brokers(&mut cluster);
    lose_coordinators(&mut cluster);
    fill_a_disk(&mut cluster);
}
