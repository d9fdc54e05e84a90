//! What the handlers of chain events share.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    broker::{
        Broker, BrokerError, BrokerErrorKind, Message, Produce, Producer,
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
        bodies::ReadBodies,
        command::ValidatedSource,
        decisions::DecisionError,
        prune::PruneTask,
        reread::Readers,
        state::{ChainState, Tip},
        steps::Making,
        waiting::{LOOK_AGAIN, Waiting, names},
    },
    status::{Health, health::Part, registry::TipStatus},
    store::{Store, create::Creator, nodes::Nodes, whole::WholeStore},
    telemetry::{Metrics, VerdictKind},
    text::hex_reversed,
    tx::{Outpoint, Txid},
};

/// Topics that the sequencer reads and writes.
#[derive(Debug, Clone)]
pub struct SequencerTopics {
    /// `utxo.block-mined`
    pub block_mined: String,
    /// `utxo.reorgs`
    pub reorgs: String,
    /// `utxo.chain`
    pub chain: String,
    /// `utxo.decisions`
    pub decisions: String,
    /// `utxo.outcomes`
    pub outcomes: String,
    /// `utxo.dead-letters`
    pub dead_letters: String,
}

impl SequencerTopics {
    /// Topics that the chain is made from: events of them count only while they are the store's.
    pub fn guarded(&self) -> Vec<String> {
        [&self.chain, &self.decisions, &self.block_mined, &self.reorgs].into_iter().cloned().collect()
    }

    /// Topics that are fed into the chain.
    pub fn fed(&self) -> Vec<String> {
        vec![self.block_mined.clone(), self.reorgs.clone()]
    }
}

/// Limits of the sequencer.
#[derive(Debug, Clone, Copy)]
pub struct SequencerSettings {
    /// How long a block waits for its transactions before the chain counts as halted.
    pub block_wait: Duration,
    /// Transactions set mined a batch.
    pub mined_batch_size: usize,
    /// Members of a cone that one decision names.
    pub cone_chunk: usize,
    /// Between commits.
    pub commit_interval: Duration,
    /// How fast what is due is pruned; `None`: it is not.
    pub prune: Option<PruneTask>,
}

/// What the sequencer works with.
#[derive(Clone)]
pub struct SequencerParts {
    /// The log.
    pub broker: Arc<dyn Broker>,
    /// Acknowledges.
    pub producer: Arc<dyn Producer>,
    /// The state.
    pub store: Store,
    /// Creates transactions of several pages.
    pub creator: Creator,
    /// Topics.
    pub topics: SequencerTopics,
    /// Where transactions come from.
    pub validated: ValidatedSource,
    /// Limits.
    pub settings: SequencerSettings,
    /// Time.
    pub clock: Clock,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Health.
    pub health: Arc<Health>,
    /// Whether the store has forgotten.
    pub nodes: Nodes,
    /// Whether the topics are still those that the store was made from.
    pub guard: TopicGuard,
    /// Whether it is still there as a whole.
    pub whole: Arc<dyn WholeStore>,
    /// Who waits for what is created here.
    pub tx_notifier: TxNotifier,
    /// What a rebuild ends with; empty, and not asked, where there is none.
    pub verdicts: Arc<LastVerdicts>,
    /// Of the worker whose waits are said by these; `None`: they are somebody else's.
    pub monitor: Option<LoopMonitor>,
}

impl SequencerParts {
    /// The worker of these, if it is one's, has turned, and is not stalled.
    pub(super) fn beat(&self) {
        if let Some(monitor) = &self.monitor {
            monitor.beat();
            self.health.moved(Part::Chain);
        }
    }
}

/// Why the sequencer does not go on.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Somebody must look: what is in the log cannot be applied.
    #[error("{0}")]
    Halt(String),
    /// Records hold stamps of later events: another sequencer is ahead of this one.
    #[error("chain offset {0}: the store is ahead: another sequencer has handled later events")]
    Behind(u64),
    /// What was applied may be gone: everything that is not committed is handled again.
    #[error("a node of the store restarted")]
    NodeRestarted,
    /// The store must not be worked on.
    #[error("store: {0}")]
    Damaged(String),
    /// A task of the sequencer died.
    #[error("internal: {0}")]
    Died(String),
    /// The broker.
    #[error(transparent)]
    Broker(BrokerError),
    /// The store.
    #[error(transparent)]
    Store(EngineError),
}

impl From<Unconfirmed> for Stop {
    /// A topic that is not the store's is no better after a restart: the chain halts.
    fn from(unconfirmed: Unconfirmed) -> Self {
        match unconfirmed {
            Unconfirmed::Other(why) => Stop::Halt(why),
            Unconfirmed::Broker(error) => Stop::Broker(error),
        }
    }
}

impl From<EngineError> for Stop {
    /// What is too big for the store is so after a restart, too: the chain halts, the rest goes on.
    fn from(error: EngineError) -> Self {
        match error.kind {
            ErrorKind::TooBig => Stop::Halt(error.to_string()),
            _ => Stop::Store(error),
        }
    }
}

impl From<BrokerError> for Stop {
    /// What a topic does not take, or no longer holds, is no better after a restart: the chain halts, the rest goes on.
    fn from(error: BrokerError) -> Self {
        match error.kind {
            BrokerErrorKind::TooLarge | BrokerErrorKind::Rejected | BrokerErrorKind::OutOfRange => {
                Stop::Halt(error.to_string())
            }
            _ => Stop::Broker(error),
        }
    }
}

impl From<DecisionError> for Stop {
    fn from(error: DecisionError) -> Self {
        match error {
            DecisionError::Broker(error) => error.into(),
            DecisionError::Bad(_) | DecisionError::TooLarge { .. } => Stop::Halt(error.to_string()),
        }
    }
}

/// The chain event that is being handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Its offset.
    pub offset: u64,
    /// In which era it is handled.
    pub era: u32,
    /// Whether something new may be decided, and published.
    pub making: Making,
    /// Blocks of it leave the longest chain, before others come: what is done then is stamped with the earlier phase, so that
    /// none of it, however late it lands, undoes what is done while they come.
    pub leaving: bool,
}

impl At {
    /// The stamp of a phase of handling it.
    pub fn stamp(&self, phase: Phase) -> Stamp {
        Stamp::in_era(self.era, self.offset, if self.leaving { Phase::Evaluate } else { phase })
    }

    /// A row with an operation of the sequencer.
    pub fn row(&self, phase: Phase, key: Key, operation: Sequenced) -> Row {
        Row { key, operation: Operation::Sequenced(self.stamp(phase), operation) }
    }
}

/// Handles chain events, one at a time.
pub struct Handler {
    /// What it works with.
    pub parts: SequencerParts,
    /// The chain, as of the last handled event.
    pub state: ChainState,
    /// For events that are read again.
    pub(super) readers: Mutex<Readers>,
    /// What the present event has read of the blob store.
    pub(super) bodies: Mutex<ReadBodies>,
    /// With parents that a node forgot before the chain was taken hold of: they come again by themselves. One for all of them,
    /// since some never do.
    pub(super) returning: Patience,
}

/// Transactions whose bodies are read at once.
pub const BODIES_AT_ONCE: usize = 256;

impl Handler {
    /// Handles what comes after `state`.
    pub fn new(parts: SequencerParts, state: ChainState) -> Self {
        let returning = Patience::new(parts.nodes.may_forget());
        let handler = Handler { parts, state, readers: Mutex::default(), bodies: Mutex::default(), returning };
        handler.publish_tip();
        handler
    }

    /// Shows where the chain stands.
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

    /// Blocks have left the longest chain and others have come.
    pub(super) fn move_tip(&mut self, tip: Option<Tip>, left: usize, came: &[Block<'_>]) {
        self.state.move_tip(tip, left, came);
        self.publish_tip();
    }

    /// The page and slot of an outpoint.
    pub fn place(&self, outpoint: Outpoint) -> (Key, u32) {
        let (page, slot) = self.parts.store.place(outpoint);
        (Key::Page(outpoint.txid, page), slot)
    }

    /// Height of the tip; 0 before the first block.
    pub fn height(&self) -> u32 {
        self.state.tip.map_or(0, |tip| tip.height)
    }

    /// The block height that a decision on this transaction carries: that of the tip, and before the first block that
    /// of its own event. A seeded store would count what is conflicting as due at once otherwise.
    pub fn decision_height(&self, page: &Page) -> u32 {
        self.state.tip.map_or(page.unmined_since().unwrap_or(0), |tip| tip.height)
    }

    /// Applies rows; a refusal because of a later stamp counts as done (that later event has seen to it).
    pub async fn apply(&self, rows: Vec<Row>) -> Result<Vec<Outcome>, Stop> {
        Ok(self.answer("the store", self.parts.store.apply(rows)).await?)
    }

    /// Reads master records; `None`: there is none. A transaction that is half created is completed first.
    pub async fn masters(&self, txids: &[Txid]) -> Result<Vec<Option<Arc<Page>>>, Stop> {
        let masters = self.answer("the store", self.parts.store.masters(txids)).await?;
        let half = |page: &&Arc<Page>| page.state() == TxState::Creating;
        let half_created: Vec<Txid> = masters.iter().flatten().filter(half).map(|page| page.txid).collect();
        if half_created.is_empty() {
            return Ok(masters);
        }
        self.complete(&half_created).await?;
        Ok(self.answer("the store", self.parts.store.masters(txids)).await?)
    }

    /// Reads one master record, as [`masters`](Self::masters) does.
    pub async fn master(&self, txid: Txid) -> Result<Option<Arc<Page>>, Stop> {
        Ok(self.masters(&[txid]).await?.pop().flatten())
    }

    /// Waits for the store or the log, which try again by themselves.
    pub async fn answer<T>(&self, of: &str, work: impl Future<Output = T>) -> T {
        // In every future here: boxed, or they would all be large.
        Waiting::new(&self.parts, of).until_done(Box::pin(work)).await
    }

    /// Applies rows that cannot be refused, but for a later stamp (then a later event has seen to it).
    pub async fn apply_decided(&self, at: At, rows: Vec<Row>) -> Result<(), Stop> {
        let keys: Vec<Key> = rows.iter().map(|row| row.key).collect();
        for (key, outcome) in keys.into_iter().zip(self.apply(rows).await?) {
            match outcome {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::StaleStamp(_)) => {}
                Outcome::Rejected(rejection) => {
                    let code = rejection.code();
                    return Err(Stop::Halt(format!(
                        "chain offset {}: {key} refuses what was decided: {code}",
                        at.offset
                    )));
                }
            }
        }
        Ok(())
    }

    /// Waits until `look` finds what it looks for; says so, and reports the chain as halted, when it takes long.
    pub async fn wait_until<T, F>(&self, at: At, what: &str, mut look: impl FnMut() -> F) -> Result<T, Stop>
    where
        F: Future<Output = Result<Result<T, String>, Stop>>,
    {
        let mut waiting = Waiting::new(&self.parts, format!("chain offset {}: {what}", at.offset));
        loop {
            match look().await? {
                Ok(found) => return Ok(found),
                Err(missing) => waiting.look_again(&missing).await,
            }
        }
    }

    /// Waits until each of these transactions has a body. `applied_again`: a node may have forgotten them.
    pub async fn wait_for_bodies(&self, at: At, applied_again: bool, txids: &[Txid]) -> Result<Vec<Arc<Page>>, Stop> {
        let patience = Patience::new(applied_again);
        self.wait_until(at, "a decision names what is not there", || async {
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
            let told = names(&missing);
            if patience.is_over() {
                self.call_for(at, missing).await?;
            }
            Ok(Err(told))
        })
        .await
    }

    /// Makes stubs of transactions that a node forgot and that do not come again by themselves: their events may wait for a
    /// verdict that stands behind the present event. Whoever waits long looks at his own record, and gives the stub its body.
    /// Of what is live it is another page that is not there: that is made again from the body.
    pub async fn call_for(&self, at: At, absent: Vec<Txid>) -> Result<(), Stop> {
        self.contest_holders(at, Phase::Apply, absent.clone()).await?;
        self.complete(&absent).await
    }

    /// Whether it is live at the frontier of the rebuild that is going on. What is decided against it on the way there is not
    /// done, and what is decided for another that is not live there neither.
    pub fn ends_live(&self, at: At, txid: &Txid) -> bool {
        at.making == Making::Replaying && self.parts.verdicts.ends_live(txid)
    }

    /// Whether it is conflicting, or undecided, at the frontier of the rebuild that is going on: on the way nothing is done for
    /// it.
    pub fn ends_fallen(&self, at: At, txid: &Txid) -> bool {
        at.making == Making::Replaying && self.parts.verdicts.ends_fallen(txid)
    }

    /// Tells validators and clients what became of transactions. Nothing is told twice by a rebuild.
    pub async fn tell(&self, at: At, outcomes: Vec<(Txid, OutcomeKind)>) -> Result<(), Stop> {
        if at.making == Making::Replaying {
            return Ok(());
        }
        let messages = outcomes.into_iter().map(|(txid, kind)| {
            let verdicts = &self.parts.metrics.verdicts;
            match kind {
                OutcomeKind::Accepted => verdicts.of(VerdictKind::Accepted).inc(),
                OutcomeKind::Conflicting { .. } => verdicts.of(VerdictKind::Conflicting).inc(),
                OutcomeKind::Refused { .. } | OutcomeKind::Command { .. } => {}
            }
            let event = Event::Outcome(OutcomeEvent { txid, chain_offset: at.offset, kind });
            self.message(&self.parts.topics.outcomes, None, Bytes::copy_from_slice(&txid.0), event.encode().into())
        });
        self.produce(messages.collect()).await
    }

    /// Puts a dead letter aside until that is acknowledged.
    pub async fn bury_letter(&self, source: Message, letter: &DeadLetter) -> Result<(), Stop> {
        self.parts.metrics.dead_letters.of(letter.class).inc();
        let (producer, topic) = (self.parts.producer.as_ref(), self.parts.topics.dead_letters.as_str());
        let buried = publish_dead_letter(producer, topic, source, letter, LOOK_AGAIN);
        Ok(self.answer("the log", buried).await?)
    }

    /// A message for one of the topics.
    pub fn message(&self, topic: &str, partition: Option<i32>, key: Bytes, payload: Bytes) -> Produce {
        Produce { topic: topic.to_owned(), partition, key, payload, ..Produce::default() }
    }

    /// Produces messages until all are acknowledged. A retry may repeat what had been acknowledged.
    pub async fn produce(&self, messages: Vec<Produce>) -> Result<(), Stop> {
        if !messages.is_empty() {
            let produced = produce_until_acknowledged(self.parts.producer.as_ref(), &messages, LOOK_AGAIN);
            self.answer("the log", produced).await?;
        }
        Ok(())
    }
}

/// For how long something is waited for that a node may have forgotten, before it is called for.
#[derive(Debug, Clone, Copy)]
pub struct Patience(Option<Instant>);

/// Longer than everything takes that comes by itself.
const PATIENCE: Duration = Duration::from_secs(10);

impl Patience {
    /// It begins now, and ends only where a node `may_have_forgotten`.
    pub fn new(may_have_forgotten: bool) -> Self {
        Patience(may_have_forgotten.then(|| Instant::now() + PATIENCE))
    }

    /// Whether it has lasted long enough.
    pub fn is_over(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// Whether nothing that may have been forgotten is waited for any more, if it ever was.
    pub fn is_spent(self) -> bool {
        self.0.is_none() || self.is_over()
    }
}

/// Distinct ids, in order.
pub fn distinct(txids: impl IntoIterator<Item = Txid>) -> Vec<Txid> {
    txids.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whose fate a decision settles.
pub fn subject(body: &DecisionBody) -> Option<Txid> {
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
