//! Verification of a snapshot: every chunk is read, and the counts are compared with the manifest.

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

use super::{ChunkEntry, CopyProgress, Manifest, OnProgress, Shelf, SnapshotError, Totals, chunk::SnapshotChunk};

/// Chunks that are read at the same time.
pub(super) const CHUNKS_AT_ONCE: usize = 4;

/// Result of a verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Name of the snapshot.
    pub name: String,
    /// Number of chunks that were read.
    pub chunks: u64,
    /// Bytes of all chunks.
    pub bytes: u64,
    /// Counts of all records.
    pub totals: Totals,
}

/// Reads every chunk of a snapshot, and compares checksums, records and sums with the manifest.
///
/// # Errors
/// The first chunk or count that differs.
pub async fn verify(shelf: &Shelf, name: &str, on_progress: OnProgress<'_>) -> Result<VerifyReport, SnapshotError> {
    let manifest = shelf.read_manifest(name).await?;
    manifest.plan.meta_record().map_err(|problem| damaged_plan(name, problem))?;
    let (mut totals, mut progress) = (Totals::default(), CopyProgress::default());
    progress.all_chunks = manifest.chunks.len() as u64;
    let read = async |entry| count(name, entry, shelf.read_chunk(&manifest.plan, entry).await?);
    let counted = stream::iter(&manifest.chunks)
        .map(|entry| {
            let read = &read;
            async move { Ok::<_, SnapshotError>((entry, read(entry).await?)) }
        })
        .buffered(CHUNKS_AT_ONCE);
    let mut counted = std::pin::pin!(counted);
    while let Some((entry, found)) = counted.try_next().await? {
        totals += found;
        progress.chunks += 1;
        progress.bytes += entry.bytes;
        progress.records += entry.records;
        on_progress(progress);
    }
    check_totals(name, &manifest, totals)?;
    Ok(VerifyReport { name: name.to_owned(), chunks: progress.chunks, bytes: progress.bytes, totals })
}

pub(super) fn check_totals(name: &str, manifest: &Manifest, found: Totals) -> Result<(), SnapshotError> {
    if found == manifest.totals {
        return Ok(());
    }
    let (found, expected) = (found.to_string(), manifest.totals.to_string());
    Err(SnapshotError::OtherTotals { name: name.to_owned(), found, expected })
}

pub(super) fn damaged_plan(name: &str, problem: String) -> SnapshotError {
    SnapshotError::Damaged { name: name.to_owned(), object: "manifest.json".to_owned(), problem }
}

pub(super) fn damaged_chunk(name: &str, entry: &ChunkEntry, problem: impl ToString) -> SnapshotError {
    let object = format!("chunks/{:03}-{:06}", entry.part, entry.number);
    SnapshotError::Damaged { name: name.to_owned(), object, problem: problem.to_string() }
}

fn count(name: &str, entry: &ChunkEntry, chunk: SnapshotChunk) -> Result<Totals, SnapshotError> {
    let (mut totals, said) = (Totals::default(), chunk.footer.totals);
    for record in chunk {
        let (_, record) = record.map_err(|error| damaged_chunk(name, entry, error))?;
        totals += Totals::of(&record);
    }
    if totals == said { Ok(totals) } else { Err(damaged_chunk(name, entry, "its counts are not those of its records")) }
}
