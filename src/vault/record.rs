//! Rows that follow from events: outputs, claims, questions that are due, and the positions in the log.

use super::{
    database::{Abort, VaultDatabase, read, transact},
    error::VaultError,
    matching::{Claim, Matches, SeenOutput, Touched},
    rows::{self, Columns, int},
    vault::read_moment,
};
use crate::{
    broker::{TopicId, TopicPartition},
    engine::sql::plain::{Kind, PlainTransaction, Row, Statement, Value},
    tx::Txid,
};

/// Place in a partition up to which the vault has recorded its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    pub partition: TopicPartition,
    /// Id of the topic; `None`: the cluster gives no ids.
    pub topic_id: Option<TopicId>,
    /// The next offset to read.
    pub next_offset: u64,
}

/// Result of a request to record events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recorded {
    Done,
    /// The watched scripts have changed since the events were matched.
    OtherScripts,
}

/// Records events in the database of a vault.
#[derive(Clone, Copy)]
pub(super) struct Recorder<'a>(pub &'a VaultDatabase);

/// Answer to a position that exists. A position in the same topic only moves forward: a process that was paused writes
/// an old one.
const MOVE_FORWARD: &str = "UPDATE SET topic_id = excluded.topic_id, \
     next_offset = CASE WHEN positions.topic_id IS NOT DISTINCT FROM excluded.topic_id \
     AND positions.next_offset > excluded.next_offset THEN positions.next_offset ELSE excluded.next_offset END";

const POSITION_KINDS: [Kind; 4] = [Kind::Text, Kind::Int, Kind::Bytes, Kind::Int];

impl Recorder<'_> {
    /// Records what events mean under the watched scripts of a version, with the positions after the events, in one
    /// transaction.
    pub async fn record(
        &self,
        matches: &Matches,
        positions: &[Position],
        version: i64,
    ) -> Result<Recorded, VaultError> {
        transact!(self.0, |transaction| async {
            let recorded = record_matches(&mut transaction, matches, version).await?;
            if recorded == Recorded::Done {
                write_positions(&mut transaction, positions, MOVE_FORWARD).await?;
            }
            Ok(recorded)
        })
    }

    /// Records what earlier events mean, without positions.
    pub async fn record_rescanned(&self, matches: &Matches, version: i64) -> Result<Recorded, VaultError> {
        transact!(self.0, |transaction| record_matches(&mut transaction, matches, version))
    }

    /// Records positions of partitions that have none.
    pub async fn record_first_positions(&self, positions: &[Position]) -> Result<(), VaultError> {
        transact!(self.0, |transaction| write_positions(&mut transaction, positions, "NOTHING"))
    }

    /// Records positions in topics that were created again.
    pub async fn reset_positions(&self, positions: &[Position]) -> Result<(), VaultError> {
        transact!(self.0, |transaction| write_positions(&mut transaction, positions, MOVE_FORWARD))
    }

    /// Reads the position of each partition.
    pub async fn positions(&self) -> Result<Vec<Position>, VaultError> {
        read!(self.0, |transaction| async {
            let statement = Statement::new("SELECT topic, partition, topic_id, next_offset FROM positions", &[]);
            let found = transaction.fetch_all(&statement, &POSITION_KINDS).await?;
            let position = |row: Row| -> Result<Position, Abort> {
                let mut columns = Columns::of(row);
                let partition = TopicPartition { topic: columns.text()?.into(), partition: columns.number()? };
                let id = columns.optional_bytes()?.map(|id| TopicId::try_from(&id[..])).transpose();
                let topic_id = id.map_err(|_| VaultError::damaged("an id that is of no topic"))?;
                Ok(Position { partition, topic_id, next_offset: columns.number()? })
            };
            found.into_iter().map(position).collect()
        })
    }

    /// Makes a question about every output due: events were lost. Each transaction takes a part of the outputs, so that
    /// selections go on.
    pub async fn doubt_all(&self) -> Result<(), VaultError> {
        let mut after: Option<Row> = None;
        loop {
            let last = transact!(self.0, |transaction| async {
                let mut values = vec![int(DOUBTED_AT_A_TIME)];
                let condition = match &after {
                    Some(key) => {
                        values.extend(key.iter().cloned());
                        "WHERE (t.txid, t.vout) > ($2, $3)"
                    }
                    None => "",
                };
                let sql = format!("SELECT t.txid, t.vout FROM outputs t {condition} ORDER BY t.txid, t.vout LIMIT $1");
                let part = transaction.fetch_all(&Statement::new(&sql, &values), &rows::OUTPOINT_KINDS).await?;
                doubt(&mut transaction, &part).await?;
                Ok(part.last().cloned())
            })?;
            match last {
                Some(key) => after = Some(key),
                None => return Ok(()),
            }
        }
    }
}

/// Outputs about which one transaction makes questions due, at most.
pub(super) const DOUBTED_AT_A_TIME: i64 = 5_000;

/// Begin of a statement that makes questions about outputs `t` due.
const DOUBT: &str = "UPDATE outputs AS t SET changes = t.changes + 1, asks = 0, ask_at = {now}";

/// Makes questions about outputs due.
pub(super) async fn doubt(transaction: &mut PlainTransaction, outpoints: &[Row]) -> Result<(), Abort> {
    let sql = format!("{DOUBT} FROM {{rows}} WHERE t.txid = k.column1 AND t.vout = k.column2");
    transaction.execute(&Statement::new(&sql, &[]).with_rows(&rows::OUTPOINT_KINDS, outpoints)).await?;
    Ok(())
}

fn position_rows(positions: &[Position]) -> Vec<Row> {
    let row = |position: &Position| {
        vec![
            rows::text(&position.partition.topic),
            int(position.partition.partition.into()),
            Value::Bytes(position.topic_id.map(|id| bytes::Bytes::copy_from_slice(&id))),
            rows::amount(position.next_offset),
        ]
    };
    let mut rows: Vec<Row> = positions.iter().map(row).collect();
    // Two processes that write the same rows write them in one order.
    rows.sort_unstable();
    rows
}

/// Writes positions. `on_conflict`: answer of the statement to a position that exists.
async fn write_positions(
    transaction: &mut PlainTransaction,
    positions: &[Position],
    on_conflict: &str,
) -> Result<(), Abort> {
    let sql = format!(
        "INSERT INTO positions (topic, partition, topic_id, next_offset) \
         SELECT k.column1, k.column2, k.column3, k.column4 FROM {{rows}} WHERE k.column1 IS NOT NULL \
         ON CONFLICT (topic, partition) DO {on_conflict}"
    );
    let list = position_rows(positions);
    transaction.execute(&Statement::new(&sql, &[]).with_rows(&POSITION_KINDS, &list)).await?;
    Ok(())
}

/// Records what events mean under the watched scripts of a version.
pub(super) async fn record_matches(
    transaction: &mut PlainTransaction,
    matches: &Matches,
    version: i64,
) -> Result<Recorded, Abort> {
    // A request to watch a script waits for this transaction, and its rescan sees the positions.
    let shared = Statement::new("SELECT t.watch_version FROM vault t {share}", &[]);
    transaction.fetch_all(&shared, &[Kind::Int]).await?;
    let moment = read_moment(transaction).await?;
    if moment.watch_version != version {
        return Ok(Recorded::OtherScripts);
    }
    record_outputs(transaction, &matches.outputs, moment.now).await?;
    record_claims(transaction, &matches.claims, moment.now + CLAIM_BARS_MS).await?;
    touch(transaction, &matches.touched).await?;
    Ok(Recorded::Done)
}

/// Time for which an output is not handed out after an event, or a submission, has named a spender that the store does
/// not show: the store comes to the event later than the vault. The event of a submission may never come.
const CLAIM_BARS_MS: i64 = 600_000;
/// Time after an event at which the store is asked first: the store has often come to the event by then.
const FIRST_QUESTION_MS: i64 = 200;

async fn record_outputs(transaction: &mut PlainTransaction, outputs: &[SeenOutput], now: i64) -> Result<(), Abort> {
    let kinds = [Kind::Bytes, Kind::Int, Kind::Int, Kind::Int, Kind::Int, Kind::Bool];
    let row = |seen: &SeenOutput| {
        vec![
            rows::bytes(&seen.outpoint.txid.0),
            int(seen.outpoint.vout.into()),
            int(seen.owner),
            int(seen.script),
            rows::amount(seen.satoshis),
            Value::Bool(seen.own_change),
        ]
    };
    let mut list: Vec<Row> = outputs.iter().map(row).collect();
    list.sort_unstable();
    let values = [int(now), int(now + FIRST_QUESTION_MS), Value::Bool(false)];
    let statement = Statement::new(
        "INSERT INTO outputs (txid, vout, owner_id, script_id, satoshis, own_change, standing, was_live, seen_at, \
         ask_at, asks, changes) \
         SELECT k.column1, k.column2, k.column3, k.column4, k.column5, k.column6, 0, $3, $1, $2, 0, 1 FROM {rows} \
         WHERE k.column1 IS NOT NULL \
         ON CONFLICT (txid, vout) DO UPDATE SET changes = outputs.changes + 1, asks = 0, ask_at = excluded.ask_at, \
         own_change = (outputs.own_change OR excluded.own_change)",
        &values,
    );
    transaction.execute(&statement.with_rows(&kinds, &list)).await?;
    Ok(())
}

/// Records which transactions spend which outputs. `bars_until`: time up to which the claims keep the outputs from
/// being handed out; 0: the store shows the spenders.
pub(super) async fn record_claims(
    transaction: &mut PlainTransaction,
    claims: &[Claim],
    bars_until: i64,
) -> Result<(), Abort> {
    let row = |claim: &Claim| {
        vec![rows::bytes(&claim.spender.0), rows::bytes(&claim.outpoint.txid.0), int(claim.outpoint.vout.into())]
    };
    let list: Vec<Row> = claims.iter().map(row).collect();
    let values = [Value::Bool(false), int(bars_until)];
    let statement = Statement::new(
        "INSERT INTO claims (spender, txid, vout, is_out, bars_until) \
         SELECT k.column1, k.column2, k.column3, $1, $2 FROM {rows} \
         WHERE k.column1 IS NOT NULL ON CONFLICT (spender, txid, vout) DO NOTHING",
        &values,
    );
    transaction.execute(&statement.with_rows(&[Kind::Bytes, Kind::Bytes, Kind::Int], &list)).await?;
    Ok(())
}

/// Makes questions due about the outputs of transactions, and about the outputs that these spend.
async fn touch(transaction: &mut PlainTransaction, touched: &[Touched]) -> Result<(), Abort> {
    let txid_row = |txid: &Txid| vec![rows::bytes(&txid.0)];
    let all: Vec<Row> = touched.iter().map(|touched| txid_row(&touched.txid)).collect();
    for is_out in [true, false] {
        let judged = touched.iter().filter(|touched| touched.is_out == Some(is_out));
        let list: Vec<Row> = judged.map(|touched| txid_row(&touched.txid)).collect();
        let values = [Value::Bool(is_out)];
        let statement =
            Statement::new("UPDATE claims AS t SET is_out = $1 FROM {rows} WHERE t.spender = k.column1", &values);
        transaction.execute(&statement.with_rows(&[Kind::Bytes], &list)).await?;
    }
    for condition in [
        "FROM {rows} WHERE t.txid = k.column1",
        "WHERE (t.txid, t.vout) IN \
         (SELECT c.txid, c.vout FROM {rows} CROSS JOIN claims c WHERE c.spender = k.column1)",
    ] {
        let sql = format!("{DOUBT} {condition}");
        transaction.execute(&Statement::new(&sql, &[]).with_rows(&[Kind::Bytes], &all)).await?;
    }
    Ok(())
}
