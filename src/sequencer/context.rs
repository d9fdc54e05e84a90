//! The context that the handlers of chain events share: the event, the services, the state, and the few operations that
//! all of them need.

use std::{collections::BTreeSet, fmt::Display, sync::Arc};

use bytes::Bytes;
use tokio::sync::Mutex;

use crate::{
    broker::{OutgoingMessage, produce_until_acknowledged},
    engine::Row,
    event::{Event, EventPosition, OutcomeEvent, OutcomeKind, OutcomeSource},
    record::{Key, Operation, Outcome, Page, Phase, Record, Rejection, Restored, Sequenced, Stamp, TxState},
    sequencer::{
        SequencerError, SequencerParts,
        bodies::BodyCache,
        command::SharedWaits,
        dead_letters::RefusedMessage,
        lost_records::RestartGrace,
        pages::complete,
        reader_cache::ReaderCache,
        state::ChainState,
        steps::{DecisionMode, Steps},
        waiting::{POLL_PAUSE, ReportedWait},
    },
    store::into_page,
    telemetry::{Metrics, PublishedOutcome, VerdictKind},
    tx::{Outpoint, Txid},
};

/// Number of transactions whose bodies are read at once.
pub const BODIES_AT_ONCE: usize = 256;

/// The chain event that is being handled, with the services and the state that all handlers share.
#[derive(Clone, Copy)]
pub struct HandlerContext<'a> {
    /// Services and settings of the sequencer.
    pub parts: &'a SequencerParts,
    /// State of the chain as of the last handled event.
    pub state: &'a ChainState,
    /// Offset of the event in the chain log.
    pub offset: u64,
    /// Mode of the handler: live, or a rebuild below its frontier.
    pub mode: DecisionMode,
    /// The latest phase in a stamp of this context. While a reorg disconnects blocks every stamp has the earliest
    /// phase, [`Phase::Evaluate`], so that a late write of that part cannot undo a write of the part that connects
    /// blocks.
    pub latest_phase: Phase,
    /// True while decisions are applied that were in the log already ([`Steps::is_applied_again`]).
    pub applied_again: bool,
    /// For events that are read again.
    pub readers: &'a Mutex<ReaderCache>,
    /// Bodies that the event has read from the blob store.
    pub bodies: &'a Mutex<BodyCache>,
    /// Waits of commands for events of validated transactions.
    pub command_waits: &'a Mutex<SharedWaits>,
    /// Grace for parents that a node lost before the chain was acquired: their events come again. One grace for all
    /// such parents, since some never come.
    pub parent_grace: RestartGrace,
}

impl<'a> HandlerContext<'a> {
    /// Returns the context in which the decision that was taken last of `steps` is applied.
    pub fn applying(&self, steps: &Steps<'_>) -> Self {
        HandlerContext { applied_again: steps.is_applied_again(), ..*self }
    }

    /// Returns whether the event is below the frontier of a rebuild: only decisions of the log are applied.
    pub fn is_replay(&self) -> bool {
        self.mode == DecisionMode::Replay
    }

    /// Returns whether the second chances of the event are in the log already. An event that is handled again over a
    /// restored store would find outputs free whose spenders come later in the log, and would give further chances.
    pub fn has_chances_in_log(&self) -> bool {
        self.is_replay() || self.offset < self.state.chances_from.max(self.parts.restored.handled.chain)
    }

    /// Returns whether the restored store has published this contest for an event that the group had handled before.
    /// Such a contest settles slots: the second chances of the event are in the log, and a further chance would find
    /// outputs free whose spenders are not read again yet.
    pub fn is_repeated_contest(&self, event: &EventPosition) -> bool {
        let Restored { handled, chain_end, .. } = self.parts.restored.as_ref();
        let is_handled = |end: &u64| event.offset < *end;
        self.offset >= *chain_end && handled.validated.get(&event.partition.unsigned_abs()).is_some_and(is_handled)
    }

    /// Returns the stamp of a phase of this event, or of the latest phase of this context where that is earlier.
    pub fn stamp(&self, phase: Phase) -> Stamp {
        Stamp::in_era(self.state.era, self.offset, phase.min(self.latest_phase))
    }

    /// Returns a row with an operation of the sequencer, stamped for this event.
    pub fn row(&self, phase: Phase, key: Key, operation: Sequenced) -> Row {
        Row { key, operation: Operation::Sequenced(self.stamp(phase), operation) }
    }

    /// Returns the key of an outpoint's page and the offset of its slot in the page.
    pub fn locate(&self, outpoint: Outpoint) -> (Key, u32) {
        let (page, slot) = self.parts.store.locate_slot(outpoint);
        (Key::Page(outpoint.txid, page), slot)
    }

    /// Returns the block height for a decision on this transaction: the height of the tip, and before the first block
    /// the height of its own record. With 0, a store without blocks would count every conflicting record, and the body
    /// of every deleted one, as due for pruning.
    pub fn decision_height(&self, page: &Page) -> u32 {
        self.state.tip.map_or(page.height().unwrap_or(0), |tip| tip.height)
    }

    /// Returns whether a transaction is live at the frontier of the present rebuild. Decisions before the frontier that
    /// refuse such a transaction are not applied, nor are decisions that accept any other transaction.
    pub fn is_live_at_frontier(&self, txid: &Txid) -> bool {
        self.is_replay() && self.parts.verdicts.ends_live(txid)
    }

    /// Returns whether a transaction is conflicting or undecided at the frontier of the present rebuild. The rebuild
    /// does not make such a transaction live before the frontier.
    pub fn is_conflicting_at_frontier(&self, txid: &Txid) -> bool {
        self.is_replay() && self.parts.verdicts.ends_conflicting(txid)
    }

    /// Returns the halt of the chain at this event.
    pub fn halt(&self, why: impl Display) -> SequencerError {
        SequencerError::Halt(format!("chain offset {}: {why}", self.offset))
    }

    /// Returns the halt for a decided operation that `subject` refuses.
    pub fn halt_refused(&self, subject: impl Display, rejection: &Rejection) -> SequencerError {
        self.halt(format_args!("{subject} refuses what was decided: {}", rejection.code()))
    }

    /// Begins a wait of this event; `about` names the waiting part.
    pub fn start_wait(&self, about: impl Display) -> ReportedWait<'a> {
        ReportedWait::new(self.parts, format!("chain offset {}: {about}", self.offset))
    }

    /// Runs work on the store or the log, as [`SequencerParts::wait_for`] does.
    pub async fn wait_for<T>(&self, of: &str, work: impl Future<Output = T>) -> T {
        self.parts.wait_for(of, work).await
    }

    /// Retries `look` until it succeeds. A wait above `block_wait` is reported, and the chain counts as halted
    /// meanwhile.
    pub async fn wait_until<T, F>(&self, what: &str, mut look: impl FnMut() -> F) -> Result<T, SequencerError>
    where
        F: Future<Output = Result<Result<T, String>, SequencerError>>,
    {
        let mut waiting = None;
        loop {
            match look().await? {
                Ok(found) => return Ok(found),
                Err(missing) => waiting.get_or_insert_with(|| self.start_wait(what)).pause_for(&missing).await,
            }
        }
    }

    /// Returns whether a node of the store has restarted since the baseline, and may have lost writes.
    pub async fn has_node_restarted(&self) -> Result<bool, SequencerError> {
        Ok(self.wait_for("the nodes of the store", self.parts.nodes.has_restarted()).await?)
    }

    /// Reads records; `None` for an absent record.
    pub async fn read(&self, keys: Vec<Key>) -> Result<Vec<Option<Record>>, SequencerError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // The store would do the same; its batches, retries and the report of the wait cost more than the copy.
        if let Some(records) = self.parts.speculation.as_ref().and_then(|copy| copy.read(&keys)) {
            return Ok(records);
        }
        // Boxed: else a part of the futures of all handlers.
        Ok(Box::pin(self.wait_for("the store", self.parts.store.read(keys))).await?)
    }

    /// Reads master records; `None` for an absent record. A half-created transaction is completed first.
    pub async fn masters(&self, txids: &[Txid]) -> Result<Vec<Option<Arc<Page>>>, SequencerError> {
        let masters = self.read_masters(txids).await?;
        let is_creating = |page: &&Arc<Page>| page.state() == TxState::Creating;
        let half_created: Vec<Txid> = masters.iter().flatten().filter(is_creating).map(|page| page.txid).collect();
        if half_created.is_empty() {
            return Ok(masters);
        }
        complete(self, &half_created).await?;
        self.read_masters(txids).await
    }

    async fn read_masters(&self, txids: &[Txid]) -> Result<Vec<Option<Arc<Page>>>, SequencerError> {
        let records = self.read(txids.iter().copied().map(Key::master).collect()).await?;
        Ok(records.into_iter().map(into_page).collect())
    }

    /// Reads one master record, as [`masters`](Self::masters) does.
    pub async fn master(&self, txid: Txid) -> Result<Option<Arc<Page>>, SequencerError> {
        // The frequent answer, without the lists that a request has.
        let known = self.parts.speculation.as_ref().and_then(|copy| copy.page(&Key::master(txid)));
        if let Some(page) = known.filter(|page| page.state() != TxState::Creating) {
            return Ok(Some(page));
        }
        Ok(self.masters(&[txid]).await?.pop().flatten())
    }

    /// Reads the masters of these transactions and leaves out the absent ones.
    pub async fn read_existing_masters(&self, txids: &[Txid]) -> Result<Vec<Arc<Page>>, SequencerError> {
        Ok(self.masters(txids).await?.into_iter().flatten().collect())
    }

    /// Applies rows and returns their outcomes. A refusal by a later stamp means that a later event has changed the
    /// record.
    pub async fn apply(&self, rows: Vec<Row>) -> Result<Vec<Outcome>, SequencerError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(copy) = &self.parts.speculation
            && let Some(outcomes) = copy.apply(&self.parts.store.settings.rules, &rows).await
        {
            return Ok(outcomes);
        }
        Ok(Box::pin(self.wait_for("the store", self.parts.store.apply(rows))).await?)
    }

    /// Applies one row and returns its outcome.
    pub async fn apply_row(&self, row: Row) -> Result<Outcome, SequencerError> {
        let mut outcomes = self.apply(vec![row]).await?;
        Ok(outcomes.pop().unwrap_or_else(|| unreachable!("an outcome a row")))
    }

    /// Applies rows of a decision. Only a refusal by a later stamp is accepted; any other refusal halts the chain.
    pub async fn apply_decided(&self, rows: Vec<Row>) -> Result<(), SequencerError> {
        let keys: Vec<Key> = rows.iter().map(|row| row.key).collect();
        for (key, outcome) in keys.into_iter().zip(self.apply(rows).await?) {
            match outcome {
                Outcome::Applied(_) | Outcome::AlreadyApplied(_) | Outcome::Rejected(Rejection::StaleStamp(_)) => {}
                Outcome::Rejected(rejection) => return Err(self.halt_refused(key, &rejection)),
            }
        }
        Ok(())
    }

    /// Applies a decided operation to the master of a transaction, as [`apply_decided`](Self::apply_decided) does.
    pub async fn apply_to_master(&self, txid: Txid, operation: Sequenced) -> Result<(), SequencerError> {
        self.apply_decided(vec![self.row(Phase::Apply, Key::master(txid), operation)]).await
    }

    /// Publishes the outcomes of transactions for validators and clients. A rebuild publishes none.
    pub async fn publish_outcomes(&self, outcomes: Vec<(Txid, OutcomeKind)>) -> Result<(), SequencerError> {
        if self.is_replay() {
            return Ok(());
        }
        let events = outcomes.into_iter().map(|(txid, kind)| {
            match &self.parts.speculation {
                Some(speculation) => speculation.add_outcome(kind.clone()),
                None => count_outcome(&self.parts.metrics, &kind),
            }
            (txid, Event::Outcome(OutcomeEvent { txid, source: OutcomeSource::Chain { offset: self.offset }, kind }))
        });
        self.produce(&self.parts.outcomes.name, None, events).await
    }

    /// Publishes a dead letter and waits for the acknowledgement. A rebuild publishes none.
    pub async fn publish_dead_letter(&self, refused: RefusedMessage) -> Result<(), SequencerError> {
        if self.is_replay() {
            return Ok(());
        }
        Ok(self.wait_for("the log", refused.publish_dead_letter(self.parts, POLL_PAUSE)).await?)
    }

    /// Produces events, each about one transaction, until all are acknowledged. A retry can repeat messages that were
    /// acknowledged.
    pub async fn produce(
        &self,
        topic: &str,
        partition: Option<i32>,
        events: impl Iterator<Item = (Txid, Event<'_>)>,
    ) -> Result<(), SequencerError> {
        let message = |(txid, event): (Txid, Event<'_>)| OutgoingMessage {
            topic: topic.to_owned(),
            partition,
            key: Bytes::copy_from_slice(&txid.0),
            payload: event.encode().into(),
            ..OutgoingMessage::default()
        };
        let messages: Vec<OutgoingMessage> = events.map(message).collect();
        if let Some(speculation) = &self.parts.speculation {
            speculation.add_messages(messages);
        } else if !messages.is_empty() {
            let produced = produce_until_acknowledged(self.parts.producer.as_ref(), &messages, POLL_PAUSE);
            Box::pin(self.wait_for("the log", produced)).await?;
        }
        Ok(())
    }
}

/// Counts an outcome of the sequencer.
pub fn count_outcome(metrics: &Metrics, kind: &OutcomeKind) {
    let Metrics { verdicts, published_outcomes, .. } = metrics;
    published_outcomes.of(PublishedOutcome::from(kind)).inc();
    match kind {
        OutcomeKind::Accepted => verdicts.of(VerdictKind::Accepted).inc(),
        OutcomeKind::Conflicting { .. } => verdicts.of(VerdictKind::Conflicting).inc(),
        OutcomeKind::Refused { .. } | OutcomeKind::Command { .. } => {}
    }
}

/// Returns the distinct txids in ascending order.
pub fn distinct(txids: impl IntoIterator<Item = Txid>) -> Vec<Txid> {
    txids.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}
