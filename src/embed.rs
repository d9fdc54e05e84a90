//! An instance inside a process: [`Instance`] opens what a configuration names and runs an instance on it,
//! [`Store`] reads a store. The command line uses both.

pub mod opening;
pub mod reader;
pub mod wiring;

use std::{panic::resume_unwind, sync::Arc, time::Duration};

use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use opening::OpeningError;
use opening::{LogObjects, Monitoring, build_parts};
pub use reader::Store;

use crate::{
    blob::{BlobUrl, Intent},
    broker::{Broker, BrokerError, BrokerErrorKind},
    config::{Brokers, Config, Topics},
    engine::{EngineError, StoreUrl},
    ingest::pipeline::PipelineReport,
    instance::{self, InstanceError, InstanceParts},
    status::{
        Health, HealthReport, StatePage,
        control::{ControlAnswer, PartitionCommand},
        health::Condition,
    },
    store::{
        StateStore,
        health_check::{CheckError, CheckStep},
    },
};

/// Pause between two attempts to reach a broker.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Reason of the reports of an instance that has ended.
const HAS_ENDED: &str = "the instance has ended";
/// Pause between two looks at the readiness.
const READY_POLL: Duration = Duration::from_millis(20);

/// A running instance: the pipeline and the sequencer of a store, in this process.
///
/// The instance runs in a task of the runtime in which it was started. A dropped handle shuts the instance down: the
/// instance stops reading, completes the events in flight and commits.
pub struct Instance {
    monitoring: Monitoring,
    shutdown: CancellationToken,
    _shutdown_on_drop: DropGuard,
    opened: watch::Receiver<Option<Store>>,
    running: JoinHandle<Result<PipelineReport, RunError>>,
}

/// Shuts an [`Instance`] down. Clones shut the same instance down.
#[derive(Debug, Clone)]
pub struct Stopper(CancellationToken);

impl Stopper {
    /// Starts the shutdown; [`Instance::join`] returns at its end.
    pub fn stop(&self) {
        self.0.cancel();
    }
}

/// Makes the instance unready at its end, whatever ends it.
struct UnreadyAtEnd(Arc<Health>);

impl Drop for UnreadyAtEnd {
    fn drop(&mut self) {
        self.0.set(Condition::Assigned, Some(HAS_ENDED.to_owned()));
    }
}

/// Builder of an [`Instance`]. Each method replaces a part of the configuration.
#[derive(Default)]
pub struct InstanceBuilder {
    config: Config,
    broker: Option<Arc<dyn Broker>>,
}

/// An instance before its start.
pub(crate) struct PreparedInstance {
    config: Config,
    broker: Option<Arc<dyn Broker>>,
    /// Metrics and health of the instance.
    pub monitoring: Monitoring,
    /// Shuts the instance down when cancelled.
    pub shutdown: CancellationToken,
    opened: watch::Sender<Option<Store>>,
}

/// Reasons why an instance ended without a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store, its blob store or the log cannot be opened.
    #[error(transparent)]
    Opening(#[from] OpeningError),
    /// The log refuses access.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The instance met an error that no restart mends.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The store cannot be closed.
    #[error(transparent)]
    Close(#[from] EngineError),
    /// The runtime of the instance was shut down.
    #[error("the runtime of the instance was shut down")]
    Aborted,
}

impl RunError {
    /// Returns whether another process has the same `kafka.instance_id` and continues: do not start this instance
    /// again.
    pub fn is_fenced(&self) -> bool {
        matches!(self, RunError::Instance(error) if error.is_fenced())
    }
}

impl InstanceBuilder {
    /// Replaces the whole configuration.
    #[must_use]
    pub fn config(self, config: Config) -> Self {
        InstanceBuilder { config, ..self }
    }

    /// Names the store: `memory://`, `fjall:///directory` or `aerospike://host/namespace`.
    #[must_use]
    pub fn store_url(mut self, url: StoreUrl) -> Self {
        self.config.store.url = url;
        self
    }

    /// Names the blob store of large bodies: `memory://`, `file:///directory` or `s3://bucket/prefix`.
    #[must_use]
    pub fn blob_url(mut self, url: BlobUrl) -> Self {
        self.config.store.blobs.url = Some(url);
        self
    }

    /// Names the Kafka cluster.
    #[must_use]
    pub fn brokers(mut self, brokers: Brokers) -> Self {
        self.config.kafka.brokers = brokers;
        self
    }

    /// Uses this log instead of a Kafka cluster.
    #[must_use]
    pub fn broker(self, broker: Arc<dyn Broker>) -> Self {
        InstanceBuilder { broker: Some(broker), ..self }
    }

    /// Names the consumer group. All instances of a group share one store.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.config.kafka.group = group.into();
        self
    }

    /// Names the topics of the log, each by its purpose.
    #[must_use]
    pub fn topics(mut self, topics: Topics) -> Self {
        self.config.kafka.topics = topics;
        self
    }

    /// Starts the instance in a task of the current tokio runtime. The configuration is checked and the store is opened
    /// in that task: an error that prevents the start is the result of [`Instance::join`].
    ///
    /// # Panics
    /// No tokio runtime runs.
    pub fn start(self) -> Instance {
        let prepared = self.prepare();
        Instance {
            monitoring: prepared.monitoring.clone(),
            shutdown: prepared.shutdown.clone(),
            _shutdown_on_drop: prepared.shutdown.clone().drop_guard(),
            opened: prepared.opened.subscribe(),
            running: tokio::spawn(prepared.run()),
        }
    }

    pub(crate) fn prepare(self) -> PreparedInstance {
        let InstanceBuilder { config, broker } = self;
        let (monitoring, shutdown) = (Monitoring::new(&config), CancellationToken::new());
        PreparedInstance { config, broker, monitoring, shutdown, opened: watch::Sender::default() }
    }
}

impl Instance {
    /// Returns a builder with the default configuration.
    pub fn builder() -> InstanceBuilder {
        InstanceBuilder::default()
    }

    /// Reports whether the instance works; the reasons why not, by condition.
    pub fn readiness(&self) -> HealthReport {
        self.monitoring.health.ready()
    }

    /// Reports whether the instance makes progress; if not, only a new start helps. An instance that has ended is not
    /// live.
    pub fn liveness(&self) -> HealthReport {
        let mut report = self.monitoring.health.live();
        if self.running.is_finished() {
            report.ok = false;
            report.reasons.insert("ended", HAS_ENDED.to_owned());
        }
        report
    }

    /// Returns the metrics in the text format of Prometheus.
    ///
    /// # Errors
    /// The metrics cannot be encoded.
    pub fn metrics(&self) -> Result<String, prometheus::Error> {
        self.monitoring.metrics.encode()
    }

    /// Returns a handle that shuts the instance down while another task waits in [`join`](Self::join).
    pub fn stopper(&self) -> Stopper {
        Stopper(self.shutdown.clone())
    }

    /// Returns the state page: partitions, offsets, halts, and the chain.
    pub fn status(&self) -> StatePage {
        self.monitoring.health.status_registry().page(&self.monitoring.health)
    }

    /// Lifts the halt of a partition of validated transactions: the partition is read again from its committed offset.
    pub async fn retry(&self, partition: i32) -> ControlAnswer {
        self.command(partition, PartitionCommand::Retry).await
    }

    /// Stops the reads of a partition of validated transactions by this instance, also after a rebalance, until
    /// [`resume`](Self::resume) or the end of the instance.
    pub async fn pause(&self, partition: i32) -> ControlAnswer {
        self.command(partition, PartitionCommand::Pause).await
    }

    /// Continues the reads of a paused partition.
    pub async fn resume(&self, partition: i32) -> ControlAnswer {
        self.command(partition, PartitionCommand::Resume).await
    }

    async fn command(&self, partition: i32, command: PartitionCommand) -> ControlAnswer {
        self.monitoring.health.control().partitions.ask((partition, command)).await
    }

    /// Lifts the halt of the chain: the halted event is handled again.
    pub async fn retry_chain(&self) -> ControlAnswer {
        self.monitoring.health.control().chain.ask(()).await
    }

    /// Returns the store once the store is open and checked; `None`: the instance has ended before, and
    /// [`join`](Self::join) has the reason. The reader fails once the instance has ended.
    pub async fn store(&self) -> Option<Store> {
        let store = self.opened.clone().wait_for(Option::is_some).await.ok()?.clone();
        // Before the checks of the start the store may be of another network, or have another page size.
        while self.monitoring.health.is_unmet(Condition::StoreReachable) {
            if self.running.is_finished() {
                return None;
            }
            tokio::time::sleep(READY_POLL).await;
        }
        store
    }

    /// Checks that the store takes a write and gives it back: a write and a read of the meta record, each within
    /// `limit`. Readiness tells without a write whether the store answers.
    ///
    /// # Errors
    /// The step that failed, with the reason: the store is not open yet, fails, or gives no answer in time.
    pub async fn check_store(&self, limit: Duration) -> Result<(), CheckError> {
        let store = self.opened.borrow().clone();
        match store {
            Some(store) => store.check_deep(limit).await,
            None => Err(CheckError { step: CheckStep::Write, why: "the store is not open".to_owned() }),
        }
    }

    /// Waits until the instance is ready; `false`: the instance has ended before, and [`join`](Self::join) has the
    /// reason.
    pub async fn wait_until_ready(&self) -> bool {
        loop {
            if self.running.is_finished() {
                return false;
            }
            if self.readiness().ok {
                return true;
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Shuts the instance down and waits for its end: the instance stops reading, completes the events in flight,
    /// commits, and closes its store. A start or a rewind that waits for the nodes of the store is given up and commits
    /// nothing.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub async fn shut_down(self) -> Result<PipelineReport, RunError> {
        self.shutdown.cancel();
        self.join().await
    }

    /// Waits until the instance ends by itself. The instance is shut down when the future is dropped.
    ///
    /// # Errors
    /// See [`RunError`].
    ///
    /// # Panics
    /// The instance has panicked.
    pub async fn join(self) -> Result<PipelineReport, RunError> {
        let Instance { running, _shutdown_on_drop, .. } = self;
        ended(running).await
    }
}

async fn ended(running: JoinHandle<Result<PipelineReport, RunError>>) -> Result<PipelineReport, RunError> {
    running.await.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err(RunError::Aborted),
    })
}

impl PreparedInstance {
    /// Returns the place of the store, which is empty until the store is open.
    pub(crate) fn opened(&self) -> watch::Receiver<Option<Store>> {
        self.opened.subscribe()
    }

    /// Opens the log and the store, and runs the instance until its shutdown or an error.
    ///
    /// # Errors
    /// See [`RunError`].
    pub(crate) async fn run(self) -> Result<PipelineReport, RunError> {
        let PreparedInstance { config, broker, monitoring, shutdown, opened } = self;
        let _unready_at_end = UnreadyAtEnd(monitoring.health.clone());
        config.validate().map_err(OpeningError::from)?;
        let broker = match broker {
            Some(broker) => broker,
            None => opening::open_watched_broker(&config, monitoring.health.liveness())?,
        };
        let blobs = opening::open_blobs(&config, Intent::Write, &monitoring.metrics).await?;
        let objects = LogObjects::open(&config, &monitoring.metrics).await?;
        opening::with_store(&config, &config.store.url, &monitoring.metrics, async |store: &StateStore| {
            let store = objects.attach_to(store.clone().with_blobs(blobs));
            opened.send_replace(Some(Store::of(store.clone())));
            let parts = build_parts(broker, store, &monitoring).map_err(OpeningError::from)?;
            Box::pin(consume(&config, parts, shutdown)).await
        })
        .await
    }
}

/// Runs an instance, and restarts the instance within the process after an outage of the brokers or the blob store.
///
/// # Errors
/// The instance fails with an error that no restart mends, or is fenced.
pub(crate) async fn consume(
    config: &Config,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<PipelineReport, RunError> {
    let settings = wiring::instance_settings(config);
    unset_ready_on_shutdown(parts.health.clone(), shutdown.clone());
    let topic = &settings.pipeline.topic;
    while wait_until_reachable(parts.broker.as_ref(), topic, &parts.health, &shutdown).await? {
        match instance::run(settings.clone(), parts.clone(), shutdown.clone()).await {
            Err(error) if error.may_be_retried() => {
                tracing::warn!(%error, "run: broker or blob store unavailable, restarting the instance");
                parts.health.set(Condition::Assigned, Some(error.to_string()));
                tokio::time::sleep(RETRY_PAUSE).await;
            }
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

/// Waits until the brokers answer; `false`: `shutdown` came first. Each attempt without an answer is logged, and the
/// instance is not ready until the brokers answer.
///
/// # Errors
/// An error that no retry mends, such as refused access.
async fn wait_until_reachable(
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
