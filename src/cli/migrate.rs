//! `utxo-store migrate`: copies a store at rest into an empty store of another engine or layout.

use std::{
    io::Write,
    time::{Duration, Instant},
};

use clap::Args;
use indicatif::HumanCount;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{
    CliResult, ConfigArgs, Failure, UsageError, block_on,
    opening::{self, Monitoring},
    output,
    replay::offset_reset,
    signals,
    snapshot::TimedReport,
    spinner::Spinner,
    wiring,
};
use crate::{
    blob::Intent,
    config::{Config, writable_blobs},
    engine::{self, StoreUrl},
    snapshot::{MigrateError, MigrateReport, MigratedStores, migrate, undo_migration},
    store::StateStore,
};

const AFTER_HELP: &str = "\
Copies every record, the meta record and the identity of a store into an empty store of any engine
or layout, and compares each record of both. The number of slots a page stays; `replay --rebuild`
builds a store with another number. Large bodies stay in the blob store of the configuration
(store.blobs.url), which belongs to the copy from then on. No instance of the group may run. After
a kill the same command continues. At the end no instance starts on the source any more: set
store.url to the copy, and start `run`. `--undo` goes back while the copy has consumed nothing.

Example: utxo-store migrate --from aerospike://old/utxo --to 'aerospike://new/utxo?layout=compact'";

/// Command-line arguments of `utxo-store migrate`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct MigrateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// URL of the store to copy; store.url by default
    #[arg(long, value_name = "URL")]
    from: Option<StoreUrl>,
    /// URL of the empty store
    #[arg(long, value_name = "URL")]
    to: StoreUrl,
    /// Go back to the store of --from, and retire the copy of --to, which has consumed nothing
    #[arg(long)]
    undo: bool,
    /// Do not ask Kafka for running instances of the group: every instance is stopped
    #[arg(long)]
    no_group: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl MigrateArgs {
    pub(super) fn run(self) -> CliResult {
        block_on(self.copy())
    }

    async fn copy(self) -> CliResult {
        let config = if self.no_group { self.config.load_store()? } else { self.config.load()? };
        let from = self.from.as_ref().unwrap_or(&config.store.url);
        if *from == self.to {
            return Err(UsageError("--from and --to name the same store".to_owned()).into());
        }
        if self.to.is_volatile() {
            return Err(
                UsageError(format!("--to {} is gone with the process: name a store that stays", self.to)).into()
            );
        }
        if from.external_store().is_some() && self.from.is_some() || self.to.external_store().is_some() {
            let problem =
                "leave externalStore out of --from and --to: both stores have the blob store of store.blobs.url";
            return Err(UsageError(problem.to_owned()).into());
        }
        match config.store.blob_url() {
            Ok(Some(url)) => {
                writable_blobs(&url, &self.to).map_err(|problem| UsageError(format!("blobs {problem}")))?
            }
            Ok(None) if self.to.bounds_records() => {
                let problem =
                    "store.blobs.url must be set: --to limits its records, and large bodies go to a blob store";
                return Err(UsageError(problem.to_owned()).into());
            }
            Ok(None) => {}
            Err(problem) => return Err(UsageError(problem).into()),
        }
        let (shutdown, began) = (CancellationToken::new(), Instant::now());
        signals::cancel_on_signals(shutdown.clone())?;
        let progress = Spinner::start("{spinner} {msg}", "opening the stores");
        if self.undo {
            Box::pin(self.undo_copy(&config, from)).await?;
            drop(progress);
            let mut out = output::stdout();
            match self.json {
                true => output::write_json(&TimedReport::since(began, UndoReport { undone: true }), &mut out)?,
                false => writeln!(out, "Set store.url to {from} and start `run`: no instance starts on the copy.")?,
            }
            return Ok(());
        }
        let report = Box::pin(self.copy_stores(&config, from, &shutdown, &progress)).await?;
        drop(progress);
        let mut out = output::stdout();
        if self.json {
            return Ok(output::write_json(&TimedReport::since(began, report), &mut out)?);
        }
        match report.had_ended {
            true => writeln!(out, "The migration had ended before.")?,
            false => writeln!(
                out,
                "{} records are equal in both stores. Store migrated in {:.1} s.",
                HumanCount(report.compared),
                began.elapsed().as_secs_f64()
            )?,
        }
        Ok(writeln!(out, "Set store.url to {} and start `run`: no instance starts on the source.", self.to)?)
    }

    /// Goes back to the source. Both stores exist: an empty store is not made where `--to` is mistyped.
    async fn undo_copy(&self, config: &Config, from: &StoreUrl) -> CliResult {
        if !self.no_group {
            check_group(config).await?;
        }
        let (source, copy) = (open_existing(config, from).await?, open_existing(config, &self.to).await?);
        let lag = config.ingest.durability_lag_ms.map(Duration::from_millis);
        let undone = undo_migration(MigratedStores { from: &source, to: &copy, lag }).await;
        source.engine.close().await?;
        copy.engine.close().await?;
        Ok(undone?)
    }

    async fn copy_stores(
        &self,
        config: &Config,
        from: &StoreUrl,
        shutdown: &CancellationToken,
        progress: &Spinner,
    ) -> Result<MigrateReport, Failure> {
        let monitoring = Monitoring::new(config);
        let blobs = opening::open_blobs(config, Intent::Write, &monitoring.metrics).await?;
        let source = open_existing(config, from).await?.with_blobs(blobs.clone());
        let copied = opening::with_store(
            config,
            &self.to,
            &monitoring.metrics,
            async |store: &StateStore| -> Result<MigrateReport, Failure> {
                let store = store.clone().with_blobs(blobs);
                let check_group = async || if self.no_group { Ok(()) } else { check_group(config).await };
                let lag = config.ingest.durability_lag_ms.map(Duration::from_millis);
                let on_progress = |done: crate::snapshot::CopyProgress| {
                    let records = HumanCount(done.records);
                    progress.set_message(match done.all_chunks {
                        0 => format!("{records} records"),
                        all => format!("{records} records, part {} of {all}", done.chunks),
                    });
                };
                let stores = MigratedStores { from: &source, to: &store, lag };
                Ok(Box::pin(migrate(stores, check_group, shutdown, &on_progress)).await?)
            },
        );
        let copied = Box::pin(copied).await;
        source.engine.close().await?;
        copied
    }
}

/// Report of `migrate --undo`.
#[derive(Debug, Serialize)]
struct UndoReport {
    /// The store of `--from` is in use again.
    undone: bool,
}

/// Opens a store that exists, without its blob store.
async fn open_existing(config: &Config, url: &StoreUrl) -> Result<StateStore, Failure> {
    let engine = engine::open_existing_url(url.clone(), &wiring::engine_options(config)).await?;
    Ok(StateStore::new(engine, wiring::store_settings(config)))
}

/// Checks that no instance of the group runs.
async fn check_group(config: &Config) -> Result<(), MigrateError> {
    let failed = |error: &dyn std::fmt::Display| MigrateError::Running(format!("the group cannot be read: {error}"));
    let broker = opening::open_broker(config).await.map_err(|error| failed(&error))?;
    let running = offset_reset(config).describe_members(broker.as_ref()).await;
    match running.map_err(|error| failed(&error))?.into_iter().next() {
        Some(reason) => Err(MigrateError::Running(reason)),
        None => Ok(()),
    }
}
