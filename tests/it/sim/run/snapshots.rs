//! Snapshots of a history: a snapshot is created at a random moment, slowly, while instances work and die; the creation
//! is killed up to twice. At the end of the history the snapshot is restored into another store, the group is set back,
//! and an instance that is killed, then one that is not, read the log again. The state has to be that of the live
//! store.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utxo_store::{
    blob::{BlobStore, SnapshotPlace},
    engine::{Cursor, EngineDecorator, EngineError, RecordEngine, ScanPage, ScanPart, memory::MemoryEngine},
    rng::SplitMix64,
    snapshot::{CreateOptions, Shelf, SnapshotError, create, restore, verify},
    store::{StateStore, digest::survey},
};

use super::Simulation;
use crate::harness::{World, dump};

/// Separate generator for snapshots, so that older seeds keep their runs.
const SNAPSHOTS: u64 = 0x736e_6170;
/// Attempts of one history: each attempt that is killed, or whose hold is lost, is one.
const ATTEMPTS: u64 = 6;

/// Whether a snapshot is created in this history: in an eighth of them, or all with `SIM_SNAPSHOTS=1`.
pub fn is_wanted(rng_seed: u64) -> bool {
    rng_seed % 8 == 3 || std::env::var("SIM_SNAPSHOTS").is_ok_and(|text| text == "1")
}

/// An engine whose scans take time, so that instances write meanwhile.
struct SlowScans {
    inner: Arc<dyn RecordEngine>,
    pause: Duration,
}

impl EngineDecorator for SlowScans {
    fn inner(&self) -> &dyn RecordEngine {
        self.inner.as_ref()
    }

    async fn scan_part(&self, part: ScanPart, cursor: Option<Cursor>, limit: usize) -> Result<ScanPage, EngineError> {
        // Each part has its own pace: the parts show the records of different moments.
        tokio::time::sleep(self.pause * u32::from(1 + part.number)).await;
        self.inner.scan_part(part, cursor, limit).await
    }
}

/// Creation of a snapshot in the background of a history.
pub struct Snapshots {
    shelf: Shelf,
    creating: JoinHandle<Option<String>>,
    rng: SplitMix64,
}

impl Snapshots {
    /// Begins to create a snapshot at a random moment.
    pub fn begin(world: &World, rng_seed: u64) -> Self {
        let mut rng = SplitMix64::new(rng_seed ^ SNAPSHOTS);
        let shelf = Shelf::new(SnapshotPlace::memory());
        let creating = tokio::spawn(create_at_random(world.clone(), shelf.clone(), SplitMix64::new(rng.next_u64())));
        Snapshots { shelf, creating, rng }
    }
}

async fn create_at_random(world: World, shelf: Shelf, mut rng: SplitMix64) -> Option<String> {
    tokio::time::sleep(Duration::from_millis(*rng.pick(&[100, 1_000, 4_000]) + rng.below(3_000))).await;
    let pause = Duration::from_millis(*rng.pick(&[0, 3, 30, 120]));
    let engine: Arc<dyn RecordEngine> = Arc::new(SlowScans { inner: world.memory.clone(), pause });
    let parts = world.parts(&StateStore { engine, ..world.store.clone() });
    let options = CreateOptions {
        parts: *rng.pick(&[1, 2, 7, 256]),
        chunk_bytes: *rng.pick(&[1, 500, 100_000]),
        batch: *rng.pick(&[1, 3, 100]),
        records_per_second: None,
        hold: *rng.pick(&[Duration::from_millis(400), Duration::from_secs(20), Duration::from_secs(3_600)]),
        sign_of_life: Duration::from_millis(20),
    };
    for _ in 0..ATTEMPTS {
        let shutdown = CancellationToken::new();
        let created = create(&world.settings, &parts, &shelf, options, &shutdown, &|_| {});
        let limit = if rng.chance(0.4) { Duration::from_millis(rng.below(400)) } else { Duration::from_secs(3_600) };
        match tokio::time::timeout(limit, created).await {
            // Killed: the next attempt continues, or begins anew.
            Err(_) => tokio::time::sleep(Duration::from_millis(rng.below(300))).await,
            Ok(Ok(report)) => return Some(report.name),
            // No store yet, a lost hold, a restarted node: a later attempt.
            Ok(Err(SnapshotError::Meta(_) | SnapshotError::Discarded(_) | SnapshotError::Group(_))) => {
                tokio::time::sleep(Duration::from_millis(500 + rng.below(2_000))).await;
            }
            Ok(Err(error)) => panic!("the snapshot failed: {error}"),
        }
    }
    None
}

/// A complete snapshot of a history.
pub struct CreatedSnapshot {
    shelf: Shelf,
    name: String,
    rng: SplitMix64,
}

impl Simulation<'_> {
    /// Waits until the creation of the snapshot of the history has ended. Returns the snapshot, if there is one.
    pub(super) async fn wait_for_snapshot(&mut self) -> Result<Option<CreatedSnapshot>, String> {
        let Some(Snapshots { shelf, creating, rng }) = self.snapshots.take() else { return Ok(None) };
        let name = creating.await.map_err(|error| format!("the snapshot panicked: {error}"))?;
        self.observer.count("snapshots", if name.is_some() { "created" } else { "none" });
        Ok(name.map(|name| CreatedSnapshot { shelf, name, rng }))
    }

    /// Restores the snapshot of the history, reads the log again, and compares.
    pub(super) async fn check_snapshot(&self, snapshot: CreatedSnapshot) -> Result<(), String> {
        let CreatedSnapshot { shelf, name, mut rng } = snapshot;
        verify(&shelf, &name, &|_| {}).await.map_err(|error| format!("the snapshot is damaged: {error}"))?;
        let blobs = self.world.store.blobs.as_ref().map(|_| BlobStore::memory());
        let mut other = self.world.beside(Arc::new(MemoryEngine::new(self.world.store.settings.rules)));
        other.store = other.store.with_blobs(blobs);
        let parts = other.parts(&other.store);
        self.wait_until_group_is_empty().await?;
        let mut left = 3;
        loop {
            let shutdown = CancellationToken::new();
            let restored = restore(&other.settings, &parts, &shelf, &name, &shutdown, &|_| {});
            let limit = if left > 0 { Duration::from_millis(rng.below(4)) } else { Duration::from_secs(3_600) };
            match tokio::time::timeout(limit, restored).await {
                Err(_) => left -= 1,
                Ok(Ok(_)) => break,
                // Retention is not simulated, so that only a pruned store refuses.
                Ok(Err(error)) => return Err(format!("the snapshot is not restored: {error}")),
            }
        }
        self.observer.trace("snapshot restored".to_owned());
        let running = other.start();
        tokio::time::sleep(Duration::from_millis(rng.below(3_000))).await;
        running.kill().await;
        let running = other.start();
        other.until_consumed().await;
        running.stop().await;
        // The first start after that makes the store an ordinary one.
        let running = other.start();
        other.until_consumed().await;
        running.stop().await;
        if other.store.meta().await.map_err(|error| error.to_string())?.is_some_and(|meta| meta.restored.is_some()) {
            return Err("the restored store has caught up and does not know it".to_owned());
        }
        self.compare_restored(&other).await
    }

    async fn compare_restored(&self, other: &World) -> Result<(), String> {
        if self.plan.prune_after.is_some() {
            for store in [&self.world.store, &other.store] {
                other.prune_by_hand(store).await;
            }
        }
        let digest =
            async |store| survey(store, |_| {}).await.map(|survey| survey.digest).map_err(|error| error.to_string());
        // The digest, and not the lines of the dump: a transaction that was live at once can be live by a verdict here.
        if digest(&self.world.store).await? == digest(&other.store).await? {
            self.observer.count("snapshots", "restored");
            return Ok(());
        }
        let (live, restored) = (dump(&self.world.store).await, dump(&other.store).await);
        let gone: Vec<_> = live.iter().filter(|line| !restored.contains(line)).collect();
        let new: Vec<_> = restored.iter().filter(|line| !live.contains(line)).collect();
        let story = other.story(&self.world.store).await;
        Err(format!("the restored store differs: live {gone:#?}\nrestored {new:#?}\n{story}"))
    }
}
