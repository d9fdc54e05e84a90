//! A cluster of three Aerospike nodes with two copies: nodes die, freeze, come back with and without their records.
//! Protects: no acknowledged write is lost or undone, and instances go on by themselves.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use utxo_store::{
    engine::{
        ErrorKind, Incarnation, RecordEngine, Row,
        aerospike::{AerospikeEngine, AerospikeSettings},
        conformance::{self, RULES},
    },
    record::Key,
};

use crate::{
    aerospike::{apply_until_done, create, spend, txid, validate_parent_and_child, world_over},
    aerospike_cluster::{AerospikeCluster, CHANGE_BOUND},
    harness::{Made, WorldSettings},
};

async fn open(cluster: &AerospikeCluster) -> Arc<AerospikeEngine> {
    Arc::new(AerospikeEngine::open(&cluster.settings(), RULES).await.unwrap())
}

async fn refusal(settings: &AerospikeSettings) -> String {
    let error = AerospikeEngine::open(settings, RULES).await.err().unwrap().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// Asks until the incarnation is known.
async fn incarnation(engine: &AerospikeEngine) -> Incarnation {
    let started = Instant::now();
    loop {
        match engine.incarnation().await {
            Ok(incarnation) => return incarnation,
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Retryable, "{error}");
                assert!(started.elapsed() < CHANGE_BOUND, "{error}");
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Asks until the incarnation is one that `is_so`.
async fn until_incarnation(engine: &AerospikeEngine, is_so: impl Fn(&str) -> bool) -> Incarnation {
    let started = Instant::now();
    loop {
        let found = incarnation(engine).await;
        if is_so(&found.0) {
            return found;
        }
        assert!(started.elapsed() < CHANGE_BOUND, "{found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Spends slot `slot` of each of the first `count` transactions.
async fn spend_each(engine: &dyn RecordEngine, count: u32, slot: u32) {
    let rows: Vec<Row> = (0..count).map(|number| spend(number, slot, 1_000 * (slot + 1) + number)).collect();
    apply_until_done(engine, &rows).await;
}

/// Checks that of each transaction the slots below `slots` are spent. A read that has no answer is repeated.
async fn check_spent(engine: &dyn RecordEngine, count: u32, slots: u32) {
    let started = Instant::now();
    let mut open: Vec<u32> = (0..count).collect();
    while !open.is_empty() {
        let keys: Vec<Key> = open.iter().map(|number| Key::master(txid(*number))).collect();
        let mut again = Vec::new();
        for (number, record) in open.into_iter().zip(engine.read(&keys).await) {
            match record {
                Ok(record) => {
                    let record = record.unwrap_or_else(|| panic!("transaction {number} is lost"));
                    assert_eq!(record.page().unwrap().spent_utxos, slots, "transaction {number}");
                }
                Err(error) => {
                    assert!(error.may_be_retried() && started.elapsed() < CHANGE_BOUND, "{error}");
                    again.push(number);
                }
            }
        }
        open = again;
    }
}

const COUNT: u32 = 2_000;

async fn fill(engine: &dyn RecordEngine) {
    let rows: Vec<Row> = (0..COUNT).map(|number| create(number, 8)).collect();
    apply_until_done(engine, &rows).await;
    spend_each(engine, COUNT, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_conforms() {
    let Some(cluster) = AerospikeCluster::whole() else { return };
    conformance::run(open(&cluster).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_dead_node_is_left_out_and_comes_back_empty() {
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let engine = open(&cluster).await;
    let other = open(&cluster).await;
    let first = incarnation(&engine).await;
    assert_eq!(incarnation(&other).await, first, "every process reads the same incarnation");
    let flushes = cluster.flushes(0).unwrap();
    fill(engine.as_ref()).await;

    // A node that dies before its first flush has an empty file, and is rightly admitted as an empty node.
    cluster.until(|cluster| cluster.flushes(0) > Some(flushes));
    cluster.kill(0);
    let second = until_incarnation(&engine, |text| !text.contains(" A1+")).await;
    assert_ne!(second, first);
    assert_eq!(until_incarnation(&other, |text| !text.contains(" A1+")).await, second);
    check_spent(engine.as_ref(), COUNT, 1).await;
    spend_each(engine.as_ref(), COUNT, 1).await;

    // With its old records the node stays outside.
    cluster.restart(0);
    tokio::time::sleep(Duration::from_secs(4)).await;
    cluster.until(|cluster| cluster.is_outside(0));
    assert_eq!(incarnation(&engine).await, second);
    spend_each(engine.as_ref(), COUNT, 2).await;

    cluster.replace(0);
    let third = until_incarnation(&engine, |text| text.contains(" A1+")).await;
    assert_eq!(until_incarnation(&other, |text| text.contains(" A1+")).await, third);
    spend_each(engine.as_ref(), COUNT, 3).await;
    check_spent(engine.as_ref(), COUNT, 4).await;
    // Once the copies are complete, the next node may die.
    cluster.until(AerospikeCluster::is_whole);
    cluster.kill(1);
    until_incarnation(&engine, |text| !text.contains(" A2+")).await;
    check_spent(engine.as_ref(), COUNT, 4).await;
}

/// Each store creates its indexes, and sets the fences that are missing; many do while the nodes agree on a cluster
/// without the dead one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn stores_are_opened_while_a_node_dies() {
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let opening = (0..40).map(|number| {
        let settings = cluster.settings();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(100) * number).await;
            AerospikeEngine::open(&settings, RULES).await
        })
    });
    let opening: Vec<_> = opening.collect();
    tokio::time::sleep(Duration::from_millis(450)).await;
    cluster.kill(0);
    for opened in opening {
        opened.await.unwrap().unwrap();
    }
}

/// A supervisor starts the store before the nodes: no host answers at first.
/// Protects: the store sets a fence. Without one, a node that freezes and comes back would undo acknowledged writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_store_that_starts_before_its_nodes_sets_a_fence() {
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let without_fence = cluster.ask(0, "cluster-name");
    (0..3).for_each(|node| cluster.kill(node));
    let mut settings = cluster.settings();
    settings.access.timeout = Duration::from_secs(60);
    let opening = tokio::spawn(async move { AerospikeEngine::open(&settings, RULES).await });
    // Long enough that every host has refused the first connections.
    tokio::time::sleep(Duration::from_secs(3)).await;
    (0..3).for_each(|node| cluster.restart(node));
    let _engine = opening.await.unwrap().unwrap();
    (0..3).for_each(|node| assert_ne!(cluster.ask(node, "cluster-name"), without_fence));
}

/// Loses the third node by `set_lost`, and brings the node back with its old records. Nothing may change for 15 s.
async fn check_that_a_node_left_out_changes_nothing(cluster: &AerospikeCluster, set_lost: impl Fn(bool)) {
    let engine = open(cluster).await;
    fill(engine.as_ref()).await;
    let first = incarnation(&engine).await;
    set_lost(true);
    spend_each(engine.as_ref(), COUNT, 1).await;
    let second = until_incarnation(&engine, |text| !text.contains(" A3+")).await;
    assert_ne!(second, first);
    spend_each(engine.as_ref(), COUNT, 2).await;
    set_lost(false);
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        check_spent(engine.as_ref(), COUNT, 3).await;
        assert_eq!(cluster.size(0), 2, "the node has old records, and stays outside");
    }
    assert_eq!(incarnation(&engine).await, second);
}

/// Requests wait in the buffers of a frozen node, and the node goes on after the others have taken over. The requests
/// stay without an answer, and are sent again to the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_frozen_node_changes_nothing_when_it_goes_on() {
    let Some(cluster) = AerospikeCluster::whole() else { return };
    check_that_a_node_left_out_changes_nothing(&cluster, |is_lost| cluster.freeze(2, is_lost)).await;
}

/// Clients still reach the node that is cut off, and a process of the store talks to it until it knows better.
/// Protects: a write that the node acknowledges alone would be thrown away when the cut ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_that_is_cut_off_acknowledges_nothing_that_is_lost_later() {
    let Some(cluster) = AerospikeCluster::cuttable() else { return };
    let network = cluster.network().unwrap();
    check_that_a_node_left_out_changes_nothing(&cluster, |is_lost| network.cut_from_peers(2, is_lost)).await;
}

/// A node applies spends and cannot copy them; no answer comes, and no view changes. Later the node is lost.
/// Protects: a repeated spend that finds its effect in one copy is not acknowledged before the other copies have the
/// effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_spend_that_one_node_has_alone_is_copied_before_it_is_acknowledged() {
    let Some(mut cluster) = AerospikeCluster::cuttable() else { return };
    let engine = open(&cluster).await;
    fill(engine.as_ref()).await;
    let first = incarnation(&engine).await;
    let cut_copies = |cluster: &AerospikeCluster, is_cut| cluster.network().unwrap().cut_copies(2, 3001, is_cut);
    cut_copies(&cluster, true);
    let rows: Vec<Row> = (0..COUNT).map(|number| spend(number, 1, 2_000 + number)).collect();
    let unanswered = engine.apply(&rows).await.into_iter().filter(Result::is_err).count();
    assert!(unanswered > 0);
    let spending = tokio::spawn({
        let engine = engine.clone();
        async move { spend_each(engine.as_ref(), COUNT, 1).await }
    });
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(incarnation(&engine).await, first, "heartbeats arrive");
    cut_copies(&cluster, false);
    spending.await.unwrap();
    cluster.kill(2);
    until_incarnation(&engine, |text| !text.contains(" A3+")).await;
    check_spent(engine.as_ref(), COUNT, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fence_that_an_instance_began_is_completed() {
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let engine = open(&cluster).await;
    fill(engine.as_ref()).await;
    let first = incarnation(&engine).await;
    let name = cluster.ask(0, "cluster-name");
    let (rest, tag) = name.rsplit_once('.').unwrap();
    let (base, number) = rest.rsplit_once('.').unwrap();
    let next = format!("{base}.{}.{tag}", number.parse::<u64>().unwrap() + 1);
    for _ in 0..2 {
        assert_eq!(cluster.ask(1, &format!("set-config:context=service;cluster-name={next}")), "ok");
        std::thread::sleep(Duration::from_secs(3));
    }
    let second = incarnation(&engine).await;
    // A busy machine may answer for the node too late: the others are fenced without the node, which is right, too.
    let is_left_out = !second.0.contains(" A2+");
    assert!(second != first && (second.0.contains(&next) || is_left_out), "{second:?}");
    // All processes start again, with their records: the names are the configured ones.
    for node in 0..3 {
        cluster.kill(node);
    }
    let error = engine.incarnation().await.unwrap_err();
    assert!(error.message.contains("does not answer"), "{error}");
    for node in 0..3 {
        cluster.restart(node);
    }
    let third = until_incarnation(&engine, |text| text.contains(" A1+") && text.contains(" A3+")).await;
    assert_ne!(third, second);
    spend_each(engine.as_ref(), COUNT, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_death_before_the_copies_are_complete_waits_for_the_records() {
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let engine = open(&cluster).await;
    fill(engine.as_ref()).await;
    cluster.kill(0);
    until_incarnation(&engine, |text| !text.contains(" A1+")).await;
    cluster.kill(1);
    tokio::time::sleep(Duration::from_secs(3)).await;
    let error = engine.incarnation().await.unwrap_err();
    assert!(error.kind == ErrorKind::Retryable && error.message.contains("majority"), "{error}");
    // An empty node does not help, and is not admitted.
    cluster.replace_dead(0);
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(engine.incarnation().await.is_err());
    cluster.until(|cluster| cluster.is_outside(0));
    cluster.restart(1);
    until_incarnation(&engine, |text| text.contains(" A2+") && text.contains(" A3+")).await;
    spend_each(engine.as_ref(), COUNT, 1).await;
    // Now the copies become complete, and the empty node is admitted.
    until_incarnation(&engine, |text| text.contains(" A1+")).await;
}

/// Nodes die and freeze while a pipeline with rivals and blocks runs.
/// Protects: the pipeline rewinds and goes on; the store equals the model and a rebuild.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pipeline_equals_its_rebuild_after_nodes_were_lost() {
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let world = world_over(&cluster.settings(), WorldSettings::calm()).await;
    let seed = world.seed(1, 120).await;
    let running = world.start();
    while world.page(&seed).await.is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut made = Vec::new();
    for vout in 0..120 {
        made.extend(validate_parent_and_child(&world, seed.coin(vout), vout % 10 == 3).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
        match vout {
            20 => cluster.kill(0),
            50 => cluster.replace_dead(0),
            80 => {
                cluster.until(AerospikeCluster::is_whole);
                cluster.freeze(1, true);
            }
            110 => cluster.freeze(1, false),
            _ => {}
        }
    }
    let listed: Vec<&Made> = made.iter().filter(|made| made.outputs[0].1[1] == 1).take(3).collect();
    world.mine(1, &listed).await;
    tokio::time::timeout(Duration::from_secs(120), world.until_consumed()).await.unwrap();
    let restarts = running.metrics.node_restarts.get();
    running.stop().await;
    assert!(restarts >= 4, "the pipeline and the chain have both seen both losses: {restarts}");
    world.check("nodes were lost").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_unfit_cluster_is_refused_with_a_remedy() {
    let changes: [(&str, &str, &str); 5] = [
        ("min-cluster-size 2", "min-cluster-size 1", "set `min-cluster-size 2`, a majority"),
        ("policy last-update-time", "policy generation", "set `conflict-resolution-policy last-update-time`"),
        ("level-override all", "level-override off", "set `read-consistency-level-override all`"),
        ("write-commit-level-override all", "write-commit-level-override off", "set `write-commit-level-override all`"),
        ("disable-write-dup-res false", "disable-write-dup-res true", "set `disable-write-dup-res false`"),
    ];
    // One node of three has the wrong setting.
    for (right, wrong, remedy) in changes {
        let edit = |number: usize, text: String| if number == 1 { text.replacen(right, wrong, 1) } else { text };
        let Some(cluster) = AerospikeCluster::start_with(3, edit) else { return };
        cluster.until(|cluster| cluster.size(0) == 3);
        let error = refusal(&cluster.settings()).await;
        assert!(error.contains(remedy) && error.contains("A2"), "{error}");
    }
}

/// Protects: nothing is committed over members that no longer have what a start demands.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_setting_that_changes_while_a_store_runs_is_named_until_it_is_mended() {
    let Some(cluster) = AerospikeCluster::whole() else { return };
    let engine = open(&cluster).await;
    incarnation(&engine).await;
    let set = |context: &str, setting: &str| {
        assert_eq!(cluster.ask(1, &format!("set-config:context={context};{setting}")), "ok", "{setting}");
    };
    for (context, wrong, right, remedy) in [
        (
            "namespace;id=test",
            "disable-write-dup-res=true",
            "disable-write-dup-res=false",
            "`disable-write-dup-res false`",
        ),
        ("namespace;id=test", "replication-factor=3", "replication-factor=2", "set one value on every node"),
        ("service", "min-cluster-size=1", "min-cluster-size=2", "set `min-cluster-size 2`, a majority"),
    ] {
        set(context, wrong);
        let started = Instant::now();
        // The background task finds the reason a moment after the view is out of use.
        loop {
            let error = engine.incarnation().await.err();
            if error.as_ref().is_some_and(|error| error.message.contains(remedy) && error.message.contains("A2")) {
                assert_eq!(error.unwrap().kind, ErrorKind::Retryable);
                break;
            }
            assert!(started.elapsed() < CHANGE_BOUND, "{wrong} is not noticed: {error:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        set(context, right);
        incarnation(&engine).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hosts_of_a_start_may_be_dead_and_must_belong_to_one_cluster() {
    let Some(mut cluster) = AerospikeCluster::whole() else { return };
    let other_name = |_, text: String| text.replace("cluster-name utxo-store", "cluster-name other");
    let other = AerospikeCluster::start_with(1, other_name).unwrap();
    let mut both = cluster.settings();
    both.hosts = format!("{},{}", cluster.settings().hosts, other.settings().hosts);
    let error = refusal(&both).await;
    assert!(error.contains("`utxo-store`") && error.contains("`other`"), "{error}");
    let mut few = cluster.settings();
    few.hosts = few.hosts.rsplit_once(',').unwrap().0.to_owned();
    let error = refusal(&few).await;
    assert!(error.contains("name every node"), "{error}");
    // The first fence needs every node, and later ones do not: a node of the list is dead.
    open(&cluster).await.close().await.unwrap();
    cluster.kill(2);
    let engine = open(&cluster).await;
    incarnation(&engine).await;
    fill(engine.as_ref()).await;
    // Fewer nodes than `min-cluster-size`.
    cluster.kill(1);
    let mut settings = cluster.settings();
    settings.access.timeout = Duration::from_secs(1);
    let error = refusal(&settings).await;
    assert!(error.contains("majority") || error.contains("cannot connect"), "{error}");
}
