//! [`FaultEngine`]: an engine that fails as networks and databases do, by chance or by script, the same way for the
//! same seed. All faults are off by default.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    Cursor, EngineError, ErrorKind, Incarnation, Index, RecordEngine, Row, ScanPage, Set, memory::MemoryEngine,
};
use crate::{
    clock::Clock,
    record::{Key, Outcome, Record},
    seeded::Seeded,
};

/// What can happen to one call of `apply`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It never arrives: `Retryable`, nothing is done.
    LostRequest,
    /// All is done, and the answer gets lost: `Unknown`.
    LostReply,
    /// The answer is `Unknown` at once, and all is done later: a write that a timeout gave up too early.
    Late(Late),
    /// Each row is done or not, by chance, and all answers are `Unknown`.
    HalfApplied,
    /// Each row is refused as `Retryable` by chance, at least one; the others are done and answered.
    KeyBusy,
    /// It is done twice, as a network does that repeats packets; the first answer counts.
    Repeated,
    /// It is done and answered, and then a node restarts and forgets what it had acknowledged within
    /// [`may_forget`](RecordEngine::may_forget). Only over an engine that can (see [`FaultEngine::forgetful`]).
    Forgets,
}

impl Fault {
    /// What counts call it.
    pub fn name(self) -> &'static str {
        match self {
            Fault::LostRequest => "lost request",
            Fault::LostReply => "lost reply",
            Fault::Late(_) => "late write",
            Fault::HalfApplied => "half applied",
            Fault::KeyBusy => "key busy",
            Fault::Repeated => "repeated write",
            Fault::Forgets => "node forgets",
        }
    }
}

/// When a late write is done: with the first call (of any kind) at which it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Late {
    /// After this many more calls of `apply`.
    Calls(u64),
    /// After this long on tokio's clock.
    Time(Duration),
}

/// How often each fault happens by itself: probabilities a call of `apply`, tried in this order, at most one a call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Faults {
    /// See [`Fault::LostRequest`].
    pub lost_request: f64,
    /// See [`Fault::LostReply`].
    pub lost_reply: f64,
    /// See [`Fault::Late`].
    pub late: f64,
    /// A late write is done after at most this many more calls of `apply`.
    pub late_within_calls: u64,
    /// See [`Fault::HalfApplied`].
    pub half_applied: f64,
    /// See [`Fault::KeyBusy`].
    pub key_busy: f64,
    /// See [`Fault::Repeated`].
    pub repeated: f64,
    /// See [`Fault::Forgets`]; how much is lost, and of which records, is by chance.
    pub forgets: f64,
    /// By chance it happens at most so often: a store whose nodes restart all the time commits nothing.
    pub forgets_at_most: u64,
    /// A read, query or scan fails as `Retryable`.
    pub failed_read: f64,
    /// Any call takes longer, whatever else happens to it.
    pub delayed: f64,
    /// By at most this much, on tokio's clock.
    pub delay_within: Duration,
    /// What brings a body of more bytes than this is answered [`ErrorKind::TooBig`], as by a server that bounds its records; the
    /// rest of its batch goes through. No matter of chance.
    pub longest_body: Option<u64>,
}

/// A decorator around any engine.
pub struct FaultEngine {
    inner: Arc<dyn RecordEngine>,
    nodes: Option<Nodes>,
    state: Mutex<State>,
    closed: AtomicBool,
}

/// The engine below as one whose nodes restart.
struct Nodes {
    engine: Arc<MemoryEngine>,
    clock: Clock,
}

struct State {
    seeded: Seeded,
    faults: Faults,
    script: BTreeMap<u64, Fault>,
    calls: u64,
    injected: BTreeMap<&'static str, u64>,
    late: Vec<LateWrite>,
}

struct LateWrite {
    due: Due,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
enum Due {
    Call(u64),
    At(Instant),
}

/// What is decided about a call before it is made, so that the order of chances is that of the calls.
struct Plan {
    due: Vec<Vec<Row>>,
    delay: Option<Duration>,
    fault: Option<Fault>,
    /// By row, for the faults that strike some of them.
    strikes: Vec<bool>,
}

impl FaultEngine {
    /// `inner` with no faults yet.
    pub fn new(inner: Arc<dyn RecordEngine>, seed: u64) -> Self {
        let state = State {
            seeded: Seeded::new(seed),
            faults: Faults::default(),
            script: BTreeMap::new(),
            calls: 0,
            injected: BTreeMap::new(),
            late: Vec::new(),
        };
        FaultEngine { inner, nodes: None, state: Mutex::new(state), closed: AtomicBool::new(false) }
    }

    /// An engine whose nodes can restart and forget. `engine` must have been made with
    /// [`MemoryEngine::forgetful`] and this `clock`.
    pub fn forgetful(engine: Arc<MemoryEngine>, clock: Clock, seed: u64) -> Self {
        FaultEngine::new(engine.clone(), seed).on(engine, clock)
    }

    /// The same, where something else lies between this decorator and the engine whose nodes restart.
    pub fn on(self, engine: Arc<MemoryEngine>, clock: Clock) -> Self {
        FaultEngine { nodes: Some(Nodes { engine, clock }), ..self }
    }

    /// The same, with these faults by chance.
    pub fn with(self, faults: Faults) -> Self {
        self.set(faults);
        self
    }

    /// Faults by chance from now on; `Faults::default()` heals the engine, but for late writes that are still due.
    pub fn set(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The `k`-th call of `apply` from now on (1 is the next) meets this fault, whatever chance says.
    pub fn fail_at(&self, k: u64, fault: Fault) {
        let mut state = self.state();
        let call = state.calls + k;
        state.script.insert(call, fault);
    }

    /// Calls of `apply` so far.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Faults so far, delays not counted.
    pub fn injected(&self) -> u64 {
        self.state().injected.values().sum()
    }

    /// How often each fault has struck.
    pub fn injected_by_kind(&self) -> BTreeMap<&'static str, u64> {
        self.state().injected.clone()
    }

    /// The nodes that hold the records of `lost` restart now: what they acknowledged within `period` is gone, and so is what
    /// was on its way to them. Answers how many changes were lost; `None`: the engine below cannot forget.
    pub fn forget(&self, period: Duration, lost: impl Fn(&Key) -> bool) -> Option<usize> {
        let nodes = self.nodes.as_ref()?;
        for late in &mut self.state().late {
            late.rows.retain(|row| !lost(&row.key));
        }
        let since_ms = nodes.clock.now_ms().saturating_sub(period.as_millis() as u64);
        Some(nodes.engine.forget_since(since_ms, lost))
    }

    /// One node of one to three restarts, and forgets the last part of what it may.
    fn forget_by_chance(&self) {
        let (period, nodes, node, salt) = {
            let random = &mut self.state().seeded;
            let most = self.inner.may_forget().as_millis() as u64;
            let nodes = 1 + random.below(3);
            (Duration::from_millis(1 + random.below(most)), nodes, random.below(nodes), random.below(u64::MAX))
        };
        self.forget(period, |key| node_of(key, salt, nodes) == node);
    }

    /// Does all late writes now, due or not, in the order in which they were sent.
    pub async fn deliver_late(&self) {
        let late = std::mem::take(&mut self.state().late);
        self.deliver(late.into_iter().map(|late| late.rows).collect()).await;
    }

    async fn deliver(&self, batches: Vec<Vec<Row>>) {
        for rows in batches {
            // Nobody waits for these answers any more.
            drop(self.inner.apply(&rows).await);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What comes before anything but `apply`.
    async fn before_read(&self, operation: &'static str, key: impl ToString) -> Result<(), EngineError> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let (due, delay, fails) = {
            let mut state = self.state();
            let fails = state.chance(|faults| faults.failed_read);
            if fails {
                state.count("failed read");
            }
            (state.take_due(), state.delay(), fails)
        };
        self.deliver(due).await;
        wait(delay).await;
        if fails { Err(error(operation, key, ErrorKind::Retryable, "request lost")) } else { Ok(()) }
    }

    /// Which rows bring a body that is longer than is taken.
    fn too_big(&self, rows: &[Row]) -> Vec<bool> {
        let mut state = self.state();
        let longest = state.faults.longest_body.unwrap_or(u64::MAX);
        let is_too_big = |row: &Row| row.operation.body().is_some_and(|body| body.size() > longest);
        let too_big: Vec<bool> = rows.iter().map(is_too_big).collect();
        too_big.iter().filter(|is_so| **is_so).for_each(|_| state.count("too big"));
        too_big
    }

    /// As [`apply`](RecordEngine::apply), of rows that are not too big.
    async fn apply_fitting(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        let Plan { due, delay, fault, strikes } = self.state().plan(rows);
        self.deliver(due).await;
        wait(delay).await;
        match fault {
            None => self.inner.apply(rows).await,
            Some(Fault::LostRequest) => all(rows, ErrorKind::Retryable, "request lost"),
            Some(Fault::LostReply) => {
                drop(self.inner.apply(rows).await);
                all(rows, ErrorKind::Unknown, "reply lost")
            }
            Some(Fault::Late(_)) => all(rows, ErrorKind::Unknown, "timed out"),
            Some(Fault::HalfApplied) => {
                drop(self.lose_some(rows, &strikes).await);
                all(rows, ErrorKind::Unknown, "connection lost in the middle")
            }
            Some(Fault::KeyBusy) => self.lose_some(rows, &strikes).await,
            Some(Fault::Repeated) => {
                let answers = self.inner.apply(rows).await;
                drop(self.inner.apply(rows).await);
                answers
            }
            Some(Fault::Forgets) => {
                let answers = self.inner.apply(rows).await;
                self.forget_by_chance();
                answers
            }
        }
    }

    async fn lose_some(&self, rows: &[Row], lost: &[bool]) -> Vec<Result<Outcome, EngineError>> {
        let answers = self.inner.apply(&spared(rows, lost)).await;
        among(rows, lost, answers, |row| error("apply", row.key, ErrorKind::Retryable, "key busy"))
    }
}

/// The rows that nothing strikes.
fn spared(rows: &[Row], struck: &[bool]) -> Vec<Row> {
    rows.iter().zip(struck).filter(|(_, struck)| !**struck).map(|(row, _)| row.clone()).collect()
}

/// The answers to those rows, with the others refused in between.
fn among(
    rows: &[Row],
    struck: &[bool],
    answers: Vec<Result<Outcome, EngineError>>,
    refusal: impl Fn(&Row) -> EngineError,
) -> Vec<Result<Outcome, EngineError>> {
    let mut answers = answers.into_iter();
    let mut answer = |row| answers.next().unwrap_or_else(|| Err(refusal(row)));
    rows.iter().zip(struck).map(|(row, struck)| if *struck { Err(refusal(row)) } else { answer(row) }).collect()
}

/// Which of so many nodes holds a record; `salt` deals the records anew.
fn node_of(key: &Key, salt: u64, nodes: u64) -> u64 {
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

impl State {
    fn plan(&mut self, rows: &[Row]) -> Plan {
        self.calls += 1;
        let due = self.take_due();
        let delay = self.delay();
        let by_chance = self.by_chance();
        let fault = self.script.remove(&self.calls).or(by_chance).filter(|_| !rows.is_empty());
        if let Some(fault) = fault {
            self.count(fault.name());
        }
        let mut strikes: Vec<bool> = match fault {
            Some(Fault::HalfApplied | Fault::KeyBusy) => rows.iter().map(|_| self.seeded.chance(0.5)).collect(),
            _ => Vec::new(),
        };
        if let (Some(Fault::KeyBusy), false) = (fault, strikes.contains(&true)) {
            strikes[0] = true;
        }
        if let Some(Fault::Late(late)) = fault {
            let due = match late {
                Late::Calls(calls) => Due::Call(self.calls + calls),
                Late::Time(time) => Due::At(Instant::now() + time),
            };
            self.late.push(LateWrite { due, rows: rows.to_vec() });
        }
        Plan { due, delay, fault, strikes }
    }

    fn count(&mut self, fault: &'static str) {
        *self.injected.entry(fault).or_default() += 1;
    }

    fn by_chance(&mut self) -> Option<Fault> {
        let within = self.faults.late_within_calls;
        if self.chance(|faults| faults.lost_request) {
            Some(Fault::LostRequest)
        } else if self.chance(|faults| faults.lost_reply) {
            Some(Fault::LostReply)
        } else if self.chance(|faults| faults.late) {
            Some(Fault::Late(Late::Calls(1 + self.seeded.below(within))))
        } else if self.chance(|faults| faults.half_applied) {
            Some(Fault::HalfApplied)
        } else if self.chance(|faults| faults.key_busy) {
            Some(Fault::KeyBusy)
        } else if self.chance(|faults| faults.repeated) {
            Some(Fault::Repeated)
        } else if self.faults.forgets_at_most > 0 && self.chance(|faults| faults.forgets) {
            self.faults.forgets_at_most -= 1;
            Some(Fault::Forgets)
        } else {
            None
        }
    }

    fn chance(&mut self, of: impl Fn(&Faults) -> f64) -> bool {
        self.seeded.chance(of(&self.faults))
    }

    fn delay(&mut self) -> Option<Duration> {
        let within = self.faults.delay_within;
        // Microseconds: a simulated clock resolves milliseconds, and rounds up.
        self.chance(|faults| faults.delayed)
            .then(|| Duration::from_micros(1 + self.seeded.below(within.as_micros() as u64)))
    }

    /// Late writes whose time has come, in the order in which they were sent.
    fn take_due(&mut self) -> Vec<Vec<Row>> {
        let calls = self.calls;
        let is_due = |late: &mut LateWrite| match late.due {
            Due::Call(call) => call <= calls,
            Due::At(at) => at <= Instant::now(),
        };
        self.late.extract_if(.., is_due).map(|late| late.rows).collect()
    }
}

fn error(operation: &'static str, key: impl ToString, kind: ErrorKind, what: &str) -> EngineError {
    EngineError { kind, operation, key: key.to_string(), message: format!("injected fault: {what}") }
}

fn all(rows: &[Row], kind: ErrorKind, what: &str) -> Vec<Result<Outcome, EngineError>> {
    rows.iter().map(|row| Err(error("apply", row.key, kind, what))).collect()
}

#[async_trait]
impl RecordEngine for FaultEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn apply(&self, rows: &[Row]) -> Vec<Result<Outcome, EngineError>> {
        if self.closed.load(Ordering::Acquire) {
            return self.inner.apply(rows).await;
        }
        let too_big = self.too_big(rows);
        if !too_big.contains(&true) {
            return self.apply_fitting(rows).await;
        }
        let answers = self.apply_fitting(&spared(rows, &too_big)).await;
        among(rows, &too_big, answers, |row| error("apply", row.key, ErrorKind::TooBig, "record too big"))
    }

    async fn read(&self, keys: &[Key]) -> Vec<Result<Option<Record>, EngineError>> {
        match self.before_read("read", keys.first().map_or("nothing".into(), Key::to_string)).await {
            Ok(()) => self.inner.read(keys).await,
            Err(error) => vec![Err(error); keys.len()],
        }
    }

    async fn query(&self, index: Index, from: u64, to: u64, limit: usize) -> Result<Vec<Key>, EngineError> {
        self.before_read("query", format!("{index:?}")).await?;
        self.inner.query(index, from, to, limit).await
    }

    async fn scan(&self, set: Set, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        self.before_read("scan", format!("{set:?}")).await?;
        self.inner.scan(set, cursor, limit).await
    }

    fn may_forget(&self) -> Duration {
        self.inner.may_forget()
    }

    fn may_lose_parts(&self) -> bool {
        self.inner.may_lose_parts()
    }

    async fn incarnation(&self) -> Result<Incarnation, EngineError> {
        self.before_read("incarnation", "all nodes").await?;
        self.inner.incarnation().await
    }

    /// Closes the engine; from then on it is without faults, and late writes are never done.
    async fn close(&self) -> Result<(), EngineError> {
        self.closed.store(true, Ordering::Release);
        self.inner.close().await
    }
}

#[cfg(test)]
mod tests;
