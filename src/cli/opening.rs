//! What several commands open before their work begins: logging, the store, the log, the parts of an instance.

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
    engine::{self, OpenError, StoreUrl},
    instance::InstanceParts,
    liveness::LivenessMonitor,
    status::{
        health::{Condition, Health},
        registry::InstanceStatus,
    },
    store::{
        Store,
        create::{Identity, Processes},
    },
    telemetry::{LoggingError, Metrics, WatchedEngine, init_logging},
};

/// Between two attempts to reach a broker.
pub const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Sends log records to standard error, as configured.
///
/// # Errors
/// Logging was set up before.
pub fn logging(config: &Config) -> Result<(), LoggingError> {
    init_logging(config.log.format, config.log.level.as_str())?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    Ok(())
}

/// Opens the store at `url`, without its blob store, which may take as long as recovering it takes.
///
/// # Errors
/// See [`OpenError`]; each names what is wrong.
pub async fn store(config: &Config, url: &StoreUrl, metrics: &Arc<Metrics>) -> Result<Store, Failure> {
    let engine = engine::open(&url.to_string(), &wiring::engine(config)).await.map_err(named)?;
    let watched = WatchedEngine::new(engine, metrics.clone());
    Ok(Store::new(Arc::new(watched), wiring::store(config)))
}

/// Opens the blob store that the configuration names; `None`: it names none.
///
/// # Errors
/// As [`blobs_at`].
pub async fn blobs(config: &Config, intent: Intent, metrics: &Arc<Metrics>) -> Result<Option<BlobStore>, Failure> {
    match config.store.blob_url().map_err(|problem| Failure::new(format!("store.url {problem}")))? {
        Some(url) => blobs_at(config, &url, intent, metrics).await.map(Some),
        None => Ok(None),
    }
}

/// Opens the blob store at `url`, which is reached and used as the configuration says.
///
/// # Errors
/// See [`blob::OpenBlobError`]; each names what is wrong.
pub async fn blobs_at(
    config: &Config,
    url: &BlobUrl,
    intent: Intent,
    metrics: &Arc<Metrics>,
) -> Result<BlobStore, Failure> {
    let (access, options) = wiring::blobs(config, metrics);
    let opened = blob::open(url, intent, &access, options).await;
    opened.map_err(|error| match error {
        OpenBlobError::NotBuilt { .. } => UsageError(error.to_string()).into(),
        error => Failure::new(format!("cannot open the blob store: {error}")),
    })
}

/// Opens the place of the objects that large blocks refer to; `None`: the configuration names none.
///
/// # Errors
/// See [`blob::OpenBlobError`]; each names what is wrong.
pub async fn objects(config: &Config, metrics: &Arc<Metrics>) -> Result<Option<Objects>, Failure> {
    let Some(url) = &config.sequencer.objects_url else { return Ok(None) };
    let (access, options) = wiring::blobs(config, metrics);
    let opened = blob::open_objects(url, &access, &options).await;
    let opened =
        opened.map_err(|error| Failure::new(format!("cannot read objects (sequencer.objects_url): {error}")))?;
    Ok(Some(opened))
}

/// Opens the store at `url`, works with it, and closes it however the work has ended.
///
/// # Errors
/// It cannot be opened or closed; or those of the work, which come first.
pub async fn with_store<T>(
    config: &Config,
    url: &StoreUrl,
    metrics: &Arc<Metrics>,
    work: impl AsyncFnOnce(&Store) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let store = store(config, url, metrics).await?;
    let ended = work(&store).await;
    let closed = store.engine.close().await;
    let ended = ended?;
    closed?;
    Ok(ended)
}

fn named(error: OpenError) -> Failure {
    Failure::new(format!("cannot open the store (store.url): {error}"))
}

/// Prepares the client of a Kafka cluster; it connects when it is asked for something.
///
/// # Errors
/// The settings contradict each other, or librdkafka knows none of that name: that is bad configuration.
pub fn kafka(settings: KafkaSettings) -> Result<KafkaBroker, UsageError> {
    if settings.brokers.starts_with("file://") {
        let problem = "is a saved log, which can only be looked at: name the brokers of a cluster (host:9092)";
        return Err(UsageError(format!("kafka.brokers {problem}")));
    }
    KafkaBroker::new(settings).map_err(|error| UsageError(format!("kafka: {error}")))
}

/// The same, as any log; also one that was saved.
///
/// # Errors
/// As [`kafka`]. The file of a saved log cannot be read, or is none.
pub async fn broker(config: &Config) -> Result<Arc<dyn Broker>, Failure> {
    let Some(path) = config.kafka.brokers.saved_log() else { return Ok(Arc::new(kafka(wiring::kafka(config))?)) };
    let failed = |error: &dyn Display| Failure::new(format!("cannot open the saved log {}: {error}", path.display()));
    let file = File::open(path).map_err(|error| failed(&error))?;
    let log = SavedLog::load(BufReader::new(file)).await.map_err(|error| failed(&error))?;
    Ok(Arc::new(log))
}

/// The same, whose polling threads beat there.
///
/// # Errors
/// As [`kafka`].
pub fn watched_broker(config: &Config, liveness: &LivenessMonitor) -> Result<Arc<dyn Broker>, UsageError> {
    Ok(Arc::new(kafka(wiring::kafka(config))?.watched(liveness.clone())))
}

/// Everything that an instance works with.
///
/// # Errors
/// The machine has no random numbers.
pub fn parts(broker: Arc<dyn Broker>, store: Store, watched: &Watched) -> io::Result<InstanceParts> {
    let (mut store_id, mut owner) = ([0; 16], [0; 8]);
    let mut random = File::open("/dev/urandom")?;
    random.read_exact(&mut store_id)?;
    random.read_exact(&mut owner)?;
    let identity = Identity {
        owner: u64::from_le_bytes(owner),
        process_id: std::process::id(),
        hostname: hostname(),
        sees: Processes::OfItsHost,
    };
    let Watched { metrics, health } = watched.clone();
    Ok(InstanceParts {
        broker,
        store,
        clock: Clock::System,
        metrics,
        health,
        earlier_halts: Arc::default(),
        store_id,
        identity,
    })
}

/// What this machine calls itself: people read it in lock records.
fn hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

/// Waits until the log answers, or until `shutdown`: `false`. Says so each time that it does not, and is unready meanwhile.
///
/// # Errors
/// What does not heal by itself, such as refused access.
pub async fn reachable(
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
                tracing::warn!(%error, "the broker does not answer; tried again");
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

/// What is shown of an instance.
#[derive(Clone)]
pub struct Watched {
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Health.
    pub health: Arc<Health>,
}

impl Watched {
    /// Nothing yet.
    pub fn new(config: &Config) -> Self {
        let stall_limit = Duration::from_millis(config.http.stall_limit_ms);
        let limit = Some(config.run.watchdog_ms).filter(|ms| *ms > 0).map(Duration::from_millis);
        let health = Health::new(Clock::System, stall_limit).watched(limit);
        health.status_registry().publish_instance(InstanceStatus {
            client_id: config.kafka.client_id.clone(),
            instance_id: config.kafka.instance_id.clone(),
            group: config.kafka.group.clone(),
            hostname: hostname(),
            process_id: std::process::id(),
        });
        Watched { metrics: Arc::new(Metrics::new()), health: Arc::new(health) }
    }
}
