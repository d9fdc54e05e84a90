//! Transactions that are built under a lock: their new outputs have the lock before the log has the transaction.

use std::collections::{BTreeSet, HashMap};

use super::{
    Vault,
    database::{Abort, transact},
    error::VaultError,
    locks::{Lock, ReserveObstacle},
    matching::Matches,
    record::{Recorded, record_matches},
    reserve::{find_claimed, find_lock},
    rows::{self, Columns, int, outpoint_rows},
    types::{LockId, Owner, OwnerId, Standing, WatchedOutput},
    vault::{find_owner, lock_outputs, read_moment},
};
use crate::{
    engine::sql::plain::{Kind, PlainTransaction, Row, Statement},
    event::{Event, Validated},
    record::StoredOutput,
    tx::{Outpoint, PreviousOutput, Transaction, Txid},
};

/// A transaction that is about to be published under a lock.
pub struct Submission<'a> {
    vault: &'a Vault,
    owner: &'a Owner,
    lock_id: LockId,
    extended: &'a [u8],
    transaction: Transaction<'a>,
}

impl Vault {
    /// Reads a transaction that is about to be published under a lock of an owner.
    ///
    /// # Errors
    /// The bytes are no transaction in extended format.
    pub fn submission<'a>(
        &'a self,
        owner: &'a Owner,
        lock_id: LockId,
        extended: &'a [u8],
    ) -> Result<Submission<'a>, VaultError> {
        let transaction = Transaction::parse(extended).map_err(|error| VaultError::invalid(error.to_string()))?;
        if !transaction.is_extended() {
            return Err(VaultError::invalid("the transaction is not in extended format"));
        }
        Ok(Submission { vault: self, owner, lock_id, extended, transaction })
    }
}

/// Inputs that a submission may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PermittedInputs {
    /// Any outputs: the caller has validated the transaction.
    Any,
    /// Outputs of the owner that the lock has.
    Reserved,
}

/// Time for which the lock lasts at least after a submission, so that no other request takes the inputs before the
/// event is in the log.
const PUBLISH_MS: i64 = 60_000;

impl Submission<'_> {
    /// Records the transaction before its publish: its outputs of watched scripts of the owner have the lock until the
    /// lock ends, and no other request gets its inputs. Returns the number of these outputs. A transaction that is
    /// never published leaves pending outputs, which the vault forgets.
    ///
    /// A repeat succeeds also after the end of the lock, so that its caller publishes the same transaction again.
    ///
    /// # Errors
    /// [`VaultError::StatesNotAvailable`] names inputs that are not permitted; an input names another previous output
    /// than the vault has; the lock has ended or is of another owner; the database does not answer.
    pub async fn record(&self, permitted: PermittedInputs) -> Result<u64, VaultError> {
        let (vault, owner, lock_id, txid) = (self.vault, self.owner, self.lock_id, self.transaction.txid());
        let event = Event::Validated(Validated { tx: self.extended, height: 0, locked: false });
        let inputs: Vec<Outpoint> = self.transaction.inputs().map(|input| input.outpoint).collect();
        let list = outpoint_rows(inputs.iter().copied());
        loop {
            let scripts = vault.scripts_among(&self.scripts()).await?;
            let mut matches = Matches::default();
            matches.add(&event, &scripts);
            matches.merge_repeats();
            let new = matches.outputs.iter().filter(|seen| seen.outpoint.txid == txid).map(|seen| seen.outpoint);
            let rows = outpoint_rows(new);
            let recorded = transact!(vault.database, |transaction| async {
                let owner = find_owner(&mut transaction, owner).await?;
                let known = lock_outputs(&mut transaction, &list).await?;
                let lock = find_lock(&mut transaction, lock_id).await?.filter(|lock| lock.owner == owner);
                let lock = lock.ok_or(VaultError::NoLock(lock_id))?;
                // The clock is read once nobody else can change the lock and the outputs.
                let moment = read_moment(&mut transaction).await?;
                let is_repeat = is_recorded(&mut transaction, txid).await?;
                if !is_repeat && !lock.is_in_force(moment.now) {
                    return Err(VaultError::LockEnded(lock_id).into());
                }
                if permitted == PermittedInputs::Reserved {
                    let claimed = find_claimed(&mut transaction, &list, Some(txid)).await?;
                    self.check_inputs(owner, &known, &claimed, is_repeat)?;
                }
                if record_matches(&mut transaction, &matches, scripts.version).await? == Recorded::OtherScripts {
                    return Ok(None);
                }
                if !lock.is_in_force(moment.now) {
                    return Ok(Some(0));
                }
                extend(&mut transaction, lock_id, moment.now.saturating_add(PUBLISH_MS)).await?;
                Ok(Some(lock_new(&mut transaction, &lock, &rows).await?))
            })?;
            if let Some(locked) = recorded {
                return Ok(locked);
            }
        }
    }

    /// Returns the scripts of the outputs and of the previous outputs, each once.
    fn scripts(&self) -> Vec<&[u8]> {
        let previous = self.transaction.inputs().filter_map(|input| input.previous.map(|output| output.script));
        let mut scripts: Vec<&[u8]> = self.transaction.outputs().map(|output| output.script).chain(previous).collect();
        scripts.sort_unstable();
        scripts.dedup();
        scripts
    }

    /// Checks that the transaction spends nothing but outputs of the owner that the lock has. An output that this
    /// transaction itself has spent counts, so that a repeat passes.
    fn check_inputs(
        &self,
        owner: OwnerId,
        known: &[(WatchedOutput, StoredOutput)],
        claimed: &BTreeSet<Outpoint>,
        is_repeat: bool,
    ) -> Result<(), VaultError> {
        let txid = self.transaction.txid();
        let known: HashMap<Outpoint, &(WatchedOutput, StoredOutput)> =
            known.iter().map(|known| (known.0.outpoint, known)).collect();
        let mut obstacles = Vec::new();
        for input in self.transaction.inputs() {
            let obstacle = match known.get(&input.outpoint).filter(|(output, _)| output.owner == owner) {
                None => ReserveObstacle::Unknown,
                Some((output, stored)) => {
                    let is_same = |previous: PreviousOutput<'_>| {
                        previous.satoshis == stored.satoshis && previous.script == stored.script
                    };
                    if !input.previous.is_some_and(is_same) {
                        let problem = format!("the input {} names another previous output", input.outpoint);
                        return Err(VaultError::Invalid(problem));
                    }
                    match output.facts.spender {
                        Some(spender) if spender.txid == txid => continue,
                        _ if claimed.contains(&input.outpoint) => ReserveObstacle::Claimed,
                        _ if output.lock == Some(self.lock_id) || is_repeat => continue,
                        _ if output.facts.standing != Standing::Unspent => {
                            ReserveObstacle::NotUnspent(output.facts.standing)
                        }
                        _ => ReserveObstacle::NotReserved,
                    }
                }
            };
            obstacles.push((input.outpoint, obstacle));
        }
        match obstacles.is_empty() {
            true => Ok(()),
            false => Err(VaultError::StatesNotAvailable(obstacles)),
        }
    }
}

/// Returns whether an event, or an earlier submission, has named a transaction as the spender of a watched output.
async fn is_recorded(transaction: &mut PlainTransaction, txid: Txid) -> Result<bool, Abort> {
    let values = [rows::bytes(&txid.0)];
    let statement = Statement::new("SELECT count(*) FROM claims WHERE spender = $1", &values);
    let row = transaction.fetch_all(&statement, &[Kind::Int]).await?.pop();
    Ok(row.map_or(Ok(0), |row| Columns::of(row).int())? > 0)
}

/// Extends a lock that ends by itself to a time at least.
async fn extend(transaction: &mut PlainTransaction, lock_id: LockId, to: i64) -> Result<(), Abort> {
    let values = [rows::lock_value(lock_id), int(to)];
    let statement = Statement::new("UPDATE locks SET expires_at = $2 WHERE lock_id = $1 AND expires_at < $2", &values);
    transaction.execute(&statement).await?;
    Ok(())
}

/// Gives new outputs of the owner, which the store does not know yet, a lock. Returns the number of new outputs that
/// have the lock.
async fn lock_new(transaction: &mut PlainTransaction, lock: &Lock, outputs: &[Row]) -> Result<u64, Abort> {
    let values = [rows::lock_value(lock.id), int(lock.owner)];
    let statement = Statement::new(
        "UPDATE outputs AS t SET lock_id = $1 FROM {rows} WHERE t.txid = k.column1 AND t.vout = k.column2 \
         AND t.owner_id = $2 AND t.standing = 0 AND (t.lock_id IS NULL OR t.lock_id = $1)",
        &values,
    );
    transaction.execute(&statement.with_rows(&rows::OUTPOINT_KINDS, outputs)).await?;
    let statement = Statement::new(
        "SELECT t.vout FROM {rows} CROSS JOIN outputs t WHERE t.txid = k.column1 AND t.vout = k.column2 \
         AND t.lock_id = $1 AND t.owner_id = $2",
        &values,
    );
    let held = transaction.fetch_all(&statement.with_rows(&rows::OUTPOINT_KINDS, outputs), &[Kind::Int]).await?;
    Ok(held.len() as u64)
}
