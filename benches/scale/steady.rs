//! Throughput and cost of one, two, four and eight members that share one topic and one machine.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{
    aerospike_server::{AerospikeServer, FIT, Setup},
    measure::runtime,
    member::{Member, MemberSetup, Sink, is_even, open_engine},
    pipeline, process_stats,
    topic::{self, BenchTopic},
};

/// Numbers of members.
pub const MEMBERS: [usize; 4] = [1, 2, 4, 8];

/// Longest time until every member has its partitions.
const START_BOUND: Duration = Duration::from_secs(60);

/// Cost of a number of members.
#[derive(Debug, Clone, Copy)]
pub struct Steady {
    pub members: usize,
    /// Transactions a second, of all members.
    pub rate: f64,
    /// CPU of the members, µs a transaction.
    pub members_us: f64,
    /// CPU of the broker, µs a transaction.
    pub broker_us: f64,
    /// CPU of the database, µs a transaction; 0 for the null engine.
    pub database_us: f64,
}

/// Counters of all processes at one moment.
struct Moment {
    at: Instant,
    completed: u64,
    members: f64,
    broker: Duration,
    database: Duration,
}

impl Moment {
    fn now(members: &[Member], broker: u32, database: Option<u32>) -> Self {
        let counters: Vec<_> = members.iter().map(Member::counters).collect();
        Moment {
            at: Instant::now(),
            completed: counters.iter().map(|counters| counters.completed).sum(),
            members: counters.iter().map(|counters| counters.cpu_seconds).sum(),
            broker: process_stats::cpu(broker),
            database: database.map_or(Duration::ZERO, process_stats::cpu),
        }
    }
}

/// Measures each number of members on a filled topic, and prints a table. `broker` is the id of the broker's process.
pub fn measure(topic: &BenchTopic, broker: u32, is_aerospike: bool) -> Vec<Steady> {
    let name = if is_aerospike { "Aerospike" } else { "null" };
    println!("\n{name}: {} transactions in {} partitions, on one machine", topic.transactions, topic.partitions);
    println!(
        "{:>9} {:>15} {:>18} {:>14} {:>16} {:>6}",
        "instances", "transactions/s", "instances CPU µs", "broker CPU µs", "database CPU µs", "cores"
    );
    let steady = MEMBERS.map(|members| {
        let steady = measure_one(topic, broker, is_aerospike, members);
        let all_us = steady.members_us + steady.broker_us + steady.database_us;
        println!(
            "{members:>9} {:>15.0} {:>18.2} {:>14.2} {:>16.2} {:>6.2}",
            steady.rate,
            steady.members_us,
            steady.broker_us,
            steady.database_us,
            all_us * steady.rate / 1e6
        );
        steady
    });
    steady.to_vec()
}

fn measure_one(topic: &BenchTopic, broker: u32, is_aerospike: bool, count: usize) -> Steady {
    let server = is_aerospike.then(|| {
        // A server of its own for each number: the parents are spent once.
        AerospikeServer::start_own(Setup { durable: false, namespace: FIT }).expect("`asd` is in PATH")
    });
    let sink = server.as_ref().map_or(Sink::Null, |server| {
        let sink = Sink::Aerospike { hosts: server.hosts().to_owned(), set: "scale".to_owned() };
        runtime(2).block_on(async {
            let engine = open_engine(&sink).await;
            pipeline::fill(&topic::generator(topic), engine.as_ref()).await;
            engine.close().await.expect("closed");
        });
        sink
    });
    let group = format!("scale-{is_aerospike}-{count}");
    let setup = MemberSetup { topic: topic.clone(), group, sink };
    let members: Vec<Member> = (0..count).map(|_| Member::start(&setup)).collect();
    let started = Instant::now();
    while !is_even(&members, topic.partitions) {
        assert!(started.elapsed() < START_BOUND, "the partitions are not shared evenly");
        thread::sleep(Duration::from_millis(5));
    }
    let database = server.as_ref().and_then(AerospikeServer::process_id);
    let begin = Moment::now(&members, broker, database);
    // Not to the end: members whose partitions are read to the end would wait for the others.
    let enough = topic.transactions / 10 * 9;
    let mut end = Moment::now(&members, broker, database);
    while end.completed < enough {
        assert!(end.at - begin.at < Duration::from_secs(300), "only {} are completed", end.completed);
        thread::sleep(Duration::from_millis(10));
        end = Moment::now(&members, broker, database);
    }
    members.into_iter().for_each(Member::leave);
    let measured = end.completed - begin.completed;
    assert!(measured > 0, "{enough} transactions are too few: all were completed before each member had its share");
    let done = measured as f64;
    Steady {
        members: count,
        rate: done / (end.at - begin.at).as_secs_f64(),
        members_us: (end.members - begin.members) * 1e6 / done,
        broker_us: (end.broker - begin.broker).as_secs_f64() * 1e6 / done,
        database_us: (end.database - begin.database).as_secs_f64() * 1e6 / done,
    }
}
