//! The dispatcher: gathers rows into batches by size and age, sends several batches at once, and repeats failed rows
//! with growing pauses.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    time::Duration,
};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{EngineError, ErrorKind, Row},
    group::member::EndOffsetAnswer,
    ingest::{
        flight::FlightId,
        pipeline::{PipelineError, ProofSnapshot},
        plan::{EventRef, Token},
    },
    record::{Key, Outcome, Record},
    store::{
        StateStore,
        create::{Creator, PagedTx},
        recovery::CompleteError,
    },
    tasks,
    telemetry::Completion,
    tx::Txid,
};

/// While fewer batches than this are in flight, a batch may leave that has this part of its full size. Transactions in
/// step (a chain of transactions: each link waits for the one before) never fill more than one batch; with full batches
/// only, they would wait for the store, and the store for them.
const EARLY_BATCHES: usize = 4;

/// Batches of woken transactions that may be in flight besides the others. A chain of transactions advances by one link
/// with each of these batches, also while a start reads a long backlog.
const WOKEN_BATCHES: usize = 2;

/// Messages to the pipeline from the tasks that it has started.
#[derive(Debug)]
pub enum TaskMessage {
    /// Outcomes of rows, and of creates that take more than one write; `last` when the batch is complete.
    Rows {
        /// Outcomes, each with the token of its row.
        outcomes: Vec<(Token, Outcome)>,
        /// Every row of the batch has an outcome.
        last: bool,
    },
    /// The engine refuses a record as large as this row would make.
    TooBig(Token, Row, EngineError),
    /// The work of this token was cancelled.
    Cancelled(Token),
    /// The store cannot take the row of this token until an operator has acted; with the reason.
    CannotBeStored(Token, String),
    /// Master records that were read; `None`: absent.
    MastersRead(Vec<(MasterRead, Option<Record>)>),
    /// A publication is acknowledged.
    Published(Publication),
    /// A publication is refused, and no retry would change that.
    NotPublished(Publication, PipelineError),
    /// Answer to the question whether the topic is the store's.
    TopicIdChecked {
        /// Number of chunks that had been read at the time of the question.
        up_to: u64,
        /// Reason why the topic is another one; `None`: it is the store's.
        other: Option<String>,
    },
    /// Progress of the group and the chain, or the error of the question.
    ProofSnapshot(Result<ProofSnapshot, String>),
    /// End offsets of partitions.
    EndOffsets(Vec<EndOffsetAnswer>),
    /// The store is verified to hold every event below this offset of a partition.
    StoreCompared {
        /// Number of the partition.
        partition: i32,
        /// Committed offset at the time of the assignment.
        offset: u64,
    },
    /// The sequencer has created a transaction without an event of its own.
    ParentCreated(Txid),
    /// A task gets no answer from the store; or has an answer again, after it had none.
    StoreReachable(Result<(), String>),
    /// The pipeline cannot continue.
    Fatal(PipelineError),
}

/// Subject of a message that the pipeline publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publication {
    /// The contests of flights.
    Contests(Vec<FlightId>),
    /// The dead letter of an event, with the outcome of its transaction.
    DeadLetter(EventRef),
    /// The outcome of transactions that are live, with the events that have made them live.
    Live(Vec<LiveEvent>),
}

/// Event whose transaction is live, and the result with which the event completes.
pub type LiveEvent = (EventRef, Completion);

/// Purpose of a read of a master record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasterRead {
    /// The own master of a flight.
    Own(FlightId),
    /// The master of the parent of a group of spends.
    Parent(FlightId, u32),
}

/// Runs a task of the pipeline; a panic in the task ends the pipeline.
pub fn spawn(
    what: &'static str,
    messages: &mpsc::UnboundedSender<TaskMessage>,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let messages = messages.clone();
    tasks::spawn(what, work, move |why| {
        // A pipeline that has ended needs no message.
        let _ = messages.send(TaskMessage::Fatal(PipelineError::Internal(why)));
    });
}

/// Limits of a [`Dispatcher`].
#[derive(Debug, Clone, Copy)]
pub struct DispatchSettings {
    /// Number of rows of a full batch.
    pub batch_size: usize,
    /// Longest time that a row waits for its batch to fill.
    pub batch_age: Duration,
    /// Number of batches that may be in flight at once.
    pub in_flight_batches: usize,
}

/// Gathers rows and reads, and sends them to the store.
pub struct Dispatcher {
    store: StateStore,
    settings: DispatchSettings,
    messages: mpsc::UnboundedSender<TaskMessage>,
    /// Rows that are not sent yet, possibly as many as transactions in flight: a deque, so that a batch leaves at the
    /// front without moving the rest.
    tokens: VecDeque<Token>,
    rows: VecDeque<Row>,
    oldest: Option<Instant>,
    /// Rows of woken transactions that are not sent yet.
    woken: Vec<(Token, Row)>,
    reads: Vec<(MasterRead, Txid)>,
    in_flight: usize,
    /// Work outside the batches, by flight: creates with several writes, and bodies for the blob store.
    detached: BTreeMap<FlightId, CancellationToken>,
    /// Every create has a clone; the channel closes with the last one.
    creates: mpsc::Sender<Infallible>,
    creations_ended: mpsc::Receiver<Infallible>,
}

/// Time for which a shutdown waits until lock records are released. Without an answer of the store the instance ends,
/// and the lock records expire.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

impl Dispatcher {
    /// Creates a dispatcher that sends its results to `messages`.
    pub fn new(store: StateStore, settings: DispatchSettings, messages: mpsc::UnboundedSender<TaskMessage>) -> Self {
        let (creates, creations_ended) = mpsc::channel(1);
        Dispatcher {
            store,
            settings,
            messages,
            tokens: VecDeque::new(),
            rows: VecDeque::new(),
            oldest: None,
            woken: Vec::new(),
            reads: Vec::new(),
            in_flight: 0,
            detached: BTreeMap::new(),
            creates,
            creations_ended,
        }
    }

    /// Adds a row; a full batch leaves at once.
    pub fn push(&mut self, token: Token, row: Row) {
        self.oldest.get_or_insert_with(Instant::now);
        self.tokens.push_back(token);
        self.rows.push_back(row);
        if self.rows.len() >= self.settings.batch_size && self.in_flight < self.settings.in_flight_batches {
            self.send();
        }
    }

    /// Adds a row of a transaction that an outcome has woken: the row leaves with the next flush, before all others.
    pub fn push_woken(&mut self, token: Token, row: Row) {
        self.woken.push((token, row));
    }

    /// Adds a read of a master record to the next flush.
    pub fn read(&mut self, reading: MasterRead, txid: Txid) {
        self.reads.push((reading, txid));
    }

    /// Sends what is due: reads; rows of woken transactions; full batches; all rows when no batch is in flight or the
    /// oldest row has waited for long enough; and a part of a batch while few batches are in flight.
    pub fn flush(&mut self) {
        if !self.reads.is_empty() {
            self.send_reads();
        }
        if !self.woken.is_empty() && self.in_flight < self.settings.in_flight_batches + WOKEN_BATCHES {
            let size = self.woken.len().min(self.settings.batch_size);
            let (tokens, rows) = self.woken.drain(..size).unzip();
            self.send_batch(tokens, rows);
        }
        while !self.rows.is_empty() && self.in_flight < self.settings.in_flight_batches {
            let full = self.rows.len() >= self.settings.batch_size;
            let old = self.oldest.is_some_and(|since| since.elapsed() >= self.settings.batch_age);
            let early = self.rows.len() * EARLY_BATCHES >= self.settings.batch_size && self.in_flight < EARLY_BATCHES;
            if !(full || old || early || self.in_flight == 0) {
                return;
            }
            self.send();
        }
    }

    /// Returns the time at which [`flush`](Self::flush) has to send a batch because of its age.
    pub fn deadline(&self) -> Option<Instant> {
        self.oldest
            .filter(|_| self.in_flight < self.settings.in_flight_batches)
            .map(|since| since + self.settings.batch_age)
    }

    /// Notes that a batch is complete.
    pub fn batch_done(&mut self) {
        self.in_flight -= 1;
    }

    /// Returns whether no row or read is gathered and no batch is in flight.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.rows.is_empty() && self.woken.is_empty() && self.reads.is_empty()
    }

    fn send(&mut self) {
        let size = self.rows.len().min(self.settings.batch_size);
        let (rows, tokens) = (self.rows.drain(..size).collect(), self.tokens.drain(..size).collect());
        self.oldest = (!self.rows.is_empty()).then(Instant::now);
        self.send_batch(tokens, rows);
    }

    fn send_batch(&mut self, tokens: Vec<Token>, rows: Vec<Row>) {
        self.in_flight += 1;
        let batch = RowBatch { tokens, rows, counts_as_in_flight: true };
        let work = apply_until_answered(self.store.clone(), self.messages.clone(), batch);
        spawn("writing to the store", &self.messages, work);
    }

    /// Creates a transaction that takes more than one write, in a task of its own.
    pub fn create(&mut self, creator: Creator, token: Token, work: PagedTx) {
        let (cancelled, mut reporter) = (self.start_detached(token), Reporter::new(self.messages.clone()));
        let creates = self.creates.clone();
        spawn("creating a large transaction", &self.messages, async move {
            let _creates = creates;
            let report = |failed: Option<&EngineError>| {
                reporter.report_attempt(failed);
            };
            match creator.create_unless_cancelled(&cancelled, &work, report).await {
                Some(Ok(outcome)) => {
                    reporter.send(TaskMessage::Rows { outcomes: vec![(token, outcome)], last: false });
                }
                Some(Err(error)) => reporter.report_failure(token, error),
                None => {
                    reporter.send(TaskMessage::Cancelled(token));
                }
            }
        });
    }

    /// Sends a row that the engine has found too large without its body, which goes to the blob store, in a task of its
    /// own.
    pub fn externalize_body(&mut self, token: Token, row: Row, too_big: EngineError) {
        let (cancelled, messages) = (self.start_detached(token), self.messages.clone());
        let work = Box::pin(apply_externalized(self.store.clone(), messages.clone(), token, row, too_big));
        spawn("writing to the blob store", &self.messages, async move {
            if cancelled.run_until_cancelled(work).await.is_none() {
                // A pipeline that has ended reads the event again at its next start.
                let _ = messages.send(TaskMessage::Cancelled(token));
            }
        });
    }

    fn start_detached(&mut self, token: Token) -> CancellationToken {
        self.detached.entry(token.flight()).or_default().clone()
    }

    /// Notes that the work of this token outside the batches has its answer.
    pub fn finish_detached(&mut self, token: Token) {
        self.detached.remove(&token.flight());
    }

    /// Cancels the work of a flight outside the batches; a row in a batch gets its outcome.
    pub fn cancel(&mut self, flight: FlightId) {
        if let Some(cancelled) = self.detached.get(&flight) {
            cancelled.cancel();
        }
    }

    /// Cancels the work of all flights outside the batches.
    pub fn cancel_all(&mut self) {
        std::mem::take(&mut self.detached).into_values().for_each(|cancelled| cancelled.cancel());
    }

    /// Cancels all work outside the batches and waits until its lock records are released, so that the next instance
    /// need not wait for them.
    pub async fn shut_down(&mut self) {
        self.cancel_all();
        let (creates, ended) = mpsc::channel(1);
        self.creates = creates;
        let mut ended = std::mem::replace(&mut self.creations_ended, ended);
        if tokio::time::timeout(RELEASE_TIMEOUT, ended.recv()).await.is_err() {
            tracing::warn!("lock records not released: the store does not answer; they expire");
        }
    }

    fn send_reads(&mut self) {
        let reads = std::mem::take(&mut self.reads);
        let work = read_until_answered(self.store.clone(), self.messages.clone(), reads);
        spawn("reading from the store", &self.messages, work);
    }
}

/// Reports the answers of the store to one task: each failure once, and its end once.
struct Reporter {
    messages: mpsc::UnboundedSender<TaskMessage>,
    is_failing: bool,
}

impl Reporter {
    fn new(messages: mpsc::UnboundedSender<TaskMessage>) -> Self {
        Reporter { messages, is_failing: false }
    }

    /// Sends a message; `false`: the pipeline has ended.
    fn send(&self, message: TaskMessage) -> bool {
        self.messages.send(message).is_ok()
    }

    /// Reports a failure that no retry changes: a record that is too large, or damaged records.
    fn report_failure(&mut self, token: Token, error: CompleteError) {
        // The refusal is an answer of the store.
        self.report_attempt(None);
        self.send(match error {
            CompleteError::Engine(error) if error.kind != ErrorKind::TooBig => TaskMessage::Fatal(error.into()),
            refused => TaskMessage::CannotBeStored(token, refused.to_string()),
        });
    }

    /// Reports the result of one attempt; returns `true` when failed rows can be sent again.
    fn report_attempt(&mut self, failed: Option<&EngineError>) -> bool {
        match failed {
            Some(error) if !error.may_be_retried() => {
                self.send(TaskMessage::Fatal(error.clone().into()));
                false
            }
            Some(error) => {
                std::mem::replace(&mut self.is_failing, true)
                    || self.send(TaskMessage::StoreReachable(Err(error.to_string())))
            }
            None => !std::mem::take(&mut self.is_failing) || self.send(TaskMessage::StoreReachable(Ok(()))),
        }
    }
}

impl Drop for Reporter {
    /// Cancelled work waits for no answer any more.
    fn drop(&mut self) {
        self.report_attempt(None);
    }
}

/// Rows that are sent in one request.
struct RowBatch {
    tokens: Vec<Token>,
    rows: Vec<Row>,
    /// The batch counts towards the limit of batches in flight.
    counts_as_in_flight: bool,
}

async fn apply_until_answered(
    store: StateStore,
    messages: mpsc::UnboundedSender<TaskMessage>,
    RowBatch { mut tokens, mut rows, counts_as_in_flight }: RowBatch,
) {
    let mut pauses = store.new_backoff(rows.first().map(|row| row.key));
    let mut reporter = Reporter::new(messages.clone());
    loop {
        let results = store.engine.apply(&rows).await;
        let mut outcomes = Vec::with_capacity(results.len());
        let mut again = (Vec::new(), Vec::new());
        let mut error = None;
        for ((token, row), result) in tokens.into_iter().zip(rows).zip(results) {
            match result {
                Ok(outcome) => outcomes.push((token, outcome)),
                // The other rows do not wait for the blob store.
                Err(why) if why.kind == ErrorKind::TooBig => {
                    reporter.send(TaskMessage::TooBig(token, row, why));
                }
                Err(why) => {
                    error = Some(why);
                    again.0.push(token);
                    again.1.push(row);
                }
            }
        }
        let ended = again.0.is_empty();
        let message = TaskMessage::Rows { outcomes, last: ended && counts_as_in_flight };
        if !reporter.report_attempt(error.as_ref()) || !reporter.send(message) || ended {
            return;
        }
        (tokens, rows) = again;
        pauses.pause().await;
    }
}

/// Moves the body of a row that the engine has found too large to the blob store and applies the row, outside the limit
/// of batches in flight.
async fn apply_externalized(
    store: StateStore,
    messages: mpsc::UnboundedSender<TaskMessage>,
    token: Token,
    row: Row,
    too_big: EngineError,
) {
    let mut reporter = Reporter::new(messages.clone());
    let report = |failed: Option<&EngineError>| {
        reporter.report_attempt(failed);
    };
    match store.externalize_body(&row, too_big, report).await {
        Ok(row) => {
            let batch = RowBatch { tokens: vec![token], rows: vec![row], counts_as_in_flight: false };
            apply_until_answered(store, messages, batch).await;
        }
        Err(error) => reporter.report_failure(token, error.into()),
    }
}

async fn read_until_answered(
    store: StateStore,
    messages: mpsc::UnboundedSender<TaskMessage>,
    mut reads: Vec<(MasterRead, Txid)>,
) {
    let mut pauses = store.new_backoff(reads.first().map(|(_, txid)| Key::master(*txid)));
    let mut reporter = Reporter::new(messages);
    loop {
        // A thousand children of one wide parent ask for the same record, of megabytes.
        let txids: BTreeSet<Txid> = reads.iter().map(|(_, txid)| *txid).collect();
        let keys: Vec<Key> = txids.iter().map(|txid| Key::master(*txid)).collect();
        let results: BTreeMap<Txid, _> = txids.into_iter().zip(store.engine.read(&keys).await).collect();
        let mut records = Vec::with_capacity(reads.len());
        let mut again = Vec::new();
        let mut error = None;
        for (reading, txid) in reads {
            match &results[&txid] {
                Ok(record) => records.push((reading, record.clone())),
                Err(why) => {
                    error = Some(why.clone());
                    again.push((reading, txid));
                }
            }
        }
        if !reporter.report_attempt(error.as_ref())
            || !reporter.send(TaskMessage::MastersRead(records))
            || again.is_empty()
        {
            return;
        }
        reads = again;
        pauses.pause().await;
    }
}

#[cfg(test)]
mod tests;
