//! `utxo-store utxo-set import`.

use std::{io::Write, path::PathBuf, time::Instant};

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        CliResult, ConfigArgs, Failure, UsageError,
        empty_store::EmptyStoreArgs,
        opening::{self, Monitoring},
        output, signals, wiring,
    },
    SetProgressLine, write_totals,
};
use crate::{
    rng::random_bytes,
    store::StateStore,
    utxo_set::{CHUNK_BYTES, ImportOptions, ImportReport, import},
};

const AFTER_HELP: &str = "\
Reads the file twice: to its end, comparing its counts with its own, before the first write; then
into the store. Until the command has ended, no instance starts on the store; after a kill the
same command continues. Then set store.url to the store and start `run` with a new group: it reads
the log from its beginning, or from the offsets that were set for the group. The log must begin
behind the block of the file.

Example: utxo-store utxo-set import --from utxos.dat --store fjall:///var/lib/utxo-store";

/// Command-line arguments of `utxo-store utxo-set import`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ImportArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// UTXO-set file of the reference, or dumptxoutset file of Bitcoin Core
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    #[command(flatten)]
    target: EmptyStoreArgs,
    /// Height of the block of a dumptxoutset file; the greatest height of an output by default
    #[arg(long, value_name = "HEIGHT")]
    height: Option<u32>,
    /// Hash that Bitcoin Core printed when it wrote a dumptxoutset file (txoutset_hash); not compared by default
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    txoutset_hash: Option<[u8; 32]>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Bytes of the file after which the progress is written
    #[arg(long, value_name = "BYTES", hide = true, default_value_t = CHUNK_BYTES)]
    chunk_bytes: u64,
}

/// Parses a hash as Bitcoin Core prints it, into internal order.
fn parse_hash(text: &str) -> Result<[u8; 32], String> {
    let mut hash = [0; 32];
    hex::decode_to_slice(text, &mut hash).map_err(|_| "it must have 64 hexadecimal digits".to_owned())?;
    hash.reverse();
    Ok(hash)
}

impl ImportArgs {
    pub(super) async fn run(self, out: &mut impl Write) -> CliResult {
        let config = self.config.load_store()?;
        self.target.check_blobs().map_err(UsageError)?;
        let (shutdown, began) = (CancellationToken::new(), Instant::now());
        signals::cancel_on_signals(shutdown.clone())?;
        // Opened before the store: a store on disk would be created.
        std::fs::File::open(&self.from)
            .map_err(|error| UsageError(format!("--from {}: {error}", self.from.display())))?;
        let monitoring = Monitoring::new(&config);
        let blobs = self.target.open_blobs(&config, &monitoring.metrics).await?;
        let options = ImportOptions {
            height: self.height,
            txoutset_hash: self.txoutset_hash,
            durability_lag: wiring::instance_settings(&config).durability_lag,
            chunk_bytes: self.chunk_bytes,
            ..ImportOptions::new(self.from.clone())
        };
        let store_id = random_bytes()?;
        let progress = SetProgressLine::start("opening the file");
        let imported = opening::with_store(
            &config,
            &self.target.store,
            &monitoring.metrics,
            async |store: &StateStore| -> Result<ImportReport, Failure> {
                let store = store.clone().with_blobs(blobs);
                let on_progress = |done| progress.update(done);
                Ok(Box::pin(import(&store, &options, store_id, &shutdown, &on_progress)).await?)
            },
        );
        let report = Box::pin(imported).await?;
        drop(progress);
        let seconds = began.elapsed().as_secs_f64();
        if self.json {
            return Ok(output::write_json(&report, out)?);
        }
        write_totals(&report.totals, out)?;
        if let Some(hash) = &report.txoutset_hash {
            writeln!(out, "txoutset_hash {hash}")?;
        }
        writeln!(out, "state digest {}", report.digest)?;
        writeln!(out, "The store stands at block {} at height {}, in {seconds:.1} s.", report.block, report.height)?;
        Ok(writeln!(out, "Set store.url to {} and start `run` with a new group.", self.target.store)?)
    }
}
