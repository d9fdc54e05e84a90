//! Rows to the engine: gathered by size and age, many batches in flight, failures tried again with a growing pause.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    time::Duration,
};

use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{EngineError, ErrorKind, Row},
    ingest::{
        flight::FlightId,
        pipeline::{Others, PipelineError},
        plan::{EventRef, Token},
    },
    record::{Key, Outcome, Record},
    store::{
        Store,
        create::{Creator, Paged},
        recovery::CompleteError,
    },
    tasks,
    tx::Txid,
};

/// So many batches may be on their way, each so small a part of a full one at least, before only full ones leave. What
/// moves in step (chains: each link waits for the one before) never fills more than one batch, and would wait for the
/// store and have the store wait for it in turn.
const EARLY: usize = 4;

/// What comes back to the pipeline from the tasks that it started.
#[derive(Debug)]
pub enum Done {
    /// Rows have their outcomes; `last` when their batch is through.
    Rows {
        /// Outcomes by token.
        outcomes: Vec<(Token, Outcome)>,
        /// Nothing of that batch is left.
        last: bool,
    },
    /// A transaction that takes more than one write was created, or not.
    Created(Token, Outcome),
    /// The engine takes no record as large as this row makes.
    TooBig(Token, Row, EngineError),
    /// What this asked for was given up.
    GivenUp(Token),
    /// What this asked for cannot be stored until somebody has looked, and why.
    Stands(Token, String),
    /// Master records were read.
    Reads(Vec<(Reading, Option<Record>)>),
    /// A contest is in the log.
    ContestPublished(FlightId),
    /// The dead letter of an event is in its topic.
    DeadLetterPublished(EventRef),
    /// A contest cannot be put into the log, and no retry changes that.
    ContestNotPublished(FlightId, PipelineError),
    /// A dead letter cannot be put into its topic, and no retry changes that.
    DeadLetterNotPublished(EventRef, PipelineError),
    /// Whether the topic is the store's.
    Identity {
        /// Chunks that had been read when that was asked.
        up_to: u64,
        /// Why it is not.
        other: Option<String>,
    },
    /// How far everybody else is, or why that cannot be told.
    Others(Result<Others, String>),
    /// The ends of partitions: by number, with the position when that was asked, and the first offset.
    Ends(Vec<Ended>),
    /// The store holds what is below this offset of a partition.
    Compared {
        /// Which.
        partition: i32,
        /// As it had been committed when the partition was assigned.
        offset: u64,
    },
    /// A transaction came by no event of its own.
    ParentCreated(Txid),
    /// One of the tasks that work on the store gets no answer; or has one again, after it had none.
    StoreReachable(Result<(), String>),
    /// Nothing can go on.
    Fatal(PipelineError),
}

/// Where a partition ends, as it was asked.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    /// Its number.
    pub partition: i32,
    /// Epoch of its assignment.
    pub epoch: u64,
    /// Offset of the next event to be read, before that was asked.
    pub position: u64,
    /// First offset that the partition holds, and the one behind the last.
    pub holds: (u64, u64),
}

/// Whose master record is read, and what for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// The flight's own.
    Own(FlightId),
    /// That of the parent of a group of spends.
    Parent(FlightId, u32),
}

/// Runs a task of the pipeline, which ends the pipeline should it panic.
pub fn spawn(what: &'static str, done: &mpsc::UnboundedSender<Done>, work: impl Future<Output = ()> + Send + 'static) {
    let done = done.clone();
    tasks::spawn(what, work, move |why| {
        // The pipeline may have ended already; then nobody needs to know.
        let _ = done.send(Done::Fatal(PipelineError::Internal(why)));
    });
}

/// Limits of a [`Dispatcher`].
#[derive(Debug, Clone, Copy)]
pub struct DispatchSettings {
    /// Rows a batch.
    pub batch_size: usize,
    /// How long a row waits for its batch to fill.
    pub batch_age: Duration,
    /// Batches on their way at once.
    pub in_flight_batches: usize,
}

/// Gathers rows into batches and sends them.
pub struct Dispatcher {
    store: Store,
    settings: DispatchSettings,
    done: mpsc::UnboundedSender<Done>,
    /// What waits for its turn, as many as may be in flight: taken from the front, without moving the rest.
    tokens: VecDeque<Token>,
    rows: VecDeque<Row>,
    oldest: Option<Instant>,
    reads: Vec<(Reading, Txid)>,
    in_flight: usize,
    /// What is done beside the rest, since it takes many writes, or waits for the blob store.
    beside: BTreeMap<FlightId, CancellationToken>,
    /// Each creation has a copy: the last one to end closes the channel.
    creates: mpsc::Sender<Infallible>,
    creations_ended: mpsc::Receiver<Infallible>,
}

/// A store that does not answer does not keep an instance from ending: lock records end by themselves.
const RELEASED_WITHIN: Duration = Duration::from_secs(3);

impl Dispatcher {
    /// Results go to `done`.
    pub fn new(store: Store, settings: DispatchSettings, done: mpsc::UnboundedSender<Done>) -> Self {
        let (creates, creations_ended) = mpsc::channel(1);
        Dispatcher {
            store,
            settings,
            done,
            tokens: VecDeque::new(),
            rows: VecDeque::new(),
            oldest: None,
            reads: Vec::new(),
            in_flight: 0,
            beside: BTreeMap::new(),
            creates,
            creations_ended,
        }
    }

    /// Adds a row; full batches leave at once.
    pub fn push(&mut self, token: Token, row: Row) {
        self.oldest.get_or_insert_with(Instant::now);
        self.tokens.push_back(token);
        self.rows.push_back(row);
        if self.rows.len() >= self.settings.batch_size && self.in_flight < self.settings.in_flight_batches {
            self.send();
        }
    }

    /// Adds a read of a master record.
    pub fn read(&mut self, reading: Reading, txid: Txid) {
        self.reads.push((reading, txid));
    }

    /// Sends what is due: full batches; everything when nothing else is on its way or the oldest row has waited long enough;
    /// and a good part of a batch while little is on its way.
    pub fn flush(&mut self) {
        if !self.reads.is_empty() {
            self.send_reads();
        }
        while !self.rows.is_empty() && self.in_flight < self.settings.in_flight_batches {
            let full = self.rows.len() >= self.settings.batch_size;
            let old = self.oldest.is_some_and(|since| since.elapsed() >= self.settings.batch_age);
            let early = self.rows.len() * EARLY >= self.settings.batch_size && self.in_flight < EARLY;
            if !(full || old || early || self.in_flight == 0) {
                return;
            }
            self.send();
        }
    }

    /// When [`flush`](Self::flush) has something to do, whatever else happens.
    pub fn deadline(&self) -> Option<Instant> {
        self.oldest
            .filter(|_| self.in_flight < self.settings.in_flight_batches)
            .map(|since| since + self.settings.batch_age)
    }

    /// A batch is through.
    pub fn batch_done(&mut self) {
        self.in_flight -= 1;
    }

    /// Whether nothing is gathered or on its way.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.rows.is_empty() && self.reads.is_empty()
    }

    fn send(&mut self) {
        let size = self.rows.len().min(self.settings.batch_size);
        let (rows, tokens) = (self.rows.drain(..size).collect(), self.tokens.drain(..size).collect());
        self.oldest = (!self.rows.is_empty()).then(Instant::now);
        self.in_flight += 1;
        let batch = Batch { tokens, rows, takes_a_place: true };
        let work = apply_until_done(self.store.clone(), self.done.clone(), batch);
        spawn("writing to the store", &self.done, work);
    }

    /// Creates a transaction that takes more than one write, beside everything else.
    pub fn create(&mut self, creator: Creator, token: Token, work: Paged) {
        let (given_up, mut reporter) = (self.begin_beside(token), Reporter::new(self.done.clone()));
        let creates = self.creates.clone();
        spawn("creating a large transaction", &self.done, async move {
            let _creates = creates;
            let tell = |failed: Option<&EngineError>| {
                reporter.tried(failed);
            };
            match creator.create_unless(&given_up, &work, tell).await {
                Some(Ok(outcome)) => {
                    reporter.tell(Done::Created(token, outcome));
                }
                Some(Err(error)) => reporter.gave_up(token, error),
                None => {
                    reporter.tell(Done::GivenUp(token));
                }
            }
        });
    }

    /// Sends what the engine found too big without its body, which goes to the blob store, beside everything else.
    pub fn lighten(&mut self, token: Token, row: Row, too_big: EngineError) {
        let (given_up, done) = (self.begin_beside(token), self.done.clone());
        let work = Box::pin(apply_lighter(self.store.clone(), done.clone(), token, row, too_big));
        spawn("writing to the blob store", &self.done, async move {
            if given_up.run_until_cancelled(work).await.is_none() {
                // A pipeline that has ended meanwhile reads the event again when it starts.
                let _ = done.send(Done::GivenUp(token));
            }
        });
    }

    fn begin_beside(&mut self, token: Token) -> CancellationToken {
        self.beside.entry(token.flight()).or_default().clone()
    }

    /// There is an answer.
    pub fn ended(&mut self, token: Token) {
        self.beside.remove(&token.flight());
    }

    /// What is done for a flight beside the rest is done no further; a batch comes to its end.
    pub fn give_up(&mut self, flight: FlightId) {
        if let Some(given_up) = self.beside.get(&flight) {
            given_up.cancel();
        }
    }

    /// The same of all flights.
    pub fn give_all_up(&mut self) {
        std::mem::take(&mut self.beside).into_values().for_each(|given_up| given_up.cancel());
    }

    /// The same, once nothing more is to be done; waits until the lock records are given back, so that whoever comes next need not.
    pub async fn end(&mut self) {
        self.give_all_up();
        let (creates, ended) = mpsc::channel(1);
        self.creates = creates;
        let mut ended = std::mem::replace(&mut self.creations_ended, ended);
        if tokio::time::timeout(RELEASED_WITHIN, ended.recv()).await.is_err() {
            tracing::warn!("lock records are left to end by themselves: the store does not answer");
        }
    }

    fn send_reads(&mut self) {
        let reads = std::mem::take(&mut self.reads);
        let work = read_until_done(self.store.clone(), self.done.clone(), reads);
        spawn("reading from the store", &self.done, work);
    }
}

/// Where one task tells how the store answers it: each trouble once, and its end once.
struct Reporter {
    done: mpsc::UnboundedSender<Done>,
    in_trouble: bool,
}

impl Reporter {
    fn new(done: mpsc::UnboundedSender<Done>) -> Self {
        Reporter { done, in_trouble: false }
    }

    /// `false`: the pipeline has ended, and nobody needs to know.
    fn tell(&self, done: Done) -> bool {
        self.done.send(done).is_ok()
    }

    /// What cannot be done, however often it is tried: too big, or beside what is damaged.
    fn gave_up(&mut self, of: Token, error: CompleteError) {
        // That is an answer.
        self.tried(None);
        self.tell(match error {
            CompleteError::Engine(error) if error.kind != ErrorKind::TooBig => {
                Done::Fatal(PipelineError::Store(error.to_string()))
            }
            stands => Done::Stands(of, stands.to_string()),
        });
    }

    /// What came of a try; `true` when what failed can be sent again.
    fn tried(&mut self, failed: Option<&EngineError>) -> bool {
        match failed {
            Some(error) if !error.may_be_retried() => {
                self.tell(Done::Fatal(PipelineError::Store(error.to_string())));
                false
            }
            Some(error) => {
                std::mem::replace(&mut self.in_trouble, true) || self.tell(Done::StoreReachable(Err(error.to_string())))
            }
            None => !std::mem::take(&mut self.in_trouble) || self.tell(Done::StoreReachable(Ok(()))),
        }
    }
}

impl Drop for Reporter {
    /// Who is given up waits for no answer any more.
    fn drop(&mut self) {
        self.tried(None);
    }
}

/// Rows that are sent together.
struct Batch {
    tokens: Vec<Token>,
    rows: Vec<Row>,
    /// It counts among those that may be on their way at once.
    takes_a_place: bool,
}

async fn apply_until_done(
    store: Store,
    done: mpsc::UnboundedSender<Done>,
    Batch { mut tokens, mut rows, takes_a_place }: Batch,
) {
    let mut pauses = store.pauses(rows.first().map(|row| row.key));
    let mut reporter = Reporter::new(done.clone());
    loop {
        let results = store.engine.apply(&rows).await;
        let mut outcomes = Vec::with_capacity(results.len());
        let mut again = (Vec::new(), Vec::new());
        let mut error = None;
        for ((token, row), result) in tokens.into_iter().zip(rows).zip(results) {
            match result {
                Ok(outcome) => outcomes.push((token, outcome)),
                // The others do not wait for the blob store.
                Err(why) if why.kind == ErrorKind::TooBig => {
                    reporter.tell(Done::TooBig(token, row, why));
                }
                Err(why) => {
                    error = Some(why);
                    again.0.push(token);
                    again.1.push(row);
                }
            }
        }
        let ended = again.0.is_empty();
        let told = Done::Rows { outcomes, last: ended && takes_a_place };
        if !reporter.tried(error.as_ref()) || !reporter.tell(told) || ended {
            return;
        }
        (tokens, rows) = again;
        pauses.pause().await;
    }
}

/// What the engine found too big, without its body, and in nobody's place.
async fn apply_lighter(store: Store, done: mpsc::UnboundedSender<Done>, token: Token, row: Row, too_big: EngineError) {
    let mut reporter = Reporter::new(done.clone());
    let tell = |failed: Option<&EngineError>| {
        reporter.tried(failed);
    };
    match store.lighter(&row, too_big, tell).await {
        Ok(row) => {
            let batch = Batch { tokens: vec![token], rows: vec![row], takes_a_place: false };
            apply_until_done(store, done, batch).await;
        }
        Err(error) => reporter.gave_up(token, error.into()),
    }
}

async fn read_until_done(store: Store, done: mpsc::UnboundedSender<Done>, mut reads: Vec<(Reading, Txid)>) {
    let mut pauses = store.pauses(reads.first().map(|(_, txid)| Key::master(*txid)));
    let mut reporter = Reporter::new(done);
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
        if !reporter.tried(error.as_ref()) || !reporter.tell(Done::Reads(records)) || again.is_empty() {
            return;
        }
        reads = again;
        pauses.pause().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::Operation, store::testing};

    #[tokio::test]
    async fn a_good_part_of_a_batch_leaves_while_little_is_on_its_way() {
        let settings = DispatchSettings { batch_size: 16, batch_age: Duration::from_secs(3_600), in_flight_batches: 8 };
        let (done, _outcomes) = mpsc::unbounded_channel();
        let mut dispatcher = Dispatcher::new(testing::store(1), settings, done);
        let mut gathered = |rows| {
            for _ in 0..rows {
                let row = Row { key: Key::master(Txid::default()), operation: Operation::ClearCreating };
                dispatcher.push(Token::Create(FlightId { index: 0, generation: 0 }), row);
            }
            dispatcher.flush();
            (dispatcher.in_flight, dispatcher.rows.len())
        };
        assert_eq!(gathered(1), (1, 0), "nothing was on its way");
        assert_eq!(gathered(3), (1, 3));
        assert_eq!([gathered(1), gathered(4), gathered(4)], [(2, 0), (3, 0), (4, 0)]);
        assert_eq!(gathered(15), (4, 15), "enough is on its way");
        assert_eq!(gathered(1), (5, 0), "full");
    }
}
