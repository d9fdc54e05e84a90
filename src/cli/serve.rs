//! `utxo-store serve`: answers questions about a store over HTTP, and publishes to its log.

use std::path::PathBuf;

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{
    CliResult, ConfigArgs, UsageError, block_on,
    offline::StoreArgs,
    opening::{self, Monitoring},
    serving::{self, ApiSource, HttpOptions},
    signals,
};
use crate::{
    api::v1::StoreSource,
    config::Config,
    embed::wiring,
    instance::{log_probe::probe_log, probe_store, report_catch_up},
    status::health::Condition,
};

const AFTER_HELP: &str = "\
Serves the API under /v1 (docs/reference/api.md) beside metrics and health. The process keeps no
state: any number of them serve one store of an Aerospike cluster. A store in a directory belongs
to one process; set http.api = true for the instance there.

Example: UTXO_STORE__HTTP__LISTEN=127.0.0.1:8080 utxo-store serve --config deploy/utxo-store.toml";

/// Command-line arguments of `utxo-store serve`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Answer only questions about the store: no transactions, commands, history and outcomes
    #[arg(long)]
    without_log: bool,
    /// File for the bound address, written once the server listens
    #[arg(long, value_name = "PATH", hide = true)]
    http_address_file: Option<PathBuf>,
}

impl ServeArgs {
    pub(super) fn run(self) -> CliResult {
        let config = self.config.load()?;
        opening::start_logging(&config)?;
        block_on(self.serve(config))
    }

    async fn serve(self, mut config: Config) -> CliResult {
        // The API is what the process is for, and it has no loops to control.
        (config.http.api, config.http.control) = (true, false);
        config.http.check_access().map_err(|problem| UsageError(format!("http.api {problem}")))?;
        let monitoring = Monitoring::new(&config);
        let arguments = StoreArgs { config: self.config, ..StoreArgs::default() };
        let (store, _) = arguments.open_whole().await?;
        let broker = if self.without_log { None } else { Some(opening::open_broker(&config).await?) };
        for condition in [Condition::Assigned, Condition::StoreReachable] {
            monitoring.health.set(condition, None);
        }
        let topics = wiring::instance_settings(&config).state_topics();
        let source = StoreSource::Reader(Box::new(store.clone()));
        let http_settings = config.http.clone();
        let http = HttpOptions {
            store: Some(source.clone()),
            api: Some(ApiSource { store: source, broker: broker.clone(), config }),
            address_file: self.http_address_file,
            ..HttpOptions::of(http_settings)
        };
        let shutdown = CancellationToken::new();
        signals::cancel_on_signals(shutdown.clone())?;
        let watch_log = async {
            match &broker {
                Some(broker) => probe_log(&store, broker.as_ref(), &topics, &monitoring.health).await,
                None => std::future::pending().await,
            }
        };
        let work = Box::pin(async {
            tokio::select! {
                () = shutdown.cancelled() => Ok(()),
                never = probe_store(&store, &monitoring.health) => match never {},
                never = report_catch_up(&store, &monitoring.health) => match never {},
                never = watch_log => match never {},
            }
        });
        let served = serving::serve(&http, &monitoring, shutdown.clone(), work).await;
        store.engine.close().await?;
        served
    }
}
