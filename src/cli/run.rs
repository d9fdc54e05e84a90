//! `utxo-store run`: runs one instance until a signal.

use std::path::PathBuf;

use clap::Args;

use super::{
    CliResult, ConfigArgs, block_on, checks, opening,
    serving::{self, ApiSource, HttpOptions},
    signals,
};
use crate::{api::v1::StoreSource, config::Config, embed::Instance, ingest::pipeline::PipelineReport};

const AFTER_HELP: &str = "\
At SIGTERM or SIGINT the instance stops reading, completes the events in flight, commits, and
exits with code 0. A second signal exits at once (code 3). The watchdog ends a process with a
stalled loop (code 4; run.watchdog_ms). A process is fenced when another one starts with the same
kafka.instance_id, and continues instead (code 5). No data is lost in any case: events whose
offsets are not committed are read again.

--check joins no group and writes nothing. It checks brokers, topics (partitions, retention,
replicas), permissions, committed offsets, the store and its blob store, one line per check: ok,
WARNING, FAILED (with the remedy) or skipped (with the reason). Exit code 1 if a check failed. The
check of a store in a directory fails while an instance has the store open.

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
            return block_on(checks::check(config, self.json));
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
        let instance = Instance::builder().config(config.clone()).prepare();
        let store = StoreSource::of_instance(instance.opened(), instance.monitoring.health.clone());
        let api = match config.http.api {
            true => {
                let broker = Some(opening::open_broker(&config).await?);
                Some(ApiSource { config: config.clone(), store: store.clone(), broker })
            }
            false => None,
        };
        let http_settings = config.http;
        let http = HttpOptions {
            store: Some(store),
            api,
            address_file: self.http_address_file,
            ..HttpOptions::of(http_settings)
        };
        let (monitoring, shutdown) = (instance.monitoring.clone(), instance.shutdown.clone());
        signals::cancel_on_signals(shutdown.clone())?;
        let work = Box::pin(async {
            let PipelineReport { completed, parked_max, contests, dead_letters } = Box::pin(instance.run()).await?;
            tracing::info!(completed, parked_max, contests, dead_letters, "run: stopped");
            Ok(())
        });
        serving::serve(&http, &monitoring, shutdown, work).await
    }
}
