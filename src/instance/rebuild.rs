//! The rebuild of a store from the log, and the resumption of a rebuild that was killed.
//!
//! A rebuild writes its end offsets ([`LogEnds`](crate::record::LogEnds)) into the meta record before it begins, and
//! then its durable progress, as an instance commits offsets. A resumed rebuild thus reads the same part of the log,
//! and continues as an instance does after a kill.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    InstanceError, InstanceParts, InstanceSettings, LogOutput, POLL_INTERVAL,
    frontier::{Frontier, plan_rebuild},
    pipeline_services, run_loops, sequencer_parts,
    start::{bind_log, check_decisions, check_topics, claim_blobs, identify_log, restart_detector},
};
use crate::{
    broker::{
        BrokerError, BrokerErrorKind, CommitFuture, CommittedOffset, TopicPartition,
        replay::{CommitSink, ReplayConsumer},
    },
    ingest::pipeline::{Pipeline, PipelineReport},
    record::{ConsumedOffsets, LogEnds, MetaRecord, MinedIn, Rebuilding},
    replay::Modes,
    sequencer::{ChainMode, Sequencer, SequencerParts},
    status::Condition,
    store::{
        StateStore,
        meta::{MetaError, RebuildAttempt, RebuildRecord},
        restart_detector::RestartDetector,
        sentinels::Sentinels,
        topics::LogIdentity,
        verify::find_connected_block,
    },
    tx::Txid,
};

/// Result of a rebuild that ended or was stopped.
#[derive(Debug, Clone, Copy)]
pub struct RebuildReport {
    /// Report of the pipeline; of a resumed rebuild, since the resumption.
    pub pipeline: PipelineReport,
    /// Number of contests in the log without a decision. The live store may hold slots for contested transactions, the
    /// rebuilt store does not: the digests are equal only once the number is 0.
    pub undecided: usize,
}

/// Rebuilds the state of a live group, up to its committed offsets, into an empty store. Publishes nothing and commits
/// no offsets.
///
/// The result equals the state of an idle group. A busy group has passed every offset of the frontier, but not all at
/// one moment: the result follows from the log alone, and no live store has an equal state.
///
/// # Errors
/// See [`InstanceError`].
pub async fn rebuild(
    settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<RebuildReport, InstanceError> {
    if !RebuildRecord::of(&parts.store).can_begin().await? {
        return Err(InstanceError::NotEmpty);
    }
    Box::pin(run(settings, parts, None, shutdown)).await
}

/// Resumes a rebuild that was stopped or killed, from its durable progress to its end offsets. Begins a rebuild where
/// none has begun. The process that began the rebuild must have ended: a suspended process would continue to write.
///
/// # Errors
/// See [`InstanceError`]; [`MetaError::NodeRestarted`] if a node of the store has restarted since the rebuild began.
pub async fn resume_rebuild(
    settings: InstanceSettings,
    parts: InstanceParts,
    shutdown: CancellationToken,
) -> Result<RebuildReport, InstanceError> {
    match parts.store.meta().await? {
        Some(MetaRecord { rebuilding: begun @ Some(_), .. }) => Box::pin(run(settings, parts, begun, shutdown)).await,
        Some(MetaRecord { rebuilder: Some(_), .. }) => Err(InstanceError::RebuildEnded),
        _ => rebuild(settings, parts, shutdown).await,
    }
}

async fn run(
    mut settings: InstanceSettings,
    parts: InstanceParts,
    begun: Option<Box<Rebuilding>>,
    shutdown: CancellationToken,
) -> Result<RebuildReport, InstanceError> {
    let broker = parts.broker.clone();
    let counts = check_topics(&settings, broker.as_ref()).await?;
    settings.pipeline.partitions = Some(counts.validated);
    // All refusals come before the first write, so that a refused rebuild can be tried again.
    let frontier = Frontier::read(&settings, broker.as_ref()).await?;
    let now = frontier.log_ends(&settings, broker.as_ref()).await?;
    let log = match &begun {
        None => now,
        Some(begun) if !now.reaches(&begun.log) => return Err(InstanceError::LogChanged),
        Some(begun) => begun.log.clone(),
    };
    check_decisions(&settings, broker.as_ref(), &frontier).await?;
    LogIdentity::read(broker.as_ref(), &settings.state_topics()).await?;
    let mut nodes = restart_detector(&settings, &parts)?;
    let (rebuild, chain_frontier, undecided) = plan_rebuild(&log, &settings, &parts).await?;

    let rebuilder = parts.identity.owner;
    let reached = match begun {
        None => {
            let rebuilding = Rebuilding { frontier: chain_frontier, log, ..Rebuilding::default() };
            begin(&parts, &mut nodes, rebuilder, rebuilding).await?;
            RebuildProgress::default()
        }
        Some(begun) if begun.frontier != chain_frontier => return Err(InstanceError::LogChanged),
        Some(begun) => resume(&parts, &mut nodes, rebuilder, &begun.log).await?,
    };
    let (_, log_identity) = identify_log(&settings, &parts).await?;
    let guard = bind_log(&parts, log_identity).await?;
    parts.health.on_store_opened();
    let topic = settings.pipeline.topic.clone();
    let sink: CommitSink = progress_sink(parts.store.clone(), rebuilder, settings.topics.chain.as_str().into());
    let consumer =
        ReplayConsumer::open(broker.clone(), &topic, &rebuild.frontier, &reached.validated, sink.clone()).await?;
    let chain_ends = BTreeMap::from([(0, chain_frontier)]);
    let chain = ReplayConsumer::open(broker.clone(), &settings.topics.chain, &chain_ends, &reached.chain, sink).await?;
    let output = LogOutput::open(&settings, &parts, counts.outcomes).await?;
    let grace = Duration::from_millis(settings.pipeline.missing_parent_grace_ms);
    let (verdicts, consumed) = (rebuild.verdicts.clone(), rebuild.consumed(chain_frontier));
    let frontier = format_frontier(&rebuild.frontier, chain_frontier);
    let blocked = wait_until_blocked(parts.clone(), rebuild.frontier.clone(), chain_frontier, grace);
    let pipeline = Pipeline::new(
        settings.pipeline.clone(),
        pipeline_services(
            &settings,
            &parts,
            output.clone(),
            Modes::Rebuild(Arc::new(rebuild)),
            (&nodes, guard.clone()),
        ),
        Box::new(consumer),
        // The outcomes are those of the live group.
        None,
    );
    let mode = ChainMode::Rebuild { frontier: chain_frontier, stop_at_frontier: true };
    let chain_parts = sequencer_parts(&settings, &parts, output, (nodes.clone(), guard), &pipeline);
    let sequencer = Sequencer::new(SequencerParts { verdicts, ..chain_parts }, mode, Box::new(chain));
    let report = tokio::select! {
        biased;
        ended = Box::pin(run_loops(pipeline, Some(sequencer), shutdown.clone())) => ended?,
        error = blocked => return Err(error),
        error = wait_until_taken_over(&parts.store, rebuilder) => return Err(error.into()),
    };
    if !shutdown.is_cancelled() {
        check_undecided(&parts.store, &undecided, &frontier).await?;
        end(&parts.store, nodes, rebuilder, &consumed).await?;
    }
    Ok(RebuildReport { pipeline: report, undecided: undecided.len() })
}

/// Refuses a state in which an undecided transaction is conflicting, although a block that stays lists the transaction.
/// A node has forgotten the transaction, and the group handles the block again before the contest. The contest would be
/// decided in this store without that, and a mined transaction could lose.
async fn check_undecided(store: &StateStore, undecided: &[Txid], frontier: &str) -> Result<(), InstanceError> {
    for txids in undecided.chunks(UNDECIDED_AT_ONCE) {
        let masters = store.masters(txids).await.map_err(MetaError::from)?;
        for master in masters.into_iter().flatten().filter(|master| master.conflicting) {
            let listed_by = find_connected_block(store, &master).await.map_err(MetaError::from)?;
            if let Some(MinedIn { block_id, height, .. }) = listed_by {
                let txid = master.txid;
                let waits =
                    format!("{txid} is contested without a decision, and block {block_id} at height {height} lists it");
                return Err(InstanceError::RebuildBlocked { waits, frontier: frontier.to_owned() });
            }
        }
    }
    Ok(())
}

/// Records the begin of the rebuild in the meta record, then marks the blob store with the store id. The mark waits
/// until the id is durable: a blob store that is marked with a lost id could never be used for a rebuild again.
async fn begin(
    parts: &InstanceParts,
    nodes: &mut RestartDetector,
    rebuilder: u64,
    rebuilding: Rebuilding,
) -> Result<(), InstanceError> {
    nodes.baseline().await.map_err(MetaError::from)?;
    loop {
        let rebuilding = Rebuilding { nodes: nodes.expected().0.clone(), ..rebuilding.clone() };
        let attempt = RebuildAttempt { rebuilding, rebuilder };
        let meta = RebuildRecord::of(&parts.store).begin(attempt, parts.store_id).await?;
        let is_durable = parts.store.blobs.is_none() || nodes.wait_until_durable().await.map_err(MetaError::from)?;
        // Two rebuilds that begin at the same time both find the set empty. Both read the meta record again before they
        // write, and one of them finds the number of the other.
        tokio::time::sleep(POLL_INTERVAL * 2).await;
        match RebuildRecord::of(&parts.store).check_owner(rebuilder).await {
            // A node lost the meta record: the next round writes the record again.
            Err(MetaError::NoMetaRecord) if !is_durable => {}
            other => other?,
        }
        if !RebuildRecord::of(&parts.store).can_begin().await? {
            return Err(InstanceError::NotEmpty);
        }
        if is_durable {
            claim_blobs(&parts.store, &meta).await?;
            // Sentinels come before every other record, so that a part that is lost meanwhile is missed at the end.
            Sentinels::of(&parts.store).write(&meta).await?;
            return Ok(());
        }
    }
}

/// Records the resumption of the rebuild in the meta record. No node has restarted since the begin, so that a missing
/// record was never written, or is lost with a part of the namespace.
async fn resume(
    parts: &InstanceParts,
    nodes: &mut RestartDetector,
    rebuilder: u64,
    log: &LogEnds,
) -> Result<RebuildProgress, InstanceError> {
    let incarnation = nodes.baseline().await.map_err(MetaError::from)?;
    let meta = RebuildRecord::of(&parts.store).resume(incarnation, rebuilder, log).await?;
    tokio::time::sleep(POLL_INTERVAL * 2).await;
    RebuildRecord::of(&parts.store).check_owner(rebuilder).await?;
    // The killed process may have been waiting to mark the blob store.
    let is_unmarked = parts.store.blobs.is_some() && !meta.has_blobs;
    if is_unmarked && !nodes.wait_until_durable().await.map_err(MetaError::from)? {
        return Err(MetaError::NodeRestarted.into());
    }
    claim_blobs(&parts.store, &meta).await?;
    let rebuilding = meta.rebuilding.clone().ok_or(MetaError::RebuildTakenOver)?;
    if rebuilding.reached == ConsumedOffsets::default() {
        Sentinels::of(&parts.store).write(&meta).await?;
    } else {
        // Events below the progress are not read again: a lost part stays lost and must not get new sentinels.
        Sentinels::of(&parts.store).verify(&meta).await?;
    }
    tracing::info!(reached = ?rebuilding.reached, frontier = rebuilding.frontier, "rebuild: resumed");
    Ok(RebuildProgress::from_record(*rebuilding))
}

/// Offsets at which the consumers of a rebuild resume; empty for a new rebuild.
#[derive(Default)]
struct RebuildProgress {
    validated: BTreeMap<i32, CommittedOffset>,
    chain: BTreeMap<i32, CommittedOffset>,
}

impl RebuildProgress {
    fn from_record(Rebuilding { reached, chain_state, .. }: Rebuilding) -> Self {
        // Empty metadata marks an offset that no instance committed, so that the store is not compared with it.
        let at = |(partition, offset)| {
            let partition = i32::try_from(partition).ok().filter(|_| offset > 0)?;
            Some((partition, CommittedOffset { offset, metadata: String::new() }))
        };
        let chain =
            (reached.chain > 0).then_some((0, CommittedOffset { offset: reached.chain, metadata: chain_state }));
        RebuildProgress {
            validated: reached.validated.into_iter().filter_map(at).collect(),
            chain: chain.into_iter().collect(),
        }
    }
}

/// Returns a sink that writes committed offsets into the meta record.
fn progress_sink(store: StateStore, rebuilder: u64, chain: Arc<str>) -> CommitSink {
    Arc::new(move |offsets: &[(TopicPartition, CommittedOffset)]| -> CommitFuture {
        let (mut reached, mut chain_state) = (ConsumedOffsets::default(), String::new());
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
            let recorded = RebuildRecord::of(&store).record_progress(rebuilder, &reached, &chain_state).await;
            recorded.map(drop).map_err(|error| {
                // A takeover is retryable here: `wait_until_taken_over` then ends the rebuild with its own error.
                let is_retryable = error.may_be_retried() || matches!(error, MetaError::RebuildTakenOver);
                let kind = if is_retryable { BrokerErrorKind::Retryable } else { BrokerErrorKind::Fatal };
                BrokerError::new(kind, "record the progress of the rebuild", error.to_string())
            })
        })
    })
}

/// Waits until the last writes of the chain are durable, records the end of the rebuild in the meta record, and waits
/// until that record is durable.
async fn end(
    store: &StateStore,
    mut nodes: RestartDetector,
    rebuilder: u64,
    consumed: &ConsumedOffsets,
) -> Result<(), InstanceError> {
    if !nodes.wait_until_durable().await.map_err(MetaError::from)? {
        return Err(MetaError::NodeRestarted.into());
    }
    Sentinels::of(store).verify(&store.meta().await?.ok_or(MetaError::NoMetaRecord)?).await?;
    loop {
        RebuildRecord::of(store).end(rebuilder, consumed).await?;
        if nodes.wait_until_durable().await.map_err(MetaError::from)? {
            if store.engine.may_lose_parts() {
                Sentinels::of(store).record().await?;
            }
            return Ok(());
        }
    }
}

/// Returns once another rebuild of this set has begun. That rebuild admits instances at its end, and from then on no
/// other process may write as a rebuild does.
async fn wait_until_taken_over(store: &StateStore, rebuilder: u64) -> MetaError {
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        if let Err(error) = RebuildRecord::of(store).check_owner(rebuilder).await {
            return error;
        }
    }
}

/// Returns once a rebuild is blocked: neither transactions nor the chain have advanced for `grace` (at least
/// [`LEAST_BLOCKED_TIME`]), and the unfinished loops report what they wait for. The awaited event is above the
/// frontier, where the rebuild does not read.
async fn wait_until_blocked(
    parts: InstanceParts,
    validated: BTreeMap<i32, u64>,
    chain: u64,
    grace: Duration,
) -> InstanceError {
    let progress = || (parts.metrics.completed.total(), parts.metrics.chain_offset.get());
    let (mut seen, mut since) = (progress(), Instant::now());
    loop {
        tokio::time::sleep(POLL_INTERVAL).await;
        let reasons = parts.health.ready().reasons;
        let reason = |condition: Condition| reasons.get(condition.name());
        let waits: Vec<_> =
            [Condition::PartitionsRunning, Condition::ChainRunning].into_iter().filter_map(reason).collect();
        let chain_is_done = u64::try_from(seen.1).is_ok_and(|offset| offset >= chain);
        let chain_waits = chain_is_done || reason(Condition::ChainRunning).is_some();
        let is_outage =
            [Condition::StoreReachable, Condition::ObjectsReadable].into_iter().any(|down| reason(down).is_some());
        if seen != progress() || !chain_waits || waits.is_empty() || is_outage {
            (seen, since) = (progress(), Instant::now());
        } else if since.elapsed() >= grace.max(LEAST_BLOCKED_TIME) {
            let waits = waits.into_iter().cloned().collect::<Vec<_>>().join("; ");
            return InstanceError::RebuildBlocked { waits, frontier: format_frontier(&validated, chain) };
        }
    }
}

fn format_frontier(validated: &BTreeMap<i32, u64>, chain: u64) -> String {
    let validated: Vec<String> = validated.iter().map(|(number, offset)| format!("{number}: {offset}")).collect();
    format!("partitions {{{}}}, chain {chain}", validated.join(", "))
}

/// Undecided transactions that are read at once.
const UNDECIDED_AT_ONCE: usize = 1_024;

/// Least time without progress after which a rebuild counts as blocked: a healthy broker may take as long.
const LEAST_BLOCKED_TIME: Duration = Duration::from_secs(60);
