//! The scan of a creation: the parts of the store, each in a task of its own, written as chunks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::task::JoinSet;

use super::{
    ChunkEntry, CopyProgress, CreateOptions, OnProgress, Shelf, SnapshotError, SnapshotPlan, Totals,
    chunk::ChunkWriter,
    load::to_snapshot,
    manifest::{BLOCKS, COMMANDS},
    pace::RecordPace,
};
use crate::{
    engine::{Cursor, EngineError, ScanPage, ScanPart, Set},
    store::StateStore,
};

/// Progress of a copy that all parts share.
#[derive(Default)]
struct SharedProgress {
    records: AtomicU64,
    bytes: AtomicU64,
    chunks: AtomicU64,
}

impl SharedProgress {
    fn add(&self, entry: &ChunkEntry) {
        self.records.fetch_add(entry.records, Ordering::Relaxed);
        self.bytes.fetch_add(entry.bytes, Ordering::Relaxed);
        self.chunks.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> CopyProgress {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        CopyProgress {
            records: read(&self.records),
            bytes: read(&self.bytes),
            chunks: read(&self.chunks),
            all_chunks: 0,
        }
    }
}

/// Time between two reports of the progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Scans all parts, each in a task of its own. Returns the chunks by part and number.
pub(super) async fn scan_all(
    store: &StateStore,
    shelf: &Shelf,
    plan: &SnapshotPlan,
    options: CreateOptions,
    on_progress: OnProgress<'_>,
) -> Result<(Vec<ChunkEntry>, Totals), SnapshotError> {
    let progress = Arc::new(SharedProgress::default());
    let pace = Arc::new(RecordPace::new(options.records_per_second));
    // Ten pages a second at least: a page is read as fast as the store gives it.
    let paced_batch = options.records_per_second.map_or(usize::MAX, |records| records.get() as usize / 10);
    let options = CreateOptions { batch: options.batch.min(paced_batch).max(1), ..options };
    // The tasks end with the set.
    let mut tasks = JoinSet::new();
    for part in plan.all_parts() {
        let scan = PartScan {
            store: store.clone(),
            shelf: shelf.clone(),
            plan: plan.clone(),
            part,
            options,
            pace: pace.clone(),
        };
        tasks.spawn(scan.run(progress.clone()));
    }
    let (mut chunks, mut totals) = (Vec::new(), Totals::default());
    loop {
        match tokio::time::timeout(REPORT_INTERVAL, tasks.join_next()).await {
            Err(_) => {}
            Ok(None) => break,
            Ok(Some(Err(error))) => return Err(SnapshotError::Task(error.to_string())),
            Ok(Some(Ok(scanned))) => {
                let (of_part, counted) = scanned?;
                chunks.extend(of_part);
                totals += counted;
            }
        }
        on_progress(progress.read());
    }
    chunks.sort_by_key(|chunk: &ChunkEntry| (chunk.part, chunk.number));
    Ok((chunks, totals))
}

/// Records of the first page of a part. Each page has up to twice the records of the page before.
const FIRST_PAGE: usize = 16;

/// The scan of one part.
struct PartScan {
    store: StateStore,
    shelf: Shelf,
    plan: SnapshotPlan,
    part: u16,
    options: CreateOptions,
    pace: Arc<RecordPace>,
}

impl PartScan {
    /// Continues after the chunks that are complete, up to the end of the part.
    async fn run(self, progress: Arc<SharedProgress>) -> Result<(Vec<ChunkEntry>, Totals), SnapshotError> {
        let name = Shelf::name_of(&self.plan);
        let (mut chunks, mut totals, mut next) = (Vec::new(), Totals::default(), Some(None));
        // A chunk that is damaged is written again, and so is everything behind it.
        while let Ok(Some((chunk, bytes))) = self.shelf.find_chunk(&self.plan, self.part, chunks.len() as u32).await {
            let footer = chunk.footer.clone();
            let Ok(after) = footer.next_cursor() else { break };
            let entry = self.entry(chunks.len() as u32, footer.records, &bytes);
            progress.add(&entry);
            chunks.push(entry);
            totals += footer.totals;
            next = after.map(Some);
            if next.is_none() {
                break;
            }
        }
        let mut page_records = FIRST_PAGE.min(self.options.batch);
        while let Some(cursor) = next {
            let number = chunks.len() as u32;
            let (chunk, after) = self.fill_chunk(number, cursor, &mut page_records).await?;
            let (bytes, footer) = chunk.finish(after.as_ref());
            let entry = self.entry(number, footer.records, &bytes);
            self.shelf.write_chunk(&name, self.part, number, bytes).await?;
            progress.add(&entry);
            chunks.push(entry);
            totals += footer.totals;
            next = after.map(Some);
        }
        Ok((chunks, totals))
    }

    fn entry(&self, number: u32, records: u64, bytes: &[u8]) -> ChunkEntry {
        let blake3 = *blake3::hash(bytes).as_bytes();
        ChunkEntry { part: self.part, number, records, bytes: bytes.len() as u64, blake3 }
    }

    /// Reads records from `cursor` until the chunk is full or the part ends. Returns the position behind the chunk.
    /// `page_records`: records of the next page of the scan. The order of the scan is that of hashes, so that the
    /// largest record of one page is about that of the next: a page of such records is no larger than a chunk.
    async fn fill_chunk(
        &self,
        number: u32,
        mut cursor: Option<Cursor>,
        page_records: &mut usize,
    ) -> Result<(ChunkWriter, Option<Cursor>), SnapshotError> {
        let mut chunk = ChunkWriter::new(self.plan.place(self.part, number));
        loop {
            let page = fetch_part(&self.store, (self.part, self.plan.parts), cursor, *page_records).await?;
            self.pace.wait_after(page.records.len()).await;
            let mut largest = 1;
            for (key, record) in page.records {
                if let Some(record) = to_snapshot(&self.store, key, record).await? {
                    let before = chunk.size();
                    chunk.add(&key, &record);
                    largest = largest.max(chunk.size() - before);
                }
            }
            let fitting = (self.options.chunk_bytes / largest).min(2 * *page_records);
            *page_records = fitting.clamp(1, self.options.batch.max(1));
            cursor = page.next;
            if cursor.is_none() || chunk.size() >= self.options.chunk_bytes {
                return Ok((chunk, cursor));
            }
        }
    }
}

/// Reads the next records of a part: of the blocks, of the commands, or of one of `count` parts of the transactions.
pub(super) async fn fetch_part(
    store: &StateStore,
    (number, count): (u16, u16),
    cursor: Option<Cursor>,
    batch: usize,
) -> Result<ScanPage, EngineError> {
    let engine = &store.engine;
    let send = || async {
        match number {
            BLOCKS => engine.scan(Set::Blocks, cursor.clone(), batch).await,
            COMMANDS => engine.scan(Set::Commands, cursor.clone(), batch).await,
            _ => engine.scan_part(ScanPart { number, count }, cursor.clone(), batch).await,
        }
    };
    store.new_backoff(None).retry(EngineError::may_be_retried, send).await
}
