//! The broker that coordinates an instance's group is killed, and another one takes over, twice.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use rdkafka::{
    ClientConfig,
    consumer::{BaseConsumer, Consumer as _},
};
use utxo_store::broker::Broker;

use crate::{
    kafka_server::KafkaServer,
    real_kafka::{json, plain},
    run::{Bench, block_on, until},
};

/// The topic of committed offsets: the leader of its one partition coordinates all groups.
const OFFSETS: &str = "__consumer_offsets";

/// Returns the broker that leads the offsets topic and the number of its copies in sync.
fn offsets_of(brokers: &str) -> Option<(usize, usize)> {
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let metadata = client.fetch_metadata(Some(OFFSETS), Duration::from_secs(2)).ok()?;
    let partition = metadata.topics().first()?.partitions().first()?;
    let leader = usize::try_from(partition.leader()).ok()?;
    Some((leader, partition.isr().len()))
}

/// Returns the group's committed offsets of validated transactions, summed; `None`: no coordinator answers.
fn committed(bench: &Bench) -> Option<u64> {
    bench.try_committed(&bench.broker()).ok()
}

/// Produces partial transactions until `stop` is set; `sent` counts them.
fn load(bench: &Bench, stop: &AtomicBool, sent: &AtomicU64) {
    block_on(async {
        let producer = bench.broker().producer().await.unwrap();
        while !stop.load(Relaxed) {
            let first = sent.load(Relaxed);
            producer.produce_all(bench.partials(first..first + 20)).await.unwrap();
            sent.fetch_add(20, Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

#[test]
fn commits_go_on_after_two_coordinators_were_killed() {
    let Some(mut servers) = KafkaServer::cluster::<3>() else { return };
    let brokers = servers.each_ref().map(|server| server.bootstrap_servers().to_owned()).join(",");
    let bench = Bench::on(&brokers);
    bench.create_topics();
    let mut instance = bench.start();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&bench, &stop, &sent));
        for kill in 1..=2 {
            until("commits move on, with all copies in sync", || {
                committed(&bench).is_some_and(|done| done > 0)
                    && offsets_of(&brokers).is_some_and(|(_, copies)| copies == 3)
            });
            let (coordinator, _) = offsets_of(&brokers).unwrap();
            let server = &mut servers[coordinator - 1];
            server.kill();
            let (killed, at_least) = (Instant::now(), sent.load(Relaxed) + 100);
            until("another one coordinates", || offsets_of(&brokers).is_some_and(|(leader, _)| leader != coordinator));
            until("commits move on without it", || committed(&bench).is_some_and(|done| done >= at_least));
            assert!(instance.child.try_wait().unwrap().is_none(), "the instance keeps running");
            eprintln!("kill {kill}: commits moved on after {:?}", killed.elapsed());
            if kill == 1 {
                server.restart();
            }
        }
        stop.store(true, Relaxed);
        loading.join().unwrap();
    });
    let sent = sent.load(Relaxed);
    until("everything is committed", || committed(&bench) == Some(sent));
    instance.signal("TERM");
    assert_eq!(instance.wait().code(), Some(0));
    let verified = json(plain(&["verify", "--store", &bench.store_url(), "--json"]));
    assert_eq!((&verified["transactions"], &verified["violations"]), (&sent.into(), &0.into()));
    let rebuilt = format!("fjall://{}", bench.path("rebuilt").display());
    let again = json(bench.command(&["replay", "--rebuild", "--json", "--store", &rebuilt], &[]));
    assert_eq!(again["digest"], verified["digest"]);
}
