//! `utxo-store utxo-set export`.

use std::{io::Write, path::PathBuf, time::Instant};

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{
    super::{CliResult, offline::StoreArgs, output, signals},
    SetProgressLine, write_totals,
};
use crate::utxo_set::export;

const AFTER_HELP: &str = "\
Writes the unspent outputs as of the store's tip in the format of the reference. Outputs of
transactions that no block lists are left out, and outputs that only such transactions spend are
in the file. Stop the group first: the export fails if the store changes.

Example: utxo-store utxo-set export --store fjall:///var/lib/utxo-store --to block.utxo-set";

/// Command-line arguments of `utxo-store utxo-set export`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ExportArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// New file; it has this name once it is whole
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl ExportArgs {
    pub(super) async fn run(self, out: &mut impl Write) -> CliResult {
        let (shutdown, began) = (CancellationToken::new(), Instant::now());
        signals::cancel_on_signals(shutdown.clone())?;
        let (store, _) = self.store.open().await?;
        let progress = SetProgressLine::start("reading the store");
        let exported = Box::pin(export(&store, &self.to, &shutdown, &|done| progress.update(done))).await;
        store.engine.close().await?;
        let report = exported?;
        drop(progress);
        if self.json {
            return Ok(output::write_json(&report, out)?);
        }
        write_totals(&report.totals, out)?;
        let seconds = began.elapsed().as_secs_f64();
        let (path, bytes) = (self.to.display(), report.bytes);
        Ok(writeln!(
            out,
            "{path}: {bytes} bytes, block {} at height {}, in {seconds:.1} s",
            report.block, report.height
        )?)
    }
}
