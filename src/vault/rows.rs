//! Rows of the vault's tables as values, and back.

use bytes::Bytes;

use super::{
    error::VaultError,
    locks::Lock,
    types::{Facts, LockId, OwnerId, ScriptId, Standing, WatchedOutput, outpoint_of},
};
use crate::{
    engine::sql::plain::{Kind, Row, Value},
    record::SpendingData,
    tx::{Outpoint, Txid},
};

/// Columns of [`read_output`], of a table `t`.
pub(super) const OUTPUT_COLUMNS: &str = "t.txid, t.vout, t.owner_id, t.script_id, t.satoshis, t.own_change, \
     t.standing, t.height, t.spendable_from, t.spender, t.spender_input, t.asked_at, t.changes, t.lock_id";
pub(super) const OUTPUT_KINDS: [Kind; 14] = [
    Kind::Bytes,
    Kind::Int,
    Kind::Int,
    Kind::Int,
    Kind::Int,
    Kind::Bool,
    Kind::Int,
    Kind::Int,
    Kind::Int,
    Kind::Bytes,
    Kind::Int,
    Kind::Int,
    Kind::Int,
    Kind::Bytes,
];
/// Columns of [`read_lock`], of a table `t`.
pub(super) const LOCK_COLUMNS: &str = "t.lock_id, t.owner_id, t.session, t.expires_at, t.ended_at";
pub(super) const LOCK_KINDS: [Kind; 5] = [Kind::Bytes, Kind::Int, Kind::Bool, Kind::Int, Kind::Int];
/// Kinds of the rows of [`outpoint_rows`].
pub(super) const OUTPOINT_KINDS: [Kind; 2] = [Kind::Bytes, Kind::Int];

/// Reads the columns of a row one after the other.
pub(super) struct Columns(std::vec::IntoIter<Value>);

impl Columns {
    pub fn of(row: Row) -> Self {
        Columns(row.into_iter())
    }

    pub fn optional_int(&mut self) -> Result<Option<i64>, VaultError> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(number),
            _ => Err(VaultError::damaged("no number where one belongs")),
        }
    }

    pub fn int(&mut self) -> Result<i64, VaultError> {
        self.optional_int()?.ok_or_else(|| VaultError::damaged("an absent number"))
    }

    /// Reads a number that is not negative.
    pub fn number<T: TryFrom<i64>>(&mut self) -> Result<T, VaultError> {
        T::try_from(self.int()?).map_err(|_| VaultError::damaged("a number out of range"))
    }

    pub fn optional_number<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, VaultError> {
        let number = self.optional_int()?.map(T::try_from).transpose();
        number.map_err(|_| VaultError::damaged("a number out of range"))
    }

    pub fn optional_bytes(&mut self) -> Result<Option<Bytes>, VaultError> {
        match self.0.next() {
            Some(Value::Bytes(bytes)) => Ok(bytes),
            _ => Err(VaultError::damaged("no bytes where some belong")),
        }
    }

    pub fn bytes(&mut self) -> Result<Bytes, VaultError> {
        self.optional_bytes()?.ok_or_else(|| VaultError::damaged("absent bytes"))
    }

    pub fn bool(&mut self) -> Result<bool, VaultError> {
        match self.0.next() {
            Some(Value::Bool(value)) => Ok(value),
            _ => Err(VaultError::damaged("no truth value where one belongs")),
        }
    }

    pub fn optional_text(&mut self) -> Result<Option<String>, VaultError> {
        match self.0.next() {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(VaultError::damaged("no text where one belongs")),
        }
    }

    pub fn text(&mut self) -> Result<String, VaultError> {
        self.optional_text()?.ok_or_else(|| VaultError::damaged("an absent text"))
    }

    pub fn outpoint(&mut self) -> Result<Outpoint, VaultError> {
        let (txid, vout) = (self.bytes()?, self.int()?);
        outpoint_of(&txid, vout).ok_or_else(|| VaultError::damaged("no outpoint where one belongs"))
    }

    pub fn lock_id(&mut self) -> Result<Option<LockId>, VaultError> {
        self.optional_bytes()?.map(|bytes| lock_id_of(&bytes)).transpose()
    }
}

fn lock_id_of(bytes: &[u8]) -> Result<LockId, VaultError> {
    let id = uuid::Uuid::from_slice(bytes).map_err(|_| VaultError::damaged("no id of a lock where one belongs"))?;
    Ok(LockId(id))
}

/// Reads the columns [`OUTPUT_COLUMNS`].
pub(super) fn read_output(columns: &mut Columns) -> Result<WatchedOutput, VaultError> {
    let outpoint = columns.outpoint()?;
    let (owner, script): (OwnerId, ScriptId) = (columns.int()?, columns.int()?);
    let (satoshis, own_change) = (columns.number()?, columns.bool()?);
    let standing = Standing::from_repr(columns.int()?).ok_or_else(|| VaultError::damaged("an unknown standing"))?;
    let (height, spendable_from) = (columns.optional_number()?, columns.optional_number()?);
    let (txid, input) = (columns.optional_bytes()?, columns.optional_number()?);
    let spender = match (txid, input) {
        (Some(txid), Some(input)) => {
            let txid = Txid((&txid[..]).try_into().map_err(|_| VaultError::damaged("a spender that is no txid"))?);
            Some(SpendingData { txid, input })
        }
        _ => None,
    };
    let facts = Facts { standing, height, spendable_from, spender };
    let (asked_at, changes) = (columns.optional_int()?, columns.int()?);
    let lock = columns.lock_id()?;
    Ok(WatchedOutput { outpoint, owner, script, satoshis, own_change, facts, asked_at, changes, lock })
}

/// Reads the columns [`LOCK_COLUMNS`].
pub(super) fn read_lock(row: Row) -> Result<Lock, VaultError> {
    let mut columns = Columns::of(row);
    let id = columns.lock_id()?.ok_or_else(|| VaultError::damaged("a lock without an id"))?;
    let (owner, session) = (columns.int()?, columns.bool()?);
    let (expires_at, ended_at) = (columns.optional_int()?, columns.optional_int()?);
    Ok(Lock { id, owner, session, expires_at, ended: ended_at.is_some() })
}

pub(super) fn int(number: i64) -> Value {
    Value::Int(Some(number))
}

/// Stores a number that fits into 63 bits, such as an amount of at most 21,000,000 coins.
pub(super) fn amount(satoshis: u64) -> Value {
    Value::Int(Some(i64::try_from(satoshis).unwrap_or(i64::MAX)))
}

pub(super) fn optional_number(number: Option<u32>) -> Value {
    Value::Int(number.map(i64::from))
}

pub(super) fn bytes(bytes: &[u8]) -> Value {
    Value::Bytes(Some(Bytes::copy_from_slice(bytes)))
}

pub(super) fn text(text: &str) -> Value {
    Value::Text(Some(text.to_owned()))
}

pub(super) fn lock_value(id: LockId) -> Value {
    bytes(id.0.as_bytes())
}

/// Returns the rows of outpoints, in ascending order, each once: two transactions that lock the same rows lock them in
/// one order.
pub(super) fn outpoint_rows(outpoints: impl IntoIterator<Item = Outpoint>) -> Vec<Row> {
    let mut rows: Vec<Row> =
        outpoints.into_iter().map(|outpoint| vec![bytes(&outpoint.txid.0), int(outpoint.vout.into())]).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}
