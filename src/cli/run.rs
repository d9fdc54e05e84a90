//! `utxo-store run`: runs one instance until a signal.

mod check;

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{
    CliResult, ConfigArgs, Failure, FencedError, block_on,
    opening::{self, Monitoring},
    serving::{self, HttpOptions},
    signals, wiring,
};
use crate::{
    blob::Intent,
    config::Config,
    ingest::pipeline::PipelineReport,
    instance::{self, InstanceParts},
    status::{Health, health::Condition},
    store::Store,
};

const AFTER_HELP: &str = "\
At SIGTERM or SIGINT the instance stops reading, completes the events in flight, commits, and exits with code 0. A
second signal exits at once (code 3). The watchdog ends a process with a stalled loop (code 4; run.watchdog_ms). A
process is fenced when another one starts with the same kafka.instance_id, and continues instead (code 5). No data is
lost in any case: events whose offsets are not committed are read again.

--check joins no group and writes nothing. It checks brokers, topics (partitions, retention, replicas), permissions,
committed offsets, the store and its blob store, one line per check: ok, WARNING, FAILED (with the remedy) or skipped
(with the reason). Exit code 1 if a check failed. The check of a store in a directory fails while an instance has the
store open.

Example: UTXO_STORE__KAFKA__BROKERS=kafka:9092 utxo-store run --config deploy/utxo-store.toml";

/// Command-line arguments of `utxo-store run`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Check only whether an instance could start with these settings and continue
    #[arg(long)]
    check: bool,
    /// With --check: print one JSON object per check
    #[arg(long, requires = "check")]
    json: bool,
    /// File for the bound address of metrics and health, written once the server listens
    #[arg(long, value_name = "PATH", hide = true)]
    http_address_file: Option<PathBuf>,
    /// Exit at once (code 3) when standard input ends, as it does when the parent process ends
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

impl RunArgs {
    pub(super) fn run(self) -> CliResult {
        let config = self.config.load();
        if self.check {
            return block_on(check::check(config, self.json));
        }
        let config = config?;
        opening::start_logging(&config)?;
        if self.exit_with_stdin {
            signals::exit_with_stdin()?;
        }
        block_on(self.serve(config))
    }

    /// Runs the instance. The HTTP server answers from before the store is opened until all offsets are committed.
    async fn serve(self, config: Config) -> CliResult {
        let shutdown = CancellationToken::new();
        signals::cancel_on_signals(shutdown.clone())?;
        let monitoring = Monitoring::new(&config);
        let http = HttpOptions {
            listen: Some(config.http.listen),
            control: config.http.control,
            address_file: self.http_address_file,
            bind_hint: None,
        };
        serving::serve(&http, &monitoring, shutdown.clone(), Box::pin(work(&config, &monitoring, shutdown))).await
    }
}

async fn work(config: &Config, monitoring: &Monitoring, shutdown: CancellationToken) -> CliResult {
    let broker = opening::open_watched_broker(config, monitoring.health.liveness())?;
    let blobs = opening::open_blobs(config, Intent::Write, &monitoring.metrics).await?;
    let objects = opening::open_objects(config, &monitoring.metrics).await?;
    let report = opening::with_store(config, &config.store.url, &monitoring.metrics, async |store: &Store| {
        let store = store.clone().with_blobs(blobs).with_objects(objects);
        consume(config, opening::build_parts(broker, store, monitoring)?, shutdown).await
    });
    let PipelineReport { completed, parked_max, contests, dead_letters } = report.await?;
    tracing::info!(completed, parked_max, contests, dead_letters, "run: stopped");
    Ok(())
}

/// Runs an instance, and restarts the instance within the process after an outage of the brokers or the blob store.
///
/// # Errors
/// The instance fails with an error that no restart mends, or is fenced.
pub(super) async fn consume(
    config: &Config,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<PipelineReport, Failure> {
    let settings = wiring::instance_settings(config);
    unset_ready_on_shutdown(parts.health.clone(), shutdown.clone());
    let topic = &settings.pipeline.topic;
    while opening::wait_until_reachable(parts.broker.as_ref(), topic, &parts.health, &shutdown).await? {
        match instance::run(settings.clone(), parts.clone(), shutdown.clone()).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "run: broker or blob store unavailable, restarting the instance");
                parts.health.set(Condition::Assigned, Some(error.to_string()));
                tokio::time::sleep(opening::RETRY_PAUSE).await;
            }
            Err(error) if error.is_fenced() => return Err(FencedError(error.to_string()).into()),
            ended => return Ok(ended?),
        }
    }
    Ok(PipelineReport::default())
}

/// Makes the instance unready at shutdown, so that no client relies on an instance that stops.
fn unset_ready_on_shutdown(health: Arc<Health>, shutdown: CancellationToken) {
    tokio::spawn(async move {
        shutdown.cancelled().await;
        health.set(Condition::Assigned, Some("stopping".to_owned()));
    });
}
