//! Handles events ahead of their decisions: against a copy of the records that the events touch.
//!
//! The handler of an event runs as if it wrote to the store and to the log. Its operations change the copy only, by the
//! same pure function as in the store, and are kept. An operation that has to be in the store before the decision
//! refuses the speculation, and so does a wait. The event is then handled alone, as if nothing had happened.

use std::{
    collections::{HashMap, HashSet},
    mem::take,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Poll,
};

use async_trait::async_trait;
use foldhash::fast::FixedState;

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
    /// Records as the events leave them so far.
    records: Records,
    /// Records as the window before leaves them, as far as this window has not asked for them. The store may not have
    /// the operations of that window yet.
    earlier: Records,
    kept: SpeculatedWork,
    present: PresentWork,
    is_refused: bool,
    /// The copy has changes of an event that is not kept.
    is_spoilt: bool,
    /// Estimated bytes of the records that were read.
    bytes: usize,
}

type Records = HashMap<Key, Option<Record>, FixedState>;

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
    pub key: Key,
    pub stamp: Stamp,
    pub operation: Sequenced,
}

/// Operations on one record, in the order of their events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordWork {
    pub key: Key,
    pub operations: Vec<(Stamp, Sequenced)>,
}

impl RecordWork {
    /// Returns the chain offset of the first event.
    pub fn first_offset(&self) -> Option<u64> {
        self.operations.first().map(|(stamp, _)| stamp.chain_offset())
    }

    /// Drops the operations of the events from `chain_offset` on.
    pub fn truncate(&mut self, chain_offset: u64) {
        self.operations.retain(|(stamp, _)| stamp.chain_offset() < chain_offset);
    }

    /// Returns the row that applies the operations, all or none.
    pub fn into_row(self) -> Row {
        // Engines have native forms of single operations.
        let operation = match <[_; 1]>::try_from(self.operations) {
            Ok([(stamp, operation)]) => Operation::Sequenced(stamp, operation),
            Err(several) => Operation::SequencedAll(several),
        };
        Row { key: self.key, operation }
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
        let SpeculationState { kept, present, .. } = &mut *state;
        kept.rows.append(&mut present.rows);
        kept.messages.extend(present.messages.drain(..).map(|message| (chain_offset, message)));
        kept.outcomes.extend(present.outcomes.drain(..).map(|kind| (chain_offset, kind)));
    }

    /// Ends the window. Returns the operations and messages of the kept events, and the speculation of the next window
    /// with the records that this window changes. `None`: this window has ended before an event that is handled alone,
    /// and the next window needs its operations in the store.
    pub fn finish(&self) -> (SpeculatedWork, Option<Speculation>) {
        let mut state = self.state();
        let SpeculationState { records, kept, is_spoilt, .. } = &mut *state;
        let changed = kept.rows.iter().filter_map(|row| records.remove_entry(&row.key));
        let next = SpeculationState { earlier: changed.collect(), ..SpeculationState::default() };
        (take(kept), (!*is_spoilt).then(|| Speculation(Mutex::new(next))))
    }

    /// Drops the operations and messages of the present event. The copy has its changes, so that no event may follow.
    pub fn abandon_present(&self) {
        let mut state = self.state();
        (state.present, state.records, state.is_spoilt) = (PresentWork::default(), Records::default(), true);
    }

    /// Adds an outcome of the present event, which is counted once its message is published.
    pub fn add_outcome(&self, kind: OutcomeKind) {
        self.state().present.outcomes.push(kind);
    }

    /// Adds messages of the present event, which are published after its operations.
    pub fn add_messages(&self, messages: Vec<OutgoingMessage>) {
        self.state().present.messages.extend(messages);
    }

    /// Returns whether the records take as much memory as a window may have.
    pub fn is_full(&self) -> bool {
        self.state().bytes > MAX_COPY_BYTES
    }

    /// Returns the number of operations that are kept.
    pub fn row_count(&self) -> usize {
        self.state().kept.rows.len()
    }

    /// Adds records that were read from the store.
    pub fn add_records(&self, records: impl IntoIterator<Item = (Key, Option<Record>)>) {
        let mut state = self.state();
        for (key, record) in records {
            state.bytes += record.as_ref().map_or(0, estimate_bytes);
            state.records.entry(key).or_insert(record);
        }
    }

    /// Reads records from the copy; `None`: the copy has not all of them.
    pub fn read(&self, keys: &[Key]) -> Option<Vec<Option<Record>>> {
        let state = self.state();
        keys.iter().map(|key| state.records.get(key).cloned()).collect()
    }

    /// Applies rows to the copy; `None`: the copy has not all records. Refuses the speculation where an operation
    /// cannot be done ahead of the decision.
    pub async fn apply(&self, rules: &Rules, rows: &[Row]) -> Option<Vec<Outcome>> {
        let outcomes = {
            let mut state = self.state();
            if rows.iter().any(|row| !state.records.contains_key(&row.key)) {
                return None;
            }
            rows.iter().map(|row| state.apply(rules, row)).collect::<Option<Vec<Outcome>>>()
        };
        match outcomes {
            Some(outcomes) => Some(outcomes),
            None => self.refuse().await,
        }
    }

    /// Returns the page under this key, if the copy has it.
    pub fn page(&self, key: &Key) -> Option<Arc<Page>> {
        match self.state().records.get(key)? {
            Some(Record::Page(page)) => Some(page.clone()),
            _ => None,
        }
    }

    /// Returns the keys of which neither the copy nor the one of the window before knows anything.
    pub fn missing(&self, keys: impl IntoIterator<Item = Key>) -> Vec<Key> {
        let mut state = self.state();
        let SpeculationState { records, earlier, bytes, .. } = &mut *state;
        let mut is_known = |key: &Key| {
            if let Some(record) = earlier.remove(key) {
                *bytes += record.as_ref().map_or(0, estimate_bytes);
                records.insert(*key, record);
            }
            records.contains_key(key)
        };
        let distinct: HashSet<Key, FixedState> = keys.into_iter().filter(|key| !is_known(key)).collect();
        let mut missing: Vec<Key> = distinct.into_iter().collect();
        // A simulated run must repeat from its seed.
        missing.sort_unstable();
        missing
    }
}

impl SpeculationState {
    /// Applies one row to the copy. `None`: the operation cannot be done ahead of the decision.
    fn apply(&mut self, rules: &Rules, row: &Row) -> Option<Outcome> {
        let Operation::Sequenced(stamp, operation) = &row.operation else { return None };
        let record = self.records.get_mut(&row.key)?;
        let before = record.as_ref().and_then(Record::page).map(Page::state);
        let effect = apply(rules, &row.key, record, &row.operation);
        if !can_follow_decision(*stamp, &row.key, operation, before, &effect.outcome) {
            return None;
        }
        if effect.outcome.is_done() && !is_question_about_live(operation, before) {
            self.present.rows.push(SpeculatedRow { key: row.key, stamp: *stamp, operation: operation.clone() });
        }
        Some(effect.outcome)
    }
}

/// Estimates the memory that a record takes.
pub fn estimate_bytes(record: &Record) -> usize {
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
    state: Option<TxState>,
    outcome: &Outcome,
) -> bool {
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

/// Returns whether an operation only asks for the state of a live transaction. Such an operation is not sent: its stamp
/// would bar operations of earlier events, which are all done, and a late step of pruning. A pruned holder keeps its
/// slots like a live one.
fn is_question_about_live(operation: &Sequenced, state: Option<TxState>) -> bool {
    *operation == Sequenced::MarkContested && state == Some(TxState::Live)
}

/// Splits the operations into waves: a wave has the operations on a record together, in the order of their events. A
/// transaction becomes live in a later wave than its slots name the transaction.
pub fn into_waves(rows: Vec<SpeculatedRow>) -> Vec<Vec<RecordWork>> {
    let mut waves: Vec<Vec<RecordWork>> = Vec::new();
    // The last wave with operations on a record, and the place of the record there.
    let mut places: HashMap<Key, (usize, usize), FixedState> = HashMap::default();
    // Chain offset of the present event, and the wave after all its operations so far.
    let mut present = (0, 0);
    for SpeculatedRow { key, stamp, operation } in rows {
        if present.0 != stamp.chain_offset() {
            present = (stamp.chain_offset(), 0);
        }
        let earliest = if operation == Sequenced::Accept { present.1 } else { 0 };
        let number = match places.get(&key) {
            Some((wave, place)) if *wave >= earliest => {
                waves[*wave][*place].operations.push((stamp, operation));
                *wave
            }
            _ => {
                waves.resize_with(waves.len().max(earliest + 1), Vec::new);
                places.insert(key, (earliest, waves[earliest].len()));
                waves[earliest].push(RecordWork { key, operations: vec![(stamp, operation)] });
                earliest
            }
        };
        present.1 = present.1.max(number + 1);
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
                None => Ok(state.records.get(key).cloned().flatten()),
            })
            .collect()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        let failed = self.complete_copy(rows.iter().map(|row| row.key)).await;
        let mut results = Vec::with_capacity(rows.len());
        for row in rows {
            match failed.get(&row.key) {
                Some(error) => results.push(Err(error.clone())),
                None => {
                    let outcomes = self.speculation.apply(&self.rules, std::slice::from_ref(row)).await;
                    results.extend(outcomes.into_iter().flatten().map(Ok));
                }
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
        self.0.add_messages(vec![message]);
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

    fn speculated(chain_offset: u64, txid: Txid, operation: Sequenced) -> SpeculatedRow {
        SpeculatedRow { key: Key::master(txid), stamp: Stamp::in_era(0, chain_offset, Phase::Apply), operation }
    }

    fn settle() -> Sequenced {
        Sequenced::Settle(vec![HeldSlot { offset: 0, holder: SpendingData { txid: T, input: 0 } }])
    }

    fn respend() -> Sequenced {
        Sequenced::Respend(Respend { to: T, slots: vec![], checks: RespendChecks::Decided })
    }

    /// Returns, for each wave, the records with the chain offsets of the operations on them.
    fn places(waves: &[Vec<RecordWork>]) -> Vec<Vec<(Key, Vec<u64>)>> {
        let offsets = |work: &RecordWork| work.operations.iter().map(|(stamp, _)| stamp.chain_offset()).collect();
        waves.iter().map(|wave| wave.iter().map(|work| (work.key, offsets(work))).collect()).collect()
    }

    #[test]
    fn a_wave_has_the_operations_on_a_record_in_the_order_of_the_chain() {
        let (t, p) = (Key::master(T), Key::master(P));
        let rows = vec![
            speculated(1, T, Sequenced::MarkConflicting { reason: REASON, height: 1 }),
            speculated(1, P, settle()),
            speculated(1, P, Sequenced::AddConflictingChild(T)),
            speculated(2, P, settle()),
        ];
        assert_eq!(places(&into_waves(rows)), [[(t, vec![1]), (p, vec![1, 1, 2])]]);
    }

    #[test]
    fn a_transaction_becomes_live_after_its_slots_name_it() {
        let (t, p) = (Key::master(T), Key::master(P));
        let rows = vec![
            speculated(1, T, Sequenced::MarkContested),
            speculated(2, P, respend()),
            speculated(2, T, Sequenced::Accept),
            speculated(3, T, settle()),
            speculated(3, P, settle()),
        ];
        assert_eq!(places(&into_waves(rows)), [vec![(t, vec![1]), (p, vec![2, 3])], vec![(t, vec![2, 3])]]);
    }

    /// The slots of the second winner are marked after the first winner is live.
    #[test]
    fn an_accept_follows_all_operations_of_its_event() {
        let (t, p, q) = (Key::master(T), Key::master(P), Key::master(Txid([4; 32])));
        let rows = vec![
            speculated(1, P, respend()),
            speculated(1, T, Sequenced::Accept),
            speculated(2, T, respend()),
            speculated(2, Txid([4; 32]), Sequenced::Accept),
        ];
        assert_eq!(places(&into_waves(rows)), [vec![(p, vec![1])], vec![(t, vec![1, 2])], vec![(q, vec![2])]]);
    }

    /// Every operation that an evaluation must write before the decision refuses the speculation.
    #[test]
    fn only_operations_that_no_instance_can_overtake_follow_the_decision() {
        let live = Some(TxState::Live);
        let undecided = Some(TxState::Conflicting(Verdict::Pending));
        let done = |outcome: fn(crate::record::Reply) -> Outcome| outcome(crate::record::Reply::None);
        let (applied, known) = (done(Outcome::Applied), done(Outcome::AlreadyApplied));
        let can = |phase, operation: &Sequenced, before, outcome: &Outcome| {
            can_follow_decision(Stamp::in_era(0, 1, phase), &Key::master(P), operation, before, outcome)
        };
        use Phase::{Apply, Evaluate};
        assert!(!can(Evaluate, &respend(), live, &applied), "a free slot can be taken meanwhile");
        assert!(can(Evaluate, &respend(), live, &known));
        assert!(!can(Evaluate, &Sequenced::MarkContested, None, &applied), "an absent holder can become live");
        assert!(can(Evaluate, &Sequenced::MarkContested, live, &known));
        let mark = Sequenced::MarkConflicting { reason: REASON, height: 1 };
        assert!(!can(Apply, &mark, live, &applied), "a live transaction can be spent meanwhile");
        assert!(can(Apply, &mark, undecided, &applied));
        assert!(!can(Apply, &Sequenced::MarkContested, live, &known), "descendants are contested");
        assert!(!can(Apply, &settle(), None, &known), "an absent parent gets a stub");
        assert!(can(Apply, &settle(), live, &applied));
    }

    #[tokio::test]
    async fn an_event_sees_the_kept_events_and_the_store_does_not() {
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
        let outcomes = RecordEngine::apply(&copy, &[settle]).await;
        assert!(outcomes[0].as_ref().is_ok_and(Outcome::is_done));
        speculation.keep(1);
        assert_eq!((marks().await, speculation.row_count()), (1, 1));
        // A later question about the live transaction is answered, and not sent.
        let question = row(2, Phase::Evaluate, page.txid, Sequenced::MarkContested);
        assert!(RecordEngine::apply(&copy, &[question]).await[0].as_ref().is_ok_and(Outcome::is_done));
        speculation.keep(2);
        assert_eq!(speculation.row_count(), 1);
        let stored = engine.read(&[key]).await.remove(0).unwrap();
        assert_eq!(stored.as_ref().and_then(Record::page).map(|page| page.contested.len()), Some(0));
        // A refused handler is dropped.
        let refused = speculation
            .run(async { RecordEngine::apply(&copy, &[Row { key, operation: Operation::ClearCreating }]).await });
        assert!(refused.await.is_none());
        // Protects: the window after an event that is handled alone does not read records that are being written.
        let (work, next) = speculation.finish();
        let next = next.unwrap();
        assert_eq!(next.missing([key]), [], "the next window has the changed record");
        next.abandon_present();
        assert!(next.finish().1.is_none());
        assert_eq!(work.rows.len(), 1, "the work of the kept events stays");
    }
}
