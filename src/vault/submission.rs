//! Transactions that are built under a lock: their new outputs have the lock before the log has the transaction.

use std::collections::HashMap;

use super::{
    Vault,
    database::{Abort, read, transact},
    error::VaultError,
    locks::{Lock, ReserveObstacle},
    matching::Matches,
    record::{Recorded, record_matches},
    reserve::find_lock,
    rows::{self, int, outpoint_rows},
    types::{LockId, Owner, Standing, WatchedOutput},
    vault::{find_owner, read_moment, read_outputs},
};
use crate::{
    engine::sql::plain::{PlainTransaction, Row, Statement},
    event::{Event, Validated},
    tx::{Outpoint, Transaction},
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

impl Submission<'_> {
    /// Notes the transaction before its publish: its outputs of watched scripts of the owner have the lock from the
    /// first moment on, until the lock ends, so that issue and transfer are one. Returns the number of these outputs. A
    /// transaction that is never published leaves pending outputs, which the vault forgets.
    ///
    /// # Errors
    /// The lock has ended or is of another owner; the database does not answer.
    pub async fn note(&self) -> Result<u64, VaultError> {
        let (vault, owner, lock_id, txid) = (self.vault, self.owner, self.lock_id, self.transaction.txid());
        let event = Event::Validated(Validated { tx: self.extended, height: 0, locked: false });
        loop {
            let scripts = vault.scripts_among(&self.scripts()).await?;
            let mut matches = Matches::default();
            matches.add(&event, &scripts);
            matches.merge_repeats();
            let new = matches.outputs.iter().filter(|seen| seen.outpoint.txid == txid).map(|seen| seen.outpoint);
            let rows = outpoint_rows(new);
            let noted = transact!(vault.database, |transaction| async {
                let moment = read_moment(&mut transaction).await?;
                let owner = find_owner(&mut transaction, owner).await?;
                let lock = find_lock(&mut transaction, lock_id).await?.filter(|lock| lock.owner == owner);
                let lock = lock.ok_or(VaultError::NoLock(lock_id))?;
                if !lock.is_in_force(moment.now) {
                    return Err(VaultError::LockEnded(lock_id).into());
                }
                match record_matches(&mut transaction, &matches, scripts.version).await? {
                    Recorded::Done => Ok(Some(lock_new(&mut transaction, &lock, &rows).await?)),
                    Recorded::OtherScripts => Ok(None),
                }
            })?;
            if let Some(locked) = noted {
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
    ///
    /// # Errors
    /// [`VaultError::StatesNotAvailable`] names the other outputs; the database does not answer.
    pub async fn check_inputs(&self) -> Result<(), VaultError> {
        let txid = self.transaction.txid();
        let inputs: Vec<Outpoint> = self.transaction.inputs().map(|input| input.outpoint).collect();
        let list = outpoint_rows(inputs.iter().copied());
        let (owner_id, known) = read!(self.vault.database, |transaction| async {
            let owner = find_owner(&mut transaction, self.owner).await?;
            Ok((owner, read_outputs(&mut transaction, &list, "").await?))
        })?;
        let known: HashMap<Outpoint, &WatchedOutput> =
            known.iter().map(|(output, _)| (output.outpoint, output)).collect();
        let obstacle = |outpoint: &Outpoint| {
            let obstacle = match known.get(outpoint).filter(|output| output.owner == owner_id) {
                None => ReserveObstacle::Unknown,
                Some(output) if output.lock == Some(self.lock_id) => return None,
                Some(output) if output.facts.spender.is_some_and(|spender| spender.txid == txid) => return None,
                Some(output) if output.facts.standing != Standing::Unspent => {
                    ReserveObstacle::NotUnspent(output.facts.standing)
                }
                Some(_) => ReserveObstacle::NotReserved,
            };
            Some((*outpoint, obstacle))
        };
        let obstacles: Vec<(Outpoint, ReserveObstacle)> = inputs.iter().filter_map(obstacle).collect();
        match obstacles.is_empty() {
            true => Ok(()),
            false => Err(VaultError::StatesNotAvailable(obstacles)),
        }
    }
}

/// Gives new outputs of the owner, which the store does not know yet, a lock.
async fn lock_new(transaction: &mut PlainTransaction, lock: &Lock, outputs: &[Row]) -> Result<u64, Abort> {
    let values = [rows::lock_value(lock.id), int(lock.owner)];
    let statement = Statement::new(
        "UPDATE outputs AS t SET lock_id = $1 FROM {rows} WHERE t.txid = k.column1 AND t.vout = k.column2 \
         AND t.owner_id = $2 AND t.standing = 0 AND (t.lock_id IS NULL OR t.lock_id = $1)",
        &values,
    );
    Ok(transaction.execute(&statement.with_rows(&rows::OUTPOINT_KINDS, outputs)).await?)
}
