//! `utxo-store vault run`: follows the log, asks the store, and answers wallets over HTTP.

use std::{
    convert::Infallible,
    fs::{self, File, TryLockError},
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use clap::Args;
use tokio_util::sync::CancellationToken;

use crate::{
    blob::Intent,
    cli::{
        CliResult, ConfigArgs, Failure, UsageError, block_on,
        offline::StoreArgs,
        opening::{self, Monitoring, OpeningError},
        serving::{self, HttpOptions, VaultSource},
        signals,
        snapshot::open_shelf_at,
        wiring,
    },
    config::Config,
    embed::Store,
    engine::{
        StoreUrl,
        sql::{SqlDatabase, SqlSettings},
    },
    status::{Health, health::Condition},
    telemetry::VaultMetrics,
    vault::{
        AskerSettings, HttpStore, OutputSource, OwnStore, Vault, VaultError, VaultParts, VaultService, VaultSettings,
    },
};

const AFTER_HELP: &str = "\
The vault reads the log with a consumer group of its own (vault.group), keeps the outputs of
watched scripts in vault.url, and serves /v1/vault beside metrics and health
(docs/operating/vault.md). Any number of processes share a database of PostgreSQL; a file of
SQLite has one process. A store in a directory belongs to its instance: set vault.answers_url to
the address of an instance with http.api = true.

At SIGTERM or SIGINT the vault records the events that it has read, and exits with code 0. A kill
loses nothing: events are read again from the positions in the database, and a reservation was
recorded as a whole or not at all.

Example: UTXO_STORE__VAULT__URL=sqlite:///var/lib/utxo-store/vault.sqlite utxo-store vault run";

/// Time between two looks at the database, at the store and at the counts.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest time for such a look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// Command-line arguments of `utxo-store vault run`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct VaultRunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// File for the bound address, written once the server listens
    #[arg(long, value_name = "PATH", hide = true)]
    http_address_file: Option<PathBuf>,
    /// Exit at once (code 3) when standard input ends, as it does when the parent process ends
    #[arg(long, hide = true)]
    exit_with_stdin: bool,
}

impl VaultRunArgs {
    pub(super) fn run(self) -> CliResult {
        let config = self.config.load()?;
        opening::start_logging(&config)?;
        if self.exit_with_stdin {
            signals::exit_with_stdin()?;
        }
        block_on(self.serve(config))
    }

    async fn serve(self, mut config: Config) -> CliResult {
        // The routes of the vault are what the process is for, and it has no loops to control.
        (config.http.api, config.http.control) = (true, false);
        config.http.check_access().map_err(|problem| UsageError(format!("vault run: {problem}")))?;
        let Some(url) = config.vault.url.clone() else {
            return Err(UsageError("vault.url is not set: name the database of the vault".to_owned()).into());
        };
        let shutdown = CancellationToken::new();
        signals::cancel_on_signals(shutdown.clone())?;
        let monitoring = Monitoring::new(&config);
        let metrics = VaultMetrics::register(&monitoring.metrics)?;
        let _lock = lock_file(&url)?;
        let (source, store) = open_source(&config, self.config).await?;
        let vault = Vault::open(&url, &wiring::sql_access(&config), source, VaultSettings::of(&config)).await?;
        let broker = opening::open_broker(&config).await?;
        let bodies = opening::open_event_bodies_for(Intent::Read, &config, &monitoring.metrics).await?;
        let snapshots = match &config.snapshot.url {
            Some(url) => Some(open_shelf_at(&config, url, Intent::Read).await.map_err(OpeningError::Blobs)?),
            None => None,
        };
        let parts = VaultParts {
            vault: vault.clone(),
            broker: broker.clone(),
            topics: config.kafka.topics.clone(),
            group: config.vault.group.clone(),
            bodies,
            store: store.clone(),
            snapshots,
            asker: AskerSettings::of(&config),
        };
        let service = tokio::select! {
            service = VaultService::begin(parts) => service?,
            () = shutdown.cancelled() => return Ok(()),
        };
        monitoring.health.set(Condition::Assigned, None);
        let http_settings = config.http.clone();
        let http = HttpOptions {
            vault: Some(VaultSource { config, rescan: service.rescan(), broker, metrics: metrics.clone() }),
            address_file: self.http_address_file,
            ..HttpOptions::of(http_settings)
        };
        let work = Box::pin(async {
            tokio::select! {
                worked = service.run(&shutdown) => Ok(worked?),
                never = watch(&service, &metrics, &monitoring.health) => match never {},
            }
        });
        let served = serving::serve(&http, &monitoring, shutdown.clone(), work).await;
        vault.close().await;
        tracing::info!("vault: stopped");
        if let Some(store) = store {
            store.close().await?;
        }
        served
    }
}

/// Locks a file beside the SQLite file of a vault: each of two processes would get a part of the log, and wait for the
/// locks of the other in the file. `None`: any number of processes share the database.
fn lock_file(url: &StoreUrl) -> Result<Option<File>, Failure> {
    let StoreUrl::Sql(SqlSettings { database: SqlDatabase::SqliteFile(path), .. }) = url else { return Ok(None) };
    let mut lock = path.clone().into_os_string();
    lock.push(".lock");
    let lock = PathBuf::from(lock);
    let failed = |problem: String| Failure::new(format!("vault.url: {}: {problem}", lock.display()));
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(|error| failed(error.to_string()))?;
    }
    let file = File::options().create(true).append(true).open(&lock).map_err(|error| failed(error.to_string()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            Err(failed("another `vault run` has this database; use PostgreSQL for several processes".to_owned()))
        }
        Err(TryLockError::Error(error)) => Err(failed(error.to_string())),
    }
}

/// Opens the store of `vault.answers_url`, or the store of the configuration.
async fn open_source(
    config: &Config,
    arguments: ConfigArgs,
) -> Result<(Arc<dyn OutputSource>, Option<Store>), Failure> {
    if let Some(url) = &config.vault.answers_url {
        let token_file = config.vault.answers_token_file.as_ref().map(PathBuf::from);
        let source = HttpStore::open(url, token_file);
        return Ok((Arc::new(source.map_err(|error| UsageError(format!("vault.answers_url: {error}")))?), None));
    }
    let arguments = StoreArgs { config: arguments, ..StoreArgs::default() };
    let (store, _) = arguments.open_whole().await.map_err(|failure| match &config.store.url {
        StoreUrl::Fjall(..) => {
            failure.with_subject("the vault opens store.url itself, unless vault.answers_url names an instance")
        }
        _ => failure,
    })?;
    let store = Store::owning(store);
    Ok((Arc::new(OwnStore::of(&store)), Some(store)))
}

/// Reports in the health conditions whether the database and the store answer, and copies the counts to the metrics.
async fn watch(service: &VaultService, metrics: &VaultMetrics, health: &Health) -> Infallible {
    let counts = &service.counts;
    let mut before = [0; 5];
    loop {
        let looked = async {
            let totals = service.lock_totals().await?;
            service.vault().tip().await?;
            Ok::<_, VaultError>(totals)
        };
        let looked = tokio::time::timeout(LOOK_TIMEOUT, Box::pin(looked)).await;
        let late = || VaultError::Database(format!("no answer within {LOOK_TIMEOUT:?}"));
        match looked.unwrap_or_else(|_| Err(late())) {
            Ok(totals) => {
                health.set(Condition::StoreReachable, None);
                metrics.locks.set(i64::try_from(totals.locks).unwrap_or(i64::MAX));
                metrics.locked_outputs.set(i64::try_from(totals.outputs).unwrap_or(i64::MAX));
                metrics.oldest_lock_seconds.set(i64::try_from(totals.oldest.as_secs()).unwrap_or(i64::MAX));
            }
            Err(error) => health.set(Condition::StoreReachable, Some(error.to_string())),
        }
        metrics.lag_messages.set(i64::try_from(counts.follow.lag.load(Relaxed)).unwrap_or(i64::MAX));
        metrics.tip_height.set(i64::try_from(counts.asker.tip.load(Relaxed)).unwrap_or(i64::MAX));
        let now = [
            counts.follow.messages.load(Relaxed),
            counts.follow.outputs.load(Relaxed),
            counts.asker.answers.load(Relaxed),
            counts.asker.changes.load(Relaxed),
            counts.rescanned.load(Relaxed),
        ];
        let counters =
            [&metrics.messages, &metrics.outputs, &metrics.answers, &metrics.changed_answers, &metrics.rescanned];
        for ((counter, now), before) in counters.into_iter().zip(now).zip(before) {
            counter.inc_by(now.saturating_sub(before));
        }
        before = now;
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
