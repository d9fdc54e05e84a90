//! The broker that coordinates an instance's group is killed, and another one takes over, twice.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use utxo_store::broker::Broker;

use crate::{
    cluster_view::{ClusterView, OFFSETS},
    kafka_server::{ClusterSetup, KafkaServer, addresses},
    real_kafka::{json, plain},
    run::{Bench, block_on, until},
};

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
    let setup = ClusterSetup { brokers: 3, ..ClusterSetup::default() };
    let Some(mut servers) = KafkaServer::cluster(&setup) else { return };
    let brokers = addresses(&servers);
    let (bench, view) = (Bench::on(&brokers), ClusterView::new(&brokers));
    bench.create_topics();
    let mut instance = bench.start();
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&bench, &stop, &sent));
        for kill in 1..=2 {
            until("commits move on, with all copies in sync", || {
                committed(&bench).is_some_and(|done| done > 0) && view.is_whole()
            });
            let coordinator = view.leader(OFFSETS, 0).unwrap();
            let server = &mut servers[coordinator - 1];
            server.kill();
            let (killed, at_least) = (Instant::now(), sent.load(Relaxed) + 100);
            until("another one coordinates", || view.leader(OFFSETS, 0).is_some_and(|leader| leader != coordinator));
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
