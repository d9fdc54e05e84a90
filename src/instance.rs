//! An instance: a pipeline and a sequencer over one broker and one store. Also the rebuild of a store from the log.

pub(crate) mod checks;
pub(crate) mod frontier;
pub mod offset_reset;
mod rebuild;

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use checks::{check_decisions, check_topics, read_chain_topic_id, store_topics};
use frontier::Frontier;
pub use rebuild::{RebuildReport, rebuild, resume_rebuild};

use crate::{
    blob::{OpenBlobError, objects::ObjectError},
    broker::{Broker, BrokerError, BrokerErrorKind, Outage, Producer, TopicIdentity, identity::TopicGuard},
    clock::Clock,
    event::Topic,
    group::earlier_halts::EarlierHalts,
    ingest::{
        pipeline::{Pipeline, PipelineError, PipelineReport, PipelineServices, PipelineSettings},
        publish::Publisher,
    },
    record::MetaRecord,
    replay::Modes,
    sequencer::{
        ChainMode, Sequencer, SequencerError, SequencerParts, SequencerSettings, SequencerTopics, ValidatedSource,
        chain_group, decisions::DecisionError, progress::CommittedProgress,
    },
    status::{Condition, Health},
    store::{
        Store,
        create::{Creator, CreatorIdentity},
        meta::{MetaError, MetaExpectations, StoreMeta},
        ownership::{GroupStore, StoreOwnership, verify_above_floor},
        restart_detector::{RestartDetector, durability_lag},
        sentinels::Sentinels,
        topics::{FoundTopic, find_topics, has_topic_id, verify_topic_binding},
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
}

/// Services of an instance: broker, store, clock, metrics, health.
#[derive(Clone)]
pub struct InstanceParts {
    /// Client of the brokers that hold the log.
    pub broker: Arc<dyn Broker>,
    /// Store of the state, with its blob store.
    pub store: Store,
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

/// Reason why an instance ended without a shutdown.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The meta record refuses this instance, or could not be read or written.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The blob store belongs to another store, or does not answer.
    #[error(transparent)]
    Blobs(#[from] OpenBlobError),
    /// An object with the transaction ids of a block cannot be read.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// A topic is missing, or a broker request failed.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The pipeline ended with an error.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The sequencer ended with an error.
    #[error("the chain: {0}")]
    Sequencer(#[from] SequencerError),
    /// The decisions topic has an unreadable or contradicting record.
    #[error(transparent)]
    Decisions(#[from] DecisionError),
    /// Offsets would be committed whose writes the store could still lose.
    #[error(
        "the durability lag is too short: the store may lose acknowledged writes of the last {0:?}; raise \
         ingest.durability_lag_ms above that"
    )]
    LagTooShort(Duration),
    /// The store of a rebuild is not empty.
    #[error(
        "the store is not empty: a rebuild needs an empty store, unless it resumes (`--resume`) a rebuild that has not \
         ended"
    )]
    NotEmpty,
    /// The decisions topic is not the topic with the decisions on this chain.
    #[error(
        "topic `{topic}` is not the one that holds the decisions on this chain: its first record has id {found}, the \
         chain's committed offset names {expected}; the topic ends at {high}, and the next decision to read is at \
         {next}; restore the topic"
    )]
    DecisionsRecreated {
        /// Configured name of the topic.
        topic: String,
        /// Id of the first decision as of the committed offset of the chain, or `none`.
        expected: String,
        /// Id of the first record now, or `none` where the topic has no record at offset 0.
        found: String,
        /// Offset of the next decision to read.
        next: u64,
        /// End offset of the topic.
        high: u64,
    },
    /// The rebuild to resume has ended already.
    #[error(
        "cannot resume the rebuild of this store: it has reached its end; start `run`, or rebuild into an empty store"
    )]
    RebuildEnded,
    /// The log no longer holds the offsets or decisions with which the rebuild began.
    #[error("cannot resume the rebuild: the log is not the one that it began with; rebuild into an empty store")]
    LogChanged,
    /// A transaction or block of the rebuild waits for an event above the frontier.
    #[error(
        "rebuild blocked: {waits} depend on events after the rebuild's end offsets ({frontier}); stop the group \
         gracefully, then rebuild into an empty store"
    )]
    RebuildBlocked {
        /// Transactions and blocks that wait, with the missing events.
        waits: String,
        /// End offsets of the rebuild, by partition and of the chain.
        frontier: String,
    },
}

impl InstanceError {
    /// Returns true if another start after a pause can succeed: the broker or the blob store was away.
    pub fn may_be_retried(&self) -> bool {
        match self {
            InstanceError::Blobs(error) => error.may_be_retried(),
            _ => self.broker().is_some_and(|error| error.kind == BrokerErrorKind::Retryable),
        }
    }

    /// Returns true if another process has the same name (static member). A restart would end that process in turn.
    pub fn is_fenced(&self) -> bool {
        self.broker().is_some_and(|error| error.kind == BrokerErrorKind::Fenced)
    }

    fn broker(&self) -> Option<&BrokerError> {
        match self {
            InstanceError::Broker(error)
            | InstanceError::Pipeline(PipelineError::Broker(error))
            | InstanceError::Sequencer(SequencerError::Broker(error))
            | InstanceError::Decisions(DecisionError::Broker(error)) => Some(error),
            _ => None,
        }
    }
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
    let group = settings.pipeline.group.clone();
    parts.health.status_registry().publish_store(parts.store.engine.name());
    let partitions = check_topics(&settings, parts.broker.as_ref()).await?;
    settings.pipeline.partitions = Some(partitions);
    let frontier = Frontier::read(&settings, parts.broker.as_ref()).await?;
    frontier.record_halts(&parts.earlier_halts);
    let mut nodes = restart_detector(&settings, &parts)?;
    open_durably(&parts, &mut nodes, frontier.has_commits()).await?;
    // Topics are identified before offsets are compared: an error about offsets of another topic would mislead.
    let found = find_topics(parts.broker.as_ref(), &store_topics(&settings)).await?;
    let meta = parts.store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
    found.iter().try_for_each(|topic| verify_topic_binding(&meta, topic))?;
    check_chain(&settings, &parts, &found).await?;
    check_decisions(&settings, parts.broker.as_ref()).await?;
    let floor = group_store(&parts.store).read_replay_floor(&frontier.consumed).await?;
    if verify_above_floor(&floor, &frontier.resume_offsets()).is_err() {
        // The store may have been pruned after the offsets were read. The group has committed more since then.
        let frontier = Frontier::read(&settings, parts.broker.as_ref()).await?;
        verify_above_floor(&floor, &frontier.resume_offsets())?;
    }
    // Binding comes last: a store that is bound to a wrong topic would refuse the right topic for good.
    let guard = bind_topics(&parts, partitions, found).await?;
    parts.health.set(Condition::StoreReachable, None);

    let producer = parts.broker.producer().await?;
    let consumer = parts.broker.subscribe(&group, &[settings.pipeline.topic.to_string()]).await?;
    let pipeline = Pipeline::new(
        settings.pipeline.clone(),
        pipeline_services(&settings, &parts, producer.clone(), Modes::Live, (&nodes, guard.clone())),
        consumer,
    );
    let sequencer = if settings.sequencer_enabled {
        let consumer =
            parts.broker.subscribe(&chain_group(&group), std::slice::from_ref(&settings.topics.chain)).await?;
        let parts = sequencer_parts(&settings, &parts, producer, (nodes, guard), &pipeline);
        Some(Sequencer::new(parts, ChainMode::Live, consumer))
    } else {
        None
    };
    // Boxed: the futures of both loops are by far the largest values on the stack.
    tokio::select! {
        biased;
        ended = Box::pin(run_loops(pipeline, sequencer, shutdown)) => ended,
        error = wait_until_store_is_behind(&settings, &parts) => Err(error),
        never = report_outages(parts.broker.as_ref(), &settings.pipeline.topic, &parts.health) => match never {},
    }
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

/// Returns once the store is behind the committed offsets of its group. The check covers every partition, whichever
/// instance has it: one instance may have the validated transactions, and another, with another store, the chain.
async fn wait_until_store_is_behind(settings: &InstanceSettings, parts: &InstanceParts) -> InstanceError {
    loop {
        tokio::time::sleep(COVERAGE_CHECK_INTERVAL).await;
        // A failed request is repeated at the next check; the loops report the outage.
        let Ok(frontier) = Frontier::read(settings, parts.broker.as_ref()).await else { continue };
        match group_store(&parts.store).verify_covers(&frontier.consumed).await {
            Err(error) if !error.may_be_retried() => return error.into(),
            _ => {}
        }
    }
}

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
    let pipeline = async {
        let ended = Box::pin(pipeline.run(stop.clone())).await;
        if ended.is_err() {
            stop.cancel();
        }
        ended
    };
    let sequencer = async {
        let ended = match sequencer {
            Some(sequencer) => Box::pin(sequencer.run(stop.clone())).await,
            None => Ok(()),
        };
        if ended.is_err() {
            stop.cancel();
        }
        ended
    };
    let (report, chain) = tokio::join!(pipeline, sequencer);
    if let (Err(error), Err(_)) = (&report, &chain) {
        // Only the error of the sequencer is returned.
        tracing::error!(%error, "instance: pipeline ended, too");
    }
    chain?;
    Ok(report?)
}

pub(crate) fn meta_expectations(store: &Store) -> MetaExpectations {
    MetaExpectations {
        network: store.settings.network,
        utxo_batch_size: store.settings.utxo_batch_size,
        retention: store.settings.rules.retention,
    }
}

fn pipeline_services(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    producer: Arc<dyn Producer>,
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
            retry_pause: parts.store.settings.retry_pause,
            metrics: parts.metrics.clone(),
        },
        chain: Arc::new(CommittedProgress::new(
            parts.broker.clone(),
            chain_group(&settings.pipeline.group),
            settings.topics.clone(),
        )),
        modes,
        nodes: nodes.clone(),
        guard,
        whole: Arc::new(group_store(&parts.store)),
        earlier_halts: parts.earlier_halts.clone(),
        clock: parts.clock.clone(),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
    }
}

fn new_creator(parts: &InstanceParts, store: &Store) -> Creator {
    Creator::new(store.clone(), parts.clock.clone(), parts.identity.clone())
}

fn sequencer_parts(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    producer: Arc<dyn Producer>,
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
        ownership: Arc::new(group_store(&parts.store)),
        tx_notifier: pipeline.tx_notifier(),
        verdicts: Arc::default(),
        monitor: None,
    }
}

fn restart_detector(settings: &InstanceSettings, parts: &InstanceParts) -> Result<RestartDetector, InstanceError> {
    let engine = &parts.store.engine;
    let lag = durability_lag(engine.as_ref(), settings.durability_lag);
    Ok(RestartDetector::new(engine.clone(), lag.ok_or_else(|| InstanceError::LagTooShort(engine.loss_window()))?))
}

/// Opens the meta record, and returns once the meta record, the mark in the blob store and the sentinels are durable.
///
/// Each of the three waits until the one before is durable, while the group has committed nothing:
/// 1. The meta record may have been written just now, by this instance or another. A node can still lose the write, and
///    records without a meta record would belong to no store.
/// 2. The blob store is marked with the id of the store. No other id can ever take a marked blob store, so that the id
///    must be durable first. If the note "the store has blobs" were lost, an empty place would count as a new blob
///    store.
/// 3. The sentinels belong to the id, too.
async fn open_durably(
    parts: &InstanceParts,
    nodes: &mut RestartDetector,
    group_has_offsets: bool,
) -> Result<(), InstanceError> {
    nodes.baseline().await.map_err(MetaError::from)?;
    let mut durable_store_id = None;
    loop {
        let opened = async {
            let meta = StoreMeta::of(&parts.store)
                .open(meta_expectations(&parts.store), group_has_offsets, parts.store_id)
                .await?;
            // Committed offsets of the group show that the meta record is durable.
            if !group_has_offsets && durable_store_id != Some(meta.store_id) {
                durable_store_id = nodes.wait_until_durable().await.map_err(MetaError::from)?.then_some(meta.store_id);
                return Err(MetaError::NoMetaRecord.into());
            }
            let has_new_blobs = claim_blobs(&parts.store, &meta).await?;
            Ok((has_new_blobs, Sentinels::of(&parts.store).write(&meta).await?))
        };
        let (has_new_blobs, has_new_sentinels) = match opened.await {
            // Read again: the meta record is durable now, or a node lost it (perhaps the record of another instance).
            Err(InstanceError::Meta(MetaError::NoMetaRecord)) => continue,
            opened => opened?,
        };
        let is_durable = group_has_offsets && !has_new_blobs && !has_new_sentinels;
        if is_durable || nodes.wait_until_durable().await.map_err(MetaError::from)? {
            if has_new_sentinels {
                // An instance that created the store at the same time, and lost the race, may have overwritten them.
                let meta = parts.store.meta().await?.ok_or(MetaError::NoMetaRecord)?;
                Sentinels::of(&parts.store).verify(&meta).await?;
                Sentinels::of(&parts.store).record().await?;
            }
            return Ok(());
        }
    }
}

/// Marks the blob store with the id of this store: a store has one blob store for good, or none so far. Returns true if
/// the mark is new.
async fn claim_blobs(store: &Store, meta: &MetaRecord) -> Result<bool, InstanceError> {
    let Some(blobs) = &store.blobs else { return Ok(false) };
    let is_first = !meta.has_blobs;
    blobs.claim(meta.store_id, is_first).await?;
    if is_first {
        StoreMeta::of(store).record_blob_store().await?;
    }
    Ok(is_first)
}

fn group_store(store: &Store) -> GroupStore {
    GroupStore { store: store.clone(), expected: meta_expectations(store) }
}

/// Binds the store to the current topics that are the source of the state. Returns the guard that checks the topics
/// from here on.
async fn bind_topics(
    parts: &InstanceParts,
    partitions: i32,
    found: Vec<FoundTopic>,
) -> Result<TopicGuard, InstanceError> {
    StoreMeta::of(&parts.store).bind_partitions(partitions.unsigned_abs()).await?;
    StoreMeta::of(&parts.store).bind_topics(&found).await?;
    let expected = found.into_iter().map(|topic| {
        let identity = TopicIdentity { id: topic.id, partitions: topic.partitions };
        (topic.name, identity)
    });
    Ok(TopicGuard::new(parts.broker.clone(), expected.collect()))
}

/// Checks that the chain topic is the one that the store was built from. The first record identifies the topic where
/// the cluster gives no topic ids.
async fn check_chain(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    topics: &[FoundTopic],
) -> Result<(), InstanceError> {
    let found = read_chain_topic_id(settings, parts.broker.as_ref()).await?;
    if found.is_none() && has_topic_id(topics, Topic::Chain) {
        // The topic id identifies the chain topic; a deleted first record changes nothing.
        return Ok(());
    }
    match StoreMeta::of(&parts.store).bind_chain(found).await {
        // The chain was empty when it was read. Another instance may have bound the store to a first record since.
        Err(MetaError::ChainRecreated { .. }) if found.is_none() => {
            let found = read_chain_topic_id(settings, parts.broker.as_ref()).await?;
            StoreMeta::of(&parts.store).bind_chain(found).await?;
        }
        bound => drop(bound?),
    }
    Ok(())
}
