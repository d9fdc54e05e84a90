//! `utxo-store snapshot create`.

use std::{
    io::Write,
    num::NonZeroU32,
    time::{Duration, Instant},
};

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        CliResult, ConfigArgs, Failure,
        opening::{self, Monitoring},
        output, signals, wiring,
    },
    SnapshotProgress, TimedReport, open_shelf, write_totals,
};
use crate::{
    blob::{BlobUrl, Intent},
    snapshot::{CreateOptions, CreateReport, create},
    store::StateStore,
};

const AFTER_HELP: &str = "\
Reads the committed offsets of the group, then every record, while instances run. Nothing is
pruned meanwhile. After a kill the same command continues within --hold-minutes, unless a node of
the store has restarted; otherwise it discards what it finds and begins again. Bodies in the blob
store are copied. A store on fjall can be opened by one process: stop its instance first.

Example: utxo-store snapshot create --config deploy/utxo-store.toml --to s3://bucket/snapshots";

/// Command-line arguments of `utxo-store snapshot create`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct SnapshotCreateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Place of the snapshots, a URL as store.blobs.url accepts; reached by the logins and limits of store.blobs.
    /// snapshot.url by default
    #[arg(long, value_name = "URL")]
    to: Option<BlobUrl>,
    /// Parts of the store that are read at the same time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=256))]
    parts: u16,
    /// Records that are read in a second at most, so that the instances keep their share of the machine and of the
    /// database; no limit by default
    #[arg(long, value_name = "N")]
    records_per_second: Option<NonZeroU32>,
    /// Size at which a chunk ends, MiB
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    chunk_mib: u32,
    /// Time within which a stopped creation continues: pruning waits for as long
    #[arg(long, value_name = "MINUTES", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10080))]
    hold_minutes: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl SnapshotCreateArgs {
    pub(super) async fn run(self, out: &mut impl Write) -> CliResult {
        let config = self.config.load()?;
        let (shutdown, began) = (CancellationToken::new(), Instant::now());
        signals::cancel_on_signals(shutdown.clone())?;
        let shelf = open_shelf(&config, ("--to", self.to.as_ref()), Intent::Write).await?;
        let broker = opening::open_broker(&config).await?;
        let monitoring = Monitoring::new(&config);
        let blobs = opening::open_blobs(&config, Intent::Read, &monitoring.metrics).await?;
        let options = CreateOptions {
            parts: self.parts,
            records_per_second: self.records_per_second,
            chunk_bytes: (self.chunk_mib as usize) << 20,
            hold: Duration::from_secs(60 * u64::from(self.hold_minutes)),
            ..CreateOptions::default()
        };
        let progress = SnapshotProgress::start("reading the offsets");
        let created = opening::with_store(
            &config,
            &config.store.url,
            &monitoring.metrics,
            async |store: &StateStore| -> Result<CreateReport, Failure> {
                let parts = opening::build_parts(broker, store.clone().with_blobs(blobs), &monitoring)?;
                let settings = wiring::instance_settings(&config);
                let on_progress = |done| progress.update(done);
                Ok(Box::pin(create(&settings, &parts, &shelf, options, &shutdown, &on_progress)).await?)
            },
        );
        let report = Box::pin(created).await?;
        drop(progress);
        if self.json {
            return Ok(output::write_json(&TimedReport::since(began, report), out)?);
        }
        write_totals(&report.totals, out)?;
        writeln!(out, "{:>20} bytes in {} chunks", report.bytes, report.chunks)?;
        let continued = if report.resumed { "continued and completed" } else { "created" };
        Ok(writeln!(out, "Snapshot {} {continued} in {:.1} s", report.name, began.elapsed().as_secs_f64())?)
    }
}
