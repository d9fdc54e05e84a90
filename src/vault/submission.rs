//! Transactions that are built under a lock: their new outputs have the lock before the log has the transaction.

use super::{
    Vault,
    database::{Abort, transact},
    error::VaultError,
    locks::Lock,
    matching::Matches,
    record::{Recorded, record_matches},
    reserve::find_lock,
    rows::{self, int, outpoint_rows},
    types::{LockId, Owner},
    vault::{find_owner, read_moment},
};
use crate::{
    engine::sql::plain::{PlainTransaction, Row, Statement},
    event::{Event, Validated},
    tx::Transaction,
};

impl Vault {
    /// Notes a transaction that is about to be published under a lock: its outputs of watched scripts of the owner have
    /// the lock from the first moment on, until the lock ends, so that issue and transfer are one. Returns the number
    /// of these outputs. A transaction that is never published leaves pending outputs, which the vault forgets.
    ///
    /// # Errors
    /// The bytes are no transaction in extended format; the lock has ended or is of another owner; the database does
    /// not answer.
    pub async fn note_submission(&self, owner: &Owner, lock_id: LockId, extended: &[u8]) -> Result<u64, VaultError> {
        let transaction = Transaction::parse(extended).map_err(|error| VaultError::invalid(error.to_string()))?;
        if !transaction.is_extended() {
            return Err(VaultError::invalid("the transaction is not in extended format"));
        }
        let (txid, event) =
            (transaction.txid(), Event::Validated(Validated { tx: extended, height: 0, locked: false }));
        loop {
            let scripts = self.scripts_between((i64::MIN, i64::MAX)).await?;
            let mut matches = Matches::default();
            matches.add(&event, &scripts);
            matches.merge_repeats();
            let new = matches.outputs.iter().filter(|seen| seen.outpoint.txid == txid).map(|seen| seen.outpoint);
            let rows = outpoint_rows(new);
            let noted = transact!(self.database, |transaction| async {
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
