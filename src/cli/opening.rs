//! Opens what several commands need: logging, the store, the brokers, the parts of an instance.

use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, BufReader, Read},
    sync::Arc,
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{Failure, UsageError, wiring};
use crate::{
    blob::{self, BlobStore, BlobUrl, Intent, OpenBlobError, objects::Objects},
    broker::{
        Broker, BrokerError, BrokerErrorKind,
        kafka::{KafkaBroker, KafkaSettings},
        saved::SavedLog,
    },
    clock::Clock,
    config::Config,
    engine::{self, OpenError, StoreUrl, fjall::OpenFjallError},
    instance::InstanceParts,
    liveness::LivenessMonitor,
    status::{
        health::{Condition, Health},
        registry::InstanceStatus,
    },
    store::{
        Store,
        create::{CreatorIdentity, ProcessVisibility},
    },
    telemetry::{LoggingError, Metrics, WatchedEngine, init_logging},
};

/// Pause between two attempts to reach a broker.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Sends log records to standard error in the configured format, and logs the warnings of the configuration.
///
/// # Errors
/// Logging was set up before.
pub fn start_logging(config: &Config) -> Result<(), LoggingError> {
    init_logging(config.log.format, config.log.level.as_str())?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Opens the store at `url` without its blob store. Opening takes as long as the recovery of the store takes.
pub async fn open_store(config: &Config, url: &StoreUrl, metrics: &Arc<Metrics>) -> Result<Store, Failure> {
    let engine = engine::open(&url.to_string(), &wiring::engine_options(config)).await.map_err(store_error)?;
    let engine = WatchedEngine::new(engine, metrics.clone());
    Ok(Store::new(Arc::new(engine), wiring::store_settings(config)))
}

/// Opens the store of the configuration without a write to it, and without its blob store; `None`: its directory does
/// not exist.
///
/// # Errors
/// Every other error of [`OpenError`], which names the problem.
pub async fn open_existing_store(config: &Config) -> Result<Option<Store>, OpenError> {
    match engine::open_existing(&config.store.url.to_string(), &wiring::engine_options(config)).await {
        Ok(engine) => Ok(Some(Store::new(engine, wiring::store_settings(config)))),
        Err(OpenError::Fjall(OpenFjallError::Missing(_))) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens the blob store of the configuration; `None`: the configuration names no blob store.
pub async fn open_blobs(config: &Config, intent: Intent, metrics: &Arc<Metrics>) -> Result<Option<BlobStore>, Failure> {
    match config.store.blob_url().map_err(|problem| Failure::new(format!("store.url {problem}")))? {
        Some(url) => open_blobs_at(config, &url, intent, metrics).await.map(Some),
        None => Ok(None),
    }
}

/// Opens the blob store at `url` with the logins and limits of the configuration.
pub async fn open_blobs_at(
    config: &Config,
    url: &BlobUrl,
    intent: Intent,
    metrics: &Arc<Metrics>,
) -> Result<BlobStore, Failure> {
    let (access, options) = wiring::blob_settings(config, metrics);
    let opened = blob::open(url, intent, &access, options).await;
    opened.map_err(|error| match error {
        OpenBlobError::NotBuilt { .. } => UsageError(error.to_string()).into(),
        error => Failure::new(format!("cannot open the blob store: {error}")),
    })
}

/// Opens the objects of large blocks (`sequencer.objects_url`); `None`: the setting is not set.
pub async fn open_objects(config: &Config, metrics: &Arc<Metrics>) -> Result<Option<Objects>, Failure> {
    let Some(url) = &config.sequencer.objects_url else { return Ok(None) };
    let (access, options) = wiring::blob_settings(config, metrics);
    let opened = blob::open_objects(url, &access, &options).await;
    let opened =
        opened.map_err(|error| Failure::new(format!("cannot open the objects (sequencer.objects_url): {error}")))?;
    Ok(Some(opened))
}

/// Opens the store at `url`, runs `work` on it, and closes the store even if `work` fails.
///
/// # Errors
/// The store cannot be opened, `work` fails, or the store cannot be closed; an error of `work` has precedence.
pub async fn with_store<T>(
    config: &Config,
    url: &StoreUrl,
    metrics: &Arc<Metrics>,
    work: impl AsyncFnOnce(&Store) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let store = open_store(config, url, metrics).await?;
    let result = work(&store).await;
    let closed = store.engine.close().await;
    let result = result?;
    closed?;
    Ok(result)
}

fn store_error(error: OpenError) -> Failure {
    Failure::new(format!("cannot open the store (store.url): {error}"))
}

/// Builds the client of a Kafka cluster. The client connects with its first request.
///
/// # Errors
/// The settings contradict each other, or librdkafka does not know one of them: bad configuration.
pub fn build_kafka(settings: KafkaSettings) -> Result<KafkaBroker, UsageError> {
    if settings.brokers.starts_with("file://") {
        let problem = "is a saved log, which this command cannot use: name the brokers of a cluster (host:9092)";
        return Err(UsageError(format!("kafka.brokers {problem}")));
    }
    KafkaBroker::new(settings).map_err(|error| UsageError(format!("kafka: {error}")))
}

/// Opens the brokers of the configuration: a Kafka cluster, or the saved log of a `file://` URL.
///
/// # Errors
/// The same as [`build_kafka`]. The file cannot be read, or is not a saved log.
pub async fn open_broker(config: &Config) -> Result<Arc<dyn Broker>, Failure> {
    let Some(path) = config.kafka.brokers.saved_log() else {
        return Ok(Arc::new(build_kafka(wiring::kafka_settings(config))?));
    };
    let failed = |error: &dyn Display| Failure::new(format!("cannot open the saved log {}: {error}", path.display()));
    let file = File::open(path).map_err(|error| failed(&error))?;
    let log = SavedLog::load(BufReader::new(file)).await.map_err(|error| failed(&error))?;
    Ok(Arc::new(log))
}

/// Builds the client of the configured cluster, with its polling threads monitored by the watchdog.
pub fn open_watched_broker(config: &Config, liveness: &LivenessMonitor) -> Result<Arc<dyn Broker>, UsageError> {
    Ok(Arc::new(build_kafka(wiring::kafka_settings(config))?.with_liveness(liveness.clone())))
}

/// Builds the parts of an instance: clients, store, metrics, health, a new store id and the identity of the process.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn build_parts(broker: Arc<dyn Broker>, store: Store, monitoring: &Monitoring) -> io::Result<InstanceParts> {
    let identity = CreatorIdentity {
        owner: u64::from_le_bytes(random_bytes()?),
        process_id: std::process::id(),
        hostname: read_hostname(),
        process_visibility: ProcessVisibility::SameHost,
    };
    let Monitoring { metrics, health } = monitoring.clone();
    Ok(InstanceParts {
        broker,
        store,
        clock: Clock::System,
        metrics,
        health,
        earlier_halts: Arc::default(),
        store_id: random_bytes()?,
        identity,
    })
}

/// Returns random bytes of the operating system, for ids.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads the name of this machine, which lock records and the state page show.
fn read_hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// Waits until the brokers answer; `false`: `shutdown` came first. Each attempt without an answer is logged, and the
/// instance is not ready until the brokers answer.
///
/// # Errors
/// An error that no retry mends, such as refused access.
pub async fn wait_until_reachable(
    broker: &dyn Broker,
    topic: &str,
    health: &Health,
    shutdown: &CancellationToken,
) -> Result<bool, BrokerError> {
    loop {
        let answer = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(false),
            answer = broker.partitions(topic) => answer,
        };
        match answer {
            Ok(_) => {
                health.set(Condition::BrokerReachable, None);
                return Ok(true);
            }
            Err(error) if error.kind == BrokerErrorKind::Retryable => {
                tracing::warn!(%error, "broker: no answer, retrying");
                health.set(Condition::BrokerReachable, Some(format!("the broker does not answer: {error}")));
            }
            Err(error) => return Err(error),
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(false),
            () = tokio::time::sleep(RETRY_PAUSE) => {}
        }
    }
}

/// Metrics and health of an instance.
#[derive(Clone)]
pub struct Monitoring {
    /// Counters and gauges of the `/metrics` page.
    pub metrics: Arc<Metrics>,
    /// Readiness, liveness and state pages.
    pub health: Arc<Health>,
}

impl Monitoring {
    /// Starts with empty metrics, and with the identity of this process on the state page.
    pub fn new(config: &Config) -> Self {
        let stall_limit = Duration::from_millis(config.http.stall_limit_ms);
        let limit = Some(config.run.watchdog_ms).filter(|ms| *ms > 0).map(Duration::from_millis);
        let health = Health::new(Clock::System, stall_limit).with_watchdog(limit);
        health.status_registry().publish_instance(InstanceStatus {
            client_id: config.kafka.client_id.clone(),
            instance_id: config.kafka.instance_id.clone(),
            group: config.kafka.group.clone(),
            hostname: read_hostname(),
            process_id: std::process::id(),
        });
        Monitoring { metrics: Arc::new(Metrics::new()), health: Arc::new(health) }
    }
}
