//! Bodies of transactions that are too large for a record: [`BlobStore`], on any object store that [`object_store`]
//! supports.
//!
//! A blob is written once, before the records that need it, under a name that follows from its transaction
//! ([`BlobName`]). The record's `external` bin refers to the blob. The order is: blob, child pages, master
//! (`docs/design.md`); the blob is deleted last.
//!
//! The reference document (`003_f428a83e5197ea21.txt`, "External Blob Storage") lets the last writer overwrite a blob.
//! Here the first blob stays, and a body with other content gets a name of its own, by its content hash. No blob ever
//! changes, so that the reference in a record stays valid.
//!
//! | blob | content |
//! |---|---|
//! | `ab/ab…cd.tx` | transaction in extended format, as in its event; a coinbase also in standard format |
//! | `ab/ab…cd.outputs` | [`PartialTx`] |
//! | `ab/ab…cd.0123…cdef.tx`, `….outputs` | body that differs from the first blob, named by its content's BLAKE3 |
//!
//! A blob begins with eight bytes of header, as the files of the reference system. The record has the BLAKE3 of the
//! content. The object `utxo-store.blobs` marks the place as the blob store of one store of records
//! ([`BlobStore::claim`]). `staging/` holds objects that are being written in parts.

mod by_reference;
mod cache;
mod check;
mod claim;
#[cfg(feature = "testkit")]
pub mod conformance;
mod directory;
mod error;
mod event_bodies;
#[cfg(feature = "testkit")]
pub mod fault;
mod frame;
mod name;
pub mod objects;
mod open;
mod outputs;
mod pieces;
mod requests;
mod snapshot_place;
mod store;
mod url;
mod verified;

pub(crate) use by_reference::find_outputs_by_hash;
pub use error::BlobError;
pub use event_bodies::{EventBodies, EventBodyLimits};
pub use name::BlobName;
pub use open::{BlobAccess, Intent, OpenBlobError, open, open_event_bodies, open_objects, open_snapshots};
pub use outputs::PartialTx;
pub use pieces::TxPieces;
pub use snapshot_place::SnapshotPlace;
pub use store::{BlobOptions, BlobStore, PutOutcome, Reuse};
pub use url::{BlobUrl, BlobUrlError, Bucket};

pub use crate::telemetry::{BlobErrorKind, BlobKind};

#[cfg(test)]
mod claim_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod tests;
