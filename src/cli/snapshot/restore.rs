//! `utxo-store snapshot restore`.

use std::{io::Write, time::Instant};

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        CliResult, ConfigArgs, Failure, UsageError,
        empty_store::EmptyStoreArgs,
        opening::{self, Monitoring},
        output, signals, wiring,
    },
    SnapshotProgress, TimedReport, open_shelf, write_totals,
};
use crate::{
    blob::{BlobUrl, Intent},
    snapshot::{RestoreReport, restore},
    store::StateStore,
};

const AFTER_HELP: &str = "\
Loads all records of a snapshot into an empty store, of any engine, and sets the group back to the
offsets of the snapshot. No instance of the group may run. Until the command has ended, no
instance starts on the store; after a kill the same command continues. Then set store.url (and
store.blobs.url) to the restored store and start `run`, which reads the log from the snapshot's
offsets.

Example: utxo-store snapshot restore --from s3://bucket/snapshots \\
    --store fjall:///var/lib/utxo-store-2";

/// Command-line arguments of `utxo-store snapshot restore`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct RestoreArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Place of the snapshots, a URL as store.blobs.url accepts; reached by the logins and limits of store.blobs.
    /// snapshot.url by default
    #[arg(long, value_name = "URL")]
    from: Option<BlobUrl>,
    /// Name of the snapshot; the newest complete one by default
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    target: EmptyStoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl RestoreArgs {
    pub(super) async fn run(self, out: &mut impl Write) -> CliResult {
        let config = self.config.load()?;
        self.target.check_blobs().map_err(UsageError)?;
        let (shutdown, began) = (CancellationToken::new(), Instant::now());
        signals::cancel_on_signals(shutdown.clone())?;
        let shelf = open_shelf(&config, ("--from", self.from.as_ref()), Intent::Read).await?;
        let name = match &self.name {
            Some(name) => name.clone(),
            None => shelf.newest().await?,
        };
        // Read before the store is opened: a store on disk would be created.
        shelf.read_manifest(&name).await?;
        let broker = opening::open_broker(&config).await?;
        let monitoring = Monitoring::new(&config);
        let blobs = self.target.open_blobs(&config, &monitoring.metrics).await?;
        let progress = SnapshotProgress::start("checking the log");
        let restored = opening::with_store(
            &config,
            &self.target.store,
            &monitoring.metrics,
            async |store: &StateStore| -> Result<RestoreReport, Failure> {
                let parts = opening::build_parts(broker, store.clone().with_blobs(blobs), &monitoring)?;
                let settings = wiring::instance_settings(&config);
                let on_progress = |done| progress.update(done);
                Ok(Box::pin(restore(&settings, &parts, &shelf, &name, &shutdown, &on_progress)).await?)
            },
        );
        let report = Box::pin(restored).await?;
        drop(progress);
        if self.json {
            return Ok(output::write_json(&TimedReport::since(began, report), out)?);
        }
        write_totals(&report.totals, out)?;
        writeln!(out, "Snapshot {} restored in {:.1} s.", report.name, began.elapsed().as_secs_f64())?;
        Ok(writeln!(
            out,
            "Set store.url to {} and start `run`: it reads the log from the snapshot's offsets.",
            self.target.store
        )?)
    }
}
