//! The engine on a real Aerospike: conformance, what is native, what it refuses to start on, a server that dies.

use std::{pin::Pin, sync::Arc, time::Duration};

use utxo_store::{
    blob::BlobStore,
    engine::{
        EngineError, ErrorKind, OpenOptions, RecordEngine, Row,
        aerospike::{AerospikeEngine, AerospikeSettings},
        conformance::{self, RULES},
    },
    record::{
        Key, Marks, MinedIn, Operation, Outcome, Page, Phase, Record, Reply, Sequenced, Slot, Spend, SpendSlot, Stamp,
        TxState, Verdict,
    },
    store::Store,
    tx::{Txid, UtxoHash},
};

use crate::{
    aerospike_server::{AerospikeServer, FIT, Setup},
    commands, demo, group_store, pipeline,
    pruning::{self, RETENTION},
    rebuild, reorgs,
    world::{self, Made, World, WorldSettings},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn aerospike_conforms() {
    let Some(server) = AerospikeServer::start() else { return };
    for check in conformance::CHECKS {
        check.run(Arc::new(open(&server.settings()).await)).await;
    }
    conformance::run(Arc::new(open(&server.settings()).await)).await;
}

async fn open(settings: &AerospikeSettings) -> AerospikeEngine {
    AerospikeEngine::open(settings, RULES).await.unwrap()
}

fn txid(number: u32) -> Txid {
    let mut txid = [0x17; 32];
    txid[..4].copy_from_slice(&number.to_le_bytes());
    Txid(txid)
}

fn hash(slot: u32) -> UtxoHash {
    UtxoHash([slot as u8; 32])
}

/// A live master whose body is external, so that hashes alone count.
fn page(number: u32, slots: u32) -> Page {
    let mut page = Page::stub(txid(number), Verdict::Pending);
    page.conflicting = false;
    page.utxos = Some((0..slots).map(|slot| Slot::Unspent(hash(slot))).collect());
    page.record_utxos = slots;
    let master = page.master.as_mut().unwrap();
    master.verdict = None;
    master.total_utxos = slots;
    master.unmined_since = Some(100);
    master.body = Some(utxo_store::record::Body::External(utxo_store::record::Blob::First));
    page
}

fn on(number: u32, operation: Operation) -> Row {
    Row { key: Key::master(txid(number)), operation }
}

fn create(number: u32, slots: u32) -> Row {
    on(number, Operation::Create(Arc::new(page(number, slots))))
}

fn spend(number: u32, slot: u32, spender: u32) -> Row {
    let slot = SpendSlot { offset: slot, input: 0, utxo_hash: hash(slot), satoshis: 1, script: Default::default() };
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

/// What uncontested transactions need is one request each, without a read, also where many spend of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_of_an_uncontested_transaction_needs_no_read() {
    let Some(server) = AerospikeServer::start() else { return };
    let engine = open(&server.settings()).await;
    let all = |row: fn(u32) -> Row| (0..100).map(row).collect::<Vec<Row>>();
    must_apply(&engine, &all(|number| create(number, 3))).await;
    must_apply(&engine, &all(|number| spend(number, 0, 1_000 + number))).await;
    must_apply(&engine, &all(set_mined)).await;
    must_apply(&engine, &(0..200).map(|row| spend(row / 2, 1 + row % 2, 2_000 + row)).collect::<Vec<_>>()).await;
    let work = engine.work();
    assert_eq!((work.unread, work.native), (100, 300), "{work:?}");
    assert_eq!((work.read, work.refused, work.lost), (0, 0, 0), "{work:?}");

    // More spends of one record than a request takes.
    must_apply(&engine, &[create(1_000, 300)]).await;
    must_apply(&engine, &(0..300).map(|slot| spend(1_000, slot, 3_000 + slot)).collect::<Vec<_>>()).await;
    let wide = engine.read(&[Key::master(txid(1_000))]).await.remove(0).unwrap().unwrap();
    assert_eq!(wide.page().unwrap().spent_utxos, 300);
    let work = engine.work();
    assert_eq!((work.unread, work.native, work.read, work.refused, work.lost), (101, 303, 0, 0, 0), "{work:?}");

    // Mined and spent in full: due. And a repeat is recognised.
    let record = engine.read(&[Key::master(txid(0))]).await.remove(0).unwrap().unwrap();
    assert_eq!(record.page().unwrap().delete_at_height, Some(150 + RULES.retention));
    let again = engine.apply(&[spend(0, 1, 2_000), set_mined(0)]).await;
    let slots = Reply::Slots { all_spent: true, delete_at_height: None };
    assert_eq!(again[0].as_ref().unwrap(), &Outcome::AlreadyApplied(slots));
    let mined = Reply::Mined { block_ids: vec![7], extra_pages: 0, conflicting_children: false };
    assert_eq!(again[1].as_ref().unwrap(), &Outcome::AlreadyApplied(mined));
    engine.close().await.unwrap();
}

async fn refusal(settings: &AerospikeSettings) -> String {
    let error = AerospikeEngine::open(settings, RULES).await.err().unwrap().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_fit_is_refused_with_its_remedy() {
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
    // The record that does not fit says so, and nothing else suffers.
    let answers = engine.apply(&[create(1, 40_000), create(2, 1)]).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind, ErrorKind::TooBig);
    assert!(matches!(answers[1], Ok(Outcome::Applied(_))));
}

/// Spends of one record go together, and together they do not fit.
/// Protects: those for which there is room are done, and only the others hear that the record is too big.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_spends_of_a_full_record_those_that_fit_are_done() {
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
    // A slot takes as many bytes as its spender, or one less: there is room for two or three.
    let slots = fits - 3;
    must_apply(&engine, &[create(1, slots)]).await;
    let spends: Vec<Row> = (0..8).map(|slot| spend(1, slot, 100 + slot)).collect();
    let answers = engine.apply(&spends).await;
    let done = answers.iter().filter(|answer| matches!(answer, Ok(Outcome::Applied(_)))).count();
    let too_big = |answer: &&Result<Outcome, EngineError>| matches!(answer, Err(it) if it.kind == ErrorKind::TooBig);
    assert_eq!(answers.iter().filter(too_big).count(), 8 - done, "{answers:?}");
    assert!((2..=3).contains(&done), "{answers:?}");
    let Some(Record::Page(there)) = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap() else { panic!() };
    let taken = there.utxos.as_ref().unwrap().iter().filter(|slot| slot.spender().is_some()).count();
    assert_eq!(taken, done);
}

/// The configuration that is shipped is one that the checks pass.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shipped_configuration_passes() {
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
    assert_eq!(engine.may_forget(), Duration::from_secs(2));
    // A page of the greatest size, spent in full: a device that is busy asks for another try.
    apply_until_done(engine.as_ref(), &[create(1, 20_000)]).await;
    for from in (0..20_000).step_by(100) {
        let rows: Vec<Row> = (from..from + 100).map(|slot| spend(1, slot, slot)).collect();
        apply_until_done(engine.as_ref(), &rows).await;
    }
    let record = engine.read(&[Key::master(txid(1))]).await.remove(0).unwrap().unwrap();
    assert!(record.page().unwrap().all_spent());
    engine.close().await.unwrap();
}

/// Sends rows until each is done, as every caller does; whether any had to be sent again.
async fn apply_until_done(engine: &dyn RecordEngine, rows: &[Row]) -> bool {
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

/// Killed and started again while batches are on their way: nothing is answered wrongly, and everything gets done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_and_comes_back() {
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
                // What the server forgot by dying must come again, as a replay does it.
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

/// A namespace that takes no writes any more, as a full one: what comes waits, readiness says for what, and goes on once there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_namespace_is_waited_for() {
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: FIT }) else { return };
    let world = world_on(&server).await;
    // The engine has waited until the server is ready.
    let client = aerospike::Client::new(&Default::default(), &server.settings().hosts).await.unwrap();
    // The server looks for itself whether there is room, every few seconds.
    let room = async |percent: u32| {
        let what = format!("set-config:context=namespace;id=test;stop-writes-sys-memory-pct={percent}");
        let said = client.info(&Default::default(), &[&what]).await.unwrap();
        assert!(said.values().all(|said| said.eq_ignore_ascii_case("ok")), "{said:?}");
    };
    let seed = world.seed(1, 200).await;
    let running = world.start();
    tokio::time::timeout(Duration::from_secs(60), world.until_consumed()).await.unwrap();
    room(1).await;
    let is_named =
        || running.health.ready().reasons.values().any(|why| why.contains("the namespace is full (stop-writes)"));
    let mut made = Vec::new();
    while !is_named() {
        made.push(world::spend(&[seed.coin(made.len() as u32)], 1, 1));
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

/// What a device or a node takes with it is missed at a start, whatever else is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_the_namespace_that_is_gone_is_missed_at_a_start() {
    let Some(server) = AerospikeServer::start() else { return };
    let (mut world, settings) = (World::with_settings(WorldSettings::calm()).await, server.settings());
    let engine = AerospikeEngine::open(&settings, world.store.settings.rules).await.unwrap();
    world.settings.durability_lag = Some(engine.may_forget() + Duration::from_millis(100));
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
    let why = group_store::refused(&world, &world.store).await.to_string();
    assert!(why.contains("of the store's 256 sentinels, 3 are missing") && why.contains("replay --rebuild"), "{why}");
}

/// The same for as long as the server lives, an error while it does not answer, and another one afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_incarnation_tells_that_the_server_was_killed() {
    let Some(mut server) = AerospikeServer::start_own(Setup { durable: true, namespace: FIT }) else { return };
    let engine = open(&server.settings()).await;
    let mut known = engine.incarnation().await.unwrap();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(engine.incarnation().await.unwrap(), known);
        assert_eq!(open(&server.settings()).await.incarnation().await.unwrap(), known, "asked by somebody else");
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

/// A power cut takes what was acknowledged and not yet flushed; the pipeline goes back to what it had committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipeline_whose_server_is_killed_ends_in_the_state_of_its_rebuild() {
    let Some(mut server) = AerospikeServer::start_own(Setup { durable: true, namespace: FIT }) else { return };
    let world = world_on(&server).await;
    let seed = world.seed(1, 60).await;
    let running = world.start();
    while world.page(&seed).await.is_none() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut made = Vec::new();
    for vout in 0..60 {
        let parent = world::spend(&[seed.coin(vout)], 1, 1);
        let rival = (vout % 10 == 3).then(|| world::spend(&[seed.coin(vout)], 1, 2));
        let child = world::spend(&[parent.coin(0)], 1, 3);
        for tx in [Some(&parent), rival.as_ref(), Some(&child)].into_iter().flatten() {
            world.validate(tx).await;
        }
        made.push(parent);
        made.push(child);
        tokio::time::sleep(Duration::from_millis(50)).await;
        if vout == 40 {
            assert!(world.page(&made[2 * 39]).await.is_some(), "there is something to forget");
            server.kill();
            server.restart();
        }
    }
    let listed: Vec<&Made> = made.iter().filter(|made| made.outputs[0].1[1] == 1).take(3).collect();
    world.mine(1, &listed).await;
    tokio::time::timeout(Duration::from_secs(120), world.until_consumed()).await.unwrap();
    let restarts = running.metrics.node_restarts.get();
    running.stop().await;
    assert!(restarts >= 2, "the pipeline and the chain have both seen it: {restarts}");
    world.check_without_model("a server was killed").await;
}

/// The scenarios of the pipeline, at the pace of a real server, with the rebuild in memory to compare with. At once: most
/// of their time goes by in waiting until an offset may be committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pipeline_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let world = || world_on(&server);
    tokio::join!(
        async { pipeline::a_chain(world().await).await },
        async { pipeline::two_rivals(world().await).await },
        async { pipeline::a_listed_loser(world().await).await },
        async { pipeline::a_missing_parent(world().await).await },
        async { pipeline::poison(world().await).await },
        async { pipeline::a_waiting_block(world().await).await },
    );
}

/// What miners and operators decide: reorgs, side chains, coinbases of several records, commands, forgetting. Each ends with the model,
/// the checks of `verify`, and a rebuild of the same digest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chain_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let plain = || world_on(&server);
    let paged = || world_with(&server, WorldSettings::paged(2));
    let pruned = || world_with(&server, WorldSettings::pruned(RETENTION));
    // Each is large: on the heap.
    let histories: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = vec![
        Box::pin(async { reorgs::there_and_back(plain().await).await }),
        Box::pin(async { reorgs::a_side_chain(plain().await).await }),
        Box::pin(async { reorgs::coinbases_swap(paged().await, None).await }),
        Box::pin(async { reorgs::coinbases_swap(paged().await, Some(30)).await }),
        Box::pin(async { commands::frozen_and_given_away(paged().await, Some(20)).await }),
        Box::pin(async { commands::barred(paged().await, None).await }),
        Box::pin(async { commands::made_conflicting_and_deleted(paged().await, Some(40)).await }),
        Box::pin(async { pruning::pruned_and_repeated(pruned().await).await }),
    ];
    futures_util::future::join_all(histories).await;
}

/// A transaction above `max-record-size`, and the remedy that needs no other server.
/// Protects: it halts its partition by its id, not the instance at every start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_above_max_record_size_halts_its_partition_until_there_is_a_blob_store() {
    let narrow = FIT.replace("max-record-size 8M", "max-record-size 128K");
    let Some(server) = AerospikeServer::start_own(Setup { durable: false, namespace: &narrow }) else { return };
    let mut world = world_on(&server).await;
    let large = Made { outputs: vec![(1_000_000, vec![0x51; 9_000]); 20], ..World::partial(1, 1) };
    world.produce_partial(&large).await;
    let child = world::spend(&[large.coin(0)], 1, 1);
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

/// What the group has consumed in memory, into a server of which nobody knows whether it has just restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rebuild_into_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let engine = open(&server.settings()).await;
    let mut world = World::new().await;
    let seed = world.seed(1, 2).await;
    for tag in 1..=3 {
        world.validate(&world::spend(&[seed.coin(u32::from(tag / 2))], 1, tag)).await;
    }
    world.run_until_consumed().await;
    world.settings.durability_lag = Some(engine.may_forget() + Duration::from_millis(100));
    let (store, ended) = rebuild::rebuild_into(&world, Arc::new(engine)).await;
    ended.unwrap();
    let digest = async |store: &Store| store.survey(|_| {}).await.unwrap().digest.to_string();
    assert_eq!(digest(&store).await, digest(&world.store).await);
}

/// Offsets wait no longer than they must.
async fn world_on(server: &AerospikeServer) -> World {
    world_with(server, WorldSettings::calm()).await
}

async fn world_with(server: &AerospikeServer, settings: WorldSettings) -> World {
    let mut world = World::with_settings(settings).await;
    let engine = AerospikeEngine::open(&server.settings(), world.store.settings.rules).await.unwrap();
    world.settings.durability_lag = Some(engine.may_forget() + Duration::from_millis(100));
    world.over(Arc::new(engine))
}

/// Real blocks, contested ones too, killed on the way; the rebuild on fjall has the same digest.
#[test]
fn a_demo_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    let (block, outputs) = (demo::data("mainnet-277647.block"), demo::data("mainnet-277647.prevouts.csv"));
    let args = ["--blocks", &block, "--prevouts", &outputs, "--kills", "2"];
    let report = demo::shown(&[&args[..], &["--store", &server.url()]].concat());
    demo::assert_counts(&report, &[("transactions", 213), ("spent_outside", 670), ("unspent", 707), ("kills", 2)]);
    let report = demo::shown(&[&args[..], &["--contended", "--seed", "3", "--store", &server.url()]].concat());
    assert_eq!(report["rivalry"]["rivals_won"], 0);
    let apart = ["--externalize-all", "--utxo-batch-size", "1", "--contended", "--seed", "5", "--store"];
    let report = demo::shown(&[&args[..], &apart[..], &[&server.url()]].concat());
    assert_eq!(report["rivalry"]["rivals_won"], 0);
}

/// The stories, and the first real blocks with reorgs: what stands in the end is what stands without.
#[test]
fn reorgs_and_stories_on_aerospike() {
    let Some(server) = AerospikeServer::start() else { return };
    for scenario in demo::SCENARIOS {
        let told = demo::told(&["--scenario", scenario, "--store", &server.url()]);
        assert_eq!(told, demo::told(&["--scenario", scenario]), "{scenario}");
    }
    demo::end_as_without_reorgs(&["--store", &server.url()]);
}
