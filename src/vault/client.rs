//! [`VaultClient`]: asks a vault over HTTP (`docs/operating/vault.md`, `schemas/openapi.json`).

use std::{fmt::Write, path::PathBuf, time::Duration};

use super::{
    http::{ClientError, JsonServer},
    model::{
        BalanceView, LockList, OwnerOutputs, ReleaseAnswer, ReleaseRequest, RescanList, RescanRequest, RescanSource,
        ReserveAnswer, ReserveRequest, ScriptList, ScriptName, SelectAnswer, SelectRequest, SessionRequest,
        SessionView, SpendAnswer, SpendRequest, UnwatchAnswer, UnwatchRequest, WatchAnswer, WatchRequest,
    },
    queries::LockCondition,
    types::{LockId, Owner},
};
use crate::{text::bounded_list::BoundedList, tx::Outpoint};

/// Client of a vault. The requests are those of one owner.
///
/// A request that the server did not answer may have been done. A selection with a request id, a reservation and a
/// session with an id of the client's own, and a transaction can be repeated: the repeat has the same answer.
pub struct VaultClient {
    server: JsonServer,
    owner: Owner,
}

impl VaultClient {
    /// Names the vault by its URL (`http://host:port`). `token_file`: file with a token of the role `wallet` and this
    /// owner, or of the role `command`; `None`: the server needs no token.
    ///
    /// # Errors
    /// The URL is none, or the file cannot be read.
    pub fn open(url: &str, owner: Owner, token_file: Option<PathBuf>) -> Result<Self, ClientError> {
        Ok(VaultClient { server: JsonServer::open(url, token_file)?, owner })
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/vault/{}/{rest}", self.owner)
    }

    /// Watches scripts under the name of the owner; needs a token of the role `command`. `rescan`: source of their
    /// earlier outputs.
    ///
    /// # Errors
    /// A script is malformed, of another network, or of another owner.
    pub async fn watch(
        &self,
        scripts: Vec<ScriptName>,
        rescan: Option<RescanSource>,
    ) -> Result<WatchAnswer, ClientError> {
        let request = WatchRequest { scripts: BoundedList(scripts), rescan };
        self.server.post(&self.path("scripts"), &request, Duration::ZERO).await
    }

    /// Ends the watch of scripts; needs a token of the role `command`.
    ///
    /// # Errors
    /// An output of the scripts has a soft lock.
    pub async fn unwatch(&self, scripts: Vec<ScriptName>) -> Result<UnwatchAnswer, ClientError> {
        let request = UnwatchRequest { scripts: BoundedList(scripts) };
        self.server.post(&self.path("scripts:unwatch"), &request, Duration::ZERO).await
    }

    /// Reads the watched scripts after the first `skip`.
    ///
    /// # Errors
    /// The owner has no script.
    pub async fn scripts(&self, skip: u64, limit: u64) -> Result<ScriptList, ClientError> {
        self.server.get(&self.path(&format!("scripts?skip={skip}&limit={limit}"))).await
    }

    /// Reads the balance of the owner.
    ///
    /// # Errors
    /// The owner has no script.
    pub async fn balance(&self) -> Result<BalanceView, ClientError> {
        self.server.get(&self.path("balance")).await
    }

    /// Reads outputs after an outpoint, at most `limit`.
    ///
    /// # Errors
    /// The owner has no script.
    pub async fn outputs(
        &self,
        condition: &LockCondition,
        after: Option<Outpoint>,
        limit: u64,
    ) -> Result<OwnerOutputs, ClientError> {
        let mut path = format!("outputs?limit={limit}&locks={}", condition.name());
        let ids: Vec<String> = condition.lock_ids().iter().map(ToString::to_string).collect();
        if !ids.is_empty() {
            path += &format!("&lockIds={}", ids.join(","));
        }
        if let Some(after) = after {
            write!(path, "&after={after}").unwrap_or_else(|_| unreachable!("a text takes every text"));
        }
        self.server.get(&self.path(&path)).await
    }

    /// Reserves outputs under a lock id, all or none.
    ///
    /// # Errors
    /// The refusal `states-not-available` names the outputs that are unknown, not unspent, or locked by others.
    pub async fn reserve(
        &self,
        lock_id: LockId,
        outpoints: &[Outpoint],
        ttl: Option<Duration>,
    ) -> Result<ReserveAnswer, ClientError> {
        let request = ReserveRequest { lock_id, outpoints: texts(outpoints), ttl_ms: ttl.map(millis) };
        self.server.post(&self.path("outputs:reserve"), &request, Duration::ZERO).await
    }

    /// Releases outputs of a lock; `None`: ends the lock, or the session, with all its outputs.
    ///
    /// # Errors
    /// The owner has no such lock.
    pub async fn release(&self, lock_id: LockId, outpoints: Option<&[Outpoint]>) -> Result<ReleaseAnswer, ClientError> {
        let request = ReleaseRequest { lock_id, outpoints: outpoints.map(texts) };
        self.server.post(&self.path("outputs:release"), &request, Duration::ZERO).await
    }

    /// Selects outputs that fund an amount, and reserves them. `wait`: time to wait for outputs that others have
    /// locked, at most 60 s.
    ///
    /// # Errors
    /// The refusal `insufficient-balance` has the amount, the sum that is available, and the sum that others have
    /// locked.
    pub async fn select(&self, request: &SelectRequest, wait: Duration) -> Result<SelectAnswer, ClientError> {
        let path = self.path(&format!("outputs:select?wait={}", millis(wait)));
        self.server.post(&path, request, wait).await
    }

    /// Reads the locks and sessions that are in force.
    ///
    /// # Errors
    /// The owner has no script.
    pub async fn locks(&self) -> Result<LockList, ClientError> {
        self.server.get(&self.path("locks")).await
    }

    /// Opens a session, whose locks end with its lease.
    ///
    /// # Errors
    /// The lease is longer than permitted, or the id is of another lock.
    pub async fn open_session(
        &self,
        lease: Option<Duration>,
        lock_id: Option<LockId>,
    ) -> Result<SessionView, ClientError> {
        let request = SessionRequest { lock_id, lease_ms: lease.map(millis) };
        self.server.post(&self.path("sessions"), &request, Duration::ZERO).await
    }

    /// Extends the lease of a session.
    ///
    /// # Errors
    /// The refusal `lock-ended` tells that the session has ended, and that its outputs are free for others.
    pub async fn heartbeat(&self, lock_id: LockId, lease: Option<Duration>) -> Result<SessionView, ClientError> {
        let request = SessionRequest { lock_id: Some(lock_id), lease_ms: lease.map(millis) };
        self.server.post(&self.path("sessions:heartbeat"), &request, Duration::ZERO).await
    }

    /// Publishes a transaction in extended format that spends outputs which a lock has, and waits for its outcome.
    /// `wait`: longest wait; zero: the answer comes when the log has the event.
    ///
    /// # Errors
    /// The transaction spends other outputs, the lock has ended, or the log does not answer.
    pub async fn spend(&self, lock_id: LockId, extended: &[u8], wait: Duration) -> Result<SpendAnswer, ClientError> {
        let path = match wait.is_zero() {
            true => self.path("transactions"),
            false => self.path(&format!("transactions?wait=live&timeout_ms={}", millis(wait))),
        };
        let request = SpendRequest { lock_id, transaction: hex::encode(extended) };
        self.server.post(&path, &request, wait).await
    }

    /// Begins a rescan for earlier outputs of all scripts of the owner; needs a token of the role `command`.
    ///
    /// # Errors
    /// The owner has no script, or the server has no such source.
    pub async fn rescan(&self, source: RescanSource) -> Result<RescanList, ClientError> {
        self.server.post(&self.path("rescans"), &RescanRequest { source }, Duration::ZERO).await
    }

    /// Reads the rescans that are not at their ends.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn rescans(&self) -> Result<RescanList, ClientError> {
        self.server.get(&self.path("rescans")).await
    }
}

fn texts(outpoints: &[Outpoint]) -> BoundedList<String> {
    BoundedList(outpoints.iter().map(ToString::to_string).collect())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
