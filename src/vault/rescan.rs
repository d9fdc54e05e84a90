//! [`Rescan`]: finds earlier outputs of scripts that were added later, in the log, in the store or in a snapshot.
//!
//! A rescan of the log reads each partition up to the position of the vault at the time at which the scripts were
//! added. Its own positions are rows of `rescans`, so that a rescan goes on after a crash.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use tokio_util::sync::CancellationToken;

use super::{
    SourceError, Vault,
    database::{Abort, read, transact},
    error::VaultError,
    follow::{FollowError, add_message},
    matching::{Matches, SeenOutput},
    record::{Recorded, Recorder},
    rows::{self, Columns, int},
    scripts::ScriptTable,
    types::{Owner, ScriptId},
    vault::{find_owner, read_moment},
};
use crate::{
    blob::EventBodies,
    broker::{Broker, TopicPartition, range::LogRange, retry::until_answered},
    config::Topics,
    embed::Store,
    engine::sql::plain::{Kind, Row, Statement},
    record::{Page, Record},
    snapshot::{Manifest, Shelf, SnapshotError},
    store::unspent::{ChainBlocks, UnspentError, UnspentTx, read_unspent},
    tx::Outpoint,
};

/// Outputs that one transaction of the database records, at most.
const OUTPUTS_AT_A_TIME: usize = 5_000;
/// Pages of a snapshot whose outputs one transaction of the database records.
const PAGES_AT_A_TIME: usize = 2_000;

/// Reads the log again for scripts that were added later.
pub struct Rescan {
    /// The vault that records the outputs.
    pub vault: Vault,
    /// The log of the store.
    pub broker: Arc<dyn Broker>,
    /// Topics of the store.
    pub topics: Topics,
    /// Object store with the bodies of large transactions.
    pub bodies: Option<EventBodies>,
    /// Store that this process has open, for rescans of the store.
    pub store: Option<Store>,
    /// Place of the snapshots, for rescans of a snapshot.
    pub snapshots: Option<Shelf>,
}

/// Topic of the rescan of the store: no topic of Kafka has this name.
const STORE: &str = "(store)";
/// First characters of the topic of the rescan of a snapshot, whose name follows.
const SNAPSHOT: &str = "(snapshot) ";

/// Source of a rescan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RescanPlace {
    /// A partition of the log, by offsets.
    Log(TopicPartition),
    /// The store, in one piece.
    Store,
    /// The snapshot with this name, by chunks.
    Snapshot(String),
}

/// A place that is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingRescan {
    /// Source of the outputs.
    pub place: RescanPlace,
    /// The next offset, or the next chunk, to read.
    pub next: u64,
    /// Offset, or number of chunks, at which the rescan ends.
    pub end: u64,
}

/// Part of a partition to read for the scripts of some versions.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RescanPart {
    partition: TopicPartition,
    /// The scripts were added after this version, and up to the other one.
    versions: (i64, i64),
    next: u64,
    end: u64,
}

impl RescanPart {
    fn place(&self) -> RescanPlace {
        match &*self.partition.topic {
            STORE => RescanPlace::Store,
            topic => match topic.strip_prefix(SNAPSHOT) {
                Some(name) => RescanPlace::Snapshot(name.to_owned()),
                None => RescanPlace::Log(self.partition.clone()),
            },
        }
    }
}

/// Outputs and messages of a rescan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RescanReport {
    /// Messages, transactions of the store, or records of a snapshot, that were read.
    pub read: u64,
    /// Outputs that were found, and outputs that a transaction spends.
    pub found: u64,
}

impl Rescan {
    /// Notes what is to be read for the scripts that were added after a version. A rescan that was noted before goes on
    /// beside this one.
    ///
    /// # Errors
    /// The log or the database does not answer.
    pub async fn begin(&self, after_version: i64) -> Result<(), FollowError> {
        let positions = Recorder(&self.vault.database).positions().await?;
        let named = [self.topics.validated_txs.as_str(), self.topics.chain.as_str()];
        let mut parts = Vec::new();
        for position in positions.into_iter().filter(|position| named.contains(&&*position.partition.topic)) {
            let (low, _) = until_answered(|| self.broker.watermarks(&position.partition)).await?;
            if low > 0 {
                tracing::warn!(partition = %position.partition, low, "vault: the rescan finds no events before this");
            }
            parts.push((position.partition, low, position.next_offset));
        }
        Ok(self.note(&parts, after_version).await?)
    }

    /// Notes that the store is to be read for the scripts that were added after a version: for outputs of mined
    /// transactions that the log no longer has.
    ///
    /// # Errors
    /// This process has no store open, or the database does not answer.
    pub async fn begin_store(&self, after_version: i64) -> Result<(), VaultError> {
        self.check_store()?;
        self.note(&[(TopicPartition { topic: STORE.into(), partition: 0 }, 0, 1)], after_version).await
    }

    /// Checks that this process has a store open.
    ///
    /// # Errors
    /// [`VaultError::Invalid`] without a store.
    pub fn check_store(&self) -> Result<(), VaultError> {
        let unset = "this process has no store open (vault.answers_url is set): rescan the log";
        self.store.as_ref().map(drop).ok_or_else(|| VaultError::invalid(unset))
    }

    /// Notes that the newest snapshot is to be read for the scripts that were added after a version. A snapshot reaches
    /// further back than the log, and does not burden the store. What happened since the snapshot is in the log.
    ///
    /// # Errors
    /// No snapshot is there, its place does not answer, or the snapshot is of another network; or the log or the
    /// database does not answer.
    pub async fn begin_snapshot(&self, after_version: i64) -> Result<(), FollowError> {
        let shelf = self.shelf()?;
        let name = shelf.newest().await.map_err(snapshot_error)?;
        let manifest = self.read_manifest(shelf, &name).await?;
        for (partition, offset) in manifest.plan.offsets.to_consumed().validated {
            let partition =
                TopicPartition { topic: self.topics.validated_txs.as_str().into(), partition: partition as i32 };
            let (low, _) = until_answered(|| self.broker.watermarks(&partition)).await?;
            if low > offset {
                tracing::warn!(%partition, offset, low, "vault: events between the snapshot and the log are not found");
            }
        }
        let partition = TopicPartition { topic: format!("{SNAPSHOT}{name}").into(), partition: 0 };
        Ok(self.note(&[(partition, 0, manifest.chunks.len() as u64)], after_version).await?)
    }

    /// Checks that this process can read snapshots, and that one is there.
    ///
    /// # Errors
    /// As [`begin_snapshot`](Self::begin_snapshot).
    pub async fn check_snapshot(&self) -> Result<(), VaultError> {
        self.shelf()?.newest().await.map(drop).map_err(snapshot_error)
    }

    fn shelf(&self) -> Result<&Shelf, VaultError> {
        let unset = || VaultError::invalid("this process reads no snapshots: snapshot.url is not set");
        self.snapshots.as_ref().ok_or_else(unset)
    }

    async fn read_manifest(&self, shelf: &Shelf, name: &str) -> Result<Manifest, VaultError> {
        let manifest = shelf.read_manifest(name).await.map_err(snapshot_error)?;
        let meta = manifest.plan.meta_record().map_err(|problem| VaultError::Source(SourceError(problem)))?;
        let network = self.vault.settings.network.to_string();
        match meta.network == network {
            true => Ok(manifest),
            false => {
                let found = meta.network;
                Err(VaultError::invalid(format!("snapshot {name} is of network {found}, the vault of {network}")))
            }
        }
    }

    async fn note(&self, parts: &[(TopicPartition, u64, u64)], after_version: i64) -> Result<(), VaultError> {
        let noted: Result<(), VaultError> = transact!(self.vault.database, |transaction| async {
            let moment = read_moment(&mut transaction).await?;
            let row = |(partition, low, end): &(TopicPartition, u64, u64)| -> Row {
                vec![
                    rows::text(&partition.topic),
                    int(partition.partition.into()),
                    int(after_version),
                    int(moment.watch_version),
                    rows::amount(*low),
                    rows::amount(*end),
                ]
            };
            let list: Vec<Row> = parts.iter().filter(|(_, low, end)| low < end).map(row).collect();
            let kinds = [Kind::Text, Kind::Int, Kind::Int, Kind::Int, Kind::Int, Kind::Int];
            let statement = Statement::new(
                "INSERT INTO rescans (topic, partition, above_version, up_to_version, next_offset, end_offset) \
                 SELECT k.column1, k.column2, k.column3, k.column4, k.column5, k.column6 FROM {rows} \
                 WHERE k.column1 IS NOT NULL ON CONFLICT (topic, partition, up_to_version, above_version) \
                 DO UPDATE SET end_offset = CASE WHEN rescans.end_offset > excluded.end_offset \
                 THEN rescans.end_offset ELSE excluded.end_offset END",
                &[],
            );
            transaction.execute(&statement.with_rows(&kinds, &list)).await?;
            Ok(())
        });
        noted
    }

    /// Reads everything that is noted, until `shutdown`; a later call goes on. A part that cannot be read does not keep
    /// the others waiting. `read`: counts the messages and transactions.
    ///
    /// # Errors
    /// The first error of a part: the log refuses access, the database does not answer, or a body has no object store.
    pub async fn run(&self, shutdown: &CancellationToken, read: &AtomicU64) -> Result<RescanReport, FollowError> {
        let mut report = RescanReport::default();
        let (mut failed, mut first_error) = (Vec::new(), None);
        while let Some(part) = self.next_part(&failed).await? {
            if shutdown.is_cancelled() {
                break;
            }
            let before = report.read;
            let done = tokio::select! {
                done = self.read_part(&part, &mut report) => done,
                () = shutdown.cancelled() => break,
            };
            read.fetch_add(report.read - before, Relaxed);
            if let Err(error) = done {
                tracing::warn!(partition = %part.partition, %error, "vault: a rescan waits");
                first_error = first_error.or(Some(error));
                failed.push(part);
            }
        }
        first_error.map_or(Ok(report), Err)
    }

    /// Reads the parts that are not at their ends.
    async fn parts(&self) -> Result<Vec<RescanPart>, VaultError> {
        read!(self.vault.database, |transaction| async {
            let statement = Statement::new(
                "SELECT topic, partition, above_version, up_to_version, next_offset, end_offset FROM rescans \
                 ORDER BY up_to_version, above_version, topic, partition",
                &[],
            );
            let kinds = [Kind::Text, Kind::Int, Kind::Int, Kind::Int, Kind::Int, Kind::Int];
            let part = |row: Row| -> Result<RescanPart, Abort> {
                let mut columns = Columns::of(row);
                let partition = TopicPartition { topic: columns.text()?.into(), partition: columns.number()? };
                let versions = (columns.int()?, columns.int()?);
                Ok(RescanPart { partition, versions, next: columns.number()?, end: columns.number()? })
            };
            transaction.fetch_all(&statement, &kinds).await?.into_iter().map(part).collect::<Result<Vec<_>, _>>()
        })
    }

    /// Returns the first part that this process can read, besides parts that have failed.
    async fn next_part(&self, failed: &[RescanPart]) -> Result<Option<RescanPart>, VaultError> {
        let parts = self.parts().await?;
        let key = |part: &RescanPart| (part.partition.clone(), part.versions);
        let has_source = |part: &RescanPart| match part.place() {
            RescanPlace::Log(_) => true,
            RescanPlace::Store => self.store.is_some(),
            RescanPlace::Snapshot(_) => self.snapshots.is_some(),
        };
        let is_readable = |part: &RescanPart| has_source(part) && failed.iter().all(|failed| key(failed) != key(part));
        Ok(parts.into_iter().find(is_readable))
    }

    async fn read_part(&self, part: &RescanPart, report: &mut RescanReport) -> Result<(), FollowError> {
        match part.place() {
            RescanPlace::Log(_) => self.read_partition(part, report).await,
            RescanPlace::Snapshot(name) => match self.shelf()?.read_manifest(&name).await {
                Ok(manifest) => Ok(self.read_snapshot(part, &name, &manifest, report).await?),
                Err(SnapshotError::Unknown(_)) => {
                    tracing::warn!(snapshot = name, "vault: a rescan ends, because its snapshot was deleted");
                    Ok(self.note_progress(part, part.end).await?)
                }
                Err(error) => Err(snapshot_error(error).into()),
            },
            RescanPlace::Store => {
                let store = self.store.as_ref().ok_or_else(|| VaultError::invalid("this process has no store open"))?;
                let found = self.read_store(store, part.versions.0).await?;
                (report.read, report.found) = (report.read + found.read, report.found + found.found);
                Ok(self.note_progress(part, part.end).await?)
            }
        }
    }

    /// Reads the chunks of a snapshot. The outputs are those that the events of its transactions have: the store is
    /// asked about each.
    async fn read_snapshot(
        &self,
        part: &RescanPart,
        name: &str,
        manifest: &Manifest,
        report: &mut RescanReport,
    ) -> Result<(), VaultError> {
        let shelf = self.shelf()?;
        let page_size = manifest.plan.meta_record().map_err(|problem| VaultError::Source(SourceError(problem)))?;
        let page_size = page_size.utxo_batch_size;
        let mut scripts = self.vault.scripts_between(part.versions).await?;
        for (entry, number) in manifest.chunks.iter().zip(0..).skip(part.next as usize) {
            let chunk = shelf.read_chunk(&manifest.plan, entry).await.map_err(snapshot_error)?;
            let pages: Vec<Arc<Page>> = chunk
                .filter_map(|record| match record {
                    Ok((_, Record::Page(page))) => Some(Ok(page)),
                    Ok(_) => None,
                    Err(error) => Some(Err(VaultError::Source(SourceError(format!("snapshot {name}: {error}"))))),
                })
                .collect::<Result<_, _>>()?;
            for pages in pages.chunks(PAGES_AT_A_TIME) {
                loop {
                    let mut matches = Matches::default();
                    for page in pages {
                        matches.add_page(page, page.number.saturating_mul(page_size), &scripts);
                    }
                    if self.record(part, matches, &mut scripts, report).await? {
                        break;
                    }
                }
            }
            report.read += entry.records;
            self.note_progress(part, number + 1).await?;
        }
        self.note_progress(part, part.end).await
    }

    async fn read_partition(&self, part: &RescanPart, report: &mut RescanReport) -> Result<(), FollowError> {
        let mut scripts = self.vault.scripts_between(part.versions).await?;
        // The retention of the topic has dropped events since, or the topic was created again.
        let (low, high) = until_answered(|| self.broker.watermarks(&part.partition)).await?;
        let (next, end) = (part.next.max(low), part.end.min(high));
        if (next, end) != (part.next, part.end) {
            let partition = &part.partition;
            tracing::warn!(%partition, part.next, part.end, low, high, "vault: a rescan misses events");
        }
        if next >= end {
            return Ok(self.note_progress(part, part.end).await?);
        }
        let mut range = LogRange::open(self.broker.as_ref(), &part.partition, next, end).await?;
        while let Some(messages) = range.next().await? {
            let Some(last) = messages.last().map(|message| message.offset) else { continue };
            loop {
                let mut matches = Matches::default();
                for message in &messages {
                    add_message(&mut matches, &part.partition, message, &scripts, self.bodies.as_ref()).await?;
                }
                matches.touched.clear();
                if self.record(part, matches, &mut scripts, report).await? {
                    break;
                }
            }
            report.read += messages.len() as u64;
            self.note_progress(part, last + 1).await?;
        }
        Ok(self.note_progress(part, part.end).await?)
    }

    /// Records matches. Returns `false` where a script was added or removed meanwhile: the matches with the present
    /// scripts are recorded next.
    async fn record(
        &self,
        part: &RescanPart,
        mut matches: Matches,
        scripts: &mut ScriptTable,
        report: &mut RescanReport,
    ) -> Result<bool, VaultError> {
        matches.merge_repeats();
        match Recorder(&self.vault.database).record_rescanned(&matches, scripts.version).await? {
            Recorded::Done => {
                report.found += matches.outputs.len() as u64;
                Ok(true)
            }
            Recorded::OtherScripts => {
                *scripts = self.vault.scripts_between(part.versions).await?;
                Ok(false)
            }
        }
    }

    /// Notes the next offset of a part, and removes a part that was read.
    async fn note_progress(&self, part: &RescanPart, next: u64) -> Result<(), VaultError> {
        transact!(self.vault.database, |transaction| async {
            let place = [
                rows::text(&part.partition.topic),
                int(part.partition.partition.into()),
                int(part.versions.1),
                rows::amount(next),
                int(part.versions.0),
            ];
            let statement = match next >= part.end {
                true => Statement::new(
                    "DELETE FROM rescans WHERE topic = $1 AND partition = $2 AND up_to_version = $3 \
                     AND above_version = $5 AND end_offset <= $4",
                    &place,
                ),
                false => Statement::new(
                    "UPDATE rescans SET next_offset = $4 WHERE topic = $1 AND partition = $2 AND up_to_version = $3 \
                     AND above_version = $5",
                    &place,
                ),
            };
            transaction.execute(&statement).await?;
            Ok(())
        })
    }

    /// Returns the number of the change that has added the first script of an owner.
    ///
    /// # Errors
    /// The owner has no script, or the database does not answer.
    pub async fn first_version(&self, owner: &Owner) -> Result<i64, VaultError> {
        read!(self.vault.database, |transaction| async {
            let values = [int(find_owner(&mut transaction, owner).await?)];
            let statement = Statement::new("SELECT min(watch_version) FROM scripts WHERE owner_id = $1", &values);
            let row = transaction.fetch_all(&statement, &[Kind::Int]).await?.pop();
            let version = row.map(|row| Columns::of(row).optional_int()).transpose()?.flatten();
            Ok(version.ok_or_else(|| VaultError::NoOwner(owner.to_string()))?)
        })
    }

    /// Reads the rescans that are not at their ends.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn pending(&self) -> Result<Vec<PendingRescan>, VaultError> {
        let pending = |part: RescanPart| PendingRescan { place: part.place(), next: part.next, end: part.end };
        Ok(self.parts().await?.into_iter().map(pending).collect())
    }

    /// Finds mined outputs of scripts that were added after a version, in the store. Unmined transactions are found in
    /// the log.
    async fn read_store(&self, store: &Store, after_version: i64) -> Result<RescanReport, VaultError> {
        let store = store.state_store();
        let mut scripts = self.vault.scripts_between((after_version, i64::MAX)).await?;
        let failed = |error: UnspentError| VaultError::Source(SourceError(error.to_string()));
        let blocks = ChainBlocks::read(store).await.map_err(|error| failed(error.into()))?;
        let (mut found, mut read) = (Vec::new(), 0);
        read_unspent(store, &blocks, |tx: UnspentTx| -> Result<(), UnspentError> {
            read += 1;
            for (vout, output) in &tx.outputs {
                if let Some((owner, script)) = scripts.scripts.get(&output.script).copied() {
                    let outpoint = Outpoint { txid: tx.txid, vout: *vout };
                    let satoshis = output.satoshis;
                    found.push(SeenOutput { outpoint, owner, script, satoshis, own_change: false });
                }
            }
            Ok(())
        })
        .await
        .map_err(failed)?;
        let report = RescanReport { read, found: found.len() as u64 };
        for part in found.chunks(OUTPUTS_AT_A_TIME) {
            let mut matches = Matches { outputs: part.to_vec(), ..Matches::default() };
            while Recorder(&self.vault.database).record_rescanned(&matches, scripts.version).await? != Recorded::Done {
                // An output of a script that was removed meanwhile is left out.
                scripts = self.vault.scripts_between((after_version, i64::MAX)).await?;
                let known: HashSet<ScriptId> = scripts.scripts.values().map(|(_, script)| *script).collect();
                matches.outputs.retain(|seen| known.contains(&seen.script));
            }
        }
        Ok(report)
    }
}

/// Makes the answer to an error of a snapshot: a missing snapshot is an error of the request.
fn snapshot_error(error: SnapshotError) -> VaultError {
    match error {
        SnapshotError::NoSnapshot | SnapshotError::Unknown(_) | SnapshotError::Unfinished(_) => {
            VaultError::invalid(error.to_string())
        }
        other => VaultError::Source(SourceError(other.to_string())),
    }
}
