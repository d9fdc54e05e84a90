//! `POST /v1/transactions`: publishes transactions to the log, and waits for what becomes of them.

use std::{collections::HashMap, time::Duration};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use utoipa::{IntoParams, ToSchema};

use super::{
    context::{ApiContext, compute},
    log::LogAccess,
    outputs::check_count,
    params::{BoundedList, JSON, OCTET_STREAM, Params, media_type, parse_json, require_media_type},
};
use crate::{
    api::{
        byte_budget::RequestBytes,
        limits::{HttpLimits, LimitedBody, RequestPlace},
        problem::{ExtendedProblem, Problem, ProblemKind},
    },
    blob::BlobErrorKind,
    broker::BrokerErrorKind,
    client::{
        PublishError, PublishedEvent,
        outcome_feed::{OutcomeContent, OutcomeItem, OutcomeMessage, OutcomeReader},
        submitted::SubmitOutcome,
    },
    engine::EngineError,
    event::{Event, OutcomeChange, OutcomeKind, OutcomeSource, Validated},
    record::{Key, Page, Reason, SelectedPage, Selection, TxState, Verdict, build::HEIGHT_LIMIT},
    store::{StateStore, chain::ChainInfo},
    tx::{Transaction, Txid},
};

/// Longest accepted wait for the outcomes.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Pause between two looks at the store, where no outcome comes: outcomes can be switched off.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Conditions of submitted transactions.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SubmitParams {
    /// Height of the block that the transactions can first be in: at most `http.max_height_ahead` above the tip of the
    /// store. By default the next block after the tip.
    height: Option<u32>,
    /// `true`: the outputs are not spendable until the transaction is unlocked or mined. Default: `false`.
    locked: Option<bool>,
    /// `live`: the answer waits until each transaction is live, conflicting or refused. By default the answer comes
    /// when the log has the events.
    #[param(value_type = Option<String>)]
    wait: Option<WaitFor>,
    /// Longest wait for the outcomes, milliseconds: at most 60,000, by default 10,000.
    timeout_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WaitFor {
    Live,
}

/// Transactions to publish to the log.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// Transactions in extended format, hexadecimal; a parent before its children.
    #[schema(value_type = Vec<String>)]
    transactions: BoundedList<String>,
}

/// Answer to submitted transactions.
#[derive(Debug, Serialize, ToSchema)]
pub struct SubmitAnswer {
    /// Places of the events in the log, in the order of the request.
    transactions: Vec<SubmittedTransaction>,
}

/// A transaction that was published.
#[derive(Debug, Serialize, ToSchema)]
pub struct SubmittedTransaction {
    /// Id of the transaction.
    pub(super) txid: String,
    /// Topic that has the event.
    pub(super) topic: String,
    /// Number of the partition.
    pub(super) partition: i32,
    /// Offset of the event in the partition.
    pub(super) offset: u64,
    /// Outcome of the transaction; absent without `wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<SubmitOutcome>,
}

/// Further members of a problem where the log has not acknowledged every transaction: the whole problem document has
/// these members.
#[derive(Debug, Serialize, ToSchema)]
pub struct PublishedTransactions {
    /// Places of the events in the log, or the reasons why the log has not acknowledged them, in the order of the
    /// request.
    transactions: Vec<PublishedTransaction>,
}

/// A transaction of a request of which a part was published.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PublishedTransaction {
    /// The log has acknowledged the event.
    Published(SubmittedTransaction),
    /// The log has not acknowledged the event, which may be in the log.
    Failed {
        /// Id of the transaction.
        txid: String,
        /// Reason as a problem document.
        error: Problem,
    },
}

/// Publish transactions, a parent before its children.
///
/// The body is one or several transactions in extended format: concatenated bytes (`application/octet-stream`), or
/// hexadecimal text in JSON. Each becomes an event of the log; a transaction that is published again changes nothing.
#[utoipa::path(
    post,
    path = "/v1/transactions",
    tag = "transactions",
    params(SubmitParams),
    request_body(content((SubmitRequest = "application/json"), (Vec<u8> = "application/octet-stream"))),
    responses(
        (status = 200, description = "Each transaction has its outcome", body = SubmitAnswer),
        (status = 202, description = "The log has the events; not every outcome is known", body = SubmitAnswer),
        (
            status = 400,
            description = "A transaction does not parse, or lacks its previous outputs; or a transaction has no place \
                           in the log, and the problem has these further members",
            body = PublishedTransactions,
            content_type = "application/problem+json"
        ),
        (
            status = 413,
            description = "Too many transactions, or a body that is too large; or the log takes no message of the size \
                           of a transaction, and the problem has these further members",
            body = PublishedTransactions,
            content_type = "application/problem+json"
        ),
        (status = 415, description = "Another media type", body = Problem),
        (
            status = 500,
            description = "The log has refused a transaction for good; the problem has these further members",
            body = PublishedTransactions,
            content_type = "application/problem+json"
        ),
        (
            status = 503,
            description = "The log has not acknowledged every transaction; the problem has these further members",
            body = PublishedTransactions,
            content_type = "application/problem+json"
        ),
    )
)]
pub async fn post_transactions(
    State(context): State<ApiContext>,
    Params(params): Params<SubmitParams>,
    place: RequestPlace,
    headers: HeaderMap,
    memory: RequestBytes,
    LimitedBody(body): LimitedBody,
) -> Result<Response, Problem> {
    let wait = read_wait(params.wait, params.timeout_ms)?;
    let size = body.len() as u64;
    let is_binary = media_type(&headers).as_deref() == Some(OCTET_STREAM);
    if !is_binary {
        require_media_type(&headers, JSON)?;
    }
    let counting = context.clone();
    let read = move || {
        let transactions = if is_binary {
            split_transactions(&body)?
        } else {
            let SubmitRequest { transactions: BoundedList(transactions) } = parse_json(&body)?;
            transactions.iter().zip(0..).map(decode_hex).collect::<Result<_, _>>()?
        };
        check_count(&counting, transactions.len())?;
        let txids = check_transactions(&transactions)?;
        Ok::<_, Problem>((transactions, txids))
    };
    let (transactions, txids) = compute(&memory, size, read).await?;
    let store = context.store()?;
    let height = match params.height {
        Some(height) => check_height(height, &context.chain(&store).await?, context.limits.max_height_ahead)?,
        None => context.next_height(&store).await?,
    };
    // Opened before the events are published, so that no outcome is missed.
    let outcomes = match params.wait {
        Some(WaitFor::Live) => Some((context.log()?.follow(&context.limits).await?, context.limits.open_stream()?)),
        None => None,
    };
    let (log, locked) = (context.log()?, params.locked.unwrap_or(false));
    let mut submitted = match publish((log, &context.limits), &transactions, &txids, height, locked).await? {
        Ok(submitted) => submitted,
        Err(partly) => return Ok(partly.into_response()),
    };
    if let Some((outcomes, _permit)) = outcomes {
        place.leave();
        let found = wait_for_outcomes(&store, &submitted, &txids, outcomes, Instant::now() + wait).await;
        submitted.iter_mut().zip(found).for_each(|(submitted, found)| submitted.outcome = Some(found));
    }
    let is_known = |submitted: &SubmittedTransaction| {
        submitted.outcome.as_ref().is_some_and(|outcome| *outcome != SubmitOutcome::Pending)
    };
    let status = if submitted.iter().all(is_known) { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(SubmitAnswer { transactions: submitted })).into_response())
}

/// Returns the longest wait of a request for the outcomes of its transactions.
pub(super) fn read_wait(wait: Option<WaitFor>, timeout_ms: Option<u64>) -> Result<Duration, Problem> {
    if timeout_ms.is_some() && wait.is_none() {
        return Err(Problem::bad_request("timeout_ms: only a request with `wait=live` waits"));
    }
    let longest = Duration::from_millis(timeout_ms.unwrap_or(10_000));
    if longest > LONGEST_WAIT {
        return Err(Problem::bad_request(format!("timeout_ms: at most {}", LONGEST_WAIT.as_millis())));
    }
    Ok(longest)
}

/// Refuses a height that no block near the tip has: the height decides which coinbases are mature, and which frozen
/// outputs are free again. A store that lags behind its submitters may permit more than the next block. A store without
/// a block knows no tip.
fn check_height(height: u32, chain: &ChainInfo, most_ahead: u32) -> Result<u32, Problem> {
    if height >= HEIGHT_LIMIT {
        return Err(Problem::bad_request(format!("height: {height} is not below {HEIGHT_LIMIT}")));
    }
    if chain.hash.is_some() && height.saturating_sub(chain.height) > most_ahead {
        let detail = format!(
            "height: {height} is more than {most_ahead} above the tip of the store, {} (http.max_height_ahead)",
            chain.height
        );
        return Err(Problem::bad_request(detail));
    }
    Ok(height)
}

/// Publishes the events together, in the order of the transactions. A transaction that the log has not acknowledged
/// makes the whole answer a problem, which names what is published.
pub(super) async fn publish(
    (log, limits): (&LogAccess, &HttpLimits),
    transactions: &[Vec<u8>],
    txids: &[Txid],
    height: u32,
    locked: bool,
) -> Result<Result<Vec<SubmittedTransaction>, ExtendedProblem<PublishedTransactions>>, Problem> {
    let publisher = log.publisher(limits).await?;
    let event = |bytes| Event::Validated(Validated { tx: bytes, height, locked });
    let events: Vec<Event<'_>> = transactions.iter().map(|bytes| event(bytes)).collect();
    let published = publisher.publish_all(&events, limits.timeout).await;
    if published.iter().any(|published| published.as_ref().is_err_and(PublishError::is_client_unusable)) {
        log.give_up_publisher(&publisher).await;
    }
    let submitted = published.into_iter().zip(txids).map(|(published, txid)| {
        let PublishedEvent { topic, partition, offset } = published.map_err(|error| refuse_publishing(txid, &error))?;
        Ok(SubmittedTransaction { txid: txid.to_string(), topic, partition, offset, outcome: None })
    });
    let submitted: Vec<Result<SubmittedTransaction, Problem>> = submitted.collect();
    let Some(mut problem) = submitted.iter().find_map(|submitted| submitted.as_ref().err()).cloned() else {
        return Ok(Ok(submitted.into_iter().flatten().collect()));
    };
    let (done, all) = (submitted.iter().flatten().count(), submitted.len());
    problem.detail +=
        &format!(" ({done} of {all} transactions are published; submit all again: a repeat changes nothing)");
    let transactions = submitted.into_iter().zip(txids).map(|(submitted, txid)| match submitted {
        Ok(submitted) => PublishedTransaction::Published(submitted),
        Err(error) => PublishedTransaction::Failed { txid: txid.to_string(), error },
    });
    Ok(Err(ExtendedProblem { problem, members: PublishedTransactions { transactions: transactions.collect() } }))
}

fn refuse_publishing(txid: &Txid, error: &PublishError) -> Problem {
    let kind = match error {
        PublishError::Destination(_) => ProblemKind::BadRequest,
        PublishError::Broker(error) if error.kind == BrokerErrorKind::TooLarge => {
            let detail = format!("transaction {txid} is too large for its topic; set objects.url: {error}");
            return Problem::new(ProblemKind::TooLarge, detail);
        }
        PublishError::Body(error) if error.kind == BlobErrorKind::Invalid => {
            return Problem::new(ProblemKind::TooLarge, format!("transaction {txid}: {error}"));
        }
        error if error.is_client_unusable() => ProblemKind::Unavailable,
        PublishError::Broker(error) if error.kind != BrokerErrorKind::Retryable => ProblemKind::Internal,
        PublishError::Body(error) if !error.may_be_retried() => ProblemKind::Internal,
        PublishError::Broker(_) | PublishError::Body(_) => ProblemKind::Unavailable,
    };
    Problem::new(kind, format!("cannot publish transaction {txid}: {error}"))
}

fn decode_hex((text, number): (&String, usize)) -> Result<Vec<u8>, Problem> {
    let refuse = |error| Problem::bad_request(format!("transaction {number} is no hexadecimal text: {error}"));
    hex::decode(text).map_err(refuse)
}

/// Splits the bytes of concatenated transactions.
fn split_transactions(mut body: &[u8]) -> Result<Vec<Vec<u8>>, Problem> {
    let mut transactions = Vec::new();
    while !body.is_empty() {
        let number = transactions.len();
        let (_, len) = Transaction::parse_prefix(body).map_err(|error| refuse(number, &error))?;
        let (transaction, rest) = body.split_at(len);
        transactions.push(transaction.to_vec());
        body = rest;
    }
    Ok(transactions)
}

fn refuse(number: usize, why: &dyn std::fmt::Display) -> Problem {
    Problem::bad_request(format!("transaction {number} is refused: {why}"))
}

/// Checks what a transaction alone shows, so that no event is published for a transaction that would be refused.
pub(super) fn check_transactions(transactions: &[Vec<u8>]) -> Result<Vec<Txid>, Problem> {
    if transactions.is_empty() {
        return Err(Problem::bad_request("the request has no transaction"));
    }
    let check = |(bytes, number): (&Vec<u8>, usize)| {
        let transaction = Transaction::parse(bytes).map_err(|error| refuse(number, &error))?;
        if transaction.is_coinbase() {
            return Err(refuse(number, &"a coinbase comes with its block"));
        }
        transaction.check().map_err(|error| refuse(number, &error))?;
        Ok(transaction.txid())
    };
    transactions.iter().zip(0..).map(check).collect()
}

/// Waits until each transaction has its outcome, or until the deadline. The store is asked, too: outcomes can be
/// switched off, and an event that changes nothing has none. Once the events are in the log no failure takes their
/// places back: an unknown outcome is pending.
pub(super) async fn wait_for_outcomes(
    lookup: &impl TransactionLookup,
    submitted: &[SubmittedTransaction],
    txids: &[Txid],
    mut outcomes: OutcomeReader,
    deadline: Instant,
) -> Vec<SubmitOutcome> {
    let mut awaited = AwaitedTransactions::new(submitted, txids);
    let mut is_following = true;
    let mut next_look = Instant::now();
    loop {
        if Instant::now() >= next_look {
            let is_last = Instant::now() + LOOK_EVERY >= deadline;
            match tokio::time::timeout_at(deadline, awaited.look(lookup, is_last)).await {
                Ok(()) => {}
                Err(_) => break,
            }
            next_look = Instant::now() + LOOK_EVERY;
        }
        if awaited.is_done() || Instant::now() >= deadline {
            break;
        }
        let next = async { if is_following { outcomes.next().await } else { std::future::pending().await } };
        match tokio::time::timeout_at(deadline.min(next_look), next).await {
            Ok(Ok(OutcomeItem::Message(message))) => awaited.take(&message),
            // A reader from now on has no gap.
            Ok(Ok(OutcomeItem::Gap(_))) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "http: outcomes of submitted transactions are looked up in the store");
                is_following = false;
            }
        }
    }
    awaited.found
}

/// Store in which submitted transactions are looked up.
pub(super) trait TransactionLookup: Sync {
    /// Looks for transactions; `None`: the outcome is open. `is_last`: no later look follows. `result[i]` belongs to
    /// `txids[i]`.
    fn look(&self, txids: &[Txid], is_last: bool) -> impl Future<Output = Vec<Option<SubmitOutcome>>> + Send;
}

impl TransactionLookup for StateStore {
    async fn look(&self, txids: &[Txid], is_last: bool) -> Vec<Option<SubmitOutcome>> {
        let pages = txids.iter().map(|txid| (Key::master(*txid), Selection::default())).collect();
        let outcome = |master: Result<Option<SelectedPage>, EngineError>| {
            let master = master.unwrap_or_else(|error| {
                tracing::warn!(%error, "http: cannot look for a submitted transaction");
                None
            });
            master.and_then(|master| stored_outcome(&master.page, is_last))
        };
        self.read_selected(pages).await.into_iter().map(outcome).collect()
    }
}

/// Submitted transactions that wait for their outcomes.
struct AwaitedTransactions<'a> {
    txids: &'a [Txid],
    /// Indexes of each transaction, and partition and offset of each event.
    indexes: HashMap<Txid, Vec<(usize, i32, u64)>>,
    found: Vec<SubmitOutcome>,
}

impl<'a> AwaitedTransactions<'a> {
    fn new(submitted: &[SubmittedTransaction], txids: &'a [Txid]) -> Self {
        let mut indexes: HashMap<Txid, Vec<(usize, i32, u64)>> = HashMap::new();
        for (index, (txid, submitted)) in txids.iter().zip(submitted).enumerate() {
            indexes.entry(*txid).or_default().push((index, submitted.partition, submitted.offset));
        }
        AwaitedTransactions { txids, indexes, found: vec![SubmitOutcome::Pending; txids.len()] }
    }

    fn is_done(&self) -> bool {
        !self.found.contains(&SubmitOutcome::Pending)
    }

    fn set(&mut self, txid: &Txid, outcome: &SubmitOutcome) {
        for (index, ..) in self.indexes.get(txid).into_iter().flatten() {
            self.found[*index] = outcome.clone();
        }
    }

    /// Looks for the transactions without an outcome. `is_last`: no later look follows.
    async fn look(&mut self, lookup: &impl TransactionLookup, is_last: bool) {
        let is_pending = |index: &usize| self.found[*index] == SubmitOutcome::Pending;
        let pending: Vec<usize> = (0..self.txids.len()).filter(is_pending).collect();
        let txids: Vec<Txid> = pending.iter().map(|index| self.txids[*index]).collect();
        for (index, outcome) in pending.into_iter().zip(lookup.look(&txids, is_last).await) {
            if let Some(outcome) = outcome {
                self.found[index] = outcome;
            }
        }
    }

    /// Takes what an outcome says of the transactions. A refusal counts only for the submitted event: another event of
    /// the transaction may have been refused.
    fn take(&mut self, message: &OutcomeMessage) {
        match &message.content {
            OutcomeContent::One(outcome) => match &outcome.kind {
                OutcomeKind::Accepted => self.set(&outcome.txid, &SubmitOutcome::Live),
                // The verdict may be one on an earlier event: the last look finds the verdict that stays.
                OutcomeKind::Conflicting { reason } if is_reopened(*reason) => {}
                OutcomeKind::Conflicting { reason } => {
                    let reason = reason.to_string();
                    self.set(&outcome.txid, &SubmitOutcome::Conflicting { reason });
                }
                OutcomeKind::Refused { code, message } => {
                    let OutcomeSource::Validated { partition, offset } = outcome.source else { return };
                    let places = self.indexes.get(&outcome.txid).into_iter().flatten();
                    for (index, ..) in places.filter(|place| (place.1, place.2) == (partition, offset)) {
                        self.found[*index] = SubmitOutcome::Refused { code: code.clone(), message: message.clone() };
                    }
                }
                OutcomeKind::Command { .. } => {}
            },
            OutcomeContent::Many { change: OutcomeChange::Live, .. } => {
                message.content.txids().for_each(|txid| self.set(&txid, &SubmitOutcome::Live));
            }
            OutcomeContent::Many { .. } | OutcomeContent::Unknown => {}
        }
    }
}

/// Returns the outcome that the record of a transaction shows; `None`: the outcome of the submitted event is open. A
/// verdict that the event itself may open again counts in the last look only: the event may not be handled yet.
fn stored_outcome(master: &Page, is_last: bool) -> Option<SubmitOutcome> {
    let verdict = match master.state() {
        TxState::Live => return Some(SubmitOutcome::Live),
        // The transaction was live, and is spent and mined.
        TxState::Pruned(_) if !master.conflicting => return Some(SubmitOutcome::Live),
        TxState::Pruned(_) => master.verdict()?,
        TxState::Conflicting(verdict) | TxState::Stub(verdict) => verdict,
        TxState::Creating => return None,
    };
    let Verdict::Conflicting(reason) = verdict else { return None };
    let is_final = is_last || master.pruned.is_some() || !is_reopened(reason);
    is_final.then(|| SubmitOutcome::Conflicting { reason: reason.to_string() })
}

/// Returns whether the event of a transaction may open this verdict again. A child whose parent was conflicting gets a
/// second chance by its own event.
fn is_reopened(reason: Reason) -> bool {
    reason.is_reopened_by_own_event() || matches!(reason, Reason::ConflictingParent { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Message;
    use crate::event::OutcomeEvent;
    use crate::store::testing::{coinbase, outpoint, page, transaction};

    #[test]
    fn concatenated_transactions_are_split_and_a_cut_one_is_refused_by_its_number() {
        let first = transaction(&[(outpoint(Txid([1; 32]), 0), 900)], &[10, 11]);
        let second = transaction(&[(outpoint(Txid([1; 32]), 1), 900)], &[12]);
        let both = [&first[..], &second].concat();
        assert_eq!(split_transactions(&both).unwrap(), [first.to_vec(), second.to_vec()]);
        let problem = split_transactions(&both[..both.len() - 1]).unwrap_err();
        assert!(problem.status == 400 && problem.detail.contains("transaction 1"), "{problem:?}");
    }

    #[test]
    fn a_height_far_above_the_tip_is_refused() {
        let chain = |height, hash| ChainInfo { height, hash, median_time: None, retention: 288, prune_horizon: 0 };
        let tip = chain(800_000, Some([7; 32]));
        for (height, most_ahead) in [(0, 1), (800_001, 1), (801_000, 1_000)] {
            assert_eq!(check_height(height, &tip, most_ahead).unwrap(), height);
        }
        for (height, most_ahead) in [(800_002, 1), (801_001, 1_000)] {
            let problem = check_height(height, &tip, most_ahead).unwrap_err();
            assert!(problem.status == 400 && problem.detail.contains("the tip of the store, 800000"), "{problem:?}");
        }
        assert_eq!(check_height(801_001, &chain(0, None), 1).unwrap(), 801_001, "no block yet");
        assert_eq!(check_height(HEIGHT_LIMIT, &chain(0, None), 1).unwrap_err().status, 400);
    }

    #[test]
    fn a_transaction_that_would_be_refused_is_refused_before_the_log() {
        let overspend = transaction(&[(outpoint(Txid([1; 32]), 0), 9)], &[10]);
        let mut standard = Vec::new();
        Transaction::parse(&overspend).unwrap().write_standard(&mut standard);
        for bytes in [overspend.to_vec(), standard, coinbase(50).to_vec(), vec![1, 2]] {
            assert_eq!(check_transactions(&[bytes]).unwrap_err().status, 400);
        }
        assert_eq!(check_transactions(&[]).unwrap_err().status, 400);
    }

    #[test]
    fn a_verdict_that_the_event_may_open_again_does_not_end_the_wait() {
        let (txid, parent) = (Txid([1; 32]), Txid([2; 32]));
        let conflicting = |reason| {
            let kind = OutcomeKind::Conflicting { reason };
            let outcome = OutcomeEvent { txid, source: OutcomeSource::Chain { offset: 3 }, kind };
            let payload = Event::Outcome(outcome).encode().into();
            let (key, headers) = Default::default();
            OutcomeMessage::decode(0, &Message { offset: 0, timestamp_ms: 0, key, payload, headers })
        };
        let txids = [txid];
        let (txid, topic) = (txid.to_string(), "txs".to_owned());
        let submitted = SubmittedTransaction { txid, topic, partition: 0, offset: 9, outcome: None };
        let mut awaited = AwaitedTransactions::new(&[submitted], &txids);
        for reason in [Reason::MissingParent { parent }, Reason::ConflictingParent { parent }] {
            awaited.take(&conflicting(reason));
            assert!(!awaited.is_done(), "{reason}");
        }
        let reason = Reason::DoubleSpend { input: 0, winner: parent };
        awaited.take(&conflicting(reason));
        assert_eq!(awaited.found, [SubmitOutcome::Conflicting { reason: reason.to_string() }]);
    }

    #[test]
    fn a_record_shows_an_outcome_unless_the_submitted_event_may_change_it() {
        let parent = Txid([1; 32]);
        let whole = page(&transaction(&[(outpoint(parent, 0), 900)], &[10]));
        let with = |change: &dyn Fn(&mut Page)| {
            let mut page = whole.clone();
            change(&mut page);
            page
        };
        let conflicting = |reason: Reason, pruned: Option<u32>| {
            with(&|page| {
                page.conflicting = true;
                page.pruned = pruned;
                page.master.as_mut().unwrap().verdict = Some(Verdict::Conflicting(reason));
            })
        };
        let lost = |reason: Reason| Some(SubmitOutcome::Conflicting { reason: reason.to_string() });
        let by_rival = Reason::DoubleSpend { input: 0, winner: parent };
        for is_last in [false, true] {
            assert_eq!(stored_outcome(&whole, is_last), Some(SubmitOutcome::Live));
            assert_eq!(stored_outcome(&with(&|page| page.pruned = Some(9)), is_last), Some(SubmitOutcome::Live));
            assert_eq!(stored_outcome(&conflicting(by_rival, None), is_last), lost(by_rival));
            assert_eq!(stored_outcome(&conflicting(by_rival, Some(9)), is_last), lost(by_rival));
            let undecided = with(&|page| {
                page.conflicting = true;
                page.master.as_mut().unwrap().verdict = Some(Verdict::Pending);
            });
            assert_eq!(stored_outcome(&undecided, is_last), None);
        }
        for reason in [Reason::MissingParent { parent }, Reason::ConflictingParent { parent }] {
            assert_eq!(stored_outcome(&conflicting(reason, None), false), None, "{reason}");
            assert_eq!(stored_outcome(&conflicting(reason, None), true), lost(reason), "{reason}");
            assert_eq!(stored_outcome(&conflicting(reason, Some(9)), false), lost(reason), "{reason}");
        }
    }
}
