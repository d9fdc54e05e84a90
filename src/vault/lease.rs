//! [`WorkerLease`]: of several processes one does a work.

use super::{
    database::{VaultDatabase, transact},
    error::VaultError,
    rows::{self, int},
    types::LockId,
    vault::read_moment,
};
use crate::engine::sql::plain::Statement;

/// Length of a lease, which its holder extends each second.
const LEASE_MS: i64 = 5_000;

/// A lease in the database, by the name of the work.
pub(super) struct WorkerLease {
    worker: &'static str,
    holder: LockId,
}

impl WorkerLease {
    /// Makes the lease of this process for a work. The process does not have the lease yet.
    pub fn of(worker: &'static str) -> Self {
        WorkerLease { worker, holder: LockId::random() }
    }

    /// Takes the lease, or extends the own one; `false`: another process has the lease.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn take(&self, database: &VaultDatabase) -> Result<bool, VaultError> {
        transact!(database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let values = [
                rows::text(self.worker),
                rows::lock_value(self.holder),
                int(moment.now.saturating_add(LEASE_MS)),
                int(moment.now),
            ];
            let statement = Statement::new(
                "INSERT INTO workers (name, holder, expires_at) VALUES ($1, $2, $3) \
                 ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at \
                 WHERE workers.holder = excluded.holder OR workers.expires_at <= $4",
                &values,
            );
            Ok(transaction.execute(&statement).await? == 1)
        })
    }
}
