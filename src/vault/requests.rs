//! Requests for selections, and their answers as rows of `requests`.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};

use super::{
    database::Abort,
    error::VaultError,
    reserve::release_within,
    rows::{self, Columns, int, outpoint_rows},
    select::{Fee, Strategy, Terms},
    selection::SelectedOutputs,
    types::{LockId, OwnerId, RequestId, WatchedOutput},
    vault::lock_outputs,
};
use crate::{
    engine::sql::plain::{Kind, PlainTransaction, Statement},
    record::StoredOutput,
    tx::{MAX_MONEY, Outpoint},
};

/// Inputs of one transaction, at most.
const MAX_INPUTS: u32 = 10_000;
/// Largest fee rate, satoshis for 1,000 virtual bytes.
const MAX_FEE_RATE: u64 = 100_000_000;
/// Longest wait for outputs that others have locked.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A request for a selection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SelectionRequest {
    /// Id with which a repeat has the same answer.
    pub request_id: Option<RequestId>,
    /// Amount, fee and shape of the transaction.
    pub terms: Terms,
    /// Fewest blocks that confirm an output; 0: unconfirmed outputs of the owner's own transactions, too.
    pub min_confirmations: u32,
    /// Take unconfirmed outputs of other transactions, too, where `min_confirmations` is 0.
    pub foreign_unconfirmed: bool,
    /// Take only outputs of these scripts; empty: of all.
    #[serde(serialize_with = "as_hex")]
    pub scripts: Vec<Bytes>,
    /// Bytes that unlock a script of an unknown kind.
    pub unlocking_bytes: Option<u32>,
    /// Lock or session under which the outputs are reserved; `None`: a lock of its own.
    pub lock_id: Option<LockId>,
    /// Time after which the lock ends by itself.
    pub ttl: Option<Duration>,
    /// Time to wait for outputs that others have locked, where they would suffice.
    pub wait: Duration,
}

/// The answer of a selection as its row of `requests` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordedAnswer {
    pub lock_id: LockId,
    pub expires_at: Option<i64>,
    pub outputs: Vec<Outpoint>,
    pub sum: u64,
    pub fee: u64,
    pub change: Option<u64>,
    /// The store has confirmed the outputs, and the answer was given.
    pub confirmed: bool,
}

impl RecordedAnswer {
    /// Returns whether the answer is that of a selection.
    pub fn is_of(&self, selected: &SelectedOutputs) -> bool {
        let outputs: Vec<Outpoint> = selected.outputs.iter().map(|(output, _)| output.outpoint).collect();
        self.lock_id == selected.lock_id && self.has(&outputs)
    }

    /// Locks the rows of the outputs; returns the outputs, and whether all of them still have the lock.
    pub async fn lock_rows(
        &self,
        transaction: &mut PlainTransaction,
    ) -> Result<(Vec<(WatchedOutput, StoredOutput)>, bool), Abort> {
        let found = lock_outputs(transaction, &outpoint_rows(self.outputs.iter().copied())).await?;
        let is_held =
            found.len() == self.outputs.len() && found.iter().all(|(output, _)| output.lock == Some(self.lock_id));
        Ok((found, is_held))
    }

    /// Returns whether the answer has exactly these outputs.
    pub fn has(&self, outputs: &[Outpoint]) -> bool {
        let sorted = |outputs: &[Outpoint]| {
            let mut outputs = outputs.to_vec();
            outputs.sort_unstable();
            outputs
        };
        sorted(&self.outputs) == sorted(outputs)
    }
}

impl SelectionRequest {
    /// Makes a request for an amount at a fee rate, satoshis for 1,000 virtual bytes: one payment and change to P2PKH
    /// scripts, from outputs with at least one confirmation.
    pub fn new(amount: u64, fee: Fee) -> Self {
        SelectionRequest {
            request_id: None,
            terms: Terms {
                amount,
                fee,
                payments: 1,
                payment_script_bytes: 25,
                change_script_bytes: 25,
                least_change: 1,
                most_inputs: 1_000,
                strategy: Strategy::default(),
            },
            min_confirmations: 1,
            foreign_unconfirmed: false,
            scripts: Vec::new(),
            unlocking_bytes: None,
            lock_id: None,
            ttl: None,
            wait: Duration::ZERO,
        }
    }

    pub(super) fn check(&self) -> Result<(), VaultError> {
        let Terms { amount, fee, payments, most_inputs, .. } = self.terms;
        let problem = match fee {
            _ if amount == 0 => "the amount is 0".to_owned(),
            _ if amount > MAX_MONEY => {
                format!("the amount is above {MAX_MONEY} satoshis, which is all that will exist")
            }
            Fee::Fixed(fee) if fee > MAX_MONEY => format!("the fee is above {MAX_MONEY} satoshis"),
            Fee::Rate(rate) if rate > MAX_FEE_RATE => {
                format!("the fee rate is above {MAX_FEE_RATE} satoshis for 1,000 virtual bytes")
            }
            _ if payments == 0 || payments > MAX_INPUTS => format!("the number of payments is 1 to {MAX_INPUTS}"),
            _ if most_inputs == 0 || most_inputs > MAX_INPUTS => format!("the number of inputs is 1 to {MAX_INPUTS}"),
            _ if self.terms.payment_script_bytes.max(self.terms.change_script_bytes) > 10_000 => {
                "a script has at most 10,000 bytes".to_owned()
            }
            _ if self.unlocking_bytes.is_some_and(|bytes| bytes > 100_000) => {
                "the bytes that unlock a script are at most 100,000".to_owned()
            }
            _ if self.wait > LONGEST_WAIT => format!("the wait is at most {LONGEST_WAIT:?}"),
            _ if self.scripts.len() > 64 => "a selection names at most 64 scripts".to_owned(),
            _ => return Ok(()),
        };
        Err(VaultError::Invalid(problem))
    }

    /// Returns a hash of all that decides about the answer.
    fn fingerprint(&self) -> [u8; 32] {
        let decisive = SelectionRequest { request_id: None, wait: Duration::ZERO, ..self.clone() };
        let text = serde_json::to_vec(&decisive).expect("a request has only texts, numbers and lists");
        *blake3::hash(&text).as_bytes()
    }
}

/// Frees the outputs of an answer that was not given, and forgets the request.
pub(super) async fn take_back(
    transaction: &mut PlainTransaction,
    owner: OwnerId,
    id: &RequestId,
    answer: &RecordedAnswer,
) -> Result<(), Abort> {
    release_within(transaction, answer.lock_id, answer.outputs.iter().copied()).await?;
    let values = [int(owner), rows::text(id.as_str())];
    let delete = Statement::new("DELETE FROM requests WHERE owner_id = $1 AND request_id = $2", &values);
    transaction.execute(&delete).await?;
    Ok(())
}

fn as_hex<S: Serializer>(scripts: &[Bytes], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(scripts.iter().map(hex::encode))
}

fn encode_answer(answer: &RecordedAnswer) -> String {
    serde_json::to_string(answer).expect("an answer has only texts, numbers and lists")
}

/// Reads the recorded answer of a request, and keeps repeats waiting until the end of the transaction.
pub(super) async fn find_request(
    transaction: &mut PlainTransaction,
    owner: OwnerId,
    id: &RequestId,
    request: &SelectionRequest,
) -> Result<Option<RecordedAnswer>, Abort> {
    let values = [int(owner), rows::text(id.as_str())];
    let statement = Statement::new(
        "SELECT t.fingerprint, t.answer FROM requests t WHERE t.owner_id = $1 AND t.request_id = $2 {lock}",
        &values,
    );
    let Some(row) = transaction.fetch_all(&statement, &[Kind::Bytes, Kind::Text]).await?.pop() else {
        return Ok(None);
    };
    let mut columns = Columns::of(row);
    if columns.bytes()?[..] != request.fingerprint() {
        return Err(VaultError::RequestReused.into());
    }
    let answer = serde_json::from_str(&columns.text()?);
    Ok(Some(answer.map_err(|_| VaultError::damaged("an answer that cannot be read"))?))
}

/// Records the answer of a request that was not given yet.
pub(super) async fn record_answer(
    transaction: &mut PlainTransaction,
    owner: OwnerId,
    (id, request): (&RequestId, &SelectionRequest),
    selected: &SelectedOutputs,
    now: i64,
) -> Result<(), Abort> {
    let SelectedOutputs { lock_id, expires_at, outputs, sum, fee, change, held: _ } = selected;
    let answer = RecordedAnswer {
        lock_id: *lock_id,
        expires_at: *expires_at,
        outputs: outputs.iter().map(|(output, _)| output.outpoint).collect(),
        sum: *sum,
        fee: *fee,
        change: *change,
        confirmed: false,
    };
    let values = [
        int(owner),
        rows::text(id.as_str()),
        rows::bytes(&request.fingerprint()),
        rows::text(&encode_answer(&answer)),
        int(now),
    ];
    let insert = Statement::new(
        "INSERT INTO requests (owner_id, request_id, fingerprint, answer, requested_at) VALUES ($1, $2, $3, $4, $5)",
        &values,
    );
    transaction.execute(&insert).await?;
    Ok(())
}

/// Replaces the recorded answer of a request.
pub(super) async fn update_answer(
    transaction: &mut PlainTransaction,
    owner: OwnerId,
    id: &RequestId,
    answer: &RecordedAnswer,
) -> Result<(), Abort> {
    let values = [int(owner), rows::text(id.as_str()), rows::text(&encode_answer(answer))];
    let update = Statement::new("UPDATE requests SET answer = $3 WHERE owner_id = $1 AND request_id = $2", &values);
    transaction.execute(&update).await?;
    Ok(())
}
