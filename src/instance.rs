//! One instance: a pipeline and a sequencer over one broker and one store; and the rebuild of a store from the log.

pub(crate) mod checks;
pub(crate) mod frontier;
mod rebuild;
pub mod set_back;

use std::{convert::Infallible, sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

use checks::{check_decisions, check_topics, first_of_chain, store_topics};
use frontier::Frontier;
pub use rebuild::{Rebuilt, rebuild, resume_rebuild};

use crate::{
    blob::{OpenBlobError, objects::ObjectError},
    broker::{Broker, BrokerError, BrokerErrorKind, Outage, Producer, TopicIdentity, identity::TopicGuard},
    clock::Clock,
    event::Topic,
    group::halts::EarlierHalts,
    ingest::{
        pipeline::{Pipeline, PipelineError, PipelineParts, PipelineReport, PipelineSettings},
        publish::Publisher,
    },
    record::MetaRecord,
    replay::Modes,
    sequencer::{
        ChainMode, Sequencer, SequencerParts, SequencerSettings, SequencerTopics, Stop, ValidatedSource, chain_group,
        decisions::DecisionError, progress::CommittedProgress,
    },
    status::{Condition, Health},
    store::{
        Store,
        create::{Creator, Identity},
        meta::{MetaError, MetaExpectations},
        nodes::{Nodes, durability_lag},
        topics::{FoundTopic, find_topics, is_bound_to, is_known_by_id},
        whole::{GroupStore, WholeStore, is_above},
    },
    telemetry::Metrics,
};

/// Topics, group and limits of an instance.
#[derive(Debug, Clone)]
pub struct InstanceSettings {
    /// The pipeline's.
    pub pipeline: PipelineSettings,
    /// The sequencer's.
    pub sequencer: SequencerSettings,
    /// Topics.
    pub topics: SequencerTopics,
    /// Whether this instance joins the group of the chain.
    pub sequencer_enabled: bool,
    /// How long what is complete waits before its offset is committed; `None`: as the engine needs it.
    pub durability_lag: Option<Duration>,
}

impl InstanceSettings {
    /// The name of a topic.
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

/// What an instance works with.
#[derive(Clone)]
pub struct InstanceParts {
    /// The log.
    pub broker: Arc<dyn Broker>,
    /// The state.
    pub store: Store,
    /// Time.
    pub clock: Clock,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Health.
    pub health: Arc<Health>,
    /// Which halts this process lifts: the same one for all that it runs, one after the other.
    pub earlier_halts: Arc<EarlierHalts>,
    /// Random, for a store that is made now.
    pub store_id: [u8; 16],
    /// What the lock records of this instance say.
    pub identity: Identity,
}

/// Why an instance ended, when nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The store must not be worked on.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The blob store must not be worked on, or does not answer.
    #[error(transparent)]
    Blobs(#[from] OpenBlobError),
    /// What a block lists, in an object elsewhere, cannot be read.
    #[error(transparent)]
    Objects(#[from] ObjectError),
    /// A topic is missing, or the broker cannot go on.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The pipeline.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The sequencer.
    #[error("the chain: {0}")]
    Sequencer(#[from] Stop),
    /// The decisions.
    #[error(transparent)]
    Decisions(#[from] DecisionError),
    /// What the store may still forget would be committed.
    #[error("the durability lag is too short: the store may forget what it acknowledged within {0:?}; make it longer")]
    LagTooShort(Duration),
    /// A rebuild goes into an empty store.
    #[error(
        "the store is not empty: a rebuild needs an empty one, unless it goes on (`--resume`) with one that did not reach its end"
    )]
    NotEmpty,
    /// The decisions are not those that were made on this chain.
    #[error(
        "topic `{topic}` is not the one that holds the decisions on this chain: its first record has id {found}, that of the chain's \
         committed offset is {expected}; it ends at {high}, and the decisions are next read at {next}; restore the topic"
    )]
    DecisionsRecreated {
        /// The topic as it is configured.
        topic: String,
        /// What the decisions were known by when the chain was committed, or `none`.
        expected: String,
        /// What the topic is known by now, or `none` where it has no record at offset 0.
        found: String,
        /// Where they were to be read next.
        next: u64,
        /// Its end.
        high: u64,
    },
    /// Nothing is left to resume.
    #[error("the rebuild of this store has reached its end: there is nothing to resume")]
    Rebuilt,
    /// What a rebuild is made from is no longer there.
    #[error("the log is not the one that this rebuild began with: begin again, with an empty store")]
    OtherLog,
    /// What a rebuild waits for is not below its frontier.
    #[error(
        "the rebuild waits for what stands above its frontier ({frontier}): {waits}; let the group commit what it has done \
         (stop it in order, or let it come to rest), then begin again with an empty store"
    )]
    RebuildStands {
        /// Which transactions wait, and for what.
        waits: String,
        /// Next to read, by partition and of the chain.
        frontier: String,
    },
}

impl InstanceError {
    /// Whether another start, after a pause, may do: the broker was away, or the blob store.
    pub fn may_be_retried(&self) -> bool {
        match self {
            InstanceError::Blobs(error) => error.may_be_repeated(),
            _ => self.broker().is_some_and(|error| error.kind == BrokerErrorKind::Retryable),
        }
    }

    /// Whether another process works under this one's name: started again, this one would end that one in turn.
    pub fn is_fenced(&self) -> bool {
        self.broker().is_some_and(|error| error.kind == BrokerErrorKind::Fenced)
    }

    fn broker(&self) -> Option<&BrokerError> {
        match self {
            InstanceError::Broker(error)
            | InstanceError::Pipeline(PipelineError::Broker(error))
            | InstanceError::Sequencer(Stop::Broker(error))
            | InstanceError::Decisions(DecisionError::Broker(error)) => Some(error),
            _ => None,
        }
    }
}

/// Runs an instance until `shutdown`, or until it cannot go on.
///
/// # Errors
/// See [`InstanceError`]. Whatever ends it, offsets are committed only for what is completed.
pub async fn run(
    mut settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<PipelineReport, InstanceError> {
    let group = settings.pipeline.group.clone();
    parts.health.status_registry().publish_store(parts.store.engine.name());
    let partitions = check_topics(&settings, parts.broker.as_ref()).await?;
    settings.pipeline.partitions = Some(partitions);
    let frontier = Frontier::committed(&settings, parts.broker.as_ref()).await?;
    frontier.look_for_halts(&parts.earlier_halts);
    let mut nodes = nodes(&settings, &parts)?;
    open_safely(&parts, &mut nodes, frontier.any()).await?;
    // Before offsets are judged: those of another topic mean nothing, and what is said of them would mislead.
    let found = find_topics(parts.broker.as_ref(), &store_topics(&settings)).await?;
    let meta = parts.store.meta().await?.ok_or(MetaError::Absent)?;
    found.iter().try_for_each(|topic| is_bound_to(&meta, topic))?;
    check_chain(&settings, &parts, &found).await?;
    check_decisions(&settings, parts.broker.as_ref()).await?;
    let floor = group_store(&parts.store).floor(&frontier.consumed).await?;
    if is_above(&floor, &frontier.stands_at()).is_err() {
        // Perhaps it was pruned since its group was asked: then that has gone on.
        is_above(&floor, &Frontier::committed(&settings, parts.broker.as_ref()).await?.stands_at())?;
    }
    // Once nothing else is refused: a store that is bound to a topic by mistake would refuse the right one for good.
    let guard = bind_topics(&parts, partitions, found).await?;
    parts.health.set(Condition::StoreReachable, None);

    let producer = parts.broker.producer().await?;
    let consumer = parts.broker.subscribe(&group, &[settings.pipeline.topic.to_string()]).await?;
    let pipeline = Pipeline::new(
        settings.pipeline.clone(),
        pipeline_parts(&settings, &parts, producer.clone(), Modes::Live, (&nodes, guard.clone())),
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
    // Of what is kept on the stack this is by far the most.
    tokio::select! {
        biased;
        ended = Box::pin(together(pipeline, sequencer, shutdown)) => ended,
        why = behind(&settings, &parts) => Err(why),
        never = tell_outages(parts.broker.as_ref(), &settings.pipeline.topic, &parts.health) => match never {},
    }
}

/// Says while the log is away. One broker of several is not the log: whether it answers is asked before that is said, and again until it
/// does; its clients find it again by themselves.
async fn tell_outages(broker: &dyn Broker, topic: &str, health: &Health) -> Infallible {
    let Some(mut outages) = broker.outages() else { return std::future::pending().await };
    while outages.changed().await.is_ok() {
        let Outage { whole, why } = outages.borrow_and_update().clone();
        if whole {
            health.set(Condition::BrokerReachable, Some(why));
        }
        while let Err(error) = broker.partitions(topic).await {
            health.set(Condition::BrokerReachable, Some(format!("the broker does not answer: {error}")));
            tokio::time::sleep(LOOK).await;
        }
        health.set(Condition::BrokerReachable, None);
    }
    // Nobody is left who could notice anything.
    std::future::pending().await
}

/// Ends when the store is found to be behind what its group has committed, whoever holds what: one instance may have the validated
/// transactions and another, over a store of its own, the chain.
async fn behind(settings: &InstanceSettings, parts: &InstanceParts) -> InstanceError {
    loop {
        tokio::time::sleep(COMPARED_EVERY).await;
        // What cannot be asked now is asked again; who works waits for the same answers, and says so.
        let Ok(frontier) = Frontier::committed(settings, parts.broker.as_ref()).await else { continue };
        match group_store(&parts.store).holds(&frontier.consumed).await {
            Err(error) if !error.may_be_retried() => return error.into(),
            _ => {}
        }
    }
}

const COMPARED_EVERY: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(500);

/// Runs both until both have ended; when one cannot go on, the other is shut down in order.
async fn together(
    pipeline: Pipeline,
    sequencer: Option<Sequencer>,
    shutdown: CancellationToken,
) -> Result<PipelineReport, InstanceError> {
    let stop = shutdown.child_token();
    let pipeline = async {
        let ended = pipeline.run(stop.clone()).await;
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
        // One of them is told; which of them came first nobody knows.
        tracing::error!(%error, "the pipeline ended, too");
    }
    chain?;
    Ok(report?)
}

pub(crate) fn expectations(store: &Store) -> MetaExpectations {
    MetaExpectations {
        network: store.settings.network,
        utxo_batch_size: store.settings.utxo_batch_size,
        retention: store.settings.rules.retention,
    }
}

fn pipeline_parts(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    producer: Arc<dyn Producer>,
    modes: Modes,
    (nodes, guard): (&Nodes, TopicGuard),
) -> PipelineParts {
    PipelineParts {
        broker: parts.broker.clone(),
        creator: creator(parts, &parts.store),
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

fn creator(parts: &InstanceParts, store: &Store) -> Creator {
    Creator::new(store.clone(), parts.clock.clone(), parts.identity.clone())
}

fn sequencer_parts(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    producer: Arc<dyn Producer>,
    (nodes, guard): (Nodes, TopicGuard),
    pipeline: &Pipeline,
) -> SequencerParts {
    let store = parts.store.apart();
    SequencerParts {
        broker: parts.broker.clone(),
        producer,
        creator: creator(parts, &store),
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
        whole: Arc::new(group_store(&parts.store)),
        tx_notifier: pipeline.tx_notifier(),
        verdicts: Arc::default(),
        monitor: None,
    }
}

fn nodes(settings: &InstanceSettings, parts: &InstanceParts) -> Result<Nodes, InstanceError> {
    let engine = &parts.store.engine;
    let lag = durability_lag(engine.as_ref(), settings.durability_lag);
    Ok(Nodes::new(engine.clone(), lag.ok_or_else(|| InstanceError::LagTooShort(engine.may_forget()))?))
}

/// Opens the meta record. As long as the group has committed nothing it may have been written just now, by this instance or
/// another, and a node may still forget it: records without it would be nobody's. So nothing else begins before it is
/// safe: not even the mark of its id in the blob store, which no other id could ever take, nor sentinels of it. Nor does anything before it is safe
/// that the store has blobs: forgotten, an empty place would be taken for a new blob store. Nor before its sentinels are.
async fn open_safely(parts: &InstanceParts, nodes: &mut Nodes, group_has_offsets: bool) -> Result<(), InstanceError> {
    nodes.meet().await.map_err(MetaError::from)?;
    let mut outlasted = None;
    loop {
        let opened = async {
            let meta = parts.store.open_meta(expectations(&parts.store), group_has_offsets, parts.store_id).await?;
            // What a group has committed speaks of a record that no node forgets.
            if !group_has_offsets && outlasted != Some(meta.store_id) {
                outlasted = nodes.outlast().await.map_err(MetaError::from)?.then_some(meta.store_id);
                return Err(MetaError::Absent.into());
            }
            let has_new_blobs = claim_blobs(&parts.store, &meta).await?;
            Ok((has_new_blobs, parts.store.plant_sentinels(&meta).await?))
        };
        let (has_new_blobs, has_new_sentinels) = match opened.await {
            // To be looked at again: it is safe now, or a node forgot it, perhaps what another instance had written.
            Err(InstanceError::Meta(MetaError::Absent)) => continue,
            opened => opened?,
        };
        let is_safe = group_has_offsets && !has_new_blobs && !has_new_sentinels;
        if is_safe || nodes.outlast().await.map_err(MetaError::from)? {
            if has_new_sentinels {
                // Whoever made the store at the same time, and was forgotten with it, may have written over them.
                let meta = parts.store.meta().await?.ok_or(MetaError::Absent)?;
                parts.store.check_sentinels(&meta).await?;
                parts.store.note_sentinels().await?;
            }
            return Ok(());
        }
    }
}

/// Ties the records to their bodies: a store has one blob store for good, or none so far. Answers whether it has one since now.
async fn claim_blobs(store: &Store, meta: &MetaRecord) -> Result<bool, InstanceError> {
    let Some(blobs) = &store.blobs else { return Ok(false) };
    let is_first = !meta.has_blobs;
    blobs.claim(meta.store_id, is_first).await?;
    if is_first {
        store.note_blobs().await?;
    }
    Ok(is_first)
}

fn group_store(store: &Store) -> GroupStore {
    GroupStore { store: store.clone(), expected: expectations(store) }
}

/// Holds the store to the topics that make the state, as they are now, and answers with the guard that watches them
/// from here on.
async fn bind_topics(
    parts: &InstanceParts,
    partitions: i32,
    found: Vec<FoundTopic>,
) -> Result<TopicGuard, InstanceError> {
    parts.store.bind_partitions(partitions.unsigned_abs()).await?;
    parts.store.bind_topics(&found).await?;
    let expected = found.into_iter().map(|topic| {
        let identity = TopicIdentity { id: topic.id, partitions: topic.partitions };
        (topic.name, identity)
    });
    Ok(TopicGuard::new(parts.broker.clone(), expected.collect()))
}

/// The chain topic must be the one that the store was made from. Its first record tells so where the cluster gives no
/// ids.
async fn check_chain(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    topics: &[FoundTopic],
) -> Result<(), InstanceError> {
    let found = first_of_chain(settings, parts.broker.as_ref()).await?;
    if found.is_none() && is_known_by_id(topics, Topic::Chain) {
        // What became of its first record says nothing then.
        return Ok(());
    }
    match parts.store.bind_chain(found).await {
        // The chain was empty when it was read; another instance may have bound the store to its first record since.
        Err(MetaError::ChainRecreated { .. }) if found.is_none() => {
            parts.store.bind_chain(first_of_chain(settings, parts.broker.as_ref()).await?).await?;
        }
        bound => drop(bound?),
    }
    Ok(())
}
