//! The engine on a real Aerospike: conformance, native operations, refusals at a start, a server that dies.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use utxo_store::{
    blob::BlobStore,
    engine::{
        EngineError, ErrorKind, Incarnation, OpenOptions, RecordEngine, Row,
        aerospike::{AerospikeEngine, AerospikeSettings, Layout},
        conformance::{self, RULES},
    },
    record::{
        Key, Marks, MinedIn, Operation, Outcome, Page, Phase, Record, Reply, Sequenced, Slot, Spend, SpendSlot, Stamp,
        TxState, Verdict,
    },
    store::{StateStore, digest::survey, restart_detector::RestartDetector},
    tx::{Outpoint, Output, Txid, UtxoHash, utxo_hash},
};

use crate::{
    aerospike_server::{self, AerospikeServer, FIT, Setup},
    commands, demo, group_store,
    harness::{self, Coin, Made, World, WorldSettings},
    pipeline, ports,
    pruning::{self, RETENTION},
    rebuild, reorgs,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn aerospike_conforms() {
    let Some(server) = AerospikeServer::start() else { return };
    for layout in [Layout::Compact, Layout::Teranode] {
        let settings = || AerospikeSettings { layout: Some(layout), ..server.settings() };
        for check in conformance::CHECKS {
            check.run(Arc::new(open(&settings()).await)).await;
        }
        conformance::run(Arc::new(open(&settings()).await)).await;
    }
}

pub async fn open(settings: &AerospikeSettings) -> AerospikeEngine {
    AerospikeEngine::open(settings, RULES).await.unwrap()
}

pub fn txid(number: u32) -> Txid {
    let mut txid = [0x17; 32];
    txid[..4].copy_from_slice(&number.to_le_bytes());
    Txid(txid)
}

const OUTPUT: Output<'_> = Output { satoshis: 1, script: &[] };

fn hash(number: u32, slot: u32) -> UtxoHash {
    utxo_hash(&txid(number), slot, OUTPUT.script, OUTPUT.satoshis)
}

/// Builds a live master with an external body, so that only hashes and sizes count.
fn page(number: u32, slots: u32) -> Page {
    let mut page = Page::stub(txid(number), Verdict::Pending);
    page.conflicting = false;
    page.utxos = Some((0..slots).map(|slot| Slot::Unspent(hash(number, slot))).collect());
    page.record_utxos = slots;
    page.amount_sizes = vec![1; slots as usize].into();
    let master = page.master.as_mut().unwrap();
    master.verdict = None;
    master.total_utxos = slots;
    master.unmined_since = Some(100);
    master.body = Some(utxo_store::record::Body::External(utxo_store::record::Blob::First(None)));
    page
}

pub fn on(number: u32, operation: Operation) -> Row {
    Row { key: Key::master(txid(number)), operation }
}

pub fn create(number: u32, slots: u32) -> Row {
    on(number, Operation::Create(Arc::new(page(number, slots))))
}

pub fn spend(number: u32, slot: u32, spender: u32) -> Row {
    let outpoint = Outpoint { txid: txid(number), vout: slot };
    let slot = SpendSlot::claiming(&outpoint, slot, 0, &OUTPUT, Default::default());
    on(
        number,
        Operation::Spend(Spend {
            spender: txid(spender),
            height: 200,
            slots: vec![slot].into(),
            marks: Marks::Respect,
            signals: true,
        }),
    )
}

fn set_mined(number: u32) -> Row {
    let stamp = Stamp { offset: 5, phase: Phase::Apply };
    let mined_in = MinedIn { block_id: 7, height: 150, subtree: 0 };
    on(number, Operation::Sequenced(stamp, Sequenced::SetMined { mined_in, longest_chain: true }))
}

async fn must_apply(engine: &dyn RecordEngine, rows: &[Row]) {
    for answer in engine.apply(rows).await {
        assert!(matches!(answer, Ok(Outcome::Applied(_))), "{answer:?}");
    }
}

/// The operations of uncontested transactions take one request each and no read, also where many spend from one record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncontested_transactions_need_no_read() {
    let Some(server) = AerospikeServer::start() else { return };
    let engine = open(&server.settings()).await;
    let all = |row: fn(u32) -> Row| (0..100).map(row).collect::<Vec<Row>>();
    must_apply(&engine, &all(|number| create(number, 3))).await;
    must_apply(&engine, &all(|number| spend(number, 0, 1_000 + number))).await;
    must_apply(&engine, &all(set_mined)).await;
    must_apply(&engine, &(0..200).map(|row| spend(row / 2, 1 + row % 2, 2_000 + row)).collect::<Vec<_>>()).await;
    let counts = engine.group_counts();
    assert_eq!((counts.blind_writes, counts.native), (100, 300), "{counts:?}");
    assert_eq!((counts.reads, counts.refused, counts.lost_races), (0, 0, 0), "{counts:?}");

    // A record takes more spends than one request does.
    must_apply(&engine, &[create(1_000, 300)]).await;
    must_apply(&engine, &(0..300).map(|slot| spend(1_000, slot, 3_000 + slot)).collect::<Vec<_>>()).await;
    let wide = engine.read(&[Key::master(txid(1_000))]).await.remove(0).unwrap().unwrap();
    assert_eq!(wide.page().unwrap().spent_utxos, 300);
    let counts = engine.group_counts();
    assert_eq!((counts.blind_writes, counts.native), (101, 303), "{counts:?}");
    assert_eq!((counts.reads, counts.refused, counts.lost_races), (0, 0, 0), "{counts:?}");

    // A record that is mined and spent in full is due. A repeated operation is recognised.
    let record = engine.read(&[Key::master(txid(0))]).await.remove(0).unwrap().unwrap();
    assert_eq!(record.page().unwrap().delete_at_height, Some(150 + RULES.retention));
    let again = engine.apply(&[spend(0, 1, 2_000), set_mined(0)]).await;
    let slots = Reply::Slots { all_spent: true, delete_at_height: None };
    assert_eq!(again[0].as_ref().unwrap(), &Outcome::AlreadyApplied(slots));
    let mined = Reply::Mined { block_ids: vec![7], extra_pages: 0, conflicting_children: false };
    assert_eq!(again[1].as_ref().unwrap(), &Outcome::AlreadyApplied(mined));
    engine.close().await.unwrap();
}

pub async fn refusal(settings: &AerospikeSettings) -> String {
    let error = AerospikeEngine::open(settings, RULES).await.err().unwrap().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unfit_server_is_refused_with_a_remedy() {
    let Some(server) = AerospikeServer::start() else { return };
    open(&server.settings()).await.close().await.unwrap();
    let mut wrong = server.settings();
    wrong.namespace = "nowhere".into();
    assert!(refusal(&wrong).await.contains("has no namespace `nowhere`"));
    let mut nobody = AerospikeSettings::new("127.0.0.1:1", "test", "set");
    nobody.access.timeout = Duration::from_millis(300);
    assert!(refusal(&nobody).await.contains("check that the server runs"));
    let no_hosts = AerospikeSettings::new("127.0.0.1:what", "test", "set");
    assert!(refusal(&no_hosts).await.contains("127.0.0.1:what"));
    let mut login = server.settings();
    login.access.timeout = Duration::from_millis(300);
    login.access.login = Some(("somebody".into(), "something".into()));
    let refused = refusal(&login).await;
    assert!(refused.contains("leave store.aerospike.user and its password out"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_without_ttl_or_with_small_records_is_refused() {
    let no_ttl = FIT.replace("nsup-period 120", "nsup-period 0");
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: &no_ttl }) else { return };
    assert!(refusal(&server.settings()).await.contains("nsup-period 120"));
    let small = FIT.replace("max-record-size 8M", "max-record-size 1M");
    let server = AerospikeServer::start_own(Setup { durable: false, namespace: &small }).unwrap();
    let mut settings = server.settings();
    settings.access.utxo_batch_size = Some(20_000);
    assert!(refusal(&settings).await.contains("raise `max-record-size`"));
    settings.access.utxo_batch_size = Some(14_000);
    let engine = open(&settings).await;
    // Only the record that does not fit is refused.
    let answers = engine.apply(&[create(1, 40_000), create(2, 1)]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind, ErrorKind::TooBig);
    assert!(matches!(answers[1], Ok(Outcome::Applied(_))));
}

/// Spends of one record go together, and together they do not fit.
/// Protects: the spends with room are applied, and only the others are refused as too big.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spends_of_a_full_record_are_applied_as_far_as_they_fit() {
    let narrow = FIT.replace("max-record-size 8M", "max-record-size 128K");
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: &narrow }) else { return };
    let engine = open(&server.settings()).await;
    let (mut fits, mut too_many) = (1_000, 10_000);
    while too_many - fits > 1 {
        let slots = (fits + too_many) / 2;
        match &engine.apply(&[create(slots, slots)]).await[0] {
            Ok(_) => fits = slots,
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::TooBig);
                too_many = slots;
            }
        }
    }
    // A spent slot takes as many bytes as its spender, or one less: there is room for two or three spends.
    let slots = fits - 3;
    must_apply(&engine, &[create(1, slots)]).await;
    let spends: Vec<Row> = (0..8).map(|slot| spend(1, slot, 100 + slot)).collect();
    let before = engine.group_counts();
    let answers = engine.apply(&spends).await;
    let after = engine.group_counts();
    // Halves that are sent together change the record for each other, and read it up to 40 times each.
    assert_eq!(after.lost_races, before.lost_races);
    assert!(after.reads - before.reads <= 15, "{after:?}: one read for each part of the eight");
    let done = answers.iter().filter(|answer| matches!(answer, Ok(Outcome::Applied(_)))).count();
    let too_big = |answer: &&Result<Outcome, EngineError>| matches!(answer, Err(it) if it.kind == ErrorKind::TooBig);
    assert_eq!(answers.iter().filter(too_big).count(), 8 - done, "{answers:?}");
    assert!((2..=3).contains(&done), "{answers:?}");
    let Some(Record::Page(there)) = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap() else { panic!() };
    let taken = there.utxos.as_ref().unwrap().iter().filter(|slot| slot.spender().is_some()).count();
    assert_eq!(taken, done);
}

/// The shipped configuration file passes the checks of a start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_configuration_passes_the_start_checks() {
    let shipped = include_str!("../../deploy/aerospike.conf")
        .replace("port 3000", "port {SERVICE}")
        .replace("port 3001", "port {FABRIC}")
        .replace("port 3002", "port {HEARTBEAT}")
        .replace("/var/lib/aerospike", "{FOLDER}")
        .replace("filesize 64G", "filesize 1G")
        .replace("namespace utxo", "namespace test")
        .replace("cluster-name utxo-store", "cluster-name utxo-store\n  work-directory {FOLDER}")
        + "mod-lua {\n  user-path {FOLDER}/usr/udf/lua\n}\n";
    let Some(server) = AerospikeServer::start_configured(&shipped) else { return };
    let mut options = OpenOptions::new(RULES);
    options.access.utxo_batch_size = Some(20_000);
    let engine = utxo_store::engine::open(&server.url(), &options).await.unwrap();
    assert_eq!(engine.name(), "aerospike");
    assert_eq!(engine.loss_window(), Duration::from_secs(2));
    // A page of the greatest size is spent in full; a busy device asks for a retry.
    apply_until_done(engine.as_ref(), &[create(1, 20_000)]).await;
    for from in (0..20_000).step_by(100) {
        let rows: Vec<Row> = (from..from + 100).map(|slot| spend(1, slot, slot)).collect();
        apply_until_done(engine.as_ref(), &rows).await;
    }
    let record = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap().unwrap();
    assert!(record.page().unwrap().is_all_spent());
    engine.close().await.unwrap();
}

/// Sends rows until each is done, as every caller does; returns whether any row was sent again.
pub async fn apply_until_done(engine: &dyn RecordEngine, rows: &[Row]) -> bool {
    let mut again = false;
    loop {
        let answers = engine.apply(rows).await;
        let errors: Vec<&EngineError> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        assert!(errors.iter().all(|error| error.may_be_retried()), "{errors:?}");
        if errors.is_empty() {
            assert!(answers.iter().flatten().all(Outcome::is_done), "{answers:?}");
            return again;
        }
        again = true;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The server is killed and started again during batches: no row is answered wrongly, and every row is applied in the
/// end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_complete_after_the_server_was_killed() {
    let Some(mut server) = AerospikeServer::start_own(Setup { durable: true, namespace: FIT }) else { return };
    let engine = Arc::new(open(&server.settings()).await);
    let work = {
        let engine = engine.clone();
        tokio::spawn(async move {
            let mut interrupted = false;
            let mut batch = 0;
            while !interrupted || batch < 50 {
                let numbers = 64 * batch..64 * (batch + 1);
                let creates: Vec<Row> = numbers.clone().map(|number| create(number, 2)).collect();
                let spends: Vec<Row> = numbers.map(|number| spend(number, 0, 1 << 20)).collect();
                // Writes that the server lost are repeated, as a replay repeats them.
                loop {
                    interrupted |= apply_until_done(engine.as_ref(), &creates).await;
                    let answers = engine.apply(&spends).await;
                    if answers.iter().all(|answer| answer.as_ref().is_ok_and(Outcome::is_done)) {
                        break;
                    }
                    interrupted = true;
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                batch += 1;
            }
        })
    };
    tokio::time::sleep(Duration::from_millis(500)).await;
    server.kill();
    server.restart();
    tokio::time::timeout(Duration::from_secs(120), work).await.unwrap().unwrap();
    engine.close().await.unwrap();
}

/// The namespace takes no writes, as a full one. Events wait, readiness names the reason, and the writes continue once
/// there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_wait_for_room_in_a_full_namespace() {
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: FIT }) else { return };
    let world = world_on(&server).await;
    // The engine has waited until the server is ready.
    let client = aerospike::Client::new(&Default::default(), &server.settings().hosts).await.unwrap();
    // The server checks by itself every few seconds whether there is room.
    let room = async |percent: u32| {
        let what = format!("set-config:context=namespace;id=test;stop-writes-sys-memory-pct={percent}");
        let answers = client.info(&Default::default(), &[&what]).await.unwrap();
        assert!(answers.values().all(|answer| answer.eq_ignore_ascii_case("ok")), "{answers:?}");
    };
    let seed = world.seed(1, 200).await;
    let running = world.start();
    tokio::time::timeout(Duration::from_secs(60), world.until_consumed()).await.unwrap();
    room(1).await;
    let is_named =
        || running.health.ready().reasons.values().any(|why| why.contains("the namespace is full (stop-writes)"));
    let mut made = Vec::new();
    while !is_named() {
        made.push(harness::spend(&[seed.coin(made.len() as u32)], 1, 1));
        world.validate(made.last().unwrap()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (waiting, before) = (made.last().unwrap(), made.first().unwrap());
    assert!(world.page(waiting).await.is_none() && world.page(before).await.is_some(), "reads go on");
    room(90).await;
    tokio::time::timeout(Duration::from_secs(60), world.until_consumed()).await.unwrap();
    assert!(!is_named());
    running.stop().await;
    world.check("a full namespace").await;
}

/// The server keeps its connections open, and answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_server_is_named_within_5_s_and_the_instance_goes_on_after_it() {
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: FIT }) else { return };
    let world = world_on(&server).await;
    let running = world.start();
    world.seed(1, 2).await;
    tokio::time::timeout(Duration::from_secs(60), world.until_consumed()).await.unwrap();
    let unmet = || running.health.ready().reasons.contains_key("store_reachable");
    assert!(!unmet());
    world.store.check_deep(Duration::from_secs(2)).await.unwrap();
    server.freeze(true);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(unmet());
    let error = world.store.check_deep(Duration::from_secs(2)).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot write the meta record of the store: no answer within 2s");
    server.freeze(false);
    tokio::time::timeout(Duration::from_secs(30), async {
        while unmet() || world.store.check_deep(Duration::from_secs(2)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap();
    world.seed(2, 2).await;
    tokio::time::timeout(Duration::from_secs(60), world.until_consumed()).await.unwrap();
    running.stop().await;
}

/// A start detects records that were lost with a device or a node, whatever else is stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_detects_a_lost_part_of_the_namespace() {
    let Some(server) = AerospikeServer::start() else { return };
    let (mut world, settings) = (World::with_settings(WorldSettings::calm()).await, server.settings());
    let engine = AerospikeEngine::open(&settings, world.store.settings.rules).await.unwrap();
    world.settings.durability_lag = Some(engine.loss_window() + Duration::from_millis(100));
    let world = world.over(Arc::new(engine));
    world.seed(1, 2).await;
    for _ in 0..2 {
        let running = world.start();
        tokio::time::timeout(Duration::from_secs(60), world.until_consumed()).await.unwrap();
        running.stop().await;
    }
    let client = aerospike::Client::new(&Default::default(), &settings.hosts).await.unwrap();
    for number in [0_u8, 77, 255] {
        let user_key = aerospike::Value::Blob([b"sentinel", &[number][..]].concat());
        let key = aerospike::Key::new(&*settings.namespace, format!("{}_meta", settings.set), user_key).unwrap();
        assert!(client.delete(&Default::default(), &key).await.unwrap(), "sentinel {number}");
    }
    let why = group_store::start_error(&world, &world.store).await.to_string();
    assert!(why.contains("of the store's 256 sentinels, 3 are missing") && why.contains("replay --rebuild"), "{why}");
}

/// The incarnation stays the same while the server lives, is an error while the server does not answer, and is another
/// one afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_changes_the_incarnation() {
    let Some(mut server) = AerospikeServer::start_own(Setup { durable: true, namespace: FIT }) else { return };
    let engine = open(&server.settings()).await;
    let mut known = engine.incarnation().await.unwrap();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(engine.incarnation().await.unwrap(), known);
        let again = open(&server.settings()).await.incarnation().await.unwrap();
        assert_eq!(again, known, "another client reads the same incarnation");
        server.kill();
        assert_eq!(engine.incarnation().await.unwrap_err().kind, ErrorKind::Retryable);
        server.restart();
        let again = loop {
            match engine.incarnation().await {
                Ok(again) => break again,
                Err(error) => assert_eq!(error.kind, ErrorKind::Retryable, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_ne!(again, known);
        known = again;
    }
    engine.close().await.unwrap();
}

/// A node that restarts within the heartbeat's timeout changes the incarnation, too: until both nodes agree on a new
/// key, the restarted process has none, though the other node still answers with the old key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_restarted_within_the_heartbeat_timeout_changes_the_incarnation() {
    let heartbeat = ports::free_port().to_string();
    let node = |id: &str, network: &str| {
        let text = aerospike_server::configuration(Setup { durable: false, namespace: FIT });
        let text = text.replace("work-directory", &format!("node-id {id}\n  work-directory"));
        // A node announces no address of loopback by itself.
        let text = text.replace("port {SERVICE}", "access-address 127.0.0.1\n    port {SERVICE}");
        text.replace("port {HEARTBEAT}", network)
    };
    let first = node("a1", &format!("port {heartbeat}"));
    let second = node("b1", &format!("port {{HEARTBEAT}}\n    mesh-seed-address-port 127.0.0.1 {heartbeat}"));
    let Some(mut first) = AerospikeServer::start_configured(&first) else { return };
    let second = AerospikeServer::start_configured(&second).unwrap();
    let engine = Arc::new(open(&second.settings()).await);
    let both = async || loop {
        match engine.incarnation().await {
            Ok(Incarnation(text)) if text.contains(" A1+") && text.contains(" B1+") => break Incarnation(text),
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind, ErrorKind::Retryable, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    both().await;
    let mut detector = RestartDetector::new(engine.clone(), Duration::from_secs(10));
    // On a busy machine a restart may last longer than the timeout of 10 heartbeats, every 150 ms.
    let mut quick_restarts = 0;
    for _ in 0..10 {
        let known = detector.baseline().await.unwrap().clone();
        assert!(!detector.has_restarted().await.unwrap());
        let killed_at = Instant::now();
        first.kill();
        first.restart();
        quick_restarts += u32::from(killed_at.elapsed() < Duration::from_millis(1_400));
        assert!(detector.has_restarted().await.unwrap());
        assert_ne!(both().await, known);
        if quick_restarts == 2 {
            break;
        }
    }
    assert_ne!(quick_restarts, 0, "no restart was quick enough");
    engine.close().await.unwrap();
}

/// Produces a spend of the coin, a rival of the spend if `is_contested`, and a child of the spend.
pub async fn validate_parent_and_child(world: &World, coin: Coin, is_contested: bool) -> [Made; 2] {
    let rival = is_contested.then(|| harness::spend(std::slice::from_ref(&coin), 1, 2));
    let parent = harness::spend(&[coin], 1, 1);
    let child = harness::spend(&[parent.coin(0)], 1, 3);
    for tx in [Some(&parent), rival.as_ref(), Some(&child)].into_iter().flatten() {
        world.validate(tx).await;
    }
    [parent, child]
}

/// A power cut loses writes that were acknowledged and not flushed; the pipeline rewinds to its committed offsets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_equals_its_rebuild_after_the_server_was_killed() {
    let Some(mut server) = AerospikeServer::start_own(Setup { durable: true, namespace: FIT }) else { return };
    let world = world_on(&server).await;
    let seed = world.seed(1, 60).await;
    let running = world.start();
    while world.page(&seed).await.is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut made = Vec::new();
    for vout in 0..60 {
        made.extend(validate_parent_and_child(&world, seed.coin(vout), vout % 10 == 3).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
        if vout == 40 {
            assert!(world.page(&made[2 * 39]).await.is_some(), "the server has writes to lose");
            server.kill();
            server.restart();
        }
    }
    let listed: Vec<&Made> = made.iter().filter(|made| made.outputs[0].1[1] == 1).take(3).collect();
    world.mine(1, &listed).await;
    tokio::time::timeout(Duration::from_secs(120), world.until_consumed()).await.unwrap();
    let restarts = running.metrics.node_restarts.get();
    running.stop().await;
    assert!(restarts >= 2, "the pipeline and the chain have both detected the restart: {restarts}");
    world.check_without_model("a server was killed").await;
}

/// The scenarios of the pipeline at the pace of a real server, compared with a rebuild in memory. The scenarios run at
/// the same time, because most of their time is spent waiting for durable offsets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pipeline_scenarios_pass_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let world = || world_on(&server);
    tokio::join!(
        async { pipeline::run_chain_of_transactions(world().await).await },
        async { pipeline::run_two_rivals(world().await).await },
        async { pipeline::run_listed_loser(world().await).await },
        async { pipeline::run_missing_parent(world().await).await },
        async { pipeline::run_poison(world().await).await },
        async { pipeline::run_waiting_block(world().await).await },
    );
}

/// Scenarios of miners and operators: reorgs, side chains, coinbases of several records, commands, pruning. Each ends
/// with the model, the checks of `verify`, and a rebuild of the same digest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chain_scenarios_pass_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let plain = || world_on(&server);
    let paged = || world_with(&server, WorldSettings::paged(2));
    let pruned = || world_with(&server, WorldSettings::pruned(RETENTION));
    // Each future is large and lives on the heap.
    let histories: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
        Box::pin(async { reorgs::run_reorg_and_back(plain().await).await }),
        Box::pin(async { reorgs::run_side_chain(plain().await).await }),
        Box::pin(async { reorgs::run_coinbase_swap(paged().await, None).await }),
        Box::pin(async { reorgs::run_coinbase_swap(paged().await, Some(30)).await }),
        Box::pin(async { commands::run_freeze_and_reassign(paged().await, Some(20)).await }),
        Box::pin(async { commands::run_barred(paged().await, None).await }),
        Box::pin(async { commands::run_conflicting_and_deleted(paged().await, Some(40)).await }),
        Box::pin(async { pruning::run_pruned_and_repeated(pruned().await).await }),
    ];
    futures_util::future::join_all(histories).await;
}

/// A transaction above `max-record-size`, and the remedy that needs no other server.
/// Protects: the transaction halts its partition by its id, not the instance at every start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_above_max_record_size_halts_until_a_blob_store_exists() {
    let narrow = FIT.replace("max-record-size 8M", "max-record-size 128K");
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: &narrow }) else { return };
    let mut world = world_on(&server).await;
    let large = Made { outputs: vec![(1_000_000, vec![0x51; 9_000]); 20], ..World::partial(1, 1) };
    world.produce_partial(&large).await;
    let child = harness::spend(&[large.coin(0)], 1, 1);
    world.validate(&child).await;
    let running = world.start();
    let why = loop {
        assert!(!running.task.is_finished());
        match running.health.ready().reasons.remove("partitions_running") {
            Some(why) => break why,
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert!(why.contains(&large.txid.to_string()) && why.contains("raise `max-record-size` of the namespace"), "{why}");
    assert!(why.contains("or give the store a blob store"), "{why}");
    running.stop().await;

    world.store.blobs = Some(BlobStore::memory());
    let running = world.start();
    tokio::time::timeout(Duration::from_secs(120), world.until_consumed()).await.unwrap();
    running.stop().await;
    for made in [&large, &child] {
        assert_eq!(world.page(made).await.unwrap().state(), TxState::Live);
    }
    world.check("what was too big is in the blob store").await;
}

/// Rebuilds a group's events from memory into a server that may just have restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_into_aerospike_has_the_live_digest() {
    let Some(server) = AerospikeServer::start() else { return };
    let engine = open(&server.settings()).await;
    let mut world = World::new().await;
    let seed = world.seed(1, 2).await;
    for tag in 1..=3 {
        world.validate(&harness::spend(&[seed.coin(u32::from(tag / 2))], 1, tag)).await;
    }
    world.run_until_consumed().await;
    world.settings.durability_lag = Some(engine.loss_window() + Duration::from_millis(100));
    let (store, ended) = rebuild::rebuild_into(&world, Arc::new(engine)).await;
    ended.unwrap();
    let digest = async |store: &StateStore| survey(store, |_| {}).await.unwrap().digest.to_string();
    assert_eq!(digest(&store).await, digest(&world.store).await);
}

/// Returns a world on this server with the shortest durability lag that is allowed.
async fn world_on(server: &AerospikeServer) -> World {
    world_with(server, WorldSettings::calm()).await
}

async fn world_with(server: &AerospikeServer, settings: WorldSettings) -> World {
    world_over(&server.settings(), settings).await
}

pub async fn world_over(cluster: &AerospikeSettings, settings: WorldSettings) -> World {
    let mut world = World::with_settings(settings).await;
    let engine = AerospikeEngine::open(cluster, world.store.settings.rules).await.unwrap();
    world.settings.durability_lag = Some(engine.loss_window() + Duration::from_millis(100));
    world.over(Arc::new(engine))
}

/// Real blocks, contested ones too, with kills; the rebuild on fjall has the same digest.
#[test]
fn demos_pass_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let (block, outputs) = (demo::data("mainnet-277647.block"), demo::data("mainnet-277647.prevouts.csv"));
    let args = ["--blocks", &block, "--prevouts", &outputs, "--kills", "2"];
    let report = demo::shown(&[&args[..], &["--store", &server.url()]].concat());
    demo::assert_counts(&report, &[("transactions", 213), ("spent_outside", 670), ("unspent", 707), ("kills", 2)]);
    let report = demo::shown(&[&args[..], &["--contended", "--seed", "3", "--store", &server.url()]].concat());
    assert_eq!(report["rivalry"]["rivals_won"], 0);
    let blob_args = ["--externalize-all", "--utxo-batch-size", "1", "--contended", "--seed", "5", "--store"];
    let report = demo::shown(&[&args[..], &blob_args[..], &[&server.url()]].concat());
    assert_eq!(report["rivalry"]["rivals_won"], 0);
}

/// The stories, and the first real blocks with reorgs: the final state is the one without reorgs.
#[test]
fn demo_reorgs_and_stories_pass_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    for scenario in demo::SCENARIOS {
        let story = demo::run_story(&["--scenario", scenario, "--store", &server.url()]);
        assert_eq!(story, demo::run_story(&["--scenario", scenario]), "{scenario}");
    }
    demo::assert_reorgs_change_nothing_live(&["--store", &server.url()]);
}
