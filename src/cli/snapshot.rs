//! `utxo-store snapshot`: creates, restores, verifies, lists and deletes snapshots of a store.

mod create;
mod restore;
mod shelf;

use std::{io::Write, time::Instant};

use clap::{Args, Subcommand};
use indicatif::{HumanBytes, HumanCount};
use serde::Serialize;

use super::{CliResult, Failure, UsageError, block_on, opening::OpeningError, output, spinner::Spinner, wiring};
use crate::{
    blob::{self, BlobUrl, Intent, OpenBlobError},
    config::Config,
    snapshot::{CopyProgress, Shelf, Totals},
    telemetry::Metrics,
};

/// Arguments of the command `snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotCommand {
    #[command(subcommand)]
    action: SnapshotAction,
}

#[derive(Debug, Subcommand)]
enum SnapshotAction {
    /// Create a snapshot of the configured store, also while instances run
    Create(create::SnapshotCreateArgs),
    /// Restore a snapshot into an empty store of any engine, and set the group back to its offsets
    Restore(Box<restore::RestoreArgs>),
    /// Read every chunk of a snapshot, and compare checksums, counts and sums
    Verify(shelf::SnapshotVerifyArgs),
    /// List the snapshots of a place, oldest first
    List(shelf::ListArgs),
    /// Delete all snapshots but the newest ones
    Delete(shelf::DeleteArgs),
}

impl SnapshotCommand {
    pub(super) fn run(self) -> CliResult {
        block_on(async {
            let mut out = output::stdout();
            match self.action {
                SnapshotAction::Create(args) => args.run(&mut out).await,
                SnapshotAction::Restore(args) => args.run(&mut out).await,
                SnapshotAction::Verify(args) => args.run(&mut out).await,
                SnapshotAction::List(args) => args.run(&mut out).await,
                SnapshotAction::Delete(args) => args.run(&mut out).await,
            }
        })
    }
}

/// Opens the snapshots of the place that an option names, else of `snapshot.url`.
async fn open_shelf(
    config: &Config,
    (option, given): (&str, Option<&BlobUrl>),
    intent: Intent,
) -> Result<Shelf, Failure> {
    let Some(url) = given.or(config.snapshot.url.as_ref()) else {
        return Err(UsageError(format!("{option} must be given: snapshot.url is not set")).into());
    };
    open_shelf_at(config, url, intent).await.map_err(|error| OpeningError::Blobs(error).into())
}

/// Opens the snapshots of a place, with the logins and limits of the configured blob store.
pub(super) async fn open_shelf_at(config: &Config, url: &BlobUrl, intent: Intent) -> Result<Shelf, OpenBlobError> {
    let (access, options) = wiring::blob_settings(config, &std::sync::Arc::new(Metrics::new()));
    blob::open_snapshots(url, intent, &access, &options).await.map(Shelf::new)
}

/// Form of the progress line.
const PROGRESS_TEMPLATE: &str = "{spinner} {msg}";

/// CopyProgress line of a snapshot command, with the time left where the number of chunks is known.
struct SnapshotProgress {
    line: Spinner,
    began: Instant,
}

impl SnapshotProgress {
    fn start(activity: &'static str) -> Self {
        SnapshotProgress { line: Spinner::start(PROGRESS_TEMPLATE, activity), began: Instant::now() }
    }

    fn update(&self, progress: CopyProgress) {
        let CopyProgress { records, bytes, chunks, all_chunks } = progress;
        let mut message = format!("{} records, {}, chunk {chunks}", HumanCount(records), HumanBytes(bytes));
        if all_chunks > 0 {
            message += &format!(" of {all_chunks}");
            if chunks > 0 {
                let left = self.began.elapsed().as_secs_f64() * (all_chunks - chunks) as f64 / chunks as f64;
                message += &format!(", {left:.0} s left");
            }
        }
        self.line.set_message(message);
    }
}

/// Result of a command with its time; the JSON object of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct TimedReport<T> {
    #[serde(flatten)]
    report: T,
    seconds: f64,
}

impl<T> TimedReport<T> {
    pub(super) fn since(began: Instant, report: T) -> Self {
        TimedReport { report, seconds: began.elapsed().as_secs_f64() }
    }
}

fn write_totals(totals: &Totals, out: &mut impl Write) -> std::io::Result<()> {
    for (count, name) in [
        (totals.records, "records"),
        (totals.transactions, "transactions"),
        (totals.conflicting, "conflicting"),
        (totals.pruned, "pruned"),
        (totals.further_pages, "further pages"),
        (totals.blocks, "blocks"),
        (totals.commands, "results of commands"),
        (totals.unspent_outputs, "unspent outputs on first pages"),
        (totals.unspent_satoshis, "satoshis in these outputs"),
        (totals.unspent_on_further_pages, "unspent outputs on further pages"),
    ] {
        writeln!(out, "{count:>20} {name}")?;
    }
    Ok(())
}
