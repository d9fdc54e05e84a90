//! Selections: the vault chooses free outputs that fund an amount, and reserves them in the same transaction.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Vault,
    database::{Abort, transact},
    error::VaultError,
    requests::{RecordedAnswer, SelectionRequest, find_request, record_answer, take_back, update_answer},
    reserve::{NewLock, make_lock, set_lock},
    rows::{self, Columns, int, outpoint_rows},
    scripts::script_hash,
    select::{Coin, CoinChoice, InputSize, Shortage, Strategy, Terms, choose},
    source::SourceTip,
    types::{LockId, Owner, OwnerId, Standing, WatchedOutput},
    vault::{IS_CLAIMED, end_expired, find_owner, output_and_script_kinds, read_moment, read_output_and_script},
};
use crate::{
    backoff::Backoff,
    engine::sql::plain::{Kind, PlainTransaction, Row, Statement, Value},
    record::StoredOutput,
    tx::Outpoint,
};

/// Outputs that a selection in order reads first; each further read takes four times as many.
const FIRST_COINS: i64 = 4;
/// Outputs among which a selection searches, at most.
const SEARCHED_COINS: i64 = 500;
/// First and longest pause between two attempts of a selection that waits.
const WAIT_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// First and longest pause while other selections have rows that they may not take.
const ROW_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// Attempts whose outputs the store no longer has, or that other selections keep from rows.
const ATTEMPTS: u32 = 50;

/// Outputs that a selection has reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedOutputs {
    /// Id of the lock.
    pub lock_id: LockId,
    /// Time at which the lock ends by itself, milliseconds since the epoch; `None`: the lock lasts until released.
    pub expires_at: Option<i64>,
    /// The outputs with their scripts.
    pub outputs: Vec<(WatchedOutput, StoredOutput)>,
    /// Sum of the outputs.
    pub sum: u64,
    /// Fee of the transaction.
    pub fee: u64,
    /// Amount of the change; `None`: the transaction has no change.
    pub change: Option<u64>,
    /// The lock has all outputs. `false`: the answer is a repeat, and its lock has ended; another lock can have outputs
    /// by now.
    pub held: bool,
}

/// Result of one transaction of a selection.
enum Found {
    /// Outputs are reserved. `asked_at`: time at which their rows were read. `confirmed`: the answer was given before.
    Reserved { selected: SelectedOutputs, asked_at: i64, confirmed: bool },
    /// Rows that would suffice are locked by other transactions for a moment.
    Busy,
}

impl Vault {
    /// Chooses outputs that fund an amount and its fee, and reserves them.
    ///
    /// # Errors
    /// [`VaultError::InsufficientBalance`] and [`VaultError::TooManyInputs`]; the request is malformed, its lock has
    /// ended, its id was used for another request; the database or the store does not answer.
    pub async fn select(&self, owner: &Owner, request: &SelectionRequest) -> Result<SelectedOutputs, VaultError> {
        request.check()?;
        let ttl = match request.lock_id {
            None => Some(request.ttl.unwrap_or(self.settings.selection_ttl)),
            Some(_) => request.ttl,
        };
        let ttl = self.check_lease(ttl)?;
        let lock_id = request.lock_id.unwrap_or_else(LockId::random);
        let deadline = Instant::now() + request.wait;
        let mut waits = Backoff::from_key(WAIT_PAUSE, lock_id.0.as_bytes());
        loop {
            match self.select_now(owner, request, lock_id, ttl).await {
                Err(VaultError::InsufficientBalance { asked, available, locked })
                    if available + locked >= asked && Instant::now() < deadline =>
                {
                    tokio::time::sleep_until((Instant::now() + waits.next_pause()).min(deadline)).await;
                }
                result => return result,
            }
        }
    }

    async fn select_now(
        &self,
        owner: &Owner,
        request: &SelectionRequest,
        lock_id: LockId,
        ttl: Option<i64>,
    ) -> Result<SelectedOutputs, VaultError> {
        let mut pauses = Backoff::from_key(ROW_PAUSE, lock_id.0.as_bytes());
        for _ in 0..ATTEMPTS {
            let tip = self.tip().await?;
            let selection = SelectionWork { owner, request, lock_id, ttl, tip };
            let found = transact!(self.database, |transaction| selection.within(&mut transaction))?;
            let Found::Reserved { selected, asked_at, confirmed } = found else {
                tokio::time::sleep(pauses.next_pause()).await;
                continue;
            };
            if confirmed {
                return Ok(selected);
            }
            let outpoints: Vec<Outpoint> = selected.outputs.iter().map(|(output, _)| output.outpoint).collect();
            let asked = match self.ask(selected.outputs, tip, asked_at).await {
                Ok(asked) => asked,
                Err(error) => {
                    self.give_back_selection(owner, request, selected.lock_id, outpoints).await;
                    return Err(error);
                }
            };
            let is_good = |(output, _): &(WatchedOutput, StoredOutput)| {
                output.facts.standing == Standing::Unspent
                    && output.is_mature(tip.height)
                    && output.confirmations(tip.height) >= request.min_confirmations
                    && (output.facts.height.is_some() || output.own_change || request.foreign_unconfirmed)
            };
            if asked.iter().all(is_good) {
                let selected = SelectedOutputs { outputs: asked, ..selected };
                if self.confirm(owner, request, &selected).await? {
                    return Ok(selected);
                }
                continue;
            }
            // The rows have the new facts now: the next attempt takes other outputs.
            self.give_back_selection(owner, request, selected.lock_id, outpoints).await;
        }
        Err(VaultError::Database(format!("{ATTEMPTS} selections lost their outputs to others; repeat the request")))
    }

    /// Notes that the answer of a request was given; `false`: another repeat of the request has taken the answer back.
    async fn confirm(
        &self,
        owner: &Owner,
        request: &SelectionRequest,
        selected: &SelectedOutputs,
    ) -> Result<bool, VaultError> {
        let Some(id) = &request.request_id else { return Ok(true) };
        transact!(self.database, |transaction| async {
            let owner = find_owner(&mut transaction, owner).await?;
            let recorded = find_request(&mut transaction, owner, id, request).await?;
            let Some(recorded) = recorded.filter(|recorded| recorded.is_of(selected)) else { return Ok(false) };
            let (_, is_held) = recorded.lock_rows(&mut transaction).await?;
            if !is_held {
                return Ok(false);
            }
            let answer = RecordedAnswer { confirmed: true, ..recorded };
            update_answer(&mut transaction, owner, id, &answer).await?;
            Ok(true)
        })
    }

    /// Frees the outputs of a selection that is not handed out, with its row of `requests`. A repeat of the request may
    /// have handed them out meanwhile: they stay reserved then.
    async fn give_back_selection(
        &self,
        owner: &Owner,
        request: &SelectionRequest,
        lock_id: LockId,
        outpoints: Vec<Outpoint>,
    ) {
        let Some(id) = &request.request_id else { return self.give_back(lock_id, outpoints).await };
        let given_back: Result<(), VaultError> = transact!(self.database, |transaction| async {
            let owner = find_owner(&mut transaction, owner).await?;
            match find_request(&mut transaction, owner, id, request).await? {
                Some(answer) if !answer.confirmed && answer.lock_id == lock_id && answer.has(&outpoints) => {
                    take_back(&mut transaction, owner, id, &answer).await
                }
                _ => Ok(()),
            }
        });
        if let Err(error) = given_back {
            tracing::warn!(%lock_id, %error, "vault: outputs that were not handed out stay locked until the lock ends");
        }
    }
}

impl RecordedAnswer {
    /// Returns the answer with the outputs as their rows are now.
    fn found(self, (outputs, held): (Vec<(WatchedOutput, StoredOutput)>, bool), asked_at: i64) -> Found {
        let RecordedAnswer { lock_id, expires_at, outputs: _, sum, fee, change, confirmed } = self;
        let selected = SelectedOutputs { lock_id, expires_at, outputs, sum, fee, change, held };
        Found::Reserved { selected, asked_at, confirmed }
    }
}

/// A selection in one transaction.
struct SelectionWork<'a> {
    owner: &'a Owner,
    request: &'a SelectionRequest,
    lock_id: LockId,
    ttl: Option<i64>,
    tip: SourceTip,
}

/// Outputs with their scripts, and the same outputs as coins.
type Candidates = (Vec<(WatchedOutput, StoredOutput)>, Vec<Coin>);

impl SelectionWork<'_> {
    async fn within(&self, transaction: &mut PlainTransaction) -> Result<Found, Abort> {
        let moment = read_moment(transaction).await?;
        end_expired(transaction, moment.now).await?;
        let owner = find_owner(transaction, self.owner).await?;
        if let Some(id) = &self.request.request_id
            && let Some(answer) = find_request(transaction, owner, id, self.request).await?
        {
            let (found, is_held) = answer.lock_rows(transaction).await?;
            if answer.confirmed || is_held {
                return Ok(answer.found((found, is_held), moment.now));
            }
            // The lock has ended before the answer was given.
            take_back(transaction, owner, id, &answer).await?;
        }
        let new = NewLock { id: self.lock_id, owner, session: false, lease: self.ttl };
        let lock = make_lock(transaction, new, moment.now).await?;
        let chosen = match self.request.terms.strategy {
            Strategy::LowestFee | Strategy::WithoutChange => self.search(transaction, owner).await?,
            Strategy::LargestFirst | Strategy::OldestFirst => None,
        };
        let (choice, outputs) = match chosen {
            Some(chosen) => chosen,
            None => match self.take_in_order(transaction, owner).await? {
                Some(chosen) => chosen,
                None => return Ok(Found::Busy),
            },
        };
        let list = outpoint_rows(outputs.iter().map(|(output, _)| output.outpoint));
        set_lock(transaction, self.lock_id, &list).await?;
        let CoinChoice { sum, fee, change, .. } = choice;
        let (lock_id, expires_at) = (self.lock_id, lock.expires_at);
        let selected = SelectedOutputs { lock_id, expires_at, outputs, sum, fee, change, held: true };
        self.record(transaction, owner, &selected, moment.now).await?;
        Ok(Found::Reserved { selected, asked_at: moment.now, confirmed: false })
    }

    async fn record(
        &self,
        transaction: &mut PlainTransaction,
        owner: OwnerId,
        selected: &SelectedOutputs,
        now: i64,
    ) -> Result<(), Abort> {
        let Some(id) = &self.request.request_id else { return Ok(()) };
        record_answer(transaction, owner, (id, self.request), selected, now).await
    }

    /// Searches among many outputs, and locks the rows of those that were chosen; `None`: nothing was found, or another
    /// transaction has a row.
    async fn search(
        &self,
        transaction: &mut PlainTransaction,
        owner: OwnerId,
    ) -> Result<Option<(CoinChoice, Vec<(WatchedOutput, StoredOutput)>)>, Abort> {
        let (outputs, coins) = self.candidates(transaction, owner, SEARCHED_COINS, "").await?;
        let Ok(choice) = choose(&coins, &self.request.terms) else { return Ok(None) };
        let rows = outpoint_rows(choice.coins.iter().map(|index| outputs[*index].0.outpoint));
        let statement = Statement::new(
            "SELECT t.txid, t.vout FROM {rows} CROSS JOIN outputs t WHERE t.txid = k.column1 AND t.vout = k.column2 \
             AND t.standing = 1 AND t.lock_id IS NULL {skip}",
            &[],
        );
        let statement = statement.with_rows(&rows::OUTPOINT_KINDS, &rows);
        let locked = transaction.fetch_all(&statement, &rows::OUTPOINT_KINDS).await?;
        if locked.len() < rows.len() {
            return Ok(None);
        }
        let chosen = choice.coins.iter().map(|index| outputs[*index].clone()).collect();
        Ok(Some((choice, chosen)))
    }

    /// Takes outputs in order and locks their rows; `None`: other transactions have rows that would suffice.
    async fn take_in_order(
        &self,
        transaction: &mut PlainTransaction,
        owner: OwnerId,
    ) -> Result<Option<(CoinChoice, Vec<(WatchedOutput, StoredOutput)>)>, Abort> {
        let mut limit = FIRST_COINS;
        let terms = Terms { strategy: self.order(), ..self.request.terms };
        loop {
            let (outputs, coins) = self.candidates(transaction, owner, limit, "{skip}").await?;
            match choose(&coins, &terms) {
                Ok(choice) => {
                    let chosen = choice.coins.iter().map(|index| outputs[*index].clone()).collect();
                    return Ok(Some((choice, chosen)));
                }
                Err(Shortage::Inputs) => break,
                Err(Shortage::Funds) if (outputs.len() as i64) < limit => break,
                Err(Shortage::Funds) if limit > i64::from(terms.most_inputs) => break,
                Err(Shortage::Funds) => limit *= 4,
            }
        }
        if terms.strategy == Strategy::OldestFirst {
            // Many small outputs must not keep the old ones from being spent: the largest need the fewest inputs.
            let terms = Terms { strategy: Strategy::LargestFirst, ..self.request.terms };
            let request = SelectionRequest { terms, ..self.request.clone() };
            let work = SelectionWork { request: &request, ..*self };
            return Box::pin(work.take_in_order(transaction, owner)).await;
        }
        // Other transactions have locked rows for a moment: what they leave does not decide.
        let most = i64::from(terms.most_inputs);
        let (outputs, coins) = self.candidates(transaction, owner, most, "").await?;
        if choose(&coins, &terms).is_ok() {
            return Ok(None);
        }
        let available = self.sum_of(transaction, owner, true).await?;
        if (outputs.len() as i64) >= most && available >= terms.amount {
            return Err(VaultError::TooManyInputs(terms.most_inputs).into());
        }
        let locked = self.sum_of(transaction, owner, false).await?;
        let fixed = if let super::select::Fee::Fixed(fee) = terms.fee { fee } else { 0 };
        Err(VaultError::InsufficientBalance { asked: terms.amount + fixed, available, locked }.into())
    }

    /// Returns the order of a selection that does not search.
    fn order(&self) -> Strategy {
        match self.request.terms.strategy {
            Strategy::OldestFirst => Strategy::OldestFirst,
            _ => Strategy::LargestFirst,
        }
    }

    /// Reads free outputs that the request permits, in the order of the strategy. `lock`: place of a statement that
    /// locks the rows.
    async fn candidates(
        &self,
        transaction: &mut PlainTransaction,
        owner: OwnerId,
        limit: i64,
        lock: &str,
    ) -> Result<Candidates, Abort> {
        let order = match self.order() {
            Strategy::OldestFirst if self.request.min_confirmations > 0 => "t.height",
            Strategy::OldestFirst => "t.height IS NULL, t.height, t.satoshis DESC",
            _ => "t.satoshis DESC",
        };
        let (filter, values, list) = self.filter(owner);
        let sql = format!(
            "SELECT {}, s.script FROM outputs t JOIN scripts s ON s.script_id = t.script_id \
             WHERE t.owner_id = $1 AND t.standing = 1 AND t.lock_id IS NULL {filter} \
             ORDER BY {order} LIMIT {limit} {lock}",
            rows::OUTPUT_COLUMNS,
        );
        let mut statement = Statement::new(&sql, &values);
        if !list.is_empty() {
            statement = statement.with_rows(&[Kind::Bytes], &list);
        }
        let found = transaction.fetch_all(&statement, &output_and_script_kinds()).await?;
        let outputs = found.into_iter().map(|row| Ok(read_output_and_script(row)?));
        let outputs = outputs.collect::<Result<Vec<_>, Abort>>()?;
        let coin = |(output, stored): &(WatchedOutput, StoredOutput)| Coin {
            satoshis: output.satoshis,
            height: output.facts.height,
            input: InputSize::of(&stored.script, self.request.unlocking_bytes),
        };
        let coins = outputs.iter().map(coin).collect();
        Ok((outputs, coins))
    }

    /// Returns the conditions of the request, with their values and the hashes of its scripts.
    fn filter(&self, owner: OwnerId) -> (String, Vec<Value>, Vec<Row>) {
        let tip = i64::from(self.tip.height);
        let highest = match self.request.min_confirmations {
            // A block that lists the output is a confirmation, also where the tip is older than the row.
            ..=1 => i64::MAX,
            least => tip + 1 - i64::from(least),
        };
        let mut values = vec![int(owner), int(tip + 1), int(highest)];
        let mut filter = format!("AND (t.spendable_from IS NULL OR t.spendable_from <= $2) AND NOT {IS_CLAIMED}");
        filter += match (self.request.min_confirmations, self.request.foreign_unconfirmed) {
            // The sum keeps the databases from the index by height, which has not the order of the largest.
            (1.., _) if self.order() == Strategy::LargestFirst => " AND t.height + 0 <= $3",
            (1.., _) => " AND t.height <= $3",
            (0, true) => "",
            (0, false) => " AND (t.height IS NOT NULL OR t.own_change)",
        };
        if self.request.min_confirmations == 0 {
            values.truncate(2);
        }
        let hashes = self.request.scripts.iter().map(|script| vec![rows::bytes(&script_hash(script))]);
        let mut list: Vec<Row> = hashes.collect();
        list.sort_unstable();
        list.dedup();
        if !list.is_empty() {
            filter += " AND t.script_id IN \
                       (SELECT w.script_id FROM {rows} CROSS JOIN scripts w WHERE w.script_hash = k.column1)";
        }
        (filter, values, list)
    }

    /// Returns the sum of the outputs that the request permits: of free ones, or of those that locks of other ids have.
    async fn sum_of(&self, transaction: &mut PlainTransaction, owner: OwnerId, is_free: bool) -> Result<u64, Abort> {
        let (filter, mut values, list) = self.filter(owner);
        let condition = match is_free {
            true => "t.lock_id IS NULL".to_owned(),
            false => {
                values.push(rows::lock_value(self.lock_id));
                format!("t.lock_id IS NOT NULL AND t.lock_id <> ${}", values.len())
            }
        };
        let sql = format!(
            "SELECT CAST(COALESCE(sum(t.satoshis), 0) AS BIGINT) FROM outputs t \
             WHERE t.owner_id = $1 AND t.standing = 1 AND {condition} {filter}"
        );
        let mut statement = Statement::new(&sql, &values);
        if !list.is_empty() {
            statement = statement.with_rows(&[Kind::Bytes], &list);
        }
        let row = transaction.fetch_all(&statement, &[Kind::Int]).await?.pop();
        Ok(row.map_or(Ok(0), |row| Columns::of(row).number())?)
    }
}
