//! `utxo-store utxo-set`: imports, exports and checks UTXO-set files.

mod export;
mod import;

use std::{
    io::Write,
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use clap::{Args, Subcommand};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use super::{CliResult, ConfigArgs, block_on, output, spinner::Spinner};
use crate::{
    text::hex_reversed,
    tx::Network,
    utxo_set::{CHUNK_BYTES, CheckedFile, SetProgress, SetStep, SetTotals, check_file},
};

/// Arguments of the command `utxo-set`.
#[derive(Debug, Args)]
pub struct UtxoSetCommand {
    #[command(subcommand)]
    action: UtxoSetAction,
}

#[derive(Debug, Subcommand)]
enum UtxoSetAction {
    /// Import a UTXO-set file into an empty store of any engine, which then stands at the block of the file
    Import(Box<import::ImportArgs>),
    /// Write the UTXO set of a store at rest as a file of the reference's format
    Export(export::ExportArgs),
    /// Read a UTXO-set file to its end, and compare its counts with those that the file says
    Verify(VerifySetArgs),
}

impl UtxoSetCommand {
    pub(super) fn run(self) -> CliResult {
        block_on(async {
            let mut out = output::stdout();
            match self.action {
                UtxoSetAction::Import(args) => args.run(&mut out).await,
                UtxoSetAction::Export(args) => Box::pin(args.run(&mut out)).await,
                UtxoSetAction::Verify(args) => args.run(&mut out).await,
            }
        })
    }
}

/// Command-line arguments of `utxo-store utxo-set verify`.
#[derive(Debug, Args)]
#[command(after_help = "Example: utxo-store utxo-set verify --from utxos.dat")]
pub struct VerifySetArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// UTXO-set file of the reference, or dumptxoutset file of Bitcoin Core
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Content of a UTXO-set file; the JSON object of `--json`.
#[derive(Debug, Serialize)]
struct VerifiedFile {
    format: &'static str,
    network: Option<String>,
    height: Option<u32>,
    block: String,
    txoutset_hash: Option<String>,
    totals: SetTotals,
}

impl VerifiedFile {
    fn of(file: &CheckedFile) -> Self {
        VerifiedFile {
            format: file.header.format.name(),
            network: file.header.network.map(|network| network.to_string()),
            height: file.header.height,
            block: hex_reversed(&file.header.block),
            txoutset_hash: file.shown_txoutset_hash(),
            totals: file.totals,
        }
    }
}

impl VerifySetArgs {
    async fn run(self, out: &mut impl Write) -> CliResult {
        let config = self.config.load_store()?;
        let network: Network = config.store.network;
        let progress = SetProgressLine::start("opening the file");
        let file = check_file(&self.from, network, CHUNK_BYTES, &|done| progress.update(done)).await?;
        drop(progress);
        let verified = VerifiedFile::of(&file);
        if self.json {
            return Ok(output::write_json(&verified, out)?);
        }
        write_totals(&verified.totals, out)?;
        let hash = verified.txoutset_hash.map_or(String::new(), |hash| format!(", txoutset_hash {hash}"));
        Ok(writeln!(out, "{} of block {}, whole{hash}", verified.format, verified.block)?)
    }
}

/// Progress line of an import, with the time left of the step in progress.
struct SetProgressLine {
    line: Spinner,
    /// Step in progress, with its begin and the amount of work that was done before.
    step: Mutex<Option<(SetStep, Instant, u64)>>,
}

impl SetProgressLine {
    fn start(activity: &'static str) -> Self {
        SetProgressLine { line: Spinner::start("{spinner} {msg}", activity), step: Mutex::default() }
    }

    fn update(&self, progress: SetProgress) {
        let SetProgress { step, transactions, done, all } = progress;
        let begun = {
            let mut shared = self.step.lock().unwrap_or_else(PoisonError::into_inner);
            *shared = shared.filter(|begun| begun.0 == step).or_else(|| Some((step, Instant::now(), done)));
            *shared
        };
        let (activity, amount) = match step {
            SetStep::Check => ("checking the file", format!("{} of {}", HumanBytes(done), HumanBytes(all))),
            SetStep::Load => ("loading", format!("{} of {}", HumanBytes(done), HumanBytes(all))),
            SetStep::Compare => ("comparing the store", format!("of {}", HumanCount(all))),
            SetStep::Export => ("reading the store", "written".to_owned()),
        };
        let mut message = format!("{activity}: {} transactions, {amount}", HumanCount(transactions));
        let left = begun.and_then(|(_, begun, before)| seconds_left(begun.elapsed().as_secs_f64(), before, done, all));
        if let Some(left) = left {
            message += &format!(", {left:.0} s left");
        }
        self.line.set_message(message);
    }
}

/// Returns the time that a step still takes at its speed so far; `None`: nothing is done yet, or the amount of
/// all work is not known.
fn seconds_left(seconds: f64, before: u64, done: u64, all: u64) -> Option<f64> {
    if all == 0 {
        return None;
    }
    let (made, left) = (done.checked_sub(before).filter(|made| *made > 0)?, all.saturating_sub(done));
    Some(seconds * left as f64 / made as f64)
}

fn write_totals(totals: &SetTotals, out: &mut impl Write) -> std::io::Result<()> {
    for (count, name) in [
        (totals.transactions, "transactions"),
        (totals.coinbases, "coinbases among them"),
        (totals.outputs, "outputs"),
        (totals.satoshis, "satoshis in these outputs"),
        (totals.outputs_without_slot, "outputs that can never be spent"),
        (totals.satoshis_without_slot, "satoshis in these outputs"),
        (u64::from(totals.greatest_height), "greatest height"),
    ] {
        writeln!(out, "{count:>20} {name}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_speed_of_the_step() {
        assert_eq!(seconds_left(2.0, 0, 0, 100), None);
        assert_eq!(seconds_left(2.0, 0, 20, 100), Some(8.0));
        assert_eq!(seconds_left(2.0, 50, 60, 100), Some(8.0), "an import that continues");
        assert_eq!(seconds_left(2.0, 0, 100, 100), Some(0.0));
    }
}
