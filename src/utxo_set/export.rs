//! Export of the UTXO set of a store at rest as a file of the reference's format.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{OnSetProgress, SetProgress, SetStep, SetTotals, SetTx, UtxoSetError, reference_format};
use crate::{
    record::{ChainTip, ConsumedOffsets, MetaRecord, build::KnownOutput},
    store::{
        StateStore,
        meta::{MetaError, check_blobs, check_not_rebuilding},
        unspent::{ChainBlocks, UnspentError, UnspentTx, read_unspent},
    },
    text::hex_reversed,
};

/// Transactions between two reports of the progress.
const REPORT_EVERY: u64 = 10_000;

/// Result of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportReport {
    /// Height of the file's block.
    pub height: u32,
    /// Hash of the file's block.
    pub block: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Counts and sums of the file.
    pub totals: SetTotals,
}

/// Writes the UTXO set of the store's tip to a new file. The store must be at rest: the export fails if an instance has
/// changed it meanwhile. The file has its name once it is whole and synced.
///
/// # Errors
/// See [`UtxoSetError`]. [`UtxoSetError::Stopped`] after `shutdown`; the next export begins again.
pub async fn export(
    store: &StateStore,
    to: &Path,
    shutdown: &CancellationToken,
    on_progress: OnSetProgress<'_>,
) -> Result<ExportReport, UtxoSetError> {
    if to.exists() {
        return Err(UtxoSetError::NotExported(format!("{} exists already; name a new file", to.display())));
    }
    let part = PartFile::new(to);
    let report = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Err(UtxoSetError::ExportStopped),
        written = write(store, &part, on_progress) => written?,
    };
    part.publish(to).map_err(|error| UtxoSetError::Write { path: to.to_owned(), error })?;
    Ok(report)
}

/// A file in progress beside its place, removed unless it was published.
struct PartFile(PathBuf);

impl PartFile {
    fn new(to: &Path) -> Self {
        let mut name = to.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        PartFile(to.with_file_name(name))
    }

    fn publish(self, to: &Path) -> io::Result<()> {
        fs::rename(&self.0, to)?;
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        // A published file has another name by now.
        let _ = fs::remove_file(&self.0);
    }
}

async fn write(
    store: &StateStore,
    part: &PartFile,
    on_progress: OnSetProgress<'_>,
) -> Result<ExportReport, UtxoSetError> {
    let failed = |error| UtxoSetError::Write { path: part.0.clone(), error };
    let meta = store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
    check_not_rebuilding(&meta)?;
    check_blobs(&meta, store)?;
    if meta.restored.as_ref().is_some_and(|restored| restored.until != ConsumedOffsets::default()) {
        let why = "the store was restored and reads the log again; run an instance until it has caught up, and stop it";
        return Err(UtxoSetError::NotExported(why.to_owned()));
    }
    let blocks = ChainBlocks::read(store).await?;
    let (tip, previous) = find_tip(&meta, &blocks)?;
    let mut file = BufWriter::with_capacity(1 << 20, File::create(&part.0).map_err(failed)?);
    let (mut buffer, mut totals, mut bytes) = (Vec::new(), SetTotals::default(), 0_u64);
    reference_format::write_header(tip.hash, tip.height, previous, &mut buffer);
    read_unspent(store, &blocks, |tx| -> Result<(), UtxoSetError> {
        let tx = set_tx(tx);
        totals.add(&tx, store.settings.network);
        reference_format::write_tx(&tx, &mut buffer);
        file.write_all(&buffer).map_err(failed)?;
        bytes += buffer.len() as u64;
        buffer.clear();
        if totals.transactions.is_multiple_of(REPORT_EVERY) {
            let transactions = totals.transactions;
            on_progress(SetProgress { step: SetStep::Export, transactions, done: transactions, all: 0 });
        }
        Ok(())
    })
    .await?;
    reference_format::write_footer(totals.transactions, totals.outputs, &mut buffer);
    file.write_all(&buffer).map_err(failed)?;
    bytes += buffer.len() as u64;
    let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
    file.sync_all().map_err(failed)?;
    let now = store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
    if (now.tip, &now.consumed) != (meta.tip, &meta.consumed) {
        let why = "an instance has changed the store meanwhile; stop the group, and repeat the export";
        return Err(UtxoSetError::NotExported(why.to_owned()));
    }
    Ok(ExportReport { height: tip.height, block: hex_reversed(&tip.hash), bytes, totals })
}

/// Returns the tip and the hash of the block before; zeros where no record has it, because the tip is the block of a
/// file that was imported.
fn find_tip(meta: &MetaRecord, blocks: &ChainBlocks) -> Result<(ChainTip, [u8; 32]), UtxoSetError> {
    let not_exported = |why: String| Err(UtxoSetError::NotExported(why));
    let Some(tip) = meta.tip.filter(|tip| tip.hash != [0; 32]) else {
        return not_exported("the store has no block; run an instance until the log has brought one".to_owned());
    };
    match blocks.highest() {
        Some((height, hash, previous)) if (height, hash) == (tip.height, tip.hash) => Ok((tip, previous)),
        Some((height, hash, _)) if height > tip.height || tip.chain_offset > 0 => not_exported(format!(
            "block {} at height {height} is handled in part; run an instance until the block is handled, and stop it",
            hex_reversed(&hash)
        )),
        _ => Ok((tip, [0; 32])),
    }
}

fn set_tx(tx: UnspentTx) -> SetTx {
    let UnspentTx { txid, height, coinbase, outputs } = tx;
    let outputs = outputs.into_iter().map(|(vout, output)| KnownOutput { vout, output }).collect();
    SetTx { txid, height, coinbase, outputs }
}

impl From<UnspentError> for UtxoSetError {
    fn from(error: UnspentError) -> Self {
        UtxoSetError::NotExported(error.to_string())
    }
}
