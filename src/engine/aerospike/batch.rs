//! Calls of `apply`: rows are grouped by record, and each group is taken through its steps. All groups of a call
//! share one request a step.
//!
//! A group starts with the step that will probably do: a native operation ([`super::native`]), or a blind create of a
//! record that is taken to be absent. A group that the server refuses is read and given to the pure function. A changed
//! record is written by generation ([`super::rewrite`]); a group that loses that race is read again.
//!
//! The native operations therefore need to be right only where their filters let them through: the answer to a refused
//! row is always the answer of the pure function.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use aerospike::{BatchOperation, Error, Key as ServerKey, ResultCode};
use foldhash::fast::FixedState;
use smallvec::{SmallVec, smallvec};

use super::{
    ConnectedCluster,
    checks::SPENT_SLOT_BYTES,
    errors::{RequestKind, damaged, engine_error},
    keys::StoreLocation,
    native::{self, NativeCompiler, NativeRequest},
    rewrite::{self, RecordVersion, Rewrite, rewrite},
};
use crate::{
    engine::{EngineError, ErrorKind, Row, RowResult},
    record::{Body, Key, Operation, Page},
    rng::SplitMix64,
};

/// Attempts for one group while other writers change its record, or while the server is too busy.
const ATTEMPTS: u32 = 40;
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// Rows of one request, at most: as many as a block has set mined at once, by default. The server takes 5,000 rows.
const REQUEST_ROWS: usize = 1_024;
/// Estimated bytes of one request, at most. The server takes 128 MiB by default.
const REQUEST_BYTES: usize = 8 << 20;
/// Estimated bytes of a row in a request, besides the slots and the body of a record.
const ROW_BYTES: usize = 1_024;

/// Rows on one record that are done together: all rows of a call on that record, or as many as fit one request.
struct RowGroup<'a> {
    key: Key,
    location: &'a StoreLocation,
    /// Indexes of the rows in the call; mostly one.
    rows: SmallVec<[usize; 1]>,
    operations: SmallVec<[&'a Operation; 1]>,
    step: GroupStep,
    attempts: u32,
    /// Index of the group that has to be done before this one is sent.
    waits_for: Option<usize>,
}

/// The next step of a group.
enum GroupStep {
    Native(NativeRequest),
    Read,
    Write(Rewrite),
    /// The record becomes too big with all rows applied. Half of the rows may fit.
    Halve,
    /// Done, with an answer for each row.
    Done(Vec<RowResult>),
}

impl ConnectedCluster {
    pub async fn apply(&self, rows: &[Row]) -> Vec<RowResult> {
        let mut groups = self.group_rows(rows);
        let mut jitter = None;
        loop {
            let has_halves = groups.iter().any(|group| group.waits_for.is_some());
            let is_done: Vec<bool> = groups.iter().filter(|_| has_halves).map(RowGroup::is_done).collect();
            let is_due = |group: &RowGroup<'_>| group.waits_for.is_none_or(|earlier| is_done[earlier]);
            let unfinished = groups.iter_mut().filter(|group| !group.is_done() && is_due(group));
            let unfinished: Vec<&mut RowGroup<'_>> = unfinished.collect();
            let Some(attempts) = unfinished.iter().map(|group| group.attempts).max() else { break };
            if attempts > 0 {
                let jitter = jitter.get_or_insert_with(|| {
                    SplitMix64::new(self.calls.fetch_add(1, Ordering::Relaxed) ^ self.jitter_seed)
                });
                tokio::time::sleep(pick_pause(jitter, attempts)).await;
            }
            for request in split_into_requests(unfinished) {
                self.send_step(request).await;
            }
            halve_groups(&mut groups);
        }
        let mut answers: Vec<Option<RowResult>> = vec![None; rows.len()];
        for group in groups {
            if let GroupStep::Done(done) = group.step {
                group.rows.into_iter().zip(done).for_each(|(row, answer)| answers[row] = Some(answer));
            }
        }
        answers.into_iter().map(|answer| answer.expect("every row is in one group, and every group is done")).collect()
    }

    fn group_rows<'a>(&'a self, rows: &'a [Row]) -> Vec<RowGroup<'a>> {
        let mut groups: Vec<RowGroup<'a>> = Vec::with_capacity(rows.len());
        let mut indexes: HashMap<Key, usize, FixedState> =
            HashMap::with_capacity_and_hasher(rows.len(), FixedState::default());
        for (number, row) in rows.iter().enumerate() {
            let index = indexes.entry(row.key).or_insert(groups.len());
            if let Some(group) = groups.get_mut(*index) {
                if !native::can_join(&group.operations, &row.operation) {
                    // The rows of one record have no order, so that neither group needs to wait for the other.
                    *index = groups.len();
                } else {
                    group.rows.push(number);
                    group.operations.push(&row.operation);
                    continue;
                }
            }
            groups.push(RowGroup {
                key: row.key,
                location: &self.location,
                rows: smallvec![number],
                operations: smallvec![&row.operation],
                step: GroupStep::Read,
                attempts: 0,
                waits_for: None,
            });
        }
        let mut compiler = self.natives.compiler();
        for group in &mut groups {
            group.step = self.choose_first_step(group, &mut compiler);
        }
        groups
    }

    fn choose_first_step(&self, group: &RowGroup<'_>, compiler: &mut NativeCompiler<'_>) -> GroupStep {
        if group.operations.first().is_some_and(|operation| is_create(operation)) {
            return group.apply_to(self, &RecordVersion::blind());
        }
        let native = compiler.compile(&group.key, group.server_key(), &group.operations);
        native.map_or(GroupStep::Read, GroupStep::Native)
    }

    fn count_step(&self, step: &GroupStep, code: Option<ResultCode>, failed: bool, attempts: u32) {
        let refused = code.is_some_and(is_refusal);
        let counter = match step {
            GroupStep::Native(_) if refused => &self.counters.refused,
            GroupStep::Native(_) if !failed => &self.counters.native,
            GroupStep::Write(written) if refused && written.is_blind => &self.counters.refused,
            GroupStep::Write(_) if refused => &self.counters.lost_races,
            GroupStep::Write(written) if !failed && attempts == 0 && written.is_blind => &self.counters.blind_writes,
            GroupStep::Read => &self.counters.reads,
            _ => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends one request for the current steps of some groups.
    async fn send_step(&self, mut groups: Vec<&mut RowGroup<'_>>) {
        let mut operations: Vec<BatchOperation> = groups.iter_mut().map(|group| group.take_request()).collect();
        let failed = Box::pin(self.nodes.client().batch(&self.policies.batch, &mut operations)).await.err();
        for (group, operation) in groups.into_iter().zip(&mut operations) {
            group.advance(self, operation, failed.as_ref());
        }
    }
}

impl RowGroup<'_> {
    fn is_done(&self) -> bool {
        matches!(self.step, GroupStep::Done(_))
    }

    /// Makes the server's key anew for each request: a kept key would be copied, and few requests are repeated.
    fn server_key(&self) -> ServerKey {
        self.location.server_key(&self.key)
    }

    /// Splits off the second half of the rows as a new group, where the group is to be halved.
    fn split_off_half(&mut self) -> Option<Self> {
        if !matches!(self.step, GroupStep::Halve) {
            return None;
        }
        let middle = self.rows.len() / 2;
        let (rows, operations) = (self.rows.drain(middle..).collect(), self.operations.drain(middle..).collect());
        self.step = GroupStep::Read;
        let (key, location) = (self.key, self.location);
        Some(RowGroup { key, location, rows, operations, step: GroupStep::Read, attempts: 0, waits_for: None })
    }

    fn apply_to(&self, cluster: &ConnectedCluster, version: &RecordVersion) -> GroupStep {
        let mut rewritten =
            rewrite((cluster.layout, &cluster.rules), &self.key, self.server_key(), version, &self.operations);
        // The node that answered may be the only one with this change (`docs/protocols/cluster-fence.md`).
        if cluster.nodes.are_fenced() && version.record.is_some() && rewritten.write.is_none() {
            rewritten.copy_again(self.server_key(), &self.operations);
        }
        match rewritten.write {
            Some(_) => GroupStep::Write(rewritten),
            // A row refused on an absent record can be right on a record that exists.
            None if version.is_blind => GroupStep::Read,
            None => GroupStep::Done(rewritten.outcomes.into_iter().map(Ok).collect()),
        }
    }

    /// Takes the operation of the current step. A record can be large, so the operation is moved into the request and
    /// comes back with the answer.
    fn take_request(&mut self) -> BatchOperation {
        let request = match &mut self.step {
            GroupStep::Native(native) => native.operation.take(),
            GroupStep::Write(rewritten) => rewritten.write.take(),
            GroupStep::Read | GroupStep::Halve | GroupStep::Done(_) => None,
        };
        request.map_or_else(|| rewrite::read(self.server_key()), |request| *request)
    }

    fn advance(&mut self, cluster: &ConnectedCluster, row: &mut BatchOperation, failed: Option<&Error>) {
        let step = std::mem::replace(&mut self.step, GroupStep::Read);
        let record = row.take_record();
        let error = row.batch_record().error().or(if record.is_none() { failed } else { None }).cloned();
        let code = error.as_ref().and_then(Error::server_result_code);
        cluster.count_step(&step, code, error.is_some(), self.attempts);
        self.step = match (step, error, code) {
            (GroupStep::Native(native), None, _) => match native.outcomes(record.as_ref()) {
                Some(outcomes) => GroupStep::Done(outcomes.into_iter().map(Ok).collect()),
                None => {
                    self.fail(damaged(self.operation_name(), self.key, "the server's answer has an unexpected form"))
                }
            },
            (GroupStep::Write(rewritten), None, _) => GroupStep::Done(rewritten.outcomes.into_iter().map(Ok).collect()),
            (GroupStep::Read, None, _) => self.apply_read(cluster, record),
            (GroupStep::Read, Some(_), Some(ResultCode::KeyNotFoundError)) => {
                self.apply_to(cluster, &RecordVersion::default())
            }
            (GroupStep::Native(native), Some(_), Some(code)) if is_refusal(code) => {
                let fallback = cluster.natives.compile_fallback(&native, self.server_key(), &self.operations);
                fallback.map_or(GroupStep::Read, GroupStep::Native)
            }
            (GroupStep::Write(_), Some(error), Some(code)) if is_refusal(code) => {
                self.retry(GroupStep::Read, &error, RequestKind::Write)
            }
            (GroupStep::Read, Some(error), _) => self.retry_or_fail(GroupStep::Read, &error, RequestKind::Read),
            (GroupStep::Native(mut native), Some(error), _) => {
                native.operation = Some(self.reclaim(row));
                self.retry_or_fail(GroupStep::Native(native), &error, RequestKind::Write)
            }
            (GroupStep::Write(mut rewritten), Some(error), _) => {
                rewritten.write = Some(self.reclaim(row));
                self.retry_or_fail(GroupStep::Write(rewritten), &error, RequestKind::Write)
            }
            (done @ (GroupStep::Done(_) | GroupStep::Halve), ..) => done,
        };
    }

    fn reclaim(&self, row: &mut BatchOperation) -> Box<BatchOperation> {
        Box::new(std::mem::replace(row, rewrite::read(self.server_key())))
    }

    fn apply_read(&self, cluster: &ConnectedCluster, record: Option<aerospike::Record>) -> GroupStep {
        let Some(record) = record else {
            let message = "the server returned neither a record nor an error";
            return self.fail(damaged(self.operation_name(), self.key, message));
        };
        match RecordVersion::from_server(cluster.layout, &self.key, record) {
            Ok(version) => self.apply_to(cluster, &version),
            Err(error) => self.fail(damaged(self.operation_name(), self.key, error)),
        }
    }

    /// Repeats the step where the server is too busy; returns every other error to the caller.
    fn retry_or_fail(&mut self, step: GroupStep, error: &Error, request: RequestKind) -> GroupStep {
        match error.server_result_code() {
            Some(ResultCode::KeyBusy | ResultCode::DeviceOverload | ResultCode::BatchQueuesFull) => {
                self.retry(step, error, request)
            }
            Some(ResultCode::RecordTooBig) if self.rows.len() > 1 => GroupStep::Halve,
            _ => self.fail(engine_error(self.operation_name(), self.key, error, request)),
        }
    }

    fn retry(&mut self, step: GroupStep, error: &Error, request: RequestKind) -> GroupStep {
        self.attempts += 1;
        if self.attempts < ATTEMPTS {
            return step;
        }
        let mut error = engine_error(self.operation_name(), self.key, error, request);
        error.kind = ErrorKind::Retryable;
        error.message = format!(
            "gave up after {ATTEMPTS} attempts (other writers changed the record, or the server was busy): {}",
            error.message
        );
        self.fail(error)
    }

    fn fail(&self, error: EngineError) -> GroupStep {
        GroupStep::Done(vec![Err(error); self.rows.len()])
    }

    fn operation_name(&self) -> &'static str {
        self.operations.first().map_or("apply", |operation| operation_name(operation))
    }

    /// Estimates the bytes that the group adds to a request.
    fn request_bytes(&self) -> usize {
        let pages = self.operations.iter().filter_map(|operation| match operation {
            Operation::Create(page) | Operation::CreateContested(page) => Some(estimate_page_bytes(page)),
            Operation::Restore(_) => operation.created().map(|page| estimate_page_bytes(page)),
            _ => None,
        });
        ROW_BYTES + pages.sum::<usize>()
    }
}

/// Splits each group that is to be halved. The second half is sent once the first half is done: two halves that are
/// sent together change the record for each other and read the record again and again. A half that waits for the first
/// half waits for the second one from then on.
fn halve_groups(groups: &mut Vec<RowGroup<'_>>) {
    for first in 0..groups.len() {
        let Some(half) = groups[first].split_off_half() else { continue };
        let second = groups.len();
        groups
            .iter_mut()
            .filter(|group| group.waits_for == Some(first))
            .for_each(|group| group.waits_for = Some(second));
        groups.push(RowGroup { waits_for: Some(first), ..half });
    }
}

/// Returns whether the record is not as the request expects it.
fn is_refusal(code: ResultCode) -> bool {
    matches!(
        code,
        ResultCode::FilteredOut
            | ResultCode::KeyNotFoundError
            | ResultCode::KeyExistsError
            | ResultCode::GenerationError
    )
}

/// Returns whether the operation usually finds no record.
fn is_create(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Create(_)
            | Operation::CreateContested(_)
            | Operation::AcquireLockRecord { .. }
            | Operation::CreateMeta(_)
            | Operation::Restore(_)
    )
}

fn estimate_page_bytes(page: &Page) -> usize {
    let body = page.body().map_or(0, Body::size) as usize;
    body + page.utxos.as_ref().map_or(0, |slots| SPENT_SLOT_BYTES as usize * slots.len())
}

/// Splits groups into requests, bounded in rows and in bytes.
fn split_into_requests<'g, 'a>(groups: Vec<&'g mut RowGroup<'a>>) -> Vec<Vec<&'g mut RowGroup<'a>>> {
    let mut requests: Vec<Vec<&mut RowGroup<'_>>> = Vec::new();
    let mut bytes = REQUEST_BYTES;
    for group in groups {
        let added = group.request_bytes();
        match requests.last_mut() {
            Some(request) if request.len() < REQUEST_ROWS && bytes + added <= REQUEST_BYTES => {
                bytes += added;
                request.push(group);
            }
            _ => {
                bytes = added;
                requests.push(vec![group]);
            }
        }
    }
    requests
}

/// Returns a random pause below a bound that doubles with each attempt, so that two writers that collided do not
/// collide again.
fn pick_pause(jitter: &mut SplitMix64, attempts: u32) -> Duration {
    let longest = Duration::from_millis(1 << attempts.min(6)).min(MAX_PAUSE);
    Duration::from_micros(jitter.below(longest.as_micros() as u64))
}

/// Names an operation in errors.
fn operation_name(operation: &Operation) -> &'static str {
    match operation {
        Operation::Create(_) => "create",
        Operation::CreateContested(_) => "create contested",
        Operation::Spend(_) => "spend",
        Operation::ClearCreating => "clear creating",
        Operation::SetPageSpent { .. } => "set page spent",
        Operation::AcquireLockRecord { .. } => "acquire lock record",
        Operation::ReleaseLockRecord { .. } => "release lock record",
        Operation::CreateMeta(_) => "create meta record",
        Operation::ReplaceMeta(_) => "replace meta record",
        Operation::PutSentinel(_) => "put sentinel",
        Operation::Restore(_) => "restore",
        Operation::Sequenced(..) | Operation::SequencedAll(_) => "sequenced operation",
    }
}
