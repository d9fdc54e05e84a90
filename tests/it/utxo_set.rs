//! UTXO-set files: made from real blocks, imported into each engine, and spent from by an instance.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::BlobStore,
    broker::NewTopic,
    engine::{StoreUrl, memory::MemoryEngine},
    event::{Event, PartialOutput, PartialTxEvent},
    instance::InstanceError,
    record::{Reason, StoredOutput, TxState, Verdict, build::KnownOutput},
    store::{
        StateStore,
        digest::{StateDigest, Survey, survey},
        meta::MetaError,
        spend_status::SpendStatus,
    },
    tx::{
        Outpoint, Txid,
        block::{BlockFile, FileNetwork},
    },
    utxo_set::{
        CHUNK_BYTES, ImportOptions, ImportReport, SetProgress, SetStep, SetTx, UtxoSetError, check_file, core_format,
        export, import, reference_format,
    },
};

use crate::{
    harness::{Coin, PARTITIONS, World, WorldSettings, coinbase, spend},
    made_blocks::MadeBlock,
    sequencing::assert_halt_without_a_write,
    snapshots,
};

/// All unspent outputs after the last of some blocks.
struct MadeSet {
    block: [u8; 32],
    previous: [u8; 32],
    height: u32,
    txs: BTreeMap<Txid, SetTx>,
}

impl MadeSet {
    /// Connects the first blocks of the main chain, as a node does. The outputs of block 0 are in no set.
    fn of_real_blocks(blocks: usize) -> Self {
        let file = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/mainnet-0-4312.blk")).unwrap();
        let mut set = MadeSet { block: [0; 32], previous: [0; 32], height: 0, txs: BTreeMap::new() };
        for (block, height) in BlockFile::new(&file).unwrap().blocks().take(blocks).zip(0..) {
            let block = block.unwrap();
            (set.block, set.previous, set.height) = (block.hash(), block.header().previous, height);
            for tx in block.transactions().filter(|_| height > 0) {
                for input in tx.inputs().filter(|_| !tx.is_coinbase()) {
                    set.spend(input.outpoint);
                }
                let output = |(output, vout): (utxo_store::tx::Output<'_>, u32)| {
                    let script = Bytes::copy_from_slice(output.script);
                    KnownOutput { vout, output: StoredOutput { satoshis: output.satoshis, script } }
                };
                let outputs = tx.outputs().zip(0..).map(output).collect();
                let (txid, coinbase) = (tx.txid(), tx.is_coinbase());
                assert!(set.txs.insert(txid, SetTx { txid, height, coinbase, outputs }).is_none());
            }
        }
        set
    }

    fn spend(&mut self, outpoint: Outpoint) {
        let tx = self.txs.get_mut(&outpoint.txid).unwrap();
        let place = tx.outputs.iter().position(|output| output.vout == outpoint.vout).unwrap();
        tx.outputs.remove(place);
        if tx.outputs.is_empty() {
            self.txs.remove(&outpoint.txid);
        }
    }

    fn outputs(&self) -> u64 {
        self.txs.values().map(|tx| tx.outputs.len() as u64).sum()
    }

    fn satoshis(&self) -> u64 {
        self.txs.values().flat_map(|tx| &tx.outputs).map(|output| output.output.satoshis).sum()
    }

    fn reference_file(&self) -> Vec<u8> {
        let mut file = Vec::new();
        reference_format::write_header(self.block, self.height, self.previous, &mut file);
        self.txs.values().for_each(|tx| reference_format::write_tx(tx, &mut file));
        reference_format::write_footer(self.txs.len() as u64, self.outputs(), &mut file);
        file
    }

    fn core_file(&self, network: FileNetwork) -> Vec<u8> {
        let mut file = Vec::new();
        core_format::write_header(network, self.block, self.outputs(), &mut file);
        self.txs.values().for_each(|tx| core_format::write_tx(tx, &mut file));
        file
    }

    /// Hashes the outputs by the encoders of the crate `bitcoin`, as Bitcoin Core's `hash_serialized_3`.
    fn txoutset_hash(&self) -> [u8; 32] {
        use bitcoin::{Amount, OutPoint, ScriptBuf, TxOut, consensus::encode::serialize, hashes::Hash};
        let mut bytes = Vec::new();
        for tx in self.txs.values() {
            for KnownOutput { vout, output } in &tx.outputs {
                let txid = bitcoin::Txid::from_byte_array(tx.txid.0);
                bytes.extend(serialize(&OutPoint { txid, vout: *vout }));
                bytes.extend(serialize(&(tx.height * 2 + u32::from(tx.coinbase))));
                let script_pubkey = ScriptBuf::from_bytes(output.script.to_vec());
                bytes.extend(serialize(&TxOut { value: Amount::from_sat(output.satoshis), script_pubkey }));
            }
        }
        Sha256::digest(Sha256::digest(bytes)).into()
    }

    /// Returns outputs of coinbases that are spendable at the next block, as coins.
    fn mature_coins(&self) -> impl Iterator<Item = Coin> {
        self.coinbase_coins(|height| height + 100 <= self.height)
    }

    /// Returns the output of a coinbase that is spendable one block after the next, as a coin.
    fn immature_coin(&self) -> Coin {
        self.coinbase_coins(|height| height + 100 == self.height + 2).next().expect("one block in a row is unspent")
    }

    fn coinbase_coins(&self, is_wanted: impl Fn(u32) -> bool) -> impl Iterator<Item = Coin> {
        self.txs.values().filter(move |tx| tx.coinbase && is_wanted(tx.height)).map(|tx| {
            let KnownOutput { vout, output } = &tx.outputs[0];
            let outpoint = Outpoint { txid: tx.txid, vout: *vout };
            Coin { outpoint, satoshis: output.satoshis, script: output.script.to_vec() }
        })
    }
}

/// Writes a file into a folder of its own.
fn written(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("set");
    fs::write(&path, content).unwrap();
    (folder, path)
}

async fn import_into(store: &StateStore, options: &ImportOptions) -> Result<ImportReport, UtxoSetError> {
    import(store, options, [7; 16], &CancellationToken::new(), &|_| {}).await
}

async fn import_file(store: &StateStore, content: &[u8]) -> Result<ImportReport, UtxoSetError> {
    let (_folder, path) = written(content);
    import_into(store, &ImportOptions::new(path)).await
}

async fn surveyed(store: &StateStore) -> Survey {
    survey(store, |_| {}).await.unwrap()
}

fn empty_beside(world: &World) -> World {
    let mut other = world.beside(Arc::new(MemoryEngine::new(world.store.settings.rules)));
    other.store = other.store.with_blobs(world.store.blobs.as_ref().map(|_| BlobStore::memory()));
    other
}

/// Imports the set in both formats, compares all totals, and spends an output. Returns the digest after the import.
async fn check_import(world: &World, set: &MadeSet, content: &[u8]) -> StateDigest {
    let report = import_file(&world.store, content).await.unwrap();
    let totals = report.totals;
    assert_eq!((report.height, report.resumed), (set.height, false));
    assert_eq!((totals.transactions, totals.outputs), (set.txs.len() as u64, set.outputs()));
    assert_eq!((totals.satoshis, totals.outputs_without_slot), (set.satoshis(), 0));
    let Survey { digest, stats, .. } = surveyed(&world.store).await;
    let seeded = &stats.seeded;
    assert_eq!(
        (seeded.transactions, seeded.outputs, seeded.unspent),
        (totals.transactions, totals.outputs, totals.outputs)
    );
    assert_eq!((seeded.unspent_satoshis, report.digest), (set.satoshis().into(), digest));
    let chain = world.store.chain().await.unwrap();
    assert_eq!((chain.height, chain.hash, chain.median_time), (set.height, Some(set.block), None));
    digest
}

/// Runs an instance that spends an imported output and mines the spender. An imported coinbase keeps its maturity.
async fn check_instance_continues(world: &World, set: &MadeSet) {
    let coin = set.mature_coins().next().unwrap();
    let payment = spend(std::slice::from_ref(&coin), 1, 9);
    world.validate_at(&payment, set.height + 1).await;
    let early = spend(&[set.immature_coin()], 1, 8);
    world.validate_at(&early, set.height + 1).await;
    let first = coinbase(set.height + 1);
    let block = MadeBlock { previous: set.block, ..MadeBlock::new(1, set.height + 1, &first, &[&payment]) };
    world.produce("block-mined", b"", block.mined(1, true)).await;
    world.run_until_consumed().await;
    assert_eq!(world.store.meta().await.unwrap().unwrap().restored, None);
    let state = utxo_store::store::outputs::OutputReader::of(&world.store);
    let query = utxo_store::store::outputs::OutputQuery { outpoint: coin.outpoint, hash: None };
    let state = state.read_one(query, Default::default()).await.unwrap();
    let spender = utxo_store::record::SpendingData { txid: payment.txid, input: 0 };
    assert_eq!(state.status, SpendStatus::Spent(spender));
    let page = world.page(&payment).await.unwrap();
    assert_eq!(page.master.as_ref().unwrap().mined.len(), 1);
    let state = world.page(&early).await.unwrap().state();
    assert!(matches!(state, TxState::Conflicting(Verdict::Conflicting(Reason::Immature { input: 0 }))), "{state:?}");
    let chain = world.store.chain().await.unwrap();
    assert_eq!((chain.height, chain.hash), (set.height + 1, Some(block.hash)));
}

/// A snapshot is taken after the first start, and before the first block behind the file.
/// Protects: the chain of the restored store still halts at a block that does not follow the file's block.
#[tokio::test(start_paused = true)]
async fn a_snapshot_of_an_imported_store_keeps_the_block_of_the_file() {
    let set = MadeSet::of_real_blocks(200);
    let world = World::new().await;
    import_file(&world.store, &set.reference_file()).await.unwrap();
    let payment = spend(&[set.mature_coins().next().unwrap()], 1, 9);
    world.validate_at(&payment, set.height + 1).await;
    world.run_until_consumed().await;
    let (_, shelf) = snapshots::shelf();
    let name = snapshots::create_snapshot(&world, &shelf).await.unwrap().name;
    let other = empty_beside(&world);
    snapshots::restore_into(&other, &shelf, &name).await.unwrap();
    let tip = other.store.meta().await.unwrap().unwrap().tip.unwrap();
    assert_eq!((tip.height, tip.hash), (set.height, set.block));
    other.run_until_consumed().await;
    let first = coinbase(set.height + 2);
    let gap = MadeBlock { previous: [5; 32], ..MadeBlock::new(1, set.height + 2, &first, &[]) };
    other.produce("block-mined", b"", gap.mined(1, true)).await;
    assert_halt_without_a_write(&other, "but the tip is", &surveyed(&other.store).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_formats_are_imported_into_each_engine_and_an_instance_continues() {
    let set = MadeSet::of_real_blocks(usize::MAX);
    assert_eq!(set.height, 4_312);
    let files = [set.reference_file(), set.core_file(FileNetwork::Regtest)];
    let world = World::with_settings(WorldSettings::paged(3)).await;
    let mut digests = Vec::new();
    for file in &files {
        digests.push(check_import(&empty_beside(&world), &set, file).await);
    }
    let directory = tempfile::tempdir().unwrap();
    let mut urls = vec![StoreUrl::fjall(directory.path().join("fjall")).to_string()];
    if cfg!(feature = "sql") {
        urls.push(format!("sqlite://{}", directory.path().join("imported.db").display()));
    }
    #[cfg(feature = "sql")]
    let database = crate::postgres_server::shared_database();
    #[cfg(feature = "sql")]
    urls.extend(database.iter().map(|database| database.url()));
    for url in urls {
        let options = utxo_store::engine::OpenOptions::new(world.store.settings.rules);
        let engine = utxo_store::engine::open(&url, &options).await.unwrap();
        // Each store has a log and a group of its own.
        let mut other = World::with_settings(WorldSettings::paged(3)).await.over(engine.clone());
        other.store.settings.batch_size = 1_000;
        digests.push(check_import(&other, &set, &files[1]).await);
        check_instance_continues(&other, &set).await;
        engine.close().await.unwrap();
    }
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    world.store.engine.close().await.unwrap();
}

/// Protects: the hash is that of Bitcoin Core, so that an operator can compare a file with the node that wrote it.
#[tokio::test]
async fn the_hash_and_the_terms_of_a_file_are_compared() {
    let set = MadeSet::of_real_blocks(300);
    let world = World::new().await;
    let (_folder, core) = written(&set.core_file(FileNetwork::Regtest));
    let file = check_file(&core, world.store.settings.network, CHUNK_BYTES, &|_| {}).await.unwrap();
    assert_eq!(file.txoutset_hash, set.txoutset_hash());
    let (_other_folder, reference) = written(&set.reference_file());
    let (_main_folder, main) = written(&set.core_file(FileNetwork::Main));
    let options = ImportOptions::new(core);
    for (options, words) in [
        (ImportOptions { txoutset_hash: Some([1; 32]), ..options.clone() }, "--txoutset-hash says 0101"),
        (ImportOptions { height: Some(298), ..options.clone() }, "has outputs of height 299"),
        (
            ImportOptions { txoutset_hash: Some([1; 32]), ..ImportOptions::new(reference.clone()) },
            "no dumptxoutset file",
        ),
        (ImportOptions { height: Some(300), ..ImportOptions::new(reference.clone()) }, "its block is at height 299"),
        (ImportOptions::new(main), "it is of the network main, and the store of regtest"),
    ] {
        let error = import_into(&world.store, &options).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(world.store.meta().await.unwrap(), None, "nothing was written");
    }
    let named = ImportOptions { height: Some(310), txoutset_hash: Some(set.txoutset_hash()), ..options };
    assert_eq!(import_into(&world.store, &named).await.unwrap().height, 310);
}

/// Imported records are those that the events make.
#[tokio::test(start_paused = true)]
async fn an_imported_store_has_the_digest_of_the_same_events() {
    for settings in [WorldSettings::calm(), WorldSettings::paged(1), WorldSettings::with_blobs(1, 0)] {
        let set = {
            let mut set = MadeSet::of_real_blocks(200);
            // A wide transaction of several pages, with gaps.
            let outputs = [1, 2, 5, 9].map(|vout| KnownOutput {
                vout,
                output: StoredOutput { satoshis: 7, script: Bytes::from_static(&[0x51]) },
            });
            let tx = SetTx { txid: Txid([9; 32]), height: 150, coinbase: false, outputs: outputs.to_vec() };
            set.txs.insert(tx.txid, tx);
            set
        };
        let world = World::with_settings(settings).await;
        for tx in set.txs.values() {
            let output = |known: &'_ KnownOutput| (known.vout, known.output.satoshis, known.output.script.clone());
            let outputs: Vec<_> = tx.outputs.iter().map(output).collect();
            let outputs = outputs.iter().map(|(vout, satoshis, script)| PartialOutput {
                vout: *vout,
                satoshis: *satoshis,
                script,
            });
            let SetTx { txid, height, coinbase, .. } = *tx;
            let event = PartialTxEvent { txid, coinbase, height, outputs: outputs.collect() };
            world.produce("txs", &txid.0, Event::Seeded(event).encode()).await;
        }
        world.run_until_consumed().await;
        let imported = empty_beside(&world);
        import_file(&imported.store, &set.reference_file()).await.unwrap();
        assert_eq!(surveyed(&imported.store).await.digest, surveyed(&world.store).await.digest);
        imported.verify("an imported store", &imported.store).await;
    }
}

/// Protects: "a UTXO-set file cut in half" is refused before the first write, wherever it is cut.
#[tokio::test]
async fn a_cut_or_damaged_file_is_refused_before_the_first_write() {
    let set = MadeSet::of_real_blocks(60);
    let world = World::new().await;
    for file in [set.reference_file(), set.core_file(FileNetwork::Regtest)] {
        for end in [0, 3, 8, 50, 75, 76, file.len() / 2, file.len() - 16, file.len() - 1] {
            let error = import_file(&world.store, &file[..end]).await.unwrap_err();
            assert!(matches!(error, UtxoSetError::File { .. }), "{end}: {error}");
            assert_eq!(world.store.meta().await.unwrap(), None, "nothing was written");
        }
    }
    let missing = import_into(&world.store, &ImportOptions::new("/does/not/exist".into())).await;
    assert!(matches!(missing, Err(UtxoSetError::Open { .. })), "{missing:?}");
    // The reason against the store is gone with the files: a whole one is imported.
    import_file(&world.store, &set.reference_file()).await.unwrap();
}

/// Stops an import once so many transactions are loaded.
async fn stop_after(store: &StateStore, options: &ImportOptions, transactions: u64) {
    let shutdown = CancellationToken::new();
    let on_progress = |progress: SetProgress| {
        if progress.step == SetStep::Load && progress.transactions >= transactions {
            shutdown.cancel();
        }
    };
    let stopped = import(store, options, [8; 16], &shutdown, &on_progress).await;
    assert!(matches!(stopped, Err(UtxoSetError::Stopped)), "{stopped:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_import_is_used_by_nothing_and_continues_with_the_same_file() {
    let set = MadeSet::of_real_blocks(1_000);
    for settings in
        [WorldSettings::paged(2), WorldSettings { loss_window: Duration::from_secs(1), ..WorldSettings::calm() }]
    {
        let world = World::with_settings(settings).await;
        let whole = empty_beside(&world);
        let file = set.core_file(FileNetwork::Regtest);
        import_file(&whole.store, &file).await.unwrap();
        let (_folder, path) = written(&file);
        let options = ImportOptions { chunk_bytes: 500, ..ImportOptions::new(path.clone()) };
        for transactions in [1, 200, 400] {
            stop_after(&world.store, &options, transactions).await;
            let refused = world.start().ended().await;
            assert!(matches!(refused, Err(InstanceError::Meta(MetaError::UnfinishedRestore))), "{refused:?}");
            let other = import_file(&world.store, &set.reference_file()).await;
            assert!(matches!(other, Err(UtxoSetError::Meta(MetaError::RestoreNotEmpty))), "{other:?}");
        }
        let report = import_into(&world.store, &options).await.unwrap();
        assert!(report.resumed || world.store.can_lose_writes(), "{report:?}");
        assert_eq!(surveyed(&world.store).await.digest, surveyed(&whole.store).await.digest);
        // The command was killed before it could say that it has ended: a repeat says so, and writes nothing.
        let again = import_into(&world.store, &options).await.unwrap();
        assert_eq!((again.resumed, again.digest), (true, report.digest));
        let other = import_file(&world.store, &set.reference_file()).await;
        assert!(matches!(other, Err(UtxoSetError::Meta(MetaError::RestoreNotEmpty))), "{other:?}");
        check_instance_continues(&world, &set).await;
        let used = import_into(&world.store, &options).await;
        assert!(matches!(used, Err(UtxoSetError::Meta(MetaError::RestoreNotEmpty))), "{used:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_in_use_is_refused_and_a_repeated_transaction_is_found() {
    let set = MadeSet::of_real_blocks(50);
    let world = World::new().await;
    world.seed(1, 2).await;
    world.run_until_consumed().await;
    let error = import_file(&world.store, &set.reference_file()).await.unwrap_err();
    assert!(matches!(error, UtxoSetError::Meta(MetaError::RestoreNotEmpty)), "{error}");

    let other = empty_beside(&world);
    let mut file = Vec::new();
    reference_format::write_header(set.block, set.height, set.previous, &mut file);
    let first = set.txs.values().next().unwrap();
    set.txs.values().chain([first]).for_each(|tx| reference_format::write_tx(tx, &mut file));
    reference_format::write_footer(set.txs.len() as u64 + 1, set.outputs() + 1, &mut file);
    let error = import_file(&other.store, &file).await.unwrap_err();
    assert!(matches!(error, UtxoSetError::OtherTotals { .. }), "{error}");
    let refused = other.start().ended().await;
    assert!(matches!(refused, Err(InstanceError::Meta(MetaError::UnfinishedRestore))), "{refused:?}");

    let changed = SetTx { height: first.height + 1, ..first.clone() };
    let mut file = Vec::new();
    core_format::write_header(FileNetwork::Regtest, set.block, set.outputs() + 1, &mut file);
    set.txs.values().chain([&changed]).for_each(|tx| core_format::write_tx(tx, &mut file));
    let error = import_file(&empty_beside(&world).store, &file).await.unwrap_err();
    assert!(matches!(error, UtxoSetError::OtherRecord { .. }), "{error}");
    // The group of the world has consumed a log that the imported store lacks.
    let imported = empty_beside(&world);
    import_file(&imported.store, &set.reference_file()).await.unwrap();
    let refused = imported.start().ended().await;
    assert!(matches!(refused, Err(InstanceError::Meta(MetaError::StoreBehindGroup { .. }))), "{refused:?}");
}

/// Protects: blocks between the file and the log do not go missing unseen, and no block of the file is disconnected.
#[tokio::test(start_paused = true)]
async fn the_first_block_must_follow_the_block_of_the_file() {
    let set = MadeSet::of_real_blocks(50);
    let block = |previous, height: u32| MadeBlock { previous, ..MadeBlock::new(1, height, &coinbase(height), &[]) };
    for (event, words) in [
        (block([5; 32], set.height + 1).mined(1, true), "but the tip is"),
        (block(set.block, set.height + 2).mined(1, true), "but it follows the tip"),
    ] {
        let world = World::new().await;
        import_file(&world.store, &set.reference_file()).await.unwrap();
        let before = surveyed(&world.store).await;
        world.produce("block-mined", b"", event).await;
        assert_halt_without_a_write(&world, words, &before).await;
    }
}

async fn exported(world: &World) -> Result<Vec<u8>, UtxoSetError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("exported");
    let report = export(&world.store, &path, &CancellationToken::new(), &|_| {}).await;
    let files = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, usize::from(report.is_ok()), "nothing is left of an export that failed");
    let content = report.map(|report| (report, fs::read(&path).unwrap()))?;
    assert_eq!(content.0.bytes, content.1.len() as u64);
    let again = export(&world.store, &path, &CancellationToken::new(), &|_| {}).await.unwrap_err();
    assert!(again.to_string().contains("exists already"), "{again}");
    Ok(content.1)
}

#[tokio::test(start_paused = true)]
async fn an_exported_store_is_imported_with_the_same_digest() {
    for settings in [WorldSettings::paged(1), WorldSettings::with_blobs(1, 0)] {
        let world = World::with_settings(settings).await;
        let set = MadeSet { previous: [0; 32], ..MadeSet::of_real_blocks(500) };
        import_file(&world.store, &set.core_file(FileNetwork::Regtest)).await.unwrap();
        let file = exported(&world).await.unwrap();
        // A store in memory is read in the order of the txids.
        assert!(file == set.reference_file(), "the file is that of the same set");
        let other = empty_beside(&world);
        import_file(&other.store, &file).await.unwrap();
        assert_eq!(surveyed(&other.store).await.digest, surveyed(&world.store).await.digest);
    }
}

/// Plays `docs/operating/exits/recreated-topic.md`: the store is exported, and a new log begins behind its outputs.
/// Protects: the new store has the outputs of the old one, takes the unmined payment again, and connects the next
/// block.
#[tokio::test(start_paused = true)]
async fn a_recreated_topic_ends_with_a_new_log_from_the_store() {
    let world = World::new().await;
    let set = MadeSet::of_real_blocks(300);
    import_file(&world.store, &set.reference_file()).await.unwrap();
    let coins: Vec<Coin> = set.mature_coins().take(2).collect();
    let unmined = spend(&coins[1..], 1, 5);
    world.validate_at(&unmined, set.height + 1).await;
    world.run_until_consumed().await;
    world.broker.recreate_topic(&NewTopic { name: "txs".into(), partitions: PARTITIONS, config: vec![] }).unwrap();
    let refused = world.start().ended().await;
    assert!(matches!(refused, Err(InstanceError::Meta(MetaError::TopicRecreated { .. }))), "{refused:?}");

    let file = exported(&world).await.unwrap();
    // Another world has new topics, a group that has committed nothing, and an empty store.
    let fresh = World::new().await;
    let report = import_file(&fresh.store, &file).await.unwrap();
    assert_eq!((report.height, report.totals.outputs), (set.height, set.outputs()));
    assert_eq!(report.totals.satoshis, set.satoshis());
    fresh.validate_at(&unmined, set.height + 1).await;
    check_instance_continues(&fresh, &set).await;
    assert_eq!(fresh.page(&unmined).await.unwrap().state(), TxState::Live);
}

/// Protects: the file is the set of the tip, whatever transactions are not mined yet.
#[tokio::test(start_paused = true)]
async fn an_export_has_mined_outputs_that_no_mined_transaction_spends() {
    let world = World::with_settings(WorldSettings::paged(2)).await;
    let mut set = MadeSet::of_real_blocks(300);
    import_file(&world.store, &set.reference_file()).await.unwrap();
    let coins: Vec<Coin> = set.mature_coins().take(2).collect();
    let mined = spend(&coins[..1], 3, 1);
    let unmined = spend(&[coins[1].clone(), mined.coin(0)], 2, 2);
    let first = coinbase(300);
    world.validate_at(&mined, 300).await;
    world.validate_at(&unmined, 301).await;
    let block = MadeBlock { previous: set.block, ..MadeBlock::new(1, 300, &first, &[&mined]) };
    world.produce("block-mined", b"", block.mined(1, true)).await;
    world.run_until_consumed().await;
    set.spend(coins[0].outpoint);
    for (made, coinbase) in [(&mined, false), (&first, true)] {
        let outputs = made.outputs.iter().zip(0..).map(|((satoshis, script), vout)| KnownOutput {
            vout,
            output: StoredOutput { satoshis: *satoshis, script: Bytes::copy_from_slice(script) },
        });
        let tx = SetTx { txid: made.txid, height: 300, coinbase, outputs: outputs.collect() };
        set.txs.insert(made.txid, tx);
    }
    (set.previous, set.block, set.height) = (set.block, block.hash, 300);
    assert!(exported(&world).await.unwrap() == set.reference_file(), "the file is the set of block 300");
    // The unmined payment becomes mined: what it spends is no longer in the set.
    let next = MadeBlock { previous: block.hash, ..MadeBlock::new(2, 301, &coinbase(301), &[&unmined]) };
    world.produce("block-mined", b"", next.mined(2, true)).await;
    world.run_until_consumed().await;
    let (folder, path) = written(&exported(&world).await.unwrap());
    let file = check_file(&path, world.store.settings.network, CHUNK_BYTES, &|_| {}).await.unwrap();
    assert_eq!(file.totals.outputs, set.outputs() - 2 + 2 + 1);
    drop(folder);
    let empty = World::new().await;
    assert!(matches!(exported(&empty).await, Err(UtxoSetError::Meta(MetaError::NoMetaRecord))));
    empty.run_until_consumed().await;
    assert!(exported(&empty).await.unwrap_err().to_string().contains("the store has no block"));
}
