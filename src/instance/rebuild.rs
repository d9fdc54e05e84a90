//! The rebuild of a store from the log, and going on with one that was killed.
//!
//! A rebuild writes into the meta record what it is made from ([`LogEnds`](crate::record::LogEnds)) before it begins, and how far it has come behind the durability
//! lag, as instances commit: whoever goes on makes the same of the same log, and does what an instance does that was killed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    InstanceError, InstanceParts, InstanceSettings, bind_topics, check_chain,
    checks::{check_decisions, check_topics, first_of_chain, store_topics},
    claim_blobs, expectations,
    frontier::{Frontier, raise},
    nodes, pipeline_parts, sequencer_parts, together,
};
use crate::{
    broker::{
        BrokerError, BrokerErrorKind, Committed, Committing, TopicPartition,
        replay::{Keep, ReplayConsumer},
    },
    ingest::pipeline::{Pipeline, PipelineReport},
    record::{Consumed, LogEnds, MetaRecord, Rebuilding},
    replay::Modes,
    sequencer::{ChainMode, Sequencer, SequencerParts},
    status::Condition,
    store::{
        Store,
        meta::{MetaError, Rebuild},
        nodes::Nodes,
        topics::find_topics,
    },
};

/// What a rebuild did.
#[derive(Debug, Clone, Copy)]
pub struct Rebuilt {
    /// Of the validated transactions; where it was resumed, since then.
    pub pipeline: PipelineReport,
    /// Contests in the log that nobody has decided yet. The live store may hold slots for those who contest, the rebuilt one does
    /// not: their digests are the same only once there are none.
    pub undecided: usize,
}

/// Rebuilds the state of a live group, as far as it had committed, into an empty store. Publishes nothing and commits
/// nothing.
///
/// Of a group that is quiet that is its state. One that is not has been at every offset of the frontier, but not at all of them at
/// once: what comes out follows from the log alone, and has no store to be compared with.
///
/// # Errors
/// See [`InstanceError`].
pub async fn rebuild(
    settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<Rebuilt, InstanceError> {
    if !parts.store.takes_rebuild().await? {
        return Err(InstanceError::NotEmpty);
    }
    run(settings, parts, None, shutdown).await
}

/// Goes on with a rebuild that was stopped or killed, up to where that was to end, from what it had reached; begins one where none has
/// begun. The process that began it must have ended: one that was only stopped for a while would write on.
///
/// # Errors
/// See [`InstanceError`]; [`MetaError::Forgotten`] over a store of which a node has restarted since it began.
pub async fn resume_rebuild(
    settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<Rebuilt, InstanceError> {
    match parts.store.meta().await? {
        Some(MetaRecord { rebuilding: begun @ Some(_), .. }) => run(settings, parts, begun, shutdown).await,
        Some(MetaRecord { rebuilder: Some(_), .. }) => Err(InstanceError::Rebuilt),
        _ => rebuild(settings, parts, shutdown).await,
    }
}

async fn run(
    mut settings: InstanceSettings,
    parts: InstanceParts,
    begun: Option<Box<Rebuilding>>,
    shutdown: CancellationToken,
) -> Result<Rebuilt, InstanceError> {
    let broker = parts.broker.clone();
    let partitions = check_topics(&settings, broker.as_ref()).await?;
    settings.pipeline.partitions = Some(partitions);
    // Whatever may be refused comes before the store is anybody's: then it can be tried again.
    let now = Frontier::committed(&settings, broker.as_ref()).await?.log_ends(&settings, broker.as_ref()).await?;
    let log = match &begun {
        None => now,
        Some(begun) if !now.reaches(&begun.log) => return Err(InstanceError::OtherLog),
        Some(begun) => begun.log.clone(),
    };
    check_decisions(&settings, broker.as_ref()).await?;
    first_of_chain(&settings, broker.as_ref()).await?;
    let mut nodes = nodes(&settings, &parts)?;
    let (rebuild, chain_frontier, undecided) = raise(&log, &settings, &parts).await?;

    let rebuilder = parts.identity.owner;
    let reached = match begun {
        None => {
            let rebuilding = Rebuilding { frontier: chain_frontier, log, ..Rebuilding::default() };
            begin(&parts, &mut nodes, rebuilder, rebuilding).await?;
            Reached::default()
        }
        Some(begun) if begun.frontier != chain_frontier => return Err(InstanceError::OtherLog),
        Some(begun) => resume(&parts, &mut nodes, rebuilder, &begun.log).await?,
    };
    let found = find_topics(parts.broker.as_ref(), &store_topics(&settings)).await?;
    check_chain(&settings, &parts, &found).await?;
    let guard = bind_topics(&parts, partitions, found).await?;
    parts.health.set(Condition::StoreReachable, None);
    let topic = settings.pipeline.topic.clone();
    let keep: Keep = keeping(parts.store.clone(), rebuilder, settings.topics.chain.as_str().into());
    let consumer =
        ReplayConsumer::open(broker.clone(), &topic, &rebuild.frontier, &reached.validated, keep.clone()).await?;
    let chain_ends = BTreeMap::from([(0, chain_frontier)]);
    let chain = ReplayConsumer::open(broker.clone(), &settings.topics.chain, &chain_ends, &reached.chain, keep).await?;
    let producer = broker.producer().await?;
    let grace = Duration::from_millis(settings.pipeline.missing_parent_grace_ms);
    let (verdicts, consumed) = (rebuild.verdicts.clone(), rebuild.consumed(chain_frontier));
    let stands = stands(parts.clone(), rebuild.frontier.clone(), chain_frontier, grace);
    let pipeline = Pipeline::new(
        settings.pipeline.clone(),
        pipeline_parts(&settings, &parts, producer.clone(), Modes::Rebuild(Arc::new(rebuild)), (&nodes, guard.clone())),
        Box::new(consumer),
    );
    let mode = ChainMode::Rebuild { frontier: chain_frontier, stop_at_frontier: true };
    let chain_parts = sequencer_parts(&settings, &parts, producer, (nodes.clone(), guard), &pipeline);
    let sequencer = Sequencer::new(SequencerParts { verdicts, ..chain_parts }, mode, Box::new(chain));
    let report = tokio::select! {
        biased;
        rebuilt = Box::pin(together(pipeline, Some(sequencer), shutdown.clone())) => rebuilt?,
        why = stands => return Err(why),
        why = taken_over(&parts.store, rebuilder) => return Err(why.into()),
    };
    if !shutdown.is_cancelled() {
        end(&parts.store, nodes, rebuilder, &consumed).await?;
    }
    Ok(Rebuilt { pipeline: report, undecided })
}

/// Says in the store that its rebuild begins, and then whose its blobs are, once no node can forget the id that they are marked with:
/// without it nobody could begin again here.
async fn begin(
    parts: &InstanceParts,
    nodes: &mut Nodes,
    rebuilder: u64,
    rebuilding: Rebuilding,
) -> Result<(), InstanceError> {
    nodes.meet().await.map_err(MetaError::from)?;
    loop {
        let attempt =
            Rebuild { rebuilding: Rebuilding { nodes: nodes.known().0.clone(), ..rebuilding.clone() }, rebuilder };
        let meta = parts.store.begin_rebuild(expectations(&parts.store), attempt, parts.store_id).await?;
        let is_safe = parts.store.blobs.is_none() || nodes.outlast().await.map_err(MetaError::from)?;
        // Whoever begins at the same time finds the set empty, too: both look again before they write, and one finds the other's number.
        tokio::time::sleep(LOOK * 2).await;
        match parts.store.still_rebuilds(rebuilder).await {
            // A node has forgotten that it began.
            Err(MetaError::Absent) if !is_safe => {}
            other => other?,
        }
        if !parts.store.takes_rebuild().await? {
            return Err(InstanceError::NotEmpty);
        }
        if is_safe {
            claim_blobs(&parts.store, &meta).await?;
            // Before everything else, so that what is lost on the way is missed at the end.
            parts.store.plant_sentinels(&meta).await?;
            return Ok(());
        }
    }
}

/// Says in the store that its rebuild goes on. No node has forgotten anything since it began, so what is missing of it was never written,
/// or is lost with a part of the store.
async fn resume(
    parts: &InstanceParts,
    nodes: &mut Nodes,
    rebuilder: u64,
    log: &LogEnds,
) -> Result<Reached, InstanceError> {
    let incarnation = nodes.meet().await.map_err(MetaError::from)?;
    let meta = parts.store.resume_rebuild(expectations(&parts.store), incarnation, rebuilder, log).await?;
    tokio::time::sleep(LOOK * 2).await;
    parts.store.still_rebuilds(rebuilder).await?;
    // Who was killed may have waited for this.
    let is_unmarked = parts.store.blobs.is_some() && !meta.has_blobs;
    if is_unmarked && !nodes.outlast().await.map_err(MetaError::from)? {
        return Err(MetaError::Forgotten.into());
    }
    claim_blobs(&parts.store, &meta).await?;
    let rebuilding = meta.rebuilding.clone().ok_or(MetaError::TakenOver)?;
    if rebuilding.reached == Consumed::default() {
        parts.store.plant_sentinels(&meta).await?;
    } else {
        // What lies below is not read again: a part of it that is lost stays so, and must not be given new ones.
        parts.store.check_sentinels(&meta).await?;
    }
    tracing::info!(reached = ?rebuilding.reached, frontier = rebuilding.frontier, "the rebuild is resumed");
    Ok(Reached::of(*rebuilding))
}

/// Where consumers go on; nothing of what was not begun.
#[derive(Default)]
struct Reached {
    validated: BTreeMap<i32, Committed>,
    chain: BTreeMap<i32, Committed>,
}

impl Reached {
    fn of(Rebuilding { reached, chain_state, .. }: Rebuilding) -> Self {
        // No instance's word: nothing is to be compared with what the store says of itself.
        let at = |(partition, offset)| {
            let partition = i32::try_from(partition).ok().filter(|_| offset > 0)?;
            Some((partition, Committed { offset, metadata: String::new() }))
        };
        let chain = (reached.chain > 0).then_some((0, Committed { offset: reached.chain, metadata: chain_state }));
        Reached {
            validated: reached.validated.into_iter().filter_map(at).collect(),
            chain: chain.into_iter().collect(),
        }
    }
}

/// Writes what is committed into the meta record.
fn keeping(store: Store, rebuilder: u64, chain: Arc<str>) -> Keep {
    Arc::new(move |offsets: &[(TopicPartition, Committed)]| -> Committing {
        let (mut reached, mut chain_state) = (Consumed::default(), String::new());
        for (at, committed) in offsets {
            if at.topic == chain {
                reached.chain = committed.offset;
                chain_state.clone_from(&committed.metadata);
            } else {
                reached.validated.insert(at.partition.unsigned_abs(), committed.offset);
            }
        }
        let store = store.clone();
        Box::pin(async move {
            let noted = store.note_reached(rebuilder, &reached, &chain_state).await;
            noted.map(drop).map_err(|error| {
                // Who has been taken over ends by that name.
                let is_heard = error.may_be_retried() || matches!(error, MetaError::TakenOver);
                let kind = if is_heard { BrokerErrorKind::Retryable } else { BrokerErrorKind::Fatal };
                BrokerError::new(kind, "note how far the rebuild has come", error.to_string())
            })
        })
    })
}

/// Waits until no node can forget any more what the chain has done last, which nobody has waited for, then says in the store that its
/// rebuild has ended, and waits until none can forget that.
async fn end(store: &Store, mut nodes: Nodes, rebuilder: u64, consumed: &Consumed) -> Result<(), InstanceError> {
    if !nodes.outlast().await.map_err(MetaError::from)? {
        return Err(MetaError::Forgotten.into());
    }
    store.check_sentinels(&store.meta().await?.ok_or(MetaError::Absent)?).await?;
    loop {
        store.end_rebuild(rebuilder, consumed).await?;
        if nodes.outlast().await.map_err(MetaError::from)? {
            if store.engine.may_lose_parts() {
                store.note_sentinels().await?;
            }
            return Ok(());
        }
    }
}

/// Ends when another rebuild of this set has begun: once that lets instances in, nobody else may write as a rebuild does.
async fn taken_over(store: &Store, rebuilder: u64) -> MetaError {
    loop {
        tokio::time::sleep(LOOK).await;
        if let Err(error) = store.still_rebuilds(rebuilder).await {
            return error;
        }
    }
}

/// Ends when a rebuild stands: neither transactions nor the chain have moved for `grace` (at least [`PATIENCE`]), and whoever is
/// not done has said what it waits for. That stands above the frontier, where nobody will look.
async fn stands(parts: InstanceParts, validated: BTreeMap<i32, u64>, chain: u64, grace: Duration) -> InstanceError {
    let progress = || (parts.metrics.completed.total(), parts.metrics.chain_offset.get());
    let (mut seen, mut since) = (progress(), Instant::now());
    loop {
        tokio::time::sleep(LOOK).await;
        let reasons = parts.health.ready().reasons;
        let says = |condition: Condition| reasons.get(condition.name());
        let waits: Vec<_> =
            [Condition::PartitionsRunning, Condition::ChainRunning].into_iter().filter_map(says).collect();
        let chain_is_done = u64::try_from(seen.1).is_ok_and(|offset| offset >= chain);
        let chain_waits = chain_is_done || says(Condition::ChainRunning).is_some();
        if seen != progress() || !chain_waits || waits.is_empty() || says(Condition::StoreReachable).is_some() {
            (seen, since) = (progress(), Instant::now());
        } else if since.elapsed() >= grace.max(PATIENCE) {
            let waits = waits.into_iter().cloned().collect::<Vec<_>>().join("; ");
            let validated: Vec<String> =
                validated.iter().map(|(number, offset)| format!("{number}: {offset}")).collect();
            let frontier = format!("partitions {{{}}}, chain {chain}", validated.join(", "));
            return InstanceError::RebuildStands { waits, frontier };
        }
    }
}

const LOOK: Duration = Duration::from_millis(500);
/// A broker may take so long without anything being wrong.
const PATIENCE: Duration = Duration::from_secs(60);
