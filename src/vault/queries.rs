//! Questions about the outputs, balances and locks of an owner.

use super::{
    Vault,
    balance::{Balance, BalancePart, OutputProperties, Sum},
    database::{Abort, read},
    error::VaultError,
    locks::Lock,
    rows::{self, Columns, int},
    source::SourceTip,
    types::{LockId, Owner, Standing, WatchedOutput},
    vault::{find_owner, lock_row, output_and_script_kinds, read_output_and_script},
};
use crate::{
    engine::sql::plain::{Kind, Row, Statement},
    record::StoredOutput,
    tx::Outpoint,
};

/// Most lock ids of a condition.
const MAX_LOCK_IDS: usize = 64;
/// Most outputs of one answer.
const MAX_OUTPUTS: u64 = 10_000;
/// Satoshis of a part of a sum: events that become dead letters can name any amounts, and a sum of them as one number
/// could be out of range.
const SHARE: u64 = 100_000_000;
/// Condition on a table `t` of outputs and a table `l` of locks: a lock that is in force has the output.
pub(super) const IS_LOCKED: &str =
    "(l.lock_id IS NOT NULL AND l.ended_at IS NULL AND (l.expires_at IS NULL OR l.expires_at > {now}))";

/// Condition of a query on the soft locks of outputs, as the seed has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum LockCondition {
    /// All outputs, locked ones too.
    #[default]
    Any,
    /// Only outputs without a lock (`UNLOCKED_ONLY`).
    UnlockedOnly,
    /// Only outputs with a lock (`LOCKED_ONLY`).
    LockedOnly,
    /// Only outputs with one of these locks (`SPECIFIED`).
    Specified(Vec<LockId>),
    /// Outputs without a lock, and those with one of these (`UNLOCKED_AND_SPECIFIED`).
    UnlockedAndSpecified(Vec<LockId>),
}

impl LockCondition {
    /// Makes the condition of a name (`any`, `unlocked-only`, `locked-only`, `specified`, `unlocked-and-specified`)
    /// with these lock ids.
    ///
    /// # Errors
    /// The name is none of these, or the condition takes no lock ids.
    pub fn of_name(name: &str, ids: Vec<LockId>) -> Result<Self, VaultError> {
        let condition = match (name, ids.is_empty()) {
            ("any", true) => LockCondition::Any,
            ("unlocked-only", true) => LockCondition::UnlockedOnly,
            ("locked-only", true) => LockCondition::LockedOnly,
            ("specified", _) => LockCondition::Specified(ids),
            ("unlocked-and-specified", _) => LockCondition::UnlockedAndSpecified(ids),
            ("any" | "unlocked-only" | "locked-only", false) => {
                return Err(VaultError::Invalid(format!("the condition `{name}` takes no lock ids")));
            }
            _ => {
                let names = "any, unlocked-only, locked-only, specified or unlocked-and-specified";
                return Err(VaultError::Invalid(format!("the condition on locks is {names}, not {name:?}")));
            }
        };
        Ok(condition)
    }

    /// Returns the name of the condition.
    pub fn name(&self) -> &'static str {
        match self {
            LockCondition::Any => "any",
            LockCondition::UnlockedOnly => "unlocked-only",
            LockCondition::LockedOnly => "locked-only",
            LockCondition::Specified(_) => "specified",
            LockCondition::UnlockedAndSpecified(_) => "unlocked-and-specified",
        }
    }

    /// Returns the lock ids of the condition.
    pub fn lock_ids(&self) -> &[LockId] {
        match self {
            LockCondition::Any | LockCondition::UnlockedOnly | LockCondition::LockedOnly => &[],
            LockCondition::Specified(ids) | LockCondition::UnlockedAndSpecified(ids) => ids,
        }
    }
}

/// An output with its script, and whether a lock that is in force has the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedOutput {
    /// The output with its facts and its lock.
    pub output: WatchedOutput,
    /// Amount and script of the output.
    pub stored: StoredOutput,
    /// A lock that is in force has the output.
    pub is_locked: bool,
}

/// Balance of an owner, with the state of the chain and of the store's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerBalance {
    /// Parts of the balance.
    pub balance: Balance,
    /// Tip of the chain under which the outputs are mature or not.
    pub tip: SourceTip,
    /// Time of the oldest answer of the store that counts, milliseconds since the epoch; `None`: the store was not
    /// asked about any of the outputs.
    pub as_of: Option<i64>,
}

impl Vault {
    /// Reads the balance of an owner under the tip of the chain, by the last answers of the store.
    ///
    /// # Errors
    /// The owner has no script; the database or the store does not answer.
    pub async fn balance(&self, owner: &Owner) -> Result<OwnerBalance, VaultError> {
        let tip = self.tip().await?;
        read!(self.database, |transaction| async {
            let owner = find_owner(&mut transaction, owner).await?;
            let values = [int(owner), int(i64::from(tip.height) + 1)];
            let sql = format!(
                "SELECT g.standing, g.confirmed, g.mature, g.locked, g.own_change, count(*), \
                 CAST(sum(g.satoshis / {SHARE}) AS BIGINT), CAST(sum(g.satoshis % {SHARE}) AS BIGINT), \
                 min(g.asked_at) FROM (SELECT t.standing, t.own_change, t.satoshis, t.asked_at, \
                 CAST(CASE WHEN t.height IS NULL THEN 0 ELSE 1 END AS BIGINT) AS confirmed, \
                 CAST(CASE WHEN t.spendable_from > $2 THEN 0 ELSE 1 END AS BIGINT) AS mature, \
                 CAST(CASE WHEN {IS_LOCKED} THEN 1 ELSE 0 END AS BIGINT) AS locked \
                 FROM outputs t LEFT JOIN locks l ON l.lock_id = t.lock_id WHERE t.owner_id = $1) g \
                 GROUP BY g.standing, g.confirmed, g.mature, g.locked, g.own_change"
            );
            let (mut balance, mut as_of) = (Balance::default(), None);
            for row in transaction.fetch_all(&Statement::new(&sql, &values), &GROUP_KINDS).await? {
                let (properties, sum, oldest) = read_group(row)?;
                if properties.part() != BalancePart::None {
                    as_of = as_of.into_iter().chain(oldest).min();
                }
                balance.add(properties, sum);
            }
            Ok(OwnerBalance { balance, tip, as_of })
        })
    }

    /// Reads the outputs of an owner that are not spent, conflicting or absent, in the order of their outpoints.
    /// `after`: the last outpoint of the answer before.
    ///
    /// # Errors
    /// The condition names too many locks; the owner has no script; the database does not answer.
    pub async fn outputs(
        &self,
        owner: &Owner,
        condition: &LockCondition,
        after: Option<Outpoint>,
        limit: u64,
    ) -> Result<Vec<ListedOutput>, VaultError> {
        let (sql, ids) = condition_sql(condition)?;
        let list: Vec<Row> = ids.iter().map(|id| lock_row(*id)).collect();
        read!(self.database, |transaction| async {
            let owner = find_owner(&mut transaction, owner).await?;
            let mut values = vec![int(owner), rows::amount(limit.clamp(1, MAX_OUTPUTS))];
            let after_sql = match after {
                Some(after) => {
                    values.extend([rows::bytes(&after.txid.0), int(after.vout.into())]);
                    "AND (t.txid, t.vout) > ($3, $4)"
                }
                None => "",
            };
            let sql = format!(
                "SELECT {}, s.script, CAST(CASE WHEN {IS_LOCKED} THEN 1 ELSE 0 END AS BIGINT) FROM outputs t \
                 JOIN scripts s ON s.script_id = t.script_id LEFT JOIN locks l ON l.lock_id = t.lock_id \
                 WHERE t.owner_id = $1 AND t.standing NOT IN (2, 4, 5) AND {sql} {after_sql} \
                 ORDER BY t.txid, t.vout LIMIT $2",
                rows::OUTPUT_COLUMNS
            );
            let mut statement = Statement::new(&sql, &values);
            if !list.is_empty() {
                statement = statement.with_rows(&[Kind::Bytes], &list);
            }
            let kinds = [&output_and_script_kinds()[..], &[Kind::Int]].concat();
            let listed = |mut row: Row| -> Result<ListedOutput, Abort> {
                let is_locked = row.pop().is_some_and(|value| value == int(1));
                let (output, stored) = read_output_and_script(row)?;
                Ok(ListedOutput { output, stored, is_locked })
            };
            transaction.fetch_all(&statement, &kinds).await?.into_iter().map(listed).collect()
        })
    }

    /// Reads the locks and sessions of an owner that are in force.
    ///
    /// # Errors
    /// The owner has no script, or the database does not answer.
    pub async fn locks(&self, owner: &Owner) -> Result<Vec<Lock>, VaultError> {
        read!(self.database, |transaction| async {
            let values = [int(find_owner(&mut transaction, owner).await?)];
            let sql = format!(
                "SELECT {} FROM locks t WHERE t.owner_id = $1 AND t.ended_at IS NULL \
                 AND (t.expires_at IS NULL OR t.expires_at > {{now}}) ORDER BY t.lock_id LIMIT {MAX_OUTPUTS}",
                rows::LOCK_COLUMNS
            );
            let found = transaction.fetch_all(&Statement::new(&sql, &values), &rows::LOCK_KINDS).await?;
            found.into_iter().map(|row| Ok(rows::read_lock(row)?)).collect()
        })
    }
}

fn condition_sql(condition: &LockCondition) -> Result<(String, &[LockId]), VaultError> {
    let specified = "t.lock_id IN (SELECT k.column1 FROM {rows})";
    let check = |ids: &[LockId]| match ids.len() {
        1..=MAX_LOCK_IDS => Ok(()),
        _ => Err(VaultError::Invalid(format!("the condition names 1 to {MAX_LOCK_IDS} lock ids"))),
    };
    Ok(match condition {
        LockCondition::Any => ("1 = 1".to_owned(), &[]),
        LockCondition::UnlockedOnly => (format!("NOT {IS_LOCKED}"), &[]),
        LockCondition::LockedOnly => (IS_LOCKED.to_owned(), &[]),
        LockCondition::Specified(ids) => {
            check(ids)?;
            (format!("{IS_LOCKED} AND {specified}"), ids)
        }
        LockCondition::UnlockedAndSpecified(ids) => {
            check(ids)?;
            (format!("(NOT {IS_LOCKED} OR {specified})"), ids)
        }
    })
}

/// Kinds of the columns of [`read_group`].
const GROUP_KINDS: [Kind; 9] = {
    use Kind::{Bool, Int};
    [Int, Int, Int, Int, Bool, Int, Int, Int, Int]
};

/// Reads a group of outputs: its properties, its sum, and the time of its oldest answer.
fn read_group(row: Row) -> Result<(OutputProperties, Sum, Option<i64>), VaultError> {
    let mut columns = Columns::of(row);
    let standing = Standing::from_repr(columns.int()?).ok_or_else(|| VaultError::damaged("an unknown standing"))?;
    let (confirmed, mature, locked) = (columns.int()? == 1, columns.int()? == 1, columns.int()? == 1);
    let own_change = columns.bool()?;
    let (outputs, shares, rest): (u64, u64, u64) = (columns.number()?, columns.number()?, columns.number()?);
    let sum = Sum { outputs, satoshis: shares.saturating_mul(SHARE).saturating_add(rest) };
    Ok((OutputProperties { standing, confirmed, mature, locked, own_change }, sum, columns.optional_int()?))
}
