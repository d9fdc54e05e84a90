//! Opens what a configuration names: logging, the store, the brokers, the parts of an instance.

use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, BufReader},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use super::wiring;
use crate::{
    blob::{self, BlobStore, BlobUrl, BlobUrlError, EventBodies, Intent, OpenBlobError, objects::Objects},
    broker::{
        Broker,
        kafka::{KafkaBroker, KafkaSettings},
        saved::SavedLog,
    },
    clock::Clock,
    config::{Config, ConfigErrors},
    engine::{self, EngineError, OpenError, StoreUrl, fjall::OpenFjallError, sql::OpenSqlError},
    instance::InstanceParts,
    liveness::LivenessMonitor,
    rng::random_bytes,
    status::{Health, registry::InstanceStatus},
    store::{
        StateStore,
        create::{CreatorIdentity, ProcessVisibility},
        meta::MetaError,
    },
    telemetry::{LoggingError, Metrics, WatchedEngine, init_logging},
    tx::UnknownNetwork,
};

/// Setting that names the place of the objects to which events refer.
const OBJECTS_URL: &str = "objects.url";

/// Reasons why a store, a log or an instance cannot be opened; each message is one line, but for `Config`.
#[derive(Debug, thiserror::Error)]
pub enum OpeningError {
    /// The settings contradict each other, librdkafka does not know one of them, or they need a feature that this build
    /// does not have.
    #[error("{0}")]
    Settings(String),
    /// Values of the configuration are out of range or contradict each other; one line per error.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The configured store cannot be opened.
    #[error("cannot open the store (store.url): {0}")]
    ConfiguredStore(OpenError),
    /// The existing store that a URL names cannot be opened.
    #[error(transparent)]
    ExistingStore(#[from] OpenError),
    /// The URL names no store: the meta record is missing.
    #[error("there is no store at this URL: the meta record is missing")]
    NoStore,
    /// The meta record refuses the reader.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The meta record has the name of an unknown network.
    #[error(transparent)]
    Network(#[from] UnknownNetwork),
    /// The store does not answer.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The URL of the store has a blob store that differs from the configured one, or that is none.
    #[error("store.url {0}")]
    BlobUrl(String),
    /// The text of the blob store's URL cannot be parsed.
    #[error(transparent)]
    BlobUrlSyntax(#[from] BlobUrlError),
    /// The blob store cannot be opened.
    #[error("cannot open the blob store: {0}")]
    Blobs(OpenBlobError),
    /// The objects to which events refer cannot be opened.
    #[error("cannot open the objects ({setting}): {error}")]
    Objects {
        /// Key of the setting that names the place.
        setting: &'static str,
        /// Reason, in one line.
        error: OpenBlobError,
    },
    /// The file is not a saved log, or cannot be read.
    #[error("cannot open the saved log {}: {problem}", path.display())]
    SavedLog {
        /// Path of the file.
        path: PathBuf,
        /// Problem of the file, in one line.
        problem: String,
    },
    /// The operating system gives no random numbers.
    #[error(transparent)]
    Random(#[from] io::Error),
}

impl OpeningError {
    /// Returns whether the settings are at fault.
    pub fn is_bad_settings(&self) -> bool {
        matches!(self, OpeningError::Settings(_) | OpeningError::Config(_))
    }
}

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
///
/// # Errors
/// Every error of [`OpenError`], which names the problem.
pub async fn open_store(config: &Config, url: &StoreUrl, metrics: &Arc<Metrics>) -> Result<StateStore, OpeningError> {
    let engine = engine::open_url(url.clone(), &wiring::engine_options(config)).await;
    let engine = engine.map_err(OpeningError::ConfiguredStore)?;
    let engine = WatchedEngine::new(engine, metrics.clone());
    Ok(StateStore::new(Arc::new(engine), wiring::store_settings(config)))
}

/// Opens the store of the configuration without a write to it, and without its blob store; `None`: its directory does
/// not exist.
///
/// # Errors
/// Every other error of [`OpenError`], which names the problem.
pub async fn open_existing_store(config: &Config) -> Result<Option<StateStore>, OpenError> {
    match engine::open_existing_url(config.store.url.clone(), &wiring::engine_options(config)).await {
        Ok(engine) => Ok(Some(StateStore::new(engine, wiring::store_settings(config)))),
        Err(OpenError::Fjall(OpenFjallError::Missing(_)) | OpenError::Sql(OpenSqlError::Missing { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Opens the blob store of the configuration; `None`: the configuration names no blob store.
///
/// # Errors
/// The same as [`open_blobs_at`].
pub async fn open_blobs(
    config: &Config,
    intent: Intent,
    metrics: &Arc<Metrics>,
) -> Result<Option<BlobStore>, OpeningError> {
    match config.store.blob_url().map_err(OpeningError::BlobUrl)? {
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
) -> Result<BlobStore, OpeningError> {
    let (access, options) = wiring::blob_settings(config, metrics);
    let opened = blob::open(url, intent, &access, options).await;
    opened.map_err(|error| match error {
        OpenBlobError::NotBuilt { .. } => OpeningError::Settings(error.to_string()),
        error => OpeningError::Blobs(error),
    })
}

/// Opens the objects of large blocks (`sequencer.objects_url`, else `objects.url`); `None`: no setting names them.
///
/// # Errors
/// Every error of [`blob::OpenBlobError`], which names the problem.
pub async fn open_objects(config: &Config, metrics: &Arc<Metrics>) -> Result<Option<Objects>, OpeningError> {
    let Some(url) = wiring::block_objects_url(config) else { return Ok(None) };
    let (access, options) = wiring::blob_settings(config, metrics);
    let setting = if config.sequencer.objects_url.is_some() { "sequencer.objects_url" } else { OBJECTS_URL };
    let opened = blob::open_objects(url, &access, &options).await;
    opened.map(Some).map_err(|error| OpeningError::Objects { setting, error })
}

/// Opens the object store of event bodies that a configuration names (`objects.url`), for a producer; `None`: the
/// setting is not set. A directory is created.
///
/// # Errors
/// The place cannot be opened.
pub async fn open_event_bodies(config: &Config) -> Result<Option<EventBodies>, OpeningError> {
    open_event_bodies_for(Intent::Write, config, &Arc::default()).await
}

/// Opens the object store of event bodies (`objects.url`); `None`: the setting is not set.
///
/// # Errors
/// Every error of [`blob::OpenBlobError`], which names the problem.
pub async fn open_event_bodies_for(
    intent: Intent,
    config: &Config,
    metrics: &Arc<Metrics>,
) -> Result<Option<EventBodies>, OpeningError> {
    let Some(url) = &config.objects.url else { return Ok(None) };
    let (access, options) = wiring::blob_settings(config, metrics);
    let opened = blob::open_event_bodies(url, intent, &access, &options, wiring::event_body_limits(config)).await;
    opened.map(Some).map_err(|error| OpeningError::Objects { setting: OBJECTS_URL, error })
}

/// The objects to which events refer.
pub struct LogObjects {
    blocks: Option<Objects>,
    bodies: Option<EventBodies>,
}

impl LogObjects {
    /// Opens the configured places, to read.
    ///
    /// # Errors
    /// A place cannot be opened.
    pub async fn open(config: &Config, metrics: &Arc<Metrics>) -> Result<Self, OpeningError> {
        let blocks = open_objects(config, metrics).await?;
        Ok(LogObjects { blocks, bodies: open_event_bodies_for(Intent::Read, config, metrics).await? })
    }

    /// Returns the store with these objects.
    pub fn attach_to(self, store: StateStore) -> StateStore {
        store.with_objects(self.blocks).with_event_bodies(self.bodies)
    }
}

/// Opens the store at `url`, runs `work` on it, and closes the store even if `work` fails.
///
/// # Errors
/// The store cannot be opened, `work` fails, or the store cannot be closed; an error of `work` has precedence.
pub async fn with_store<T, E: From<OpeningError> + From<EngineError>>(
    config: &Config,
    url: &StoreUrl,
    metrics: &Arc<Metrics>,
    work: impl AsyncFnOnce(&StateStore) -> Result<T, E>,
) -> Result<T, E> {
    let store = open_store(config, url, metrics).await?;
    let result = work(&store).await;
    let closed = store.engine.close().await;
    let result = result?;
    closed?;
    Ok(result)
}

/// Builds the client of a Kafka cluster. The client connects with its first request.
///
/// # Errors
/// The settings contradict each other, or librdkafka does not know one of them: bad configuration.
pub fn build_kafka(settings: KafkaSettings) -> Result<KafkaBroker, OpeningError> {
    if settings.brokers.starts_with("file://") {
        let problem = "is a saved log, which this command cannot use: name the brokers of a cluster (host:9092)";
        return Err(OpeningError::Settings(format!("kafka.brokers {problem}")));
    }
    KafkaBroker::new(settings).map_err(|error| OpeningError::Settings(format!("kafka: {error}")))
}

/// Opens the brokers of the configuration: a Kafka cluster, or the saved log of a `file://` URL.
///
/// # Errors
/// The settings contradict each other, or librdkafka does not know one of them. The file cannot be read, or is not a
/// saved log.
pub async fn open_broker(config: &Config) -> Result<Arc<dyn Broker>, OpeningError> {
    let Some(path) = config.kafka.brokers.saved_log() else {
        return Ok(Arc::new(build_kafka(wiring::kafka_settings(config))?));
    };
    let failed = |error: &dyn Display| OpeningError::SavedLog { path: path.to_owned(), problem: error.to_string() };
    let file = File::open(path).map_err(|error| failed(&error))?;
    let log = SavedLog::load(BufReader::new(file)).await.map_err(|error| failed(&error))?;
    Ok(Arc::new(log))
}

/// Builds the client of the configured cluster, with its polling threads monitored by the watchdog.
///
/// # Errors
/// The same as [`build_kafka`].
pub fn open_watched_broker(config: &Config, liveness: &LivenessMonitor) -> Result<Arc<dyn Broker>, OpeningError> {
    Ok(Arc::new(build_kafka(wiring::kafka_settings(config))?.with_liveness(liveness.clone())))
}

/// Builds the parts of an instance: clients, store, metrics, health, a new store id and the identity of the process.
///
/// # Errors
/// `/dev/urandom` cannot be read.
pub fn build_parts(broker: Arc<dyn Broker>, store: StateStore, monitoring: &Monitoring) -> io::Result<InstanceParts> {
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

/// Reads the name of this machine, which lock records and the state page show.
fn read_hostname() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::env::var("HOSTNAME"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
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
