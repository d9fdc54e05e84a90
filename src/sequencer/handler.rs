//! Context and helpers that the handlers of chain events share.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, OutgoingMessage, Producer,
        identity::{TopicGuard, Unconfirmed},
        produce_until_acknowledged,
    },
    clock::Clock,
    engine::{EngineError, ErrorKind, Row},
    event::{Block, DeadLetter, DecisionBody, Event, OutcomeEvent, OutcomeKind},
    group::{dead_letters::publish_dead_letter, notify::TxNotifier},
    liveness::LoopMonitor,
    record::{Key, Operation, Outcome, Page, Phase, Rejection, Sequenced, Stamp, TxState},
    replay::LastVerdicts,
    sequencer::{
        bodies::BodyCache,
        command::ValidatedSource,
        decisions::DecisionError,
        prune::PruneTask,
        reader_cache::ReaderCache,
        state::{ChainState, Tip},
        steps::DecisionMode,
        waiting::{POLL_PAUSE, ReportedWait, format_missing},
    },
    status::{Health, health::Workload, registry::TipStatus},
    store::{Store, create::Creator, ownership::StoreOwnership, restart_detector::RestartDetector},
    telemetry::{Metrics, VerdictKind},
    text::hex_reversed,
    tx::{Outpoint, Txid},
};

/// Topics that the sequencer reads and writes.
#[derive(Debug, Clone)]
pub struct SequencerTopics {
    /// The topic `utxo.block-mined`: blocks of the block feed.
    pub block_mined: String,
    /// The topic `utxo.reorgs`: reorgs of the block feed.
    pub reorgs: String,
    /// The topic `utxo.chain`: the chain log.
    pub chain: String,
    /// The topic `utxo.decisions`: decisions, written ahead.
    pub decisions: String,
    /// The topic `utxo.outcomes`: verdicts and results for clients.
    pub outcomes: String,
    /// The topic `utxo.dead-letters`: events that cannot be applied.
    pub dead_letters: String,
}

impl SequencerTopics {
    /// Returns the topics that make the chain. Their events count only while their topic ids are those of the store.
    pub fn guarded(&self) -> Vec<String> {
        [&self.chain, &self.decisions, &self.block_mined, &self.reorgs].into_iter().cloned().collect()
    }

    /// Returns the topics whose events the feed appends to the chain log.
    pub fn fed(&self) -> Vec<String> {
        vec![self.block_mined.clone(), self.reorgs.clone()]
    }
}

/// Limits of the sequencer.
#[derive(Debug, Clone, Copy)]
pub struct SequencerSettings {
    /// Time that a block waits for its transactions before the chain counts as halted.
    pub block_wait: Duration,
    /// Transactions in one batch of `SetMined`.
    pub mined_batch_size: usize,
    /// Descendants that one decision names at most.
    pub descendants_per_decision: usize,
    /// Time between two commits of the chain offset.
    pub commit_interval: Duration,
    /// Rate of pruning; `None`: the sequencer does not prune.
    pub prune: Option<PruneTask>,
}

/// The services and settings that the sequencer is made of.
#[derive(Clone)]
pub struct SequencerParts {
    /// The broker that holds the log.
    pub broker: Arc<dyn Broker>,
    /// The producer of decisions, outcomes, dead letters and fed events.
    pub producer: Arc<dyn Producer>,
    /// The store that holds the state.
    pub store: Store,
    /// Creates transactions of several pages.
    pub creator: Creator,
    /// Names of the topics that the sequencer reads and writes.
    pub topics: SequencerTopics,
    /// Topic and consumer group of validated transactions.
    pub validated: ValidatedSource,
    /// Limits and intervals of the sequencer.
    pub settings: SequencerSettings,
    /// The clock of the instance.
    pub clock: Clock,
    /// Metrics of the instance.
    pub metrics: Arc<Metrics>,
    /// Readiness and liveness of the instance.
    pub health: Arc<Health>,
    /// Detects restarts of the store's nodes, which can lose writes.
    pub nodes: RestartDetector,
    /// Confirms that the topics are those that the store was made from.
    pub guard: TopicGuard,
    /// Verifies that the store belongs to the group and has lost no part.
    pub ownership: Arc<dyn StoreOwnership>,
    /// Wakes the pipeline's transactions that wait for a parent created here.
    pub tx_notifier: TxNotifier,
    /// The last verdicts before a rebuild's frontier; empty without a rebuild.
    pub verdicts: Arc<LastVerdicts>,
    /// The loop monitor of the worker that waits with these parts; `None`: the waits are not the worker's.
    pub monitor: Option<LoopMonitor>,
}

impl SequencerParts {
    /// Records that the worker with these parts is not stalled. Does nothing without a monitor.
    pub(super) fn beat(&self) {
        if let Some(monitor) = &self.monitor {
            monitor.beat();
            self.health.record_progress(Workload::Chain);
        }
    }
}

/// The reason why the sequencer stops.
#[derive(Debug, thiserror::Error)]
pub enum SequencerError {
    /// The log cannot be applied: an operator must intervene.
    #[error("{0}")]
    Halt(String),
    /// Records have stamps of later events: another sequencer is ahead of this one.
    #[error("chain offset {0}: the store is ahead: another sequencer has handled later events")]
    Behind(u64),
    /// A restarted node may have lost writes: every event that is not committed is handled again.
    #[error("a node of the store restarted")]
    NodeRestarted,
    /// The store must not be changed, because it is damaged or belongs to another group.
    #[error("store: {0}")]
    Damaged(String),
    /// A task of the sequencer panicked.
    #[error("internal: {0}")]
    Died(String),
    /// An error of the broker.
    #[error(transparent)]
    Broker(BrokerError),
    /// An error of the store's engine.
    #[error(transparent)]
    Store(EngineError),
}

impl From<Unconfirmed> for SequencerError {
    /// Converts a topic that is not the store's into a halt: a restart would not help.
    fn from(unconfirmed: Unconfirmed) -> Self {
        match unconfirmed {
            Unconfirmed::Other(why) => SequencerError::Halt(why),
            Unconfirmed::Broker(error) => SequencerError::Broker(error),
        }
    }
}

impl From<EngineError> for SequencerError {
    /// Converts "too big for the store" into a halt: a restart would not help, and the pipeline continues.
    fn from(error: EngineError) -> Self {
        match error.kind {
            ErrorKind::TooBig => SequencerError::Halt(error.to_string()),
            _ => SequencerError::Store(error),
        }
    }
}

impl From<BrokerError> for SequencerError {
    /// Converts "refused by the topic" and "offset out of range" into a halt: a restart would not help, and the
    /// pipeline continues.
    fn from(error: BrokerError) -> Self {
        match error.kind {
            BrokerErrorKind::TooLarge | BrokerErrorKind::Rejected | BrokerErrorKind::OutOfRange => {
                SequencerError::Halt(error.to_string())
            }
            _ => SequencerError::Broker(error),
        }
    }
}

impl From<DecisionError> for SequencerError {
    fn from(error: DecisionError) -> Self {
        match error {
            DecisionError::Broker(error) => error.into(),
            DecisionError::Bad(_) | DecisionError::TooLarge { .. } => SequencerError::Halt(error.to_string()),
        }
    }
}

/// The context of the chain event that is being handled: its offset, era and mode, from which stamps are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventContext {
    /// Offset of the event in the chain log.
    pub offset: u64,
    /// The era in which the event is handled.
    pub era: u32,
    /// Mode of the handler: live, or a rebuild below its frontier.
    pub mode: DecisionMode,
    /// True while a reorg disconnects blocks. Writes of that part have the earlier phase in their stamp, so that a late
    /// write of that part cannot undo a write of the part that connects blocks.
    pub is_disconnecting: bool,
}

impl EventContext {
    /// Returns the stamp of a phase of this event.
    pub fn stamp(&self, phase: Phase) -> Stamp {
        Stamp::in_era(self.era, self.offset, if self.is_disconnecting { Phase::Evaluate } else { phase })
    }

    /// Returns a row with an operation of the sequencer, stamped for this event.
    pub fn row(&self, phase: Phase, key: Key, operation: Sequenced) -> Row {
        Row { key, operation: Operation::Sequenced(self.stamp(phase), operation) }
    }
}

/// Handles chain events, one at a time.
pub struct Handler {
    /// Services and settings of the sequencer.
    pub parts: SequencerParts,
    /// State of the chain as of the last handled event.
    pub state: ChainState,
    /// For events that are read again.
    pub(super) readers: Mutex<ReaderCache>,
    /// Bodies that the present event has read from the blob store.
    pub(super) bodies: Mutex<BodyCache>,
    /// Grace for parents that a node lost before the chain was acquired: their events come again. One grace for all
    /// such parents, since some never come.
    pub(super) parent_grace: RestartGrace,
}

/// Number of transactions whose bodies are read at once.
pub const BODIES_AT_ONCE: usize = 256;

impl Handler {
    /// Makes a handler of the events after `state`.
    pub fn new(parts: SequencerParts, state: ChainState) -> Self {
        let parent_grace = RestartGrace::new(parts.nodes.can_lose_writes());
        let handler = Handler { parts, state, readers: Mutex::default(), bodies: Mutex::default(), parent_grace };
        handler.publish_tip();
        handler
    }

    /// Publishes the tip in the metrics and in `/state`.
    pub(super) fn publish_tip(&self) {
        let metrics = &self.parts.metrics;
        metrics.chain_tip_height.set(i64::from(self.height()));
        metrics.chain_median_time.set(self.state.median_time().map_or(0, i64::from));
        let ChainState { tip, sequence, era, .. } = &self.state;
        self.parts.health.status_registry().publish_tip(TipStatus {
            height: tip.map(|tip| tip.height),
            hash: tip.map(|tip| hex_reversed(&tip.hash)),
            sequence: *sequence,
            era: *era,
        });
    }

    /// Moves the tip after `disconnected` blocks have left the longest chain and the blocks `connected` have joined.
    pub(super) fn move_tip(&mut self, tip: Option<Tip>, disconnected: usize, connected: &[Block<'_>]) {
        self.state.move_tip(tip, disconnected, connected);
        self.publish_tip();
    }

    /// Returns the key of an outpoint's page and the offset of its slot in the page.
    pub fn locate(&self, outpoint: Outpoint) -> (Key, u32) {
        let (page, slot) = self.parts.store.locate_slot(outpoint);
        (Key::Page(outpoint.txid, page), slot)
    }

    /// Returns the height of the tip; 0 before the first block.
    pub fn height(&self) -> u32 {
        self.state.tip.map_or(0, |tip| tip.height)
    }

    /// Returns the block height for a decision on this transaction: the height of the tip, and before the first block
    /// the height of its own event. With 0, a store without blocks would count every conflicting record as due for
    /// pruning.
    pub fn decision_height(&self, page: &Page) -> u32 {
        self.state.tip.map_or(page.unmined_since().unwrap_or(0), |tip| tip.height)
    }

    /// Applies rows and returns their outcomes. A refusal by a later stamp means that a later event has changed the
    /// record.
    pub async fn apply(&self, rows: Vec<Row>) -> Result<Vec<Outcome>, SequencerError> {
        Ok(self.wait_for("the store", self.parts.store.apply(rows)).await?)
    }

    /// Reads master records; `None` for an absent record. A half-created transaction is completed first.
    pub async fn masters(&self, txids: &[Txid]) -> Result<Vec<Option<Arc<Page>>>, SequencerError> {
        let masters = self.wait_for("the store", self.parts.store.masters(txids)).await?;
        let is_creating = |page: &&Arc<Page>| page.state() == TxState::Creating;
        let half_created: Vec<Txid> = masters.iter().flatten().filter(is_creating).map(|page| page.txid).collect();
        if half_created.is_empty() {
            return Ok(masters);
        }
        self.complete(&half_created).await?;
        Ok(self.wait_for("the store", self.parts.store.masters(txids)).await?)
    }

    /// Reads one master record, as [`masters`](Self::masters) does.
    pub async fn master(&self, txid: Txid) -> Result<Option<Arc<Page>>, SequencerError> {
        Ok(self.masters(&[txid]).await?.pop().flatten())
    }

    /// Runs work on the store or the log, which retry by themselves, and reports the wait as a wait for `of`.
    pub async fn wait_for<T>(&self, of: &str, work: impl Future<Output = T>) -> T {
        // Boxed: a part of every future of the handlers, which would all be large.
        ReportedWait::new(&self.parts, of).run(Box::pin(work)).await
    }

    /// Applies rows of a decision. Only a refusal by a later stamp is accepted; any other refusal halts the chain.
    pub async fn apply_decided(&self, ctx: EventContext, rows: Vec<Row>) -> Result<(), SequencerError> {
        let keys: Vec<Key> = rows.iter().map(|row| row.key).collect();
        for (key, outcome) in keys.into_iter().zip(self.apply(rows).await?) {
            match outcome {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::StaleStamp(_)) => {}
                Outcome::Rejected(rejection) => {
                    let code = rejection.code();
                    return Err(SequencerError::Halt(format!(
                        "chain offset {}: {key} refuses what was decided: {code}",
                        ctx.offset
                    )));
                }
            }
        }
        Ok(())
    }

    /// Retries `look` until it succeeds. A wait above `block_wait` is reported, and the chain counts as halted
    /// meanwhile.
    pub async fn wait_until<T, F>(
        &self,
        ctx: EventContext,
        what: &str,
        mut look: impl FnMut() -> F,
    ) -> Result<T, SequencerError>
    where
        F: Future<Output = Result<Result<T, String>, SequencerError>>,
    {
        let mut waiting = ReportedWait::new(&self.parts, format!("chain offset {}: {what}", ctx.offset));
        loop {
            match look().await? {
                Ok(found) => return Ok(found),
                Err(missing) => waiting.pause_for(&missing).await,
            }
        }
    }

    /// Waits until each of these transactions has a body. With `applied_again` a node may have lost their records.
    pub async fn wait_for_bodies(
        &self,
        ctx: EventContext,
        applied_again: bool,
        txids: &[Txid],
    ) -> Result<Vec<Arc<Page>>, SequencerError> {
        let grace = RestartGrace::new(applied_again);
        self.wait_until(ctx, "bodies of the decided transactions", || async {
            let masters = self.masters(txids).await?;
            let missing: Vec<Txid> = txids
                .iter()
                .zip(&masters)
                .filter(|(_, master)| master.as_ref().is_none_or(|page| page.utxos.is_none() && page.pruned.is_none()))
                .map(|(txid, _)| *txid)
                .collect();
            if missing.is_empty() {
                return Ok(Ok(masters.into_iter().flatten().collect()));
            }
            let listed = format_missing(&missing);
            if grace.has_expired() {
                self.create_missing_stubs(ctx, missing).await?;
            }
            Ok(Err(listed))
        })
        .await
    }

    /// Creates a stub for each transaction that a node lost and whose own event waits for a verdict at a later offset.
    /// A transaction that waits long reads its own record and gives the stub its body. A transaction that is live lacks
    /// another page, which is restored from the body.
    pub async fn create_missing_stubs(&self, ctx: EventContext, absent: Vec<Txid>) -> Result<(), SequencerError> {
        self.contest_holders(ctx, Phase::Apply, absent.clone()).await?;
        self.complete(&absent).await
    }

    /// Returns whether a transaction is live at the frontier of the present rebuild. Decisions before the frontier that
    /// refuse such a transaction are not applied, nor are decisions that accept any other transaction.
    pub fn is_live_at_frontier(&self, ctx: EventContext, txid: &Txid) -> bool {
        ctx.mode == DecisionMode::Replay && self.parts.verdicts.ends_live(txid)
    }

    /// Returns whether a transaction is conflicting or undecided at the frontier of the present rebuild. The rebuild
    /// does not make such a transaction live before the frontier.
    pub fn is_conflicting_at_frontier(&self, ctx: EventContext, txid: &Txid) -> bool {
        ctx.mode == DecisionMode::Replay && self.parts.verdicts.ends_conflicting(txid)
    }

    /// Publishes the outcomes of transactions for validators and clients. A rebuild publishes none.
    pub async fn publish_outcomes(
        &self,
        ctx: EventContext,
        outcomes: Vec<(Txid, OutcomeKind)>,
    ) -> Result<(), SequencerError> {
        if ctx.mode == DecisionMode::Replay {
            return Ok(());
        }
        let messages = outcomes.into_iter().map(|(txid, kind)| {
            let verdicts = &self.parts.metrics.verdicts;
            match kind {
                OutcomeKind::Accepted => verdicts.of(VerdictKind::Accepted).inc(),
                OutcomeKind::Conflicting { .. } => verdicts.of(VerdictKind::Conflicting).inc(),
                OutcomeKind::Refused { .. } | OutcomeKind::Command { .. } => {}
            }
            let event = Event::Outcome(OutcomeEvent { txid, chain_offset: ctx.offset, kind });
            self.message(&self.parts.topics.outcomes, None, Bytes::copy_from_slice(&txid.0), event.encode().into())
        });
        self.produce(messages.collect()).await
    }

    /// Publishes a dead letter and waits for the acknowledgement.
    pub async fn publish_dead_letter(&self, source: Message, letter: &DeadLetter) -> Result<(), SequencerError> {
        self.parts.metrics.dead_letters.of(letter.class).inc();
        let (producer, topic) = (self.parts.producer.as_ref(), self.parts.topics.dead_letters.as_str());
        let published = publish_dead_letter(producer, topic, source, letter, POLL_PAUSE);
        Ok(self.wait_for("the log", published).await?)
    }

    /// Makes a message for one of the topics.
    pub fn message(&self, topic: &str, partition: Option<i32>, key: Bytes, payload: Bytes) -> OutgoingMessage {
        OutgoingMessage { topic: topic.to_owned(), partition, key, payload, ..OutgoingMessage::default() }
    }

    /// Produces messages until all are acknowledged. A retry can repeat messages that were acknowledged.
    pub async fn produce(&self, messages: Vec<OutgoingMessage>) -> Result<(), SequencerError> {
        if !messages.is_empty() {
            let produced = produce_until_acknowledged(self.parts.producer.as_ref(), &messages, POLL_PAUSE);
            self.wait_for("the log", produced).await?;
        }
        Ok(())
    }
}

/// The time for which a record that a node may have lost is waited for, before a stub is created in its place.
#[derive(Debug, Clone, Copy)]
pub struct RestartGrace(Option<Instant>);

/// Longer than any event takes that comes again without a stub.
const RESTART_GRACE: Duration = Duration::from_secs(10);

impl RestartGrace {
    /// Starts the grace now. The grace never expires unless a node `may_have_forgotten` the record.
    pub fn new(may_have_forgotten: bool) -> Self {
        RestartGrace(may_have_forgotten.then(|| Instant::now() + RESTART_GRACE))
    }

    /// Returns whether the grace is over.
    pub fn has_expired(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// Returns whether no lost record is waited for: the grace is over, or no record can have been lost.
    pub fn is_inactive(self) -> bool {
        self.0.is_none() || self.has_expired()
    }
}

/// Returns the distinct txids in ascending order.
pub fn distinct(txids: impl IntoIterator<Item = Txid>) -> Vec<Txid> {
    txids.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Returns the transaction that a decision accepts, refuses or passes over; `None` for other decisions.
pub fn decided_txid(body: &DecisionBody) -> Option<Txid> {
    match body {
        DecisionBody::PassedOver { txid }
        | DecisionBody::Accepted { txid, .. }
        | DecisionBody::Conflicting { txid, .. } => Some(*txid),
        DecisionBody::Cone { .. }
        | DecisionBody::CommandDone { .. }
        | DecisionBody::Closed
        | DecisionBody::AcceptedPart { .. } => None,
    }
}
