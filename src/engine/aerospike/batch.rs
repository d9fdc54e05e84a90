//! A call of `apply`: rows grouped by record, each group taken through its steps, all groups of a call in one request a
//! step.
//!
//! A group starts with what is likely to do: a native operation ([`super::native`]), or the creation of a record taken to
//! be absent. What the server refuses is read, given to the pure function and, where that changes it, written by
//! compare-and-set ([`super::rewrite`]); whoever loses that race reads again. So the native operations only have to be
//! right where their filters let them through, and the answer of a refused row is always the pure function's.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use aerospike::{BatchOperation, Error, Key as ServerKey, ResultCode};
use foldhash::fast::FixedState;

use super::{
    Inner,
    errors::{Sent, damaged, engine_error},
    keys::Place,
    native::{self, Compiler, Native},
    rewrite::{self, Found, Rewritten, rewrite},
};
use crate::{
    engine::{EngineError, ErrorKind, Row},
    record::{Body, Key, Operation, Outcome, Page},
    seeded::Seeded,
};

/// How often a group is sent while others change its record under it, or the server is too busy with it.
const ATTEMPTS: u32 = 40;
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Rows (as many as a block has set mined at once, by default) and (estimated) bytes of one request: the server takes 5,000 and 128 MiB
/// by default.
const REQUEST_ROWS: usize = 1_024;
const REQUEST_BYTES: usize = 8 << 20;
/// What a row takes in a request besides a record's slots and body.
const ROW_BYTES: usize = 1_024;

pub type Answer = Result<Outcome, EngineError>;

/// Rows on one record, all of them or as many as go together: they are done together.
struct Group<'a> {
    key: Key,
    place: &'a Place,
    /// Their places in the call.
    rows: Vec<usize>,
    operations: Vec<&'a Operation>,
    step: Step,
    attempts: u32,
}

/// What a group does next.
enum Step {
    Native(Native),
    Read,
    Write(Rewritten),
    /// What all rows come to makes the record too big: some of them may do.
    Halve,
    /// With an answer for each row.
    Done(Vec<Answer>),
}

impl Inner {
    pub async fn apply(&self, rows: &[Row]) -> Vec<Answer> {
        let mut groups = self.groups(rows);
        let mut jitter = None;
        loop {
            let open: Vec<&mut Group<'_>> = groups.iter_mut().filter(|group| !group.is_done()).collect();
            let Some(attempts) = open.iter().map(|group| group.attempts).max() else { break };
            if attempts > 0 {
                let jitter =
                    jitter.get_or_insert_with(|| Seeded::new(self.calls.fetch_add(1, Ordering::Relaxed) ^ self.seed));
                tokio::time::sleep(pause(jitter, attempts)).await;
            }
            for request in requests(open) {
                self.step(request).await;
            }
            let halves: Vec<_> = groups.iter_mut().filter_map(Group::halved).collect();
            groups.extend(halves);
        }
        let mut answers: Vec<Option<Answer>> = vec![None; rows.len()];
        for group in groups {
            if let Step::Done(done) = group.step {
                group.rows.into_iter().zip(done).for_each(|(row, answer)| answers[row] = Some(answer));
            }
        }
        answers.into_iter().map(|answer| answer.expect("every row is in one group, and every group got done")).collect()
    }

    fn groups<'a>(&'a self, rows: &'a [Row]) -> Vec<Group<'a>> {
        let mut groups: Vec<Group<'a>> = Vec::with_capacity(rows.len());
        let mut places: HashMap<Key, usize, FixedState> =
            HashMap::with_capacity_and_hasher(rows.len(), FixedState::default());
        for (number, row) in rows.iter().enumerate() {
            let place = places.entry(row.key).or_insert(groups.len());
            if let Some(group) = groups.get_mut(*place) {
                if !native::go_together(&group.operations, &row.operation) {
                    // The rows of one record have no order, so one group need not wait for the other.
                    *place = groups.len();
                } else {
                    group.rows.push(number);
                    group.operations.push(&row.operation);
                    continue;
                }
            }
            groups.push(Group {
                key: row.key,
                place: &self.place,
                rows: vec![number],
                operations: vec![&row.operation],
                step: Step::Read,
                attempts: 0,
            });
        }
        let mut compiler = self.natives.compiler();
        for group in &mut groups {
            group.step = self.first_step(group, &mut compiler);
        }
        groups
    }

    fn first_step(&self, group: &Group<'_>, compiler: &mut Compiler<'_>) -> Step {
        if group.operations.first().is_some_and(|operation| makes_a_record(operation)) {
            return group.rewritten(&self.rules, &Found::unread());
        }
        let native = compiler.compile(&group.key, group.server_key(), &group.operations);
        native.map_or(Step::Read, Step::Native)
    }

    fn count(&self, step: &Step, code: Option<ResultCode>, failed: bool, attempts: u32) {
        let refused = code.is_some_and(is_refusal);
        let counter = match step {
            Step::Native(_) if refused => &self.work.refused,
            Step::Native(_) if !failed => &self.work.native,
            Step::Write(written) if refused && written.unread => &self.work.refused,
            Step::Write(_) if refused => &self.work.lost,
            Step::Write(written) if !failed && attempts == 0 && written.unread => &self.work.unread,
            Step::Read => &self.work.read,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// One request for the current steps of some groups.
    async fn step(&self, mut groups: Vec<&mut Group<'_>>) {
        let mut operations: Vec<BatchOperation> = groups.iter_mut().map(|group| group.send()).collect();
        let failed = Box::pin(self.client.batch(&self.policies.batch, &mut operations)).await.err();
        for (group, operation) in groups.into_iter().zip(&mut operations) {
            group.advance(self, operation, failed.as_ref());
        }
    }
}

impl Group<'_> {
    fn is_done(&self) -> bool {
        matches!(self.step, Step::Done(_))
    }

    /// Made where it is sent: a copy would cost as much.
    fn server_key(&self) -> ServerKey {
        self.place.server_key(&self.key).unwrap_or_else(|error| unreachable!("a blob is a key: {error}"))
    }

    /// The second half of its rows as a group of its own, where it is to be halved.
    fn halved(&mut self) -> Option<Self> {
        if !matches!(self.step, Step::Halve) {
            return None;
        }
        let middle = self.rows.len() / 2;
        let (rows, operations) = (self.rows.split_off(middle), self.operations.split_off(middle));
        self.step = Step::Read;
        let (key, place) = (self.key, self.place);
        Some(Group { key, place, rows, operations, step: Step::Read, attempts: 0 })
    }

    fn rewritten(&self, rules: &crate::record::Rules, found: &Found) -> Step {
        let rewritten = rewrite(rules, &self.key, self.server_key(), found, &self.operations);
        match rewritten.write {
            Some(_) => Step::Write(rewritten),
            // What is refused of an absent record may be right of the one that is there.
            None if found.unread => Step::Read,
            None => Step::Done(rewritten.outcomes.into_iter().map(Ok).collect()),
        }
    }

    /// What to send for its step. A record may be large, so it is lent and comes back with the answer.
    fn send(&mut self) -> BatchOperation {
        let lent = match &mut self.step {
            Step::Native(native) => native.operation.take(),
            Step::Write(rewritten) => rewritten.write.take(),
            Step::Read | Step::Halve | Step::Done(_) => None,
        };
        lent.map_or_else(|| rewrite::read(self.server_key()), |lent| *lent)
    }

    fn advance(&mut self, engine: &Inner, row: &mut BatchOperation, failed: Option<&Error>) {
        let rules = &engine.rules;
        let step = std::mem::replace(&mut self.step, Step::Read);
        let record = row.take_record();
        let error = row.batch_record().error().or(if record.is_none() { failed } else { None }).cloned();
        let code = error.as_ref().and_then(Error::server_result_code);
        engine.count(&step, code, error.is_some(), self.attempts);
        self.step = match (step, error, code) {
            (Step::Native(native), None, _) => match native.outcomes(record.as_ref()) {
                Some(outcomes) => Step::Done(outcomes.into_iter().map(Ok).collect()),
                None => self.failed(damaged(self.operation(), self.key, "the server's answer has another form")),
            },
            (Step::Write(rewritten), None, _) => Step::Done(rewritten.outcomes.into_iter().map(Ok).collect()),
            (Step::Read, None, _) => self.found(rules, record),
            (Step::Read, Some(_), Some(ResultCode::KeyNotFoundError)) => self.rewritten(rules, &Found::default()),
            (Step::Native(native), Some(_), Some(code)) if is_refusal(code) => {
                let second = engine.natives.second_try(&native, self.server_key(), &self.operations);
                second.map_or(Step::Read, Step::Native)
            }
            (Step::Write(_), Some(error), Some(code)) if is_refusal(code) => {
                self.again(Step::Read, &error, Sent::Write)
            }
            (Step::Read, Some(error), _) => self.later(Step::Read, &error, Sent::Read),
            (Step::Native(mut native), Some(error), _) => {
                native.operation = Some(self.taken_back(row));
                self.later(Step::Native(native), &error, Sent::Write)
            }
            (Step::Write(mut rewritten), Some(error), _) => {
                rewritten.write = Some(self.taken_back(row));
                self.later(Step::Write(rewritten), &error, Sent::Write)
            }
            (done @ (Step::Done(_) | Step::Halve), ..) => done,
        };
    }

    fn taken_back(&self, row: &mut BatchOperation) -> Box<BatchOperation> {
        Box::new(std::mem::replace(row, rewrite::read(self.server_key())))
    }

    fn found(&self, rules: &crate::record::Rules, record: Option<aerospike::Record>) -> Step {
        let Some(record) = record else {
            return self.failed(damaged(self.operation(), self.key, "a read answered nothing"));
        };
        match Found::from_server(&self.key, record) {
            Ok(found) => self.rewritten(rules, &found),
            Err(error) => self.failed(damaged(self.operation(), self.key, error)),
        }
    }

    /// What the server is too busy for is sent again, everything else the caller hears of.
    fn later(&mut self, step: Step, error: &Error, sent: Sent) -> Step {
        match error.server_result_code() {
            Some(ResultCode::KeyBusy | ResultCode::DeviceOverload | ResultCode::BatchQueuesFull) => {
                self.again(step, error, sent)
            }
            Some(ResultCode::RecordTooBig) if self.rows.len() > 1 => Step::Halve,
            _ => self.failed(engine_error(self.operation(), self.key, error, sent)),
        }
    }

    fn again(&mut self, step: Step, error: &Error, sent: Sent) -> Step {
        self.attempts += 1;
        if self.attempts < ATTEMPTS {
            return step;
        }
        let mut error = engine_error(self.operation(), self.key, error, sent);
        error.kind = ErrorKind::Retryable;
        error.message = format!("others were quicker {ATTEMPTS} times: {}", error.message);
        self.failed(error)
    }

    fn failed(&self, error: EngineError) -> Step {
        Step::Done(vec![Err(error); self.rows.len()])
    }

    fn operation(&self) -> &'static str {
        self.operations.first().map_or("apply", |operation| name_of(operation))
    }

    /// About how many bytes it adds to a request.
    fn weight(&self) -> usize {
        let pages = self.operations.iter().filter_map(|operation| match operation {
            Operation::Create(page) | Operation::CreateContested(page) => Some(page_bytes(page)),
            _ => None,
        });
        ROW_BYTES + pages.sum::<usize>()
    }
}

/// The record is not as the write expects it.
fn is_refusal(code: ResultCode) -> bool {
    matches!(
        code,
        ResultCode::FilteredOut
            | ResultCode::KeyNotFoundError
            | ResultCode::KeyExistsError
            | ResultCode::GenerationError
    )
}

/// Operations that usually find nothing.
fn makes_a_record(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Create(_)
            | Operation::CreateContested(_)
            | Operation::AcquireLockRecord { .. }
            | Operation::CreateMeta(_)
    )
}

fn page_bytes(page: &Page) -> usize {
    let body = page.body().map_or(0, Body::size) as usize;
    body + page.utxos.as_ref().map_or(0, |slots| 71 * slots.len())
}

/// Groups that go together: bounded in rows and in bytes.
fn requests<'g, 'a>(groups: Vec<&'g mut Group<'a>>) -> Vec<Vec<&'g mut Group<'a>>> {
    let mut requests: Vec<Vec<&mut Group<'_>>> = Vec::new();
    let mut bytes = REQUEST_BYTES;
    for group in groups {
        let weight = group.weight();
        match requests.last_mut() {
            Some(request) if request.len() < REQUEST_ROWS && bytes + weight <= REQUEST_BYTES => {
                bytes += weight;
                request.push(group);
            }
            _ => {
                bytes = weight;
                requests.push(vec![group]);
            }
        }
    }
    requests
}

/// Doubling, and anywhere below: who collided must not meet again.
fn pause(jitter: &mut Seeded, attempts: u32) -> Duration {
    let longest = Duration::from_millis(1 << attempts.min(6)).min(LONGEST_PAUSE);
    Duration::from_micros(jitter.below(longest.as_micros() as u64))
}

/// What an operation is called in errors.
fn name_of(operation: &Operation) -> &'static str {
    match operation {
        Operation::Create(_) => "create",
        Operation::CreateContested(_) => "create contested",
        Operation::Spend(_) => "spend",
        Operation::ClearCreating => "clear creating",
        Operation::SetPageSpent { .. } => "set page spent",
        Operation::SetDeleteAtHeight(_) => "set delete at height",
        Operation::AcquireLockRecord { .. } => "acquire lock record",
        Operation::ReleaseLockRecord { .. } => "release lock record",
        Operation::CreateMeta(_) => "create meta record",
        Operation::ReplaceMeta(_) => "replace meta record",
        Operation::PutSentinel(_) => "put sentinel",
        Operation::Sequenced(..) => "sequenced operation",
    }
}
