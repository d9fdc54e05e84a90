//! Handles events ahead of their decisions: against a copy of the records that the events touch.
//!
//! The handler of an event runs as if it wrote to the store and to the log. Its operations change the copy only, by the
//! same pure function as in the store, and are kept. An operation that has to be in the store before the decision
//! refuses the speculation, and so does a wait. The event is then handled alone, as if nothing had happened.

use std::{
    collections::{HashMap, HashSet},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use async_trait::async_trait;

use crate::{
    broker::{BrokerError, Delivery, OutgoingMessage, Producer},
    engine::{EngineDecorator, EngineError, RecordEngine, Row, RowResult},
    event::OutcomeKind,
    record::{Key, Operation, Outcome, Page, Phase, Record, Rules, Sequenced, Slot, Stamp, TxState, Verdict, apply},
};

/// The copy of the records, with the operations and messages of the events.
#[derive(Debug, Default)]
pub struct Speculation(Mutex<SpeculationState>);

#[derive(Debug, Default)]
struct SpeculationState {
    /// Records as the kept events leave them.
    records: HashMap<Key, Option<Record>>,
    /// Records as the present event leaves them, where the event has changed them.
    changed: HashMap<Key, Option<Record>>,
    kept: SpeculatedWork,
    present: PresentWork,
    is_refused: bool,
    /// Estimated bytes of the records that were read.
    bytes: usize,
}

/// Bytes of the records of a window, at most. One request more may exceed the limit.
const MAX_COPY_BYTES: usize = 32 << 20;
/// Estimated bytes of a record in memory, besides its slots and its body.
const RECORD_BYTES: usize = 512;

/// Operations and messages that are not done yet.
#[derive(Debug, Default)]
pub struct SpeculatedWork {
    /// Operations, in the order of their events.
    pub rows: Vec<SpeculatedRow>,
    /// Messages, in the order of their events, each with the chain offset of the event.
    pub messages: Vec<(u64, OutgoingMessage)>,
    /// Outcomes to be counted with the messages, each with the chain offset of the event.
    pub outcomes: Vec<(u64, OutcomeKind)>,
}

/// Operations, messages and outcomes of the event whose handler runs.
#[derive(Debug, Default)]
struct PresentWork {
    rows: Vec<SpeculatedRow>,
    messages: Vec<OutgoingMessage>,
    outcomes: Vec<OutcomeKind>,
}

/// An operation that the copy did not refuse.
#[derive(Debug, Clone)]
pub struct SpeculatedRow {
    /// Chain offset of the event.
    pub chain_offset: u64,
    pub row: Row,
    /// The operation changes the stamp of the record and nothing else.
    changes_only_stamp: bool,
}

impl SpeculatedRow {
    /// Makes the row of a stamped operation.
    pub fn new(row: Row, changes_only_stamp: bool) -> Self {
        let chain_offset = match &row.operation {
            Operation::Sequenced(stamp, _) => stamp.chain_offset(),
            _ => unreachable!("a speculation has operations of the sequencer only"),
        };
        SpeculatedRow { chain_offset, row, changes_only_stamp }
    }
}

impl Speculation {
    fn state(&self) -> MutexGuard<'_, SpeculationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the handler of one event. `None`: the event cannot be handled ahead of its decisions.
    pub async fn run<T>(&self, handler: impl Future<Output = T>) -> Option<T> {
        let mut handler = pin!(handler);
        // A refused handler stays pending for ever, and is dropped here.
        let handled = std::future::poll_fn(|cx| match handler.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if self.state().is_refused => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        handled.await
    }

    /// Refuses the speculation of the present event. Never returns: [`run`](Self::run) drops the handler.
    pub async fn refuse<T>(&self) -> T {
        self.state().is_refused = true;
        std::future::pending().await
    }

    /// Keeps what the present event did, with the chain offset of the event.
    pub fn keep(&self, chain_offset: u64) {
        let mut state = self.state();
        let SpeculationState { records, changed, kept, present, .. } = &mut *state;
        records.extend(changed.drain());
        kept.rows.append(&mut present.rows);
        kept.messages.extend(present.messages.drain(..).map(|message| (chain_offset, message)));
        kept.outcomes.extend(present.outcomes.drain(..).map(|kind| (chain_offset, kind)));
    }

    /// Drops what the present event did.
    pub fn discard(&self) {
        let mut state = self.state();
        (state.changed, state.present, state.is_refused) = Default::default();
    }

    /// Adds an outcome of the present event, which is counted once its message is published.
    pub fn add_outcome(&self, kind: OutcomeKind) {
        self.state().present.outcomes.push(kind);
    }

    /// Returns whether the records take as much memory as a window may have.
    pub fn is_full(&self) -> bool {
        self.state().bytes > MAX_COPY_BYTES
    }

    /// Returns the number of operations that are kept.
    pub fn row_count(&self) -> usize {
        self.state().kept.rows.len()
    }

    /// Takes the operations and messages of the kept events.
    pub fn take_work(&self) -> SpeculatedWork {
        std::mem::take(&mut self.state().kept)
    }

    /// Adds records that were read from the store.
    pub fn add_records(&self, records: impl IntoIterator<Item = (Key, Option<Record>)>) {
        let mut state = self.state();
        for (key, record) in records {
            state.bytes += record.as_ref().map_or(0, estimate_bytes);
            state.records.entry(key).or_insert(record);
        }
    }

    /// Returns the page under this key, if the copy has it.
    pub fn page(&self, key: &Key) -> Option<Arc<Page>> {
        match self.state().view(key)? {
            Some(Record::Page(page)) => Some(page.clone()),
            _ => None,
        }
    }

    /// Returns the keys of which the copy knows nothing.
    pub fn missing(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        let state = self.state();
        let distinct: HashSet<Key> = keys.into_iter().filter(|key| state.view(key).is_none()).collect();
        let mut missing: Vec<Key> = distinct.into_iter().collect();
        // A simulated run must repeat from its seed.
        missing.sort_unstable();
        missing
    }
}

impl SpeculationState {
    fn view(&self, key: &Key) -> Option<&Option<Record>> {
        self.changed.get(key).or_else(|| self.records.get(key))
    }

    /// Applies one row to the copy. `None`: the operation cannot be done ahead of the decision.
    fn apply(&mut self, rules: &Rules, row: &Row) -> Option<Outcome> {
        let Operation::Sequenced(stamp, operation) = &row.operation else { return None };
        let before = self.view(&row.key)?.clone();
        let mut after = before.clone();
        let effect = apply(rules, &row.key, &mut after, &row.operation);
        if !can_follow_decision(*stamp, &row.key, operation, before.as_ref(), &effect.outcome) {
            return None;
        }
        if effect.outcome.is_done() {
            let changes_only_stamp = changes_only_stamp(operation, &effect.outcome, before.as_ref(), after.as_ref());
            self.present.rows.push(SpeculatedRow::new(row.clone(), changes_only_stamp));
        }
        if effect.changed {
            self.changed.insert(row.key, after);
        }
        Some(effect.outcome)
    }
}

fn estimate_bytes(record: &Record) -> usize {
    let page_bytes = |page: &Page| {
        let slots = page.utxos.as_ref().map_or(0, |slots| slots.len() * size_of::<Slot>());
        slots + page.body().map_or(0, |body| body.size() as usize)
    };
    RECORD_BYTES + record.page().map_or(0, page_bytes)
}

/// Returns whether an operation may be done after the decision, and with operations of other events at once. Pure.
///
/// Only the sequencer changes what the operation relies on: instances take and create, and nothing here is free or
/// absent. `docs/protocols/contest-and-verdict.md`, "Windows", has the argument for each operation.
fn can_follow_decision(
    stamp: Stamp,
    key: &Key,
    operation: &Sequenced,
    before: Option<&Record>,
    outcome: &Outcome,
) -> bool {
    let state = before.and_then(Record::page).map(Page::state);
    let is_undecided = state == Some(TxState::Conflicting(Verdict::Pending));
    if stamp.phase == Phase::Evaluate {
        return match operation {
            // A free slot must be marked before the decision, since an instance could take the slot.
            Sequenced::Respend(_) => !matches!(outcome, Outcome::Applied(_)),
            // An absent holder must become a stub before the decision. A conflicting one could be pruned.
            Sequenced::MarkContested => {
                matches!(outcome, Outcome::AlreadyApplied(_)) && (state == Some(TxState::Live) || is_undecided)
            }
            _ => false,
        };
    }
    let is_master = matches!(key, Key::Page(_, 0));
    match operation {
        // A live transaction can have spenders by the time at which the flag is written.
        Sequenced::MarkConflicting { .. } | Sequenced::Accept => is_master && is_undecided,
        Sequenced::Settle(_) => is_master && state.is_some_and(|state| !matches!(state, TxState::Stub(_))),
        Sequenced::Respend(_) | Sequenced::AddConflictingChild(_) | Sequenced::RemoveConflictingChild(_) => is_master,
        _ => false,
    }
}

fn changes_only_stamp(
    operation: &Sequenced,
    outcome: &Outcome,
    before: Option<&Record>,
    after: Option<&Record>,
) -> bool {
    let marks = |record: Option<&Record>| record.and_then(Record::page).map_or(0, |page| page.contested.len());
    match (operation, outcome) {
        (Sequenced::MarkContested | Sequenced::AddConflictingChild(_), Outcome::AlreadyApplied(_)) => true,
        (Sequenced::Settle(_) | Sequenced::Respend(_), Outcome::AlreadyApplied(_)) => marks(before) == marks(after),
        _ => false,
    }
}

/// Splits the operations into waves: a wave has at most one operation on each record, and the operations on one
/// record are in the order of their events. An operation that changes only the stamp is left out before a later
/// operation on the same record, which writes a later stamp. A transaction becomes live in a later wave than its
/// slots name the transaction.
pub fn into_waves(rows: Vec<SpeculatedRow>) -> Vec<Vec<SpeculatedRow>> {
    let mut later: HashSet<Key> = HashSet::new();
    let mut needed: Vec<SpeculatedRow> = Vec::with_capacity(rows.len());
    for row in rows.into_iter().rev() {
        if later.insert(row.row.key) || !row.changes_only_stamp {
            needed.push(row);
        }
    }
    let mut waves: Vec<Vec<SpeculatedRow>> = Vec::new();
    let mut next_waves: HashMap<Key, usize> = HashMap::new();
    // Chain offset of the present event, and the wave after all its operations so far.
    let mut present = (0, 0);
    for row in needed.into_iter().rev() {
        if present.0 != row.chain_offset {
            present = (row.chain_offset, 0);
        }
        let next = next_waves.entry(row.row.key).or_default();
        let is_accept = matches!(row.row.operation, Operation::Sequenced(_, Sequenced::Accept));
        let number = if is_accept { present.1.max(*next) } else { *next };
        *next = number + 1;
        present.1 = present.1.max(*next);
        waves.resize_with(waves.len().max(*next), Vec::new);
        waves[number].push(row);
    }
    waves
}

/// The store of a speculation: reads what the copy has not, and changes the copy.
pub struct SpeculativeEngine {
    inner: Arc<dyn RecordEngine>,
    speculation: Arc<Speculation>,
    rules: Rules,
}

impl SpeculativeEngine {
    pub fn new(inner: Arc<dyn RecordEngine>, speculation: Arc<Speculation>, rules: Rules) -> Self {
        SpeculativeEngine { inner, speculation, rules }
    }

    /// Reads the records that the copy has not.
    async fn complete_copy(&self, keys: impl Iterator<Item = Key>) -> HashMap<Key, EngineError> {
        let missing = self.speculation.missing(keys);
        if missing.is_empty() {
            return HashMap::new();
        }
        if self.speculation.is_full() {
            return self.speculation.refuse().await;
        }
        let mut failed = HashMap::new();
        let read = self.inner.read(&missing).await;
        let records = missing.into_iter().zip(read).filter_map(|(key, record)| match record {
            Ok(record) => Some((key, record)),
            Err(error) => {
                failed.insert(key, error);
                None
            }
        });
        let records: Vec<_> = records.collect();
        self.speculation.add_records(records);
        failed
    }
}

impl EngineDecorator for SpeculativeEngine {
    fn inner(&self) -> &dyn RecordEngine {
        self.inner.as_ref()
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        let failed = self.complete_copy(keys.iter().copied()).await;
        let state = self.speculation.state();
        keys.iter()
            .map(|key| match failed.get(key) {
                Some(error) => Err(error.clone()),
                None => Ok(state.view(key).cloned().flatten()),
            })
            .collect()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        let failed = self.complete_copy(rows.iter().map(|row| row.key)).await;
        let mut results = Vec::with_capacity(rows.len());
        for row in rows {
            if let Some(error) = failed.get(&row.key) {
                results.push(Err(error.clone()));
                continue;
            }
            let outcome = self.speculation.state().apply(&self.rules, row);
            match outcome {
                Some(outcome) => results.push(Ok(outcome)),
                None => self.speculation.refuse().await,
            }
        }
        results
    }
}

/// The producer of a speculation: keeps the messages.
pub struct SpeculativeProducer(pub Arc<Speculation>);

#[async_trait]
impl Producer for SpeculativeProducer {
    async fn produce(&self, message: OutgoingMessage) -> Result<Delivery, BrokerError> {
        // No handler of a contest uses the place of a message.
        let delivery = Delivery { partition: message.partition.unwrap_or(0), offset: 0 };
        self.0.state().present.messages.push(message);
        Ok(delivery)
    }

    async fn produce_all(&self, messages: Vec<OutgoingMessage>) -> Result<Vec<Delivery>, BrokerError> {
        let mut deliveries = Vec::with_capacity(messages.len());
        for message in messages {
            deliveries.push(self.produce(message).await?);
        }
        Ok(deliveries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{conformance::RULES, memory::MemoryEngine},
        record::{HeldSlot, Reason, Respend, RespendChecks, SpendingData},
        store::testing,
        tx::Txid,
    };

    const T: Txid = Txid([1; 32]);
    const P: Txid = Txid([2; 32]);
    const REASON: Reason = Reason::DoubleSpend { input: 0, winner: Txid([3; 32]) };

    fn row(chain_offset: u64, phase: Phase, txid: Txid, operation: Sequenced) -> Row {
        let stamp = Stamp::in_era(0, chain_offset, phase);
        Row { key: Key::master(txid), operation: Operation::Sequenced(stamp, operation) }
    }

    fn speculated(chain_offset: u64, txid: Txid, operation: Sequenced, changes_only_stamp: bool) -> SpeculatedRow {
        SpeculatedRow::new(row(chain_offset, Phase::Apply, txid, operation), changes_only_stamp)
    }

    fn settle() -> Sequenced {
        Sequenced::Settle(vec![HeldSlot { offset: 0, holder: SpendingData { txid: T, input: 0 } }])
    }

    fn respend() -> Sequenced {
        Sequenced::Respend(Respend { to: T, slots: vec![], checks: RespendChecks::Decided })
    }

    fn places(waves: &[Vec<SpeculatedRow>]) -> Vec<Vec<(u64, Key)>> {
        waves.iter().map(|wave| wave.iter().map(|it| (it.chain_offset, it.row.key)).collect()).collect()
    }

    #[test]
    fn a_wave_has_one_operation_for_a_record_in_the_order_of_the_chain() {
        let (t, p) = (Key::master(T), Key::master(P));
        let rows = vec![
            speculated(1, T, Sequenced::MarkConflicting { reason: REASON, height: 1 }, false),
            speculated(1, P, settle(), false),
            speculated(1, P, Sequenced::AddConflictingChild(T), false),
            speculated(2, P, settle(), false),
        ];
        let waves = into_waves(rows);
        assert_eq!(places(&waves), [vec![(1, t), (1, p)], vec![(1, p)], vec![(2, p)]]);
    }

    #[test]
    fn an_operation_that_changes_only_the_stamp_is_left_out_before_a_later_one() {
        let rows = vec![
            speculated(1, P, Sequenced::MarkContested, true),
            speculated(2, P, Sequenced::MarkContested, true),
            speculated(3, P, settle(), false),
            speculated(4, P, Sequenced::MarkContested, true),
        ];
        let p = Key::master(P);
        assert_eq!(places(&into_waves(rows)), [vec![(3, p)], vec![(4, p)]]);
    }

    #[test]
    fn a_transaction_becomes_live_after_its_slots_name_it() {
        let (t, p) = (Key::master(T), Key::master(P));
        let rows = vec![
            speculated(1, P, settle(), false),
            speculated(2, P, respend(), false),
            speculated(2, T, Sequenced::Accept, false),
        ];
        assert_eq!(places(&into_waves(rows)), [vec![(1, p)], vec![(2, p)], vec![(2, t)]]);
    }

    /// Every operation that an evaluation must write before the decision refuses the speculation.
    #[test]
    fn only_operations_that_no_instance_can_overtake_follow_the_decision() {
        let live = Record::Page(Arc::new(testing::seeded(2, 2)));
        let Record::Page(page) = &live else { unreachable!("a page") };
        let undecided = Record::Page(Arc::new(Arc::unwrap_or_clone(page.clone()).contested()));
        let done = |outcome: fn(crate::record::Reply) -> Outcome| outcome(crate::record::Reply::None);
        let (applied, known) = (done(Outcome::Applied), done(Outcome::AlreadyApplied));
        let can = |phase, operation: &Sequenced, before: Option<&Record>, outcome: &Outcome| {
            can_follow_decision(Stamp::in_era(0, 1, phase), &Key::master(P), operation, before, outcome)
        };
        use Phase::{Apply, Evaluate};
        assert!(!can(Evaluate, &respend(), Some(&live), &applied), "a free slot can be taken meanwhile");
        assert!(can(Evaluate, &respend(), Some(&live), &known));
        assert!(!can(Evaluate, &Sequenced::MarkContested, None, &applied), "an absent holder can become live");
        assert!(can(Evaluate, &Sequenced::MarkContested, Some(&live), &known));
        let mark = Sequenced::MarkConflicting { reason: REASON, height: 1 };
        assert!(!can(Apply, &mark, Some(&live), &applied), "a live transaction can be spent meanwhile");
        assert!(can(Apply, &mark, Some(&undecided), &applied));
        assert!(!can(Apply, &Sequenced::MarkContested, Some(&live), &known), "descendants are contested");
        assert!(!can(Apply, &settle(), None, &known), "an absent parent gets a stub");
        assert!(can(Apply, &settle(), Some(&live), &applied));
    }

    #[tokio::test]
    async fn a_discarded_event_leaves_no_trace_and_a_kept_one_is_seen() {
        let engine = Arc::new(MemoryEngine::new(RULES));
        let page = Arc::new(testing::seeded(2, 2));
        let key = Key::master(page.txid);
        engine.apply(&[Row { key, operation: Operation::Create(page.clone()) }]).await;
        let speculation = Arc::new(Speculation::default());
        let copy = SpeculativeEngine::new(engine.clone(), speculation.clone(), RULES);
        let held = HeldSlot { offset: 0, holder: SpendingData { txid: T, input: 0 } };
        let settle = row(1, Phase::Apply, page.txid, Sequenced::Settle(vec![held]));
        let marks = async || match RecordEngine::read(&copy, &[key]).await.remove(0) {
            Ok(Some(Record::Page(page))) => page.contested.len(),
            other => panic!("{other:?}"),
        };
        let outcomes = RecordEngine::apply(&copy, std::slice::from_ref(&settle)).await;
        assert!(outcomes[0].as_ref().is_ok_and(Outcome::is_done));
        assert_eq!(marks().await, 1);
        speculation.discard();
        assert_eq!((marks().await, speculation.row_count()), (0, 0));
        RecordEngine::apply(&copy, &[settle]).await;
        speculation.keep(1);
        assert_eq!((marks().await, speculation.row_count()), (1, 1));
        let stored = engine.read(&[key]).await.remove(0).unwrap();
        assert_eq!(stored.as_ref().and_then(Record::page).map(|page| page.contested.len()), Some(0));
        // A refused handler is dropped.
        let refused = speculation
            .run(async { RecordEngine::apply(&copy, &[Row { key, operation: Operation::ClearCreating }]).await });
        assert!(refused.await.is_none());
    }
}
