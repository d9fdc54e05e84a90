//! Snapshots of a store in an object store: create beside running instances, restore into an empty store of any engine,
//! verify, list, delete (`docs/protocols/snapshot.md`).
//!
//! A snapshot has the committed offsets of the group, which are read first, and then all records as a scan finds them
//! while instances write. Each record is thus as a restarted node leaves it: with every change of the events below the
//! offsets, and with some of the later ones. A restored store reads the log again from the offsets, under the rules for
//! a store that has lost writes.
//!
//! | object | content |
//! |---|---|
//! | `NAME/plan.json` | what was read before the scan; written first ([`SnapshotPlan`]) |
//! | `NAME/chunks/PPP-NNNNNN` | records of one part of the scan ([`chunk`]) |
//! | `NAME/manifest.json` | the plan, all chunks and the totals; written last ([`Manifest`]) |

pub(crate) mod bulk_load;
pub mod chunk;
mod create;
mod error;
#[cfg(test)]
mod golden_tests;
mod load;
mod manifest;
mod migrate;
mod pace;
mod restore;
mod scan;
mod shelf;
mod totals;
mod verify;

pub use create::{CreateOptions, CreateReport, create};
pub use error::SnapshotError;
#[cfg(feature = "testkit")]
pub use manifest::Offsets;
pub use manifest::{ChunkEntry, FORMAT, Manifest, SnapshotPlan};
pub use migrate::MigrateError;
pub use migrate::{MigrateReport, MigratedStores, migrate, undo_migration};
pub use restore::{RestoreReport, first_offsets, restore};
pub use shelf::{FoundSnapshot, Shelf};
pub use totals::Totals;
pub use verify::verify;

/// Receives the progress of a snapshot: records and bytes so far, and all chunks where their number is known.
pub type OnProgress<'a> = &'a (dyn Fn(CopyProgress) + Send + Sync);

/// CopyProgress of a snapshot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyProgress {
    /// Records that are done.
    pub records: u64,
    /// Bytes of complete chunks.
    pub bytes: u64,
    /// Number of chunks that are complete.
    pub chunks: u64,
    /// Number of all chunks; 0 while it is not known.
    pub all_chunks: u64,
}
