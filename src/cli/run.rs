//! `utxo-store run`: one instance, until a signal.

mod check;

use std::{path::PathBuf, sync::Arc};

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{
    CommandResult, ConfigArgs, Failure, FencedError, block_on,
    opening::{self, Watched},
    serving::{self, Place},
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
SIGTERM or SIGINT: reads nothing more, finishes what is in flight, commits, and exits with 0. A second one stops at
once (exit code 3), which loses nothing: what was not committed is read again. Nor does it when the watchdog ends a process whose
loops stand still (exit code 4; run.watchdog_ms), or when another one is started with the same kafka.instance_id, which goes on
instead (exit code 5).

With --check it only looks, joining no group and writing nothing: brokers, topics (partitions, retention, copies), permissions, committed
offsets, the store and its blob store. A line a check: ok, WARNING, FAILED (with what to do) or skipped (with why); exit code 1 where one
failed. A store in a directory that an instance has open cannot be looked at, and fails.

Example: UTXO_STORE__KAFKA__BROKERS=kafka:9092 utxo-store run --config deploy/utxo-store.toml";

/// Arguments of `run`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Only look whether an instance could start here and go on
    #[arg(long)]
    check: bool,
    /// Print one JSON object a check
    #[arg(long, requires = "check")]
    json: bool,
    /// Write the address of metrics and health to this file, once it is known
    #[arg(long, value_name = "PATH", hide = true)]
    http_address_file: Option<PathBuf>,
    /// Stop at once (exit code 3) when standard input ends, as it does when the parent dies
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

impl RunArgs {
    pub(super) fn run(self) -> CommandResult {
        let config = self.config.load();
        if self.check {
            return block_on(check::check(config, self.json));
        }
        let config = config?;
        opening::logging(&config)?;
        if self.exit_with_stdin {
            signals::exit_with_stdin()?;
        }
        block_on(self.serve(config))
    }

    /// Works, and answers over HTTP from before the store is open until everything is committed.
    async fn serve(self, config: Config) -> CommandResult {
        let shutdown = CancellationToken::new();
        signals::cancel_on_signals(shutdown.clone())?;
        let watched = Watched::new(&config);
        let place = Place {
            listen: Some(config.http.listen),
            control: config.http.control,
            address_file: self.http_address_file,
            otherwise: None,
        };
        serving::serve(&place, &watched, shutdown.clone(), Box::pin(work(&config, &watched, shutdown))).await
    }
}

async fn work(config: &Config, watched: &Watched, shutdown: CancellationToken) -> CommandResult {
    let broker = opening::watched_broker(config, watched.health.liveness())?;
    let blobs = opening::blobs(config, Intent::Write, &watched.metrics).await?;
    let objects = opening::objects(config, &watched.metrics).await?;
    let report = opening::with_store(config, &config.store.url, &watched.metrics, async |store: &Store| {
        let store = store.clone().with_blobs(blobs).with_objects(objects);
        consume(config, opening::parts(broker, store, watched)?, shutdown).await
    });
    let PipelineReport { completed, parked_max, contests, dead_letters } = report.await?;
    tracing::info!(completed, parked_max, contests, dead_letters, "stopped in order");
    Ok(())
}

/// Starts an instance, and starts it again whenever it has ended because the broker was away, or the blob store.
///
/// # Errors
/// What no other start mends.
pub(super) async fn consume(
    config: &Config,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<PipelineReport, Failure> {
    let settings = wiring::instance(config);
    tell_readiness(parts.health.clone(), shutdown.clone());
    while opening::reachable(parts.broker.as_ref(), &settings.pipeline.topic, &parts.health, &shutdown).await? {
        match instance::run(settings.clone(), parts.clone(), shutdown.clone()).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "what it works with went away; everything not committed is read again");
                parts.health.set(Condition::Assigned, Some(error.to_string()));
                tokio::time::sleep(opening::RETRY_PAUSE).await;
            }
            Err(error) if error.is_fenced() => return Err(FencedError(error.to_string()).into()),
            ended => return Ok(ended?),
        }
    }
    Ok(PipelineReport::default())
}

/// Nobody is to rely on an instance that is stopping.
fn tell_readiness(health: Arc<Health>, shutdown: CancellationToken) {
    tokio::spawn(async move {
        shutdown.cancelled().await;
        health.set(Condition::Assigned, Some("stopping".to_owned()));
    });
}
