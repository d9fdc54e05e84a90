//! An instance: a pipeline and a sequencer over one broker and one store. Also the rebuild of a store from the log.

mod catch_up;
mod error;
pub(crate) mod frontier;
pub(crate) mod log_probe;
pub mod offset_reset;
mod rebuild;
pub(crate) mod start;

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use catch_up::CatchUp;
pub(crate) use catch_up::report_catch_up;
pub use error::InstanceError;
use frontier::Frontier;
pub use rebuild::{RebuildReport, rebuild, resume_rebuild};

use crate::{
    broker::{Broker, BrokerError, Outage, Producer, TopicPartition, identity::TopicGuard},
    clock::Clock,
    event::Topic,
    group::{earlier_halts::EarlierHalts, outcomes::OutcomeTopic},
    ingest::{
        outcome_watch::OutcomeWatch,
        pipeline::{Pipeline, PipelineReport, PipelineServices, PipelineSettings},
        publish::Publisher,
    },
    replay::Modes,
    sequencer::{
        ChainMode, Sequencer, SequencerParts, SequencerSettings, SequencerTopics, ValidatedSource, chain_group,
        progress::CommittedProgress,
    },
    status::{Condition, Health},
    store::{
        StateStore,
        create::{Creator, CreatorIdentity},
        ownership::StoreOwnership,
        restart_detector::RestartDetector,
    },
    telemetry::Metrics,
};

/// Topics, group and limits of an instance.
#[derive(Debug, Clone)]
pub struct InstanceSettings {
    /// Settings of the pipeline.
    pub pipeline: PipelineSettings,
    /// Settings of the sequencer.
    pub sequencer: SequencerSettings,
    /// Names of the topics that the sequencer uses.
    pub topics: SequencerTopics,
    /// True if this instance joins the group of the chain.
    pub sequencer_enabled: bool,
    /// Time from completion to durability; `None`: five times the loss window of the engine.
    pub durability_lag: Option<Duration>,
}

impl InstanceSettings {
    /// Returns the configured name of a topic.
    pub fn topic_name(&self, topic: Topic) -> &str {
        match topic {
            Topic::ValidatedTxs => &self.pipeline.topic,
            Topic::BlockMined => &self.topics.block_mined,
            Topic::Reorgs => &self.topics.reorgs,
            Topic::Chain => &self.topics.chain,
            Topic::Decisions => &self.topics.decisions,
            Topic::Outcomes => &self.topics.outcomes,
            Topic::DeadLetters => &self.topics.dead_letters,
        }
    }

    pub(crate) fn partition(&self, topic: Topic, partition: i32) -> TopicPartition {
        TopicPartition { topic: self.topic_name(topic).into(), partition }
    }

    /// Returns the topics that are the source of the state, with their names. A store is bound to these topics.
    pub(crate) fn state_topics(&self) -> Vec<(Topic, String)> {
        let topics = Topic::all().filter(|topic| topic.is_state_source());
        topics.map(|topic| (topic, self.topic_name(topic).to_owned())).collect()
    }
}

/// Services of an instance: broker, store, clock, metrics, health.
#[derive(Clone)]
pub struct InstanceParts {
    /// Client of the brokers that hold the log.
    pub broker: Arc<dyn Broker>,
    /// Store of the state, with its blob store.
    pub store: StateStore,
    /// Clock of the process.
    pub clock: Clock,
    /// Metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Health conditions and the state page.
    pub health: Arc<Health>,
    /// Halts that a start of this process clears; shared by the successive instances of the process.
    pub earlier_halts: Arc<EarlierHalts>,
    /// Random id for a store that this instance creates.
    pub store_id: [u8; 16],
    /// Identity that the lock records of this instance carry.
    pub identity: CreatorIdentity,
}

/// Runs an instance until `shutdown` is cancelled, or until an error.
///
/// # Errors
/// See [`InstanceError`]. Only offsets of completed events are committed, whatever the error.
pub async fn run(
    mut settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<PipelineReport, InstanceError> {
    parts.health.status_registry().publish_store(parts.store.engine.name());
    let (parts, catch_up) = tokio::select! {
        biased;
        begun = CatchUp::begin(&settings, parts) => begun?,
        () = wait_after(&shutdown, START_GRACE) => return Ok(PipelineReport::default()),
    };
    let starting = async {
        let counts = start::check_topics(&settings, parts.broker.as_ref()).await?;
        settings.pipeline.partitions = Some(counts.validated);
        let frontier = Frontier::read(&settings, parts.broker.as_ref()).await?;
        frontier.record_halts(&parts.earlier_halts);
        let mut nodes = start::restart_detector(&settings, &parts)?;
        start::open_durably(&parts, &mut nodes, frontier.has_commits()).await?;
        let log = start::check_log(&settings, &parts, &frontier).await?;
        // The count that the store is bound to: the topic may have grown since the check above.
        settings.pipeline.partitions = log.partition_count().and_then(|count| i32::try_from(count).ok());
        // Binding comes after the checks: a store that is bound to a wrong topic would refuse the right one for good.
        let guard = start::bind_log(&parts, log).await?;
        parts.health.on_store_opened();
        let modes = catch_up.modes(&settings, &parts, &frontier).await?;
        open_loops(&settings, &parts, (nodes, guard), (counts.outcomes, modes), &catch_up).await
    };
    let started = tokio::select! {
        biased;
        started = Box::pin(starting) => started,
        // The start waits for the nodes of the store or for the log. Each of its steps is repeated by the next start.
        () = wait_after(&shutdown, START_GRACE) => return Ok(PipelineReport::default()),
    };
    let (pipeline, sequencer) = started?;
    // Boxed: the futures of both loops are by far the largest values on the stack.
    tokio::select! {
        biased;
        ended = Box::pin(run_loops(pipeline, sequencer, shutdown)) => ended,
        error = wait_until_store_is_behind(&settings, &parts, catch_up) => Err(error),
        never = report_outages(parts.broker.as_ref(), &settings.pipeline.topic, &parts.health) => match never {},
        never = probe_store(&parts.store, &parts.health) => match never {},
        never = report_catch_up(&parts.store, &parts.health) => match never {},
    }
}

/// Opens the log for writing and reading, and creates the pipeline, and the sequencer where it is enabled.
async fn open_loops(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    (nodes, guard): (RestartDetector, TopicGuard),
    (outcome_partitions, modes): (i32, Modes),
    catch_up: &CatchUp,
) -> Result<(Pipeline, Option<Sequencer>), InstanceError> {
    let group = &settings.pipeline.group;
    let output = LogOutput::open(settings, parts, outcome_partitions).await?;
    // Opened before the first event is read: no outcome that the instance could wait for is missed.
    let watch = OutcomeWatch::start(parts.broker.clone(), &output.outcomes).await;
    let consumer = parts.broker.subscribe(group, &[settings.pipeline.topic.to_string()]).await?;
    let pipeline = Pipeline::new(
        settings.pipeline.clone(),
        PipelineServices {
            flag_grace_start: catch_up.flag_grace_start.clone(),
            live_grace_start: catch_up.live_grace_start.clone(),
            ..pipeline_services(settings, parts, output.clone(), modes, (&nodes, guard.clone()))
        },
        consumer,
        Some(watch),
    );
    let sequencer = if settings.sequencer_enabled {
        let consumer =
            parts.broker.subscribe(&chain_group(group), std::slice::from_ref(&settings.topics.chain)).await?;
        let parts = sequencer_parts(settings, parts, output, (nodes, guard), &pipeline);
        Some(Sequencer::new(SequencerParts { restored: catch_up.restored(), ..parts }, ChainMode::Live, consumer))
    } else {
        None
    };
    Ok((pipeline, sequencer))
}

/// Returns `grace` after the shutdown.
async fn wait_after(shutdown: &CancellationToken, grace: Duration) {
    shutdown.cancelled().await;
    tokio::time::sleep(grace).await;
}

/// Reports in the health conditions that no broker answers. An outage of one of several brokers is not reported: a
/// request decides, and is repeated until a broker answers. Clients reconnect by themselves.
async fn report_outages(broker: &dyn Broker, topic: &str, health: &Health) -> Infallible {
    let Some(mut outages) = broker.outages() else { return std::future::pending().await };
    while outages.changed().await.is_ok() {
        let Outage { is_total, reason } = outages.borrow_and_update().clone();
        if is_total {
            health.set(Condition::BrokerReachable, Some(reason));
        }
        while let Err(error) = broker.partitions(topic).await {
            health.set(Condition::BrokerReachable, Some(format!("the broker does not answer: {error}")));
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        health.set(Condition::BrokerReachable, None);
    }
    // The sender is gone: no client is left that could report an outage.
    std::future::pending().await
}

/// Reports in the health conditions whether the store answers, also while no loop has work for the store. An outage
/// shows within [`PROBE_INTERVAL`] and [`PROBE_TIMEOUT`] together, less than five seconds.
pub(crate) async fn probe_store(store: &StateStore, health: &Health) -> Infallible {
    let mut is_failing = false;
    loop {
        tokio::time::sleep(if is_failing { POLL_INTERVAL } else { PROBE_INTERVAL }).await;
        let answer = store.probe(PROBE_TIMEOUT).await.map_err(|error| error.to_string());
        // Like each task of the pipeline: a failure counts once, and so does its end.
        if answer.is_err() != is_failing {
            is_failing = answer.is_err();
            health.on_store_answer(answer);
        }
    }
}

/// Returns once the store is behind the committed offsets of its group. The check covers every partition, whichever
/// instance has it: one instance may have the validated transactions, and another, with another store, the chain.
async fn wait_until_store_is_behind(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    mut catch_up: CatchUp,
) -> InstanceError {
    loop {
        tokio::time::sleep(COVERAGE_CHECK_INTERVAL).await;
        // A failed request is repeated at the next check; the loops report the outage.
        let Ok(frontier) = Frontier::read(settings, parts.broker.as_ref()).await else { continue };
        match parts.store.verify_covers(&frontier.consumed).await {
            Err(error) if !error.may_be_retried() => return error.into(),
            _ => {}
        }
        catch_up.observe(settings, parts, &frontier).await;
    }
}

/// Time that a start gets to end after a shutdown: a start that is not held up binds its store.
const START_GRACE: Duration = Duration::from_secs(1);
/// Time between two probes of the store.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
/// Time within which the store must answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_millis(2_500);
/// Time between two comparisons of the store with the committed offsets of its group.
const COVERAGE_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two requests of a loop that waits for an answer.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the pipeline and the sequencer until both have ended. An error of one shuts the other down gracefully.
async fn run_loops(
    pipeline: Pipeline,
    sequencer: Option<Sequencer>,
    shutdown: CancellationToken,
) -> Result<PipelineReport, InstanceError> {
    let stop = shutdown.child_token();
    let pipeline = cancel_on_error(&stop, Box::pin(pipeline.run(stop.clone())));
    let sequencer = async {
        match sequencer {
            Some(sequencer) => cancel_on_error(&stop, Box::pin(sequencer.run(stop.clone()))).await,
            None => Ok(()),
        }
    };
    let (report, chain) = tokio::join!(pipeline, sequencer);
    if let (Err(error), Err(_)) = (&report, &chain) {
        // Only the error of the sequencer is returned.
        tracing::error!(%error, "instance: pipeline ended, too");
    }
    chain?;
    Ok(report?)
}

async fn cancel_on_error<T, E>(stop: &CancellationToken, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    work.await.inspect_err(|_| stop.cancel())
}

/// Writer of an instance's messages.
#[derive(Clone)]
struct LogOutput {
    producer: Arc<dyn Producer>,
    outcomes: OutcomeTopic,
}

impl LogOutput {
    /// Opens the writer of an instance whose topic of outcomes has this number of partitions.
    async fn open(settings: &InstanceSettings, parts: &InstanceParts, partitions: i32) -> Result<Self, BrokerError> {
        let outcomes = OutcomeTopic { name: settings.topics.outcomes.clone(), partitions };
        Ok(LogOutput { producer: parts.broker.producer().await?, outcomes })
    }
}

fn pipeline_services(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    LogOutput { producer, outcomes }: LogOutput,
    modes: Modes,
    (nodes, guard): (&RestartDetector, TopicGuard),
) -> PipelineServices {
    PipelineServices {
        broker: parts.broker.clone(),
        creator: new_creator(parts, &parts.store),
        publisher: Publisher {
            producer,
            source_topic: settings.pipeline.topic.clone(),
            chain_topic: settings.topics.chain.clone(),
            dead_letter_topic: settings.topics.dead_letters.clone(),
            outcomes,
            retry_pause: parts.store.settings.retry_pause,
            metrics: parts.metrics.clone(),
        },
        chain: Arc::new(CommittedProgress::new(
            parts.broker.clone(),
            chain_group(&settings.pipeline.group),
            settings.topics.clone(),
        )),
        flag_grace_start: Arc::default(),
        live_grace_start: Arc::default(),
        modes,
        nodes: nodes.clone(),
        guard,
        whole: Arc::new(parts.store.clone()),
        earlier_halts: parts.earlier_halts.clone(),
        clock: parts.clock.clone(),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
    }
}

fn new_creator(parts: &InstanceParts, store: &StateStore) -> Creator {
    Creator::new(store.clone(), parts.clock.clone(), parts.identity.clone())
}

fn sequencer_parts(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    LogOutput { producer, outcomes }: LogOutput,
    (nodes, guard): (RestartDetector, TopicGuard),
    pipeline: &Pipeline,
) -> SequencerParts {
    let store = parts.store.with_own_blob_status();
    SequencerParts {
        broker: parts.broker.clone(),
        producer,
        creator: new_creator(parts, &store),
        store,
        topics: settings.topics.clone(),
        outcomes,
        validated: ValidatedSource {
            topic: settings.pipeline.topic.clone(),
            group: settings.pipeline.group.clone(),
            grace: Duration::from_millis(settings.pipeline.missing_parent_grace_ms),
        },
        settings: settings.sequencer,
        clock: parts.clock.clone(),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
        nodes,
        guard,
        ownership: Arc::new(parts.store.clone()),
        tx_notifier: pipeline.tx_notifier(),
        verdicts: Arc::default(),
        restored: Arc::default(),
        monitor: None,
        speculation: None,
        record_cache: None,
    }
}
