//! Import of a UTXO-set file into an empty store of any engine.
//!
//! ```text
//!  file read to its end ──► empty store ──► LOADING ──► all records ──► store read ──► ordinary store at the file's
//!  (counts compared)                           │  ▲                     (counts compared)             block
//!                                       killed ▼  │ the same command
//!                                  incomplete: instances are refused
//! ```
//!
//! The load is that of a snapshot: the meta record says `restored` with *loading*, and the id is that of the file.

use std::{path::PathBuf, sync::Arc, time::Duration};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    CHUNK_BYTES, CheckedFile, FileChunk, OnSetProgress, SetFormat, SetProgress, SetStep, SetTotals, SetTx,
    UtxoSetError,
    check::{check_file, read_chunk},
    reader::read_part,
};
use crate::{
    record::{
        ChainTip, ConsumedOffsets, CreatingEvent, Key, MetaRecord, Page, Record, Restored,
        build::{HEIGHT_LIMIT, PageParams, build_partial_pages},
    },
    snapshot::{
        Totals,
        bulk_load::{BulkLoad, ChunkSource, RecordBatch},
    },
    store::{
        StateStore,
        digest::{StateDigest, survey},
        meta::{LAYOUT_VERSION, MetaError},
    },
    text::hex_reversed,
    tx::Network,
};

/// Source and conditions of an import.
#[derive(Debug, Clone)]
pub struct ImportOptions {
    /// Path of the file.
    pub from: PathBuf,
    /// Height of the file's block. `None`: the height in the file, or else the greatest height of a transaction: the
    /// coinbase of the last block is immature, so that its outputs are in the set.
    pub height: Option<u32>,
    /// Hash that the outputs of a `dumptxoutset` file must have (`txoutset_hash`), internal order; `None`: no hash is
    /// compared.
    pub txoutset_hash: Option<[u8; 32]>,
    /// Configured durability lag; `None`: that of the engine.
    pub durability_lag: Option<Duration>,
    /// Bytes of the file after which a chunk ends.
    pub chunk_bytes: u64,
}

impl ImportOptions {
    /// Returns the import of this file without conditions.
    pub fn new(from: PathBuf) -> Self {
        ImportOptions { from, height: None, txoutset_hash: None, durability_lag: None, chunk_bytes: CHUNK_BYTES }
    }
}

/// Result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// Format of the file.
    pub format: &'static str,
    /// Height at which the store stands.
    pub height: u32,
    /// Hash of the block at which the store stands.
    pub block: String,
    /// The import continued one that was stopped.
    pub resumed: bool,
    /// Counts and sums of the file and of the store.
    pub totals: SetTotals,
    /// Hash of the outputs of a `dumptxoutset` file, as Bitcoin Core shows it; `None`: the file has another format.
    pub txoutset_hash: Option<String>,
    /// State digest of the store.
    pub digest: StateDigest,
}

/// Imports a UTXO-set file into an empty store, or continues such an import. `store_id`: id of a store that is new.
///
/// # Errors
/// See [`UtxoSetError`]. A fault of the file is found before the first write. [`UtxoSetError::Stopped`] after
/// `shutdown`; the same call then continues.
pub async fn import(
    store: &StateStore,
    options: &ImportOptions,
    store_id: [u8; 16],
    shutdown: &CancellationToken,
    on_progress: OnSetProgress<'_>,
) -> Result<ImportReport, UtxoSetError> {
    tokio::select! {
        biased;
        () = shutdown.cancelled() => Err(UtxoSetError::Stopped),
        done = run(store, options, store_id, on_progress) => done,
    }
}

async fn run(
    store: &StateStore,
    options: &ImportOptions,
    store_id: [u8; 16],
    on_progress: OnSetProgress<'_>,
) -> Result<ImportReport, UtxoSetError> {
    // The cheap refusal comes first: reading the file takes minutes. A store that no instance has used can be the
    // result of this import; a restored snapshot has offsets to catch up with, which an import has not.
    let restored = store.meta().await?.map(|meta| meta.restored);
    if restored.is_some_and(|restored| restored.is_none_or(|restored| restored.until != ConsumedOffsets::default())) {
        return Err(MetaError::RestoreNotEmpty.into());
    }
    let network = store.settings.network;
    let file = check_file(&options.from, network, options.chunk_bytes, on_progress).await?;
    let height = check_terms(&file, options, network)?;
    let mut load = BulkLoad::new(store, file.import_id(height), options.durability_lag)?;
    let has_ended = load.has_ended().await?;
    let mut resumed = has_ended;
    if !has_ended {
        let meta = imported_meta(&file, height, store, store_id);
        resumed = load.load(&meta, &FileSource { store, file: &file, on_progress }).await?.resumed;
    }
    let digest = compare(store, &file.totals, on_progress).await?;
    if !has_ended {
        load.end().await?;
    }
    Ok(ImportReport {
        format: file.header.format.name(),
        height,
        block: hex_reversed(&file.header.block),
        resumed,
        txoutset_hash: file.shown_txoutset_hash(),
        totals: file.totals,
        digest,
    })
}

/// Checks a whole file against the store and the options. Returns the height of its block.
fn check_terms(file: &CheckedFile, options: &ImportOptions, network: Network) -> Result<u32, UtxoSetError> {
    let refused = |why: String| Err(UtxoSetError::Refused(why));
    if let Some(found) = file.header.network.filter(|found| found.store_network() != Some(network)) {
        return refused(format!("it is of the network {found}, and the store of {network}; correct `network`"));
    }
    if file.totals.transactions == 0 {
        return refused("it has no transactions; get a file of a later block".to_owned());
    }
    let greatest = file.totals.greatest_height;
    let height = match (file.header.height, options.height) {
        (Some(height), Some(named)) if height != named => {
            return refused(format!("its block is at height {height}, and --height says {named}; leave out --height"));
        }
        (height, named) => height.or(named).unwrap_or(greatest),
    };
    if height < greatest || height >= HEIGHT_LIMIT {
        return refused(format!("it has outputs of height {greatest}, and --height says {height}; correct --height"));
    }
    match options.txoutset_hash {
        Some(_) if file.header.format != SetFormat::Core => {
            refused("it is no dumptxoutset file, whose hash could be compared; leave out --txoutset-hash".to_owned())
        }
        Some(named) if named != file.txoutset_hash => refused(format!(
            "the hash of its outputs is {}, and --txoutset-hash says {}; get the file again",
            hex_reversed(&file.txoutset_hash),
            hex_reversed(&named)
        )),
        _ => Ok(height),
    }
}

/// Returns the meta record of a store that an import fills: the store stands at the block of the file, has consumed
/// nothing of the log, and disconnects no block of the file.
fn imported_meta(file: &CheckedFile, height: u32, store: &StateStore, store_id: [u8; 16]) -> MetaRecord {
    let settings = &store.settings;
    MetaRecord {
        store_id,
        layout_version: LAYOUT_VERSION,
        network: settings.network.to_string(),
        utxo_batch_size: settings.utxo_batch_size,
        retention: settings.rules.retention,
        reorg_floor: height,
        consumed: ConsumedOffsets { height, ..ConsumedOffsets::default() },
        tip: Some(ChainTip { chain_offset: 0, height, hash: file.header.block, median_time: 0 }),
        restored: Some(Box::new(Restored {
            snapshot: file.import_id(height),
            is_loading: true,
            ..Restored::default()
        })),
        ..MetaRecord::default()
    }
}

/// The chunks of a file as the source of a load.
struct FileSource<'a> {
    store: &'a StateStore,
    file: &'a CheckedFile,
    on_progress: OnSetProgress<'a>,
}

impl ChunkSource for FileSource<'_> {
    type Error = UtxoSetError;

    fn chunk_count(&self) -> usize {
        self.file.chunks.len()
    }

    async fn load_chunk(&self, number: usize) -> Result<Totals, UtxoSetError> {
        let FileChunk { offset, transactions, .. } = self.file.chunks[number];
        let (path, chunk) = (self.file.path.clone(), self.file.chunks[number].clone());
        let bytes = tokio::task::spawn_blocking(move || read_chunk(&path, &chunk)).await;
        let bytes = bytes.map_err(|error| UtxoSetError::Task(error.to_string()))??;
        let mut batch = RecordBatch::new(self.store);
        let check = |refused: Option<Key>| match refused {
            Some(Key::Page(txid, _)) => Err(UtxoSetError::OtherRecord { txid: txid.to_string() }),
            _ => Ok(()),
        };
        for tx in read_part(self.file.header.format, &bytes, offset, transactions) {
            let tx = tx.map_err(|error| UtxoSetError::File { path: self.file.path.clone(), error })?;
            for page in build_pages(tx, self.store)? {
                let key = Key::Page(page.txid, page.number);
                check(batch.add(key, Record::Page(Arc::new(page))).await?)?;
            }
        }
        check(batch.write().await?)?;
        Ok(Totals::default())
    }

    fn report_loaded(&self, chunks: usize) {
        let (transactions, done) = self.file.sum_chunks(chunks);
        let (_, all) = self.file.sum_chunks(usize::MAX);
        (self.on_progress)(SetProgress { step: SetStep::Load, transactions, done, all });
    }
}

/// Builds the pages of a transaction as the event `Seeded` does. No page is `creating`: no reader uses the store before
/// every page is there. The time of the creation is 0, so that a repeated import writes equal records.
fn build_pages(tx: SetTx, store: &StateStore) -> Result<impl Iterator<Item = Page>, UtxoSetError> {
    let params = PageParams {
        network: store.settings.network,
        height: tx.height,
        batch_size: store.settings.utxo_batch_size,
        created_at: 0,
        // A page that is missing later is damage once anything is durable: the import was.
        event: Some(CreatingEvent::Validated(0)),
    };
    let pages = build_partial_pages(&tx.into_known_outputs(), &params);
    let pages = pages.map_err(|error| UtxoSetError::Refused(error.to_string()))?;
    let others = pages.others.into_iter().flat_map(|others| {
        let numbers = others.numbers();
        numbers.map(move |number| others.page(number, 0))
    });
    Ok(std::iter::once(pages.master).chain(others).map(|page| Page { creating_at: None, ..page }))
}

/// Reads the whole store, and compares its counts and sums with those of the file. Returns the state digest.
async fn compare(
    store: &StateStore,
    expected: &SetTotals,
    on_progress: OnSetProgress<'_>,
) -> Result<StateDigest, UtxoSetError> {
    let step = SetStep::Compare;
    let survey = survey(store, |transactions| {
        on_progress(SetProgress { step, transactions, done: transactions, all: expected.transactions });
    });
    let survey = survey.await?;
    let found = survey.stats.seeded;
    let describe = |[transactions, outputs, slots, satoshis]: [u128; 4]| {
        format!("{transactions} transactions with {outputs} outputs, {slots} of them spendable, of {satoshis} satoshis")
    };
    let found = [found.transactions.into(), found.outputs.into(), found.unspent.into(), found.unspent_satoshis];
    let expected = [
        expected.transactions.into(),
        expected.outputs.into(),
        (expected.outputs - expected.outputs_without_slot).into(),
        (expected.satoshis - expected.satoshis_without_slot).into(),
    ];
    if found != expected {
        return Err(UtxoSetError::OtherTotals { found: describe(found), expected: describe(expected) });
    }
    Ok(survey.digest)
}
