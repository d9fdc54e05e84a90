//! One instance: a pipeline and a sequencer over one broker and one store; and the rebuild of a store from the log.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use crate::{
    api::{Condition, Health},
    broker::{Broker, BrokerError, BrokerErrorKind, Producer, TopicPartition, replay::ReplayConsumer},
    clock::Clock,
    event::Event,
    ingest::{
        pipeline::{Pipeline, PipelineError, PipelineParts, PipelineReport, PipelineSettings},
        publish::Publisher,
        replay::{FirstMentions, Modes, Rebuild},
    },
    sequencer::{
        ChainMode, Sequencer, SequencerParts, SequencerSettings, SequencerTopics, Stop, chain_group,
        decisions::{DecisionError, DecisionLog},
        progress::CommittedProgress,
    },
    store::{
        Store,
        meta::{MetaError, MetaExpectations, chain_id},
    },
    telemetry::Metrics,
    tx::Txid,
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
    /// Random, for a store that is made now.
    pub store_id: [u8; 16],
}

/// Why an instance ended, when nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The store must not be worked on.
    #[error(transparent)]
    Meta(#[from] MetaError),
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
    /// A rebuild goes into an empty store.
    #[error("the store is not empty: a rebuild needs an empty one")]
    NotEmpty,
}

impl InstanceError {
    /// Whether another start, after a pause, may do: the broker was away.
    pub fn may_be_retried(&self) -> bool {
        let broker = match self {
            InstanceError::Broker(error)
            | InstanceError::Pipeline(PipelineError::Broker(error))
            | InstanceError::Sequencer(Stop::Broker(error))
            | InstanceError::Decisions(DecisionError::Broker(error)) => Some(error),
            _ => None,
        };
        broker.is_some_and(|error| error.kind == BrokerErrorKind::Retryable)
    }
}

/// Runs an instance until `shutdown`, or until it cannot go on.
///
/// # Errors
/// See [`InstanceError`]. Whatever ends it, offsets are committed only for what is completed.
pub async fn run(
    settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<PipelineReport, InstanceError> {
    let group = settings.pipeline.group.clone();
    check_topics(&settings, &parts).await?;
    let frontier = Frontier::committed(&settings, &parts).await?;
    parts.store.open_meta(expectations(&parts.store), frontier.any(), parts.store_id).await?;
    check_chain(&settings, &parts).await?;
    parts.health.set(Condition::StoreReachable, None);

    let producer = parts.broker.producer().await?;
    let consumer = parts.broker.subscribe(&group, &[settings.pipeline.topic.to_string()]).await?;
    let pipeline = Pipeline::new(
        settings.pipeline.clone(),
        pipeline_parts(&settings, &parts, producer.clone(), Modes::Live),
        consumer,
    );
    let sequencer = if settings.sequencer_enabled {
        let consumer =
            parts.broker.subscribe(&chain_group(&group), std::slice::from_ref(&settings.topics.chain)).await?;
        Some(Sequencer::new(sequencer_parts(&settings, &parts, producer), ChainMode::Live, consumer))
    } else {
        None
    };
    together(pipeline, sequencer, shutdown).await
}

/// Rebuilds the state of a live group, as far as it had committed, into an empty store. Publishes nothing and commits
/// nothing.
///
/// # Errors
/// See [`InstanceError`].
pub async fn rebuild(
    settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<PipelineReport, InstanceError> {
    check_topics(&settings, &parts).await?;
    if parts.store.meta().await?.is_some() {
        return Err(InstanceError::NotEmpty);
    }
    let frontier = Frontier::committed(&settings, &parts).await?;
    parts.store.open_meta(expectations(&parts.store), false, parts.store_id).await?;
    check_chain(&settings, &parts).await?;
    parts.store.set_frontier(Some(frontier.chain)).await?;
    parts.health.set(Condition::StoreReachable, None);

    let producer = parts.broker.producer().await?;
    let mentions = first_mentions(&settings, &parts, producer.clone()).await?;
    let topic = settings.pipeline.topic.clone();
    let consumer = Box::new(ReplayConsumer::open(parts.broker.clone(), &topic, &frontier.validated).await?);
    let chain_ends = BTreeMap::from([(0, frontier.chain)]);
    let chain = Box::new(ReplayConsumer::open(parts.broker.clone(), &settings.topics.chain, &chain_ends).await?);
    let modes = Modes::Rebuild(Arc::new(Rebuild { frontier: frontier.validated, mentions, stop_at_frontier: true }));
    let pipeline =
        Pipeline::new(settings.pipeline.clone(), pipeline_parts(&settings, &parts, producer.clone(), modes), consumer);
    let mode = ChainMode::Rebuild { frontier: frontier.chain, stop_at_frontier: true };
    let sequencer = Sequencer::new(sequencer_parts(&settings, &parts, producer), mode, chain);
    together(pipeline, Some(sequencer), shutdown).await
}

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
            Some(sequencer) => sequencer.run(stop.clone()).await,
            None => Ok(()),
        };
        if ended.is_err() {
            stop.cancel();
        }
        ended
    };
    let (report, chain) = tokio::join!(pipeline, sequencer);
    chain?;
    Ok(report?)
}

fn expectations(store: &Store) -> MetaExpectations {
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
) -> PipelineParts {
    PipelineParts {
        broker: parts.broker.clone(),
        engine: parts.store.engine.clone(),
        publisher: Publisher {
            producer,
            source_topic: settings.pipeline.topic.clone(),
            chain_topic: settings.topics.chain.clone(),
            dead_letter_topic: settings.topics.dead_letters.clone(),
            retry_pause: settings.pipeline.dispatch.retry_pause,
            metrics: parts.metrics.clone(),
        },
        chain: Arc::new(CommittedProgress {
            broker: parts.broker.clone(),
            group: chain_group(&settings.pipeline.group),
            topics: settings.topics.clone(),
            last: Mutex::default(),
        }),
        modes,
        clock: parts.clock.clone(),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
    }
}

fn sequencer_parts(settings: &InstanceSettings, parts: &InstanceParts, producer: Arc<dyn Producer>) -> SequencerParts {
    SequencerParts {
        broker: parts.broker.clone(),
        producer,
        store: parts.store.clone(),
        topics: settings.topics.clone(),
        settings: settings.sequencer,
        clock: parts.clock.clone(),
        metrics: parts.metrics.clone(),
        health: parts.health.clone(),
    }
}

/// Every topic must be there; those that are a log of one order have one partition.
async fn check_topics(settings: &InstanceSettings, parts: &InstanceParts) -> Result<(), BrokerError> {
    let topics = &settings.topics;
    let single = [&topics.block_mined, &topics.reorgs, &topics.chain, &topics.decisions];
    let refuse = |message: String| BrokerError { kind: BrokerErrorKind::Refused, operation: "check topics", message };
    for topic in [settings.pipeline.topic.as_ref(), &topics.outcomes, &topics.dead_letters] {
        parts.broker.partitions(topic).await?.ok_or_else(|| refuse(format!("topic `{topic}` does not exist")))?;
    }
    for topic in single {
        match parts.broker.partitions(topic).await? {
            None => return Err(refuse(format!("topic `{topic}` does not exist"))),
            Some(1) => {}
            Some(count) => return Err(refuse(format!("topic `{topic}` has {count} partitions: it must have one"))),
        }
    }
    Ok(())
}

/// The chain topic must be the one that the store was made from.
async fn check_chain(settings: &InstanceSettings, parts: &InstanceParts) -> Result<(), InstanceError> {
    let found = first_of_chain(settings, parts).await?;
    match parts.store.bind_chain(found).await {
        // The chain was empty when it was read; another instance may have bound the store to its first record since.
        Err(MetaError::ChainRecreated { .. }) if found.is_none() => {
            parts.store.bind_chain(first_of_chain(settings, parts).await?).await?;
        }
        bound => drop(bound?),
    }
    Ok(())
}

/// The id of the chain topic, where it has a first record.
async fn first_of_chain(settings: &InstanceSettings, parts: &InstanceParts) -> Result<Option<[u8; 32]>, InstanceError> {
    let chain = TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 };
    let (low, high) = parts.broker.watermarks(&chain).await?;
    if low > 0 || high == 0 {
        return Ok(None);
    }
    let mut reader = parts.broker.read(&chain, 0).await?;
    let Some(first) = reader.next(Duration::from_secs(5)).await?.into_iter().next() else {
        // A slow broker is no other topic.
        let message = format!("{chain}: the record at offset 0 is there but was not delivered in time");
        return Err(BrokerError::new(BrokerErrorKind::Retryable, "check chain", message).into());
    };
    Ok((first.offset == 0).then(|| chain_id(first.timestamp_ms, &first.key, &first.payload)))
}

/// What the group has committed.
struct Frontier {
    validated: BTreeMap<i32, u64>,
    chain: u64,
}

impl Frontier {
    async fn committed(settings: &InstanceSettings, parts: &InstanceParts) -> Result<Self, BrokerError> {
        let topic = &settings.pipeline.topic;
        let count = parts.broker.partitions(topic).await?.unwrap_or(0);
        let partitions: Vec<TopicPartition> =
            (0..count).map(|partition| TopicPartition { topic: topic.clone(), partition }).collect();
        let committed = parts.broker.committed(&settings.pipeline.group, &partitions).await?;
        let validated = (0..count)
            .zip(committed)
            .map(|(number, committed)| (number, committed.map_or(0, |committed| committed.offset)))
            .collect();
        let chain = [TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 }];
        let committed = parts.broker.committed(&chain_group(&settings.pipeline.group), &chain).await?;
        let chain = committed.into_iter().flatten().next().map_or(0, |committed| committed.offset);
        Ok(Frontier { validated, chain })
    }

    fn any(&self) -> bool {
        self.chain > 0 || self.validated.values().any(|offset| *offset > 0)
    }
}

/// All decisions, and the contests that lie behind the last one.
async fn first_mentions(
    settings: &InstanceSettings,
    parts: &InstanceParts,
    producer: Arc<dyn Producer>,
) -> Result<FirstMentions, InstanceError> {
    let log = DecisionLog::open(parts.broker.clone(), producer, &settings.topics.decisions, 0, 0).await?;
    let decisions: Vec<_> = log.table().iter().collect();
    let behind = log.table().last_chain_offset().map_or(0, |last| last + 1);
    let chain = TopicPartition { topic: settings.topics.chain.as_str().into(), partition: 0 };
    let (_, high) = parts.broker.watermarks(&chain).await?;
    let mut undecided: Vec<Txid> = Vec::new();
    let mut reader = parts.broker.read(&chain, behind.min(high)).await?;
    while reader.position() < high {
        for message in reader.next(Duration::from_millis(100)).await? {
            // What cannot be decoded is a dead letter of the sequencer's, and mentions nobody.
            if let Ok(Event::Contest(contest)) = Event::decode(&message.payload) {
                undecided.push(contest.txid);
            }
        }
    }
    Ok(FirstMentions::new(&decisions, undecided))
}
