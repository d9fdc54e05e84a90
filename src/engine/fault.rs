//! [`FaultEngine`]: an engine that fails as networks and databases do, by chance or by script. The same seed gives the
//! same faults; all faults are off by default.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Cursor, EngineError, ErrorKind, Incarnation, Index, RecordEngine, Row, RowResult, ScanPage, Set,
    memory::MemoryEngine,
};
use crate::{
    clock::Clock,
    engine,
    record::{Key, Record},
    rng::SplitMix64,
};

/// Fault that strikes one call of `apply`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineFault {
    /// The call never arrives: no row is applied, the answers are `Retryable`.
    LostRequest,
    /// All rows are applied and the reply is lost: the answers are `Unknown`.
    LostReply,
    /// The answers are `Unknown` at once and the rows are applied later: a write that outlives its timeout.
    Late(WriteDelay),
    /// Each row is applied or not, by chance; all answers are `Unknown`.
    HalfApplied,
    /// By chance some rows, at least one, are refused as `Retryable`; the others are applied and answered.
    KeyBusy,
    /// The rows are applied twice, as by a network that duplicates packets; the first answers count.
    Repeated,
    /// The rows are applied and answered, then a node restarts and loses changes that it acknowledged within
    /// [`loss_window`](RecordEngine::loss_window). Needs [`FaultEngine::with_restarts`].
    NodeRestart,
}

impl EngineFault {
    /// Returns the name of the fault in [`FaultEngine::injected_by_kind`].
    pub fn name(self) -> &'static str {
        match self {
            EngineFault::LostRequest => "lost request",
            EngineFault::LostReply => "lost reply",
            EngineFault::Late(_) => "late write",
            EngineFault::HalfApplied => "half applied",
            EngineFault::KeyBusy => "key busy",
            EngineFault::Repeated => "repeated write",
            EngineFault::NodeRestart => "node forgets",
        }
    }
}

/// Delay of a late write: the rows are applied at the first call of any kind after the delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteDelay {
    /// Number of further calls of `apply`.
    Calls(u64),
    /// Time on tokio's clock.
    Time(Duration),
}

/// Probability of each fault per call of `apply`, drawn in the order of the fields; at most one fault strikes a call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EngineFaults {
    /// Probability of [`EngineFault::LostRequest`] per call.
    pub lost_request: f64,
    /// Probability of [`EngineFault::LostReply`] per call.
    pub lost_reply: f64,
    /// Probability of [`EngineFault::Late`] per call.
    pub late: f64,
    /// Largest number of calls of `apply` before a late write is applied.
    pub late_within_calls: u64,
    /// Probability of [`EngineFault::HalfApplied`] per call.
    pub half_applied: f64,
    /// Probability of [`EngineFault::KeyBusy`] per call.
    pub key_busy: f64,
    /// Probability of [`EngineFault::Repeated`] per call.
    pub repeated: f64,
    /// Probability of [`EngineFault::NodeRestart`]; the lost changes and their records are random.
    pub node_restart: f64,
    /// Largest number of random restarts, because no offset becomes durable while nodes restart all the time.
    pub max_node_restarts: u64,
    /// Probability that a read, query or scan fails as `Retryable`.
    pub failed_read: f64,
    /// Probability that a call of any kind is delayed, in addition to any other fault.
    pub delayed: f64,
    /// Longest delay, on tokio's clock.
    pub delay_within: Duration,
    /// Largest body in bytes. A row with a larger body is always refused as [`ErrorKind::TooBig`], as by a server with
    /// a record size limit; the other rows of its batch are applied.
    pub longest_body: Option<u64>,
}

/// A decorator that injects faults into any engine.
pub struct FaultEngine {
    inner: Arc<dyn RecordEngine>,
    nodes: Option<RestartableNodes>,
    state: Mutex<EngineFaultState>,
    closed: AtomicBool,
}

/// The engine below as one whose nodes restart.
struct RestartableNodes {
    engine: Arc<MemoryEngine>,
    clock: Clock,
}

/// Decides which reads fail, and how.
type FailingReads = Arc<dyn Fn(&Key) -> Option<ErrorKind> + Send + Sync>;

struct EngineFaultState {
    rng: SplitMix64,
    failing_reads: Option<FailingReads>,
    faults: EngineFaults,
    script: BTreeMap<u64, EngineFault>,
    calls: u64,
    injected: BTreeMap<&'static str, u64>,
    late: Vec<LateWrite>,
}

struct LateWrite {
    due: DueTime,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
enum DueTime {
    Call(u64),
    At(Instant),
}

/// Random choices for one call. They are drawn before the call, so that the draws have the order of the calls.
struct CallPlan {
    due: Vec<Vec<Row>>,
    delay: Option<Duration>,
    fault: Option<EngineFault>,
    /// Rows that the fault strikes, for faults that strike single rows.
    strikes: Vec<bool>,
}

impl FaultEngine {
    /// Wraps `inner` without any faults yet.
    pub fn new(inner: Arc<dyn RecordEngine>, seed: u64) -> Self {
        let state = EngineFaultState {
            rng: SplitMix64::new(seed),
            failing_reads: None,
            faults: EngineFaults::default(),
            script: BTreeMap::new(),
            calls: 0,
            injected: BTreeMap::new(),
            late: Vec::new(),
        };
        FaultEngine { inner, nodes: None, state: Mutex::new(state), closed: AtomicBool::new(false) }
    }

    /// Wraps an engine whose nodes can restart and lose changes. `engine` must come from
    /// [`MemoryEngine::with_loss_window`] with the same `clock`.
    pub fn with_restarts(engine: Arc<MemoryEngine>, clock: Clock, seed: u64) -> Self {
        FaultEngine::new(engine.clone(), seed).on(engine, clock)
    }

    /// Names the engine whose nodes restart, if another decorator lies between this one and that engine.
    pub fn on(self, engine: Arc<MemoryEngine>, clock: Clock) -> Self {
        FaultEngine { nodes: Some(RestartableNodes { engine, clock }), ..self }
    }

    /// Returns the engine with these probabilities of faults.
    pub fn with(self, faults: EngineFaults) -> Self {
        self.set(faults);
        self
    }

    /// Sets the probabilities of faults from now on. The default value ends random faults; late writes that are due
    /// later are still applied.
    pub fn set(&self, faults: EngineFaults) {
        self.state().faults = faults;
    }

    /// Fails each read of a record for which `failing` names a kind, from now on: `Retryable` stands for the records of
    /// a node that is away, `Fatal` for damaged records. The other records of the same call are read.
    pub fn fail_reads(&self, failing: impl Fn(&Key) -> Option<ErrorKind> + Send + Sync + 'static) {
        self.state().failing_reads = Some(Arc::new(failing));
    }

    /// Strikes the `k`-th call of `apply` from now on (1 is the next) with this fault, instead of a random one.
    pub fn fail_at(&self, k: u64, fault: EngineFault) {
        let mut state = self.state();
        let call = state.calls + k;
        state.script.insert(call, fault);
    }

    /// Returns the number of calls of `apply` so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Returns the number of faults so far; delays do not count.
    pub fn injected(&self) -> u64 {
        self.state().injected.values().sum()
    }

    /// Returns how often each fault has struck, by [`EngineFault::name`].
    pub fn injected_by_kind(&self) -> BTreeMap<&'static str, u64> {
        self.state().injected.clone()
    }

    /// Restarts the nodes that hold the records of `lost`: changes acknowledged within `period` are lost, and so are
    /// late writes to these records. Returns the number of lost changes; `None`: the engine below cannot lose changes.
    pub fn restart_nodes(&self, period: Duration, lost: impl Fn(&Key) -> bool) -> Option<usize> {
        let nodes = self.nodes.as_ref()?;
        for late in &mut self.state().late {
            late.rows.retain(|row| !lost(&row.key));
        }
        let since_ms = nodes.clock.now_ms().saturating_sub(period.as_millis() as u64);
        Some(nodes.engine.lose_changes_since(since_ms, lost))
    }

    /// Restarts a random node of one to three; the node loses a random part of its loss window.
    fn restart_a_node(&self) {
        let (period, nodes, node, salt) = {
            let random = &mut self.state().rng;
            let most = self.inner.loss_window().as_millis() as u64;
            let nodes = 1 + random.below(3);
            (Duration::from_millis(1 + random.below(most)), nodes, random.below(nodes), random.below(u64::MAX))
        };
        self.restart_nodes(period, |key| assign_node(key, salt, nodes) == node);
    }

    /// Applies all late writes now, due or not, in the order in which they were sent.
    pub async fn deliver_late(&self) {
        let late = std::mem::take(&mut self.state().late);
        self.deliver(late.into_iter().map(|late| late.rows).collect()).await;
    }

    async fn deliver(&self, batches: Vec<Vec<Row>>) {
        for rows in batches {
            // The callers of these writes have their answers already.
            drop(self.inner.apply(&rows).await);
        }
    }

    fn state(&self) -> MutexGuard<'_, EngineFaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers due late writes and draws the faults of a call other than `apply`.
    async fn prepare_read(&self, operation: &'static str, key: impl ToString) -> Result<(), EngineError> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let (due, delay, fails) = {
            let mut state = self.state();
            let fails = state.draw(|faults| faults.failed_read);
            if fails {
                state.count("failed read");
            }
            (state.take_due(), state.delay(), fails)
        };
        self.deliver(due).await;
        wait(delay).await;
        if fails { Err(injected_error(operation, key, ErrorKind::Retryable, "request lost")) } else { Ok(()) }
    }

    /// Marks the rows whose body is larger than `longest_body`.
    fn find_too_big(&self, rows: &[Row]) -> Vec<bool> {
        let mut state = self.state();
        let longest = state.faults.longest_body.unwrap_or(u64::MAX);
        let is_too_big = |row: &Row| row.operation.body().is_some_and(|body| body.size() > longest);
        let too_big: Vec<bool> = rows.iter().map(is_too_big).collect();
        too_big.iter().filter(|row| **row).for_each(|_| state.count("too big"));
        too_big
    }

    /// Applies rows that are not too big, with at most one fault.
    async fn apply_fitting(&self, rows: &[Row]) -> Vec<RowResult> {
        let CallPlan { due, delay, fault, strikes } = self.state().plan(rows);
        self.deliver(due).await;
        wait(delay).await;
        match fault {
            None => self.inner.apply(rows).await,
            Some(EngineFault::LostRequest) => refuse_all(rows, ErrorKind::Retryable, "request lost"),
            Some(EngineFault::LostReply) => {
                drop(self.inner.apply(rows).await);
                refuse_all(rows, ErrorKind::Unknown, "reply lost")
            }
            Some(EngineFault::Late(_)) => refuse_all(rows, ErrorKind::Unknown, "timed out"),
            Some(EngineFault::HalfApplied) => {
                drop(self.apply_not_struck(rows, &strikes).await);
                refuse_all(rows, ErrorKind::Unknown, "connection lost in the middle")
            }
            Some(EngineFault::KeyBusy) => self.apply_not_struck(rows, &strikes).await,
            Some(EngineFault::Repeated) => {
                let answers = self.inner.apply(rows).await;
                drop(self.inner.apply(rows).await);
                answers
            }
            Some(EngineFault::NodeRestart) => {
                let answers = self.inner.apply(rows).await;
                self.restart_a_node();
                answers
            }
        }
    }

    async fn apply_not_struck(&self, rows: &[Row], struck: &[bool]) -> Vec<RowResult> {
        let answers = self.inner.apply(&rows_not_struck(rows, struck)).await;
        merge_answers(rows, struck, answers, |row| injected_error("apply", row.key, ErrorKind::Retryable, "key busy"))
    }
}

/// Returns the rows that are not struck.
fn rows_not_struck(rows: &[Row], struck: &[bool]) -> Vec<Row> {
    rows.iter().zip(struck).filter(|(_, struck)| !**struck).map(|(row, _)| row.clone()).collect()
}

/// Merges the answers to the rows that are not struck with refusals of the others, in the order of the rows.
fn merge_answers(
    rows: &[Row],
    struck: &[bool],
    answers: Vec<RowResult>,
    refusal: impl Fn(&Row) -> EngineError,
) -> Vec<RowResult> {
    let mut answers = answers.into_iter();
    let mut answer = |row| answers.next().unwrap_or_else(|| Err(refusal(row)));
    rows.iter().zip(struck).map(|(row, struck)| if *struck { Err(refusal(row)) } else { answer(row) }).collect()
}

/// Returns the number of the node that holds a record, of `nodes` nodes; `salt` varies the distribution.
fn assign_node(key: &Key, salt: u64, nodes: u64) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&salt.to_le_bytes()).update(key.to_string().as_bytes());
    let digest = hasher.finalize();
    u64::from(digest.as_bytes()[0]) % nodes
}

async fn wait(delay: Option<Duration>) {
    if let Some(delay) = delay {
        tokio::time::sleep(delay).await;
    }
}

impl EngineFaultState {
    fn plan(&mut self, rows: &[Row]) -> CallPlan {
        self.calls += 1;
        let due = self.take_due();
        let delay = self.delay();
        let drawn = self.draw_fault();
        let fault = self.script.remove(&self.calls).or(drawn).filter(|_| !rows.is_empty());
        if let Some(fault) = fault {
            self.count(fault.name());
        }
        let mut strikes: Vec<bool> = match fault {
            Some(EngineFault::HalfApplied | EngineFault::KeyBusy) => {
                rows.iter().map(|_| self.rng.chance(0.5)).collect()
            }
            _ => Vec::new(),
        };
        if let (Some(EngineFault::KeyBusy), false) = (fault, strikes.contains(&true)) {
            strikes[0] = true;
        }
        if let Some(EngineFault::Late(late)) = fault {
            let due = match late {
                WriteDelay::Calls(calls) => DueTime::Call(self.calls + calls),
                WriteDelay::Time(time) => DueTime::At(Instant::now() + time),
            };
            self.late.push(LateWrite { due, rows: rows.to_vec() });
        }
        CallPlan { due, delay, fault, strikes }
    }

    fn count(&mut self, fault: &'static str) {
        *self.injected.entry(fault).or_default() += 1;
    }

    fn draw_fault(&mut self) -> Option<EngineFault> {
        let within = self.faults.late_within_calls;
        if self.draw(|faults| faults.lost_request) {
            Some(EngineFault::LostRequest)
        } else if self.draw(|faults| faults.lost_reply) {
            Some(EngineFault::LostReply)
        } else if self.draw(|faults| faults.late) {
            Some(EngineFault::Late(WriteDelay::Calls(1 + self.rng.below(within))))
        } else if self.draw(|faults| faults.half_applied) {
            Some(EngineFault::HalfApplied)
        } else if self.draw(|faults| faults.key_busy) {
            Some(EngineFault::KeyBusy)
        } else if self.draw(|faults| faults.repeated) {
            Some(EngineFault::Repeated)
        } else if self.faults.max_node_restarts > 0 && self.draw(|faults| faults.node_restart) {
            self.faults.max_node_restarts -= 1;
            Some(EngineFault::NodeRestart)
        } else {
            None
        }
    }

    fn draw(&mut self, probability: impl Fn(&EngineFaults) -> f64) -> bool {
        self.rng.chance(probability(&self.faults))
    }

    fn delay(&mut self) -> Option<Duration> {
        let within = self.faults.delay_within;
        // Microseconds, because a simulated clock resolves milliseconds and rounds up.
        self.draw(|faults| faults.delayed).then(|| Duration::from_micros(1 + self.rng.below(within.as_micros() as u64)))
    }

    /// Removes and returns the late writes that are due, in the order in which they were sent.
    fn take_due(&mut self) -> Vec<Vec<Row>> {
        let calls = self.calls;
        let is_due = |late: &mut LateWrite| match late.due {
            DueTime::Call(call) => call <= calls,
            DueTime::At(at) => at <= Instant::now(),
        };
        self.late.extract_if(.., is_due).map(|late| late.rows).collect()
    }
}

fn injected_error(operation: &'static str, key: impl ToString, kind: ErrorKind, what: &str) -> EngineError {
    EngineError { kind, operation, key: key.to_string(), message: format!("injected fault: {what}") }
}

fn refuse_all(rows: &[Row], kind: ErrorKind, what: &str) -> Vec<RowResult> {
    rows.iter().map(|row| Err(injected_error("apply", row.key, kind, what))).collect()
}

impl engine::EngineDecorator for FaultEngine {
    fn inner(&self) -> &dyn RecordEngine {
        &*self.inner
    }

    async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        if self.closed.load(Ordering::Acquire) {
            return self.inner.apply(rows).await;
        }
        let too_big = self.find_too_big(rows);
        if !too_big.contains(&true) {
            return self.apply_fitting(rows).await;
        }
        let answers = self.apply_fitting(&rows_not_struck(rows, &too_big)).await;
        merge_answers(rows, &too_big, answers, |row| {
            injected_error("apply", row.key, ErrorKind::TooBig, "record too big")
        })
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        match self.prepare_read("read", keys.first().map_or("nothing".into(), Key::to_string)).await {
            Ok(()) => {
                let failing = self.state().failing_reads.clone();
                let kind = |key: &Key| failing.as_ref().and_then(|failing| failing(key));
                let answer = |(answer, key): (_, &Key)| match kind(key) {
                    Some(kind) => Err(injected_error("read", key, kind, "record not readable")),
                    None => answer,
                };
                self.inner.read(keys).await.into_iter().zip(keys).map(answer).collect()
            }
            Err(error) => vec![Err(error); keys.len()],
        }
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.prepare_read("query", format!("{index:?}")).await?;
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.prepare_read("scan", format!("{set:?}")).await?;
        self.inner.scan(set, cursor, limit).await
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.prepare_read("incarnation", "all nodes").await?;
        self.inner.incarnation().await
    }

    /// Closes the engine: later calls have no faults, and late writes are never applied.
    async fn close(&self) -> Result<(), EngineError> {
        self.closed.store(true, Ordering::Release);
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests;
