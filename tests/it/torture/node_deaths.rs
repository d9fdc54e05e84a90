//! Times from the death of one of three database nodes to the first commit afterwards, to full speed, and to complete
//! copies with an empty node in the place of the dead one. Times are printed and decide nothing.
//!
//! `make node-deaths DEATHS=20 RATE=100 SEED=7 BROKERS=3`.

use std::{
    panic::{self, AssertUnwindSafe},
    time::{Duration, Instant},
};

use utxo_store::broker::{Broker, TopicPartition, kafka::KafkaBroker};

use super::{
    PARTITIONS, TestBed,
    brokers::start_brokers,
    env_number, env_seed,
    instances::{INSTANCES, InstanceProcesses, InstanceSet},
    judge,
    load::LoadGenerator,
    produce_during, report_failure,
};
use crate::{aerospike_cluster::AerospikeCluster, kafka_server::addresses, run::block_on};

/// Time between two looks at the offsets.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time before each death in which the usual lag is measured.
const USUAL: Duration = Duration::from_secs(3);
/// Least time after a death in which the longest pause between two commits is looked for.
const AFTER: Duration = Duration::from_secs(15);
/// Time limit of one recovery, and of the next complete copies.
const BOUND: Duration = Duration::from_secs(180);

/// Offsets of all partitions of validated transactions at one moment.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    committed: u64,
    lag: u64,
}

/// Times after one death.
#[derive(Debug, Clone, Copy)]
struct Recovery {
    first_commit: Duration,
    full_speed: Duration,
    complete_copies: Duration,
}

struct Offsets<'t> {
    broker: KafkaBroker,
    testbed: &'t TestBed,
    partitions: Vec<TopicPartition>,
}

impl<'t> Offsets<'t> {
    fn new(testbed: &'t TestBed) -> Self {
        let topic = testbed.bench.topic("validated-txs");
        let at = |partition| TopicPartition { topic: topic.as_str().into(), partition };
        Offsets { broker: testbed.bench.broker(), testbed, partitions: (0..PARTITIONS).map(at).collect() }
    }

    fn look(&self) -> Look {
        block_on(async {
            let mut ends = 0;
            for partition in &self.partitions {
                ends += self.broker.watermarks(partition).await.unwrap().1;
            }
            let committed = self.broker.committed(&self.testbed.bench.group(), &self.partitions).await.unwrap();
            let committed: u64 = committed.into_iter().flatten().map(|committed| committed.offset).sum();
            Look { at: Instant::now(), committed, lag: ends.saturating_sub(committed) }
        })
    }

    /// Looks again and again for this time.
    fn watch(&self, time: Duration) -> Vec<Look> {
        let started = Instant::now();
        let mut looks = vec![self.look()];
        while started.elapsed() < time {
            std::thread::sleep(LOOK_EVERY);
            looks.push(self.look());
        }
        looks
    }
}

/// Returns the end of the longest pause between two commits.
fn end_of_longest_pause(looks: &[Look]) -> Instant {
    let first = looks[0];
    let mut longest = (Duration::ZERO, first.at);
    let mut last = first;
    for look in looks {
        if look.committed > last.committed {
            longest = longest.max((look.at - last.at, look.at));
            last = *look;
        }
    }
    longest.1
}

fn measure(cluster: &mut AerospikeCluster, offsets: &Offsets<'_>, node: usize) -> Recovery {
    let usual = offsets.watch(USUAL).iter().map(|look| look.lag).max().unwrap_or_default();
    cluster.kill(node);
    let died = Instant::now();
    let mut looks = offsets.watch(AFTER);
    // A commit that was on its way may arrive: the pause is over once everything that was produced meanwhile is
    // committed.
    let produced = looks.last().map_or(0, |look| look.committed + look.lag);
    let has_gone_on = |look: &Look| look.committed >= produced && look.lag <= 2 * usual;
    while !looks.last().is_some_and(has_gone_on) {
        assert!(died.elapsed() < BOUND, "the lag is {:?}, and {usual} was usual", looks.last());
        looks.extend(offsets.watch(Duration::from_secs(1)));
    }
    let first = end_of_longest_pause(&looks);
    let full = looks.iter().find(|look| look.at >= first && look.lag <= 2 * usual).unwrap();
    cluster.replace_dead(node);
    let replaced = Instant::now();
    while !cluster.is_whole() {
        assert!(replaced.elapsed() < BOUND, "the copies do not become complete");
        std::thread::sleep(LOOK_EVERY);
    }
    Recovery { first_commit: first - died, full_speed: full.at - died, complete_copies: replaced.elapsed() }
}

/// Entry of `make node-deaths`.
#[test]
#[ignore = "takes ten minutes"]
fn times_after_the_death_of_a_node() {
    let (deaths, rate, seed) = (env_number("DEATHS", 20), env_number("RATE", 100), env_seed());
    let Some(kafka) = start_brokers(env_number("BROKERS", 3) as usize) else { return };
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let mut testbed = TestBed::aerospike_at(&addresses(&kafka), || cluster.url());
    testbed.has_lost_writes = true;
    let mut recoveries = Vec::new();
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut instances = InstanceProcesses::new(&testbed, false);
        let offsets = Offsets::new(&testbed);
        let (_, done) = produce_during(&testbed.bench, &mut LoadGenerator::new(seed), rate, || {
            for slot in 0..INSTANCES {
                instances.start(slot);
            }
            while offsets.look().committed == 0 {
                std::thread::sleep(LOOK_EVERY);
            }
            offsets.watch(Duration::from_secs(10));
            for death in 0..deaths {
                let recovery = measure(&mut cluster, &offsets, (death % 3) as usize);
                eprintln!("{death}: {recovery:.1?}");
                recoveries.push(recovery);
                instances.check_alive();
            }
        });
        done.unwrap_or_else(|why| panic::resume_unwind(why));
        judge::wait_until_all_is_handled(&testbed, &mut instances);
        instances.stop_all();
        judge::judge(&testbed);
    }));
    done.unwrap_or_else(|why| report_failure(&testbed, seed, why));
    for (what, time) in [
        ("first commit", (|recovery| recovery.first_commit) as fn(&Recovery) -> Duration),
        ("full speed", |recovery| recovery.full_speed),
        ("complete copies after the node came back empty", |recovery| recovery.complete_copies),
    ] {
        let mut times: Vec<Duration> = recoveries.iter().map(time).collect();
        times.sort_unstable();
        eprintln!(
            "{what}: median {:.1?}, worst {:.1?} of {}",
            times[times.len() / 2],
            times[times.len() - 1],
            times.len()
        );
    }
}
