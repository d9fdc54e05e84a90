//! Answers of the vault in JSON.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::requests::RescanSource;
use crate::{
    client::submitted::SubmitOutcome,
    record::StoredOutput,
    text::hex_reversed,
    tx::{Network, Outpoint},
    vault::{
        ListedOutput, Lock, LockId, OwnerBalance, PendingRescan, RescanPlace, Reservation, ReserveObstacle,
        SelectedOutputs, Session, Standing, Sum, WatchResult, WatchedOutput, WatchedScript, address_of,
    },
};

/// Answer to a request to watch scripts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WatchAnswer {
    /// Number of scripts that were not watched before.
    pub added: u64,
}

/// Answer to a request to watch scripts no longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnwatchAnswer {
    /// Number of scripts that were watched.
    pub removed: u64,
}

/// Watched scripts of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScriptList {
    /// Scripts, in the order in which they were added.
    pub scripts: Vec<ScriptView>,
}

/// A script that the vault watches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScriptView {
    /// Locking script in hexadecimal digits.
    pub script: String,
    /// Address that the script was made of; `null`: the request had the script.
    pub address: Option<String>,
    /// Time since which the script is watched, milliseconds since the epoch.
    pub watched_at: i64,
}

/// Balance of an owner, in parts that add up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BalanceView {
    /// Height of the tip under which the outputs are mature or not.
    pub height: u32,
    /// Hash of the tip; `null`: the longest chain has no block.
    pub hash: Option<String>,
    /// Time of the oldest answer of the store that counts, milliseconds since the epoch; `null`: none.
    pub as_of: Option<i64>,
    /// Confirmed outputs that are free.
    pub available: Sum,
    /// Outputs that a soft lock has.
    pub soft_locked: Sum,
    /// Outputs that the next block cannot spend.
    pub immature: Sum,
    /// Outputs of unconfirmed transactions whose inputs are all the owner's.
    pub own_unconfirmed: Sum,
    /// Outputs of other unconfirmed transactions.
    pub foreign_unconfirmed: Sum,
    /// Outputs that a command has frozen, or whose transaction is locked.
    pub frozen: Sum,
    /// Outputs of transactions that the store does not know yet.
    pub pending: Sum,
}

/// Outputs of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwnerOutputs {
    /// Outputs in the order of their outpoints.
    pub outputs: Vec<OwnerOutput>,
    /// Outpoint after which the next part begins; `null`: the part is the last.
    pub next: Option<String>,
}

/// An output of an owner, by the last answer of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerOutput {
    /// Outpoint of the output, `txid:vout`.
    pub outpoint: String,
    /// Amount of the output, satoshis.
    pub satoshis: u64,
    /// Locking script in hexadecimal digits.
    pub script: String,
    /// Address of the script; `null`: the script has none.
    pub address: Option<String>,
    /// State of the output.
    pub standing: Standing,
    /// Height of the block of the longest chain that lists the transaction; `null`: unconfirmed.
    pub height: Option<u32>,
    /// Height of the first block that can list a spender; `null`: any block can.
    pub spendable_from: Option<u32>,
    /// All inputs of the transaction are the owner's.
    pub own_change: bool,
    /// Soft lock of the output; `null`: the output is free.
    pub lock_id: Option<LockId>,
    /// Time of the answer of the store, milliseconds since the epoch; `null`: the store was not asked yet.
    pub as_of: Option<i64>,
}

/// Answer to a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReserveAnswer {
    /// Id of the lock.
    pub lock_id: LockId,
    /// Time at which the lock ends by itself, milliseconds since the epoch; `null`: the lock lasts until released.
    pub expires_at: Option<i64>,
}

/// Answer to a release.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReleaseAnswer {
    /// Number of outputs that the lock had.
    pub released: u64,
}

/// Outputs that fund an amount, reserved. `sum = amount + fee + change`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectAnswer {
    /// Id of the lock.
    pub lock_id: LockId,
    /// Time at which the lock ends by itself, milliseconds since the epoch; `null`: the lock lasts until released.
    pub expires_at: Option<i64>,
    /// Outputs that were selected.
    pub outputs: Vec<OwnerOutput>,
    /// Sum of the outputs, satoshis.
    pub sum: u64,
    /// Fee of the transaction, satoshis.
    pub fee: u64,
    /// Amount of the change, satoshis; `null`: the transaction has no change.
    pub change: Option<u64>,
    /// The lock has all outputs. `false`: this is the repeat of an answer whose lock has ended, or has lost an output.
    pub held: bool,
}

/// Locks and sessions of an owner that are in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LockList {
    /// Locks in the order of their ids.
    pub locks: Vec<LockView>,
}

/// A soft lock, or a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LockView {
    /// Id of the lock.
    pub lock_id: LockId,
    /// The lock belongs to a session, which ends with its lease.
    pub session: bool,
    /// Time at which the lock ends by itself, milliseconds since the epoch; `null`: the lock lasts until released.
    pub expires_at: Option<i64>,
}

/// A session with its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    /// Id under which the session reserves outputs.
    pub lock_id: LockId,
    /// Time at which the session ends without a heartbeat, milliseconds since the epoch by the clock of the database.
    pub expires_at: i64,
}

/// Answer to a transaction that was published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpendAnswer {
    /// Id of the transaction.
    pub txid: String,
    /// Topic that has the event.
    pub topic: String,
    /// Number of the partition.
    pub partition: i32,
    /// Offset of the event in the partition.
    pub offset: u64,
    /// Number of new outputs of the owner's scripts that have the lock.
    pub locked_outputs: u64,
    /// Outcome of the transaction; `null` without `wait`.
    pub outcome: Option<SubmitOutcome>,
}

/// Rescans that are not at their ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RescanList {
    /// Parts that are to be read, in the order in which they are.
    pub rescans: Vec<RescanView>,
}

/// A partition, or a store, that is to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RescanView {
    /// Source of the outputs.
    pub source: RescanSource,
    /// Topic; `null`: the source is no log.
    pub topic: Option<String>,
    /// Number of the partition; `null`: the source is no log.
    pub partition: Option<i32>,
    /// Name of the snapshot; `null`: the source is no snapshot.
    pub snapshot: Option<String>,
    /// The next offset to read; of a snapshot, the next chunk.
    pub next: u64,
    /// Offset at which the rescan ends; of a snapshot, the number of its chunks.
    pub end: u64,
}

/// Further members of the problem `states-not-available`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct UnavailableOutputs {
    /// Outputs that cannot be reserved.
    pub outputs: Vec<UnavailableOutput>,
}

/// An output that cannot be reserved.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct UnavailableOutput {
    /// Outpoint of the output, `txid:vout`.
    pub outpoint: String,
    /// `unknown`: the vault has no such output of the owner. `locked`: another lock has the output. `claimed`: an
    /// event names a spender that the store does not show yet. `not-reserved`: the transaction spends an output that
    /// its lock does not have. Otherwise the state of the output.
    pub reason: String,
}

/// Further members of the problem `insufficient-balance`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissingFunds {
    /// Amount, with a fixed fee, satoshis.
    pub asked: u64,
    /// Sum of the free outputs that the request permits, satoshis.
    pub available: u64,
    /// Sum of the outputs that the request permits, and that locks of other ids have, satoshis.
    pub locked: u64,
}

impl OwnerOutput {
    /// Makes the view of an output. `is_locked`: a lock that is in force has the output.
    fn of(output: &WatchedOutput, stored: &StoredOutput, is_locked: bool, network: Network) -> Self {
        OwnerOutput {
            outpoint: output.outpoint.to_string(),
            satoshis: output.satoshis,
            script: hex::encode(&stored.script),
            address: address_of(&stored.script, network),
            standing: output.facts.standing,
            height: output.facts.height,
            spendable_from: output.facts.spendable_from,
            own_change: output.own_change,
            lock_id: output.lock.filter(|_| is_locked),
            as_of: output.asked_at,
        }
    }

    /// Makes the view of an output of a list.
    pub(crate) fn of_listed(listed: &ListedOutput, network: Network) -> Self {
        Self::of(&listed.output, &listed.stored, listed.is_locked, network)
    }
}

impl SelectAnswer {
    /// Makes the answer of a selection.
    pub(crate) fn of(selected: &SelectedOutputs, network: Network) -> Self {
        let SelectedOutputs { lock_id, expires_at, outputs, sum, fee, change, held } = selected;
        let view = |(output, stored): &(WatchedOutput, StoredOutput)| OwnerOutput {
            lock_id: if *held { Some(*lock_id) } else { output.lock },
            ..OwnerOutput::of(output, stored, true, network)
        };
        SelectAnswer {
            lock_id: *lock_id,
            expires_at: *expires_at,
            outputs: outputs.iter().map(view).collect(),
            sum: *sum,
            fee: *fee,
            change: *change,
            held: *held,
        }
    }
}

impl From<OwnerBalance> for BalanceView {
    fn from(OwnerBalance { balance, tip, as_of }: OwnerBalance) -> Self {
        BalanceView {
            height: tip.height,
            hash: tip.hash.map(|hash| hex_reversed(&hash)),
            as_of,
            available: balance.available,
            soft_locked: balance.soft_locked,
            immature: balance.immature,
            own_unconfirmed: balance.own_unconfirmed,
            foreign_unconfirmed: balance.foreign_unconfirmed,
            frozen: balance.frozen,
            pending: balance.pending,
        }
    }
}

impl From<WatchedScript> for ScriptView {
    fn from(WatchedScript { script, address, watched_at }: WatchedScript) -> Self {
        ScriptView { script: hex::encode(script), address, watched_at }
    }
}

impl From<WatchResult> for WatchAnswer {
    fn from(WatchResult { added, .. }: WatchResult) -> Self {
        WatchAnswer { added }
    }
}

impl From<Reservation> for ReserveAnswer {
    fn from(Reservation { lock_id, expires_at }: Reservation) -> Self {
        ReserveAnswer { lock_id, expires_at }
    }
}

impl From<Session> for SessionView {
    fn from(Session { lock_id, expires_at }: Session) -> Self {
        SessionView { lock_id, expires_at }
    }
}

impl From<Lock> for LockView {
    fn from(Lock { id, session, expires_at, .. }: Lock) -> Self {
        LockView { lock_id: id, session, expires_at }
    }
}

impl From<PendingRescan> for RescanView {
    fn from(PendingRescan { place, next, end }: PendingRescan) -> Self {
        let (source, partition, snapshot) = match place {
            RescanPlace::Log(partition) => (RescanSource::Log, Some(partition), None),
            RescanPlace::Store => (RescanSource::Store, None, None),
            RescanPlace::Snapshot(name) => (RescanSource::Snapshot, None, Some(name)),
        };
        let topic = partition.as_ref().map(|partition| partition.topic.to_string());
        RescanView { source, topic, partition: partition.map(|partition| partition.partition), snapshot, next, end }
    }
}

impl UnavailableOutput {
    /// Makes the view of an output that cannot be reserved.
    pub(crate) fn of((outpoint, obstacle): &(Outpoint, ReserveObstacle)) -> Self {
        let reason: &'static str = match obstacle {
            ReserveObstacle::Unknown => "unknown",
            ReserveObstacle::Locked => "locked",
            ReserveObstacle::Claimed => "claimed",
            ReserveObstacle::NotReserved => "not-reserved",
            ReserveObstacle::NotUnspent(standing) => standing.into(),
        };
        UnavailableOutput { outpoint: outpoint.to_string(), reason: reason.to_owned() }
    }
}
