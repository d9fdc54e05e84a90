//! Soft locks: reserve and release outputs, and sessions with leases.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    Vault,
    database::{Abort, read, transact},
    error::VaultError,
    locks::{Lock, ReserveObstacle, find_obstacle},
    rows::{self, Columns, int, outpoint_rows},
    types::{LockId, Owner, OwnerId, Standing, WatchedOutput},
    vault::{end_expired, end_locks, find_owner, lock_outputs, lock_row, read_moment, read_outputs},
};
use crate::{
    engine::sql::plain::{Kind, PlainTransaction, Row, Statement, Value},
    tx::{Outpoint, Txid},
};

/// Most outputs of one request.
const MAX_REFS: usize = 10_000;

/// A session: a lock id with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Id under which the session reserves outputs.
    pub lock_id: LockId,
    /// Time at which the session ends without a heartbeat, milliseconds since the epoch by the clock of the database.
    pub expires_at: i64,
}

/// A reservation: the outputs that a request has found free, or had before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Id of the lock.
    pub lock_id: LockId,
    /// Time at which the lock ends by itself, milliseconds since the epoch; `None`: the lock lasts until released.
    pub expires_at: Option<i64>,
}

impl Vault {
    /// Reserves outputs under a lock id, all or none (`softLockReserve`). An output that has this lock already counts
    /// as reserved. `ttl`: time after which the lock ends by itself; a later end of the lock stays.
    ///
    /// # Errors
    /// [`VaultError::StatesNotAvailable`] names the outputs that are unknown, not unspent, or locked by others. The
    /// lock has ended or is of another owner; the database or the store does not answer.
    pub async fn soft_lock_reserve(
        &self,
        owner: &Owner,
        lock_id: LockId,
        refs: &[Outpoint],
        ttl: Option<Duration>,
    ) -> Result<Reservation, VaultError> {
        check_refs(refs)?;
        let ttl = self.check_lease(ttl)?;
        let tip = self.tip().await?;
        // The store decides before anything is reserved: a reservation that would be taken back could be one that a
        // repeat of the request has answered with.
        let list = outpoint_rows(refs.iter().copied());
        let (owner_id, asked_at, known) = read!(self.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let owner = find_owner(&mut transaction, owner).await?;
            Ok((owner, moment.now, read_outputs(&mut transaction, &list, "").await?))
        })?;
        let known = known.into_iter().filter(|(output, _)| output.owner == owner_id).collect();
        let asked = self.ask(known, tip, asked_at).await?;
        let gone: Vec<(Outpoint, ReserveObstacle)> =
            asked.iter().filter_map(|(output, _)| obstacle_of(output)).collect();
        let lock = transact!(self.database, |transaction| reserve_within(
            &mut transaction,
            owner,
            (lock_id, ttl),
            refs,
            &gone
        ))?;
        Ok(Reservation { lock_id, expires_at: lock.expires_at })
    }

    /// Releases outputs of a lock (`softLockRelease`); returns the number of outputs. `None`: the lock ends, with all
    /// its outputs. An output that has another lock, or none, stays as it is.
    ///
    /// # Errors
    /// The lock is of another owner, or unknown; the database does not answer.
    pub async fn soft_lock_release(
        &self,
        owner: &Owner,
        lock_id: LockId,
        refs: Option<&[Outpoint]>,
    ) -> Result<u64, VaultError> {
        if let Some(refs) = refs {
            check_refs(refs)?;
        }
        transact!(self.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let owner_id = find_owner(&mut transaction, owner).await?;
            let lock = find_lock(&mut transaction, lock_id).await?.filter(|lock| lock.owner == owner_id);
            if lock.is_none() {
                return Err(VaultError::NoLock(lock_id).into());
            }
            match refs {
                Some(refs) => release_within(&mut transaction, lock_id, refs.iter().copied()).await,
                None => {
                    let values = [rows::lock_value(lock_id)];
                    let count = Statement::new("SELECT count(*) FROM outputs WHERE lock_id = $1", &values);
                    let count = transaction.fetch_all(&count, &[Kind::Int]).await?.pop();
                    end_locks(&mut transaction, &[lock_row(lock_id)], moment.now).await?;
                    Ok(count.map_or(Ok(0), |row| Columns::of(row).number())?)
                }
            }
        })
    }

    /// Opens a session. `id`: an id of the client's own, with which a repeat finds the same session.
    ///
    /// # Errors
    /// The lease is longer than permitted, the id is of another lock, or the database does not answer.
    pub async fn open_session(
        &self,
        owner: &Owner,
        lease: Option<Duration>,
        id: Option<LockId>,
    ) -> Result<Session, VaultError> {
        let lease = self.check_lease(Some(lease.unwrap_or(self.settings.lease)))?;
        let id = id.unwrap_or_else(LockId::random);
        transact!(self.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let owner_id = find_owner(&mut transaction, owner).await?;
            let new = NewLock { id, owner: owner_id, session: true, lease };
            let lock = make_lock(&mut transaction, new, moment.now).await?;
            match lock.expires_at {
                Some(expires_at) if lock.session => Ok(Session { lock_id: id, expires_at }),
                _ => Err(VaultError::invalid(format!("{id} is a lock without a session")).into()),
            }
        })
    }

    /// Extends the lease of a session by its length from now on, or by another length.
    ///
    /// # Errors
    /// The session has ended or is unknown, or the database does not answer.
    pub async fn heartbeat(
        &self,
        owner: &Owner,
        lock_id: LockId,
        lease: Option<Duration>,
    ) -> Result<Session, VaultError> {
        let lease = self.check_lease(lease)?;
        transact!(self.database, |transaction| async {
            let owner_id = find_owner(&mut transaction, owner).await?;
            let lock = find_lock(&mut transaction, lock_id).await?;
            // The clock is read once nobody else can change the lock.
            let moment = read_moment(&mut transaction).await?;
            match lock.filter(|lock| lock.owner == owner_id && lock.session) {
                None => return Err(VaultError::NoLock(lock_id).into()),
                Some(lock) if !lock.is_in_force(moment.now) => return Err(VaultError::LockEnded(lock_id).into()),
                Some(_) => {}
            }
            let values = [rows::lock_value(lock_id), int(moment.now), Value::Int(lease)];
            let extend = Statement::new(
                "UPDATE locks SET lease_ms = COALESCE($3, lease_ms), expires_at = $2 + COALESCE($3, lease_ms) \
                 WHERE lock_id = $1 RETURNING expires_at",
                &values,
            );
            let row = transaction.fetch_all(&extend, &[Kind::Int]).await?.pop();
            let expires_at = row.map(|row| Columns::of(row).int()).transpose()?;
            Ok(Session { lock_id, expires_at: expires_at.ok_or(VaultError::NoLock(lock_id))? })
        })
    }

    /// Returns a lease or TTL in milliseconds.
    pub(super) fn check_lease(&self, lease: Option<Duration>) -> Result<Option<i64>, VaultError> {
        let Some(lease) = lease else { return Ok(None) };
        let longest = self.settings.longest_lease;
        if lease < Duration::from_millis(1) || lease > longest {
            let problem = format!("a lease or TTL is 1 ms to {longest:?}; this one is {lease:?}");
            return Err(VaultError::Invalid(problem));
        }
        Ok(Some(i64::try_from(lease.as_millis()).unwrap_or(i64::MAX)))
    }

    /// Frees outputs that a request has reserved and does not hand out. An output that cannot be freed stays reserved
    /// until the lock ends.
    pub(super) async fn give_back(&self, lock_id: LockId, outpoints: Vec<Outpoint>) {
        let released: Result<u64, VaultError> = transact!(self.database, |transaction| release_within(
            &mut transaction,
            lock_id,
            outpoints.iter().copied()
        ));
        if let Err(error) = released {
            tracing::warn!(%lock_id, %error, "vault: outputs that were not handed out stay locked until the lock ends");
        }
    }
}

fn obstacle_of(output: &WatchedOutput) -> Option<(Outpoint, ReserveObstacle)> {
    let standing = output.facts.standing;
    (standing != Standing::Unspent).then_some((output.outpoint, ReserveObstacle::NotUnspent(standing)))
}

fn check_refs(refs: &[Outpoint]) -> Result<(), VaultError> {
    match refs.len() {
        0 => Err(VaultError::invalid("the request names no output")),
        1..=MAX_REFS => Ok(()),
        count => Err(VaultError::Invalid(format!("the request names {count} outputs, of at most {MAX_REFS}"))),
    }
}

/// A lock that is found or made.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewLock {
    pub id: LockId,
    pub owner: OwnerId,
    pub session: bool,
    /// Lease of a session or TTL of a lock, milliseconds; `None`: the lock lasts until released.
    pub lease: Option<i64>,
}

/// Reads a lock, and keeps others from changing the lock until the end of the transaction.
pub(super) async fn find_lock(transaction: &mut PlainTransaction, id: LockId) -> Result<Option<Lock>, Abort> {
    let sql = format!("SELECT {} FROM locks t WHERE t.lock_id = $1 {{lock}}", rows::LOCK_COLUMNS);
    let values = [rows::lock_value(id)];
    let found = transaction.fetch_all(&Statement::new(&sql, &values), &rows::LOCK_KINDS).await?.pop();
    Ok(found.map(rows::read_lock).transpose()?)
}

/// Finds a lock, or makes the lock. A lock that exists ends no earlier than before.
pub(super) async fn make_lock(transaction: &mut PlainTransaction, new: NewLock, now: i64) -> Result<Lock, Abort> {
    let end = new.lease.map(|lease| now.saturating_add(lease));
    let values = [
        rows::lock_value(new.id),
        int(new.owner),
        Value::Bool(new.session),
        int(now),
        Value::Int(new.lease),
        Value::Int(end),
    ];
    let insert = Statement::new(
        "INSERT INTO locks (lock_id, owner_id, session, opened_at, lease_ms, expires_at) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (lock_id) DO NOTHING",
        &values,
    );
    if transaction.execute(&insert).await? == 1 {
        return Ok(Lock { id: new.id, owner: new.owner, session: new.session, expires_at: end, ended: false });
    }
    let Some(mut lock) = find_lock(transaction, new.id).await?.filter(|lock| lock.owner == new.owner) else {
        return Err(VaultError::NoLock(new.id).into());
    };
    if !lock.is_in_force(now) {
        return Err(VaultError::LockEnded(new.id).into());
    }
    if let (Some(end), Some(expires_at), false) = (end, lock.expires_at, lock.session)
        && end > expires_at
    {
        let values = [rows::lock_value(new.id), int(end)];
        transaction.execute(&Statement::new("UPDATE locks SET expires_at = $2 WHERE lock_id = $1", &values)).await?;
        lock.expires_at = Some(end);
    }
    Ok(lock)
}

/// Reserves outputs in a transaction. `gone`: outputs that the store does not have as unspent.
async fn reserve_within(
    transaction: &mut PlainTransaction,
    owner: &Owner,
    (lock_id, lease): (LockId, Option<i64>),
    refs: &[Outpoint],
    gone: &[(Outpoint, ReserveObstacle)],
) -> Result<Lock, Abort> {
    let moment = read_moment(transaction).await?;
    end_expired(transaction, moment.now).await?;
    let owner = find_owner(transaction, owner).await?;
    let lock = make_lock(transaction, NewLock { id: lock_id, owner, session: false, lease }, moment.now).await?;
    let list = outpoint_rows(refs.iter().copied());
    let outputs = lock_outputs(transaction, &list).await?;
    let holders = find_holders(transaction, outputs.iter().map(|(output, _)| output)).await?;
    // A lock whose lease is over ends before another takes its outputs: a heartbeat that comes later is refused.
    let over = holders.values().filter(|holder| !holder.ended && !holder.is_in_force(moment.now));
    let over: Vec<Row> = over.filter(|holder| holder.id != lock_id).map(|holder| lock_row(holder.id)).collect();
    let known: BTreeMap<Outpoint, &WatchedOutput> =
        outputs.iter().map(|(output, _)| (output.outpoint, output)).collect();
    let claimed = find_claimed(transaction, &list, None).await?;
    let obstacle = |outpoint: &Outpoint| {
        if let Some(gone) = gone.iter().find(|(at, _)| at == outpoint) {
            return Some(*gone);
        }
        let output = known.get(outpoint).copied();
        let holder = output.and_then(|output| output.lock).and_then(|id| holders.get(&id));
        let obstacle = find_obstacle(output, &lock, holder, moment.now).or_else(|| {
            // An output that the lock has already stays reserved.
            let is_held = output.is_some_and(|output| output.lock == Some(lock_id));
            (!is_held && claimed.contains(outpoint)).then_some(ReserveObstacle::Claimed)
        });
        obstacle.map(|obstacle| (*outpoint, obstacle))
    };
    let obstacles: Vec<(Outpoint, ReserveObstacle)> = refs.iter().filter_map(obstacle).collect();
    if !obstacles.is_empty() {
        return Err(VaultError::StatesNotAvailable(obstacles).into());
    }
    end_locks(transaction, &over, moment.now).await?;
    set_lock(transaction, lock_id, &list).await?;
    Ok(lock)
}

/// Finds outputs of a list of which an event names a spender that the store does not show yet. `except`: a spender that
/// does not count.
pub(super) async fn find_claimed(
    transaction: &mut PlainTransaction,
    list: &[Row],
    except: Option<Txid>,
) -> Result<BTreeSet<Outpoint>, Abort> {
    let values = [rows::bytes(&except.unwrap_or(Txid([0; 32])).0)];
    let statement = Statement::new(
        "SELECT c.txid, c.vout FROM {rows} CROSS JOIN claims c WHERE c.txid = k.column1 AND c.vout = k.column2 \
         AND NOT c.is_out AND c.bars_until > {now} AND c.spender <> $1",
        &values,
    );
    let found = transaction.fetch_all(&statement.with_rows(&rows::OUTPOINT_KINDS, list), &rows::OUTPOINT_KINDS).await?;
    found.into_iter().map(|row| Ok(Columns::of(row).outpoint()?)).collect()
}

/// Gives outputs, whose rows this transaction has locked, a soft lock.
pub(super) async fn set_lock(
    transaction: &mut PlainTransaction,
    lock_id: LockId,
    outpoints: &[Row],
) -> Result<(), Abort> {
    let values = [rows::lock_value(lock_id)];
    let statement = Statement::new(
        "UPDATE outputs AS t SET lock_id = $1 FROM {rows} WHERE t.txid = k.column1 AND t.vout = k.column2",
        &values,
    );
    transaction.execute(&statement.with_rows(&rows::OUTPOINT_KINDS, outpoints)).await?;
    Ok(())
}

pub(super) async fn release_within(
    transaction: &mut PlainTransaction,
    lock_id: LockId,
    outpoints: impl IntoIterator<Item = Outpoint>,
) -> Result<u64, Abort> {
    let list = outpoint_rows(outpoints);
    let values = [rows::lock_value(lock_id)];
    let statement = Statement::new(
        "UPDATE outputs AS t SET lock_id = NULL FROM {rows} \
         WHERE t.txid = k.column1 AND t.vout = k.column2 AND t.lock_id = $1",
        &values,
    );
    Ok(transaction.execute(&statement.with_rows(&rows::OUTPOINT_KINDS, &list)).await?)
}

/// Reads the locks that outputs have, and keeps others from changing them until the end of the transaction.
async fn find_holders(
    transaction: &mut PlainTransaction,
    outputs: impl Iterator<Item = &WatchedOutput>,
) -> Result<BTreeMap<LockId, Lock>, Abort> {
    let mut ids: Vec<LockId> = outputs.filter_map(|output| output.lock).collect();
    ids.sort_unstable();
    ids.dedup();
    let list: Vec<Row> = ids.into_iter().map(lock_row).collect();
    let sql = format!(
        "SELECT {} FROM {{rows}} CROSS JOIN locks t WHERE t.lock_id = k.column1 ORDER BY t.lock_id {{lock}}",
        rows::LOCK_COLUMNS
    );
    let statement = Statement::new(&sql, &[]).with_rows(&[Kind::Bytes], &list);
    let found = transaction.fetch_all(&statement, &rows::LOCK_KINDS).await?;
    found
        .into_iter()
        .map(|row| {
            let lock = rows::read_lock(row)?;
            Ok((lock.id, lock))
        })
        .collect()
}
