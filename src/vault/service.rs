//! [`VaultService`]: a vault at work, which follows the log, asks the store and reads rescans.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    Asker, AskerSettings, FollowCounts, FollowError, Follower, Rescan, Vault, asker::AskerCounts, database::read,
    error::VaultError, lease::WorkerLease, queries::IS_LOCKED, rows::Columns,
};
use crate::{
    backoff::Backoff,
    blob::EventBodies,
    broker::Broker,
    config::Topics,
    embed::Store,
    engine::sql::plain::{Kind, Statement},
    snapshot::Shelf,
};

/// Name of the lease of rescans.
const WORKER: &str = "rescan";
/// Time between two extensions of the lease.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// First and longest pause before the rescans are looked at again; longer after an error.
const RESCAN_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Parts of a vault at work.
pub struct VaultParts {
    /// The vault that is kept near the store.
    pub vault: Vault,
    /// The log of the store.
    pub broker: Arc<dyn Broker>,
    /// Topics of the store.
    pub topics: Topics,
    /// Group of the vault's processes.
    pub group: String,
    /// Object store with the bodies of large transactions; `None`: every event has its transaction.
    pub bodies: Option<EventBodies>,
    /// Store that this process has open, for rescans of the store.
    pub store: Option<Store>,
    /// Place of the snapshots, for rescans of a snapshot.
    pub snapshots: Option<Shelf>,
    /// Times of the asker.
    pub asker: AskerSettings,
}

/// A vault at work.
pub struct VaultService {
    follower: Follower,
    asker: Asker,
    rescan: Arc<Rescan>,
    lease: WorkerLease,
    /// Counts of this process.
    pub counts: VaultCounts,
}

/// Counts of a process of the vault.
#[derive(Debug, Clone, Default)]
pub struct VaultCounts {
    /// Events that were read.
    pub follow: Arc<FollowCounts>,
    /// Questions to the store.
    pub asker: Arc<AskerCounts>,
    /// Messages, transactions of the store, and records of snapshots that rescans have read.
    pub rescanned: Arc<AtomicU64>,
}

/// Locks in force of all owners.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockTotals {
    /// Number of locks and sessions.
    pub locks: u64,
    /// Number of outputs that they have.
    pub outputs: u64,
    /// Age of the oldest lock.
    pub oldest: Duration,
}

impl VaultService {
    /// Makes the service, and notes the present ends of the topics as the begin of a new vault. Call before the vault
    /// takes requests.
    ///
    /// # Errors
    /// A topic does not exist; the log or the database does not answer for good.
    pub async fn begin(parts: VaultParts) -> Result<Self, FollowError> {
        let VaultParts { vault, broker, topics, group, bodies, store, snapshots, asker } = parts;
        let rescan = Rescan {
            vault: vault.clone(),
            broker: broker.clone(),
            topics: topics.clone(),
            bodies: bodies.clone(),
            store,
            snapshots,
        };
        let follow = Arc::<FollowCounts>::default();
        let asker = Asker::new(vault.clone(), asker);
        let counts = VaultCounts { follow: follow.clone(), asker: asker.counts.clone(), rescanned: Arc::default() };
        let follower = Follower { vault, broker, topics, group, bodies, counts: follow };
        follower.begin().await?;
        Ok(VaultService { follower, asker, rescan: Arc::new(rescan), lease: WorkerLease::of(WORKER), counts })
    }

    /// Returns the vault of the service.
    pub fn vault(&self) -> &Vault {
        &self.follower.vault
    }

    /// Returns what begins rescans.
    pub fn rescan(&self) -> Arc<Rescan> {
        self.rescan.clone()
    }

    /// Counts the locks in force of all owners, and the outputs that they have.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn lock_totals(&self) -> Result<LockTotals, VaultError> {
        read!(self.vault().database, |transaction| async {
            let sql = format!(
                "SELECT count(*), min(l.opened_at), {{now}}, \
                 (SELECT count(*) FROM outputs t JOIN locks l ON l.lock_id = t.lock_id WHERE {IS_LOCKED}) \
                 FROM locks l WHERE {IS_LOCKED}"
            );
            let kinds = [Kind::Int, Kind::Int, Kind::Int, Kind::Int];
            let row = transaction.fetch_all(&Statement::new(&sql, &[]), &kinds).await?.pop();
            let mut columns = Columns::of(row.ok_or_else(|| VaultError::damaged("gone: a count has no row"))?);
            let (locks, opened_at, now) = (columns.number()?, columns.optional_int()?, columns.int()?);
            let age = opened_at.map_or(0, |opened_at| now.saturating_sub(opened_at));
            let oldest = Duration::from_millis(u64::try_from(age).unwrap_or(0));
            Ok(LockTotals { locks, outputs: columns.number()?, oldest })
        })
    }

    /// Keeps the vault near the store until `shutdown`.
    ///
    /// # Errors
    /// The log refuses access, the database has an error that no repeat mends, or a body has no object store.
    pub async fn run(&self, shutdown: &CancellationToken) -> Result<(), FollowError> {
        let stop = shutdown.child_token();
        let _stop_at_end = stop.clone().drop_guard();
        let first_error_stops = async |work: Result<(), FollowError>| {
            if work.is_err() {
                stop.cancel();
            }
            work
        };
        let (followed, asked, rescanned) = tokio::join!(
            async { first_error_stops(self.follower.run(&stop).await).await },
            async { first_error_stops(self.asker.run(&stop).await.map_err(FollowError::from)).await },
            async { first_error_stops(Box::pin(self.run_rescans(&stop)).await).await },
        );
        followed.and(asked).and(rescanned)
    }

    /// Reads rescans while this process has their lease.
    async fn run_rescans(&self, shutdown: &CancellationToken) -> Result<(), FollowError> {
        let database = &self.follower.vault.database;
        let mut pauses = Backoff::new(RESCAN_PAUSE, 0);
        while !shutdown.is_cancelled() {
            let work = async {
                if !self.lease.take(database).await? {
                    return Ok(());
                }
                tokio::select! {
                    read = self.rescan.run(shutdown, &self.counts.rescanned) => read.map(drop),
                    () = self.keep_lease() => Ok(()),
                }
            };
            let pause = match Box::pin(work).await {
                Ok(()) => {
                    pauses = Backoff::new(RESCAN_PAUSE, 0);
                    RESCAN_PAUSE.0
                }
                Err(FollowError::Vault(error @ VaultError::Fatal(_))) => return Err(error.into()),
                // The part is logged, and the others were read.
                Err(_) => pauses.next_pause(),
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        Ok(())
    }

    /// Extends the lease; ends when another process has the lease. While the database does not answer, the work goes
    /// on: its own requests wait for the database.
    async fn keep_lease(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.lease.take(&self.follower.vault.database).await {
                Ok(true) => {}
                Ok(false) => {
                    tracing::warn!("vault: another process reads the rescans");
                    return;
                }
                Err(error) => tracing::warn!(%error, "vault: the lease of the rescans waits for the database"),
            }
        }
    }
}
